"""The cache of layers that carry a state instead of keys and values: linear attention, state-space models.

The layer computes, the cache stores: `state(layer)` goes into the layer, what comes out goes into `set_state`. A state
has summed up its tokens and cannot give one back, so this kind goes forward only. Its size does not grow with the text.
Katharopoulos et al. 2020, section 3.4, where the state is a matrix (B, H, Dk, Dv).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..inputs import whole
from .base import MOST_ROWS, Cache
from .traits import Traits, storage_bytes


class RecurrentCache(Cache):
    """`rows` rows of states, any tuple of tensors (B, ...) a layer. What a forward sets counts from `advance` on."""

    traits = Traits(max_rewind=0, readable=False)

    def __init__(self, rows: int, num_layers: int, device: torch.device | str = "cpu"):
        rows, num_layers = whole(rows, "rows", 0, MOST_ROWS), whole(num_layers, "num_layers", 1, 2**16)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.states: list[tuple[Tensor, ...] | None] = [None] * num_layers
        self._next: dict[int, tuple[Tensor, ...]] = {}

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        self._next = {}

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        return self.states[layer]

    def set_state(self, layer: int, *state: Tensor) -> None:
        self._next[layer] = state

    def advance(self, pos: Tensor) -> None:
        super().advance(pos)
        for layer, state in self._next.items():
            self.states[layer] = state
        self._next = {}

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Refused, unless it goes nowhere."""
        self._checked_lengths(lengths)

    def reset(self) -> None:
        self.lengths = torch.zeros_like(self.lengths)
        self.states = [None] * len(self.states)

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.states = [None if s is None else tuple(x[index] for x in s) for s in self.states]
        self.lengths = self.lengths[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes([x for state in self.states if state is not None for x in state])
