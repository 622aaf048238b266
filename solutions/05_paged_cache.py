# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions 5 · The paged cache
#
# Six exercises on the [chapter](../chapters/05_paged_cache.ipynb). Each check looks at your own function or class and says
# NOT STARTED, WRONG and why, or RIGHT. No model is loaded and nothing is timed.

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/05_paged_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/05_paged_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/05_paged_cache.ipynb)
#
# CPU is enough · read 35 min · run 1 min · practise 97 min · here: [chapter](../chapters/05_paged_cache.ipynb), [exercises](../exercises/05_paged_cache.ipynb)
#
# </div>

# %% tags=["setup", "hide-input", "nbval-ignore-output"]
import importlib
import importlib.util
import os
import subprocess
import sys

# Colab: brings lumen, leaves torch and numpy as they are
if importlib.util.find_spec("lumen") is None:
    address = "git+https://github.com/lumen-course/lumen@main"
    address = os.environ.get("LUMEN_SOURCE", address)
    wanted = "lumen-inference @ " + address
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, wanted], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("05_paged_cache")

# %%
from lumen import cost
from lumen.cache import CacheFull
from lumen.hardware import CHIPS
from lumen.models import CONFIGS

grader = lumen.grading.for_chapter("05")

# %% [markdown]
# ## 1 · Four samples, counted
#
# **Predict** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# A prompt has 100 tokens, blocks hold 16. After the prompt is in the cache, four samples are drawn from it, and each writes 30
# tokens of its own into the cache.
#
# Give five counts at that moment: the blocks of `"one row"` of 130 tokens; the blocks of four `"separate"` rows; the blocks of
# four rows that `"shared"` the prompt, with copy-on-write; the `"copies"` that were made; and in the shared case the positions
# of taken blocks that are `"empty"`.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which blocks of the prompt are never written again?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Sharing halves the blocks, exactly.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Full blocks of the prompt once, everything behind them four times; and the last of the four writers finds itself alone.
#
# </details>


