"""Where the blocks live that are not rounded yet: a few whole places beside many small blocks. Numbers only, no torch.

    block    3 . . . 7 . . . 9 . .          closed      in codes; read from them
    place    - (full)  0       1            open        being filled; read from its whole place
                                            kept        closed, and its whole place still there: nobody needed it

A block closes behind the forward that writes its last position. A sequence has one open block. Rejected drafts may take
it back over an edge, into a block that closed with them inside: while its whole place is kept, it opens as it was.
The place that closed longest ago is given away first, those of blocks that nobody holds in the pool before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .errors import CacheFull


@dataclass(frozen=True)
class Filling:
    """What one forward writes. Numbers of tokens count in the order in which they are written.

    `whole`: blocks whose every position is written now, with their tokens by position; they need no place. `slots` of
    whole places take `tokens`. `closing` blocks are full afterwards: (block, place). `opened` again: (block, place).
    """

    whole: tuple[tuple[int, tuple[int, ...]], ...] = ()
    slots: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    closing: tuple[tuple[int, int], ...] = ()
    opened: tuple[tuple[int, int], ...] = ()

    @property
    def closed(self) -> set[int]:
        return {block for block, _ in self.whole + self.closing}


@dataclass
class Tails:
    """`count` whole places for blocks of `size` positions. `is_held(block)`: somebody has it in a table.

    The block `spare` takes what padding writes and has no place.
    """

    count: int
    size: int
    spare: int
    is_held: Callable[[int], bool]
    place: dict[int, int] = field(default_factory=dict)  # of a block, longest untouched first
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._free = list(range(self.count))[::-1]

    def fill(self, slots: Iterable[int]) -> Filling:
        """Places for what will be written into `slots`, in this order. CacheFull and ValueError change nothing."""
        written: dict[int, dict[int, int]] = {}
        for token, slot in enumerate(slots):
            block, place = divmod(slot, self.size)
            if block != self.spare:
                written.setdefault(block, {})[place] = token
        whole = {b: at for b, at in written.items() if len(at) == self.size}
        parts = {b: at for b, at in written.items() if len(at) < self.size}
        for block, at in parts.items():
            if min(at) and block not in self.place and block not in self.closed:
                raise ValueError(
                    f"Place {min(at)} of block {block} is written, and what stands before it is not known; fill blocks "
                    "from their beginning, and hold them in the pool."
                )
        self._make_room([b for b in parts if b not in self.place], set(written))
        opened = [b for b, at in parts.items() if min(at) and b in self.closed and b not in self.place]
        for block in parts:
            self._take(block)
            self.closed.discard(block)
        at_place = [
            (self.place[b] * self.size + p, token) for b, at in parts.items() for p, token in at.items()
        ]
        return Filling(
            tuple((b, tuple(at[p] for p in range(self.size))) for b, at in whole.items()),
            tuple(slot for slot, _ in at_place),
            tuple(token for _, token in at_place),
            tuple((b, self.place[b]) for b, at in parts.items() if max(at) == self.size - 1),
            tuple((b, self.place[b]) for b in opened),
        )

    def commit(self, filling: Filling) -> None:
        """The forward is over: what it filled is closed."""
        for block, _ in filling.whole:
            self._drop(block)
        for block, _ in filling.closing:
            self.place[block] = self.place.pop(block)  # the youngest
        self.closed |= filling.closed

    def open_among(self, blocks: Sequence[int], filling: Filling) -> list[tuple[int, int]]:
        """Which of `blocks` are read from whole places while `filling` is written: (index, place)."""
        rounded = {block for block, _ in filling.whole}
        return [
            (i, self.place[b])
            for i, b in enumerate(blocks)
            if b in self.place and b not in self.closed and b not in rounded
        ]

    def close(self, block: int) -> None:
        """The block was given its codes from elsewhere."""
        self._drop(block)
        self.closed.add(block)

    def open(self, block: int, beside: Sequence[int] = ()) -> int:
        """A whole place for a block that is given its content from elsewhere. CacheFull changes nothing."""
        self._make_room([] if block in self.place else [block], {block, *beside})
        self.closed.discard(block)
        return self._take(block)

    def forget(self, block: int) -> int | None:
        """Nothing is known of the block any more; returns the whole place that it had."""
        self.closed.discard(block)
        return self._drop(block)

    def _make_room(self, new: Sequence[int], needed: set[int]) -> None:
        short = len(new) - len(self._free)
        if short <= 0:
            return
        others = [b for b in self.place if b not in needed]
        loose = [b for b in others if not self.is_held(b)]
        loose += [b for b in others if b in self.closed and self.is_held(b)]
        if short > len(loose):
            raise CacheFull(
                f"{len(new)} more blocks would be half full, and {len(self._free) + len(loose)} of {self.count} whole "
                "places are free for them. Make the store for more sequences."
            )
        for block in loose[:short]:
            self._drop(block)

    def _take(self, block: int) -> int:
        place = self.place.pop(block) if block in self.place else self._free.pop()
        self.place[block] = place
        return place

    def _drop(self, block: int) -> int | None:
        place = self.place.pop(block, None)
        if place is not None:
            self._free.append(place)
        return place
