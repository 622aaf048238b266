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
# # Solutions 6 · The prefix cache
#
# Six exercises on the [chapter](../chapters/06_prefix_cache.ipynb). Each check looks at your own function or class and says
# NOT STARTED, WRONG and why, or RIGHT. Nothing here is timed and no model is loaded.

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/06_prefix_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/06_prefix_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/06_prefix_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 95 min · here: [chapter](../chapters/06_prefix_cache.ipynb), [exercises](../exercises/06_prefix_cache.ipynb)
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

session = lumen.setup("06_prefix_cache")

# %%
import hashlib

grader = lumen.grading.for_chapter("06")

# %% [markdown]
# ## 1 · A chain of keys
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# Write `block_keys(tokens, block_size, extra=())`: one key for each **full** block of the prompt. A key must change when any
# token in its block or in front of it changes, and when `extra` changes (tenant, adapter, salt: texts or numbers). It must
# not change with anything that comes later. All keys have one size, 16 bytes or more. Two different inputs must never be spelled alike *before* they are hashed.
#
# <details><summary>Hint 1: the question again</summary>
#
# What has to go into a hash so that it stands for a whole prefix, at a fixed size?
#
# </details>
# <details><summary>Hint 2: a shape to aim at</summary>
#
# Ten tokens in blocks of four: a list of two keys, `bytes` of length 32.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Hash three things together: the key before, the tokens of the block, and the extras. `repr` of a tuple keeps them apart.
#
# </details>


# %% nbgrader={"grade_id": "block-keys-answer", "solution": true}
def block_keys(
    tokens: list[int], block_size: int, extra: tuple[object, ...] = ()
) -> list[bytes]:
    """One key of 16 bytes or more for each full block."""
    ### BEGIN SOLUTION
    keys, parent = [], b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = (
            parent,
            tuple(tokens[start : start + block_size]),
            tuple(extra),
        )
        parent = hashlib.sha256(repr(content).encode()).digest()
        keys.append(parent)
    return keys
    ### END SOLUTION


# %% nbgrader={"grade_id": "block-keys", "grade": true, "points": 4}
grader.check("block-keys", block_keys)

# %% [markdown] tags=["solution-only"]
# `repr` writes `1` and `"1"` differently and puts commas between numbers, which is all the separation that is needed. The
# extras could be hashed into the first block only, since every later key contains it. That is what vLLM does with its
# `cache_salt`.

# %% [markdown]
# ## 2 · Where the clock stands
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 10 minutes · 2 points
#
# A prompt consists of **rules** (910 tokens) and **tools** (300), which never change, a **clock** (12) and a **question** (42),
# which are new in every request and differ from the earlier ones in their first token already. Blocks have 16 tokens, and
# there is room for everything. How many tokens (exact counts) does the *second* request find
#
# - with the `"clock first"`: clock, rules, tools, question;
# - with the `"clock between"`: rules, clock, tools, question;
# - with the `"clock last"`: rules, tools, clock, question;
# - and when the very `"same again"` is sent, rules, tools, clock and question, word for word?
#
# And `"not run"`: with the clock last, how many prompt tokens do 1,000 requests in a row *not* have to run, all together?
#
# <details><summary>Hint 1: the question again</summary>
#
# Where is the first difference, and in which block does it lie?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# All five are multiples of 16, and one of them is 0.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Shared tokens, but at most all but one, rounded down to whole blocks. The first of the thousand finds nothing.
#
# </details>


# %% nbgrader={"grade_id": "layout-hits-answer", "solution": true}
def layout_hits() -> dict[str, int]:
    """Tokens found, by the five names of the task; "not run" is a sum."""

    ### BEGIN SOLUTION
    def found(shared: int) -> int:
        return min(shared, 910 + 300 + 12 + 42 - 1) // 16 * 16

    return {
        "clock first": found(0),
        "clock between": found(910),
        "clock last": found(910 + 300),
        "same again": found(910 + 300 + 12 + 42),
        "not run": 999 * found(910 + 300),
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "layout-hits", "grade": true, "points": 2}
grader.check("layout-hits", layout_hits)

# %% [markdown] tags=["solution-only"]
# The prompt that is sent again has 1,264 tokens, 79 blocks exactly, and 78 are found: the last block is run again, since one
# of its tokens must be.

# %% [markdown]
# ## 3 · Hits that should not have been
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 3 points
#
# This cache finds blocks by the beginning of a prompt. It is fast, has an excellent hit rate, and three faults. Two of them
# serve somebody else's numbers; the third crashes the sampler, on some prompts only.


# %%
class BrokenPrefix:
    def __init__(self, block_size):
        self.size, self.known = block_size, {}

    def keys(self, tokens, adapter):
        key = 0
        for start in range(0, len(tokens) - self.size + 1, self.size):
            key = hash((key, *tokens[start : start + self.size]))
            yield key

    def remember(self, tokens, blocks, adapter):
        self.known.update(
            zip(self.keys(tokens, adapter), blocks, strict=False)
        )

    def match(self, tokens, adapter):
        found = []
        for key in self.keys(tokens, adapter):
            if key not in self.known:
                break
            found.append(self.known[key])
        return found


