"""When requests are sent. The whole schedule is made before the run, so a slow server cannot change it.

That is what "open loop" means: people do not wait for each other's answers before they ask. In a closed loop a
fixed number of users each wait for their answer, and a slow server is asked less often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LONGEST_RUN = 31 * 86400.0  # seconds; a time beyond it is a mistake, and infinity would wait for ever
MAX_LENGTH = 10**7  # tokens of a prompt or an answer: the longest context on offer in 2026


def arrivals(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Times of `count` requests at `rate` per second on average, the first gap included. [s]

    Gaps are drawn from a gamma distribution of shape `burstiness` and mean 1/rate, as in `vllm bench serve`:
    1 is a Poisson process, below 1 comes in bursts, above 1 is more even, inf is a metronome. `rate` inf sends
    all at once. The times are stretched so that the last one is count/rate: runs of different seeds then offer
    the same load. (vLLM does so too; it takes the fluctuation of the total out of a Poisson process.)
    """
    if count < 1:
        raise ValueError(f"A run sends at least one request, got {count}.")
    if not rate > 0:
        raise ValueError(f"The request rate must be above 0 per second (inf sends all at once), got {rate}.")
    if not burstiness > 0:
        raise ValueError(f"Burstiness must be above 0 (1 is a Poisson process), got {burstiness}.")
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        gaps = np.full(count, 1 / rate)
    else:
        gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    times = np.cumsum(gaps)
    return (times * (count / rate / times[-1])).tolist() if times[-1] > 0 else times.tolist()


def lengths(
    count: int, mean: float, sigma: float = 0.0, seed: int = 0, *, longest: int | None = None
) -> list[int]:
    """Token lengths: all `mean`, or log-normal around that mean with `sigma` of the logarithm, 1 at least.

    sigma = 1 is close to what chat logs look like: half of the answers are shorter than 0.6 of the mean, one
    in a hundred longer than six times it. `longest` caps them, which lowers the mean.
    """
    if count < 1 or not 1 <= mean <= MAX_LENGTH or not 0 <= sigma <= 10:
        raise ValueError(
            f"Lengths need count >= 1, mean >= 1 and sigma >= 0, up to {MAX_LENGTH:,} tokens and a sigma of 10; "
            f"got {count}, {mean:g}, {sigma:g}."
        )
    if sigma == 0:
        drawn = np.full(count, round(mean))
    else:
        drawn = np.random.default_rng(seed).lognormal(math.log(mean) - sigma**2 / 2, sigma, count).round()
    return np.clip(drawn, 1, min(longest or MAX_LENGTH, MAX_LENGTH)).astype(int).tolist()


def check_times(times: Sequence[float]) -> None:
    """ValueError for a time that no run can wait for: before its start, after 31 days, or not a number at all."""
    for number, at in enumerate(times, 1):
        if not 0 <= at <= LONGEST_RUN:
            raise ValueError(
                f"Request {number} would be sent at {at:g} s; a run lasts from 0 to {LONGEST_RUN:,.0f} s (31 days). "
                "Raise the rate, or replay the trace faster."
            )
