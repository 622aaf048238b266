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
# # 14 · Sparse and linear attention

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/14_sparse_linear.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/14_sparse_linear.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/14_sparse_linear.ipynb)
#
# CPU is enough · read 35 min · run 1 min · practise 105 min · here: [exercises](../exercises/14_sparse_linear.ipynb), [solutions](../solutions/14_sparse_linear.ipynb)
#
# </div>

# %% [markdown]
# Somebody tells you a phone number, talks on for two thousand tokens, and asks for it. Attention has kept a key and a value for
# each of the two thousand, and looks it up. A layer with a *state* has kept one matrix a head, as large after the first word
# as after the last, and the last few tokens of a short convolution. Three of four layers in Qwen3-Next and 20 of 27 in Kimi Linear are of this kind.
#
# **Can a fixed-size state remember a phone number?**
#
# By the end you can
#
# - write a state token by token and by chunks, and show that both give the same, padding included;
# - predict how many pairs a state of $D \times D$ numbers holds, and say what fading and correcting change about it;
# - compare what a token costs after short and long contexts with attention, a window, states, and a mixture;
# - choose a few keys to read instead, and say how much of attention's weight the choice catches.
#
# Needs: [the cache of keys and values](04_kv_cache.ipynb), [FlashAttention](11_flash_attention.ipynb).
#
# New terms: [linear attention](../book/glossary.md#term-linear-attention),
# [recurrent state](../book/glossary.md#term-recurrent-state), [delta rule](../book/glossary.md#term-delta-rule),
# [associative recall](../book/glossary.md#term-associative-recall), [hybrid model](../book/glossary.md#term-hybrid-model),
# [block selection](../book/glossary.md#term-block-selection), [indexer](../book/glossary.md#term-indexer).

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

session = lumen.setup("14_sparse_linear")

# %% tags=["hide-input"]
import math

import torch
import torch.nn.functional as F
from IPython.display import HTML, display
from torch.nn.functional import scaled_dot_product_attention

import lumen
from lumen import bench, grading
from lumen.attention.linear import (
    chunked,
    recurrent,
    simulated_recall,
)
from lumen.attention.sparse import moba_attention, naive_moba
from lumen.cache import RecurrentCache
from lumen.explore import (
    Quiz,
    StateMemory,
    callout,
    guess,
    markdown,
    phone_book_lab,
    provenance,
    reveal,
    table,
)
from lumen.models import build
from lumen.pages import ch14, ch14_picture, ch14_sparse
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
draw = torch.Generator().manual_seed(0)
learned = ch14.evidence("recall")
timed = ch14.evidence("linear_decode")
chosen = ch14.evidence("sparse_recall")

# %% [markdown]
# ## A memory that does not grow
#
# Write a key and its value down by multiplying them, a column times a row. The product is a matrix. Add up the matrices of all
# pairs. Whoever asks multiplies the sum by the key.

# %% tags=["hide-input", "nbval-check-output"]
display(HTML(ch14_picture.picture()))

# %% [markdown]
# Filled squares are above zero, hollow ones below. The answer resembles what was told, and it is not it: the other pairs are in
# the same sum. A digit can stand that, for it need only be nearer than the nine others. What else happens, the picture does
# not show:

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch14.opening())

# %% [markdown]
# ## One parenthesis
#
# Where does such a layer come from? From attention, without its exponential. With queries and keys as rows:
#
# $$ y_t = \sum_{s \le t} \frac{e^{q_t k_s^\top}}{\sum_{r \le t} e^{q_t k_r^\top}}\, v_s $$
#
# The exponential holds question and key together. Without it (and without the division) the parenthesis may move:
#
# $$ y_t = \sum_{s \le t} (q_t k_s^\top)\, v_s = q_t \Big( \sum_{s \le t} k_s^\top v_s \Big) = q_t S_t $$
#
# What stands inside now does not depend on the question: it can be added up before anybody asks. This is
# [linear attention](../book/glossary.md#term-linear-attention)
# ([Katharopoulos and others, 2020](https://arxiv.org/abs/2006.16236), which keeps the division, with weights made positive;
# later models leave it out and normalise $y$). The sum is the layer's [recurrent state](../book/glossary.md#term-recurrent-state):
#
# $$ S_t = S_{t-1} + k_t^\top v_t \qquad y_t = q_t S_t $$

