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
# # 6 · The prefix cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/06_prefix_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/06_prefix_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/06_prefix_cache.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 95 min · here: [exercises](../exercises/06_prefix_cache.ipynb), [solutions](../solutions/06_prefix_cache.ipynb)
#
# </div>

# %% [markdown]
# SmolLM2 is told to answer questions about the first scene of *Hamlet*. The scene goes into the system prompt, five hundred
# tokens of it, and every question of every reader carries those tokens along. The first reader pays for them. The
# second one should not have to.
#
# Then somebody has the good idea to tell the model what time it is, and writes the clock into the first line.
#
# **Why are the five hundred tokens cheap the second time, and why does one digit at the top make them expensive again?**
#
# By the end you can
#
# - say which part of a prompt can be reused, to the token, and why it is never the middle;
# - predict the time to first token (TTFT) behind a cached prefix, and name what still has to be paid;
# - write a prefix cache in 40 lines that keeps customers apart;
# - lay out a prompt for hits, and say from which use on a cache price of 1.25 and 0.1 pays off.
#
# Needs: [the KV cache](04_kv_cache.ipynb), [the paged cache](05_paged_cache.ipynb).
#
# New terms: [prefix cache](../book/glossary.md#term-prefix-cache), [radix tree](../book/glossary.md#term-radix-tree);
# from chapter 1: [TTFT](../book/glossary.md#term-TTFT).

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

session = lumen.setup("06_prefix_cache")

# %% [markdown]
# Equality is the point here, so the model runs in fp32, on a GPU too.

# %% tags=["hide-input"]
import copy
import hashlib
import random

import torch

from lumen import assets, bench, cost, grading, hardware
from lumen.cache import (
    BlockPool,
    BlockStore,
    HashPrefix,
    NoCache,
    RadixPrefix,
)
from lumen.cache.prefix import Prefix
from lumen.explore import (
    Quiz,
    RadixTree,
    callout,
    guess,
    markdown,
    prompt_order_lab,
    provenance,
    reveal,
    table,
)
from lumen.models import Llama, ModelConfig
from lumen.pages import ch06
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device
chip = hardware.measure(progress=False)

# %% [markdown]
# ## One prompt, five requests
#
# The store below is the paged cache of the last chapter: blocks of 16 positions. One line is new. It gives the store a
# prefix cache: a memory of what its blocks hold, which outlives the requests.

# %% tags=["hide-input"]
BLOCK = 16
plays, _ = assets.shakespeare()
hamlet = tokenizer.encode(plays[plays.index("SCENE I. Elsinore") :][:6000])
scene = tokenizer.decode(hamlet[:480])
RULES = "Answer in one sentence, from this scene.\n\n" + scene


def prompt_of(system, question):
    return tokenizer.apply_chat(
        [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
    )


def ask(store, prompt, new=1):
    """Generate on `store`; what its prefix cache knows is not run."""
    with store.rows(1) as cache:
        (done,) = lumen.generate(
            model,
            [prompt],
            new,
            tokenizer=tokenizer,
            eos_ids=(),
            cache=cache,
        )
    return done


# %%
def store_of(blocks):
    store = BlockStore.for_model(model, blocks, BLOCK)
    store.prefix = HashPrefix(store.pool)  # the new line
    return store


# %% tags=["hide-input", "nbval-ignore-output"]
WHO, WHAT = "Who is on guard?", "What have the guards seen?"
requests = {
    ch06.FIRST: prompt_of(RULES, WHO),
    ch06.OTHER: prompt_of(RULES, WHAT),
    ch06.CLOCK: prompt_of("09:12:03\n" + RULES, WHAT),
    ch06.LATER: prompt_of("09:12:04\n" + RULES, WHAT),
    ch06.END: prompt_of(RULES, WHAT + " It is 09:12:05."),
}
ask(store_of(30), tokenizer.encode("Warm up, please. " * 8))
rounds = []
for _ in range(3):  # each round begins with an empty cache
    fresh = store_of(300)
    rounds.append({name: ask(fresh, p) for name, p in requests.items()})
held = [answer.num_cached_tokens for answer in rounds[0].values()]
assert held[0] == held[2] == held[3] == 0 and held[4] >= held[1]
assert len(requests[ch06.OTHER]) - held[1] < 2 * BLOCK

# %% tags=["hide-input", "nbval-ignore-output"]
ch06.opening_figure(rounds)

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch06.opening_table(rounds))

