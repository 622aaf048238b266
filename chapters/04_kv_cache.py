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
# # 4 · The KV cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/04_kv_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/04_kv_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/04_kv_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 100 min · here: [exercises](../exercises/04_kv_cache.ipynb), [solutions](../solutions/04_kv_cache.ipynb)
#
# </div>

# %% [markdown]
# Ask SmolLM2 on a CPU to go on from *Once upon a time, in a small village by the sea,* and look at the clock after every
# token. If nothing is remembered between the steps, the last tokens take longer than the first, although each step makes
# one token, with the same 135 million weights.
#
# **What does the model do at the last token that it did not do at the first?**
#
# By the end you can
#
# - say which two tensors per layer never change once computed, and why a third one need not be kept;
# - compute the bytes that one token of context costs, from any model card, and how many users fit a chip;
# - predict how much a cache saves for a given prompt and answer, in work and in time, and name the case where it saves
#   nothing;
# - put several new tokens on top of a cache without breaking the mask, and say when a cache cannot be reused at all.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb), [the roofline](02_roofline.ipynb).
#
# New terms: [KV cache](../book/glossary.md#term-KV-cache), [dynamic cache](../book/glossary.md#term-dynamic-cache),
# [static cache](../book/glossary.md#term-static-cache), [chunked prefill](../book/glossary.md#term-chunked-prefill).

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
# Equality is the point of this chapter, so the model runs in fp32 everywhere, on a GPU too.

# %% tags=["hide-input"]
import textwrap

import torch

from lumen import bench, cost, grading, hardware
from lumen.cache import Cache, DynamicCache, NoCache, StaticCache
from lumen.explore import (
    CacheSize,
    KVStepper,
    Quiz,
    cache_reads_lab,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.explore.explorers.kv_stepper import totals
from lumen.models import Llama, ModelConfig
from lumen.pages import ch04
from lumen.pages.engines import production_table
from lumen.timing import once

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device
chip = hardware.measure(progress=False)

# %% [markdown]
# ## The same answer twice
#
# Here are two ways to get the next token. The first gives the model everything said so far. The second gives it only
# what its cache has not seen yet.

# %%
start = "Once upon a time, in a small village by the sea,"
prompt = tokenizer.encode(start)
NEW = 40


def without_cache(tokens):
    hidden = model.hidden(torch.tensor([tokens], device=device))
    return model.head(hidden[:, -1])


def with_cache():
    cache = StaticCache.for_model(model, 1, 64)

    def step(tokens):
        unseen = tokens[int(cache.lengths[0]) :]
        given = torch.tensor([unseen], device=device)
        hidden = model.hidden(given, None, cache)
        return model.head(hidden[:, -1])

    return step


def answer(step, new):
    """Greedy tokens, and the seconds that each of them took."""
    tokens = list(prompt)

    def append():
        tokens.append(int(step(tokens).argmax()))

    seconds = [once(append) for _ in range(new)]
    return tokens, seconds


# %% tags=["nbval-ignore-output"]
answer(without_cache, 2), answer(with_cache(), 2)  # warm-up
runs = []
for _ in range(6):  # the two take turns
    runs.append((answer(without_cache, NEW), answer(with_cache(), NEW)))
story = runs[0][0][0]
assert all(tokens == story for pair in runs for tokens, _ in pair)
print(textwrap.fill(" ".join(tokenizer.decode(story).split()), 72))

# %% tags=["hide-input", "nbval-ignore-output"]
slow = [without[1] for without, _ in runs]
fast = [cached[1] for _, cached in runs]
ch04.opening_figure(slow)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch04.opening(slow, len(prompt)))

# %% [markdown]
# So the cache skips repetition, and claims to change nothing. Why can that hold? To remember something is only safe if it
# cannot change.
#
# ## Seven tokens, and what changed
#
# Take the first six tokens of that text. Every layer turns each token into a query, a key and a value. Then the seventh
# token is known. Which of the old vectors are different now? Every layer hands its vectors to the `update` of a cache, so
# a cache that only takes notes writes them all down. Twice, and compare.


