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
# CPU is enough · read 30 min · run 1 min · practise 96 min · here: [exercises](../exercises/09_scheduling.ipynb), [solutions](../solutions/09_scheduling.ipynb)
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
# - write the rule by which a server decides what every step computes, in forty lines, and hold it to the real one;
# - predict from FLOPs and bytes how long a step takes, and choose the token budget that keeps every gap under a limit;
# - take a running request's memory away, give it back, and prove that its answer did not change;
# - say who could wait for ever, why nobody does, and when prefill and decode belong on different machines.
#
# Needs: [the roofline](02_roofline.ipynb), [measuring](03_measuring.ipynb), [the paged cache](05_paged_cache.ipynb),
# [batching](08_batching.ipynb).

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
from bisect import bisect_right, insort
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
from lumen.serve import disagg
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
LONG, ANSWERS, CONTEXT, AFTER = 1500, 8, 96, 28
draw = random.Random(0)
prompts = [[draw.randrange(3, config.vocab_size) for _ in range(CONTEXT)] for _ in range(ANSWERS)]
document = [draw.randrange(3, config.vocab_size) for _ in range(LONG)]

meet(model, prompts, document[:64], budget=2048, after=1)  # warm up
whole = meet(model, prompts, document, budget=2048, after=AFTER)

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
# how many tokens, and behind how many that were there already.

# %% tags=["nbval-check-output"]
for number, (_, _, pieces) in enumerate(whole.steps[:2]):
    print(f"step {number}:", ", ".join(f"{count} at {held}" for held, count in pieces))

# %% [markdown]
# One step. Nobody was put into a queue: the eight were *in* it, and a step ends for everybody at once. The step was long. How long
# is a step?
#
# ## A step is as long as what is in it
#
# All $n$ tokens of a step go through the same matrices. A matrix of $w$ weights takes the longer of two times: reading it, or
# multiplying by it. In attention an answer reads its own cache, and $c$ tokens of a prompt behind $h$ cached ones look at
# $c\,h + c(c+1)/2$ pairs of a query and a key.
#
# $$
# \begin{gathered}
# t_\text{step} = t_\text{matrices} + t_\text{attention} + t_\text{rest} \\
# t_\text{matrices} = \sum_\text{matrices} \max(t_\text{read},\, t_\text{multiply}) \\
# t_\text{read} = \frac{b\,w}{\text{bandwidth}} \\
# t_\text{multiply} = \frac{2\,w\,n}{\text{rate}(n)}
# \end{gathered}
# $$
#
# Here $b$ is bytes per weight, and $\text{rate}(n)$ the FLOP/s that this machine's matrix products reach with $n$ rows, measured
# once. The rest is writing the cache, elementwise work and the fixed cost of every operator. `lumen.cost.predict_mixed` adds it up
# for eight answers at context 100 and more and more of a prompt beside them:

# %% tags=["hide-input", "nbval-ignore-output"]
chip = hardware.measure(progress=False)


def step_seconds(pieces, chip=chip, config=config, dtype="fp32", cache="paged"):
    return cost.predict_mixed(config, chip, pieces, dtype, cache=cache).seconds


others = [(CONTEXT + 4, 1)] * ANSWERS
rows = []
for count in (0, 56, 120, 248, LONG):
    step = cost.predict_mixed(config, chip, others + [(0, count)] * bool(count), "fp32", cache="paged")
    matrices = sum(step.parts[name] for name in ("projections", "mlp", "head"))
    times = (matrices, step.parts["attention"], step.seconds)
    rows.append([f"{count:,}" if count else "none", ANSWERS + count, *(f"{1e3 * t:,.0f}" for t in times)])
table(
    rows,
    ["tokens of a prompt", "tokens in the step", "matrices (ms)", "attention (ms)", "whole step (ms)"],
    align="rrrrr",
)

# %% [markdown]
# Nothing forces 1,500 tokens into one step. Position 248 needs the keys and values of positions 0 to 247, and once computed
# those lie in blocks, where the next step finds them. A prompt can be read in pieces, with the eight answers in every step:
# [chunked prefill](../book/glossary.md#term-chunked-prefill).
#
# So give the scheduler a **token budget**: no step computes more tokens than that. Answers under way come first, one token
# each. The rest goes to prompts. With a budget of 256 the document gets 248 tokens per step, and its first token after seven.
#
# ## Predict: how much shorter is the freeze?
#
# **With a budget of 256 instead of 2,048, how many times shorter is the longest gap that the eight readers see?** The longest
# step now has 256 tokens in it instead of 1,508.

# %% tags=["predict"]
my_guess = 6.0  # longest gap unchunked / longest gap with a budget of 256

# %% tags=["measure", "nbval-ignore-output"]
runs = {2048: whole} | {budget: meet(model, prompts, document, budget, after=AFTER) for budget in (256, 64)}


def reading(run):
    """The steps up to the long prompt's first token, as lists of pieces (positions held, tokens computed)."""
    chunks = sum(any(count > 1 for _, count in pieces) for *_, pieces in run.steps)
    return [pieces for *_, pieces in run.steps[:chunks]]


