"""Queues without a clock and without a server: the smallest models of a service under load.

`one_server` serves one request after the other. `places` lets several be served at once, each as fast as if it were
alone: c counters in a post office. An engine with continuous batching is neither, for those it serves slow each
other down: that is `lumen.loadgen.batched`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lumen.loadgen.record import Record


def one_server(arrivals: Sequence[float], services: Sequence[float]) -> list[Record]:
    """Records of requests that arrive at `arrivals` (ascending) and take `services`. [s]

    A request starts when it has arrived and the one before it is done (Lindley 1952). `intended` is its arrival;
    `start` is also when a tester who waits for each answer would have sent it, so `latency` is what that tester
    measures and `queue` what it forgets.
    """
    if len(arrivals) != len(services):
        raise ValueError(f"{len(arrivals)} arrivals need as many service times, got {len(services)}.")
    records, free = [], 0.0
    for due, took in zip(arrivals, services, strict=True):
        start = max(due, free)
        free = start + took
        records.append(Record(due, start, (free,), free, 0, 1))
    return records


def places(arrivals: Sequence[float], count: int, service: float = 1.0) -> np.ndarray:
    """Latencies from arrival to answer with `count` places, first come first served: (num_requests,). [s]

    All requests take `service`, so they leave in the order in which they came, and request i takes the place that
    request i - count left. With `count` 1 this is `one_server`. Poisson arrivals make it the queue M/D/c.

    Place by place it is end[k] = max(due[k], end[k-1]) + service, and that is a running maximum:
    end[k] = (k + 1) * service + max over m <= k of (due[m] - m * service).
    """
    if count < 1 or not service > 0:
        raise ValueError(
            f"A queue needs a place at least and a service time above 0, got {count} and {service}."
        )
    rows = -(-len(arrivals) // count)
    padded = np.full(rows * count, np.inf)
    padded[: len(arrivals)] = arrivals
    due = padded.reshape(rows, count)  # a column for each place
    turn = service * np.arange(rows)[:, None]
    ends = turn + service + np.maximum.accumulate(due - turn, axis=0)
    return ends.ravel()[: len(arrivals)] - np.asarray(arrivals, float)


def mean_wait(load: float, service: float, variation: float = 0.0) -> float:
    """Mean time in the queue for Poisson arrivals: load / (1 - load) x service x (1 + variation²) / 2. [s]

    One server. `variation` is the standard deviation of the service time over its mean: 0 if all are equal, 1 if
    they are exponential (Pollaczek and Khinchine, 1930-32). At a load of 1 the queue grows without end.
    """
    if not 0 <= load < 1:
        raise ValueError(f"A queue has a mean wait for loads from 0 to below 1, got {load}.")
    return load / (1 - load) * service * (1 + variation**2) / 2
