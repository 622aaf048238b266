"""How good is a threshold? Precision, recall and false hits over labelled pairs, and the threshold to choose.

A pair is a *hit* if its cosine reaches the threshold and, where there is one, the second check lets it
through. Right hits are paraphrases; every other hit hands somebody an answer to another question.

    recall          right hits / paraphrases            what the cache saves
    precision       right hits / hits                   what a hit is worth
    false-hit rate  wrong hits / pairs that must miss   how often a trap works
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .encoder import Encoder, unit
from .pairs import KINDS, Pair
from .verify import check


@dataclass(frozen=True)
class Scored:
    """A pair, the cosine of its two questions, and the rule that refuses it ("" if none does)."""

    pair: Pair
    score: float
    rule: str

    def hit(self, threshold: float, checked: bool) -> bool:
        return self.score >= threshold and not (checked and self.rule)


@dataclass(frozen=True)
class Rates:
    """Counts at one threshold. `by_kind` maps a kind of pair to (hits, pairs)."""

    threshold: float
    checked: bool
    by_kind: dict[str, tuple[int, int]]

    @property
    def right(self) -> int:
        return self.by_kind["paraphrase"][0]

    @property
    def wrong(self) -> int:
        return sum(hits for kind, (hits, _) in self.by_kind.items() if kind != "paraphrase")

    @property
    def recall(self) -> float:
        return self.right / max(1, self.by_kind["paraphrase"][1])

    @property
    def precision(self) -> float:
        """NaN if nothing was hit: no promise was made, none was kept."""
        hits = self.right + self.wrong
        return self.right / hits if hits else float("nan")

    @property
    def false_hit_rate(self) -> float:
        must_miss = sum(total for kind, (_, total) in self.by_kind.items() if kind != "paraphrase")
        return self.wrong / max(1, must_miss)


def score(pairs: Sequence[Pair], encoder: Encoder) -> list[Scored]:
    """The cosine of every pair and what the second check says of it."""
    texts = [text for pair in pairs for text in (pair.stored, pair.asked)]
    vectors = unit(encoder.encode(texts), encoder.width)
    cosines = np.sum(vectors[::2] * vectors[1::2], axis=1)
    return [
        Scored(pair, float(cosine), check(pair.asked, pair.stored).rule)
        for pair, cosine in zip(pairs, cosines, strict=True)
    ]


def rates(scored: Sequence[Scored], threshold: float, checked: bool) -> Rates:
    """What happens to the pairs at this threshold, with or without the second check."""
    by_kind = {}
    for kind in KINDS:
        group = [item.hit(threshold, checked) for item in scored if item.pair.kind == kind]
        by_kind[kind] = sum(group), len(group)
    return Rates(threshold, checked, by_kind)


def best_threshold(scored: Sequence[Scored], checked: bool, limit: float = 0.01) -> Rates | None:
    """The threshold of highest recall among those with a false-hit rate of `limit` at most; the higher one if
    several are as good. None if no threshold that keeps to the limit hits a single paraphrase."""
    if not 0 <= limit <= 1:
        raise ValueError(f"A false-hit rate lies between 0 and 1, got a limit of {limit}.")
    places = sorted({item.score for item in scored}, reverse=True)
    # Half-way to the next lower score, so that the choice does not hang on the last bit of a float.
    cuts = [(high + low) / 2 for high, low in zip(places, [*places[1:], -1.0], strict=True)]
    kept = [found for cut in cuts if (found := rates(scored, cut, checked)).false_hit_rate <= limit]
    best = max(kept, key=lambda found: (found.recall, found.threshold), default=None)
    return best if best is not None and best.right else None