# %% [markdown]
# ## Predict: how many pairs?
#
# Keys and values of 64 numbers, random directions, each of length 1. $n$ pairs are added into one state of 64 × 64. Each key is
# asked for; the error is the squared distance between answer and value. At 1 it is as large as the value itself.

# %% tags=["predict"]
my_pairs = guess(
    "14-pairs",
    "At how many pairs is the mean error a half?",
    unit="pairs",
)


# %% tags=["measure", "nbval-ignore-output"]
def unit(*shape):
    """Random directions."""
    return F.normalize(torch.randn(shape, generator=draw), dim=-1)


def mean_error(pairs, dim, states=50):
    k, v = unit(states, pairs, dim), unit(states, pairs, dim)
    state = k.mT @ v  # (states, dim, dim): all pairs, added
    return float((k @ state - v).square().sum(-1).mean())


DIM = 64
halves = [  # nine times: the number of pairs that comes closest to a half
    min(range(2, DIM), key=lambda n: abs(mean_error(n, DIM) - 0.5))
    for _ in range(9)
]
TOLD = (8, 16, 32, 64, 128, 256)
digits = {}  # width -> digits told -> share that comes back right
for dim in (16, 32, 64):
    for n in TOLD:
        right, asked = simulated_recall(n, dim, dim, 10, trials=50)
        digits.setdefault(dim, {})[n] = right / asked

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_pairs, model=ch14.half_full(DIM), measured=halves,
    unit="pairs", what="pairs at which the error is a half",
    names=("formula", "simulated"), log=False,
    title=ch14.capacity_title(halves, DIM),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch14.capacity_story(DIM, digits[DIM]))

# %% tags=["reveal", "nbval-ignore-output"]
ch14.shares_figure(digits)

# %% [markdown]
# And in bytes? A layer has several such states. In one layer of three models:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch14.layers_table())

# %% [markdown]
# The last row is where this pays: a shorter context is smaller as keys and values. (Attention's keys are as wide as its values in the
# first two. Kimi Linear's other layers keep
# [latents](../book/glossary.md#term-latent), which are small; [its configuration](https://huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct/blob/main/config.json).)
#
# ## The number has changed
#
# So much for random keys, each told once. People move, and get another number. Tell a state that adds the new pair, and it holds
# both: the answer is the sum of the two values, for ever. A memory that can be corrected looks first. What does the state say to
# this key? Only what is *missing* is written:
#
# $$ S_t = S_{t-1} + \beta_t\, k_t^\top (v_t - k_t S_{t-1}) $$
#
# This is the [delta rule](../book/glossary.md#term-delta-rule), and the one subtraction. With $\beta = 1$ and keys of length 1 the
# newest pair is exact. It is a step of gradient descent on $\tfrac{1}{2}\lVert k_t S - v_t \rVert^2$ with rate $\beta_t$: the
# layer fits a linear map from keys to values while it reads
# ([Schlag and others, 2021](https://arxiv.org/abs/2102.11174)).

# %% tags=["nbval-check-output"]
key, value = unit(1, 8), unit(1, 8)
before = torch.randn(8, 8, generator=draw)
beta = 0.7
with torch.enable_grad():
    fitted = before.clone().requires_grad_()
    (0.5 * (key @ fitted - value).square().sum()).backward()
delta = before + beta * key.mT @ (value - key @ before)
by_descent = before - beta * fitted.grad
print("delta rule = a gradient step:", torch.allclose(delta, by_descent))
assert torch.allclose(delta, by_descent, atol=1e-6)

# %% [markdown]
# Or let everything fade by a factor $a_t$ before each write, a *gate* that the layer computes from the token: then old numbers go
# by themselves. Both can be had at once.

