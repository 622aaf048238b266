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
# # 12 · Fewer KV heads

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/12_fewer_kv_heads.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/12_fewer_kv_heads.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/12_fewer_kv_heads.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 90 min · here: [exercises](../exercises/12_fewer_kv_heads.ipynb), [solutions](../solutions/12_fewer_kv_heads.ipynb)
#
# </div>

# %% [markdown]
# Llama-2-7B stores 32 heads of keys and 32 of values in each of its 32 layers: 512 KiB for every token of every user.
# Llama-3-8B has as many layers, and as many heads that ask. It stores 8 heads, and a token takes 128 KiB. It is also the better
# model ([model card](https://github.com/meta-llama/llama3/blob/main/MODEL_CARD.md), base models), after more than 15 trillion tokens
# of training, where its elder had 2 trillion ([Llama 2, table 1](https://arxiv.org/abs/2307.09288)).
#
# **Llama-3-8B keeps a quarter of the cache that Llama-2-7B kept. What did it cost?**
#
# By the end you can
#
# - say from a configuration how many bytes a token leaves, and at which context fewer of them make a step faster;
# - convert a trained model to fewer heads, shared layers or latents, and tell what the conversion cost from what training did;
# - read a cache of latents in two ways that give the same numbers, and say for how many new tokens each is cheaper;
# - name the shape, the context and the number of chips at which a smaller cache gains nothing.
#
# Needs: [the roofline](02_roofline.ipynb), [the cache of keys and values](04_kv_cache.ipynb).
#
# New terms: [MQA](../book/glossary.md#term-MQA), [GQA](../book/glossary.md#term-GQA),
# [uptraining](../book/glossary.md#term-uptraining), [MLA](../book/glossary.md#term-MLA),
# [latent](../book/glossary.md#term-latent), [absorption](../book/glossary.md#term-absorption),
# [cross-layer attention](../book/glossary.md#term-cross-layer-attention).

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

session = lumen.setup("12_fewer_kv_heads")

# %% tags=["hide-input"]
import math

import torch
from IPython.display import HTML, display
from torch.nn.functional import scaled_dot_product_attention

import lumen
from lumen import bench, grading
from lumen.explore import (
    CacheShape,
    Quiz,
    callout,
    convert_lab,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.models import fewer_heads
from lumen.models.cross_layer import neighbours, share_kv
from lumen.models.fewer_heads import fewer_kv_heads
from lumen.models.to_latent import input_moments, to_latent
from lumen.models.turned_heads import aligning_turns, random_turns, turned
from lumen.pages import (
    ch12,
    ch12_bytes,
    ch12_latents,
    ch12_losses,
    ch12_picture,
    ch12_steps,
)
from lumen.pages.engines import production_table
from lumen.train.ranks import spread
from lumen.train.text import encode, window_losses

torch.set_grad_enabled(False)
draw = torch.Generator().manual_seed(0)
try:
    kept = bench.load_evidence("fewer_kv_heads")["data"]
except FileNotFoundError:
    kept = None

# %% [markdown]
# ## Who reads whose
#
# Each head asks a question of its own: its query is compared with one key for every token so far, and the values of those that
# match are added up. Whether it also needs keys of its *own* is another matter. Eight heads can be served in three ways:

# %% tags=["hide-input", "nbval-check-output"]
display(HTML(ch12_picture.picture(8, 32)))

# %% [markdown]
# Multi-head attention (MHA) is how transformers began. [MQA](../book/glossary.md#term-MQA) has one head of keys and values for all
# ([Shazeer, 2019](https://arxiv.org/abs/1911.02150)); [GQA](../book/glossary.md#term-GQA) one for each group
# ([Ainslie and others, 2023](https://arxiv.org/abs/2305.13245)). Query head $i$ of $H$ reads stored head
# $\lfloor i\, H_{kv} / H \rfloor$. What a token leaves in the cache, κ, counts stored heads only:
#
# $$ \kappa = 2 \cdot L \cdot H_{kv} \cdot D \cdot b $$

# %% tags=["hide-input", "nbval-check-output"]
table(*ch12_bytes.symbols())
markdown(ch12_bytes.opening())

# %% [markdown]
# gptlite is the small model of this course, trained on Shakespeare's plays, character by character; it has eight heads, and it is
# what we shall operate on. Attention with shared heads needs no copy of a key: the queries of a group stand below each other as rows
# of one matrix, and meet their head in one product.


# %%
def shared(q, k, v):
    """q (H, T, D), k and v (Hkv, S, D) -> (H, T, D). No mask."""
    # (Hkv, H / Hkv · T, D): a group's queries below each other
    many = q.unflatten(0, (len(k), -1)).flatten(1, 2)
    scores = many @ k.mT / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).reshape(q.shape)