predicted = {budget: [step_seconds(pieces) for pieces in reading(run)] for budget, run in runs.items()}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
by_model, shorter = max(predicted[2048]) / max(predicted[256]), freeze / max(runs[256].gaps)
longest = max(range(len(predicted[256])), key=predicted[256].__getitem__)
markdown(
    f"Tokens alone say {(LONG + ANSWERS) / 256:.1f}×. The model says {by_model:.1f}×, the clock {shorter:.1f}×. "
    f"Even a step with the eight alone in it takes {1e3 * step_seconds(others):.0f} ms by the model, since the weights are read whatever comes. "
    f"Fewer rows use the arithmetic less well. And not all chunks are alike: the longest, says the model, is chunk {longest + 1} of "
    f"{len(predicted[256])}, a full one that looks back at {reading(runs[256])[longest][-1][0]:,} tokens."
)
reveal(
    guess=my_guess, model=by_model, measured=shorter, unit="×", what="shorter longest gap",
    title=f"In chunks, the longest gap is {shorter:.1f} times shorter", log=False,
)  # fmt: skip

# %% [markdown]
# And smaller chunks? Below is every gap that one of the readers saw, under three budgets.

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"The smaller the budget, the shorter and the more numerous the slow steps: {AFTER} gaps of one answer",
    x="token since the document's arrival", y="gap before it (ms)", log_y=True,
)  # fmt: skip
for budget, color in ((2048, palette.orange), (256, palette.blue), (64, palette.green)):
    gaps = [1e3 * (b - a) for a, b in pairwise(runs[budget].times[0])]
    fig.add_scatter(
        x=list(range(1, len(gaps) + 1)), y=gaps, mode="lines+markers", line_color=color, name=f"budget {budget:,}"
    )  # fmt: skip
fig.update_layout(showlegend=True)
log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000])
fig

# %% [markdown]
# ## Predict: who pays?
#
# The document does. With a budget of 64 its tokens come 56 at a time, and each of these steps reads all the weights, carries the
# eight answers along, and looks back at all the chunks before it. **How many times as long does the document wait for its first token
# as when it was read in one piece?**

# %% tags=["predict"]
my_guess = 2.0  # TTFT of the document, budget 64 / whole

