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
# # Solutions 11 · FlashAttention

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/11_flash_attention.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/11_flash_attention.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/11_flash_attention.ipynb)
#
# CPU is enough · read 30 min · run 2 min · practise 90 min · here: [chapter](../chapters/11_flash_attention.ipynb), [exercises](../exercises/11_flash_attention.ipynb)
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

session = lumen.setup("11_flash_attention")

# %%

# %% [markdown]
# Six exercises on [FlashAttention](../chapters/11_flash_attention.ipynb). Write where it says `YOUR CODE HERE` and run the check
# below it. It says NOT STARTED, WRONG with the case and the likely slip, or RIGHT. Nothing is hidden: the checks are in
# `lumen/grading/sets/ch11.py`. Three significant figures suffice for a number. Everything runs on a CPU in seconds.
# %%
import math

import torch

grader = lumen.grading.for_chapter("11")

# %% [markdown]
# ## 1 · What a tile saves, and what it holds
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 10 minutes · 2 points
#
# Attention of one layer: 16 heads of width 128, a prompt of 16,384 tokens, 2 bytes a number, no mask, every head with keys and
# values of its own. Without running anything:
#
# - `"written out"`: how many **GB** (10⁹ bytes) move when scores and weights are written and read? Every operator reads its
#   inputs from memory and writes its output there; scaling is part of the first product.
# - `"in tiles"`: how many GB in tiles of 128 queries? Leave the log-sum-exp out.
# - `"keys in a tile"`: a core has 228 KB (228 · 1,024 bytes) of fast memory. In it must stand, for one head, the tile of 128
#   queries (2 bytes a number), the running output of 128 × 128 (4 bytes a number), and the tile's keys and values (2 bytes). Scores
#   stay in registers. How many keys fit?
#
# <details><summary>Hint 1: the question again</summary>
#
# How often does a score cross the border to memory? And how often does a key, when its queries come in groups of 128?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# All scores of all heads are 8.59 GB. There are 128 rows of tiles. The queries of a tile take 32 KiB, the running output 64.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# $b H (4TD + 4T^2)$; $b H (2TD + T / B_q \cdot 2TD)$; (228 − 32 − 64) KiB over the bytes of a key and a value.
#
# </details>


# %% nbgrader={"grade_id": "bytes-in-tiles-answer", "solution": true}
def bytes_in_tiles() -> dict[str, float]:
    """In GB: "written out", "in tiles"; and "keys in a tile"."""
    ### BEGIN SOLUTION
    tokens, width, heads, rows = 16_384, 128, 16, 128
    ends = 2 * tokens * width  # queries and output
    pairs = 2 * tokens * width  # keys and values
    return {
        "written out": 2 * heads * (ends + pairs + 4 * tokens**2) / 1e9,
        "in tiles": 2 * heads * (ends + tokens / rows * pairs) / 1e9,
        "keys in a tile": (228 - 32 - 64) * 1024 / (2 * width * 2),
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "bytes-in-tiles", "grade": true, "points": 2}
grader.check("bytes-in-tiles", bytes_in_tiles)

# %% [markdown] tags=["solution-only"]
# Only half is saved! For long prompts the share is $D / 2B_q$, and here $B_q = D$. On a chip that share counts what goes into the
# cores; the keys and values of one head are 8.4 MB, and the second row of tiles may find them in the L2 cache. Twice the rows
# would halve it again, but their running output takes the room of the keys.

# %% [markdown]
# ## 2 · A softmax over a stream
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# One query. Its scores and the values come in pieces, from an iterator: each piece is a pair of scores (n,) and values (n, D),
# fp64. **The memory of a piece is used again for the next one**, so what you need of it you must have taken before you ask for the next.
# Return the output (D,) and the log-sum-exp of all scores, a float.
#
# - n may differ from piece to piece, and may be 0.
# - A masked score is `-inf`. A whole piece may be masked, also the first. One score at least is finite.
# - Scores may be as large as thousands, on either side of zero.
#
# <details><summary>Hint 1: the question again</summary>
#
# What must you know of all pieces so far, so that the next one can be added? What of it changes when a larger score comes?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Scores 0 and ln 3 with values 1 and 5, in two pieces: the output is 4, the log-sum-exp ln 4.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `shrink = (most - larger).exp()`; `total = shrink * total + weights.sum()`; the same for the weighted values. As long as `larger`
# is `-inf` there is nothing to add.
#
# </details>


# %% nbgrader={"grade_id": "softmax-of-a-stream-answer", "solution": true}
def softmax_of_a_stream(pieces) -> tuple[torch.Tensor, float]:
    """Pairs of scores (n,), values (n, D) -> output (D,), log-sum-exp."""
    ### BEGIN SOLUTION
    most = torch.tensor(-math.inf, dtype=torch.float64)
    total, sums = 0.0, 0.0
    for scores, values in pieces:
        if not len(scores) or scores.max() == -math.inf:
            continue
        larger = torch.maximum(most, scores.max())
        weights, shrink = (scores - larger).exp(), (most - larger).exp()
        total = shrink * total + weights.sum()
        sums = shrink * sums + weights @ values
        most = larger
    return sums / total, float(most + total.log())
    ### END SOLUTION


