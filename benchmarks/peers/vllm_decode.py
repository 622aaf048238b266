"""Run by vLLM's own Python: decode a batch and print one JSON line per round. See benchmarks/batching_peers.py."""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="2", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)  # fmt: skip


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, prompts, new, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    model = LLM(folder, dtype="float32", max_model_len=1024, max_num_seqs=16, enable_prefix_caching=False)

    def run(length: int) -> float:
        start = time.perf_counter()
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        model.generate(asked, params, use_tqdm=False)
        return time.perf_counter() - start

    run(new)
    for _ in range(rounds):
        first = run(1)
        print("ROUND " + json.dumps((run(new + 1) - first) / new), flush=True)


if __name__ == "__main__":
    main()
