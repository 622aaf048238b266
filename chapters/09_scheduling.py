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
# # 9 · Scheduling

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/09_scheduling.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/09_scheduling.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/09_scheduling.ipynb)
#
# CPU is enough · read 40 min · run 2 min · practise 100 min · here: [exercises](../exercises/09_scheduling.ipynb), [solutions](../solutions/09_scheduling.ipynb)
#
# </div>

# %% [markdown]
# Eight people are reading answers as SmolLM2 writes them. A ninth pastes a document of 1,500 tokens and asks for a summary.
# Nobody did anything wrong, no queue is long, no memory is full. All eight streams stop.
#
# **Who decided that, and what would a better decision have cost?**
#
# By the end you can
#
# - write the rule by which a server decides what every step computes, in forty lines, and say what it becomes for one budget
#   or another;
# - predict from FLOPs and bytes how long a step takes, and choose the token budget that keeps every gap under a limit;
# - take a running request's memory away, give it back, and prove that its answer did not change;
# - say who could wait for ever, why nobody does, and when prefill and decode belong on different machines.
#
# Needs: [the roofline](02_roofline.ipynb), [the paged cache](05_paged_cache.ipynb), [batching](08_batching.ipynb).

# %% tags=["setup", "hide-input", "nbval-ignore-output"]
import importlib
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("lumen") is None:  # Colab: brings lumen, leaves torch and numpy as they are
    repository = "lumen-inference @ git+https://github.com/lumen-course/lumen@main"
    source = os.environ.get("LUMEN_SOURCE", repository)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("09_scheduling")

# %% [markdown]
# Answers are compared token by token in this chapter, so the model runs in fp32 everywhere, on a GPU too.

# %%
import random
from bisect import insort
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from lumen import bench, cost, hardware
from lumen.bench.interference import meet
from lumen.cache import BlockPool
from lumen.explore import callout, figure, label_line, markdown, palette, reveal, table
from lumen.explore.theme import log_axis
from lumen.models import CONFIGS
from lumen.serve.engine import Engine
from lumen.serve.load import percentile
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits, Scheduler

model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config = model.config

# %% [markdown]
# ## Eight answers and a document
#
# `meet` starts our engine, the one behind `lumen serve`, lets eight requests write four tokens each, and then adds the long
# one. Time is counted from that moment. The tokens are drawn at random: in a dense model they cost what real ones do.

# %% tags=["measure", "nbval-ignore-output"]
LONG, ANSWERS, CONTEXT = 1500, 8, 96
draw = random.Random(0)
prompts = [[draw.randrange(3, config.vocab_size) for _ in range(CONTEXT)] for _ in range(ANSWERS)]
document = [draw.randrange(3, config.vocab_size) for _ in range(LONG)]

meet(model, prompts, document[:64], budget=2048, after=4)  # warm up
whole = meet(model, prompts, document, budget=2048)

# %% tags=["hide-input", "nbval-ignore-output"]
usual, freeze = median(whole.gaps), max(whole.gaps)
fig = figure(
    f"One document stops eight answers for {1e3 * freeze:,.0f} ms; between tokens they usually take {1e3 * usual:.0f}",
    x="time since the document arrived (ms)", y="answer", height=330,
)  # fmt: skip
for row, times in enumerate(whole.times):
    shown = [1e3 * t for t in times if t < whole.ttft + 12 * usual]
    fig.add_scatter(
        x=shown, y=[row + 1] * len(shown), mode="markers", marker={"color": palette.blue, "size": 7}
    )
first = 1e3 * whole.ttft
fig.add_scatter(
    x=[first], y=[0], mode="markers", marker={"color": palette.orange, "size": 11, "symbol": "diamond"}
)
label_line(fig, first, 0, "first token for the document", palette.orange, shift=12)
fig.update_yaxes(range=[8.6, -0.9], tickvals=[1, 4, 8])
fig

# %% [markdown]
# Every dot is a token that a reader sees. What happened in the gap? The engine keeps the plan of every step: who was computed,
# from which position on, and how many tokens of theirs.

# %% tags=["nbval-check-output"]
for number, (_, _, pieces) in enumerate(whole.steps[:3]):
    print(f"step {number}:", ", ".join(f"{count} at {held}" for held, count in pieces))

# %% [markdown]
# One step. It held the whole document, and eight tokens that were ready to go had to wait for it, because a step ends for
# everybody at once. Nobody was put into a queue. The eight were *in* the step; the step was long.
#
# So the question becomes: how long is a step?
#
# ## A step is as long as what is in it
#
# All $n$ tokens of a step go through the same weights, so a matrix of $w$ weights takes the longer of two times: reading it,
# or multiplying by it. Attention is each sequence's own affair: a decoding one reads its cache, a chunk of $c$ tokens behind $h$
# cached ones looks at $c\,h + c(c+1)/2$ pairs of a query and a key.
#
# $$
# \begin{gathered}
# t_\text{step} = t_\text{matrices} + t_\text{attention} + t_\text{rest} \\
# t_\text{matrices} = \sum \max(t_\text{read},\, t_\text{multiply}) \\
# t_\text{read} = \frac{b\,w}{\text{bandwidth}} \\
# t_\text{multiply} = \frac{2\,w\,n}{\text{rate}(n)}
# \end{gathered}
# $$
#
# Here $b$ is bytes per weight and $\text{rate}(n)$ what this machine's matrix products reach with $n$ rows, measured once.
# `lumen.cost.predict_mixed` adds it up for a list of pieces (positions held, tokens computed). Eight answers at context 100, and
# more and more of a prompt beside them:

# %% tags=["hide-input", "nbval-ignore-output"]
chip = hardware.measure(progress=False)


def step_seconds(pieces, chip=chip, config=config, dtype="fp32", cache="paged"):
    return cost.predict_mixed(config, chip, pieces, dtype, cache=cache).seconds


others = [(CONTEXT + 4, 1)] * ANSWERS
rows = []
for count in (0, 24, 56, 120, 248, 504, LONG):
    parts = cost.predict_mixed(config, chip, others + [(0, count)] * bool(count), "fp32", cache="paged")
    matrices = sum(parts.parts[name] for name in ("projections", "mlp", "head"))
    new = f"{count:,}" if count else "none"
    rows.append(
        [
            new,
            ANSWERS + count,
            *(f"{1e3 * t:,.0f}" for t in (matrices, parts.parts["attention"], parts.seconds)),
        ]
    )
table(
    rows,
    ["tokens of a prompt", "tokens in the step", "matrices (ms)", "attention (ms)", "whole step (ms)"],
    align="rrrrr",
)

# %% [markdown]
# Nothing forces 1,500 tokens into one step. Position 248 needs the keys and values of positions 0 to 247, and once computed
# those lie in blocks, where the next step finds them. A prompt can be read in pieces, a few hundred tokens at a time, with the
# eight answers in every one of these steps: [chunked prefill](../book/glossary.md#term-chunked-prefill).
#
# Then give the scheduler a **token budget**: no step computes more tokens than that. Answers under way come first, one token
# each. The rest of the budget goes to prompts. With a budget of 256 the document gets 248 tokens per step, and after seven of
# them it has its first token.
#
# ## Predict: how much shorter is the freeze?
#
# **With a budget of 256 instead of 2,048, how many times shorter is the longest gap that the eight readers see?** The longest
# step now has 256 tokens in it instead of 1,508.

