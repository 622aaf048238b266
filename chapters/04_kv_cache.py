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
# Ask SmolLM2 to go on from *Once upon a time, in a small village by the sea,* and look at the clock after every token.
# The first words come at an even pace. Then, if nothing is remembered between the steps, the pace drops and goes on
# dropping, although each step makes one token, with the same 135 million weights.
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

session = lumen.setup("04_kv_cache")

# %% [markdown]
# Equality is the point of this chapter, so the model runs in fp32 everywhere, on a GPU too.

# %%
import math
import textwrap

import torch

from lumen import bench, cost, hardware
from lumen.bench.timer import once
from lumen.cache import Cache, DynamicCache, NoCache, StaticCache
from lumen.explore import callout, figure, label_line, markdown, palette, reveal, table
from lumen.models import CONFIGS, Llama, ModelConfig

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device


def tiny(error):
    """An error to one digit; 0 where the bits are the same."""
    return f"{error:.0e}" if error else "0"


# %% [markdown]
# ## The same answer twice
#
# Here are two ways to get the next token. The first gives the model everything said so far. The second gives it only
# what its cache has not seen yet.

# %%
prompt = tokenizer.encode("Once upon a time, in a small village by the sea,")
NEW = 40


def without_cache(tokens):
    hidden = model.hidden(torch.tensor([tokens], device=device))
    return model.head(hidden[:, -1])


def with_cache(cache):
    def step(tokens):
        unseen = tokens[int(cache.lengths[0]) :]
        hidden = model.hidden(torch.tensor([unseen], device=device), None, cache)
        return model.head(hidden[:, -1])

    return step


def answer(step, new):
    """Greedy tokens, and the seconds that each of them took."""
    tokens = list(prompt)
    seconds = [once(lambda: tokens.append(int(step(tokens).argmax()))) for _ in range(new)]
    return tokens, seconds


# %% tags=["measure", "nbval-ignore-output"]
answer(without_cache, 2), answer(with_cache(StaticCache.for_model(model, 1, 64)), 2)  # warm-up
slow_runs = [answer(without_cache, NEW) for _ in range(2)]
fast_runs = [answer(with_cache(StaticCache.for_model(model, 1, 64)), NEW) for _ in range(3)]
for paragraph in tokenizer.decode(slow_runs[0][0]).split("\n\n"):
    print(textwrap.fill(paragraph, 72) + "\n")
print("the same tokens with and without a cache:", slow_runs[0][0] == fast_runs[0][0])

# %% tags=["hide-input", "nbval-ignore-output"]
slow = [min(times) for times in zip(*(t for _, t in slow_runs), strict=True)]
fast = [min(times) for times in zip(*(t for _, t in fast_runs), strict=True)]
late_slow, late_fast = sum(slow[-8:]) / 8, sum(fast[-8:]) / 8
early_slow = sum(slow[1:5]) / 4

fig = figure(
    f"Without a cache the last tokens take {late_slow / late_fast:.1f} times as long as with one",
    x="token of the answer",
    y="time for this token (ms)",
)
fig.add_scatter(x=list(range(1, NEW + 1)), y=[1e3 * t for t in slow], mode="lines", line_color=palette.orange)
fig.add_scatter(x=list(range(1, NEW + 1)), y=[1e3 * t for t in fast], mode="lines", line_color=palette.blue)
label_line(fig, NEW, 1e3 * max(slow[-8:]), "no cache", palette.orange, anchor="right", shift=14)
label_line(fig, NEW, 1e3 * max(fast[-8:]), "cache", palette.blue, anchor="right", shift=14)
fig.update_yaxes(rangemode="tozero")
fig

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Without a cache tokens 2 to 5 took {1e3 * early_slow:.0f} ms each and the last eight {1e3 * late_slow:.0f} ms "
    f"(the better of two runs); with one, the last eight took {1e3 * late_fast:.0f} ms. "
    + (
        "The text is the same.\n\n"
        if slow_runs[0][0] == fast_runs[0][0]
        else "The texts part at a near-tie.\n\n"
    )
    + f"The reason is no secret: the first step ran {len(prompt)} tokens through the model, the last one without a cache "
    f"ran {len(prompt) + NEW - 1}, and all but one of them had been run before."
)

# %% [markdown]
# So the cache skips repetition, and claims to change nothing. Why can that hold? To remember something is only safe if it
# cannot change.
#
# ## Seven tokens, and what changed
#
# Take the first six tokens of that text. Every layer turns each token into a query, a key and a value. Then the seventh
# token is known. Which of the old vectors are different now? We write them all down, twice, and compare.


# %%
class Tape(NoCache):
    """Remembers nothing for the model, but writes down q, k and v of every layer for us."""

    def __init__(self):
        self.seen = {"Q": [], "K": [], "V": []}

    def update(self, layer, k, v, pos, q=None):
        for name, x in zip("QKV", (q, k, v), strict=True):
            self.seen[name].append(x)
        return k, v, pos


def record(tape, tokens):
    model(torch.tensor([tokens], device=device), torch.arange(len(tokens), device=device)[None], tape)
    return {name: torch.stack(layers) for name, layers in tape.seen.items()}  # (layer, B, heads, T, D)


def change(before, after):
    """For each old token: the largest change in any layer and head, relative to the largest value."""
    old = after[..., : before.shape[3], :]
    return ((old - before).abs().amax((0, 1, 2, 4)) / before.abs().max()).tolist()


first = slow_runs[0][0][:7]
six, seven = record(Tape(), first[:6]), record(Tape(), first)
changes = {name: change(six[name], seven[name]) for name in "QKV"}

# %% tags=["hide-input", "nbval-ignore-output"]
words = [f"{i + 1} {tokenizer.decode([t]).strip()}" for i, t in enumerate(first)]
worst = max(max(row) for row in changes.values())
fig = figure(
    "Only one column is new: the other six "
    + (f"changed by {tiny(worst)} at most" if worst else "hold the same bits"),
    x="token",
    y="vector",
    height=290,
)
fig.add_heatmap(
    z=[[0] * 6 + [1]] * 3,
    x=words,
    y=["Q", "K", "V"],
    text=[[tiny(c) for c in changes[name]] + ["new"] for name in "QKV"],
    texttemplate="%{text}",
    textfont={"size": 13, "color": "white"},
    colorscale=[[0, "#0b5f94"], [1, "#a84300"]],
    showscale=False,
    xgap=3,
    ygap=3,
    hoverinfo="skip",
)
fig.update_yaxes(autorange="reversed")
fig

