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
# # Solutions 14 · Sparse and linear attention

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/14_sparse_linear.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/14_sparse_linear.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/14_sparse_linear.ipynb)
#
# CPU is enough · read 35 min · run 1 min · practise 105 min · here: [chapter](../chapters/14_sparse_linear.ipynb), [exercises](../exercises/14_sparse_linear.ipynb)
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

session = lumen.setup("14_sparse_linear")

# %%

# %% [markdown]
# Six exercises on [Sparse and linear attention](../chapters/14_sparse_linear.ipynb). Write where it says `YOUR CODE HERE` and run
# the check below it. It says NOT STARTED, WRONG with the case and the likely slip, or RIGHT. Nothing is hidden: the checks are in
# `lumen/grading/sets/ch14.py`. Three significant figures suffice for a number. Everything runs on a CPU in seconds.
# %%
import math

import torch

grader = lumen.grading.for_chapter("14")

# %% [markdown]
# ## 1 · A state against a cache
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 10 minutes · 2 points
#
# The shapes of [Qwen3-Next-80B-A3B](https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct/blob/main/config.json): 48 layers, of
# which every fourth has full attention, with 2 KV heads of width 256, 2 bytes a number. In each of the other 36 a sequence holds
#
# - a state: 32 heads of 128 × 128 numbers, 4 bytes each, as SGLang keeps them by default;
# - what a short convolution over four tokens needs of the tokens before the next one: their channels of q (16 heads of 128), k (16 heads
#   of 128) and v (32 heads of 128), 2 bytes each.
#
# Without running anything:
#
# - `"state"`: how many **MiB** (2²⁰ bytes) does a sequence hold in one linear layer?
# - `"tokens"`: at how many tokens of context does a full layer's cache weigh as much?
# - `"snapshots"`: a state cannot be cut back to a shorter prefix. To use a prompt of 32,768 tokens again from many places, the engine
#   keeps all that the linear layers hold, after every 1,024 tokens, the end of the prompt included. How many **GiB** (2³⁰ bytes) are
#   these 32 snapshots?
#
# <details><summary>Hint 1: the question again</summary>
#
# What stands there whatever the length of the text, and what comes on top with each token?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# The 32 matrices alone take 2 MiB, the convolution's tokens 48 KiB. A token leaves 2 KiB in a full layer.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# A layer: the matrices' numbers at 4 bytes, and three tokens' channels of q, k and v at 2. Divide that by the bytes of a key and a value
# in both KV heads; and take it once for every linear layer and every snapshot.
#
# </details>


# %% nbgrader={"grade_id": "state-or-cache-answer", "solution": true}
def state_or_cache() -> dict[str, float]:
    """ "state" in MiB, "tokens", "snapshots" in GiB."""
    ### BEGIN SOLUTION
    channels = (16 + 16 + 32) * 128
    layer = 32 * 128 * 128 * 4 + 3 * channels * 2
    token = 2 * 2 * 256 * 2
    return {
        "state": layer / 2**20,
        "tokens": layer / token,
        "snapshots": 32 * 36 * layer / 2**30,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "state-or-cache", "grade": true, "points": 2}
grader.check("state-or-cache", state_or_cache)

# %% [markdown] tags=["solution-only"]
# For that prompt 36 more full layers would hold 2.25 GiB, less than the snapshots do. Engines keep them farther apart, or at the
# ends of turns only. A shorter distance than the break-even of the second answer costs more than the cache that it replaces.

# %% [markdown]
# ## 2 · Fades when nobody speaks
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# The gated delta rule for rows of unequal length, one head. A token at position -1 is padding, wherever it stands. What is wanted:
#
# - a token first fades its row's state by `decay`, then writes: under its key comes `beta` times what its value differs from what the
#   faded state gives for the key. Then its query reads the state;
# - padding leaves a row's state as it is, to the last bit, and its output is zeros. Under padding may stand anything, also NaN.
#
# It passed a test without padding and with a decay of 1. There are **two** faults in it.


# %%
def memory_broken(q, k, v, decay, beta, pos, state):
    """q, k (B, T, D); v (B, T, Dv); decay, beta, pos (B, T)."""
    outs = []
    for t in range(q.shape[1]):
        real = pos[:, t, None, None] >= 0
        key, value = (
            k[:, t, :, None],
            v[:, t, None],
        )  # (B, D, 1), (B, 1, Dv)
        known = (key * state).sum(1, keepdim=True)  # (B, 1, Dv)
        write = beta[:, t, None, None] * (value - known)
        state = torch.where(real, state + key * write, state)
        state = decay[:, t, None, None] * state
        out = (q[:, t, :, None] * state).sum(1)
        outs.append(torch.where(real[:, :, 0], out, 0.0))
    return torch.stack(outs, 1), state  # (B, T, Dv), (B, D, Dv)


# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# Which of the two should a fresh write survive untouched, the gate of its own token or that of the next one? And what happens to a row
# that waits while its neighbours go on?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# One channel, an empty state, key 1, value 1, query 1, beta 1, decay 0.5: the output is 1, and after a pad the state is 1 still.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `faded = decay[:, t, None, None] * state` before `known` is read from it; one `torch.where` over the whole new state.
#
# </details>


# %% nbgrader={"grade_id": "fades-in-silence-answer", "solution": true}
def memory_mended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    pos: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (B, T, Dv) and the state behind the last token (B, D, Dv)."""
    ### BEGIN SOLUTION
    outs = []
    for t in range(q.shape[1]):
        real = pos[:, t, None, None] >= 0
        key, value = k[:, t, :, None], v[:, t, None]
        faded = decay[:, t, None, None] * state
        known = (key * faded).sum(1, keepdim=True)
        write = beta[:, t, None, None] * (value - known)
        state = torch.where(real, faded + key * write, state)
        out = (q[:, t, :, None] * state).sum(1)
        outs.append(torch.where(real[:, :, 0], out, 0.0))
    return torch.stack(outs, 1), state
    ### END SOLUTION


# %% nbgrader={"grade_id": "fades-in-silence", "grade": true, "points": 3}
grader.check("fades-in-silence", memory_mended)

# %% [markdown] tags=["solution-only"]
# Both happen. A gate that padding turned is reported in
# [flash-linear-attention issue 1272](https://github.com/fla-org/flash-linear-attention/issues/1272); a mask that was left out when a
# prompt went on, in [transformers pull request 47087](https://github.com/huggingface/transformers/pull/47087). The same tokens with
# other padding then give another answer.

# %% [markdown]
# ## 3 · A text as a map
#
# **Build** · difficulty 4 of 5 · importance 5 of 5 · 25 minutes · 4 points
#
# What the gated delta rule makes of a state S in front of a stretch of text is always keep · S + add, with a matrix `keep` (D, D) and
# a matrix `add` (D, Dv) that depend on the stretch alone. So two chips can take two stretches at the same time, and the second one
# needs no state of the first to begin. Return both for a text of T tokens, one head, fp64. Work by chunks of `chunk` tokens: the map of
# each, and then the maps joined, the earlier chunk first.
#
# - A token fades the state by its `decay`, then writes `beta` · (v − k S) under its key.
# - A chunk of 128 tokens takes fewer than 128 torch operations (views and NumPy not counted), so there is no loop over its tokens.
# - No tensor has T × T numbers when there are many chunks.
# - The last chunk may be shorter; a chunk may be one token, or longer than the text.
# - Keys have any length. A decay may be as small as 10⁻⁴, for hundreds of tokens.
# - Padding has decay 1 and beta 0. All padding gives the unit matrix and zeros to the last bit.
#
# <details><summary>Hint 1: the question again</summary>
#
# In the chapter's `by_chunks` the writes of a chunk solve a triangular system, and S stands on its right-hand side alone. What are the
# writes if S is not known yet, and what do they put into S′?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# One channel, key 1, value 1, beta ½, decay ½, one token: `keep` is ¼, `add` ½. Two such tokens: 1/16 and 5/8.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# Solve the same system for two right-hand sides: βV gives what is written to an empty state, −β·(decay since the chunk's start)·K what
# times S comes on top. Joined: `keep = here @ keep`, `add = here @ add + new`.
#
# </details>


# %% nbgrader={"grade_id": "a-text-as-a-map-answer", "solution": true}
def text_as_map(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """k (T, D); v (T, Dv); decay, beta (T,) -> keep (D, D), add (D, Dv)."""
    ### BEGIN SOLUTION
    unit = torch.eye(k.shape[1], dtype=k.dtype)
    keep, add = unit, v.new_zeros(k.shape[1], v.shape[1])
    for start in range(0, len(k), chunk):
        some = slice(start, start + chunk)
        key, strength = k[some], beta[some, None]
        since = decay[some].log().cumsum(0)  # faded from the chunk's start
        between = (since[:, None] - since).tril().exp()
        fresh, old = (
            strength * v[some],
            strength * since.exp()[:, None] * key,
        )
        writes = torch.linalg.solve_triangular(
            strength * (key @ key.T) * between,
            torch.cat([fresh, -old], 1),
            upper=False,
            unitriangular=True,  # takes the diagonal for ones
        )
        left = (key * (since[-1] - since).exp()[:, None]).T
        new, undone = (left @ writes).split([v.shape[1], k.shape[1]], 1)
        here = since[-1].exp() * unit + undone
        keep, add = here @ keep, here @ add + new
    return keep, add
    ### END SOLUTION


# %% nbgrader={"grade_id": "a-text-as-a-map", "grade": true, "points": 4}
grader.check("a-text-as-a-map", text_as_map)

# %% [markdown] tags=["solution-only"]
# Joining maps is associative, so many chips can join theirs in pairs, as FlashAttention's splits are merged. On one chip only the
# state is carried on: `lumen.attention.linear.chunked` solves both sides in all chunks at once and never builds a D × D map
# ([Yang et al. 2024](https://arxiv.org/abs/2406.06484), section 3.2).

# %% [markdown]
# ## 4 · Few blocks out of many
#
# **Build** · difficulty 4 of 5 · importance 5 of 5 · 25 minutes · 4 points
#
# The chapter's `blocks_read` takes one head and a whole prompt in order. A server has a cache, padding, and heads that share keys. Say
# which keys each query reads under MoBA's rule. Position p lies in block p // `block`.
#
# - A block's score is the product of the query and the mean of the block's keys, of those that are there: some may have been evicted.
# - A query reads `top` blocks. One of them is always its own, there up to itself. The others are the best of those *before* its own;
#   where fewer hold keys, it reads them all. Blocks ahead of it are no candidates.
# - Position -1 is padding: as a query it reads nothing, as a key it is read by nobody and stands in no mean.
# - Keys may lie in any order; the key of every query that is no padding is among them.
# - H query heads share Hkv key heads, neighbours the same one: head h reads key head h // (H / Hkv). Each query head chooses for itself.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which blocks are there at all? Which of them may this query choose from, which one is it given, and which keys lie in what it has?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Sixteen tokens, blocks of four, `top` 2: query 9 reads its own keys 8 and 9, and one of the blocks 0 and 1. Six keys.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# A matrix of blocks × keys says which key lies in which block: times the keys, over its row sums, it gives the means. Scores of the
# blocks from the own one on become `-inf`, then that of the own one `inf`; `topk`, and drop what is `-inf`.
#
# </details>


# %% nbgrader={"grade_id": "few-blocks-answer", "solution": true}
def keys_read(
    q: torch.Tensor,
    k: torch.Tensor,
    q_pos: torch.Tensor,
    k_pos: torch.Tensor,
    block: int,
    top: int,
) -> torch.Tensor:
    """q (H, T, D), k (Hkv, S, D), pos (T,), (S,) -> bool (H, T, S)."""
    ### BEGIN SOLUTION
    k = k.repeat_interleave(len(q) // len(k), 0)  # (H, S, D)
    held = torch.where(k_pos >= 0, k_pos // block, -1)
    own = torch.where(q_pos >= 0, q_pos // block, -1)[:, None]
    blocks = held[held >= 0].unique()  # (N,)
    inside = (held == blocks[:, None]).to(k.dtype)  # (N, S)
    means = inside @ k / inside.sum(1)[:, None]  # (H, N, D)
    scores = q @ means.mT  # (H, T, N)
    scores = scores.masked_fill(blocks >= own, -math.inf)
    scores = scores.masked_fill(blocks == own, math.inf)
    best = scores.topk(min(top, len(blocks)))
    chosen = torch.zeros_like(scores)
    chosen = chosen.scatter(
        2, best.indices, (best.values > -math.inf).double()
    )
    return (chosen @ inside > 0) & (k_pos <= q_pos[:, None])
    ### END SOLUTION


# %% nbgrader={"grade_id": "few-blocks", "grade": true, "points": 4}
grader.check("few-blocks", keys_read)

# %% [markdown] tags=["solution-only"]
# `lumen.attention.sparse.moba_attention` chooses like this and then brings the queries of a block to its keys, so that a prompt
# reads each block once: [Lu et al. 2025](https://arxiv.org/abs/2502.13189), section 2.2.

# %% [markdown]
# ## 5 · Five claims in print
#
# **Literature** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 2 points
#
# As one reads them, in our words. **Three** do not hold as they stand:
#
# - **a** A state of fixed size can be read back however long the text was, so nothing of the text is lost.
# - **b** By chunks, linear attention gives what it gives token by token, up to rounding.
# - **c** NSA, MoBA and DSA make the KV cache smaller.
# - **d** With beta 1 and keys of length 1 the delta rule gives back the value written last exactly, up to rounding, however full
#   the state is.
# - **e** Kimi Linear has three linear layers to one of full attention; so the released model holds a quarter of what full attention
#   would hold, at every length.
#
# Which three? And a number to e: [the paper](https://arxiv.org/abs/2510.26692) says *up to* 75 % less.
# [The released model](https://huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct/blob/main/config.json) has 27 layers. 7 are MLA
# and hold 512 + 64 numbers a token, 2 bytes each. In each of the other 20 a sequence holds a state, 32 heads of 128 × 128 numbers of
# 4 bytes, and three tokens of convolutions over q, k and v, 32 heads of 128 each, 2 bytes a number. Which share does it save at 8,192
# tokens, against 27 MLA layers?
#
# <details><summary>Hint 1: the question again</summary>
#
# What is kept, what is read, what can be told apart: three questions, and three answers in print that take one for another.
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# All 27 layers as MLA hold 243 MiB at 8,192 tokens; a linear layer holds 2.07 MiB.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# What the released model holds, seven layers that grow and twenty that do not, over what 27 layers that grow would hold. The share
# that is saved is the rest.
#
# </details>


# %% nbgrader={"grade_id": "linear-claims-answer", "solution": true}
def linear_claims() -> tuple[str, float]:
    """Letters of the three that do not hold, such as "abc"; the share."""
    ### BEGIN SOLUTION
    latent = (512 + 64) * 2 * 8192
    state = 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2
    return "ace", 1 - (7 * latent + 20 * state) / (27 * latent)
    ### END SOLUTION


# %% nbgrader={"grade_id": "linear-claims", "grade": true, "points": 2}
grader.check("linear-claims", linear_claims)

# %% [markdown] tags=["solution-only"]
# The longer the text, the nearer 20/27. Below about 1,900 tokens this model holds more than 27 MLA layers would: MLA had made the
# cache small already, and a state is measured against that.

# %% [markdown]
# ## 6 · How many full layers?
#
# **Decide** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 3 points
#
# Full layers remember word for word, so as many as can be had are wanted. A model of 48 layers with the shapes of exercise 1: a full
# layer holds 2,048 bytes for each user and token, a linear one 2,146,304 bytes for each user, however long the context. Weights are
# left out. Reckon like this:
#
# - **memory**: what all users hold in all 48 layers is at most `gib` GiB (2³⁰ bytes);
# - **a step** moves keys and values once (they are read) and states twice (read, and written back), at 3.35 TB/s, an H100's bandwidth;
#   it takes at most `ms` milliseconds;
# - `full` is one of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48. A limit that is met exactly is met.
#
# Write the function that chooses the largest `full` that meets both.
#
# <details><summary>Hint 1: the question again</summary>
#
# Does a full layer instead of a linear one always cost more? What do both limits say, for each of the eleven choices?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# One user with 131,072 tokens and 12 full layers holds 3.07 GiB, and a step takes 1.01 ms.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `kv = users * full * 2048 * context`; `states = users * (48 - full) * 2_146_304`; `kv + states` against the memory,
# `(kv + 2 * states) / 3.35e12` against the time.
#
# </details>


# %% nbgrader={"grade_id": "full-layers-answer", "solution": true}
def full_layers(
    users: int, context: int, gib: float, ms: float
) -> dict[str, int]:
    """Key: "full"."""

    ### BEGIN SOLUTION
    def fits(full):
        kv = users * full * 2048 * context
        states = users * (48 - full) * 2_146_304
        seconds = (kv + 2 * states) / 3.35e12
        return kv + states <= gib * 2**30 and 1e3 * seconds <= ms

    some = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    return {"full": max(filter(fits, some))}
    ### END SOLUTION


# %% nbgrader={"grade_id": "full-layers", "grade": true, "points": 3}
grader.check("full-layers", full_layers)

# %% tags=["solution-only"]
loads = ((1, 131_072, 4, 10), (24, 16_384, 20, 3), (64, 1500, 8, 3.5))
for load in (*loads, (200, 600, 12, 6)):
    users, context, gib, ms = load
    print(
        f"{users:3} × {context:7,} in {gib} GiB, {ms} ms:",
        full_layers(*load),
    )

# %% [markdown] tags=["solution-only"]
# With 1,500 tokens a state is smaller than a layer's cache, and yet moves more bytes: it is written back. There 12 full layers are too
# slow and 48 too large. With 600 tokens all layers may be full: a state is worth 1,048 tokens.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
