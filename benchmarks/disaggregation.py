"""Prefill and decode in two processes against one engine: what the hand-over costs, and what the answers gain.

    python benchmarks/disaggregation.py           about three minutes on two cores; writes evidence
    python benchmarks/disaggregation.py --quick   one round; writes nothing

Each worker has one core. The single engine runs with one core, at their speed and on half the machine, and with two,
which is what the pair takes. Eight short requests arrive first, then prompts of 1,000 tokens. Answers are compared with
those of the first run: in fp32 a draw between two nearly equal logits may fall differently, so the count is reported.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from itertools import pairwise
from typing import Any

import torch

import lumen
from lumen import bench
from lumen.loadgen import percentile
from lumen.serve.disagg import Pool, Result, serve
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

SHORT, LONG, ANSWER = 64, 1000, 48
LIMITS = Limits(max_seqs=16, token_budget=2048)


def workload() -> tuple[list[Request], list[float]]:
    draw = random.Random(0)
    lengths = [SHORT] * 8 + [LONG] * 3
    prompts = [[draw.randrange(3, 49152) for _ in range(n)] for n in lengths]
    arrivals = [0.0] * 8 + [1.5, 3.0, 4.5]
    return [Request(str(i), p, ANSWER if len(p) == SHORT else 8) for i, p in enumerate(prompts)], arrivals


def together(budget: int, threads: int) -> Result:
    """The same workload on one engine."""
    torch.set_num_threads(threads)
    model = lumen.load("smollm2-135m", dtype=torch.float32).model
    model.warm_up()
    engine = Engine(model, num_blocks=512, prefix="none", limits=Limits(16, budget))
    requests, arrivals = workload()
    todo = sorted(zip(arrivals, requests, strict=True), key=lambda pair: pair[0])
    answers: dict[str, list[int]] = {r.id: [] for r in requests}
    times: dict[str, list[float]] = {r.id: [] for r in requests}
    start = time.monotonic()
    while todo or engine.has_work:
        while todo and todo[0][0] <= time.monotonic() - start:
            engine.add(todo.pop(0)[1])
        if not engine.has_work:
            time.sleep(0.001)
            continue
        for delta in engine.step():
            answers[delta.request_id] += delta.tokens
            times[delta.request_id] += [delta.time - start] * len(delta.tokens)
    return Result(answers, times, [])


def summary(result: Result) -> dict[str, Any]:
    """Gaps of the short requests' answers in seconds, and each long prompt's time to its first token."""
    requests, arrivals = workload()
    gaps = [b - a for r in requests[:8] for a, b in pairwise(result.token_times[r.id])]
    ttft = [result.token_times[r.id][0] - at for r, at in zip(requests[8:], arrivals[8:], strict=True)]
    return {"gaps": gaps, "long_ttft": ttft, "handovers": result.handovers}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 1 if options.quick else 3
    load = partial(lumen.load, "smollm2-135m", dtype=torch.float32)
    ways = {
        "one engine": partial(together, 2048, 1),
        "one engine, chunks of 128": partial(together, 128, 1),
        "one engine, chunks of 128, both cores": partial(together, 128, 2),
        "apart, whole": partial(_apart, load, False),
        "apart, layer by layer": partial(_apart, load, True),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    reference: dict[str, list[int]] = {}
    for _ in range(rounds):
        for name, run in ways.items():
            result = run()
            reference = reference or result.answers
            same = sum(result.answers[r] == tokens for r, tokens in reference.items())
            found[name].append(summary(result) | {"same_answers": same, "requests": len(reference)})
    rows = []
    for name, runs in found.items():
        gaps = [gap for run in runs for gap in run["gaps"]]
        row = {
            "way": name, "itl_p50_ms": 1e3 * percentile(gaps, 50), "itl_p99_ms": 1e3 * percentile(gaps, 99),
            "itl_max_ms": 1e3 * max(gaps),
            "long_ttft_ms": 1e3 * bench.Timing(tuple(t for run in runs for t in run["long_ttft"])).median,
        }  # fmt: skip
        handed = [h for run in runs for h in run["handovers"] if h.num_tokens == LONG]
        if handed:
            row["megabytes"] = handed[0].num_bytes / 1e6
            row["transfer_ms"] = 1e3 * bench.Timing(tuple(h.transfer_s for h in handed)).median
            row["exposed_ms"] = 1e3 * bench.Timing(tuple(h.exposed_s for h in handed)).median
        rows.append(row)
        print(name, {key: round(value, 1) for key, value in row.items() if key != "way"})
    if not options.quick:
        note = (
            f"{LONG} prompt tokens handed over; one core for each worker, one or both for the single engine"
        )
        print(
            "wrote", bench.evidence("disaggregation", {"rows": rows, "runs": found}, seed=0, note=note).name
        )
    return 0


def _apart(load: Any, layerwise: bool) -> Result:
    requests, arrivals = workload()
    return serve(
        load, requests, prefill=Pool(80, 16), decode=Pool(256, 32), layerwise=layerwise, arrivals=arrivals,
        limits=LIMITS, threads=1,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
