"""Timing many calls inside one budget: everyone gets a share, and a slow machine takes fewer samples, not more time.

Calls are timed in turns, a b c, c b a, so a disturbance spoils one round of all and not all rounds of one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lumen.timing import Clock, quiet, synchronize

K = TypeVar("K", bound=Hashable)
Call = Callable[[], object]  # may return the seconds that count

UNSURE = 1.0  # the spread of what was sampled less than three times: it may be anything


@dataclass(frozen=True)
class Samples:
    """Seconds of one call, taken several times."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Half the width of the middle half of the samples, as a share of their median."""
        if len(self.seconds) < 3:
            return UNSURE
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (third - first) / 2 / self.median


class Budget:
    """`seconds` to be shared out. `shown` is called with the share that is spent, from 0 to 1, as it rises.

    A probe that overruns takes from those that follow, so the whole ends in time; each call is made once at
    least, unless its probe has already overrun its share twofold. What was cut short stands in `cut`.
    """

    def __init__(
        self, seconds: float, clock: Clock = time.perf_counter, shown: Callable[[float], None] | None = None
    ):
        self.seconds, self.clock, self.cut = seconds, clock, list[str]()
        self._shown = shown or (lambda share: None)
        self._start = clock()
        self._probe_ends = self._start

    @property
    def spent(self) -> float:
        return self.clock() - self._start

    def each(
        self,
        what: str,
        calls: Mapping[K, Call],
        seconds: float,
        *,
        inner: int = 1,
        rounds: int = 100,
    ) -> dict[K, Samples]:
        """Time every call until `seconds`, or what is left of the budget, are spent; the first one always.

        The most important call comes first: when the machine is too slow for all, the last ones are left out. A
        call may return the seconds that count. `inner` calls make a sample. The first call is a warm-up, and
        counts only when there is no time for another.
        """
        began = self.clock()
        ends = began + min(seconds, max(0.0, self._start + self.seconds - began))
        latest = began + 2 * (ends - began)
        first: dict[K, float] = {}
        taken: dict[K, list[float]] = {}
        with quiet():
            for key, call in calls.items():
                if first and self.clock() > latest:
                    break
                first[key] = self.once(call, inner)
            order = list(first)
            a_round, until = self.clock() - began, latest  # one round is worth being late for
            while len(taken.get(order[0], ())) < rounds and self.clock() + a_round <= until:
                started, until = self.clock(), ends
                for key in order:
                    taken.setdefault(key, []).append(self.once(calls[key], inner))
                order.reverse()
                a_round = self.clock() - started
        if len(first) < len(calls):
            self.cut.append(f"{what}: {len(first)} of {len(calls)} points")
        elif len(taken.get(order[0], ())) < 3:
            self.cut.append(f"{what}: too few samples")
        return {key: Samples(tuple(taken.get(key, [seconds]))) for key, seconds in first.items()}

    def once(self, call: Call, inner: int = 1) -> float:
        """Seconds of one call, or what it says of itself, the mean of `inner` calls."""
        synchronize()
        start = self.clock()
        own = [call() for _ in range(inner)]
        synchronize()
        stop = self.clock()
        self._shown(min(1.0, (stop - self._start) / self.seconds))
        counted = [seconds for seconds in own if isinstance(seconds, float)]
        return (sum(counted) if counted else stop - start) / inner
