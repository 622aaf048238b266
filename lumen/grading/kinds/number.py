"""predict: one number with a unit and a tolerance, and the mistakes that lead to other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from .. import compare, run
from ..compare import number
from ..probe import Probe
from ..verdict import Wrong
from .slip import Slips, listed

# Ratios that are a mix-up of units, not of the formula.
UNITS = [
    (8.0, "bits and bytes are mixed up (a factor 8)"),
    (1.024, "kilo (1000) and kibi (1024) are mixed up"),
    (1.024**2, "mega (10⁶) and mebi (2²⁰) are mixed up"),
    (1.024**3, "giga (10⁹) and gibi (2³⁰) are mixed up"),
    *((1000.0**n, f"the prefix is off by a factor {1000**n:,}") for n in (1, 2, 3, 4)),
    *((1024.0**n, f"the prefix is off by a factor {1024**n:,}") for n in (1, 2, 3)),
]


@dataclass(frozen=True)
class Number:
    """predict: a number, or a function without arguments that returns it.

    `answer` is the number or a function that computes it on first use. Three significant figures always suffice;
    `tolerance` (relative) accepts more. `exact=True` asks for every digit, and then the text of the exercise says
    "exactly". A wrong number is told its direction and rough ratio, and the slip when it is a known one; mixed-up
    units are known already.
    """

    answer: float | Callable[[], float]
    unit: str = ""
    tolerance: float = 0.0
    slips: Slips = ()
    exact: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "slips", listed(self.slips))

    @property
    def value(self) -> float:
        return self.answer() if callable(self.answer) else self.answer

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        got = run.value_of(answer, probe.steps)
        if compare.is_array(got) and got.ndim == 0:
            got = got.item()
        if isinstance(got, bool) or not isinstance(got, (Real, Decimal)):
            raise Wrong(gave=compare.describe(got), wanted=f"a number{self._in_unit}")
        got = int(got) if isinstance(got, Integral) else float(got)
        want = self.value
        if self._near(got, want):
            return None
        raise Wrong(
            gave=f"{number(got)} {self.unit}".rstrip(),
            wanted=self._hint(got, want),
            slip=self._slip(got, want),
        )

    @property
    def _in_unit(self) -> str:
        return f" in {self.unit}" if self.unit else ""

    def _near(self, got: float, want: float) -> bool:
        if not math.isfinite(got) or got == want:
            return got == want
        apart = 1e-12 * abs(want) if self.exact else max(self.tolerance * abs(want), last_figure(want) / 2)
        return abs(got - want) <= apart * (1 + 1e-9)

    def _hint(self, got: float, want: float) -> str:
        if not math.isfinite(got):
            return f"a finite number{self._in_unit}"
        if want == 0 or got == 0 or (got < 0) != (want < 0):
            return (
                "zero" if want == 0 else f"a {'negative' if want < 0 else 'positive'} number{self._in_unit}"
            )
        if abs(want / got - 1) < 0.01:
            side = "smaller" if got > want else "larger"
            return f"a number slightly {side}{self._in_unit}{'; it must be exact' if self.exact else ''}"
        larger = want > got
        ratio = want / got if larger else got / want
        if ratio < 1.5:
            return f"a {'larger' if larger else 'smaller'} number{self._in_unit}, but not by half"
        about = float(f"{ratio:.1g}")  # the size of the mistake, not the answer by division
        return f"a number {'larger' if larger else 'smaller'} by a factor of about {number(about)}"

    def _slip(self, got: float, want: float) -> str:
        for slip in self.slips:  # one that is hit exactly before one that is near
            if not callable(slip.like) and math.isclose(got, slip.like, rel_tol=1e-6):
                return slip.says
        for slip in self.slips:
            if slip.like(got) if callable(slip.like) else self._near(got, slip.like):
                return slip.says
        if want and math.isfinite(got) and got / want > 0:
            for ratio, says in UNITS:
                near = 5e-3 if ratio > 2 else 3e-4  # much that is no kibi lies within three figures of 1.024
                if any(math.isclose(got / want, r, rel_tol=near) for r in (ratio, 1 / ratio)):
                    return f"The formula may be right: {says}."
        return ""


def last_figure(value: float) -> float:
    """The unit of the third significant figure: 1 for 107.37, 0.001 for 0.333."""
    return 10.0 ** (math.floor(math.log10(abs(value))) - 2) if value else 0.0
