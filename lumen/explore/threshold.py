"""The threshold explorer: labelled question pairs on a line, and a threshold that the reader moves.

Every point is a pair at its cosine. Right of the threshold it hits, unless the second check refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumen.semantic.evaluate import Scored, rates
from lumen.semantic.pairs import KINDS, Pair
from lumen.explore.widget import JSWidget

CUTS = tuple(cut / 100 for cut in range(0, 101))
PLACES = 3  # decimals of a cosine on the page


def count(pairs: Sequence[Sequence[Any]], threshold: float, checked: bool) -> dict[str, Any]:
    """Hits among `pairs` of (kind, cosine, refused), by `lumen.semantic.evaluate.rates`.

    The twin of `count` in threshold.js. `precision` is None if nothing hits.
    """
    scored = [Scored(Pair(kind, "", "", ""), cosine, "rule" * refused) for kind, cosine, refused in pairs]
    found = rates(scored, threshold, checked)
    return {
        "right": found.right,
        "wrong": found.wrong,
        "recall": found.recall,
        "precision": found.precision if found.right + found.wrong else None,
        "falseHits": found.false_hit_rate,
        "byKind": {kind: hits for kind, (hits, _) in found.by_kind.items()},
    }


class Threshold(JSWidget):
    """Move the threshold over scored pairs, with the second check on or off, and watch what hits.

    >>> Threshold(score(load_pairs("report"), MiniLM()), threshold=0.8)
    """

    module = "threshold.js"
    label = "threshold explorer"

    def __init__(
        self,
        scored: Sequence[Scored],
        threshold: float = 0.8,
        checked: bool = False,
        *,
        title: str = "Which pairs would hit?",
        lead: str = "Each point is a pair of questions. Blue hits are right, orange ones answer another question.",
    ) -> None:
        if not scored:
            raise ValueError("There is nothing to move a threshold over: give it one scored pair at least.")
        if round(threshold, 2) not in CUTS:
            raise ValueError(f"The slider goes from 0 to 1 in steps of 0.01, got a threshold of {threshold}.")
        super().__init__(
            pairs=[[item.pair.kind, round(item.score, PLACES), bool(item.rule)] for item in scored],
            kinds=list(KINDS), cuts=list(CUTS), threshold=round(threshold, 2), checked=checked, title=title, lead=lead,
        )  # fmt: skip
