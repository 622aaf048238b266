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
# # Solutions 2 · The roofline

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/02_roofline.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/02_roofline.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/02_roofline.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 68 min · here: [chapter](../chapters/02_roofline.ipynb), [exercises](../exercises/02_roofline.ipynb)
#
# </div>

# %% [markdown]
# Six exercises on the [chapter](../chapters/02_roofline.ipynb). Each check looks at your own function and says NOT STARTED,
# WRONG and why, or RIGHT. Nothing here is timed, so a slow machine costs no points.

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

session = lumen.setup("02_roofline")

# %%
from lumen import CONFIGS, ModelConfig, cost
from lumen.hardware import CHIPS

grader = lumen.grading.for_chapter("02")

# %% [markdown]
# ## 1 · How many users until arithmetic is the limit?
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 6 minutes · 1 point
#
# An **A100 with 40 GB** does 312 TFLOP/s in bf16 and reads 1,555 GB/s. A model's weights are stored in **8 bits** and are
# unpacked to bf16 in registers, where the arithmetic happens. Contexts are short: leave the cache out.
#
# How many users must share a decode step before arithmetic takes as long as reading the weights? Three significant figures
# are enough here, in 3 and in 4.
#
# <details><summary>Hint 1: the question again</summary>
#
# At which batch do the two clocks of a step agree?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# With 16-bit weights it would be 201.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Each weight costs one byte, whoever uses it, and two FLOPs for every user.
#
# </details>


# %% nbgrader={"grade_id": "users-to-ridge-answer", "solution": true}
def users_to_ridge() -> float:
    """Users at which reading and arithmetic take equally long."""
    ### BEGIN SOLUTION
    ridge = 312e12 / 1555e9  # FLOP per byte
    flops_per_byte_and_user = 2 / 1
    return ridge / flops_per_byte_and_user
    ### END SOLUTION


# %% nbgrader={"grade_id": "users-to-ridge", "grade": true, "points": 1}
grader.check("users-to-ridge", users_to_ridge)

# %% [markdown] tags=["solution-only"]
# The ridge is a property of the chip: 201 FLOP per byte. The intensity per user is a property of the storage: 2 FLOPs for
# 1 byte. With weights in 4 bits it would take about 50 users. So 4-bit weights help most where there are few users: with
# many, and short contexts, the step is past the ridge already.

# %% [markdown]
# ## 2 · The FLOPs of a token, to the last one
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Write `count_flops(config, context)`: the FLOPs of one token that goes through the whole model and sees `context` keys, its
# own among them, exactly. Count every matrix product: projections, attention, MLP, head. Leave out norms, rotations,
# softmax.
#
# A `ModelConfig` has `hidden_size`, `num_heads`, `num_kv_heads`, `head_dim`, `intermediate_size`, `num_layers`,
# `vocab_size`, `mlp` (`"swiglu"`, `"relu"` or `"gelu"`) and `window` (`None`, or the number of keys that a token sees at
# most). Heads need not add up to the hidden size.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which matrices does the token's vector meet on its way, and what does it do with the keys and values of the others?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# SmolLM2 at a context of 777: 322,665,984.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Two FLOPs for each weight of each matrix; and for each key, in each query head, one product with the key and one with the
# value, both `head_dim` long.
#
# </details>


# %% nbgrader={"grade_id": "count-flops-answer", "solution": true}
def count_flops(config: ModelConfig, context: int) -> int:
    """FLOPs of one token that sees `context` keys."""
    ### BEGIN SOLUTION
    width = config.hidden_size
    query_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    projections = (
        width * query_width + 2 * width * kv_width + query_width * width
    )
    mlp_matrices = 3 if config.mlp == "swiglu" else 2
    mlp = mlp_matrices * width * config.intermediate_size
    keys = context if config.window is None else min(context, config.window)
    attention = 2 * query_width * keys
    multiply_adds = (
        config.num_layers * (projections + mlp + attention)
        + width * config.vocab_size
    )
    return 2 * multiply_adds
    ### END SOLUTION


