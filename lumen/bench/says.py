"""Sentences that a measurement chooses: more, no difference that this run can show, less, or implausible.

A sentence about a measured number is written three times, and the interval decides which one is read. So no page
says "faster" because one median was a hair above another. Functions marked `@sentence` are rendered by the test
suite at no effect, a noisy one, the reverse and twice the effect, and their texts are read.
"""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from lumen.bench.estimate import Estimate, decimals
from lumen.bench.numbers import percent
from lumen.timing import Timing

Outcome = Literal["more", "same", "less", "implausible"]
Bound = tuple[float | None, float | None]
F = TypeVar("F", bound=Callable[..., str])

PLACEHOLDERS = ("x", "low", "high", "n", "percent", "size", "unit", "estimate")
FEWEST = 3  # with fewer samples nothing is called a difference
FORGIVEN = 0.10  # a prediction may miss by this much without a reason


def outcome(est: Estimate, at: float = 1.0, worth: float = 0.03, bound: Bound | None = None) -> Outcome:
    """What an estimate shows, against `at`.

    "more": the whole interval lies above `at`, and the value at least `worth` (a share of `at`; in the estimate's
    unit when `at` is 0). "less" the same below, so that a ratio and its reciprocal are judged alike. "same":
    anything between, and fewer than three samples. "implausible": the whole interval lies outside `bound`, (lowest,
    highest), None where there is none.
    """
    if worth < 0 or not math.isfinite(at):
        raise ValueError(f"outcome needs a finite `at` and worth >= 0, got {at} and {worth}.")
    lowest, highest = bound or (None, None)
    if (lowest is not None and est.high < lowest) or (highest is not None and est.low > highest):
        return "implausible"
    if at > 0:
        above, below = at * (1 + worth), at / (1 + worth)
    else:
        step = worth * abs(at) if at else worth
        above, below = at + step, at - step
    if est.n < FEWEST:
        return "same"
    if est.low > at and est.value >= above:
        return "more"
    return "less" if est.high < at and est.value <= below else "same"


def says(
    est: Estimate,
    *,
    more: str,
    less: str,
    same: str,
    at: float = 1.0,
    worth: float = 0.03,
    bound: Bound | None = None,
    contradicts: str = "",
) -> str:
    """The one of three sentences that the estimate allows; a fourth by itself when it contradicts its bound.

    Sentences are str.format templates: {x} {low} {high} numbers without a unit, {unit}, {n}, {percent} signed
    against `at` ("+24 %"), {size} the same unsigned, {estimate} all of it ("1.24 × (1.13 to 1.35, n = 12)"). A
    literal brace is doubled. `bound` wants `contradicts`: what it would contradict, in words. ValueError for a
    template that is missing, is another one with other numbers, or asks for anything else.

    >>> says(Estimate(1.24, 1.13, 1.35, 12, "×"), more="{x} times as long", less="{size} shorter", same="no difference")
    '1.24 times as long'
    """
    templates = {"more": more, "less": less, "same": same}
    _check(templates, at)
    if bound is not None and not contradicts:
        raise ValueError("A bound wants `contradicts`: what a value beyond it contradicts, in words.")
    found = outcome(est, at, worth, bound)
    if found == "implausible":
        lowest, highest = bound or (None, None)
        limit, name = (lowest, "least") if lowest is not None and est.high < lowest else (highest, "most")
        assert limit is not None
        unit = f" {est.unit}" if est.unit else ""
        return (
            f"Implausible: {est} contradicts {contradicts} (at {name} {_number(limit)}{unit}). "
            "One of the two was disturbed; measure both again."
        )
    return _one_bracket(templates[found].format(**_facts(est, at)))


def _one_bracket(text: str) -> str:
    """An estimate that ends a bracket loses its own: (1.14 ×, 1.07 to 1.22, n = 16)."""
    return re.sub(r"(\([^()]*) \(([^()]*n = \d+)\)\)", r"\1, \2)", text)


def miss(
    predicted: float,
    measured: Estimate | Timing,
    why: str = "",
    *,
    why_low: str = "",
    why_high: str = "",
) -> str:
    """A prediction beside the clock, with its signed miss. Both in the unit of `measured` (seconds for a Timing).

    "predicted 28.1 ms, measured 34.0 ms (33.0 to 35.0, n = 24): 17 % too low." Over 10 % a reason follows, unless
    the interval holds the prediction (a cause would explain what was not seen): `why_low` or `why_high` when the sign
    matters to it, else `why`, a sentence. Where there is none, a page that is being published (LUMEN_BOOK or
    LUMEN_PUBLISH) raises ValueError; a reader's page says that the course did not foresee it.
    """
    est = Estimate.of(measured) if isinstance(measured, Timing) else measured
    if not predicted > 0 or not est.value > 0:
        raise ValueError(f"A prediction and its measurement are above 0, got {predicted} and {est.value}.")
    share = predicted / est.value - 1
    forecast = str(Estimate(predicted, predicted, predicted, 1, est.unit)).split(" (")[0]
    direction = "too low" if share < 0 else "too high"
    verdict = f"{_percent(abs(share))} {direction}" if abs(share) >= 0.005 else "less than 1 % off"
    inside = est.n > 1 and est.low <= predicted <= est.high
    if abs(share) > FORGIVEN and inside:
        verdict += ", inside the interval"
    text = f"predicted {forecast}, measured {est}: {verdict}."
    if abs(share) <= FORGIVEN or inside:
        return text
    reason = (why_low if share < 0 else why_high) or why
    if not reason and (os.environ.get("LUMEN_BOOK") == "1" or os.environ.get("LUMEN_PUBLISH") == "1"):
        raise ValueError(
            f"{text} A miss of more than {percent(FORGIVEN)} wants a reason: why, why_low or why_high."
        )
    return f"{text} {reason or 'The course did not foresee that: your machine has something to teach.'}"


