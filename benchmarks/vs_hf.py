"""Ours against Hugging Face transformers: the same weights, the same machine, one run, both asked for the same work.

    python benchmarks/vs_hf.py            SmolLM2-135M, about three minutes on two cores; writes evidence
    python benchmarks/vs_hf.py --quick    fewer repeats; writes nothing

Decode is timed a step at a time inside each library's own generation: the gap between two tokens, prefill left
out. Rounds alternate between the two, so that a slow minute hits both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import lumen
from lumen import bench, cost, hardware
from lumen.io.convert import hf_model

PROMPT, NEW, LONG = 32, 64, 512
DECODE_TARGET, PREFILL_TARGET = 1.5, 1.0


def load_hf() -> Any:
    """transformers' model with the fp32 numbers that lumen unpacks."""
    model = hf_model()
    model.generation_config.eos_token_id = None  # run to the full length
    return model


def our_gaps(model: Any, prompts: torch.Tensor) -> list[float]:
    """Seconds between the tokens of `lumen.generate` with its static cache."""
    times = lumen.generate(model, prompts.tolist(), NEW, eos_ids=())[0].token_times
    return [after - before for before, after in pairwise(times)]


class _Clock:
    """A stopping criterion that never stops: transformers calls it once per token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def hf_gaps(model: Any, prompts: torch.Tensor, **options: Any) -> list[float]:
    """Seconds between the tokens of transformers' `generate`."""
    from transformers import StoppingCriteriaList

    clock = _Clock()
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=2,
        stopping_criteria=StoppingCriteriaList([clock]),
        **options,
    )
    return [after - before for before, after in pairwise(clock.times)]


def alternate(contestants: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, bench.Timing]:
    """Run each in turn, `rounds` times after one warm-up, and pool its samples."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            gaps = run()
            if number:
                samples[name] += gaps
    return {name: bench.Timing(tuple(values)) for name, values in samples.items()}


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 1 if options.quick else 5
    chip = hardware.measure()
    ours, theirs = lumen.load("smollm2-135m", dtype=torch.float32).model, load_hf()
    stream = torch.Generator().manual_seed(0)
    one = torch.randint(3, 49152, (1, PROMPT), generator=stream)
    eight = torch.randint(3, 49152, (8, PROMPT), generator=stream)
    long = torch.randint(3, 49152, (1, LONG), generator=stream)

    rows: dict[str, dict[str, bench.Timing]] = {}
    rows["decode"] = alternate(
        {"lumen": lambda: our_gaps(ours, one), "transformers": lambda: hf_gaps(theirs, one)}, rounds
    )
    rows["decode, 8 sequences"] = alternate(
        {"lumen": lambda: our_gaps(ours, eight), "transformers": lambda: hf_gaps(theirs, eight)}, rounds
    )
    rows["prefill of 512"] = bench.compare(
        {
            "lumen": lambda: ours.head(ours.hidden(long)[:, -1]),
            "transformers": lambda: theirs(long, logits_to_keep=1),
        },
        repeats=2 * rounds + 1,
    )
    moved = cost.step_bytes(ours.config, 1, PROMPT + NEW // 2, "fp32")
    num_bytes = moved.weights + moved.cache_read + moved.cache_write
    step = rows["decode"]["lumen"].median
    summary = {
        "bytes_per_token": num_bytes,
        "achieved_bandwidth": num_bytes / step,
        "share_of_ceiling": cost.mbu(num_bytes, step, chip),
        "ceiling_bandwidth": chip.bandwidth,
        "ratios": {name: pair["transformers"].median / pair["lumen"].median for name, pair in rows.items()},
    }
    for name, pair in rows.items():
        a, b = (1e3 * pair[who].median for who in ("lumen", "transformers"))
        print(f"{name:20} lumen {a:7.1f} ms   transformers {b:7.1f} ms   ratio {b / a:.2f}")
    print(f"one token reads {num_bytes / 1e6:.0f} MB: {num_bytes / step / 1e9:.1f} GB/s, ", end="")
    print(f"{100 * summary['share_of_ceiling']:.0f} % of the measured {chip.bandwidth / 1e9:.1f} GB/s")
    if not options.quick:
        print("wrote", bench.evidence("vs_hf", {"summary": summary, "rows": rows}, seed=0).name)
    met = (
        summary["ratios"]["decode"] >= DECODE_TARGET and summary["ratios"]["prefill of 512"] >= PREFILL_TARGET
    )
    print(f"targets (decode {DECODE_TARGET} times, prefill not slower): {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