# %% nbgrader={"grade_id": "four-samples-answer", "solution": true}
def four_samples() -> dict[str, int]:
    """Keys: "one row", "separate", "shared", "copies", "empty"."""
    ### BEGIN SOLUTION
    size, prompt, length = 16, 100, 130
    blocks = -(-length // size)
    full = prompt // size
    shared = full + 4 * (blocks - full)
    stored = full * size + 4 * (length - full * size)
    return {
        "one row": blocks,
        "separate": 4 * blocks,
        "shared": shared,
        "copies": 3,
        "empty": shared * size - stored,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "four-samples", "grade": true, "points": 2}
grader.check("four-samples", four_samples)

# %% [markdown] tags=["solution-only"]
# Six full blocks, then three of their own for each: 18 against 36. The price is three copies of one block. That the result is
# exactly a half is chance; with a prompt of 1,000 tokens it would be nearly a quarter.

# %% [markdown]
# ## 2 · A block table with copy-on-write
#
# **Build** · difficulty 4 of 5 · importance 5 of 5 · 30 minutes · 5 points
#
# Write the bookkeeping of a paged cache, without keys and values: only numbers of blocks, counted from 0.
#
# - `new(length)` starts a row of `length` ≥ 1 tokens and returns a name for it, any you like;
# - `append(row)` makes room for one more token and returns where it goes, `(block, place, copied)`: `copied` is the block whose
#   content must be copied to `block` first, or `None`;
# - `fork(row)` starts a second row with the same tokens and returns its name; no block is taken;
# - `free(row)` ends a row.
#
# `tables` maps the name of each living row to its list of blocks, `num_free` is the number of free blocks. When blocks are
# missing, `new` and `append` raise `CacheFull` and change nothing.
#
# <details><summary>Hint 1: the question again</summary>
#
# When is a block free, when may a row write into it, and which single number answers both?
#
# </details>
# <details><summary>Hint 2: a shape to aim at</summary>
#
# Four attributes: a list of free blocks, a count of holders per block, a table per row, a length per row.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# In `append`: at place 0 take a new block; elsewhere, if the last block has more than one holder, take one, put it in the old
# one's place, and lower the old one's count.
#
# </details>


# %% nbgrader={"grade_id": "block-tables-answer", "solution": true}
class BlockTables:
    """Block tables of many rows over one pool.

    `tables` maps the name of a living row to its blocks.
    """

    def __init__(self, num_blocks: int, block_size: int):
        ### BEGIN SOLUTION
        self.size = block_size
        self.unused, self.holders = (
            list(range(num_blocks)),
            [0] * num_blocks,
        )
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[
            int, int
        ] = {}  # of ended rows, too: a name is not given twice
        ### END SOLUTION

    @property
    def num_free(self) -> int:
        """How many blocks are free."""
        ### BEGIN SOLUTION
        return len(self.unused)
        ### END SOLUTION

    def new(self, length: int) -> int:
        """Start a row of `length` tokens; returns its name."""
        ### BEGIN SOLUTION
        need, row = -(-length // self.size), len(self.lengths)
        if need > len(self.unused):
            raise CacheFull(
                f"{need} blocks are needed and {len(self.unused)} are free."
            )
        self.tables[row] = [self.unused.pop() for _ in range(need)]
        for block in self.tables[row]:
            self.holders[block] = 1
        self.lengths[row] = length
        return row
        ### END SOLUTION

    def append(self, row: int) -> tuple[int, int, int | None]:
        """Room for one more token.

        (block, place in it, block to copy from or None)
        """
        ### BEGIN SOLUTION
        table, place, copied = (
            self.tables[row],
            self.lengths[row] % self.size,
            None,
        )
        if place == 0 or self.holders[table[-1]] > 1:
            if not self.unused:
                raise CacheFull("No block is free.")
            if place:
                copied = table.pop()
                self.holders[copied] -= 1
            table.append(self.unused.pop())
            self.holders[table[-1]] = 1
        self.lengths[row] += 1
        return table[-1], place, copied
        ### END SOLUTION

    def fork(self, row: int) -> int:
        """A second row with the same tokens; returns its name."""
        ### BEGIN SOLUTION
        child = len(self.lengths)
        self.tables[child], self.lengths[child] = (
            list(self.tables[row]),
            self.lengths[row],
        )
        for block in self.tables[child]:
            self.holders[block] += 1
        return child
        ### END SOLUTION

    def free(self, row: int) -> None:
        """End a row."""
        ### BEGIN SOLUTION
        for block in self.tables.pop(row):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.unused.append(block)
        ### END SOLUTION


# %% nbgrader={"grade_id": "block-tables", "grade": true, "points": 5}
grader.check("block-tables", BlockTables)

# %% [markdown] tags=["solution-only"]
# The count of holders does three jobs: 0 is free, 1 may be written in place, more is shared. Both refusals come before the first
# change, so there is nothing to undo.

# %% [markdown]
# ## 3 · The block that was freed and stayed
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# A row forgets its last tokens: speculation was wrong, or a stop string was found late. This function gives the blocks back
# that are no longer needed. It runs for days before anybody complains about strange answers.


# %%
def broken_shorten(tables, holders, free, row, length, size):
    """Forget all positions of `row` from `length` on.

    Returns new tables, holders and free blocks.
    """
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), set(free)
    keep = length // size
    for block in tables[row][keep:]:
        holders[block] -= 1
        free.add(block)
    return tables, holders, free


before = {"a": [3, 0, 5], "b": [3, 0, 2]}, [2, 0, 1, 2, 0, 1], {1, 4}
tables, holders, free = broken_shorten(*before, "a", 6, 4)
print("tables", tables)
print("free", free, "holders", holders)

# %% [markdown]
# Row a keeps 6 tokens in blocks of 4. Three things are wrong in what was printed. Mend the function, and leave what it was given as
# it was.
#
# <details><summary>Hint 1: the question again</summary>
#
# For each block of row a: does a still need it, does b, and who says so?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Six tokens need two blocks. Of row a's blocks, 5 alone becomes free.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Round up; a block is free when its count reaches 0; the table ends where the tokens end.
#
# </details>


# %% nbgrader={"grade_id": "freed-block-answer", "solution": true}
def shorten(
    tables: dict[str, list[int]],
    holders: list[int],
    free: set[int],
    row: str,
    length: int,
    size: int,
) -> tuple[dict[str, list[int]], list[int], set[int]]:
    """Forget all positions of `row` from `length` on.

    Returns new tables, holders and free blocks.
    """
    ### BEGIN SOLUTION
    tables = {name: list(table) for name, table in tables.items()}
    holders, free = list(holders), set(free)
    keep = -(-length // size)
    for block in tables[row][keep:]:
        holders[block] -= 1
        if holders[block] == 0:
            free.add(block)
    del tables[row][keep:]
    return tables, holders, free
    ### END SOLUTION


# %% nbgrader={"grade_id": "freed-block", "grade": true, "points": 3}
grader.check("freed-block", shorten)

# %% [markdown] tags=["solution-only"]
# None of the three raises an error where it happens. A block that is freed too early does its damage when the pool gives it to
# somebody else, and then the damaged row is not the one that made the mistake. That is why the pool of this course refuses to
# share a free block, and why its audit asks the tables.

# %% [markdown]
# ## 4 · One block lost for every group
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 3 points
#
# Before a step, every row that will write gets room for one token: a new block at the edge of a block, a copy where the last
# block is shared. New blocks come from the end of the list `free`. A server with this function loses one block for every group of
# samples, and after a weekend its pool is empty.


# %%
def broken_prepare(tables, holders, free, lengths, size):
    """Room for one more token in each row of `lengths`.

    Returns new tables, holders, free, and copies (from, to).
    """
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


tables, holders, free, copies = broken_prepare(
    {"a": [0], "b": [0]}, [2, 0, 0], [2, 1], {"a": 2, "b": 2}, 4
)
print("tables", tables, "holders", holders)
print("free", free, "copies", copies)

# %% [markdown]
# Two rows shared block 0. Where is it now? Mend the function. Rows are served in the order of `lengths`; those that are not
# in it rest in this step and still read their blocks.
#
# <details><summary>Hint 1: the question again</summary>
#
# What does row b know about block 0 at the moment when it is its turn?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Two writers, one copy.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Ask the count when the row is served, not before the loop: the rows before it may have lowered it to one.
#
# </details>


# %% nbgrader={"grade_id": "last-writer-answer", "solution": true}
def prepare(
    tables: dict[str, list[int]],
    holders: list[int],
    free: list[int],
    lengths: dict[str, int],
    size: int,
) -> tuple[
    dict[str, list[int]], list[int], list[int], list[tuple[int, int]]
]:
    """Room for one more token in each row of `lengths`.

    Returns new tables, holders, free, and copies (from, to).
    """
    ### BEGIN SOLUTION
    tables = {name: list(table) for name, table in tables.items()}
    holders, free, copies = list(holders), list(free), []
    for row, length in lengths.items():
        table = tables[row]
        if length % size == 0:
            table.append(free.pop())
            holders[table[-1]] = 1
        elif holders[table[-1]] > 1:
            old, table[-1] = table[-1], free.pop()
            holders[old] -= 1
            holders[table[-1]] = 1
            copies.append((old, table[-1]))
    return tables, holders, free, copies
    ### END SOLUTION


# %% nbgrader={"grade_id": "last-writer", "grade": true, "points": 3}
grader.check("last-writer", prepare)

# %% [markdown] tags=["solution-only"]
# One line. The tempting other mend, to put the original into `free` when its count reaches 0, stops the leak and still pays for
# a copy that nobody needed.

# %% [markdown]
# ## 5 · Four claims about waste
#
# **Literature** · difficulty 3 of 5 · importance 4 of 5 · 12 minutes · 2 points
#
# From introductions to PagedAttention, in our words:
#
# - **a** In the systems that the paper measured, 20.4 to 38.2 % of the cache memory held tokens. Saying that 60 to 80 % were
#   wasted is the same statement.
# - **b** The 38.2 % belong to a system that knew the length of every answer in advance. So answers that end earlier than reserved
#   are not the only cause of waste.
# - **c** With blocks of 16, only a sequence's last block is not full. So less than 4 % of the taken memory is wasted, whatever
#   the requests are.
# - **d** Blocks do away with external fragmentation because all of them have one size.
#
# One of them does not hold. Answer with its letter and a number that shows it: a pool holds sequences of 1, 2, 3, … 32 tokens,
# one of each, in blocks of 16. How many percent of the positions in taken blocks are empty? (Two significant figures suffice.)
#
# <details><summary>Hint 1: the question again</summary>
#
# Which of the four speaks about all possible requests?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Nearly a third.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Add up the tokens, add up the positions of 16 sequences with one block and 16 with two, and divide.
#
# </details>


# %% nbgrader={"grade_id": "waste-claims-answer", "solution": true}
def waste_claims() -> tuple[str, float]:
    """The statement that does not hold, and the empty share in percent."""
    ### BEGIN SOLUTION
    lengths = range(1, 33)
    taken = sum(-(-n // 16) * 16 for n in lengths)
    return "c", 100 * cost.wasted_share(sum(lengths), taken)
    ### END SOLUTION


# %% nbgrader={"grade_id": "waste-claims", "grade": true, "points": 2}
grader.check("waste-claims", waste_claims)

# %% [markdown] tags=["solution-only"]
# The waste is 7.5 positions a sequence, always. It is 4 % of sequences that hold 180 tokens, and a third of such short ones: a
# classifier, an autocompletion, a speech command. The published figure was measured on chats.

# %% [markdown]
# ## 6 · Size the pool
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Llama-3-8B in bf16 shall hold `users` requests at once; `in_flight(users)` lists how many tokens each of them holds
# at a random moment of a busy server. Weights and pool may take **90 %** of the card. When a request is preempted, it is swapped to the host and
# comes back *piece by piece*: keys or values of one block in one layer. Each piece costs 10 µs and its bytes over PCIe
# (`hardware.host_link`). **1,024 tokens must be back within `ms` milliseconds.**
#
# Write the function that chooses the chip, the block size (1, 4, 16, 32, 64, 128 or 256) and the pool in whole GiB
# (1 to 64) for such a load. The cheapest chip wins. It is tried with 20 to 250 users and 6 to 60 ms.
#
# | chip | memory | PCIe, one direction | $ per hour |
# | --- | --- | --- | --- |
# | L4 | 24 GB | 32 GB/s | 0.80 |
# | A100 80GB SXM | 80 GB | 32 GB/s | 1.80 |
# | H100 SXM | 80 GB | 64 GB/s | 3.00 |
#
# Prices are estimates to reckon with (`lumen.hardware.CHIPS` says whence).

# %%
from lumen import hardware
from lumen.grading.sets.ch05 import in_flight

PRICES = hardware.hourly("L4", "A100 80GB SXM", "H100 SXM")
llama = CONFIGS["llama-3-8b"]
lengths = in_flight(85)
print(f"85 requests hold {sum(lengths):,} tokens,")
print(f"the shortest {min(lengths)}, the longest {max(lengths):,}")
kappa = cost.kv_bytes_per_token(llama, "bf16")
weights = cost.weight_storage(llama, "bf16")
print(f"a token: {kappa / 2**10:.0f} KiB, weights: {weights / 1e9:.2f} GB")

# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# What does the time limit say about the block size, and what does the memory of the cheapest card say?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# For 85 users and 16 ms the pool has about 41,000 positions.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# For each block size: `sum(-(-n // size) for n in lengths)` blocks, and `2 · 32 · ceil(1024 / size)` pieces.
#
# </details>


# %% nbgrader={"grade_id": "size-the-pool-answer", "solution": true}
def size_the_pool(users: int, ms: float) -> dict[str, object]:
    """The set-up: "chip", "block" and "pool" (GiB)."""
    ### BEGIN SOLUTION
    lengths = in_flight(users)
    for chip in sorted(PRICES, key=PRICES.__getitem__):
        bus, memory = hardware.host_link(chip), CHIPS[chip].memory
        for block in (1, 4, 16, 32, 64, 128, 256):
            blocks = sum(-(-n // block) for n in lengths)
            pool = -(-blocks * block * kappa // 2**30)
            pieces = 2 * llama.num_layers * -(-1024 // block)
            moved = -(-1024 // block) * block * kappa
            back = pieces * 10e-6 + bus.seconds(moved)
            fits = weights + pool * 2**30 <= 0.9 * memory
            if fits and back <= 1e-3 * ms:
                return {"chip": chip, "block": block, "pool": int(pool)}
    raise AssertionError("no set-up fits")
    ### END SOLUTION


# %% nbgrader={"grade_id": "size-the-pool", "grade": true, "points": 3}
grader.check("size-the-pool", size_the_pool)

# %% [markdown] tags=["solution-only"]
# For 85 users and 16 ms one block size is left on the cheapest card. Smaller ones come back too slowly, larger ones leave
# so much empty that the requests do not fit. Gathering the blocks on the card before sending them would lift the
# first limit and bring 16 back.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
