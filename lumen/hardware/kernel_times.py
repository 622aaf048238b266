"""The times that the choice of kernels stands on: kept in `$LUMEN_CACHE` by shape, merged, told in words."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import torch

from lumen.files import write_atomic
from lumen.hardware.identity import cpu_name, versions
from lumen.hardware.measured import kept_at
from lumen.models.kernels import KERNELS
from lumen.models.linear import Linear

LAYOUT = 2  # of the kept file; a change makes older files be measured again
BETTER = 0.97  # a usual kernel stays unless another takes less than this share of its time

Times = dict[str, dict[int, dict[str, float]]]  # by shape, rows and kernel: seconds of a product


def shape_of(layer: Linear) -> str:
    """What a choice is kept under: inputs x outputs."""
    return f"{layer.in_features}x{layer.out_features}"


def key() -> dict[str, object]:
    """What a choice depends on besides the shape."""
    return {
        "what": "kernels",
        "device": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": versions()["torch"],
        "layout": LAYOUT,
    }


def kept() -> Times:
    """What was measured on this machine so far."""
    return read(kept_at(key()))[0]


def read(path: Path) -> tuple[Times, dict[str, int]]:
    """What is kept, and how often each shape was measured; empty where nothing is or where it cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] != key():
            return {}, {}
        times = {
            str(shape): {
                int(rows): {str(name): float(s) for name, s in row.items() if name in KERNELS}
                for rows, row in table.items()
            }
            for shape, table in kept["seconds"].items()
        }
        return times, {str(shape): int(count) for shape, count in kept["tries"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, {}


def keep(path: Path, times: Times, tries: dict[str, int]) -> None:
    """Write what was measured; without a writable folder it holds for this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"key": key(), "tries": tries, "seconds": times}, indent=1))
    except OSError as error:
        warnings.warn(
            f"The choice of kernels cannot be kept ({error.strerror}); set LUMEN_CACHE to a writable folder.",
            stacklevel=3,
        )


def described(times: Times) -> list[str]:
    """One line a shape: which rows are multiplied by which kernel.

    >>> described({"576x960": {1: {"blocked": 2e-4, "plain": 3e-4}, 2: {"blocked": 2e-4}, 4: {"packed": 1e-4}}})
    ['576x960: 1 to 3 rows blocked, from 4 packed']
    """
    lines = []
    for shape, table in times.items():
        runs: list[tuple[int, str]] = []
        for rows in sorted(table):
            name = fastest(table[rows], "")
            if not runs or runs[-1][1] != name:
                runs.append((rows, name))
        ends = [start - 1 for start, _ in runs[1:]]
        parts = [
            f"{start} row{'s' if start > 1 else ''}" if start == end else f"{start} to {end} rows"
            for (start, _), end in zip(runs, ends, strict=False)
        ] + [f"from {runs[-1][0]}"]
        said = ", ".join(f"{part} {name}" for part, (_, name) in zip(parts, runs, strict=True))
        lines.append(f"{shape}: {said.replace('_', ' ')}")
    return lines


def merged(old: dict[int, dict[str, float]], new: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """The shorter times of two measurements of one shape, by rows and kernel."""
    return {
        rows: {
            name: min(table.get(rows, {}).get(name, math.inf) for table in (old, new))
            for name in {**old.get(rows, {}), **new.get(rows, {})}
        }
        for rows in {**old, **new}
    }


def fastest(seconds: dict[str, float], usual: str, better: float = BETTER) -> str:
    """The kernel with the least time; the usual one where nothing is clearly faster."""
    best = min(seconds, key=seconds.__getitem__)
    return best if usual not in seconds or seconds[best] < better * seconds[usual] else usual
