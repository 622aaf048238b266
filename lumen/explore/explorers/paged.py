"""The block table stepper: requests that grow, fork, wait and come back over one small pool of blocks.

`play` is the twin of `play` in paged_stepper.js. Here it runs on the `BlockPool` that the paged cache uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lumen.cache.pool import BlockPool
from lumen.explore.explorers.widget import JSWidget

POSITIONS = 48
SIZES = (1, 2, 4, 8, 16)
PROMPTS = (6, 9, 5, 7, 10, 4)  # lengths of the prompts, in the order in which requests arrive
ANSWER = 14  # tokens of every answer; then its blocks come back, and those who wait may come in
NAMES = "ABCDEFGH"


@dataclass
class _Row:
    """One sequence. `state` is "running", "waiting" or "ended"; `again` once it has been preempted."""

    name: str
    length: int
    end: int  # its length when the answer is complete
    table: list[int] = field(default_factory=list)
    state: str = "waiting"
    again: bool = False


class _Game:
    """The pool and its sequences, in the order of their arrival. `log` says what the last event did."""

    def __init__(self, size: int):
        self.pool, self.size = BlockPool(POSITIONS // size, size), size
        self.rows: list[_Row] = []
        self.requests = self.copies = self.recomputed = self.preemptions = 0
        self.log: list[list[Any]] = []

    def running(self) -> list[_Row]:
        return [row for row in self.rows if row.state == "running"]

    def drop(self, row: _Row, state: str) -> None:
        self.pool.release(row.table)
        row.table, row.state = [], state

    def admit(self) -> None:
        """Let those who wait in, first come first served, while one block stays free for each that runs.

        The first one that does not fit stops those behind it, too, and the log says so.
        """
        for row in self.rows:
            if row.state != "waiting":
                continue
            need, spare = -(-row.length // self.size), len(self.running())
            if need + spare > self.pool.num_free:
                self.log.append(["wait", row.name, need + spare, self.pool.num_free])
                return
            row.table, row.state = self.pool.allocate(need), "running"
            self.log.append(["resume" if row.again else "start", row.name, row.length, list(row.table)])
            self.recomputed += row.length if row.again else 0

    def new(self) -> None:
        if len(self.rows) < len(NAMES):
            prompt = PROMPTS[self.requests % len(PROMPTS)]
            self.rows.append(_Row(NAMES[len(self.rows)], prompt, prompt + ANSWER))
            self.requests += 1
            self.admit()

    def fork(self, name: str) -> None:
        for row in self.running():
            if row.name == name and len(self.rows) < len(NAMES):
                self.pool.share(row.table)
                other = NAMES[len(self.rows)]
                self.rows.append(_Row(other, row.length, row.end, list(row.table), "running"))
                self.log.append(["fork", name, other])

    def end(self, name: str) -> None:
        for row in self.rows:
            if row.name == name and row.state != "ended":
                self.drop(row, "ended")
                self.log.append(["end", name])

    def step(self) -> None:
        """One token for every running sequence."""
        self.admit()
        for row in self.running():
            if row.state == "running" and self.room(row):
                self.write(row)
                if row.length == row.end:
                    self.end(row.name)

    def wants_block(self, row: _Row) -> bool:
        return len(row.table) * self.size == row.length or self.pool.refs(row.table[-1]) > 1

    def room(self, row: _Row) -> bool:
        """Preempt from the youngest on until `row` can write; False when it had to give up itself.

        A row alone always fits: prompt and answer are shorter than the pool.
        """
        while self.wants_block(row) and not self.pool.num_free:
            victim = self.running()[-1]
            self.log.append(["preempt", victim.name, row.name])
            self.preemptions += 1
            victim.again = True
            self.drop(victim, "waiting")
            if victim is row:
                return False
        return True

    def write(self, row: _Row) -> None:
        if len(row.table) * self.size == row.length:
            row.table += self.pool.allocate(1)
            self.log.append(["take", row.name, row.table[-1]])
        elif self.pool.refs(row.table[-1]) > 1:
            old, (row.table[-1],) = row.table[-1], self.pool.allocate(1)
            self.pool.release([old])
            self.copies += 1
            self.log.append(["copy", row.name, old, row.table[-1]])
        row.length += 1

    def filled(self) -> list[int]:
        """Positions of each block that hold a token."""
        counts = [0] * self.pool.num_blocks
        for row in self.rows:
            for place, block in enumerate(row.table):
                counts[block] = max(counts[block], min(self.size, row.length - place * self.size))
        return counts


def play(events: Sequence[str], size: int = 4) -> dict[str, Any]:
    """What the pool looks like after `events`: "new", "step", "fork A", "end A". An event without effect is allowed.

    Returns the rows (name, length, table, state), the free blocks, the tokens in each block, what was copied, computed
    again and preempted, and a log of the last event.
    """
    if size not in SIZES:
        raise ValueError(
            f"The pool has {POSITIONS} positions; a block holds one of {SIZES} of them, not {size}."
        )
    game = _Game(size)
    for event in events:
        game.log = []
        word, _, name = event.partition(" ")
        if word in ("new", "step") and not name:
            getattr(game, word)()
        elif word in ("fork", "end") and name in NAMES and len(name) == 1:
            getattr(game, word)(name)
        else:
            raise ValueError(f"There is no event {event!r}; use 'new', 'step', 'fork A' or 'end A'.")
        game.pool.audit([row.table for row in game.rows])
    return {
        "rows": [{"name": r.name, "length": r.length, "table": r.table, "state": r.state} for r in game.rows],
        "free": game.pool.num_free,
        "filled": game.filled(),
        "copies": game.copies,
        "recomputed": game.recomputed,
        "preemptions": game.preemptions,
        "log": game.log,
    }


class PagedStepper(JSWidget):
    """Play with a block table: buttons for a request, a token for all, a fork, an end; a slider for the block size.

    >>> PagedStepper(events=["new", "new", "step"], size=4)
    """

    module = "paged_stepper.js"
    label = "block table stepper"

    def __init__(
        self,
        events: Sequence[str] = ("new", "new", "step"),
        size: int = 4,
        *,
        title: str = "Who holds which block?",
        lead: str = "Numbers are blocks of the pool, letters are the sequences that hold them.",
    ) -> None:
        play(events, size)  # refuses what cannot be played
        super().__init__(
            events=list(events), size=size, positions=POSITIONS, sizes=SIZES, prompts=PROMPTS, names=NAMES,
            answer=ANSWER,
            title=title, lead=lead,
        )  # fmt: skip