# %%
class Tape(NoCache):
    """Keeps nothing for the model; writes down q, k, v of every layer."""

    def __init__(self):
        self.seen = {"Q": [], "K": [], "V": []}

    def update(self, layer, k, v, pos, q=None):
        for name, x in zip("QKV", (q, k, v), strict=True):
            self.seen[name].append(x)
        return k, v, pos


def record(tape, tokens):
    pos = torch.arange(len(tokens), device=device)[None]
    model(torch.tensor([tokens], device=device), pos, tape)
    # each (layer, B, heads, T, D)
    return {name: torch.stack(layers) for name, layers in tape.seen.items()}


def change(before, after):
    """Of each old token: largest change in any layer and head, relative."""
    old = after[..., : before.shape[3], :]
    largest = (old - before).abs().amax((0, 1, 2, 4))
    return (largest / before.abs().max()).tolist()


first = story[:7]
six, seven = record(Tape(), first[:6]), record(Tape(), first)
changes = {name: change(six[name], seven[name]) for name in "QKV"}
assert max(max(row) for row in changes.values()) < 1e-4

# %% tags=["hide-input", "nbval-ignore-output"]
words = [
    f"{i + 1} {tokenizer.decode([t]).strip()}" for i, t in enumerate(first)
]
ch04.change_figure(changes, words)

# %% [markdown]
# Each number is the largest change in any of the 30 layers, relative to the largest value; up to some 1e-6 would be
# rounding in fp32. A causal layer lets token 3 look at tokens 1 to 3. Those are the same tokens as one step ago, so
# everything computed for token 3 is the same, in layer 1, therefore in layer 2, and so on to the top.
#
# The mask is what makes this true. As a control, take it away and let every token look at every other one, as an encoder
# does:


# %%
class BothWays(Tape):
    """No causal mask: every key claims position 0, which all may read."""

    def update(self, layer, k, v, pos, q=None):
        super().update(layer, k, v, pos, q)
        return k, v, torch.zeros_like(pos)


both = {n: record(BothWays(), first[:n]) for n in (6, 7)}
encoder = {
    name: max(change(both[6][name], both[7][name])) for name in "QKV"
}
bottom = [both[n]["K"][:1] for n in (6, 7)]
assert max(change(*bottom)) < 1e-4 < encoder["K"]

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch04.without_mask(encoder))

# %% [markdown]
# And the old *queries*, under the mask? They stayed, too. But token 3's query was asked once, at the step that computed
# token 3's output. Nobody asks it again. Keys and values are different: every later token reads them, in every step. That
# is why it is called a [KV cache](../book/glossary.md#term-KV-cache) and not a QKV cache.
#
# Step through it. From here on a *row* is one token on its way through all layers: this chapter counts work in rows.

# %% tags=["hide-input"]
KVStepper(prompt=5, steps=6)

# %% [markdown]
# ## Build it
#
# A cache has to do three things: keep keys and values per layer, hand them back together with the new ones, and know
# *which position each [slot](../book/glossary.md#term-slot) holds*. Every bug of this chapter lives in the last one, so
# here a position is data: one integer per slot, −1 for "no token here". (In code, `rows` are those of the batch.)
#
# Models of this course call a cache in a fixed order. `begin(pos)` comes once before the first layer, `update` once per
# layer, `advance(pos)` once after the last. Attention itself is in the base class, under a single mask rule: a query reads a
# key when `0 <= k_pos <= q_pos`.


# %%
class MyCache(Cache):
    """Keys, values, positions of all seen; grown by concatenation."""

    def __init__(self, config, rows, dtype=torch.float32, device="cpu"):
        shape = rows, config.num_kv_heads, 0, config.head_dim
        empty = torch.empty(shape, dtype=dtype, device=device)
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers
        self.positions = torch.empty(
            rows, 0, dtype=torch.int64, device=device
        )
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)  # one table of positions serves all layers
        self.new_positions = torch.cat([self.positions, pos], 1)

    def update(self, layer, k, v, pos, q=None):
        self.k[layer] = torch.cat([self.k[layer], k], 2)  # (B, Hkv, S, D)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self.new_positions

    def advance(self, pos):
        super().advance(pos)  # lengths: position of each row's next token
        self.positions = self.new_positions

    def rewind(self, lengths):
        lengths = torch.as_tensor(lengths, device=self.positions.device)
        gone = self.positions >= lengths[:, None]
        self.lengths = lengths
        self.positions = self.positions.masked_fill(gone, -1)

    @property
    def nbytes(self):
        return sum(x.nbytes for x in (*self.k, *self.v))