# %% [markdown]
# (Median of three rounds, and their range.) The second request finds everything up to its own question, to the block. The
# fourth differs from the third in one digit and from the second in nine characters, all of them in front of the same
# five hundred tokens, and finds nothing. With the clock at the end, everything is back.
#
# The text of the scene is in memory each time. Why can the fourth request not use it?
#
# ## The beginning, and nothing but the beginning
#
# Take forty tokens of the scene and put them behind two clocks that differ in one digit. Same tokens, same positions. Are
# their keys and values the same? What if something else of the same length stands there, and what if one token more does?


# %% tags=["hide-input"]
class Recorder(NoCache):
    """Keeps nothing for the model; writes down keys and values."""

    def __init__(self):
        self.seen = []

    def update(self, layer, k, v, pos, q=None):
        self.seen.append(torch.cat([k, v], -1))
        return k, v, pos


def keys_values(front):
    """(layers, KV heads, 40, 2 · 64): the same forty tokens' K and V."""
    tape = Recorder()
    tokens = torch.tensor([front + hamlet[:40]], device=device)
    positions = torch.arange(tokens.shape[1], device=device)[None]
    model.hidden(tokens, positions, tape)
    return torch.stack(tape.seen)[:, 0, :, -40:]


def change(front):
    """Of each layer: how far K and V are from those behind `clock`."""
    pairs = zip(base, keys_values(front), strict=True)
    return [float((a - b).norm() / a.norm()) for a, b in pairs]


clock = tokenizer.encode("09:12:03\n")
later = tokenizer.encode("09:12:04\n")
pirate = "Answer like an angry pirate, in rhymes, and never politely.\n"
base = keys_values(clock)
changes = {
    "one other digit": change(later),
    "another sentence": change(tokenizer.encode(pirate)[-len(clock) :]),
    "one token more": change(clock + clock[-1:]),
}
assert len(clock) == len(later)
assert sum(a != b for a, b in zip(clock, later, strict=True)) == 1

# %% tags=["hide-input", "nbval-ignore-output"]
ch06.change_figure(changes)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch06.change_story(changes))

# %% [markdown]
# So the keys and values at position $p$ belong to **all tokens from 0 to $p$**, in this order. Two requests may share them
# exactly as far as they agree from the very first token on. A match in the middle of a text is no match, however long it
# is: prefixes, not substrings. And it is token ids that must agree, not words: a space, a capital letter, a chat template
# with another version are other tokens.
#
# The other direction holds as well. Nothing that comes *later* changes position $p$. That is why a question can be
# replaced behind the scene, and why it does not matter who asked it.
#
# ## What a hit leaves to do
#
# A hit is counted in whole blocks, and at least one token must run, since the logits for the first new token come out
# of the prompt's last row. With $P$ tokens in the prompt, the first $s$ of them shared, and blocks of $b$, the number found is
#
# $$ f = b \cdot \left\lfloor \min(s,\; P - 1) / b \right\rfloor $$
#
# The rest goes through the model, and looks at everything that was found. With $\kappa$ bytes of cache a token:
#
# <div class="stack">
#
# | step | cold | warm |
# | --- | --- | --- |
# | matrices | $P$ rows | $P - f$ rows, and all weights are read once all the same |
# | attention | $P(P+1)/2$ pairs | $(P - f)(P + f + 1)/2$ pairs |
# | cache | $P \kappa$ bytes written | $(P - f)\, \kappa$ bytes written, $f \kappa$ read |
#
# </div>
#
# `cost.predict_prefill` adds the rows of this table up, `held` being what was found. `cache="paged"` adds what our version pays
# for [gathering blocks](05_paged_cache.ipynb): the whole cache, read and written once more.


# %% tags=["hide-input"]
def found(shared, prompt, block=BLOCK):
    return min(shared, prompt - 1) // block * block


def predict(new, held=0, cache="paged"):
    """Running `new` prompt tokens behind `held` found ones, here."""
    return cost.predict_prefill(
        config, chip, new, dtype="fp32", held=held, cache=cache
    )


kappa = cost.kv_bytes_per_token(config, "fp32")
assert found(992, 992) == 976 and found(1000, 1000) == 992
assert found(15, 400) == found(1, 1) == 0

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch06.hit_story(kappa, chip, predict(1000).seconds))

# %% [markdown]
# ## Predict: 512 shared, 32 new
#
# A prompt of 544 tokens, of which 512 were there before. 17 times fewer tokens have to run.

