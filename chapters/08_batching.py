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
# them.
#
# **Eight users for the price of one and a bit: how large is the bit, and until when?**
#
# By the end you can
#
# - predict how long a decode step takes for any batch and context, and name the batch from which company is no longer free;
# - say why eight long prompts together gain so little where eight answers gain so much;
# - compute, from the lengths of prompts and answers alone, what padding and static batching waste;
# - write a continuous batcher whose answers depend on no neighbour, and say when it is not worth having.
#
# Needs: [the roofline](02_roofline.ipynb), [measuring](03_measuring.ipynb), [the cache of keys and
# values](04_kv_cache.ipynb), [the paged cache](05_paged_cache.ipynb).
#
# New terms: [slot](../book/glossary.md#term-slot), [static batching](../book/glossary.md#term-static-batching),
# [dynamic batching](../book/glossary.md#term-dynamic-batching),
# [continuous batching](../book/glossary.md#term-continuous-batching).

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

# %% [markdown]
# Answers will be compared token by token, so the model runs in fp32 everywhere, on a GPU too. In 16 bits a batch of
# another size may round otherwise and tip a token ([batch invariance](../book/glossary.md#term-batch-invariance)).

# %% tags=["hide-input"]
import importlib.util
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import torch

import lumen
from lumen import bench, grading, hardware
from lumen.cache import BlockStore, StaticCache
from lumen.cache.packed import PackedCache, Segment
from lumen.cost.trace import lognormal_trace
from lumen.explore import (
    Quiz,
    Timelines,
    batch_lab,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.pages import ch08
from lumen.pages.engines import production_table
from lumen.sampling import SamplingParams, distribution, draw, generators
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device
chip = hardware.measure(progress=False)

# %% [markdown]
# ## Slots and steps
#
# An engine that serves $B$ answers at once has $B$ places for them, its [slots](../book/glossary.md#term-slot). Below a
# row is a slot, and a column is a step of the model. Step through it.

# %% tags=["hide-input", "nbval-check-output"]
Timelines(
    "mixed",
    policy="static",
    slots=4,
    title="Eighteen requests, {slots} slots",
)

# %% [markdown]
# The picture asks two questions, and this chapter has two halves. **How long does a column take** when it holds $B$ rows
# in place of one? And **how many cells are empty**? If a step of $B$ rows takes $t(B)$ and a share $u$ of the cells holds
# somebody, then
#
# $$ \text{tokens/s} \approx \frac{u\,B}{t(B)} $$
#
# (Prompts come on top.) First the column.
#
# ## What is read once, and what is read by each
#
# A [decode](../book/glossary.md#term-decode) step of a dense model reads every weight once, $W$ bytes in all, however many rows there are, and each row
# multiplies it. That is shared. Then attention: every sequence reads its own keys and values, $\kappa$ bytes for each of
# its $L$ tokens of context. That is not. With $B$ sequences in the batch:
#
# $$
# \begin{aligned}
# \text{bytes per step} &= W + B\,L\,\kappa \\
# \text{bytes per token} &= \frac{W}{B} + L\,\kappa
# \end{aligned}
# $$
#
# The second equation is the first one divided by $B$. One term falls with the batch. The other one does not know that
# there is a batch.

# %% tags=["hide-input", "nbval-check-output"]
ch08.bytes_figure(config)

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch08.symbols(config, chip))

# %% [markdown]
# Two things can end the free ride, and the table has a batch for each. Arithmetic: with enough rows, multiplying takes
# longer than reading. And the caches: with enough context, they outweigh the weights.
#
# ## Predict: eight users, short context
#
# With 64 tokens of context the caches are small.

# %% tags=["predict"]
my_step = guess(
    "08-step",
    "64 tokens of context, a step for 8 users: how many times as long?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
steps = {
    context: {
        users: bench.decode_step(model, users, context)
        for users in ch08.USERS
    }
    for context in (64, 1024)
}
eight = steps[64][8]
longer = ch08.step_of_eight(steps)
said = 8 / ch08.said_of_eight(config, chip, 64)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_step,
    model=said,
    measured=longer.value,
    unit="×",
    what="step for 8 over step for 1",
    title=ch08.step_title(longer),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.short_story(steps, config, chip))

