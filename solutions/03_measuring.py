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
# # Solutions 3 · Measuring

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/03_measuring.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/03_measuring.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/03_measuring.ipynb)
#
# CPU is enough · read 30 min · run 2 min · practise 96 min · here: [chapter](../chapters/03_measuring.ipynb), [exercises](../exercises/03_measuring.ipynb)
#
# </div>

# %% [markdown]
# Six exercises on [the chapter](../chapters/03_measuring.ipynb). Every check looks at your own function and says what it gave
# and what was wanted. None of them needs a GPU or the model.

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

session = lumen.setup("03_measuring")

# %%
import json
import math
from itertools import pairwise

import lumen
from lumen import cost, grading, hardware
from lumen.explore import markdown, table

grader = grading.for_chapter("03")

# %% [markdown]
# ## 1 · The report
#
# **Build** · difficulty 3 of 5 · importance 5 of 5 · 20 minutes · 4 points
#
# A run has left one dict per request, with times in seconds:
#
# | key | value |
# | --- | --- |
# | `intended` | when the schedule wanted it sent: the user's clock starts here |
# | `sent` | when the client got round to it |
# | `arrivals` | when text came, one entry per event of the stream |
# | `tokens` | tokens of the answer; an event may have brought several |
# | `error` | `""`, or what went wrong |
#
# Write `report`. It returns `mean_tpot`, `p99_itl` and `p99_e2el`, as the chapter defines them (`None` where there is nothing
# to take one of), and `good`: how many requests waited at most `limits[0]` for their first token and had a TPOT of at most
# `limits[1]`. An answer of one token has no TPOT and cannot break a limit on it. Failed requests are left out of everything.
# All times are in seconds, the limits too, and what a user waits is counted on the user's clock.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# For each of the four: which requests count, from when to when, and divided by what?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# Sent and intended at 2.0, text at 2.3, 2.7 and 2.8, five tokens: TPOT 0.125 s, gaps of 0.4 and 0.1 s, p99 of the gaps
# 0.397 s, latency 0.8 s.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# p99 of n sorted values lies at rank 0.99 · (n − 1), straight between its neighbours.
#
# </details>


# %% nbgrader={"grade_id": "report-answer", "solution": true}
def report(requests: list[dict], limits: tuple[float, float]) -> dict:
    """`requests`: one dict each, as above; `limits`: (ttft, tpot) in s.

    {"mean_tpot": s or None, "p99_itl": s or None,
     "p99_e2el": s or None, "good": count}
    """
    ### BEGIN SOLUTION

    def p99(values):
        if not values:
            return None
        ordered = sorted(values)
        at = 0.99 * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    tpots, gaps, e2els, good = [], [], [], 0
    for one in requests:
        if one["error"]:
            continue
        came, tpot = one["arrivals"], None
        if one["tokens"] > 1:
            tpot = (came[-1] - came[0]) / (one["tokens"] - 1)
            tpots.append(tpot)
        gaps += [after - before for before, after in pairwise(came)]
        e2els.append(came[-1] - one["intended"])
        good += (
            came[0] - one["intended"] <= limits[0]
            and (tpot or 0.0) <= limits[1]
        )
    mean = sum(tpots) / len(tpots) if tpots else None
    return {
        "mean_tpot": mean,
        "p99_itl": p99(gaps),
        "p99_e2el": p99(e2els),
        "good": int(good),
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "report", "grade": true, "points": 4}
grader.check("report", report)

# %% [markdown] tags=["solution-only"]
# The decisions: failed requests in or out, one-token answers as 0 or not at all, tokens or events below the line, gaps
# pooled or averaged, from `intended` or from `sent`. Two reports can differ in all five under the same names.

# %% [markdown]
# ## 2 · One gap in four hundred
#
# **Predict** · difficulty 2 of 5 · importance 4 of 5 · 6 minutes · 1 point
#
# On a server one gap between tokens in 400 is a stall, independently of the others. p99 of ITL looks perfect. A chat has ten
# answers of 31 tokens each. What share of the chats has at least one stall, in **percent**? Three significant figures suffice.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# When is a chat clean?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# For chats of five such answers it would be 31.3 %.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# One minus the chance that each of the gaps is clean. How many gaps have 31 tokens?
#
# </details>


