"""How well does the cost model predict? SmolLM2-135M in fp32, prefill and decode, from measured ceilings.

    python benchmarks/cost_model.py            the whole grid, about five minutes on two cores; writes
    evidence python benchmarks/cost_model.py --quick    a corner of it, about half a minute; writes nothing

The ceilings are measured by `lumen.hardware.measure`, which never sees this model's steps, just before the
steps are timed. The error of a cell is |predicted - measured| / measured; the claim is about its median
over all cells.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

from tqdm.auto import tqdm

import lumen
from lumen import bench, cost, hardware

BATCHES = (1, 2, 4, 8)
CONTEXTS = (32, 128, 512, 1024)
NEW_TOKENS = 9  # eight decode steps a repeat
TARGET = 0.25


@dataclass(frozen=True)
class Cell:
    """One predicted and measured time. `context`: a prefill's prompt, or a step's mean number of keys."""

    phase: str
    batch: int
    context: int
    predicted: float
    measured: bench.Timing
    parts: dict[str, float]
    bound_by: str

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured.median) / self.measured.median


def cells(model: lumen.Llama, chip: hardware.Chip, batch: int, prompt: int, repeats: int) -> list[Cell]:
    """Time one generation and predict its prefill and its decode step."""
    run = bench.generation(model, prompt, NEW_TOKENS, batch, repeats=repeats, warmup=0)
    context = prompt + NEW_TOKENS // 2
    prefill = cost.predict_prefill(model.config, chip, prompt, batch, "fp32")
    decode = cost.predict_decode(model.config, chip, context, batch, "fp32")
    pairs = (("prefill", prompt, prefill, run.prefill), ("decode", context, decode, run.decode))
    return [
        Cell(phase, batch, length, guess.seconds, timing, guess.parts, guess.bound_by)
        for phase, length, guess, timing in pairs
    ]


def show(rows: list[Cell]) -> None:
    """Print the grid, one line a cell."""
    print(
        f"{'phase':8} {'batch':>5} {'context':>7} {'predicted':>10} {'measured':>10} {'error':>6}  bound by"
    )
    for cell in rows:
        print(
            f"{cell.phase:8} {cell.batch:5} {cell.context:7} {cell.predicted * 1e3:7.1f} ms "
            f"{cell.measured.median * 1e3:7.1f} ms {cell.error:6.1%}  {cell.bound_by}"
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="a corner of the grid, no evidence written")
    options.add_argument(
        "--random-weights", action="store_true", help="do not load the model; costs the same"
    )
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()

    model = (
        lumen.Llama(lumen.CONFIGS["smollm2-135m"])
        if chosen.random_weights
        else lumen.load("smollm2-135m").model
    )
    model = model.float().to("cpu").eval()
    chip = hardware.measure(refresh=True)
    batches, contexts = ((1, 4), (32, 256)) if chosen.quick else (BATCHES, CONTEXTS)
    bench.generation(model, 32, 4)  # warm
    grid = [(batch, prompt) for prompt in contexts for batch in batches]
    rows = [
        cell for batch, prompt in tqdm(grid) for cell in cells(model, chip, batch, prompt, chosen.repeats)
    ]
    show(rows)

    summary = {
        "median_error": statistics.median(cell.error for cell in rows),
        "median_error_prefill": statistics.median(cell.error for cell in rows if cell.phase == "prefill"),
        "median_error_decode": statistics.median(cell.error for cell in rows if cell.phase == "decode"),
        "worst_error": max(cell.error for cell in rows),
        "target": TARGET,
    }
    print(", ".join(f"{name} {value:.1%}" for name, value in summary.items()))
    if not chosen.quick:
        cells_data = [
            {
                "phase": c.phase,
                "batch": c.batch,
                "context": c.context,
                "predicted_s": c.predicted,
                "measured": c.measured,
            }
            | {"error": c.error, "parts": c.parts, "bound_by": c.bound_by}
            for c in rows
        ]
        data = {
            "model": model.config.name,
            "dtype": "fp32",
            "chip": chip,
            "summary": summary,
            "cells": cells_data,
        }
        print(f"written: {bench.evidence('cost_model', data, seed=0).name}")


if __name__ == "__main__":
    main()
