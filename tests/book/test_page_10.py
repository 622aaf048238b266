"""The formulas of chapter 10 against engines that are simulated step by step."""

from __future__ import annotations

import pytest

from lumen.bench import Estimate
from lumen.explore.explorers.knee import in_words, predicted_runs
from lumen.loadgen import Record, arrivals, percentile
from lumen.loadgen.batched import batched
from lumen.pages import ch10

SLOTS, ANSWER = 32, 129  # exercise 1
PREFILL, STEP = 0.020, 0.025
MU = SLOTS / (SLOTS * PREFILL + (ANSWER - 1) * STEP)


def step(new: int, old: int) -> float:
    return PREFILL * new + (STEP if old else 0.0)


def test_the_bathtub_holds_the_door_and_its_edges():
    """Six seeds end at 14.8 to 16.1 s. The tub says 15.2, the door alone 12."""
    times = (arrivals(600, 10.0, seed=seed) for seed in range(6))
    last = [batched(t, step, answer=ANSWER, places=SLOTS).latency[-1] for t in times]
    assert ch10.parts(step, SLOTS) == pytest.approx((STEP, 0))
    assert ch10.bathtub(600, MU, 10.0, (ANSWER - 1) * STEP) == pytest.approx(15.2)
    assert min(last) > 14.4 and max(last) < 16.4


@pytest.mark.parametrize("load", [1.5, 2.0, 4.0])
def test_the_bathtub_where_most_of_a_step_is_not_shared(load):
    """Prefills and b outweigh a, as on two cores. With a whole stay for (n - 1) a the tub is too high."""
    slots, answer, count = 8, 32, 48
    mu = slots / (slots * small(1, 0) + (answer - 1) * small(0, slots))
    times = (arrivals(count, load * mu, seed=seed) for seed in range(8))
    last = [batched(t, small, answer=answer, places=slots).latency[-1] for t in times]
    shared, each = ch10.parts(small, slots)
    assert (shared, each) == pytest.approx((0.030, 0.0035))
    tub = ch10.bathtub(count, mu, load * mu, (answer - 1) * shared)
    assert tub == pytest.approx(sum(last) / len(last), rel=0.12)
    assert ch10.bathtub(count, mu, load * mu, slots / mu) > max(last)


def test_a_miss_of_the_tub_is_explained_only_where_the_interval_of_mu_covers_it():
    clock = Estimate(1.48, 1.31, 1.58, 5, "requests/s")
    said = {end: ch10.bathtub_text(48, clock, 2.22, 2.0, [end] * 3) for end in (4.0, 10.8, 12.8, 40.0)}
    assert "sooner than any" in said[4.0] and "later than any" in said[40.0]
    assert "covers the clock" in said[10.8] and "interval" not in said[12.8]


def test_retries_by_hand():
    """Twice the load, one retry: A = 2 (1 + 1 - 1/A), so A² - 4 A + 2 = 0 and A = 2 + √2."""
    assert ch10.attempts(2.0, 1.0, 1) == pytest.approx(2 + 2**0.5)
    assert ch10.attempts(2.0, 1.0, 0) == 2.0 and ch10.attempts(0.5, 1.0, 3) == 0.5


def test_dealt_in_turns_is_every_mth_arrival():
    """A Poisson process thinned by turns, against gaps drawn from the gamma distribution: p90 within a tenth."""
    rows, _, _ = ch10.replicas(small, 32, 8, count=20_000)
    mu = 8 / (8 * small(1, 0) + 31 * small(0, 8))
    every = arrivals(40_000, 2 * 0.7 * mu, seed=3)[::2]
    drawn = arrivals(20_000, 0.7 * mu, 2, seed=4)
    tails = [percentile(batched(t, small, answer=32, places=8).ttft, 90) for t in (every, drawn)]
    assert tails[0] == pytest.approx(tails[1], rel=0.1)
    assert [row[0] for row in rows] == ["any number, by lot", "2, in turns", "4, in turns", "8, in turns"]


def small(new: int, old: int) -> float:
    return 0.045 * new + (0.030 + 0.0035 * old if old else 0.0)


def test_the_knee_lies_below_saturation_and_where_the_tail_bends():
    found = ch10.knee(small, 32, 8)
    assert found.crowd + 1.28 * found.crowd**0.5 == pytest.approx(8)
    assert 0.6 < found.simulated / found.mu < found.formula / found.mu < 0.9
    tails = dict(zip(found.rates, found.p90, strict=True))
    before = max(r for r in tails if r < found.simulated * 0.9)
    behind = min(r for r in tails if r > found.simulated * 1.1)
    assert tails[behind] > 4 * tails[before]


def test_houses_of_a_closed_loop():
    """Two users, three rounds of 2, 2 and 4 seconds."""
    ends = [2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
    got = ch10.houses([Record(0, 0, (end,), end, 1, 1) for end in ends], 2)
    assert (got.value, got.low, got.high, got.n) == (1.0, 0.5, 1.0, 3)


def test_without_a_load_test_the_page_says_predicted(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path))
    engines, source = ch10.engines(small, 8)
    assert source.startswith("predicted") and [one["name"] for one in engines] == ["lumen, predicted"]
    text = ch10.engines_text(engines, source)
    assert "llama-server" in text and "reads" not in text
    (row,) = ch10.engines_table(engines)[0]
    assert row[1] == in_words(ch10.carried(engines[0]["runs"], *ch10.LIMITS), engines[0]["runs"])


def test_with_a_load_test_the_page_names_its_servers(monkeypatch):
    runs = predicted_runs(small, (1.0, 4.0), answer=16, count=20)
    one = {"name": "llama.cpp", "version": "llama-server 1", "weights": "Q4_1", "runs": runs}
    found = {"date": "2026-12-01", "cpu": "a chip", "data": {"engines": [one], "setting": {"threads": 2}}}
    monkeypatch.setattr(ch10, "load_evidence", lambda name: found)
    engines, source = ch10.engines(small, 8)
    assert source == "measured 2026-12-01 on a chip, 2 threads"
    assert engines[0]["note"].startswith("llama-server 1, Q4_1 weights")
    assert ch10.engines_text(engines, source).endswith("All read 4-bit weights.")
    several = [*engines, engines[0] | {"name": "vLLM", "weights": "fp32"}]
    for order in (several, several[::-1]):  # whoever comes first
        text = ch10.engines_text(order, source)
        assert "llama.cpp reads 4-bit weights" in text and "vLLM reads 32-bit weights" in text
        assert "not equal arithmetic" in text
    del found["data"]["engines"][0]["runs"][0]["rounds"]  # as an older benchmark wrote it
    assert ch10.engines(small, 8)[1].startswith("predicted")
