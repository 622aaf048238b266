"""What a smaller cache gives and costs: bytes, decode times and losses of MHA, GQA, MQA, MLA and shared layers.

    python benchmarks/fewer_kv_heads.py            trains what is not trained yet (half an hour), then about ten minutes
    python benchmarks/fewer_kv_heads.py --quick    two variants at one context, no training, no evidence

gives    a decode step at several contexts, one row, fp32, static cache, the variants in turns. The weights are
         random: gptlite's 256 positions are too few to show what a cache costs, so the shape is one of its own
         (`SHAPE`), in which the cache of 8,192 tokens outweighs the matrices unless it is made smaller.
attention  the operator of such a step alone, one layer: with keys from memory, and with as many products on keys that
         stay in the processor's caches. What is left of the time then is arithmetic.
costs    gptlite's validation loss before and after uptraining (`lumen.train.uptrain`), window by window against the
         control, which was trained as long without being converted.
ledger   what published models hold: bytes per token and at 131,072 tokens, users in 80 GB of cache.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch.nn import functional as F

from lumen import assets, bench, cost, hardware
from lumen.bench.steps import Decode, name_of
from lumen.cache import StaticCache
from lumen.config import ModelConfig
from lumen.cost.ledger import ledger
from lumen.hardware.merged import merged
from lumen.models import build
from lumen.models.counts import pair_flops
from lumen.models.cross_layer import neighbours
from lumen.parts import Latent
from lumen.timing import once
from lumen.train import uptrain
from lumen.train.results import apart, average

SHAPE = ModelConfig("heads-16", 4096, 4, 1024, 16, 16, 64, 2816, 8192)
CONTEXTS = (256, 2048, 8192)
PAIRS = neighbours(SHAPE.num_layers, 2)
SHAPES = {
    "mha": SHAPE,
    "gqa4": SHAPE.with_(name="heads-16-gqa4", num_kv_heads=4),
    "mqa": SHAPE.with_(name="heads-16-mqa", num_kv_heads=1),
    "mla": SHAPE.with_(
        name="heads-16-mla", latent=Latent(rank=256, rope=32)
    ),  # DeepSeek's: 4 and 1/2 head widths
    "cla2": SHAPE.with_(name="heads-16-cla2", kv_from=PAIRS),
    "gqa4-cla2": SHAPE.with_(name="heads-16-gqa4-cla2", num_kv_heads=4, kv_from=PAIRS),
}
LONG, MEMORY = 131_072, 80e9
ROUNDS, STEPS = 12, 6
PIECE = 1024  # keys that stay in a core's own cache: half a MiB with their values


def gives(
    shapes: dict[str, ModelConfig], contexts: tuple[int, ...], rounds: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Bytes of a token by the configuration and in a real cache; a decode step at each context beside its forecast.

    All variants take turns, round after round, so that a slow minute falls on all alike; `gain` compares their rounds.
    The machine is calibrated before and after. Second, the operator of attention alone at the longest context.
    """
    chips = [hardware.measure(refresh=True)]
    models = {}
    for name, config in shapes.items():
        torch.manual_seed(0)
        models[name] = build(config).eval().requires_grad_(False)
    taken = {context: interleaved(models, context, rounds) for context in contexts}
    chips.append(hardware.measure(refresh=True))
    chip = merged(chips)
    alone = {name: config for name, config in shapes.items() if config.latent is None and not config.kv_from}
    return (
        [row(name, model.config, taken, chip) for name, model in models.items()],
        attention(alone, contexts[-1], rounds, int(chip.cache_bytes)),
    )