# %% tags=["measure", "nbval-ignore-output"]
dearer = runs[64].ttft / whole.ttft

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
off = max(abs(sum(predicted[budget]) / run.ttft - 1) for budget, run in runs.items())
markdown(
    f"{len(predicted[64])} steps instead of one, and {dearer:.1f} times the wait; the model's three TTFTs are off by {off:.0%} at most. By the model a step "
    f"with the eight alone takes {1e3 * step_seconds(others):.0f} ms, and {1e3 * sum(predicted[64]) / len(predicted[64]):.0f} with a chunk of 56. The wait is "
    "so much shorter than the number of steps suggests because arithmetic, the larger part, is done once."
)
reveal(
    guess=my_guess, model=sum(predicted[64]) / sum(predicted[2048]), measured=dearer, unit="×",
    what="TTFT with a budget of 64 over TTFT in one piece", title=f"Chunks of 56 make the document wait {dearer:.1f} times as long", log=False,
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
p99 = {budget: percentile(run.gaps, 99) for budget, run in runs.items()}
rows = []
for budget, run in runs.items():
    times = (median(run.gaps), p99[budget], max(predicted[budget]), run.ttft, sum(predicted[budget]))
    rows.append([f"{budget:,}", len(predicted[budget]), *(f"{1e3 * t:,.0f}" for t in times)])
table(
    rows,
    ["token budget", "steps for the document", "median gap (ms)", "p99 gap (ms)", "longest step, predicted (ms)", "TTFT of the document (ms)", "TTFT, predicted (ms)"],
    align="rrrrrrr",
)  # fmt: skip
text = (
    f"What the eight gain, the ninth pays: with a budget of 64 the p99 gap is **{p99[2048] / p99[64]:.1f} times shorter**, and the document's first "
    f"token comes {dearer:.1f} times as late. "
)
try:
    kept = {row["budget"]: row for row in bench.load_evidence("chunked_prefill")["data"]["rows"]}
    gap, ttft = ({b: median(row[key]) for b, row in kept.items()} for key in ("p99_itl", "ttft"))
    text += (
        f"The published run (`benchmarks/chunked_prefill.py`, {len(kept[64]['ttft'])} rounds in alternating order, five budgets) has "
        f"{1e3 * gap[2048]:,.0f} ms against {1e3 * gap[64]:,.0f}, {gap[2048] / gap[64]:.1f} times shorter, for a TTFT of {1e3 * ttft[64]:,.0f} ms "
        f"instead of {1e3 * ttft[2048]:,.0f}."
    )
except FileNotFoundError:
    text += "`benchmarks/chunked_prefill.py` repeats this in several rounds, with five budgets."
markdown(text)

# %% [markdown]
# Did cutting the prompt change anything that was said? The witness knows no scheduler, no blocks and no cache: one causal
# `scaled_dot_product_attention` over prompt and answer at once, held to transformers' in [chapter 1](01_prefill_decode.ipynb). At
# every position the token that was written must be the likeliest, or within rounding of it.

# %% tags=["hide-input", "nbval-check-output"]
asked = [*prompts, document]


@torch.inference_mode()
def shortfall(ids, written):
    """How far the written tokens' logits lie below the best ones, at most. No cache, no scheduler."""
    hidden = model.hidden(torch.tensor([ids + written], device=session.device))
    logits = model.head(hidden[0, len(ids) - 1 : -1])
    return float((logits.max(-1).values - logits[range(len(written)), written]).max())


def same(ids, written, known):
    """As far as both go, the tokens of `known`; where two logits nearly tie, a token that is as likely counts, too."""
    both = min(len(written), len(known))
    return written[:both] == known[:both] or shortfall(ids, written[:both]) < 1e-3


likeliest = all(shortfall(ids, answer) < 1e-3 for ids, answer in zip(asked, whole.answers, strict=True))
print("budget 2048: every token is the likeliest in one pass without a cache:", likeliest)
assert likeliest
for budget in (256, 64):
    ok = [same(*answer) for answer in zip(asked, runs[budget].answers, whole.answers, strict=True)]
    print(f"budget {budget}: every answer is the same: {all(ok)}")
    assert all(ok)

# %% [markdown]
# <div class="callout takeaway">
#
# **Takeaway.** A gap between tokens is as long as the step it contains. A token budget bounds what is in the step, and so the gap,
# whatever prompt arrives. Only looking back still grows with the prompt.
#
# </div>
#
# ## Which budget?
#
# On a CPU every token in a step costs time, almost from the first one on. A data-centre chip with 32 answers in a step waits for
# memory. Tokens of a prompt fill its idle arithmetic *for nothing*, until the [ridge](../book/glossary.md#term-ridge-point); from
# there on each one costs its FLOPs. *Predicted* from data sheets, for Llama-3-8B in bf16, 32 answers at context 2,048 and a chunk
# behind 4,096 tokens of its prompt. "Nearly free" means 10 % on the step.

# %% tags=["hide-input"]
llama, CARDS = CONFIGS["llama-3-8b"], ("A100 80GB SXM", "H100 SXM", "L4")
writers = [(2048, 1)] * 32
counts = [2**k for k in range(3, 14)]


def card_step(name, count, held=4096):
    pieces = writers + [(held, count)] * bool(count)
    return step_seconds(pieces, hardware.CHIPS[name], llama, "bf16", "static")


def most(limit, seconds, top=8192):
    """The largest of 0 … `top` whose `seconds` stay within the limit; -1 when even 0 takes longer."""
    return bisect_right(range(top + 1), limit, key=seconds) - 1


free = {name: most(1.1 * card_step(name, 0), partial(card_step, name)) for name in CARDS}
fig = figure(
    f"Beside 32 answers, {free['H100 SXM']} prompt tokens are nearly free on an H100, {free['A100 80GB SXM']} on an A100 (predicted)",
    x="tokens of a prompt in the step", y="step (ms)", log_x=True, log_y=True,
)  # fmt: skip
for name, color in zip(CARDS, (palette.blue, palette.orange, palette.green), strict=True):
    times = [1e3 * card_step(name, count) for count in counts]
    fig.add_scatter(x=counts, y=times, mode="lines+markers", line_color=color)
    label_line(fig, counts[0], times[0], name.split()[0], color, anchor="left", shift=12)
log_axis(fig, "x", [8, 32, 128, 512, 2048, 8192], ["8", "32", "128", "512", "2,048", "8,192"])
log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000])
fig

# %% [markdown]
# Left of the bend a smaller chunk saves nothing and costs steps. Right of it, take the time that a limit on the gap (the
# [ITL](../book/glossary.md#term-ITL)) leaves beside the answers, divide it by what one token of a prompt costs, and you have the chunk.
# For a prompt of 8,192 tokens, down to its last and slowest chunk:

# %% tags=["hide-input", "nbval-check-output"]
PROMPT = 8192
rows = []
for name in CARDS:
    for limit in (0.02, 0.1):
        chunk = most(limit, lambda count, name=name: card_step(name, count, PROMPT - count), PROMPT)
        ttft = "–"
        if chunk > 0:
            starts = range(0, PROMPT, chunk)
            ttft = f"{1e3 * sum(card_step(name, min(chunk, PROMPT - start), start) for start in starts):,.0f}"
        rows.append(
            [
                name,
                f"{1e3 * limit:.0f}",
                f"{chunk:,}" if chunk > 0 else "none: too slow without a prompt",
                ttft,
            ]
        )
table(
    rows,
    ["chip", "every gap under (ms)", "largest chunk (tokens)", "TTFT of 8,192 tokens, no queue (ms)"],
    align="lrrr",
)

