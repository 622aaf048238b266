"""A trained model made again under another configuration: some tensors changed or gone, the others copied.

A conversion (fewer key/value heads, layers that share them) says which tensors change. What a model of the new
configuration consists of stands in `describe`, and nothing is carried over that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ..config import ModelConfig
from . import build
from .decoder import Decoder
from .describe import Weight, weights
from .weights import tensor_of

M = TypeVar("M", bound=Decoder)


@torch.no_grad()
def rebuilt(model: M, config: ModelConfig, changed: Mapping[str, Tensor]) -> M:
    """A model of `config` with the tensors of `changed`, by our names, and all others copied from `model`.

    It has the old one's dtype, device, mode and `requires_grad`, shares no memory with it and draws nothing from
    torch's generator. ValueError for a tensor that neither has in the new shape; nothing is built then.
    """
    own = {weight.name: weight for weight in weights(model.config)}
    state = {}
    for weight in weights(config):
        value = changed.get(weight.name)
        if value is None and weight.name in own:
            value = tensor_of(model, own[weight.name])
        if value is None or tuple(value.shape) != weight.shape:
            held = "nothing" if value is None else tuple(value.shape)
            raise ValueError(f"{config.name} needs {weight.name} {weight.shape}; {held} was carried over.")
        state[weight.name] = value
    like = next(model.parameters())
    with torch.random.fork_rng(devices=[]):  # the random start is overwritten
        made: M = build(config)
    made = made.to(like.device, like.dtype)
    for weight in weights(config):
        tensor_of(made, weight).copy_(state[weight.name])
    return made.train(model.training).requires_grad_(like.requires_grad)


def stored_projections(config: ModelConfig) -> Iterator[tuple[int, Weight]]:
    """`(layer, weight or bias)` of every matrix that holds queries, keys and values: layers that read another's hold
    queries alone and are left out."""
    for weight in weights(config):
        path, _, _ = weight.name.rpartition(".")
        if path.endswith(".attn.qkv"):
            layer = int(path.split(".")[1])
            if config.cache_layer(layer) == layer:
                yield layer, weight


def split_heads(config: ModelConfig, stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q (H, head_dim, ...), k and v (Hkv, head_dim, ...), views of the matrix or bias that stacks them."""
    heads = stacked.unflatten(0, (-1, config.head_dim))
    q, k, v = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads])
    return q, k, v


def stack_heads(*parts: Tensor) -> Tensor:
    """Queries, keys and values, or queries alone, stacked again: (heads · head_dim, ...)."""
    return torch.cat(parts).flatten(0, 1)
