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
# # 11 · FlashAttention

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/11_flash_attention.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/11_flash_attention.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/11_flash_attention.ipynb)
#
# CPU is enough · read 30 min · run 2 min · practise 90 min · here: [exercises](../exercises/11_flash_attention.ipynb), [solutions](../solutions/11_flash_attention.ipynb)
#
# </div>

# %% [markdown]
# One layer of SmolLM2 attends: nine heads, 64 numbers wide (here every head has keys of its own). Written down as in a textbook
# it is three operators: a product of queries and keys, a softmax, a product with the values. torch has a single operator for the
# same thing. Same numbers in, the same products, same numbers out.
#
# **The same arithmetic. What can one operator save, and how much of that do the bytes explain?**
#
# By the end you can
#
# - count the bytes that attention moves with its scores written out and in tiles, and say from them which is faster on a GPU;
# - write a softmax in pieces that is exact, in whatever order the pieces come;
# - say when tiles save few bytes (one query; a prompt much shorter than a head is wide), and what a short prompt may lose;
# - cut the keys of one query into splits that several cores read at once, and merge what they found.
#
# Needs: [the roofline](02_roofline.ipynb), [the cache of keys and values](04_kv_cache.ipynb).
#
# New terms: [FlashAttention](../book/glossary.md#term-FlashAttention),
# [online softmax](../book/glossary.md#term-online-softmax), [split-KV](../book/glossary.md#term-split-KV).

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

session = lumen.setup("11_flash_attention")

# %% tags=["hide-input"]
import math
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

import lumen
from lumen import assets, bench, grading, hardware
from lumen.attention import (
    Traffic,
    attention,
    flash_attention,
    merge,
    naive_traffic,
)
from lumen.attention.lowbit import smooth, to_int8
from lumen.cache import DynamicCache
from lumen.explore import (
    Quiz,
    TileStepper,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    table,
    tiles_lab,
)
from lumen.pages import (
    ch11,
    ch11_bits,
    ch11_mask,
    ch11_operators,
    ch11_splits,
)
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
device = session.device
chip = hardware.measure(progress=False)
HEADS, DIM = ch11_operators.HEADS, ch11_operators.DIM
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SHORT, LONG = LENGTHS[0], LENGTHS[-1]
draw = torch.Generator().manual_seed(0)

# %% [markdown]
# ## Three operators
#
# Random numbers do here: the operators do the same work whatever the numbers are. No mask yet: every query reads every key.


# %% tags=["hide-input"]
def some(queries, keys=None, heads=HEADS):
    """q (1, H, T, D), k and v (1, H, S, D), and their positions."""
    keys = keys or queries
    shapes = (queries, keys, keys)
    made = [
        torch.randn(1, heads, n, DIM, generator=draw).to(device)
        for n in shapes
    ]
    every = torch.arange(keys, device=device)[None]
    return (*made, every[:, keys - queries :], every)


# %%
def three_operators(q, k, v):
    """(1, H, T, D). The scores (1, H, T, S) are written out, twice."""
    scores = (q / math.sqrt(DIM)) @ k.transpose(2, 3)
    weights = scores.softmax(-1)
    return weights @ v


# %% tags=["nbval-check-output"]
def off(ours, truth):
    """Relative error."""
    return float((ours - truth).norm() / truth.norm())


q, k, v, *_ = some(300)
one = scaled_dot_product_attention(q, k, v)
print("one operator, three operators: the same to 1e-5:", end=" ")
print(off(three_operators(q, k, v), one) < 1e-5)
assert off(three_operators(q, k, v), one) < 1e-5

# %% [markdown]
# The same up to rounding, not bit by bit: sums are taken in another order. Now both against a clock, in turns.


# %% tags=["hide-input", "nbval-ignore-output"]
def both(tokens):
    q, k, v, *_ = some(tokens)
    return {
        "three operators": lambda: three_operators(q, k, v),
        "one operator": lambda: scaled_dot_product_attention(q, k, v),
    }


def turns(some_ways, tokens):
    inner = 20 if tokens <= 512 else 1  # short ones many times a sample
    return bench.compare(some_ways, repeats=7, warmup=1, inner=inner)


