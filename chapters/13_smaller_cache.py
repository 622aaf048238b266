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
# # 13 · A smaller cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/13_smaller_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/13_smaller_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/13_smaller_cache.ipynb)
#
# CPU is enough · read 30 min · run 2 min · practise 90 min · here: [exercises](../exercises/13_smaller_cache.ipynb), [solutions](../solutions/13_smaller_cache.ipynb)
#
# </div>

# %% [markdown]
# A prompt of 512 tokens: two pages of Shakespeare, cut open somewhere for a sentence that is not his, the pass number of a city. At
# the end somebody asks for it, and SmolLM2 answers. It has the keys and values of all 512 tokens in its cache, and most of them have
# nothing to do with that city. So let us keep a fifth of them and ask again.
#
# **Throw away 80 % of the cache. Which 80 %?**
#
# By the end you can
#
# - say what a cache takes in 8, 4 or 2 bits with its scales, or with a budget of keys, and how many users that makes;
# - give keys and values the scales that suit them, and say why they differ;
# - foretell from where attention goes what a window, H2O, SnapKV and Quest will forget;
# - compare kinds by their bytes and two measures that need not agree.
#
# Needs: [the cache of keys and values](04_kv_cache.ipynb), [fewer KV heads](12_fewer_kv_heads.ipynb), which made the cache smaller
# before training. Here the model is what it is.
#
# New terms: [needle test](../book/glossary.md#term-needle-test), [perplexity](../book/glossary.md#term-perplexity),
# [attention sink](../book/glossary.md#term-attention-sink), [sliding window](../book/glossary.md#term-sliding-window),
# [receptive field](../book/glossary.md#term-receptive-field), [heavy hitter](../book/glossary.md#term-heavy-hitter).

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

session = lumen.setup("13_smaller_cache")

