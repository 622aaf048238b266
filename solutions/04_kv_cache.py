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
# # Solutions 4 · The KV cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/04_kv_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/04_kv_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/04_kv_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 100 min · here: [chapter](../chapters/04_kv_cache.ipynb), [exercises](../exercises/04_kv_cache.ipynb)
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

session = lumen.setup("04_kv_cache")

# %% [markdown]
# Six exercises on [the KV cache](../chapters/04_kv_cache.ipynb). Write where it says `YOUR CODE HERE` and run the check
# below it. It says NOT STARTED, WRONG with the case and the likely slip, or RIGHT. Nothing is hidden: the checks are in
# `lumen/grading/sets/ch04.py`. Three significant figures suffice for a number. Everything runs on a CPU in seconds.

# %%
import torch
import torch.nn.functional as F

from lumen.cache import Cache, CacheFull

grader = lumen.grading.for_chapter("04")

# %% [markdown]
# ## 1 · Three numbers for an interview
#
# **Predict** · difficulty 1 of 5 · importance 5 of 5 · 8 minutes · 2 points
#
# Without running anything: how many **bytes** does one token of context cost in
# [Qwen2.5-7B](https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json) and in Llama-2-13B, each with a cache in 16
# bits? And how many **GB** (10⁹ bytes) do the caches of 40 users with 16,384 tokens each take for Llama-3-70B, if they are
# kept in 8 bits?
#
# | model | layers | query heads | KV heads | head width |
# | --- | --- | --- | --- | --- |
# | Qwen2.5-7B | 28 | 28 | 4 | 128 |
# | Llama-2-13B | 40 | 40 | 40 | 128 |
# | Llama-3-70B | 80 | 64 | 8 | 128 |
#
# <details><summary>Hint 1: the question again</summary>
#
# What has to be stored for one token, so that every later token can read it, in every layer?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# One layer of Qwen2.5-7B keeps 4 keys and 4 values of 128 numbers: 2,048 bytes.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# 2 × layers × KV heads × head width × bytes per number; for the users, times tokens times users, over 10⁹.
#
# </details>


# %% nbgrader={"grade_id": "token-prices-answer", "solution": true}
def token_prices() -> dict[str, float]:
    """Bytes: "qwen2.5-7b", "llama-2-13b"; in GB: "40 users"."""
    ### BEGIN SOLUTION
    return {
        "qwen2.5-7b": 2 * 28 * 4 * 128 * 2,
        "llama-2-13b": 2 * 40 * 40 * 128 * 2,
        "40 users": 2 * 80 * 8 * 128 * 1 * 16384 * 40 / 1e9,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "token-prices", "grade": true, "points": 2}
grader.check("token-prices", token_prices)

# %% [markdown] tags=["solution-only"]
# Query heads appear nowhere. Qwen2.5-7B stores one head for seven query heads, Llama-2-13B one for each: it has not twice
# the parameters, and its token costs fourteen times as many bytes. The 40 users need 100 GiB even in 8 bits, more than one
# card of 80 GB holds.

# %% [markdown]
# ## 2 · A cache with reserved slots
#
# **Build** · difficulty 4 of 5 · importance 5 of 5 · 30 minutes · 5 points
#
# The chapter's `MyCache` copies everything to add one token. Write one that does not: memory for `size` tokens per row is
# reserved at the start, and **position p lives in slot p**. Three methods are missing.
#
# - `begin(pos)` comes once per forward, before any layer. `pos` (B, T) holds the positions of the new tokens, −1 for
#   padding. Raise `CacheFull` here when one does not fit.
# - `update(layer, k, v, pos)` stores the new keys and values (B, Hkv, T, D) in place and returns keys, values and
#   `k_pos` (B, S): the position in each slot, −1 where a row holds nothing. S reaches to the longest row and no further.
# - `rewind(lengths)` forgets every position ≥ `lengths` (B,), row by row. It only goes back: a length that a row does not
#   have yet is a `ValueError`, and then nothing changes.
#
# `advance` is inherited: after the last layer it raises `self.lengths` to one past the highest position of each row. The
# check tries chunks, padding on both sides, rows that pause, rewinds and a full cache. And it counts: nothing may be
# copied, nothing unwritten may be read.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which slots of a row will hold a token once this forward is through? You know the lengths before it and the new
# positions.
#
# </details>
# <details><summary>Hint 2: shapes to aim at</summary>
#
# `k_pos` can be made from `arange(S)` (S,) and the lengths after the forward (B, 1): position p where p lies below the
# length, else −1. Real tokens of `pos` are `row, column = (pos >= 0).nonzero(as_tuple=True)`.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# `self.k[layer][row, :, pos[row, column]] = k[row, :, column]` writes all real tokens and no padding. A slice
# `self.k[layer][:, :, :S]` is a view: it costs nothing.
#
# </details>