first = {n: turns(both(n), n) for n in LENGTHS}
ch11_operators.times_figure(first)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch11_operators.opening(first, LONG))

# %% [markdown]
# Each operator by itself, at the longest of these prompts. A product of two matrices computes much for every byte it reads.
# A softmax hardly computes at all.

# %% tags=["hide-input", "nbval-ignore-output"]
q, k, v, *_ = some(LONG)
scores = (q / math.sqrt(DIM)) @ k.transpose(2, 3)
parts = bench.compare(
    {
        "scores = q kᵀ": lambda: q @ k.transpose(2, 3),
        "softmax": lambda: scores.softmax(-1),
        "weights · v": lambda: scores @ v,
    },
    repeats=5,
)
table(*ch11_operators.operators_table(parts, LONG, chip))

# %% tags=["hide-input", "nbval-ignore-output"]
whole = first[LONG]
markdown(
    ch11_operators.operators_story(
        parts, whole["three operators"], LONG, chip
    )
)

# %% [markdown]
# ## A softmax in pieces
#
# The scores are only needed for a moment. If a tile of them, some queries by some keys, could be computed, used and
# forgotten, none of them would have to go to memory. What stands in the way is the softmax: it divides by a sum over the whole row,
# and before that it subtracts the row's largest score, or `exp` would overflow. Both are known at the end only.
#
# Two scores by hand, 0 and then $\ln 2$, with the values 1 and 4. After the first the largest score is 0, the sum of weights
# $e^0 = 1$, the weighted value 1. The second is larger by $\ln 2$: what was there shrinks to a half, the new one weighs $e^0 = 1$.
# The sum is 0.5 + 1 = 1.5, the weighted value 0.5 + 4 = 4.5, and 4.5 / 1.5 = 3. The ordinary softmax has weights 1/3 and 2/3:
# also 3.
#
# So carry three things for each query and correct them. After some of the keys let $m$ be the largest score so far,
# $\ell$ the sum of $e^{s_i - m}$, and $o$ the sum of $e^{s_i - m}\, v_i$. A tile brings new scores, with a larger $m'$ perhaps:
#
# $$
# \begin{gathered}
# \ell' = e^{m - m'}\,\ell + \textstyle\sum_{\text{tile}} e^{s_i - m'} \\
# o' = e^{m - m'}\, o + \textstyle\sum_{\text{tile}} e^{s_i - m'}\, v_i
# \end{gathered}
# $$
#
# The factor $e^{m - m'}$ turns every old $e^{s_i - m}$ into $e^{s_i - m'}$, exactly. After the last tile the output is
# $o / \ell$. This is the [online softmax](../book/glossary.md#term-online-softmax)
# ([Milakov and Gimelshein, 2018](https://arxiv.org/abs/1805.02867)); attention over keys in pieces with it saves memory
# ([Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682)), and in tiles made for the memories of a chip it is
# [FlashAttention](../book/glossary.md#term-FlashAttention) ([Dao and others, 2022](https://arxiv.org/abs/2205.14135)).

# %% [markdown]
# Watch the last query. When a larger score comes, what was there shrinks; when none comes, it stays. With the causal mask the
# tiles above the diagonal are never computed.

# %% tags=["hide-input", "nbval-check-output"]
TileStepper(size=8, block=2)

# %% [markdown]
# ## What moves
#
# Let a tile be $B_q$ queries by $B_k$ keys. The queries of a row of tiles are read once and stay; all keys and values
# stream past them. With scores written out, $H\,T\,S$ numbers are written, read, written as weights and read again. In bytes:
#
# $$
# \begin{aligned}
# \text{written out} &= b\,H\,(2 T D + 2 S D + 4\, T S) \\
# \text{in tiles} &= b\,H\,(2 T D + T) \\
# &\quad + b\,H\,\lceil T / B_q \rceil \cdot 2 S D
# \end{aligned}
# $$
#
# The single $T$ is the log-sum-exp $m + \ln \ell$, one number a query, needed [below](#one-query-many-keys).
# $B_k$ does not appear: without a mask it decides what has to be held, not what is moved. For long prompts the share that
# remains is $D / 2B_q$.

