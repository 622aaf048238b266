"""One chip out of several calibrations, so that a forecast does not stand on a single minute of a shared machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from statistics import median

from lumen.hardware.chip import Achieved, Chip, Curve


def merged(chips: Sequence[Chip]) -> Chip:
    """What calibrations of one machine say together: the best roofs, the medians of everything else.

    A roof (peak, bandwidth) is the best that was seen. A curve is compared with medians of clocks, so it is the
    median too, point by point over the calibrations that have the point. Choosing the calibration of the fastest
    minute instead makes forecasts too fast by as much as that minute was faster than the usual one.

    A rate's uncertainty is the median of those found, or how far the calibrations lie apart if that is more: half
    the width of their range as a share of the median for a median, what the poorest fell short of the best for a
    roof. Raises ValueError for no calibration, or for those of different machines.
    """
    if not chips:
        raise ValueError("No calibration to merge; measure one first.")
    names = {chip.name for chip in chips}
    if len(names) > 1:
        raise ValueError(
            f"Calibrations of one machine can be merged, not those of {', '.join(sorted(names))}."
        )
    last = chips[-1]
    if len(chips) == 1:
        return last
    roofs = [chip.bandwidth for chip in chips]
    sure = {what: median(_all(chips, what)) for chip in chips for what in chip.uncertainty}
    sure["bandwidth"] = max(sure.get("bandwidth", 0.0), 1 - min(roofs) / max(roofs))
    sure["overhead"] = max(sure.get("overhead", 0.0), _apart([chip.overhead_s for chip in chips]))
    return replace(
        last,
        flops={f: max(c.flops[f] for c in chips if f in c.flops) for chip in chips for f in chip.flops},
        bandwidth=max(roofs),
        overhead_s=median(chip.overhead_s for chip in chips),
        cold_overhead=_curve(chip.cold_overhead for chip in chips),
        achieved={
            f: _achieved([c.achieved[f] for c in chips if f in c.achieved])
            for chip in chips
            for f in chip.achieved
        },
        uncertainty=sure,
        note=f"{last.note}; {len(chips)} calibrations: best roofs, median curves",
    )


def _all(chips: Iterable[Chip], what: str) -> list[float]:
    return [chip.uncertainty[what] for chip in chips if what in chip.uncertainty]


def _apart(values: Sequence[float]) -> float:
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def _curve(curves: Iterable[Curve]) -> Curve:
    found: dict[int, list[float]] = {}
    for curve in curves:
        for size, rate in curve:
            found.setdefault(size, []).append(rate)
    return tuple((size, median(rates)) for size, rates in sorted(found.items()))


def _achieved(some: Sequence[Achieved]) -> Achieved:
    return Achieved(**{f.name: _curve(getattr(one, f.name) for one in some) for f in fields(Achieved)})