# %% [markdown]
# `rewind` forgets without moving a byte: a slot whose position is −1 is never read. Guessing several tokens ahead, and
# taking some of them back, will need it. `lumen.DynamicCache` does the same, checks its input, and gives memory back.
#
# ## Equal to whom?
#
# To nothing remembered, first. A small random model in float64, with nine query heads on three KV heads as in SmolLM2,
# leaves no room for excuses. The same 23 tokens go in whole, and in chunks on top of a growing cache:


# %%
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def in_chunks(model, tokens, size, cache, pos=None):
    """Logits of all tokens, `size` of them a forward, on a cache."""
    parts = tokens.split(size, 1)
    places = [None] * len(parts) if pos is None else pos.split(size, 1)
    pairs = zip(parts, places, strict=True)
    return torch.cat([model(t, p, cache) for t, p in pairs], 1)


torch.manual_seed(0)
shape = ModelConfig(
    name="small", vocab_size=97, num_layers=3, hidden_size=72, num_heads=9,
    num_kv_heads=3, head_dim=8, intermediate_size=100, max_positions=64,
)  # fmt: skip
small = Llama(shape).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
tokens = torch.randint(97, (2, 23), device=device)
whole = small(tokens)
errors = {
    n: relative_error(
        in_chunks(
            small, tokens, n, MyCache(shape, 2, torch.float64, device)
        ),
        whole,
    )
    for n in (1, 2, 7, 22, 23)
}

# %% tags=["nbval-check-output"]
assert max(errors.values()) < 1e-14
print(f"chunks of {', '.join(map(str, errors))}: equal to float64 rounding")

# %% [markdown]
# Then to others, on the real model in fp32: `lumen`'s two caches, and Hugging Face's own cached generation on the same
# weights. Greedy tokens can flip where the two best logits are a hair apart, so logits are compared, and tokens only
# where the gap is larger than 0.001.

# %%
sequence = torch.tensor([story], device=device)
reference = model(sequence)
chose = slice(len(prompt) - 1, -1)  # the rows that chose the answer
length = sequence.shape[1]
contenders = {
    "MyCache": (MyCache(config, 1, device=device), 1),
    "lumen.DynamicCache": (DynamicCache.for_model(model, 1), 8),
    "lumen.StaticCache": (StaticCache.for_model(model, 1, length), 7),
}
logits = {
    f"{name}, in chunks of {size}": in_chunks(model, sequence, size, cache)
    for name, (cache, size) in contenders.items()
}
errors = {
    name: relative_error(x[:, chose], reference[:, chose])
    for name, x in logits.items()
}

# %% tags=["hide-input", "nbval-ignore-output"]
try:
    from lumen.io.convert import hf_model

    theirs = hf_model("smollm2-135m", device)
    given = sequence[:, : len(prompt)]
    out = theirs.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
        return_dict_in_generate=True,
        output_logits=True,
    )
    their_logits = torch.stack(out.logits, 1)
    errors["Hugging Face, generate"] = relative_error(
        their_logits, reference[:, chose]
    )
    best, second = reference[0, chose].topk(2).values.T
    same = (out.sequences == sequence)[0, len(prompt) :]
    assert bool((same | (best - second < 1e-3)).all())
    del theirs
except ImportError as missing:
    print(f"Hugging Face is not compared here: {missing}")
assert max(errors.values()) < 1e-4
table(*ch04.errors_table(errors))

# %% [markdown]
# The limit for this table is $10^{-4}$, asserted. The errors are rounding, from additions in another order: in float64,
# above, the same comparison stayed below $10^{-14}$.
#
# So nothing is lost. What is gained?
#
# ## Predict: the whole answer
#
# The prompt has 13 tokens, the answer 40. Without a cache, every step runs everything so far through the model. With
# one, the prompt goes through once and then one token per step. The rows you can count; what will the clock say?