# %% tags=["reveal", "nbval-ignore-output"]
ch08.step_waterfall(steps, 1, config, chip)

# %% tags=["reveal", "nbval-ignore-output"]
ch08.step_waterfall(steps, 8, config, chip)

# %% [markdown]
# ## Predict: a long context
#
# Now every sequence holds 1,024 tokens: a document in the prompt, or the tenth turn of a chat. Eight times the tokens per
# second of one would be the free ride.

# %% tags=["predict"]
my_rate = guess(
    "08-rate",
    "1,024 tokens of context, tokens/s of 8 users against one?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
gain = ch08.gain_of_eight(steps, 1024)
said = ch08.said_of_eight(config, chip, 1024)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_rate,
    model=said,
    measured=gain.value,
    unit="×",
    what="tokens/s of 8 over one",
    title=ch08.rate_title(gain),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.long_story(steps, config, chip))

# %% tags=["reveal", "nbval-ignore-output"]
ch08.rates_figure(steps, config, chip)

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch08.misses(steps, config, chip))

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.misses_story(steps, config, chip))
if drops := ch08.doublings(steps, config, chip):
    markdown(drops)

# %% [markdown]
# ### On a chip that none of us has at home
#
# The same two equations answer the question for any model and any chip. Take Llama-3-8B in bf16 on one H100. Three things
# can end the ride: the caches weigh as much as the weights, arithmetic takes as long as reading the weights, or the memory
# is full. At which batch, for each context?

# %% tags=["hide-input", "nbval-check-output"]
table(*ch08.ends_table())
markdown(ch08.ends_story())

# %% tags=["hide-input", "nbval-check-output"]
callout("takeaway", ch08.takeaway())

# %% [markdown]
# ## Why long prompts gain so little
#
# A prompt of $P$ tokens is $P$ rows that share one reading of the weights: **it is a batch already**, of one user. Eight
# prompts are $8P$ rows, and if $P$ rows keep the arithmetic busy, $8P$ rows take eight times as long. What company could
# have brought, a long prompt has brought itself.

# %% tags=["hide-input", "nbval-ignore-output"]
read_one = bench.prefill(model, prompt=32)
read_eight = bench.prefill(model, prompt=32, batch=8)
table(*ch08.prompt_gains(config, chip))
markdown(ch08.prompts_story(read_one, read_eight, config, chip))

# %% [markdown]
# So the *number of users* decides nothing by itself. A step is paid for by its rows, which are multiplied, and by the
# context of each row, which is read. [The next chapter](09_scheduling.ipynb) puts prompts and answers into the same step
# and lives by that.
#
# ## A rectangle with holes
#
# Here are eight questions. Their lengths differ, and a tensor is a rectangle.

# %% tags=["nbval-check-output"]
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "What is a prime number?",
    "Who wrote Faust?",
    "How does a fridge keep food cold?",
    "Translate 'good evening' into French.",
    "What is seven times eight?",
    "Is a tomato a fruit or a vegetable, and why do cooks and botanists "
    "disagree about it?",
)
prompts = [
    tokenizer.apply_chat([{"role": "user", "content": text}])
    for text in QUESTIONS
]
print("tokens of the eight prompts:", [len(p) for p in prompts])

# %% [markdown]
# The usual way is to fill the short rows up with pads, at the end or at the front. Training code pads on the right; batched
# `generate` functions ask for the left, so that all rows end together. In this course it does not matter, because
# **positions are data**: `pad` returns tokens and positions, and the position of a pad is −1. A pad is seen by nobody and
# stored nowhere. Three short prompts:

# %% tags=["nbval-check-output"]
TEXTS = (
    "Water boils at",
    "The capital of France is",
    "Once upon a time, in a",
)
three = [tokenizer.encode(text) for text in TEXTS]
for side in ("right", "left"):
    tokens, pos = lumen.pad(three, side, device=device)
    print(side, *pos.tolist(), sep="\n  ")


