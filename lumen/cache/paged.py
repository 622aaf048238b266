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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config import ModelConfig
from .base import Cache, storage_bytes
from .pool import BlockPool
from .prefix import NoPrefix, Prefix, allocate

if TYPE_CHECKING:
    from ..models.layers import Decoder


class BlockStore:
    """The memory that paged caches share: keys and values of all blocks, the pool's books, a prefix cache.

    `k`, `v`: (layers, num_blocks + 1, block_size, Hkv, D). The block behind the last takes what padding writes.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.pool = BlockPool(num_blocks, block_size)
        self.prefix: Prefix = NoPrefix()
        shape = config.num_layers, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.block_size, self.spare = block_size, num_blocks
        self.caches: list[PagedCache] = []  # whoever holds tables; the audit asks them all

    @classmethod
    def for_model(cls, model: Decoder, num_blocks: int, block_size: int = 16) -> BlockStore:
        """An empty store on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, num_blocks, block_size, weight.dtype, weight.device)

    def rows(self, count: int) -> PagedCache:
        """A cache of `count` empty rows in this store."""
        return PagedCache(self, count)

    def allocate(self, count: int) -> list[int]:
        """Blocks for whoever writes next; see `lumen.cache.prefix.allocate`."""
        return allocate(self.pool, self.prefix, count)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to) in all layers."""
        if pairs:
            source, target = (torch.tensor(side, device=self.k.device) for side in zip(*pairs, strict=True))
            self.k[:, target] = self.k[:, source]
            self.v[:, target] = self.v[:, source]

    def audit(self) -> None:
        """Raise PoolCorrupt unless every reference is explained by a table or the prefix cache."""
        tables = [table for cache in self.caches for table in cache.tables]
        self.pool.audit([*tables, self.prefix.blocks()])

    @property
    def nbytes(self) -> int:
        return storage_bytes([self.k, self.v])


@dataclass(frozen=True)
class SwappedRow:
    """A row's keys and values in host memory: k, v (layers, length, Hkv, D)."""

    k: Tensor
    v: Tensor
    length: int

    @property
    def nbytes(self) -> int:
        return storage_bytes([self.k, self.v])


class PagedCache(Cache):
    """Rows of one batch over a `BlockStore`. `select` shares blocks instead of copying them."""

    def __init__(self, store: BlockStore, rows: int):
        self.store = store
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=store.k.device)
        self._reserved: list[int] | None = None
        store.caches.append(self)

    def reserve(self, lengths: Sequence[int]) -> None:
        """Take the blocks for rows that will reach these lengths. CacheFull changes nothing.

        Also copies a shared block that is about to be written (copy-on-write). A caller who knows the lengths on the
        host calls this before the forward, and `begin` then asks the device nothing.
        """
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
        pairs, dropped = [], []
        for row, place in copied:
            block = fresh.pop()
            dropped.append(self.tables[row][place])
            pairs.append((self.tables[row][place], block))
            self.tables[row][place] = block
        self.store.copy(pairs)
        pool.release(dropped)
        for table, count in zip(self.tables, grow, strict=True):
            table += [fresh.pop() for _ in range(count)]
        self._reserved = list(lengths)

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        if self._reserved is None:
            self.reserve(torch.maximum(self.lengths, pos.amax(1) + 1).tolist())
        ends, self._reserved = self._reserved, None
        assert ends is not None
        size = self.store.block_size
        width = max(1, -(-max(ends, default=0) // size))
        padded = [(table[:width] + [self.store.spare] * width)[:width] for table in self.tables]
        table = torch.tensor(padded, dtype=torch.int64, device=pos.device).view(len(padded), width)
        place = pos.clamp(min=0)
        block = torch.where(pos >= 0, table.gather(1, place // size), self.store.spare)
        self._block, self._place = block, place % size
        self._table = table.flatten()
        self._read = max(max(ends, default=0), 1)
        positions = torch.arange(self._read, device=pos.device)
        # A row of this batch that rests keeps its length; one that writes ends behind its last new position.
        after = torch.maximum(self.lengths, pos.amax(1) + 1)
        self._k_pos = torch.where(positions < after[:, None], positions, -1)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.store.k[layer], self.store.v[layer]
        keys[self._block, self._place] = k.transpose(1, 2)
        values[self._block, self._place] = v.transpose(1, 2)
        return self._gather(keys), self._gather(values), self._k_pos

    def _gather(self, blocks: Tensor) -> Tensor:
        """One layer's blocks in the order of the tables: (B, Hkv, S, D), positions 0 to the longest row's end."""
        together = blocks.index_select(0, self._table).view(len(self.tables), -1, *blocks.shape[2:])
        return together[:, : self._read].transpose(1, 2)

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

    def adopt(self, prompts: Sequence[Sequence[int]], extra: Sequence[object] = ()) -> list[int]:
        """Start empty rows from what the prefix cache remembers; returns how many tokens of each prompt are held.

        At most all but the last token: one must run, or there is nothing to sample from.
        """
        if any(self.tables):
            raise ValueError("Only empty rows can adopt a prefix; this cache holds tokens.")
        self.tables = [self.store.prefix.match(prompt, extra) for prompt in prompts]
        held = [len(table) * self.store.block_size for table in self.tables]
        self.lengths = torch.tensor(held, dtype=torch.int64, device=self.lengths.device)
        return held

    def keep(self, sequences: Sequence[Sequence[int]], extra: Sequence[object] = ()) -> None:
        """Let the prefix cache remember the rows' full blocks; `sequences` are the tokens, answers included."""
        for tokens, table, length in zip(sequences, self.tables, self.lengths.tolist(), strict=True):
            self.store.prefix.insert(tokens[:length], table, extra)

    def swap_out(self, row: int) -> SwappedRow:
        """Copy a row to host memory and give its blocks back: preemption that need not compute again."""
        (length,) = self.lengths[[row]].tolist()
        at = torch.tensor(self.tables[row], dtype=torch.int64, device=self.store.k.device)
        k, v = (self._flat(t.index_select(1, at), length).cpu().clone() for t in (self.store.k, self.store.v))
        lengths = self.lengths.clone()
        lengths[row] = 0
        self.rewind(lengths)
        return SwappedRow(k, v, length)

    def swap_in(self, row: int, swapped: SwappedRow) -> None:
        """Bring a swapped row back into the empty row `row`. CacheFull changes nothing."""
        if self.tables[row]:
            raise ValueError(f"Row {row} holds tokens; a swapped sequence comes back into an empty row.")
        size = self.store.block_size
        blocks = self.store.allocate(-(-swapped.length // size))
        for i, block in enumerate(blocks):
            part = slice(i * size, min((i + 1) * size, swapped.length))
            self.store.k[:, block, : part.stop - part.start] = swapped.k[:, part].to(self.store.k.device)
            self.store.v[:, block, : part.stop - part.start] = swapped.v[:, part].to(self.store.v.device)
        self.tables[row] = blocks
        self.lengths[row] = swapped.length

    @staticmethod
    def _flat(blocks: Tensor, length: int) -> Tensor:
        """(layers, blocks, size, Hkv, D) -> (layers, length, Hkv, D)."""
        return blocks.flatten(1, 2)[:, :length]

    @property
    def nbytes(self) -> int:
        """The whole store: blocks belong to nobody until they are written."""
        return self.store.nbytes
