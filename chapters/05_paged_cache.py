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
# # 5 · The paged cache

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/05_paged_cache.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/05_paged_cache.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/05_paged_cache.ipynb)
#
# CPU is enough · read 35 min · run 1 min · practise 97 min · here: [exercises](../exercises/05_paged_cache.ipynb), [solutions](../solutions/05_paged_cache.ipynb)
#
# </div>

# %% [markdown]
# Give Llama-3-8B 4 GiB for keys and values, and promise every request room for 2,048 tokens, because that is how long
# it may become. A few users later the next one is turned away: the pool is full. Now open it and count what lies in it.
#
# **The pool is full and most of it holds no token. Where did the memory go?**
#
# By the end you can
#
# - name the places where reserved cache memory goes to waste, and compute each of them for a trace of lengths;
# - predict how many requests fit a pool from their mean length and the block size alone;
# - build a cache that reads through a block table, and say what that costs and what it brings in tokens per second;
# - decide from bytes and FLOPs whether a preempted request should be swapped out or computed again.
#
# Needs: [the KV cache](04_kv_cache.ipynb), [the roofline](02_roofline.ipynb).
#
# New terms: [slot](../book/glossary.md#term-slot), [block table](../book/glossary.md#term-block-table),
# [PagedAttention](../book/glossary.md#term-PagedAttention), [copy-on-write](../book/glossary.md#term-copy-on-write),
# [preemption](../book/glossary.md#term-preemption).

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

session = lumen.setup("05_paged_cache")

# %% [markdown]
# Outputs are compared for equality below, so the model runs in fp32 everywhere, on a GPU too.

# %% tags=["hide-input"]
import textwrap
from bisect import insort
from collections import deque

import numpy as np
import torch

from lumen import bench, cost, grading, hardware
from lumen.cache import (
    BlockStore,
    Cache,
    CacheFull,
    PagedCache,
    PoolCorrupt,
    StaticCache,
)
from lumen.cost.trace import (
    concurrent,
    lognormal_trace,
    reserved,
    used_share,
)
from lumen.explore import (
    PagedStepper,
    Quiz,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    samples_lab,
    table,
)
from lumen.models import CONFIGS, Llama, ModelConfig
from lumen.pages import ch05
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device
chip = hardware.measure(progress=False)

# %% [markdown]
# ## Full, and mostly empty
#
# We need requests. Prompts and answers in the wild differ in length by orders of magnitude, so we draw both from
# log-normals, cut where the limit is: medians of 180 and 120 tokens, and two thirds of all within a factor e of them.
# Seeds 0, 1 and 2 give three traces of a thousand requests; what follows shows the first, and its shares for all three.

# %% tags=["nbval-check-output"]
LIMIT = 2048  # tokens that a request may reach
BUDGET = 4 * 2**30  # bytes for keys and values
kappa = cost.kv_bytes_per_token(CONFIGS["llama-3-8b"], "bf16")
traces = [lognormal_trace(1000, LIMIT, seed=seed) for seed in (0, 1, 2)]
trace = traces[0]

