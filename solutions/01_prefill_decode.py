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
# # Solutions 1 · Prefill and decode

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/01_prefill_decode.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/01_prefill_decode.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/01_prefill_decode.ipynb)
#
# CPU is enough · read 25 min · run 1 min · practise 75 min · here: [chapter](../chapters/01_prefill_decode.ipynb), [exercises](../exercises/01_prefill_decode.ipynb)
#
# </div>

# %% [markdown]
# Six exercises on [the chapter](../chapters/01_prefill_decode.ipynb). Every check looks at your own function and says
# what it gave and what was wanted; run it as often as you like. Three significant figures suffice. None needs a GPU.

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

session = lumen.setup("01_prefill_decode")

# %%
import torch

from lumen import cost, grading, hardware
from lumen.explore import markdown

torch.set_grad_enabled(False)
grader = grading.for_chapter("01")

# %% [markdown]
# ## 1 · The loop, with an end
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# The chapter's loop always runs to token $n$. A chat model ends its answer itself, with a stop id; SmolLM2 has two, 2
# and **0**.
#
# Write `generate`: greedy, at most `n` tokens, ended by any id of `stop_ids`, which is not part of the answer. At most
# one forward pass per token that comes up, the stop id included, and no token goes through the model twice: keep a
# cache. The check hands you a small model and counts.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# The pass that yields a token is not the pass that is given it; the last token is given to none.
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# Five tokens of prompt and n = 6: six passes, of 5, 1, 1, 1, 1, 1 rows. n = 0: none.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# While the answer is shorter than n: run what is new, take the best token of the last row; if it is a stop id, leave;
# otherwise append it, and it is what is new.
#
# </details>


# %% nbgrader={"grade_id": "loop-answer", "solution": true}
def generate(
    model, prompt: list[int], n: int, stop_ids: set[int]
) -> list[int]:
    """At most `n` tokens after `prompt`, up to a stop id.

    model.hidden(tokens, None, cache): (1, T) int64 -> (1, T, D), and the
    cache grows by T; model.head(hidden): (..., D) -> (..., V)
    """
    cache = lumen.DynamicCache.for_model(model, rows=1)
    ### BEGIN SOLUTION
    answer, new = [], list(prompt)
    while len(answer) < n:
        hidden = model.hidden(torch.tensor([new]), None, cache)
        token = int(model.head(hidden[:, -1]).argmax())
        if token in stop_ids:
            break
        answer.append(token)
        new = [token]
    return answer
    ### END SOLUTION


# %% nbgrader={"grade_id": "loop", "grade": true, "points": 4}
grader.check("loop", generate)

# %% [markdown] tags=["solution-only"]
# The condition stands at the top, so n = 0 needs no special case; the pass comes first in the body, so none is left
# over at the end.

# %% [markdown]
# ## 2 · A model you have not got, on a chip you have not got
#
# **Predict** · difficulty 1 of 5 · importance 5 of 5 · 5 minutes · 1 point
#
# 13 billion parameters in 4.5 bits a weight (four, and a scale that some weights share), on an L4 that reads 300 GB/s.
# One user, a short context. What is the least time per token, in **milliseconds**?
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# How long does it take to read all weights once?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# The weights are 7.3 GB.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Parameters times bits per parameter, over eight bits a byte, over bytes per second, times a thousand.
#
# </details>


# %% nbgrader={"grade_id": "time-per-token-answer", "solution": true}
def time_per_token_ms() -> float:
    """Least time per token, in ms."""
    ### BEGIN SOLUTION
    parameters, bits_each, bandwidth = 13e9, 4.5, 300e9
    return 1e3 * parameters * bits_each / 8 / bandwidth
    ### END SOLUTION


# %% nbgrader={"grade_id": "time-per-token", "grade": true, "points": 1}
grader.check("time-per-token", time_per_token_ms)

# %% tags=["solution-only", "hide-input"]
arithmetic_ms = (
    1e3 * cost.approx_token_flops(13e9) / hardware.CHIPS["L4"].peak("bf16")
)
markdown(
    f"7.3 GB / 300 GB/s = {time_per_token_ms():.1f} ms, so no more than {1e3 / time_per_token_ms():.0f} tokens per second "
    f"for one user. The arithmetic of one token, 26 GFLOP, would take {arithmetic_ms:.1f} ms in bf16: it is done while the "
    "weights arrive."
)

