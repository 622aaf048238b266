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

from lumen.bench.estimate import Estimate, Z, wilson

from .encoder import Encoder, unit
from .pairs import KINDS, SAME, Pair


def gain(one: Sequence[bool], other: Sequence[bool]) -> Estimate:
    """How many more hits `one` has than `other` among the same pairs, in percentage points, with a 95 % interval.

    The two decide about the same pairs, so what they agree on narrows it (Newcombe 1998, paired, method 10).
    """
    if len(one) != len(other):
        raise ValueError(f"Two ways are compared on the same pairs, got {len(one)} and {len(other)}.")
    n, (a, b) = len(one), (wilson(sum(way), len(way)) for way in (one, other))
    both = sum(x and y for x, y in zip(one, other, strict=True))
    excess = n * both - sum(one) * sum(other)
    norm = math.sqrt(sum(one) * (n - sum(one)) * sum(other) * (n - sum(other)))
    phi = (max(0.0, excess - n / 2) if excess > 0 else excess) / norm if norm else 0.0

    def reach(up: float, down: float) -> float:
        return math.sqrt(up * up - 2 * phi * up * down + down * down)

    low = reach(a.value - a.low, b.high - b.value)
    high = reach(a.high - a.value, b.value - b.low)
    middle = a.value - b.value
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
    """Hits at one threshold, pair by pair; `by_kind` maps a kind of pair to (hits, pairs)."""

    threshold: float
    hits: dict[str, list[bool]]

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        return {kind: (sum(group), len(group)) for kind, group in self.hits.items()}

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

    def precision_at(self, share: float) -> float:
        """Precision where `share` of the near pairs are paraphrases."""
        return at_mixture(self.recall.value, self.false_hits.value, share)


def rates(scored: Sequence[Scored], threshold: float, checked: bool = True) -> Rates:
    """What happens to the pairs at this threshold, with or without the rules."""
    groups = {k: [item.hit(threshold, checked) for item in scored if item.pair.kind == k] for k in KINDS}
    return Rates(threshold, {kind: group for kind, group in groups.items() if group})


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


def embed(pairs: Sequence[Pair], encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of the stored and of the asked questions, (n, width) each."""
    vectors = unit(encoder.encode([t for p in pairs for t in (p.stored, p.asked)]), encoder.width)
    return vectors[::2], vectors[1::2]
