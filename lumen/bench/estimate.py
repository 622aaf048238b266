"""A measured number with what it may be off by: an estimate with a 95 % interval. No torch, no clock.

Samples give the median, and an interval for the median that assumes nothing about how times are distributed: with n
samples the j-th smallest and the j-th largest enclose the true median with the binomial probability
1 - 2·P(Bin(n, 1/2) < j), so j is taken as large as 95 % allow (David and Nagaraja 2003, Order Statistics, section 7.1;
for run times: Hoefler and Belli 2015, Scientific Benchmarking of Parallel Computing Systems, section 3.1.3). That needs
six samples. With fewer the interval is the whole range, which holds the median with probability 1 - 2^(1-n): 94 % of
five, 88 % of four, 75 % of three, 50 % of two. A single sample has no interval; `outcome` never calls it a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lumen.timing import Timing

COVERAGE = 0.95
RESAMPLES, SEED = 2000, 0
Z = 1.959964  # of the normal distribution, 95 %
Samples = Timing | Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """`value` and its 95 % interval from `low` to `high`, of `n` samples (for a ratio: rounds), in `unit`.

    Raises ValueError unless low <= value <= high, all finite, and n >= 1.
    """

    value: float
    low: float
    high: float
    n: int
    unit: str = ""

    def __post_init__(self) -> None:
        finite = all(math.isfinite(x) for x in (self.value, self.low, self.high))
        if not finite or not self.low <= self.value <= self.high or self.n < 1:
            raise ValueError(
                "An estimate needs finite low <= value <= high and n >= 1, "
                f"got {self.low}, {self.value}, {self.high} and n = {self.n}."
            )

    @classmethod
    def of(cls, samples: Samples, unit: str = "s") -> Estimate:
        """The median of samples and its interval.

        >>> Estimate.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0])
        Estimate(value=4.0, low=1.0, high=100.0, n=7, unit='s')
        """
        taken = sorted(_values(samples))
        skip = _rank(len(taken))
        return cls(statistics.median(taken), taken[skip], taken[-1 - skip], len(taken), unit)

    @classmethod
    def ratio(cls, a: Samples, b: Samples, unit: str = "×") -> Estimate:
        """How many times `b` is `a`: the median of a over the median of b, as who divides the shown medians finds it.

        The interval is a bootstrap of fixed seed (Efron and Tibshirani 1993, section 13.3). With as many samples of
        both, as `bench.compare` gives them, it draws pairs: sample i of one with sample i of the other, so that a slow
        minute of the machine cancels. Below six samples: the extremes. ratio(b, a) is exactly 1 / ratio(a, b).
        """
        for sample in (*_values(a), *_values(b)):
            _positive(sample)
        log = _apart(_values(a), _values(b), math.log)
        return cls(math.exp(log.value), math.exp(log.low), math.exp(log.high), log.n, unit)

    @classmethod
    def difference(cls, a: Samples, b: Samples, unit: str = "s") -> Estimate:
        """Median of a less median of b, with an interval like `ratio`'s; difference(b, a) is exactly its negative."""
        found = _apart(_values(a), _values(b), float)
        return cls(found.value, found.low, found.high, found.n, unit)

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low

    def scaled(self, factor: float, unit: str) -> Estimate:
        """The same estimate times `factor`, in another unit: est.scaled(1e3, "ms")."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high, self.n, unit)

    def texts(self) -> tuple[str, str, str]:
        """value, low and high as text, three significant figures of the value, all with the same decimals."""
        shown = decimals(self.value)
        if self.low != self.high:
            while shown < 12 and f"{self.low:.{shown}f}" == f"{self.high:.{shown}f}":
                shown += 1  # an interval narrower than a thousandth is still an interval
        value, low, high = (f"{x:,.{shown}f}".replace("-", "−") for x in (self.value, self.low, self.high))
        return value, low, high

    def __str__(self) -> str:
        """1.24 × (1.13 to 1.35, n = 12), of one sample 1.24 × (n = 1); seconds are shown in s, ms or µs."""
        shown = self
        if self.unit == "s" and abs(self.value) < 1:
            factor, unit = (1e3, "ms") if abs(self.value) >= 1e-3 else (1e6, "µs")
            shown = self.scaled(factor, unit)
        value, low, high = shown.texts()
        range_ = f"{low} to {high}, " if self.n > 1 else ""
        return f"{value}{' ' if shown.unit else ''}{shown.unit} ({range_}n = {self.n})"


def wilson(hits: int, total: int) -> Estimate:
    """hits / total and its 95 % interval (Wilson 1927), which stays honest at 0 of n and n of n.

    >>> print(wilson(2, 154))
    0.0130 (0.0036 to 0.0461, n = 154)
    """
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"A share is hits of total with 0 <= hits <= total, got {hits} of {total}.")
    share, square = hits / total, Z * Z / total
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / total + square / (4 * total)) / (1 + square)
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), total)


def decimals(value: float, figures: int = 3) -> int:
    """Decimals that show `figures` significant figures of `value`, none for a value of 1000 or more."""
    if value == 0:
        return figures - 1
    return min(12, max(0, figures - 1 - math.floor(math.log10(abs(value)))))


def _values(samples: Samples) -> list[float]:
    taken = [float(x) for x in (samples.samples if isinstance(samples, Timing) else samples)]
    if not taken:
        raise ValueError("An estimate needs a sample at least.")
    return taken


def _positive(sample: float) -> float:
    if not sample > 0:
        raise ValueError(f"A ratio needs samples above 0, got {sample}.")
    return sample


def _rank(n: int) -> int:
    """How many samples may be left out at either end: the largest j with 2·P(Bin(n, 1/2) <= j - 1) <= 5 %, or 0."""
    tail, left = 0.0, 0
    while left < n // 2:
        tail += math.comb(n, left) / 2**n
        if 2 * tail > 1 - COVERAGE:
            break
        left += 1
    return max(0, left - 1)


def _apart(a: list[float], b: list[float], scale: Callable[[float], float]) -> Estimate:
    """scale(median of a) - scale(median of b): by pairs when there are as many, by extremes when there are few."""
    if (len(a), a) > (len(b), b):  # one order, whoever asks: the resamples of (b, a) are those of (a, b)
        turned = _apart(b, a, scale)
        return Estimate(-turned.value, -turned.high, -turned.low, turned.n)
    n, value = min(len(a), len(b)), scale(statistics.median(a)) - scale(statistics.median(b))
    if n >= 6:
        low, high = _bootstrap(a, b, scale)
    elif len(a) == len(b):
        each = [scale(x) - scale(y) for x, y in zip(a, b, strict=True)]
        low, high = min(each), max(each)
    else:
        low, high = scale(min(a)) - scale(max(b)), scale(max(a)) - scale(min(b))
    return Estimate(value, min(low, value), max(high, value), n)


def _bootstrap(a: list[float], b: list[float], scale: Callable[[float], float]) -> tuple[float, float]:
    """The middle 95 % of what lies between the medians of resamples; as many samples of both are drawn in pairs."""
    import numpy as np

    dice = np.random.default_rng(SEED)
    drawn = dice.integers(0, len(a), (RESAMPLES, len(a)))
    other = drawn if len(a) == len(b) else dice.integers(0, len(b), (RESAMPLES, len(b)))
    medians = (np.median(np.asarray(x)[i], axis=1).tolist() for x, i in ((a, drawn), (b, other)))
    found = [scale(x) - scale(y) for x, y in zip(*medians, strict=True)]
    low, high = np.quantile(found, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)
