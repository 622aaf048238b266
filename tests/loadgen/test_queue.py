"""The queue of one server, against sums by hand and the Pollaczek-Khinchine formula."""

from __future__ import annotations

import numpy as np
import pytest

from lumen.explore.explorers.knee import play_queue
from lumen.loadgen import arrivals, samples
from lumen.loadgen.batched import batched
from lumen.loadgen.queue import mean_wait, one_server, places


def test_a_queue_worked_by_hand():
    got = one_server([0.0, 1.0, 1.5, 10.0], [2.0, 1.0, 1.0, 1.0])
    assert [r.start for r in got] == [0.0, 2.0, 3.0, 10.0]
    assert samples(got, "e2el", intended=True) == [2.0, 2.0, 2.5, 1.0]
    assert samples(got, "e2el") == [2.0, 1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="as many service times"):
        one_server([0.0], [])


@pytest.mark.parametrize("load, variation", [(0.5, 0.0), (0.8, 0.0), (0.6, 1.0)])
def test_the_mean_wait_is_that_of_the_formula(load, variation):
    """60,000 requests; 12 % allows for the long memory of a queue at these loads (seeds 0 to 20 stay inside 9 %)."""
    count, dice = 60_000, np.random.default_rng(5)
    services = np.ones(count) if variation == 0 else dice.exponential(1.0, count)
    got = np.mean(samples(one_server(arrivals(count, load, seed=4), services), "queue"))
    assert got == pytest.approx(mean_wait(load, 1.0, variation), rel=0.12)


def test_a_full_server_has_no_mean_wait():
    assert mean_wait(0.0, 1.0) == 0
    for load in (1.0, -0.1):
        with pytest.raises(ValueError, match="below 1"):
            mean_wait(load, 1.0)


def test_one_place_is_one_server():
    times = arrivals(500, 0.8, seed=1)
    assert places(times, 1) == pytest.approx(samples(one_server(times, [1.0] * 500), "e2el", intended=True))


def test_places_worked_by_hand():
    assert places([0.0, 0.1, 0.2, 3.0], 2) == pytest.approx([1.0, 1.0, 1.8, 1.0])
    assert places([0.0, 0.0, 0.0], 3, 2.0).tolist() == [2.0, 2.0, 2.0] and not len(places([], 3))
    for wrong in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="a place at least"):
            places([0.0], *wrong)


@pytest.mark.parametrize("count, p99", [(1, 22.9), (8, 3.65), (64, 1.285)])
def test_the_tail_of_places(count, p99):
    """M/D/c at a load of 90 %. One place: the exact 22.9. The others: two million requests, seeds 1 to 3."""
    got = np.percentile(places(arrivals(200_000, 0.9 * count, seed=1), count), 99)
    assert got == pytest.approx(p99, rel=0.08)


def test_batched_is_the_server_that_goes_step_by_step():
    """Whole stretches of equal steps at once, against one step after the other."""
    step = lambda new, old: 0.05 * new + 0.01 + 0.002 * (new + old)  # noqa: E731
    for rate, answer, room, together in ((1, 1, 1, 1), (3, 7, 4, 2), (8, 2, 16, 8), (20, 7, 16, 8)):
        times = arrivals(200, rate, seed=2)
        got = batched(times, step, answer=answer, places=room, together=together)
        slow = play_queue(times, step, answer=answer, slots=room, together=together)
        assert got.ttft == pytest.approx([s[1] for s in slow["samples"]])
        assert got.seconds == pytest.approx(slow["duration"])
        assert got.tpot == pytest.approx([s[2] for s in slow["samples"] if s[2] is not None])


def test_batched_worked_by_hand():
    """One place, answers of three tokens: the second waits for the third step; newcomers slow who is inside."""
    got = batched([0.0, 0.0], lambda new, old: 1.0 + new, answer=3, places=1)
    assert got.ttft == [2.0, 6.0] and got.latency == [4.0, 8.0] and got.tpot == [1.0, 1.0]
    both = batched([0.0, 0.5], lambda new, old: 1.0 + new, answer=3, places=2)
    assert both.ttft == [2.0, 3.5] and both.tpot == [1.5, 1.0] and both.steps == 4
    assert both.good(3.0, 9.0) == 1 and both.good(9.0, 1.2) == 1 and both.good(9.0, 9.0) == 2
    assert batched([0.0], lambda new, old: 1.0, answer=1, places=1).tpot == []
    with pytest.raises(ValueError, match="a token, a place"):
        batched([0.0], lambda new, old: 1.0, answer=0, places=1)
