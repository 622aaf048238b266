"""What a smaller cache costs in quality: perplexity of held-out text, every logit read out of the cache it is about.

    python benchmarks/cache_quality.py            4 texts of 1,024 tokens; writes evidence
    python benchmarks/cache_quality.py --quick    2 texts of 256 tokens, three kinds; writes nothing

The text goes in a few tokens at a time, as answers do, so that later tokens read earlier ones as they are kept. Each
kind is compared with the plain cache token by token: the difference in loss has an interval over the texts' stretches.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import lumen
from lumen import bench, cost
from lumen.assets import shakespeare
from lumen.cache import QUANT_FORMATS, Cache, DynamicCache, KiviStore, QuantCache, QuantFormat

TEXTS, LENGTH, CHUNK, GROUP, STRETCH = 4, 1024, 16, 32, 64
TARGET = 0.005  # int8's share of perplexity

Make = Callable[[Any, int, int], Cache]  # of a model, rows, and positions of each


def quantized(form: QuantFormat) -> Make:
    """A cache of this format."""

    def make(model: Any, rows: int, length: int) -> Cache:
        if form.per_channel:
            blocks = rows * -(-length // GROUP)
            return KiviStore.for_model(model, blocks, GROUP, form, rows).rows(rows)
        return QuantCache.for_model(model, rows, form)

    return make


KINDS: dict[str, Make] = {
    "plain": lambda model, rows, length: DynamicCache.for_model(model, rows),
    **{name: quantized(form) for name, form in QUANT_FORMATS.items()},
    **{f"{name}, rotated": quantized(form.with_(rotated=True)) for name, form in QUANT_FORMATS.items()},
    "2 bits by token": quantized(QUANT_FORMATS["int4"].with_(bits=2)),
    "2 bits by token, rotated": quantized(QUANT_FORMATS["int4"].with_(bits=2, rotated=True)),
}


@torch.inference_mode()
def losses(model: Any, tokens: Tensor, cache: Cache, chunk: int = CHUNK) -> Tensor:
    """-log p of every token (rows, length - 1) behind the ones before it, which `cache` holds."""
    found = []
    for at in range(0, tokens.shape[1] - 1, chunk):
        part = tokens[:, at : min(at + chunk, tokens.shape[1] - 1)]
        logits = model(part, None, cache).float().log_softmax(-1)
        wanted = tokens[:, at + 1 : at + 1 + part.shape[1]]
        found.append(-logits.gather(2, wanted[:, :, None])[:, :, 0])
    return torch.cat(found, 1)


def compared(plain: Tensor, other: Tensor) -> dict[str, float]:
    """Perplexities, and the share that it rises by with an interval of two standard errors over stretches of tokens."""
    apart = (other - plain).flatten()
    parts = apart[: len(apart) // STRETCH * STRETCH].view(-1, STRETCH).mean(1)
    mean, error = float(apart.mean()), 2 * float(parts.std() / math.sqrt(len(parts)))
    low, high = math.expm1(mean - error), math.expm1(mean + error)
    return {
        "perplexity": math.exp(float(other.mean())), "rise": math.expm1(mean), "low": low, "high": high,
        "n": plain.numel(),
    }  # fmt: skip


def texts(tokenizer: Any, rows: int, length: int) -> Tensor:
    """Stretches of the plays that are held out, far apart."""
    ids = tokenizer.encode(shakespeare()[1][: 40 * rows * length])
    step = len(ids) // rows
    return torch.tensor([ids[row * step : row * step + length] for row in range(rows)])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kinds", nargs="*", choices=sorted(KINDS), help="beside plain; all if left out")
    options = parser.parse_args()
    rows, length = (2, 256) if options.quick else (TEXTS, LENGTH)
    loaded = lumen.load("smollm2-135m", dtype=torch.float32)
    model, tokens = loaded.model, texts(loaded.tokenizer, rows, length)
    chosen = options.kinds or (
        ["int8", "int4", "kivi-2"] if options.quick else [k for k in KINDS if k != "plain"]
    )
    plain = losses(model, tokens, KINDS["plain"](model, rows, length))
    print(f"plain: perplexity {math.exp(float(plain.mean())):.3f} over {plain.numel()} tokens", flush=True)
    found: dict[str, Any] = {"plain": math.exp(float(plain.mean()))}
    for name in chosen:
        start = time.perf_counter()
        cache = KINDS[name](model, rows, length)
        row = compared(plain, losses(model, tokens, cache))
        found[name] = row
        kind = name.removesuffix(", rotated")
        size = (
            cost.quantized_bytes_per_token(model.config, kind, GROUP) if kind in QUANT_FORMATS else math.nan
        )
        print(
            f"{name:26} perplexity {row['perplexity']:7.3f}, {100 * row['rise']:+7.3f} % "
            f"({100 * row['low']:+.3f} to {100 * row['high']:+.3f}), {size:6.0f} bytes a token, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    if options.quick or options.kinds:
        return 0
    print(
        "wrote",
        bench.evidence("cache_quality", {"kinds": found, "chunk": CHUNK, "length": length}, seed=0).name,
    )
    met = found["int8"]["rise"] <= TARGET
    print(f"target (int8 at most {100 * TARGET:g} % worse): {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