# %% [markdown]
# Each number is the largest change in any of the 30 layers, relative to the largest value; at this size it is the rounding
# of fp32. A causal layer lets token 3 look at tokens 1 to 3. Those are the same tokens as one step ago, so everything computed
# for token 3 is the same, in layer 1, therefore in layer 2, and so on to the top.
#
# The mask is what makes this true. Take it away and let every token look at every other one, as an encoder does:


# %%
class BothWays(Tape):
    """The same model without the causal mask: every key claims position 0, which any query may read."""

    def update(self, layer, k, v, pos, q=None):
        super().update(layer, k, v, pos, q)
        return k, v, torch.zeros_like(pos)


both = {n: record(BothWays(), first[:n]) for n in (6, 7)}
encoder = {name: max(change(both[6][name], both[7][name])) for name in "QKV"}

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Now the old keys change by {encoder['K']:.0%} of their largest value and the old values by {encoder['V']:.0%}, "
    "because one token was added at the end. Nothing computed for such a model can be kept: there is no KV cache for "
    "an encoder."
)

# %% [markdown]
# And the old *queries*? They did not change either. But token 3's query was asked once, at the step that computed token
# 3's output. Nobody asks it again. Keys and values are different: every later token reads them, in every step. That is
# why it is called a [KV cache](../book/glossary.md#term-KV-cache) and not a QKV cache.
#
# Step through it. Orange rows are computed in this pass, blue ones are read.

# %%
lumen.explore.KVStepper(prompt=5, steps=6)

# %% [markdown]
# ## Build it
#
# A cache has to do three things: keep keys and values per layer, hand them back together with the new ones, and know
# *which position each slot holds*. The last one looks like bookkeeping and is where most bugs live, so here a position
# is data: one integer per slot, −1 for "no token here".
#
# Models of this course call a cache in a fixed order. `begin(pos)` comes once before the first layer, `update` once per
# layer, `advance(pos)` once after the last. Attention itself is in the base class, under a single mask rule: a query reads a
# key when `0 <= k_pos <= q_pos`.


# %%
class MyCache(Cache):
    """Keys, values and positions of everything seen, grown by concatenation."""

    def __init__(self, config, rows, dtype=torch.float32, device="cpu"):
        empty = torch.empty(rows, config.num_kv_heads, 0, config.head_dim, dtype=dtype, device=device)
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers
        self.positions = torch.empty(rows, 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)
        self.new_positions = torch.cat([self.positions, pos], 1)  # one table serves all layers

    def update(self, layer, k, v, pos, q=None):
        self.k[layer] = torch.cat([self.k[layer], k], 2)  # (B, Hkv, S, D)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self.new_positions

    def advance(self, pos):
        super().advance(pos)  # lengths: the position of each row's next token
        self.positions = self.new_positions

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths, device=self.positions.device)
        self.positions = self.positions.masked_fill(self.positions >= self.lengths[:, None], -1)

    @property
    def nbytes(self):
        return sum(x.nbytes for x in (*self.k, *self.v))


# %% [markdown]
# `rewind` forgets without moving a byte: a slot whose position is −1 is never read. Speculative decoding will need it.
# This class is `lumen.DynamicCache` without the checks on its input.
#
# ## Equal to whom?
#
# To nothing remembered, first. A small random model in float64, with nine query heads on three KV heads as in SmolLM2,
# leaves no room for excuses. The same 23 tokens go in whole, and in chunks on top of a growing cache:


# %%
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def in_chunks(model, tokens, size, cache, pos=None):
    """Logits of all tokens, `size` of them per forward, on top of `cache`."""
    parts = tokens.split(size, 1)
    places = [None] * len(parts) if pos is None else pos.split(size, 1)
    return torch.cat([model(t, p, cache) for t, p in zip(parts, places, strict=True)], 1)


torch.manual_seed(0)
small = Llama(ModelConfig("small", 97, 3, 72, 9, 3, 8, 100, 64)).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
tokens = torch.randint(97, (2, 23), device=device)
whole = small(tokens)
errors = {n: relative_error(in_chunks(small, tokens, n, MyCache(small.config, 2, torch.float64, device)), whole)
          for n in (1, 2, 7, 22, 23)}  # fmt: skip

# %% tags=["nbval-check-output"]
for size, error in errors.items():
    print(f"chunks of {size:2}: equal to float64 rounding: {error < 1e-14}")
assert max(errors.values()) < 1e-14

# %% [markdown]
# Then to others, on the real model in fp32: `lumen`'s two caches, and Hugging Face's own cached generation on the same
# weights. Greedy tokens can flip where the two best logits are a hair apart, so logits are compared, and tokens only
# where the gap is larger than 0.001.

