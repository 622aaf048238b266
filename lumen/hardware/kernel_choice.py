"""Which kernel multiplies how many rows by which matrix on this CPU: measured once, kept in `$LUMEN_CACHE`.

The candidates are timed on the model's own weights, all layers in turn, so that they come from memory as they do in a
decode step. They take turns, so that a disturbance costs all of them a round. A few seconds for SmolLM2; on a busy
machine again at the next loads.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from tqdm.auto import tqdm

from lumen.hardware.identity import cpu_name, versions
from lumen.hardware.measured import hidden, kept_at
from lumen.models.kernels import FEW, KERNELS, Kernel, candidates, rule
from lumen.models.linear import Linear
from lumen.timing import quiet

LAYOUT = 2  # of the kept file; a change makes older files be measured again
ROWS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 256)
ROUNDS = 5
HOPELESS = 1.5, 2.5  # so many times slower than the best, after two rounds and on a first try: tried no more
BETTER = 0.97  # the rule of thumb stays unless another takes less than this share of its time,
CAREFUL = 0.8  # or this share, where the machine was never quiet
LEAST = 2**26  # bytes of linear weights from which a choice pays: smaller models sit in the caches
A_PASS = 0.02  # seconds that a pass over the layers may take; fewer layers where it would be more
SURE = (
    0.1  # by more than this the second best round is slower where the machine was busy: measured again at the
)
TRIES = 4  # next load, until it was quiet or this often. Of all measurements the shortest times count.
QUIET = 99  # stands for the number of tries once one was quiet
A_SIZE = 0.4  # seconds for one number of rows; fewer rounds where they would take more

Times = dict[str, dict[int, dict[str, float]]]  # by shape, rows and kernel: seconds of a product


def choose(model: nn.Module, *, refresh: bool = False, progress: bool = True) -> Times:
    """Give every `Linear` of the model the kernels that are fastest here. Returns what was measured.

    Shapes that were measured before, with the same CPU, threads and torch, are not measured again unless `refresh`.
    Models on other devices, in other formats than fp32, and models of less than 64 MiB keep the rule of thumb.
    """
    layers = [part for part in model.modules() if isinstance(part, Linear) and _counts(part)]
    if sum(layer.weight.numel() * layer.weight.element_size() for layer in layers) < LEAST:
        return {}
    path = kept_at(key())
    known, tries = ({}, {}) if refresh else read(path)
    again = [
        layer for layer in layers
        if tries.get(shape_of(layer), 0) < TRIES or not _whole(known.get(shape_of(layer)), layer)
    ]  # fmt: skip
    if again:
        found, scatter = measure(again, progress)
        for shape, table in found.items():
            known[shape] = merged(known.get(shape, {}), table)
            tries[shape] = QUIET if scatter <= SURE else tries.get(shape, 0) + 1
        keep(path, known, tries)
    for layer in layers:
        shape = shape_of(layer)
        layer.chosen = kernels_of(known[shape], layer, BETTER if tries[shape] == QUIET else CAREFUL)
    return {shape: known[shape] for shape in dict.fromkeys(map(shape_of, layers))}


def measure(
    layers: list[Linear], progress: bool = True, clock: Callable[[], float] = time.perf_counter
) -> tuple[Times, float]:
    """Seconds of a product, the best of a few rounds, for every shape, number of rows and candidate, and the scatter:
    by which share the second best round is slower, in the middle.

    The layers are multiplied in the order given, as in a step, so that the weights of one push those of another out
    of the caches, however large these are.
    """
    found: Times = {shape_of(layer): {} for layer in layers}
    scatter: list[float] = []
    with torch.inference_mode(), quiet():
        for rows in tqdm(ROWS, desc="choosing matrix kernels", leave=False, disable=hidden(progress)):
            for shape, rounds in _compare(layers, rows, clock).items():
                found[shape][rows] = {name: min(seconds) for name, seconds in rounds.items()}
                two = [sorted(seconds)[:2] for seconds in rounds.values() if len(seconds) > 1]
                scatter += [second / first - 1 for first, second in two if first]
    return found, statistics.median(scatter) if scatter else math.inf


def _compare(
    layers: list[Linear], rows: int, clock: Callable[[], float]
) -> dict[str, dict[str, list[float]]]:
    """Seconds of every candidate, round by round, by shape. A round tries all candidates."""
    one_each = {shape_of(layer): layer for layer in reversed(layers)}
    inputs = {width: torch.randn(rows, width) for width in {layer.in_features for layer in layers}}
    names = {shape: candidates(layer, rows) for shape, layer in one_each.items()}

    def timed(layer: Linear, name: str) -> float:
        x, start = inputs[layer.in_features], clock()
        KERNELS[name](layer, x)
        return clock() - start

    if "packed" in {name for some in names.values() for name in some}:
        for layer in layers:
            layer.tiles()  # laid out before the clock starts
    began, first = clock(), 0.0
    for shape, layer in one_each.items():
        for name in names[shape]:
            timed(layer, name)  # the first call of a kernel sets it up
        tries = {name: min(timed(layer, name) for _ in range(2)) for name in names[shape]}
        names[shape] = _promising(tries, HOPELESS[1])
        first += min(tries.values())
    some = layers[: max(len(one_each), int(A_PASS / first) * len(one_each))]
    some += [layer for layer in one_each.values() if not any(layer is other for other in some)]
    found: dict[str, dict[str, list[float]]] = {shape: {} for shape in one_each}
    for turn in range(ROUNDS):
        for place in range(max(len(tried) for tried in names.values())):
            took: dict[str, list[float]] = {shape: [] for shape in one_each}
            for layer in some:
                tried = names[shape_of(layer)]
                took[shape_of(layer)].append(timed(layer, tried[(place + turn) % len(tried)]))
            for shape, seconds in took.items():
                name = names[shape][(place + turn) % len(names[shape])]
                found[shape].setdefault(name, []).append(statistics.median(seconds))
        if clock() - began > A_SIZE:
            break
        if turn:
            best = {shape: {name: min(s) for name, s in rounds.items()} for shape, rounds in found.items()}
            names = {shape: _promising(seconds, HOPELESS[0]) for shape, seconds in best.items()}
    return found


def _promising(seconds: dict[str, float], factor: float) -> list[str]:
    least = min(seconds.values())
    return [name for name, took in seconds.items() if took <= factor * least]


def merged(old: dict[int, dict[str, float]], new: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """The shorter times of two measurements of one shape, by rows and kernel."""
    return {
        rows: {
            name: min(table.get(rows, {}).get(name, math.inf) for table in (old, new))
            for name in {**old.get(rows, {}), **new.get(rows, {})}
        }
        for rows in {**old, **new}
    }


def kernels_of(
    times: dict[int, dict[str, float]], layer: Linear, better: float = BETTER
) -> tuple[Kernel, ...]:
    """The fastest kernels of 1 to FEW rows and of more. Between two measured sizes the smaller one's is taken."""
    chosen: list[Kernel] = []
    for rows in range(1, FEW + 2):
        at = max(size for size in times if size <= rows) if rows <= FEW else max(times)
        chosen.append(KERNELS[fastest(times[at], rule(layer, at).__name__, better)])
    return tuple(chosen)


def fastest(seconds: dict[str, float], usual: str, better: float = BETTER) -> str:
    """The kernel with the least time; the usual one where nothing is clearly faster."""
    best = min(seconds, key=seconds.__getitem__)
    return best if usual not in seconds or seconds[best] < better * seconds[usual] else usual


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
    from lumen.files import write_atomic

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


def _counts(layer: Linear) -> bool:
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _whole(times: dict[int, dict[str, float]] | None, layer: Linear) -> bool:
    """Whether every size was measured, with a kernel that this layer can run."""
    return times is not None and all(set(times.get(n, {})) & set(candidates(layer, n)) for n in ROWS)
