"""Exercises of chapter 05: blocks counted by hand, a block table, two faults of real pools, one claim, one pool."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from lumen import cost
from lumen.cache.errors import CacheFull
from lumen.config import CONFIGS
from lumen.cost.trace import lognormal_trace, moments
from lumen.grading import (
    EXACT,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Plan,
    Probe,
    Slip,
    Statements,
)
from lumen.grading.kinds.slip import bends
from lumen.hardware import CHIPS, host_link, hourly

exercises = ExerciseSet(
    "05",
    "The paged cache",
    then="chapter 06, the prefix cache",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | four-samples | Four samples, counted | predict | 2 | 4 | 10 | 2 |
    | block-tables | A block table with copy-on-write | build | 4 | 5 | 30 | 5 |
    | freed-block | The block that was freed and stayed | debug | 3 | 5 | 15 | 3 |
    | last-writer | One block lost for every group | debug | 3 | 4 | 15 | 3 |
    | waste-claims | Four claims about waste | literature | 3 | 4 | 12 | 2 |
    | size-the-pool | Size the pool | decide | 3 | 5 | 15 | 3 |
    """,
)

# predict ------------------------------------------------------------------------------------------

COUNTS = {
    "one row": Number(
        9,
        "blocks",
        slips={
            8: "Eight blocks hold 128 tokens. The last two need a ninth.",
            8.125: "Nobody can take an eighth of a block.",
        },
    ),
    "separate": Number(
        36,
        "blocks",
        slips={
            33: "Each of the four rounds up for itself: 4 · 9, not 520 / 16.",
            32: "Each of the four needs a ninth block for its last two tokens.",
        },
    ),
    "shared": Number(
        18,
        "blocks",
        slips={
            36: "That is without sharing. The full blocks of the prompt stand in four tables, and exist once.",
            22: "130 tokens need nine blocks, six of them shared: three of its own for each, not four.",
            19: "You kept the unfinished block that three rows copied. The fourth row goes on in it.",
            15: "The last block of the prompt is not full, so it cannot stay shared: each row has its own.",
        },
    ),
    "copies": Number(
        3,
        "blocks",
        slips={
            4: "When the fourth row writes, the other three have left. It is alone and writes in place.",
            1: "After the first copy three rows still share the block, and two of them must leave it.",
            28: "Full blocks are never written again, so they are never copied.",
            0: "All four write their first token into the same place of the same block.",
        },
    ),
    "empty": Number(
        56,
        "positions",
        slips={
            14: "That is one sample. Four of them have a last block of their own.",
            68: "Of the 100 tokens of the prompt only 96 lie in full blocks. The other four exist in each row.",
            -232: "A token in a shared block is stored once, not four times.",
        },
    ),
}

exercises.add(
    "four-samples",
    shows="Sharing is worth the prompt's full blocks, and copy-on-write costs little beside it.",
    check=Numbers(COUNTS),
)


# build --------------------------------------------------------------------------------------------


def _names(rows: Any) -> str:
    return ", ".join(map(repr, rows)) or "no row"


