"""The stall lab: an answer is streamed, and somebody else's long prompt comes in between. Every gap is shown."""

from __future__ import annotations

import html
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers
from lumen.loadgen import Record, percentile

BARS = 96  # the widest run; more tokens than bars would be pixels


class StallLab:
    """Runs one answer with interruptions and keeps its record; widget and recorded page both show `report()`."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.record: Record | None = None

    def run(self, prompt: str, tokens: int, length: int, every: int) -> Record:
        """`tokens` tokens of answer; before every `every`-th one a prompt of `length` tokens is read (0: never)."""
        import torch

        from lumen.bench import token_times

        ids = self.tokenizer.encode(prompt)
        dice = torch.Generator().manual_seed(0)
        shape = (1, max(1, length))
        other = torch.randint(self.model.config.vocab_size, shape, generator=dice)
        other = other.to(next(self.model.parameters()).device)

        def interrupt(step: int) -> None:
            if length and step and step % every == 0:
                self.model.head(self.model.hidden(other)[:, -1])

        times = token_times(self.model, ids, tokens, interrupt)
        self.record = Record.of_tokens(times, prompt_len=len(ids))
        return self.record

    def report(self) -> str:
        """The last run as HTML: a bar for every gap, then the statistics of the gaps."""
        done = self.record
        assert done is not None
        gaps = done.itl
        top = max(gaps)
        bars = "".join(
            f'<i style="flex:1 1 0;background:{ink.orange if gap > 3 * percentile(gaps, 50) else ink.blue};'
            f'height:{max(1, round(100 * gap / top))}%"></i>'
            for gap in gaps
        )
        words = f"{len(gaps)} gaps between tokens, the longest {milliseconds(top)}"
        chart = (
            f'<div role="img" aria-label="{words}" style="display:flex;align-items:flex-end;gap:1px;height:110px;'
            f'margin:8px 0">{bars}</div>'
        )
        return chart + numbers(
            [
                ("TTFT", milliseconds(done.ttft)),
                ("TPOT, the mean gap", milliseconds(done.tpot)),
                ("median gap", milliseconds(percentile(gaps, 50))),
                ("p99 gap", milliseconds(percentile(gaps, 99))),
                ("longest gap", milliseconds(top)),
            ]
        )

    def widget(self, prompt: str, tokens: int, length: int, every: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "11em"}
        self.prompt = w.Text(value=prompt, description="Prompt", layout=wide, style=style)
        self.tokens = w.IntSlider(
            value=tokens, min=2, max=BARS, description="Tokens of answer", layout=wide, style=style
        )
        self.length = w.IntSlider(
            value=length, min=0, max=2048, step=64, description="The other prompt", layout=wide, style=style
        )
        self.every = w.IntSlider(
            value=every, min=1, max=BARS, description="Before every … token", layout=wide, style=style
        )
        self.button = w.Button(description="Stream", button_style="primary", tooltip="Stream one answer")
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Streaming…")
        return w.VBox([self.prompt, self.tokens, self.length, self.every, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.prompt.value, self.tokens.value, self.length.value, self.every.value)
        return self.report()


def stall_lab(
    model: Any,
    tokenizer: Any,
    *,
    prompt: str = "The evening sky is red because",
    tokens: int = 48,
    length: int = 256,
    every: int = 20,
) -> StallLab:
    """Show the lab and return it.

    >>> stall_lab(model, tokenizer);  # end with a semicolon
    """
    lab = StallLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(prompt, tokens, length, every))
    else:
        lab.run(prompt, tokens, length, every)
        said = f"{tokens} tokens behind “{prompt}”; before every {every}th token a prompt of {length} is read first"
        show_recorded(sentence, f'<p style="opacity:.75">{html.escape(said)}</p>' + lab.report())
    return lab
