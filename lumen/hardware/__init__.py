"""Chips: published ones with their sources, and the one under this process, measured.

>>> from lumen.hardware import CHIPS, ridge
>>> round(ridge(CHIPS["H100 SXM"], "bf16"), 1)
295.3

No torch is imported until `measure` is called.
"""

from __future__ import annotations

from lumen.hardware.chip import Achieved, Chip, Curve, Kind, at, ridge
from lumen.hardware.chips import CHIPS

__all__ = ["CHIPS", "Achieved", "Chip", "Curve", "Kind", "at", "measure", "ridge"]


def measure(refresh: bool = False, threads: int | None = None, *, progress: bool = True) -> Chip:
    """This machine's chip, measured in about 25 s and kept for next time; see `lumen.hardware.measured`."""
    from lumen.hardware.measured import measure as run

    return run(refresh, threads, progress=progress)