positions = int(BUDGET // kappa)
slots = positions // LIMIT
print(f"{positions:,} positions of {kappa / 2**10:.0f} KiB each")
print(f"{slots} requests fit when each reserves {LIMIT:,}")
first = list(zip(trace.prompt, trace.output, strict=True))[:5]
print("prompt + answer:", ", ".join(f"{p} + {n}" for p, n in first), "…")

# %% [markdown]
# Let a server with that many slots work through the trace: a slot that becomes free takes the next request, every
# running request writes one token per step. Then stop it at step 1,000 and look into the memory.


# %% tags=["hide-input"]
def in_the_slots(trace, slots, step):
    """What each slot holds at `step`: (tokens now, tokens at its end)."""
    free_from, seen = [0] * slots, {}
    requests = zip(
        trace.prompt.tolist(), trace.output.tolist(), strict=True
    )
    for prompt, answer in requests:
        slot = free_from.index(min(free_from))
        start = free_from[slot]
        free_from[slot] = start + answer
        if start <= step < start + answer:
            # the last token of an answer is never stored
            seen[slot] = prompt + step - start, prompt + answer - 1
    return [seen[slot] for slot in range(slots)]


now, final = np.array(in_the_slots(trace, slots, 1000)).T

# %% tags=["hide-input"]
ch05.slots_figure(now, final, LIMIT)

# %% tags=["hide-input", "nbval-check-output"]
shares = [used_share(one, "max") for one in traces]
markdown(ch05.reserved_story(shares, BUDGET))

# %% [markdown]
# Two kinds of nothing, already. The ochre part is *reserved*: it will be used, only not yet, and until then nobody else
# may have it. The grey part is waste from start to end, memory inside an allocation that its owner never touches:
# **internal fragmentation**.
#
# Both come from not knowing how long an answer will be. So let us know it.
#
# ## An oracle, and a third kind of nothing
#
# Suppose someone tells us the length of every answer in advance. Each request reserves exactly what it will use, in one
# piece, and gives it back at its end. No grey part is left. Requests come in the order of the trace, each takes the
# first hole that is large enough, and the queue waits when there is none.


# %% tags=["hide-input"]
def first_fit(trace, size):
    """Exact reservations. Each step in which the queue had to wait:
    (positions needed, holes, pieces)."""
    queue = deque(
        zip(trace.prompt.tolist(), trace.output.tolist(), strict=True)
    )
    # a piece is (start, end, step in which it is given back)
    pieces, waits, step = [], [], 0
    while queue:
        step += 1
        pieces = [piece for piece in pieces if piece[2] > step]
        while queue:
            need = sum(queue[0]) - 1
            taken = [x for start, end, _ in pieces for x in (start, end)]
            edges = [0, *taken, size]
            pairs = zip(edges[::2], edges[1::2], strict=True)
            holes = [(end - start, start) for start, end in pairs]
            holes = [hole for hole in holes if hole[0]]
            fits = (start for room, start in holes if room >= need)
            at = next(fits, None)
            if at is None:
                waits.append((need, holes, pieces))
                break
            insort(pieces, (at, at + need, step + queue.popleft()[1]))
    return waits


waits = first_fit(trace, positions)

# %% tags=["hide-input"]
ch05.holes_figure(waits)

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch05.holes_story(waits, positions))

# %% [markdown]
# One could move the pieces together, and stop the machine for gigabytes of copying. One could double a piece whenever it
# is full, and copy it too. Or one could ask why a request must lie in one piece at all.
#
# It need not. Attention asks for the keys of all positions so far; that they are neighbours in memory is a convenience of
# ours. Operating systems met the same problem in the 1960s, and gave programs *pages*.
# [Kwon and others](https://arxiv.org/abs/2309.06180) brought them to the cache in 2023.
#
# ## Blocks, a table, a pool
#
# Cut the pool into blocks of a few positions each. A request owns a list of block numbers, its block table: position $p$
# lies in block `table[p // size]`, at place `p % size`. When a position is written whose block does not exist yet, one
# is taken from the pool, whichever is free.
#
# Here are three prompts and four more tokens for each (any will do), in a store of twelve blocks of four positions.

# %% tags=["hide-input", "nbval-check-output"]
store = BlockStore.for_model(model, num_blocks=12, block_size=4)
texts = (
    "Water boils at",
    "The capital of France is",
    "Once upon a time there was a house",
)
tokens, pos = lumen.pad([tokenizer.encode(t) for t in texts])
cache = store.rows(3)
model.hidden(tokens.to(device), pos.to(device), cache)
for _ in range(4):
    model.hidden(torch.tensor([[504]] * 3, device=device), None, cache)
tables = [list(blocks) for blocks in cache.tables]
lengths = cache.lengths.tolist()
for length, blocks in zip(lengths, tables, strict=True):
    print(f"{length:2} tokens, table {blocks}")
p = lengths[1] - 1
print(
    f"position {p} of the second: block {tables[1][p // 4]}, place {p % 4}"
)
cache.close()

# %% tags=["hide-input"]
ch05.map_figure(lengths, tables, blocks=12, size=4)

# %% [markdown]
# Look at what has become of the three kinds of nothing. *Reserved*: gone, memory is taken when it is written.
# *External*: gone, every hole has the size that everybody wants. *Internal*: less than a block per request, in the
# last one, which is on average half empty.
#
# Play with it: a few requests, tokens for all of them, until the pool is dry. (*Fork* and what happens then are explained
# further down.)

