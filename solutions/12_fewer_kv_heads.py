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
# # Solutions 12 · Fewer KV heads

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/12_fewer_kv_heads.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/12_fewer_kv_heads.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/12_fewer_kv_heads.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 90 min · here: [chapter](../chapters/12_fewer_kv_heads.ipynb), [exercises](../exercises/12_fewer_kv_heads.ipynb)
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

session = lumen.setup("12_fewer_kv_heads")

# %% [markdown]
# Six exercises on [fewer KV heads](../chapters/12_fewer_kv_heads.ipynb). Write where it says `YOUR CODE HERE` and run the check
# below it. It says NOT STARTED, WRONG with the case and the likely slip, or RIGHT. Nothing is hidden: the checks are in
# `lumen/grading/sets/ch12.py`. Three significant figures suffice for a number. Everything runs on a CPU in seconds.
# %%
import itertools

import torch

grader = lumen.grading.for_chapter("12")

# %% [markdown]
# ## 1 · 128 heads in 576 numbers
#
# **Predict** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# DeepSeek-V3 has 61 layers and 128 heads. A token leaves in each layer a latent of 512 numbers and, beside it, a turned key of 64,
# at 2 bytes a number ([section 4.2](https://arxiv.org/abs/2412.19437)). It runs on eight chips of 141 GB (10⁹ bytes). Its weights take 84 GB
# of each, however the work is dealt out; the rest is for caches, and each user has a context of 50,000 tokens. Without running
# anything:
#
# - `"own heads"`: how many bytes would a token take if each of the 128 heads stored a key and a value of 128 numbers, in every layer, with no
#   turned part?
# - `"every chip"`: each chip computes 16 of the heads, for all users. How many users fit, all chips together?
# - `"a chip each"`: each user is dealt to one chip, which computes all 128 heads for that user. How many fit, all chips together?
#
# <details><summary>Hint 1: the question again</summary>
#
# Which part of a latent does head 5 read? Which part does head 100 read?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# A token's latents take 70,272 bytes, a user's 3.51 GB.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# 2 · 61 · 2 · 128 · 128. A chip has room for (141 − 84) / 3.51 users, rounded down; in one of the two cases every chip has the same users.
#
# </details>


# %% nbgrader={"grade_id": "latent-users-answer", "solution": true}
def latent_users() -> dict[str, float]:
    """Bytes: "own heads". Users: "every chip" and "a chip each"."""
    ### BEGIN SOLUTION
    user = 50_000 * 61 * (512 + 64) * 2
    on_a_chip = (141e9 - 84e9) // user
    return {
        "own heads": 61 * 128 * 2 * 128 * 2,
        "every chip": on_a_chip,
        "a chip each": 8 * on_a_chip,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "latent-users", "grade": true, "points": 2}
grader.check("latent-users", latent_users)

# %% [markdown] tags=["solution-only"]
# Heads of their own would take 57 times the room, and each chip would hold the keys and values of its 16. A latent cannot be dealt
# out. So engines deal out users for attention, and experts for the rest. It has a price that was left out here: each chip then
# needs attention's weights for all heads.

# %% [markdown]
# ## 2 · Heads into fewer heads
#
# **Build** · difficulty 2 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# One matrix makes queries, keys and values: its rows are those of `heads` query heads, then of `held` heads of keys, then of as many
# of values; a head's rows stand together, and all heads are equally wide. Return the matrix, and its bias, of a layer that
# stores `count` heads: each new head of keys, and of values, is the **mean** of those old ones that it replaces, and
# every query head reads the head that took in the one it read before.
#
# - The bias is one number a row, or `None`, and then there is none afterwards either.
# - If the `held` heads cannot be put into `count` equal groups, it is a `ValueError`. So is a `count` below 1.
# - What was handed in stays as it was.
#
# <details><summary>Hint 1: the question again</summary>
#
# Query head $i$ reads stored head $\lfloor i\,H_{kv}/H \rfloor$, before and after. Which old heads does new head 0 stand for?
#
# </details>
# <details><summary>Hint 2: shapes to aim at</summary>
#
# 9 query heads, 3 heads of keys, 3 of values, of width 4: 60 rows. With one of each there are 44.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# `rows.unflatten(0, (count, -1, width)).mean(1).flatten(0, 1)`, for the rows of the keys and those of the values.
#
# </details>


