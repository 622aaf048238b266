"""What a window forgets: loss on held-out plays, stretch by stretch, of SmolLM2 with full, windowed and sunk caches.

    python benchmarks/window_sinks.py                      12 minutes on two cores; writes evidence
    python benchmarks/window_sinks.py --quick              one text of 1,536 tokens; writes nothing
    python benchmarks/window_sinks.py --length 12288       past the 8,192 positions that the model knows

Every token is predicted from what its cache keeps, and what a chunk reads follows the rule of the kind, not the chunk.
"Inside" are distances inside the cache (StreamingLLM); only they go past the model's positions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch

import lumen
from lumen import assets, bench
from lumen.arguments import Whole
from lumen.bench.quality import predicted
from lumen.cache import Cache, StaticCache, WindowCache
from lumen.models.decoder import Decoder
from lumen.models.rope import Turn

NEWEST, SINKS, CHUNK, STRETCHES = 512, 4, 256, 8
Make = Callable[[Decoder, int], Cache]


def kinds(model: Decoder) -> dict[str, Make]:
    """An empty cache for one text of so many tokens, by kind. All windows keep equally many positions."""
    turn, all_newest = Turn(model.config), NEWEST + SINKS
    return {
        "full": lambda m, length: StaticCache.for_model(m, 1, length),
        "window": lambda m, length: WindowCache.for_model(m, 1, all_newest),
        "window and sinks": lambda m, length: WindowCache.for_model(m, 1, NEWEST, SINKS),
        "window, inside": lambda m, length: WindowCache.for_model(m, 1, all_newest, turn=turn),
        "window and sinks, inside": lambda m, length: WindowCache.for_model(m, 1, NEWEST, SINKS, turn=turn),
    }


@torch.inference_mode()
def costs(model: Decoder, tokens: list[int], cache: Cache) -> torch.Tensor:
    """Nats that each token but the first costs, (T - 1,), from a cache that is fed chunk by chunk."""
    text = torch.tensor([tokens])
    hidden = model.hidden(text[:, :1], None, cache)
    return predicted(model, text[:, 1:], cache, hidden, CHUNK)[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=Whole(1024, 2**16), default=4096, help="tokens of one text")
    parser.add_argument("--texts", type=Whole(1, 16), default=4)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    length, count = (1536, 1) if options.quick else (options.length, options.texts)
    model, tokenizer = lumen.load("smollm2-135m")
    ids = tokenizer.encode(assets.shakespeare()[1])
    if len(ids) < length * count:
        parser.error(f"the held-out plays have {len(ids):,} tokens, not {length * count:,}; ask for less.")
    texts = [ids[i * length : (i + 1) * length] for i in range(count)]
    rows = []
    for name, make in kinds(model).items():
        if length > model.config.max_positions and "inside" not in name:
            print(f"{name:26} the model knows {model.config.max_positions:,} positions")
            continue
        each, taken = [], 0
        for text in texts:
            cache = make(model, length)
            each.append([float(part.mean()) for part in costs(model, text, cache).tensor_split(STRETCHES)])
            taken = cache.nbytes
        mean = [sum(column) / count for column in zip(*each, strict=True)]
        shown = "  ".join(f"{math.exp(min(loss, 20)):8.1f}" for loss in mean)
        print(f"{name:26} {taken / 2**20:7.1f} MiB   perplexity by eighths  {shown}")
        rows.append({"kind": name, "bytes": taken, "nats": each})
    setting = {"model": model.config.name, "length": length, "texts": count, "newest": NEWEST, "sinks": SINKS}
    if not options.quick:
        print("wrote", bench.evidence("window_sinks", {"setting": setting, "rows": rows}, seed=0).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
