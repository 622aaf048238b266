"""Latent attention in a config.json: DeepSeek-V2's and V3's names for the widths, and the scale that YaRN changes.

    {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, ...}

Their experts (shared ones, groups, a router that adds a bias) are not ours, so every layer must be dense:
`first_k_dense_replace` says how many are.
"""

from __future__ import annotations

import math
from typing import Any

from ..config import LIMITS, Family, ModelConfig
from ..parts import Latent
from .errors import BadFile
from .fields import Fields

FAMILIES: tuple[Family, ...] = ("deepseek_v2", "deepseek_v3")
_DIGITS = 12  # of `mscale_all_dim`, which is written back from the scale that it led to
# (option, the value that our models have)
_PLAIN: tuple[tuple[str, Any], ...] = (("rope_interleave", True), ("mlp_bias", False))


def read(said: Fields, name: str, family: Family, layers: int) -> dict[str, Any]:
    """`latent` and `query_scale` of a ModelConfig, none for other families. BadFile for what our models have not."""
    if family not in FAMILIES:
        return {}
    for option, plain in _PLAIN:
        if said.has(option) and said.values[option] != plain:
            raise BadFile(
                f"{name} has {option} = {said.values[option]!r:.40}, which this course's models do not do."
            )
    first = 0 if family == "deepseek_v2" else 3
    if said.whole("first_k_dense_replace", LIMITS["num_layers"], first, least=0) < layers:
        raise BadFile(
            f"{name} has DeepSeek's experts (shared ones and groups), which this course's models do not have; "
            "only its attention is run here, in layers that are all dense."
        )
    width = LIMITS["hidden_size"]
    latent = Latent(
        said.whole("kv_lora_rank", width),
        said.whole("qk_rope_head_dim", LIMITS["head_dim"]),
        said.whole("v_head_dim", LIMITS["head_dim"]),
        said.whole("q_lora_rank", width) if said.has("q_lora_rank") else None,
    )
    return {"latent": latent, "query_scale": _scale(said, head_dim(said) + latent.rope)}


def head_dim(said: Fields) -> int:
    """Channels of a head's key that are made of the latent."""
    return said.whole("qk_nope_head_dim", LIMITS["head_dim"])


def _scale(said: Fields, width: int) -> float | None:
    """What multiplies the scores: YaRN makes them larger by the square of its factor for `mscale_all_dim`."""
    rope = said.table("rope_parameters" if said.values.get("rope_parameters") else "rope_scaling")
    kind = rope.text("rope_type" if rope.has("rope_type") else "type", "default")
    if kind == "default" or not rope.values.get("mscale_all_dim"):
        return None
    factor = rope.number("factor")
    return _scaled(width, factor, rope.number("mscale_all_dim"))


def _scaled(width: int, factor: float, mscale: float) -> float:
    longer = 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
    return float(width**-0.5 * longer * longer)


def write(config: ModelConfig, data: dict[str, Any]) -> dict[str, Any]:
    """`data`, the other entries of config.json, with those of the latents."""
    latent = config.latent
    if latent is None:
        raise ValueError(
            f"{config.name} is a {config.family} model without latents, which its config.json cannot say."
        )
    said = data | {
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank,
        "qk_nope_head_dim": config.head_dim,
        "qk_rope_head_dim": latent.rope,
        "v_head_dim": config.value_dim,
        "head_dim": latent.rope,  # what transformers takes the rotary frequencies from
        "first_k_dense_replace": config.num_layers,
        "mlp_bias": False,
    }
    scaling = config.rope_scaling
    if config.query_scale is not None and scaling is not None and scaling.factor > 1:
        longer = math.sqrt(config.query_scale * config.key_dim**0.5)
        mscale = {"mscale_all_dim": round((longer - 1) / (0.1 * math.log(scaling.factor)), _DIGITS)}
        said |= {table: data[table] | mscale for table in ("rope_scaling", "rope_parameters")}
    return said
