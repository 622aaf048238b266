"""Eight sequences decoding together: our engine, Hugging Face's static batch, and vLLM's CPU build, in one run.

    python benchmarks/batching_peers.py           about five minutes on two cores; writes evidence
    python benchmarks/batching_peers.py --quick   fewer rounds; writes nothing

All three run the same fp32 weights on the same prompts, greedily and to the same length; the prefill is left out. Ours
and transformers are times of each step; vLLM's is the wall time of a run over its steps, the way in and out of its
worker process included, so means are compared with means. Ours and transformers alternate; vLLM, which keeps worker
processes, has the machine for itself in between. vLLM lives in an environment of its own: --vllm names its Python
(default: $PEERS/vllm/bin/python with PEERS=~/.cache/peers), and is left out
with a sentence where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from vs_hf import alternate, hf_gaps, load_hf

import lumen
from lumen import assets, bench, cost, hardware
from lumen.io.convert import hf_folder
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

SEQUENCES, PROMPT, NEW = 8, 32, 64
TARGETS = {"transformers": 2.0, "vllm": 1.5}
PEERS = Path(os.environ.get("PEERS", "~/.cache/peers")).expanduser()


def engine_gaps(model: Any, prompts: list[list[int]]) -> list[float]:
    """Seconds of each decode step of the engine, scheduling and sampling included; the prefill step is left out."""
    engine = Engine(model, num_blocks=256, prefix="none", limits=Limits(SEQUENCES, SEQUENCES * PROMPT))
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt, NEW))
    steps = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - start)
    return steps[1:]


def vllm_steps(python: Path, prompts: list[list[int]], rounds: int) -> list[float]:
    """Mean seconds per decode step of vLLM, one number per round; empty when it cannot be run."""
    folder = hf_folder(assets.path("smollm2-135m"), "smollm2-135m", assets.cache_dir())
    script = Path(__file__).parent / "peers" / "vllm_decode.py"
    command = [str(python), str(script), str(folder), json.dumps(prompts), str(NEW), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("ROUND ")]
    if not found:
        print(f"vLLM did not run: {(done.stderr or done.stdout).strip()[-300:]}")
    return found


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--vllm", type=Path, default=PEERS / "vllm" / "bin" / "python")
    options = parser.parse_args()
    rounds = 1 if options.quick else 4
    chip = hardware.measure()
    ours, theirs = lumen.load("smollm2-135m", dtype=torch.float32).model, load_hf()
    stream = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 49152, (SEQUENCES, PROMPT), generator=stream)

    def both() -> dict[str, bench.Timing]:
        return alternate(
            {
                "lumen": lambda: engine_gaps(ours, prompts.tolist()),
                "transformers": lambda: hf_gaps(theirs, prompts),
            },
            rounds,
        )

    before = both()
    if options.vllm.exists():
        peer = vllm_steps(options.vllm, prompts.tolist(), rounds)
    else:
        peer = []
        print(f"There is no {options.vllm.name} at --vllm, so vLLM is left out; see the docstring.")
    after = both()
    steps = {who: bench.Timing(before[who].samples + after[who].samples) for who in before}
    if peer:
        steps["vllm"] = bench.Timing(tuple(peer))
    # Mean against mean: of vLLM only the mean of a round is known.
    mean = {who: statistics.fmean(t.samples) for who, t in steps.items()}
    ratios = {who: mean[who] / mean["lumen"] for who in steps if who != "lumen"}
    rows = [{"engine": who, "step_ms": 1e3 * t, "tokens_per_s": SEQUENCES / t} for who, t in mean.items()]
    predicted = cost.predict_decode(ours.config, chip, PROMPT + NEW // 2, batch=SEQUENCES, dtype="fp32")
    for row in rows:
        print(f"{row['engine']:14} {row['step_ms']:7.1f} ms a step, {row['tokens_per_s']:6.1f} tokens/s")
    print(f"the cost model says {1e3 * predicted.seconds:.1f} ms; ratios to lumen: ", end="")
    print(", ".join(f"{who} {ratio:.2f}" for who, ratio in ratios.items()))
    if not options.quick:
        data = {
            "rows": rows, "ratios": ratios, "predicted_step_ms": 1e3 * predicted.seconds, "samples": steps,
            "sequences": SEQUENCES, "prompt": PROMPT, "new": NEW,
        }  # fmt: skip
        print("wrote", bench.evidence("batching_peers", data, seed=0).name)
    missed = [who for who, ratio in ratios.items() if ratio < TARGETS[who]]
    print(f"targets {TARGETS}: {'missed against ' + ', '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
