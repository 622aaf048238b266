"""What attention was given in one forward: input, queries, keys and values of chosen layers, to look at or to learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cache.base import Cache
from .decoder import Decoder
from .passing import PLAIN


@dataclass(frozen=True)
class Given:
    """One layer's: x (B, T, D) normalised, q (B, H, T, head_dim) and k (B, Hkv, T, head_dim) turned to their positions,
    v (B, Hkv, T, Dv), pos (B, T)."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    pos: Tensor


class _Notes(Cache):
    """Keeps what every layer stored in this forward, and the queries of the `wanted` ones; nothing for a later one."""

    def __init__(self, wanted: set[int]):
        self.wanted = wanted
        self.stored: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.queries: dict[int, Tensor] = {}

    def begin(self, pos: Tensor) -> None:
        self.lengths = pos.new_zeros(pos.shape[0])
        super().begin(pos)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if layer in self.wanted and q is not None:
            self.queries[layer] = q
        self.stored[layer] = k, v, pos
        return k, v, pos

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self.stored[layer]

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        return None

    def set_state(self, layer: int, *state: Tensor) -> None:
        """Nothing is kept."""


@torch.no_grad()
def observe(
    model: Decoder, tokens: Tensor, layers: Sequence[int], pos: Tensor | None = None
) -> dict[int, Given]:
    """Run tokens (B, T) up to the last of `layers`, without a cache; what each of them was given.

    ValueError for a layer that the model has not, for one that makes no keys of its own, and for latent attention.
    """
    config = model.config
    if config.latent is not None:
        raise ValueError(
            f"{config.name} stores latents, and neither they nor its queries are those of a head; observe a model with "
            "keys and values."
        )
    for layer in layers:
        if layer not in config.storing_layers:
            raise ValueError(
                f"Layer {layer} of {config.name} cannot be observed: layers {list(config.storing_layers)} make keys of "
                "their own."
            )
    if not layers:
        return {}
    if pos is None:
        pos = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    places = {layer: config.cache_place(layer) for layer in layers}
    notes = _Notes(set(places.values()))
    before = sorted({layer - 1 for layer in layers if layer})
    _, found = model.features(tokens, pos, notes, before, replace(PLAIN, exit=max(layers) + 1))
    inputs = dict(zip(before, found, strict=True)) | {-1: model.embedded(tokens, pos)}
    return {
        layer: Given(
            model.blocks[layer].get_submodule("attn_norm")(inputs[layer - 1]),
            notes.queries[place],
            *notes.stored[place],
        )
        for layer, place in places.items()
    }