# %%
try:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from lumen.models.weights import to_hf_state

    logging.disable_progress_bar()
    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads, head_dim=config.head_dim,
        num_key_value_heads=config.num_kv_heads, max_position_embeddings=config.max_positions,
        rope_theta=config.rope_theta, rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = LlamaForCausalLM(shape).eval()
    theirs.load_state_dict(to_hf_state(model) | {"lm_head.weight": model.embed.weight}, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(shape).to(device)  # a table, not a weight
except ImportError:
    theirs = None  # everything below still runs

# %%
sequence = torch.tensor([fast_runs[0][0]], device=device)
reference = model(sequence)
answer_rows = slice(len(prompt) - 1, -1)  # the rows that chose the answer's tokens
contenders = {
    "MyCache": (MyCache(config, 1, device=device), 1),
    "lumen.DynamicCache": (DynamicCache.for_model(model, 1), 8),
    "lumen.StaticCache": (StaticCache.for_model(model, 1, sequence.shape[1]), 7),
}
logits = {
    f"{name}, in chunks of {size}": in_chunks(model, sequence, size, cache)[:, answer_rows]
    for name, (cache, size) in contenders.items()
}

if theirs is not None:
    given = sequence[:, : len(prompt)]
    out = theirs.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
        pad_token_id=2, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    logits["Hugging Face, generate"] = torch.stack(out.logits, 1)
    best, second = reference[0, answer_rows].topk(2).values.T
    same = (out.sequences == sequence)[0, len(prompt) :]
    assert bool((same | (best - second < 1e-3)).all())

# %% tags=["hide-input", "nbval-ignore-output"]
errors = {name: relative_error(x, reference[:, answer_rows]) for name, x in logits.items()}
assert max(errors.values()) < 1e-4
table(
    [[name, tiny(error)] for name, error in errors.items()],
    ["who", "relative error of the logits, against no cache"],
)

# %% [markdown]
# The limit for this table is $10^{-4}$, asserted. The errors come from the order of additions: a product over one row
# is summed in another order than a product over fifty.
#
# So nothing is lost. What is gained?
#
# ## Predict: the whole answer
#
# The prompt has 13 tokens, the answer 40. Without a cache, every step runs everything so far through the model. With
# one, the prompt goes through once and then one token per step. You have seen the last steps' ratio in the first figure.
# **Over the whole answer, how many times *less time* does the cache take?** Write it down.

# %% tags=["predict"]
my_guess = 3.0  # times less time for the whole answer

# %% tags=["measure", "nbval-ignore-output"]
work = lumen.explore.kv_stepper.totals(len(prompt), NEW)  # token rows through all layers
fast_total = sorted(sum(times) for _, times in fast_runs)[1]
time_ratio = [sum(times) / fast_total for _, times in slow_runs]
print(f"rows computed: {work.without:,} without a cache, {work.with_cache:,} with one")

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
middle = sum(time_ratio) / 2
reveal(
    guess=my_guess, model=work.ratio, measured=time_ratio, unit="×", what="saved by the cache",
    title=f"{work.ratio:.0f} times less work was {middle:.1f} times less time",
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
chip = hardware.measure(progress=False)
weights_read = cost.weight_bytes(config, "fp32")
if middle < 0.8 * work.ratio:
    verdict = (
        "The work that was saved was cheap. A step has to read all weights whether it runs one row or fifty"
    )
else:
    verdict = "Here time nearly follows work, so reading the weights is not what these steps wait for"
markdown(
    f"The model says **{work.ratio:.1f}×**, the clock says **{middle:.1f}×**. {verdict}: {weights_read / 1e9:.2f} GB, "
    f"at {chip.bandwidth / 1e9:.1f} GB/s that is {1e3 * weights_read / chip.bandwidth:.0f} ms. On the roofline a step "
    "without a cache stands to the *right* of one with a cache: it does more arithmetic for the same bytes. The saving "
    "in time follows the saving in work only once a step's rows cost more than its bytes."
)

# %% [markdown]
# ## The n² law, and what a prompt does to it
#
# Count the rows, first without a prompt. For an answer of $n$ tokens the steps without a cache run 1, 2, 3, … $n$ rows,
# which is $n(n+1)/2$ in all. With a cache they run one row each. The ratio is $(n+1)/2$, so it grows with the answer.
# Attention goes the same way, one power higher: from $\sum i(i+1)/2 \approx n^3/6$ pairs of a query and a key to
# $\sum i \approx n^2/2$.

# %% tags=["hide-input", "nbval-ignore-output"]
n = list(range(1, NEW + 1))
total_slow, total_fast = torch.tensor(slow).cumsum(0).tolist(), torch.tensor(fast).cumsum(0).tolist()
rows_slow = [lumen.explore.kv_stepper.totals(len(prompt), i).without for i in n]
half = NEW // 2


def slope(y):
    return math.log(y[-1] / y[half - 1]) / math.log(NEW / half)


fig = figure(
    f"Doubling the answer: {2 ** slope(total_slow):.1f} times the time without a cache, "
    f"{2 ** slope(total_fast):.1f} times with one",
    x="tokens of the answer", y="time since the start (s)", log_x=True, log_y=True,
)  # fmt: skip
fig.add_scatter(x=n, y=total_slow, mode="lines", line_color=palette.orange)
fig.add_scatter(x=n, y=total_fast, mode="lines", line_color=palette.blue)
scale = total_slow[-1] / rows_slow[-1]
fig.add_scatter(
    x=n, y=[r * scale for r in rows_slow], mode="lines", line={"color": palette.grey, "dash": "dot"}
)
lumen.explore.theme.log_axis(
    fig, "y", lumen.explore.theme.nice_ticks(min(rows_slow[0] * scale, total_fast[0]), total_slow[-1])
)
label_line(fig, NEW, total_slow[-1], "no cache", palette.orange, shift=14)
label_line(fig, NEW, total_fast[-1], "cache", palette.blue, shift=-24)
label_line(fig, 2, rows_slow[1] * scale, "rows counted, scaled", palette.grey, anchor="left", shift=-14)
lumen.explore.theme.log_axis(fig, "x", [1, 2, 5, 10, 20, 40])
fig.update_xaxes(range=[-0.03, math.log10(NEW) + 0.03])
fig

# %% tags=["hide-input", "nbval-ignore-output"]
rows_growth = 2 ** slope(rows_slow)
markdown(
    f"From {half} to {NEW} tokens the counted rows grow {rows_growth:.1f} times. The time without a cache grows "
    f"{2 ** slope(total_slow):.1f} times, "
    + (
        "still short of the law, because the read of the weights is in every step. "
        if slope(total_slow) < 0.93 * slope(rows_slow)
        else "close to the law. "
    )
    + "At the left end the two lines run together: a short answer hardly needs a cache."
)

# %% [markdown]
# Published introductions like to print the ratio for 512 new tokens and stop there. But nobody sends an empty prompt.
# Without a cache every step runs the prompt again. How many times less work is it with one?

# %% tags=["hide-input", "nbval-check-output"]
prompts, answers = [0, 128, 2048], [1, 32, 512]
table(
    [[f"{p:,}"] + [f"{cost.cache_saving(a, p):.1f}" for a in answers] for p in prompts],
    ["tokens in the prompt", *[f"answer of {a}" for a in answers]],
    align="rrrr",
)
markdown(
    f"For 512 tokens the cache saves **{cost.cache_saving(512):.1f}×** on an empty prompt and "
    f"**{cost.cache_saving(512, 2048):.1f}×** behind 2,048 tokens. For one token it saves nothing: "
    f"{cost.cache_saving(1, 2048):.0f}×, whatever the prompt."
)

# %% [markdown]
# The prompt makes the cache *more* valuable, not less, as long as more than one token is asked for. (The formula counts
# $n$ steps behind a prompt of $P$ tokens that has been read: $nP + n(n+1)/2$ rows against $P + n$. The loop above gets
# its first token out of the prompt's own pass, so its count is a shade lower.)
#
# All that was paid in bytes. How many?
#
# ## What remembering costs
#
# Per token and layer: one key and one value, for each KV head, of `head_dim` numbers.
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
print(f"κ = {kappa:,.0f} bytes per token; 20 tokens in MyCache: {mine.nbytes:,} bytes")
assert mine.nbytes == 20 * kappa == 20 * 2 * 30 * 3 * 64 * 4

# %% tags=["hide-input", "nbval-check-output"]
rows = []
for name, kind in [
    ("smollm2-135m", "fp32"),
    ("llama-2-7b", "fp16"),
    ("llama-3-8b", "bf16"),
    ("llama-2-70b", "fp16"),
]:
    c = CONFIGS[name]
    rows.append([
        name, c.num_layers, c.num_kv_heads, c.head_dim, kind,
        f"{cost.kv_bytes_per_token(c, kind) / 2**10:.0f}", f"{cost.kv_bytes(c, 4096, dtype=kind) / 2**30:.2f}",
    ])  # fmt: skip
headers = ["model", "layers", "KV heads", "head width", "format", "κ (KiB)", "4,096 tokens (GiB)"]
table(rows, headers, align="lrrrlrr")

# %% [markdown]
# Read the table twice. Llama-3-8B is larger than Llama-2-7B and its token costs a quarter, because eight KV heads serve 32
# query heads. And a token of Llama-2-70B, ten times the model, costs less than one of Llama-2-7B.
#
# The interview question that belongs here: *Llama-2-70B, 64 users, 8,192 tokens each, 16 bits. How much memory?*

# %% tags=["hide-input", "nbval-check-output"]
big = CONFIGS["llama-2-70b"]
each, everyone = cost.kv_bytes(big, 8192), cost.kv_bytes(big, 8192, 64)
w = cost.weight_storage(big, "fp16")
markdown(
    f"{each / 1e9:.2f} GB a user, **{everyone / 1e9:.0f} GB** ({everyone / 2**30:.0f} GiB) for all, more than the "
    f"{w / 1e9:.0f} GB of weights. Together {(everyone + w) / 1e9:.0f} GB: "
    f"{math.ceil((everyone + w) / 80e9)} cards of 80 GB before a single activation is stored."
)

# %% [markdown]
# Memory is half of it. A decode step of a batch *reads* the weights once and every user's cache once:
#
# $$ \text{bytes per step} = W + B \, L \, \kappa $$
#
# The first term is shared by the whole batch. The second is not: batching does not make the cache cheaper.

# %% tags=["hide-input"]
llama = CONFIGS["llama-2-7b"]
cross = cost.overtaking_batch(llama, 4096, "fp16")
b = [1, 2, 4, 8, 16, 32]
fig = figure(
    f"Llama-2-7B at 4,096 tokens: from a batch of {cross:.1f} on, the cache outweighs the weights",
    x="users in the batch", y="GB, held and read in every step", log_x=True, log_y=True,
)  # fmt: skip
W = cost.weight_storage(llama, "fp16") / 1e9
cache_gb = [cost.kv_bytes(llama, 4096, i) / 1e9 for i in b]
fig.add_scatter(x=b, y=[W] * len(b), mode="lines", line_color=palette.grey)
fig.add_scatter(x=b, y=cache_gb, mode="lines", line_color=palette.blue)
fig.add_scatter(x=b, y=[W + c for c in cache_gb], mode="lines", line_color=palette.orange)
label_line(fig, 31, W, "weights", palette.grey, anchor="right", shift=-13)
label_line(fig, 2, cache_gb[1], "cache", palette.blue, anchor="left", shift=-14)
label_line(fig, 16, W + cache_gb[4], "both", palette.orange, anchor="right", shift=13)
lumen.explore.theme.log_axis(fig, "x", b)
lumen.explore.theme.log_axis(fig, "y", [2, 5, 10, 20, 50])
fig

# %% [markdown]
# Left of the crossing, a larger batch is nearly free. Right of it, each user pays for themselves. This is the picture
# behind most of the chapters to come: fewer KV heads, fewer bits, fewer tokens kept.
#
# How many users fit *your* chip? Choose a model and a card. It starts with 32 users of Llama-2-7B, who do not fit.

# %%
lumen.explore.CacheSize(
    models=["llama-2-7b", "llama-3-8b", "llama-2-70b", "smollm2-135m"],
    chips=["A100 80GB SXM", "H100 SXM", "H200 SXM", "L4", "T4"], context=4096, users=32,
)  # fmt: skip

# %% [markdown]
# ## Two ways to keep it
#
# `MyCache` grows by concatenation: a [dynamic cache](../book/glossary.md#term-dynamic-cache). To append one token it
# allocates a tensor one longer and copies everything. A [static cache](../book/glossary.md#term-static-cache) reserves
# its slots once and writes in place.
#
# **With 4,096 tokens cached, how many times longer does a step of SmolLM2 take with the dynamic cache?** The static step
# reads the weights and the cache. The dynamic one also reads and writes the whole cache to copy it.

# %% tags=["predict"]
my_guess = 2.0  # dynamic step / static step, at 4,096 tokens of context


# %% tags=["measure", "nbval-ignore-output"]
def filled(cache, context):
    """`cache` as if `context` tokens had gone through: random keys and values, through its own methods."""
    pos = torch.arange(context, device=device)[None]
    cache.begin(pos)
    for layer in range(config.num_layers):
        k, v = torch.randn(2, 1, config.num_kv_heads, context, config.head_dim, device=device)
        cache.update(layer, k, v, pos)
    cache.advance(pos)
    return cache


def one_step(cache):
    token = torch.tensor([[504]], device=device)
    return lambda: model.head(model.hidden(token, None, cache)[:, -1])


contexts = [64, 1024, 4096]
steps = {
    n: bench.compare({
        "static": one_step(filled(StaticCache.for_model(model, 1, n + 16), n)),
        "dynamic": one_step(filled(DynamicCache.for_model(model, 1), n)),
    })
    for n in contexts
}  # fmt: skip

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
last = steps[contexts[-1]]
by_model = {
    kind: cost.predict_decode(config, chip, contexts[-1], dtype="fp32", cache=kind).seconds
    for kind in ("static", "dynamic")
}
expected = by_model["dynamic"] / by_model["static"]
ratios = [d / s for d, s in zip(last["dynamic"].samples, last["static"].samples, strict=True)]
found = last["dynamic"].median / last["static"].median
reveal(
    guess=my_guess, model=expected, measured=ratios, unit="×", what="dynamic step over static step",
    title=f"At 4,096 tokens a dynamic step takes {found:.2f} times a static one", log=False,
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
rows = [
    [n, f"{1e3 * steps[n]['static'].median:.1f}", f"{1e3 * steps[n]['dynamic'].median:.1f}",
     f"{n * kappa / 1e6:.1f}", f"{2 * n * kappa / 1e6:.1f}"]
    for n in contexts
]  # fmt: skip
table(
    rows,
    [
        "context",
        "static (ms)",
        "dynamic (ms)",
        "MB of cache, read by attention",
        "MB moved besides, by the copy",
    ],
    align="rrrrr",
)
growth = steps[4096]["static"].median / steps[64]["static"].median
bytes_growth = (weights_read + 4096 * kappa) / (weights_read + 64 * kappa)
if found > 1.15 * expected:
    gap = "The bytes of the copy do not tell all: each step also asks for fresh memory, and first touches are slow."
elif found < expected / 1.15:
    gap = "The copy is cheaper than its bytes: one layer's keys are small, and part of them is still in the chip's caches."
else:
    gap = "Counting bytes was enough."
markdown(
    f"The model expected the dynamic step at 4,096 tokens to take {expected:.2f} times the static one, the clock says "
    f"{found:.2f}. {gap}\n\nFrom 64 to 4,096 tokens the static step takes {growth:.2f} times as long; bytes alone say {bytes_growth:.2f}. "
    + (
        "Attention over the cache costs more than its bytes here: one query is too little work to use all the bandwidth. "
        if growth > 1.15 * bytes_growth
        else "A step also holds time that is no bytes at all, such as starting its operators, and that part does not grow. "
        if growth < bytes_growth / 1.05
        else ""
    )
    + f"Growing one token at a time from nothing to 4,096, the copies *write* {kappa * 4096 * 4097 / 2 / 1e9:,.0f} GB to "
    f"store {kappa * 4096 / 1e9:.2f} GB. It is the n² law again, moved from arithmetic to memory."
)

# %% [markdown]
# The formula for the copies is easy to get wrong by a factor, so count them. Each forward writes every tensor that it
# concatenates:


# %% tags=["nbval-check-output"]
class Counting(DynamicCache):
    written = 0

    def update(self, layer, k, v, pos, q=None):
        out = super().update(layer, k, v, pos, q)
        self.written += self.k[layer].nbytes + self.v[layer].nbytes
        return out


counting = Counting(small.config, 1, torch.float64, device)
in_chunks(small, tokens[:1], 1, counting)
per_token = cost.kv_bytes_per_token(small.config, "fp64")
print(f"23 steps wrote {counting.written:,} bytes; κ·n(n+1)/2 = {per_token * 23 * 24 / 2:,.0f}")
assert counting.written == per_token * 23 * 24 / 2

# %% tags=["hide-input", "nbval-check-output"]
static = StaticCache.for_model(model, 1, 2048)
markdown(
    f"The static cache pays in another coin. `StaticCache(…, capacity=2048)` takes {static.nbytes / 2**20:.1f} MiB from "
    f"the first token on: κ times {static.nbytes / kappa:,.0f} slots, one more than asked for, because padding is "
    f"written into the last one, where nobody reads. An answer that ends after 100 tokens has used "
    f"{100 / 2048:.0%} of it. The paged cache of the next chapter is the way out of both."
)
assert static.nbytes == kappa * 2049

# %% [markdown]
# ## Several new tokens at once
#
# So far a step brought one new token, and one new token may read everything. With two or more the mask matters, and it
# is no longer the square triangle of a prompt: four tokens are cached, three arrive.

# %% tags=["nbval-check-output"]
from lumen.attention.core import visible

q_pos, k_pos = torch.tensor([[4, 5, 6]]), torch.arange(7)[None]
top_left = torch.ones(3, 7, dtype=torch.bool).tril()  # what is_causal=True means


def draw(mask):
    return ["".join("■ " if seen else "· " for seen in row) for row in mask.tolist()]


print("query    by position       is_causal=True")
for at, right, wrong in zip((4, 5, 6), draw(visible(q_pos, k_pos)[0, 0]), draw(top_left), strict=True):
    print(f"pos {at}    {right}    {wrong}".rstrip())

# %% [markdown]
# On the left is the rule `0 <= k_pos <= q_pos`: the triangle sits at the *bottom right*. On the right is what
# `scaled_dot_product_attention(..., is_causal=True)` does with three queries and seven keys: it aligns the triangle with
# the *top left*, and the newest token sees three of the oldest. For a whole prompt the two agree, so this fault passes
# every test that never puts two tokens on a cache. As a negative control, a cache that makes it:


# %% tags=["nbval-ignore-output"]
class TopLeft(MyCache):
    def attend(self, layer, q, k, v, pos, window=None):
        k, v, _ = self.update(layer, k, v, pos)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


piece, sizes = sequence[:, :33], (33, 1, 16)
chunked = {
    (name, size): relative_error(
        in_chunks(model, piece, size, kind(config, 1, device=device)), reference[:, :33]
    )
    for name, kind in {"by position": MyCache, "top left": TopLeft}.items()
    for size in sizes
}

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [[name, *[tiny(chunked[name, size]) for size in sizes]] for name in ("by position", "top left")],
    ["mask", "all 33 in one go", "one by one", "chunks of 16"], align="lrrr",
)  # fmt: skip
assert max(chunked["by position", size] for size in sizes) < 1e-4
assert chunked["top left", 16] > 0.01 and chunked["top left", 1] < 1e-4

# %% [markdown]
# One token at a time hides the fault, and so does the whole prompt. Sixteen at a time shows it. Feeding a prompt in
# pieces is called [chunked prefill](../book/glossary.md#term-chunked-prefill); speculative decoding also puts several
# tokens on a cache. Both are ordinary forwards here, because the mask comes from positions.
#
# Padding is the same thing again. Three prompts of unequal length make a rectangle; the holes have position −1. On which
# side they lie must not matter.

# %% tags=["nbval-ignore-output"]
texts = ["Water boils at", "The capital of France is", "Once upon a time there was a small house, and in it"]
prompts = [tokenizer.encode(t) for t in texts]
alone = torch.stack([model(torch.tensor([p], device=device))[0, -1] for p in prompts])


def last_logits(side, numbered_by_slot=False):
    tokens, pos = lumen.pad(prompts, side, device)
    if numbered_by_slot:  # the habit: a token's position is where it stands in the tensor
        pos = torch.arange(tokens.shape[1], device=device).expand_as(pos)
    logits = in_chunks(model, tokens, 4, MyCache(config, 3, device=device), pos)
    _, real = lumen.pad(prompts, side, device)
    return logits[torch.arange(3), real.argmax(1)]  # the row of each prompt's last token


padding = {
    "left, positions are data": relative_error(last_logits("left"), alone),
    "right, positions are data": relative_error(last_logits("right"), alone),
    "left, position = slot": relative_error(last_logits("left", numbered_by_slot=True), alone),
}

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [[name, tiny(error)] for name, error in padding.items()],
    ["padding", "error against each prompt alone"],
)
assert max(list(padding.values())[:2]) < 1e-4 and padding["left, position = slot"] > 1e-3

# %% [markdown]
# ## What a cache cannot reproduce
#
# A cache holds the past at its positions. What if the model runs out of them? GPTlite, our character model, *learned*
# one vector for each of 256 positions and has no 257th. `generate` refuses to go further:

# %%
gpt, letters = lumen.load("gptlite", dtype=torch.float32)
window, ahead = gpt.config.max_positions, 64
unseen_plays = lumen.assets.shakespeare()[1]  # it was not trained on these
text = torch.tensor(letters.encode(unseen_plays), device=device)
plays = torch.stack([text[i : i + window + ahead] for i in range(10_000, 90_000, 20_000)])  # (4, 320)
play = plays[0].tolist()
try:
    lumen.generate(gpt, [play[:window]], 10)
except ValueError as refused:
    print(refused)

# %% [markdown]
# The usual way on is to slide: drop the first character, so that 256 remain, and number them from 0 again. Every
# character has moved by one position. How much of the cache survives that?


# %%
def taped(model, tokens, pos=None):
    tape = Tape()
    pos = torch.arange(len(tokens), device=device)[None] if pos is None else pos
    logits = model(torch.tensor([tokens], device=device), pos, tape)
    return logits, {name: torch.stack(layers) for name, layers in tape.seen.items()}


_, before = taped(gpt, play[:window])
_, after = taped(gpt, play[1 : window + 1])
shared_before, shared_after = before["K"][..., 1:, :], after["K"][..., :-1, :]  # the same 255 characters
moved = (
    (shared_after - shared_before).flatten(1).norm(dim=1) / shared_before.flatten(1).norm(dim=1)
).tolist()


def shifted(model, tokens, by):
    """Relative change of all logits when the same tokens stand `by` positions later."""
    pos = torch.arange(len(tokens), device=device)[None]
    return relative_error(taped(model, tokens, pos + by)[0], taped(model, tokens, pos)[0])


learned, rope = shifted(gpt, play[:100], 100), shifted(model, sequence[0].tolist(), 100)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Not one key. The 255 characters that both windows share have keys that differ by {moved[0]:.0%} in the first "
    f"layer and {moved[-1]:.0%} in the last (relative norm), because each key was made from *character plus position*, "
    "and the position is another one now."
)