# %% [markdown]
# A real engine is slower than these bounds. Under the tight limit the L4 is too slow for the 32 users before any prompt arrives.
#
# ## The one rule
#
# Who hands out the tokens? Look again at what a plan is: a list of (request, from where, how many). It does not say whether that
# is prefill or decode, and it need not. A request has a **total**, its prompt and what it has written, and a count **computed**, of
# positions whose keys and values lie in its blocks. With a budget of 256:
#
# | request | total | computed | gap | in this step |
# | --- | ---: | ---: | ---: | --- |
# | an answer under way | 131 | 130 | 1 | 1 token, then the next is sampled |
# | the document, just arrived | 1,500 | 0 | 1,500 | what the budget leaves: no sample |
# | the document, last chunk | 1,500 | 1,488 | 12 | 12 tokens, then its *first* is sampled |
# | a request whose blocks were taken | 131 | 0 | 131 | as a prompt of 131 would be |
#
# **Every step, computed catches up with total, inside a token budget and a block budget.** When they are equal, a token is sampled
# and total grows by one. There is no prefill phase and no decode phase.
#
# ## Build it
#
# Two lists in order of rank, best first. The budget has a token for every slot, at least. Running requests take their tokens, the
# single ones set aside beforehand. Whoever needs a block when there is none takes those of the worst rank. Then the queue is let in
# from its head while slots, tokens and blocks last, unless this step had to take blocks away.


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
# Is that the real one? In three hundred random workloads on tiny pools, prompts are cut and blocks run out. In every step our plan
# must be that of `lumen.serve.scheduler`: the same requests, the same positions, in the same order.


# %% tags=["hide-input"]
def same_plans(seed):
    """One workload under both schedulers; asserts equal plans, returns (steps, chunks without a sample, preemptions)."""
    dice = random.Random(seed)
    size, blocks, slots = dice.randint(1, 4), dice.randint(4, 14), dice.randint(1, 5)
    budget, step, chunks = slots + dice.choice([0, 1, 3, 20]), 0, 0
    mine = MyScheduler(blocks, size, slots, budget)
    lumens = Scheduler(BlockPool(blocks, size), limits=Limits(slots, budget))
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
# `lumen.serve.scheduler` adds block numbers instead of a count, prefix hits (computed *starts* at the hit), swapping, drafts for
# speculation (total is *larger* by the tokens proposed), and the two older ways to admit of [chapter 8](08_batching.ipynb). None
# of them is a phase.
#
# ## When the pool runs dry
#
# *Whoever needs a block when there is none takes those of the worst rank*: [preemption](../book/glossary.md#term-preemption), done by
# hand in [chapter 5](05_paged_cache.ipynb). Here the engine does it to four requests of 48 + 24 tokens, with 13 blocks of 16 where
# they would need 20. What the blocks held is computed again, or *swapped*: copied to the host's memory and back.


# %% tags=["hide-input"]
def squeezed(num_blocks, preemption="recompute", prefix="none"):
    """Four requests in a pool of `num_blocks`: answers, the engine's counters, bytes swapped out and in."""
    engine = Engine(model, num_blocks=num_blocks, prefix=prefix, limits=Limits(4, 256, preemption=preemption))
    for i in range(4):
        engine.add(Request(f"{i}", prompts[i][:48], 24, arrival=float(i)))
    answers, moved = {f"{i}": [] for i in range(4)}, 0
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id] += delta.tokens
        moved += sum(swap.length for swap in engine.last_plan.swap_out + engine.last_plan.swap_in)
    return list(answers.values()), engine.counters, moved * cost.kv_bytes_per_token(config, "fp32")


ways = {
    "room for all": squeezed(20),
    "recompute": squeezed(13),
    "recompute, with a prefix cache": squeezed(13, prefix="radix"),
    "swap": squeezed(13, "swap"),
}

# %% tags=["hide-input", "nbval-check-output"]
starts = [prompt[:48] for prompt in prompts[:4]]
roomy, *_ = ways["room for all"]
assert all(shortfall(*pair) < 1e-3 for pair in zip(starts, roomy, strict=True))
needed = 4 * (48 + 24 - 1)
rows = []
for name, (answers, counters, moved) in ways.items():
    assert all(same(*answer) for answer in zip(starts, answers, roomy, strict=True)), name
    tokens = counters.computed_tokens
    rows.append(
        [name, counters.preemptions, counters.steps, tokens, tokens - needed, f"{moved / 1e6:.1f}", "yes"]
    )
table(
    rows,
    ["pool", "preemptions", "steps", "tokens computed", "of them again", "MB swapped", "the same answers"],
    align="lrrrrrl",
)  # fmt: skip

# %% [markdown]
# The answers are the same in all four ways, and that is no luck. A token depends on the tokens before it, their positions, and its
# request's own random stream. Preemption takes *computed*, and touches none of the three. Keys and values are a function of tokens
# and positions, so computing them again gives them again, up to the order of additions: where two logits nearly tie, either token may
# win.
#
# Recompute or swap? With a [prefix cache](06_prefix_cache.ipynb) what nobody took meanwhile is found again. Otherwise it is the race of chapter
# 5, for $L$ tokens: $2\kappa L$ bytes over the bus, at $\kappa$ bytes of cache per token, against about $2NL$ FLOPs with $N$
# parameters. A scheduler adds one thing: recomputed tokens go into a step *beside* answers, where arithmetic may be idle.
# *Predicted* for Llama-3-8B in bf16, 1,024 tokens lost, and chapter 5's rates of PCIe:

