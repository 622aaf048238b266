"""The cache-size calculator: bytes a token, users that fit, and the batch at which the cache outweighs the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumen import cost
from lumen.config import CONFIGS, ModelConfig
from lumen.explore.explorers.roofline import (
    CONTEXTS,
    DEFAULT_CHIPS,
    DEFAULT_MODELS,
    chip_numbers,
    chosen,
    closest,
    model_numbers,
)
from lumen.explore.explorers.widget import JSWidget
from lumen.hardware import CHIPS, Chip

FORMATS = {"fp32": "32 bits", "bf16": "16 bits", "q8_0": "8.5 bits", "q4_0": "4.5 bits"}
USERS = tuple(2**i for i in range(11))


def sizes(
    config: ModelConfig, memory: float, context: int, users: int, kv: float, weight: float, reserve: float
) -> dict[str, Any]:
    """Sizes in bytes, from `lumen.cost`. The twin of `sizes` in cache_size.js; `kv` and `weight` are bytes a value."""
    return {
        "perToken": cost.kv_bytes_per_token(config, kv),
        "perUser": cost.kv_bytes(config, context, dtype=kv),
        "cache": cost.kv_bytes(config, context, users, kv),
        "weights": cost.weight_storage(config, weight),
        "fit": cost.max_users(memory, config, context, weight, kv, reserve),
        "overtakes": cost.overtaking_batch(config, context, weight, kv),
    }


class CacheSize(JSWidget):
    """Pick a model, a chip, a context and a number of users; see what the cache takes and whether it fits.

    `reserve` is the share of memory kept free for activations and the allocator.

    >>> CacheSize(models=["llama-2-7b", "llama-3-8b"], chips=["A100 80GB SXM"], context=4096, users=32)
    """

    module = "cache_size.js"
    label = "cache-size calculator"

    def __init__(
        self,
        models: Sequence[str | ModelConfig] | None = None,
        chips: Sequence[str | Chip] | None = None,
        *,
        context: int = 4096,
        users: int = 16,
        kv: str = "bf16",
        weight: str = "bf16",
        reserve: float = 0.1,
        title: str = "How many users fit?",
        lead: str = "The cache grows with every token of every user; the weights are paid once.",
    ) -> None:
        if not 0 <= reserve < 1:
            raise ValueError(
                f"reserve is a share of the memory, from 0 up to but not including 1; got {reserve}"
            )
        for name in (kv, weight):
            if name not in FORMATS:
                raise ValueError(f"no format {name!r} here; choose from: {', '.join(FORMATS)}")
        shapes = chosen(models, DEFAULT_MODELS, CONFIGS, "model")
        machines = chosen(chips, DEFAULT_CHIPS, CHIPS, "chip")
        super().__init__(
            title=title,
            lead=lead,
            models=[model_numbers(m) for m in shapes],
            chips=[chip_numbers(c) for c in machines],
            formats=[
                {"name": n, "label": text, "bytes": cost.bytes_per_value(n)} for n, text in FORMATS.items()
            ],
            contexts=list(CONTEXTS),
            users_scale=list(USERS),
            model=shapes[0].name,
            chip=machines[0].name,
            context=closest(CONTEXTS, context),
            users=closest(USERS, users),
            kv=kv,
            weight=weight,
            reserve=reserve,
        )