# %% nbgrader={"grade_id": "pool-the-heads-answer", "solution": true}
def pool_the_heads(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    heads: int,
    held: int,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """((heads + 2 held) D, into) -> ((heads + 2 count) D, into)."""
    ### BEGIN SOLUTION
    if count < 1 or held % count:
        raise ValueError(f"{held} heads into {count} groups")
    width = len(weight) // (heads + 2 * held)

    def pooled(rows):
        q, k, v = rows.split([n * width for n in (heads, held, held)])
        groups = (x.unflatten(0, (count, -1, width)) for x in (k, v))
        return torch.cat([q, *(x.mean(1).flatten(0, 1) for x in groups)])

    return pooled(weight), None if bias is None else pooled(bias)
    ### END SOLUTION


# %% nbgrader={"grade_id": "pool-the-heads", "grade": true, "points": 3}
grader.check("pool-the-heads", pool_the_heads)

# %% [markdown] tags=["solution-only"]
# The same lines merge every projection of a model whose layers store keys as they come out of the matrix. RoPE turns all heads
# alike, so a mean before the turn is the mean after it.

# %% [markdown]
# ## 3 · Whose key is it?
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Attention of H query heads over Hkv heads of keys and values, of one width, no mask. Query head $i$ reads stored head
# $\lfloor i\,H_{kv}/H \rfloor$, and a score is divided by the root of a head's width. Queries that read the same head are
# brought together. It passed two tests: 8 heads on 8, and the first token of a model with 8 heads on 1. There are **two** faults in it.


# %%
def grouped_broken(q, k, v):
    """q (B, H, T, D), k and v (B, Hkv, S, D) -> (B, H, T, D)."""
    hidden, stored = q.shape[1] * q.shape[3], k.shape[1]
    width = hidden // stored  # of a head
    groups = q.unflatten(1, (-1, stored))
    scores = groups @ k[:, None].mT / width**0.5
    return (scores.softmax(-1) @ v[:, None]).flatten(1, 2)


# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# Write down, for 9 heads on 3, which stored head each query reads here, and which it should. Then: what can the scale do to a softmax
# over one token?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# Stored heads 0 0 0 1 1 1 2 2 2 for queries 0 to 8. With q of shape (1, 9, 4, 6) the width is 6.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `unflatten(1, (stored, -1))` and `k[:, :, None]`; `hidden` is as wide as all *query* heads.
#
# </details>


# %% nbgrader={"grade_id": "whose-key-answer", "solution": true}
def grouped_mended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """q (B, H, T, D), k and v (B, Hkv, S, D) -> (B, H, T, D)."""
    ### BEGIN SOLUTION
    groups = q.unflatten(1, (k.shape[1], -1))  # (B, Hkv, H / Hkv, T, D)
    scores = groups @ k[:, :, None].mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)
    ### END SOLUTION


# %% nbgrader={"grade_id": "whose-key", "grade": true, "points": 3}
grader.check("whose-key", grouped_mended)

# %% [markdown] tags=["solution-only"]
# Both are from the field. [ONNX pull request 7274](https://github.com/onnx/onnx/pull/7274) replaces keys that are copied in the order of the first; here
# no copy gives it away. A width reckoned as hidden size over heads, where a head is not that wide, is reported in
# [Megatron-LM issue 1501](https://github.com/NVIDIA/Megatron-LM/issues/1501). One stored head hides the first fault, one token the second.

