"""Whether an engine that has run for long is slower or larger than a new one: 100,000 requests, each with its own salt.

    python benchmarks/growth.py            the scheduler over both prefix caches, a minute on one core; writes evidence
    python benchmarks/growth.py --quick    2,000 requests each; writes nothing

No model: a request's tokens are made up, so that what is timed is the bookkeeping alone. The pool is full after the
warm-up, and from then on every admission evicts. No salt comes twice, so nothing is ever found, and
whatever is kept of a request that has ended shows: in the time of a step, in the objects that Python holds, in the
process's memory. Each is compared between the first and the last tenth of the run.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from lumen import bench
from lumen.cache import BlockPool, HashPrefix, RadixPrefix
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits, Scheduler

REQUESTS, QUICK = 100_000, 2_000
BLOCKS, SIZE, RUNNING = 512, 16, 8
WARM_UP = 500  # requests that fill the pool; none of their steps count
PROMPT = 48
ANSWERS = (2, 3, 5, 7, 11, 13)  # tokens, in turns, so that some request comes and goes in nearly every step
TARGET = 1.1  # a step at the end may take as much more than one at the beginning
KINDS = {"hash": HashPrefix, "radix": RadixPrefix}


def serve(kind: str, requests: int) -> dict[str, Any]:
    """Fill the pool, then run all requests: a step's median seconds, and what is held, in each tenth of them."""
    pool = BlockPool(BLOCKS, SIZE)
    prefix = KINDS[kind](pool)
    scheduler = Scheduler(pool, prefix, Limits(max_seqs=RUNNING, token_budget=RUNNING * PROMPT))
    seconds: list[float] = []
    tenths: list[dict[str, int]] = []
    asked, ended = 0, -WARM_UP
    while ended < requests:
        start = time.perf_counter()
        while asked < requests + WARM_UP and len(scheduler.waiting) + len(scheduler.running) < 2 * RUNNING:
            scheduler.add(
                Request(str(asked), range(PROMPT), ANSWERS[asked % len(ANSWERS)], extra=(f"salt {asked}",))
            )
            asked += 1
        plan = scheduler.schedule(time.monotonic())
        scheduler.update(plan, {work.sequence.id: [7] for work in plan.work if work.samples})
        for sequence in [s for s in scheduler.running if len(s.output) == s.request.max_new_tokens]:
            scheduler.finish(sequence)
            ended += 1
        if ended > 0:
            seconds.append(time.perf_counter() - start)
        if len(tenths) < 10 * ended // requests:
            gc.collect()
            tenths.append(
                {
                    "requests": ended,
                    "steps": len(seconds),
                    "held": sum(len(part) for part in vars(prefix).values() if isinstance(part, dict)),
                    "objects": sys.getallocatedblocks()
                    - len(seconds),  # less the times that we note ourselves
                    "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                }
            )
    scheduler.audit()
    ends = [0, *(tenth["steps"] for tenth in tenths)]
    medians = [statistics.median(seconds[a:b]) for a, b in pairwise(ends)]
    return {"kind": kind, "tenths": tenths, "step": medians, "ratio": medians[-1] / medians[0]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    requests = QUICK if options.quick else REQUESTS
    rows = []
    for kind in KINDS:
        with bench.quiet():
            row = serve(kind, requests)
        rows.append(row)
        print(f"{kind}: {requests} requests, {row['tenths'][-1]['steps']} steps")
        for tenth, step in zip(row["tenths"], row["step"], strict=True):
            print(
                f"  after {tenth['requests']:7d}   step {1e6 * step:7.1f} µs   {tenth['held']:5d} in its tables   "
                f"{tenth['objects']:8d} objects   peak {tenth['peak_kib'] / 1024:6.1f} MiB"
            )
        print(f"  a step at the end takes {row['ratio']:.2f} of one at the beginning")
    if not options.quick:
        setting = {"requests": requests, "blocks": BLOCKS, "block_size": SIZE, "max_seqs": RUNNING}
        setting |= {"prompt": PROMPT, "answers": ANSWERS}
        print("wrote", bench.evidence("growth", {"setting": setting, "rows": rows}, seed=0).name)
    met = all(row["ratio"] <= TARGET for row in rows)
    print(f"target (at most {TARGET} times the time): {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