@dataclass(frozen=True)
class Sentence:
    """A function that writes a sentence about an estimate, and what a test needs to read it."""

    fn: Callable[..., str]
    example: Mapping[str, Any] = field(default_factory=dict)
    at: float = 1.0
    unit: str = "×"
    effect: float = 1.0
    bound: Bound | None = None
    more_words: Sequence[str] = ()
    less_words: Sequence[str] = ()

    @property
    def name(self) -> str:
        return f"{self.fn.__module__}.{self.fn.__qualname__}"

    def render(self, est: Estimate) -> str:
        return self.fn(est, **self.example)

    def cases(self) -> dict[str, tuple[Outcome, Estimate]]:
        """Estimates by name, each with the outcome that it must have: zero, noisy, reversed, doubled, implausible."""
        step = self.effect

        def est(value: float, low: float, high: float) -> Estimate:
            value, low, high = (self.at + step * x for x in (value, low, high))
            return Estimate(value, low, high, 12, self.unit)

        found: dict[str, tuple[Outcome, Estimate]] = {
            "zero": ("same", est(0.0, -0.01, 0.01)),
            "noisy": ("same", est(0.3, -0.2, 0.8)),
            "reversed": ("less", est(-0.5, -0.52, -0.48)),
            "doubled": ("more", est(1.0, 0.95, 1.05)),
        }
        lowest, highest = self.bound or (None, None)
        if highest is not None:
            beyond = (highest + 2 * step, highest + step, highest + 3 * step)
        elif lowest is not None:
            beyond = (
                (lowest / 4, lowest / 5, lowest / 3) if lowest > 0 else (lowest - 2, lowest - 3, lowest - 1)
            )
        else:
            return found
        found["implausible"] = ("implausible", Estimate(*beyond, 12, self.unit))
        for name, (_, shown) in found.items():  # a bound may be nearer than twice the effect
            if outcome(shown, self.at, 0.0, self.bound) == "implausible":
                found[name] = ("implausible", shown)
        return found


_SENTENCES: dict[str, Sentence] = {}


def sentence(
    example: Mapping[str, Any] | None = None,
    *,
    at: float | str = 1.0,
    unit: str = "×",
    effect: float | None = None,
    bound: Bound | None = None,
    more_words: Sequence[str] = (),
    less_words: Sequence[str] = (),
) -> Callable[[F], F]:
    """Mark a function (estimate, **facts) -> str, so that the test suite reads it at every outcome.

    `example` are facts it can be called with. `at` is what the estimate is judged against, a number or the name of
    the fact that holds it; `unit` the estimate's. `effect` is a difference from `at` that nobody could call none, by
    default `at` itself, 10 when that is 0 (points, milliseconds): the cases lie at it and at half of it. `bound` as in
    `says`, if the function has one: then an estimate beyond it is rendered, too. `more_words` may stand in the text
    only when the outcome is "more", `less_words` only when it is "less".
    """
    facts = dict(example or {})

    def mark(fn: F) -> F:
        level = float(facts[at]) if isinstance(at, str) else at
        clear = effect if effect is not None else abs(level) or 10.0
        marked = Sentence(fn, facts, level, unit, clear, bound, tuple(more_words), tuple(less_words))
        _SENTENCES[marked.name] = marked
        return fn

    return mark


def sentences() -> list[Sentence]:
    """All marked functions of the modules that were imported so far."""
    return list(_SENTENCES.values())


def _check(templates: Mapping[str, str], at: float) -> None:
    seen: dict[str, str] = {}
    for name, template in templates.items():
        if not template.strip():
            raise ValueError(f"The sentence for {name!r} is empty. All three outcomes want words.")
        bare = []
        for literal, wanted, spec, conversion in string.Formatter().parse(template):
            if wanted is not None and (wanted not in PLACEHOLDERS or spec or conversion):
                shown = wanted + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
                raise ValueError(
                    f"The sentence for {name!r} asks for {{{shown}}}; there are "
                    f"{', '.join('{' + p + '}' for p in PLACEHOLDERS)}, as they stand. Double a brace that is meant."
                )
            if wanted in ("percent", "size") and at == 0:
                raise ValueError(f"The sentence for {name!r} asks for {{{wanted}}}: a share of 0 is nothing.")
            bare.append(literal)
        words = " ".join("·".join(bare).split())
        if words in seen:
            raise ValueError(
                f"The sentences for {seen[words]!r} and {name!r} are the same but for numbers: they do not tell the "
                "outcomes apart."
            )
        seen[words] = name


def _facts(est: Estimate, at: float) -> dict[str, str]:
    value, low, high = est.texts()
    share = est.value / at - 1 if at else 0.0
    size = _percent(abs(share))
    sign = "" if size == "0 %" else "+" if share > 0 else "−"
    return {
        "x": value, "low": low, "high": high, "n": str(est.n), "unit": est.unit, "estimate": str(est),
        "percent": sign + size, "size": size,
    }  # fmt: skip


def _percent(share: float) -> str:
    """A share as percent, two significant figures below ten: "17 %", "3.4 %", "0 %"."""
    percent = 100 * share
    if percent < 0.05:
        return "0 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:,.0f} %"


def _number(x: float) -> str:
    return f"{x:,.{decimals(x)}f}"