# %% [markdown]
# ## 4 · A step that makes no keys
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# One decode step on a cache of latents with a turned key beside each. B users, H heads, S tokens; every token may be read. Key of head
# $h$: $U_{k,h}\, c$ of D numbers, then the turned key, P numbers, the same for all heads. Value of head $h$: $U_{v,h}\, c$. Queries have
# the same two parts, and both are turned where they have to be. A score is divided by the root of the width of a key.
#
# - Return what attention with all keys and values written out would return, up to rounding.
# - But write none of them out: the check counts FLOPs, and half as many again as this way needs are allowed.
# - S may be 1, a value may have another width than D, and the rank may be smaller than D.
#
# <details><summary>Hint 1: the question again</summary>
#
# $q \cdot (U_k c)$ for thousands of $c$ and one $q$: which product is made once? And what does a weighted mean of $U_v c$ have in common
# with $U_v$ times a weighted mean?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# D = 5, P = 2, rank 11: scores are sums over 11 + 2 products and are divided by √7. Before the way out each head holds 11 numbers.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `inner = einsum("bhd,hdr->bhr", q, up_k)`; scores `inner` on `latents` plus `q_turned` on `turned`, over `(D + P) ** 0.5`; weights on
# `latents`; then `up_v`.
#
# </details>


# %% nbgrader={"grade_id": "absorb-the-latent-answer", "solution": true}
def absorb_the_latent(
    q: torch.Tensor,  # (B, H, D)
    q_turned: torch.Tensor,  # (B, H, P)
    latents: torch.Tensor,  # (B, S, r)
    turned: torch.Tensor,  # (B, S, P)
    up_k: torch.Tensor,  # (H, D, r)
    up_v: torch.Tensor,  # (H, Dv, r)
) -> torch.Tensor:
    """-> (B, H, Dv), fp64 as what is handed in."""
    ### BEGIN SOLUTION
    inner = torch.einsum("bhd,hdr->bhr", q, up_k)
    scores = inner @ latents.mT + q_turned @ turned.mT
    width = q.shape[-1] + q_turned.shape[-1]
    read = (scores / width**0.5).softmax(-1) @ latents
    return torch.einsum("bhr,hdr->bhd", read, up_v)
    ### END SOLUTION


# %% nbgrader={"grade_id": "absorb-the-latent", "grade": true, "points": 4}
grader.check("absorb-the-latent", absorb_the_latent)

# %% [markdown] tags=["solution-only"]
# The wrong scale is from the field: [Ollama pull request 13893](https://github.com/ollama/ollama/pull/13893) puts √256, the root of a key's width, in the place of √576,
# that of an entry in the cache, and names looping answers as what it mends. At position 0 a softmax over one score is 1, and any
# scale passes: test a second position, too.

# %% [markdown]
# ## 5 · Five claims about caches
#
# **Literature** · difficulty 3 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# As one reads them, in our words. **Three** do not hold as they stand:
#
# - **a** DeepSeek's latents, 512 + 64 numbers, take as much as GQA with 2.25 heads of 128 would
#   ([DeepSeek-V2, table 1](https://arxiv.org/abs/2405.04434)).
# - **b** At equal bits a number, MLA makes DeepSeek-V2's cache of a token 93.3 % smaller than DeepSeek 67B's.
# - **c** On one chip MQA shrinks the cache of an MHA model with H heads by a factor of H ([GQA](https://arxiv.org/abs/2305.13245),
#   section 2.2).
# - **d** So it does on each of eight chips that share out 64 heads.
# - **e** A latent as wide as the model halves the cache of multi-head attention.
#
# Which three? And a number: by how many **per cent** is DeepSeek-V2's cache of a token smaller than DeepSeek 67B's, both at 16 bits?
# V2 has 60 layers; 67B has 95 and stores 8 heads of 128.
#
# <details><summary>Hint 1: the question again</summary>
#
# Of each: which two caches are compared, and is anything else different between the two? A model's width and its heads: which
# models do you know where H · D is something else?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# A token of DeepSeek 67B leaves 194,560 numbers. With H = 64 on eight chips, MHA puts 8 heads on each.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# $1 - 60 \cdot 576 / (95 \cdot 2 \cdot 8 \cdot 128)$.
#
# </details>


# %% nbgrader={"grade_id": "cache-claims-answer", "solution": true}
def cache_claims() -> tuple[str, float]:
    """Letters of the three that do not hold, such as "abc"; per cent."""
    ### BEGIN SOLUTION
    return "bde", 100 * (1 - 60 * (512 + 64) / (95 * 2 * 8 * 128))
    ### END SOLUTION


# %% nbgrader={"grade_id": "cache-claims", "grade": true, "points": 2}
grader.check("cache-claims", cache_claims)

