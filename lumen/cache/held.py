"""Which blocks of its table a sequence needs: all of them, or a window's and the sinks'. No torch.

    place     0   1   2   3   4       blocks of 4, a window of 6 and 2 sinks, 19 positions computed: the next query is
    table    [7,  .,  .,  3,  9]      at 19, reads 14 to 19, 0 and 1. Places 1 and 2 have been given back

A block that was given back leaves a `HOLE`, so that the block of position p stays at place p // size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..parts import Window

HOLE = -1  # in a table: the block that stood here has gone back to the pool


def held(table: Sequence[int]) -> list[int]:
    """The blocks of a table, without its holes."""
    return [block for block in table if block != HOLE]


def places_left(table: Sequence[int], end: int, size: int) -> list[int]:
    """Where the blocks stand in a table that hold what is left of positions 0 to `end`."""
    return [place for place, block in enumerate(table[: -(-end // size)]) if block != HOLE]


class KeepAll:
    """The null object: every block stays until its sequence goes. `size` positions a block."""

    def __init__(self, size: int):
        self.size = size

    def gone(self, computed: int) -> range:
        """Places that no query at position `computed` or behind it reads."""
        return range(0)

    def most(self, known: int, chunk: int) -> int:
        """The most blocks that a sequence of `known` tokens holds while it catches up, `chunk` tokens a step."""
        return -(-known // self.size)

    def reserved(self, known: int, computed: int) -> int:
        """Up to which position there are blocks when a sequence of `known` tokens begins to run and its first step
        comes as far as `computed`."""
        return known

    def longest(self, num_blocks: int) -> int | None:
        """The most tokens of one sequence that a step may compute, None without a limit."""
        return None

    def room(self, num_blocks: int) -> int | None:
        """Positions that one sequence can reach in so many blocks, None without a limit."""
        return num_blocks * self.size


class KeepWindow(KeepAll):
    """A block goes back when all its positions have left the window and none is a sink."""

    def __init__(self, size: int, kept: Window):
        super().__init__(size)
        self.kept = kept
        self._first = -(-kept.sinks // size)  # the place behind the sinks

    def gone(self, computed: int) -> range:
        return range(self._first, max(self._first, (computed - self.kept.newest + 1) // self.size))

    def most(self, known: int, chunk: int) -> int:
        return min(super().most(known, chunk), self._first + self._touched(self.kept.newest - 1 + chunk))

    def _touched(self, count: int) -> int:
        """Blocks that so many positions side by side lie in at most, wherever the edges of blocks fall."""
        return (count + self.size - 2) // self.size + 1

    def reserved(self, known: int, computed: int) -> int:
        return computed

    def longest(self, num_blocks: int) -> int:
        """So many that they, the window before them and the sinks fit into `num_blocks`. ValueError if not one does."""
        longest = (
            (num_blocks - self._first - 1) * self.size - self.kept.newest + 2
        )  # `_touched`, solved for the chunk
        if longest < 1:
            raise ValueError(
                f"A window of {self.kept.newest} positions and {self.kept.sinks} sinks takes up to "
                f"{self._first + self._touched(self.kept.newest)} blocks of {self.size}, and the pool has "
                f"{num_blocks}. Make the pool larger or the window smaller."
            )
        return longest

    def room(self, num_blocks: int) -> None:
        return None
