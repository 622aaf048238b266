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
# # 8 · Batching

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/08_batching.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/08_batching.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/08_batching.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 92 min · here: [exercises](../exercises/08_batching.ipynb), [solutions](../solutions/08_batching.ipynb)
#
# </div>

# %% [markdown]
# Eight people ask a question at the same moment. One machine has one model, and a step of that model makes one token.
# Serve them one after another, and the eighth waits for seven answers. Or give one step eight rows, a token for each of
# them. We measured both steps, below.
#
# **Eight users for the price of one and a bit: until when?**
#
# By the end you can
#
# - predict how long a decode step takes for any batch and context, and name the batch from which company is no longer free;
# - say why eight prompts together gain so little where eight answers gain so much;
# - compute, from the lengths of prompts and answers alone, what padding and static batching waste;
# - write a continuous batcher whose answers depend on no neighbour, and say when it is not worth having.
#
# Needs: [the roofline](02_roofline.ipynb), [measuring](03_measuring.ipynb), [the KV cache](04_kv_cache.ipynb),
# [the paged cache](05_paged_cache.ipynb).

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

session = lumen.setup("08_batching")

# %% [markdown]
# Answers will be compared token by token, so the model runs in fp32 everywhere, on a GPU too.

# %%
import importlib.util
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import torch

from lumen import bench, cost, hardware
from lumen.cache import BlockStore, StaticCache
from lumen.cache.packed import PackedCache, Segment
from lumen.cost.trace import lognormal_trace
from lumen.explore import Timelines, batch_lab, callout, figure, label_line, markdown, palette, reveal, table
from lumen.explore.theme import log_axis
from lumen.explore.timelines import WHOLE, WORKLOADS, Job, simulate
from lumen.hardware import CHIPS
from lumen.models import CONFIGS
from lumen.sampling import SamplingParams, distribution, draw, generators
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device

# %% [markdown]
# ## Eight questions
#
# Here they are. Their lengths differ, which will matter further down; the clock gets eight prompts of one length first.

# %% tags=["nbval-check-output"]
QUESTIONS = (
    "Why is the sky blue?", "Name three rivers in Europe.", "What is a prime number?", "Who wrote Faust?",
    "How does a fridge keep food cold?", "Translate 'good evening' into French.", "What is seven times eight?",
    "Is a tomato a fruit or a vegetable, and why do cooks and botanists disagree about it?",
)  # fmt: skip
prompts = [tokenizer.apply_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
print("tokens of the eight prompts:", [len(p) for p in prompts])

# %% tags=["measure", "nbval-ignore-output"]
alone, eight = (bench.generation(model, 32, new_tokens=13, batch=rows, repeats=3) for rows in (1, 8))

# %% tags=["hide-input", "nbval-ignore-output"]
decode_gain, prefill_gain = 8 * alone.tpot / eight.tpot, 8 * alone.ttft / eight.ttft
table(
    [
        ["a decode step", f"{1e3 * alone.tpot:.1f}", f"{1e3 * eight.tpot:.1f}", f"{eight.tpot / alone.tpot:.2f}", f"{decode_gain:.1f}"],
        ["prompts of 32 tokens", f"{1e3 * alone.ttft:.1f}", f"{1e3 * eight.ttft:.1f}", f"{eight.ttft / alone.ttft:.2f}", f"{prefill_gain:.1f}"],
    ],
    ["", "one user (ms)", "eight users (ms)", "times the price", "times the tokens/s"], align="lrrrr",
)  # fmt: skip
markdown(
    f"A step for eight costs **{eight.tpot / alone.tpot:.2f} times** a step for one, and makes eight tokens instead of one. "
    f"Reading eight prompts costs {eight.ttft / alone.ttft:.1f} times reading one. So company makes the writing "
    f"{decode_gain:.1f} times cheaper and the reading {prefill_gain:.1f} times."
)

# %% [markdown]
# Same model, same eight users, same machine. What is shared in the first row of that table, and not in the second? And what
# in the first row is *not* shared, so that it must end somewhere?
#
# ## What is read once, and what is read by each
#
# A decode step of a dense model reads every weight once, $W$ bytes in all, however many rows there are, and each row
# multiplies it. That is shared. Then attention: every sequence reads its own keys and values, $\kappa$ bytes for each of its
# $L$ tokens of context. That is not. With $B$ sequences in the batch:
#
# $$
# \begin{aligned}
# \text{bytes per step} &= W + B\,L\,\kappa \\
# \text{bytes per token} &= \frac{W}{B} + L\,\kappa
# \end{aligned}
# $$
#
# The second equation is the first one divided by $B$, and the chapter hangs on it. One term falls with the batch. The other
# one does not know that there is a batch.

# %% tags=["hide-input", "nbval-check-output"]
BATCHES, SHORT, LONG = (1, 2, 4, 8, 16, 32), 64, 1024
W, kappa = cost.weight_bytes(config, "fp32"), cost.kv_bytes_per_token(config, "fp32")


def per_token(batch, context):
    """MB that a decode step reads for each token it makes."""
    return (W / batch + context * kappa) / 1e6


wide = [2**i for i in range(11)]
fig = figure(
    f"From {W / 1e6:.0f} MB a token down, but at {LONG:,} tokens of context never below {LONG * kappa / 1e6:.0f} MB",
    x="sequences in the batch", y="MB read per token", log_x=True, log_y=True, height=420,
)  # fmt: skip
for context, color in ((SHORT, palette.blue), (LONG, palette.orange), (8192, palette.purple)):
    fig.add_scatter(x=wide, y=[per_token(b, context) for b in wide], mode="lines", line_color=color)
    label_line(fig, 1024, per_token(1024, context), f"context {context:,}", color, shift=12)
fig.add_scatter(
    x=wide, y=[W / b / 1e6 for b in wide], mode="lines", line={"color": palette.grey, "dash": "dot"}
)
label_line(fig, 64, W / 64e6, "weights alone", palette.grey, anchor="right", shift=-16)
log_axis(fig, "x", wide[::2])
fig

# %% tags=["hide-input", "nbval-ignore-output"]
chip = hardware.measure(progress=False)
peak, N = chip.peak("fp32"), cost.parameters(config).total
even = W / chip.bandwidth / (2 * N / peak)  # rows whose arithmetic takes as long as reading the weights
table(
    [
        ["$W$", "weights that a step reads, fp32", f"{W / 1e6:.0f} MB"],
        ["$\\kappa$", "cache of one token of context", f"{kappa / 1e3:.1f} kB"],
        ["$L\\kappa$", f"cache of one sequence, {SHORT} and {LONG:,} tokens", f"{SHORT * kappa / 1e6:.1f} and {LONG * kappa / 1e6:.1f} MB"],
        ["$W / (L\\kappa)$", "batch whose caches weigh as much as the weights", f"{W / (SHORT * kappa):.0f} and {W / (LONG * kappa):.1f}"],
        ["$W$ / bandwidth", f"to read the weights on {chip.name}", f"{1e3 * W / chip.bandwidth:.1f} ms"],
        ["$2N$ / peak", "arithmetic of one row: two operations for each of the $N$ weights", f"{2e3 * N / peak:.2f} ms"],
        ["ratio of the two", "rows whose arithmetic takes as long as that reading", f"{even:.0f}"],
    ],
    ["symbol", "what it is", "here"], align="llr",
)  # fmt: skip

# %% [markdown]
# Two things can end the free ride, and the table has a batch for each. Arithmetic: with enough rows, multiplying takes
# longer than reading. And the caches: with enough context, they outweigh the weights.
#
# ## Predict: sixteen users, short context
#
# With 64 tokens of context the caches are small. **How many times as long as a step for one does a step for 16 sequences
# take?**

# %% tags=["predict"]
my_guess = 4.0  # step for 16 sequences / step for one, at 64 tokens of context


# %% tags=["measure", "nbval-ignore-output"]
def filled(rows, context):
    """A cache in which `rows` sequences hold `context` tokens: random keys and values, through its own methods."""
    cache = StaticCache.for_model(model, rows, context + 8)
    pos = torch.arange(context, device=device).expand(rows, -1)
    cache.begin(pos)
    for layer in range(config.num_layers):
        k, v = torch.randn(2, 1, config.num_kv_heads, context, config.head_dim, device=device)
        cache.update(layer, k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1), pos)
    cache.advance(pos)
    return cache