# %% tags=["predict"]
my_guess = guess(
    "06-lower", "How many times lower is the time to first token?", unit="×"
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
shared = hamlet[:512]
memory = store_of(100)
ask(memory, shared + hamlet[600:632])  # somebody was here before
cold, warm = [], []
for i in range(1, 7):  # the two take turns; every round has its own end
    prompt = shared + hamlet[600 + 32 * i : 632 + 32 * i]
    cold.append(ask(store_of(35), prompt))
    warm.append(ask(memory, prompt))
assert [w.num_cached_tokens for w in warm] == 6 * [512]
assert all(c.tokens == w.tokens for c, w in zip(cold, warm, strict=True))
ratios = [c.ttft / w.ttft for c, w in zip(cold, warm, strict=True)]
ratio = bench.Estimate.of(ratios, unit="×")
few, many = predict(32, held=512), predict(544)
expected = many.seconds / few.seconds

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=expected,
    measured=ratios,
    unit="×",
    what="lower TTFT",
    title=ch06.lower_title(ratio),
)

# %% tags=["reveal", "nbval-ignore-output"]
weights = cost.weight_bytes(config, "fp32")
sides = [[answer.ttft for answer in side] for side in (cold, warm)]
read = weights, weights / chip.bandwidth
markdown(ch06.lower_story(ratio, expected, few, many, *sides, read))

# %% tags=["reveal", "nbval-ignore-output"]
try:
    record = bench.load_evidence("prefix_cache")
except bench.NoEvidence:
    record = None
markdown(ch06.published_table(record))

# %% [markdown]
# So a hit is worth a lot. Now somebody has to *find* it, in a pool that may hold a hundred thousand blocks.
#
# ## Build it
#
# Ask for a block by its sixteen tokens and you may get a wrong one, as we saw: the same tokens behind another beginning are
# other numbers. Ask for it by everything from the first token on, and the keys grow with the prompt. The way out, taken by
# vLLM's [automatic prefix caching](https://docs.vllm.ai/en/latest/design/prefix_caching/), is a chain. A block's key is a
# hash of **its parent's key and its own tokens**. The parent's key stands for all that came before, so each key does, at a
# fixed size:
#
# $$ \text{key}_i = \text{sha256}(\text{key}_{i-1},\ \text{tokens}_i,\ \text{extra}) $$
#
# *Extra* is whatever else the numbers depend on, or must not be shared with: the LoRA adapter (a small
# change to the weights, another for each customer), the tenant, a salt (any text of your own). `lumen.generate` takes it as
# `extra=`.
#
# A hash is no proof. It finds a candidate; the stored parent, tokens and extra must then agree, or it is a miss.


