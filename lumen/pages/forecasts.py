"""One rule for what counts as a miss of a forecast, wherever the published grid (`cost_model`) is summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lumen.bench.numbers import percent


def sure(cell: Mapping[str, Any]) -> bool:
    """Whether the interval of the cell's signed miss excludes 0."""
    return bool(cell["signed_low"] * cell["signed_high"] > 0)


def sides(cells: Sequence[Mapping[str, Any]]) -> str:
    """Of each phase: how many forecasts are surely too short or too long, and by how much at most."""
    words = []
    for phase in ("prefill", "decode"):
        some = [c for c in cells if c["phase"] == phase]
        off = [c["signed"] for c in some if sure(c)]
        low = sum(x < 0 for x in off)
        found = f"{phase} too short in {low} and too long in {len(off) - low} of {len(some)}"
        if off:
            found += f", by {percent(max(map(abs, off)))} at most"
        words.append(found)
    return "; ".join(words)
