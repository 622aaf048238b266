"""Chips: published ones with their sources, and the one under this process, measured.

`CHIPS` and `LINKS` are read from documents, `measure()` measures, and `lumen.cost.published.published()`
are measurements of others on the chips of `CHIPS`.

>>> from lumen.hardware import CHIPS, ridge
>>> round(ridge(CHIPS["H100 SXM"], "bf16"), 1)
295.3

No torch is imported until `measure` is called.
"""

from __future__ import annotations

from lumen.hardware.chip import Achieved, Chip, Curve, Kind, at, ridge
from lumen.hardware.chips import CHIPS, hourly
from lumen.hardware.links import LINKS, Link, host_link

__all__ = [
    "CHIPS",
    "LINKS",
    "Achieved",
    "Chip",
    "Curve",
    "Kind",
    "Link",
    "at",
    "host_link",
    "hourly",
    "kept",
    "measure",
    "ridge",
]


def measure(refresh: bool = False, threads: int | None = None, *, progress: bool = True) -> Chip:
    """This machine's chip, measured in about 15 s and kept for next time; see `lumen.hardware.measured`."""
    from lumen.hardware.measured import measure as run

    return run(refresh, threads, progress=progress)


def kept(threads: int | None = None) -> Chip | None:
    """What `measure` would return without measuring; None when nothing is kept yet."""
    from lumen.hardware.measured import kept as read

    return read(threads)