# %% tags=["predict"]
my_answer = guess(
    "04-answer",
    "Over the whole answer: how many times less time with a cache?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
work = totals(len(prompt), NEW)  # token rows through all layers
ratio = ch04.time_ratio(slow, fast)
many, one = bench.prefill(model, prompt=32), bench.prefill(model, prompt=1)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_answer,
    model=work.ratio,
    measured=[sum(a) / sum(b) for a, b in zip(slow, fast, strict=True)],
    unit="×",
    what="saved by the cache",
    title=ch04.answer_title(work.ratio, ratio),
)

# %% tags=["reveal", "nbval-ignore-output"]
ch04.both_figure(slow, fast)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(
    f"Rows computed: {work.without:,} without a cache, {work.without / NEW:.0f} a step; {work.with_cache:,} with one. "
    + ch04.answer_story(ratio, work.ratio, many, one, chip, config)
)

# %% [markdown]
# ## The n² law, and what a prompt does to it
#
# Count the rows, first behind a single start token. For an answer of $n$ tokens the steps without a cache run 1, 2, 3, … $n$
# rows, which is $n(n+1)/2$ in all. With a cache they run one row each. The ratio is $(n+1)/2$, so it grows with the answer.
# Attention goes the same way, one power higher: from $\sum i(i+1)/2 \approx n^3/6$ pairs of a query and a key to
# $\sum i \approx n^2/2$. The picture is of our answer: its rows count the prompt's tokens, too.

# %% tags=["hide-input", "nbval-ignore-output"]
ch04.law_figure(slow, fast, len(prompt))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch04.law_story(slow, len(prompt)))

# %% [markdown]
# But nobody sends a prompt of one token. Behind $P$ of them every step without a cache runs the prompt again:
# $nP + n(n-1)/2$ rows in all, against $P + n - 1$ with one. That many times less work it is:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch04.saving_table())
markdown(ch04.saving_story())

# %% [markdown]
# The prompt makes the cache *more* valuable, not less, as long as more than one token is asked for: the first one comes out
# of the prompt's own pass, the [prefill](../book/glossary.md#term-prefill), on both sides.
#
# All that was paid in bytes. How many?
#
# ## What remembering costs
#
# Llama-2-7B has seven billion weights of two bytes, and keeps keys and values of every token of every open chat, also
# in two bytes. Before you see what a token takes:

# %% tags=["predict"]
my_users = guess(
    "04-users",
    "Chats of 4,096 tokens: from how many on are caches more than weights?",
    unit="users",
)

# %% [markdown]
# Per token and layer: one key and one value for each KV head, each as many numbers as a head is wide.
#
# $$
# \begin{aligned}
# \kappa = 2 &\times \text{layers} \times \text{KV heads} \\
# &\times \text{head width} \times \text{bytes per number}
# \end{aligned}
# $$
#
# For SmolLM2 in fp32 that is 2 · 30 · 3 · 64 · 4 bytes. Query heads do not occur in it. The cache we filled must agree:

# %% tags=["nbval-check-output"]
mine = MyCache(config, 1, device=device)
in_chunks(model, sequence[:, :20], 10, mine)
kappa = cost.kv_bytes_per_token(config, "fp32")
print(f"κ = {kappa:,.0f} bytes; 20 tokens in MyCache: {mine.nbytes:,}")
assert mine.nbytes == 20 * kappa == 20 * 2 * 30 * 3 * 64 * 4

# %% tags=["measure"]
users = ch04.crossing()

# %% tags=["reveal", "nbval-check-output"]
markdown(ch04.crossing_answer(users))

# %% tags=["reveal", "nbval-ignore-output"]
ch04.crossing_figure()

# %% tags=["hide-input", "nbval-check-output"]
table(*ch04.kappa_table(), stack=True)