# %%
def next_logits(tokens, pos):
    """(B, V): scores of what follows each row's last real token."""
    last = pos.argmax(1)  # positions grow along a row; pads have -1
    rows = torch.arange(len(last), device=device)
    return model.head(model.hidden(tokens, pos)[rows, last])


def off(ours, truth):
    """Relative error of each row's scores."""
    return ((ours - truth).norm(dim=-1) / truth.norm(dim=-1)).tolist()


alone = torch.cat(
    [next_logits(*lumen.pad([ids], device=device)) for ids in three]
)
right = next_logits(*lumen.pad(three, "right", device=device))
tokens, pos = lumen.pad(three, "left", device=device)
left = next_logits(tokens, pos)
shifted = next_logits(tokens, torch.where(pos < 0, pos, pos + 100))
read = model.head(model.hidden(tokens)[:, -1])  # no positions: no pads

# %% tags=["nbval-check-output"]
for name, scores, good in (
    ("padded right", right, True),
    ("padded left", left, True),
    ("left, all positions + 100", shifted, True),
    ("left, pads read as tokens", read, False),
):
    wrong = [error > 1e-4 for error in off(scores, alone)]
    words = [tokenizer.decode([int(t)]) for t in scores.argmax(-1)]
    print(name)
    print("  other scores:", wrong)
    print("  next words:", words)
    assert wrong == ([False] * 3 if good else [True, True, False])

# %% [markdown]
# The last line is the **negative control**: without positions every column counts as a token, and the two rows that have
# pads get other scores. Nothing fails, and the words may be right by luck, so a look at the text does not find the fault.
# The line above it says what the fault is. All positions were wrong there, by 100, and nothing moved: with RoPE only
# distances count. So it is **reading the pads** that does the harm. (A model with learned absolute positions would mind,
# and so would any model beyond the positions of its training.) In `transformers` the mask keeps the pads out; to leave
# out the mask is the same mistake.
#
# Right or left, the holes are computed. A rectangle of $B$ prompts has $B \cdot \max P$ places for $\sum P$ tokens, so the
# share that does some good is
#
# $$ u = \frac{\text{mean length}}{\text{longest of } B} $$

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch08.rectangle([len(p) for p in prompts]))

# %% [markdown]
# The cure is not to have a rectangle. Every layer but attention works on tokens one by one and does not ask whose they are,
# so the real tokens of all sequences can stand in one row, and only attention takes the row apart again. That is
# *selective batching*, from [Orca](https://www.usenix.org/conference/osdi22/presentation/yu). Our `PackedCache` is that
# idea as a cache. It is given a list of segments, one for each sequence: which blocks hold its keys and values, at which
# position its new tokens start, how many they are.
#
# ```text
# tokens    a9 | b4 | c0 c1 c2 c3 c4     two answers, one prompt: 7 tokens
# pos        9    4    0  1  2  3  4     each counts in its own sequence
# segment    A    B    C                 blocks, start, count
# ```
#
# In each layer it writes the new keys and values into each segment's blocks, then calls attention segment by segment
# (those of one shape together), so that nobody sees a neighbour. Nothing else in the model knows that there is a batch.
#
# ## Answers end when they like
#
# The formula for $u$ comes back, and this time packing does not help.
# [Static batching](../book/glossary.md#term-static-batching) fills a batch, runs it until the last answer is done, and
# fills the next. A slot whose answer was short stays empty until the longest is through: it is used for $n$ steps out of
# $\max n$. The same $u$, in steps instead of places.
#
# How small it gets depends on how far the lengths spread. We draw them from a log-normal with spread σ: at σ = 1 two thirds
# of all answers lie within a factor of $e$, about 2.7, of the median.

# %% tags=["hide-input", "nbval-check-output"]
ch08.slots_figure()

