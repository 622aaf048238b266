"""When a measurement is not to be believed: it beats its own bound, scatters too much, or the machine was busy.

A run that is published (LUMEN_PUBLISH=1) then refuses itself with a sentence that says which; a reader's run goes on
and carries the sentence along.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lumen.bench.estimate import Estimate
from lumen.bench.numbers import percent
from lumen.timing import Timing

BEATS = 0.05  # a median may be so much faster than its bound: bounds were measured, too
SCATTER = 0.15  # the interval, as a share of the value: a virtual machine with neighbours keeps ±7 %
STEAL = 0.03  # of the time of all cores, taken by other guests of the host
OTHERS = 0.10  # of the time of all cores, used by other processes
FEWEST_TICKS = 50  # half a second of one core: with fewer ticks of the kernel's clock a share says nothing


class Refused(RuntimeError):
    """A measurement that must not be published; the sentence says why."""


def publishing() -> bool:
    """Is this a run for publication (LUMEN_PUBLISH=1), in which doubtful measurements refuse themselves?"""
    return os.environ.get("LUMEN_PUBLISH", "") not in ("", "0")


@dataclass(frozen=True)
class Load:
    """What the machine did meanwhile, as shares of the time of all cores: taken by the host, used by others."""

    steal: float
    others: float


class Watch:
    """Counts what the machine does between `start` and `stop`, from Linux's /proc; `load` is None elsewhere.

    `own` is the processor time that this process used, its threads and ended children included. [s]
    """

    def __init__(self, proc: Path = Path("/proc"), own: Callable[[], float] | None = None) -> None:
        self.proc, self.own = proc, own or _own_seconds
        self.steal = self.others = self.total = 0.0
        self._at: tuple[float, float, float, float] | None = None

    def start(self) -> None:
        self._at = self._read()

    def stop(self) -> None:
        """Add what happened since `start`; a watch may be started again, for samples taken in rounds."""
        now, before, self._at = self._read(), self._at, None
        if now is None or before is None:
            return
        total, steal, busy, own = (a - b for a, b in zip(now, before, strict=True))
        self.total += total
        self.steal += steal
        self.others += max(0.0, busy - own)

    @property
    def load(self) -> Load | None:
        if self.total < FEWEST_TICKS:
            return None
        return Load(self.steal / self.total, self.others / self.total)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> tuple[float, float, float, float] | None:
        """Ticks of all cores since the start of the machine: all, stolen, busy, and busy for this process; proc(5)."""
        try:
            first = (self.proc / "stat").read_text().split("\n", 1)[0].split()
            user, nice, system, idle, wait, irq, soft, steal = map(float, first[1:9])
        except (OSError, ValueError):
            return None
        busy = user + nice + system + irq + soft
        return busy + idle + wait + steal, steal, busy, self.own() * _ticks_per_second()


def doubts(timing: Timing, *, bound_s: float | None = None, bound: str = "", load: Load | None = None) -> str:
    """What speaks against a measurement, as one text; empty when nothing does.

    `bound_s` is the time that it cannot beat, with `bound` saying where that comes from. Scatter is judged with three
    samples or more.
    """
    est, found = Estimate.of(timing), []
    if bound_s is not None and est.value < bound_s * (1 - BEATS):
        limit = Estimate(bound_s, bound_s, bound_s, 1, "s")
        found.append(
            f"{est} beats its own bound, {_short(limit)} ({bound}), by {percent(1 - est.value / bound_s)}: "
            "one of the two is wrong."
        )
    if est.n >= 3 and est.width > SCATTER * est.value:
        found.append(
            f"{est} scatters: the interval is {percent(est.width / est.value)} of the value, over {percent(SCATTER)}."
        )
    if load is not None and load.steal > STEAL:
        found.append(
            f"The host took {percent(load.steal)} of the cores' time away meanwhile, over {percent(STEAL)}."
        )
    if load is not None and load.others > OTHERS:
        found.append(
            f"Other processes used {percent(load.others)} of the cores meanwhile, over {percent(OTHERS)}."
        )
    return " ".join(found)


def refuse_if_scattered(est: Estimate, effect: float, what: str = "This measurement") -> str:
    """Refuse a publication whose repeats differ by more than the effect they show; for readers the sentence.

    `effect` in the estimate's unit, signed or not: for a ratio against 1 it is est.value - 1. Empty when all is well.
    """
    if est.width <= abs(effect):
        return ""
    shown, width = _number(abs(effect)), _number(est.width)
    text = f"{what}, {est}, has an interval as wide as {width}, more than the effect it shows, {shown}."
    if publishing():
        raise Refused(text + " Take more rounds, or build the experiment so that the effect is larger.")
    return text


def _number(x: float) -> str:
    return f"{x:.3g}"


def _short(est: Estimate) -> str:
    return str(est).split(" (")[0]


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _ticks_per_second() -> float:
    try:
        return float(os.sysconf("SC_CLK_TCK"))
    except (AttributeError, ValueError, OSError):
        return 100.0


def wait_until_quiet(
    seconds: float,
    *,
    look: float = 2.0,
    proc: Path = Path("/proc"),
    sleep: Callable[[float], None] = time.sleep,
) -> Load | None:
    """Wait until the machine was quiet for `look` seconds, at most `seconds` long; return the load of the last look.

    Raises `Refused` when it did not become quiet. None where the load cannot be read.
    """
    waited = 0.0
    while True:
        with Watch(proc) as watch:
            sleep(look)
        waited += look
        load = watch.load
        if load is None or (load.steal <= STEAL and load.others <= OTHERS):
            return load
        if waited >= seconds:
            raise Refused(
                f"The machine was not quiet for {look:.0f} s within {waited:.0f} s: the host took "
                f"{percent(load.steal)} of "
                f"the cores' time, other processes {percent(load.others)}. Stop what else runs, or ask for more "
                "patience."
            )
