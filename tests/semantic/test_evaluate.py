"""Counting hits and choosing a threshold, by hand on a few pairs and by brute force on random ones."""

from __future__ import annotations

import math
import random

import pytest

from lumen.semantic.evaluate import Scored, at_mixture, best_threshold, gain, needed, rates, score, wilson
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
    assert (alone.recall.value, alone.precision.value, alone.false_hits.value) == (1.0, 0.6, 2 / 3)
    assert (alone.recall.n, alone.precision.n, alone.false_hits.n) == (3, 5, 3)
    checked = rates(EXAMPLE, 0.8)
    assert (checked.right, checked.wrong) == (2, 1)
    assert checked.by_kind["paraphrase"] == (2, 3) and checked.by_kind["roles"] == (0, 1)
    assert rates(EXAMPLE, 1.0).precision is None


def test_both_kinds_of_paraphrase_count_as_right():
    found = rates(scored(("paraphrase", 0.9, ""), ("retyped", 0.9, ""), ("cousin", 0.9, "")), 0.5)
    assert (found.right, found.wrong) == (2, 1)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(2, 154, 0.0036, 0.0461), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634)],
)
def test_wilson_against_published_values(hits, total, low, high):
    found = wilson(hits, total)
    assert (found.value, found.n) == (hits / total, total)
    assert found.low == pytest.approx(low, abs=1e-4) and found.high == pytest.approx(high, abs=1e-4)


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    """400 draws of 60 at 7 %: coverage of 95 % would fall below 91 % by chance once in several thousand runs."""
    draw, covered = random.Random(1), 0
    for _ in range(400):
        found = wilson(sum(draw.random() < 0.07 for _ in range(60)), 60)
        covered += found.low <= 0.07 <= found.high
    assert covered >= 0.91 * 400
    for hits, total in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="hits of total"):
            wilson(hits, total)


def test_gain_against_the_published_example():
    """Newcombe (1998), table II, case (a): 56/70 against 48/80 is 0.2000, 0.0524 to 0.3339 by method 10."""
    found = gain(wilson(56, 70), wilson(48, 80))
    assert (found.value, found.low, found.high) == pytest.approx((20.0, 5.24, 33.39), abs=0.01)
    assert found.n == 70


@pytest.mark.parametrize("promise", [0.1, 0.01, 0.003])
def test_needed_is_the_fewest_that_keep_the_promise(promise):
    n = needed(promise)
    assert wilson(0, n).high <= promise < wilson(0, n - 1).high


def test_precision_at_a_mixture_is_bayes():
    assert at_mixture(0.6, 0.05, 0.5) == pytest.approx(0.6 / 0.65)
    assert at_mixture(0.6, 0.05, 0.1) == pytest.approx(0.06 / 0.105)
    assert math.isnan(at_mixture(0.0, 0.0, 0.5))
    found = rates(EXAMPLE, 0.8)
    assert found.precision_at(0.5) == pytest.approx(2 / 3)  # as many pairs of each: the precision as counted


def test_no_threshold_is_an_answer_too():
    assert best_threshold(EXAMPLE, 0.01, checked=False) is None  # the trap is nearer than every paraphrase
    cut = best_threshold(EXAMPLE, 0.01)
    assert rates(EXAMPLE, cut).right == 1 and 0.85 < cut <= 0.95


def test_the_choice_is_the_best_there_is():
    draw = random.Random(5)
    for _ in range(50):
        rows = [
            (draw.choice(KINDS), round(draw.random(), 2), draw.choice(["", "", "edit"])) for _ in range(40)
        ]
        items, limit = scored(*rows), draw.choice([0.0, 0.1, 0.3])
        cut = best_threshold(items, limit)
        traps = sum(not item.pair.same for item in items)
        allowed = [
            r for place in range(102) if (r := rates(items, place / 100 - 0.005)).wrong <= limit * traps
        ]
        assert (rates(items, cut).right if cut is not None else 0) == max(r.right for r in allowed)
        assert cut is None or rates(items, cut).wrong <= limit * traps
    with pytest.raises(ValueError, match="between 0 and 1"):
        best_threshold(EXAMPLE, 2)


def test_scores_are_the_cosines_of_the_pairs_and_carry_the_rule():
    negated = Pair("opposite", "Can I park here today?", "Can I not park here today?", "tune")
    pairs = [*load_pairs("tune")[:20], negated]
    items = score(pairs, BagOfWords())
    assert [item.pair for item in items] == pairs
    assert items[-1].rule == "negation" and 0.5 < items[-1].score < 1