# %% [markdown] tags=["solution-only"]
# The abstract's 93.3 % is right for what was deployed: the paper's section 3.2.3 stores 6 bits a number on average, and
# $1 - 6 \cdot 60 \cdot 576 / (16 \cdot 95 \cdot 2{,}048)$ is 93.3 %. It is those who quote it that credit MLA with all of it.

# %% [markdown]
# ## 6 · Heads, latents or layers?
#
# **Decide** · difficulty 4 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# A model of 80 layers with heads of width 128, 141 GB of weights, all 2 bytes a number. There are six of it, trained with other
# caches. The losses are made up:
#
# | cache | stored in a layer | nats lost |
# | --- | --- | --- |
# | `"mha"` | 64 heads | 0 |
# | `"mla"` | 512 + 64 numbers | 0.004 |
# | `"gqa8"` | 8 heads | 0.010 |
# | `"gqa4"` | 4 heads | 0.016 |
# | `"gqa8-cla2"` | 8 heads, in 40 layers | 0.022 |
# | `"mqa"` | 1 head | 0.030 |
#
# It runs on 2, 4, 8 or 16 chips of 80 GB and 3,350 GB/s (H100 SXM, datasheet; 10⁹ bytes). Reckon like this:
#
# - each chip holds an equal part of the weights, and of every user's cache its share of stored heads: heads over chips, rounded
#   **up**. Latents it holds in full;
# - `users` is 1, 2, 4, 8, 16, 32, 64, 128 or 256, each with `context` tokens;
# - a step takes a chip as long as reading all that it holds, and every user gets a token;
# - no more is lost than `most`, a chip holds 80 GB at most, a step takes `limit_ms` at most.
#
# Write the function that chooses `cache`, `chips` and `users` so that a token takes as little **chip time** as it can: chips times step,
# over users.
#
# <details><summary>Hint 1: the question again</summary>
#
# There are 6 · 4 · 9 choices. For each: what does one chip hold of a token?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# A token of `"gqa8"` takes 81,920 bytes on each of four chips, and 40,960 on each of eight or sixteen. With 8,192 tokens, 30 ms and 0.010 nats
# the best takes 1.13 chip-ms a token.
#
# </details>
# <details><summary>Hint 3: the lines</summary>
#
# `token = layers * 2 * -(-heads // chips) * 128 * 2`, or `80 * 576 * 2`; `held = 141e9 / chips + users * context * token`;
# `step = held / 3350e9`.
#
# </details>


# %% nbgrader={"grade_id": "which-cache-answer", "solution": true}
def which_cache(
    context: int, limit_ms: float, most: float
) -> dict[str, str | int]:
    """Keys: "cache", "chips", "users"."""
    ### BEGIN SOLUTION
    caches = {  # heads stored, layers that store, nats
        "mha": (64, 80, 0.0),
        "mla": (None, 80, 0.004),
        "gqa8": (8, 80, 0.010),
        "gqa4": (4, 80, 0.016),
        "gqa8-cla2": (8, 40, 0.022),
        "mqa": (1, 80, 0.030),
    }
    found = []
    counts = [2**n for n in range(9)]
    for name, chips, users in itertools.product(
        caches, (2, 4, 8, 16), counts
    ):
        heads, layers, loss = caches[name]
        numbers = 2 * -(-heads // chips) * 128 if heads else 512 + 64
        held = 141e9 / chips + users * context * layers * numbers * 2
        step = held / 3350e9
        if loss <= most and held <= 80e9 and 1e3 * step <= limit_ms:
            choice = {"cache": name, "chips": chips, "users": users}
            found.append((chips * step / users, len(found), choice))
    return min(found)[-1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "which-cache", "grade": true, "points": 3}
grader.check("which-cache", which_cache)

# %% tags=["solution-only"]
for load in ((1024, 15, 0.005), (2048, 30, 0.005), (65_536, 20, 0.016)):
    print(load, which_cache(*load))

# %% [markdown] tags=["solution-only"]
# Four heads on eight chips are no better than eight: every chip holds one. `mqa` is alone ahead only on two chips with a short context: on four,
# one head of `gqa4` lies on each, too. And from four chips on it is not its bytes that speak for the latent: `gqa8` leaves fewer on each chip.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
