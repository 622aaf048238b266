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
# # Solutions 8 · Batching
#
# Six exercises on the [chapter](../chapters/08_batching.ipynb). Each check looks at your own function and says
# NOT STARTED, WRONG and why, or RIGHT. No model is loaded and nothing is timed.

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/08_batching.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/08_batching.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/08_batching.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 92 min · here: [chapter](../chapters/08_batching.ipynb), [exercises](../exercises/08_batching.ipynb)
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

session = lumen.setup("08_batching")

# %%
import random
from collections import deque

import torch

from lumen import cost
from lumen.hardware import CHIPS, hourly
from lumen.models import CONFIGS

grader = lumen.grading.for_chapter("08")

# %% [markdown]
# ## 1 · A step for sixteen
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 10 minutes · 2 points
#
# A model reads 15 GB of weights at each step; a token of context costs it 131,072 bytes of cache; the chip reads 3.35 TB/s, and
# arithmetic is no limit. Sixteen users decode together, each at 4,096 tokens of context.
#
# Give four numbers: the milliseconds of a step when one of them is `"alone"`; of a step for all sixteen `"together"`; the
# `"gain"`, how many times the tokens per second of one user the sixteen get; and the `"ceiling"`, the tokens per second that no batch
# at this context can exceed, however large. Three significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which bytes does a step read once, and which for each user?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Together they take one and a half times as long as one alone.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# (15e9 + users · 4096 · 131072) / 3.35e12. For the ceiling, divide the bytes of a step by the users and let them be very many.
#
# </details>


# %% nbgrader={"grade_id": "step-for-sixteen-answer", "solution": true}
def step_for_sixteen() -> dict[str, float]:
    """Keys: "alone", "together" (ms), "gain" (×), "ceiling" (tokens/s)."""
    ### BEGIN SOLUTION
    cache = 4096 * 131_072
    alone, together = (
        1e3 * (15e9 + users * cache) / 3.35e12 for users in (1, 16)
    )
    return {
        "alone": alone,
        "together": together,
        "gain": 16 * alone / together,
        "ceiling": 3.35e12 / cache,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "step-for-sixteen", "grade": true, "points": 2}
grader.check("step-for-sixteen", step_for_sixteen)

# %% [markdown] tags=["solution-only"]
# Sixteen users get ten and a half times the tokens of one. The ceiling, about 6,200 tokens per second, has no weights in it: at this context
# nobody can buy more with a larger batch, only with a smaller cache.

# %% [markdown]
# ## 2 · The loop with a door
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# Requests are numbered in the order in which they came, and all are there from the start; `lengths[i]` is how many tokens request i
# will get, one per step. At most `slots` run together. Before a step, waiting requests come in, in order, as long as a slot
# is free; with `static=True` only when nobody runs. Whoever has all its tokens leaves after that step.
#
# Return for every step the sorted numbers of the requests that run in it. Fewer than one slot, or a request for fewer than one
# token, is a `ValueError`.
#
# <details><summary>Hint 1: the question again</summary>
#
# When may somebody come in, and when must somebody leave?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# `[3, 1, 4]` in two slots: five steps continuous, seven static.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `if not static or not running:` fill up; note who runs; count everybody down by one; drop those at zero.
#
# </details>


# %% nbgrader={"grade_id": "the-door-answer", "solution": true}
def the_door(
    lengths: list[int], slots: int, static: bool = False
) -> list[list[int]]:
    """For each step the sorted numbers of the requests that run in it."""
    ### BEGIN SOLUTION
    if slots < 1 or any(length < 1 for length in lengths):
        raise ValueError("needs a slot, and a token for every request")
    waiting, running, steps = deque(enumerate(lengths)), {}, []
    while waiting or running:
        if not static or not running:
            while waiting and len(running) < slots:
                name, length = waiting.popleft()
                running[name] = length
        steps.append(sorted(running))
        left = {name: n - 1 for name, n in running.items()}
        running = {name: n for name, n in left.items() if n}
    return steps
    ### END SOLUTION


# %% nbgrader={"grade_id": "the-door", "grade": true, "points": 4}
grader.check("the-door", the_door)