# %% tags=["nbval-check-output"]
def some(*shape):
    return torch.randn(shape, generator=draw)


def off(ours, truth):
    """Relative error."""
    return float((ours - truth).norm() / truth.norm())


for heads, stored in ((8, 8), (8, 2), (9, 3), (8, 1)):
    q, k, v = some(heads, 5, 32), some(stored, 77, 32), some(stored, 77, 32)
    wanted = scaled_dot_product_attention(
        q[None], k[None], v[None], enable_gqa=True
    )
    near = off(shared(q, k, v), wanted[0])
    print(
        f"{heads} heads read {stored}: as torch's, to 1e-5: {near < 1e-5}"
    )
    assert near < 1e-5

# %% [markdown]
# ## What fewer bytes buy
#
# A [decode](../book/glossary.md#term-decode) step reads all the weights once, and of each of $B$ users all $T$ tokens:
#
# $$ t \approx \frac{W + B\,T\,\kappa}{\text{bandwidth}} $$
#
# A smaller κ shrinks the second term. Sharing among four gains up to four times where $B\,T\,\kappa$ is large beside $W$; where
# it is small, only what the matrices that make keys and values shrink by. We built one shape with 16, 4 and 1 stored heads: four
# layers, 16 heads of 64, fp32, one user. The first row is a time; the others say how many times as fast (≈ 1 where the
# interval holds both faster and slower). In brackets stands how many times fewer bytes a step reads, the formula's forecast.

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is None:
    markdown(ch12.NOT_PUBLISHED)
else:
    table(*ch12_steps.steps_table(kept))

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is not None:
    ch12_steps.steps_figure(kept).show()
    markdown(ch12_steps.steps_story(kept))

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is not None:
    markdown(ch12_steps.misses_story(kept))
    if "attention" in kept:
        markdown(ch12_steps.alone_story(kept))
        table(*ch12_steps.alone_table(kept))

# %% [markdown]
# ## Can a trained model be given fewer heads?
#
# Nobody wants to train a model again for the sake of its cache. The GQA paper's recipe has two halves: make each new head the
# *mean* of the old heads of its group, then train on for 5 % of the original steps. First the first half, on gptlite. The unit
# is its loss on text that it has not seen, windows spread over all of it, in nats a character. This is $-\ln$ of the probability
# that it gave to the character which came: 0 for a prophet, $\ln 78$ for whoever knows nothing but the alphabet.

# %% tags=["hide-input", "nbval-ignore-output"]
WINDOWS, HELD = 16, 256
gptlite, tokenizer = lumen.load("gptlite", "cpu", torch.float32)
learned, unseen = (
    encode(text, tokenizer.characters)
    for text in lumen.assets.shakespeare()
)
calibration = spread(learned, HELD, 16)  # what some conversions look at
moments = input_moments(gptlite, calibration.split(8))
blind = math.log(gptlite.config.vocab_size)


def losses(model):
    """Mean loss of each of some windows of unseen text, in nats."""
    return window_losses(model, unseen, HELD, WINDOWS).tolist()