# %% [markdown]
# The larger the batch, the longer, on average, its longest answer, and the emptier its slots.
#
# [Dynamic batching](../book/glossary.md#term-dynamic-batching) mends something else: it starts when the batch is full *or*
# when the oldest request has waited long enough, so that a lone request neither waits for ever nor runs alone while seven
# others are at the door. Once started, it is a static batch.
# [Continuous batching](../book/glossary.md#term-continuous-batching) (Orca's *iteration-level scheduling*) asks after
# *every step*: who is done leaves, who waits comes in. The [picture above](#slots-and-steps) has all three.
#
# ## Predict: the same engine, another rule
#
# Now with a clock. Thirty-two requests wait at the door of `lumen.serve.Engine`, eight slots, answers log-normal with σ = 1
# and a median of 7 tokens, seed 0. Engine, slots and requests are the same; only the rule of admission differs: static or
# continuous.

# %% tags=["predict"]
my_rule = guess(
    "08-rule",
    "Continuous over static batching: how many times the tokens/s?",
    unit="×",
)

# %%
SLOTS, REQUESTS = 8, 32
trace = lognormal_trace(REQUESTS, 128, 1, 7, sigma=1.0, seed=0)
lengths = trace.output.tolist()
work = [(prompts[i % 8], length) for i, length in enumerate(lengths)]


def serve(policy, requests, slots=SLOTS):
    """The queue through a fresh engine; prompts are read in one piece."""
    limits = Limits(slots, 4096, policy, max_wait=0.0)
    engine = Engine(
        model, num_blocks=16 * slots, prefix="none", limits=limits
    )
    queue = [Request(str(i), p, n) for i, (p, n) in enumerate(requests)]
    return bench.serve_queue(engine, queue)


# %% tags=["measure", "nbval-ignore-output"]
serve("continuous", [(ids, 2) for ids in prompts])  # warm up
rounds = {"static": [], "continuous": []}
for _ in range(3):
    for policy, runs in rounds.items():
        runs.append(serve(policy, work))
told = rounds["static"][0].answers
assert all(run.answers == told for runs in rounds.values() for run in runs)
won = ch08.gain_of(rounds)
sizes = [(len(ids), n) for ids, n in work]
said = ch08.gain_forecast(sizes, SLOTS, config, chip)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_rule,
    model=said,
    measured=won.value,
    unit="×",
    what="tokens/s, continuous over static",
    title=ch08.gain_title(won),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch08.served_table(rounds))

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.served_story(rounds, said))

# %% tags=["reveal", "nbval-ignore-output"]
try:
    kept = bench.load_evidence("continuous_batching")["data"]
    markdown(ch08.published(kept))
except FileNotFoundError:
    markdown(ch08.NOT_PUBLISHED)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.SPREAD_STORY)
table(*ch08.spread_table())

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch08.POLICIES_STORY)
table(*ch08.policies())

# %% [markdown]
# ## Build it
#
# A batcher is a loop with a door. Before each step it lets in whoever fits; after each step it sees out whoever is done. In
# between, one forward over a packed row: the whole prompt of whoever just came, the last token of everybody else.


# %%
@dataclass
class Row:
    tokens: list[int]
    total: int  # tokens of prompt and answer
    table: list[int]  # its blocks
    computed: int = 0

    @property
    def segment(self):
        """Where its cache is, where its new tokens start, how many."""
        new = len(self.tokens) - self.computed
        return Segment(self.table, self.computed, new)