# %% tags=["predict"]
my_guess = 6.0  # longest gap unchunked / longest gap with a budget of 256

# %% tags=["measure", "nbval-ignore-output"]
runs = {2048: whole} | {budget: meet(model, prompts, document, budget) for budget in (512, 256, 128, 64)}


def expected(run):
    """Predicted longest step, and predicted time until the long prompt's first token. [s]"""
    seconds = [step_seconds(pieces) for *_, pieces in run.steps]
    last = max(i for i, (*_, pieces) in enumerate(run.steps) if any(count > 1 for _, count in pieces))
    return max(seconds), sum(seconds[: last + 1])


model_says = {budget: expected(run) for budget, run in runs.items()}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
shorter = freeze / max(runs[256].gaps)
reveal(
    guess=my_guess, model=model_says[2048][0] / model_says[256][0], measured=shorter, unit="×", what="shorter longest gap",
    title=f"In chunks, the longest gap is {shorter:.1f} times shorter", log=False,
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
spent = sum(count for _, count in runs[256].steps[0][2])
floor = step_seconds(others)
slowest = max(range(7), key=lambda i: step_seconds(runs[256].steps[i][2]))
markdown(
    f"Tokens alone say {1508 / spent:.1f}×. The model says {model_says[2048][0] / model_says[256][0]:.1f}×, the clock {shorter:.1f}×. "
    f"Even a step with the eight alone in it takes {1e3 * floor:.0f} ms by the model, since the weights are read whatever comes. Fewer rows "
    f"use the arithmetic less well. And not all chunks are alike: the longest is that of step {slowest}, a full one that looks back at "
    f"{runs[256].steps[slowest][2][-1][0]:,} tokens."
)

# %% [markdown]
# And smaller chunks? Below is every gap that the readers saw, in the run for each budget.

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"The smaller the budget, the shorter and the more numerous the slow steps: {len(runs[512].times[0]) - 1} gaps of one answer",
    x="token since the document's arrival", y="gap before it (ms)", log_y=True,
)  # fmt: skip
for budget, color in ((2048, palette.orange), (256, palette.blue), (64, palette.green)):
    line = runs[budget].times[0]
    gaps = [1e3 * (b - a) for a, b in pairwise(line)]
    fig.add_scatter(
        x=list(range(1, len(gaps) + 1)),
        y=gaps,
        mode="lines+markers",
        line_color=color,
        name=f"budget {budget}",
    )
fig.update_layout(showlegend=True)
log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000])
fig

# %% [markdown]
# ## Predict: who pays?
#
# The document does. Its tokens now come in 27 steps instead of one, and each of these steps reads all the weights, carries the
# eight answers along, and looks back at all the chunks before it. **With a budget of 64, how many times longer does the
# document wait for its first token than when it was read in one piece?**

# %% tags=["predict"]
my_guess = 2.0  # TTFT of the document, budget 64 / whole

# %% tags=["measure", "nbval-ignore-output"]
dearer = runs[64].ttft / whole.ttft
by_model = model_says[64][1] / model_says[2048][1]

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
reveal(
    guess=my_guess, model=by_model, measured=dearer, unit="×", what="TTFT with a budget of 64 over TTFT in one piece",
    title=f"Chunks of 56 make the document wait {dearer:.1f} times as long", log=False,
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [
        [
            "none (2,048)" if budget == 2048 else f"{budget}", sum(any(n > 1 for _, n in p) for *_, p in run.steps),
            *(f"{1e3 * t:,.0f}" for t in (percentile(run.gaps, 50), percentile(run.gaps, 99), model_says[budget][0], run.ttft, model_says[budget][1])),
        ]
        for budget, run in runs.items()
    ],
    ["token budget", "steps for the document", "median gap (ms)", "p99 gap (ms)", "longest step, predicted", "TTFT of the document (ms)", "TTFT, predicted"],
    align="lrrrrrr",
)  # fmt: skip
p99 = {budget: percentile(run.gaps, 99) for budget, run in runs.items()}
best = min(p99, key=p99.get)
markdown(
    f"The best p99 gap, with a budget of {best}, is **{p99[best] / p99[2048]:.2f} times** the unchunked one, and the document's first token comes "
    f"{runs[best].ttft / whole.ttft:.1f} times as late. During those steps the eight readers are slowed down more often, and less."
)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    "No budget is best: what the eight gain, the ninth pays", x="TTFT of the document (ms)", y="p99 gap of the eight (ms)",
    log_x=True, log_y=True,
)  # fmt: skip
fig.add_scatter(
    x=[1e3 * model_says[b][1] for b in runs], y=[1e3 * model_says[b][0] for b in runs], mode="lines+markers",
    line={"color": palette.grey, "dash": "dot"},
)  # fmt: skip
fig.add_scatter(
    x=[1e3 * run.ttft for run in runs.values()], y=[1e3 * p99[b] for b in runs], mode="lines+markers", line_color=palette.blue
)  # fmt: skip
for b, run in runs.items():
    label_line(
        fig,
        1e3 * run.ttft,
        1e3 * p99[b],
        "whole" if b == 2048 else f"{b}",
        palette.blue,
        anchor="left",
        shift=14,
    )
label_line(
    fig, 1e3 * model_says[2048][1], 1e3 * model_says[2048][0], "predicted", palette.grey, anchor="left"
)
log_axis(fig, "x", [20, 50, 100, 200, 500, 1000, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10_000, 20_000])
log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000])
fig

# %% tags=["hide-input"]
try:
    kept = bench.load_evidence("chunked_prefill")["data"]["rows"]
    cell = {row["budget"]: (median(row["p99_itl"]), median(row["ttft"])) for row in kept}
    low = min(cell, key=lambda b: cell[b][0])
    text = (
        f"The published run (`benchmarks/chunked_prefill.py`, several rounds in alternating order) has a p99 gap of {1e3 * cell[2048][0]:,.0f} ms "
        f"unchunked and {1e3 * cell[low][0]:,.0f} ms with a budget of {low}, **{cell[low][0] / cell[2048][0]:.2f} times** as long; the TTFT of the long "
        f"prompt goes from {1e3 * cell[2048][1]:,.0f} to {1e3 * cell[low][1]:,.0f} ms."
    )
except FileNotFoundError:
    text = "No published run of `benchmarks/chunked_prefill.py` is at hand; `make bench` measures one on this machine."
markdown(text)

# %% [markdown]
# Did cutting the prompt change anything that was said? The answers of all five runs must be those of `lumen.generate`, where each
# request has the model to itself. And a second witness, who knows no scheduler, no blocks and no cache: one causal
# `scaled_dot_product_attention` over prompt and answer at once, as in [chapter 1](01_prefill_decode.ipynb), which transformers'
# model was held to there. At every position the token that was written must be the likeliest.

