"""The phone-book lab: numbers of the reader's own written digit by digit into one state, and read back."""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import numbers
from lumen.explore.prose.writes import WRITES

DECAY = 0.98  # what a digit leaves of the state in the rules that fade
WIDEST, LONGEST = 256, 400  # key width; digits in all
BOOK = "Ann 5550142\nBob 5550178\nCem 5550193\nAnn 5550117"
RECORDED = (("linear", 64), ("delta", 64), ("delta", 16))


@dataclass(frozen=True)
class Recalled:
    """One run: every name's number as it was told last, and as the state gave it back."""

    rule: str
    width: int
    told: dict[str, str]
    answers: dict[str, str]
    digits: int  # written in all, those that were told again included

    @property
    def right(self) -> int:
        return sum(
            a == b for name in self.told for a, b in zip(self.told[name], self.answers[name], strict=True)
        )


def lines_of(text: str) -> list[tuple[str, str]]:
    """(name, number) of every line, in order: the last word of a line is its number. ValueError, a sentence, else."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, number = line.rpartition(" ")
        if not name.strip() or not (number.isascii() and number.isdigit()):
            raise ValueError(f"A line is a name and a number, such as “Ann 5550142”; got “{line}”.")
        found.append((name.strip(), number))
    if not found:
        raise ValueError("Tell the state one number at least: a name, a blank, digits.")
    if sum(len(number) for _, number in found) > LONGEST:
        raise ValueError(f"The lab takes {LONGEST} digits in all.")
    return found


class PhoneBook:
    """Writes phone books into states and keeps every run, so that rules and widths can be compared."""

    def __init__(self) -> None:
        self.runs: list[Recalled] = []

    def run(self, text: str, rule: str, width: int, draw: int = 0) -> Recalled:
        """Write digit by digit, then ask for each: the key is name and place, the value the nearest of ten digits.

        Every key is a direction of its own, drawn from its name and `draw`: two names share nothing. A name told
        twice is asked for its newest number.
        """
        import torch
        import torch.nn.functional as F

        from lumen.attention.linear import recurrent

        if rule not in WRITES or not 1 <= width <= WIDEST:
            raise ValueError(f"The width is 1 to {WIDEST} and the rule one of {', '.join(WRITES)}.")
        lines = lines_of(text)

        def direction(name: str) -> torch.Tensor:
            stream = torch.Generator().manual_seed(zlib.crc32(name.encode(), draw))
            return F.normalize(torch.randn(width, generator=stream), dim=0)

        def keys_of(name: str, number: str) -> list[torch.Tensor]:
            return [direction(f"{name}/{place}") for place in range(len(number))]

        table = torch.stack([direction(f"digit {digit}") for digit in range(10)])
        keys = torch.stack([key for line in lines for key in keys_of(*line)])
        values = table[[int(digit) for _, number in lines for digit in number]]
        ones = torch.ones(1, 1, len(keys))
        _, state = recurrent(
            keys[None, None], keys[None, None], values[None, None],
            log_decay=ones * torch.tensor(DECAY).log() if rule.startswith("gated") else None,
            beta=ones if "delta" in rule else None,
        )  # fmt: skip
        told = dict(lines)
        answers = {}
        for name, number in told.items():
            given = torch.stack(keys_of(name, number)) @ state[0, 0]  # (digits, width)
            answers[name] = "".join(map(str, (given @ table.T).argmax(-1).tolist()))
        self.runs.append(Recalled(rule, width, told, answers, len(keys)))
        return self.runs[-1]

    def report(self) -> str:
        """The last run as HTML."""
        run = self.runs[-1]
        asked = sum(map(len, run.told.values()))
        items = [
            ("digits right", f"{run.right} of {asked}"),
            ("numbers in the state", f"{run.width**2:,}"),
            ("as keys and values", f"{2 * run.digits * run.width:,}"),
        ]
        return numbers(items) + book(run)

    def widget(self, text: str, rule: str, width: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}
        self.text = w.Textarea(value=text, rows=5, description="Tell it", layout=wide, style=style)
        self.rule = w.Dropdown(
            options=[(says, name) for name, says in WRITES.items()], value=rule, description="A write will",
            layout=wide, style=style,
        )  # fmt: skip
        self.width = w.BoundedIntText(
            value=width, min=1, max=WIDEST, description="Width D", layout=wide, style=style
        )
        self.button = w.Button(
            description="Ask",
            button_style="primary",
            tooltip="Write the book into one state and read it back",
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed)
        return w.VBox([self.text, self.rule, self.width, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.text.value, self.rule.value, self.width.value)
        return self.report()


def book(run: Recalled) -> str:
    """Told and remembered side by side, wrong digits underlined."""

    def shown(name: str) -> str:
        marks = []
        for wanted, got in zip(run.told[name], run.answers[name], strict=True):
            wrong = f'<u style="color:{ink.orange};font-weight:600">{got}</u>'
            marks.append(got if wanted == got else wrong)
        return "".join(marks)

    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{run.told[name]}</td><td>{shown(name)}</td></tr>"
        for name in run.told
    )
    return (
        '<table style="margin:8px 0;border-spacing:14px 2px;border-collapse:separate">'
        "<thead><tr><th>name</th><th>told last</th><th>remembered</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def phone_book_lab(
    text: str = BOOK,
    *,
    rule: str = "delta",
    width: int = 64,
    recorded: Sequence[tuple[str, int]] = RECORDED,
) -> PhoneBook:
    """Show the lab and return it. On the static page stand recorded runs of the same book.

    >>> lab = phone_book_lab("Ann 5550142", rule="linear", width=8)
    """
    lab = PhoneBook()
    sentence = why_static()
    if sentence is None:
        display(lab.widget(text, rule, width))
    else:
        shown = []
        for name, wide in recorded:
            run = lab.run(text, name, wide)
            shown.append(
                f'<div style="margin:12px 0"><b>{html.escape(WRITES[name])}, D = {run.width}</b>{lab.report()}</div>'
            )
        show_recorded(sentence.replace("the run", "the runs"), "".join(shown))
    return lab
