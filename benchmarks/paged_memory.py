"""How much of the reserved cache holds tokens: contiguous against paged, on a trace of realistic lengths.

    python benchmarks/paged_memory.py            a second; writes evidence
    python benchmarks/paged_memory.py --quick    the same; writes nothing

Nothing is timed, so the figures are the same on every machine.
"""

from __future__ import annotations

import argparse

from lumen import bench, cost
from lumen.config import CONFIGS
from lumen.cost.trace import concurrent, lognormal_trace, used_share

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)
SEEDS = (0, 1, 2)
REQUESTS, LIMIT, BUDGET = 1000, 2048, 4 * 2**30


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    positions = int(BUDGET // cost.kv_bytes_per_token(CONFIGS["llama-3-8b"], "bf16"))
    policies = [("max", 16), ("power of two", 16), *(("paged", size) for size in BLOCKS)]
    rows = []
    for policy, size in policies:
        traces = [lognormal_trace(REQUESTS, LIMIT, seed=seed) for seed in SEEDS]
        share = [used_share(trace, policy, size) for trace in traces]
        fit = [concurrent(trace, policy, positions, size) for trace in traces]
        rows.append(
            {"policy": policy, "block_size": size if policy == "paged" else None, "share": share, "fit": fit}
        )
        name = f"paged, blocks of {size}" if policy == "paged" else f"contiguous, {policy}"
        print(f"{name:28} used {100 * sum(share) / 3:5.1f} %   fit at once {sum(fit) / 3:6.1f}")
    setting = {
        "requests": REQUESTS,
        "limit": LIMIT,
        "seeds": SEEDS,
        "budget_bytes": BUDGET,
        "positions": positions,
    }
    if not options.quick:
        print("wrote", bench.evidence("paged_memory", {"setting": setting, "rows": rows}, seed=0).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