def interleaved(models: dict[str, Any], context: int, rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of decode steps of each model, round by round."""
    jobs = {
        name: Decode(model, name_of(model, "decode", 1, context, "static")) for name, model in models.items()
    }
    samples: dict[str, list[list[float]]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name in list(jobs) if number % 2 == 0 else reversed(list(jobs)):
            samples[name].append(jobs[name].samples(STEPS))
    return samples


def attention(
    shapes: dict[str, ModelConfig], context: int, rounds: int, last_cache: int
) -> list[dict[str, Any]]:
    """One new token's attention in one layer, by stored heads: whole from memory, in pieces from memory, in pieces that
    stay in the caches. All three compute the same products; pieces leave out the merge, which is nothing beside them.
    """
    calls: dict[str, dict[str, Callable[[], None]]] = {}
    for name, config in shapes.items():
        heads, dim = config.num_kv_heads, config.head_dim
        q = torch.randn(1, heads, config.group_size, dim)
        sets = 2 + 2 * last_cache // (2 * 4 * heads * context * dim)  # together beyond the last cache
        stored = torch.randn(sets, 2, 1, heads, context, dim)
        alike = torch.randn(2, 1, 1, PIECE, dim).expand(
            -1, -1, heads, -1, -1
        )  # one head's, read as if by all
        calls[name] = {
            "whole": partial(attend, q, cycle(stored), context),
            "pieces": partial(attend, q, cycle(stored), PIECE),
            "kept": partial(attend, q, cycle([alike]), PIECE, context // PIECE),
        }
    taken: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in calls[name]} for name in calls}
    with torch.inference_mode(), bench.quiet():
        for kinds in calls.values():
            for call in kinds.values():
                call()
        for _ in range(rounds):
            for name, kinds in calls.items():
                for kind, call in kinds.items():
                    taken[name][kind].append(statistics.median(once(call) for _ in range(STEPS)))
    return [
        {
            "name": name,
            "context": context,
            "flops": pair_flops(shapes[name]) * context,
            **{kind: bench.Estimate.of(seconds) for kind, seconds in kinds.items()},
            "memory_over_caches": bench.Estimate.ratio(kinds["pieces"], kinds["kept"]),
        }
        for name, kinds in taken.items()
    ]


def attend(q: torch.Tensor, stored: Iterator[torch.Tensor], piece: int, times: int = 1) -> None:
    """Attention of `q` on the next keys and values, `piece` keys at a time, all of it so many times."""
    keys, values = next(stored)
    for _ in range(times):
        for first in range(0, keys.shape[2], piece):
            some = slice(first, first + piece)
            F.scaled_dot_product_attention(q, keys[:, :, some], values[:, :, some])


def row(
    name: str, config: ModelConfig, taken: dict[int, dict[str, list[list[float]]]], chip: hardware.Chip
) -> dict[str, Any]:
    """One variant: what it holds, and its steps beside their forecasts and beside those of all heads."""
    cache = StaticCache(config, 1, 256)
    steps = []
    for context, samples in taken.items():
        time = bench.Estimate.of([second for round_ in samples[name] for second in round_])
        whole, own = ([statistics.median(round_) for round_ in samples[which]] for which in ("mha", name))
        forecast = cost.predict_decode(config, chip, context, 1, "fp32")
        guess = forecast.seconds
        steps.append(
            {
                "context": context,
                "measured_s": time.value,
                "low_s": time.low,
                "high_s": time.high,
                "n": time.n,
                "gain": bench.Estimate.ratio(whole, own),
                "predicted_s": guess,
                "predicted_attention_s": forecast.parts["attention"],
                "signed": guess / time.value - 1,
                "cache_share": cost.kv_bytes(config, context, dtype="fp32")
                / cost.weight_bytes(config, "fp32"),
            }
        )
    return {
        "name": name,
        "config": asdict(config),
        "bytes_per_token": cost.kv_bytes_per_token(config, "fp32"),
        "cache_bytes_per_token": cache.nbytes / 257,  # a static cache has one slot more, for padding
        "steps": steps,
    }


def costs(train: bool) -> list[dict[str, Any]]:
    """Losses of every variant that is trained, and with `train` of all of them."""
    folder = assets.cache_dir() / "train"
    found = uptrain.results(folder)
    missing = [name for name in uptrain.VARIANTS if name not in found]
    if train and missing:
        base, text = uptrain.start()
        for name in missing:
            uptrain.run(name, base, text, uptrain.UPTRAIN, folder)
        found = uptrain.results(folder)
    control = found.get(uptrain.CONTROL)
    rows = []
    for name, one in found.items():
        row = {"name": name, "says": uptrain.VARIANTS[name].says, "numbers_per_token": one.stored}
        row |= {"before": average(one.before), "after": average(one.after), "recipe": one.recipe}
        row["trained"] = apart(one.after, one.before)
        if control is not None and (one.recipe, one.base) == (control.recipe, control.base):
            row["start_above_gptlite"] = apart(one.before, control.before)
            row["above_control"] = apart(one.after, control.after)
        rows.append(row)
    return rows


def holds() -> list[dict[str, Any]]:
    """The ledger, in the 16 bits that caches usually have."""
    return [
        {
            "name": row.name, "kind": row.kind, "bytes_first_token": row.bytes(1), "bytes_long": row.bytes(LONG),
            "users": row.users(MEMORY, LONG), "source": row.source,
        }
        for row in ledger()
    ]  # fmt: skip


def show(
    given: list[dict[str, Any]],
    alone: list[dict[str, Any]],
    lost: list[dict[str, Any]],
    held: list[dict[str, Any]],
) -> None:
    print(f"\n{'variant':10} {'B/token':>8} {'in a cache':>10}   ms at context (forecast's miss)")
    for row in given:
        times = "   ".join(
            f"{s['context']:5}: {1e3 * s['measured_s']:6.2f} ({s['signed']:+.0%})" for s in row["steps"]
        )
        print(
            f"{row['name']:10} {row['bytes_per_token']:8,.0f} {row['cache_bytes_per_token']:10,.0f}   {times}"
        )
    for row in alone:
        print(
            f"attention of {row['name']}, {row['context']} keys: {row['whole']}; {row['memory_over_caches']}"
        )
    print(f"\n{'variant':12} {'numbers':>8} {'before':>8} {'after':>8}   above the control")
    for row in lost:
        before, after, above = row["before"].value, row["after"].value, row.get("above_control", "")
        print(f"{row['name']:12} {row['numbers_per_token']:8,} {before:8.4f} {after:8.4f}   {above}")
    print(f"\n{'model':14} {'KiB, 1 token':>12} {'GiB, 131,072':>12} {'users':>6}   kind")
    for row in held:
        one, long = row["bytes_first_token"] / 2**10, row["bytes_long"] / 2**30
        print(f"{row['name']:14} {one:12,.1f} {long:12,.2f} {row['users']:6}   {row['kind']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a corner of it; trains and writes nothing")
    options = parser.parse_args()
    some = {name: SHAPES[name] for name in ("mha", "gqa4")} if options.quick else SHAPES
    given, alone = gives(some, CONTEXTS[1:2] if options.quick else CONTEXTS, 2 if options.quick else ROUNDS)
    lost, held = costs(train=not options.quick), holds()
    show(given, alone, lost, held)
    if not options.quick:
        data = {
            "steps": given,
            "attention": alone,
            "losses": lost,
            "ledger": held,
            "long": LONG,
            "memory": MEMORY,
        }
        print(f"written: {bench.evidence('fewer_kv_heads', data, seed=0).name}")


if __name__ == "__main__":
    main()
