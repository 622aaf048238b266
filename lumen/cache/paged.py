"""The paged cache: positions live in blocks of fixed size anywhere in a pool, and a table says which.

    row 0   table [5, 2, 9]       pool   0 . . .      a block holds `block_size` positions of one row,
    row 1   table [5, 7]                 2 k k k k    all layers of it;
                                         5 k k k k    block 5 is shared: both rows begin alike;
    position p of a row:                 7 k . . .    row 1 has written one position of block 7
    block table[p // size],              9 k k . .
    place p % size

Memory is taken when a position is written, not when a request is admitted, so nothing is reserved for tokens that
never come, and any free block serves any row. Kwon et al. 2023, PagedAttention, sections 4.1 to 4.4.

A kernel for paged attention reads the blocks where they lie. Here a layer's blocks are first copied together by one
`index_select`, which is exact and costs one more pass over the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..inputs import whole, wholes
from .base import MOST_ROWS, Cache, CacheFull
from .store import BlockStore, Content
from .traits import Traits, refuse_gaps

__all__ = ["BlockStore", "Content", "PagedCache"]


class PagedCache(Cache):
    """Rows of one batch over a `BlockStore`. `select` shares blocks instead of copying them."""

    def __init__(self, store: BlockStore, rows: int):
        rows = whole(rows, "rows", 0, MOST_ROWS)
        self.store = store
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=store.device)
        self._reserved: list[int] | None = None
        store.caches.append(self)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.store.traits

    def reserve(self, lengths: Sequence[int]) -> None:
        """Take the blocks for rows that will reach these lengths. CacheFull changes nothing.

        Also copies a shared block that is about to be written (copy-on-write). A caller who knows the lengths on the
        host calls this before the forward, and `begin` then asks the device nothing.
        """
        lengths = wholes(lengths, "lengths")
        if len(lengths) != len(self.tables):
            raise ValueError(f"reserve needs one length per row ({len(self.tables)}), got {len(lengths)}.")
        size, pool = self.store.block_size, self.store.pool
        held = self.lengths.tolist()
        grow = [max(0, -(-new // size) - len(table)) for new, table in zip(lengths, self.tables, strict=True)]
        # The blocks that a row writes next and that somebody else reads too. With two writers the second may keep it.
        readers: dict[int, int] = {}
        copied: list[tuple[int, int]] = []
        for row, (old, new, table) in enumerate(zip(held, lengths, self.tables, strict=True)):
            for place in range(old // size, min(len(table), -(-new // size))):
                block = table[place]
                left = readers.get(block, pool.refs(block))
                if new > old and left > 1:
                    copied.append((row, place))
                    readers[block] = left - 1
        fresh = self.store.allocate(sum(grow) + len(copied))[::-1]  # popped in the pool's order
        pairs = [
            (self.tables[row][place], block) for (row, place), block in zip(copied, fresh[::-1], strict=False)
        ]
        try:
            self.store.copy(pairs)
        except CacheFull:
            pool.release(fresh)
            raise
        for row, place in copied:
            self.tables[row][place] = fresh.pop()
        pool.release(block for block, _ in pairs)
        for table, count in zip(self.tables, grow, strict=True):
            table += [fresh.pop() for _ in range(count)]
        self._reserved = lengths

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        if pos.device.type == "cpu" and not torch.compiler.is_compiling():
            refuse_gaps(pos, self.lengths)  # on a GPU this look would stall the stream
        if self._reserved is None:
            self.reserve(torch.maximum(self.lengths, pos.amax(1) + 1).tolist())
        try:
            self.store.prepare(self._slots_of(pos))
        except CacheFull:
            self.rewind(self.lengths)  # the blocks that were just reserved
            raise
        ends, self._reserved = self._reserved, None
        assert ends is not None
        size = self.store.block_size
        width = max(1, -(-max(ends, default=0) // size))
        padded = [(table[:width] + [self.store.spare] * width)[:width] for table in self.tables]
        table = torch.tensor(padded, dtype=torch.int64, device=pos.device).view(len(padded), width)
        place = pos.clamp(min=0)
        block = torch.where(pos >= 0, table.gather(1, place // size), self.store.spare)
        self._slots = (block * size + place % size).flatten()
        self._table = table.flatten()
        self._read = max(max(ends, default=0), 1)
        positions = torch.arange(self._read, device=pos.device)
        # A row of this batch that rests keeps its length; one that writes ends behind its last new position.
        after = torch.maximum(self.lengths, pos.amax(1) + 1)
        self._k_pos = torch.where(positions < after[:, None], positions, -1)

    def _slots_of(self, pos: Tensor) -> Iterator[int]:
        """The slots of the new tokens, row by row, for a store that asks: it costs a look at the device."""
        size, spare = self.store.block_size, self.store.spare
        for table, row in zip(self.tables, pos.tolist(), strict=True):
            for p in row:
                yield (table[p // size] if p >= 0 else spare) * size + max(p, 0) % size

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.store.write(layer, self._slots, k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1))
        return self.read(layer)

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's blocks in the order of the tables, positions 0 to the longest row's end."""
        rows = len(self.tables)
        shape = rows, len(self._table) // max(rows, 1) * self.store.block_size
        k, v = (
            blocks.view(*shape, *blocks.shape[2:])[:, : self._read].transpose(1, 2)
            for blocks in self.store.read(layer, self._table)
        )
        return k, v, self._k_pos

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)
        for table, length in zip(self.tables, new.tolist(), strict=True):
            keep = -(-length // self.store.block_size)
            self.store.pool.release(table[keep:])
            del table[keep:]
        self.lengths, self._reserved = new, None

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep, drop, reorder or repeat rows. Copies share all blocks until one of them writes."""
        index = self._checked_rows(rows)
        chosen = [list(self.tables[row]) for row in index.tolist()]
        self.store.pool.share(block for table in chosen for block in table)
        self.store.pool.release(block for table in self.tables for block in table)
        self.tables, self.lengths, self._reserved = chosen, self.lengths[index], None

    def close(self) -> None:
        """Give all blocks back and leave the store. `with store.rows(n) as cache:` does it at the end of the block."""
        self.rewind([0] * len(self.tables))
        if self in self.store.caches:
            self.store.caches.remove(self)

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def adopt(
        self, prompts: Sequence[Sequence[int]], extras: Sequence[Sequence[object]] | None = None
    ) -> list[int]:
        """Start empty rows from what the prefix cache remembers; returns how many tokens of each prompt are held.

        At most all but the last token: one must run, or there is nothing to sample from.
        """
        if any(self.tables):
            raise ValueError("Only empty rows can adopt a prefix; this cache holds tokens.")
        each = zip(prompts, extras or [()] * len(prompts), strict=True)
        self.tables = [self.store.prefix.match(prompt, extra) for prompt, extra in each]
        held = [len(table) * self.store.block_size for table in self.tables]
        self.lengths = torch.tensor(held, dtype=torch.int64, device=self.lengths.device)
        return held

    def keep(
        self, sequences: Sequence[Sequence[int]], extras: Sequence[Sequence[object]] | None = None
    ) -> None:
        """Let the prefix cache remember the rows' full blocks; `sequences` are the tokens, answers included."""
        extras = extras or [()] * len(sequences)
        for tokens, table, length, extra in zip(
            sequences, self.tables, self.lengths.tolist(), extras, strict=True
        ):
            self.store.prefix.insert(tokens[:length], table, extra)

    def swap_out(self, row: int) -> Content:
        """Copy a row to host memory and give its blocks back: preemption that need not compute again."""
        (length,) = self.lengths[[row]].tolist()
        content = self.store.take(self.tables[row], length)
        lengths = self.lengths.clone()
        lengths[row] = 0
        self.rewind(lengths)
        return content

    def swap_in(self, row: int, content: Content) -> None:
        """Bring a swapped row back into the empty row `row`. CacheFull changes nothing."""
        if self.tables[row]:
            raise ValueError(f"Row {row} holds tokens; a swapped sequence comes back into an empty row.")
        blocks = self.store.allocate(-(-content.length // self.store.block_size))
        try:
            self.store.put(blocks, content)
        except CacheFull:
            self.store.pool.release(blocks)
            raise
        self.tables[row] = blocks
        self.lengths[row] = content.length

    @property
    def nbytes(self) -> int:
        """The whole store: blocks belong to nobody until they are written."""
        return self.store.nbytes
