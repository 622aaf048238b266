"""What a token costs behind a context that grows: attention over everything, over a window, a state, three to one.

    python benchmarks/linear_decode.py            contexts to 16,384, about five minutes; writes evidence
    python benchmarks/linear_decode.py --quick    two contexts, few repeats; writes nothing

Four models of one width that differ in their mixers alone, random weights, batch 1. What stands in front of a timed
step is not computed but set down: keys and values, or a state, are random numbers of the right shape, which cost what
real ones do. Beside the time stand the bytes that the sequence holds, of the cache and as the cost model says.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from lumen import bench
from lumen.cache import Cache, RecurrentCache, StaticCache, WindowCache, with_states
from lumen.config import ModelConfig
from lumen.cost import kv_bytes, state_bytes
from lumen.models import Llama
from lumen.parts import LinearLayers

KINDS, CONTEXTS, QUICK = ("full", "window", "linear", "hybrid"), (512, 2048, 8192, 16_384), (512, 2048)
LAYERS, WIDTH, HEADS, DIM, WINDOW, ROOM = 8, 512, 8, 64, 512, 256
FLAT = (
    1.2  # a step of the linear model at the longest context takes at most so many times one at the shortest
)


def config(kind: str) -> ModelConfig:
    """The model of one kind: all its layers are linear, or three of four, or none."""
    share = {"linear": LAYERS, "hybrid": 3}.get(kind, 0)
    layers = tuple(i for i in range(LAYERS) if share == LAYERS or i % 4 < share)
    linear = LinearLayers(layers, "gated_delta", HEADS, DIM, DIM) if layers else None
    return ModelConfig(
        kind, 1024, LAYERS, WIDTH, HEADS, HEADS, DIM, 3 * WIDTH, max(CONTEXTS) + ROOM,
        window=WINDOW if kind == "window" else None, linear=linear,
    )  # fmt: skip


def keys(model: Llama, context: int) -> Cache:
    """Keys and values of `context` tokens, or of the last ones that a window keeps, and room for `ROOM` more."""
    if model.config.window is not None:
        window = WindowCache.for_model(model, 1, model.config.window)
        first = max(0, context - model.config.window)
        model(torch.ones(1, context - first, dtype=torch.int64), torch.arange(first, context)[None], window)
        return window
    cache = StaticCache.for_model(model, 1, context + ROOM)
    cache.k.normal_()
    cache.v.normal_()
    cache.positions[:, :context] = torch.arange(context)
    cache.lengths.fill_(context)
    return cache


def behind(model: Llama, context: int) -> Cache:
    """A cache that holds `context` tokens."""
    linear = model.config.linear
    if linear is None:
        return keys(model, context)
    states = RecurrentCache.for_model(model, 1)
    pos = torch.tensor([[context - 1]])
    states.begin(pos)
    for place in range(len(linear.layers)):
        states.set_state(
            place, torch.randn(1, linear.conv - 1, linear.channels), torch.randn(1, *linear.state_shape)
        )
    states.advance(pos)
    return with_states(model, keys(model, context), states) if model.config.storing_layers else states


@torch.inference_mode()
def measured(context: int, repeats: int) -> dict[str, Any]:
    """One decode step of every kind behind `context` tokens, in turns: seconds, bytes held, bytes predicted."""
    models = {kind: Llama(config(kind)).eval().requires_grad_(False) for kind in KINDS}
    caches = {kind: behind(model, context) for kind, model in models.items()}
    token = torch.ones(1, 1, dtype=torch.int64)
    steps = {kind: partial(models[kind], token, None, caches[kind]) for kind in KINDS}
    held = {kind: cache.nbytes for kind, cache in caches.items()}
    counted = {
        kind: kv_bytes(config(kind), context, dtype="fp32") + state_bytes(config(kind), dtype="fp32")
        for kind in KINDS
    }
    return {
        "context": context,
        "held": held,
        "counted": counted,
        "seconds": bench.compare(steps, repeats, warmup=3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = []
    for context in QUICK if options.quick else CONTEXTS:
        row = measured(context, 5 if options.quick else 25)
        rows.append(row)
        for kind in KINDS:
            seconds, held = row["seconds"][kind].median, row["held"][kind] / 2**20
            print(f"{context:6d} tokens  {kind:7s} {1e3 * seconds:7.2f} ms  {held:8.2f} MiB", flush=True)
    if not options.quick:
        print("wrote", bench.evidence("linear_decode", {"rows": rows}, seed=0).name)
    ratio = rows[-1]["seconds"]["linear"].median / rows[0]["seconds"]["linear"].median
    met = ratio <= FLAT
    print(f"target (a state's step at most {FLAT} times as long): {ratio:.2f}, {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