# %%
class MyPrefix(Prefix):
    """Blocks under chained keys, in order of use: oldest first."""

    def __init__(self, pool):
        self.pool, self.known = pool, {}  # key -> (block, content)

    def chain(self, tokens, count, extra):
        key, size = b"", self.pool.block_size
        for at in range(0, count * size, size):
            content = (key, tuple(tokens[at : at + size]), tuple(extra))
            key = hashlib.sha256(repr(content).encode()).digest()
            yield key, content

    def match(self, tokens, extra=()):
        keys, most = [], (len(tokens) - 1) // self.pool.block_size
        for key, content in self.chain(tokens, most, extra):
            if self.known.get(key, (None, None))[1] != content:
                break
            keys.append(key)
        self.touch(keys)
        blocks = [self.known[key][0] for key in keys]
        self.pool.share(blocks)  # a reference for the caller
        return blocks

    def insert(self, tokens, blocks, extra=()):
        most = min(len(tokens) // self.pool.block_size, len(blocks))
        full = list(self.chain(tokens, most, extra))
        for (key, content), block in zip(full, blocks, strict=False):
            if key not in self.known:
                self.pool.share([block])  # and one of our own
                self.known[key] = block, content
            assert self.known[key][1] == content, "two contents, one key"
        self.touch([key for key, _ in full])

    def touch(self, keys):  # the end first: it is older than its parents
        for key in reversed(keys):
            self.known[key] = self.known.pop(key)

    def evict(self, count):
        known, refs = self.known, self.pool.refs
        unread = [k for k in known if refs(known[k][0]) == 1][:count]
        return len(self.pool.release([known.pop(k)[0] for k in unread]))

    def blocks(self):
        return [block for block, _ in self.known.values()]


# %% [markdown]
# Three details carry the weight. `match` stops one token short of the prompt, so that something is left to run.
# Only full blocks are remembered, because a half-full one will still be written to. And `touch` walks the chain backwards: a
# block whose parent is gone is out of reach until somebody computes the parent again, so ends should go first, and the order
# of the dictionary sees to that.
#
# `evict` walks the whole dictionary, which is fine for a page and not for a server. vLLM keeps the blocks that nobody reads in
# a doubly linked list, from the middle of which a block that is found again is unhooked in constant time. SGLang keeps a set of
# the leaves that nobody reads.
#
# A store uses it with two calls. `cache.adopt([tokens])` asks `match`, puts what was found into the request's
# [block table](../book/glossary.md#term-block-table) and says how many tokens that are. `cache.keep([tokens])` hands the full
# blocks to `insert`. `lumen.generate` makes both calls.
#
# ## Equal to whom?
#
# On paper first, without a model: 400 requests with shared beginnings, against the two prefix caches of `lumen`.


# %% tags=["hide-input"]
def serve(prefix, tokens):
    """Match, take blocks, remember them, end: how many were found?"""
    pool = prefix.pool
    blocks = prefix.match(tokens)
    held = len(blocks) * pool.block_size
    need = -(-len(tokens) // pool.block_size) - len(blocks)
    if need > pool.num_free:
        prefix.evict(need - pool.num_free)
    blocks += pool.allocate(need)
    prefix.insert(tokens, blocks)
    pool.release(blocks)
    return held


def workload(requests, seed=0):
    """Thirty system prompts, a few popular; each with its own end."""
    draw = random.Random(seed)

    def tokens(most, count):
        return [draw.randrange(most) for _ in range(count)]

    trunks = [tokens(9999, draw.randrange(64, 384)) for _ in range(30)]
    weights = [1 / (i + 1) for i in range(30)]
    for trunk in draw.choices(trunks, weights, k=requests):
        yield trunk + tokens(4, draw.randrange(1, 80))


# %% tags=["hide-input", "nbval-check-output"]
hits = {}
for kind in (MyPrefix, HashPrefix, RadixPrefix):
    prefix = kind(BlockPool(6000, BLOCK))
    hits[kind.__name__] = [serve(prefix, t) for t in workload(400)]
    prefix.pool.audit([prefix.blocks()])
for name, each in hits.items():
    print(f"{name:12} found {sum(each):,} tokens")
assert hits["MyPrefix"] == hits["HashPrefix"] == hits["RadixPrefix"]

# %% [markdown]
# Then with numbers: a small random model in float64, nine query heads on three KV heads. A talk of ten turns through the
# cache, each turn's logits against the same tokens run whole.


# %% tags=["hide-input"]
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def last_logits(model, tokens, store):
    """Logits of the last token, and how many tokens were found."""
    with store.rows(1) as cache:
        (held,) = cache.adopt([tokens])
        new = torch.tensor([tokens[held:]], device=device)
        row = model.hidden(new, None, cache)[:, -1]
        cache.keep([tokens])
    return model.head(row), held


def whole(model, tokens):
    given = torch.tensor([tokens], device=device)
    return model.head(model.hidden(given)[:, -1])


torch.manual_seed(0)
shape = ModelConfig("small", 97, 3, 72, 9, 3, 8, 100, 256)
small = Llama(shape).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)

small_store = BlockStore.for_model(small, 60, 4)
small_store.prefix = MyPrefix(small_store.pool)
talk, errors, reused = [], [], 0
for _ in range(10):
    talk += torch.randint(97, (11,)).tolist()
    logits, held_now = last_logits(small, talk, small_store)
    errors.append(relative_error(logits, whole(small, talk)))
    reused += held_now

# %% tags=["hide-input", "nbval-check-output"]
small_store.audit()
print(f"{reused} of 605 tokens reused")
print(f"equal to float64 rounding: {max(errors) < 1e-12}")
assert max(errors) < 1e-12 and reused > 400

# %% [markdown]
# And on the real weights in fp32, against Hugging Face transformers, which runs the whole prompt and has no prefix cache
# at all:

# %% tags=["hide-input", "nbval-ignore-output"]
mine = BlockStore.for_model(model, 30, BLOCK)
mine.prefix = MyPrefix(mine.pool)
front = hamlet[:150]
last_logits(model, front + tokenizer.encode(" Who speaks?"), mine)
asked = front + tokenizer.encode(" Where are they?")
ours, held_now = last_logits(model, asked, mine)
others = {"no cache": whole(model, asked)}
try:
    from lumen.io.convert import hf_model

    theirs = hf_model("smollm2-135m", device)
    given = torch.tensor([asked], device=device)
    others["transformers"] = theirs(given).logits[:, -1]
    del theirs
except ImportError as missing:
    print(f"Hugging Face is not compared here: {missing}")
far = {name: relative_error(ours, other) for name, other in others.items()}
table(
    [
        [name, f"{error:.0e}" if error else "0"]
        for name, error in far.items()
    ],
    [f"{held_now} of {len(asked)} found, against", "error of the logits"],
)
assert max(far.values()) < 1e-4 and held_now == 144

# %% [markdown]
# The limit is $10^{-4}$, asserted; what remains is the order of additions. A prefix cache computes what the model would have
# computed.
#
# ## Predict: a chat of ten turns
#
# A chat is a good customer of this cache, because each turn repeats everything said before, and *the model's own answers
# are kept as well*: their keys and values were computed when they were generated. Ten turns, all about equally long.
# Without a cache, turn ten runs ten turns' worth of tokens.

# %% tags=["predict"]
my_chat = guess(
    "06-chat",
    "Ten turns: how many times less waiting for first tokens, in all?",
    unit="×",
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
QUESTIONS = [
    "Hello! Can you tell me something about the sea?",
    "How deep is it?",
    "And what lives at the bottom?",
    "What do they eat down there?",
    "Is it cold?",
    "How cold, in degrees?",
    "Do people go there?",
    "What do they travel in?",
    "Would you go?",
    "Thank you. Say goodbye like a sailor.",
]
chat_store = BlockStore.for_model(model, 120, BLOCK)
chat_store.prefix = RadixPrefix(chat_store.pool)
talk, turns, same = [], [], 0
for question in QUESTIONS:
    talk += tokenizer.encode(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    (without,) = lumen.generate(model, [talk], 1, eos_ids=())
    with_cache = ask(chat_store, talk, new=16)
    known = with_cache.num_cached_tokens
    turns.append((len(talk), known, without.ttft, with_cache.ttft))
    same += without.tokens == with_cache.tokens[:1]
    talk += with_cache.tokens + tokenizer.encode("<|im_end|>\n")
chat_cold = sum(predict(p, cache="static").seconds for p, *_ in turns)
chat_warm = sum(predict(p - h, held=h).seconds for p, h, *_ in turns)
assert same >= 9  # a tie may fall the other way in fp32

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_chat,
    model=chat_cold / chat_warm,
    measured=ch06.chat_ratio(turns),
    unit="×",
    what="saved over ten turns",
    title=ch06.chat_title(turns),
)

# %% tags=["reveal", "nbval-ignore-output"]
ch06.chat_figure(turns)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch06.chat_story(turns, (chat_cold, chat_warm)))

# %% [markdown]
# Over a chat, the tokens that run grow with the square of the number of turns without the cache, and in proportion to it with
# one. (What each of them looks at grows either way.)
#
# ## The same job as a tree
#
# Chained keys flatten something that is a tree by nature: system prompts branch into users, users into turns. A radix tree,
# as [SGLang](https://arxiv.org/abs/2312.07104) uses it, keeps that shape. A node holds a stretch of blocks; looking up means
# walking down and comparing tokens, with no digest to compute; when a request leaves a node in its middle, the node is *split*
# there. Leaves are evicted, the least recently used first, and a path that a request is reading is locked by its references.
# Step through a ticket office. Watch request 2 split a node, and request 6, which says *boat* where the others say *train*.

# %% tags=["hide-input"]
RadixTree(page=2, room=48)

# %% [markdown]
# Now set the clock to *first word*. The tree grows one bare trunk per request.
#
# Which of the two is better? They found the same tokens, as we asserted, while there was room. What differs is what a lookup
# costs and what goes first when room is short.

# %% tags=["hide-input", "nbval-ignore-output"]
rooms, rates = [100, 200, 400, 800, 1600], {}
for kind in (HashPrefix, RadixPrefix):
    for room in rooms:
        prefix = kind(BlockPool(room, BLOCK))
        load = list(workload(300, seed=1))
        got = sum(serve(prefix, tokens) for tokens in load)
        rates[kind.__name__, room] = got / sum(map(len, load))


def finding(kind, remembered):
    """Find a prompt of 64 blocks among so many remembered ones."""
    draw = random.Random(0)
    prefix = kind(BlockPool(remembered + 66, BLOCK))
    for _ in range(remembered // 64):
        prompt = [draw.randrange(49152) for _ in range(64 * BLOCK + 1)]
        serve(prefix, prompt)
    return lambda: prefix.pool.release(prefix.match(prompt))


FEW, MANY = 640, 19_200
lookups = bench.compare(
    {
        f"{kind.__name__} {name}": finding(kind, count)
        for kind in (HashPrefix, RadixPrefix)
        for name, count in (("few", FEW), ("many", MANY))
    },
    repeats=25,
)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch06.rooms_story(rates, rooms))
markdown(ch06.lookup_story(lookups, FEW, MANY, predict(1025).seconds))

# %% [markdown]
# What else speaks for one or the other: keys travel well (a router or another machine can compare them), a tree shows who
# shares what (a scheduler can run requests of one branch together).
#
# That matters for requests **in flight**. Two requests that arrive together with the same new beginning both miss: nothing is
# remembered before it was computed. SGLang's scheduler, when told to go by the cache (`lpm`),
# [looks for such pairs](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_policy.py) among
# those that wait and puts the second one behind all others.
#
# ## What it costs, and from when on it pays
#
# If you rent the model by the token, the saving comes back as a price. Anthropic announced in
# [August 2024](https://www.anthropic.com/news/prompt-caching): writing a prefix into the cache costs 1.25 times the
# ordinary input price, reading it 0.1 times. OpenAI, in [October 2024](https://openai.com/index/api-prompt-caching/): automatic from
# 1,024 tokens on, in steps of 128, no charge for writing, half price for reading. Both have changed their lists since; the
# arithmetic stays. With $w$ for the price of a write and $r$ of a read, a prefix that is used $n$ times costs
# $w + r\,(n - 1)$ instead of $n$. So it pays when
#
# $$ n > \frac{w - r}{1 - r} $$

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch06.price_story())
assert abs(cost.cached_prompt_break_even() - 1.15 / 0.9) < 1e-12