# %% tags=["hide-input"]
PagedStepper()

# %% [markdown]
# That is enough for a formula. In blocks of $b$ positions a request that holds $L$ tokens takes $L$ positions and 0 to
# $b - 1$ empty ones, about $(b - 1)/2$. With $\bar L$ the mean over the requests in flight,
#
# $$ \text{requests} \approx \frac{\text{positions}}{\bar L + (b - 1)/2} $$
#
# ## Predict: how many fit now?
#
# The same 4 GiB, the same traffic, nothing reserved. Picture a busy server: each request that ends is followed by the next, and
# we count those in flight at many random moments. From the list of the thousand:

# %% tags=["nbval-check-output"]
print(f"a prompt has {trace.prompt.mean():.0f} tokens on average")
print(f"an answer has {trace.output.mean():.0f}, written one by one")

# %% tags=["predict"]
my_fit = guess(
    "05-fit",
    "With blocks of 16, how many requests are in flight in 4 GiB?",
    unit="requests",
)

# %% tags=["measure", "hide-input"]
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES = [("max", 16), ("power of two", 16)]
POLICIES += [("paged", size) for size in BLOCKS]
used = {p: [used_share(one, *p) for one in traces] for p in POLICIES}
paged16 = concurrent(trace, "paged", positions, 16)
mean = shares[0] * LIMIT  # tokens that a slot of the first picture holds
expected = positions / (mean + 15 / 2)
held_once = (trace.prompt + (trace.output - 1) / 2).mean()

# %% tags=["reveal"]
reveal(
    guess=my_fit,
    model=expected,
    measured=paged16,
    unit="requests",
    what="in flight in 4 GiB",
    title=f"{paged16:.0f} requests fit where {slots} did",
    log=False,
    names=("formula", "counted"),
)

# %% tags=["reveal"]
once = positions / (held_once + 15 / 2)
markdown(
    ch05.fit_story(
        expected, paged16, slots, mean, shares[0], held_once, once
    )
)

# %% [markdown]
# Does the block size matter? Here are means of all three traces, beside the two contiguous ways. *Doubled when full*
# leaves out external fragmentation and the copying, so it looks better than it is.

# %% tags=["hide-input"]
ch05.sizes_figure(used, BLOCKS)

# %% [markdown]
# The curve falls slowly: half a block per request is little against hundreds of tokens. Blocks of 8
# instead of 16 halve a waste that hardly matters. So small blocks are not worth much, and we have yet to see what they
# cost.
#
# ### The number that everybody quotes
#
# That servers used to waste 60 to 80 % of their cache memory stands in
# [vLLM's announcement](https://blog.vllm.ai/2023/06/20/vllm.html) and, since then, everywhere. It goes back to figure 2 of
# the [paper](https://arxiv.org/abs/2309.06180), where 20.4 % (limits reserved) to 38.2 % (lengths known) of the memory held tokens.

# %% tags=["hide-input", "nbval-check-output"]
oracle = [
    float((o * (p + (o - 1) / 2)).sum() / (o * (p + o - 1)).sum())
    for p, o in ((t.prompt, t.output) for t in traces)
]
markdown(ch05.quoted_story(shares, oracle))

# %% [markdown]
# ## Build it
#
# The whole mechanism is bookkeeping of integers. `begin` runs once per forward: it makes the tables long enough, and
# turns positions into (block, place). `update` runs once per layer: it scatters the new keys there and gathers a row's
# blocks back into order. Attention itself never hears of blocks.