base = losses(gptlite)
markdown(
    f"gptlite, {WINDOWS} windows of {HELD} characters: "
    f"**{ch12_losses.average(base):.2f}** nats. Blind: {blind:.2f}."
)

# %% [markdown]
# Eight heads become two, each the mean of four. Matrices are averaged, which averages the keys and values themselves, since a
# mean passes through a matrix.

# %% tags=["predict"]
my_pool = guess(
    "12-pool",
    "Two heads, each the mean of four, not trained on: the loss?",
    unit="nats",
)

# %% tags=["measure", "nbval-ignore-output"]
RULES = {
    "mean": fewer_heads.mean,
    "first": fewer_heads.first,
    "random": fewer_heads.fresh(0),  # nothing is kept
}
pooled = {
    (count, name): losses(fewer_kv_heads(gptlite, count, rule))
    for count in (4, 2, 1)
    for name, rule in RULES.items()
}
two = pooled[2, "mean"]

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_pool, model=ch12_losses.average(base),
    measured=ch12_losses.average(two),
    unit="nats", what="loss, two means of four",
    names=("8 heads", "2 heads"), log=False,
    title=ch12_losses.pooled_title(
        ch12_losses.average(base), ch12_losses.average(two), blind
    ),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch12_losses.pooled_story(pooled, base, 2))

# %% tags=["reveal", "nbval-ignore-output"]
ch12_losses.pooled_figure(pooled, ch12_losses.average(base), blind)

# %% [markdown]
# ## Number 5 of head 0
#
# Turn the keys of one head by a rotation $R$ and its queries by the same: $(Rq) \cdot (Rk) = q \cdot k$, and no score notices. (With
# RoPE between the two this holds only of rotations that leave its pairs together; gptlite has none.) Values can be turned, too,
# if the output matrix turns them back. So a head's 32 numbers have no axes that mean anything outside it, and number 5 of head 0
# has nothing to do with number 5 of head 1. A mean adds the two all the same.
#
# Is that what hurts? Three trials. First, every head turned at random, then pooled. The model before pooling stays the same, and
# its heads' axes have nothing in common for sure. Had training given the heads of a group common axes, this would cost; if they
# have none to lose, it costs nothing. Second, the heads of a group turned *towards* each other, then pooled. The best rotation of the
# keys $k = Mx$ of one head onto a target $t = Tx$ has a closed form (orthogonal Procrustes), with the second moments
# $C = E[x x^\top]$ of what the layer reads in some text. $T$ is the mean of the group's matrices as they are turned so far, so it
# moves with them: four rounds.
#
# $$ R = U V^\top, \qquad U \Sigma V^\top = T\, C\, M^\top $$
#
# With $C = 1$ it takes no text at all: that is the third trial. It is
# [`lumen/models/turned_heads.py`](https://github.com/lumen-course/lumen/blob/main/lumen/models/turned_heads.py); the idea of rotating
# before pooling is of [Jin and others, 2024](https://arxiv.org/abs/2412.20677).


# %% tags=["nbval-ignore-output"]
def aligned_losses(model, count=2, seen=moments):
    """Heads of each group turned towards each other, then pooled."""
    towards = aligning_turns(model, seen, count)
    return losses(fewer_kv_heads(turned(model, towards), count))


probe = unseen[None, :200]
drawn = [turned(gptlite, random_turns(gptlite, n)) for n in range(12)]
assert all(off(model(probe), gptlite(probe)) < 1e-4 for model in drawn)
aligned_two = aligned_losses(gptlite)
by_weights = aligned_losses(gptlite, seen=None)
for model in drawn[:2]:  # the control
    undone = zip(aligned_losses(model), aligned_two, strict=True)
    assert all(abs(a - b) < 1e-4 for a, b in undone)
pooled_turned = [losses(fewer_kv_heads(model, 2)) for model in drawn]
markdown(
    ch12_losses.bases_story(
        base, two, aligned_two, by_weights, pooled_turned
    )
)