class _Bench:
    """The reader's tables over a memory of ours: every row must read its own tokens after every step."""

    def __init__(self, probe: Probe, answer: Any, blocks: int, size: int):
        self.probe, self.blocks, self.size = probe, blocks, size
        self.books = probe.call(answer, blocks, size)
        self.memory: list[list[Any]] = [[None] * size for _ in range(blocks)]
        self.rows: dict[Any, list[str]] = {}
        self.made = 0
        self.refused = ""  # the likely slip once something was refused

    def _token(self) -> str:
        self.made += 1
        return f"t{self.made}"

    @property
    def num_free(self) -> int:
        count = self.probe.call(getattr, self.books, "num_free")
        gave, slip = f"{count!r} as `num_free`", ""
        if callable(count):
            gave = "a method `num_free`"
            slip = "`num_free` is a property: keep the line `@property` above it."
        self.probe.that(isinstance(count, (int, np.integer)), gave, "a whole number", slip)
        return int(count)

    def _tables(self) -> dict[Any, list[int]]:
        tables: dict[Any, list[int]] = self.probe.call(getattr, self.books, "tables")
        wanted = "a dict from the name of each living row to its blocks"
        self.probe.that(isinstance(tables, Mapping), f"a {type(tables).__name__} as `tables`", wanted)
        gave, wanted = f"tables of {_names(tables)}", f"tables of {_names(self.rows)}"
        slip = "`tables` holds the living rows, each under the name that `new` or `fork` returned."
        self.probe.that(set(tables) == set(self.rows), gave, wanted, slip)
        return tables

    def _named(self, row: Any) -> None:
        wanted = "a name of its own for each living row"
        self.probe.that(row not in self.rows, f"the name {row!r} twice", wanted)

    def _whole(self, table: Any, tokens: int) -> None:
        """As many blocks as the tokens need, by numbers that the pool has."""
        what = f"blocks of a row with {tokens} tokens in blocks of {self.size}"
        slip = "Round up, and take a block only when a position in it is written."
        self.probe.equal(len(table), -(-tokens // self.size), EXACT, what=what, slip=slip)
        strange = [f"block {block!r}" for block in table if block not in range(self.blocks)]
        wanted = f"a number from 0 to {self.blocks - 1}"
        self.probe.that(not strange, strange and strange[0], wanted, "Blocks are counted from 0.")

    def new(self, length: int) -> Any:
        row = self.probe.call(self.books.new, length)
        self._named(row)
        self.rows[row] = [self._token() for _ in range(length)]
        table = self._tables()[row]
        self._whole(table, length)
        for place, token in enumerate(self.rows[row]):
            self.memory[table[place // self.size]][place % self.size] = token
        self.look()
        return row

    def append(self, row: Any) -> Any:
        before = list(self.books.tables[row])
        others = {block for name, table in self.books.tables.items() if name != row for block in table}
        got = self.probe.call(self.books.append, row)
        three = isinstance(got, (tuple, list)) and len(got) == 3
        self.probe.that(three, got, "(block, place, copied)")
        block, place, copied = got
        length = len(self.rows[row])
        self.probe.that(not isinstance(copied, bool), f"{copied!r} as `copied`", "a block or None")
        at = length % self.size
        gave = f"place {place!r} for position {length} in blocks of {self.size}"
        slip = "Position L, before the new token is counted, has place L % size; a fork is as long as its parent."
        self.probe.that(place == at, gave, f"place {at}", self.refused or slip)
        table = self._tables()[row]
        self._whole(table, length + 1)
        wanted = f"{table[-1]}, the last block of the row's table"
        self.probe.that(block == table[-1], f"block {block!r}", wanted)
        if copied is not None:
            shared = at > 0 and before[-1] in others
            slip = "Nobody else reads that block any more (or it is full): write in place."
            self.probe.that(shared, f"a copy of block {copied}", "no copy", slip)
            gave, wanted = f"block {copied!r} to copy from", f"block {before[-1]}, where the tokens are"
            slip = "The old number is overwritten in the table before it is returned."
            self.probe.that(copied == before[-1], gave, wanted, slip)
            self.memory[block] = list(self.memory[copied])
        else:
            gave = f"a write into block {block}, which another row reads"
            slip = (
                "Two holders and one of them writes: take a block, copy, and leave the old one to the others."
            )
            self.probe.that(block not in others, gave, "a copy first", slip)
        self.memory[block][place] = token = self._token()
        self.rows[row].append(token)
        self.look()
        return copied

    def fork(self, row: Any) -> Any:
        free = self.num_free
        child = self.probe.call(self.books.fork, row)
        self._named(child)
        self.rows[child] = list(self.rows[row])
        tables = self._tables()
        apart = tables[child] is not tables[row] or isinstance(tables[row], tuple)
        slip = "A block that one of them takes would appear in the other's table. Copy the list of numbers."
        self.probe.that(apart, "one list that stands for both rows", "a table for each", slip)
        slip = "A fork copies a list of numbers. Blocks are copied when someone writes."
        self.probe.at_most("blocks taken by a fork", free - self.num_free, 0, slip)
        self.look()
        return child

    def free(self, row: Any) -> None:
        self.probe.call(self.books.free, row)
        del self.rows[row]
        self.look()

    def look(self) -> None:
        """Every row reads its tokens, no row has a block too many, and what nobody holds is free."""
        tables = self._tables()
        for row, tokens in self.rows.items():
            table = tables[row]
            self._whole(table, len(tokens))
            read = [self.memory[table[p // self.size]][p % self.size] for p in range(len(tokens))]
            slip = "Was a block handed out while it stood in a table?"
            self.probe.that(read == tokens, "a row that reads tokens of another", "its own", slip)
        held = {block for table in tables.values() for block in table}
        gave = f"{self.num_free} free blocks with {len(held)} of {self.blocks} in tables"
        slip = "A block is free when its last holder lets go, not earlier and not never."
        free = self.blocks - len(held)
        self.probe.that(self.num_free == free, gave, f"{free} free", self.refused or slip)

    def refuses(self, act: Any, *args: Any) -> None:
        def state() -> Any:
            return {row: list(table) for row, table in self.books.tables.items()}, self.num_free

        before = state()
        self.probe.refuses(CacheFull, act, *args, slip="There is no free block left.")
        gave, wanted = "tables or free blocks that changed", "everything as before the refusal"
        slip = "Count the blocks that are needed before you take the first."
        self.probe.that(before == state(), gave, wanted, slip)
        self.refused = "A count or a length had changed before the refusal: raise first, then change."

    def play(self, script: str) -> None:
        """Steps such as "append 0"; rows are numbered as they were begun. A `!` says that the step must be refused."""
        rows: list[Any] = []
        for step in script.split(", "):
            act, what = step.rstrip("!").split()
            argument = int(what) if act == "new" else rows[int(what)]
            if step.endswith("!"):
                self.refuses(getattr(self.books, act), argument)
            elif (row := getattr(self, act)(argument)) is not None and act in ("new", "fork"):
                rows.append(row)


PLAYS = {  # blocks, size, steps
    "one row of 6 tokens in blocks of 4, three more": (6, 4, "new 6, append 0, append 0, append 0"),
    "a prompt that fills its block, one more token": (6, 4, "new 4, append 0"),
    "blocks of 1": (9, 1, "new 3, fork 0, append 0, append 1, free 0"),
    "a fork of a half-full block, the parent writes, then the child": (6, 4, "new 6, fork 0, append 0, append 1"),
    "a fork, the parent ends, the child goes on": (6, 4, "new 6, fork 0, free 0, append 1"),
    "three rows share, one ends, a stranger arrives": (8, 4, "new 7, fork 0, fork 0, free 2, new 9, append 0"),
    "a prompt that does not fit, then one that just fits": (4, 4, "new 5, new 9!, new 8"),
    "no block is free, and none is needed": (2, 4, "new 6, append 0"),
    "no block is left for a new one; it is tried again when there is one": (
        3, 4, "new 8, new 3, append 0!, free 1, append 0"
    ),
    "no block is left for a copy; then the other reader ends": (2, 4, "new 6, fork 0, append 0!, free 1, append 0"),
}  # fmt: skip


@exercises.checks(
    "block-tables",
    shows="Paging is bookkeeping: two lists and one count of holders per block.",
    forbidden=("lumen.cache.BlockPool", "lumen.cache.BlockStore", "lumen.cache.PagedCache"),
    allow=("lumen.cache.errors.CacheFull",),
)
def _block_tables(answer: Any, probe: Probe) -> None:
    for name, (blocks, size, script) in PLAYS.items():
        with probe.case(name):
            _Bench(probe, answer, blocks, size).play(script)
    for size in (3, 16):
        with probe.case(f"400 random steps in blocks of {size}"):
            _random_run(_Bench(probe, answer, 40, size), random.Random(size))


def _random_run(bench: _Bench, dice: random.Random) -> None:
    for _ in range(400):
        rows = list(bench.rows)
        act = dice.choice(["new", "append", "append", "append", "fork", "free"])
        spare = bench.num_free
        if act == "new" and spare > 4:
            bench.new(dice.randint(1, 3 * bench.size))
        elif rows and act == "append" and spare:
            bench.append(dice.choice(rows))
        elif rows and act == "fork" and len(rows) < 8:
            bench.fork(dice.choice(rows))
        elif rows and act == "free":
            bench.free(dice.choice(rows))


# debug --------------------------------------------------------------------------------------------


def _shorten(tables, holders, free, row, length, size, up=True, cut=True, last=True, lower=True, more=False):
    """The reference, with its decisions as switches."""
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), set(free)
    keep = -(-length // size) if up else length // size + more
    for block in tables[row][keep:]:
        if lower or holders[block] == 1:
            holders[block] -= 1
        if not holders[block] or not last:
            free.add(block)
    if cut:
        del tables[row][keep:]
    return tables, holders, free


def _bent(**switches: bool) -> Any:
    return lambda *args: _shorten(*args, **switches)


LISTED = "The blocks are free, and the table still lists them: the next owner will share them."
HELD = "Another table still holds that block. It is free when its count is 0."
CUT = "The block that `length` cuts in two still holds tokens below it. Round up."
LOWER = "Row a leaves a shared block, too: its count goes down by one, although it is not free yet."
EDGE = "At the edge of a block no further one is needed. Round up, no more."
STORE: tuple[Any, ...] = ({"a": [3, 0, 5], "b": [3, 0, 2], "c": [4]}, [2, 0, 1, 2, 1, 1, 0], {1, 6})

CUTS: dict[str, Any] = {
    "a cut inside a block that another row reads, too": (*STORE, "a", 5, 4),
    "a row alone, cut at the edge of a block": ({"a": [2, 0, 1]}, [1, 1, 1, 0], {3}, "a", 8, 4),
    "a row alone, cut inside a block": ({"a": [2, 0, 1]}, [1, 1, 1, 0], {3}, "a", 5, 4),
    "a shared block beyond the cut": (*STORE, "a", 4, 4),
    "forget everything": (*STORE, "b", 0, 4),
    "forget nothing": (*STORE, "a", 11, 4),
    "blocks of 1": ({"a": [0, 1, 2], "b": [0]}, [2, 1, 1], set(), "a", 1, 1),
}  # fmt: skip

exercises.add(
    "freed-block",
    shows="Giving a block back has three parts, and two of them can be forgotten without any error.",
    check=Cases(
        reference=_shorten,
        cases=CUTS,
        slips=[
            *(
                Slip(_bent(cut=False, up=up, last=last), LISTED)
                for up in (True, False)
                for last in (True, False)
            ),
            Slip(_bent(last=False), HELD),
            *(Slip(_bent(up=False, last=last), CUT) for last in (True, False)),
            Slip(_bent(lower=False), LOWER),
            Slip(_bent(up=False, more=True), EDGE),
        ],
        tolerance=EXACT,
    ),
    given="broken_shorten",
)


def _prepare(tables, holders, free, lengths, size, mode=""):
    """The reference; `mode` bends it into the usual half-mended forms."""
    tables = {name: list(table) for name, table in tables.items()}
    before, holders, free, copies = list(holders), list(holders), list(free), []
    end = 0 if mode == "first" else -1
    for row, length in reversed(lengths.items()) if mode == "backwards" else lengths.items():
        table = tables[row]
        if (length + (mode == "one late")) % size == 0:
            table.append(free.pop(end))
            holders[table[-1]] = 1
            continue
        old = table[-1]
        shared = holders[old] > 1
        if mode in ("asks before", "frees"):
            shared = before[old] > 1
        if mode == "last in the list":
            writers = [name for name in lengths if tables[name][-1] == old]
            shared = before[old] > 1 and len(writers) > 1
        if mode in ("never", "always"):
            shared = mode == "always"
        if shared:
            table[-1] = free.pop(end)
            holders[old] -= mode != "stays"
            holders[table[-1]] = 1
            copies.append((table[-1], old) if mode == "to, from" else (old, table[-1]))
            if holders[old] == 0 and mode == "frees":
                free.append(old)
    return tables, holders, free, copies


PAIR = {"a": [0], "b": [0]}

GROUPS: dict[str, Any] = {
    "one row alone in a half-full block": ({"a": [0]}, [1, 0], [1], {"a": 3}, 4),
    "two rows share a half-full block, both write": (PAIR, [2, 0, 0], [2, 1], {"a": 2, "b": 2}, 4),
    "three share, two write, one rests": (
        {"a": [3, 0], "b": [3, 0], "c": [3, 0]}, [3, 0, 0, 3, 0], [4, 2, 1], {"a": 5, "b": 5}, 4
    ),
    "three share, all write, and a stranger starts a block": (
        {"a": [0, 2], "b": [0, 2], "c": [0, 2], "d": [1]},
        [3, 1, 3, 0, 0, 0, 0],
        [6, 5, 4, 3],
        {"c": 7, "a": 7, "d": 4, "b": 7},
        4,
    ),
    "a shared block that is full": (PAIR, [2, 0, 0], [2, 1], {"a": 4, "b": 4}, 4),
    "blocks of 1": (PAIR, [2, 0, 0], [2, 1], {"b": 1}, 1),
}  # fmt: skip

NOT_LAST = {
    "asks before": "The second writer copies although nobody else is left, and the original is held by "
    "no one and free for no one.",
    "frees": "Nothing leaks any more, but the last writer still copies a block that was its own.",
    "last in the list": "The last of those who write is not the last who reads: a row that rests holds the block, too.",
    "never": "Two rows now write into one block, and each reads what the other wrote.",
    "always": "One holder is not shared: that row writes in place.",
    "stays": "Who has its own copy no longer holds the old block: its count goes down by one.",
    "one late": "`lengths` are the tokens so far: the next one has position `length`.",
    "first": "New blocks come from the end of `free`.",
    "backwards": "Rows are served in the order of `lengths`.",
    "to, from": "A copy is (from, to).",
}

exercises.add(
    "last-writer",
    shows="Copying once too often loses blocks as surely as copying once too seldom loses text.",
    check=Cases(
        reference=_prepare,
        cases=GROUPS,
        slips=bends(_prepare, NOT_LAST),
        tolerance=EXACT,
    ),
    given="broken_prepare",
)

# literature ---------------------------------------------------------------------------------------


_LENGTHS = np.arange(1, 33)
_TAKEN = -(-_LENGTHS // 16) * 16
_MEAN_SHARE = float(np.mean(100 * (1 - _LENGTHS / _TAKEN)))

exercises.add(
    "waste-claims",
    shows="A percentage is as general as the requests that it was counted on.",
    check=Statements(
        false="c",
        why={
            "a": "1 − 0.382 and 1 − 0.204 are 61.8 % and 79.6 %: the two ways of saying it agree.",
            "b": "With exact lengths nothing is left over at the end: what is missing was reserved too early or lies "
            "in the holes between the pieces.",
            "c": "Half a block of 16 is little beside hundreds of tokens and much beside sixteen: the share depends on "
            "the lengths.",
            "d": "A hole is useless when it is smaller than what is wanted. With one size there is no such hole.",
        },
        number=Number(
            100 * cost.wasted_share(int(_LENGTHS.sum()), int(_TAKEN.sum())),
            unit="%",
            tolerance=0.01,
            slips={
                100 * 7.5 / 16.5: "That is empty positions per token. Divide by the positions taken.",
                lambda got: (
                    3.5 <= got <= 4.5
                ): "That is about what was measured on longer requests. Count these 32.",
                100 * 7.5 / 32: "Not every sequence takes two blocks: half of them fit into one.",
                _MEAN_SHARE: "That is the mean of the sequences' shares. A pool sees the share of the sums.",
                lambda got: 31.6 < got < 34: "That is near. Add up the 32 lengths and what they take.",
                100 * 16.5 / 24: "That is the part that holds tokens.",
            },
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LLAMA, PIECE_S, GIB = CONFIGS["llama-3-8b"], 10e-6, 2**30
CARDS = hourly("L4", "A100 80GB SXM", "H100 SXM")  # as in the text of the exercise
BLOCKS = [1, 4, 16, 32, 64, 128, 256]


def in_flight(users: int, seed: int = 2) -> list[int]:
    """Tokens held by each of `users` requests met at a random moment: long answers are met more often than short."""
    return [int(n) for n in moments(lognormal_trace(1000, seed=seed), users, seed)]


def pool_for(users: int, ms: float) -> Decision:
    """The cheapest card whose pool holds all requests and brings a preempted one back in time."""
    lengths = in_flight(users)

    def memory(choice: dict[str, Any]) -> float:
        held = cost.weight_storage(LLAMA, "bf16") + choice["pool"] * GIB
        return 100 * held / CHIPS[choice["chip"]].memory

    def missing(choice: dict[str, Any]) -> float:
        size = choice["block"]
        blocks = int(choice["pool"] * GIB // (size * cost.kv_bytes_per_token(LLAMA, "bf16")))
        return max(0, sum(-(-length // size) for length in lengths) - blocks)

    def back(choice: dict[str, Any]) -> float:
        pieces = 2 * LLAMA.num_layers * -(-1024 // choice["block"])
        moved = pieces * choice["block"] * LLAMA.num_kv_heads * LLAMA.head_dim * 2
        return 1e3 * (pieces * PIECE_S + host_link(choice["chip"]).seconds(moved))

    return Decision(
        choices={"chip": list(CARDS), "block": BLOCKS, "pool": range(1, 65)},
        constraints=[
            Constraint(
                "memory",
                memory,
                at_most=90,
                unit="%",
                slip="Weights and pool must fit into 90 % of the card. Mind GiB of pool against GB of card.",
            ),
            Constraint(
                "blocks missing",
                missing,
                at_most=0,
                slip="Add up the blocks of all requests, each rounded up; the pool has too few.",
            ),
            Constraint(
                "return of a preempted request",
                back,
                at_most=ms,
                unit="ms",
                slip="Two pieces per block and layer, 10 µs and its bytes each: larger blocks, or a faster bus.",
            ),
        ],
        cost=lambda choice: CARDS[choice["chip"]],
        unit="$ per hour",
        within=0.02,
        dearer="It works, but a cheaper card does, too, with the right block size.",
    )


LOADS = [(85, 16), (85, 10), (20, 16), (148, 6), (250, 60)]

exercises.add(
    "size-the-pool",
    shows="Waste asks for small blocks, moving for large ones, and on a small card there is little between them.",
    check=Plan(pool_for, ("users", "ms"), LOADS),
)
