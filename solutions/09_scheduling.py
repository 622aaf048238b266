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
# # Solutions 9 · Scheduling
#
# Six exercises on the [chapter](../chapters/09_scheduling.ipynb). Each check looks at your own function and says NOT STARTED, WRONG
# and why, or RIGHT. No model is loaded and nothing is timed.

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/09_scheduling.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/09_scheduling.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/09_scheduling.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 96 min · here: [chapter](../chapters/09_scheduling.ipynb), [exercises](../exercises/09_scheduling.ipynb)
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

session = lumen.setup("09_scheduling")

# %% tags=["hide-input"]
from lumen import cost
from lumen.hardware import CHIPS
from lumen.models import CONFIGS

grader = lumen.grading.for_chapter("09")

# %% [markdown]
# ## 1 · The plan of one step
#
# **Build** · difficulty 4 of 5 · importance 5 of 5 · 30 minutes · 5 points
#
# A request is `(name, total, computed, left)`: tokens known, tokens whose keys and values lie in its blocks, tokens still to be
# sampled. `running` and `waiting` are lists in order of rank, best first. A step computes `budget` tokens at most, `slots` requests
# run at most, the pool has `pool` blocks of `size` positions, and `free` of them are free.
#
# Return the plan: `(name, count)` for everybody who gets tokens, running requests first, each list in its order.
#
# - A running request that is one token behind gets it. These tokens are set aside before anybody else is served.
# - A running request further behind gets what is left of the budget, in order of rank. Running requests have all their blocks already.
# - The queue is let in from its head while slots, budget and blocks last. A waiting request needs blocks for all of `total`; those of its
#   `computed` tokens, a prefix hit in whole blocks, it has. If the head does not fit, nobody is let in.
# - A waiting request that can never fit raises `ValueError`, wherever it stands in the queue and before anything is planned. At its
#   end it holds `total + left - 1` positions: the last token is never fed.
#
# You may assume that `budget` is at least `slots`.
#
# <details><summary>Hint 1: the question again</summary>
#
# Who may spend which part of the budget, and in which order?
#
# </details>
# <details><summary>Hint 2: a plan to aim at</summary>
#
# `running = [("c", 100, 28, 5), ("a", 41, 40, 9)]` and a budget of 16: `[("c", 15), ("a", 1)]`. The one further behind ranks first, and
# leaves the other its token.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# `room` starts as the budget less the number of running requests that are one token behind; everything else is `min(gap, room)`.
#
# </details>