# %% tags=["hide-input", "nbval-ignore-output"]
BLOCK_Q, BLOCK_K = 256, 512
table(*ch11_operators.symbols(chip, LONG, BLOCK_Q, BLOCK_K))

# %% tags=["hide-input", "nbval-check-output"]
q, k, v, q_pos, k_pos = some(LONG)
counts = {}
for tile in ((128, 128), (BLOCK_Q, BLOCK_K), (1024, 1024)):
    counts[tile] = Traffic()
    flash_attention(
        q, k, v, q_pos, k_pos, causal=False,
        block_q=tile[0], block_k=tile[1], traffic=counts[tile],
    )  # fmt: skip
table(*ch11_operators.moved_table(naive_traffic(q, k, v), counts))

# %% [markdown]
# Counted in lumen's loop, whose core is built next, with every tile's reads added up. Larger tiles move less, until they no
# longer fit where they are to be held: on an H100 that is [SRAM](../book/glossary.md#term-SRAM), 256 KB of registers and up to
# 228 KB of shared memory a core
# ([chapter 2a](02a_chips.ipynb)), here a share of the caches.
#
# ## Build it


# %%
def tiled(q, k, v, block_q=BLOCK_Q, block_k=BLOCK_K):
    """(1, H, T, D): no mask. Holds a tile of scores and the last one."""
    out = torch.empty_like(q)
    for at in range(0, q.shape[2], block_q):
        rows = q[:, :, at : at + block_q] / math.sqrt(DIM)
        most = rows.new_full((*rows.shape[:3], 1), -math.inf)
        total = torch.zeros_like(most)
        sums = torch.zeros_like(rows)
        for start in range(0, k.shape[2], block_k):
            keys = k[:, :, start : start + block_k]
            values = v[:, :, start : start + block_k]
            scores = rows @ keys.transpose(2, 3)
            larger = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights = scores.sub_(larger).exp_()  # in the scores' place
            shrink = torch.exp(most - larger)
            total = shrink * total + weights.sum(-1, keepdim=True)
            sums = shrink * sums + weights @ values
            most = larger
        out[:, :, at : at + block_q] = sums / total
    return out


# %% [markdown]
# `lumen.attention.flash_attention` is the same loop under [the one mask rule](04_kv_cache.ipynb), for any positions, grouped
# heads and padding. Is it right? Over sizes that no tile divides, against torch's operator and against lumen's:

# %% tags=["nbval-check-output"]
for queries, keys in ((1, 1), (7, 300), (300, 300), (257, 1025)):
    q, k, v, q_pos, k_pos = some(queries, keys)
    wanted = scaled_dot_product_attention(q, k, v)
    ours, _ = flash_attention(q, k, v, q_pos, k_pos, causal=False)
    near = off(tiled(q, k, v), wanted), off(ours, wanted)
    print(f"{queries:4} x {keys:4}: within 1e-5: {max(near) < 1e-5}")
    assert max(near) < 1e-5

# %% [markdown]
# And a **negative control**: the same with the shrinking left out, which is what one forgets. The scores are made ten times larger
# first, so that larger ones come late.


# %% tags=["nbval-check-output"]
def forgetful(q, k, v, block=64):
    """One row of tiles in which nothing shrinks."""
    most, total, sums = torch.full_like(q[..., :1], -math.inf), 0.0, 0.0
    for start in range(0, k.shape[2], block):
        keys = k[:, :, start : start + block]
        scores = (q / math.sqrt(DIM)) @ keys.transpose(2, 3)
        most = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - most)
        total = total + weights.sum(-1, keepdim=True)
        sums = sums + weights @ v[:, :, start : start + block]
    return sums / total


q, k, v, *_ = some(300)
wanted = scaled_dot_product_attention(10 * q, k, v)
print("in one tile  :", off(forgetful(10 * q, k, v, 300), wanted) < 1e-5)
print("in five tiles:", off(forgetful(10 * q, k, v), wanted) < 1e-5)
assert off(forgetful(10 * q, k, v), wanted) > 0.1

