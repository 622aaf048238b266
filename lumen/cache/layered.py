"""One cache for a model whose layers keep different things: attention and states, windows among full layers.

layer    0  1  2  3  4  5          places   [(a, 0), (a, 1), (b, 0), (a, 2), (a, 3), (b, 1)]
kind     a  a  b  a  a  b          a: a RecurrentCache of four layers, b: a StaticCache of two
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .base import Cache
from .traits import Expand, Traits


class LayeredCache(Cache):
    """`places[layer]` says which cache holds a layer, and as which of its own layers. All have the same rows."""

    def __init__(self, places: Sequence[tuple[Cache, int]]):
        self.places = list(places)
        self.parts = list({id(part): part for part, _ in places}.values())
        if not self.parts or len({part.lengths.shape[0] for part in self.parts}) > 1:
            raise ValueError("A layered cache needs parts, and parts with equally many rows.")
        kinds = [part.traits for part in self.parts]
        limits = [kind.max_rewind for kind in kinds if kind.max_rewind is not None]
        self.traits = Traits(
            max(kind.tolerance for kind in kinds), min(limits, default=None), same_positions=False,
            readable=all(kind.takes_trees for kind in kinds),
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
        part, inner = self.places[layer]
        return part.state(inner)

    def set_state(self, layer: int, *state: Tensor) -> None:
        part, inner = self.places[layer]
        part.set_state(inner, *state)

    def advance(self, pos: Tensor) -> None:
        for part in self.parts:
            part.advance(pos)

    def prompt_ended(self) -> None:
        for part in self.parts:
            part.prompt_ended()

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(
            lengths
        )  # with the least that any part can go back: then none refuses half-way
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
