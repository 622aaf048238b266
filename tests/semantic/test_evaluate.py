"""Counting hits and choosing a threshold, by hand on a few pairs and by brute force on random ones."""

from __future__ import annotations

import math
import random

import pytest

from lumen.semantic.evaluate import Scored, at_mixture, best_threshold, gain, needed, rates, wilson
from lumen.semantic.pairs import KINDS, Pair


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
    assert (alone.recall.value, alone.false_hits.value) == (1.0, 2 / 3)
    assert (alone.recall.n, alone.false_hits.n) == (3, 3)
    checked = rates(EXAMPLE, 0.8)
    assert (checked.right, checked.wrong) == (2, 1)
    assert checked.by_kind["paraphrase"] == (2, 3) and checked.by_kind["roles"] == (0, 1)
    assert math.isnan(rates(EXAMPLE, 1.0).precision_at(0.5))


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


def test_gain_of_ways_that_have_nothing_to_do_with_each_other_is_that_of_two_samples():
    one = [place < 50 for place in range(100)]
    other = [place % 5 < 2 for place in range(100)]
    found, a, b = gain(one, other), wilson(50, 100), wilson(40, 100)
    low, high = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    assert (found.value, found.n) == (pytest.approx(10.0), 100)
    assert (found.low, found.high) == pytest.approx((10 - 100 * low, 10 + 100 * high))


def test_gain_covers_and_is_narrower_where_the_ways_agree():
    """Pairs of which 0.15 are hit by one way alone and 0.05 by the other alone; false alarm under 1e-4."""
    draw = random.Random(4)
    covered = 0
    for _ in range(400):
        kinds = draw.choices(["both", "one", "other", "none"], [0.5, 0.15, 0.05, 0.3], k=80)
        found = gain([k in ("both", "one") for k in kinds], [k in ("both", "other") for k in kinds])
        covered += found.low <= 10.0 <= found.high
    assert covered >= 0.90 * 400
    half = [True] * 40 + [False] * 40
    near = gain(half, [True] * 38 + [False] * 42)
    far = gain(half, [False] * 42 + [True] * 38)
    assert near.value == far.value and near.high - near.low < 0.5 * (far.high - far.low)
    with pytest.raises(ValueError, match="same pairs"):
        gain(half, half[1:])


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
