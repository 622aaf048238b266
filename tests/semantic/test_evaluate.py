"""Counting hits and choosing a threshold, by hand on a few pairs and by brute force on random ones."""

from __future__ import annotations

import math
import random

import pytest

from lumen.semantic.evaluate import Scored, best_threshold, rates, score
from lumen.semantic.pairs import KINDS, Pair, load_pairs

from .fakes import BagOfWords


def scored(*rows):
    return [Scored(Pair(kind, "a", "b", "tune"), cosine, rule) for kind, cosine, rule in rows]


EXAMPLE = scored(
    ("roles", 0.99, "roles"),
    ("paraphrase", 0.95, ""),
    ("paraphrase", 0.90, "edit"),
    ("opposite", 0.85, ""),
    ("paraphrase", 0.80, ""),
    ("unrelated", 0.10, ""),
)


def test_rates_by_hand():
    alone = rates(EXAMPLE, 0.8, checked=False)
    assert (alone.right, alone.wrong) == (3, 2)
    assert (alone.recall, alone.precision, alone.false_hit_rate) == (1.0, 0.6, 2 / 3)
    checked = rates(EXAMPLE, 0.8, checked=True)
    assert (checked.right, checked.wrong) == (2, 1)
    assert checked.by_kind["paraphrase"] == (2, 3) and checked.by_kind["roles"] == (0, 1)
    assert math.isnan(rates(EXAMPLE, 1.0, checked=True).precision)


def test_no_threshold_is_an_answer_too():
    assert best_threshold(EXAMPLE, checked=False) is None  # the trap is nearer than every paraphrase
    best = best_threshold(EXAMPLE, checked=True)
    assert best.recall == 1 / 3 and 0.85 < best.threshold <= 0.95


def test_the_choice_is_the_best_there_is():
    draw = random.Random(5)
    for _ in range(50):
        rows = [
            (draw.choice(KINDS), round(draw.random(), 2), draw.choice(["", "", "edit"])) for _ in range(40)
        ]
        items, limit = scored(*rows), draw.choice([0.0, 0.1, 0.3])
        found = best_threshold(items, True, limit)
        allowed = [
            r for cut in range(102) if (r := rates(items, cut / 100 - 0.005, True)).false_hit_rate <= limit
        ]
        recall = max(r.recall for r in allowed)
        assert (found.recall if found else 0) == recall
        if found:
            assert found.false_hit_rate <= limit
    with pytest.raises(ValueError, match="between 0 and 1"):
        best_threshold(EXAMPLE, True, 2)


def test_scores_are_the_cosines_of_the_pairs_and_carry_the_rule():
    negated = Pair("opposite", "Can I park here today?", "Can I not park here today?", "tune")
    pairs = [*load_pairs("tune")[:20], negated]
    items = score(pairs, BagOfWords())
    assert [item.pair for item in items] == pairs
    assert items[-1].rule == "negation" and 0.5 < items[-1].score < 1
