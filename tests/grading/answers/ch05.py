"""Answers to the exercises of chapter 05 that neither the solution nor a slip of the set gives."""

from collections import Counter

from lumen.cache.errors import CacheFull
from lumen.grading.proof import Submissions
from lumen.grading.sets.ch05 import in_flight

RIGHT = {"one row": 9, "separate": 36, "shared": 18, "copies": 3, "empty": 56}


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


class InTuples(Recounted):
    """A fork may share what nobody can change."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen = {}

    @property
    def tables(self):
        return self.seen

    @tables.setter
    def tables(self, value):
        self.seen = value

    def new(self, length):
        row = super().new(length)
        self.seen[row] = tuple(self.seen[row])
        return row

    def append(self, row):
        self.seen[row] = list(self.seen[row])
        try:
            return super().append(row)
        finally:
            self.seen[row] = tuple(self.seen[row])


class FreeAsMethod(Tables):
    def num_free(self):
        return len(self.unused)


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


class LongerBeforeRefusal(Tables):
    def append(self, row):
        place = self.lengths[row] % self.size
        self.lengths[row] += 1
        table, copied = self.tables[row], None
        if place == 0:
            table += self.take(1)
        elif self.holders[table[-1]] > 1:
            (block,) = self.take(1)
            copied, table[-1] = table[-1], block
            self.holders[copied] -= 1
        return table[-1], place, copied


class LowersBeforeRefusal(Tables):
    def append(self, row):
        table, place, copied = self.tables[row], self.lengths[row] % self.size, None
        if place == 0:
            table += self.take(1)
        elif self.holders[table[-1]] > 1:
            self.holders[table[-1]] -= 1
            (block,) = self.take(1)
            copied, table[-1] = table[-1], block
        self.lengths[row] += 1
        return table[-1], place, copied


class RefusesWhenDry(Tables):
    def append(self, row):
        if not self.unused:
            raise CacheFull("no block is free")
        return super().append(row)


class NamesByCount(Tables):
    """As many names as rows live: after one has ended, a name comes twice."""

    def name(self, table):
        row = len(self.tables)
        self.tables[row], self.lengths = table, {**getattr(self, "lengths", {}), row: 0}
        return row


class CountsFromOne(Tables):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.unused, self.holders = list(range(1, num_blocks + 1)), [0] * (num_blocks + 1)


def bend_append(change):
    class Bent(Tables):
        def append(self, row):
            return change(*super().append(row))

    return Bent


class ForkForgetsLength(Tables):
    def fork(self, row):
        child = super().fork(row)
        self.lengths[child] = len(self.tables[row]) * self.size
        return child


class ForkWithoutName(Tables):
    def fork(self, row):
        super().fork(row)


# The block that was freed and stayed --------------------------------------------------------------


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


def shorten_tests_first(tables, holders, free, row, length, size):
    """Looks at the count before it lowers it."""
    new, counts, _ = shorten(tables, holders, free, row, length, size)
    return new, counts, set(free) | {block for block in tables[row][len(new[row]) :] if holders[block] == 0}


def shorten_keeps_one_more(tables, holders, free, row, length, size):
    return shorten(tables, holders, free, row, (length // size + 1) * size, size)


def shorten_rounds_down(tables, holders, free, row, length, size):
    return shorten(tables, holders, free, row, length // size * size, size)


# One block lost for every group ------------------------------------------------------------


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


def prepare_served(order=lambda rows: rows, take=lambda free: free.pop(), copy=lambda pair: pair, least=1):
    """Right as it stands; each argument bends one thing."""

    def prepare(tables, holders, free, lengths, size):
        tables = {name: list(table) for name, table in tables.items()}
        holders, free, copies = list(holders), list(free), []
        for row in order(list(lengths)):
            table, fresh = tables[row], lengths[row] % size == 0
            if fresh or holders[table[-1]] > least:
                block = take(free)
                if not fresh:
                    holders[table[-1]] -= 1
                    copies.append(copy((table.pop(), block)))
                holders[block] = 1
                table.append(block)
        return tables, holders, free, copies

    return prepare


CARDS = {"L4": (24, 32, 0.8), "A100 80GB SXM": (80, 32, 1.8), "H100 SXM": (80, 64, 3.0)}  # GB, GB/s, $


def pool_by_price(users, ms):
    """All choices in the order of their price, the largest pool that the card allows; the first that holds."""
    lengths = in_flight(users)
    for chip, (memory, bus, _) in sorted(CARDS.items(), key=lambda card: card[1][2]):
        room = int((0.9 * memory * 1e9 - 2 * 8_030_261_248) // 2**30)
        for block in (256, 128, 64, 32, 16, 4, 1):
            late = 64 * (1024 // block) * 0.01 + 1024 * 131_072 / (bus * 1e6) > ms
            if not late and sum((n + block - 1) // block for n in lengths) * block * 2**17 <= room * 2**30:
                return {"pool": room, "block": block, "chip": chip}


def pool_by_mean(users, ms):
    """Half a block for each request, as the chapter's formula has it: right on average, not for these."""
    lengths = in_flight(users)
    for chip, (memory, bus, _) in sorted(CARDS.items(), key=lambda card: card[1][2]):
        room = int((0.9 * memory * 1e9 - 2 * 8_030_261_248) // 2**30)
        for block in (1, 4, 16, 32, 64, 128, 256):
            late = 64 * (1024 // block) * 0.01 + 1024 * 131_072 / (bus * 1e6) > ms
            pool = -int(-sum(n + block / 2 for n in lengths) * 2**17 // 2**30)
            if not late and pool <= room:
                return {"pool": pool, "block": block, "chip": chip}


def always(**choice):
    return lambda users, ms: choice


ANSWERS = {
    "four-samples": Submissions(
        right=[RIGHT],
        wrong=[(lambda: 18, "a dict with the keys"), ({**RIGHT, "empty": 68}, "only 96 lie in full blocks")],
        stubs=[{**RIGHT, "empty": ...}],
    ),
    "block-tables": Submissions(
        right=[Tables, Recounted, InTuples],
        wrong=[
            (FreeAsMethod, "keep the line `@property`"),
            (WritesIntoShared, "which another row reads"),
            (CopiesForever, "Nobody else reads that block any more"),
            (FreesShared, "not earlier and not never"),
            (OneBlockAhead, "only when a position in it is written"),
            (CopiesInFork, "A fork copies a list of numbers"),
            (ForksOneList, "Copy the list of numbers"),
            (TakesBeforeItCounts, "before you take the first"),
            (NeverFull, "There is no free block left"),
            (LongerBeforeRefusal, "place 1 for position 8"),
            (LowersBeforeRefusal, "then the other reader ends"),
            (RefusesWhenDry, "none is needed"),
            (NamesByCount, "a name of its own"),
            (CountsFromOne, "counted from 0"),
            (bend_append(lambda block, place, copied: (block, place + 1, copied)), "place 3 for position 6"),
            (bend_append(lambda block, place, copied: (place, block, copied)), "place 4 for position 6"),
            (bend_append(lambda block, place, copied: (block, place)), "(block, place, copied)"),
            (bend_append(lambda block, place, copied: (block, place, copied is not None)), "a block or None"),
            (
                bend_append(lambda block, place, copied: (block, place, copied and block)),
                "before it is returned",
            ),
            (ForkForgetsLength, "place 0 for position 6"),
            (ForkWithoutName, "that `new` or `fork` returned"),
        ],
        lumen=["lumen.cache.BlockPool"],
    ),
    "freed-block": Submissions(
        right=[shorten, shorten_by_counting],
        wrong=[
            (shorten_forgets_table, "the table still lists them"),
            (shorten_frees_shared, "when its count is 0"),
            (shorten_rounds_down, "that `length` cuts in two"),
            (shorten_tests_first, "yours is without 5"),
            (shorten_keeps_one_more, "At the edge of a block"),
        ],
        no_lumen="lumen's rewind is a method of a cache with its own pool",
    ),
    "last-writer": Submissions(
        right=[prepare, prepare_by_tables, prepare_served()],
        wrong=[
            (prepare_last_keeps, "not the last who reads"),
            (prepare_never_copies, "each reads what the other wrote"),
            (prepare_served(order=lambda rows: rows[::-1]), "in the order of `lengths`"),
            (prepare_served(take=lambda free: free.pop(0)), "from the end of `free`"),
            (prepare_served(copy=lambda pair: pair[::-1]), "A copy is (from, to)"),
            (prepare_served(least=0), "writes in place"),
        ],
        no_lumen="lumen's reserve is a method of a cache with its own pool",
    ),
    "waste-claims": Submissions(
        right=[lambda: ("c", 31), lambda: ("C", 100 * (1 - 528 / 768))],
        wrong=[
            (lambda: ("a", 31.25), "two ways of saying it agree"),
            (lambda: ("b", 31.25), "nothing is left over at the end"),
            (lambda: ("d", 31.25), "no such hole"),
            (lambda: ("c", 3.9), "longer requests"),
            (lambda: ("c", 32), "That is near"),
        ],
    ),
    "size-the-pool": Submissions(
        right=[pool_by_price],
        wrong=[
            (always(chip="L4", block=64, pool=6), "GiB of pool against GB of card"),
            (always(chip="L4", block=16, pool=5), "10 µs and its bytes each"),
            (always(chip="A100 80GB SXM", block=128, pool=20), "a cheaper card does, too"),
            (pool_by_mean, "the pool has too few"),
            (always(chip="T4", block=64, pool=5), "one of 'L4'"),
            ({"chip": "L4", "block": 64, "pool": 5}, "a function of users and ms"),
        ],
        stubs=[always(chip=..., block=64, pool=5)],
    ),
}