# %%
class MyPaged(Cache):
    """Blocks anywhere in a pool, and for each row a table of them."""

    def __init__(self, config, rows, num_blocks, size, dtype, device):
        block = size, config.num_kv_heads, config.head_dim
        shape = 2, config.num_layers, num_blocks, *block
        self.kv = torch.zeros(shape, dtype=dtype, device=device)
        self.size, self.free = size, list(range(num_blocks))
        self.tables = [[] for _ in range(rows)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)
        ends = torch.maximum(self.lengths, pos.amax(1) + 1)
        for blocks, end in zip(self.tables, ends.tolist(), strict=True):
            while len(blocks) * self.size < end:
                if not self.free:
                    raise CacheFull("No block is free.")
                blocks.append(self.free.pop(0))
        width = max(map(len, self.tables))
        padded = [b + [0] * (width - len(b)) for b in self.tables]
        self.grid = torch.tensor(padded, device=pos.device)
        # padding has position -1 and is stored nowhere
        self.row, self.column = (pos >= 0).nonzero(as_tuple=True)
        p = pos[self.row, self.column]
        self.at = self.grid[self.row, p // self.size], p % self.size
        places = torch.arange(width * self.size, device=pos.device)
        self.k_pos = torch.where(places < ends[:, None], places, -1)

    def update(self, layer, k, v, pos, q=None):
        pools = self.kv[:, layer]
        for pool, new in zip(pools, (k, v), strict=True):
            pool[self.at] = new[self.row, :, self.column]
        k, v = (
            pool[self.grid].flatten(1, 2).transpose(1, 2) for pool in pools
        )
        return k, v, self.k_pos


# %% [markdown]
# `lumen.PagedCache` is the same with its input checked, all blocks taken before anything changes, and blocks that can be
# shared, which we come to.
#
# Equal to whom? To no cache at all: one causal `scaled_dot_product_attention` over the whole text, which knows of no
# table. A small random model in float64 with nine query and three KV heads, 23 tokens in chunks of 1, 4 and 23, and blocks
# of 1, 5 and 16, so that hardly anything ends where a block ends.


# %% tags=["hide-input"]
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def in_chunks(tokens, size, cache):
    parts = tokens.split(size, 1)
    return torch.cat([small(part, None, cache) for part in parts], 1)


torch.manual_seed(0)
shape = ModelConfig(
    name="small", vocab_size=97, num_layers=3, hidden_size=72, num_heads=9,
    num_kv_heads=3, head_dim=8, intermediate_size=100, max_positions=64,
)  # fmt: skip
small = Llama(shape).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
tokens = torch.randint(97, (2, 23), device=device)
whole, double, errors = small(tokens), torch.float64, {}
for size in (1, 5, 16):
    for chunk in (1, 4, 23):
        mine = MyPaged(shape, 2, 60, size, double, device)
        theirs = PagedCache(BlockStore(shape, 60, size, double, device), 2)
        ours = in_chunks(tokens, chunk, mine)
        lumens = in_chunks(tokens, chunk, theirs)
        assert mine.tables == theirs.tables
        errors[size, chunk] = max(
            relative_error(ours, whole), relative_error(ours, lumens)
        )

# %% tags=["hide-input", "nbval-check-output"]
for size in (1, 5, 16):
    same = all(errors[size, chunk] < 1e-14 for chunk in (1, 4, 23))
    print(f"blocks of {size:2} = no cache = PagedCache: {same}")
assert max(errors.values()) < 1e-14

# %% [markdown]
# The blocks are exact: they change where a number lies, and no number. What they do change is how it is read.
#
# ## What our version pays
#
# `pool[self.grid]` is a *copy*. For every layer and every step, the row's blocks are written out once more, in order,
# and attention reads the copy. `lumen.PagedCache` does the same with `index_select`. A real kernel for
# PagedAttention does not: it looks the block number up while it reads, and nothing is moved.
#
# In bytes, the copy reads and writes the whole cache once more, as growing by concatenation did in chapter 4. One user,
# 4,096 tokens cached:

# %% tags=["predict"]
my_price = guess(
    "05-price",
    "A decode step with our paged cache takes how many times one with a "
    "static cache?",
    unit="×",
)


# %% tags=["measure", "hide-input", "nbval-ignore-output"]
def filled(cache, lengths):
    """`cache` as if rows of these lengths had gone through: random keys."""
    longest, rows = max(lengths), len(lengths)
    before = longest - torch.tensor(lengths)[:, None]  # padding, left
    pos = (torch.arange(longest) - before).clamp(min=-1).to(device)
    size = 2, rows, config.num_kv_heads, longest, config.head_dim
    cache.begin(pos)
    for layer in range(config.num_layers):
        k, v = torch.randn(size, device=device)
        cache.update(layer, k, v, pos)
    cache.advance(pos)
    return cache


def one_step(cache, lengths):
    """A decode step of all rows, that can be taken again and again."""
    filled(cache, lengths)
    token = torch.full((len(lengths), 1), 504, device=device)

    def step():
        model.head(model.hidden(token, None, cache)[:, -1])
        cache.rewind(lengths)

    return step


def paged(lengths, size=16):
    blocks = sum(-(-(n + 1) // size) for n in lengths)
    store = BlockStore.for_model(model, blocks, size)
    return one_step(store.rows(len(lengths)), lengths)


def static(lengths):
    room = max(lengths) + 1
    cache = StaticCache.for_model(model, len(lengths), room)
    return one_step(cache, lengths)


# %% tags=["measure", "hide-input", "nbval-ignore-output"]
steps = {
    n: bench.compare(
        {"static": static([n]), "paged": paged([n])},
        repeats=16,
        warmup=2,
    )
    for n in (1024, 4096)
}
slower = ch05.slower(steps[4096])
by_model = [
    cost.predict_decode(config, chip, 4096, dtype="fp32", cache=c).seconds
    for c in ("paged", "static")
]

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_price,
    model=by_model[0] / by_model[1],
    measured=[slower.low, slower.value, slower.high],
    unit="×",
    what="paged step over static step",
    title=ch05.slower_title(slower, 4096),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch05.price_table(steps, config, chip, "fp32"), stack=True)
alone = ch05.by_bytes(config, 4096, "fp32")
markdown(ch05.price(slower, by_model[0] / by_model[1], alone, 4096))

# %% [markdown]
# A kernel that reads through the table does not copy. It pays for look-ups, branches and
# unequal lengths: the paper measured 20 to 26 % on the attention kernel alone, over FasterTransformer's (section 7.1).
#
# So this version buys memory with time, and one user alone gets nothing for it. What do many get?
#
# ## Predict: what the memory brings
#
# Give SmolLM2 a small pool: 4,096 positions. Reserving the limit of 2,048, it holds two requests. In blocks of 16 it
# holds as many of the requests of the first picture, in their order, as there is room for. Each takes one step: few rows
# without a gather, or many rows with it.

# %% tags=["hide-input", "nbval-check-output"]
POOL = 4096
need = np.cumsum(-(-(now + 1) // 16) * 16)  # one token more for each
crowd = now[need <= POOL].tolist()
pair = now[: POOL // LIMIT].tolist()
print(f"reserved: {len(pair)} requests; in blocks: {len(crowd)} requests")

# %% tags=["predict"]
my_gain = guess(
    "05-gain",
    "Tokens a second in blocks: how many times those with reservations?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
both = bench.compare(
    {"pair": static(pair), "crowd": paged(crowd)}, repeats=16, warmup=2
)
rows = len(pair), len(crowd)
gain = ch05.gain(both["pair"], both["crowd"], rows)
forecast = ch05.gain_by_model(config, chip, pair, crowd)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_gain,
    model=forecast,
    measured=[gain.low, gain.value, gain.high],
    unit="×",
    what="tokens a second, blocks over reservations",
    title=ch05.gain_title(gain),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch05.gain_story(both["pair"], both["crowd"], rows, forecast))

# %% [markdown]
# Blocks have a second gift, which contiguous memory cannot give.
#
# ## Four answers to one prompt
#
# Ask for four answers to the same prompt. All four begin with the same tokens, so they have the same keys and values,
# and a block does not care how many tables it stands in. `select([0, 0, 0, 0])` makes four rows of one and copies
# nothing: it writes four lists, and the pool counts how many tables hold each block.
#
# Then every row gets a token of its own, and the last block is only partly full. Whoever writes to a block that others
# read must copy it first: copy-on-write. Here the four likeliest first tokens are each continued greedily.

# %% tags=["hide-input"]
STORY = """A lighthouse keeper finds a bottle with a letter in it. The paper
is dry, the ink has hardly faded, and the date on the letter is next Tuesday.
She reads it twice, puts the kettle on, and looks out at the water for a long
time. The letter begins with"""

# %% tags=["hide-input"]
NEW = 24
ids = tokenizer.encode(" ".join(STORY.split()))
prompt = torch.tensor([ids], device=device)
store = BlockStore.for_model(model, num_blocks=48, block_size=16)


def go_on(cache, first):
    """`NEW` tokens a row: `first`, then greedy. Tokens, blocks taken."""
    token, tokens = first, []
    blocks = [store.pool.num_blocks - store.pool.num_free]
    for _ in range(NEW):
        tokens.append(token)
        hidden = model.hidden(token[:, None], None, cache)[:, -1]
        token = model.head(hidden).argmax(-1)
        blocks.append(store.pool.num_blocks - store.pool.num_free)
    return torch.stack(tokens, 1), blocks, hidden


# %%
with store.rows(1) as cache:
    hidden = model.hidden(prompt, None, cache)[:, -1]
    first = model.head(hidden)[0].topk(4).indices
    cache.select([0, 0, 0, 0])
    start = [list(blocks) for blocks in cache.tables]
    answers, shared, end = go_on(cache, first)
    forked = [list(blocks) for blocks in cache.tables]
    store.audit()
with store.rows(4) as cache:
    model.hidden(prompt.expand(4, -1), None, cache)
    alone, apart, end_alone = go_on(cache, first)
assert torch.equal(answers, alone)
assert relative_error(end, end_alone) < 1e-4

# %% tags=["hide-input", "nbval-check-output"]
print(f"{len(ids)} tokens; the last block of 16 holds {len(ids) % 16}")
print("select, all four:", start[0])
assert all(blocks == start[0] for blocks in start)
for i, blocks in enumerate(forked):
    print(f"answer {i + 1}, end:   ", blocks)
for row in answers[:, :12].tolist():
    text = " ".join(tokenizer.decode(row).split())
    print("…", textwrap.shorten(text, 70, placeholder=" …"))

# %% tags=["hide-input", "nbval-check-output"]
table(*ch05.samples_table(shared, apart))
markdown(ch05.samples_story(shared, apart, len(ids) // 16))

# %% [markdown]
# Beam search is the same `select` at every step, with some rows dropped and others doubled. And if four answers may
# share a prompt, why not two users? Because someone has to notice that their prompts agree. That is
# [the next chapter](06_prefix_cache.ipynb).
#
# ## When the pool runs dry
#
# Reserving had one virtue: a request that was let in could always finish. On demand there is no such promise. Every
# running request wants a block now and then, and one day there is none. Someone must give theirs up, all of them, for a
# step reads every block of its row. That is preemption. The tokens are known, so nothing is lost but work, and there
# are two ways to get it back.
#
# - **Recompute**: give the blocks back, and later run prompt and answer so far through the model as if they were a prompt.
# - **Swap**: copy the blocks to the host's memory, and later copy them into whatever blocks are free then. `swap_out`
#   gathers the row on the host and frees its blocks; `swap_in` takes new ones and scatters it there.
#
# Both on one row of 512 tokens, until the row could go on:

# %% tags=["hide-input", "nbval-ignore-output"]
LENGTH = 512
store = BlockStore.for_model(model, LENGTH // 16 + 1, block_size=16)
cache = store.rows(1)
tokens = torch.randint(1000, 40_000, (1, LENGTH), device=device)
model.hidden(tokens, None, cache)


def next_logits():
    token = torch.tensor([[504]], device=device)
    logits = model.head(model.hidden(token, None, cache)[:, -1])
    cache.rewind([LENGTH])
    return logits


def swap():
    row = cache.swap_out(0)
    assert store.pool.num_free == store.pool.num_blocks
    cache.swap_in(0, row)


never = next_logits()
swapping = bench.measure(swap, 12)
swapped = next_logits()
cache.rewind([0])
model.hidden(tokens, None, cache)
off = {
    "swapped": relative_error(swapped, never),
    "recomputed": relative_error(next_logits(), never),
}
assert max(off.values()) < 1e-4
again = bench.prefill(model, prompt=LENGTH)

# %% tags=["hide-input", "nbval-ignore-output"]
row_bytes = cost.kv_bytes(config, LENGTH, 1, "fp32")
table(*ch05.preempted_table(swapping, again, row_bytes, off))
markdown(ch05.swap_story(swapping, again, device.type == "cpu"))

# %% [markdown]
# On a card it is a race between two machines: the bus, which must carry a token's $\kappa$ bytes of cache twice, and the
# arithmetic, which needs about $2N$ FLOPs per token once, with $N$ parameters. Both times grow with the length $L$, so from
# a few hundred tokens to several thousand it hardly matters (below, reading the weights takes longer than the arithmetic;
# beyond, attention makes computing dearer). What decides is a rate. Swapping wins when
#
# $$ \text{bus} > \frac{2 \kappa L}{t_\text{recompute}(L)} \approx \kappa \, \frac{\text{peak}}{N} $$
#
# Assumed for the bus is PCIe at its full rate in one direction: 64 GB/s for an H100 SXM (Gen5), 32 GB/s for an A100 and
# an L4 (Gen4). NVIDIA's data sheets print 128, 64 and 64, which count both directions.

# %% tags=["hide-input", "nbval-check-output"]
table(*ch05.race_table())

# %% [markdown]
# All *predicted*, bounds from data sheets. With Llama-3's few KV heads a token is cheap to move and dear to compute, and
# swapping wins on all three. Llama-2-7B moves four times the bytes, and on an H100 a thousand tokens are computed faster
# than moved. (32,768 would be moved faster; it was made for 4,096.)

# %% tags=["hide-input", "nbval-check-output"]
link = hardware.host_link("H100 SXM").bandwidth
assert ch05.break_even("llama-2-7b", "H100 SXM") > link
assert ch05.break_even("llama-2-7b", "H100 SXM", 32_768) < link
for card in ch05.CARDS:
    link = hardware.host_link(card).bandwidth
    assert ch05.break_even("llama-3-8b", card) < link
markdown(ch05.recompute_story())

# %% tags=["hide-input"]
ch05.pieces_figure()

# %% [markdown]
# That was Llama-3-8B. The paper saw the same shape: swapping wins with large blocks, recomputing with small ones, and
# between 16 and 64 they are about equal (section 7.3). A cure is to gather a request's blocks on the card first and
# send keys and values in one transfer each, as `swap_out` does. Swapping also needs memory on the host and code for a
# second place of blocks; and arithmetic may be idle while many rows [decode](../book/glossary.md#term-decode).
#
# ## Which block size, then?
#
# What depends on it, in one table, for Llama-3-8B in bf16.

# %% tags=["hide-input", "nbval-check-output"]
table(*ch05.choice_table(used, LIMIT), stack=True)

# %% [markdown]
# Waste and the price of a copy grow with the block; the table, the pieces and the look-ups shrink. The paper found 16 to
# 128 best on long chats, 16 and 32 on short instructions (section 7.2). Defaults differ: 16 in vLLM, 32 in TensorRT-LLM,
# and 1 in SGLang, where strangers then share a prompt to its last common token. The next chapter does that.
#
# ## Who owns a block?
#
# A pool of counts and lists invites a kind of bug that no crash reports. A block is given back while it still stands in
# somebody's table. Nothing happens, until the pool hands it to another request. Then two strangers write over each
# other's memory, and both go on speaking fluently.
# [Pull request 142 of mini-sglang](https://github.com/sgl-project/mini-sglang/pull/142) reports one of that kind.
#
# Hence audits of the pool when the engine is idle; mini-sglang calls one, and for its tree of shared prefixes it
# [was still to be written](https://github.com/sgl-project/mini-sglang/issues/149) when we looked. The obvious audit adds
# up: free blocks plus blocks in tables equals all blocks. As a negative control, we make the mistake on purpose.

# %% tags=["nbval-check-output"]
store = BlockStore.for_model(model, num_blocks=8, block_size=16)


def audit_by_counts():
    tables = [blocks for cache in store.caches for blocks in cache.tables]
    held = {block for blocks in tables for block in blocks}
    return store.pool.num_free + len(held) == store.pool.num_blocks


def audit_by_owners():
    try:
        store.audit()
        return "passes"
    except PoolCorrupt as problem:
        return textwrap.fill(f"fails: {problem}", 33)


one = torch.tensor([ids[:40]], device=device)
ours = store.rows(1)
model.hidden(one, None, ours)
print("before: counts add up:", audit_by_counts())
print("owners:", audit_by_owners())

store.pool.release(ours.tables[0])  # the mistake: they stay in the table
print("then:   counts add up:", audit_by_counts())
stranger = store.rows(1)
bread = "To bake a loaf of bread, mix flour, water, salt and yeast. " * 5
recipe = tokenizer.encode(bread)[:40]
model.hidden(torch.tensor([recipe], device=device), None, stranger)
print("after:  counts add up:", audit_by_counts())
print("owners:", audit_by_owners())


# %% tags=["hide-input", "nbval-ignore-output"]
def greedy(cache, token, count=14):
    """`count` tokens after `token`, and the first logits."""
    tokens, logits = [], []
    for _ in range(count):
        given = torch.tensor([[token]], device=device)
        logits.append(model(given, None, cache)[0, -1])
        token = int(logits[-1].argmax())
        tokens.append(token)
    return " ".join(tokenizer.decode(tokens).split()), logits[0]


intact = StaticCache.for_model(model, 1, 60)
model.hidden(one, None, intact)
wrong, right = greedy(ours, ids[40]), greedy(intact, ids[40])
damage = relative_error(wrong[1], right[1])
for name, text in (
    ("the prompt", tokenizer.decode(ids[30:41])),
    ("right", right[0]),
    ("the mistake", wrong[0]),
):
    short = textwrap.shorten(text, 58, placeholder=" …")
    print(f"{name + ':':12} … {short}")

# %% tags=["hide-input", "nbval-ignore-output"]
assert damage > 0.01
markdown(ch05.owners_story(damage))

# %% [markdown]
# ## Where it loses
#
# Paging sells one thing, memory that would be empty. Where nothing would be empty, only its price is left.

# %% tags=["hide-input", "nbval-ignore-output"]
longest = np.full(200, LIMIT)  # everybody fills the limit
packed = {
    policy: float(positions // reserved(longest, policy, LIMIT).max())
    for policy in ("max", "paged")
}
table(*ch05.losses_table(packed, slower), stack=True)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | each request counted once | more of them fit than in a busy server | both means, in [the first reveal](#predict-how-many-fit-now) |
# | a swap where host and device share their memory | swapping wins by a factor that no card will see | [bytes over a bus](#when-the-pool-runs-dry), for cards with one |
# | equal text taken for intact blocks | a corrupted row still writes fluently | logits compared, [owners audited](#who-owns-a-block) |
#
# ## Play
#
# The live lab draws several answers to your own prompt over shared blocks, and counts.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = samples_lab(model, tokenizer, prompt=" ".join(STORY.split()))

# %% [markdown]
# ## In production

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch05.PRODUCTION)

# %% [markdown]
# [vAttention](https://arxiv.org/abs/2405.04437) goes another way: it keeps the addresses contiguous and lets the GPU's
# own virtual memory put pages behind them, so that kernels need no table.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
free = ch05.holes_free(waits, positions)
taken = shared[-1], apart[-1]
counted = expected, paged16
markdown(
    ch05.recap(now, final, LIMIT, free, counted, used, slower, gain, taken)
)
callout("takeaway", ch05.takeaway(slots, paged16, used))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("05")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/05_paged_cache.ipynb) ([solutions](../solutions/05_paged_cache.ipynb)). Checks answer at
# once and say what went wrong.

# %% tags=["hide-input"]
markdown(grading.table("05"))

# %% [markdown]
# ## Further reading
#
# - [Efficient Memory Management for Large Language Model Serving with PagedAttention](https://arxiv.org/abs/2309.06180)
#   (Kwon and others, 2023): read it for sections 3 and 4, the three kinds of waste and the block manager, and for section 7,
#   where the design is taken apart.
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for the system that
#   paging was compared with, and for how it reserved memory.
# - [vAttention](https://arxiv.org/abs/2405.04437) (Prabhu and others, 2024): read it for the case against block tables in
#   kernels, made by people who measured it.
# - [Llumnix](https://arxiv.org/abs/2406.03243) (Sun and others, 2024): read it for what preemptions and fragmentation do to
#   tail latency over several replicas, and for moving live requests instead.
# - [The one-level storage system of Atlas](https://doi.org/10.1109/TEC.1962.5219356) (Kilburn and others, 1962): read it for
#   pages on demand, page tables and the question whom to evict, in a machine with 16,384 words of core store.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    chip=chip,
    notes=("traces are log-normal, seeds 0, 1, 2 (lumen.cost.trace)",),
)