# %% nbgrader={"grade_id": "softmax-of-a-stream", "grade": true, "points": 4}
grader.check("softmax-of-a-stream", softmax_of_a_stream)

# %% [markdown] tags=["solution-only"]
# A masked piece is skipped here; with a mask inside a tile of many queries one cannot skip, and `-inf - -inf` has to be avoided
# query by query. `lumen.attention.flash_attention` subtracts 0 where nothing was seen yet.

# %% [markdown]
# ## 3 · One answer out of many
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# The keys of one query were cut into splits, and each split came back with its output (D,), fp64, and its log-sum-exp, a float. Return
# the output over all keys and the log-sum-exp of all. Reckon in fp64.
#
# - A split that saw nothing has zeros and `-inf`. If all saw nothing, so is the result.
# - Log-sum-exps may be as large as thousands, on either side of zero.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which share of the whole softmax lies in a split?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Outputs 1 and 5 with log-sum-exps 0 and ln 3: the output is 4, the log-sum-exp ln 4.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# Shares are `exp(lse - largest)`, over their sum; the log-sum-exp is `largest + log(sum)`.
#
# </details>


# %% nbgrader={"grade_id": "merge-the-splits-answer", "solution": true}
def merge_the_splits(
    outs: list[torch.Tensor], lses: list[float]
) -> tuple[torch.Tensor, float]:
    """Outputs (D,) and their log-sum-exps -> output (D,), log-sum-exp."""
    ### BEGIN SOLUTION
    largest = max(lses)
    if largest == -math.inf:
        return torch.zeros_like(outs[0]), -math.inf
    shares = [math.exp(lse - largest) for lse in lses]
    out = sum(share * one for share, one in zip(shares, outs, strict=True))
    return out / sum(shares), largest + math.log(sum(shares))
    ### END SOLUTION


# %% nbgrader={"grade_id": "merge-the-splits", "grade": true, "points": 3}
grader.check("merge-the-splits", merge_the_splits)

# %% [markdown] tags=["solution-only"]
# Two empty parts that merge to no number are from the field:
# [FlashInfer issue 4051](https://github.com/flashinfer-ai/flashinfer/issues/4051), open when this was written. By
# [pull request 5262](https://github.com/flashinfer-ai/flashinfer/pull/5262), open as well, the CUDA kernels mask it already, and the
# Triton ones do not yet. Merging is associative, so the same function
# merges tiles, splits, cores and chips.

# %% [markdown]
# ## 4 · Right in one tile
#
# **Debug** · difficulty 4 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# Causal attention of one head, keys in tiles of `block`. The queries are the *newest* tokens: the last query stands at the position of
# the last key. It passed a test with a whole prompt in one tile. Scores may be as large as thousands. There are **two** faults in
# it. Mend them, or write it anew: any way of computing it will do, in tiles or not.


# %%
def tiles_broken(q, k, v, block):
    """q (T, D): the newest T of S tokens; k and v (S, D) -> (T, D)."""
    new, held = len(q), len(k)
    at = torch.arange(new)[:, None]
    most = q.new_full((new, 1), -math.inf)
    total, sums = torch.zeros_like(most), torch.zeros_like(q)
    for start in range(0, held, block):
        keys = torch.arange(start, min(start + block, held))
        if start > at[-1]:
            break  # nobody can read that far
        scores = q @ k[start : start + block].T / q.shape[1] ** 0.5
        scores = scores.masked_fill(keys > at, -math.inf)
        larger = torch.maximum(most, scores.amax(1, keepdim=True))
        weights = (scores - larger).exp()
        total = total * (most - larger).exp()
        total = total + weights.sum(1, keepdim=True)
        sums = sums + weights @ v[start : start + block]
        most = larger
    return sums / total


# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# Five new tokens on a cache of twelve: at which position does the first of them stand? And what has to happen to *everything* that
# was summed up, when a larger score comes?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# With 5 queries and 17 keys the positions of the queries are 12 to 16.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `at = torch.arange(held - new, held)[:, None]`, and `sums` shrinks by the factor by which `total` does.
#
# </details>


# %% nbgrader={"grade_id": "right-in-one-tile-answer", "solution": true}
def tiles_mended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int
) -> torch.Tensor:
    """q (T, D): the newest T of S tokens; k and v (S, D) -> (T, D)."""
    ### BEGIN SOLUTION
    new, held = len(q), len(k)
    at = torch.arange(held - new, held)[:, None]
    most = q.new_full((new, 1), -math.inf)
    total, sums = torch.zeros_like(most), torch.zeros_like(q)
    for start in range(0, held, block):
        keys = torch.arange(start, min(start + block, held))
        scores = q @ k[start : start + block].T / q.shape[1] ** 0.5
        scores = scores.masked_fill(keys > at, -math.inf)
        larger = torch.maximum(most, scores.amax(1, keepdim=True))
        weights = (scores - larger).exp()
        shrink = (most - larger).exp()
        total = shrink * total + weights.sum(1, keepdim=True)
        sums = shrink * sums + weights @ v[start : start + block]
        most = larger
    return sums / total
    ### END SOLUTION