# %% tags=["hide-input", "nbval-check-output"]
table(*ch14.rules_table(), stack=True)

# %% [markdown]
# Which is best? That depends on how the number was told. 32 digits in 64 × 64 numbers, asked for in five situations; $a$ = 0.97,
# $\beta$ = 1, 60 states each, each one sample of the intervals.


# %% tags=["hide-input"]
def digits_right(
    rule, n=32, common=0.0, twice=False, before=0, after=0, keep=ch14.KEEP
):
    """Share of n digits that come back right. `common`: the part of
    each key's square that all of them share."""
    states, stream = 60, torch.Generator().manual_seed(0)

    def some(*shape):
        return F.normalize(torch.randn(shape, generator=stream), dim=-1)

    def answers(count):
        return torch.randint(10, (states, count), generator=stream)

    k, names = some(states, n, DIM), answers(n)
    k = common**0.5 * some(states, 1, DIM) + (1 - common) ** 0.5 * k
    k, values = F.normalize(k, dim=-1), some(states, 10, DIM)
    told, said = (k, names)
    if twice:
        told, said = torch.cat([k, k], 1), torch.cat([answers(n), names], 1)
    talk, idle = some(states, before + after, DIM), answers(before + after)
    told = torch.cat([talk[:, :before], told, talk[:, before:]], 1)
    said = torch.cat([idle[:, :before], said, idle[:, before:]], 1)
    v = values.take_along_dim(said[..., None], 1)
    ones = torch.ones(states, 1, told.shape[1])
    _, state = chunked(
        told[:, None], told[:, None], v[:, None],
        log_decay=math.log(keep) * ones if "gated" in rule else None,
        beta=ones if "delta" in rule else None,
    )  # fmt: skip
    found = (k @ state[:, 0] @ values.mT).argmax(-1)
    each = (found == names).double().mean(1)  # one state, one sample
    share, off = float(each.mean()), 1.96 * float(each.std()) / states**0.5
    return bench.Estimate(
        share, max(0.0, share - off), min(1.0, share + off), states
    )


# %% tags=["hide-input"]
shares = {
    (telling, rule): digits_right(rule, **how)
    for telling, how in ch14.TELLINGS.items()
    for rule in ch14.RULES
}
slow = {
    rule: digits_right(rule, before=512, keep=ch14.SLOW)
    for rule in ("gated", "gated_delta")
}
scene = {
    rule: digits_right(rule, n=10, after=2000)
    for rule in ("linear", "delta")
}

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch14.told_table(shares))
markdown(ch14.told_story(shares, slow, scene))

# %% [markdown]
# Try it: add pairs, then tell the first key again.

# %% tags=["hide-input"]
StateMemory(width=16, pairs=12)

# %% [markdown]
# ## A prompt is no loop
#
# Token by token, with all that was said so far:


# %%
def by_token(q, k, v, decay, beta):
    """Gated delta rule. q, k (T, D), v (T, Dv), decay and beta (T)."""
    state, rows = torch.zeros(k.shape[1], v.shape[1]), []
    for t in range(len(k)):
        state = decay[t] * state
        missing = v[t] - k[t] @ state
        state = state + beta[t] * torch.outer(k[t], missing)
        rows.append(q[t] @ state)
    return torch.stack(rows), state


# %% [markdown]
# For a [decode](../book/glossary.md#term-decode) step that is all. For a prompt of 8,192 tokens it is a loop of 8,192 steps in which every step waits for the one
# before, the very thing that transformers were made to get rid of. What a token writes, $u_i = \beta_i (v_i - k_i\, a_i S_{i-1})$, depends
# on what those before it wrote. But inside a chunk of $C$ tokens, with the state $S$ in front of it and $b_i$ the product of the
# decays up to token $i$, this is a *linear* dependence:
#
# $$ u_i + \beta_i \sum_{j<i} \frac{b_i}{b_j} (k_i k_j^\top)\, u_j = \beta_i (v_i - b_i\, k_i S) $$
#
# A triangular system: one solve for the whole chunk, and the rest are products of matrices
# ([Yang and others, 2024](https://arxiv.org/abs/2406.06484), section 3.2; with decays:
# [Gated DeltaNet](https://arxiv.org/abs/2412.06464)).


