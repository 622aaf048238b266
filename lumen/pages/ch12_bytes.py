"""Chapter 12, what a token leaves in a cache: two models, heads beside a latent, the ledger, chips that split heads."""

from __future__ import annotations

import math
from typing import Any

from lumen import cost
from lumen.bench.numbers import size
from lumen.config import CONFIGS, ModelConfig
from lumen.cost.ledger import ledger
from lumen.parts import Latent

Table = tuple[list[list[Any]], list[str], str]
OLD, NEW, SMALL = CONFIGS["llama-2-7b"], CONFIGS["llama-3-8b"], CONFIGS["gptlite"]
MEMORY, LONG = 80e9, 131_072
V3 = ModelConfig(
    "deepseek-v3", 129280, 61, 7168, 128, 128, 128, 18432, 163840,
    latent=Latent(rank=512, rope=64, query_rank=1536),
    source="DeepSeek-AI 2024, DeepSeek-V3, section 4.2; its experts are left out",
)  # fmt: skip
SHOWN = (
    "llama-2-7b", "llama-2-70b", "llama-3-8b", "gemma-3-27b", "deepseek-v3", "qwen2.5-7b", "gpt-oss-120b",
    "gemma-3n-e4b", "falcon-7b",
)  # fmt: skip


def symbols() -> Table:
    """κ and what it is made of, for the two models of the opening and the small one that is converted here."""
    models, rows = (OLD, NEW, SMALL), []
    for symbol, values, means in (
        ("$L$", [m.num_layers for m in models], "layers"),
        ("$H$", [m.num_heads for m in models], "heads that ask"),
        ("$H_{kv}$", [m.num_kv_heads for m in models], "heads that are stored"),
        ("$D$", [m.head_dim for m in models], "width of a head"),
        ("$b$", [2, 2, 2], "bytes of a number"),
    ):
        rows.append([symbol, *(f"{v:,}" for v in values), means])
    rows.append(["$\\kappa$", *(size(cost.kv_bytes_per_token(m)) for m in models), "of a token"])
    longest = [m.max_positions for m in models]
    rows.append(["longest", *(f"{n:,}" for n in longest), "tokens it was trained for"])
    held = [size(cost.kv_bytes(m, n)) for m, n in zip(models, longest, strict=True)]
    rows.append(["its cache", *held, "of one user"])
    return rows, ["", *(m.name for m in models), "what it is"], "lrrrl"


def opening() -> str:
    """The surprise in bytes."""
    old, new = (cost.kv_bytes(m, m.max_positions) for m in (OLD, NEW))
    ratio = cost.kv_bytes_per_token(OLD) / cost.kv_bytes_per_token(NEW)
    return (
        f"Llama-2-7B's longest conversation, {OLD.max_positions:,} tokens, takes {size(old)}. Llama-3-8B's is "
        f"{NEW.max_positions:,} tokens long and takes {size(new)}: {ratio:.0f} times fewer bytes a token."
    )


def made_of(heads: int, rank: int) -> str:
    """What a layer's keys and values are made of in gptlite, and what sharing heads would be as a latent."""
    both = 2 * SMALL.num_kv_heads * SMALL.head_dim
    return (
        f"In gptlite those are {both} numbers, made of the {SMALL.hidden_size} of $x$: as a function of $x$ they have "
        f"{min(both, SMALL.hidden_size)} directions at most, before anything is compressed. Sharing heads is a special "
        f"latent: {heads} heads of keys and {heads} of values, $r = {rank}$, and a $U$ of ones and zeros that hands "
        f"each of them to {SMALL.num_heads // heads} readers *as it is*."
    )


def ledger_table() -> Table:
    """Published models by the cache of one long conversation, the largest first."""
    some = sorted((held for held in ledger() if held.name in SHOWN), key=lambda held: -held.bytes(LONG))
    rows = [
        [
            held.name,
            held.kind,
            f"{held.bytes(1) / 2**10:,.1f}",
            size(held.bytes(LONG)),
            f"{held.users(MEMORY, LONG)}",
        ]
        for held in some
    ]
    return rows, ["model", "how", "KiB a token", f"{LONG:,} tokens", "users in 80 GB"], "llrrr"


def ledger_story() -> str:
    rows = {held.name: held for held in ledger()}
    v2, dense = rows["llama-2-7b"], rows["deepseek-v3"]
    ratio = v2.bytes(LONG) / dense.bytes(LONG)
    windowed = rows["gemma-3-27b"]
    naive = windowed.bytes(1) * LONG / windowed.bytes(LONG)
    return (
        f"Llama-2-7B would need {size(v2.bytes(LONG))} for one user; DeepSeek-V3, with about a hundred times its "
        f"weights, takes {ratio:.0f} times less. And bytes a token are not the whole of it: Gemma-3-27B's first token "
        f"costs {size(windowed.bytes(1))}, but most of its layers forget, and at {LONG:,} tokens the product would be "
        f"{naive:.1f} times too large."
    )


def chips_table() -> Table:
    """Bytes of a token on each of so many chips, when heads are dealt out and what cannot be dealt is copied."""
    rows = []
    for chips in (1, 2, 4, 8, 16, 32):
        row = [f"{chips}"]
        for model in (OLD, NEW, V3):
            row.append(size(on_each(model, chips)))
        rows.append([*row, f"{on_each(NEW, chips) * chips / on_each(NEW, 1):.0f} ×"])
    return rows, ["chips", OLD.name, NEW.name, V3.name, f"{NEW.name}: copies"], "rrrrr"


def on_each(model: ModelConfig, chips: int) -> float:
    """Cache bytes of a token on one of `chips` that split the heads: a head is not cut, a latent serves them all."""
    whole = cost.kv_bytes_per_token(model)
    if model.latent is not None:
        return whole
    return whole * math.ceil(model.num_kv_heads / chips) / model.num_kv_heads