# %% tags=["nbval-check-output"]
CHECKED = 16
asked = [*prompts, document]
alone = [
    lumen.generate(model, [ids], CHECKED if ids is not document else 1, eos_ids=())[0].tokens for ids in asked
]


@torch.inference_mode()
def shortfall(ids, written):
    """How far the written tokens' logits lie below the best ones, at most. No cache, no scheduler."""
    hidden = model.hidden(torch.tensor([ids + written], device=session.device))
    logits = model.head(hidden[0, len(ids) - 1 : -1])
    return float((logits.max(-1).values - logits[range(len(written)), written]).max())


def right(ids, written, want):
    """The tokens of the request alone; where two logits nearly tie, a token that is as likely counts, too."""
    return written[: len(want)] == want or shortfall(ids, written[: len(want)]) < 1e-3


for budget, run in runs.items():
    ok = [right(*answer) for answer in zip(asked, run.answers, alone, strict=True)]
    print(f"budget {budget}: every answer is that of the request alone: {all(ok)}")
    assert all(ok)
print("and the likeliest in one pass without a cache:", max(map(shortfall, asked, alone)) < 1e-3)
assert max(map(shortfall, asked, alone)) < 1e-3

# %% [markdown]
# <div class="callout takeaway">
#
# **Takeaway.** A gap between tokens is as long as the step it contains. A token budget bounds the step, so it bounds the gap, for
# every prompt anybody may send.
#
# </div>
#
# ## Which budget?
#
# On a CPU arithmetic is scarce, so every token in a step costs time, almost from the first one on. A data-centre chip is another
# matter. With 32 answers in a step it waits for memory, and the arithmetic units idle. Tokens of a prompt fill them *for nothing*,
# until the [ridge](../book/glossary.md#term-ridge-point). From there on each one costs its FLOPs.

# %% tags=["hide-input"]
llama, CARDS = CONFIGS["llama-3-8b"], ("A100 80GB SXM", "H100 SXM", "L4")
writers = [(2048, 1)] * 32
counts = [2**k for k in range(3, 14)]


def card_step(name, count, held=4096):
    return step_seconds(
        writers + [(held, count)] * bool(count), hardware.CHIPS[name], llama, "bf16", "static"
    )


def free_tokens(name, slack=1.1):
    """Most tokens of a prompt that make the step of 32 answers at most 10 % longer."""
    return max(count for count in range(0, 2048) if card_step(name, count) <= slack * card_step(name, 0))


free = {name: free_tokens(name) for name in CARDS}
fig = figure(
    f"Beside 32 answers, {free['H100 SXM']} prompt tokens are nearly free on an H100, {free['A100 80GB SXM']} on an A100 (predicted)",
    x="tokens of a prompt in the step", y="step (ms)", log_x=True, log_y=True,
)  # fmt: skip
for name, color in zip(CARDS, (palette.blue, palette.orange, palette.green), strict=True):
    fig.add_scatter(
        x=counts, y=[1e3 * card_step(name, c) for c in counts], mode="lines+markers", line_color=color
    )
    label_line(fig, counts[0], 1e3 * card_step(name, 8), name.split()[0], color, anchor="left", shift=12)
log_axis(fig, "x", [8, 32, 128, 512, 2048, 8192], ["8", "32", "128", "512", "2,048", "8,192"])
log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000])
fig

# %% [markdown]
# Left of the bend a smaller chunk saves nothing and costs steps. Right of it the budget is a straight trade. So the question is
# how much time an ITL limit leaves, and the answer is one division: the time that is left over by the answers, divided by what a
# token of a prompt costs. Here by trying, with everything in it, for a prompt of 8,192 tokens:

# %% tags=["hide-input", "nbval-check-output"]
PROMPT = 8192


def largest_chunk(name, limit):
    """Most prompt tokens in a step that stays under `limit` seconds even for the last chunk; 0 if none does."""
    low, high = 0, PROMPT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if card_step(name, middle, PROMPT - middle) <= limit else (low, middle - 1)
    return low


def prompt_seconds(name, chunk):
    starts = range(0, PROMPT, chunk)
    return sum(card_step(name, min(chunk, PROMPT - start), start) for start in starts)


rows = []
for name in CARDS:
    for limit in (0.02, 0.05, 0.1, 0.2):
        chunk = largest_chunk(name, limit)
        ttft = f"{1e3 * prompt_seconds(name, chunk):,.0f}" if chunk else "–"
        rows.append(
            [name, f"{1e3 * limit:.0f}", f"{chunk:,}" if chunk else "none: too slow without a prompt", ttft]
        )
table(
    rows,
    ["chip", "every gap under (ms)", "largest chunk (tokens)", "TTFT of 8,192 tokens, no queue (ms)"],
    align="lrrr",
)

# %% [markdown]
# All *predicted* from data sheets, for Llama-3-8B in bf16 with 32 answers at context 2,048: bounds that a real engine stays above. The
# L4 has no choice to make under a tight limit; it is too slow for these 32 users before any prompt arrives.
#
# ## The one rule
#
# So who hands out the tokens? Look again at what a plan is: a list of (request, from where, how many). It does not say whether that
# is prefill or decode, and it need not. A request has a **total**, its prompt and what it has written, and a count **computed**, of
# positions whose keys and values lie in its blocks.
#
# | request | total | computed | gap | in this step |
# | --- | ---: | ---: | ---: | --- |
# | an answer under way | 131 | 130 | 1 | 1 token, then the next is sampled |
# | the document, just arrived | 1,500 | 0 | 1,500 | what the budget leaves: no sample |
# | the document, last chunk | 1,500 | 1,488 | 12 | 12 tokens, then its *first* is sampled |
# | a request whose blocks were taken | 131 | 0 | 131 | as a prompt of 131 would be |
#
# **Every step, computed catches up with total, inside a token budget and a block budget.** When they are equal, a token is sampled
# and total grows by one. There is no prefill phase and no decode phase. A prompt has a long way to catch up, an answer one token at
# a time, and a request that lost everything is simply far behind.
#
# ## Build it
#
# Two lists in order of rank, best first. Running requests take their tokens, the single ones set aside beforehand. Whoever needs
# a block when there is none takes those of the worst rank. Then the queue is let in from its head, while slots, tokens and blocks
# last.


# %%
@dataclass(eq=False)
class Job:
    rank: tuple
    total: int  # tokens known: prompt and answer
    left: int  # tokens still to be sampled
    computed: int = 0
    blocks: int = 0


