"""Right and wrong answers to the exercises of chapter 05."""

from collections import Counter

from lumen.cache.errors import CacheFull
from lumen.grading.proof import Answers

RIGHT = {"one row": 9, "separate": 36, "shared": 18, "copies": 3, "empty": 56}


def counted():
    size, prompt, length, samples = 16, 100, 130, 4
    blocks = -(-length // size)
    full = prompt // size
    shared = full + samples * (blocks - full)
    stored = full * size + samples * (length - full * size)
    return {
        "one row": blocks,
        "separate": samples * blocks,
        "shared": shared,
        "copies": samples - 1,
        "empty": shared * size - stored,
    }


def but(name, value):
    return lambda: {**RIGHT, name: value}


# A block table with copy-on-write -----------------------------------------------------------------


class Tables:
    def __init__(self, num_blocks, block_size):
        self.size = block_size
        self.unused = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.tables = {}
        self.count = 0

    @property
    def num_free(self):
        return len(self.unused)

    def take(self, count):
        if count > len(self.unused):
            raise CacheFull(f"{count} blocks needed, {len(self.unused)} free")
        blocks = [self.unused.pop() for _ in range(count)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def name(self, table):
        self.count += 1
        self.tables[self.count] = table
        self.lengths = {**getattr(self, "lengths", {}), self.count: 0}
        return self.count

    def new(self, length):
        row = self.name(self.take(-(-length // self.size)))
        self.lengths[row] = length
        return row

    def fork(self, row):
        for block in self.tables[row]:
            self.holders[block] += 1
        child = self.name(list(self.tables[row]))
        self.lengths[child] = self.lengths[row]
        return child

    def append(self, row):
        table, place, copied = self.tables[row], self.lengths[row] % self.size, None
        if place == 0:
            table += self.take(1)
        elif self.holders[table[-1]] > 1:
            (block,) = self.take(1)
            copied, table[-1] = table[-1], block
            self.holders[copied] -= 1
        self.lengths[row] += 1
        return table[-1], place, copied

    def free(self, row):
        for block in self.tables.pop(row):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.unused.append(block)


class Recounted:
    """Written differently: nothing is kept but the tables; holders and free blocks are counted each time."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables, self.lengths, self.names = {}, {}, iter(f"row {i}" for i in range(10**6))

    def holders(self):
        return Counter(block for table in self.tables.values() for block in table)

    def empty(self):
        held = self.holders()
        return [block for block in range(self.num_blocks) if not held[block]]

    @property
    def num_free(self):
        return len(self.empty())

    def new(self, length):
        need, found = (length - 1) // self.block_size + 1, self.empty()
        if need > len(found):
            raise CacheFull("full")
        row = next(self.names)
        self.tables[row], self.lengths[row] = found[:need], length
        return row

    def fork(self, row):
        child = next(self.names)
        self.tables[child], self.lengths[child] = self.tables[row][:], self.lengths[row]
        return child

    def append(self, row):
        table, length = self.tables[row], self.lengths[row]
        found, place = self.empty(), length % self.block_size
        fresh = length == len(table) * self.block_size
        shared = not fresh and self.holders()[table[-1]] > 1
        if (fresh or shared) and not found:
            raise CacheFull("full")
        copied = table.pop() if shared else None
        if fresh or shared:
            table.append(found[0])
        self.lengths[row] = length + 1
        return table[-1], place, copied

    def free(self, row):
        del self.tables[row], self.lengths[row]


class WritesIntoShared(Tables):
    def append(self, row):
        table, place = self.tables[row], self.lengths[row] % self.size
        if place == 0:
            table += self.take(1)
        self.lengths[row] += 1
        return table[-1], place, None


class CopiesForever(Tables):
    """Remembers that a block was shared once."""

    def __init__(self, *args):
        super().__init__(*args)
        self.once = set()

    def fork(self, row):
        self.once |= set(self.tables[row])
        return super().fork(row)

    def append(self, row):
        table, place = self.tables[row], self.lengths[row] % self.size
        if place == 0 or table[-1] not in self.once:
            return super().append(row)
        (block,) = self.take(1)
        old, table[-1] = table[-1], block
        self.holders[old] -= 1
        if self.holders[old] == 0:
            self.unused.append(old)
        self.lengths[row] += 1
        return block, place, old


class FreesShared(Tables):
    def free(self, row):
        for block in self.tables.pop(row):
            self.holders[block] -= 1
            self.unused.append(block)


class OneBlockAhead(Tables):
    def new(self, length):
        row = self.name(self.take(length // self.size + 1))
        self.lengths[row] = length
        return row


class CopiesInFork(Tables):
    def fork(self, row):
        child = self.name(self.take(len(self.tables[row])))
        self.lengths[child] = self.lengths[row]
        return child


class ForksOneList(Tables):
    def fork(self, row):
        child = super().fork(row)
        self.tables[child] = self.tables[row]
        return child


class TakesBeforeItCounts(Tables):
    def take(self, count):
        blocks = []
        for _ in range(count):
            if not self.unused:
                raise CacheFull("full")
            blocks.append(self.unused.pop())
            self.holders[blocks[-1]] = 1
        return blocks


class NeverFull(Tables):
    def take(self, count):
        while count > len(self.unused):
            self.unused.append(len(self.holders))
            self.holders.append(0)
        return super().take(count)


# The block that was freed and stayed --------------------------------------------------------------


# as the exercise gives it
def broken_shorten(tables, holders, free, row, length, size):
    """Forget all positions of `row` from `length` on. Returns new tables, holders and free blocks."""
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), set(free)
    keep = length // size
    for block in tables[row][keep:]:
        holders[block] -= 1
        free.add(block)
    return tables, holders, free


def shorten(tables, holders, free, row, length, size):
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), set(free)
    while len(tables[row]) * size >= length + size:
        block = tables[row].pop()
        holders[block] -= 1
        if holders[block] == 0:
            free |= {block}
    return tables, holders, free


def shorten_by_counting(tables, holders, free, row, length, size):
    keep = (length + size - 1) // size
    tables = {name: table[:keep] if name == row else table[:] for name, table in tables.items()}
    held = Counter(block for table in tables.values() for block in table)
    counts = [held[block] for block in range(len(holders))]
    return tables, counts, {block for block, count in enumerate(counts) if count == 0}


def shorten_forgets_table(tables, holders, free, row, length, size):
    _, counts, unused = shorten(tables, holders, free, row, length, size)
    return {name: list(table) for name, table in tables.items()}, counts, unused


def shorten_frees_shared(tables, holders, free, row, length, size):
    new, counts, unused = shorten(tables, holders, free, row, length, size)
    return new, counts, unused | (set(tables[row]) - set(new[row]))


def shorten_rounds_down(tables, holders, free, row, length, size):
    return shorten(tables, holders, free, row, length // size * size, size)


# One block lost for every group ------------------------------------------------------------


# as the exercise gives it
def broken_prepare(tables, holders, free, lengths, size):
    """Room for one more token in each row of `lengths`. Returns new tables, holders, free, and copies (from, to)."""
    tables = {name: list(table) for name, table in tables.items()}
    shared = [count > 1 for count in holders]
    holders, free, copies = list(holders), list(free), []
    for row, length in lengths.items():
        table = tables[row]
        if length % size == 0:
            table.append(free.pop())
            holders[table[-1]] = 1
        elif shared[table[-1]]:
            old, table[-1] = table[-1], free.pop()
            holders[old] -= 1
            holders[table[-1]] = 1
            copies.append((old, table[-1]))
    return tables, holders, free, copies


def prepare(tables, holders, free, lengths, size):
    tables = {name: list(table) for name, table in tables.items()}
    holders, free, copies = holders[:], free[:], []
    for row in lengths:
        table, fresh = tables[row], lengths[row] % size == 0
        if not fresh and holders[table[-1]] == 1:
            continue
        block = free.pop()
        holders[block] = 1
        if not fresh:
            old = table.pop()
            holders[old] -= 1
            copies.append((old, block))
        table.append(block)
    return tables, holders, free, copies


def prepare_by_tables(tables, holders, free, lengths, size):
    tables = {name: [*table] for name, table in tables.items()}
    free, copies = [*free], []
    for row, length in lengths.items():
        last = tables[row][-1]
        if length % size and sum(last in table for table in tables.values()) > 1:
            copies.append((last, free[-1]))
            tables[row][-1] = free.pop()
        elif not length % size:
            tables[row] += [free.pop()]
    counts = Counter(block for table in tables.values() for block in table)
    return tables, [counts[block] for block in range(len(holders))], free, copies


def prepare_frees_original(tables, holders, free, lengths, size):
    new, counts, unused, copies = broken_prepare(tables, holders, free, lengths, size)
    return new, counts, unused + [block for block, _ in copies[-1:] if counts[block] == 0], copies


def prepare_last_keeps(tables, holders, free, lengths, size):
    """The last of the writers keeps the block, whoever else reads it."""
    tables = {name: list(table) for name, table in tables.items()}
    holders, free, copies = list(holders), list(free), []
    waiting = Counter(tables[row][-1] for row in lengths)
    for row, length in lengths.items():
        table = tables[row]
        last = table[-1]
        if length % size == 0:
            table.append(free.pop())
            holders[table[-1]] = 1
        elif waiting[last] > 1:
            waiting[last] -= 1
            table[-1] = free.pop()
            holders[last] -= 1
            holders[table[-1]] = 1
            copies.append((last, table[-1]))
    return tables, holders, free, copies


def prepare_never_copies(tables, holders, free, lengths, size):
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), list(free)
    for row, length in lengths.items():
        if length % size == 0:
            tables[row].append(free.pop())
            holders[tables[row][-1]] = 1
    return tables, holders, free, []


def pool(chip, block, size):
    return lambda: {"chip": chip, "block": block, "pool": size}


ANSWERS = {
    "four-samples": Answers(
        right=[lambda: dict(RIGHT), counted],
        wrong=[
            (but("one row", 8), "need a ninth"),
            (but("one row", 8.125), "an eighth of a block"),
            (but("separate", 33), "rounds up for itself"),
            (but("shared", 36), "without sharing"),
            (but("shared", 19), "three rows copied"),
            (but("shared", 15), "cannot stay shared"),
            (but("copies", 4), "other three have left"),
            (but("copies", 28), "never written again"),
            (but("copies", 0), "same place of the same block"),
            (but("empty", 14), "That is one sample"),
            (but("empty", -232), "stored once"),
            (lambda: 18, "a dict with the keys"),
        ],
    ),
    "block-tables": Answers(
        right=[Tables, Recounted],
        wrong=[
            (WritesIntoShared, "which another row reads"),
            (CopiesForever, "Nobody else reads that block any more"),
            (FreesShared, "not earlier and not never"),
            (OneBlockAhead, "only when a position in it is written"),
            (CopiesInFork, "A fork copies a list of numbers"),
            (ForksOneList, "Copy the list of numbers"),
            (TakesBeforeItCounts, "before you take the first"),
            (NeverFull, "There is no free block left"),
        ],
        lumen=["lumen.cache.BlockPool"],
    ),
    "freed-block": Answers(
        right=[shorten, shorten_by_counting],
        wrong=[
            (shorten_forgets_table, "the table still lists them"),
            (shorten_frees_shared, "when its count is 0"),
            (shorten_rounds_down, "Round up"),
        ],
        stubs=[broken_shorten],
        no_lumen="lumen's rewind is a method of a cache with its own pool",
    ),
    "last-writer": Answers(
        right=[prepare, prepare_by_tables],
        wrong=[
            (prepare_frees_original, "a block that was its own"),
            (prepare_last_keeps, "not the last who reads"),
            (prepare_never_copies, "each reads what the other wrote"),
        ],
        stubs=[broken_prepare],
        no_lumen="lumen's reserve is a method of a cache with its own pool",
    ),
    "waste-claims": Answers(
        right=[lambda: ("c", 31.25), lambda: ("C", 100 * (1 - 528 / 768))],
        wrong=[
            (lambda: ("a", 31.25), "two ways of saying it agree"),
            (lambda: ("b", 31.25), "nothing is left over at the end"),
            (lambda: ("d", 31.25), "no such hole"),
            (lambda: ("c", 3.9), "longer requests"),
            (lambda: ("c", 45.45), "empty positions per token"),
            (lambda: ("c", 23.4), "half of them fit into one"),
            (lambda: ("c", 35.2), "mean of the sequences' shares"),
            (lambda: ("c", 68.75), "holds tokens"),
        ],
    ),
    "size-the-pool": Answers(
        right=[pool("L4", 64, 5), lambda: dict(pool=5, block=64, chip="L4")],
        wrong=[
            (pool("L4", 64, 6), "GiB of pool against GB of card"),
            (pool("L4", 128, 5), "the pool has too few"),
            (pool("L4", 16, 5), "10 µs before its first byte"),
            (pool("A100 80GB SXM", 128, 20), "a cheaper card does, too"),
        ],
    ),
}