# %% [markdown]
# ## 3 · What 2,048 tokens of prompt are worth
#
# **Predict** · difficulty 2 of 5 · importance 4 of 5 · 8 minutes · 2 points
#
# 7 billion parameters in 16 bits, on an A100 that reads 2.0 TB/s (rounded) and does 312 TFLOP/s in 16 bits. A prompt of
# 2,048 tokens is bound by arithmetic (leave attention out), a token of the answer by bandwidth. How many **tokens of
# answer** take as long as the prompt?
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# Time of the prefill over time per token, each at its own bound.
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# The prefill takes about 92 ms.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Write both times as formulas before you put numbers in. What cancels?
#
# </details>


# %% nbgrader={"grade_id": "prompt-in-answers-answer", "solution": true}
def prompt_in_answers() -> float:
    """Tokens of answer that take as long as the prefill of 2,048 tokens."""
    ### BEGIN SOLUTION
    # 2NP/peak over 2N/bandwidth leaves P over the ridge
    return 2048 / (312e12 / 2.0e12)
    ### END SOLUTION


# %% nbgrader={"grade_id": "prompt-in-answers", "grade": true, "points": 2}
grader.check("prompt-in-answers", prompt_in_answers)

# %% tags=["solution-only", "hide-input"]
markdown(
    r"$\dfrac{2NP}{\text{peak}} \Big/ \dfrac{2N}{\text{bandwidth}} = P \cdot \dfrac{\text{bandwidth}}{\text{peak}}$: "
    f"$N$ is gone. {2048:,} / {312 / 2:.0f} = **{prompt_in_answers():.1f}**."
)

# %% [markdown]
# ## 4 · Four sentences to recount
#
# **Literature** · difficulty 3 of 5 · importance 3 of 5 · 12 minutes · 2 points
#
# Two of these are right. The other two were found in published introductions.
#
# - **a.** A decode step of a 7B model in 16 bits reads 14 GB, which takes about 7 ms at 2 TB/s.
# - **b.** An A100 performs 312 trillion multiply-adds per second (data sheet: 312 TFLOP/s, dense), and a 7B model needs
#   about 14 billion of them per token.
# - **c.** The total latency of an answer of $n$ tokens is TTFT + TPOT × $n$, where TPOT is the mean gap between tokens.
# - **d.** Who reads 5 to 10 tokens a second needs a TPOT of 100 to 200 ms.
#
# Return the letters of the wrong ones, and the right total latency in **seconds** for TTFT = 0.5 s, TPOT = 50 ms and 100
# tokens: `("xy", 1.23)`.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# What is being counted, and how many of them are there?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# The total lies between 5.4 and 5.5 s.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# A multiply-add is two operations. A fence of 100 posts has 99 gaps.
#
# </details>


# %% nbgrader={"grade_id": "in-print-answer", "solution": true}
def in_print() -> tuple[str, float]:
    """Letters of the wrong statements, and the right latency in s."""
    ### BEGIN SOLUTION
    return "bc", 0.5 + 0.050 * (100 - 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "in-print", "grade": true, "points": 2}
grader.check("in-print", in_print)

# %% [markdown] tags=["solution-only"]
# b counts operations and calls them multiply-adds, twice, so its ratio of about 22,000 tokens per second survives. c
# counts the first token twice: one TPOT too many, which matters the more the shorter the answer is.

# %% [markdown]
# ## 5 · A loop with three faults
#
# **Debug** · difficulty 3 of 5 · importance 4 of 5 · 15 minutes · 3 points
#
# Three faults, one of them found in print. `step(tokens)` stands for a forward pass: it returns the next token.


# %%
def broken(
    step, prompt: list[int], n: int, stop_ids: set[int]
) -> list[int]:
    """At most `n` tokens after `prompt`, up to a stop id. Leave it."""
    tokens = list(prompt)
    token = step(tokens)
    while True:
        if token and token in stop_ids:
            break
        tokens.append(token)
        token = step(tokens)
        if len(tokens) == len(prompt) + n:
            break
    return tokens[len(prompt) :]


# %% [markdown]
# Write `mended`, with the same promise: at most `n` tokens, up to a stop id (which is not part of the answer), and no
# more calls of `step` than tokens that come up.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# Follow the function for n = 0, for n = 1, and for a stop id 0. Count the calls.
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# n = 0: no call. n = 4 without a stop: 4 calls, where the broken one makes 5.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Ask whether there is room before you make the pass, not after.
#
# </details>