# %% tags=["hide-input", "nbval-check-output"]
PCIE = {"A100 80GB SXM": 32e9, "H100 SXM": 64e9, "L4": 32e9}  # B/s in one direction, at best
LOST = 1024
crowd = [(1024, 1)] * 16
rows = []
for card, bus in PCIE.items():
    swap = 2 * LOST * cost.kv_bytes_per_token(llama, "bf16") / bus
    alone = cost.predict_prefill(llama, hardware.CHIPS[card], LOST, dtype="bf16").seconds
    seconds = partial(step_seconds, chip=hardware.CHIPS[card], config=llama, dtype="bf16", cache="static")
    beside = sum(seconds([*crowd, (start, 256)]) - seconds(crowd) for start in range(0, LOST, 256))
    times = [f"{1e3 * t:.1f}" for t in (swap, alone, beside)]
    rows.append([card, *times, "swap" if swap < beside else "recompute"])
table(
    rows,
    ["chip", "swap out and in (ms)", "recompute alone (ms)", "recompute in 4 chunks, beside 16 answers (ms)", "cheaper"],
    align="lrrrl",
)  # fmt: skip

# %% [markdown]
# ## Who goes first
#
# Every list above was *in order of rank*. First come, first served lets a batch job delay a person behind it. Strict priorities
# serve people first, and then there is a day when people never stop coming.
#
# Our rank is $\text{priority} + \text{arrival}/a$, fixed when the request arrives; the smallest goes first. One step of priority is
# worth $a$ seconds of waiting. Simulated here: a server with two slots, and urgent requests (priority 0) that come a little faster
# than it can serve them. After five seconds one background request arrives (priority 1).


# %% tags=["hide-input"]
def waits(ageing, stream, step=0.05, every=0.24):
    """Seconds that the background request waits, and the median of the urgent ones; urgent requests come for `stream` s."""
    scheduler = Scheduler(BlockPool(100, 16), limits=Limits(2, 64, ageing=ageing))
    coming = sorted([(i * every, 0) for i in range(int(stream / every))] + [(5.0, 1)])
    urgent, background, now = [], None, 0.0
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


STREAMS = (30, 60, 240)
RULES = {"first come, first served": 1e-3, "ageing, 10 s": 10.0, "strict priority": float("inf")}
waited = {name: [waits(ageing, stream) for stream in STREAMS] for name, ageing in RULES.items()}

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [name, *(f"{background:.1f}" for background, _ in row), f"{row[1][1]:.1f}"]
        for name, row in waited.items()
    ],
    ["rank", *(f"background waits (s), urgent for {s} s" for s in STREAMS), f"an urgent one waits (s, median of {STREAMS[1]} s)"],
    align="lrrrr",
)  # fmt: skip
assert waited["strict priority"][-1][0] > 200 > 20 > waited["ageing, 10 s"][-1][0]
markdown(
    "The last row is our negative control. Under strict priority the background request waits "
    + ", ".join(f"{row[0]:.0f}" for row in waited["strict priority"])
    + " seconds: as long as urgent ones come. It **starves**. With ageing it waits "
    f"{waited['ageing, 10 s'][-1][0]:.1f} s, whatever happens behind it, and the urgent ones hardly notice."
)

# %% [markdown]
# Why does nobody starve? A request that comes $a$ seconds later and one step of priority ahead has the same rank; whoever comes later
# still has a worse one. So only finitely many can ever get in front of a given request. They finish, because the best rank always
# moves: it has its token set aside, it can take any block it needs, and nobody takes its own. Then the next is the best.
#
# *Fixed at arrival* matters. If a score grew only while one waits, two requests could preempt each other again and again. And one
# request must be refused at the door, one that needs more blocks than the pool has: as the head of the queue it would hold up
# everybody for ever.

# %% tags=["nbval-check-output"]
scheduler = Scheduler(BlockPool(8, 16), limits=Limits(2, 64))
try:
    scheduler.add(Request("too large", [0] * 120, 20))
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Prefill here, decode there
#
# Chunks make the freeze short, not nothing: while the document is read, every step is longer. If that is too much, let one machine
# read prompts and send keys, values and the first token to another, whose steps hold nothing but answers:
# [disaggregation](../book/glossary.md#term-disaggregation).
#
# The price is the journey of $\kappa L$ bytes. Sent *whole*, they leave when the prompt is done. Sent *layer by layer*, layer 0
# travels while layer 1 is computed, and only the last layer's journey is left at the end, if the link keeps up with the rate at which
# a prefill makes cache:
#
# $$ \frac{\kappa L}{t_\text{prefill}(L)} \approx \frac{\kappa \cdot \text{peak}}{2N} $$

# %% tags=["hide-input", "nbval-check-output"]
LINKS = {"400 Gbit/s, 50": 50e9, "100 Gbit/s, 12.5": 12.5e9, "10 Gbit/s, 1.25": 1.25e9}


def journey(c, card, length, link):
    """(prefill, bytes, seconds left after it when sent whole, and layer by layer)."""
    prefill = cost.predict_prefill(c, hardware.CHIPS[card], length, dtype="bf16").seconds
    size = length * cost.kv_bytes_per_token(c, "bf16")
    compute, travel = prefill / c.num_layers, size / c.num_layers / link
    layered = travel if travel <= compute else compute + c.num_layers * travel - prefill
    return prefill, size, size / link, layered