# %% [markdown]
# One can be stubborn, and keep the old keys and values all the same. Three ways to predict the next 64 characters, on
# four passages:
#
# - **recompute**: run the last 256 characters again for every new one. Correct by definition, and no cache at all;
# - **keep the old rows**: drop the oldest key, give every newcomer the last position, 255;
# - **slide by half**: when the window is full, recompute its last 128 characters once, then go on with the cache.


# %% tags=["nbval-ignore-output"]
def last_row(tokens, pos=None, cache=None):
    return gpt.head(gpt.hidden(tokens, pos, cache)[:, -1])


def surprise(logits):
    """Nats per character behind the window. logits (4, 64, V) -> (256,)."""
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), plays[:, window:].flatten(), reduction="none"
    )


recompute = torch.stack([last_row(plays[:, i : i + window]) for i in range(ahead)], 1)

stubborn, newest = MyCache(gpt.config, 4, device=device), torch.full((4, 1), window - 1, device=device)
kept = [last_row(plays[:, :window], None, stubborn)]
for i in range(window, window + ahead - 1):
    stubborn.k, stubborn.v = ([x[:, :, 1:] for x in side] for side in (stubborn.k, stubborn.v))
    stubborn.positions = stubborn.positions[:, 1:]
    kept.append(last_row(plays[:, i : i + 1], newest, stubborn))
