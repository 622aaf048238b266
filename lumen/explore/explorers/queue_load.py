"""The queue explorer: one server with places, and two testers who see the same run with different eyes.

Orange measures from when each request was due. Blue measures from when it was sent by a tester who holds one
connection for each place and sends on it only when the answer before has come.

A long run is simulated, some 100,000 requests, so that its p99 is that of the queue and not of its first minutes;
300 of them are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumen.explore.explorers.widget import JSWidget
from lumen.loadgen.statistics import percentile

SERVICE = 0.1  # seconds a request takes
DRAWN = 300
COUNT = 99_900  # a multiple of DRAWN
LOADS = (*(percent / 100 for percent in range(10, 95, 5)), 0.92, 0.94, 0.95)
FREEZES = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
PLACES = (1, 8, 64)
SEED = 4  # of 1 to 24 the one whose p99 is nearest to that of the endless queue at loads from 0.5 to 0.95


def unit_gaps(count: int, seed: int = SEED) -> list[float]:
    """Gaps of a Poisson process, scaled to a mean of 1. The twin of `unitGaps` in queue_load.js.

    The generator is mulberry32: the page draws its own numbers, for a hundred thousand would be a megabyte.
    """
    state, gaps = seed, []
    for _ in range(count):
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        mixed = ((state ^ (state >> 15)) * (state | 1)) & 0xFFFFFFFF
        mixed ^= (mixed + (((mixed ^ (mixed >> 7)) * (mixed | 61)) & 0xFFFFFFFF)) & 0xFFFFFFFF
        gaps.append(-math.log(1 - (mixed ^ (mixed >> 14)) / 2**32))
    mean = sum(gaps) / count
    return [gap / mean for gap in gaps]


def play(
    gaps: Sequence[float], load: float, freeze: float, places: int = 1, window: int = DRAWN
) -> dict[str, Any]:
    """Latencies of the run as both testers see them, with mean, p50, p99 and the share of slow ones. [s]

    Every `window` requests the server stands still for `freeze` seconds, from the moment when the middle one of
    them is due. Requests start in order, each when it has come and a place is free. While the server stands
    still its own clock stands, too: the queue is played on that clock. The twin of `play` in queue_load.js.
    """
    arrivals: list[float] = []
    begins: list[float] = []  # these three on the server's clock
    ends: list[float] = []
    frozen: list[float] = []
    now = 0.0
    for i, gap in enumerate(gaps):
        now += gap * SERVICE / load / places
        clock = now - freeze * len(frozen)
        if frozen and clock < frozen[-1]:  # it comes while the server stands still
            clock = frozen[-1]
        if freeze and i % window == window // 2:
            frozen.append(clock)
        begin = max(clock, ends[i - places]) if i >= places else clock
        arrivals.append(now)
        begins.append(begin)
        ends.append(begin + SERVICE)
    answered = _by_our_clock(ends, frozen, freeze)
    started = [max(*pair) for pair in zip(arrivals, _by_our_clock(begins, frozen, freeze), strict=True)]
    due = [end - start for end, start in zip(answered, arrivals, strict=True)]
    sent = [end - start for end, start in zip(answered, started, strict=True)]
    return {
        "arrivals": arrivals,
        "due": due,
        "sent": sent,
        "stats": {"due": _stats(due), "sent": _stats(sent)},
    }


def _by_our_clock(moments: Sequence[float], frozen: Sequence[float], freeze: float) -> list[float]:
    """Moments of the server's clock, ascending, with the freezes that began before them added. [s]"""
    passed, found = 0, []
    for moment in moments:
        while passed < len(frozen) and frozen[passed] < moment:
            passed += 1
        found.append(moment + passed * freeze)
    return found


def _stats(values: Sequence[float]) -> dict[str, float]:
    slow = sum(value > 2 * SERVICE + 1e-9 for value in values) / len(values)
    p50, p99 = percentile(values, 50), percentile(values, 99)
    return {"mean": sum(values) / len(values), "p50": p50, "p99": p99, "slow": slow}


def drawn(run: dict[str, Any], places: int) -> list[int]:
    """The requests that the picture shows: every `places`-th of the last window."""
    count = len(run["arrivals"])
    return list(range(count - DRAWN * places, count, places))


def counted(places: int) -> int:
    """Requests that the explorer plays: whole windows, about `COUNT` of them."""
    window = DRAWN * places
    return max(1, COUNT // window) * window


class QueueLoad(JSWidget):
    """Drag the load and the length of a freeze; compare the latencies that two testers report.

    >>> QueueLoad(load=0.75, freeze=2.0)
    """

    module = "queue_load.js"
    label = "queue explorer"

    def __init__(
        self,
        load: float = 0.75,
        freeze: float = 2.0,
        arrivals: str = "even",
        places: int = 1,
        *,
        title: str = "Two testers, one server",
        lead: str = "Simulated: each request takes 0.1 s on a place of its own. The server freezes once in the middle.",
    ) -> None:
        if load not in LOADS:
            raise ValueError(f"The slider goes from {LOADS[0]} to {LOADS[-1]}, got a load of {load}.")
        if freeze not in FREEZES:
            raise ValueError(f"The freeze lasts one of {', '.join(map(str, FREEZES))} seconds, got {freeze}.")
        if arrivals not in ("even", "random"):
            raise ValueError(f"Arrivals are even or random, got {arrivals!r}.")
        if places not in PLACES:
            raise ValueError(f"The server has one of {', '.join(map(str, PLACES))} places, got {places}.")
        super().__init__(
            service=SERVICE, count=COUNT, seed=SEED, loads=list(LOADS), freezes=list(FREEZES), places=list(PLACES),
            load=load, freeze=freeze, arrivals=arrivals, place=places, title=title, lead=lead,
        )  # fmt: skip