trips = {name: journey(llama, "H100 SXM", 4096, link) for name, link in LINKS.items()}
table(
    [[name, *(f"{1e3 * t:.1f}" for t in trip[2:])] for name, trip in trips.items()],
    ["link, GB/s in one direction", "wait when sent whole (ms)", "layer by layer (ms)"],
    align="lrr",
)
prefill_s, size, *_ = trips["400 Gbit/s, 50"]
markdown(
    f"*Predicted* for 4,096 tokens of Llama-3-8B in bf16 on an H100: {size / 1e6:,.0f} MB, made in {1e3 * prefill_s:.0f} ms, which is "
    f"**{size / prefill_s / 1e9:.1f} GB/s**. A network card of 100 Gbit/s keeps up. One of 10 Gbit/s does not."
)

# %% [markdown]
# Now for real, small: two processes on this machine, one core each, and `torch.distributed` between them. Blocks of 16 positions on
# one side and 4 on the other are no obstacle: what travels is a run of positions.

# %% tags=["nbval-ignore-output"]
warm, late = Request("warm-up", prompts[0], 2), Request("document", document[:512], 4)
result = disagg.serve(
    partial(lumen.load, "smollm2-135m", dtype=torch.float32), [warm, late],
    prefill=disagg.Pool(40, 16), decode=disagg.Pool(200, 4), layerwise=True,
)  # fmt: skip
handed = next(trip for trip in result.handovers if trip.request_id == "document")
assert handed.num_bytes == 512 * cost.kv_bytes_per_token(config, "fp32")
assert shortfall(late.prompt, result.answers["document"]) < 1e-3
print(
    f"{handed.num_bytes / 1e6:.1f} MB in {config.num_layers} pieces, while the prefill took {1e3 * handed.prefill_s:,.0f} ms; "
    f"{1e3 * handed.exposed_s:.1f} ms of the journey were left when it ended"
)

# %% tags=["hide-input"]
try:
    kept = {row["way"]: row for row in bench.load_evidence("disaggregation")["data"]["rows"]}
    gaps = ("itl_p50_ms", "itl_p99_ms", "long_ttft_ms")
    table(
        [
            [way, *(f"{row[k]:,.0f}" for k in gaps), f"{row['exposed_ms']:.1f}" if "exposed_ms" in row else "–"]
            for way, row in kept.items()
        ],
        ["published run (`benchmarks/disaggregation.py`)", "median gap (ms)", "p99 gap (ms)", "TTFT, 1,000 tokens (ms)", "journey left after the prefill (ms)"],
        align="lrrrr",
    )  # fmt: skip
    sent, layered, alone, both = (
        kept[way]
        for way in (
            "apart, whole",
            "apart, layer by layer",
            "one engine, chunks of 128",
            "one engine, chunks of 128, both cores",
        )
    )
    markdown(
        f"Layer by layer, {layered['exposed_ms'] / sent['exposed_ms']:.0%} of the wait is left; one layer of {config.num_layers} would be {1 / config.num_layers:.0%}. "
        f"Apart, the p99 gap is {alone['itl_p99_ms'] / layered['itl_p99_ms']:.1f} times shorter than with chunks of 128. That comparison flatters: "
        "each worker has a core, so apart is twice the machine. Against one engine with both cores the gap is "
        f"{both['itl_p99_ms'] / layered['itl_p99_ms']:.1f} times shorter, and the documents wait {layered['long_ttft_ms'] / both['long_ttft_ms']:.1f} times as long, "
        "because the core that writes cannot help the one that reads."
    )
except FileNotFoundError:
    markdown("`benchmarks/disaggregation.py` compares sent whole, layer by layer, and not sent at all.")

# %% [markdown]
# ### When does it pay?
#
# Give both the same eight A100, Llama-3-8B in bf16, 4,096 tokens of prompt and 256 of answer per request, and no queues.
# *Together*: every step holds 16 tokens of prompt for every answer in it, so neither side falls behind. *Apart*: some chips only read,
# the others only write, over 50 GB/s; the best split is taken. Steps with answers, everybody halfway through, stay under the limit.
# How many requests a second?


