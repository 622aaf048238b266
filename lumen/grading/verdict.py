"""What a check says: NOT STARTED, WRONG (and why), or RIGHT, as short text that is the same on every run and device.

A `Verdict` is the value of a notebook cell. Its text holds no time, no address and no measured number, so a
stored notebook can be compared with a fresh run character by character. The HTML adds a coloured edge and
nothing else: text keeps the colour of the page, so it reads in light and dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

NOT_STARTED, WRONG, RIGHT = "NOT STARTED", "WRONG", "RIGHT"
MARKS = {NOT_STARTED: "○", WRONG: "✗", RIGHT: "✓"}
EDGES = {NOT_STARTED: "#8a8a8a", WRONG: "#d9622b", RIGHT: "#2e9e5b"}  # 3:1 at least on white and on #121212
LONGEST = 400  # characters of one line that came from the reader's code


class GradingError(AssertionError):
    """Anything but RIGHT, in strict mode. Its message is the verdict's text."""


class Wrong(Exception):
    """Raised inside a check when the answer fails. Every field is a sentence or a short value, and may be empty.

    `slip` guesses at the cause, and the verdict says so ("often because"); `where` is known: a line of the code.
    """

    def __init__(self, case: str = "", gave: str = "", wanted: str = "", slip: str = "", where: str = ""):
        super().__init__(slip or where or wanted or gave or case)
        self.case, self.gave, self.wanted, self.slip, self.where = case, gave, wanted, slip, where


class NotStarted(Exception):
    """Raised inside a check when there is nothing to grade yet; the message says what is missing."""


@dataclass(frozen=True)
class Verdict:
    """The result of one check. `str(verdict)` is the text; `verdict.right` is the answer in one word."""

    exercise: str
    title: str
    state: str
    points: int
    out_of: int
    case: str = ""
    gave: str = ""
    wanted: str = ""
    slip: str = ""
    where: str = ""
    note: str = ""

    @property
    def right(self) -> bool:
        return self.state == RIGHT

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The labelled lines below the headline."""
        names = {
            "case": self.case,
            "gave": self.gave,
            "wanted": self.wanted,
            "where": self.where,
            "often because:": self.slip,
        }
        return [(label, text) for label, text in names.items() if text]

    @property
    def reason(self) -> str:
        """The labelled lines and the note, without the headline: what the tests look into."""
        return "\n".join(
            [
                *(f"{label.strip(':')}: {text}" for label, text in self.rows),
                *([self.note] if self.note else []),
            ]
        )

    @property
    def headline(self) -> str:
        points = f"{self.points} of {self.out_of} point{'s' if self.out_of != 1 else ''}"
        return f"{self.exercise} · {self.title} · {points}"

    def __str__(self) -> str:
        lines = [f"{self.state}  {self.headline}"]
        lines += [f"  {label:<6} {text}" for label, text in self.rows]
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])

    __repr__ = __str__

    def to_html(self) -> str:
        rows = "".join(f"<div><i>{label}</i> {inline(text)}</div>" for label, text in self.rows)
        note = f"<div>{inline(self.note)}</div>" if self.note else ""
        return box(self.state, f"<b>{MARKS[self.state]} {self.state}</b> {inline(self.headline)}{rows}{note}")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.to_html()}

    def with_tidy_lines(self) -> Verdict:
        """The same verdict with every field on one line, cut to a readable length, addresses removed."""
        return replace(
            self,
            case=tidy(self.case),
            gave=tidy(self.gave),
            wanted=tidy(self.wanted),
            slip=tidy(self.slip),
            where=tidy(self.where),
            note=tidy(self.note),
        )


def tidy(text: str) -> str:
    """One line, no memory address, at most `LONGEST` characters."""
    line = re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", " ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def inline(text: str) -> str:
    """HTML of a sentence: escaped, with `backticks` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def box(state: str, body: str) -> str:
    """One bordered block.

    The classes let the book restyle it and keep MathJax away from prices in dollars.
    """
    kind = state.lower().replace(" ", "-")
    style = f"border-left:4px solid {EDGES[state]};padding:.3em .8em;margin:.3em 0"
    return f'<div class="lumen-verdict {kind} tex2jax_ignore mathjax_ignore" style="{style}">{body}</div>'


@dataclass(frozen=True)
class Scoreboard:
    """Points of a chapter's exercises, what is missing and where to go next.

    A notebook cell's value, like `Verdict`.
    """

    title: str
    verdicts: Sequence[Verdict]
    advice: str

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def out_of(self) -> int:
        return sum(verdict.out_of for verdict in self.verdicts)

    @property
    def headline(self) -> str:
        return f"{self.title}: {self.points} of {self.out_of} points"

    def __str__(self) -> str:
        width = max((len(verdict.exercise) for verdict in self.verdicts), default=0)
        lines = [
            f"  {v.state:<11}  {v.exercise:<{width}}  {v.points} of {v.out_of}  {v.title}"
            for v in self.verdicts
        ]
        return "\n".join([self.headline, *lines, self.advice])

    __repr__ = __str__

    def to_html(self) -> str:
        done = all(verdict.right for verdict in self.verdicts)
        rows = "".join(
            f"<li>{MARKS[v.state]} {v.state} · {v.points} of {v.out_of} · {inline(v.title)} "
            f"<code>{html.escape(v.exercise)}</code></li>"
            for v in self.verdicts
        )
        listing = f'<ul style="list-style:none;padding-left:0;margin:.3em 0">{rows}</ul>'
        return box(
            RIGHT if done else NOT_STARTED, f"<b>{inline(self.headline)}</b>{listing}{inline(self.advice)}"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.to_html()}
