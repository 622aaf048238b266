"""The conversions of gptlite that are trained on: fewer heads, shared layers, latents, and what stands beside them.

`uptrain` runs them. A name is a row here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..models.cross_layer import neighbours, share_kv
from ..models.fewer_heads import Merge, fewer_kv_heads, first, fresh, mean
from ..models.gptlite import GPTlite
from ..models.surgery import rebuilt
from ..models.to_latent import input_moments, to_latent

Convert = Callable[[GPTlite, Sequence[Tensor]], GPTlite]
CONTROL = "control"


@dataclass(frozen=True)
class Variant:
    """A conversion, and what it is in words. It is handed the model and some batches (B, T) that the model will learn
    from, for conversions that look at what a model reads."""

    says: str
    convert: Convert


def _heads(count: int, merge: Merge = mean) -> Convert:
    return lambda model, _: fewer_kv_heads(model, count, merge)


def _layers(factor: int, merge: Merge = first) -> Convert:
    return lambda model, _: share_kv(model, neighbours(model.config.num_layers, factor), merge)


def _latents(share: int, whitened: bool = True) -> Convert:
    """Latents that take 1/share of what keys and values take."""

    def convert(model: GPTlite, seen: Sequence[Tensor]) -> GPTlite:
        rank = model.config.cache_dims.stored // share
        return to_latent(model, rank, input_moments(model, seen) if whitened else None)

    return convert


VARIANTS: dict[str, Variant] = {
    CONTROL: Variant("gptlite as it is", lambda model, _: rebuilt(model, model.config, {})),
    "gqa4": Variant("4 of 8 key/value heads, pairs mean-pooled", _heads(4)),
    "gqa2": Variant("2 of 8 key/value heads, fours mean-pooled", _heads(2)),
    "mqa": Variant("one key/value head, the mean of all", _heads(1)),
    "cla2": Variant("every other layer reads its lower neighbour's keys and values", _layers(2)),
    "gqa2-cla2": Variant(
        "both: 2 heads, in 3 of 6 layers", lambda m, seen: _layers(2)(_heads(2)(m, seen), seen)
    ),
    "gqa2-first": Variant("2 heads, the first of each four", _heads(2, first)),
    "gqa2-fresh": Variant("2 heads that start at random", lambda m, seen: _heads(2, fresh(0))(m, seen)),
    "cla2-mean": Variant("as cla2, keys and values of both layers mean-pooled", _layers(2, mean)),
    "mla128": Variant("latents of 128 numbers a layer, as much as gqa2 stores", _latents(4)),
    "mla64": Variant("latents of 64 numbers a layer, as much as mqa stores", _latents(8)),
    "mla64-plain": Variant("the same, of the matrices alone: no look at what they read", _latents(8, False)),
}
