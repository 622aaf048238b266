"""literature: find the statement that does not hold, and give the number that it should have had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import compare, run
from ..probe import Probe
from ..verdict import Wrong
from .number import Number

UNSET: Any = object()


@dataclass(frozen=True)
class Statements:
    """literature: which of the statements is wrong, and (with `number`) the right number.

    The answer is a letter, several letters (`"bd"`, `"b, d"` or a set) when more than one is wrong, or the pair
    `(letters, number)` when there is a number. `why` says of each statement why it stands or falls; a wrong
    choice is answered with that sentence.
    """

    false: str
    why: Mapping[str, str]
    number: Number | None = None

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        value = run.value_of(answer, probe.steps)
        chosen, figure = value if isinstance(value, tuple) and len(value) == 2 else (value, UNSET)
        if isinstance(chosen, str):
            chosen = [letter for letter in chosen if letter.isalnum()]  # "bd", "b, d" and "(b) (d)" alike
        letters = {
            str(one).strip().lower()
            for one in (chosen if isinstance(chosen, (set, list, tuple)) else [chosen])
        }
        known = ", ".join(self.why)
        if not letters or not letters <= set(self.why):
            raise Wrong(
                "the choice",
                compare.describe(chosen),
                f"one of {known}" if len(self.false) == 1 else f"some of {known}",
            )
        standing, missed = sorted(letters - set(self.false)), sorted(set(self.false) - letters)
        if standing:
            raise Wrong(f"statement {standing[0]}", "wrong, you say", "it stands", self.why[standing[0]])
        if missed:
            raise Wrong("the choice", ", ".join(sorted(letters)), f"{len(self.false)} statements are wrong")
        if self.number is not None:
            if figure is UNSET:
                raise Wrong("the number", "the choice alone", f'a pair: ("{self.false}", number)')
            with probe.case("the number"):
                try:
                    self.number(figure, probe)
                except Wrong as wrong:
                    wrong.case = "the number"
                    raise
        return " ".join(self.why[letter] for letter in self.false)