# %%
def by_chunks(q, k, v, decay, beta, chunk=16):
    """The same numbers, `chunk` tokens at a time."""
    state, rows = torch.zeros(k.shape[1], v.shape[1]), []
    for start in range(0, len(k), chunk):
        Q, K, V, a, strength = (
            x[start : start + chunk] for x in (q, k, v, decay, beta)
        )
        since = a.log().cumsum(0)  # decay from the chunk's start
        between = (since[:, None] - since).tril().exp().tril()
        system = (
            strength[:, None] * (K @ K.T) * between
        )  # diagonal: not read
        known = since.exp()[:, None] * (K @ state)
        wanted = strength[:, None] * (V - known)
        writes = torch.linalg.solve_triangular(
            system, wanted, upper=False, unitriangular=True
        )
        rows.append(
            since.exp()[:, None] * (Q @ state)
            + (Q @ K.T * between) @ writes
        )
        left = (since[-1] - since).exp()[:, None]
        state = since[-1].exp() * state + (K * left).T @ writes
    return torch.cat(rows), state


# %% tags=["nbval-check-output"]
def some_tokens(length, dim=24, width=40):
    """q, k, v, decay and beta as a layer makes them."""
    q, k = unit(length, dim), unit(length, dim)
    v = torch.randn(length, width, generator=draw)
    decay = 0.8 + 0.2 * torch.rand(length, generator=draw)
    return q, k, v, decay, torch.rand(length, generator=draw)


def near(ours, truth):
    """Relative error below 1e-5."""
    return float((ours - truth).norm() / truth.norm()) < 1e-5


def lumens(form, q, k, v, decay, beta, **more):
    y, state = form(
        *(x[None, None] for x in (q, k, v)),
        log_decay=decay.log()[None, None], beta=beta[None, None], **more,
    )  # fmt: skip
    return y[0, 0], state[0, 0]


for length in (1, 15, 16, 63, 200):
    x = some_tokens(length)
    truth = by_token(*x)
    others = by_chunks(*x), lumens(recurrent, *x), lumens(chunked, *x)
    same = all(
        near(a, b)
        for other in others
        for a, b in zip(other, truth, strict=True)
    )
    print(f"{length:3} tokens, all four alike: {same}")
    assert same

# %% [markdown]
# Loop, chunks and lumen's two agree to a relative 1e-5. transformers' own gated delta rule, as Qwen3-Next runs it, gives these numbers,
# too: that comparison is in the
# [tests](https://github.com/lumen-course/lumen/blob/main/tests/linear/test_rules.py).
#
# ### Rows of unequal length
#
# In a cache padding lies somewhere and is not looked at. A state has no *somewhere*: what went in is in. A padded token must neither
# write nor let anything fade. Here eleven tokens stand in rows of twenty, the padding behind them, before them and in between.
# **Negative control:** padding whose key and value are zero, and whose gate is left alone.

# %% tags=["nbval-check-output"]
x = some_tokens(11)
_, truth = lumens(recurrent, *x)
PLACES = {
    "behind": list(range(11)),
    "before": list(range(9, 20)),
    "inside": [0, 1, 3, 6, 7, 8, 12, 13, 14, 18, 19],
}
print("padding  as without  zeros + gate")
for name, where in PLACES.items():
    wide = [torch.full((20, *part.shape[1:]), 0.9) for part in x]
    for whole, part in zip(wide, x, strict=True):
        whole[where] = part
    pos = torch.full((1, 20), -1)  # -1: no token
    pos[0, where] = torch.arange(11)
    _, state = lumens(recurrent, *wide, pos=pos)
    for whole in wide[:3]:
        whole[pos[0] < 0] = 0.0
    _, faded = lumens(recurrent, *wide)
    same = torch.equal(state, truth)  # to the last bit
    print(f"{name:7}  {same!s:10}  {near(faded, truth)}")
    assert same