# %% nbgrader={"grade_id": "count-flops", "grade": true, "points": 3}
grader.check("count-flops", count_flops)

# %% [markdown] tags=["solution-only"]
# torch agrees, and it knows nothing of formulas: its counter watches each product of a real forward pass.

# %% tags=["solution-only"]
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

small = CONFIGS["smollm2-135m"].with_(num_layers=2, vocab_size=500)
model = (
    lumen.Llama(small).double().eval()
)  # torch's counter does not know the product of packed fp32 weights
cache = lumen.StaticCache.for_model(model, 1, 16)
with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
    model(torch.zeros(1, 10, dtype=torch.int64), None, cache)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, dtype=torch.int64), None, cache)
print("torch agrees:", counter.get_total_flops() == count_flops(small, 11))

# %% [markdown]
# ## 3 · Does attention dominate beyond 6d?
#
# **Literature** · difficulty 3 of 5 · importance 3 of 5 · 10 minutes · 2 points
#
# Of a kind that introductions to transformer arithmetic print, in our words:
#
# - **a** With multi-head attention and an MLP of two matrices and width $4d$, a token costs $24d^2$ FLOPs per layer, and $4d$
#   more for each key it sees.
# - **b** So from 6d on attention takes more FLOPs than the matrices of a layer. Llama-3-70B has $d$ = 8,192: its crossover
#   is at 49,152 tokens.
# - **c** For a whole causal prefill, the two are equal at twice the crossover of a single token.
# - **d** Sharing KV heads makes the cache smaller, and not the FLOPs of attention.
#
# One of them does not hold. Answer with its letter and the right number: the context in tokens at which one token of
# Llama-3-70B spends as many FLOPs on attention as on the matrices of its layers. Hidden size 8,192, 64 query heads and 8 KV
# heads of width 128, SwiGLU of width 28,672.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which of the statements uses a formula for an architecture it was not made for?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# It lies between 6d and 7d.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Twice the weights of a layer, divided by four times the width of all query heads.
#
# </details>


# %% nbgrader={"grade_id": "crossover-answer", "solution": true}
def crossover() -> tuple[str, float]:
    """The statement that does not hold, and the right crossover."""
    ### BEGIN SOLUTION
    d, kv_width, mlp = 8192, 8 * 128, 28672
    weights = d * d + 2 * d * kv_width + d * d + 3 * d * mlp
    return "b", 2 * weights / (4 * 64 * 128)
    ### END SOLUTION


# %% nbgrader={"grade_id": "crossover", "grade": true, "points": 2}
grader.check("crossover", crossover)

# %% [markdown]
# ## 4 · A dashboard with an impossible MBU
#
# **Debug** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# A colleague's dashboard shows 32 users on one H100, 9.5 ms per step. Its figures were made by this function. Run it.


# %%
def broken_utilisation(
    step: dict[str, float], card: dict[str, float]
) -> tuple[float, float]:
    """MFU and MBU of a decode step."""
    flops = step["parameters"] * step["users"]
    moved = (
        step["parameters"] * step["bytes_per_weight"]
        + step["cache_bytes_per_user"]
    ) * step["users"]
    peak, bandwidth = card["headline_tflops"] * 1e12, card["gb_per_s"] * 1e9
    return flops / (step["seconds"] * peak), moved / (
        step["seconds"] * bandwidth
    )


step = {
    "parameters": 8.03e9,
    "users": 32,
    "seconds": 0.0095,
    "bytes_per_weight": 2.0,
    "cache_bytes_per_user": 268e6,
}
h100 = {
    "headline_tflops": 1978.9,
    "headline_is_sparse": True,
    "gb_per_s": 3350.0,
}
mfu, mbu = broken_utilisation(step, h100)
print(f"MFU {100 * mfu:.1f} %, MBU {100 * mbu:,.0f} %")

