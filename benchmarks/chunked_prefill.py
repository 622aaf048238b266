"""One long prompt among eight answers: gaps between their tokens and its TTFT, for token budgets from whole to 64.

    python benchmarks/chunked_prefill.py            SmolLM2-135M, about three minutes on two cores; writes evidence
    python benchmarks/chunked_prefill.py --quick    one round; writes nothing

The budgets take turns, in both directions, so that a slow minute hits all of them. Answers must be the same under
every budget; the run stops if they are not.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

import torch

import lumen
from lumen import bench, cost, hardware
from lumen.bench.interference import Meeting, meet
from lumen.loadgen import percentile

BUDGETS = (2048, 512, 256, 128, 64)
LONG, ANSWERS, CONTEXT, AFTER = 1500, 8, 96, 48
TARGET = 1 / 3


def predicted(config: Any, chip: hardware.Chip, run: Meeting) -> dict[str, float]:
    """The longest step of the run and the sum of steps until the long request's first token. [s]"""
    seconds = [
        cost.predict_mixed(config, chip, pieces, "fp32", cache="paged").seconds for *_, pieces in run.steps
    ]
    reading = [i for i, (*_, pieces) in enumerate(run.steps) if any(count > 1 for _, count in pieces)]
    last = reading[-1] + 1
    return {"longest_gap": max(seconds), "ttft": sum(seconds[:last])}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 1 if options.quick else 4
    chip = hardware.measure()
    model = lumen.load("smollm2-135m", dtype=torch.float32).model
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 49152) for _ in range(CONTEXT)] for _ in range(ANSWERS)]
    long = [draw.randrange(3, 49152) for _ in range(LONG)]
    runs: dict[int, list[Meeting]] = {budget: [] for budget in BUDGETS}
    meet(model, prompts, long[:64], BUDGETS[0], after=4)  # warm-up
    for number in range(rounds):
        for budget in BUDGETS if number % 2 == 0 else reversed(BUDGETS):
            runs[budget].append(meet(model, prompts, long, budget, after=AFTER))
    seen = [
        [tokens[:AFTER] for tokens in run.answers[:-1]] + [run.answers[-1][:1]]
        for rs in runs.values()
        for run in rs
    ]
    if any(answers != seen[0] for answers in seen):
        raise SystemExit("answers differ between budgets: not comparable")
    rows = []
    for budget, meetings in runs.items():
        p99 = [percentile(run.gaps, 99) for run in meetings]
        row = {
            "budget": budget,
            "p99_itl": p99,
            "median_itl": [statistics.median(run.gaps) for run in meetings],
            "longest_itl": [max(run.gaps) for run in meetings],
            "ttft": [run.ttft for run in meetings],
            "predicted": predicted(model.config, chip, meetings[0]),
            "gaps": [run.gaps for run in meetings],
            "steps": [[(end - start, pieces) for start, end, pieces in run.steps] for run in meetings[:1]],
        }
        rows.append(row)
        expect = row["predicted"]
        print(
            f"budget {budget:5}: p99 ITL {1e3 * statistics.median(p99):6.0f} ms (longest predicted "
            f"{1e3 * expect['longest_gap']:.0f}), TTFT of the long prompt "
            f"{1e3 * statistics.median(row['ttft']):6.0f} ms (predicted {1e3 * expect['ttft']:.0f})"
        )
    p99s = {row["budget"]: statistics.median(row["p99_itl"]) for row in rows}
    best = min(p99s, key=p99s.__getitem__)
    share = p99s[best] / p99s[BUDGETS[0]]
    print(f"best budget {best}: p99 ITL {share:.2f} times the unchunked one")
    if not options.quick:
        data = {
            "setting": {"long": LONG, "answers": ANSWERS, "context": CONTEXT, "after": AFTER},
            "rows": rows,
            "share": share,
        }
        print("wrote", bench.evidence("chunked_prefill", data, seed=0).name)
    print(
        f"target (p99 ITL at most {TARGET:.2f} times the unchunked one): {'met' if share <= TARGET else 'MISSED'}"
    )
    return 0 if share <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