broken = BrokenPrefix(4)
broken.remember([5, 0, 7, 9, 11, 0, 0, 3, 8], [0, 6, 2], adapter=1)
print(
    "the same prompt, another adapter:",
    broken.match([5, 0, 7, 9, 11, 0, 0, 3, 8], adapter=2),
)

# %% [markdown]
# Write it again. `remember(tokens, blocks, adapter)` learns the full blocks of a sequence, in order (there may be one block
# more than there are full ones). `match(tokens, adapter)` returns the blocks of the longest known beginning, in order. An
# adapter is `None` or an integer; integers have up to 64 bits, tokens too. Block numbers start at 0.
#
# <details><summary>Hint 1: the question again</summary>
#
# What do a block's numbers depend on? What can a hash not promise? What must be left of a prompt?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Eight tokens, both blocks known: one block. Nine tokens: two. And try `hash(0) == hash(2**61 - 1)`.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Keep the content beside the block, or let it *be* the key: a dictionary compares keys that have the same hash.
#
# </details>


# %% nbgrader={"grade_id": "three-wrong-hits-answer", "solution": true}
class Prefixes:
    """Finds the blocks that hold the beginning of a prompt."""

    def __init__(self, block_size: int):
        ### BEGIN SOLUTION
        self.size, self.known = block_size, {}
        ### END SOLUTION

    def remember(
        self, tokens: list[int], blocks: list[int], adapter: int | None
    ) -> None:
        """Learn the full blocks of `tokens`; `blocks` hold them."""
        ### BEGIN SOLUTION
        for place in range(len(tokens) // self.size):
            self.known[
                adapter, tuple(tokens[: (place + 1) * self.size])
            ] = blocks[place]
        ### END SOLUTION

    def match(self, tokens: list[int], adapter: int | None) -> list[int]:
        """Blocks of the longest known beginning; one token is left."""
        ### BEGIN SOLUTION
        found = []
        for place in range((len(tokens) - 1) // self.size):
            content = adapter, tuple(tokens[: (place + 1) * self.size])
            if content not in self.known:
                break
            found.append(self.known[content])
        return found
        ### END SOLUTION


# %% nbgrader={"grade_id": "three-wrong-hits", "grade": true, "points": 3}
grader.check("three-wrong-hits", Prefixes)

# %% [markdown] tags=["solution-only"]
# The whole prefix as a key is right and simple, and its size grows with the square of the prompt. The chain of the chapter
# costs 32 bytes per block and needs the comparison written out. The three faults are real ones: a hash
# [without the adapter](https://github.com/vllm-project/vllm/issues/3264) (vLLM, 2024), a hit of
# [the whole prompt](https://github.com/GeeeekExplorer/nano-vllm/issues/114) (nano-vLLM, 2025), and Python's `hash`, predictable
# enough to [aim a collision](https://github.com/advisories/GHSA-rm76-4mrf-v9r8) at somebody's prompt (vLLM, 2025).

# %% [markdown]
# ## 4 · The block that was somebody else's
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# A free block keeps its contents until somebody writes to it. So it may be found by its key even after its request has ended,
# which costs no memory at all. This class does that, with one fault.


# %%
class BrokenBlocks:
    def __init__(self, count):
        # The one that has been free for longest comes first
        self.free = list(range(count))
        self.refs = [0] * count
        self.by_key = {}

    def allocate(self):
        block = self.free.pop(0)
        self.refs[block] = 1
        return block

    def publish(self, block, key):
        self.by_key[key] = block

    def find(self, key):
        block = self.by_key.get(key)
        if block is not None:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1
        return block

    def release(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)


broken = BrokenBlocks(1)
first = broken.allocate()
broken.publish(first, "to be or not to be")
broken.release(first)
broken.allocate()  # somebody else writes another text into it
print("found under the old key: block", broken.find("to be or not to be"))

# %% [markdown]
# Mend it. `publish` says that `block` now holds the text of `key` and no other; when two blocks hold the same text, the later one counts.
# `find` takes a reference for the caller, or returns `None`. `allocate` uses the block that has been free for longest. Keep the
# list `free`; everything else is yours.
#
# <details><summary>Hint 1: the question again</summary>
#
# From which moment on is a free block no longer what its key says?
#
# </details>
# <details><summary>Hint 2: a case to aim at</summary>
#
# Two blocks were published under one key, and the *older* one is used again. The key must still find the newer one.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# In `allocate`, remove the block's key, if that key still names this block.
#
# </details>


# %% nbgrader={"grade_id": "stale-block-answer", "solution": true}
class Blocks:
    """Blocks found by a key until somebody writes something else."""

    def __init__(self, count: int):
        # The one that has been free for longest comes first
        self.free = list(range(count))
        ### BEGIN SOLUTION
        self.refs = [0] * count
        self.by_key, self.key_of = {}, {}
        ### END SOLUTION

    def allocate(self) -> int:
        """A free block, to be written to."""
        ### BEGIN SOLUTION
        block = self.free.pop(0)
        self.refs[block] = 1
        key = self.key_of.pop(block, None)
        if self.by_key.get(key) == block:
            del self.by_key[key]
        return block
        ### END SOLUTION

    def publish(self, block: int, key: str) -> None:
        """`block` holds the text of `key`."""
        ### BEGIN SOLUTION
        old = self.key_of.get(block)
        if self.by_key.get(old) == block:
            del self.by_key[old]
        self.by_key[key], self.key_of[block] = block, key
        ### END SOLUTION

    def find(self, key: str) -> int | None:
        """A block with the text of `key`, one more reference, or None."""
        ### BEGIN SOLUTION
        block = self.by_key.get(key)
        if block is not None:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1
        return block
        ### END SOLUTION

    def release(self, block: int) -> None:
        """One reference less; free when none is left."""
        ### BEGIN SOLUTION
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)
        ### END SOLUTION


# %% nbgrader={"grade_id": "stale-block", "grade": true, "points": 3}
grader.check("stale-block", Blocks)

# %% [markdown] tags=["solution-only"]
# vLLM's second block manager [had this fault](https://github.com/vllm-project/vllm/pull/4764). It stays invisible until blocks
# are used twice, and then writes fluent text about somebody else's prompt. In nano-vLLM
# [such keys stay behind](https://github.com/GeeeekExplorer/nano-vllm/issues/163) too, but it compares a block's tokens before it
# trusts a key. `lumen` avoids the whole kind: its prefix cache *holds* a reference on what it remembers, so a remembered block
# is never free.

# %% [markdown]
# ## 5 · Four claims about a price list
#
# **Literature** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# From an introduction to prompt caching, in our words. Writing costs 1.25 times the price of an ordinary prompt token, reading
# 0.1 times, as Anthropic announced in August 2024.
#
# - **a** Caching a prefix is cheaper from its second use on.
# - **b** A prefix that is used eight times before it expires costs 90 % less.
# - **c** A prefix that is written and never read costs a quarter more than without caching.
# - **d** A hit brings the first token sooner. The tokens after it come no faster than before.
#
# One of them does not hold. Answer with its letter and the right number: the saving over eight uses, in percent; three
# figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# Who pays for the first use?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# For two uses the saving is 32.5 %.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# One write and seven reads, divided by eight, is what is still paid.
#
# </details>


# %% nbgrader={"grade_id": "price-claims-answer", "solution": true}
def price_claims() -> tuple[str, float]:
    """The letter of the wrong statement, and the saving in percent."""
    ### BEGIN SOLUTION
    uses = 8
    paid = 1.25 + 0.1 * (uses - 1)
    return "b", 100 * (1 - paid / uses)
    ### END SOLUTION


# %% nbgrader={"grade_id": "price-claims", "grade": true, "points": 2}
grader.check("price-claims", price_claims)

# %% [markdown] tags=["solution-only"]
# 90 % is what a *read* saves. "Up to" before it makes the sentence true and useless. Price lists change: print a discount with its date.

# %% [markdown]
# ## 6 · To write or not to write
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# An assistant answers questions about its customers' documents. A prompt has **rules** (2,000 tokens, the same for everybody), the
# customer's **document** (6,000), a **clock** (20, new in each request) and at the end a question (80, never cached). A
# customer asks **two questions, ten minutes apart**. Some customer sends a request every few seconds, day and night.
#
# The provider charges 3 $ per million prompt tokens, 0.1 of that for reading cached ones, and for writing **1.25** when an entry
# lives for 5 minutes after its last use, or **2.0** when it lives for an hour (Anthropic's list of 2025). Choose
#
# - `"order"` of the three parts, such as `"clock rules document"`;
# - `"parts cached"`: how many of them, from the front, are marked for the cache, 0 to 3;
# - `"lifetime"`: `"5 minutes"` or `"1 hour"`.
#
# A request may **run 3,500 prompt tokens on average** before its first token. Among the choices that keep to this, take the cheapest.
# (Leave the rare write of the rules out, if they stand in front: thousands share it.)
#
# <details><summary>Hint 1: the question again</summary>
#
# For each part: who shares it *together with everything in front of it*, and does the next one of them come in time?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Without caching 1,000 requests cost 24.30 $. The cheapest of all choices costs 18.90 $, and it is not the answer.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# In an hour the document is written once and read once: 2.1 instead of 2. In five minutes it is written twice: 2.5. What does
# the limit say to not writing it?
#
# </details>


# %% nbgrader={"grade_id": "where-to-write-answer", "solution": true}
def where_to_write() -> dict[str, object]:
    """The choice: "order", "parts cached", "lifetime"."""
    ### BEGIN SOLUTION
    return {
        "order": "rules document clock",
        "parts cached": 2,
        "lifetime": "1 hour",
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "where-to-write", "grade": true, "points": 3}
grader.check("where-to-write", where_to_write)

# %% [markdown] tags=["solution-only"]
# Writing the document costs a little more than sending it twice, and buys half of its prefill: here the limit on time decides,
# not the price. The cheap write is the dearer one, because it expires before it is read. With questions four minutes apart
# that turns round: 1.25 + 0.1 against 2.0 + 0.1. And marking the clock as well costs a few cents, which nobody notices.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