# %% nbgrader={"grade_id": "right-in-one-tile", "grade": true, "points": 3}
grader.check("right-in-one-tile", tiles_mended)

# %% [markdown] tags=["solution-only"]
# With one tile nothing shrinks; with as many queries as keys `held - new` is 0. The `break` goes with the first fault: with right positions
# the last query reads to the end. Skipping tiles pays where queries come in tiles, too.

# %% [markdown]
# ## 5 · Five claims in print
#
# **Literature** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# As one reads them, in our words. **Three** do not hold as they stand:
#
# - **a** It is fast because it needs fewer floating-point operations.
# - **b** It approximates nothing: with exact arithmetic its result would be that of the plain way.
# - **c** In 16 bits, too, its output is that of the plain way, bit for bit.
# - **d** In a decode step with one query a sequence it saves as large a share of the bytes as for a long prompt.
# - **e** Beyond inputs and output the memory it needs for a head does not grow with the square of the prompt.
#
# Which three? And a number: 4,096 tokens under a causal mask, tiles of 128 × 128. Which share of the tiles has to be computed?
#
# <details><summary>Hint 1: the question again</summary>
#
# Operations, bytes, bits: which of the three does it change, and which only their order?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# There are 32 × 32 tiles, 32 of them on the diagonal.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# $n(n+1)/2$ of $n^2$.
#
# </details>


# %% nbgrader={"grade_id": "flash-claims-answer", "solution": true}
def flash_claims() -> tuple[str, float]:
    """Letters of the three that do not hold, such as "abc"; the share."""
    ### BEGIN SOLUTION
    tiles = 4096 // 128
    return "acd", tiles * (tiles + 1) / 2 / tiles**2
    ### END SOLUTION


# %% nbgrader={"grade_id": "flash-claims", "grade": true, "points": 2}
grader.check("flash-claims", flash_claims)

# %% [markdown] tags=["solution-only"]
# The longer the prompt, the nearer the share comes to a half, from above.

# %% [markdown]
# ## 6 · How many splits?
#
# **Decide** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 3 points
#
# One layer of Llama-3-8B in a decode step on an H100: 8 KV heads, and for each a key and a value of 128 numbers in 16 bits, 512 bytes a
# token. Each user and KV head is one piece of work, `splits` times as many if the keys are cut. Reckon like this:
#
# - 132 cores take pieces in waves: as many waves as pieces over cores, rounded up;
# - a wave takes 2 µs to start and the time to read a split's keys and values (context over splits) at 25.4 GB/s, a core's share of
#   the bandwidth;
# - if there is more than one split, the merge takes 3 µs more;
# - a split has 256 keys at least.
#
# Write the function that chooses `splits` out of 1, 2, 3, 4, 6, 8, 12, 16, 24 and 32, so that the layer takes as little time as it can.
#
# <details><summary>Hint 1: the question again</summary>
#
# How many waves are there, and how long is one? What happens to both when there is a split more?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# One user with 32,768 tokens: 663 µs in one piece a head, 46.3 µs in 16 splits.
#
# </details>
# <details><summary>Hint 3: the way</summary>
#
# Write the time as a function of `splits`: waves (`math.ceil`) times what one wave takes, and the merge. Drop the choices with too
# few keys; of what is left take the best.
#
# </details>


# %% nbgrader={"grade_id": "how-many-splits-answer", "solution": true}
def how_many_splits(users: int, context: int) -> dict[str, int]:
    """Key: "splits"."""

    ### BEGIN SOLUTION
    def seconds(splits):
        waves = math.ceil(users * 8 * splits / 132)
        read = context / splits * 512 / 25.4e9
        return waves * (2e-6 + read) + 3e-6 * (splits > 1)

    some = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    fit = [splits for splits in some if context / splits >= 256]
    return {"splits": min(fit, key=seconds)}
    ### END SOLUTION


# %% nbgrader={"grade_id": "how-many-splits", "grade": true, "points": 3}
grader.check("how-many-splits", how_many_splits)

# %% tags=["solution-only"]
for users, context in ((1, 32_768), (4, 8192), (16, 8192), (17, 16_384)):
    print(f"{users:3} × {context:6,}: {how_many_splits(users, context)}")

# %% [markdown] tags=["solution-only"]
# 16 users are 128 pieces of work for 132 cores: any split starts a second wave, and none gains anything. 17 users are 136
# pieces: without splits four of them make the whole chip wait for a second wave.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
