"""The one timer of the course. It warms up, waits for the device, repeats, and gives median and spread.

Only this module reads a clock for a published number, so every number has had the same care: the garbage
collector is off, a GPU has finished before the clock starts and before it stops, and the first, slow run is
thrown away.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat, in the order they were taken."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("A timing needs at least one sample.")

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """The fastest repeat: the one that was disturbed least."""
        return min(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest repeat."""
        return min(self.samples), max(self.samples)

    @property
    def iqr(self) -> float:
        """Width of the middle half of the samples; 0 for a single one."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return third - first

    def per(self, units: float) -> Timing:
        """The time of one unit, when each repeat did `units` of them (tokens, steps, calls)."""
        if units <= 0:
            raise ValueError(f"A repeat must have done more than 0 units, got {units}.")
        return Timing(tuple(sample / units for sample in self.samples))

    def rate(self, units: float) -> float:
        """Units a second at the median, when each repeat did `units` of them."""
        return units / self.median

    def __str__(self) -> str:
        low, high = self.spread
        scale, unit = next(
            (s, u) for s, u in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if self.median * s >= 1 or u == "µs"
        )
        spread = f"{low * scale:.3g}–{high * scale:.3g}"
        return f"{self.median * scale:.3g} {unit} ({spread}, n = {len(self.samples)})"


def synchronize() -> None:
    """Wait until a GPU in use has finished; nothing without one, and torch is never imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a measurement."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch with `count` threads, and with as many as before afterwards."""
    if count < 1:
        raise ValueError(f"At least one thread is needed, got {count}.")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def once(fn: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    """Seconds of one call, the device idle before and done after."""
    synchronize()
    start = clock()
    fn()
    synchronize()
    return clock() - start


def measure(
    fn: Callable[[], Any],
    repeats: int = 5,
    warmup: int = 1,
    *,
    inner: int = 1,
    budget_s: float | None = None,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time `fn()`: `warmup` calls thrown away, then `repeats` samples of `inner` calls each, given per call.

    `inner` is for work shorter than about 100 µs, where reading the clock would count. With `budget_s`
    sampling stops early once that many seconds are spent, after one sample at least.

    >>> measure(lambda: sum(range(1000)), repeats=3).median < 1
    True
    """
    _check(repeats, warmup, inner)

    samples: list[float] = []
    with quiet():
        for _ in range(warmup):
            fn()
        while len(samples) < repeats:
            samples.append(once(_repeated(fn, inner), clock))
            if budget_s is not None and sum(samples) >= budget_s:
                break
    return Timing(tuple(s / inner for s in samples))


def compare(
    fns: Mapping[str, Callable[[], Any]],
    repeats: int = 5,
    warmup: int = 1,
    *,
    inner: int = 1,
    budget_s: float | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Time functions in turns, a b c, c b a, a b c …, so that drift of the machine falls on all alike.

    Judge by ratios of the medians: absolute times move from hour to hour. The arguments are those of
    `measure`; `budget_s` ends the sampling after a whole round, so every function has the same number of
    samples.
    """
    _check(repeats, warmup, inner)
    if not fns:
        raise ValueError("compare needs at least one function.")
    samples: dict[str, list[float]] = {name: [] for name in fns}
    spent = 0.0
    with quiet():
        for fn in fns.values():
            for _ in range(warmup):
                fn()
        order = list(fns)
        for _ in range(repeats):
            for name in order:
                took = once(_repeated(fns[name], inner), clock)
                samples[name].append(took / inner)
                spent += took
            order.reverse()
            if budget_s is not None and spent >= budget_s:
                break
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def _repeated(fn: Callable[[], Any], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            fn()

    return run


def _check(repeats: int, warmup: int, inner: int) -> None:
    if repeats < 1 or warmup < 0 or inner < 1:
        raise ValueError(
            f"A measurement needs repeats >= 1, warmup >= 0, inner >= 1; got {repeats}, {warmup}, {inner}."
        )