# %% [markdown]
# Read the table twice. Llama-3-8B is larger than Llama-2-7B and its token costs a quarter, because eight KV heads serve 32
# query heads ([GQA](../book/glossary.md#term-GQA)). And a token of Llama-3-70B, ten times the model, costs less than one of Llama-2-7B.
#
# The interview question that belongs here: *Llama-3-70B, 64 users, 8,192 tokens each, 16 bits. How much memory?*

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch04.interview())

# %% [markdown]
# Memory is half of it. A [decode](../book/glossary.md#term-decode) step *reads* all weights, $W$ bytes, once, and the cache
# of each of the $B$ users, $L$ tokens long, once:
#
# $$ \text{bytes per step} = W + B \, L \, \kappa $$
#
# The first term is shared by the whole batch. The second is each user's own: batching does not make it cheaper.

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch04.crossing_story())

# %% [markdown]
# This is the picture behind most of the chapters to come: fewer KV heads, fewer bits, fewer tokens kept.
#
# How many users fit *your* chip? Choose a model and a card. It starts with 32 users of Llama-2-7B, who do not fit: orange,
# right of the line, is what the card does not hold. A tenth of it is kept free besides, so even fewer users fit.

# %% tags=["hide-input"]
CacheSize(
    models=["llama-2-7b", "llama-3-8b", "llama-3-70b", "smollm2-135m"],
    chips=["A100 80GB SXM", "H100 SXM", "H200 SXM", "L4", "T4"],
    context=4096,
    users=32,
)

# %% [markdown]
# ## Two ways to keep it
#
# `MyCache` grows by concatenation: a [dynamic cache](../book/glossary.md#term-dynamic-cache). To append one token it
# allocates a tensor one longer and copies everything. A [static cache](../book/glossary.md#term-static-cache) reserves
# its slots once and writes in place. Both read weights and cache; the dynamic one also reads and writes the whole cache
# to copy it.

# %% tags=["predict"]
my_copy = guess(
    "04-copy",
    "4,096 tokens cached: a dynamic step takes how many times a static one?",
    unit="×",
)


# %% tags=["measure", "nbval-ignore-output"]
def filled(cache, context):
    """`cache` as if `context` tokens had gone through, by its methods."""
    pos = torch.arange(context, device=device)[None]
    size = 2, 1, config.num_kv_heads, context, config.head_dim
    cache.begin(pos)
    for layer in range(config.num_layers):
        k, v = torch.randn(size, device=device)
        cache.update(layer, k, v, pos)
    cache.advance(pos)
    return cache


def one_step(cache):
    token = torch.tensor([[504]], device=device)
    return lambda: model.head(model.hidden(token, None, cache)[:, -1])


def both_kinds(n):
    static = StaticCache.for_model(model, 1, n + 64)
    return {
        "static": one_step(filled(static, n)),
        "dynamic": one_step(filled(DynamicCache.for_model(model, 1), n)),
    }


steps = {
    n: bench.compare(both_kinds(n), repeats=16, warmup=2)
    for n in (1024, 4096)
}
copy = ch04.copy_ratio(steps[4096])
by_model = [
    cost.predict_decode(
        config, chip, 4096, dtype="fp32", cache=kind
    ).seconds
    for kind in ("dynamic", "static")
]

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_copy,
    model=by_model[0] / by_model[1],
    measured=copy,
    unit="×",
    what="dynamic step over static step",
    title=ch04.copy_title(copy),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch04.copy_table(steps, kappa, chip.bandwidth), stack=True)
markdown(ch04.copy_story(steps[4096], kappa, chip.bandwidth))

# %% [markdown]
# The formula for what copies write, $\kappa\, n(n+1)/2$, is easy to get wrong by a factor, so count them. Each forward
# writes every tensor that it concatenates:


# %% tags=["nbval-check-output"]
class Counting(DynamicCache):
    written = 0

    def update(self, layer, k, v, pos, q=None):
        out = super().update(layer, k, v, pos, q)
        self.written += self.k[layer].nbytes + self.v[layer].nbytes
        return out


counting = Counting(shape, 1, torch.float64, device)
in_chunks(small, tokens[:1], 1, counting)
law = cost.kv_bytes_per_token(shape, "fp64") * 23 * 24 / 2
print(f"23 steps wrote {counting.written:,} bytes; κ·n(n+1)/2 = {law:,.0f}")
assert counting.written == law