# %% nbgrader={"grade_id": "who-notices-answer", "solution": true}
def who_notices() -> float:
    """Percent of the chats with at least one stall."""
    ### BEGIN SOLUTION
    return 100 * (1 - (1 - 1 / 400) ** (10 * 30))
    ### END SOLUTION


# %% nbgrader={"grade_id": "who-notices", "grade": true, "points": 1}
grader.check("who-notices", who_notices)

# %% [markdown] tags=["solution-only"]
# This stall begins at p99.75. To promise nine chats in ten that no stall comes in their 300 gaps, look at p99.965:
# $0.9^{1/300} = 0.99965$.

# %% [markdown]
# ## 3 · p99 out of buckets
#
# **Build** · difficulty 3 of 5 · importance 4 of 5 · 20 minutes · 3 points
#
# A server's `/metrics` has lines like `…_bucket{le="0.25"} 900`: so many requests took **at most** 0.25 s. From these alone
# Prometheus answers `histogram_quantile(0.99, sum by (le) (…))`. Do the same:
#
# - `bounds` are the ends of the buckets in seconds, ascending, the last one infinite; the first bucket begins at 0;
# - `replicas` holds the cumulative counts of every replica, one list each;
# - find the first bucket whose count reaches `q` times the total, and go into it in proportion;
# - a quantile in the last bucket is answered with the last *finite* bound, and one of nothing with NaN.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# Which request, counted from the fastest, is the q-th? In which bucket does it lie, and how far into it, if the requests of
# a bucket were spread evenly?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# Bounds 0.1, 0.2, 0.4, ∞ with counts 10, 30, 40, 40: the median is request 20, the tenth of twenty in the second bucket:
# 0.15 s.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Begin of the bucket + its width × (rank − count before it) / (count in it alone).
#
# </details>


# %% nbgrader={"grade_id": "quantile-answer", "solution": true}
def histogram_quantile(
    q: float, bounds: list[float], replicas: list[list[int]]
) -> float:
    """The q-quantile (0 < q < 1) of all replicas together, in seconds.

    `bounds`: (num_buckets,), the last infinite;
    `replicas`: (num_replicas, num_buckets), cumulative.
    """
    ### BEGIN SOLUTION
    counts = [sum(column) for column in zip(*replicas, strict=True)]
    if counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    i = next(i for i, count in enumerate(counts) if count >= rank)
    if math.isinf(bounds[i]):
        return bounds[i - 1]
    begin, before = (bounds[i - 1], counts[i - 1]) if i else (0.0, 0)
    return begin + (bounds[i] - begin) * (rank - before) / (
        counts[i] - before
    )
    ### END SOLUTION


# %% nbgrader={"grade_id": "quantile", "grade": true, "points": 3}
grader.check("quantile", histogram_quantile)

# %% tags=["solution-only", "hide-input"]
coarse, fine = (
    [0.1, 0.25, 0.5, 1.0, math.inf],
    [0.1, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 1.0, math.inf],
)
latencies = [0.05 + 0.0003 * i for i in range(1000)]  # the slowest: 0.35 s


def buckets(bounds):
    return [
        [sum(value <= bound for value in latencies) for bound in bounds]
    ]


markdown(
    f"A thousand latencies, the slowest {max(latencies):.3f} s. From coarse buckets p99 comes out as "
    f"**{histogram_quantile(0.99, coarse, buckets(coarse)):.3f} s**, slower than every request there was; from finer ones as "
    f"{histogram_quantile(0.99, fine, buckets(fine)):.3f} s. Before you believe a p99 on a dashboard, look how wide the bucket "
    "is that it lies in, and put a bound exactly at your SLO: that count is exact."
)

# %% [markdown]
# ## 4 · A stream that is not one token per event
#
# **Debug** · difficulty 4 of 5 · importance 5 of 5 · 25 minutes · 4 points
#
# A benchmark client reads a chat stream from the socket: pairs of (time, bytes), the request sent at time 0. Here is one that
# works on the server of the person who wrote it:


# %%
def broken_read_stream(reads):
    """(ttft, tpot, gaps, text) of one answer."""
    times = []
    text = ""
    for now, chunk in reads:
        for line in chunk.decode().split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line[6:])
                times.append(now)
                for choice in event["choices"]:
                    text += choice["delta"].get("content", "")
    gaps = [b - a for a, b in pairwise(times)]
    return times[0], sum(gaps) / len(gaps), gaps, text


