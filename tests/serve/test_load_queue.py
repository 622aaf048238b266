"""The queue of one server, against sums by hand and the Pollaczek-Khinchine formula."""

from __future__ import annotations

import numpy as np
import pytest

from lumen.serve.load import arrivals, samples
from lumen.serve.load.queue import mean_wait, one_server


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