# %% [markdown]
# ## Predict: a loop in Python
#
# Three operators in C++ on one side. On the other this loop, in Python: 4,096 tokens in tiles of 256 × 512 are 128 tiles,
# and each starts a dozen operators. It makes the same products, and a few operations more.

# %% tags=["predict"]
my_guess = guess(
    "11-loop",
    "4,096 tokens: the loop, in times the three operators?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
FEW, TILE = 64, (BLOCK_Q, BLOCK_K)


def kept(q, k, v):
    """The three operators, always into the same memory."""
    shape = (1, HEADS, q.shape[2], k.shape[2])
    scores = torch.empty(shape, device=device)
    weights, out = torch.empty_like(scores), torch.empty_like(q)

    def run():
        torch.matmul(q / math.sqrt(DIM), k.transpose(2, 3), out=scores)
        torch.softmax(scores, -1, out=weights)
        return torch.matmul(weights, v, out=out)

    assert off(run(), three_operators(q, k, v)) < 1e-5
    return run


def sliced(q, k, v, rows):
    """The three operators on `rows` queries at a time: no tiles."""
    out = torch.empty_like(q)
    for at in range(0, q.shape[2], rows):
        few = slice(at, at + rows)
        out[:, :, few] = three_operators(q[:, :, few], k, v)
    return out


# %% tags=["measure", "nbval-ignore-output"]
def ways(tokens):
    q, k, v, *_ = some(tokens)
    few = {
        ch11.at_a_time(n): lambda n=n: sliced(q, k, v, n)
        for n in (FEW, BLOCK_Q)
    }
    return both(tokens) | few | {
        "loop over tiles": lambda: tiled(q, k, v),
        "memory kept": kept(q, k, v),
    }  # fmt: skip


times = {n: turns(ways(n), n) for n in LENGTHS}
at = times[LONG]
loop = bench.Estimate.ratio(at["loop over tiles"], at["three operators"])
written, least = ch11_operators.clocks(chip, "fp32", LONG)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess, model=least / written, measured=loop, unit="×",
    what="loop over three operators", names=("two clocks", "measured"),
    title=ch11.loop_title(loop, LONG),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch11.controls_table(at, LONG, FEW, TILE))

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch11.loop_story(times, SHORT, LONG, FEW, TILE, chip))

# %% tags=["reveal", "nbval-ignore-output"]
ch11.loop_figure(times, FEW)

# %% tags=["hide-input", "nbval-ignore-output"]
callout("takeaway", ch11.takeaway(times, LONG, chip))

# %% [markdown]
# On a GPU torch keeps the memory that it once had, so that a warm operator asks nobody for it. The bytes weigh more there, because
# arithmetic has run away from memory. How much more? The two clocks, by the datasheet, for the same shape (16 bits a number
# on the GPUs; of tiles only inputs and output are counted, as if keys and values that pass again came from a cache):

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch11_operators.chips_table(chip, LONG))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch11_operators.chips_story(times, LONG, chip))

# %% [markdown]
# No row is a measurement. If three operators reach their roofs it is a ceiling, for it lets the fused one reach the peak of the
# arithmetic; operators that miss their roofs may leave more to gain. Measured on GPUs, FlashAttention was 2 to 4 times as fast as
# optimized baselines ([Dao, 2023](https://arxiv.org/abs/2307.08691), abstract).
# On an H100 FlashAttention-2 reaches 35 % of that peak, FlashAttention-3 up to 75 %
# ([Shah and others, 2024](https://arxiv.org/abs/2407.08608), abstract).
#
# ## The memory that is not needed
#
# What moves is one thing, what must exist another. Scores and weights are two times $H\,T\,S$ numbers if all queries go at once.
# They need not: with a few queries at a time whole rows of scores are held, and an ordinary softmax does. What is held then
# grows with
# the number of keys. In tiles the scores that are held do not grow at all.


# %% tags=["hide-input", "nbval-ignore-output"]
def held(way):
    q, k, v, *_ = some(LONG)
    return bench.peak_memory(lambda: way(q, k, v))


peaks = {
    ch11.tiles_of(*TILE): held(tiled),
    ch11.at_a_time(FEW): held(lambda q, k, v: sliced(q, k, v, FEW)),
    ch11.ALL: held(three_operators),
    ch11.ONE: held(scaled_dot_product_attention),
}
table(*ch11.memory_table(peaks, LONG, FEW, TILE))

