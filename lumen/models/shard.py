"""Tensor parallel: one model's matrices cut into equal shards that each compute a part of every layer.

    columns of heads and of the MLP     q, k, v, gate, up: each shard has its own rows of the weight
    rows that take them up              out, down: its own columns; the shards' results are added up (`Channels.reduce`)

Everything else (embedding, norms, router, head) every shard has whole. Shoeybi et al. 2019, Megatron-LM, section 3.
With 9 query and 3 key/value heads there are 3 shards at most: a query head stays with the keys that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..config import ModelConfig
from .describe import weights


def shard_config(config: ModelConfig, shards: int) -> ModelConfig:
    """The shape of one of `shards` equal parts. ValueError where heads or MLP cannot be divided."""
    inner = config.intermediate_size if config.experts is None else config.experts.size
    counts = {"query heads": config.num_heads, "key/value heads": config.num_kv_heads, "MLP channels": inner}
    for what, count in counts.items():
        if shards < 1 or count % shards:
            raise ValueError(f"{config.name} has {count} {what}, which {shards} shards cannot share evenly.")
    if config.linear is not None:
        raise ValueError(f"{config.name} has linear layers, which are not cut here; run it whole.")
    if config.latent is not None:
        raise ValueError(
            f"{config.name} has one latent for all heads, which shards would each need whole; it is not cut."
        )
    if config.positions == "learned":
        raise ValueError(
            f"{config.name} keeps q, k and v in one published tensor; only the Llama family is cut."
        )
    experts = config.experts and replace(config.experts, size=config.experts.size // shards)
    return config.with_(
        name=f"{config.name}/{shards}",
        num_heads=config.num_heads // shards,
        num_kv_heads=config.num_kv_heads // shards,
        intermediate_size=config.intermediate_size // shards
        if config.experts is None
        else config.intermediate_size,
        experts=experts,
    )


def shard_state(
    config: ModelConfig, state: Mapping[str, Tensor], rank: int, shards: int
) -> dict[str, Tensor]:
    """What shard `rank` loads of the published tensors, as views of them. `state` may load lazily: each is asked once.

    The bias of a matrix whose results are added up belongs to shard 0; the others get zeros.
    """
    shard_config(config, shards)
    if not 0 <= rank < shards:
        raise ValueError(f"Shards are numbered 0 to {shards - 1}, not {rank}.")
    own: dict[str, Tensor] = {}
    for weight in weights(config):
        path, _, leaf = weight.name.rpartition(".")
        split, added = path.endswith(("attn.qkv", "gate_up")), path.endswith(("attn.out", ".down"))
        for name, _ in weight.sources:
            value = state[name]
            if split:
                value = value.chunk(shards, 0)[rank]
            elif added and leaf == "weight":
                value = value.chunk(shards, 1)[rank]
            elif added and rank:
                value = value.new_zeros(value.shape)
            own[name] = value
    return own