# %% nbgrader={"grade_id": "slot-cache-answer", "solution": true}
class SlotCache(Cache):
    """`size` reserved slots per row; position p lives in slot p."""

    def __init__(
        self,
        config,
        rows: int,
        size: int,
        dtype=torch.float32,
        device="cpu",
    ):
        shape = (
            config.num_layers,
            rows,
            config.num_kv_heads,
            size,
            config.head_dim,
        )
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.size = size
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos: torch.Tensor) -> None:
        """Is there room for positions pos (B, T)? Then `k_pos`, once."""
        super().begin(pos)
        ### BEGIN SOLUTION
        if int(pos.max()) >= self.size:
            raise CacheFull(
                f"Position {int(pos.max())}, but {self.size} slots."
            )
        after = torch.maximum(self.lengths, pos.amax(1) + 1)
        slots = torch.arange(max(int(after.max()), 1), device=pos.device)
        self.k_pos = torch.where(slots < after[:, None], slots, -1)
        ### END SOLUTION

    def update(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor,
        pos: torch.Tensor,
        q=None,
    ):
        """k, v (B, Hkv, T, D) -> k, v (B, Hkv, S, D), k_pos (B, S)."""
        ### BEGIN SOLUTION
        row, column = (pos >= 0).nonzero(as_tuple=True)
        slot = pos[row, column]
        self.k[layer][row, :, slot] = k[row, :, column]
        self.v[layer][row, :, slot] = v[row, :, column]
        end = self.k_pos.shape[1]
        return (
            self.k[layer][:, :, :end],
            self.v[layer][:, :, :end],
            self.k_pos,
        )
        ### END SOLUTION

    def rewind(self, lengths: torch.Tensor) -> None:
        """Forget every position >= lengths (B,)."""
        ### BEGIN SOLUTION
        lengths = torch.as_tensor(lengths, device=self.lengths.device)
        if bool((lengths > self.lengths).any()):
            raise ValueError(
                f"{lengths.tolist()}, held: {self.lengths.tolist()}"
            )
        self.lengths = lengths.clone()
        ### END SOLUTION


# %% nbgrader={"grade_id": "slot-cache", "grade": true, "points": 5}
grader.check("slot-cache", SlotCache)

# %% [markdown] tags=["solution-only"]
# No table of positions is kept at all, because slot and position are the same number. So `rewind` is one assignment, and
# the stale keys behind the new length need no care: each is written again before a query reaches its position. The price
# is memory that stands reserved, and a row cannot hold positions that are far apart. `lumen.StaticCache` writes padding
# into one slot more, so that the write has the same shape in every step: compiled code needs that.

# %% [markdown]
# ## 3 · Fluent, and wrong in chunks
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# This function passes a test with a whole prompt and one with single tokens. Then somebody switched on chunked prefill, and
# somebody else loaded a model with grouped heads. There are **two** faults in it. Find them and mend them.


