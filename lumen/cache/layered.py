"""One cache for a model whose layers keep different things: windows among full layers, states beside keys and values.

layer        0  1  2  3  4  5       the model's; 3 carries a state, the others store keys and values
kind         a  a  b  s  a  b       a: a StaticCache of three layers, b: another of two, s: a RecurrentCache of one
places       (a, 0) (a, 1) (b, 0)  (a, 2) (b, 1)       by `ModelConfig.cache_place`, which counts the two by themselves
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .base import Cache
from .dense import StaticCache
from .recurrent import RecurrentCache
from .traits import Expand, HasShape, Traits


def cache_for(model: HasShape, rows: int, capacity: int, rewind: int = 0) -> Cache:
    """The cache that a model needs, empty, on its device: room for `capacity` positions of its keys and values in each
    of `rows` rows, states where it has linear layers, both for a hybrid of the two. States can go back `rewind`
    positions, see `RecurrentCache`."""
    config = model.config
    if config.linear is None:
        return StaticCache.for_model(model, rows, capacity)
    states = RecurrentCache.for_model(model, rows, rewind)
    if not config.storing_layers:
        return states
    return with_states(model, StaticCache.for_model(model, rows, capacity), states)


def with_states(model: HasShape, keys: Cache, states: RecurrentCache) -> LayeredCache:
    """The cache of a hybrid model: `keys`, of any kind that was made for it, and the states of its linear layers."""
    places = [(keys, place) for place in range(len(model.config.storing_layers))]
    return LayeredCache(places, states)


class LayeredCache(Cache):
    """`places[layer]` says which cache holds a layer's keys and values, and as which of its own layers; `states` holds
    what linear layers carry, if there are any. All have the same rows."""

    def __init__(self, places: Sequence[tuple[Cache, int]], states: RecurrentCache | None = None):
        self.places, self.states = list(places), states
        held = [part for part, _ in places] + ([] if states is None else [states])
        self.parts = list({id(part): part for part in held}.values())
        if not self.parts or len({part.lengths.shape[0] for part in self.parts}) > 1:
            raise ValueError("A layered cache needs parts, and parts with equally many rows.")
        kinds = [part.traits for part in self.parts]
        limits = [kind.max_rewind for kind in kinds if kind.max_rewind is not None]
        self.traits = Traits(
            max(kind.tolerance for kind in kinds), min(limits, default=None), same_positions=False,
            readable=all(kind.takes_trees and kind.kept is None for kind in kinds),
        )  # fmt: skip

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return self.parts[0].lengths

    @property
    def capacity(self) -> int | None:
        return min((part.capacity for part in self.parts if part.capacity is not None), default=None)

    def begin(self, pos: Tensor) -> None:
        for part in self.parts:
            part.begin(pos)

    def laid_out(self, pos: Tensor) -> Tensor:
        return self.parts[0].laid_out(pos)

    def num_sequences(self, pos: Tensor) -> int:
        return self.parts[0].num_sequences(pos)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        part, inner = self.places[layer]
        return part.update(inner, k, v, pos, q)

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        part, inner = self.places[layer]
        return part.read(inner, q)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        pos: Tensor,
        window: int | None = None,
        *,
        scale: float | None = None,
        causal: bool = True,
        expand: Expand | None = None,
    ) -> Tensor:
        part, inner = self.places[layer]
        return part.attend(inner, q, k, v, pos, window, scale=scale, causal=causal, expand=expand)

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        return super().state(layer) if self.states is None else self.states.state(layer)

    def stepwise(self, count: int) -> bool:
        return self.states is not None and self.states.stepwise(count)

    def set_state(self, layer: int, *state: Tensor) -> None:
        if self.states is None:
            return super().set_state(layer, *state)
        self.states.set_state(layer, *state)

    def advance(self, pos: Tensor) -> None:
        pos = pos.clone()  # it may be a view of lengths, which the first part moves on in place
        for part in self.parts:
            part.advance(pos)

    def prompt_ended(self) -> None:
        for part in self.parts:
            part.prompt_ended()

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)  # with the least that any part can go back
        for part in self.parts:
            part._checked_lengths(new)  # then none refuses half-way
        for part in self.parts:
            part.rewind(new)

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        for part in self.parts:
            part.select(index)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)