# %%
def batcher(model, requests, slots, continuous=True, block=16):
    """Greedy answers to (prompt, length) pairs, and the steps taken."""
    if slots < 1 or any(length < 1 for _, length in requests):
        raise ValueError("needs a slot, and a token for every request")
    needs = [-(-(len(prompt) + n) // block) for prompt, n in requests]
    most = sum(sorted(needs)[-slots:])  # blocks of the largest batch
    store = BlockStore.for_model(model, most, block)
    waiting, running = deque(enumerate(requests)), {}
    answers, steps = {}, 0
    while waiting or running:
        if continuous or not running:  # the door
            while waiting and len(running) < slots:
                name, (prompt, n) = waiting.popleft()
                blocks = store.pool.allocate(needs[name])
                running[name] = Row(list(prompt), len(prompt) + n, blocks)
        rows = list(running.values())
        new = [t for row in rows for t in row.tokens[row.computed :]]
        segments = [row.segment for row in rows]
        cache = PackedCache(store, segments)
        tokens = torch.tensor([new], device=device)
        hidden = model.hidden(tokens, cache.pos, cache)[0]
        ends = [end - 1 for end in accumulate(s.count for s in segments)]
        best = model.head(hidden[ends]).argmax(-1).tolist()
        steps += 1
        for name, token in zip(list(running), best, strict=True):
            row = running[name]
            row.computed = len(row.tokens)
            row.tokens.append(token)
            if len(row.tokens) == row.total:  # out, and its blocks too
                store.pool.release(row.table)
                answers[name] = row.tokens[len(requests[name][0]) :]
                del running[name]
    return [answers[name] for name in range(len(requests))], steps


# %% [markdown]
# There is no case for prompts and no case for answers: a row is fed what it has not computed yet. And static batching is the
# same loop with another door, one condition. Is it right? We compare it with the engine, with `lumen.generate` for each
# prompt alone, and with transformers' own batch of the eight questions.

# %% tags=["nbval-check-output"]
some = list(zip(prompts, (3, 12, 5, 9, 1, 7, 12, 4), strict=True))
mine, count = batcher(model, some, slots=3)
static, static_count = batcher(model, some, slots=3, continuous=False)
engine = list(serve("continuous", some, slots=3).answers.values())
single = [
    lumen.generate(model, [ids], n, eos_ids=())[0].tokens for ids, n in some
]
assert mine == static == engine == single
print("the same tokens from both batchers, Engine, generate:", True)
print(f"steps: {count} with the open door, {static_count} without")

# %% tags=["hide-input", "nbval-ignore-output"]
if importlib.util.find_spec("transformers"):  # not measured
    from lumen.io.convert import hf_model

    theirs = hf_model("smollm2-135m", device)  # their code, our weights
    tokens, pos = lumen.pad(prompts, "left", device=device)
    theirs.generation_config.eos_token_id = None
    made = theirs.generate(
        tokens,
        attention_mask=(pos >= 0).long(),
        max_new_tokens=10,
        do_sample=False,
        pad_token_id=2,
    )[:, tokens.shape[1] :].tolist()
    ours, _ = batcher(model, [(ids, 10) for ids in prompts], slots=3)
    assert made == ours
    print("the same 80 tokens from transformers' left-padded batch: True")
    del theirs
else:
    print("transformers is not installed here: not compared.")

# %% [markdown]
# What is missing for a server: an end at a stop token, a limit on the tokens of a step, blocks that are taken only when they
# are needed, somebody who gives way when there are none. [The next chapter](09_scheduling.ipynb) adds the last three, and
# the engine has them all. How does it compare with those that others have built?

# %% tags=["hide-input", "nbval-ignore-output"]
try:
    kept = bench.load_evidence("batching_peers")["data"]
    table(*ch08.peers_table(kept))
    markdown(ch08.peers_story(kept, eight))
except FileNotFoundError:
    markdown(ch08.NO_PEERS)

# %% [markdown]
# ## Where it loses
#
# **Equal jobs.** Score ten thousand reviews with one word each, overnight: all answers have the same length, all requests
# are there from the start. Eight answers of eight tokens, four slots:

# %% tags=["hide-input", "nbval-ignore-output"]
equal = [(ids, 8) for ids in prompts]
same = {"static": [], "continuous": []}
for _ in range(3):
    for policy, runs in same.items():
        runs.append(serve(policy, equal, slots=4))
counts = len(same["static"][0].steps), len(same["continuous"][0].steps)
alike = ch08.gain_of(same)
markdown(ch08.equal_jobs(alike, counts))

# %% [markdown]
# (Sorting by length would save a static batch for mixed lengths too, but only prompts can be sorted: nobody knows the length
# of an answer before it ends.)
#
# **A user who counts milliseconds.** Batching sells one user's speed for everybody's. With a limit on
# [TPOT](../book/glossary.md#term-TPOT) it is often time and not memory that sets the largest batch. Users in the largest
# batch, Llama-3-8B in bf16 on one H100, by the datasheet:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch08.latency_table())

# %% [markdown]
# That is an upper limit for a program that makes one token per user and step, reads this cache in 16 bits and shares no
# prefixes. [Chapter 6](06_prefix_cache.ipynb) shares them; speculation and caches of fewer bits are planned.
#
# **A shared die.** Batching must not change anybody's answer, a random one included. Here is a batcher's classic mistake:
# one random stream for all rows, as `torch.multinomial` has it.


# %%
def sampled(batch, streams, new=12):
    """Sampled answers; row i draws from `streams[i]`."""
    hot = SamplingParams(temperature=0.9)
    room = max(map(len, batch)) + new
    cache = StaticCache.for_model(model, len(batch), room)
    tokens, pos = lumen.pad(batch, device=device)
    rows = torch.arange(len(batch), device=device)
    hidden = model.hidden(tokens, pos, cache)[rows, pos.argmax(1)]
    out = []
    for _ in range(new):
        chances = distribution(model.head(hidden), hot)
        out.append(draw(chances, streams))
        hidden = model.hidden(out[-1][:, None], None, cache)[:, -1]
    return torch.stack(out, 1).tolist()


seeded = [SamplingParams(seed=seed) for seed in range(8)]
by_itself = sampled(prompts[:1], generators(seeded[:1]))[0]
own = sampled(prompts, generators(seeded))[0]
shared = sampled(prompts, generators(seeded[:1]) * 8)[0]

# %% tags=["nbval-check-output"]
print("first user, in company as alone")
print("  a stream for each row:", own == by_itself)
print("  one stream for all:   ", shared == by_itself)
assert own == by_itself and shared != by_itself

# %% [markdown]
# The last line is the other negative control, and it fails as it should. Seven neighbours draw between two draws of the
# first user, so a seed means nothing any more: the same request can get another answer whenever the traffic is different. A
# stream for each row mends that while the rows stay where they are. When they come and go, it takes a little more:
# [exercise 4](../exercises/08_batching.ipynb).
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | answers of one length, or a short queue | static batching is as good as continuous | equal answers are [measured apart](#where-it-loses); spread, slots and queue stand beside each factor |
# | a short context only | tokens/s grow with the batch for ever | [two contexts](#predict-a-long-context) |
# | rows that are done still count, or still cost | a static batch with high tokens/s, or a very slow one | only tokens of answers count; this engine leaves finished rows out, [and says so](#predict-the-same-engine-another-rule) |
#
# ## Play
#
# A queue, an engine, and a row for each slot; change the spread and see what is left of the gain. What you see without a
# kernel is a recorded run.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = batch_lab(model, tokenizer)

# %% [markdown]
# ## In production

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch08.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
taken = steps, read_one, read_eight, rounds, alike
markdown(ch08.recap(*taken, config, chip))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("08")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/08_batching.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("08"))

# %% [markdown]
# ## Further reading
#
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read section 3, where the loop
#   learns to let requests in and out at every step (S1), and what has to be packed so that it can (S2).
# - [How continuous batching enables 23x throughput](https://www.anyscale.com/blog/continuous-batching-llm-inference)
#   (Anyscale, 2023): read it with the question which part of the factor is batching, which is memory, and which is the
#   spread of their answers. Its slot picture is the ancestor of ours.
# - [Sarathi-Serve](https://arxiv.org/abs/2403.02310) (Agrawal and others, 2024): read it for why batching does much for
#   answers and little for prompts on GPUs, and as the way into the next chapter.
# - [Defeating Nondeterminism in LLM Inference](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)
#   (He and others, 2025): read it for why an answer at temperature 0 depends on the batch it was in, and what kernels that
#   end this look like.
# - [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102) (Pope and others, 2022): read it for the
#   same two terms, weights and caches, on hundreds of chips, and for batch sizes chosen by latency.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    chip=chip,
    evidence=["continuous_batching", "batching_peers"],
    notes=["fp32; lengths are log-normal with seeds 0, 1, 2"],
)
