"""Blocks of cache memory as numbers: who holds which, which are free, and an audit that finds any lie. No torch.

A block is held by tables (one reference for every row of a batch that lists it) and by a prefix cache (one
reference for what it remembers). It is free when nobody holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..inputs import whole
from .errors import CacheFull

MOST = 2**26  # blocks, for each of which the books take about 50 bytes; and positions of a block


class PoolCorrupt(RuntimeError):
    """The books of the pool do not add up: a bug in whoever holds blocks, never a matter of input."""


class BlockPool:
    """`num_blocks` blocks of `block_size` positions. Blocks are numbered from 0; the last freed is used next."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = whole(num_blocks, "num_blocks", 1, MOST)
        self.block_size = whole(block_size, "block_size", 1, MOST)
        self._free = list(range(self.num_blocks))[::-1]
        self._refs = [0] * self.num_blocks
        self._remembered: set[int] = set()  # blocks that a prefix cache holds
        self.num_evictable = 0  # those of them that nobody else holds; kept up to date, never counted again

    @property
    def num_free(self) -> int:
        return len(self._free)

    def refs(self, block: int) -> int:
        """How many hold the block; 0 means free."""
        return self._refs[block]

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks with one reference each, or CacheFull and no block at all."""
        count = whole(count, "count")
        if count > len(self._free):
            raise CacheFull(
                f"{count} more blocks of {self.block_size} positions are needed and {len(self._free)} of "
                f"{self.num_blocks} are free. Wait for a sequence to end, preempt one, or make the pool larger."
            )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._refs[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on each block. A free block cannot be shared: somebody else may own it next."""
        blocks = list(blocks)
        if lost := [b for b in blocks if self._refs[b] == 0]:
            raise PoolCorrupt(f"Blocks {lost} are free and cannot be shared.")
        for block in blocks:
            if self._refs[block] == 1 and block in self._remembered:
                self.num_evictable -= 1
            self._refs[block] += 1

    def remember(self, blocks: Iterable[int]) -> None:
        """One more reference on each block, for a prefix cache: when it is the last, the block may be evicted."""
        blocks = list(blocks)
        self.share(blocks)
        self._remembered.update(blocks)

    def release(self, blocks: Iterable[int]) -> list[int]:
        """One reference less on each block; returns those that are free now."""
        counted = Counter(blocks)
        if over := [b for b, times in counted.items() if self._refs[b] < times]:
            raise PoolCorrupt(f"Blocks {over} are released more often than they are held.")
        freed = []
        for block, times in counted.items():
            before, left = self._refs[block], self._refs[block] - times
            self._refs[block] = left
            if block in self._remembered:
                self.num_evictable += (left == 1) - (before == 1)
            if left == 0:
                self._remembered.discard(block)
                self._free.append(block)
                freed.append(block)
        return freed

    def audit(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise PoolCorrupt unless `holders` (every table, and what prefix caches hold) explain every reference.

        Counts alone do not show a block that is free and stands in a table, or that two strangers both own
        because it was freed once too often: each free block must be free once and held by nobody.
        """
        held = Counter(block for holder in holders for block in holder)
        free = Counter(self._free)
        problems = [f"block {b} is free {n} times" for b, n in free.items() if n > 1]
        idle = sum(self._refs[block] == 1 for block in self._remembered)
        if idle != self.num_evictable:
            problems.append(f"{idle} blocks can be evicted and {self.num_evictable} are counted")
        for block in range(self.num_blocks):
            if held[block] != self._refs[block]:
                problems.append(f"block {block} has {self._refs[block]} references and {held[block]} holders")
            if bool(free[block]) == bool(held[block]):
                problems.append(
                    f"block {block} is {'free and held' if free[block] else 'neither free nor held'}"
                )
        if problems:
            raise PoolCorrupt("; ".join(problems[:5]) + ("; …" if len(problems) > 5 else ""))