# %% [markdown]
# The next question would be why heads should have to agree on anything. But first, the second half of the recipe.
#
# ## Training on
#
# [Uptraining](../book/glossary.md#term-uptraining): the converted model goes on learning for a small share of its original
# steps, here at a quarter of its old peak rate. Whatever is trained on changes, converted or not. So the **control** is gptlite itself, on the same
# batches for as many steps, and windows are compared one by one: here all of the unseen text, 95 % intervals, so that "at first" is
# near to what the few windows above gave, not equal. The last column is the share of what a conversion cost at first that training
# has not made good.

# %% tags=["hide-input", "nbval-ignore-output"]
HEADS = ("control", "gqa4", "gqa2", "gqa2-first", "gqa2-fresh", "mqa")
if kept is None:
    markdown(ch12.NOT_PUBLISHED)
else:
    table(*ch12_losses.losses_table(kept, HEADS), stack=True)
    markdown(ch12_losses.trained_story(kept))

# %% [markdown]
# The GQA paper asks the same of T5-Large, converted to a *single* head ([section 3.3, figure 4](https://arxiv.org/abs/2305.13245)): the
# mean ahead of the first head, both ahead of a start at random.
#
# ## And large models?
#
# Llama-3-8B was no conversion: it learned with eight heads from its first step, and its twin with 32 was never published. So what
# it cost *this* model cannot be looked up. What others published of twins, as their papers give it:
#
# | models | MHA | GQA, 8 groups | MQA |
# | :--- | ---: | ---: | ---: |
# | T5-XXL, converted and uptrained: mean over tasks | 47.2 | 47.1 | 46.6 |
# | the same: seconds a sample | 1.51 | 0.28 | 0.24 |
# | 7 billion weights, from the start: MMLU | 45.2 | 41.2 | 37.9 |
# | the same: BBH | 37.0 | 35.6 | 33.2 |
#
# The first two rows are the [GQA paper's, table 1](https://arxiv.org/abs/2305.13245); the others
# [DeepSeek-V2's, appendix D.1](https://arxiv.org/abs/2405.04434), where MHA is ahead on C-Eval and CMMLU as well. The Llama 2 paper
# ([appendix A.2.1](https://arxiv.org/abs/2307.09288)) finds otherwise: at 30 billion weights GQA came out level with MHA on most
# tasks, MQA behind. Both pairs had as many weights on either side (DeepSeek's by layers, Llama's by a wider MLP) and differ in
# size, tokens and tasks; which of these decides, they do not tell.
#
# ## Not copies: a latent
#
# All keys and values of a layer are made of one vector, $x$, by one matrix: $[k; v] = M x$. Put a narrow vector in between,
#
# $$ c = A\,x \qquad [k; v] \approx U c = U A\, x $$
#
# and store $c$, the [latent](../book/glossary.md#term-latent), of $r$ numbers.

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch12_bytes.made_of(2, 128))

# %% [markdown]
# Let $U$ be any matrix, and every head makes its own keys of what is stored. Which $U$? Of all choices of rank $r$ the SVD of $M$
# leaves the least of $M$ out (keys and values together: [MHA2MLA](https://arxiv.org/abs/2502.14837), joint SVD). Better still, the
# SVD of $M C^{1/2}$ leaves the least of the *keys and values* out that the text behind $C$ calls for. That is called whitened, as
# in [SVD-LLM](https://arxiv.org/abs/2403.07378).

# %% tags=["hide-input", "nbval-check-output"]
side_by_side = (ch12_picture.PANELS[1], ch12_picture.LATENT)
display(HTML(ch12_picture.picture(8, 32, side_by_side)))

# %% [markdown]
# ### Predict: the same bytes

# %% tags=["hide-input", "nbval-check-output"]
RANK, RANKS, SEEN = 128, (128, 96, 64, 32, 16), calibration.numel()
markdown(ch12_losses.converted(SEEN, 2, RANK))

