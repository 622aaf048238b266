"""What looking a draft up in the text costs: an index that grows with the answer beside a scan of the whole text.

    python benchmarks/prompt_lookup.py            half a minute on one core; writes evidence
    python benchmarks/prompt_lookup.py --quick    short texts, few tries; writes nothing

No model. The text repeats nothing, which is the scan's longest way: it looks at all of it for each length of an ending.
Timed is what the drafter does, with one more token each time, as while an answer is made: first the prompt enters the
index, then a step. A scan's time holds turning the text into bytes, since it keeps nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from lumen import bench
from lumen.decode.drafters.ngram import Endings, look_up

LENGTHS = (256, 1_024, 4_096, 16_384, 65_536)
STEPS, TRIES, LONGEST, SHORTEST = 50, 5, 4, 2


def cost(length: int, steps: int, tries: int) -> dict[str, Any]:
    """Seconds of entering `length` tokens, and of one step behind them each way: medians over `tries`."""
    entering, stepping, scanning = [], [], []
    for _ in range(tries):
        start = time.perf_counter()
        index = Endings(LONGEST, SHORTEST)
        index.extend(range(length))
        entering.append(time.perf_counter() - start)
        start = time.perf_counter()
        for token in range(steps):
            index.extend([length + token])
            index.before()
        stepping.append((time.perf_counter() - start) / steps)
        start = time.perf_counter()
        for step in range(steps):
            look_up(range(length + step + 1), LONGEST, SHORTEST)
        scanning.append((time.perf_counter() - start) / steps)
    enter, step, scan = (statistics.median(each) for each in (entering, stepping, scanning))
    even = enter / (scan - step) if scan > step else None
    return {"tokens": length, "enter": enter, "step": step, "scan": scan, "pays_after_steps": even}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = []
    with bench.quiet():
        for length in LENGTHS[:3] if options.quick else LENGTHS:
            rows.append(cost(length, *((5, 2) if options.quick else (STEPS, TRIES))))
    for row in rows:
        even = row["pays_after_steps"]
        print(
            f"{row['tokens']:6d} tokens   entered in {1e3 * row['enter']:7.2f} ms   a step {1e6 * row['step']:6.1f} µs"
            f"   by scan {1e6 * row['scan']:8.1f} µs   pays after {'no' if even is None else f'{even:.0f}'} steps"
        )
    if not options.quick:
        setting = {"steps": STEPS, "tries": TRIES, "longest": LONGEST, "shortest": SHORTEST}
        print("wrote", bench.evidence("prompt_lookup", {"setting": setting, "rows": rows}, seed=0).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
