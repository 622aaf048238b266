"""Which kernel multiplies how many rows by which matrix on this CPU: measured once, kept in `$LUMEN_CACHE`.

The candidates are timed on the model's own weights, all layers in turn, so that they come from memory as they do in a
decode step. They take turns, so that a disturbance costs all of them a round. A few seconds for SmolLM2; on a busy
machine again at the next loads.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from tqdm.auto import tqdm

from lumen.hardware import kernel_times
from lumen.hardware.kernel_times import BETTER, Times, fastest, shape_of
from lumen.hardware.measured import hidden, kept_at
from lumen.models.kernels import FEW, KERNELS, Kernel, candidates, rule
from lumen.models.linear import Linear
from lumen.timing import quiet

ROWS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 256)
ROUNDS = 5
HOPELESS = 1.5, 2.5  # so many times slower than the best, after two rounds and on a first try: tried no more
CAREFUL = 0.8  # stands for BETTER where the machine was never quiet
LEAST = 2**26  # bytes of linear weights from which a choice pays: smaller models sit in the caches
A_PASS = 0.02  # seconds that a pass over the layers may take; fewer layers where it would be more
# Where the second best round is by more than SURE slower the machine was busy: the next load measures again, until it
# was quiet or TRIES times. Of all measurements the shortest times count.
SURE, TRIES = 0.1, 4
QUIET = 99  # stands for the number of tries once one was quiet
A_SIZE = 0.4  # seconds for one number of rows; fewer rounds where they would take more


def choose(model: nn.Module, *, refresh: bool = False, progress: bool = True) -> Times:
    """Give every `Linear` of the model the kernels that are fastest here. Returns what was measured.

    Shapes that were measured before, with the same CPU, threads and torch, are not measured again unless `refresh`.
    Models on other devices, in other formats than fp32, and models of less than 64 MiB keep the rule of thumb.
    """
    layers = [part for part in model.modules() if isinstance(part, Linear) and _counts(part)]
    if sum(layer.weight.numel() * layer.weight.element_size() for layer in layers) < LEAST:
        return {}
    path = kept_at(kernel_times.key())
    known, tries = ({}, {}) if refresh else kernel_times.read(path)
    again = [
        layer for layer in layers
        if tries.get(shape_of(layer), 0) < TRIES or not _whole(known.get(shape_of(layer)), layer)
    ]  # fmt: skip
    if again:
        found, scatter = measure(again, progress)
        for shape, table in found.items():
            known[shape] = kernel_times.merged(known.get(shape, {}), table)
            tries[shape] = QUIET if scatter <= SURE else tries.get(shape, 0) + 1
        kernel_times.keep(path, known, tries)
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


def kernels_of(
    times: dict[int, dict[str, float]], layer: Linear, better: float = BETTER
) -> tuple[Kernel, ...]:
    """The fastest kernels of 1 to FEW rows and of more. Between two measured sizes the smaller one's is taken."""
    chosen: list[Kernel] = []
    for rows in range(1, FEW + 2):
        at = max(size for size in times if size <= rows) if rows <= FEW else max(times)
        chosen.append(KERNELS[fastest(times[at], rule(layer, at).__name__, better)])
    return tuple(chosen)


def _counts(layer: Linear) -> bool:
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _whole(times: dict[int, dict[str, float]] | None, layer: Linear) -> bool:
    """Whether every size was measured, with a kernel that this layer can run."""
    return times is not None and all(set(times.get(n, {})) & set(candidates(layer, n)) for n in ROWS)
