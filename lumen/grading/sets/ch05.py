"""Exercises of chapter 05: blocks counted by hand, a block table, two faults of real pools, one claim, one pool."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from lumen import cost
from lumen.cache.errors import CacheFull
from lumen.cost.trace import lognormal_trace
from lumen.grading import (
    EXACT,
    Case,
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
from lumen.hardware import CHIPS, host_link
from lumen.models.config import CONFIGS

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
        unit="blocks",
        slips=[
            Slip(8, "Eight blocks hold 128 tokens. The last two need a ninth."),
            Slip(8.125, "Nobody can take an eighth of a block."),
        ],
    ),
    "separate": Number(
        36,
        unit="blocks",
        slips=[
            Slip(33, "Each of the four rounds up for itself: 4 · 9, not 520 / 16."),
            Slip(32, "Each of the four needs a ninth block for its last two tokens."),
        ],
    ),
    "shared": Number(
        18,
        unit="blocks",
        slips=[
            Slip(
                36,
                "That is without sharing. The full blocks of the prompt stand in four tables, and exist once.",
            ),
            Slip(22, "130 tokens need nine blocks, six of them shared: three of its own for each, not four."),
            Slip(19, "You kept the half-full block that three rows copied. The fourth row goes on in it."),
            Slip(
                15,
                "The last block of the prompt is not full, so it cannot stay shared: each row has its own.",
            ),
        ],
    ),
    "copies": Number(
        3,
        unit="blocks",
        slips=[
            Slip(
                4, "When the fourth row writes, the other three have left. It is alone and writes in place."
            ),
            Slip(1, "After the first copy three rows still share the block, and two of them must leave it."),
            Slip(28, "Full blocks are never written again, so they are never copied."),
            Slip(0, "All four write their first token into the same place of the same block."),
        ],
    ),
    "empty": Number(
        56,
        unit="positions",
        slips=[
            Slip(14, "That is one sample. Four of them have a last block of their own."),
            Slip(
                68,
                "Of the 100 tokens of the prompt only 96 lie in full blocks. The other four exist in each row.",
            ),
            Slip(-232, "A token in a shared block is stored once, not four times."),
        ],
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
        self.probe.that(
            isinstance(count, (int, np.integer)),
            gave="a method `num_free`" if callable(count) else f"{count!r} as `num_free`",
            wanted="a whole number",
            slip="`num_free` is a property: keep the line `@property` above it." if callable(count) else "",
        )
        return int(count)

    def _tables(self) -> dict[Any, list[int]]:
        tables: dict[Any, list[int]] = self.probe.call(getattr, self.books, "tables")
        self.probe.that(
            isinstance(tables, Mapping),
            gave=f"a {type(tables).__name__} as `tables`",
            wanted="a dict from the name of each living row to its blocks",
        )
        self.probe.that(
            set(tables) == set(self.rows),
            gave=f"tables of {_names(tables)}",
            wanted=f"tables of {_names(self.rows)}",
            slip="`tables` holds the living rows, each under the name that `new` or `fork` returned.",
        )
        return tables

    def _named(self, row: Any) -> None:
        self.probe.that(
            row not in self.rows,
            gave=f"the name {row!r} twice",
            wanted="a name of its own for each living row",
        )

    def _whole(self, table: Any, tokens: int) -> None:
        """As many blocks as the tokens need, by numbers that the pool has."""
        self.probe.equal(
            len(table),
            -(-tokens // self.size),
            EXACT,
            what=f"blocks of a row with {tokens} tokens in blocks of {self.size}",
            slip="Round up, and take a block only when a position in it is written.",
        )
        strange = [block for block in table if block not in range(self.blocks)]
        self.probe.that(
            not strange,
            gave=f"block {strange[0]!r}" if strange else "",
            wanted=f"a number from 0 to {self.blocks - 1}",
            slip="Blocks are counted from 0.",
        )

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
        self.probe.that(
            isinstance(got, (tuple, list)) and len(got) == 3, gave=got, wanted="(block, place, copied)"
        )
        block, place, copied = got
        length = len(self.rows[row])
        self.probe.that(
            copied is None or not isinstance(copied, bool),
            gave=f"{copied!r} as `copied`",
            wanted="a block or None",
        )
        self.probe.that(
            place == length % self.size,
            gave=f"place {place!r} for position {length} in blocks of {self.size}",
            wanted=f"place {length % self.size}",
            slip=self.refused
            or "Position L, before the new token is counted, has place L % size; a fork is as long as its parent.",
        )
        table = self._tables()[row]
        self._whole(table, length + 1)
        self.probe.that(
            block == table[-1],
            gave=f"block {block!r}",
            wanted=f"{table[-1]}, the last block of the row's table",
        )
        if copied is not None:
            self.probe.that(
                length % self.size > 0 and before[-1] in others,
                gave=f"a copy of block {copied}",
                wanted="no copy",
                slip="Nobody else reads that block any more (or it is full): write in place.",
            )
            self.probe.that(
                copied == before[-1],
                gave=f"block {copied!r} to copy from",
                wanted=f"block {before[-1]}, where the tokens are",
                slip="The old number is overwritten in the table before it is returned.",
            )
            self.memory[block] = list(self.memory[copied])
        else:
            self.probe.that(
                block not in others,
                gave=f"a write into block {block}, which another row reads",
                wanted="a copy first",
                slip="Two holders and one of them writes: take a block, copy, and leave the old one to the others.",
            )
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
        self.probe.that(
            tables[child] is not tables[row] or isinstance(tables[row], tuple),
            gave="one list that stands for both rows",
            wanted="a table for each",
            slip="A block that one of them takes would appear in the other's table. Copy the list of numbers.",
        )
        self.probe.at_most(
            "blocks taken by a fork",
            free - self.num_free,
            0,
            "A fork copies a list of numbers. Blocks are copied when someone writes.",
        )
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
            self.probe.that(
                read == tokens,
                gave="a row that reads tokens of another",
                wanted="its own",
                slip="Was a block handed out while it stood in a table?",
            )
        held = {block for table in tables.values() for block in table}
        self.probe.that(
            self.num_free == self.blocks - len(held),
            gave=f"{self.num_free} free blocks with {len(held)} of {self.blocks} in tables",
            wanted=f"{self.blocks - len(held)} free",
            slip=self.refused or "A block is free when its last holder lets go, not earlier and not never.",
        )

    def refuses(self, act: Any, *args: Any) -> None:
        before = {row: list(table) for row, table in self.books.tables.items()}, self.num_free
        self.probe.refuses(CacheFull, act, *args, slip="There is no free block left.")
        after = {row: list(table) for row, table in self.books.tables.items()}, self.num_free
        self.probe.that(
            before == after,
            gave="tables or free blocks that changed",
            wanted="everything as before the refusal",
            slip="Count the blocks that are needed before you take the first.",
        )
        self.refused = "A count or a length had changed before the refusal: raise first, then change."


@exercises.checks(
    "block-tables",
    shows="Paging is bookkeeping: two lists and one count of holders per block.",
    forbidden=("lumen.cache.BlockPool", "lumen.cache.BlockStore", "lumen.cache.PagedCache"),
    allow=("lumen.cache.errors.CacheFull",),
)
def _block_tables(answer: Any, probe: Probe) -> None:
    with probe.case("one row of 6 tokens in blocks of 4, three more"):
        bench = _Bench(probe, answer, 6, 4)
        row = bench.new(6)
        for _ in range(3):
            bench.append(row)
    with probe.case("a prompt that fills its block, one more token"):
        bench = _Bench(probe, answer, 6, 4)
        bench.append(bench.new(4))
    with probe.case("blocks of 1"):
        bench = _Bench(probe, answer, 9, 1)
        row = bench.new(3)
        child = bench.fork(row)
        bench.append(row)
        bench.append(child)
        bench.free(row)
    with probe.case("a fork of a half-full block, the parent writes, then the child"):
        bench = _Bench(probe, answer, 6, 4)
        row = bench.new(6)
        child = bench.fork(row)
        bench.append(row)
        bench.append(child)
    with probe.case("a fork, the parent ends, the child goes on"):
        bench = _Bench(probe, answer, 6, 4)
        row = bench.new(6)
        child = bench.fork(row)
        bench.free(row)
        bench.append(child)
    with probe.case("three rows share, one ends, a stranger arrives"):
        bench = _Bench(probe, answer, 8, 4)
        row = bench.new(7)
        bench.fork(row)
        third = bench.fork(row)
        bench.free(third)
        bench.new(9)
        bench.append(row)
    with probe.case("a prompt that does not fit, then one that just fits"):
        bench = _Bench(probe, answer, 4, 4)
        bench.new(5)
        bench.refuses(bench.books.new, 9)
        bench.new(8)
    with probe.case("no block is free, and none is needed"):
        bench = _Bench(probe, answer, 2, 4)
        bench.append(bench.new(6))
    with probe.case("no block is left for a new one; it is tried again when there is one"):
        bench = _Bench(probe, answer, 3, 4)
        row, other = bench.new(8), bench.new(3)
        bench.refuses(bench.books.append, row)
        bench.free(other)
        bench.append(row)
    with probe.case("no block is left for a copy; then the other reader ends"):
        bench = _Bench(probe, answer, 2, 4)
        row = bench.new(6)
        child = bench.fork(row)
        bench.refuses(bench.books.append, row)
        bench.free(child)
        bench.append(row)
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
STORE: tuple[Any, ...] = ({"a": [3, 0, 5], "b": [3, 0, 2], "c": [4]}, [2, 0, 1, 2, 1, 1, 0], {1, 6})

exercises.add(
    "freed-block",
    shows="Giving a block back has three parts, and two of them can be forgotten without any error.",
    check=Cases(
        reference=_shorten,
        cases=lambda: [
            Case("a cut inside a block that another row reads, too", (*STORE, "a", 5, 4)),
            Case("a row alone, cut at the edge of a block", ({"a": [2, 0, 1]}, [1, 1, 1, 0], {3}, "a", 8, 4)),
            Case("a row alone, cut inside a block", ({"a": [2, 0, 1]}, [1, 1, 1, 0], {3}, "a", 5, 4)),
            Case("a shared block beyond the cut", (*STORE, "a", 4, 4)),
            Case("forget everything", (*STORE, "b", 0, 4)),
            Case("forget nothing", (*STORE, "a", 11, 4)),
            Case("blocks of 1", ({"a": [0, 1, 2], "b": [0]}, [2, 1, 1], set(), "a", 1, 1)),
        ],
        slips=[
            *(
                Slip(_bent(cut=False, up=up, last=last), LISTED)
                for up in (True, False)
                for last in (True, False)
            ),
            Slip(_bent(last=False), HELD),
            *(Slip(_bent(up=False, last=last), CUT) for last in (True, False)),
            Slip(
                _bent(lower=False),
                "Row a leaves a shared block, too: its count goes down by one, although it is not free yet.",
            ),
            Slip(
                _bent(up=False, more=True),
                "At the edge of a block no further one is needed. Round up, no more.",
            ),
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


def _mode(mode: str) -> Any:
    return partial(_prepare, mode=mode)


exercises.add(
    "last-writer",
    shows="Copying once too often loses blocks as surely as copying once too seldom loses text.",
    check=Cases(
        reference=_prepare,
        cases=lambda: [
            Case("one row alone in a half-full block", ({"a": [0]}, [1, 0], [1], {"a": 3}, 4)),
            Case(
                "two rows share a half-full block, both write",
                ({"a": [0], "b": [0]}, [2, 0, 0], [2, 1], {"a": 2, "b": 2}, 4),
            ),
            Case(
                "three share, two write, one rests",
                ({"a": [3, 0], "b": [3, 0], "c": [3, 0]}, [3, 0, 0, 3, 0], [4, 2, 1], {"a": 5, "b": 5}, 4),
            ),
            Case(
                "three share, all write, and a stranger starts a block",
                (
                    {"a": [0, 2], "b": [0, 2], "c": [0, 2], "d": [1]},
                    [3, 1, 3, 0, 0, 0, 0],
                    [6, 5, 4, 3],
                    {"c": 7, "a": 7, "d": 4, "b": 7},
                    4,
                ),
            ),
            Case(
                "a shared block that is full", ({"a": [0], "b": [0]}, [2, 0, 0], [2, 1], {"a": 4, "b": 4}, 4)
            ),
            Case("blocks of 1", ({"a": [0], "b": [0]}, [2, 0, 0], [2, 1], {"b": 1}, 1)),
        ],
        slips=[
            Slip(
                _mode("asks before"),
                "The second writer copies although nobody else is left, and the original is held by no one and "
                "free for no one.",
            ),
            Slip(
                _mode("frees"),
                "Nothing leaks any more, but the last writer still copies a block that was its own.",
            ),
            Slip(
                _mode("last in the list"),
                "The last of those who write is not the last who reads: a row that rests holds the block, too.",
            ),
            Slip(_mode("never"), "Two rows now write into one block, and each reads what the other wrote."),
            Slip(_mode("always"), "One holder is not shared: that row writes in place."),
            Slip(
                _mode("stays"),
                "Who has its own copy no longer holds the old block: its count goes down by one.",
            ),
            Slip(_mode("one late"), "`lengths` are the tokens so far: the next one has position `length`."),
            Slip(_mode("first"), "New blocks come from the end of `free`."),
            Slip(_mode("backwards"), "Rows are served in the order of `lengths`."),
            Slip(_mode("to, from"), "A copy is (from, to)."),
        ],
        tolerance=EXACT,
    ),
    given="broken_prepare",
)

# literature ---------------------------------------------------------------------------------------


def _empty_share(longest: int, size: int) -> float:
    """Percent of taken positions that are empty, over sequences of 1 to `longest` tokens, equally often."""
    lengths = np.arange(1, longest + 1)
    taken = -(-lengths // size) * size
    return float(100 * cost.wasted_share(lengths.sum(), taken.sum()))


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
            lambda: _empty_share(32, 16),
            unit="%",
            tolerance=0.01,
            slips=[
                Slip(100 * 7.5 / 16.5, "That is empty positions per token. Divide by the positions taken."),
                Slip(
                    lambda got: 3.5 <= got <= 4.5,
                    "That is about what was measured on longer requests. Count these 32.",
                ),
                Slip(100 * 7.5 / 32, "Not every sequence takes two blocks: half of them fit into one."),
                Slip(
                    float(np.mean([100 * (1 - n / (-(-n // 16) * 16)) for n in range(1, 33)])),
                    "That is the mean of the sequences' shares. A pool sees the share of the sums.",
                ),
                Slip(lambda got: 31.6 < got < 34, "That is near. Add up the 32 lengths and what they take."),
                Slip(100 * 16.5 / 24, "That is the part that holds tokens."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LLAMA, PIECE_S, GIB = CONFIGS["llama-3-8b"], 10e-6, 2**30
CARDS = {"L4": 0.80, "A100 80GB SXM": 1.80, "H100 SXM": 3.00}  # $ per hour, as in the text of the exercise
BLOCKS = [1, 4, 16, 32, 64, 128, 256]


def in_flight(users: int, seed: int = 2) -> list[int]:
    """Tokens that each of `users` requests holds at one moment: log-normal lengths, each somewhere on its way."""
    trace = lognormal_trace(users, seed=seed)
    part = np.random.default_rng(seed).random(users)
    return [int(n) for n in trace.prompt + np.floor(part * trace.output)]


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


LOADS = [(100, 16), (100, 10), (20, 16), (175, 6), (300, 60)]

exercises.add(
    "size-the-pool",
    shows="Waste asks for small blocks, moving for large ones, and on a small card there is little between them.",
    check=Plan(pool_for, ("users", "ms"), LOADS),
)
