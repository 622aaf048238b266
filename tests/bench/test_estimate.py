"""Intervals keep their promise on simulated data; ratios turn around; noise is not an effect."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from lumen.bench import Estimate, Timing, outcome


@pytest.mark.parametrize("n", [6, 7, 12, 25])
def test_the_interval_holds_the_median_in_95_of_100(n):
    """Lognormal samples with a tail, as times have. 4000 trials at a coverage of 95 % or more: fewer than 93.6 % hits
    lie over four standard deviations (0.34 %) below, so this fails by bad luck less than once in 30,000 runs."""
    dice = random.Random(n)
    hits = 0
    for _ in range(4000):
        est = Estimate.of([dice.lognormvariate(0.0, 0.6) for _ in range(n)])
        hits += est.low <= 1.0 <= est.high
    assert hits / 4000 > 0.936


@pytest.mark.parametrize(("n", "promised"), [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)])
def test_below_six_samples_the_range_holds_it_as_often_as_the_docstring_says(n, promised):
    """4000 trials: four standard deviations are at most 3.2 %."""
    dice = random.Random(n)
    hits = 0
    for _ in range(4000):
        est = Estimate.of([dice.lognormvariate(0.0, 0.6) for _ in range(n)])
        hits += est.low <= 1.0 <= est.high
    assert abs(hits / 4000 - promised) < 4 * math.sqrt(promised * (1 - promised) / 4000)


def test_ranks_are_those_of_the_tables():
    """Ranks of the 95 % interval for a median as tables of the sign test have them."""
    for n, rank in {6: 1, 8: 1, 9: 2, 12: 3, 15: 4, 25: 8}.items():
        est = Estimate.of(list(range(1, n + 1)))
        assert (est.low, est.high) == (rank, n + 1 - rank)


def test_a_ratio_of_equals_is_no_difference_in_95_of_100():
    """1000 comparisons of two equal things, paired and not: at most 5 % may look different; 8 % is over four standard
    deviations (0.69 %) above. The medians alone differ every time."""
    dice = random.Random(1)
    for m in (12, 15):
        wrong = 0
        for _ in range(1000):
            a, b = ([dice.lognormvariate(0.0, 0.1) for _ in range(n)] for n in (12, m))
            wrong += outcome(Estimate.ratio(a, b), worth=0.0) != "same"
        assert wrong / 1000 < 0.08


def test_an_effect_of_a_fifth_is_found():
    dice = random.Random(2)
    a = [1.2 * dice.lognormvariate(0.0, 0.05) for _ in range(20)]
    b = [dice.lognormvariate(0.0, 0.05) for _ in range(20)]
    assert outcome(Estimate.ratio(a, b)) == "more"


def test_pairs_cancel_a_slow_minute():
    """The machine drifts by a factor of three; each round is a tenth apart. Unpaired this would be lost."""
    drift = [1.0, 1.5, 2.0, 3.0, 2.0, 1.2, 1.1, 1.0]
    est = Estimate.ratio(Timing(tuple(1.1 * d for d in drift)), Timing(tuple(drift)))
    assert (est.value, est.low, est.high) == pytest.approx((1.1, 1.1, 1.1))
    assert outcome(Estimate.ratio([1.1 * d for d in drift], drift[:-1])) == "same"


@pytest.mark.parametrize(("m", "n"), [(8, 8), (8, 7), (3, 3), (4, 3)])
def test_who_divides_the_shown_medians_finds_the_ratio(m, n):
    """The median of the pairs' ratios stood beside medians that gave another: 1.43 beside 50.4 / 36.2 ms."""
    dice = random.Random(m + n)
    a, b = ([dice.lognormvariate(0.0, 0.3) for _ in range(size)] for size in (m, n))
    assert Estimate.ratio(a, b).value == pytest.approx(Estimate.of(a).value / Estimate.of(b).value)
    assert Estimate.difference(a, b).value == pytest.approx(Estimate.of(a).value - Estimate.of(b).value)


@pytest.mark.parametrize("sizes", [(12, 12), (11, 11), (12, 15), (3, 5), (1, 1)])
def test_a_ratio_turned_around_is_its_reciprocal(sizes):
    dice = random.Random(sum(sizes))
    a, b = (
        [scale * dice.lognormvariate(0.0, 0.2) for _ in range(n)]
        for n, scale in zip(sizes, (2, 1), strict=True)
    )
    one, other = Estimate.ratio(a, b), Estimate.ratio(b, a)
    assert (one.value, one.low, one.high) == pytest.approx((1 / other.value, 1 / other.high, 1 / other.low))
    turned = {"more": "less", "less": "more", "same": "same"}
    assert outcome(one) == turned[outcome(other)]
    there, back = Estimate.difference(a, b), Estimate.difference(b, a)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))


def test_near_the_worth_the_verdict_turns_around_too():
    for value in (1.02, 1.0299, 1.0301, 1.05):
        one, other = (Estimate(v, v * 0.999, v * 1.001, 9) for v in (value, 1 / value))
        turned = {"more": "less", "same": "same"}
        assert outcome(other) == turned[outcome(one)]


def test_order_does_not_matter_to_an_estimate():
    dice = random.Random(3)
    samples = [dice.random() for _ in range(13)]
    shuffled = dice.sample(samples, 13)
    assert Estimate.of(samples) == Estimate.of(shuffled)
    assert Estimate.of(samples).value == statistics.median(samples)


def test_unequal_numbers_give_the_same_interval_every_time():
    a, b = [1.0, 1.2, 1.1, 1.3, 1.05, 1.15, 1.4], [0.9, 1.0, 1.1, 0.95, 1.02, 0.97]
    assert Estimate.ratio(a, b) == Estimate.ratio(a, b)
    assert Estimate.ratio(a, b).n == 6


def test_scaling_turns_the_interval_over_when_negative():
    assert Estimate(1.0, 0.5, 3.0, 7, "s").scaled(-2, "x") == Estimate(-2.0, -6.0, -1.0, 7, "x")


@pytest.mark.parametrize(
    ("est", "text"),
    [
        (Estimate(1.2412, 1.13, 1.35, 12, "×"), "1.24 × (1.13 to 1.35, n = 12)"),
        (Estimate(0.03401, 0.033, 0.0352, 24, "s"), "34.0 ms (33.0 to 35.2, n = 24)"),
        (Estimate(2.5e-5, 2.4e-5, 2.6e-5, 6, "s"), "25.0 µs (24.0 to 26.0, n = 6)"),
        (Estimate(2.5, 2.4, 2.6, 6, "s"), "2.50 s (2.40 to 2.60, n = 6)"),
        (Estimate(12345.6, 12000, 13000, 6), "12,346 (12,000 to 13,000, n = 6)"),
        (Estimate(1.0, 0.9999, 1.0001, 9, "×"), "1.0000 × (0.9999 to 1.0001, n = 9)"),
        (Estimate(0.0, -1.0, 1.0, 9, "GB"), "0.00 GB (−1.00 to 1.00, n = 9)"),
    ],
)
def test_how_it_reads(est, text):
    assert str(est) == text


@pytest.mark.parametrize(
    "bad", [(1.0, 2.0, 3.0, 5), (1.0, 0.0, math.inf, 5), (math.nan, 0.0, 1.0, 5), (1.0, 0.5, 2.0, 0)]
)
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match="An estimate needs"):
        Estimate(*bad)
    with pytest.raises(ValueError, match="above 0"):
        Estimate.ratio([1.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="a sample"):
        Estimate.of([])
