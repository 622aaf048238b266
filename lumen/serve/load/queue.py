"""One server and the people before it: the smallest model of a service under load.

Requests are served one after the other in the order in which they arrive. It needs no clock and no server, and it
already has a knee: near full load every small delay is handed on to everybody behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from lumen.serve.load.record import Record


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


def mean_wait(load: float, service: float, variation: float = 0.0) -> float:
    """Mean time in the queue for Poisson arrivals: load / (1 - load) x service x (1 + variation²) / 2. [s]

    `variation` is the standard deviation of the service time over its mean: 0 if all are equal, 1 if they are
    exponential (Pollaczek and Khinchine, 1930-32). At a load of 1 the queue grows without end.
    """
    if not 0 <= load < 1:
        raise ValueError(f"A queue has a mean wait for loads from 0 to below 1, got {load}.")
    return load / (1 - load) * service * (1 + variation**2) / 2