# %% [markdown]
# Reckoned are scores and weights of what goes at once (in the loop above: a tile and the one before it) and the output. Counted are
# the tensors alive at once while it runs, seen after each operator: in tiles the rows and their running sums come on top.
# What one operator holds while it runs is not seen.
#
# ## Half of it is never computed
#
# A causal mask lets query $i$ read keys up to $i$. Three operators compute all scores and throw half of them away. Tiles
# above the diagonal need not be computed at all: of $n \times n$ square tiles $n(n+1)/2$ are left. A tile that the diagonal touches
# is computed in full, so tiles with more keys than queries leave more: of row $i = 0, 1, \dots$ the first
# $\lceil B_q (i + 1) / B_k \rceil$ tiles.

# %% tags=["hide-input", "nbval-ignore-output"]
threads = torch.get_num_threads()


def on_one(fn):
    """The same, with one thread."""

    def run():
        with bench.threads(1):
            fn()

    return run


def masked_and_not(tokens):
    q, k, v = (x.cpu() for x in some(tokens)[:3])
    fns = {
        name: lambda mask=mask: scaled_dot_product_attention(
            q, k, v, is_causal=mask
        )
        for name, mask in (("causal", True), ("all", False))
    }
    alone = {f"{name}, one core": on_one(fn) for name, fn in fns.items()}
    return bench.compare(fns | alone, repeats=9)


q, k, v, q_pos, k_pos = some(2048)
masked = Traffic()
flash_attention(
    q, k, v, q_pos, k_pos, block_q=BLOCK_Q, block_k=BLOCK_K, traffic=masked
)
took = {n: masked_and_not(n) for n in (1024, 2048, 4096)}
table(*ch11_mask.causal_table(took, *TILE, threads))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch11_mask.causal_story(masked, took, 2048, *TILE, threads))

# %% [markdown]
# A window, a document boundary, a tree of drafts: each is a mask whose empty tiles can be skipped the same way.
# [FlexAttention](https://pytorch.org/blog/flexattention/) takes the rule as a function of two positions and makes the
# kernel and the list of tiles from it.
#
# ## One query, many keys
#
# A [decode](../book/glossary.md#term-decode) step has one query for each sequence and head. Its scores are a single row: there
# is next to nothing to save by tiles. But
# somebody must read all the keys, and one query is one piece of work, for one core of many.

# %% tags=["hide-input", "nbval-check-output"]
table(*ch11_splits.busy_table())

# %% [markdown]
# Llama-3-8B in a decode step, one layer on the 132 cores of an H100; the four query heads of a KV head are one piece of work, since
# they read the same keys. With one user most of the chip would watch. A core takes one piece at a time; more than 132 go in
# waves, and the share is the
# mean over them: with 17 users four pieces make a second wave.
# [split-KV](../book/glossary.md#term-split-KV) (Flash-Decoding,
# [Dao and others, 2023](https://crfm.stanford.edu/2023/10/12/flashdecoding.html)) cuts the keys instead. Each split is
# attention over
# some of the keys, and hands back its output and its log-sum-exp $L_i = m_i + \ln \ell_i$. The share of a split in the
# softmax over all is $e^{L_i}$ over the sum of them:
#
# $$ o = \frac{\sum_i e^{L_i}\, o_i}{\sum_i e^{L_i}} $$
#
# It is the same correction once more, between cores instead of tiles. Up to rounding order does not matter, and merged parts
# can be merged
# again, across chips too.

# %% tags=["nbval-check-output"]
q, k, v, q_pos, k_pos = some(1, 1000)
edges = (0, 10, 10, 500, 1000)  # the second split is empty
found = [
    flash_attention(
        q, k[:, :, a:b], v[:, :, a:b], q_pos, k_pos[:, a:b], causal=False
    )
    for a, b in pairwise(edges)
]
outs, logsums = zip(*reversed(found), strict=True)
together, _ = merge(outs, logsums)
near = off(together, scaled_dot_product_attention(q, k, v))
print("four splits, one of them empty, merged backwards:", near < 1e-5)
assert near < 1e-5

