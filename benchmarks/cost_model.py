"""How well does the cost model predict? SmolLM2-135M in fp32, decode steps and prefills, each miss with its sign.

    python benchmarks/cost_model.py            the whole grid, some minutes on two cores; writes evidence
    python benchmarks/cost_model.py --quick    a corner of it, about a minute; writes nothing

The chip is the one that `lumen.hardware.measure` knows; its probes never see this model. The times are those of
the measurement store, measured now where they are not in it. signed = predicted / measured - 1: below zero, the
forecast was too fast. The claims are about medians over all cells.
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
TARGET = 0.10  # median of the misses without their sign
BIAS = 0.05  # and how far from zero the median with it may lie


@dataclass(frozen=True)
class Cell:
    """One predicted and measured time. `context`: a prefill's prompt, or the keys that a step's new token sees."""

    phase: str
    batch: int
    context: int
    predicted: cost.Prediction
    measured: bench.Measured

    @property
    def signed(self) -> bench.Estimate:
        """The miss with its sign, and how far the measured time's own interval moves it."""
        time, guess = self.measured.estimate, self.predicted.seconds
        return bench.Estimate(guess / time.value - 1, guess / time.high - 1, guess / time.low - 1, time.n)

    @property
    def error(self) -> float:
        return abs(self.signed.value)

    def entry(self) -> dict[str, object]:
        """The cell as it is published. The time's samples stand in the store; here its interval does."""
        time, miss = self.measured.estimate, self.signed
        return {
            "phase": self.phase, "batch": self.batch, "context": self.context,
            "predicted_s": self.predicted.seconds, "measured": self.measured.timing, "n": time.n,
            "measured_low_s": time.low, "measured_high_s": time.high,
            "signed": miss.value, "signed_low": miss.low, "signed_high": miss.high, "error": self.error,
            "parts": self.predicted.parts, "bound_by": self.predicted.bound_by,
        }  # fmt: skip


def cell(model: lumen.Llama, chip: hardware.Chip, phase: str, batch: int, context: int) -> Cell:
    """Predict one time, then look it up or measure it."""
    if phase == "decode":
        guess = cost.predict_decode(model.config, chip, context, batch, "fp32")
        return Cell(phase, batch, context, guess, bench.decode_step(model, batch, context))
    guess = cost.predict_prefill(model.config, chip, context, batch, "fp32")
    return Cell(phase, batch, context, guess, bench.prefill(model, context, batch))


def show(rows: list[Cell]) -> None:
    """Print the grid, one line a cell."""
    print(
        f"{'phase':8} {'batch':>5} {'context':>7} {'predicted':>10} {'measured':>10} {'signed':>7} {'n':>3}  bound by"
    )
    for one in rows:
        print(
            f"{one.phase:8} {one.batch:5} {one.context:7} {one.predicted.seconds * 1e3:7.1f} ms "
            f"{one.measured.ms:7.1f} ms {one.signed.value:+7.1%} {one.signed.n:3}  {one.predicted.bound_by}"
        )


def summary(rows: list[Cell]) -> dict[str, float]:
    """Medians of the misses with and without their sign, of all cells and by phase."""
    found: dict[str, float] = {}
    for name, phases in (("", ("prefill", "decode")), ("_prefill", ("prefill",)), ("_decode", ("decode",))):
        some = [one for one in rows if one.phase in phases]
        found[f"median_error{name}"] = statistics.median(one.error for one in some)
        found[f"median_signed{name}"] = statistics.median(one.signed.value for one in some)
        found[f"too_low{name}"] = sum(one.signed.value < 0 for one in some)
        found[f"cells{name}"] = len(some)
    return found | {"worst_error": max(one.error for one in rows), "target": TARGET, "bias": BIAS}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="a corner of the grid, no evidence written")
    options.add_argument(
        "--random-weights", action="store_true", help="do not load the model; costs the same"
    )
    chosen = options.parse_args()

    model = (
        lumen.Llama(lumen.CONFIGS["smollm2-135m"])
        if chosen.random_weights
        else lumen.load("smollm2-135m").model
    )
    model = model.float().to("cpu").eval()
    chip = hardware.measure()
    batches, contexts = ((1, 4), (32, 256)) if chosen.quick else (BATCHES, CONTEXTS)
    grid = [(phase, b, n) for phase in ("decode", "prefill") for n in contexts for b in batches]
    rows = [cell(model, chip, *one) for one in tqdm(grid)]
    show(rows)

    found = summary(rows)
    print(", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    if not chosen.quick:
        data = {
            "model": model.config.name,
            "dtype": "fp32",
            "chip": chip,
            "summary": found,
            "cells": [one.entry() for one in rows],
        }
        print(f"written: {bench.evidence('cost_model', data, seed=0).name}")


if __name__ == "__main__":
    main()
