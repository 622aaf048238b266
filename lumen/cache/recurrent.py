"""The cache of layers that carry a state instead of keys and values: linear attention, state-space models.

The layer computes, the cache stores: `state(layer)` goes into the layer, what comes out goes into `set_state`. Its size
does not grow with the text. Katharopoulos et al. 2020, section 3.4, where the state is a matrix (B, H, Dk, Dv); with a
short convolution in front its last tokens stand beside it, (B, K - 1, C).

A state has summed up its tokens and cannot give one back. To go back by `rewind` positions, which speculation must, the
states in front of the last tokens are kept, too:

    kept            lengths  3      4      5      5         of one row: a prompt of 3, two tokens, one step at rest
    rewind to 4     lengths  3      4     (none) 4          what is behind is void, the newest is the one gone back to
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..inputs import whole
from .base import MOST_ROWS, Cache
from .traits import HasShape, Traits, storage_bytes

State = tuple[Tensor, ...]


class Moment(NamedTuple):
    """The states of all layers behind some token: lengths (B,), -1 in a row that has gone back behind it. A layer
    without a state holds None, which is as good as zeros."""

    lengths: Tensor
    states: list[State | None]

    def rows(self, index: Tensor) -> Moment:
        return Moment(
            self.lengths[index], [s if s is None else tuple(x[index] for x in s) for s in self.states]
        )


class RecurrentCache(Cache):
    """`rows` rows of states, any tuple of tensors (B, ...) a layer. What a forward sets counts from `advance` on.

    A row can go back `rewind` positions, over tokens that came in forwards of at most rewind + 1; each costs the memory
    of a whole state.
    """

    def __init__(self, rows: int, num_layers: int, device: torch.device | str = "cpu", rewind: int = 0):
        rows, num_layers = whole(rows, "rows", 0, MOST_ROWS), whole(num_layers, "num_layers", 1, 2**16)
        self.rewinds = whole(rewind, "rewind", 0, 2**10)
        self.traits = Traits(max_rewind=self.rewinds, readable=False)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.kept = [Moment(self.lengths, [None] * num_layers)]  # oldest first; the last one is now
        self._next: dict[int, list[State]] = {}

    @classmethod
    def for_model(cls, model: HasShape, rows: int, rewind: int = 0) -> RecurrentCache:
        """Empty states for the model's linear layers, on its device. ValueError for a model that has none."""
        linear = model.config.linear
        if linear is None:
            raise ValueError(f"{model.config.name} keeps keys and values in every layer; take a StaticCache.")
        return cls(rows, len(linear.layers), next(model.parameters()).device, rewind)

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        if pos.device.type == "cpu" and not torch.compiler.is_compiling():
            self._refuse_the_past(pos)
        self._next = {}

    def _refuse_the_past(self, pos: Tensor) -> None:
        """ValueError for a token at a position that a state has summed up already: it would be added twice."""
        past = (pos >= 0) & (pos < self.lengths[:, None])
        if bool(past.any()):
            row, column = past.nonzero()[0].tolist()
            raise ValueError(
                f"Row {row} has summed up {int(self.lengths[row])} positions, and a new token stands at position "
                f"{int(pos[row, column])}. States go forward only: start again with an empty cache, or `rewind` first."
            )

    def state(self, layer: int) -> State | None:
        return self.kept[-1].states[layer]

    def stepwise(self, count: int) -> bool:
        return 1 < count <= self.rewinds + 1

    def set_state(self, layer: int, *state: Tensor) -> None:
        self._next.setdefault(layer, []).append(state)

    def advance(self, pos: Tensor) -> None:
        steps = max(map(len, self._next.values()), default=1)
        for step in range(steps):
            seen = pos if steps == 1 else pos[:, : step + 1]
            states = [
                self._next[i][step] if i in self._next else old for i, old in enumerate(self.kept[-1].states)
            ]
            self.kept.append(Moment(torch.maximum(self.lengths, seen.amax(1) + 1), states))
        self.kept, self._next = self.kept[-1 - self.rewinds :], {}
        self.lengths = self.kept[-1].lengths

    def _checked_lengths(self, lengths: Tensor | Sequence[int]) -> Tensor:
        new = super()._checked_lengths(lengths)
        known = torch.stack([moment.lengths for moment in self.kept])
        if bool((missing := ~(known == new).any(0)).any()):
            row = int(missing.int().argmax())
            held = sorted({int(n) for n in known[:, row] if n >= 0})
            raise ValueError(
                f"Row {row} has states of the lengths {held} and none of {int(new[row])}: single states are kept of "
                f"forwards of up to {self.rewinds + 1} tokens. Start again with an empty cache."
            )
        return new

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Go back to states that were kept. ValueError, and nothing is changed, where a row has none of its length."""
        new = self._checked_lengths(lengths)
        now = self.kept[-1].states
        for older in self.kept[:-1]:
            back = (older.lengths == new) & (self.lengths != new)
            now = [_where(back, old, young) for old, young in zip(older.states, now, strict=True)]
        void = [
            older._replace(lengths=older.lengths.masked_fill(older.lengths > new, -1))
            for older in self.kept[:-1]
        ]
        self.kept, self.lengths = [*void, Moment(new, now)], new

    def reset(self) -> None:
        self.lengths = torch.zeros_like(self.lengths)
        self.kept = [Moment(self.lengths, [None] * len(self.kept[-1].states))]

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.kept = [moment.rows(index) for moment in self.kept]
        self.lengths = self.lengths[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes(
            [x for moment in self.kept for state in moment.states if state is not None for x in state]
        )


def _where(rows: Tensor, there: State | None, here: State | None) -> State | None:
    """`there` in these rows, `here` in the others."""
    if here is None:
        return None
    old = tuple(torch.zeros_like(x) for x in here) if there is None else there
    return tuple(
        torch.where(rows.view(-1, *[1] * (x.dim() - 1)), x, y) for x, y in zip(old, here, strict=True)
    )
