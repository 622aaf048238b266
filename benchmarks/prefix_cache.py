"""What a prefix cache saves: TTFT with a shared prompt cold and warm, a chat of ten turns, and lookup cost.

    python benchmarks/prefix_cache.py            about three minutes on two cores; writes evidence
    python benchmarks/prefix_cache.py --quick    the smallest sizes; writes nothing

Warm and cold runs must give the same tokens; the run stops if they do not.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from typing import Any

import torch

import lumen
from lumen import bench, cost, hardware
from lumen.cache import BlockPool, BlockStore, HashPrefix, RadixPrefix

SHARED, NEW, BLOCK = (256, 512, 1024), 32, 16
TARGET = 10.0
KINDS = {"hash": HashPrefix, "radix": RadixPrefix}


def ttft(model: Any, store: BlockStore, prompt: list[int]) -> tuple[float, int, int]:
    """Seconds to the first token, that token, and how many prompt tokens were held."""
    with store.rows(1) as cache:
        (done,) = lumen.generate(model, [prompt], 1, eos_ids=(), cache=cache)
    assert done.ttft is not None
    return done.ttft, done.tokens[0], done.num_cached_tokens


def shared_prompt(model: Any, chip: hardware.Chip, shared: int, repeats: int) -> dict[str, Any]:
    """Cold and warm TTFT of `shared` common and NEW own tokens, in turns, and what the cost model expects of each."""
    draw = random.Random(shared)
    common = [draw.randrange(3, 49152) for _ in range(shared)]
    cold, warm = [], []
    for number in range(repeats + 1):
        own = [[draw.randrange(3, 49152) for _ in range(NEW)] for _ in range(2)]
        store = BlockStore.for_model(model, 2 * -(-(shared + NEW + 1) // BLOCK) + 2, BLOCK)
        store.prefix = HashPrefix(store.pool)
        ttft(model, store, common + own[0])
        second, token, held = ttft(model, store, common + own[1])
        empty = BlockStore.for_model(model, store.pool.num_blocks, BLOCK)
        first, cold_token, _ = ttft(model, empty, common + own[1])
        if token != cold_token or held != shared:
            raise SystemExit(f"warm gave token {token} with {held} tokens held, cold {cold_token}: not equal")
        if number:
            warm.append(second)
            cold.append(first)
    config = model.config
    whole = cost.predict_prefill(config, chip, shared + NEW, dtype="fp32", cache="paged").seconds
    rest = cost.predict_prefill(config, chip, NEW, dtype="fp32", held=shared, cache="paged").seconds
    return {
        "shared": shared,
        "new": NEW,
        "cold": bench.Timing(tuple(cold)),
        "warm": bench.Timing(tuple(warm)),
        "predicted_cold": whole,
        "predicted_warm": rest,
    }


def chat(model: Any, turns: int) -> list[dict[str, Any]]:
    """TTFT of each turn of a chat, with and without the memory of the turns before."""
    draw = random.Random(7)
    store = BlockStore.for_model(model, 2 * -(-turns * 80 // BLOCK), BLOCK)
    store.prefix = RadixPrefix(store.pool)
    talk: list[int] = []
    rows = []
    for turn in range(turns):
        talk += [draw.randrange(3, 49152) for _ in range(40)]
        with store.rows(1) as cache:
            (warm,) = lumen.generate(model, [talk], 24, eos_ids=(), cache=cache)
        (cold,) = lumen.generate(model, [talk], 24, eos_ids=())
        if warm.tokens != cold.tokens:
            raise SystemExit(f"turn {turn}: the chat with a prefix cache said something else")
        rows.append(
            {
                "turn": turn + 1,
                "prompt": len(talk),
                "held": warm.num_cached_tokens,
                "warm": warm.ttft,
                "cold": cold.ttft,
            }
        )
        talk += warm.tokens
    return rows


def _look_up(prefix: Any, pool: BlockPool, prompt: tuple[int, ...]) -> None:
    pool.release(prefix.match(prompt))


def lookups(blocks: int, repeats: int) -> dict[str, bench.Timing]:
    """Seconds to match a prompt of 64 blocks among `blocks` remembered ones."""
    calls = {}
    for name, kind in KINDS.items():
        pool = BlockPool(blocks + 64, BLOCK)
        prefix = kind(pool)
        draw = random.Random(3)
        trunks = [[draw.randrange(49152) for _ in range(32 * BLOCK)] for _ in range(20)]
        known: list[int] = []
        while len(prefix.blocks()) + 64 <= blocks:
            for _ in range(max(1, (blocks - len(prefix.blocks())) // 64 // 4)):
                known = draw.choice(trunks) + [draw.randrange(49152) for _ in range(32 * BLOCK)]
                taken = pool.allocate(64)
                prefix.insert(known, taken)
                pool.release(taken)

        calls[name] = partial(_look_up, prefix, pool, (*known, 1))
    return bench.compare(calls, repeats=repeats)


def branching(pool_blocks: int, requests: int) -> dict[str, float]:
    """Hit rate on a workload of shared trunks and private branches, in a pool too small for all of it."""
    rates = {}
    for name, kind in KINDS.items():
        draw = random.Random(5)
        pool = BlockPool(pool_blocks, BLOCK)
        prefix = kind(pool)
        trunks = [[draw.randrange(49152) for _ in range(draw.randrange(4, 24) * BLOCK)] for _ in range(30)]
        weights = [1 / (i + 1) for i in range(30)]  # a few popular trunks
        for _ in range(requests):
            (trunk,) = draw.choices(trunks, weights)
            tokens = trunk + [draw.randrange(4) for _ in range(draw.randrange(1, 6) * BLOCK)]
            blocks = prefix.match(tokens)
            need = -(-len(tokens) // BLOCK) - len(blocks)
            if need > pool.num_free:
                prefix.evict(need - pool.num_free)
            blocks += pool.allocate(need)
            prefix.insert(tokens, blocks)
            pool.release(blocks)
        rates[name] = prefix.hits / prefix.queries
    return rates


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    repeats = 1 if options.quick else 5
    start = time.perf_counter()
    chip = hardware.measure()
    model = lumen.load("smollm2-135m", dtype=torch.float32).model
    rows = [shared_prompt(model, chip, shared, repeats) for shared in SHARED[: 1 if options.quick else None]]
    for row in rows:
        ratio = row["cold"].median / row["warm"].median
        print(
            f"{row['shared']:5} shared + {NEW} new: cold {1e3 * row['cold'].median:6.0f} ms "
            f"(predicted {1e3 * row['predicted_cold']:.0f}), warm {1e3 * row['warm'].median:5.0f} ms "
            f"(predicted {1e3 * row['predicted_warm']:.0f}), {ratio:.1f} times lower"
        )
    talk = chat(model, 3 if options.quick else 10)
    for turn in talk:
        print(f"turn {turn['turn']:2}: prompt {turn['prompt']:4}, held {turn['held']:4}, ", end="")
        print(f"cold {1e3 * turn['cold']:5.0f} ms, warm {1e3 * turn['warm']:5.0f} ms")
    found = lookups(2_000 if options.quick else 100_000, 20)
    for name, timing in found.items():
        print(f"{name}: a prompt of 64 blocks is found in {timing}")
    rates = branching(400, 300 if options.quick else 3000)
    print("hit rate under eviction:", ", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items()))
    if not options.quick:
        data = {"shared_prompt": rows, "chat": talk, "lookup": found, "hit_rate": rates, "block_size": BLOCK}
        print(
            "wrote",
            bench.evidence("prefix_cache", data, seed=0).name,
            f"after {time.perf_counter() - start:.0f} s",
        )
        met = rows[-1]["cold"].median / rows[-1]["warm"].median >= TARGET
        print(f"target (warm {TARGET:.0f} times lower at {SHARED[-1]} shared): {'met' if met else 'MISSED'}")
        return 0 if met else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
