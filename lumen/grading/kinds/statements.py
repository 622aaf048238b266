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

    def _parts(self, value: Any) -> tuple[Any, Any]:
        """Letters and number of a pair; any two things of which the second is a number are a pair."""
        pair = isinstance(value, (tuple, list)) and len(value) == 2
        if pair and (isinstance(value, tuple) or not isinstance(value[1], str)):
            return value[0], value[1]
        return value, UNSET

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        chosen, figure = self._parts(run.value_of(answer, probe.steps))
        if isinstance(chosen, str):
            words = chosen.replace(" and ", " ")  # "bd", "b, d", "b and d" and "(b) (d)" alike
            chosen = [letter for letter in words if letter.isalnum()]
        given = chosen if isinstance(chosen, (set, frozenset, list, tuple)) else [chosen]
        letters = {str(one).strip().lower() for one in given}
        known = ", ".join(self.why)
        strange = [one for one in given if str(one).strip().lower() not in self.why]
        if not letters or strange:
            wanted = (
                f"one of {known}" if len(self.false) == 1 else f"{len(self.false)} letters out of {known}"
            )
            gave = compare.describe(strange[0]) if strange else "no letter"
            raise Wrong("the choice", gave, wanted)
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
