"""The threshold explorer: labelled question pairs on a line, and a threshold that the reader moves.

Every point is a pair at its cosine. Right of the threshold it hits, unless a rule of the second look refuses it. The
pairs nearest to the threshold stand below in words: those are the ones that flip next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumen.explore.explorers.widget import JSWidget
from lumen.semantic.evaluate import Scored, rates
from lumen.semantic.pairs import KINDS, SAME, Pair

CUTS = tuple(cut / 100 for cut in range(0, 101))
PLACES = 3  # decimals of a cosine on the page


def count(pairs: Sequence[Sequence[Any]], threshold: float, checked: bool) -> dict[str, Any]:
    """Hits among `pairs` of (kind, cosine, refused), by `lumen.semantic.evaluate.rates`.

    The twin of `count` in threshold.js. `precision` is None if nothing hits.
    """
    scored = [Scored(Pair(kind, "", "", ""), cosine, "rule" * refused) for kind, cosine, refused in pairs]
    found = rates(scored, threshold, checked)
    paraphrases = sum(pair[0] in SAME for pair in pairs)
    return {
        "right": found.right,
        "wrong": found.wrong,
        "recall": found.right / max(1, paraphrases),
        "precision": found.right / (found.right + found.wrong) if found.right + found.wrong else None,
        "falseHits": found.wrong / max(1, len(pairs) - paraphrases),
        "byKind": {kind: hits for kind, (hits, _) in found.by_kind.items()},
    }


class Threshold(JSWidget):
    """Move the threshold over scored pairs, with the second look on or off, watch what hits and read what flips next.

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
        lead: str = "A point is a pair of questions. Blue hits are right, orange ones answer another question. "
        "Below: the pairs at the threshold.",
    ) -> None:
        if not scored:
            raise ValueError("There is nothing to move a threshold over: give it one scored pair at least.")
        if round(threshold, 2) not in CUTS:
            raise ValueError(f"The slider goes from 0 to 1 in steps of 0.01, got a threshold of {threshold}.")
        super().__init__(
            pairs=[
                [i.pair.kind, round(i.score, PLACES), bool(i.rule), i.pair.stored, i.pair.asked, i.rule] for i in scored
            ],
            kinds=list(KINDS), same=list(SAME), cuts=list(CUTS), threshold=round(threshold, 2), checked=checked,
            title=title, lead=lead,
        )  # fmt: skip
