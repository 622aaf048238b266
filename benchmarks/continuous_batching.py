"""Continuous against static and dynamic batching: one engine, the same slots and requests, another rule of admission.

    python benchmarks/continuous_batching.py            SmolLM2-135M, about eight minutes on two cores; writes evidence
    python benchmarks/continuous_batching.py --quick    one seed, one round, fewer requests; writes nothing

All requests wait at the door from the start. Answers are as long as a log-normal with sigma = 1 says. Policies take
turns, in another order for each seed, so that a slow minute hits all of them. A row whose answer has ended costs the
static batch no arithmetic here, which is kinder to it than a padded batch is. While the last answers drain, the slots
of the continuous batch stay empty too; with fewer requests that end would weigh more than the rule.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

import lumen
from lumen import bench
from lumen.cost.trace import Trace, lognormal_trace
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import POLICIES, Limits

SLOTS, REQUESTS, LIMIT, PROMPT, OUTPUT, SIGMA, SEEDS = 8, 128, 320, 24, 20, 1.0, (0, 1, 2)
BUDGET = SLOTS * LIMIT  # no prompt is cut, no batch is kept small
TARGET = 1.8


def prompts(trace: Trace, seed: int) -> list[list[int]]:
    stream = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 49152, (length,), generator=stream).tolist() for length in trace.prompt.tolist()]


def run(model: Any, trace: Trace, seed: int, policy: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Serve the whole trace once; what was measured, and every answer's tokens."""
    blocks = SLOTS * -(-LIMIT // 16)
    engine = Engine(
        model, num_blocks=blocks, prefix="none", limits=Limits(SLOTS, BUDGET, policy, max_wait=0.0)
    )
    lengths = trace.output.tolist()
    queue = [Request(str(i), ids, lengths[i]) for i, ids in enumerate(prompts(trace, seed))]
    served = bench.serve_queue(engine, queue)
    row = {
        "policy": policy,
        "seed": seed,
        "seconds": served.seconds,
        "steps": len(served.steps),
        "utilisation": served.utilisation,
        "tokens": served.tokens,
        "tokens_per_s": served.tokens_per_s,
        "mean_ttft": served.mean_ttft,
    }
    return row, served.answers


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by policy, and continuous over each other policy, round by round."""

    def of(policy: str, key: str) -> list[float]:
        return [row[key] for row in rows if row["policy"] == policy]

    ratios = {
        other: [
            a / b for a, b in zip(of("continuous", "tokens_per_s"), of(other, "tokens_per_s"), strict=True)
        ]
        for other in POLICIES
        if other != "continuous"
    }
    keys = ("tokens_per_s", "utilisation", "mean_ttft")
    by_policy = {p: {key: statistics.median(of(p, key)) for key in keys} for p in POLICIES}
    return {
        "policies": by_policy,
        "ratios": ratios,
        "ratio": {name: statistics.median(values) for name, values in ratios.items()},
        "steps_ratio": sum(of("static", "steps")) / sum(of("continuous", "steps")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds, rounds, requests = ((0,), 1, 16) if options.quick else (SEEDS, 1, REQUESTS)
    model = lumen.load("smollm2-135m", dtype=torch.float32).model
    run(model, lognormal_trace(SLOTS, 64, PROMPT, 8, SIGMA, seed=9), 9, "continuous")  # warm up
    rows, differ = [], 0
    for number in range(rounds):
        for seed in seeds:
            trace = lognormal_trace(requests, LIMIT, PROMPT, OUTPUT, SIGMA, seed=seed)
            told = {}
            for policy in POLICIES if (number + seed) % 2 else POLICIES[::-1]:
                row, told[policy] = run(model, trace, seed, policy)
                rows.append(row | {"round": number})
                print(
                    f"seed {seed} {policy:10} {row['tokens']:5} tokens in {row['seconds']:6.1f} s, "
                    f"{row['steps']:4} steps, slots {100 * row['utilisation']:3.0f} % used, "
                    f"{row['tokens_per_s']:6.1f} tokens/s, TTFT {row['mean_ttft']:.1f} s",
                    flush=True,
                )
            differ += sum(told["static"][name] != tokens for name, tokens in told["continuous"].items())
    rows.sort(key=lambda row: (row["round"], row["seed"]))
    found = summary(rows)
    for other, ratio in found["ratio"].items():
        low, high = min(found["ratios"][other]), max(found["ratios"][other])
        print(f"continuous over {other}: {ratio:.2f} times the tokens/s ({low:.2f} to {high:.2f})")
    print(f"steps: {found['steps_ratio']:.2f} times as many without; answers that differ: {differ}")
    if not options.quick:
        setting = {
            "slots": SLOTS, "requests": requests, "limit": LIMIT, "prompt_median": PROMPT, "output_median": OUTPUT,
            "sigma": SIGMA, "seeds": seeds, "rounds": rounds, "token_budget": BUDGET, "differ": differ,
        }  # fmt: skip
        data = {"setting": setting, "summary": found, "rows": rows}
        print("wrote", bench.evidence("continuous_batching", data, seed=0).name)
    met = found["ratio"]["static"] >= TARGET
    print(f"target ({TARGET} times static): {'met' if met else 'MISSED'}")
    return 0 if met or options.quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