# %% tags=["predict"]
my_latent = guess(
    "12-latent",
    "A latent of 128 in each layer: nats above gptlite?",
    unit="nats",
)

# %% tags=["measure", "nbval-ignore-output"]
ranks = {
    rank: {
        "plain": losses(to_latent(gptlite, rank)),
        "whitened": losses(to_latent(gptlite, rank, moments)),
    }
    for rank in RANKS
}
whole = to_latent(gptlite, 256)  # full rank: nothing may be lost
assert off(whole(probe), gptlite(probe)) < 1e-4
best = ranks[RANK]["whitened"]
aligned = {64 * n: aligned_losses(gptlite, n) for n in (4, 1)}
aligned[128] = aligned_two

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_latent, model=ch12_losses.apart(aligned_two, base),
    measured=ch12_losses.apart(best, base), unit="nats",
    what="loss above gptlite",
    names=("two aligned heads", "latent of 128"),
    title=ch12_losses.latent_title(best, base, aligned_two), log=False,
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
known = ranks, base, by_weights, aligned_two, RANK, SEEN
table(*ch12_losses.latent_table(*known))
markdown(ch12_losses.latent_story(ranks, base, aligned_two, RANK))

# %% tags=["reveal", "nbval-ignore-output"]
ch12_losses.ranks_figure(
    ranks, {64 * n: pooled[n, "mean"] for n in (4, 2, 1)}, aligned, base
)

# %% tags=["reveal", "nbval-ignore-output"]
said = ch12_losses.takeaway(ranks, by_weights, aligned_two, RANK)
callout("takeaway", said)

# %% tags=["reveal", "nbval-ignore-output"]
if kept is not None:
    markdown(ch12_losses.latents_trained(kept))

# %% [markdown]
# ## Two ways to read a latent
#
# So why did anybody ever share heads? Somebody has to make the keys. *Expanded*, every cached latent becomes a key and a value
# for each head, in every step anew: a matrix product over the whole context for one token. But products can be taken in another
# order:
#
# $$ q \cdot (U_k c) = (U_k^\top q) \cdot c $$
#
# $U_k$ changes sides. The *query* is taken into the space of latents, once, and compared with what lies in the cache. The values do
# the same: average the latents first, apply $U_v$ to the average. This is [absorption](../book/glossary.md#term-absorption), and
# with it [MLA](../book/glossary.md#term-MLA) was made
# ([DeepSeek-V2](https://arxiv.org/abs/2405.04434), section 2.1). What is read then looks like MQA: one wide head for all.


# %%
def expanded(q, c, up_k, up_v):
    """q (H, T, D), latents c (S, r), up_k and up_v (H, D, r)."""
    k, v = c @ up_k.mT, c @ up_v.mT  # (H, S, D): every head's own
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def absorbed(q, c, up_k, up_v):
    """The same numbers: nothing of size H · S · D is ever made."""
    inner = q @ up_k  # (H, T, r)
    scores = inner @ c.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ c @ up_v.mT


# %% tags=["nbval-check-output"]
def latent_case(new, held, heads=16, dim=64, rank=256):
    up = some(2, heads, dim, rank) / math.sqrt(rank)
    return some(heads, new, dim), some(held, rank), *up


for new, held in ((1, 1), (1, 77), (5, 300), (64, 64)):
    q, c, up_k, up_v = latent_case(new, held)
    k, v = c @ up_k.mT, c @ up_v.mT
    wanted = scaled_dot_product_attention(q[None], k[None], v[None])[0]
    ways = expanded(q, c, up_k, up_v), absorbed(q, c, up_k, up_v)
    near = max(off(ours, wanted) for ours in ways)
    print(f"{new:2} on {held:3}: both as torch's, to 1e-5: {near < 1e-5}")
    assert near < 1e-5