# %% tags=["hide-input", "nbval-check-output"]
markdown(
    ch04.static_story(StaticCache.for_model(model, 1, 2048).nbytes, kappa)
)

# %% [markdown]
# ## Several new tokens at once
#
# So far a step brought one new token, and one new token may read everything. With two or more the mask matters, and it
# is no longer the square triangle of a prompt: four tokens are cached, three arrive.

# %% tags=["nbval-check-output"]
from lumen.attention.core import visible

q_pos, k_pos = torch.tensor([[4, 5, 6]]), torch.arange(7)[None]
top_left = torch.ones(3, 7, dtype=torch.bool).tril()  # is_causal=True


def draw(mask):
    return ["".join("■ " if one else "· " for one in row) for row in mask]


print("query    by position       is_causal=True")
ours, aligned = draw(visible(q_pos, k_pos)[0, 0]), draw(top_left)
for at, right, wrong in zip((4, 5, 6), ours, aligned, strict=True):
    print(f"pos {at}    {right}    {wrong}".rstrip())

# %% [markdown]
# On the left is the rule `0 <= k_pos <= q_pos`: the triangle sits at the *bottom right*. On the right is what
# `scaled_dot_product_attention(..., is_causal=True)` does with three queries and seven keys: it aligns the triangle with
# the *top left*, and the newest token sees three of the oldest. For a whole prompt the two agree, so this fault passes
# tests that put at most one token on a filled cache. As a negative control, a cache that makes it:


# %% tags=["nbval-ignore-output"]
class TopLeft(MyCache):
    def attend(self, layer, q, k, v, pos, window=None):
        k, v, _ = self.update(layer, k, v, pos)
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=q.shape[2] > 1)


piece, sizes = sequence[:, :33], (33, 1, 16)
chunked = {}
for name, kind in {"by position": MyCache, "top left": TopLeft}.items():
    for size in sizes:
        cache = kind(config, 1, device=device)
        found = in_chunks(model, piece, size, cache)
        chunked[name, size] = relative_error(found, reference[:, :33])
assert max(chunked["by position", size] for size in sizes) < 1e-4
assert chunked["top left", 16] > 0.01 and chunked["top left", 1] < 1e-4

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch04.chunk_table(chunked, sizes))

# %% [markdown]
# One token at a time hides the fault, and so does the whole prompt. Sixteen at a time shows it. Feeding a prompt in
# pieces is called [chunked prefill](../book/glossary.md#term-chunked-prefill);
# [speculative decoding](../book/glossary.md#term-speculative-decoding) also puts several tokens on a cache. Both are
# ordinary forwards here, because the mask comes from positions.
#
# Padding is the same thing again. Three prompts of unequal length make a rectangle; the holes have position −1. On which
# side they lie must not matter.

# %% tags=["nbval-ignore-output"]
texts = [
    "Water boils at",
    "The capital of France is",
    "Once upon a time there was a small house, and in it",
]
prompts = [tokenizer.encode(t) for t in texts]
given = [torch.tensor([p], device=device) for p in prompts]
alone = torch.stack([model(one_prompt)[0, -1] for one_prompt in given])


def last_logits(side, holes_too=False):
    tokens, pos = lumen.pad(prompts, side, device)
    last = (torch.arange(3), pos.argmax(1))  # each prompt's last token
    if holes_too:  # the habit: whatever stands in the tensor is a token
        pos = torch.arange(tokens.shape[1], device=device).expand_as(pos)
    cache = MyCache(config, 3, device=device)
    return in_chunks(model, tokens, 4, cache, pos)[last]


padding = {
    "left, holes at −1": relative_error(last_logits("left"), alone),
    "right, holes at −1": relative_error(last_logits("right"), alone),
    "left, holes read as tokens": relative_error(
        last_logits("left", holes_too=True), alone
    ),
}
right_ones = list(padding.values())[:2]
assert max(right_ones) < 1e-4 < 1e-3 < max(padding.values())

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch04.padding_table(padding))

