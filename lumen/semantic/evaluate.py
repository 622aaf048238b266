"""How good is a way to decide? Hits over labelled pairs, each share with its interval, and the threshold to choose.

A pair is a *hit* if its score reaches the threshold and no rule refuses it. Right hits are paraphrases; every other
hit hands somebody the answer to another question.

    recall      right hits / paraphrases             what the cache saves
    false hits  wrong hits / pairs that must miss    how often a trap works
    precision   right hits / hits                    what a hit is worth: it depends on how many traps there are
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumen.bench.estimate import Estimate

from .check import check
from .encoder import Encoder, unit
from .pairs import KINDS, SAME, Pair

Z = 1.959964  # 95 %


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


def gain(one: Estimate, other: Estimate) -> Estimate:
    """one - other for two shares from `wilson`, with a 95 % interval (Newcombe 1998, method 10), in percentage points.

    It takes the two samples for independent. Two ways to decide about the same pairs are not, and then the interval
    is wider than it need be.
    """
    low = math.hypot(one.value - one.low, other.high - other.value)
    high = math.hypot(one.high - one.value, other.value - other.low)
    middle = one.value - other.value
    n = min(one.n, other.n)
    return Estimate(100 * middle, 100 * (middle - low), 100 * (middle + high), n, "points")


def needed(promise: float) -> int:
    """How many labelled hits, none of them wrong, it takes to promise a share of wrong ones of `promise` at most."""
    return math.ceil(Z * Z * (1 - promise) / promise)


def at_mixture(recall: float, false_hits: float, share: float) -> float:
    """Precision where `share` of the near pairs are paraphrases and the rest traps (Bayes). NaN if nothing hits."""
    right, wrong = share * recall, (1 - share) * false_hits
    return right / (right + wrong) if right + wrong else math.nan


@dataclass(frozen=True)
class Scored:
    """A pair, a score of how alike its questions are (the cosine, or another one), and the rule that refuses it."""

    pair: Pair
    score: float
    rule: str = ""

    def hit(self, threshold: float, checked: bool = True) -> bool:
        return self.score >= threshold and not (checked and self.rule)


@dataclass(frozen=True)
class Rates:
    """Counts at one threshold. `by_kind` maps a kind of pair to (hits, pairs)."""

    threshold: float
    by_kind: dict[str, tuple[int, int]]

    def _sum(self, same: bool) -> tuple[int, int]:
        chosen = [counts for kind, counts in self.by_kind.items() if (kind in SAME) is same]
        return sum(hits for hits, _ in chosen), sum(total for _, total in chosen)

    @property
    def right(self) -> int:
        return self._sum(True)[0]

    @property
    def wrong(self) -> int:
        return self._sum(False)[0]

    @property
    def recall(self) -> Estimate:
        return wilson(*self._sum(True))

    @property
    def false_hits(self) -> Estimate:
        return wilson(*self._sum(False))

    @property
    def precision(self) -> Estimate | None:
        """Over these pairs as they are mixed. None if nothing was hit: no promise was made, none was kept."""
        hits = self.right + self.wrong
        return wilson(self.right, hits) if hits else None

    def precision_at(self, share: float) -> float:
        """Precision where `share` of the near pairs are paraphrases."""
        return at_mixture(self.recall.value, self.false_hits.value, share)


def rates(scored: Sequence[Scored], threshold: float, checked: bool = True) -> Rates:
    """What happens to the pairs at this threshold, with or without the rules."""
    by_kind = {}
    for kind in KINDS:
        group = [item.hit(threshold, checked) for item in scored if item.pair.kind == kind]
        if group:
            by_kind[kind] = sum(group), len(group)
    return Rates(threshold, by_kind)


def best_threshold(scored: Sequence[Scored], limit: float, checked: bool = True) -> float | None:
    """The threshold of highest recall among those with a share of false hits of `limit` at most; the higher one if
    several are as good. None if no threshold that keeps to the limit hits a paraphrase."""
    if not 0 <= limit <= 1:
        raise ValueError(f"A share of false hits lies between 0 and 1, got a limit of {limit}.")
    places = sorted({item.score for item in scored}, reverse=True)
    # Half-way to the next lower score, so that the choice does not hang on the last bit of a float.
    cuts = [(high + low) / 2 for high, low in zip(places, [*places[1:], places[-1] - 1], strict=True)]
    traps = sum(not item.pair.same for item in scored)
    kept = [found for cut in cuts if (found := rates(scored, cut, checked)).wrong <= limit * traps]
    best = max(kept, key=lambda found: (found.right, found.threshold), default=None)
    return best.threshold if best is not None and best.right else None


def score(pairs: Sequence[Pair], encoder: Encoder) -> list[Scored]:
    """The cosine of every pair and the rule that refuses it."""
    stored, asked = embed(pairs, encoder)
    cosines = np.sum(stored * asked, axis=1)
    return [Scored(p, float(c), check(p.asked, p.stored)) for p, c in zip(pairs, cosines, strict=True)]


def embed(pairs: Sequence[Pair], encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of the stored and of the asked questions, (n, width) each."""
    vectors = unit(encoder.encode([t for p in pairs for t in (p.stored, p.asked)]), encoder.width)
    return vectors[::2], vectors[1::2]