# %% [markdown]
# ## Where is the position?
#
# gptlite's positions sit in $x$, so latents carry them. Llama's and DeepSeek's do not: RoPE turns each key by its position *after* the
# matrix, $R_s U_k c$. Now $q \cdot (R_s U_k c) = (U_k^\top R_s^\top q) \cdot c$: to change sides, the query would have to be
# turned by the position $s$ of each key that it meets. There is no one query for all keys any more. The way out
# is a second, small key: $D_R$ numbers made of $x$ without a latent, turned by RoPE, the same for all heads, cached beside $c$. The score is the
# sum of the two. **Negative control** first: the matrix absorbed all the same, so that the query is turned and no key is.


# %% tags=["nbval-check-output"]
def turn(x, start=0):
    """RoPE on (..., T, D): neighbouring pairs turned by position."""
    at = start + torch.arange(x.shape[-2])
    rate = 1e4 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = (at[:, None] * rate).repeat_interleave(2, -1)
    swapped = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * angle.cos() + swapped * angle.sin()


q, c, up_k, up_v = latent_case(3, 90)
k, v = turn(c @ up_k.mT), c @ up_v.mT
late = turn(q, 87)  # the last three positions
wanted = scaled_dot_product_attention(late[None], k[None], v[None])[0]
through = off(absorbed(late, c, up_k, up_v), wanted)
print("absorbed through RoPE, to 1e-5:", through < 1e-5)

q_r, k_r = turn(some(16, 3, 32), 87), turn(some(90, 32))
beside = torch.cat([q @ up_k, q_r], -1)  # what each head asks the cache
cached = torch.cat([c, k_r], -1)  # (S, r + D_R)
scores = beside @ cached.mT / math.sqrt(64 + 32)
ours = scores.softmax(-1) @ c @ up_v.mT
keys = torch.cat([c @ up_k.mT, k_r.expand(16, -1, -1)], -1)
wanted = scaled_dot_product_attention(
    torch.cat([q, q_r], -1)[None], keys[None], v[None]
)[0]
print("a turned key beside the latent:", off(ours, wanted) < 1e-5)
assert through > 0.1 and off(ours, wanted) < 1e-5

# %% [markdown]
# ## Which way is cheaper
#
# In DeepSeek-V3's numbers:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch12_latents.symbols())

# %% [markdown]
# Absorbed, each pair of query and key multiplies $2r + D_R$ numbers instead of $2D + D_R$; nothing has to be expanded.
# For one new token that is a bargain, for a whole prompt a loss.

# %% tags=["hide-input", "nbval-ignore-output"]
ch12_latents.ways_figure()

# %% [markdown]
# ### What a byte asks for

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch12_latents.intensity_story())

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is not None:
    markdown(ch12_latents.latents_lose(kept))

# %% [markdown]
# ## Layers that share
#
# Heads are one axis, layers the other. In [cross-layer attention](../book/glossary.md#term-cross-layer-attention)
# ([Brandon and others, 2024](https://arxiv.org/abs/2405.12981)) every other layer stores nothing and reads what its lower neighbour
# stored: half the cache, whatever the heads do.

# %% tags=["nbval-check-output"]
pairs = neighbours(gptlite.config.num_layers, 2)
half = share_kv(gptlite, pairs).config
held = [
    len(c.storing_layers) * c.cache_dims.stored
    for c in (gptlite.config, half)
]
print(f"layers read {pairs}: {held[1]:,} numbers a token of {held[0]:,}")

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is None:
    markdown(ch12.NOT_PUBLISHED)
else:
    LAYERS = ("gqa4", "cla2", "cla2-mean", "mqa", "gqa2-cla2")
    table(*ch12_losses.losses_table(kept, LAYERS), stack=True)
    markdown(ch12_losses.layers_trained(kept))

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is not None:
    markdown(ch12_steps.layers_read(kept))

# %% [markdown]
# ## The ledger
#
# What published models made of all this, at 16 bits, weights left out. Not all were trained for so long a context; the bytes
# would be these. Where each configuration stands is in [`lumen/cost/ledger.py`](https://github.com/lumen-course/lumen/blob/main/lumen/cost/ledger.py).