# %% nbgrader={"grade_id": "three-faults-answer", "solution": true}
def mended(
    step, prompt: list[int], n: int, stop_ids: set[int]
) -> list[int]:
    """At most `n` tokens after `prompt`, up to a stop id."""
    ### BEGIN SOLUTION
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        token = step(tokens)
        if token in stop_ids:
            break
        tokens.append(token)
    return tokens[len(prompt) :]
    ### END SOLUTION


# %% nbgrader={"grade_id": "three-faults", "grade": true, "points": 3}
grader.check("three-faults", mended)

# %% [markdown] tags=["solution-only"]
# For n = 0 the length is past its mark when it is first compared, and `==` never holds: only a stop id ends the loop.
# The pass before `break` computes a token that is thrown away. `if token and …` skips the test whenever the token is 0,
# so an answer that ends with id 0 goes on to its limit.

# %% [markdown]
# ## 6 · Twice the FLOP/s, twice the bandwidth or twice the memory?
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# A chatbot serves 8 billion parameters in 16 bits. A token of context leaves 131,072 bytes of keys and values, which
# every later step reads again. Prompts have 2,000 tokens, answers 500. You rent a chip like an H100 (989 TFLOP/s,
# 3.35 TB/s, 80 GB) for 3.00 $ an hour, and one of its three numbers is doubled for nothing: `"flops"`, `"bandwidth"` or
# `"memory"`. You also choose how many users share each step, `batch` from 1 to 512. The promise:
#
# - TPOT of at most 15 ms, when each user has 2,250 tokens: the slower of the chapter's two bounds, with the caches read
#   beside the weights, and attention's own arithmetic left out;
# - weights and caches of 2,500 tokens per user fit into the memory, all of it.
#
# A request keeps the chip busy for its prefill, $2NP$ over the peak, and for its share of 500 steps. Return the
# configuration with the cheapest tokens of answer (within 5 % of the best), `{"twice": ..., "batch": ...}`.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# What stops the batch from growing on each of the three chips? What does a request cost there, prompt included?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# A user's cache is 295 MB in the mean and 328 MB at the end. The prefill takes 32 ms, half of it with twice the FLOP/s.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# For every chip and batch inside the limits: seconds of the prefill, plus 500 times the step over the batch. Take the least.
#
# </details>


# %% nbgrader={"grade_id": "chatbot-answer", "solution": true}
def chatbot() -> dict:
    """The configuration with the cheapest tokens inside the promise."""
    ### BEGIN SOLUTION
    weights, cache, best = 16e9, 131_072, (float("inf"), {})
    for twice in ("flops", "bandwidth", "memory"):
        rates = {"flops": 989e12, "bandwidth": 3.35e12, "memory": 80e9}
        rates[twice] *= 2
        for batch in range(1, 513):
            read = weights + batch * 2250 * cache
            step = max(
                read / rates["bandwidth"], 2 * 8e9 * batch / rates["flops"]
            )
            busy = 2 * 8e9 * 2000 / rates["flops"] + 500 * step / batch
            if (
                step <= 0.015
                and weights + batch * 2500 * cache <= rates["memory"]
            ):
                best = min(
                    best,
                    (busy, {"twice": twice, "batch": batch}),
                    key=lambda one: one[0],
                )
    return best[1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "chatbot", "grade": true, "points": 3}
grader.check("chatbot", chatbot)

# %% tags=["solution-only", "hide-input"]
weights, user, in_time = 16e9, 2250 * 131_072, 0.015 * 3.35e12
users, full = (
    int((in_time - weights) / user),
    int((80e9 - weights) / (2500 * 131_072)),
)
steps = [
    1e3 * 500 * step / batch
    for step, batch in (
        (0.015, users),
        ((weights + full * user) / 6.7e12, full),
    )
]
markdown(
    f"With the bandwidth as it was, 15 ms read {in_time / 1e9:.0f} GB: the weights and {users} "
    f"caches, however many FLOP/s or GB there are. Twice the bandwidth would carry "
    f"{(2 * in_time - weights) / user:.0f} users in that time, and the memory ends before, at {full}. "
    "Each limit stops a chip of its own.\n\n"
    f"Then the bill. A prompt takes {1e3 * 2 * 8e9 * 2000 / 989e12:.0f} ms of arithmetic, and a request's share of its 500 "
    f"steps is {steps[0]:.0f} ms. Twice the FLOP/s halve the first; twice the bandwidth brings the second down to "
    f"{steps[1]:.0f} ms, since it reads faster and more users share it. With one token of answer, twice the FLOP/s "
    "would win."
)

# %% [markdown]
# ## How far you are

# %%
grader.scoreboard()