# %%
def attend_broken(q, k, v):
    """T newest of S tokens. q (B, H, T, D), k and v (B, Hkv, S, D)."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# Three tokens arrive on a cache of five. Which keys may the first of them read? And which KV head belongs to query head 1
# when three query heads share one?
#
# </details>
# <details><summary>Hint 2: shapes to aim at</summary>
#
# The mask is (T, S), True where a key may be read. For T = 3 and S = 8 its first row has six True.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# `torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)` puts the triangle at the bottom right, and
# `repeat_interleave` repeats each head beside itself.
#
# </details>


# %% nbgrader={"grade_id": "two-new-tokens-answer", "solution": true}
def attend_mended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """q (B, H, T, D), k and v (B, Hkv, S, D) -> (B, H, T, D)."""
    ### BEGIN SOLUTION
    groups, new, total = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(
        total - new
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade_id": "two-new-tokens", "grade": true, "points": 3}
grader.check("two-new-tokens", attend_mended)

# %% [markdown] tags=["solution-only"]
# Both faults are invisible in the commonest test. With T = S the two triangles are one; with T = 1 the broken code asks
# for no triangle; with as many KV heads as query heads, or a single one, tiling and repeating are one. Test with T between
# 1 and S, and with 9 heads on 3. Both come from the field:
# [PyTorch issue 108108](https://github.com/pytorch/pytorch/issues/108108) asks for another alignment, and
# [ONNX pull request 7274](https://github.com/onnx/onnx/pull/7274) replaces the tiling.

# %% [markdown]
# ## 4 · The cache that counts slots
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# This cache works for one prompt at a time. In a padded batch it answers nonsense for the shorter rows, and speculative
# decoding, which takes tokens back, makes it worse. Two methods are wrong. Mend them in a subclass.


# %%
class BrokenCache(Cache):
    """Grows by concatenation, like `MyCache`. Two methods are wrong."""

    def __init__(
        self, config, rows: int, dtype=torch.float32, device="cpu"
    ):
        empty = torch.zeros(
            rows,
            config.num_kv_heads,
            0,
            config.head_dim,
            dtype=dtype,
            device=device,
        )
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers
        self.positions = torch.zeros(
            rows, 0, dtype=torch.int64, device=device
        )
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)
        held = self.positions.shape[1]
        slots = torch.arange(
            held, held + pos.shape[1], device=pos.device
        ).expand_as(pos)
        self.new_positions = torch.cat([self.positions, slots], 1)

    def update(self, layer, k, v, pos, q=None):
        self.k[layer] = torch.cat([self.k[layer], k], 2)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self.new_positions

    def advance(self, pos):
        super().advance(pos)
        self.positions = self.new_positions

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths, device=self.lengths.device)


# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# A row is padded on the left with two holes. At which position does its first real token stand, and in which slot? After
# a rewind to 3, which slots may still be read?
#
# </details>
# <details><summary>Hint 2: shapes to aim at</summary>
#
# `new_positions` is (B, S): one integer per slot and row. The model hands you the positions of the new slots: `pos`
# (B, T), −1 where there is no token. A slot that holds −1 is never read.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# In `begin`: `torch.cat([self.positions, pos], 1)`. In `rewind`: set every entry of `self.positions` that is not below
# the row's new length to −1.
#
# </details>


# %% nbgrader={"grade_id": "slots-and-positions-answer", "solution": true}
class MendedCache(BrokenCache):
    """As above, with the two methods put right."""

    def begin(self, pos: torch.Tensor) -> None:
        """pos (B, T): positions of the new tokens, −1 for padding."""
        Cache.begin(self, pos)
        ### BEGIN SOLUTION
        self.new_positions = torch.cat([self.positions, pos], 1)
        ### END SOLUTION

    def rewind(self, lengths: torch.Tensor) -> None:
        """Forget every position >= lengths (B,)."""
        ### BEGIN SOLUTION
        self.lengths = torch.as_tensor(lengths, device=self.lengths.device)
        self.positions = self.positions.masked_fill(
            self.positions >= self.lengths[:, None], -1
        )
        ### END SOLUTION


# %% nbgrader={"grade_id": "slots-and-positions", "grade": true, "points": 3}
grader.check("slots-and-positions", MendedCache)

# %% [markdown] tags=["solution-only"]
# A slot says where a key lies, a position says what it is. Code that infers one from the other works until the first hole.
# Here a rewind *must* hide: the forgotten keys keep their slots, and new tokens with the same positions come behind them,
# so both would be read. In exercise 2 it need not, because there the new token overwrites the old one.

# %% [markdown]
# ## 5 · "The cache saves 256×"
#
# **Literature** · difficulty 2 of 5 · importance 4 of 5 · 12 minutes · 2 points
#
# Numbers such as these circulate in introductions. **Two** of the four statements do not hold as they stand. Which? And by
# what factor does a cache cut the computed rows for an answer of 8 tokens behind a prompt of 20? Count as the
# chapter's formula does: the prompt's own pass gives the first token, each further pass one more.
#
# - **a** Without a cache and behind a single token, an answer of 512 tokens runs 512 · 513 / 2 rows through the model.
# - **b** Whatever the prompt, a cache cuts the rows for an answer of 512 tokens by a factor of about 256.
# - **c** For an answer of one token a cache does not cut the work at all.
# - **d** A token of context costs 320 KiB in Llama-2-70B in 16 bits, so 100 users with 4,096 tokens each need 131 GB.
#
# <details><summary>Hint 1: the question again</summary>
#
# For each statement: does it hold for every prompt, and in its unit?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# With a cache 20 + 7 rows are computed. Without one it is fewer than 200.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# $(nP + n(n-1)/2) \,/\, (P + n - 1)$, with $n$ tokens of answer and $P$ of prompt.
#
# </details>


# %% nbgrader={"grade_id": "saves-256-answer", "solution": true}
def saves_256() -> tuple[str, float]:
    """Letters of the two that do not hold, such as "ac"; the factor."""
    ### BEGIN SOLUTION
    answer, prompt = 8, 20
    without = answer * prompt + answer * (answer - 1) / 2
    return "bd", without / (prompt + answer - 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "saves-256", "grade": true, "points": 2}
grader.check("saves-256", saves_256)

# %% [markdown] tags=["solution-only"]
# Statement b is right for a prompt of one token; behind a prompt the factor is larger. Statement d mixes units: 320 KiB are
# 327.68 kB. A slip of 2.4 % is small; the same habit costs 7 % between GiB and GB.

# %% [markdown]
# ## 6 · Cards for a load
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Llama-3-70B with bf16 weights shall serve `users` at once, each with `context` tokens. Write the function that chooses the
# chip, how many of them (tensor parallelism wants 1, 2, 4 or 8), and the format of the cache, so that
#
# - weights and all caches fit into 90 % of the cards' memory;
# - a decode step takes 25 ms at most, counted as these bytes over the bandwidth of all cards (real steps take longer);
# - the price per hour is as low as it can be.
#
# | chip | memory | bandwidth | $ per hour |
# | --- | --- | --- | --- |
# | A100 80GB SXM | 80 GB | 2.039 TB/s | 1.80 |
# | H100 SXM | 80 GB | 3.35 TB/s | 3.00 |
# | H200 SXM | 141 GB | 4.8 TB/s | 3.80 |
#
# Prices are estimates to reckon with (`lumen.hardware.CHIPS` says whence). What fp8 does to the answers is the subject of
# a later chapter; take it as given that you have checked.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which choices fit at all? Of these, which read their bytes in time? Only then look at the price.
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# The weights are 141 GB. 64 users of 8,192 tokens have 172 GB of caches in bf16 and half of that in fp8.
#
# </details>
# <details><summary>Hint 3: the line</summary>
#
# `cost.weight_storage(big, "bf16") + cost.kv_bytes(big, context, users, kv)` against `0.9 * count * card.memory`, and over
# `count * card.bandwidth` against 0.025 s, for all 24 combinations.
#
# </details>

# %%
from lumen import cost, hardware
from lumen.models import CONFIGS

PRICES = hardware.hourly("A100 80GB SXM", "H100 SXM", "H200 SXM")


# %% nbgrader={"grade_id": "sixty-four-users-answer", "solution": true}
def cards_for(users: int, context: int) -> dict[str, object]:
    """Keys: "chip", "count" (1, 2, 4, 8), "kv" ("bf16", "fp8")."""
    ### BEGIN SOLUTION
    big, found = CONFIGS["llama-3-70b"], []
    for chip, price in PRICES.items():
        for count in (1, 2, 4, 8):
            for kv in ("bf16", "fp8"):
                card = hardware.CHIPS[chip]
                held = cost.weight_storage(big, "bf16") + cost.kv_bytes(
                    big, context, users, kv
                )
                fits = held <= 0.9 * count * card.memory
                if fits and held / (count * card.bandwidth) <= 0.025:
                    found.append(
                        (
                            count * price,
                            {"chip": chip, "count": count, "kv": kv},
                        )
                    )
    return min(found, key=lambda one: one[0])[1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "sixty-four-users", "grade": true, "points": 3}
grader.check("sixty-four-users", cards_for)

# %% tags=["solution-only"]
for users, context in ((8, 8192), (64, 8192), (32, 32_768), (300, 8192)):
    best = cards_for(users, context)
    price = best["count"] * PRICES[best["chip"]]
    print(f"{users:3} × {context:6,}: {best} for ${price:.2f}")

# %% [markdown] tags=["solution-only"]
# For 64 users of 8,192 tokens two H200 with an fp8 cache are the cheapest. In bf16 the caches do not fit beside the weights
# on two cards of any kind; eight A100 are then the cheapest, for nearly twice the price. Four A100 with fp8 fit and cost
# less than two H200, but need 28 ms: the bytes are the same, the bandwidth is not. For eight users four A100 are enough.

# %%
grader.scoreboard()