# %% [markdown]
# ## What a cache cannot reproduce
#
# A cache holds the past at its positions. What if the model runs out of them? GPTlite is the course's own small model: it
# reads and writes single characters, was trained on Shakespeare, and *learned* one vector for each of 256 positions. It
# has no 257th, and `generate` refuses to go further:

# %%
gpt, letters = lumen.load("gptlite", dtype=torch.float32)
window, ahead = gpt.config.max_positions, 64
unseen_plays = lumen.assets.shakespeare()[1]  # not trained on these
text = torch.tensor(letters.encode(unseen_plays), device=device)
starts = range(10_000, 250_000, 20_000)
plays = torch.stack([text[i : i + window + ahead] for i in starts])
play = plays[0].tolist()
try:
    lumen.generate(gpt, [play[:window]], 10)
except ValueError as refused:
    print(textwrap.fill(str(refused), 76))

# %% [markdown]
# The usual way on is to slide: drop the first character, so that 256 remain, and number them from 0 again. Every
# character has moved by one position. How much of the cache survives that?


# %%
def taped(model, tokens, shift=0):
    tape = Tape()
    pos = torch.arange(len(tokens), device=device)[None] + shift
    logits = model(torch.tensor([tokens], device=device), pos, tape)
    return logits, torch.stack(tape.seen["K"])  # (layer, B, heads, T, D)


_, before = taped(gpt, play[:window])
_, after = taped(gpt, play[1 : window + 1])
old, new = before[..., 1:, :], after[..., :-1, :]  # the same 255 characters
norm = old.flatten(1).norm(dim=1)
moved = ((new - old).flatten(1).norm(dim=1) / norm).tolist()  # by layer
least = float(((new - old).norm(dim=-1) / old.norm(dim=-1)).min())


def shifted(model, tokens, by):
    """Change of all logits when the tokens stand `by` positions later."""
    return relative_error(
        taped(model, tokens, by)[0], taped(model, tokens)[0]
    )


learned, rope = shifted(gpt, play[:100], 100), shifted(model, story, 100)
assert rope < 1e-4 < 1e-2 < learned and least > 1e-3

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch04.moved_story(moved, least))

# %% [markdown]
# One can be stubborn, and keep the old keys and values all the same. Three ways to predict the next 64 characters, on
# twelve passages:
#
# - **recompute**: run the last 256 characters again for every new one. Correct by definition, and no cache at all;
# - **keep the old rows**: drop the oldest key, give every newcomer the last position, 255;
# - **slide by half**: when the window is full, recompute its last 128 characters once, then go on with the cache.


# %% tags=["nbval-ignore-output"]
def last_row(tokens, pos=None, cache=None):
    return gpt.head(gpt.hidden(tokens, pos, cache)[:, -1])


recompute = torch.stack(
    [last_row(plays[:, i : i + window]) for i in range(ahead)], 1
)

stubborn = MyCache(gpt.config, len(plays), device=device)
newest = torch.full((len(plays), 1), window - 1, device=device)
kept = [last_row(plays[:, :window], None, stubborn)]
for i in range(window, window + ahead - 1):
    stubborn.k = [x[:, :, 1:] for x in stubborn.k]
    stubborn.v = [x[:, :, 1:] for x in stubborn.v]
    stubborn.positions = stubborn.positions[:, 1:]
    kept.append(last_row(plays[:, i : i + 1], newest, stubborn))
kept = torch.stack(kept, 1)

# in one pass, which equals going on with a cache, as shown above
by_half = gpt(plays[:, window // 2 : -1])[:, window // 2 - 1 :]
assert (kept - recompute)[:, 0].abs().max() < 1e-2  # nothing slid yet
assert (kept - recompute)[:, 1:].abs().max() > 1e-2

# %% tags=["hide-input", "nbval-ignore-output"]
target = plays[:, window:]


def outcome(rows, logits):
    """Rows a character, nats a character by passage, largest change of a logit."""
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), reduction="none"
    )
    return (
        rows,
        loss.view(len(plays), ahead).mean(1).tolist(),
        float((logits - recompute).abs().max()),
    )


