"""Rotary positions in a config.json: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` before.

    {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 8192, ...}

Gemma 3 has one such table for the layers that see everything and one for the windowed ones.
"""

from __future__ import annotations

import math
from typing import Any

from ..config import Family, ModelConfig
from ..parts import RopeScaling
from .errors import BadFile
from .fields import LONGEST, Fields


def read(said: Fields, name: str, family: Family) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and `local_theta` of a ModelConfig."""
    rope = said.table("rope_parameters" if said.values.get("rope_parameters") else "rope_scaling")
    local_theta, theta = None, 10000.0
    if family == "gemma3":
        local = rope.table("sliding_attention")
        if local.text("rope_type", "default") != "default":
            raise BadFile(
                f"{name} scales rotary positions in its windowed layers, which this course does not do."
            )
        local_theta = _theta(local, said, "rope_local_base_freq", 10000.0)
        rope, theta = rope.table("full_attention") if rope.has("full_attention") else rope, 1000000.0
    return {
        "rope_theta": _theta(rope, said, "rope_theta", theta),
        "local_theta": local_theta,
        "rope_scaling": _scaling(rope, said, name),
    }


def _theta(rope: Fields, said: Fields, outside: str, default: float) -> float:
    """The base: in the table, or as `outside` beside it. It is above 1, or later channels would turn faster."""
    return rope.number("rope_theta", said.number(outside, default, above=1.0), above=1.0)


def _scaling(rope: Fields, said: Fields, name: str) -> RopeScaling | None:
    kind = rope.text("rope_type" if rope.has("rope_type") else "type", "default")
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise BadFile(
            f"{name} turns only part of each head's channels, which this course's models do not do."
        )
    if kind == "default":
        return None
    positions = said.whole("max_position_embeddings", LONGEST)
    original = rope.whole("original_max_position_embeddings", LONGEST, positions)
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return RopeScaling("llama3", rope.number("factor"), original, low_freq=low, high_freq=high)
    if kind == "yarn":
        factor = rope.number("factor", positions / original)
        return RopeScaling(
            "yarn",
            factor,
            original,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=_attention_factor(rope, factor),
            truncate=rope.flag("truncate", True),
        )
    raise BadFile(
        f"{name} scales its rotary positions by {kind!r:.40}; this course's models know linear, llama3 and yarn."
    )


def _attention_factor(rope: Fields, factor: float) -> float | None:
    """What YaRN multiplies by where the file says it, directly or as DeepSeek's two `mscale` (0 is unsaid)."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    said = [key for key in ("mscale", "mscale_all_dim") if rope.values.get(key)]
    if len(said) < 2 or factor <= 1:
        return None
    one, all_dims = (0.1 * rope.number(key) * math.log(factor) + 1 for key in said)
    return one / all_dims


def write(config: ModelConfig) -> dict[str, Any]:
    """The entries of config.json. Raises ValueError for divisors, which only GGUF files can hold."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta, **_table(config)}
    said: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        said["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if config.local_theta is None:
        return {**said, "rope_parameters": rope}
    local = {"rope_type": "default", "rope_theta": config.local_theta}
    both = {"full_attention": rope, "sliding_attention": local}
    return {**said, "rope_local_base_freq": config.local_theta, "rope_parameters": both}


def _table(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {}
    if scaling.kind == "divisors":
        raise ValueError(
            f"{config.name} divides each rotary frequency by its own number, which config.json cannot say; "
            "save it as GGUF, or describe its scaling by a rule."
        )
    table: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        table["original_max_position_embeddings"] = scaling.original_positions
    if scaling.kind == "llama3":
        table |= {"low_freq_factor": scaling.low_freq, "high_freq_factor": scaling.high_freq}
    if scaling.kind == "yarn":
        table |= {
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
        }
        if scaling.attention_factor is not None:
            table["attention_factor"] = scaling.attention_factor
    return table