# %% tags=["hide-input", "nbval-check-output"]
table(*ch12_bytes.ledger_table(), stack=True)
markdown(ch12_bytes.ledger_story())

# %% [markdown]
# Build your own beside them: heads, rank, layers, context, format.

# %% tags=["hide-input"]
CacheShape()

# %% [markdown]
# ## Where it loses
#
# Where nearly all that is read are weights, a quarter of the cache is a quarter of next to nothing.

# %% tags=["hide-input", "nbval-ignore-output"]
if kept is not None:
    markdown(ch12_steps.short_story(kept))

# %% [markdown]
# **Absorbed prompts.** One layer, 16 heads of 64, latents of 256 numbers, 2,048 of them in the cache; one new token, then 512.

# %% tags=["hide-input", "nbval-ignore-output"]
times, said = {}, {}
for new in (1, 512):
    case = latent_case(new, 2048)
    times[new] = bench.compare(
        {
            "expanded": lambda case=case: expanded(*case),
            "absorbed": lambda case=case: absorbed(*case),
        },
        repeats=15,
        inner=20 if new == 1 else 1,
    )
    said[new] = ch12_latents.forecast(new)
markdown(ch12_latents.ways_story(times, said))

# %% [markdown]
# **More chips than heads.** [Tensor parallelism](../book/glossary.md#term-tensor-parallelism) deals the heads out to the chips. A
# head is not cut; where there are more chips than stored heads, several chips hold the same one. A latent serves all heads, so every
# chip needs all of it. Bytes of a token on each chip; the last column counts how often Llama-3-8B's token is stored, all chips
# together:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch12_bytes.chips_table())

# %% [markdown]
# Engines answer by dealing out *requests* for attention instead of heads.
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a converted, trained model is compared with the model it was made of | what training alone does is charged to the conversion | [the control](#training-on) |
# | a start is taken for an end | "pooling is as good as noise" | after training on, [what is still missing](#training-on) |
# | equal bytes are taken for equal work | "latents are free" | FLOPs a key, [in one figure](#which-way-is-cheaper) |
# | one has seen text, the other has not | "latents lose less at the same bytes" | [like with like](#predict-the-same-bytes) |
# | one context | "four times as fast", or "no faster" | [three contexts](#what-fewer-bytes-buy), from weights to cache |
#
# ## Play
#
# Convert gptlite yourself, and let it write. It was never trained on the cache that you give it.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = convert_lab(gptlite, tokenizer)

# %% [markdown]
# ## In production
#
# How many heads are stored, nobody chooses at the server: it is in the weights. What is chosen is how they are dealt out.

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch12.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch12.recap(base, two, best, RANK, kept))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("12")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/12_fewer_kv_heads.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("12"))

# %% [markdown]
# ## Further reading
#
# - [Fast Transformer Decoding: One Write-Head is All You Need](https://arxiv.org/abs/1911.02150) (Shazeer, 2019): read it for the
#   count of bytes that began all of this, on five pages, in pseudo-code that runs.
# - [GQA](https://arxiv.org/abs/2305.13245) (Ainslie and others, 2023): read section 2.1 and figure 5, how much uptraining is enough.
# - [DeepSeek-V2](https://arxiv.org/abs/2405.04434) (2024): read section 2.1 for latents and the key beside them, appendix D for
#   models trained from the start: MHA beside GQA and MQA, then MLA beside MHA.
# - [TransMLA](https://arxiv.org/abs/2502.07864) (Meng and others, 2025): read it for how a model with GQA becomes one with
#   latents, RoPE included.
# - [Cross-Layer Attention](https://arxiv.org/abs/2405.12981) (Brandon and others, 2024): read it for models trained with shared
#   layers from the start, where conversion is no excuse.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    evidence=["fewer_kv_heads"],
    notes=[
        "losses: gptlite, fp32, 16 windows of 256 characters at even "
        "distances in the unseen text; after training on, all of it"
    ],
)