# %% [markdown]
# Zeros before the first token do no harm to an empty state, for nothing is there that could fade, so a test with padding before the
# prompt alone would pass; a state that was carried over would fade. Values
# masked and the gate forgotten is an open report on a library of such layers
# ([flash-linear-attention #1272](https://github.com/fla-org/flash-linear-attention/issues/1272)).
#
# ## What is learned
#
# Random keys are a model of a layer. What does a *trained* layer remember? The task is [associative
# recall](../book/glossary.md#term-associative-recall)
# ([Arora and others, 2023](https://arxiv.org/abs/2312.04927), section 3): pairs of a key and a value, noise, then keys again, each
# to be answered by its value. Four layers of width 64 that differ in what mixes the tokens; the same batches of 4 to 16 pairs for
# all; $D = 8$ where no other is named; 95 % intervals decide the sentences.
#
# The mixers differ in more than their rule. *Add, divided* is the layer of Katharopoulos and others, whose keys are positive and
# whose answers are divided by the sum of the weights; the other states have keys of length 1 and divide by nothing. A layer of
# states comes with a short convolution in front, over four tokens, as it does in the models above. Attention has none and
# must first *find* that a key and its value are neighbours: begun with small embeddings it gave back any value of the sequence for
# hundreds of steps more ([what was seen](https://github.com/lumen-course/lumen/blob/main/lumen/train/recall.py)), so all begin with
# embeddings at which attention learns. That is a setting for attention; no rule was given a search of its own.

# %% tags=["hide-input", "nbval-ignore-output"]
if learned is None:
    markdown(ch14.not_published("recall"))
else:
    shown = [n for n in ch14.KINDS if n not in ("hybrid-8", "full")]
    table(*ch14.recall_table(learned, shown))
    markdown(ch14.learned_story(learned))

# %% [markdown]
# Now a [hybrid model](../book/glossary.md#term-hybrid-model): three layers of states that fade and correct, and one of attention to
# everything, on top.

# %% tags=["predict"]
my_hybrid = guess(
    "14-hybrid",
    "The hybrid, 16 pairs: how many of a hundred right?",
    unit="%",
)

# %% tags=["measure", "nbval-ignore-output"]
if learned is not None:
    models = ch14.models_of(learned)
    states_right = ch14.right(models["gated_delta-8"], 16).scaled(100, "%")
    hybrid_right = ch14.right(models["hybrid-8"], 16).scaled(100, "%")

# %% tags=["reveal", "nbval-ignore-output"]
if learned is None:
    markdown(ch14.not_published("recall"))
else:
    reveal(
        guess=my_hybrid, model=states_right, measured=hybrid_right,
        unit="%", what="16 pairs: right answers", within=(0, 100),
        names=("states alone", "hybrid"), log=False,
        title=ch14.hybrid_title(learned),
    ).show()  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
if learned is not None:
    table(
        *ch14.recall_table(learned, ("gated_delta-8", "hybrid-8", "full"))
    )
    markdown(ch14.hybrid_story(learned))

# %% [markdown]
# The models that were named are of this shape: Qwen3-Next has three layers of states to one of attention, Kimi Linear 20 to 7,
# MiniMax-01 seven to one, Jamba seven layers of Mamba to one
# ([Kimi Linear](https://arxiv.org/abs/2510.26692), [MiniMax-01](https://arxiv.org/abs/2501.08313),
# [Jamba](https://arxiv.org/abs/2403.19887)). [Mamba](https://arxiv.org/abs/2312.00752) came from elsewhere, from state spaces; its second version
# is the rule *gated* with other names.
#
# ## What a token costs
#
# A decode step reads the weights, and then either every key and value so far or a state, which it
# also writes back. One shape, eight layers, fp32, one user, the weights random: a clock does not mind. Times as fast as full attention; in
# brackets what the bytes alone say.

# %% tags=["hide-input", "nbval-ignore-output"]
if timed is None:
    markdown(ch14.not_published("linear_decode"))
