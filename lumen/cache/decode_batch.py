"""A decode step whose shapes never change, for compiled code: rows come and go, the graph stays.

    load([Segment(table, 9, 1), Segment(other, 4, 1)])        rows = 4, width = 3 blocks
    pos      9  4 -1 -1                                       rows that are free are padding
    tables   5 2 9 | 7 s s | s s s | s s s                    s: the spare block; what it holds is masked

`PackedCache` is made anew for each plan and groups rows of like length, which is fastest when each call may look
different. Here everything a step reads is written into tensors that stay, and every row reads `width` blocks under a
mask. Whoever compiles keeps one such cache for each bucket of rows and lengths, see `bucket`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with, mask_for
from ..inputs import whole
from .base import MOST_ROWS, Cache, CacheFull
from .packed import Segment, positions_read, windows
from .store import BlockStore
from .traits import Expand, Traits


def bucket(count: int, least: int = 1) -> int:
    """The next size at or above `count` out of `least` times 1, 2, 4, ...: few shapes, so few graphs."""
    size, count = whole(least, "least", 1), whole(count, "count")
    while size < count:
        size *= 2
    return size


class DecodeBatch(Cache):
    """One new token for each of up to `rows` sequences of at most `width` blocks. `pos` (1, rows) goes into the model.

    The caller owns the tables, as with `PackedCache`; nothing is rewound or selected: `load` says what is read next.
    """

    def __init__(self, store: BlockStore, rows: int, width: int):
        rows, width = whole(rows, "rows", 1, MOST_ROWS), whole(width, "width", 1, store.pool.num_blocks)
        self.store, self.width = store, width
        self.pos = torch.full((1, rows), -1, dtype=torch.int64, device=store.device)
        self.lengths = torch.zeros(1, dtype=torch.int64, device=store.device)
        self.tables = torch.full((rows, width), store.spare, dtype=torch.int64, device=store.device)
        self._slots = torch.full((rows,), store.spare * store.block_size, device=store.device)
        self._k_pos = torch.arange(width * store.block_size, device=store.device).expand(rows, -1)
        if store.kept is not None:
            self._k_pos = self._k_pos.clone()  # tables with holes hold other positions, row by row

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.store.traits

    def load(self, segments: Sequence[Segment]) -> None:
        """What the next forward computes: segments of one token each. CacheFull and ValueError change nothing."""
        rows, store, size = self.tables.shape[0], self.store, self.store.block_size
        if len(segments) > rows:
            raise CacheFull(
                f"{len(segments)} sequences do not fit into {rows} rows; make a batch of more rows."
            )
        for s in segments:
            if s.count != 1 or not 0 <= s.start < len(s.table) * size:
                raise ValueError(
                    f"A decode batch takes one token in a reserved block, not {s.count} at {s.start} of {len(s.table)} "
                    f"blocks of {size}; prompts and drafts go through PackedCache."
                )
            if positions_read(s, store) > self.width * size:
                raise CacheFull(
                    f"Position {s.start} is behind the {self.width} blocks that a row reads; make a wider batch."
                )
        free = rows - len(segments)
        if store.kept is None:
            tables = [
                [*s.table[: self.width], *[store.spare] * (self.width - len(s.table))] for s in segments
            ]
        else:
            tables, k_pos = windows(segments, store, self.width)
            self._k_pos[: len(segments)].copy_(k_pos)
        slots = [s.table[s.start // size] * size + s.start % size for s in segments]
        if len(set(slots)) < len(slots):
            raise ValueError("Two segments write one slot: a sequence takes one new token a step.")
        self.store.prepare(slots)
        self.tables.copy_(torch.tensor(tables + [[self.store.spare] * self.width] * free))
        self._slots.copy_(torch.tensor(slots + [self.store.spare * size] * free))
        self.pos.copy_(torch.tensor([[s.start for s in segments] + [-1] * free]))

    def begin(self, pos: Tensor) -> None:
        if pos.shape != self.pos.shape:
            raise ValueError(
                f"pos is {tuple(self.pos.shape)}, not {tuple(pos.shape)}; pass the cache's own pos."
            )
        self._masks: dict[tuple[int | None, bool], Mask] = {}

    def laid_out(self, pos: Tensor) -> Tensor:
        return pos.transpose(0, 1)

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
        rows = pos.shape[0]
        if k is not None and v is not None:
            self.store.write(layer, self._slots, k.squeeze(2), v.squeeze(2))
        keys, values = (
            blocks.view(rows, self.width * self.store.block_size, *blocks.shape[2:]).transpose(1, 2)
            for blocks in self.store.read(layer, self.tables.flatten())
        )
        if expand is not None:
            keys, values = expand(keys, values)
        mask = self._masks.get((window, causal))
        if mask is None:
            kept = self.store.kept
            mask = mask_for(pos, self._k_pos, window, q.dtype, inspect=False, causal=causal, kept=kept)
            self._masks[window, causal] = mask
        return attend_with(q, keys, values, mask, scale)

    def advance(self, pos: Tensor) -> None:
        """The caller keeps the books: nothing is to be moved on here."""

    @property
    def nbytes(self) -> int:
        """The whole store: blocks belong to nobody until they are written."""
        return self.store.nbytes