# %% [markdown]
# ## Predict: two splits
#
# One query, one head, 32,768 keys. torch's operator for CPUs hands out heads and
# rows of queries to the cores; here there is one of each. We cut the keys in two and tell it that they are two heads.

# %% tags=["predict"]
cores = torch.get_num_threads()
my_split = guess(
    "11-split",
    f"32,768 keys in two splits, cores: {cores}. Times as fast?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
KEYS, SPLITS = 32768, (1, 2, 4, 8)
q, k, v = (x.cpu() for x in some(1, KEYS, heads=1)[:3])
kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def in_splits(n):
    """Each split as a head of its own, and the merge."""
    shape = (1, n, KEYS // n, DIM)
    outs, logsums = kernel(
        q.expand(1, n, 1, DIM), k.view(shape), v.view(shape)
    )
    if n == 1:
        return outs
    logsums = logsums.reshape(1, n, 1)
    return merge(outs.unbind(1), logsums.unbind(1))[0]


wanted = scaled_dot_product_attention(q, k, v)[:, 0]
assert off(in_splits(8), wanted) < 1e-5
splits = bench.compare(
    {n: lambda n=n: in_splits(n) for n in SPLITS}, repeats=25, inner=20
)
with bench.threads(1):  # the control
    one_core = bench.compare(
        {n: lambda n=n: in_splits(n) for n in (1, 2)}, repeats=25, inner=20
    )
two = bench.Estimate.ratio(splits[1], splits[2])

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_split, model=float(min(2, cores)), measured=two, unit="×",
    what="unsplit over two splits", names=("by cores alone", "measured"),
    title=ch11_splits.splits_title(two, 2), log=False,
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch11_splits.splits_story(splits, one_core, cores))

# %% tags=["reveal", "nbval-ignore-output"]
ch11_splits.splits_figure(splits, cores)

# %% [markdown]
# ## Scores in eight bits
#
# Once a tile is all that exists, its arithmetic may be cheaper than the rest of the model's: queries and keys rounded to
# bytes, one scale for each token, products of bytes summed up in whole numbers. [Tensor
# cores](../book/glossary.md#term-tensor-core) of an A100 or H100 do that at twice the rate of 16
# bits. But keys of real models share an offset: some channels are far from zero for nearly every token, and a scale that must
# reach them leaves few steps for what tells tokens apart. SageAttention
# ([Zhang and others, 2024](https://arxiv.org/abs/2410.02367)) subtracts the mean key first. That adds the same number
# to all scores of a query, and no softmax sees it.
#
# So here, at last, random numbers do not do. The keys of SmolLM2 over 400 tokens of Shakespeare, layer by layer, rounded to a byte
# with one scale a token; queries and values stay as they are. What does that do to each layer's attention? The figure shows one
# excerpt; three more follow in numbers.


# %% tags=["hide-input", "nbval-ignore-output"]
class Notes(DynamicCache):
    """A cache that takes down what every layer asked and stored."""

    def update(self, layer, k, v, pos, q=None):
        self.seen = [*getattr(self, "seen", []), (q, k, v)]
        return super().update(layer, k, v, pos, q)


def rounded(x):
    codes, scale = to_int8(x)
    return codes * scale


def one_exact(keys, at):
    """Rounded keys, but for the one at `at`."""
    found = rounded(keys)
    found[:, :, at] = keys[:, :, at]
    return found


# %% tags=["hide-input", "nbval-ignore-output"]
def of_excerpt(text):
    """Errors by way and layer, and how much smaller the keys became."""
    ids = tokenizer.encode(text)[:400]
    notes = Notes.for_model(model, 1)
    pos = torch.arange(len(ids), device=device)[None]
    model.hidden(torch.tensor([ids], device=device), pos, notes)
    errors, ranges = {}, []
    for q, k, v in notes.seen:
        exact, even = attention(q, k, v, pos, pos), smooth(k, pos)
        keys = {
            "as they are": rounded(k),
            "first exact": one_exact(k, 0),
            "smoothed": rounded(even),
            "smoothed, first exact": one_exact(even, 0),
            "smoothed, second exact": one_exact(even, 1),
        }
        for name, some_keys in keys.items():
            found = off(attention(q, some_keys, v, pos, pos), exact)
            errors.setdefault(name, []).append(found)
        largest = k.abs().amax(-1) / even.abs().amax(-1)
        first, rest = largest[..., 0].mean(), largest[..., 1:].mean()
        ranges.append((float(first), float(rest)))
    return errors, ranges


model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
play = assets.shakespeare()[0]
starts = [len(play) * i // 4 for i in range(4)]
found = [of_excerpt(play[at : at + 2000]) for at in starts]
excerpts, (ranges, *_) = zip(*found, strict=True)
ch11_bits.bits_figure(excerpts[0])

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch11_bits.bits_story(excerpts, ranges))

# %% [markdown]
# The bytes here are made and multiplied in fp32, so this shows the error and not the speed. `lumen.attention.lowbit_attention`
# rounds
# queries, too.
#
# ## Where it loses

# %% tags=["hide-input", "nbval-ignore-output"]
q, k, v, *_ = some(1, LONG)
single = bench.compare(
    {
        "three": lambda: three_operators(q, k, v),
        "one": lambda: scaled_dot_product_attention(q, k, v),
    },
    repeats=25,
    inner=10,
)
alone = bench.Estimate.ratio(single["three"], single["one"])
markdown(ch11_splits.one_query_story(alone, LONG))

# %% [markdown]
# **Who needs the weights.** A fused kernel never has all of them. Caches that throw tokens away by how much they were read,
# pictures of attention, some kinds of alignment: they must compute the scores again, or take the log-sum-exp and make the
# weights of the columns they care for.
#
# **Who needs the same bits.** Tiles, splits and threads change the order of sums. The result differs in the last bits between
# tile sizes, and with the number of splits also between batch sizes
# ([batch invariance](../book/glossary.md#term-batch-invariance)).
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the naive side computes what the mask throws away | part of the gain is the mask's | [no mask](#three-operators) in the comparison; the mask [by itself](#half-of-it-is-never-computed) |
# | short prompts | tiles are useless | lengths from short to long, [in one figure](#predict-a-loop-in-python) |
# | the three ask for new memory at each call | part of the gain is the allocator's | [memory kept](#predict-a-loop-in-python) |
# | prompts where decode is meant | attention of a prompt gains, a decode step does not | [one query](#where-it-loses) is measured apart |
#
# ## Play
#
# Your own tiles. Small ones take many calls from Python and move more. The scores of large ones may leave the caches and may need
# fresh memory. The lab does not tell these apart.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = tiles_lab()

# %% [markdown]
# ## In production
#
# By default a fused kernel is taken where there is one for chip and model. The plain way is left as an option: `off` in llama.cpp,
# `VANILLA` in TensorRT-LLM. What is chosen is the kernel.

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch11.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch11.recap(times, LONG, peaks, FEW, TILE, splits, cores))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("11")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/11_flash_attention.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("11"))

# %% [markdown]
# ## Further reading
#
# - [Online normalizer calculation for softmax](https://arxiv.org/abs/1805.02867) (Milakov and Gimelshein, 2018): read it for
#   the one idea of this chapter, before it was used for attention.
# - [FlashAttention](https://arxiv.org/abs/2205.14135) (Dao and others, 2022): read section 3.2, a proof that no exact
#   attention can move asymptotically less for all sizes of fast memory.
# - [FlashAttention-2](https://arxiv.org/abs/2307.08691) (Dao, 2023): read it for what is left once the bytes are gone: the
#   order of loops, the few operations that are no products, the division of work.
# - [FlashAttention-3](https://arxiv.org/abs/2407.08608) (Shah and others, 2024): read it for tiles that are loaded while
#   others are computed, and for 8 bits.
# - [FlashInfer](https://arxiv.org/abs/2501.01005) (Ye and others, 2025): read it for attention over blocks and batches of
#   unlike requests, and for partial results as a thing that composes.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    chip=chip,
    notes=[
        "fp32; random queries, keys and values, seed 0, but for eight bits"
    ],
)