else:
    table(*ch14.decode_table(timed))
    ch14.decode_figure(timed).show()
    markdown(ch14.decode_story(timed))

# %% [markdown]
# ## The other way: keep all, read few
#
# A state decides what to keep before the question is known. The opposite is to keep everything and to let the *question* decide
# what is read. That saves no memory, only reads and products. Is there anything to save?
#
# SmolLM2 reads eight passages of 2,048 tokens, from the ends of plays. In five of its 30 layers, for each head and 64 queries spread over the second half, take the
# 256 keys with the largest weights.

# %% tags=["predict"]
my_share = guess(
    "14-share",
    "How much of attention's weight do these 256 keys hold?",
    unit="%",
)

# %% tags=["measure", "nbval-ignore-output"]
BUDGET = 256
if chosen is not None:
    even = 100 * ch14_sparse.alike(chosen, BUDGET)
    heaviest = ch14_sparse.caught(chosen, "heaviest", BUDGET)
    heaviest = heaviest.scaled(100, "%")

# %% tags=["reveal", "nbval-ignore-output"]
if chosen is None:
    markdown(ch14.not_published("sparse_recall"))
else:
    reveal(
        guess=my_share, model=even, measured=heaviest, unit="%",
        what="weight on 256 keys", within=(0, 100),
        names=("all alike", "SmolLM2"), log=False,
        title=ch14_sparse.heaviest_title(chosen, BUDGET),
    ).show()  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
if chosen is not None:
    markdown(ch14_sparse.heaviest_story(chosen, BUDGET))

# %% [markdown]
# Who could tell beforehand? Either nobody looks, and a *pattern* is settled once for all: near ones, first ones, some at random
# ([Longformer](https://arxiv.org/abs/2004.05150), [BigBird](https://arxiv.org/abs/2007.14062)). Or something small is looked at
# instead of the keys:
#
# - [block selection](../book/glossary.md#term-block-selection): a block of keys is judged by its mean (mixture of block attention,
#   [MoBA](https://arxiv.org/abs/2502.13189)), or by a few learned, compressed keys, beside a window and the compressed keys
#   themselves (native sparse attention, [NSA](https://arxiv.org/abs/2502.11089));
# - an [indexer](../book/glossary.md#term-indexer): a few narrow heads, trained to point where attention looks (*warmed up*, before the
#   model itself is trained on), score every single token (DeepSeek sparse attention, [DSA](https://arxiv.org/abs/2512.02556)).

# %% tags=["hide-input", "nbval-check-output"]
display(HTML(ch14_picture.maps(ch14_sparse.patterns())))

# %% [markdown]
# MoBA is the plainest of them, and it is short. Its query always reads its own block, up to itself; of the blocks *before* it
# chooses. Blocks ahead are not judged at all, not even to be masked later: a block ahead that wins takes the place of one that
# could be read, and its mean tells of tokens that have not come yet.


# %%
def blocks_read(q, k, size, count, ahead=False):
    """(T, T / size) bool: the own block and the best of those before."""
    own = torch.arange(len(q)) // size
    means = torch.stack([block.mean(0) for block in k.split(size)])
    scores = q @ means.T  # one product a block, not one a key
    number = torch.arange(len(means))
    if not ahead:
        scores = scores.masked_fill(number > own[:, None], -math.inf)
    scores[torch.arange(len(q)), own] = math.inf
    best = scores.topk(min(count, len(means))).indices
    read = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
    return read & (number <= own[:, None])


def block_attention(q, k, v, size, count, ahead=False):
    """q, k (T, D), v (T, Dv): attention over the chosen blocks."""
    read = blocks_read(q, k, size, count, ahead)
    seen = read.repeat_interleave(size, 1)[:, : len(k)].tril()
    return scaled_dot_product_attention(q, k, v, attn_mask=seen)


# %% tags=["nbval-check-output"]
def three(length, dim=16):
    return [torch.randn(length, dim, generator=draw) for _ in range(3)]


