"""Layers that share keys and values: one of each group stores them for all, the others keep their queries alone.

    layer      0  1  2  3  4  5
    kv_from    0  0  2  2  4  4       CLA2: half the layers store, half the cache

What a layer reads was made of another layer's hidden states by another layer's matrices. Heads of two layers have
nothing to do with each other in a model that was trained without sharing, so pooling them mixes strangers (`mean`), and
keeping the storing layer's whole (`first`) is the better start on gptlite. Papers train from the start: Brandon et al.
2024, Reducing Transformer Key-Value Cache Size with Cross-Layer Attention, section 2. Here the conversion is where
training goes on from (`lumen.train.uptrain`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from .fewer_heads import Merge, first
from .surgery import M, rebuilt, split_heads, stack_heads, stored_projections
from .weights import tensor_of


def neighbours(num_layers: int, factor: int) -> tuple[int, ...]:
    """`kv_from` where each `factor` neighbours read what the lowest of them stores; the last group may be smaller.

    >>> neighbours(6, 2)
    (0, 0, 2, 2, 4, 4)
    """
    if not 1 <= factor <= num_layers:
        raise ValueError(f"Of {num_layers} layers, 1 to {num_layers} can share one cache, not {factor}.")
    return tuple(layer - layer % factor for layer in range(num_layers))


@torch.no_grad()
def share_kv(model: M, kv_from: Sequence[int], merge: Merge = first) -> M:
    """`model` whose layer i reads the keys and values of layer `kv_from[i]`; the model itself is left as it is.

    `first` keeps the storing layer's own matrices and drops those of its readers; `fewer_heads.mean` pools a group's
    head by head. Norms of keys stay the storing layer's. With every layer reading itself the copy equals the original.

    ValueError for a map that the configuration refuses, for a layer that would have to store and has no keys of its own
    any more, for layers that see unequally far, and for latent attention.
    """
    old = model.config
    config = shared_config(old, kv_from)
    parts: dict[
        str, dict[int, tuple[Tensor, Tensor, Tensor]]
    ] = {}  # of weights and of biases, layer by layer
    for layer, weight in stored_projections(old):
        parts.setdefault(weight.name.rpartition(".")[2], {})[layer] = split_heads(
            old, tensor_of(model, weight)
        )
    changed = {}
    for leaf, layers in parts.items():
        for layer, (q, _, _) in layers.items():
            group = [
                layers[i][1:] for i in layers if config.cache_layer(i) == layer
            ]  # none of a layer that reads
            kept = [merge(torch.stack(members)) for members in zip(*group, strict=True)]
            changed[f"blocks.{layer}.attn.qkv.{leaf}"] = stack_heads(q, *kept)
    return rebuilt(model, config, changed)


def shared_config(old: ModelConfig, kv_from: Sequence[int]) -> ModelConfig:
    """The configuration of `old` with shared layers, or a sentence."""
    if old.latent is not None:
        raise ValueError(
            f"{old.name} has latent attention, whose latents are not shared here; choose a smaller rank."
        )
    layers = range(old.num_layers)
    alone = tuple(kv_from) == tuple(layers)
    config = old.with_(kv_from=() if alone else kv_from)
    for layer in layers:
        source = config.cache_layer(layer)
        if old.cache_layer(source) != source:
            raise ValueError(
                f"Layer {source} of {old.name} reads layer {old.cache_layer(source)} and has no keys of its own to "
                f"store. Choose among the layers {', '.join(map(str, old.storing_layers))}."
            )
        if old.window_of(layer) != old.window_of(source):
            raise ValueError(
                f"Layer {layer} of {old.name} sees {_sight(old.window_of(layer))} and layer {source} "
                f"{_sight(old.window_of(source))}; share among layers that see equally far."
            )
    factor = -(-old.num_layers // len(config.storing_layers))
    regular = config.kv_from == neighbours(old.num_layers, factor)
    shared = f"{old.name}-cla{factor}" if regular else f"{old.name}-{len(config.storing_layers)}kv"
    return config.with_(name=old.name if config.kv_from == old.kv_from else shared)


def _sight(window: int | None) -> str:
    return "everything" if window is None else f"{window} tokens back"
