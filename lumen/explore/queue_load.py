"""The queue explorer: one server, and two testers who see the same run with different eyes.

Orange measures from when each request was due, blue from when a tester who waits for every answer could send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumen.explore.widget import JSWidget
from lumen.serve.load.queue import one_server
from lumen.serve.load.statistics import percentile, samples

SERVICE = 0.1  # seconds a request takes
COUNT = 300
LOADS = tuple(percent / 100 for percent in (*range(10, 90, 5), *range(90, 99)))
FREEZES = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)


def unit_gaps(count: int = COUNT, seed: int = 0) -> list[float]:
    """Gaps of a Poisson process of rate 1, scaled to a mean of exactly 1 but for the rounding to three decimals."""
    drawn = np.random.default_rng(seed).exponential(1.0, count)
    return [round(float(gap), 3) for gap in drawn / drawn.mean()]


def play(gaps: Sequence[float], load: float, freeze: float) -> dict[str, Any]:
    """Latencies of the run as both testers see them, with mean, p50 and p99. [s]

    The server freezes for `freeze` seconds in the middle request. The twin of `play` in queue_load.js.
    """
    arrivals, now = [], 0.0
    for gap in gaps:
        now += gap * SERVICE / load
        arrivals.append(now)
    services = [SERVICE] * len(gaps)
    services[len(gaps) // 2] += freeze
    records = one_server(arrivals, services)
    seen = {"due": samples(records, "e2el", intended=True), "sent": samples(records, "e2el")}
    stats = {
        who: {
            "mean": sum(values) / len(values),
            "p50": percentile(values, 50),
            "p99": percentile(values, 99),
            "slow": sum(value > 2 * SERVICE + 1e-9 for value in values),
        }
        for who, values in seen.items()
    }
    return {"arrivals": arrivals, **seen, "stats": stats}


class QueueLoad(JSWidget):
    """Drag the load and the length of one freeze; compare the latencies that two testers report.

    >>> QueueLoad(load=0.75, freeze=2.0)
    """

    module = "queue_load.js"
    label = "queue explorer"

    def __init__(
        self,
        load: float = 0.75,
        freeze: float = 2.0,
        arrivals: str = "even",
        *,
        title: str = "Two testers, one server",
        lead: str = "Each request takes 0.1 s. Every point is one of 300; the server freezes once, in the middle.",
    ) -> None:
        if load not in LOADS:
            raise ValueError(f"The slider goes from {LOADS[0]} to {LOADS[-1]}, got a load of {load}.")
        if freeze not in FREEZES:
            raise ValueError(f"The freeze lasts one of {', '.join(map(str, FREEZES))} seconds, got {freeze}.")
        if arrivals not in ("even", "random"):
            raise ValueError(f"Arrivals are even or random, got {arrivals!r}.")
        super().__init__(
            service=SERVICE, gaps=unit_gaps(), loads=list(LOADS), freezes=list(FREEZES), load=load, freeze=freeze,
            arrivals=arrivals, title=title, lead=lead,
        )  # fmt: skip