# %% nbgrader={"grade_id": "one-step-answer", "solution": true}
def one_step(
    running: list[tuple[str, int, int, int]],
    waiting: list[tuple[str, int, int, int]],
    budget: int,
    slots: int,
    pool: int,
    free: int,
    size: int,
) -> list[tuple[str, int]]:
    """The plan of one step: (name, tokens) of everybody computed."""
    ### BEGIN SOLUTION
    for name, total, _, left in waiting:
        if total + left - 1 > pool * size:
            raise ValueError(f"{name} can never fit into the pool.")
    gaps = [total - computed for _, total, computed, _ in running]
    plan, room = [], budget - gaps.count(1)
    for name, total, computed, _ in running:
        gap = total - computed
        count = 1 if gap == 1 else min(gap, room)
        if gap > 1:
            room -= count
        if count:
            plan.append((name, count))
    for seats, row in enumerate(waiting, len(running)):
        name, total, computed, _ = row
        blocks = -(-total // size) - computed // size
        if seats == slots or not room or blocks > free:
            break
        plan.append((name, min(total - computed, room)))
        free, room = free - blocks, room - plan[-1][1]
    return plan
    ### END SOLUTION


# %% nbgrader={"grade_id": "one-step", "grade": true, "points": 5}
grader.check("one-step", one_step)

# %% [markdown] tags=["solution-only"]
# The words prefill, decode, hit and preempted do not occur in it. What is missing against the chapter's scheduler is the one thing that
# can happen between the lines: a running request that needs a block when none is free.

# %% [markdown]
# ## 2 · A freeze, and the chunk that ends it
#
# **Predict** · difficulty 2 of 5 · importance 5 of 5 · 12 minutes · 2 points
#
# A model of 8 billion parameters in bf16 runs on a card with 312 TFLOP/s and 2,039 GB/s. Thirty-two people are reading answers when a
# prompt of 6,000 tokens arrives. Leave attention out, and take 2 FLOPs per parameter and token at the card's full rate.
#
# Give four numbers: for how many milliseconds the arithmetic of the prompt stops everybody when it is read in one step (`"freeze"`); how many
# tokens a step may hold before arithmetic takes longer than reading the weights (`"free"`); how many tokens *of the prompt* a step may hold
# beside the 32 answers if the step's arithmetic may take 50 ms (`"chunk"`, rounded down); and in how many `"steps"` the prompt is then
# read. Three significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# What does one token cost, in seconds of arithmetic, and how many of those fit into the time?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# A token takes 51 µs of arithmetic, one reading of the weights 7.8 ms.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# $2N/P$ seconds per token; 50 ms hold that many tokens, and 32 of them are taken.
#
# </details>


# %% nbgrader={"grade_id": "the-freeze-answer", "solution": true}
def the_freeze() -> dict[str, float]:
    """Keys: "freeze" (ms), "free" (tokens), "chunk" (tokens), "steps"."""
    ### BEGIN SOLUTION
    per_token = 2 * 8e9 / 312e12
    reading = 2 * 8e9 / 2039e9
    chunk = int(0.05 / per_token) - 32
    return {
        "freeze": 1e3 * 6000 * per_token,
        "free": reading / per_token,
        "chunk": chunk,
        "steps": -(-6000 // chunk),
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "the-freeze", "grade": true, "points": 2}
grader.check("the-freeze", the_freeze)

# %% [markdown] tags=["solution-only"]
# A third of a second, for everybody. In seven pieces nobody waits longer than 50 ms, and the prompt has its first token after 319 ms instead
# of 308. The second number says that a chunk below about 150 tokens makes no step shorter.

# %% [markdown]
# ## 3 · A token too early
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 12 minutes · 3 points
#
# After a step, this function says who is sampled. `work` lists `(name, start, count)`, the positions that the step computed; `requests` maps
# a name to the lengths of its prompt and of its answer so far. It passed all tests of chunked prefill. In production, now and then,
# a word appears in an answer that does not belong there, always on busy days. A fault of this family was mended in
# [vllm-gaudi #524](https://github.com/vllm-project/vllm-gaudi/pull/524).


# %%
def broken_sampled(work, requests):
    """Who is sampled after this step.

    work: (name, start, count); requests: name -> (prompt, output)
    """
    names = []
    for name, start, count in work:
        prompt, _ = requests[name]
        if start + count >= prompt:
            names.append(name)
    return names


tries = {
    "a chunk of a prompt": ([("a", 0, 4)], {"a": (10, 0)}),
    "its last chunk": ([("a", 4, 6)], {"a": (10, 0)}),
    "an answer": ([("a", 12, 1)], {"a": (10, 3)}),
    "busy days": ([("a", 8, 4)], {"a": (10, 6)}),
}
for name, (work, requests) in tries.items():
    print(f"{name:20} {broken_sampled(work, requests)}")

# %% [markdown]
# The first three are right. What is the fourth? Mend the function.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which request has written six tokens and computes its positions 8 to 11?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# That request knows 16 tokens. After the step, keys and values of 12 are there.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# A token is sampled when computed equals total.
#
# </details>


# %% nbgrader={"grade_id": "early-sample-answer", "solution": true}
def sampled(
    work: list[tuple[str, int, int]], requests: dict[str, tuple[int, int]]
) -> list[str]:
    """Who is sampled after this step, in the order of `work`."""
    ### BEGIN SOLUTION
    names = []
    for name, start, count in work:
        if start + count == sum(requests[name]):
            names.append(name)
    return names
    ### END SOLUTION


# %% nbgrader={"grade_id": "early-sample", "grade": true, "points": 3}
grader.check("early-sample", sampled)

# %% [markdown] tags=["solution-only"]
# Whether a request is sampled depends on two counts, computed and total, and never on whether it is in its prompt. This one had been
# preempted, on a busy day, and was being computed again. Its prompt was done and its answer was not. The token sampled too early is a
# perfectly good continuation of its first two words, put behind its sixth.

# %% [markdown]
# ## 4 · The answer that began again
#
# **Debug** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# The pool is dry, and the worst running request must give up its blocks. Requests are dicts with a `rank` (the smaller, the sooner),
# `prompt`, `output`, `computed` and a `table` of blocks; `waiting` is in order of rank, `free` is a list of block numbers. Two kinds of
# complaint came in: answers that repeat their beginning, and one request that never ended although everybody after it did.


# %%
def broken_preempt(running, waiting, free):
    """Take the blocks of the worst running request, the last one.

    Returns running, waiting and free blocks, all new.
    """
    running, waiting = list(running), list(waiting)
    worst = running.pop()
    free = free + worst["table"]
    waiting.append({**worst, "output": [], "computed": 0, "table": []})
    return running, waiting, free


def request(rank, prompt, output, computed, table):
    row = {"rank": rank, "prompt": prompt, "output": output}
    return {**row, "computed": computed, "table": table}


running = [request(1.0, [5], [0], 1, [0])]
running.append(request(2.5, [8, 3], [9, 4], 3, [1]))
later = request(3.0, [1], [], 0, [])
for row in broken_preempt(running, [later], [])[1]:
    print(*(f"{key} {value}" for key, value in row.items()), sep=", ")

# %% [markdown]
# Mend both, and leave what the function was given as it was. In which order free blocks are listed does not matter.
#
# <details><summary>Hint 1: the question again</summary>
#
# What of this request cannot be computed again, and who came before whom?
#
# </details>
# <details><summary>Hint 2: a line to aim at</summary>
#
# The first of the two printed lines should be `rank 2.5, prompt [8, 3], output [9, 4], computed 0, table []`.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# Keep the output; put the request in front of the first one whose rank is larger.
#
# </details>


# %% nbgrader={"grade_id": "forgotten-answer-answer", "solution": true}
def preempt(
    running: list[dict], waiting: list[dict], free: list[int]
) -> tuple[list[dict], list[dict], list[int]]:
    """Take the blocks of the worst running request, the last one.

    Returns running, waiting and free blocks, all new.
    """
    ### BEGIN SOLUTION
    *running, worst = running
    back = {**worst, "computed": 0, "table": []}
    waiting = sorted([*waiting, back], key=lambda request: request["rank"])
    return running, waiting, free + worst["table"]
    ### END SOLUTION


# %% nbgrader={"grade_id": "forgotten-answer", "grade": true, "points": 3}
grader.check("forgotten-answer", preempt)

# %% [markdown] tags=["solution-only"]
# Preemption may take what can be computed again, and nothing else. The readers had seen the tokens, so they are no longer the engine's
# to forget. And at the end of the queue a request that is preempted once is preempted again and again: whenever it gets in it is the
# worst, and everybody who has come since is better.

# %% [markdown]
# ## 5 · What chunks cost, according to the web
#
# **Literature** · difficulty 3 of 5 · importance 4 of 5 · 12 minutes · 2 points
#
# Four statements about chunked prefill and preemption, in our words. One does not hold.
#
# - **a.** A prompt is read in N chunks. The keys and values of its chunks are read again N(N − 1)/2 times in all, in units of one chunk
#   ([Sarathi-Serve](https://arxiv.org/abs/2403.02310) counts them).
# - **b.** Chunks add arithmetic to attention, as a share of it chunk over prompt: a prompt of 32k in chunks of 2k takes about 6 % more, and linear
#   layers no more at all ([a post of 2026](https://dev.to/ji_ai/chunked-prefill-why-one-long-prompt-stalls-every-decode-ln0)).
# - **c.** A smaller token budget gives a better ITL, a larger one a better TTFT
#   ([vLLM's manual](https://docs.vllm.ai/en/v0.33.0/configuration/optimization/)).
# - **d.** vLLM's version 1 preempts by recomputing unless told otherwise (the same page).
#
# Which one? And the number that the wrong one should have talked about: a prompt of 32,768 tokens in chunks of 2,048; the keys and values of
# earlier chunks are read again, how many times the *whole prompt's* cache in all? Answer with a pair, such as `("a", 1.5)`; three
# significant figures suffice.
#
# <details><summary>Hint 1: the question again</summary>
#
# For a query in the last chunk and a key in the first: is their product computed more often than without chunks? Is the key *read* more often?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# There are 16 chunks. The last one reads 15 of them again.
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# 0 + 1 + … + 15 chunks, and a prompt has 16.
#
# </details>


# %% nbgrader={"grade_id": "chunk-claims-answer", "solution": true}
def chunk_claims() -> tuple[str, float]:
    """The letter of the wrong one; how often the cache is read again."""
    ### BEGIN SOLUTION
    chunks = 32_768 // 2_048
    pairs = [cost.causal_pairs(2_048, 2_048 * i) for i in range(chunks)]
    assert sum(pairs) == cost.causal_pairs(32_768)  # not one more
    return "b", sum(range(chunks)) / chunks
    ### END SOLUTION


# %% nbgrader={"grade_id": "chunk-claims", "grade": true, "points": 2}
grader.check("chunk-claims", chunk_claims)

# %% [markdown] tags=["solution-only"]
# Cutting a prompt repeats reading, not arithmetic: the pairs are equal to the last one. Seven and a half prompts' worth of cache is
# read again: for Llama-3-8B 32 GB, 10 ms on an H100, beside more than half a second of arithmetic. It is small because chunks of 2,048
# are large; in chunks of 128 it is seventeen times as much.

# %% [markdown]
# ## 6 · Three limits, one server
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Llama-3-8B in bf16, 32 answers under way at context 2,048. A prompt of 8,192 tokens arrives: no gap may become longer than 40 ms, and its own
# first token must come within 600 ms (there is no queue). A request of 2,048 tokens that was preempted must write again within 50 ms of
# being let in, computed in the same steps beside the 32, or brought back over the bus (32 GB/s on an A100 and an L4, 64 on an H100).
#
# Choose a `"chip"` (A100 80GB SXM, H100 SXM, L4), a `"budget"` (64, 128, 256, 512, 1024, 2048, 4096) and a `"preemption"` (`"recompute"` or
# `"swap"`), as cheap by the hour as can be: an L4 costs 0.80 $, an A100 80GB SXM 1.80 $, an H100 SXM 3.00 $ (estimates). Step times are those of `cost.predict_mixed` on data-sheet chips.
#
# <details><summary>Hint 1: the question again</summary>
#
# Which budgets keep the gap, which of them keep the TTFT, and does recomputing fit into the third limit?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# On an A100 a step with 480 tokens of the prompt takes 28 to 34 ms. How many of them does it take?
#
# </details>
# <details><summary>Hint 3: the key line</summary>
#
# With `pieces = [(2048, 1)] * 32 + [(start, count)]`, the step takes `cost.predict_mixed(llama, CHIPS[chip], pieces, "bf16").seconds`.
# Do it for all chunks.
#
# </details>


# %% nbgrader={"grade_id": "three-limits-answer", "solution": true}
def three_limits() -> dict[str, object]:
    """Keys: "chip", "budget", "preemption"."""
    ### BEGIN SOLUTION
    llama, answers = CONFIGS["llama-3-8b"], [(2048, 1)] * 32
    moved = 2048 * cost.kv_bytes_per_token(llama, "bf16")

    def step(chip, *piece):
        pieces = answers + list(piece)
        return cost.predict_mixed(
            llama, CHIPS[chip], pieces, "bf16"
        ).seconds

    def steps(chip, budget, length):
        chunk = budget - 32
        starts = range(0, length, chunk)
        cuts = [(start, min(chunk, length - start)) for start in starts]
        return [step(chip, cut) for cut in cuts]

    buses = {"L4": 32e9, "A100 80GB SXM": 32e9, "H100 SXM": 64e9}
    for chip, bus in buses.items():  # the cheapest first
        for budget in (64, 128, 256, 512, 1024, 2048, 4096):
            prompt = steps(chip, budget, 8192)
            back = {"recompute": sum(steps(chip, budget, 2048))}
            back["swap"] = moved / bus + step(chip)
            for way, needed in back.items():
                kept = max(prompt) <= 0.04 and sum(prompt) <= 0.6
                if kept and needed <= 0.05:
                    return {
                        "chip": chip,
                        "budget": budget,
                        "preemption": way,
                    }
    raise ValueError("No choice keeps all three limits.")
    ### END SOLUTION


# %% nbgrader={"grade_id": "three-limits", "grade": true, "points": 3}
grader.check("three-limits", three_limits)

# %% [markdown] tags=["solution-only"]
# The L4 is too slow for the 32 answers alone. On the A100 one budget is left between two limits: 256 takes too many steps, 1,024 makes them too
# long. Recomputing 2,048 tokens takes more than a tenth of a second there, so it swaps. The H100 could do either, with several budgets, for more
# money.

# %% [markdown]
# ## Where you stand

# %%
grader.scoreboard()