# %% tags=["hide-input"]
ch06.price_figure()

# %% [markdown]
# The second curve is Anthropic's price for an entry that lives an hour instead of five minutes (added in 2025). A longer
# life is bought with a dearer write: by the same formula it pays from the third use on.
#
# ## Lay out a prompt
#
# From all this follows one rule: **what never changes first, what changes most last.** Rules, tools, examples, then the
# customer's documents, then the talk so far, then the clock and the question. A talk is appended to, never edited: whoever
# shortens the history from the front, to save tokens, changes every position behind the cut and pays for all of them.
#
# Some order is invisible in the source. Tools serialised from a set, a user's name in the greeting, retrieved documents
# sorted by score: each is a clock in another dress.
#
# An API adds names to this, no new physics. [Anthropic](https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching) puts a
# request together as **tools, then system prompt, then messages**, so changing one tool invalidates all three, changing the
# system prompt leaves the tools, and a new message leaves everything before it. What is to be kept is marked there, with up to
# four **breakpoints** (`cache_control` on the last part of it); OpenAI keeps every long beginning by itself. Below a minimum length, 1,024 tokens for many models, a prompt is not kept, and no error says so. The answer's
# `usage` does, in two spellings that count differently:


# %% tags=["nbval-check-output"]
def hit_rate(usage):
    """Share of the prompt that was read from the provider's cache."""
    if "prompt_tokens" in usage:  # OpenAI: cached tokens are among them
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return cached / usage["prompt_tokens"]
    read = usage["cache_read_input_tokens"]  # Anthropic: three heaps
    written = usage["cache_creation_input_tokens"]
    return read / (usage["input_tokens"] + read + written)