print("as lumen's two, to 1e-5:")
for length, size, count in ((1, 4, 2), (64, 8, 3), (77, 8, 3), (50, 16, 9)):
    q, k, v = three(length)
    ours = block_attention(q, k, v, size, count)
    pos = torch.arange(length)[None]
    same = all(
        near(ours, form(
            *(x[None, None] for x in (q, k, v)), pos, pos,
            block=size, top_k=count,
        )[0][0, 0])
        for form in (moba_attention, naive_moba)
    )  # fmt: skip
    print(f"{length:2} tokens, {count} blocks of {size:2}: {same}")
    assert same

q, k, v = three(77)
full = scaled_dot_product_attention(q, k, v, is_causal=True)
print(
    "all blocks, as torch's:", near(block_attention(q, k, v, 8, 10), full)
)
assert near(block_attention(q, k, v, 8, 10), full)

# %% [markdown]
# **Negative control:** judge the blocks ahead and mask them afterwards. Every key that is read is an old one, as it should be. Then
# change the last three tokens, and look whether any of the first sixty-four notices.

# %% tags=["nbval-check-output"]
late = k.clone()
late[74:] *= -5
for ahead in (False, True):
    one, other = (
        block_attention(q, keys, v, 8, 3, ahead) for keys in (k, late)
    )
    same = torch.equal(one[:64], other[:64])
    print(f"judged ahead: {ahead!s:5}  past as it was: {same}")
    assert same is not ahead

# %% [markdown]
# ## What is caught
#
# Weight caught by each, the same texts, layers and heads for all, at most so many keys a query head. The first block is given to
# all that read blocks, as the query's own is. Only the indexer was trained for this, on what SmolLM2's attention does with other passages, all from one play.

# %% tags=["hide-input", "nbval-ignore-output"]
if chosen is None:
    markdown(ch14.not_published("sparse_recall"))
else:
    table(*ch14_sparse.caught_table(chosen))
    ch14_sparse.caught_figure(chosen).show()
    markdown(ch14_sparse.caught_story(chosen, BUDGET))

# %% [markdown]
# SmolLM2 was trained with none of this. A model that is trained with a selection learns to be caught by it, so these numbers say
# how a selection *starts*, not where it ends; by the benchmarks in their papers, models that were trained so end level with full attention.
#
# And what does looking cost? Bytes that one query of one layer reads, in Llama-3-8B's shape, with the sizes of the papers:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch14_sparse.reads_table(), stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch14_sparse.reads_story())
markdown(ch14_sparse.sla_story())

# %% [markdown]
# ## All of them
#
# The methods of chapters 11 to 14 ([fewer heads](12_fewer_kv_heads.ipynb), [a smaller cache](13_smaller_cache.ipynb)). *Exact* means the same numbers as attention, up to rounding. The last column is what this course
# measured of it, on small models; it is there to be compared down the column only where the unit is the same.

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch14_sparse.methods_table(learned, timed, chosen), stack=True)

# %% [markdown]
# ## Where it loses
#
# **Prompts.** Two lengths through one layer, eight heads of 64, the prompt as a whole; attention by torch's one operator, states by
# chunks of 64.

# %% tags=["hide-input", "nbval-ignore-output"]
prompts = {}
for tokens in (256, 4096):
    q, k, v = (unit(1, 8, tokens, 64) for _ in range(3))
    steer = torch.rand(1, 8, tokens, generator=draw)
    ways = {
        "attention": lambda q=q, k=k, v=v: scaled_dot_product_attention(
            q, k, v, is_causal=True
        ),
        "states": lambda q=q, k=k, v=v, steer=steer: chunked(
            q, k, v, log_decay=-steer, beta=steer
        ),
    }
    prompts[tokens] = bench.compare(ways, repeats=9)
markdown(ch14.prompts_story(prompts))

# %% [markdown]
# **Going back.** Keys and values can be cut anywhere: that is how a [prefix cache](../book/glossary.md#term-prefix-cache) shares a prompt,
# and how [speculative decoding](../book/glossary.md#term-speculative-decoding) takes back drafts. A sum cannot be cut:
# whoever wants to return needs all that was written since, to take it out again, or a copy of the state as it was *there*.