# %% [markdown]
# An MBU above 100 % cannot be. The MFU looks harmless, and is wrong too: three faults in all. Write the function again.
# `headline_is_sparse` says whether the data sheet's figure assumes 2:4 sparsity, which these weights do not have.
#
# <details><summary>Hint 1: the question again</summary>
#
# What must one step do and read, once for all users or once for each?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# On these inputs the MFU is four times what the dashboard shows, and the MBU about 77 %.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# A multiply-add is two FLOPs; a sparse headline is twice the dense peak; weights are read once, caches once a user.
#
# </details>


# %% nbgrader={"grade_id": "utilisation-answer", "solution": true}
def utilisation(
    step: dict[str, float], card: dict[str, float]
) -> tuple[float, float]:
    """MFU and MBU of a decode step, as shares."""
    ### BEGIN SOLUTION
    flops = 2 * step["parameters"] * step["users"]
    weights = step["parameters"] * step["bytes_per_weight"]
    caches = step["cache_bytes_per_user"] * step["users"]
    peak = (
        card["headline_tflops"]
        * 1e12
        / (2 if card["headline_is_sparse"] else 1)
    )
    bandwidth = card["gb_per_s"] * 1e9
    return flops / (step["seconds"] * peak), (weights + caches) / (
        step["seconds"] * bandwidth
    )
    ### END SOLUTION


# %% nbgrader={"grade_id": "utilisation", "grade": true, "points": 2}
grader.check("utilisation", utilisation)

# %% [markdown] tags=["solution-only"]
# Two of the faults cut the MFU to a quarter, which nobody questioned because a low MFU is expected in decode. Only the third
# one, which broke a physical limit, was noticed. A percentage that cannot exceed 100 is worth having for that alone.

# %% [markdown]
# ## 5 · The benchmark that measured the cache
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 12 minutes · 2 points
#
# To leave chance out, the machine of this exercise is simulated. `machine.read(start, size)` reads `size` bytes of its 1 GiB
# from address `start` on, `machine.clock()` tells the seconds since it was switched on, which is a while ago, and
# `machine.cache_bytes` is the size of its cache. Each call of `read` costs 2 µs on top. What was read last stays in the cache.
#
# This one's memory delivers 20 GB/s. The benchmark disagrees.

# %%
from lumen.grading.sets.ch02 import Machine


def broken_bandwidth(machine: Machine) -> float:
    """Bytes per second that the memory of `machine` delivers."""
    size, repeats = 2**20, 100
    machine.read(0, size)  # warm up
    start = machine.clock()
    for _ in range(repeats):
        machine.read(0, size)
    return repeats * size / (machine.clock() - start)


machine = Machine(
    memory_rate=20e9, cache_bytes=32 * 2**20, cache_rate=200e9
)
print(f"{broken_bandwidth(machine) / 1e9:.0f} GB/s")

# %% [markdown]
# Mend it, for machines with any cache up to 64 MiB; 3 % off is near enough. Read 2 GiB in all at most.
#
# <details><summary>Hint 1: the question again</summary>
#
# Where did the bytes of the second round come from?
#
# </details>
# <details><summary>Hint 2: a shape to aim at</summary>
#
# Some hundred MiB, in pieces large enough that 2 µs do not count.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# When the array is several times the cache, each byte has been pushed out before it is wanted again.
#
# </details>


# %% nbgrader={"grade_id": "memory-bandwidth-answer", "solution": true}
def memory_bandwidth(machine: Machine) -> float:
    """Bytes per second that the memory of `machine` delivers."""
    ### BEGIN SOLUTION
    size = max(4 * machine.cache_bytes, 2**27)
    # warm up: nothing of the beginning stays in the cache
    machine.read(0, size)
    start = machine.clock()
    machine.read(0, size)
    return size / (machine.clock() - start)
    ### END SOLUTION


# %% nbgrader={"grade_id": "memory-bandwidth", "grade": true, "points": 2}
grader.check("memory-bandwidth", memory_bandwidth)