# %% tags=["hide-input", "nbval-check-output"]
CARD, READ, WRITE, NUM_CHIPS = "A100 80GB SXM", 4096, 256, 8
context, memory = READ + WRITE // 2, hardware.CHIPS[CARD].memory
room = cost.max_users(memory, llama, context, "bf16", "bf16", reserve=0.1)
on_card = partial(step_seconds, chip=hardware.CHIPS[CARD], config=llama, dtype="bf16", cache="static")
mixed = {}  # tokens of prompt in a step: its seconds, with an answer for every 16 of them
for chunk in range(8, READ // WRITE * (room - 1) + 1, 8):
    mixed[chunk] = on_card([(context, 1)] * -(-chunk * WRITE // READ) + [(READ // 2, chunk)])
written = {users: on_card([(context, 1)] * users) for users in range(1, room + 1)}
read_s, *_, last_layer = journey(llama, CARD, READ, 50e9)


def together(limit):
    """(requests/s of all chips, TTFT, tokens of prompt in a step), the best with steps under `limit` seconds."""
    chunk = max((c for c, s in mixed.items() if s <= limit), key=lambda c: c / mixed[c])
    return NUM_CHIPS * chunk / READ / mixed[chunk], -(-READ // chunk) * mixed[chunk], chunk


def apart(limit):
    """(requests/s of all chips, TTFT, chips that read), the best split with decode steps under `limit` seconds."""
    writing = max(users / seconds / WRITE for users, seconds in written.items() if seconds <= limit)
    rate, readers = max((min(k / read_s, (NUM_CHIPS - k) * writing), k) for k in range(1, NUM_CHIPS))
    return rate, read_s + last_layer, readers


rows = []
for limit in (0.0085, 0.01, 0.02, 0.06):
    (rate, ttft, chunk), (split_rate, split_ttft, readers) = together(limit), apart(limit)
    assert rate >= split_rate
    rows.append(
        [f"{1e3 * limit:g}", f"{rate:.1f}", f"{split_rate:.1f} ({readers} read)", chunk, f"{1e3 * ttft:,.0f}", f"{1e3 * split_ttft:,.0f}"]
    )  # fmt: skip
table(
    rows,
    ["every gap under (ms)", "together (requests/s)", "apart (requests/s)", "together: prompt tokens in a step", "TTFT together (ms)", "TTFT apart (ms)"],
    align="rrrrrr",
)  # fmt: skip

# %% [markdown]
# *Predicted*, for ideal chips. Under each of these limits together serves more: prompt tokens ride on a reading of weights that the
# answers pay for anyway, and a split must be a whole number of chips. What apart buys is the last column: its TTFT does not depend on
# the limit, under which together may have to read a prompt in crumbs. So disaggregation pays
#
# - when **both** limits are tight, and chunks small enough for the one break the other;
# - when the two sides want **different machines**: compute for reading, bandwidth and memory for writing, other parallelism;
# - when a mixed step is worse than its parts, because kernels or graphs are made for one kind of work.
#
# It does not pay over a link below the rate at which prefill makes cache. And the thing to compare it with is chunked prefill, not the
# freeze at the top of this page.
#
# ## Where it loses
#
# Chunked prefill has a price, and it is not FLOPs: each pair of a query and a key is computed once, however the prompt is cut. What
# repeats is *reading*: the weights once per chunk, and the keys and values of all earlier chunks. The document, on this machine:

# %% tags=["hide-input", "nbval-ignore-output"]
kappa = cost.kv_bytes_per_token(config, "fp32")
weights = cost.weight_bytes(config, "fp32")
rows = []
for chunk in (LONG, 248, 56, 16):
    cuts = [(start, min(chunk, LONG - start)) for start in range(0, LONG, chunk)]
    pairs = sum(cost.causal_pairs(count, held) for held, count in cuts)
    again = kappa * sum(held for held, _ in cuts)
    seconds = sum(step_seconds([piece]) for piece in cuts)
    rows.append(
        [f"{chunk:,}", len(cuts), f"{pairs:,}", f"{len(cuts) * weights / 1e9:.1f}", f"{again / 1e6:,.0f}", f"{1e3 * seconds:,.0f}"]
    )  # fmt: skip
table(
    rows,
    ["chunk", "chunks", "pairs of query and key", "GB of weights read", "MB of cache read again", "prompt alone, predicted (ms)"],
    align="rrrrrr",
)  # fmt: skip
assert len({row[2] for row in rows}) == 1

# %% tags=["measure", "nbval-ignore-output"]
lone = {
    budget: meet(model, prompts[:1], document[:512], budget, before=1, after=1).ttft for budget in (2048, 33)
}

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"So with hardly anybody to protect it is a loss: 512 tokens beside a single answer take {1e3 * lone[2048]:,.0f} ms to the first token in one "
    f"piece and {1e3 * lone[33]:,.0f} ms in chunks of 32, **{lone[33] / lone[2048]:.1f} times** as long. An offline job, where nobody reads along, "
    "wants a large budget. And a budget that is too small starves itself: with 60 answers under way, a budget of 64 leaves 4 tokens per step "
    "for every prompt in the world."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the mean gap, or TPOT | the freeze is spread over the whole answer: a server that is a little slow | p99 over every gap, and the longest |
# | a window so long that the freeze is rarer than 1 gap in 100 | p99 looks perfect, and users still complain | so few gaps per answer that one freeze is more than 1 in 100, and the longest gap |
# | TTFT of the *other* requests | chunking looks free | the long prompt's own TTFT stands beside the gaps |
# | disaggregation compared with an unchunked engine | "no more stalls": chunks had removed most of them | together is chunked, under the same limit |
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
# | [vLLM](https://docs.vllm.ai/en/v0.17.1/configuration/optimization/) | `--max-num-batched-tokens` is the token budget: [by default](https://github.com/vllm-project/vllm/blob/v0.17.1/vllm/engine/arg_utils.py) 2,048 for `vllm serve`, 8,192 on GPUs of 70 GiB and more other than an A100; chunked prefill is on wherever possible; `--max-num-seqs`, `--scheduling-policy fcfs` or `priority` (no ageing); preemption by recomputing; apart with `--kv-transfer-config` | 0.17, 2026 |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/pd_disaggregation) | `--chunked-prefill-size`; chunks and answers share a step only with `--enable-mixed-chunk`; `--disaggregation-mode prefill` or `decode`, over Mooncake or NIXL | read in November 2026 |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html) | `max_num_tokens` is the budget, `enable_chunked_prefill`; by default a request is let in only if it can finish (`GUARANTEED_NO_EVICT`), `MAX_UTILIZATION` preempts; apart with `cache_transceiver_config` | read in November 2026 |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | `--batch-size` and `--ubatch-size` cut a prompt; `--parallel` slots | read in November 2026 |
#
# In this course: `lumen serve --token-budget …`, and `lumen/serve/scheduler.py`, which you have just written most of.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
again = {name: counters.computed_tokens - needed for name, (_, counters, _) in ways.items()}
markdown(
    f"- **The freeze was one step** with {LONG + ANSWERS:,} tokens in it: {1e3 * freeze:,.0f} ms, where a step of eight answers takes {1e3 * usual:.0f} ms.\n"
    f"- **A token budget bounds the step.** Budget 64: p99 gap {p99[2048] / p99[64]:.1f} times shorter, the document's TTFT {dearer:.1f} times as long. "
    f"Beside 32 answers of Llama-3-8B, {free['H100 SXM']} prompt tokens per step are nearly free on an H100 (predicted).\n"
    f"- **One rule, no phases**: computed catches up with total inside two budgets. Forty lines, {sums[0]:,} plans equal to the real scheduler's.\n"
    f"- **Preemption changes no answer**: it takes what can be computed again. With a prefix cache it computed "
    f"{again['recompute, with a prefix cache']} tokens again instead of {again['recompute']}.\n"
    f"- **Nobody starves** when ranks are fixed at arrival and age: {waited['ageing, 10 s'][-1][0]:.0f} s instead of {waited['strict priority'][-1][0]:.0f}.\n"
    f"- **Apart** costs κ·L bytes, hidden layer by layer on a link above {size / prefill_s / 1e9:.0f} GB/s (Llama-3-8B, H100, predicted); it buys a TTFT that no ITL "
    "limit can spoil, and no throughput."
)
callout(
    "takeaway",
    f"**Takeaway.** Ask of every latency: which step was it in, and what else was in that step? Bounding the step to 64 tokens made the "
    f"worst gaps {p99[2048] / p99[64]:.1f} times shorter, for a first token that came {dearer:.1f} times as late.",
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
                {"text": "They wait in the queue until the whole prompt has been read.", "why": "They never left the running list. The plan of the step shows all eight."},
                {"text": "They are in the prompt's step, and it ends for all at once.", "ok": True, "why": "Their tokens were computed in that step. They came out when it ended."},
                {"text": "The prompt takes their blocks, so they must be computed again.", "why": "There were blocks for everybody. Only the step's length is at fault."},
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
                {"text": "The FLOPs of attention, by about a sixteenth.", "why": "Each query meets each earlier key once, however the prompt is cut. The pairs are equal to the last one."},
                {"text": "The memory that its keys and values take up.", "why": "Each position is stored once. What an unchunked step holds more of is activations."},
                {"text": "The bytes of weights and cache that are read.", "ok": True, "why": "Weights 16 times, and the keys and values of earlier chunks in every later one. FLOPs stay the same."},
                {"text": "Nothing.", "why": "Then nobody would use large budgets. Count how often the weights are read."},
            ],
        },
        {
            "kind": "choice",
            "question": "A preempted request had written 40 tokens. By recompute, and without a prefix cache, what does the scheduler run when it is let in again?",
            "choices": [
                {"text": "Prompt and 40 tokens like one prompt; then it samples the next.", "ok": True, "why": "total stayed, computed is 0. The rule needs nothing else."},
                {"text": "The prompt; after that the 40 tokens are sampled once more.", "why": "The reader has seen them, and with a temperature others would come."},
                {"text": "The 40 tokens only, since the prompt's keys cannot have changed.", "why": "They have not changed, but they are gone: all blocks were given back."},
            ],
        },
        {
            "kind": "choice",
            "question": "Prefill and decode are put on different machines. What improves for certain?",
            "choices": [
                {"text": "The same chips serve more requests per second than before.", "why": "Ideal chips serve at least as many together: prompts ride on readings of the weights that answers pay for."},
                {"text": "Keys and values take less memory.", "why": "For a while they are on both machines."},
                {"text": "Each token of an answer needs fewer bytes from the memory.", "why": "It still needs all the weights and its own cache, whichever machine reads them."},
                {"text": "The TTFT stops depending on how tight the ITL limit is.", "ok": True, "why": "Nothing but answers is in a decode step, so a prompt need not be cut into crumbs."},
            ],
        },
    ],
    id="09",
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
#   does to decode, and for the token budget.
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for scheduling by iteration.
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
