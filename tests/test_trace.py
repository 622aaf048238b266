"""The length trace and the arithmetic of reservation, by hand and by property."""

from __future__ import annotations

import numpy as np
import pytest

from lumen.cost.trace import Trace, concurrent, lognormal_trace, moments, reserved, used_share


def test_reservation_by_hand():
    length = np.array([1, 16, 17, 100])
    assert reserved(length, "max", 128).tolist() == [128] * 4
    assert reserved(length, "paged", 128).tolist() == [16, 16, 32, 112]
    assert reserved(length, "power of two", 120).tolist() == [1, 16, 32, 120]


def test_used_share_by_hand():
    trace = Trace(np.array([3]), np.array([2]), 8)  # lengths 3 and 4
    assert used_share(trace, "max") == pytest.approx(7 / 16)
    assert used_share(trace, "paged", 4) == pytest.approx(7 / 8)
    assert used_share(trace, "paged", 1) == 1.0


def test_a_block_wastes_half_of_itself_on_average():
    trace = lognormal_trace(400, seed=3)
    # Weighted by steps: every length is as likely to end anywhere in its block.
    lengths = np.concatenate([np.arange(p, p + n) for p, n in zip(trace.prompt, trace.output, strict=True)])
    for size in (8, 32, 128):
        expected = lengths.mean() / (lengths.mean() + (size - 1) / 2)
        assert used_share(trace, "paged", size) == pytest.approx(expected, rel=0.02)
    shares = [used_share(trace, "paged", s) for s in (1, 8, 32, 128)]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1.0
    assert used_share(trace, "max") < used_share(trace, "power of two") < shares[1]


def test_the_trace_keeps_its_limits_and_its_seed():
    trace = lognormal_trace(2000, limit=512, sigma=2.0, seed=5)
    assert (
        (trace.prompt >= 1).all() and (trace.output >= 1).all() and (trace.prompt + trace.output <= 512).all()
    )
    assert (trace.prompt == lognormal_trace(2000, limit=512, sigma=2.0, seed=5).prompt).all()
    median = np.median(lognormal_trace(4000, limit=10**6, seed=1).prompt)
    assert 160 < median < 200


def test_more_requests_fit_when_less_is_reserved():
    trace = lognormal_trace(500, seed=2)
    fits = {policy: concurrent(trace, policy, 32768) for policy in ("max", "power of two", "paged")}
    assert fits["max"] == 16 and fits["max"] < fits["power of two"] < fits["paged"]


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: lognormal_trace(0), "a request"),
        (lambda: reserved(np.array([1]), "paged", 8, 0), "block_size 0"),
        (lambda: reserved(np.array([1]), "best", 8), "no policy"),
        (lambda: concurrent(lognormal_trace(5), "max", 100), "make it larger"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_who_is_met_in_a_busy_server_has_a_long_answer():
    """The mean that `used_share` counts, and not that of the list: a tenth of the requests, half of the steps."""
    trace = Trace(np.array([10] * 10), np.array([10] * 9 + [90]), 128)
    met = moments(trace)
    assert abs(met.mean() - 128 * used_share(trace, "max")) < 1  # ± 0.2 in 20,000 draws
    assert met.mean() > 1.5 * (trace.prompt + (trace.output - 1) / 2).mean()
    assert abs(concurrent(trace, "paged", 3200, 1) - 3200 / met.mean()) < 1
