"""The two plain caches: one that grows with every token, one that is reserved in full.

`DynamicCache` holds exactly what was written and pays a copy per step to grow. `StaticCache` writes in place
into slots reserved at the start, which is faster, gives compiled code one shape, and wastes what is never
filled.

Shapes per layer: keys (B, Hkv, S, D), values (B, Hkv, S, Dv), one table of positions (B, S) for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from ..inputs import whole
from ..runtime import refuse_beyond_memory
from .base import MOST_ROWS, Cache, CacheFull
from .traits import HasShape, storage_bytes, stored_dims


class DynamicCache(Cache):
    """Grows by concatenation. Padding takes a slot (the rows form a rectangle) but is never read."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        rows = whole(rows, "rows", 0, MOST_ROWS)
        heads, *widths = stored_dims(config)
        self.k, self.v = (
            [torch.zeros(rows, heads, 0, width, dtype=dtype, device=device)] * len(config.storing_layers)
            for width in widths
        )
        self.positions = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    @classmethod
    def for_model(cls, model: HasShape, rows: int) -> DynamicCache:
        """An empty cache on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, weight.dtype, weight.device)

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        held = self.positions.shape[1]
        if any(k.shape[2] > held for k in self.k) or any(v.shape[2] > held for v in self.v):
            self._cut(held)  # what a forward that died left behind
        self._k_pos = torch.cat([self.positions, pos], 1)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.k[layer] = torch.cat([self.k[layer], k], 2)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self._k_pos

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        k = self.k[layer]
        return k, self.v[layer], self._k_pos[:, : k.shape[2]]

    def advance(self, pos: Tensor) -> None:
        super().advance(pos)
        self.positions = self._k_pos

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)
        positions = self.positions.masked_fill(self.positions >= new[:, None], -1)
        used = (positions >= 0).any(0).nonzero()
        size = int(used[-1]) + 1 if used.numel() else 0
        self.positions, self.lengths = positions[:, :size].clone(), new
        self._cut(size)

    def _cut(self, size: int) -> None:
        self.k = [k[:, :, :size].clone() for k in self.k]  # a view would keep the forgotten part alive
        self.v = [v[:, :, :size].clone() for v in self.v]

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.k, self.v = [k[index] for k in self.k], [v[index] for v in self.v]
        self.positions, self.lengths = self.positions[index], self.lengths[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes([*self.k, *self.v])


class StaticCache(Cache):
    """`capacity` positions per row, reserved now. Position p of a row lives in slot p.

    One slot more is kept behind the last: padding is written there, so that every write has the same shape.
    Uncompiled code reads only as far as the longest row; compiled code reads all slots under a mask and needs
    no answer from the device. Compiled code cannot raise `CacheFull` either: whoever compiles checks the length
    first, as `generate` does.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        rows, capacity = whole(rows, "rows", 0, MOST_ROWS), whole(capacity, "capacity", 1)
        self._capacity = capacity
        heads, *widths = stored_dims(config)
        values = len(config.storing_layers) * rows * heads * (capacity + 1) * sum(widths)
        refuse_beyond_memory(
            values * dtype.itemsize, device, f"{rows} rows of {capacity} positions",
            "Take fewer of them, or a smaller dtype, or a cache that grows.",
        )  # fmt: skip
        self.k, self.v = (
            torch.zeros(
                len(config.storing_layers), rows, heads, capacity + 1, width, dtype=dtype, device=device
            )
            for width in widths
        )
        self.positions = torch.full((rows, capacity + 1), -1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    @classmethod
    def for_model(cls, model: HasShape, rows: int, capacity: int) -> StaticCache:
        """An empty cache on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, capacity, weight.dtype, weight.device)

    @property
    def capacity(self) -> int:
        return self._capacity

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        run: slice | None = None  # set when all rows write the same stretch of slots
        read = self.capacity
        if not torch.compiler.is_compiling():
            last = int(pos.max())
            if last >= self.capacity:
                raise CacheFull(
                    f"Position {last} does not fit: this cache reserves {self.capacity} positions per row. "
                    "Make it larger, or ask for fewer tokens."
                )
            first = int(pos[0, 0])
            steps = torch.arange(first, first + pos.shape[1], device=pos.device)
            if first >= 0 and bool((pos == steps).all()):
                run = slice(first, first + pos.shape[1])
            read = max(int(self.lengths.max()), last + 1, 1)
        self._slots = torch.where(pos >= 0, pos, self.capacity)
        self._rows = torch.arange(pos.shape[0], device=pos.device)[:, None]
        k_pos = self.positions.scatter(1, self._slots, pos)
        self._after, self._k_pos = k_pos, k_pos[:, :read]
        # One view of each kind for all layers, taken apart once: a layer then costs two copies and nothing else.
        self._read = self.k[:, :, :, :read].unbind(0), self.v[:, :, :, :read].unbind(0)
        place = slice(None) if run is None else run
        self._run, self._write = (
            run is not None,
            (self.k[:, :, :, place].unbind(0), self.v[:, :, :, place].unbind(0)),
        )

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self._write[0][layer], self._write[1][layer]
        if self._run:
            keys.copy_(k)
            values.copy_(v)
        else:
            keys[self._rows, :, self._slots] = k.transpose(1, 2)
            values[self._rows, :, self._slots] = v.transpose(1, 2)
        return self._read[0][layer], self._read[1][layer], self._k_pos

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._read[0][layer], self._read[1][layer], self._k_pos

    def advance(self, pos: Tensor) -> None:
        # In place, here and below: a compiled step keeps its addresses.
        self.lengths.clamp_(min=pos.amax(1) + 1)
        self.positions.copy_(self._after)

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)
        self.positions.masked_fill_(self.positions >= new[:, None], -1)
        self.lengths.copy_(new)

    def reset(self) -> None:
        self.positions.fill_(-1)
        self.lengths.zero_()

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.k, self.v = self.k[:, index], self.v[:, index]
        self.positions, self.lengths = self.positions[index], self.lengths[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes([self.k, self.v])
