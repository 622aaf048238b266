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


def read(data: dict[str, Any], name: str, family: Family) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and `local_theta` of a ModelConfig."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise BadFile(f"The config.json of {name} has no table in rope_parameters. Fetch it again.")
    local_theta, theta = None, 10000.0
    if family == "gemma3":
        local = rope.get("sliding_attention") or {}
        if local.get("rope_type", "default") != "default":
            raise BadFile(
                f"{name} scales rotary positions in its windowed layers, which this course does not do."
            )
        local_theta = float(local.get("rope_theta") or data.get("rope_local_base_freq") or 10000.0)
        rope, theta = rope.get("full_attention") or rope, 1000000.0
    theta = float(rope.get("rope_theta") or data.get("rope_theta") or theta)
    return {"rope_theta": theta, "local_theta": local_theta, "rope_scaling": _scaling(rope, data, name)}


def _scaling(rope: dict[str, Any], data: dict[str, Any], name: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise BadFile(
            f"{name} turns only part of each head's channels, which this course's models do not do."
        )
    if kind == "default":
        return None
    positions = data["max_position_embeddings"]
    original = rope.get("original_max_position_embeddings") or positions
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling("llama3", float(rope["factor"]), original, low_freq=low, high_freq=high)
    if kind == "yarn":
        factor = float(rope.get("factor") or positions / original)
        return RopeScaling(
            "yarn",
            factor,
            original,
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            attention_factor=_attention_factor(rope, factor),
            truncate=bool(rope.get("truncate", True)),
        )
    raise BadFile(
        f"{name} scales its rotary positions by {kind!r}; this course's models know linear, llama3 and yarn."
    )


def _attention_factor(rope: dict[str, Any], factor: float) -> float | None:
    """What YaRN multiplies by where the file says it, directly or as DeepSeek's two `mscale`."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    if not one or not all_dims or factor <= 1:
        return None
    return (0.1 * one * math.log(factor) + 1) / (0.1 * all_dims * math.log(factor) + 1)


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