policies = {
    "recompute": outcome(window, recompute),
    "keep the old rows": outcome(1, kept),
    "slide by half": outcome(2, by_half),
}
table(*ch04.policy_table(policies, "recompute"), stack=True)
markdown(ch04.policy_story(policies, window, ahead))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch04.rope_story(learned, rope))

# %% [markdown]
# That does not make dropping free. New positions still run out, unless the kept keys are turned back. And above the first
# layer a kept key carries what its token read from those that are gone; a recomputed one does not. So a sliding cache is a
# different model from a recomputed window. How good a model depends on what is dropped; chapter 13 will measure it.
#
# ## Where it loses
#
# A cache saves work *between* steps. A long prompt with an answer of one token (a classifier, a reranker, a score) has
# no between. And both ways to keep it have their price.

# %% tags=["hide-input", "nbval-ignore-output"]
long_prompt = torch.randint(1000, (1, 128), device=device)
once_only = bench.compare(
    {
        "no cache": lambda: model.head(model.hidden(long_prompt)[:, -1]),
        "cache": lambda: model.head(
            model.hidden(
                long_prompt, None, StaticCache.for_model(model, 1, 128)
            )[:, -1]
        ),
    },
    repeats=9,
)
once_ratio = bench.Estimate.ratio(once_only["cache"], once_only["no cache"])
table(*ch04.losses_table(once_ratio, copy, 128))

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the first call allocates and picks kernels | the run that goes second wins | warm-up, and runs that take turns, in [the first cells](#the-same-answer-twice) |
# | one side computes the logits of every row | the cache looks faster by the size of the head | both call `head` on one row, [there too](#the-same-answer-twice) |
# | equal tokens taken for equal caches | greedy tokens agree until two logits are close | logits over chunks of 1, 16 and everything, and [a broken cache that must fail](#several-new-tokens-at-once) |
#
# ## Play
#
# Which rows does a head actually read? The lab runs your own prompt with a cache that also writes down its attention
# weights, and shows three heads side by side, found by their weights. Many put most of it on the very first token: such
# an [attention sink](../book/glossary.md#term-attention-sink) is what chapter 13 will have to keep.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = cache_reads_lab(
    model,
    tokenizer,
    prompt="The capital of France is Paris, and the capital of Italy is",
)

# %% [markdown]
# ## In production
#
# Engines that serve many users do not grow their caches by concatenation. They reserve memory at the start, and flags
# decide how much.

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(
    ch04.PRODUCTION, ("engine", "what decides the cache", "flags")
)

# %% [markdown]
# Mind what a share is a share of. 0.9 of the whole card must hold the weights, too; 0.9 of what is *free* comes on top of
# them. The two pools differ by a tenth of the weights, before activations are taken out.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
worst = max(max(row) for row in changes.values())
wrong = chunked["top left", 16]
markdown(
    ch04.recap(
        worst, encoder, kappa, work.ratio, ratio, wrong, (moved[0], rope)
    )
)
callout("takeaway", ch04.takeaway(kappa))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("04")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/04_kv_cache.ipynb) ([solutions](../solutions/04_kv_cache.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(grading.table("04"))

# %% [markdown]
# ## Further reading
#
# - [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102) (Pope and others, 2022): read it for the
#   memory and time of weights and cache written as formulas, and for what multi-query attention does to them.
# - [Fast Transformer Decoding: One Write-Head is All You Need](https://arxiv.org/abs/1911.02150) (Shazeer, 2019): read it
#   for why decoding is bound by reading keys and values, and for keeping one head of them.
# - [Transformer Inference Arithmetic](https://kipp.ly/transformer-inference-arithmetic/) (Chen, 2022): read it for the same
#   sums done on paper, with another model.
# - [Efficient Streaming Language Models with Attention Sinks](https://arxiv.org/abs/2309.17453) (Xiao and others, 2023): read
#   it for what happens when the first tokens of a RoPE model are dropped from the cache.
# - [`scaled_dot_product_attention`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html):
#   read it for the alignment of `is_causal`, stated in one line of pseudocode.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, chip=chip, notes=["fp32 throughout"])