# %% tags=["nbval-check-output"]
states_alone = build(ch14.timed("linear"))
tokens = torch.arange(6)[None]
for copies in (0, 2):
    cache = RecurrentCache.for_model(states_alone, 1, rewind=copies)
    for column in tokens.split(1, 1):
        states_alone(column, None, cache)
    try:
        cache.rewind(torch.tensor([4]))
    except ValueError:
        print(f"{copies} positions to go back: refused")
        continue
    fresh = RecurrentCache.for_model(states_alone, 1)
    for column in tokens[:, :4].split(1, 1):
        states_alone(column, None, fresh)
    same = all(
        near(a, b)
        for layer in range(8)
        for a, b in zip(cache.state(layer), fresh.state(layer), strict=True)
    )
    print(f"{copies} positions to go back: as if told four tokens: {same}")
    assert same

# %% tags=["hide-input", "nbval-check-output"]
table(*ch14.snapshots_table(), stack=True)

# %% [markdown]
# Engines keep few copies. vLLM makes a page of keys as large as a state, and one user of Qwen3.5-4B under vLLM 0.19.1 found that prompts below 528 tokens were
# never shared ([vLLM #40696](https://github.com/vllm-project/vllm/issues/40696)).
#
# **Many pairs.** The last column of [what is learned](#what-is-learned).
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a test with fewer pairs than a state can hold | "as good as attention" | [three numbers of pairs](#what-is-learned), for all |
# | a model that has not learned the task | "it has no memory" | who fails the shortest test is [named, and not compared](#what-is-learned) |
# | random keys stand for real ones | "adding is best" | [five ways of telling](#the-number-has-changed) |
# | a selection is judged by a model that was not trained with it | "blocks miss too much" | no model here was; the indexer alone was trained: it is [said so](#what-is-caught) |
# | one training is taken for what a rule can hold | "this rule remembers less" | one seed, every key told once: it is [said so](#what-is-learned) |
#
# ## Play
#
# Tell a state numbers of your own, digit by digit, and have them read back. A name that comes twice has moved.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = phone_book_lab()

# %% [markdown]
# ## In production
#
# A model must have been trained with states, and so with MoBA, NSA or DSA: no flag brings them to one that was not. What a server chooses is how
# much memory states get beside keys, and how often a state is kept to return to.

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch14.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch14.recap(DIM, ch14.half_full(DIM), learned, timed, chosen))
callout("takeaway", ch14.takeaway(DIM))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("14")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/14_sparse_linear.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("14"))

# %% [markdown]
# ## Further reading
#
# - [Transformers are RNNs](https://arxiv.org/abs/2006.16236) (Katharopoulos and others, 2020): read section 3, the parenthesis and
#   what it does to training and to a step.
# - [Linear Transformers Are Secretly Fast Weight Programmers](https://arxiv.org/abs/2102.11174) (Schlag and others, 2021): read it for
#   capacity, and for the correction.
# - [Parallelizing Linear Transformers with the Delta Rule](https://arxiv.org/abs/2406.06484) (Yang and others, 2024) and
#   [Gated Delta Networks](https://arxiv.org/abs/2412.06464) (2025): read them for the chunks, and for what a gate adds.
# - [Simple linear attention language models balance the recall-throughput tradeoff](https://arxiv.org/abs/2402.18668) (Arora and
#   others, 2024): read it for recall against bytes of state, on real text.
# - [Native Sparse Attention](https://arxiv.org/abs/2502.11089) (Yuan and others, 2025): read section 2, on why selections that save
#   products often save no time.
# - [MoBA](https://arxiv.org/abs/2502.13189) (Lu and others, 2025): read it for a model that switches between blocks and everything.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    evidence=["recall", "linear_decode", "sparse_recall"],
    notes=["error and digits of random pairs: simulated, seeds 0 and on"],
)