def step_times(context):
    """Timing of a decode step for each batch, every sequence at the same context."""
    found = {}
    for rows in BATCHES:
        cache, token = filled(rows, context), torch.full((rows, 1), 504, device=device)
        found[rows] = bench.measure(
            lambda cache=cache, token=token: model.head(model.hidden(token, None, cache)[:, -1])
        )
    return found


def predicted(rows, context):
    return cost.predict_decode(config, chip, context, rows, "fp32").seconds


measured = {SHORT: step_times(SHORT)}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
short = {b: t.median for b, t in measured[SHORT].items()}
reveal(
    guess=my_guess, model=predicted(16, SHORT) / predicted(1, SHORT),
    measured=[t / short[1] for t in measured[SHORT][16].samples], unit="×", what="step for 16 over step for 1",
    title=f"Sixteen times the tokens for {short[16] / short[1]:.1f} times the time", log=False,
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
lone = cost.predict_decode(config, chip, SHORT, 1, "fp32").parts
matrices = lone["projections"] + lone["mlp"] + lone["head"]
markdown(
    f"Sixteen tokens for {short[16] / short[1]:.1f} times the time of one: {16 * short[1] / short[16]:.1f} times the tokens per "
    f"second, and every user waits {1e3 * (short[16] - short[1]):.0f} ms longer for each token. Cheap, not free: the weights take "
    f"{1e3 * W / chip.bandwidth:.0f} ms to read at full bandwidth, and the arithmetic of 16 rows {32e3 * N / peak:.0f} ms at the peak. "
    "A CPU has so little arithmetic beside its bandwidth that a batch feels it early; an H100 in bf16 could compute "
    f"{cost.ridge(CHIPS['H100 SXM'], 'bf16'):.0f} rows while it reads the weights once.\n\n"
    f"A step for one takes {1e3 * short[1]:.0f} ms, more than that reading. The model gives {1e3 * matrices:.0f} ms to the matrices"
    + (
        ", which do not reach full bandwidth with a single row,"
        if matrices > 1.1 * W / chip.bandwidth
        else ""
    )
    + f" and {1e3 * lone['overhead']:.0f} ms to the starting of operators. A batch pays both once."
)

# %% [markdown]
# ## Predict: a long context
#
# Now every sequence holds 1,024 tokens: a document in the prompt, or the tenth turn of a chat. **How many times the tokens per
# second of one user do 32 users get?** Thirty-two would be the free ride.

# %% tags=["predict"]
my_guess = 16.0  # tokens/s of 32 sequences over tokens/s of one, at 1,024 tokens of context

# %% tags=["measure", "nbval-ignore-output"]
measured[LONG] = step_times(LONG)

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
long = {b: t.median for b, t in measured[LONG].items()}
reveal(
    guess=my_guess, model=32 * predicted(1, LONG) / predicted(32, LONG),
    measured=[32 * long[1] / t for t in measured[LONG][32].samples], unit="×",
    what="tokens/s of 32 users over one", log=False,
    title=f"At {LONG:,} tokens of context 32 users get {32 * long[1] / long[32]:.1f} times the tokens/s of one",
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
worst = max(abs(predicted(b, c) / t[b] - 1) for c, t in ((SHORT, short), (LONG, long)) for b in BATCHES)
reads = cost.predict_decode(config, chip, LONG, 32, "fp32")
last = {c: (32 / t[32]) / (16 / t[16]) for c, t in ((SHORT, short), (LONG, long))}
markdown(
    f"Solid lines are measured, dashed ones predicted, at most {worst:.0%} apart. Of a predicted step for 32 users at {LONG:,} "
    f"tokens, {reads.parts['attention'] / reads.seconds:.0%} is attention reading {32 * LONG * kappa / 1e9:.1f} GB of caches. "
    f"The last doubling, from 16 to 32 users, still brings {last[SHORT]:.2f} times the tokens/s at {SHORT} tokens of context, and "
    f"{last[LONG]:.2f} times at {LONG:,}; and each of the 32 now waits {1e3 * long[32]:.0f} ms for a token, where one alone "
    f"waited {1e3 * long[1]:.0f} ms."
)
fig = figure(
    f"From 1 to 32 users: {32 * short[1] / short[32]:.1f} times the tokens/s at {SHORT} tokens, {32 * long[1] / long[32]:.1f} times at {LONG:,}",
    x="sequences in the batch", y="tokens/s, all together", log_x=True, log_y=True, height=440,
)  # fmt: skip
for context, times, color in ((SHORT, short, palette.blue), (LONG, long, palette.orange)):
    fig.add_scatter(
        x=BATCHES, y=[b / predicted(b, context) for b in BATCHES], mode="lines",
        line={"color": color, "dash": "dash"}, name=f"predicted, {context:,}",
    )  # fmt: skip
    fig.add_scatter(x=BATCHES, y=[b / times[b] for b in BATCHES], mode="lines+markers", line_color=color)
    label_line(fig, 32, 32 / times[32], f"context {context:,}", color, shift=14)
fig.add_scatter(
    x=BATCHES, y=[b / short[1] for b in BATCHES], mode="lines", line={"color": palette.grey, "dash": "dot"}
)
label_line(fig, 4, 4 / short[1], "a free ride", palette.grey, shift=12)
log_axis(fig, "x", BATCHES)
rates = [b / t[b] for t in (short, long) for b in (1, 32)]
log_axis(
    fig,
    "y",
    [v for v in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if min(rates) / 2 < v < 32 / short[1] * 1.5],
)
fig

# %% [markdown]
# ### On a chip that none of us has at home
#
# The same two equations answer the question for any model and any chip. Take Llama-3-8B in bf16 on one H100, from the data
# sheet. Three things can end the ride: the caches weigh as much as the weights, arithmetic takes as long as reading the weights,
# or the memory is full. At which batch, for each context?

# %% tags=["hide-input", "nbval-check-output"]
llama, h100 = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
ridge, rows = cost.ridge(h100, "bf16"), []
for context in (256, 2048, 8192, 32768):
    fits = cost.max_users(h100.memory, llama, context, "bf16", "bf16", reserve=0.1)
    caches = cost.overtaking_batch(llama, context, "bf16", "bf16", read=True)
    ends = {"caches": caches, "arithmetic": ridge, "memory": fits}
    one, full = (cost.predict_decode(llama, h100, context, b).seconds for b in (1, fits))
    rows.append(
        [f"{context:,}", f"{caches:.0f}", fits, min(ends, key=ends.get), f"{fits * one / full:.0f} times"]
    )
table(
    rows,
    ["context", "caches = weights at", "memory full at", "what ends it first", "tokens/s when full"],
    align="rrrlr",
)
markdown(
    f"Arithmetic takes as long as reading the weights at {ridge:.0f} sequences, whatever the context. A tenth of the memory is kept "
    "free; the last column compares with one user."
)

# %% tags=["hide-input", "nbval-ignore-output"]
callout(
    "takeaway",
    "**Takeaway.** A batch shares what a step pays once: the reading of the weights, and the starting of its operators. At "
    "$B = W / (L\\kappa)$ half of what a step reads is caches; well below that, and below the ridge, company is nearly free. With "
    f"Llama-3-8B on an H100 the caches are half at {rows[1][1]} users of {rows[1][0]} tokens of context, and at {rows[3][1]} users of {rows[3][0]}.",
)

# %% [markdown]
# ## Why prompts gain so little
#
# The second row of the first table is now easy. A prompt of $P$ tokens is $P$ rows that share one reading of the weights: **it
# is a batch already**, of one user. Eight prompts are $8P$ rows, and if $P$ rows keep the arithmetic busy, $8P$ rows take eight
# times as long. What company could have brought, a long prompt has brought itself.


# %% tags=["hide-input", "nbval-ignore-output"]
def times_cheaper(size, config, chip, dtype):
    """Eight prompts of `size` tokens, read together instead of one by one; predicted."""
    one, eight = (cost.predict_prefill(config, chip, size, batch, dtype).seconds for batch in (1, 8))
    return f"{8 * one / eight:.1f}"


table(
    [
        [size, times_cheaper(size, config, chip, "fp32"), times_cheaper(size, llama, h100, "bf16")]
        for size in (1, 2, 8, 32, 128, 512)
    ],
    ["tokens in each of eight prompts", "SmolLM2 here", "Llama-3-8B on an H100"],
    align="rrr",
)
markdown(
    f"How many times cheaper they are together, predicted; for 32 tokens we measured {prefill_gain:.1f} here. A prompt of one token "
    "gains what a decode step gains. The gain shrinks once the rows of all eight prompts pass the batch at which arithmetic takes as "
    f"long as reading the weights ({even:.0f} here, {ridge:.0f} on the H100), and little is left once those of one prompt do.\n\n"
    "So the row count of a step, not the number of users, decides what it costs: keep that for "
    "[the next chapter](09_scheduling.ipynb), which puts prompts and answers into the same step."
)

# %% [markdown]
# ## A rectangle with holes
#
# Our eight prompts differ in length, and a tensor is a rectangle. The usual way is to fill the short rows up with pads. Where,
# at the end or at the front? Training code pads on the right; batched `generate` functions ask for the left, so that all rows
# end together.
#
# In this course it does not matter, because **positions are data**: `pad` returns tokens and positions, and the position of a
# pad is −1. A pad is seen by nobody and stored nowhere. Three prompts, each side once:

# %% tags=["nbval-check-output"]
three = [
    tokenizer.encode(t) for t in ("Water boils at", "The capital of France is", "Once upon a time, in a")
]
for side in ("right", "left"):
    tokens, pos = lumen.pad(three, side, device=device)
    print(f"{side:5} positions", pos.tolist())


# %%
def next_logits(tokens, pos):
    """(B, V): scores of what follows each row's last real token."""
    last = pos.argmax(1)  # positions grow along a row, and pads have -1
    return model.head(model.hidden(tokens, pos)[torch.arange(len(last), device=device), last])


def off(ours, reference):
    """Relative error."""
    return float((ours - reference).norm() / reference.norm())


one_by_one = torch.cat([next_logits(*lumen.pad([ids], device=device)) for ids in three])
padded = {side: next_logits(*lumen.pad(three, side, device=device)) for side in ("right", "left")}
tokens, pos = lumen.pad(three, "left", device=device)
forgotten = model.head(model.hidden(tokens)[:, -1])  # no positions given: every column counts as a token

# %% tags=["nbval-check-output"]
for side, logits in padded.items():
    print(f"padded {side:5} = alone:", off(logits, one_by_one) < 1e-5)
    assert off(logits, one_by_one) < 1e-5
for name, logits in (("alone", one_by_one), ("left, positions forgotten", forgotten)):
    print(f"{name:26}", [tokenizer.decode([int(t)]) for t in logits.argmax(-1)])
moved = [off(ours, right) > 0.1 for ours, right in zip(forgotten, one_by_one, strict=True)]
print("scores moved by more than 10 %:", moved)
assert moved == [True, True, False]

# %% [markdown]
# The rectangle with forgotten positions is our **negative control**. Nothing fails. Each pad is read as token 0, real tokens
# are told the wrong place, and the scores of every row with pads have moved; only the longest row is as before. The token may be
# right by luck, so a look at the text does not find this fault. In `transformers` the mask plays the part of our positions,
# and leaving it out is the same mistake.
#
# Right or left, the holes are computed. How many are there? A rectangle of $B$ prompts has $B \cdot \max P$ places for
# $\sum P$ tokens, so the share that does some good is
#
# $$ u = \frac{\text{mean length}}{\text{longest of } B} $$

# %% tags=["hide-input", "nbval-check-output"]
held, places = sum(map(len, prompts)), len(prompts) * max(map(len, prompts))
markdown(f"Our eight questions put {held} tokens into {places} places: $u$ is {held / places:.0%}.")

# %% [markdown]
# The cure is not to have a rectangle. Every layer but attention works on tokens one by one and does not ask whose they are, so
# the real tokens can stand in one row without pads, and only attention takes the row apart again (selective batching, in
# [Orca](https://www.usenix.org/conference/osdi22/presentation/yu)). `lumen.serve.Engine` does that at every step.
#
# ## Answers end when they like
#
# That formula comes back, and this time packing does not help. **Static batching** fills a batch, runs it until the last answer
# is done, and fills the next. Say the batch has a *slot* for each answer. A slot whose answer was short stays empty until the
# longest is through: it is used for $n$ steps out of $\max n$. The same $u$, in steps instead of places.
#
# How small it gets depends on how far the lengths spread. We draw them from a log-normal with spread σ: at σ = 1 two thirds of
# all answers lie within a factor of $e$, about 2.7, of the median.

# %% tags=["hide-input", "nbval-check-output"]
SPREADS = (0.25, 0.5, 1.0)
slots_axis = (1, 2, 4, 8, 16, 32)


def mean_over_max(batch, spread, seed=0):
    """Mean length over the mean longest of `batch`, counted on 12,800 log-normal lengths with a median of 64."""
    lengths = lognormal_trace(12_800, 8192, 1, 64, spread, seed).output.reshape(-1, batch)
    return float(lengths.mean() / lengths.max(1).mean())


used = {s: [mean_over_max(b, s) for b in slots_axis] for s in SPREADS}
fig = figure(
    f"Eight answers with σ = 1: a static batch uses {used[1.0][3]:.0%} of its slots",
    x="sequences in the batch", y="slots in use, u (%)", log_x=True, height=400,
)  # fmt: skip
for s, color in zip(SPREADS, (palette.green, palette.ochre, palette.orange), strict=True):
    fig.add_scatter(x=slots_axis, y=[100 * u for u in used[s]], mode="lines+markers", line_color=color)
    label_line(fig, 32, 100 * used[s][-1], f"σ = {s:g}", color, shift=13)
log_axis(fig, "x", slots_axis)
fig.update_yaxes(range=[0, 104])
fig

# %% [markdown]
# The larger the batch, the longer its longest answer, and the emptier its slots. Batching helps, and static batching takes back
# a good part of the help.
#
# **Dynamic batching** mends something else: it starts when the batch is full *or* when the oldest request has waited long enough,
# so that a lone request neither waits for ever nor runs alone while seven others are at the door. Once started, it is a static
# batch. **Continuous batching** (Orca's *iteration-level scheduling*) asks after *every step*: who is done leaves, who waits
# comes in.
#
# Eighteen requests arrive within 0.3 seconds. Pick a policy, and step through it.

# %% tags=["hide-input", "nbval-check-output"]
Timelines("mixed", policy="static", slots=4, title="Eighteen requests, four slots")

# %% tags=["hide-input", "nbval-check-output"]
mixed = WORKLOADS["mixed"]
runs = {p: simulate(mixed.jobs, p, 4, 128, CHIPS["A100 80GB SXM"], llama) for p in mixed.policies}
table(
    [
        [p, f"{r.utilisation:.0%}", f"{r.tokens_per_s:.0f}", f"{1e3 * r.mean_ttft:.0f}", f"{1e3 * r.longest_gap:.0f}"]
        for p, r in runs.items()
    ],
    ["policy", "slots in use", "tokens/s", "mean TTFT (ms)", "longest gap (ms)"],
    align="lrrrr",
)  # fmt: skip
markdown(
    "Four slots, predicted for Llama-3-8B on one A100: the course's scheduler decides every step, and `lumen.cost.predict_mixed` says "
    "how long it takes. The last column is the longest wait between two tokens of an answer. Continuous batching lets a prompt into a "
    "step with answers, and those answers wait for it; *chunked* cuts the prompt into pieces. That is the subject of the next chapter."
)

# %% [markdown]
# ## Predict: the same engine, another rule
#
# Now with a clock. Thirty-two requests wait at the door of `lumen.serve.Engine`, eight slots, answers log-normal with σ = 1 and
# a median of 8 tokens, seed 0. The engine, the slots and the requests are the same; only the rule of admission differs. **How
# many times the tokens per second of static batching does continuous batching reach?**

# %% tags=["predict"]
my_guess = 2.5  # tokens/s, continuous over static

# %%
SLOTS, REQUESTS = 8, 32
lengths = lognormal_trace(REQUESTS, 128, 1, 8, sigma=1.0, seed=0).output.tolist()
work = [(prompts[i % 8], length) for i, length in enumerate(lengths)]
print("answers of", lengths, "tokens")


def serve(policy, requests, slots=SLOTS):
    """The queue through a fresh engine. No step reaches the token budget, so prompts are read in one piece."""
    limits = Limits(slots, token_budget=4096, policy=policy, max_wait=0.0)
    engine = Engine(model, num_blocks=16 * slots, prefix="none", limits=limits)
    return bench.serve_queue(engine, [Request(str(i), p, n) for i, (p, n) in enumerate(requests)])


# %% tags=["measure", "nbval-ignore-output"]
serve("continuous", work[:8])  # warm up
served = {policy: serve(policy, work) for policy in ("static", "dynamic", "continuous")}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
forecast = {
    p: simulate([Job(0, len(ids), n) for ids, n in work], p, SLOTS, WHOLE, chip, config, "fp32", "paged")
    for p in ("static", "continuous")
}
# With a full queue static and dynamic batching take the same steps: two samples of one thing.
samples = [served["continuous"].tokens_per_s / served[p].tokens_per_s for p in ("static", "dynamic")]
won = sum(samples) / 2
reveal(
    guess=my_guess, model=forecast["continuous"].tokens_per_s / forecast["static"].tokens_per_s,
    measured=samples, unit="×", what="tokens/s, continuous over static",
    title=f"Another rule at the door, {won:.2f} times the tokens/s", log=False,
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
assert served["static"].answers == served["dynamic"].answers == served["continuous"].answers
table(
    [
        [p, len(s.steps), f"{s.utilisation:.0%}", f"{s.tokens_per_s:.0f}", f"{s.mean_ttft:.2f}"]
        for p, s in served.items()
    ],
    ["policy", "steps", "slots in use", "tokens/s", "mean TTFT (s)"],
    align="lrrrr",
)
counted = len(served["static"].steps) / len(served["continuous"].steps)
markdown(
    f"All three give the same {served['static'].tokens} tokens; the cell asserts it. With a full queue dynamic batching never has to "
    "wait, so it takes the steps of static batching, and the difference between their tokens/s says how far this clock can be trusted: "
    f"{abs(served['dynamic'].tokens_per_s / served['static'].tokens_per_s - 1):.0%}.\n\n"
    f"Static batching takes {counted:.2f} times the steps of continuous batching, which makes {won:.2f} times the tokens/s. "
    + (
        "The clock shows less than the steps, for two reasons. No rule of admission saves the reading of the prompts: at the rate of our "
        f"first table about {REQUESTS / 8 * eight.ttft:.1f} s of the {served['continuous'].seconds:.1f} s that continuous batching "
        f"took, and of the {served['static'].seconds:.1f} s of static. And a static step with two rows left is cheaper than a full one, "
        "because this engine does not compute rows that are done. A padded batch would."
        if won < 0.97 * counted
        else "Steps cost nearly the same with few rows as with many, so the clock follows the count."
    )
)


# %% tags=["hide-input", "nbval-check-output"]
def ratio_of_steps(spread, seed):
    """Steps of static and of continuous batching for 64 requests in eight slots, and their ratio."""
    jobs = [Job(0, 8, n) for n in lognormal_trace(64, 1024, 1, 48, spread, seed).output.tolist()]
    static, continuous = (
        len(simulate(jobs, p, SLOTS, WHOLE, h100, llama).steps) for p in ("static", "continuous")
    )
    return static, continuous, static / continuous


many = {spread: [ratio_of_steps(spread, seed) for seed in (0, 1, 2)] for spread in (0.0, 0.5, 1.0)}
table(
    [
        [f"{spread:g}", *(f"{a:,} / {b:,} = {ratio:.2f}" for a, b, ratio in found)]
        for spread, found in many.items()
    ],
    ["spread σ", "seed 0", "seed 1", "seed 2"],
    align="rrrr",
)
low, high = ({spread: side(f[2] for f in found) for spread, found in many.items()} for side in (min, max))
markdown(
    "Steps of static over steps of continuous batching, counted by the scheduler alone: sixty-four requests, eight slots. Whoever "
    f"promises a factor promises a spread: with equal answers it is {low[0.0]:.0f}, with σ = 0.5 it is {low[0.5]:.1f} to "
    f"{high[0.5]:.1f}, with σ = 1 it is {low[1.0]:.1f} to {high[1.0]:.1f}."
)

# %% tags=["hide-input"]
try:
    kept = bench.load_evidence("continuous_batching")["data"]
    s, by = kept["setting"], kept["summary"]
    ratios = by["ratios"]["static"]
    text = (
        f"The published run (`benchmarks/continuous_batching.py`): {s['requests']} requests, {s['slots']} slots, σ = {s['sigma']:g}, seeds "
        f"{', '.join(map(str, s['seeds']))}. Continuous batching makes **{by['ratio']['static']:.2f} times** the tokens/s of static batching "
        f"({min(ratios):.2f} to {max(ratios):.2f} by seed) and {by['ratio']['dynamic']:.2f} times those of dynamic batching; its "
        f"slots are {by['policies']['continuous']['utilisation']:.0%} in use instead of {by['policies']['static']['utilisation']:.0%}, and "
        f"the mean TTFT is {by['policies']['continuous']['mean_ttft']:.1f} s instead of {by['policies']['static']['mean_ttft']:.1f} s. "
        f"Answers that differ between the two: {s['differ']}."
    )
except FileNotFoundError:
    text = (
        "No published run of `benchmarks/continuous_batching.py` is at hand. It serves 128 requests with three seeds, policies in turns, "
        "and writes down every round."
    )
markdown(text)

# %% [markdown]
# ## Build it
#
# A batcher is a loop with a door. Before each step it lets in whoever fits; after each step it sees out whoever is done. In
# between, one forward over a packed row: the whole prompt of whoever just came, the last token of everybody else. A `Segment`
# says for each of them which blocks hold its cache, where its new tokens start, and how many they are.


# %%
@dataclass
class Row:
    tokens: list[int]
    total: int  # tokens of prompt and answer
    table: list[int]  # its blocks
    computed: int = 0


def batcher(model, requests, slots, continuous=True, block_size=16):
    """Greedy answers to (prompt, length) pairs, and the steps they took."""
    if slots < 1 or any(length < 1 for _, length in requests):
        raise ValueError("There must be a slot, and every request must ask for a token at least.")
    needs = [-(-(len(prompt) + length) // block_size) for prompt, length in requests]  # in blocks
    store = BlockStore.for_model(model, sum(sorted(needs)[-slots:]), block_size)
    waiting, running, answers, steps = deque(enumerate(requests)), {}, {}, 0
    while waiting or running:
        if continuous or not running:  # the door
            while waiting and len(running) < slots:
                name, (prompt, length) = waiting.popleft()
                blocks = store.pool.allocate(needs[name])
                running[name] = Row(list(prompt), len(prompt) + length, blocks)
        rows = running.values()
        segments = [Segment(row.table, row.computed, len(row.tokens) - row.computed) for row in rows]
        new = [token for row in rows for token in row.tokens[row.computed :]]
        cache = PackedCache(store, segments)
        hidden = model.hidden(torch.tensor([new], device=device), cache.pos, cache)[0]
        ends = [end - 1 for end in accumulate(segment.count for segment in segments)]
        best = model.head(hidden[ends]).argmax(-1).tolist()
        steps += 1
        for (name, row), token in zip(list(running.items()), best, strict=True):
            row.computed = len(row.tokens)
            row.tokens.append(token)
            if len(row.tokens) == row.total:  # out, and its blocks with it
                store.pool.release(row.table)
                answers[name] = row.tokens[len(requests[name][0]) :]
                del running[name]
    return [answers[name] for name in range(len(requests))], steps


# %% [markdown]
# There is no case for prompts and no case for answers: a row is fed what it has not computed yet. And static batching is the
# same loop with another door, one condition. Is it right? We compare it with the engine, with `lumen.generate` for each prompt
# alone, and with transformers' own batch of the eight questions.

# %% tags=["nbval-check-output"]
some = [(ids, n) for ids, n in zip(prompts, (3, 12, 5, 9, 1, 7, 12, 4), strict=True)]
mine, steps = batcher(model, some, slots=3)
static, static_steps = batcher(model, some, slots=3, continuous=False)
engine = list(serve("continuous", some, slots=3).answers.values())
single = [lumen.generate(model, [ids], n, eos_ids=())[0].tokens for ids, n in some]
assert mine == static == engine == single
print(
    f"the same {sum(map(len, mine))} tokens from batcher, static batcher, Engine and generate alone:",
    mine == single,
)
print(f"steps: {steps} with a door that opens at every step, {static_steps} with a static one")

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("transformers"):
    from transformers.utils import logging

    from lumen.io.convert import hf_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    theirs = hf_model("smollm2-135m", device)  # their code, the same weights
    tokens, pos = lumen.pad(prompts, "left", device=device)
    theirs.generation_config.eos_token_id = None
    made = theirs.generate(
        tokens, attention_mask=(pos >= 0).long(), max_new_tokens=10, do_sample=False, pad_token_id=2
    )[:, tokens.shape[1] :].tolist()
    ours, _ = batcher(model, [(ids, 10) for ids in prompts], slots=3)
    assert made == ours
    print(f"the same {sum(map(len, ours))} tokens from transformers' left-padded batch:", made == ours)
    del theirs
else:
    print("transformers is not installed here; the book's stored run made this comparison.")

# %% [markdown]
# What is missing for a server: an end at a stop token, a limit on the tokens of a step, blocks that are taken only when they are
# needed, somebody who gives way when there are none. [The next chapter](09_scheduling.ipynb) adds the last three, and the engine
# has them all. How does it compare with those that others have built?

# %% tags=["hide-input"]
try:
    kept = bench.load_evidence("batching_peers")["data"]
    named = {
        "lumen": "lumen's engine",
        "transformers": "transformers' static batch",
        "vllm": "vLLM's CPU build",
    }
    table(
        [[named[r["engine"]], f"{r['step_ms']:.1f}", f"{r['tokens_per_s']:.0f}"] for r in kept["rows"]],
        ["eight sequences decoding together", "a step (ms)", "tokens/s"], align="lrr",
    )  # fmt: skip
    said = " and ".join(f"{ratio:.2f} times those of {named[name]}" for name, ratio in kept["ratios"].items())
    text = (
        f"The published run (`benchmarks/batching_peers.py`), same weights, fp32, one machine: our tokens/s are {said}. A small model "
        "in fp32 on a CPU is not what vLLM is built for: the comparison says that a readable loop need not be a slow one, and nothing "
        "about GPUs."
    )
except FileNotFoundError:
    text = (
        "No published run of `benchmarks/batching_peers.py` is at hand. It lets eight sequences decode together in this engine, in "
        "transformers' static batch, and in vLLM's build for CPUs."
    )
markdown(text)

# %% [markdown]
# ## Where it loses
#
# **Equal jobs.** Score ten thousand reviews with one word each, overnight: all answers have the same length, all requests are
# there from the start. Then nobody ends early, and the door that opens at every step has nobody to let in.

# %% tags=["measure", "nbval-ignore-output"]
equal = [(prompts[i % 8], 8) for i in range(16)]
same = {policy: serve(policy, equal) for policy in ("static", "continuous")}

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Sixteen answers of eight tokens, eight slots: {len(same['static'].steps)} steps static, {len(same['continuous'].steps)} continuous, and "
    f"{same['continuous'].tokens_per_s / same['static'].tokens_per_s:.2f} times the tokens/s. For such work a plain loop over batches is "
    "enough. Sorting by length would save it for mixed lengths too, but only prompts can be sorted: nobody knows the length of an "
    "answer before it ends."
)

# %% [markdown]
# **A user who counts milliseconds.** Batching sells one user's speed for everybody's. The larger the batch, the longer each of
# its members waits for a token; with a limit on TPOT the largest batch is not the one that fits the memory.

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [f"{context:,}"]
        + [cost.max_batch(llama, h100, context, tpot, reserve=0.1) for tpot in (0.006, 0.008, 0.012, 0.02)]
        + [cost.max_users(h100.memory, llama, context, "bf16", "bf16", reserve=0.1)]
        for context in (2048, 8192, 32768)
    ],
    ["context", "TPOT ≤ 6 ms", "≤ 8 ms", "≤ 12 ms", "≤ 20 ms", "memory alone"],
    align="rrrrrr",
)

# %% [markdown]
# Users in the largest batch, Llama-3-8B on one H100, predicted from the data sheet: a bound that no program beats.
#
# **A shared die.** Batching must not change anybody's answer, a random one included. Here is a batcher's classic mistake:
# one random stream for all rows, as `torch.multinomial` has it.


# %%
def sampled(batch, streams, new=12):
    """Sampled answers, row i drawing from `streams[i]`; several rows may hold the same stream."""
    hot = SamplingParams(temperature=0.9)
    cache = StaticCache.for_model(model, len(batch), max(map(len, batch)) + new)
    tokens, pos = lumen.pad(batch, device=device)
    hidden = model.hidden(tokens, pos, cache)[torch.arange(len(batch), device=device), pos.argmax(1)]
    out = []
    for _ in range(new):
        out.append(draw(distribution(model.head(hidden), hot), streams))
        hidden = model.hidden(out[-1][:, None], None, cache)[:, -1]
    return torch.stack(out, 1).tolist()


seeded = [SamplingParams(seed=seed) for seed in range(8)]
by_itself = sampled(prompts[:1], generators(seeded[:1]))[0]
own = sampled(prompts, generators(seeded))[0]
shared = sampled(prompts, generators(seeded[:1]) * 8)[0]

# %% tags=["nbval-check-output"]
print("first user, alone = in company, a stream for each row:", own == by_itself)
print("first user, alone = in company, one stream for all:   ", shared == by_itself)
assert own == by_itself and shared != by_itself

# %% [markdown]
# The second line is the other **negative control**, and it fails as it should. Seven neighbours draw between two draws of the
# first user, so a seed means nothing any more: the same request gives another answer whenever the traffic is different. A stream
# for each row, as in the first line, mends that while the rows stay where they are. When they come and go, it takes a little
# more: [exercise 4](../exercises/08_batching.ipynb).
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a benchmark with equal answers | static batching is as good as continuous | answers drawn with σ = 1, and the spread is named beside the factor |
# | a short queue | continuous batching looks poor: at the end slots are empty because nobody is left | steps are counted for 64 requests and three seeds, beside the 32 requests that are timed |
# | a short context | tokens/s grow with the batch for ever | two contexts; the caches are in the prediction |
# | rows that are done are still counted | a static batch with high tokens/s | only tokens of answers count, for every policy |
# | a finished row costs nothing, or costs a row | two different "static" baselines | said which: this engine leaves finished rows out |
# | near-ties | another batch size means other kernels and another order of sums; in 16 bits the better of two close tokens may change, and it is no bug | fp32 and short answers; the equalities of tokens are asserted, not assumed |
#
# ## Play
#
# A queue, an engine, and a row for each slot; change the spread and see what is left of the gain. The timelines above do the same
# for arrivals over time.

# %% tags=["nbval-ignore-output"]
lab = batch_lab(model, tokenizer)
# %% [markdown]
# ## In production
#
# Read in November 2026:
#
# | engine | where |
# | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/stable/api/vllm/config/scheduler/) | `--max-num-seqs` is our slots, `--max-num-batched-tokens` the tokens of a step; batching is always continuous; `VLLM_BATCH_INVARIANT=1` ([beta](https://docs.vllm.ai/en/stable/features/batch_invariance/)) makes answers independent of the batch |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/server_arguments.md) | `--max-running-requests`; `--chunked-prefill-size` for the pieces of prompts; [`--enable-deterministic-inference`](https://docs.sglang.io/docs/advanced_features/deterministic_inference.md) |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html) | calls it *in-flight batching*; `max_batch_size` and `max_num_tokens`; input is packed, without padding |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | `--parallel` slots; `--cont-batching`, on by default |
# | [Triton](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/batcher.html) | `dynamic_batching` with `max_queue_delay_microseconds`, the timer of dynamic batching, for models that make one output per request |
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **A step reads $W + B L \\kappa$.** From 1 to 16 users a step takes {short[16] / short[1]:.1f} times as long at {SHORT} tokens of context; at "
    f"{LONG:,} tokens 32 users get {32 * long[1] / long[32]:.1f} times the tokens/s of one. Prediction and clock were at most {worst:.0%} apart.\n"
    f"- **A prompt is a batch already:** eight of 32 tokens were {prefill_gain:.1f} times cheaper together, eight decode steps {decode_gain:.1f} times.\n"
    f"- **Mean over maximum:** with σ = 1 a static batch of eight uses {used[1.0][3]:.0%} of its slots, and a rectangle of eight such prompts "
    "as much of its places.\n"
    f"- **A door that opens at every step** made {won:.2f} times the tokens/s of static batching, which took {counted:.2f} times the steps "
    f"for the same tokens; with equal answers {same['continuous'].tokens_per_s / same['static'].tokens_per_s:.2f} times."
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "The batch is doubled and a step takes 1.05 times as long. What does the step mostly do?",
            "choices": [
                {"text": "It reads weights.", "ok": True, "why": "The weights are read once for all rows. What grows with the batch, caches and arithmetic, is 5 % of it."},
                {"text": "It reads caches.", "why": "Then twice the sequences would take nearly twice as long: each reads its own."},
                {"text": "It computes.", "why": "Twice the rows are twice the arithmetic."},
                {"text": "It waits for the longest answer.", "why": "That costs steps, not time per step."},
            ],
        },
        {
            "kind": "numeric",
            "question": "Weights of 16 GB, a cache of 128 kB a token, every sequence at 2,500 tokens of context. At which batch do the caches weigh as much as the weights?",
            "answer": 50, "tolerance": 1.5, "unit": "sequences",
            "right": "16 GB / (2,500 · 128 kB): each sequence brings 0.32 GB.",
            "wrong": "W = B · L · κ, solved for B.",
            "slips": [
                {"answer": 125000, "tolerance": 10, "why": "That is the number of tokens. Divide by the context of a sequence."},
                {"answer": 0.32, "tolerance": 0.01, "why": "That is the cache of one sequence in GB. How many of them make 16?"},
            ],
        },
        {
            "kind": "choice",
            "question": "Four answers of 10, 10, 10 and 50 tokens share a static batch. Which share of the slots is used?",
            "choices": [
                {"text": "40 %", "ok": True, "why": "80 tokens in 4 · 50 places: mean 20 over maximum 50."},
                {"text": "20 %", "why": "That is 10 / 50, the share of the three short ones. The long one uses its slot to the end."},
                {"text": "80 %", "why": "80 is the number of tokens. The slots have 200 places."},
                {"text": "25 %", "why": "One of four runs at the end, but all four ran at the beginning."},
            ],
        },
        {
            "kind": "choice",
            "question": "Eight prompts of 1,000 tokens arrive together. Why does reading them in one pass save hardly anything?",
            "choices": [
                {"text": "One of them already keeps the arithmetic busy.", "ok": True, "why": "A thousand rows share one reading of the weights. Eight thousand rows take eight times the arithmetic."},
                {"text": "Their keys and values must be written one by one.", "why": "They are written in the same pass, and they are small beside the arithmetic."},
                {"text": "They have to be padded.", "why": "All eight have the same length. It would not help if they were packed, either."},
            ],
        },
        {
            "kind": "choice",
            "question": "A left-padded batch runs without positions (or mask). What do you see?",
            "choices": [
                {"text": "Fluent answers, from wrong scores in every padded row.", "ok": True, "why": "Pads are read as tokens and shift every position. No error is raised, and now and then the token is right by luck."},
                {"text": "An error about shapes.", "why": "The shapes are right. That is why the fault lives so long."},
                {"text": "The same answers, a little slower, since pads are computed.", "why": "They are attended to as well, and change every score of their row."},
            ],
        },
    ],
    id="08",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/08_batching.ipynb) ([solutions](../solutions/08_batching.ipynb)). Checks answer at
# once and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("08"))

# %% [markdown]
# ## Further reading
#
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for sections 3.1 and 3.2,
#   where the loop learns to let requests in and out at every step, and for what has to be packed so that it can.
# - [How continuous batching enables 23x throughput](https://www.anyscale.com/blog/continuous-batching-llm-inference) (Anyscale, 2023): read it
#   with the question which part of the factor is batching, which is memory, and which is the spread of their answers.
# - [Sarathi-Serve](https://arxiv.org/abs/2403.02310) (Agrawal and others, 2024): read it for figures of decode batches that
#   hardly cost more than one row, and as the way into the next chapter.
# - [Defeating Nondeterminism in LLM Inference](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) (He
#   and others, 2025): read it for why an answer at temperature 0 depends on the batch it was in, and what kernels that end
#   this look like.
# - [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102) (Pope and others, 2022): read it for the same
#   two terms, weights and caches, on hundreds of chips, and for batch sizes chosen by latency.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print("fp32 throughout; lengths are log-normal with seeds 0, 1, 2 (lumen.cost.trace)")
print(f"this machine: {chip.name}, {chip.bandwidth / 1e9:.1f} GB/s read; data-sheet chips are predictions")
print("evidence files read when present: continuous_batching, batching_peers")