kept = torch.stack(kept, 1)

by_half = gpt(plays[:, window // 2 : -1])[:, window // 2 - 1 :]

# %% tags=["hide-input", "nbval-ignore-output"]
policies = {"recompute": (window, recompute), "keep the old rows": (1, kept), "slide by half": (2, by_half)}
table(
    [
        [name, rows, f"{surprise(x).mean():.2f}", f"{(x - recompute).abs().max():.1f}"]
        for name, (rows, x) in policies.items()
    ],
    ["policy", "rows per character", "loss (nats per character)", "largest change of a logit"], align="lrrr",
)  # fmt: skip


def against_recompute(logits):
    """Mean difference of the surprise, and its standard error over the 256 pairs."""
    gap = surprise(logits) - surprise(recompute)
    return float(gap.mean()), float(gap.std() / len(gap) ** 0.5)


(worse, noise), (shorter, noise_half) = against_recompute(kept), against_recompute(by_half)
markdown(
    f"Keeping the old rows changes the loss by {worse:+.2f} ± {noise:.2f} nats, sliding by half by {shorter:+.2f} ± "
    f"{noise_half:.2f} (standard error over 256 characters). Sliding costs two rows per character: 128 to recompute and "
    "128 to go on, for 128 new ones. "
    + (
        "The stale cache is the worst of the three, and nothing crashed: it only writes worse text."
        if worse > max(shorter, 2 * noise)
        else "On so short a stretch the losses hardly tell the policies apart; the logits do."
    )
    + (
        " This model reads the last 128 characters better alone than with 128 more before them."
        if shorter < -2 * noise_half
        else ""
    )
)
assert (kept - recompute)[:, 0].abs().max() < 1e-2 < (kept - recompute)[:, 1:].abs().max()

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"With rotary positions the picture is another one. Move the same tokens 100 positions to the right: GPTlite's logits "
    f"change by {learned:.0%}, SmolLM2's by {100 * rope:.1g}%. RoPE turns queries and keys by an angle that grows with the "
    "position, and a score depends on the difference of the angles only. So the keys of a RoPE model need not be "
    "renumbered when the beginning is dropped."
)
assert rope < 1e-4 < 1e-2 < learned

# %% [markdown]
# That does not make dropping free. In every layer above the first, a kept key still carries what its token read from
# those that are now gone, and a recomputed one does not. A sliding cache is a different model from a recomputed window,
# with learned positions or without. How good a model it is depends on what is dropped; chapter 13 will measure it.
#
# ## Where it loses
#
# A cache saves work *between* steps. A long prompt with an answer of one token (a classifier, a reranker, a score) has
# no between.

# %% tags=["measure", "nbval-ignore-output"]
long_prompt = torch.randint(1000, (1, 128), device=device)
once_only = bench.compare(
    {
        "no cache": lambda: model.head(model.hidden(long_prompt)[:, -1]),
        "cache": lambda: model.head(
            model.hidden(long_prompt, None, StaticCache.for_model(model, 1, 128))[:, -1]
        ),
    },
    repeats=3,
)

# %% tags=["hide-input", "nbval-ignore-output"]
gain = once_only["no cache"].median / once_only["cache"].median
own = weights_read / kappa
table(
    [
        ["128 tokens in, one out", f"{cost.cache_saving(1, 128):.0f}×", f"{1 / gain:.2f} times the time of no cache (the runs without one: {once_only['no cache']})"],
        ["Llama-2-7B, 4,096 tokens, 7 users", "–", f"the cache is {7 / cross:.2f} times the weights, computed"],
        ["SmolLM2 in fp32, one user", "–", f"the cache outweighs the weights from {own:,.0f} tokens on, computed; it knows {config.max_positions:,}"],
        ["dynamic cache at 4,096 tokens", "–", f"{found:.2f} times the time of a static one"],
    ],
    ["case", "work saved", "what happens"],
)  # fmt: skip

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | both runs warm a different thing: the first call allocates, picks kernels, fills the allocator | the run that goes second wins | two tokens of warm-up each, `bench.compare` takes turns and reports the spread |
# | one side computes the logits of every row, the other of the last one | the cache looks faster by the size of the head | both call `head` on one row |
# | equal tokens taken for equal caches | a wrong mask still writes fluent text; greedy tokens often agree | logits are compared, over chunks of 1, 16 and everything, and a broken cache must fail |
#
# ## Play
#
# Which rows does a head actually read? The lab runs your own prompt with a cache that also writes down its attention
# weights. Look for a head that puts nearly everything on the first token.

# %% tags=["nbval-ignore-output"]
lab = lumen.explore.cache_reads_lab(
    model, tokenizer, prompt="The capital of France is Paris, and the capital of Italy is"
)

# %% [markdown]
# ## In production
#
# A serving engine does not grow its caches by concatenation. It reserves one large pool at the start, and flags decide how
# large. Names are those of the documentation of the version given.
#
# | engine | what decides the cache | seen in |
# | --- | --- | --- |
# | vLLM | `--gpu-memory-utilization` (weights, activations and pool together), `--max-model-len`, `--kv-cache-dtype fp8` | [docs](https://docs.vllm.ai/en/v0.8.1/serving/engine_args.html), 0.8.1, March 2025 |
# | SGLang | `--mem-fraction-static` (weights and pool), `--context-length`, `--kv-cache-dtype fp8_e4m3` | [docs](https://docs.sglang.io/advanced_features/server_arguments.html), November 2026 |
# | TensorRT-LLM | `free_gpu_memory_fraction` and `max_tokens` of `KvCacheConfig`: a share of what is *free* after loading | [docs](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html), November 2026 |
# | llama.cpp | `--ctx-size`, `--cache-type-k`, `--cache-type-v`; `--context-shift`, off by default, drops old tokens and turns the kept keys | [README](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md), November 2026 |
# | transformers | `DynamicCache` by default; `cache_implementation="static"` of `generate`, for compiled code | [docs](https://huggingface.co/docs/transformers/kv_cache), 5.x |
#
# Mind what a share is a share of. 0.9 of the whole card must hold the weights, too; 0.9 of what is *free* comes on top of
# them. The two pools differ by a tenth of the weights, before activations are taken out.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    "- **K and V of old tokens never change** in a causal model: "
    + (f"by {tiny(worst)} at most" if worst else "not by a bit")
    + f" when a token is added, "
    f"and {encoder['K']:.0%} without the mask. Old queries do not change either, but nobody asks them again.\n"
    f"- **κ = 2 · layers · KV heads · head width · bytes**: {kappa:,.0f} bytes for SmolLM2 in fp32, "
    f"{cost.kv_bytes_per_token(CONFIGS['llama-3-8b']) / 2**10:.0f} KiB for Llama-3-8B in bf16. 64 users at 8,192 tokens of "
    f"Llama-2-70B are {everyone / 1e9:.0f} GB.\n"
    f"- **Work saved: {work.ratio:.0f}× on our answer, time saved: {middle:.1f}×.** For 512 tokens {cost.cache_saving(512):.1f}× "
    f"on an empty prompt, {cost.cache_saving(512, 2048):.1f}× behind 2,048 tokens, 1× for an answer of one token.\n"
    f"- **The mask comes from positions.** The top-left triangle is wrong by {chunked['top left', 16]:.0%} in chunks of 16 "
    f"and right for one token.\n"
    f"- **A cache holds the past at its positions.** With learned positions a window that slides keeps no key: the first layer's moved "
    f"by {moved[0]:.0%}. With RoPE a shift of 100 changed the logits by {100 * rope:.1g}%."
)
callout(
    "takeaway",
    f"**Takeaway.** Count bytes before you count FLOPs. The cache turns arithmetic that was partly idle into memory that "
    f"must be held and read: {kappa / 2**10:.0f} KiB per token here, and at a batch of {cross:.1f} (Llama-2-7B, 4,096 "
    "tokens) it weighs more than the model.",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "Why are old queries not kept?",
            "choices": [
                {"text": "They are never read again.", "ok": True, "why": "A query serves the output of its own token, once. Later tokens ask their own."},
                {"text": "They change when a token is added.", "why": "They do not: the first heat map shows Q as constant as K and V."},
                {"text": "They would be too large.", "why": "They would be: with nine query heads three times as large as K. But size is no reason to drop what is needed, and they are not needed."},
            ],
        },
        {
            "kind": "numeric",
            "question": "A model has 24 layers, 16 query heads, 4 KV heads of width 128, and a bf16 cache. How many KiB does one token cost?",
            "answer": 48, "tolerance": 0.5, "unit": "KiB",
            "right": "2 · 24 · 4 · 128 · 2 = 49,152 bytes.",
            "wrong": "Multiply 2 (K and V), layers, KV heads, width and bytes, then divide by 1024.",
            "slips": [
                {"answer": 192, "why": "You counted query heads. Only KV heads are stored."},
                {"answer": 24, "why": "Keys *and* values: a factor 2 is missing."},
                {"answer": 49.15, "tolerance": 0.2, "why": "That is kB, thousands. In KiB it is 48."},
            ],
        },
        {
            "kind": "choice",
            "question": "The prompt grows from 0 to 2,048 tokens, the answer stays at 512. What happens to the factor of work that the cache saves?",
            "choices": [
                {"text": "It grows.", "ok": True, "why": "Without a cache the prompt is run again for each of the 512 tokens: 461 times instead of 256.5."},
                {"text": "It shrinks, because prefill is the same for both.", "why": "Only the first pass is the same for both. The other 511 run the prompt again when there is no cache."},
                {"text": "It stays at (n+1)/2.", "why": "That formula is for an empty prompt."},
            ],
        },
        {
            "kind": "choice",
            "question": "A decode step takes 30 ms at batch 1. At batch 32, with long contexts, it takes 100 ms. What is the most likely reason?",
            "choices": [
                {"text": "The caches of 32 users are read in every step.", "ok": True, "why": "W is shared, B·L·κ is not. Past the crossing each user pays for themselves."},
                {"text": "The weights are read 32 times.", "why": "They are read once for the whole batch. That is what batching is for."},
                {"text": "The cache is recomputed for every user.", "why": "It is only read; the work per new token stays one row."},
            ],
        },
        {
            "kind": "choice",
            "question": "A cache passes every test with the whole prompt and then one token at a time. Which test is missing most?",
            "choices": [
                {"text": "Several new tokens on a cache that holds some.", "ok": True, "why": "Only there do the top-left and the bottom-right triangle differ."},
                {"text": "A longer prompt.", "why": "A prompt on an empty cache is square, where both triangles agree, at any length."},
                {"text": "More decode steps.", "why": "One query may read every key: no triangle at all."},
            ],
        },
    ],
    id="04",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/04_kv_cache.ipynb) ([solutions](../solutions/04_kv_cache.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("04"))

# %% [markdown]
# ## Further reading
#
# - [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102) (Pope and others, 2022): read it for the
#   memory and time of weights and cache written as formulas, and for what multi-query attention does to them.
# - [Fast Transformer Decoding: One Write-Head is All You Need](https://arxiv.org/abs/1911.02150) (Shazeer, 2019): read it
#   for the first clear statement that decoding is bound by reading keys and values.
# - [Transformer Inference Arithmetic](https://kipp.ly/transformer-inference-arithmetic/) (Chen, 2022): read it for the same
#   sums done on paper, with another model.
# - [Efficient Streaming Language Models with Attention Sinks](https://arxiv.org/abs/2309.17453) (Xiao and others, 2023): read
#   it for what happens when the first tokens of a RoPE model are dropped from the cache.
# - [`scaled_dot_product_attention`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html):
#   read it for the alignment of `is_causal`, stated in one line of pseudocode.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print(
    f"fp32 throughout; read bandwidth measured on this machine: {chip.bandwidth / 1e9:.1f} GB/s ({chip.name})"
)
print("compared with Hugging Face transformers:", theirs is not None)
print("every measured number was made by the cells above; no evidence file is used")