one = {
    "prompt_tokens": 1280,
    "prompt_tokens_details": {"cached_tokens": 1024},
}
other = {
    "input_tokens": 256,  # only what stands behind the last breakpoint
    "cache_read_input_tokens": 1024,
    "cache_creation_input_tokens": 0,
}
told = [f"{100 * hit_rate(loaded):.0f} %" for loaded in (one, other)]
print(" and ".join(told), "of the same prompt")
assert hit_rate(one) == hit_rate(other) == 0.8

# %% [markdown]
# (Both usages are made up.) Log this number for each kind of request. When it falls after a release, something
# at the top of the prompt has begun to change.
#
# ## Beyond one pool
#
# A block that is evicted need not be lost. It can be copied to the host's memory, to a disk or to another machine, and
# brought back. Is that faster than computing it again? For 1,000 tokens of Llama-3-8B on an H100:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch06.links_table())
markdown(ch06.links_story())

# %% [markdown]
# With several replicas there is a second question: the beginning may be warm, but on another machine. A router that
# sends requests with the same beginning to the same replica keeps them warm; one that takes turns makes every replica pay
# once. (It must also notice when the popular replica is drowning.)
#
# And the middle of a text? It can be had, inexactly. [Prompt Cache](https://arxiv.org/abs/2311.04934) computes marked
# modules on their own, at positions reserved for them, and lets them not see each other.
# [CacheBlend](https://arxiv.org/abs/2405.16444) takes the keys and values of retrieved documents as they were computed
# elsewhere and runs a small share of the tokens again, those that changed most. Both compute an approximation of what
# the model would. How far off keys and values are with nothing corrected, [the green curve](#the-beginning-and-nothing-but-the-beginning)
# has shown.
#
# ## Where it loses
#
# **Where nobody comes back**, prompts pay for hashing and for memory that no one reads. **Where prompts are
# short for the block**, little is found: for one model with Mamba layers vLLM chose
# [blocks of 2,096](https://github.com/vllm-project/vllm/issues/53749) (August 2026). **Where answers are long**, TTFT
# shrinks and the time per token does not.