# %%
class MyScheduler:
    """Every step, `computed` catches up with `total` inside a token budget and a block budget."""

    def __init__(self, blocks, size, slots, budget):
        self.free, self.size, self.slots, self.budget = blocks, size, slots, budget
        self.waiting, self.running = [], []

    def take(self, job, length):
        """Blocks for `length` positions, or False and no change."""
        more = max(0, -(-length // self.size) - job.blocks)
        if more > self.free:
            return False
        self.free, job.blocks = self.free - more, job.blocks + more
        return True

    def plan(self):
        work, preempted = [], False
        room = self.budget - sum(job.total - job.computed == 1 for job in self.running)
        for job in list(self.running):
            gap = job.total - job.computed
            count = 1 if gap == 1 else min(gap, room)
            room -= count if gap > 1 else 0
            while count and job in self.running and not self.take(job, job.computed + count):
                worst, preempted = self.running.pop(), True
                self.free, worst.blocks, worst.computed = self.free + worst.blocks, 0, 0
                insort(self.waiting, worst, key=lambda other: other.rank)
            if count and job in self.running:
                work.append((job, job.computed, count))
        while self.waiting and len(self.running) < self.slots and room and not preempted:
            job = self.waiting[0]
            if not self.take(job, job.total):
                break  # the head waits, and nobody passes it
            insort(self.running, self.waiting.pop(0), key=lambda other: other.rank)
            work.append((job, 0, min(job.total, room)))
            room -= work[-1][2]
        return work

    def book(self, work):
        for job, start, count in work:
            job.computed = start + count
            if job.computed == job.total:  # caught up: a token is sampled
                job.total, job.left = job.total + 1, job.left - 1
                if not job.left:
                    self.running.remove(job)
                    self.free += job.blocks


# %% [markdown]
# Is that the real one? Here are three hundred random workloads on tiny pools, in which requests of all priorities arrive at random
# moments, prompts are cut, and blocks run out. In every step our plan must be that of `lumen.serve.scheduler`: the same requests,
# the same positions, in the same order.


# %%
def same_plans(seed):
    """One workload under both schedulers; asserts equal plans, returns (steps, chunks without a sample, preemptions)."""
    dice = random.Random(seed)
    size, blocks, slots = dice.randint(1, 4), dice.randint(4, 14), dice.randint(1, 5)
    budget, step, chunks = slots + dice.choice([0, 1, 3, 20]), 0, 0
    mine, lumens = (
        MyScheduler(blocks, size, slots, budget),
        Scheduler(BlockPool(blocks, size), limits=Limits(slots, budget)),
    )
    coming = sorted((dice.randint(0, 12), dice.randint(0, 2), i) for i in range(dice.randint(1, 9)))
    while coming or mine.waiting or mine.running:
        while coming and coming[0][0] <= step:
            at, priority, i = coming.pop(0)
            prompt = dice.randint(1, blocks * size // 2)
            new = dice.randint(1, blocks * size - prompt + 1)
            request = Request(f"{i}", [0] * prompt, new, priority=priority, arrival=float(at))
            theirs = lumens.add(request)
            insort(mine.waiting, Job(theirs.rank, prompt, new), key=lambda job: job.rank)
        work, plan = mine.plan(), lumens.schedule(float(step))
        ours = [(job.rank, start, count) for job, start, count in work]
        assert ours == [(w.sequence.rank, w.start, w.count) for w in plan.work]
        chunks += sum(not w.samples for w in plan.work)
        mine.book(work)
        lumens.update(plan, {w.sequence.id: [0] for w in plan.work if w.samples})
        for w in plan.work:
            if len(w.sequence.output) == w.sequence.request.max_new_tokens:
                lumens.finish(w.sequence)
        assert mine.free == lumens.pool.num_free
        step += 1
    return step, chunks, lumens.num_preemptions


# %% tags=["nbval-check-output"]
sums = [sum(column) for column in zip(*map(same_plans, range(300)), strict=True)]
print(
    f"{sums[0]:,} steps with equal plans, {sums[1]:,} pieces that ended before a sample, {sums[2]:,} preemptions"
)
assert min(sums) > 300

# %% [markdown]
# `lumen.serve.scheduler` is the same with four things more: block numbers instead of a count, prefix hits (computed *starts* at the
# hit), swapping, and drafts for speculation, chapter 15 (total is *larger* by the tokens proposed). All of them are a
# change of computed or of total. None of them is a phase.
#
# ## When the pool runs dry
#
# The rule says *whoever needs a block when there is none takes those of the worst rank*. In
# [chapter 5](05_paged_cache.ipynb) we did that by hand to one row. Here the engine does it in the middle of everything: four requests
# of 48 + 24 tokens, a pool of 13 blocks of 16, where they would need 20.


# %%
def squeezed(num_blocks, preemption="recompute", prefix="none"):
    """Four requests in a pool of `num_blocks`. Answers, the engine, bytes swapped out and in, seconds."""
    engine = Engine(model, num_blocks=num_blocks, prefix=prefix, limits=Limits(4, 256, preemption=preemption))
    for i in range(4):
        engine.add(Request(f"{i}", prompts[i][:48], 24, arrival=float(i)))
    answers, moved = {f"{i}": [] for i in range(4)}, 0

    def run():
        nonlocal moved
        while engine.has_work:
            for delta in engine.step():
                answers[delta.request_id] += delta.tokens
            moved += sum(swap.length for swap in engine.last_plan.swap_out + engine.last_plan.swap_in)

    seconds = bench.measure(run, repeats=1, warmup=0).median
    return answers, engine.counters, moved * cost.kv_bytes_per_token(config, "fp32"), seconds


ways = {
    "room for all": squeezed(20),
    "recompute": squeezed(13),
    "recompute, with a prefix cache": squeezed(13, prefix="radix"),
    "swap": squeezed(13, "swap"),
}

# %% tags=["hide-input", "nbval-check-output"]
want = [lumen.generate(model, [prompts[i][:48]], 24, eos_ids=())[0].tokens for i in range(4)]
needed = 4 * (48 + 24 - 1)
rows = []
for name, (answers, counters, moved, _) in ways.items():
    assert all(map(right, [p[:48] for p in prompts], answers.values(), want)), name
    again = counters.computed_tokens - needed
    rows.append(
        [
            name,
            counters.preemptions,
            counters.steps,
            counters.computed_tokens,
            again,
            f"{moved / 1e6:.1f}",
            "yes",
        ]
    )
table(
    rows,
    ["pool", "preemptions", "steps", "tokens computed", "of them again", "MB swapped", "answers as alone"],
    align="lrrrrrl",
)

# %% [markdown]
# The answers are the same, all four, in each of the four ways. That is no luck, and here is the proof. What a token depends on is
# the tokens before it, their positions, and its request's own random stream. Preemption takes *computed*, and touches none of the
# three: the tokens stay in the request, positions count from its start, the stream has moved on by exactly the tokens drawn. Keys
# and values are a function of tokens and positions, so computing them again gives them again. (Up to the order of additions. A
# batch of another shape may add in another order, and two logits that nearly tie may change places, with preemption or without.
# That is why `right` has its second half.)
#
# There is one way to get it wrong, and engines have: to start again *from the prompt* and forget what was already written. You will
# meet it in the exercises.
#
# ### Recompute or swap?
#
# Look at the third row. With a prefix cache the blocks of a preempted request stay where they are until somebody takes them, and
# what nobody took is found again: recomputing may cost almost nothing. Otherwise chapter 5 has the race: $2\kappa L$ bytes over the
# bus against about $2NL$ FLOPs. With a scheduler there is one thing to add. Recomputed tokens go into a step *beside* answers, where
# arithmetic may be idle. What they add to that step is less than what they take alone. (As long as no prompt waits for the same
# budget: then nothing about it is free.)

# %% tags=["hide-input", "nbval-check-output"]
PCIE = {"A100 80GB SXM": 32e9, "H100 SXM": 64e9, "L4": 32e9}  # B/s in one direction, at best
LOST = 1024  # tokens of the preempted request
rows = []
for name in ("llama-2-7b", "llama-3-8b"):
    for card in PCIE:
        c, ch = CONFIGS[name], hardware.CHIPS[card]
        swap = 2 * LOST * cost.kv_bytes_per_token(c, "bf16") / PCIE[card]
        alone_s = cost.predict_prefill(c, ch, LOST, dtype="bf16").seconds
        crowd, piece = (
            [(1024, 1)] * 16,
            partial(step_seconds, chip=ch, config=c, dtype="bf16", cache="static"),
        )
        beside = sum(piece([*crowd, (start, 256)]) - piece(crowd) for start in range(0, LOST, 256))
        rows.append(
            [
                name,
                card,
                *(f"{1e3 * t:.1f}" for t in (swap, alone_s, beside)),
                "swap" if swap < beside else "recompute",
            ]
        )
table(
    rows,
    ["model, bf16", "chip", "swap out and in (ms)", "recompute alone (ms)", "recompute in 4 chunks, beside 16 answers (ms)", "cheaper"],
    align="llrrrl",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
times = {name: seconds for name, (*_, seconds) in ways.items()}
extra = {name: 1e3 * (times[name] - times["room for all"]) for name in ("recompute", "swap")}
markdown(
    f"Those are *predictions* for 1,024 tokens. On this machine, measured once and roughly: with room for all the four requests took "
    f"{1e3 * times['room for all']:,.0f} ms, recomputing {1e3 * times['recompute']:,.0f} ms, swapping {1e3 * times['swap']:,.0f} ms. "
    + (
        "Host and device share their memory here, so swapping is a copy; most of what either adds is that fewer requests share a step."
        if session.device.type == "cpu"
        else "Both include the steps that ran with fewer requests in them."
    )
)

# %% [markdown]
# ## Who goes first
#
# Every list above was *in order of rank*. What should a rank be? First come, first served is fair, and lets a batch job in front
# delay a person behind it. Strict priorities serve people first, and then there is a day when people never stop coming.
#
# Our rank is $\text{priority} + \text{arrival}/a$, fixed when the request arrives; the smallest goes first. One step of priority is
# worth $a$ seconds of waiting. Here is a server with two slots, kept busy by urgent requests (priority 0) that arrive a little faster
# than it can serve them. After five seconds one background request arrives (priority 1).


# %%
def waits(ageing, stream, step=0.05, every=0.24):
    """Seconds that the background request waits, and the median of the urgent ones; urgent requests come for `stream` s."""
    scheduler = Scheduler(BlockPool(100, 16), limits=Limits(2, 64, ageing=ageing))
    arrivals = [(i * every, 0) for i in range(int(stream / every))] + [(5.0, 1)]
    coming, urgent, background, now = sorted(arrivals), [], None, 0.0
    while coming or scheduler.waiting or scheduler.running:
        while coming and coming[0][0] <= now:
            at, priority = coming.pop(0)
            scheduler.add(Request(f"{priority} {at}", [0] * 20, 10, priority=priority, arrival=at))
        plan = scheduler.schedule(now)
        now += step
        scheduler.update(plan, {w.sequence.id: [0] for w in plan.work if w.samples})
        for sequence in [w.sequence for w in plan.work]:
            if len(sequence.output) == 1 and sequence.computed == 20:
                urgent.append(now - sequence.request.arrival)
                if sequence.request.priority:
                    background = urgent.pop()
            if len(sequence.output) == 10:
                scheduler.finish(sequence)
    return background, median(urgent)


STREAMS = (30, 60, 120, 240)
RULES = {"first come, first served": 1e-3, "ageing, 10 s": 10.0, "strict priority": float("inf")}
waited = {name: [waits(a, stream) for stream in STREAMS] for name, a in RULES.items()}

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [name, *(f"{background:.1f}" for background, _ in row), f"{row[1][1]:.1f}"]
        for name, row in waited.items()
    ],
    ["rank", *(f"urgent requests come for {s} s" for s in STREAMS), "an urgent one waits (median, 60 s)"],
    align="lrrrrr",
)
assert waited["strict priority"][-1][0] > 200 > 20 > waited["ageing, 10 s"][-1][0]
markdown(
    "The last row is our negative control. Under strict priority the background request waits "
    + ", ".join(f"{row[0]:.0f}" for row in waited["strict priority"])
    + " seconds: as long as urgent ones come. It **starves**. With ageing it waits "
    f"{waited['ageing, 10 s'][-1][0]:.1f} s, whatever happens behind it, and the urgent ones hardly notice."
)

# %% [markdown]
# Why does nobody starve? A request that arrives $a$ seconds after another, one step of priority ahead, has the same rank; whoever
# comes later has a worse one. So only finitely many can ever get in front of a given request. They finish, because the best rank
# always moves: it has its token set aside, it can take any block it needs, and nobody takes its own. Then the next is the best.
#
# *Fixed at arrival* matters. Ageing is often written as a score that grows while one waits, computed anew at each step. Differences
# between two waiting requests come out the same, but a running one, whose score has stopped growing, is overtaken by one that still waits,
# preempted, overtakes in its turn, and both pay for being computed again and again. With fixed ranks two requests never change places.
#
# And one request must be refused at the door: one that needs more blocks than the pool has. It would become the head of the queue,
# take everything, still not fit, and hold up everybody for ever.

# %% tags=["nbval-check-output"]
scheduler = Scheduler(BlockPool(8, 16), limits=Limits(2, 64))
try:
    scheduler.add(Request("too large", [0] * 120, 20))
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Prefill here, decode there
#
# Chunks make the freeze short. They do not make it nothing: while the document is read, every step is longer. If that is too much,
# take the prompt to another machine. A prefill worker computes keys and values and the first token, sends them, and a decode worker
# goes on from there, in steps that hold nothing but answers. That is [disaggregation](../book/glossary.md#term-disaggregation).
#
# The price is the journey of $\kappa L$ bytes. Sent *whole*, they leave when the prompt is done. Sent *layer by layer*, layer 0
# travels while layer 1 is computed, and only the last layer's journey is left at the end, if the link keeps up. What is "up"? A
# prefill makes cache at a rate of its own,
#
# $$ \frac{\kappa L}{t_\text{prefill}(L)} \approx \frac{\kappa \cdot \text{peak}}{2N}, $$
#
# and a link that is faster hides everything but one layer.

# %% tags=["hide-input", "nbval-check-output"]
LINKS = {"NVLink, 450": 450e9, "400 Gbit/s, 50": 50e9, "100 Gbit/s, 12.5": 12.5e9, "10 Gbit/s, 1.25": 1.25e9}


def journey(c, card, length, link):
    """(prefill, bytes, seconds left after it when sent whole, and layer by layer)."""
    prefill = cost.predict_prefill(c, hardware.CHIPS[card], length, dtype="bf16").seconds
    size = length * cost.kv_bytes_per_token(c, "bf16")
    compute, travel = prefill / c.num_layers, size / c.num_layers / link
    layered = travel if travel <= compute else compute + c.num_layers * travel - prefill
    return prefill, size, size / link, layered


prefill_s, size, *_ = journey(llama, "H100 SXM", 4096, 1)
table(
    [
        [name, *(f"{1e3 * t:.1f}" for t in journey(llama, "H100 SXM", 4096, link)[2:])]
        for name, link in LINKS.items()
    ],
    ["link, GB/s in one direction", "sent whole (ms)", "layer by layer (ms)"],
    align="lrr",
)
markdown(
    f"*Predicted* for 4,096 tokens of Llama-3-8B in bf16 on an H100: {size / 1e6:,.0f} MB, made in {1e3 * prefill_s:.0f} ms, which is "
    f"**{size / prefill_s / 1e9:.1f} GB/s**. A network card of 100 Gbit/s keeps up. One of 10 Gbit/s does not."
)

# %% [markdown]
# Now for real, small: two processes on this machine, one core each, and a pipe of `torch.distributed` between them. Their blocks
# differ, 16 positions on the prefill side and 4 on the decode side. Nobody minds: what travels is a run of positions, and each side
# writes it into blocks of its own.
#
# Sent whole, the keys and values of 768 tokens make their request wait for all of their journey. **Sent layer by layer, which share
# of that wait is left?** The model has 30 layers, and a pipe between two processes on one machine is not slow.

# %% tags=["predict"]
my_guess = 0.2  # exposed, layer by layer / exposed, sent whole

# %% tags=["measure", "nbval-ignore-output"]
from lumen.serve import disagg

short = [Request(f"answer {i}", prompts[i], 48) for i in range(3)]
late = Request("document", document[:768], 4)


def apart(layerwise):
    return disagg.serve(
        partial(lumen.load, "smollm2-135m", dtype=torch.float32), [*short, late], arrivals=[0.0, 0.0, 0.0, 1.0],
        prefill=disagg.Pool(60, 16), decode=disagg.Pool(400, 4), layerwise=layerwise, limits=Limits(8, 2048),
    )  # fmt: skip


results = {layerwise: apart(layerwise) for layerwise in (False, True)}
handed = {kind: next(h for h in r.handovers if h.request_id == "document") for kind, r in results.items()}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
share = handed[True].exposed_s / handed[False].exposed_s
rate = handed[False].num_bytes / handed[False].transfer_s
travel, compute = handed[False].transfer_s / config.num_layers, handed[False].prefill_s / config.num_layers
left = travel if travel <= compute else compute + config.num_layers * travel - handed[False].prefill_s
reveal(
    guess=my_guess, model=left / handed[False].exposed_s, measured=max(share, 1e-3), unit="of the whole", what="exposed transfer",
    title=f"Layer by layer, {share:.0%} of the transfer is left to wait for", log=False,
)  # fmt: skip


# %% tags=["hide-input", "nbval-ignore-output"]
def longest_gap(result):
    """Of the three answers, from the moment all of them are being written: the first steps of a process are cold."""
    lines = [result.token_times[request.id] for request in short]
    begun = max(line[0] for line in lines)
    return max(b - a for line in lines for a, b in pairwise(line) if a >= begun)


table(
    [
        [name, f"{h.num_bytes / 1e6:.1f}", f"{1e3 * h.prefill_s:,.0f}", f"{1e3 * h.transfer_s:,.1f}", f"{1e3 * h.exposed_s:,.1f}",
         f"{1e3 * longest_gap(results[kind]):,.0f}"]
        for name, kind, h in (("whole", False, handed[False]), ("layer by layer", True, handed[True]))
    ],
    ["768 tokens, sent", "MB", "prefill (ms)", "first byte out to last byte in (ms)", "after the prefill (ms)", "longest gap of the others (ms)"],
    align="lrrrrr",
)  # fmt: skip
for request in (*short, late):
    (wanted,) = lumen.generate(model, [request.prompt], 4, eos_ids=())
    assert all(right(request.prompt, r.answers[request.id], wanted.tokens) for r in results.values())
assert all(h.num_bytes == 768 * cost.kv_bytes_per_token(config, "fp32") for h in handed.values())
markdown(
    f"Bytes are exact: 768 · κ = {handed[True].num_bytes / 1e6:.1f} MB either way, and the answers begin as those of a single process do. The link "
    f"moves {rate / 1e9:.1f} GB/s, and the prefill makes {handed[True].num_bytes / handed[True].prefill_s / 1e9:.2f} GB/s. "
    + (
        "So the link keeps up. Layer by layer the journey takes as long as the prefill, since every layer is waited for, and next to nothing "
        "of it is left when the prefill ends."
        if share < 0.5
        else "Two processes that share a machine get into each other's way, so do not read more into it than the order of magnitude."
    )
)

# %% tags=["hide-input"]
try:
    kept = {row["way"]: row for row in bench.load_evidence("disaggregation")["data"]["rows"]}
    table(
        [[way, *(f"{r[k]:,.0f}" for k in ("itl_p50_ms", "itl_p99_ms", "long_ttft_ms")), *(f"{r[k]:,.1f}" if k in r else "–" for k in ("transfer_ms", "exposed_ms"))]
         for way, r in kept.items()],
        ["published run (`benchmarks/disaggregation.py`)", "median gap (ms)", "p99 gap", "TTFT, 1,000 tokens", "transfer", "after the prefill"],
        align="lrrrrr",
    )  # fmt: skip
    layered, chunked = kept["apart, layer by layer"], kept["one engine, chunks of 128"]
    markdown(
        f"Apart, the p99 gap is {chunked['itl_p99_ms'] / layered['itl_p99_ms']:.1f} times shorter than with chunks of 128, and the long prompts' TTFT "
        f"{layered['long_ttft_ms'] / chunked['long_ttft_ms']:.2f} times that of the chunked engine. But mind that each worker has a core, and the single engine has one "
        "as well: apart is twice the machine."
    )
except FileNotFoundError:
    markdown("No published run of `benchmarks/disaggregation.py` is at hand.")

# %% [markdown]
# ### When does it pay?
#
# Take eight A100 and a stream of requests with 4,096 tokens of prompt and 256 of answer. *Together*: every chip does both, in
# steps that take exactly the ITL limit; the rest of each step is prompt. *Apart*: some chips only read, the others only write, in
# steps under the same limit; the split that serves most is taken. How many requests a second?


# %%
def together(card, slo, prompt=4096, answer=256, c=llama):
    """(requests/s of one chip, tokens of prompt in each step) when every step may take `slo` seconds."""
    ch, context, low, high = hardware.CHIPS[card], prompt + answer // 2, 0.0, 50.0
    most = cost.max_users(ch.memory, c, context, "bf16", "bf16", 0.1)
    for _ in range(30):
        rate = (low + high) / 2
        users, chunk = round(rate * answer * slo), max(1, round(rate * prompt * slo))
        pieces = [(context, 1)] * users + [(prompt // 2, chunk)]
        fits = users <= most and step_seconds(pieces, ch, c, "bf16", "static") <= slo
        low, high = (rate, high) if fits else (low, rate)
    return low, max(1, round(low * prompt * slo))


def split(card, slo, prompt=4096, answer=256, c=llama, chips=8):
    """(requests/s of all chips, chips that read) for the best split."""
    ch, context = hardware.CHIPS[card], prompt + answer // 2
    reading = 1 / cost.predict_prefill(c, ch, prompt, dtype="bf16").seconds
    writing = cost.max_batch(c, ch, context, slo, "bf16", reserve=0.1) / answer / slo
    return max((min(k * reading, (chips - k) * writing), k) for k in range(1, chips))


# %% tags=["hide-input", "nbval-check-output"]
CARD, rows = "A100 80GB SXM", []
read_s = cost.predict_prefill(llama, hardware.CHIPS[CARD], 4096, dtype="bf16").seconds
for slo in (0.008, 0.0085, 0.01, 0.015, 0.03, 0.06):
    (rate, chunk), (best_rate, readers) = together(CARD, slo), split(CARD, slo)
    rows.append(
        [f"{1e3 * slo:g}", f"{8 * rate:.1f}", f"{best_rate:.1f} ({readers} read)", chunk,
         f"{1e3 * slo * -(-4096 // chunk):,.0f}", f"{1e3 * (read_s + journey(llama, CARD, 4096, 50e9)[3]):,.0f}"]
    )  # fmt: skip
table(
    rows,
    ["every gap under (ms)", "together (requests/s)", "apart (requests/s)", "tokens of prompt in a step", "TTFT together (ms)", "TTFT apart (ms)"],
    align="rrrrrr",
)  # fmt: skip

# %% [markdown]
# *Predicted* for Llama-3-8B in bf16 on eight A100, without queues, over a link of 50 GB/s. On an ideal chip, together always serves as
# many or more. It must: prompt tokens ride on a reading of weights that the answers pay for anyway, and eight chips can be
# shared in any ratio, where a split is a whole number.
#
# What apart buys is the last column: its TTFT does not depend on the ITL limit any more.

# %% tags=["hide-input", "nbval-check-output"]
floor_ms = 1e3 * step_seconds([(4096 + 128, 1)], hardware.CHIPS[CARD], llama, "bf16", "static")
_, crumbs = together(CARD, 0.008)
markdown(
    f"A step with a single answer and no prompt takes {floor_ms:.1f} ms. Under a limit of 8 ms that leaves room for {crumbs} tokens of a prompt per step, "
    f"and 4,096 of them take {0.008 * -(-4096 // crumbs):.1f} s. Apart they take {read_s + journey(llama, CARD, 4096, 50e9)[3]:.2f} s under any limit."
)

# %% [markdown]
# So disaggregation pays
#
# - when **both** limits are tight, and chunks small enough for the one break the other;
# - when the two sides want **different machines**: compute for reading, bandwidth and memory for writing, other parallelism;
# - when a mixed step is worse than its parts, because kernels or graphs are made for one kind of work.
#
# It does not pay for short prompts, for a single machine, or for a link below the rate at which prefill makes cache. And the
# thing to compare it with is chunked prefill, not the freeze at the top of this page.
#
# ## Where it loses
#
# Chunked prefill has a price, and it is not FLOPs. Each (query, key) pair is computed once however the prompt is cut.
# What repeats is *reading*: the weights once per chunk, and the keys and values of all earlier chunks.

# %% tags=["hide-input", "nbval-ignore-output"]
kappa = cost.kv_bytes_per_token(config, "fp32")
weights = cost.weight_bytes(config, "fp32")
rows = []
for chunk in (LONG, 504, 248, 120, 56, 16):
    cuts = [(start, min(chunk, LONG - start)) for start in range(0, LONG, chunk)]
    pairs = sum(cost.causal_pairs(count, held) for held, count in cuts)
    reread = kappa * sum(held for held, _ in cuts)
    seconds = sum(step_seconds([piece]) for piece in cuts)
    rows.append(
        [
            f"{chunk:,}",
            len(cuts),
            f"{pairs:,}",
            f"{len(cuts) * weights / 1e9:.1f}",
            f"{reread / 1e6:,.0f}",
            f"{1e3 * seconds:,.0f}",
        ]
    )
table(
    rows,
    ["chunk", "chunks", "pairs of query and key", "GB of weights read", "MB of cache read again", "prompt alone, predicted (ms)"],
    align="rrrrrr",
)  # fmt: skip
assert len({row[2] for row in rows}) == 1

# %% tags=["measure", "nbval-ignore-output"]
one_piece, pieces = (
    partial(meet, model, prompts[:1], document[:768], budget, before=1, after=2) for budget in (2048, 33)
)
lone = {name: run().ttft for name, run in {"in one piece": one_piece, "in chunks of 32": pieces}.items()}

# %% tags=["hide-input", "nbval-ignore-output"]
slow = lone["in chunks of 32"] / lone["in one piece"]
markdown(
    f"So with hardly anybody to protect it is a loss: 768 tokens beside a single answer take {1e3 * lone['in one piece']:,.0f} ms to the first token in one "
    f"piece and {1e3 * lone['in chunks of 32']:,.0f} ms in chunks of 32, **{slow:.1f} times** as long. An offline job, where nobody reads along, "
    "should have the largest budget that memory allows. And a budget that is too small starves itself: with 60 answers under way, a budget "
    "of 64 leaves 4 tokens per step for every prompt in the world."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the mean gap, or TPOT | the freeze is spread over the whole answer: a server that is a little slow | p99 over every gap, and the longest |
# | a window in which the freeze is rarer than 1 in 100 | p99 looks perfect, and users still complain | 40 gaps per answer: the freeze is 2.5 % of them |
# | TTFT of the *other* requests | chunking looks free | the long prompt's own TTFT stands beside the gaps |
# | disaggregation compared with an unchunked engine | "no more stalls": chunks had removed most of them | together is chunked, under the same limit |
# | a process that has just started | its first steps, cold, hold the longest gap of all | gaps are counted once all answers are being written |
# | a small pool compared by total time | preemption is blamed for what a smaller batch costs | tokens computed again are counted, and the row with room for all stands beside |
#
# ## Play
#
# The engine's own scheduler, with step times predicted for Llama-3-8B on an A100. A prompt of 8,000 tokens arrives among four
# answers. Look for it first under *continuous*, then choose *chunked* and move the budget.

# %%
lumen.explore.Timelines(
    workload="long-prompt", policy="chunked", title="A prompt of 8,000 tokens among answers"
)

# %% [markdown]
# The live lab is the first experiment of this page with your numbers in it.

# %% tags=["nbval-ignore-output"]
lab = lumen.explore.budget_lab(model)

# %% [markdown]
# ## In production
#
# | engine | where | version |
# | --- | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/v0.17.1/configuration/optimization/) | `--max-num-batched-tokens` is the token budget, 2,048 in the class and larger in `vllm serve` on large cards; chunked prefill is on wherever possible; `--max-num-seqs`, `--scheduling-policy fcfs` or `priority` (no ageing); preemption by recomputing | 0.17, 2026 |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/pd_disaggregation) | `--chunked-prefill-size`; chunks and answers share a step only with `--enable-mixed-chunk`; `--disaggregation-mode prefill` or `decode`, over Mooncake or NIXL | read in November 2026 |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html) | `max_num_tokens` is the budget, `enable_chunked_prefill`; disaggregated serving with `cache_transceiver_config` | read in November 2026 |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | `--batch-size` and `--ubatch-size` cut a prompt; `--parallel` slots | read in November 2026 |
#
# In this course: `lumen serve --token-budget …`, and `lumen/serve/scheduler.py`, which you have just written most of.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **The freeze was one step** with {LONG + ANSWERS:,} tokens in it: {1e3 * freeze:,.0f} ms, where a step of eight answers takes {1e3 * usual:.0f} ms.\n"
    f"- **A token budget bounds the step.** Budget {best}: p99 gap {p99[best] / p99[2048]:.2f} times the unchunked one; the document's TTFT "
    f"{runs[best].ttft / whole.ttft:.1f} times. Beside 32 answers of Llama-3-8B, {free['H100 SXM']} prompt tokens per step are nearly free on an H100 (predicted).\n"
    f"- **One rule, no phases**: computed catches up with total inside two budgets. Forty lines, {sums[0]:,} plans equal to the real scheduler's.\n"
    f"- **Preemption changes no answer**: it takes what can be computed again. With a prefix cache it computed "
    f"{ways['recompute, with a prefix cache'][1].computed_tokens - needed} tokens again instead of {ways['recompute'][1].computed_tokens - needed}.\n"
    f"- **Nobody starves** when ranks are fixed at arrival and age: {waited['ageing, 10 s'][-1][0]:.0f} s instead of {waited['strict priority'][-1][0]:.0f}.\n"
    f"- **Apart** costs κ·L bytes, hidden layer by layer on a link above {size / prefill_s / 1e9:.0f} GB/s (Llama-3-8B, H100, predicted); it buys a TTFT that no ITL "
    "limit can spoil, and no throughput."
)
callout(
    "takeaway",
    f"**Takeaway.** Ask of every latency: which step was it in, and what else was in that step? Bounding the step to {best} tokens made the "
    f"worst gaps {p99[2048] / p99[best]:.1f} times shorter, for a first token that came {runs[best].ttft / whole.ttft:.1f} times as late.",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "Why do answers under way stop while a long prompt is read unchunked?",
            "choices": [
                {"text": "They are in the same step as the prompt, and a step ends for all at once.", "ok": True, "why": "Their tokens were computed in that step. They came out when it ended."},
                {"text": "They wait in the queue behind the prompt.", "why": "They never left the running list. The plan of the step shows all eight."},
                {"text": "The prompt takes their blocks.", "why": "There were blocks for everybody. Only a step's length is at fault."},
                {"text": "Reading a prompt has the higher priority.", "why": "In our scheduler answers come first. It does not help when the rest of the step is long."},
            ],
        },
        {
            "kind": "numeric",
            "question": "Token budget 256, twelve answers under way, a prompt of 2,000 tokens arrives. After how many steps does it have its first token?",
            "answer": 9, "tolerance": 0.01, "unit": "steps",
            "right": "244 tokens a step are left; 2,000 / 244 is 8.2, and the ninth step ends with the sample.",
            "wrong": "What do the twelve leave of each step's budget? Round up.",
            "slips": [
                {"answer": 8, "tolerance": 0.01, "why": "Either you gave the whole budget to the prompt, or you rounded down: after 8 steps 48 tokens are missing."},
                {"answer": 10, "tolerance": 0.01, "why": "The first token is sampled in the step of the last chunk, not in one of its own."},
            ],
        },
        {
            "kind": "choice",
            "question": "A prompt is read in 16 chunks instead of one piece. What grows?",
            "choices": [
                {"text": "What is read: weights 16 times, earlier chunks' cache again and again.", "ok": True, "why": "FLOPs stay the same, reading repeats."},
                {"text": "The FLOPs of attention, by about a sixteenth.", "why": "Each query meets each earlier key once, however the prompt is cut. The pairs are equal to the last one."},
                {"text": "The memory for keys and values.", "why": "Each position is stored once. What an unchunked step holds more of is activations."},
                {"text": "Nothing.", "why": "Then nobody would use large budgets. Weigh the readings of the weights."},
            ],
        },
        {
            "kind": "choice",
            "question": "A preempted request had written 40 tokens. By recompute, what does the scheduler run when it is let in again?",
            "choices": [
                {"text": "Prompt and 40 tokens as if they were a prompt, then the next token is sampled.", "ok": True, "why": "total stayed, computed is 0. The rule needs nothing else."},
                {"text": "The prompt; the 40 tokens are sampled again.", "why": "The reader has seen them, and with a temperature others would come."},
                {"text": "Only the 40 tokens.", "why": "Their keys and values need those of the prompt, and all blocks were given back."},
            ],
        },
        {
            "kind": "choice",
            "question": "Prefill and decode are put on different machines. What improves for certain?",
            "choices": [
                {"text": "The TTFT no longer depends on how tight the ITL limit is.", "ok": True, "why": "Nothing but answers is in a decode step, so a prompt need not be cut into crumbs."},
                {"text": "Requests per second.", "why": "Ideal chips serve at least as many together: prompts ride on readings of the weights that answers pay for."},
                {"text": "The memory for keys and values.", "why": "For a while they are on both machines."},
                {"text": "The time to read a prompt.", "why": "It stays, and a journey is added."},
            ],
        },
    ],
    id="09",
    shuffle=True,
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/09_scheduling.ipynb) ([solutions](../solutions/09_scheduling.ipynb)). Checks answer at
# once and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("09"))

# %% [markdown]
# ## Further reading
#
# - [Sarathi-Serve](https://arxiv.org/abs/2403.02310) (Agrawal and others, 2024): read it for section 3, which measures what prefill
#   does to decode, and for chunks beside answers under a token budget.
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for scheduling by iteration, the
#   idea that everything here stands on.
# - [DistServe](https://arxiv.org/abs/2401.09670) (Zhong and others, 2024): read it for goodput per GPU under two limits, and look at what it is
#   compared with.
# - [Splitwise](https://arxiv.org/abs/2311.18677) (Patel and others, 2023): read it for different machines on the two sides, and for the
#   transfer layer by layer.
# - [Fairness in Serving Large Language Models](https://arxiv.org/abs/2401.00588) (Sheng and others, 2023): read it for fairness between *users*,
#   counted in tokens, which ranks alone do not give.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print("fp32 throughout; random prompts with seed 0; workloads of the schedulers with seeds 0 to 299")
print(f"this machine: {chip.name}, {chip.bandwidth / 1e9:.1f} GB/s read; data-sheet chips are predictions")
print("evidence files read when present: chunked_prefill, disaggregation")