# %% tags=["hide-input"]
import math
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import lumen
from lumen import assets, bench, grading
from lumen.attention import attention
from lumen.attention.core import mask_for, weigh_with
from lumen.attention.sparse.blocks import upper_bound
from lumen.bench.needle import feed, needles
from lumen.bench.quality import Losses, losses, passages
from lumen.cache import (
    QUANT_FORMATS,
    DynamicCache,
    EvictingCache,
    KiviStore,
    QuantCache,
    StaticCache,
)
from lumen.cache.evict_rules import (
    H2O,
    KeyNorm,
    Newest,
    Random,
    Rule,
    SinksAndNewest,
    SnapKV,
)
from lumen.cache.quant_codes import quantize
from lumen.explore import (
    Eviction,
    Quiz,
    attention_lab,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.models.observe import observe
from lumen.pages import ch13
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
device = session.device
model, tokenizer = lumen.load("smollm2-135m", device, torch.float32)
hay = tokenizer.encode(assets.shakespeare()[1], add_special=False)
draw = torch.Generator().manual_seed(0)
published = ch13.published()

# %% [markdown]
# ## One sentence in five hundred tokens
#
# We hide five such sentences, each in a prompt of its own, at five depths from near the start to near the end. This is a
# [needle test](../book/glossary.md#term-needle-test). The third of them, and its question (the first words of the answer are given,
# up to the number):

# %% tags=["hide-input", "nbval-ignore-output"]
LENGTH, DEPTHS = 512, (0.05, 0.25, 0.5, 0.75, 0.95)
asked = [needles(tokenizer, hay, LENGTH, depth, 1)[0] for depth in DEPTHS]
numbers = [tokenizer.decode(needle.answer).strip() for needle in asked]
third = asked[2]
markdown(ch13.quoted(tokenizer.decode(third.context[slice(*third.at)])))
question = tokenizer.decode(third.question).split("?")[0] + "?"
markdown(ch13.quoted(question))

# %% [markdown]
# Each prompt is read once, all of its keys held. Then copies of the cache throw keys away, and the model answers from what is left.


# %% tags=["hide-input"]
@dataclass(frozen=True)
class Noting(Rule):
    """Keeps whatever comes, and notes what any rule wants to look at."""

    weighs = True
    observes: int = 32


@dataclass(frozen=True)
class Told(Rule):
    """Sentence, first tokens, newest. Nobody could know that."""

    def score(self, held):
        places = torch.tensor([n.at for n in asked], device=device)
        start, end = places.T[..., None, None]
        stays = (held.pos < 4) | ((held.pos >= start) & (held.pos < end))
        return held.pos.double().masked_fill(stays, math.inf)


def answers(cache, hidden, tokens=6):
    """What the model writes in each row from what the cache has kept."""
    said = [model.head(hidden).argmax(-1)]
    for _ in range(tokens - 1):
        hidden = model.hidden(said[-1][:, None], None, cache)[:, -1]
        said.append(model.head(hidden).argmax(-1))
    return [tokenizer.decode(row) for row in torch.stack(said, 1).tolist()]


# %% tags=["hide-input", "nbval-ignore-output"]
prompts = [needle.context + needle.question for needle in asked]
read = EvictingCache.for_model(
    model, len(asked), LENGTH, Noting(), "prompt"
)
hidden = feed(model, read, prompts)
fifth = round(LENGTH / 5)
choices = {
    "all keys": (LENGTH, Newest()),
    "the newest fifth": (fifth, Newest()),
    "another fifth": (fifth, Told()),
}
opening = {
    name: (budget, answers(read.choosing(budget, rule), hidden)[2])
    for name, (budget, rule) in choices.items()
}
table(*ch13.opening_table(opening))
markdown(ch13.opening_story(opening, numbers[2]))

# %% [markdown]
# The other fifth was chosen by somebody who knows where the number stands: that sentence, the first four tokens, and as many of
# the newest as there is room for. No cache knows that. What can it know?
#
# ## What a missing key costs
#
# One head and one query. Scores become weights $w_i$ that add up to 1, and the output is a mean of values, $o = \sum_i w_i v_i$.
# Let some keys be gone, and let $\varepsilon$ be the sum of the weights that they would have had. The softmax over the rest
# gives every remaining key its old weight, divided by $1 - \varepsilon$: an output $o'$. With $\bar v$ for what the missing keys
# would have said, their values averaged by their weights, $o = (1 - \varepsilon)\, o' + \varepsilon\, \bar v$, and so
#
# $$ o - o' = \varepsilon\, (\bar v - o') $$
#
# A key may go if its weight is small, or if its value says what the others say. Scores of the keys that stay are what they
# were: each key was turned by its position before it was stored ([RoPE](https://arxiv.org/abs/2104.09864)).


# %%
def without(q, k, v, kept):
    """q (D,), k and v (S, D), kept (S,): the output of what is kept,
    the weight of what is gone, and what that would have said."""
    weights = (k @ q / math.sqrt(len(q))).softmax(-1)
    lost = weights[~kept].sum()
    gone = weights[~kept] @ v[~kept] / lost
    return weights[kept] @ v[kept] / (1 - lost), lost, gone


# %% tags=["hide-input", "nbval-check-output"]
def off(ours, truth):
    """Relative error."""
    return float((ours - truth).norm() / truth.norm())


q, k, v = (torch.randn(n, 64, generator=draw) for n in (1, 300, 300))
kept = torch.rand(300, generator=draw) < 0.2
ours, lost, gone = without(q[0], k, v, kept)
masked = scaled_dot_product_attention(q, k, v, attn_mask=kept[None])[0]
full = scaled_dot_product_attention(q, k, v)[0]
near = off(ours, masked)
print("as with those keys masked, to 1e-5:", near < 1e-5)
missing = off(full - ours, lost * (gone - ours))
print("missing is ε (v̄ − o'), to 1e-4:", missing < 1e-4)
assert near < 1e-5 and missing < 1e-4

# %% [markdown]
# So it depends on where the weight lies. In SmolLM2, over the prompt of the third number, seen from the tokens of its second half:


# %% tags=["hide-input", "nbval-ignore-output"]
NEAR = 32
tokens = torch.tensor([prompts[2]], device=device)
pos = torch.arange(LENGTH, device=device)[None]
given = observe(model, tokens, range(model.config.num_layers))
causal = mask_for(pos, pos)
first, newest, short, most = [], [], [], []
for one in given.values():
    _, weights = weigh_with(one.q, one.k, one.v, causal)
    late = weights[0, :, LENGTH // 2 :].mean(0)  # (T / 2, T)
    back = pos[0, LENGTH // 2 :, None] - pos  # tokens from key to query
    close = (back >= 0) & (back < NEAR)
    first.append(float(late[:, 0].mean()))
    newest.append(float((late * close).sum(1).mean()))
    weight, at = (float(x) for x in late.mean(0).max(0))
    most.append(
        (int(at), tokenizer.decode(prompts[2][int(at) :][:1]), weight)
    )
    sizes = one.v[0].norm(dim=-1)
    short.append(
        float((sizes[:, 0] / sizes[:, 1:].median(1).values).mean())
    )
ch13.places_figure(first, newest, NEAR)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch13.places_story(first, newest, NEAR, short, most))

# %% [markdown]
# **A rule that drops keys is a forecast of what will be asked.** A cache that drops *bits* instead makes no forecast: it is a little
# wrong about everything.
#
# ## Fewer bits or fewer keys
#
# Keep $T'$ of $T$ keys at 16 bits, and the cache takes $T'/T$ of its bytes. Keep all of them in $\beta$ bits where $g$ numbers share a
# scale, or a scale and a smallest value, of two bytes each, and a number takes
#
# $$ \beta + \frac{16\, s}{g} \ \text{bits}, \qquad s = 1 \text{ or } 2 $$

# %% tags=["hide-input", "nbval-check-output"]
table(*ch13.bytes_table())
markdown(ch13.bytes_story())

# %% [markdown]
# ## Predict: eight bits
#
# How wrong may a cache be? The unit is [perplexity](../book/glossary.md#term-perplexity), $e$ to the mean loss: as if
# the model had to choose among so many equally likely tokens. Four passages of Shakespeare,
# 128 tokens to read and 64 to predict each, read through a cache in 8 bits: a scale for each token and head.

# %% tags=["predict"]
my_bits = guess(
    "13-int8",
    "All keys and values in 8 bits: by how much does perplexity rise?",
    unit="%",
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
BLOCK, SCORED, STRETCH = 32, 64, 16
TWO = QUANT_FORMATS["int4"].with_(name="2 bits by token", bits=2)


def in_codes(form):
    """Makes an empty cache in this format; None: plain numbers."""

    def make(model, rows, positions):
        blocks = rows * -(-positions // BLOCK)
        if form is None:
            return StaticCache.for_model(model, rows, positions)
        if not form.per_channel:
            return QuantCache.for_model(model, rows, form)
        store = KiviStore.for_model(model, blocks, BLOCK, form, rows)
        return store.rows(rows)

    return make


# %% tags=["measure", "nbval-ignore-output"]
blocks = passages(hay, 128 + SCORED, 4)
forms = [QUANT_FORMATS[n] for n in ("int8", "int4", "kivi-2")]
quality = {
    name: losses(
        model, blocks, in_codes(form), prompt=128, step=16, stretch=STRETCH
    )
    for name, form in [("full", None)]
    + [(form.name, form) for form in (*forms, TWO)]
}
eight = quality["int8"].over(quality["full"])

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_bits, model=0.0, measured=ch13.rise(eight), unit="%",
    what="rise of the perplexity", names=("full cache", "8 bits"), log=False,
    title=ch13.rise_title(eight),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch13.eight_story(quality, published))

# %% [markdown]
# ## Whose step?
#
# Numbers that share a scale share a step, and the largest of them sets it. So it matters who is put together. Look along the channels
# of a head: mean size of each of the 64, the largest over the median one.

# %% tags=["hide-input", "nbval-ignore-output"]


def spread(x):
    """Of x (1, Hkv, T, D): a head's largest channel over the median."""
    each = x[0].abs().mean(1)
    return float((each.amax(1) / each.median(1).values).median())


of_keys = [spread(one.k) for one in given.values()]
of_values = [spread(one.v) for one in given.values()]
ch13.channels_figure(of_keys, of_values)

# %% [markdown]
# Some channels of the keys are large over the whole text. A scale by token must reach them, and leaves few codes to the quiet
# ones. A scale by *channel*, over a group of tokens, gives the large ones a large step and the quiet ones a small step.
# KIVI does so for keys, and keeps one by token for values ([Liu and others, 2024](https://arxiv.org/abs/2402.02750),
# section 3.2).


# %%
def quantized(x, bits, dim):
    """Codes 0 to 2^bits - 1, the step and the smallest number along dim."""
    low, high = x.aminmax(dim=dim, keepdim=True)
    step = ((high - low) / (2**bits - 1)).half().clamp(min=2**-24)
    low = low.half()
    codes = (x - low.float()) / step.float()
    codes = codes.round().clamp(0, 2**bits - 1).to(torch.uint8)
    return codes, step, low


def numbers_of(codes, step, low):
    return codes * step.float() + low.float()


# %% tags=["nbval-check-output"]
keys = given[17].k[0, :, :150]
for bits, dim in ((8, 1), (4, 1), (2, 1), (2, 2)):
    ours = quantized(keys, bits, dim)
    theirs = quantize(keys, bits, dim, torch.float16)
    same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    print(f"{bits} bits along {dim}: lumen's codes: {same}")
    assert same

# %% [markdown]
# By channel there is a catch. In [decode](../book/glossary.md#term-decode) one token comes at a time, and a step over 32 tokens is
# known when the 32nd is there. So the newest tokens stay whole until their group is full, a group less one at most: the first exercise
# builds that, and its check wants the same codes however the tokens come. (The bytes above count two groups: a server that takes
# tokens back may need the group before.)
#
# Two bits, four codes: now it shows. Keys and values of the third prompt, layer by layer, each rounded both ways, and what it does to
# the output of attention.


# %% tags=["hide-input", "nbval-ignore-output"]
def by_token(x):
    grouped = x.unflatten(3, (-1, 32))
    return numbers_of(*quantized(grouped, 2, 4)).flatten(3)


def by_channel(x):
    grouped = x.unflatten(2, (-1, 32))
    return numbers_of(*quantized(grouped, 2, 3)).flatten(2, 3)


ways = {"by token": by_token, "by channel": by_channel}
errors = {}
for one in given.values():
    exact = attention(one.q, one.k, one.v, pos, pos)
    for k_name, k_way in ways.items():
        for v_name, v_way in ways.items():
            out = attention(one.q, k_way(one.k), v_way(one.v), pos, pos)
            errors.setdefault((k_name, v_name), []).append(off(out, exact))
table(*ch13.errors_table(errors))
markdown(ch13.two_bits_story(errors, quality))

# %% [markdown]
# ## Predict: a sliding window
#
# Now fewer keys, and the simplest rule: a [sliding window](../book/glossary.md#term-sliding-window). The newest $w$ stay. It is less
# of a loss than it looks, since a token of layer 2 has read what layer 1 knew: each layer reaches $w - 1$ tokens further back. Over $L$
# layers that is a [receptive field](../book/glossary.md#term-receptive-field), in tokens, of
#
# $$ L\,(w - 1) + 1 $$

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch13.reach_story())

# %% [markdown]
# SmolLM2 was not trained so. One text of 768 tokens, read 32 at a time, a window of 256: behind each step the oldest leave, so
# token 289 is the first to miss any.

# %% tags=["predict"]
my_window = guess(
    "13-window",
    "Perplexity behind token 256, in times that of the full cache?",
    unit="×",
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
TEXT, WINDOW, PART = hay[:768], 256, 64


@dataclass(frozen=True)
class Others(Rule):
    """Negative control: four tokens of the middle stay, and the newest."""

    def score(self, held):
        some = (held.pos >= 40) & (held.pos < 44)
        return held.pos.float().masked_fill(some, math.inf)


def nats(cache, text=TEXT):
    """Mean loss of each stretch of the text, read 32 tokens at a time."""
    ids, costs = torch.tensor([text], device=device), []
    for at in range(0, len(text), 32):
        logits = model(ids[:, at : at + 32], None, cache)[0]
        after = ids[0, at + 1 : at + 33]
        costs.append(
            cross_entropy(logits[: len(after)], after, reduction="none")
        )
    return [float(part.mean()) for part in torch.cat(costs).split(PART)]


# %% tags=["measure", "nbval-ignore-output"]
windows = {
    "everything": StaticCache.for_model(model, 1, len(TEXT)),
    **{
        name: EvictingCache.for_model(model, 1, WINDOW, rule)
        for name, rule in (
            ("the newest", Newest()),
            ("first 4 and newest", SinksAndNewest(4)),
            ("first one and newest", SinksAndNewest(1)),
            ("four others and newest", Others()),
        )
    },
}
curves = {name: nats(cache) for name, cache in windows.items()}
line_break = tokenizer.encode("\n", add_special=False)
curves["a line break first"] = nats(
    EvictingCache.for_model(model, 1, WINDOW, SinksAndNewest(1)),
    line_break + TEXT[1:],
)
behind = {
    name: Losses(tuple(curve[WINDOW // PART :]), PART)
    for name, curve in curves.items()
}
ratios = {
    name: some.over(behind["everything"]) for name, some in behind.items()
}

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_window, model=1.0, measured=ratios["the newest"], unit="×",
    what="perplexity over that of the full cache",
    names=("full cache", "window"),
    title=ch13.window_title(ratios["the newest"], len(TEXT) - WINDOW),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch13.window_story(ratios, WINDOW) + ch13.sinks_published())

# %% tags=["reveal", "nbval-ignore-output"]
ch13.window_figure(curves, PART, WINDOW)

# %% [markdown]
# To keep the first few tokens is StreamingLLM. Its authors explain it so
# ([Xiao and others, 2023](https://arxiv.org/abs/2309.17453), section 3.1): a softmax has to put its weight somewhere. Heads that find
# nothing put it on the first token, whatever that says, since every query can see it: an
# [attention sink](../book/glossary.md#term-attention-sink). When it has left, the softmax gives that weight to others. With the sink
# the window still forgets: what has left it is gone.
#
# ## Keys that earn their place
#
# Where a rule may choose, each KV head of each layer chooses for itself. A rule is one number for each key, its worth, and the
# keys of the highest worth stay:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch13.rules_table())

# %% [markdown]
# $w_{qi}$ is the weight that query $q$ gave to key $i$, summed over the query heads that share the key. H2O's
# [heavy hitters](../book/glossary.md#term-heavy-hitter) are those that were read most so far
# ([Zhang and others, 2023](https://arxiv.org/abs/2306.14048)); SnapKV asks the end of the prompt, where the question stands, and
# keeps neighbours together ([Li and others, 2024](https://arxiv.org/abs/2404.14469)). The rule without attention keeps short keys, which tend
# to be read much, sinks among them ([Devoto and others, 2024](https://arxiv.org/abs/2406.11430)).


# %%
def heavy_hitters(weights, budget):
    """Weights (Hkv, G, T, S) of a prompt -> kept (Hkv, budget)."""
    worth = weights.sum((1, 2))  # over the group and all queries
    worth[:, -(budget // 2) :] = math.inf  # the newest stay
    return worth.topk(budget).indices


# %% tags=["nbval-check-output"]
some, layer, budget = tokens[:, :200], 12, 40
one = observe(model, some, [layer])[layer]
scores = one.q[0] @ one.k[0].repeat_interleave(3, 0).mT / math.sqrt(64)
future = torch.ones(200, 200, dtype=torch.bool, device=device).triu(1)
weights = scores.masked_fill(future, -math.inf).softmax(-1)
mine = heavy_hitters(weights.unflatten(0, (3, 3)), budget)

cache = EvictingCache.for_model(model, 1, budget, H2O())
out = model.hidden(some, None, cache)
theirs = cache.layers[layer].pos[0]
pairs = zip(mine.tolist(), theirs.tolist(), strict=True)
same = [set(a) == set(b) - {-1} for a, b in pairs]
print("keys as lumen's H2O:", same)
near = off(out, model.hidden(some))
print(f"{cache.held.tolist()} keys left, the prompt's output")
print("as without a cache, to 1e-4:", near < 1e-4)
assert all(same) and near < 1e-4

# %% [markdown]
# The last line is worth a second look. Keys leave *behind* the forward that brings them, so a prompt that is read in one
# go never feels the loss. Whoever measures a rule by the loss over one long forward measures nothing.
#
# ## Predict: five numbers
#
# The five prompts of the beginning, each with its question at the end, in sight of all rules. H2O may keep half of the keys.

# %% tags=["predict"]
my_found = guess(
    "13-h2o",
    "H2O, half of the keys: how many of the 5 numbers?",
    unit="of 5",
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
RULES = {
    "newest": lambda budget: Newest(),
    "sinks": lambda budget: SinksAndNewest(4),
    "random": lambda budget: Random(0),
    "key norm": lambda budget: KeyNorm(),
    "h2o": lambda budget: H2O(),
    "snapkv": lambda budget: SnapKV(32),
    "snapkv, wide": lambda budget: SnapKV(32, kernel=13),
    "told": lambda budget: Told(),
}
HALF = "newest, half"  # what H2O has without its heavy hitters


def of_sentence(cache):
    """The share of the keys of the sentences that was kept."""
    found = []
    for slots in cache.layers:
        for row, needle in zip(slots.pos, asked, strict=True):
            start, end = needle.at
            inside = (row >= start) & (row < end)
            found.append(inside.sum(-1) / (end - start))
    return float(torch.stack(found).mean())


# %% tags=["measure", "nbval-ignore-output"]
said = {("full", 1.0): answers(read.choosing(LENGTH, Newest()), hidden)}
stayed = {}
for share in (0.5, 0.2):
    for name, rule in RULES.items():
        budget = round(share * LENGTH)
        cut = read.choosing(budget, rule(budget))
        stayed[name, share] = of_sentence(cut)
        said[name, share] = answers(cut, hidden)
    cut = read.choosing(int(share * LENGTH) // 2, Newest())
    said[HALF, share] = answers(cut, hidden)
for name in ("kivi", "kivi-2"):
    coded = in_codes(QUANT_FORMATS[name])(model, len(asked), LENGTH + 16)
    said[name, 1.0] = answers(coded, feed(model, coded, prompts))
right = ch13.right_answers(said, numbers)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_found, model=float(sum(right["newest", 0.5])),
    measured=float(sum(right["h2o", 0.5])), unit="of 5",
    what="numbers found", names=("the newest half", "H2O"), log=False,
    within=(0, 5), title=ch13.found_title(right["h2o", 0.5], "H2O"),
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch13.found_table(said, numbers))

# %% tags=["reveal", "nbval-ignore-output"]
digits_at = [n.at[1] - len(n.answer) - 2 for n in asked]
inside = sum(at >= LENGTH // 2 for at in digits_at)
markdown(ch13.found_story(said, numbers, stayed, inside))

# %% tags=["hide-input", "nbval-ignore-output"]
callout("takeaway", ch13.takeaway(right))

# %% [markdown]
# Try the rules yourself: a shorter prompt with another city, and five of the model's ninety KV heads. Shaded is what the tokens of the
# *answer* read, 4, 8, 1, 7, 3; the rules have to choose before that. How much of the shading do they catch, and in which heads is it
# easy?

# %% tags=["hide-input", "nbval-ignore-output"]
HARBOUR = (
    "The harbour of Oslo has a gate, and whoever wants to pass it by "
    "night must know a number. The pass number of Oslo is 48173. Ships "
    "that do not know it wait outside until the morning, with their "
    "lamps lit, and the crews tell each other stories. What is the pass "
    "number of Oslo? The pass number of Oslo is"
)
HEADS = [(17, 1), (14, 1), (5, 2), (11, 0), (25, 1)]
Eviction.of(model, tokenizer, HARBOUR, " 48173.", HEADS, budget=24)

# %% [markdown]
# Five numbers are few. The published run asks more, in prompts of up to 2,048 tokens:

# %% tags=["hide-input", "nbval-ignore-output"]
if published is None:
    markdown(ch13.NOT_PUBLISHED)
else:
    GRID = ("h2o", "snapkv", "snapkv, wide")
    ch13.grid_figure(published, GRID).show()

# %% [markdown]
# And it hides the question. Where many questions will be asked about one document, the cache is cut when none of them is known.
# Beside our needles stand scores that [kvpress](https://github.com/NVIDIA/kvpress), a library of such rules, has published: another
# model, and more kinds of questions. H2O's mean divides what a key got by the number of queries that could read it.

# %% tags=["hide-input", "nbval-ignore-output"]
if published is not None:
    table(*ch13.unseen_table(published))
    markdown(ch13.order_story(published))

# %% [markdown]
# ## Keep everything, read less
#
# If nobody can say what will be asked, why not decide when it is asked? That saves no memory, but a decode step is slow for what it
# *reads*. Quest ([Tang and others, 2024](https://arxiv.org/abs/2406.10774)) cuts the keys into pages of 16 and keeps
# two vectors for each: channel by channel the least and the greatest number of its keys. No key of the page can score more than
#
# $$ \sum_d \max(q_d\, l_d,\ q_d\, h_d) $$
#
# The step reads the bounds, then the pages of the highest ones. Of $T$ tokens with keys and values that is a share of
# $T'/T + 1/16$, as two vectors a page stand beside two vectors a token.


# %%
def bounds(q, k, page=16):
    """q (D,), k (T, D) -> (T / page,): no key of a page scores more."""
    pages = k.unflatten(0, (-1, page))
    low, high = pages.amin(1), pages.amax(1)
    return torch.maximum(q * low, q * high).sum(-1)


# %% tags=["hide-input", "nbval-check-output"]
above, equal = True, True
for one in given.values():
    for head in range(9):
        q, k = one.q[0, head, -1], one.k[0, head // 3]
        ours = bounds(q, k)
        pages = k.unflatten(0, (-1, 16))
        above &= bool((ours + 1e-3 >= (pages @ q).amax(1)).all())
        low, high = pages.amin(1)[None, None], pages.amax(1)[None, None]
        theirs = upper_bound(q[None, None, None], low, high)
        equal &= off(ours, theirs.flatten()) < 1e-5
print("270 heads, no key above its bound:", above)
print("lumen's bounds:", equal)
assert above and equal

# %% tags=["hide-input", "nbval-ignore-output"]
caught = {"bound": [], "best": [], "newest": []}
for one in given.values():
    last = one.q[:, :, -1:], one.k, one.v
    _, weights = weigh_with(*last, mask_for(pos[:, -1:], pos))
    weights = weights[0, :, 0].unflatten(1, (-1, 16)).sum(-1)  # (H, pages)
    count = round(weights.shape[1] / 5)
    picked = torch.stack(
        [bounds(one.q[0, h, -1], one.k[0, h // 3]) for h in range(9)]
    )
    orders = {
        "bound": picked,
        "best": weights,
        "newest": torch.arange(weights.shape[1], device=device).expand(
            9, -1
        ),
    }
    for name, order in orders.items():
        chosen = order.topk(count).indices
        caught[name].append(float(weights.gather(1, chosen).sum(1).mean()))
markdown(ch13.quest_story(caught, published))

# %% [markdown]
# ## Bytes, perplexity, needles
#
# The kinds of this chapter over the same passages and the same needles, rules and windows at a fifth of the keys, the lowest
# perplexity first. “Rotated” turns all vectors at random before they are rounded: products are what they were, and what was large
# in one channel is spread over all ([QuaRot](https://arxiv.org/abs/2404.00456), and the first step of
# [TurboQuant](https://arxiv.org/abs/2504.19874)).

# %% tags=["hide-input", "nbval-ignore-output"]
if published is None:
    markdown(ch13.NOT_PUBLISHED)
else:
    table(*ch13.equal_table(published), stack=True)
    ch13.equal_figure(published).show()
    markdown(ch13.equal_story(published))

# %% [markdown]
# A budget says *how many* keys, a format *how*, and the two can be combined. What this table cannot say is what a larger model does.
# SmolLM2 has 3 KV heads of 64 numbers in a layer. KIVI's authors, with Llama, Falcon and Mistral, report almost the same quality in
# two bits ([abstract](https://arxiv.org/abs/2402.02750)).
#
# ## Where it loses
#
# **Short contexts, few users.** A smaller cache makes a step faster by what the step no longer reads. Llama-3.1-8B (Llama-3-8B's
# shape with a longer context) in 16 bits, a fifth of the cache, by the bytes alone:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch13.step_table())

# %% [markdown]
# **Codes must become numbers again.** Attention multiplies numbers. SmolLM2, one user:

# %% tags=["hide-input", "nbval-ignore-output"]
newest_token = torch.tensor([[third.answer[0]]], device=device)
held = {
    "plain": DynamicCache.for_model(model, 1),
    "8 bits": QuantCache.for_model(model, 1),
}
for cache in held.values():
    model.hidden(tokens, None, cache)


def step(cache):
    model.hidden(newest_token, None, cache)
    cache.rewind([LENGTH])


steps = bench.compare(
    {name: lambda cache=cache: step(cache) for name, cache in held.items()},
    repeats=9,
    warmup=2,
)
markdown(ch13.codes_story(steps, LENGTH))

# %% [markdown]
# **What has left does not come back.** [Speculation](../book/glossary.md#term-speculative-decoding) takes back drafts, a
# [prefix cache](../book/glossary.md#term-prefix-cache) hands a prompt to the next user, and both need keys that are still there:

# %% tags=["nbval-check-output"]
cache = EvictingCache.for_model(model, 1, 64, SinksAndNewest())
model.hidden(tokens[:, :100], None, cache)
try:
    cache.rewind([90])
except ValueError as error:
    print(str(error).split(",")[0])

# %% [markdown]
# So `lumen serve --kv-cache window:N+S` refuses a prefix cache beside it. Codes are nobody's forecast: `--kv-cache int8` shares prefixes like
# plain numbers.
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | perplexity alone | "a fifth of the keys is nearly free" | needles [beside it](#bytes-perplexity-needles) |
# | the question in sight | a rule that keeps what was asked for looks wise | asked [both ways](#predict-five-numbers) |
# | equal counts, unequal bytes | "Quest keeps a fifth" | bytes [held and read](#bytes-perplexity-needles), told apart |
# | a text in one forward | nothing is lost, whatever the rule | keys leave [behind it](#keys-that-earn-their-place), so texts are read in steps of a few tokens |
#
# ## Play
#
# Your own text in any layer. Look for the sink, for what the early layers read, and for a layer without a sink.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = attention_lab(model, tokenizer)

# %% [markdown]
# ## In production
#
# Four servers and a library, kvpress. The servers' flags below are about bits and windows; none evicts by attention. Such rules want
# weights that fused kernels never write, and heads that keep different tokens do not fit a table of blocks.

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch13.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch13.recap(quality, ratios, right, published))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("13")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/13_smaller_cache.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("13"))

# %% [markdown]
# ## Further reading
#
# - [KIVI](https://arxiv.org/abs/2402.02750) (Liu and others, 2024): read section 3.2, pictures of keys and values that explain the
#   rest.
# - [Efficient Streaming Language Models with Attention Sinks](https://arxiv.org/abs/2309.17453) (Xiao and others, 2023): read
#   section 3.1 for the experiment that found the sinks.
# - [H2O](https://arxiv.org/abs/2306.14048) (Zhang and others, 2023) and [SnapKV](https://arxiv.org/abs/2404.14469) (Li and
#   others, 2024): read the second beside the first, for what changes when the question is known.
# - [Quest](https://arxiv.org/abs/2406.10774) (Tang and others, 2024): read section 3 for bounds that cost two vectors a page.
# - [RULER](https://arxiv.org/abs/2404.06654) (Hsieh and others, 2024): read it for needles that are harder than ours.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    notes=[
        "SmolLM2-135M-Instruct, fp32; five needles in prompts of 512 tokens, "
        "seed 0; four passages of Shakespeare, "
        "from the last twentieth of each play"
    ],
)