# %% [markdown] tags=["solution-only"]
# The check on lengths is no pedantry. The batcher of the chapter ends a request when its length *is* prompt + n. For n = 0 it has
# passed that mark before it looks, and without the check it would go on.

# %% [markdown]
# ## 3 · A row without pads
#
# **Build** · difficulty 3 of 5 · importance 4 of 5 · 20 minutes · 4 points
#
# Put several prompts into one row of N tokens, one behind the other, without padding. Return the tokens `(N,)`, the position of each in
# *its own* prompt `(N,)`, both int64, and a mask `(N, N)` of booleans: `mask[i, j]` says whether token i may see token j.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which two conditions must hold so that i may see j?
#
# </details>
# <details><summary>Hint 2: a shape to aim at</summary>
#
# Prompts of 3 and 2 tokens: the mask is 5 × 5, two triangles on the diagonal, nine times True.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Same owner, and `pos[:, None] >= pos`. Owners: the number of the prompt, repeated as often as it has tokens.
#
# </details>


# %% nbgrader={"grade_id": "no-pads-answer", "solution": true}
def no_pads(
    prompts: list[list[int]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens (N,), positions (N,) and mask (N, N) of a packed row."""
    ### BEGIN SOLUTION
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    tokens = torch.tensor([token for prompt in prompts for token in prompt])
    pos = torch.cat([torch.arange(n) for n in lengths.tolist()])
    owner = torch.arange(len(prompts)).repeat_interleave(lengths)
    return tokens, pos, (owner[:, None] == owner) & (pos[:, None] >= pos)
    ### END SOLUTION


# %% nbgrader={"grade_id": "no-pads", "grade": true, "points": 4}
grader.check("no-pads", no_pads)

# %% [markdown] tags=["solution-only"]
# The mask has N² entries and most of them say no. That is why `lumen.cache.PackedCache` does not build it: it cuts the row at the
# owners' borders and calls attention for each group. Kernels do the same with a list of borders, `cu_seqlens`.

# %% [markdown]
# ## 4 · The neighbour's die
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# A user complains: the same seed gives another answer whenever the server is busy. Here is how the server draws its random numbers, one
# for each token.


# %%
def broken_draws(requests, slots):
    """A number per token. Requests are (seed, tokens), served in order."""
    streams = [random.Random(seed) for seed, _ in requests[:slots]]
    waiting, running = list(range(len(requests))), []
    drawn = [[] for _ in requests]
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        for slot, name in enumerate(running):
            drawn[name].append(streams[slot].random())
        running = [
            name for name in running if len(drawn[name]) < requests[name][1]
        ]
    return drawn


for company in ([(4, 3)], [(3, 1), (4, 3)]):
    print([round(x, 3) for x in broken_draws(company, 2)[-1]])

# %% [markdown]
# Both lines are the request with seed 4 and three tokens, first alone, then with a neighbour who leaves after one token. Mend the
# function: what a request draws must be what `random.Random(seed)` gives, one number after the other, in any company.
#
# <details><summary>Hint 1: the question again</summary>
#
# Whose is a stream here, and what happens to it when somebody leaves?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# As many streams as requests, not as many as slots.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Make the list over all requests, and index it by `name`.
#
# </details>


# %% nbgrader={"grade_id": "the-neighbours-die-answer", "solution": true}
def mended_draws(
    requests: list[tuple[int, int]], slots: int
) -> list[list[float]]:
    """A number per token. Requests are (seed, tokens), served in order."""
    ### BEGIN SOLUTION
    streams = [random.Random(seed) for seed, _ in requests]
    waiting, running = list(range(len(requests))), []
    drawn = [[] for _ in requests]
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        for name in running:
            drawn[name].append(streams[name].random())
        running = [
            name for name in running if len(drawn[name]) < requests[name][1]
        ]
    return drawn
    ### END SOLUTION


# %% nbgrader={"grade_id": "the-neighbours-die", "grade": true, "points": 3}
grader.check("the-neighbours-die", mended_draws)

# %% [markdown] tags=["solution-only"]
# And then the loop does nothing that matters: `[[stream.random() …] for …]` gives the same without slots or steps. That is what
# *a neighbour never changes a draw* means.

# %% [markdown]
# ## 5 · Four claims about batching
#
# **Literature** · difficulty 3 of 5 · importance 4 of 5 · 12 minutes · 2 points
#
# As one reads them, in our words:
#
# - **a** With 16-bit weights, a decode step for B sequences with short contexts does about B operations for each byte it reads.
# - **b** While the queue is full, continuous batching makes at least twice the tokens per second of static batching.
# - **c** Where the caches of a batch weigh many times what the weights do, a larger batch brings hardly more tokens per second.
# - **d** Reading long prompts together is hardly faster than reading them one after another.
#
# Which one does not hold? And compute a factor of your own: twelve answers of 40, 10, 10, 10, 20, 10, 10, 10, 40, 10, 10 and 10 tokens,
# served in this order with four slots, all waiting from the start. How many times as many steps does static batching take? Three
# significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# Whose factor depends on something that the claim does not name?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Static batching takes 100 steps.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Your function of exercise 2 counts both.
#
# </details>


# %% nbgrader={"grade_id": "batching-claims-answer", "solution": true}
def batching_claims() -> tuple[str, float]:
    """The letter of the wrong claim, and static over continuous steps."""
    ### BEGIN SOLUTION
    lengths = [40, 10, 10, 10, 20, 10, 10, 10, 40, 10, 10, 10]
    static = the_door(lengths, 4, static=True)
    return "b", len(static) / len(the_door(lengths, 4))
    ### END SOLUTION


# %% nbgrader={"grade_id": "batching-claims", "grade": true, "points": 2}
grader.check("batching-claims", batching_claims)

# %% [markdown] tags=["solution-only"]
# Less than two for these twelve, and one if all had 40 tokens. Sort them by length and static batching takes 60 steps as well, but a server
# does not know the lengths of answers before they end.

# %% [markdown]
# ## 6 · A batch that is in time
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Llama-3-8B in bf16 serves users who all hold **8,192 tokens** of context. Nobody may wait longer than **25 ms** for a token. Weights and
# caches may take **90 %** of the card. An A100 80GB SXM costs 1.80 $ an hour, an H100 SXM 3.00 $ and an H200 SXM 3.80 $. Choose the card
# and the batch (1 to 256) with the cheapest million tokens, by the data sheet:
# `cost.predict_decode(llama, CHIPS[card], 8192, batch).seconds` is a step.

# %%
llama = CONFIGS["llama-3-8b"]
prices = hourly("A100 80GB SXM", "H100 SXM", "H200 SXM")
for name, price in prices.items():
    chip = CHIPS[name]
    memory, speed = chip.memory / 1e9, chip.bandwidth / 1e9
    print(f"{name:14} {memory:.0f} GB, {speed:,.0f} GB/s, {price:.2f} $/h")

# %% [markdown]
# <details><summary>Hint 1: the question again</summary>
#
# On each card, what limits the batch first: the memory, or the 25 ms?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# About 27 cents.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `cost.max_batch(llama, chip, 8192, 0.025, reserve=0.1)` for each card, then `cost.cost_per_million_tokens(price, batch / step)`.
#
# </details>


# %% nbgrader={"grade_id": "a-batch-in-time-answer", "solution": true}
def a_batch_in_time() -> dict[str, object]:
    """The set-up: "card" and "batch"."""
    ### BEGIN SOLUTION
    offers = []
    for name, price in prices.items():
        chip = CHIPS[name]
        batch = cost.max_batch(llama, chip, 8192, 0.025, reserve=0.1)
        step = cost.predict_decode(llama, chip, 8192, batch).seconds
        dollars = cost.cost_per_million_tokens(price, batch / step)
        offers.append((dollars, name, batch))
    _, name, batch = min(offers)
    return {"card": name, "batch": batch}
    ### END SOLUTION


# %% nbgrader={"grade_id": "a-batch-in-time", "grade": true, "points": 3}
grader.check("a-batch-in-time", a_batch_in_time)

# %% [markdown] tags=["solution-only"]
# The dearest card by the hour makes the cheapest tokens: it holds most users to share the read of the weights, and reads fastest. Time
# stops it at 97 of the 103 users that fit. A full H100 is in time, its memory sets the batch; a full A100 is in time for nobody.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