# %% [markdown]
# What real servers send:
#
# - the first event often has `{"delta": {"role": "assistant", "content": ""}}`: no token;
# - an event may carry **several** tokens; one whose content is empty, `null` or missing shows the user nothing; white space is
#   text;
# - a read ends anywhere, also inside an event or a character; and it may hold several events;
# - the last event before `data: [DONE]` has `"choices": []` and `"usage": {"completion_tokens": …}`, the bill: how many tokens
#   the whole answer had. It may come late, and is not part of the answer. In other events `usage` is missing or `null`.
#
# Mend it. An event with text arrives with the read that completes it; two that one read completes are a gap of 0 apart.
# `gaps` lie between arrivals; TPOT is the time from the first arrival to the last over tokens − 1, and `None` for an answer of
# one token.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# Two lists must be kept apart: what the network delivered, and what the user saw. And two counts: events and tokens.
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# Text "a" at 0.3, "bcd" at 0.9, four tokens on the bill: TTFT 0.3, one gap of 0.6, TPOT 0.2.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Put each read behind the bytes that were left over, split at line ends, and keep the last piece for the next read. Decode
# whole lines only.
#
# </details>


# %% nbgrader={"grade_id": "read-stream-answer", "solution": true}
def read_stream(
    reads: list[tuple[float, bytes]],
) -> tuple[float, float | None, list[float], str]:
    """(ttft, tpot or None, gaps, text) of one answer.

    Times in seconds from the sending.
    """
    ### BEGIN SOLUTION
    times, text, tokens, rest = [], "", 0, b""
    for now, chunk in reads:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            piece = "".join(
                choice["delta"].get("content") or ""
                for choice in event["choices"]
            )
            if piece:
                times.append(now)
                text += piece
    gaps = [b - a for a, b in pairwise(times)]
    tpot = (times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None
    return times[0], tpot, gaps, text
    ### END SOLUTION


# %% nbgrader={"grade_id": "read-stream", "grade": true, "points": 4}
grader.check("read-stream", read_stream)

# %% [markdown] tags=["solution-only"]
# The same faults stand in public threads: the role taken for a token ([vLLM #3759](https://github.com/vllm-project/vllm/issues/3759),
# [#15106](https://github.com/vllm-project/vllm/issues/15106)), an event taken for a token
# ([#27485](https://github.com/vllm-project/vllm/issues/27485)), the bill taken for the end of the answer
# ([#55508](https://github.com/vllm-project/vllm/pull/55508)), an event cut in two
# ([AIBrix #2653](https://github.com/vllm-project/aibrix/pull/2653)), a division by the tokens of an event that has none
# ([SGLang #26497](https://github.com/sgl-project/sglang/pull/26497)). `lumen/loadgen/answer.py` is this function with
# error events, hang-ups and tool calls; its tests replay such streams on a clock that is part of the script.

# %% [markdown]
# ## 5 · Five sentences on latency
#
# **Literature** · difficulty 2 of 5 · importance 4 of 5 · 10 minutes · 2 points
#
# As they circulate, in our words:
#
# - **a** With a TTFT of 0.5 s and a TPOT of 50 ms, an answer of 100 tokens takes 5.45 s.
# - **b** TTFT is the duration of the prefill.
# - **c** TPOT and inter-token latency are two names of one quantity, so a p99 limit on TPOT also bounds the stalls.
# - **d** At 1,000 tokens of answers per second a server completes 100 answers of ten tokens each per second.
# - **e** The p99 of a fleet is the mean of the p99s of its replicas.
#
# Which are wrong? And for **e**: one replica answers 900 requests in 0.2 s each, another 100 in 2 s each. What is the p99 of
# the thousand, in seconds? Three significant figures suffice.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# For each sentence: what would have to be true of the server for it to hold?
#
# </details>
# <details><summary>Hint 2: a number to aim at</summary>
#
# Three are wrong.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# p99 leaves out the ten slowest of a thousand. Where do ten out of a hundred slow ones leave you?
#
# </details>


# %% nbgrader={"grade_id": "in-print-answer", "solution": true}
def in_print() -> tuple[str, float]:
    """The letters of the wrong sentences, and the p99 in seconds."""
    ### BEGIN SOLUTION
    return "bce", 2.0
    ### END SOLUTION


# %% nbgrader={"grade_id": "in-print", "grade": true, "points": 2}
grader.check("in-print", in_print)

# %% [markdown] tags=["solution-only"]
# The mean of the two p99s is 1.1 s: a latency that not one request had. As for **b**: when TTFT doubles under load, look at
# the queue before you look at the prefill.

# %% [markdown]
# ## 6 · Replicas and places for a promise
#
# **Decide** · difficulty 3 of 5 · importance 5 of 5 · 15 minutes · 3 points
#
# Llama-3-8B in bf16 on H100 SXM. **10 requests per second** arrive, with 4,000 tokens of prompt and 500 of answer; they are
# spread evenly over the replicas. Choose `replicas` (1 to 8) and `places`, the requests inside each at once (1 to 256), so
# that, by the chapter's formulas,
#
# - **TPOT** is at most 30 ms: a decode step with all places taken at 4,250 tokens of context, over the share of time that
#   prefills leave it, 1 − requests per second and replica × prefill;
# - the **load** is at most 0.9: requests per second and replica × (prefill + 499 · TPOT), over the places;
# - **memory**: weights and 4,500 tokens of cache a place fit into 80 GB.
#
# The price is the number of replicas. Any choice that keeps the promise at the lowest price is right. The stub shows the
# calls for one place.
#
# <details><summary>Hint 1: what is asked, in other words</summary>
#
# For each number of replicas: is there a number of places that is small enough for TPOT and memory and large enough for the
# load?
#
# </details>
# <details><summary>Hint 2: numbers to aim at</summary>
#
# One prefill takes about 60 ms, so a single replica would spend about 60 % of its time on prompts.
#
# </details>
# <details><summary>Hint 3: the key line in words</summary>
#
# Walk through replicas from 1 and places from 1, compute the three numbers, stop at the first that keeps all limits.
#
# </details>


# %% nbgrader={"grade_id": "slo-answer", "solution": true}
def slo() -> dict:
    """{"replicas": 1 to 8, "places": 1 to 256}"""
    llama = lumen.CONFIGS["llama-3-8b"]
    h100 = hardware.CHIPS["H100 SXM"]
    prefill = cost.predict_prefill(llama, h100, 4000, 1, "bf16").seconds
    step = cost.predict_decode(llama, h100, 4250, 1, "bf16").seconds
    weights = cost.weight_storage(llama, "bf16")
    cache = cost.kv_bytes(llama, 4500, 1, "bf16")
    ### BEGIN SOLUTION
    for replicas in range(1, 9):
        each = 10 / replicas
        if each * prefill >= 1:
            continue
        for places in range(1, 257):
            step = cost.predict_decode(llama, h100, 4250, places, "bf16")
            tpot = step.seconds / (1 - each * prefill)
            load = each * (prefill + 499 * tpot) / places
            memory = weights + places * cache
            if tpot <= 30e-3 and load <= 0.9 and memory <= 80e9:
                return {"replicas": replicas, "places": places}
    ### END SOLUTION


# %% nbgrader={"grade_id": "slo", "grade": true, "points": 3}
grader.check("slo", slo)

# %% tags=["solution-only", "hide-input"]
llama, h100 = lumen.CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]
prefill = cost.predict_prefill(llama, h100, 4000, 1, "bf16").seconds
rows = []
for replicas, places in ((1, 100), (2, 40), (2, 80), (2, 104), (3, 112)):
    each = 10 / replicas
    step = cost.predict_decode(llama, h100, 4250, places, "bf16").seconds
    tpot = step / (1 - each * prefill)
    load = each * (prefill + 499 * tpot) / places
    memory = cost.weight_storage(llama, "bf16")
    memory += cost.kv_bytes(llama, 4500, places, "bf16")
    rows.append([replicas, places, 1e3 * tpot, load, memory / 1e9])
table(rows, ["replicas", "places", "TPOT (ms)", "load", "memory (GB)"])
markdown(
    "With one replica the prompts alone take most of the time, and no number of places helps: the load asks for more, and "
    "every place makes the step longer. With two there is a window: too few places below it, too slow steps above. With three "
    "it is memory that ends it. Chapter 9 moves the prefills to other machines, another way out of the same squeeze."
)

# %% [markdown]
# ## How far you are

# %%
grader.scoreboard()