# %% [markdown] tags=["solution-only"]
# `lumen.hardware.measure()` does the same on your machine: it asks the system for the size of the last-level cache and reads
# several times as much in turn, so that nothing is read from where it was read last.

# %% [markdown]
# ## 6 · Llama-3-70B under 25 ms
#
# **Decide** · difficulty 4 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# "A 70B model in BF16 runs at 24 tokens per second on an H100" is a division: 3.35 TB/s by 140 GB. The card holds 80.
#
# Do better. Serve Llama-3-70B to users who have 4,096 tokens of context each. A token may take **25 ms** at most, and weights
# and caches may fill **90 %** of the memory. Pick a chip, how many of them share the model (1, 2 or 4; count the sum of their
# memory, bandwidth and FLOP/s, and forget that they have to talk), the weights' format and the number of users, 1 to 400.
# Within 5 % of the cheapest price per million tokens is RIGHT.
#
# The time is the chapter's: the longer of FLOPs / peak and bytes / bandwidth, for the whole step. Caches are in bf16, and so
# is the arithmetic, whatever the weights are stored in. Prompts are not part of this. The prices are estimates of mid-2025,
# for this exercise only:
#
# | chip | $ per hour | memory | bandwidth | peak, bf16 |
# | --- | --- | --- | --- | --- |
# | L4 | 0.80 | 24 GB | 0.30 TB/s | 121 TFLOP/s |
# | A100 80GB SXM | 1.80 | 80 GB | 2.04 TB/s | 312 TFLOP/s |
# | H100 SXM | 3.00 | 80 GB | 3.35 TB/s | 989 TFLOP/s |
# | H200 SXM | 3.80 | 141 GB | 4.80 TB/s | 989 TFLOP/s |
#
# They are also in `CHIPS`, and the work of a step is in `cost`:

# %%
llama, chip = CONFIGS["llama-3-70b"], CHIPS["H100 SXM"]
print(f"{chip.price_per_hour:.2f} $, {chip.memory / 1e9:.0f} GB")
for form in ("bf16", "fp8"):
    size = cost.weight_storage(llama, form)
    print(f"weights in {form}: {size / 1e9:.1f} GB")
kept = cost.kv_bytes(llama, 4096, dtype="bf16")
print(f"a user's cache: {kept / 1e9:.3f} GB")
print(f"FLOPs a user: {cost.step_flops(llama, 1, 4096).total / 1e9:.0f} G")

# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# The price of a token is the price of a step divided by its users. What limits the users: memory or time?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# About 0.35 $ per million tokens.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# For each chip, number of cards and format: the users that fit in 90 % of the memory, and those whose step takes 25 ms. The
# smaller number counts.
#
# </details>


# %% nbgrader={"grade_id": "choose-chips-answer", "solution": true}
def choose_chips() -> dict[str, object]:
    """A dict: chip, cards, weights ("bf16" or "fp8"), users."""
    ### BEGIN SOLUTION
    chip, cards = CHIPS["H200 SXM"], 4
    weights = cost.weight_storage(llama, "fp8")
    each = cost.kv_bytes(llama, 4096, dtype="bf16")
    fit = (0.9 * chip.memory * cards - weights) / each
    in_time = (0.025 * chip.bandwidth * cards - weights) / each
    users = int(min(fit, in_time))
    return {
        "chip": chip.name,
        "cards": cards,
        "weights": "fp8",
        "users": users,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "choose-chips", "grade": true, "points": 3}
grader.check("choose-chips", choose_chips)

# %% [markdown] tags=["solution-only"]
# Four H100 with fp8 weights are full at 162 users, and their step takes 21.4 ms: there is time for more, and no room. Four
# A100 hold as many, and have the time for 100. Four H200 have room for 325 and time for 305. Both limits bind somewhere, and
# FLOP/s nowhere: with 4,096 tokens a user every one of these steps lies left of the ridge. What the exercise leaves out, the
# talking between cards, makes four worse than it looks; chapter 27 puts it back in.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