# %% tags=["hide-input", "nbval-ignore-output"]
unique = [random.Random(i).randrange(49152) for i in range(1024)]
chain = MyPrefix(BlockPool(1, BLOCK)).chain
hashing = bench.measure(lambda: list(chain(unique, 64, ())), repeats=9)
step = bench.decode_step(model, batch=1, context=1024, cache="paged")
table(
    *ch06.losses_table(
        hashing, predict(1024).seconds, kappa, rounds, step.seconds
    ),
    stack=True,
)

# %% [markdown]
# **Where the working set is one document too large.** Twelve documents of 320 tokens are asked about in turns. LRU
# throws out what was used longest ago, which is precisely what will be asked for next.

# %% tags=["hide-input"]
draws = [random.Random(d) for d in range(12)]
documents = [[d.randrange(9999) for _ in range(20 * BLOCK)] for d in draws]
cyclic = {}
for room in range(6, 16):
    prefix = HashPrefix(BlockPool(20 * room + 1, BLOCK))
    asked = [documents[i % 12] + [10_000 + i] for i in range(72)]
    cyclic[room] = sum(serve(prefix, t) for t in asked) / (72 * 320)
assert cyclic[11] == 0 and abs(cyclic[12] - 5 / 6) < 1e-9
prefix = HashPrefix(BlockPool(20 + 1, BLOCK))  # one, asked six times
asked = [documents[i // 6] + [10_000 + i] for i in range(72)]
assert sum(serve(prefix, t) for t in asked) == 5 / 6 * 72 * 320

# %% tags=["hide-input"]
ch06.cyclic_figure(cyclic)

# %% [markdown]
# The cache is eleven twelfths as large as it should be. The hit rate is zero. Here the cure is one document more of
# room, or asking all questions about a document before going on to the next: then room for one finds as much
# as room for twelve.
#
# ### Two negative controls
#
# A prefix cache can be fast and wrong. First, one that forgets the adapter. Customer A uses the small model
# as it is, customer B a fine-tuned one, and both send the same 40 tokens:

# %% tags=["hide-input", "nbval-check-output"]
tuned = copy.deepcopy(small)
for block in tuned.blocks:  # a low-rank change, as LoRA makes it
    matrix = block.attn.qkv.weight
    left = torch.randn(matrix.shape[0], 2).to(matrix)
    matrix += 0.05 * left @ torch.randn(2, matrix.shape[1]).to(matrix)
prompt = torch.randint(97, (40,)).tolist()
(truth,) = lumen.generate(tuned, [prompt], 8, eos_ids=())


def second_customer(a, b):
    """What the tuned model answers after the small one was asked."""
    store = BlockStore.for_model(small, 40, 4)
    store.prefix = MyPrefix(store.pool)
    for customer, extra in ((small, a), (tuned, b)):
        with store.rows(1) as cache:
            (done,) = lumen.generate(
                customer, [prompt], 8, eos_ids=(), cache=cache, extra=extra
            )
    return done


controls = {
    "adapter in the key": second_customer(("A",), ("B",)),
    "adapter forgotten": second_customer((), ()),
}
right = {}
for label, done in controls.items():
    pairs = zip(done.tokens, truth.tokens, strict=True)
    right[label] = sum(a == b for a, b in pairs)
    print(
        f"{label:18} {done.num_cached_tokens:2} found, "
        f"{right[label]} of 8 right"
    )
assert right["adapter in the key"] == 8 > right["adapter forgotten"]

# %% [markdown]
# The forgetful cache has the better hit rate. It answers customer B out of customer A's numbers, and nothing crashes. A *salt*
# per tenant does the same for privacy: whoever shares a prefix cache with you can tell from TTFT whether you have sent a text
# before ([measured on public services](https://arxiv.org/abs/2502.07776) in 2025).
#
# Second, one that is too generous. A prompt of exactly three blocks is asked twice, and the cache hands out all of it:

# %% tags=["hide-input", "nbval-check-output"]
exact = prompt[:12]  # three blocks of 4
for hit in (12, found(12, 12, block=4)):
    left = torch.tensor([exact[hit:]], dtype=torch.int64, device=device)
    try:
        given = f"{small.head(small.hidden(left)).shape[1]} rows of logits"
    except ValueError as error:
        given = f"{error}"
    print(f"{hit:2} of 12 found: {given}")

# %% [markdown]
# Keys and values of a whole prompt do not contain its next token. Only the last row, on its way through the model, does.
# nano-vLLM has met [the crash](https://github.com/GeeeekExplorer/nano-vllm/issues/114). vLLM once ran that one token alone
# again and met [a quieter fault](https://github.com/vllm-project/vllm/pull/11186): the last block was left out of the chain.
# Hence the rule above: whole blocks, and the last one runs again.
#
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the benchmark sends the same prompts in every repeat | a TTFT far too low | every repeat has [its own end](#predict-512-shared-32-new), and what was found is asserted |
# | the answer is sent back as *text* in the next turn | fewer hits: tokens need not survive decoding and encoding | [the chat](#predict-a-chat-of-ten-turns) carries token ids |
# | hit rate taken for correctness | a cache that forgets the adapter finds more | [logits without a cache](#equal-to-whom), and [a control that must fail](#two-negative-controls) |
#
# ## Play
#
# A prompt of five parts, in the order in which a careless programmer would concatenate them, and in a better one: watch six
# requests of two passengers find nothing, and then most of it. In a notebook the parts can be moved. They are tokenised
# by SmolLM2 and counted by `HashPrefix`.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = prompt_order_lab(tokenizer)

# %% [markdown]
# ## In production

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(
    ch06.PRODUCTION, ("engine", "what decides about prefixes", "flags")
)

# %% [markdown]
# Note what llama.cpp's last flag does: it moves old keys to new positions, which RoPE allows, and keeps what they saw, which is
# another text now. RoPE mends what made [the orange curve](#the-beginning-and-nothing-but-the-beginning) start above zero. What
# the green one shows stays wrong.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
digit = changes["one other digit"][-1]
everything = sum(hits["MyPrefix"])
markdown(
    ch06.recap(rounds, digit, ratio, expected, turns, everything, cyclic)
)
callout("takeaway", ch06.takeaway(rounds))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("06")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/06_prefix_cache.ipynb) ([solutions](../solutions/06_prefix_cache.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(grading.table("06"))

# %% [markdown]
# ## Further reading
#
# - [SGLang: Efficient Execution of Structured Language Model Programs](https://arxiv.org/abs/2312.07104) (Zheng and others,
#   2023), section 3: read it for the radix tree, and for scheduling in the order of the tree.
# - [Automatic Prefix Caching](https://docs.vllm.ai/en/latest/design/prefix_caching/) (vLLM design document): read it for block
#   hashes worked through on an example, free queue and eviction included.
# - [Prompt Cache](https://arxiv.org/abs/2311.04934) (Gim and others, 2023): read it for reuse that is not a prefix, and what
#   has to be given up for it.
# - [CacheBlend](https://arxiv.org/abs/2405.16444) (Yao and others, 2024): read it for which tokens must be computed again when
#   documents change places.
# - [Mooncake](https://arxiv.org/abs/2407.00079) (Qin and others, 2024): read it for a prefix cache that spans the memory of a
#   whole cluster.
# - [Auditing Prompt Caching in Language Model APIs](https://arxiv.org/abs/2502.07776) (Gu and others, 2025): read it for what
#   TTFT gives away about other people's prompts.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, ["prefix_cache"], chip=chip, notes=["fp32 throughout"])
