"""The budget lab: answers are being written, a long prompt arrives, and the reader sets the token budget."""

from __future__ import annotations

import html
import random
from itertools import pairwise
from statistics import median
from typing import Any

from IPython.display import display

from lumen.bench.interference import Meeting, meet
from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers

BUDGETS = (16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXT, AFTER = 48, 24


class BudgetLab:
    """Runs the engine once per setting and keeps every run, so that settings can be compared."""

    def __init__(self, model: Any):
        self.model = model
        self.runs: list[tuple[int, int, Meeting]] = []  # answers, prompt length, run

    def run(self, budget: int, length: int, answers: int) -> Meeting:
        """One run of the real engine; random tokens cost what real ones do."""
        draw = random.Random(0)
        top = self.model.config.vocab_size
        prompts = [[draw.randrange(top) for _ in range(CONTEXT)] for _ in range(answers)]
        long = [draw.randrange(top) for _ in range(length)]
        done = meet(self.model, prompts, long, budget, after=AFTER)
        self.runs.append((answers, length, done))
        return done

    def report(self) -> str:
        """The last run as HTML: a bar for every gap of one answer, its statistics, and the runs before."""
        answers, length, done = self.runs[-1]
        line = done.times[0]
        gaps = [b - a for a, b in pairwise(line)]
        top, chunks = max(gaps), sum(any(n > 1 for _, n in pieces) for *_, pieces in done.steps)
        bars = "".join(
            f'<i style="flex:1 1 0;background:{ink.orange if end <= done.ttft + 1e-9 else ink.blue};'
            f'height:{max(1, round(100 * gap / top))}%"></i>'
            for gap, end in zip(gaps, line[1:], strict=True)
        )
        words = f"{len(gaps)} gaps between the tokens of one answer, the longest {milliseconds(top)}"
        chart = (
            f'<div role="img" aria-label="{words}" style="display:flex;align-items:flex-end;gap:1px;height:110px;'
            f'margin:8px 0">{bars}</div>'
        )
        shown = numbers(
            [
                (f"steps that read the prompt of {length} (orange)", str(chunks)),
                (f"longest gap of {answers} answers", milliseconds(max(done.gaps))),
                ("a step of the answers alone", milliseconds(median(done.alone))),
                ("TTFT of the long prompt", milliseconds(done.ttft)),
            ]
        )
        before = "".join(
            f"<li>budget {run.budget}, prompt {size}, {count} answers: "
            f"longest gap {milliseconds(max(run.gaps))}, TTFT {milliseconds(run.ttft)}</li>"
            for count, size, run in self.runs[-6:]
        )
        return chart + shown + f'<ul style="margin:12px 0 0;padding-left:20px">{before}</ul>'

    def widget(self, budget: int, length: int, answers: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "10em"}
        self.budget = w.SelectionSlider(
            options=BUDGETS, value=budget, description="Token budget", layout=wide, style=style
        )
        self.length = w.IntSlider(
            value=length, min=64, max=2048, step=64, description="The long prompt", layout=wide, style=style
        )
        self.answers = w.IntSlider(
            value=answers, min=1, max=12, description="Answers", layout=wide, style=style
        )
        self.button = w.Button(
            description="Run", button_style="primary", tooltip="Let the long prompt arrive"
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Running…")
        return w.VBox([self.budget, self.length, self.answers, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.budget.value, self.length.value, self.answers.value)
        return self.report()


def budget_lab(model: Any, *, budget: int = 64, length: int = 512, answers: int = 4) -> BudgetLab:
    """Show the lab and return it. A run takes a few seconds on two cores.

    >>> budget_lab(model);  # end with a semicolon
    """
    lab = BudgetLab(model)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(budget, length, answers))
    else:
        lab.run(max(BUDGETS), length, answers)
        lab.run(budget, length, answers)
        said = (
            f"{answers} answers are being written when a prompt of {length} tokens arrives; budget {budget}"
        )
        show_recorded(sentence, f'<p style="opacity:.75">{html.escape(said)}</p>' + lab.report())
    return lab
