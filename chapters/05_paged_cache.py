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
# **The pool is full and most of it holds no token; where is it?**
#
# By the end you can
#
# - name the places where reserved cache memory goes to waste, and compute each of them for a trace of lengths;
# - predict how many requests fit a pool from their mean length and the block size alone;
# - write a block table that appends, forks, copies on write, and say for every block who owns it;
# - decide from bytes and FLOPs whether a preempted request should be swapped out or computed again.
#
# Needs: [the KV cache](04_kv_cache.ipynb), [the roofline](02_roofline.ipynb).

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

session = lumen.setup("05_paged_cache")

# %% [markdown]
# Equality is half of this chapter, so the model runs in fp32 everywhere, on a GPU too.

# %%
from bisect import insort
from collections import deque

import numpy as np
import torch

from lumen import bench, cost, hardware
from lumen.cache import BlockStore, Cache, CacheFull, PagedCache, PoolCorrupt, StaticCache
from lumen.cost.trace import Trace, concurrent, lognormal_trace, used_share
from lumen.explore import callout, figure, label_line, markdown, palette, reveal, table
from lumen.explore.theme import log_axis
from lumen.models import CONFIGS, Llama, ModelConfig
from lumen.sampling import SamplingParams, distribution, draw, generators

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config, device = model.config, session.device

# %% [markdown]
# ## Full, and mostly empty
#
# We need requests. Prompts and answers in the wild differ in length by orders of magnitude, so we draw both from
# log-normals, cut where the limit is: medians of 180 and 120 tokens, and two thirds of all within a factor e of them.
# Seeds 0, 1 and 2 give three traces of a thousand requests; what follows uses the first and reports the others.

# %% tags=["nbval-check-output"]
LIMIT, BUDGET = 2048, 4 * 2**30  # tokens a request may reach; bytes for keys and values
llama = CONFIGS["llama-3-8b"]
traces = [lognormal_trace(1000, LIMIT, seed=seed) for seed in (0, 1, 2)]
trace = traces[0]

positions = int(BUDGET // cost.kv_bytes_per_token(llama, "bf16"))
slots = positions // LIMIT
print(f"{positions:,} positions of {cost.kv_bytes_per_token(llama, 'bf16') / 2**10:.0f} KiB each")
print(f"{slots} requests fit when each reserves {LIMIT:,}")
first = zip(trace.prompt[:5], trace.output[:5], strict=True)
print("the first five, prompt + answer:", ", ".join(f"{p} + {n}" for p, n in first))

# %% [markdown]
# Let a server with that many slots work through the trace: a slot that becomes free takes the next request, every
# running request writes one token per step. Then stop it at step 1,000 and look into the memory.


# %%
def in_the_slots(trace, slots, step):
    """What each slot holds at `step`: (tokens now, tokens at the end of its request)."""
    free_from, seen = [0] * slots, {}
    for prompt, answer in zip(trace.prompt.tolist(), trace.output.tolist(), strict=True):
        slot = free_from.index(min(free_from))
        start, free_from[slot] = free_from[slot], free_from[slot] + answer
        if start <= step < start + answer:
            seen[slot] = prompt + step - start, prompt + answer - 1  # the last token is never stored
    return [seen[slot] for slot in range(slots)]


now, final = np.array(in_the_slots(trace, slots, 1000)).T
held, to_come, never = now.sum(), (final - now).sum(), (LIMIT - final).sum()

# %% tags=["hide-input"]
rows = [f"request {i + 1}" for i in range(slots)]
fig = figure(
    f"The pool is full; {held / positions:.0%} of it holds tokens, {never / positions:.0%} never will",
    x="positions of 128 KiB", y="slot", height=420,
)  # fmt: skip
for name, values, color in (
    ("holds a token", now, palette.blue),
    ("will hold one", final - now, palette.ochre),
    ("never used", LIMIT - final, "rgba(128,136,144,.25)"),
):
    fig.add_bar(x=values, y=rows, orientation="h", marker_color=color, name=name)
fig.update_layout(barmode="stack", bargap=0.25, showlegend=True, legend_traceorder="normal")
fig.update_yaxes(autorange="reversed", title_text=None, tickvals=rows[::5])
fig

# %% tags=["hide-input", "nbval-check-output"]
shares = [used_share(one, "max") for one in traces]
markdown(
    f"Over the whole trace, {shares[0]:.0%} of the reserved positions hold a token on average ({shares[1]:.0%} and "
    f"{shares[2]:.0%} for the other two seeds). So of 4 GiB, {BUDGET * (1 - shares[0]) / 2**30:.1f} GiB are paid for "
    "and empty."
)

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


# %%
def first_fit(trace, size):
    """Exact reservations in one piece. For every step in which the queue had to wait: (needed, holes, pieces)."""
    queue = deque(zip(trace.prompt.tolist(), trace.output.tolist(), strict=True))
    pieces, waits, step = [], [], 0  # a piece is (start, end, step in which it is given back)
    while queue:
        step += 1
        pieces = [piece for piece in pieces if piece[2] > step]
        while queue:
            need = sum(queue[0]) - 1
            edges = [0, *(x for start, end, _ in pieces for x in (start, end)), size]
            holes = [
                (end - start, start)
                for start, end in zip(edges[::2], edges[1::2], strict=True)
                if end > start
            ]
            at = next((start for room, start in holes if room >= need), None)
            if at is None:
                waits.append((need, holes, pieces))
                break
            insort(pieces, (at, at + need, step + queue.popleft()[1]))
    return waits


waits = first_fit(trace, positions)
total = [sum(room for room, _ in holes) for _, holes, _ in waits]
enough = [free >= need for (need, _, _), free in zip(waits, total, strict=True)]

# %% tags=["hide-input"]
worst = max(range(len(waits)), key=lambda i: total[i] * enough[i])
need, holes, pieces = waits[worst]
largest = max(room for room, _ in holes)
fig = figure(
    f"{total[worst]:,} positions free, and no hole for {need:,} in one piece",
    x="position in the pool", y="pool", height=190,
)  # fmt: skip
for items, color in (
    ([(s, e - s) for s, e, _ in pieces], palette.blue),
    ([(s, r) for r, s in holes], palette.orange),
):
    fig.add_bar(
        base=[start for start, _ in items], x=[length for _, length in items], y=["pool"] * len(items),
        orientation="h", marker={"color": color, "line": {"color": "white", "width": 1}},
    )  # fmt: skip
fig.update_layout(barmode="overlay", bargap=0.2)
fig.update_yaxes(visible=False)
label_line(fig, 0, "pool", "blue: taken, orange: free", anchor="left", shift=52)
fig

# %% tags=["hide-input", "nbval-check-output"]
fragmented = np.mean(enough)
empty = np.mean([free for free, ok in zip(total, enough, strict=True) if ok]) / positions
markdown(
    f"That was the worst moment: {len(holes)} holes, the largest of {largest:,} positions. In {len(waits):,} steps the queue had to wait, and in {fragmented:.1%} of those there "
    f"*was* enough free memory for the next request, {empty:.0%} of the pool on average, but no hole was large enough. "
    "This is **external fragmentation**: memory between the allocations, too cut up to be of use."
)

# %% [markdown]
# One could move the pieces together, and stop the machine for gigabytes of copying. One could double a piece whenever it
# is full, and copy it too. Or one could ask why a request must lie in one piece at all.
#
# It need not. Attention asks for the keys of all positions so far; that they are neighbours in memory is a convenience of
# ours. Operating systems met the same problem in the 1960s, and gave programs *pages*.
#
# ## Blocks, a table, a pool
#
# Cut the pool into blocks of a few positions each. A request owns a list of block numbers, its
# [block table](../book/glossary.md#term-block-table): position $p$ lies in block `table[p // size]`, at place
# `p % size`. When a position is written whose block does not exist yet, one is taken from the pool, whichever is free.
#
# Here are three prompts in a store of twelve blocks of four positions.

# %% tags=["nbval-check-output"]
store = BlockStore.for_model(model, num_blocks=12, block_size=4)
prompts = [
    tokenizer.encode(t)
    for t in ("Water boils at", "The capital of France is", "Once upon a time there was a house")
]
tokens, pos = lumen.pad(prompts, device=device)
cache = store.rows(3)
model.hidden(tokens, pos, cache)
for ids, blocks in zip(prompts, cache.tables, strict=True):
    print(f"{len(ids):2} tokens, table {blocks}")
last = len(prompts[2]) - 1
print(f"position {last} of the third lies in block {cache.tables[2][last // 4]}, place {last % 4}")
empty_places = 4 * sum(map(len, cache.tables)) - sum(map(len, prompts))
print(f"{store.pool.num_free} of 12 blocks are free; {empty_places} positions in taken blocks are empty")
cache.close()

# %% [markdown]
# Look at what has become of the three kinds of nothing. *Reserved*: gone, memory is taken when it is written.
# *External*: gone, every hole has the size that everybody wants. *Internal*: at most one block per request, the last
# one, which is on average half empty.
#
# That is enough for a formula. A request that holds $L$ tokens takes $L$ positions and about half a block more. With
# $\bar L$ the mean over the requests in flight, in blocks of $b$ positions,
#
# $$ \text{requests} \approx \frac{\text{positions}}{\bar L + (b - 1)/2} $$
#
# ## Predict: how many fit now?
#
# The same 4 GiB, the same trace, nothing reserved. A request taken at a random moment of its life holds its prompt and half
# of its answer. **With blocks of 16 positions, how many requests fit?**

# %% tags=["predict"]
my_guess = 40.0  # requests in the same 4 GiB

# %% tags=["measure"]
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)
POLICIES = [("max", 16), ("power of two", 16), *(("paged", size) for size in BLOCKS)]
fit = {p: [concurrent(one, p[0], positions, p[1]) for one in traces] for p in POLICIES}
used = {p: [used_share(one, p[0], p[1]) for one in traces] for p in POLICIES}
mean_held = float((trace.prompt + (trace.output - 1) / 2).mean())
expected = positions / (mean_held + 15 / 2)

# %% tags=["reveal", "hide-input", "hide-output"]
paged16 = float(np.mean(fit["paged", 16]))
reveal(
    guess=my_guess, model=expected, measured=fit["paged", 16], unit="requests", what="in flight in 4 GiB",
    title=f"{paged16:.0f} requests fit where {slots} did", log=False,
)  # fmt: skip

# %% tags=["hide-input", "nbval-check-output"]
weighted = float((trace.output * (trace.prompt + (trace.output - 1) / 2)).sum() / trace.output.sum())
busy = positions / (weighted + 15 / 2)
markdown(
    f"The formula says {expected:.0f}, with $\\bar L$ = {mean_held:.0f}; counting says {paged16:.0f}, a little less, because "
    f"the last request must fit whole. That is **{paged16 / slots:.1f} times** as many as before.\n\n"
    "One caution. The count takes every request of the trace once, at a moment of its own. A busy server sees long "
    "answers more often, because they stay longer. Weighted by steps, $\\bar L$ is "
    f"{weighted:.0f} and **{busy:.0f}** fit. Still {busy / slots:.1f} times as many; which of the two a paper reports is "
    "worth a look."
)

# %% [markdown]
# Does the block size matter? Here are all of them, beside the two contiguous ways. *Power of two* doubles a piece when
# it is full; its row leaves out external fragmentation and the copying, so it looks better than it is.

# %% tags=["hide-input", "nbval-check-output"]
names = {("max", 16): "contiguous, the limit", ("power of two", 16): "contiguous, doubled"}
names |= {("paged", size): f"blocks of {size}" for size in BLOCKS}
table(
    [[names[p], *(f"{100 * s:.1f}" for s in used[p]), f"{np.mean(fit[p]):.1f}"] for p in POLICIES],
    ["memory is taken", "holds tokens, seed 0 (%)", "seed 1", "seed 2", "requests that fit, mean"],
    align="lrrrr",
)

# %% tags=["hide-input"]
share_of = [100 * float(np.mean(used["paged", size])) for size in BLOCKS]
fig = figure(
    f"Blocks of 16 leave {100 - share_of[4]:.1f} % empty, blocks of 128 {100 - share_of[7]:.1f} %; reserving leaves {100 - 100 * np.mean(used['max', 16]):.0f} %",
    x="block size (positions)", y="taken memory that holds tokens (%)", log_x=True,
)  # fmt: skip
fig.add_scatter(x=BLOCKS, y=share_of, mode="lines+markers", line_color=palette.blue)
for p, name, color in (
    (("power of two", 16), "contiguous, doubled when full", palette.ochre),
    (("max", 16), "contiguous, the limit", palette.orange),
):
    level = 100 * float(np.mean(used[p]))
    fig.add_scatter(x=[1, 128], y=[level, level], mode="lines", line={"color": color, "dash": "dot"})
    label_line(fig, 1, level, name, color, anchor="left", shift=11)
label_line(fig, 2, share_of[1], "paged", palette.blue, anchor="left", shift=-16)
log_axis(fig, "x", BLOCKS)
fig.update_yaxes(range=[0, 104])
fig

# %% tags=["hide-input"]
try:
    kept = bench.load_evidence("paged_memory")["data"]["rows"]
    row = next(r for r in kept if r["policy"] == "paged" and r["block_size"] == 16)
    text = (
        f"The published run (`benchmarks/paged_memory.py`) has {100 * np.mean(row['share']):.1f} % and "
        f"{np.mean(row['fit']):.1f} requests for blocks of 16; this page {share_of[4]:.1f} % and {paged16:.1f}."
    )
except FileNotFoundError:
    text = "No published run of `benchmarks/paged_memory.py` is at hand; nothing here is timed, so it would say the same."
markdown(text)

# %% [markdown]
# The curve falls slowly: half a block per request is little against hundreds of tokens. Blocks of 8
# instead of 16 halve a waste that hardly matters. So small blocks are not worth much, and we have yet to see what they
# cost.
#
# ### The number that everybody quotes
#
# That servers used to waste 60 to 80 % of their cache memory stands in
# [vLLM's announcement](https://blog.vllm.ai/2023/06/20/vllm.html) and, since then, everywhere. It goes back to figure 2 of
# the [paper](https://arxiv.org/abs/2309.06180), where between 20.4 and 38.2 % of the memory held tokens.

# %% tags=["hide-input", "nbval-check-output"]
ends = [cost.wasted_share(share, 1) for share in (0.382, 0.204)]
oracle = [
    float((o * (p + (o - 1) / 2)).sum() / (o * (p + o - 1)).sum())
    for p, o in ((t.prompt, t.output) for t in traces)
]
markdown(
    f"That is {ends[0]:.1%} and {ends[1]:.1%} of waste, so the arithmetic agrees. But the two ends are no error bar. The "
    "lower share is a system that reserves the limit; the upper one is *the oracle*, which knows every length, on their "
    "model, their trace and their allocator. Our reserving server holds tokens in "
    f"{min(shares):.0%} to {max(shares):.0%} of its memory, near the first end. Our oracle's pieces are {min(oracle):.0%} to "
    f"{max(oracle):.0%} full over their lives, before the holes between them are counted. Quote the range with its "
    "systems, or compute your own: it takes a list of lengths."
)

# %% [markdown]
# ## Build it
#
# The whole mechanism is bookkeeping of integers. `begin` runs once per forward: it makes the tables long enough, and
# turns positions into (block, place). `update` runs once per layer: it scatters the new keys there and gathers a row's
# blocks back into order. Attention itself never hears of blocks.


# %%
class MyPaged(Cache):
    """Blocks anywhere in a pool, one table per row, one count of holders per block."""

    def __init__(self, config, rows, num_blocks, size, dtype=torch.float32, device="cpu"):
        shape = 2, config.num_layers, num_blocks, size, config.num_kv_heads, config.head_dim
        self.kv, self.size = torch.zeros(shape, dtype=dtype, device=device), size
        self.free, self.holders = list(range(num_blocks)), [0] * num_blocks
        self.tables = [[] for _ in range(rows)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def take(self):
        if not self.free:
            raise CacheFull("No block is free.")
        self.holders[self.free[0]] = 1
        return self.free.pop(0)

    def begin(self, pos):
        super().begin(pos)
        ends = torch.maximum(self.lengths, pos.amax(1) + 1)
        for blocks, held, end in zip(self.tables, self.lengths.tolist(), ends.tolist(), strict=True):
            if end > held and held % self.size and self.holders[blocks[-1]] > 1:
                old, blocks[-1] = blocks[-1], self.take()  # shared, and about to be written: copy
                self.holders[old] -= 1
                self.kv[:, :, blocks[-1]] = self.kv[:, :, old]
            blocks += [self.take() for _ in range(-(-end // self.size) - len(blocks))]
        width = max(map(len, self.tables))
        self.grid = torch.tensor([b + [0] * (width - len(b)) for b in self.tables], device=pos.device)
        self.row, self.column = (pos >= 0).nonzero(as_tuple=True)  # padding is stored nowhere
        p = pos[self.row, self.column]
        self.at = self.grid[self.row, p // self.size], p % self.size
        slots = torch.arange(width * self.size, device=pos.device)
        self.k_pos = torch.where(slots < ends[:, None], slots, -1)

    def update(self, layer, k, v, pos, q=None):
        for pool, new in zip(self.kv[:, layer], (k, v), strict=True):
            pool[self.at] = new[self.row, :, self.column]
        k, v = (pool[self.grid].flatten(1, 2).transpose(1, 2) for pool in self.kv[:, layer])
        return k, v, self.k_pos

    def select(self, rows):
        self.tables, self.lengths = [list(self.tables[i]) for i in rows], self.lengths[rows]
        self.holders = [sum(block in b for b in self.tables) for block in range(len(self.holders))]
        self.free = [block for block, count in enumerate(self.holders) if not count]


# %% [markdown]
# Four lines are copy-on-write, which we come to in a moment. `lumen.PagedCache` is the same with its input checked, all
# blocks taken before anything changes, and counts that are kept instead of counted again.
#
# Equal to whom? To no cache at all: one causal `scaled_dot_product_attention` over the whole text, which knows of no
# table. A small random model in float64 with nine query and three KV heads, 23 tokens in chunks of 1, 4 and 23, and blocks
# of 1, 5 and 16, so that hardly anything ends where a block ends.


# %%
def relative_error(ours, reference):
    return float((ours - reference).norm() / reference.norm())


def in_chunks(model, tokens, size, cache):
    return torch.cat([model(part, None, cache) for part in tokens.split(size, 1)], 1)


torch.manual_seed(0)
small = Llama(ModelConfig("small", 97, 3, 72, 9, 3, 8, 100, 64)).double().to(device)
for weight in small.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
tokens = torch.randint(97, (2, 23), device=device)
whole = small(tokens)
errors = {}
for size in (1, 5, 16):
    for chunk in (1, 4, 23):
        mine = MyPaged(small.config, 2, 60, size, torch.float64, device)
        theirs = PagedCache(BlockStore(small.config, 60, size, torch.float64, device), 2)
        ours, lumens = in_chunks(small, tokens, chunk, mine), in_chunks(small, tokens, chunk, theirs)
        errors[size, chunk] = max(relative_error(ours, whole), relative_error(ours, lumens))
        assert list(map(len, mine.tables)) == list(map(len, theirs.tables))

mine.select([0, 0, 1])  # two rows share everything, then each of the three writes another token
more = torch.tensor([[5], [60], [9]], device=device)
forked = small(more, None, mine)[:, 0]
alone = torch.stack(
    [small(torch.cat([tokens[i], m])[None])[0, -1] for i, m in zip((0, 0, 1), more, strict=True)]
)

# %% tags=["nbval-check-output"]
for size in (1, 5, 16):
    same = all(errors[size, chunk] < 1e-14 for chunk in (1, 4, 23))
    print(f"blocks of {size:2}: equal to no cache and to PagedCache: {same}")
print("three rows after a fork, each with a token of its own:", relative_error(forked, alone) < 1e-14)
assert max(errors.values()) < 1e-14 and relative_error(forked, alone) < 1e-14

# %% [markdown]
# The blocks are exact: they change where a number lies, and no number. What they do change is how it is read.
#
# ## What our version pays
#
# `pool[self.grid]` is a *copy*. For every layer and every step, the row's blocks are written out once more, in order,
# and attention reads the copy. `lumen.PagedCache` does the same with `index_select`. A real kernel for
# [PagedAttention](../book/glossary.md#term-PagedAttention) does not: it looks the block number up while it reads, and
# nothing is moved.
#
# **With 4,096 tokens cached, how many times longer does a decode step of SmolLM2 take with our paged cache than with a
# static one?** In bytes, the copy reads and writes the whole cache once more, as growing by concatenation did in
# chapter 4.

# %% tags=["predict"]
my_guess = 1.2  # paged step / static step, at 4,096 tokens of context


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


def paged(context, size):
    return filled(BlockStore.for_model(model, context // size + 32, size).rows(1), context)


contexts = (64, 1024, 4096)
steps = {
    n: bench.compare({
        "static": one_step(filled(StaticCache.for_model(model, 1, n + 16), n)),
        "paged": one_step(paged(n, 16)),
    })
    for n in contexts
}  # fmt: skip

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
chip = hardware.measure(progress=False)
last = steps[4096]
by_model = [
    cost.predict_decode(config, chip, 4096, dtype="fp32", cache=kind).seconds for kind in ("static", "paged")
]
ratios = [p / s for p, s in zip(last["paged"].samples, last["static"].samples, strict=True)]
slower = last["paged"].median / last["static"].median
reveal(
    guess=my_guess, model=by_model[1] / by_model[0], measured=ratios, unit="×", what="paged step over static step",
    title=f"At 4,096 tokens a step through gathered blocks takes {slower:.2f} times a static one", log=False,
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
kappa = cost.kv_bytes_per_token(config, "fp32")
table(
    [
        [
            n,
            f"{1e3 * steps[n]['static'].median:.1f}",
            f"{1e3 * steps[n]['paged'].median:.1f}",
            f"{n * kappa / 1e6:.1f}",
            f"{2 * n * kappa / 1e6:.1f}",
        ]
        for n in contexts
    ],
    [
        "context",
        "static (ms)",
        "paged (ms)",
        "MB of cache that attention reads",
        "MB moved by the gather, besides",
    ],
    align="rrrrr",
)
gap = 1e3 * (last["paged"].median - last["static"].median)
markdown(
    f"Bytes alone say {by_model[1] / by_model[0]:.2f}×, the clock says {slower:.2f}×: {gap:.0f} ms more a step at 4,096 tokens. "
    f"At 64 tokens the two differ by a factor {steps[64]['paged'].median / steps[64]['static'].median:.2f}. Where do the "
    "milliseconds go? Two suspects, measured apart: the copy itself, and its layout. A block holds all heads of a position "
    f"side by side, so one head's keys lie {4 * config.num_kv_heads * config.head_dim} bytes apart in the copy; in the static "
    f"cache it is {4 * config.head_dim}."
)


# %% tags=["measure", "nbval-ignore-output"]
def suspects(length=4096, size=16):
    """All layers: the gather alone, attention alone in both layouts, and both in turn, as in the step."""
    layers, heads, width = config.num_layers, config.num_kv_heads, config.head_dim
    blocks = torch.randn(2, layers, length // size, size, heads, width, device=device)  # as in the store
    straight = torch.randn(2, layers, 1, heads, length, width, device=device)  # as in the static cache
    in_order = blocks.view(2, layers, 1, length, heads, width).transpose(3, 4)  # what a gather hands over
    query = torch.randn(1, heads, config.num_heads // heads, width, device=device)
    shuffled = torch.randperm(length // size, device=device)

    def copy():
        for k, v in zip(*blocks, strict=True):
            k, v = k.index_select(0, shuffled), v.index_select(0, shuffled)

    def attend(kv):
        for k, v in zip(*kv, strict=True):
            torch.nn.functional.scaled_dot_product_attention(query, k, v)

    def in_turn():
        for layer in zip(*blocks, strict=True):
            kv = [
                each.index_select(0, shuffled).view(1, length, heads, width).transpose(1, 2) for each in layer
            ]
            torch.nn.functional.scaled_dot_product_attention(query, *kv)

    apart = {"copy": copy, "blocks": lambda: attend(in_order), "static": lambda: attend(straight)}
    return bench.compare(apart | {"in turn": in_turn})


parts = suspects()

# %% tags=["hide-input", "nbval-ignore-output"]
copy_ms, blocks_ms, static_ms, turn_ms = (1e3 * time.median for time in parts.values())
layout_ms = blocks_ms - static_ms
markdown(
    f"For all {config.num_layers} layers the copy takes {copy_ms:.0f} ms; its bytes at {chip.bandwidth / 1e9:.0f} GB/s would take "
    f"{2e3 * 4096 * kappa / chip.bandwidth:.0f} ms. Attention takes {blocks_ms:.0f} ms in the layout of the blocks and "
    f"{static_ms:.0f} ms in that of the static cache. "
    + (
        f"So the layout is to blame as well as the copy: {layout_ms:.0f} ms that no count of bytes shows. "
        if layout_ms > 0.25 * copy_ms
        else "So it is the copy, and the layout hardly matters here. "
    )
    + f"One after the other, layer by layer as in the step, copy and attention take {turn_ms:.0f} ms, which is {turn_ms - static_ms:.0f} ms more "
    f"than the static cache's attention; the whole step was {gap:.0f} ms slower. "
    + (
        f"Apart they would add up to {copy_ms + blocks_ms:.0f} ms: in turn, attention finds the copy still in the processor's cache.\n\n"
        if turn_ms < 0.9 * (copy_ms + blocks_ms)
        else "\n\n"
    )
    + "A kernel that reads through the table does not copy and is written for its layout. It pays for the look-ups: "
    "the paper measured 20 to 26 % on the attention kernel alone (section 7.1)."
)

# %% [markdown]
# So this version buys memory with time. For one user that is a bad bargain. It pays when memory is what keeps the batch
# small: each step reads the weights once for all, so more requests at once are more tokens per second for the same read.
#
# Blocks have a second gift, which contiguous memory cannot give at any price.
#
# ## Four answers to one prompt
#
# Ask for four samples of the same prompt. All four begin with the same tokens, so they have the same keys and values,
# and a block does not care how many tables it stands in. `select([0, 0, 0, 0])` makes four rows of one and copies
# nothing: it writes four lists and raises the counts.
#
# Then every row gets a token of its own, and the last block is half full. Whoever writes to a block that others read
# must copy it first: [copy-on-write](../book/glossary.md#term-copy-on-write).

# %%
story = """A lighthouse keeper finds a bottle with a letter in it. The paper is dry, the ink has hardly faded, and the date
on the letter is next Tuesday. She reads it twice, puts the kettle on, and looks out at the water for a long time.
The letter begins with"""
ids = tokenizer.encode(" ".join(story.split()))
NEW, four = 24, [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
store = BlockStore.for_model(model, num_blocks=48, block_size=16)


def taken():
    return store.pool.num_blocks - store.pool.num_free


def go_on(cache, hidden):
    """`NEW` tokens for each of the four rows, each row with its own random stream. Tokens, all logits, blocks taken."""
    streams, tokens, seen, blocks = generators(four), [], [], [taken()]
    for _ in range(NEW):
        seen.append(model.head(hidden))
        tokens.append(draw(distribution(seen[-1], four), streams))
        hidden = model.hidden(tokens[-1][:, None], None, cache)[:, -1]
        blocks.append(taken())
    return torch.stack(tokens, 1), torch.stack(seen, 1), blocks


# %%
prompt = torch.tensor([ids], device=device)
with store.rows(1) as cache:
    hidden = model.hidden(prompt, None, cache)[:, -1]
    cache.select([0, 0, 0, 0])
    shared_tables = [list(t) for t in cache.tables]
    shared = go_on(cache, hidden.expand(4, -1))
    forked_tables = [list(t) for t in cache.tables]
    store.audit()
with store.rows(4) as cache:
    apart = go_on(cache, model.hidden(prompt.expand(4, -1), None, cache)[:, -1])

# %% tags=["nbval-check-output"]
print(f"{len(ids)} tokens in blocks of 16; the last block holds {len(ids) % 16}")
print("all four tables after select:", shared_tables[0], "equal:", len(set(map(tuple, shared_tables))) == 1)
for i, blocks in enumerate(forked_tables):
    print(f"table of sample {i} at the end:", blocks)
print("the same tokens as four separate rows:", torch.equal(shared[0], apart[0]))

# %% tags=["hide-input"]
for row in shared[0][:, :14].tolist():
    print("…", tokenizer.decode(row).replace("\n", " "))
assert relative_error(shared[1], apart[1]) < 1e-4

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        ["after the prompt", shared[2][0], apart[2][0]],
        ["after the first token", shared[2][1], apart[2][1]],
        [f"after {NEW} tokens", shared[2][-1], apart[2][-1]],
    ],
    ["blocks taken", "four samples, shared", "four separate rows"],
)
full = len(ids) // 16
markdown(
    f"{full} full blocks are held once instead of four times, for good. At the first token "
    f"{shared[2][1] - shared[2][0]} copies of the last block were made, not four: three rows copied, and the last writer "
    "found itself alone and kept the original. At the end "
    f"{shared[2][-1]} blocks hold what takes {apart[2][-1]} in separate rows, a factor {apart[2][-1] / shared[2][-1]:.2f}. "
    "The longer the prompt against the answer, the nearer to four. The prompt was also *computed* once instead of four times."
)

# %% [markdown]
# Beam search is the same `select` at every step, with some rows dropped and others doubled. And if four samples may
# share a prompt, why not two users? Because someone has to notice that their prompts agree. That is
# [the next chapter](06_prefix_cache.ipynb).
#
# ## When the pool runs dry
#
# Reserving had one virtue: a request that was let in could always finish. On demand there is no such promise. Every
# running request wants a block now and then, and one day there is none. Someone must give theirs up, all of them, for a
# step reads every block of its row. That is *preemption*. The tokens are known, so nothing is lost but work, and there
# are two ways to get it back.
#
# - **Recompute**: give the blocks back, and later run prompt and answer so far through the model as if they were a prompt.
# - **Swap**: copy the blocks to the host's memory, and later copy them into whatever blocks are free then.
#
# Both on one row of 512 tokens, timed from the preemption until the row could go on.

# %%
LENGTH = 512
store = BlockStore.for_model(model, num_blocks=LENGTH // 16 + 1, block_size=16)
cache = store.rows(1)
tokens = torch.randint(1000, 40_000, (1, LENGTH), device=device)
model.hidden(tokens, None, cache)
after = {}


def next_logits(name):
    after[name] = model.head(model.hidden(torch.tensor([[504]], device=device), None, cache)[:, -1])
    cache.rewind([LENGTH])


def swap():
    row = cache.swap_out(0)
    assert store.pool.num_free == store.pool.num_blocks  # everything is free for others
    cache.swap_in(0, row)


def recompute():
    cache.rewind([0])
    model.hidden(tokens, None, cache)


# %% tags=["measure", "nbval-ignore-output"]
next_logits("never preempted")
timed = bench.compare({"swap": swap, "recompute": recompute}, repeats=3)
swap()
next_logits("swapped")
recompute()
next_logits("recomputed")

# %% tags=["hide-input", "nbval-ignore-output"]
row_bytes = LENGTH * kappa
by_flops = cost.predict_prefill(config, chip, LENGTH, dtype="fp32", cache="paged").seconds
rate = 2 * row_bytes / timed["swap"].median
factor = timed["recompute"].median / timed["swap"].median
off = {
    name: f"{relative_error(row, after['never preempted']):.0e}".replace("0e+00", "0")
    for name, row in after.items()
}
table(
    [
        ["swap out and in", f"{1e3 * timed['swap'].median:.1f}", f"{2 * row_bytes / 1e6:.0f} MB moved, {rate / 1e9:.1f} GB/s", off["swapped"]],
        ["recompute", f"{1e3 * timed['recompute'].median:.0f}", f"predicted {1e3 * by_flops:.0f} ms", off["recomputed"]],
    ],
    ["512 tokens of SmolLM2", "ms", "", "error of the next logits"], align="lrrr",
)  # fmt: skip
assert relative_error(after["swapped"], after["never preempted"]) < 1e-5
assert relative_error(after["recomputed"], after["never preempted"]) < 1e-4
markdown(
    f"{'Swapping' if factor > 1 else 'Recomputing'} wins by a factor of {max(factor, 1 / factor):.0f} here. "
    + (
        "But mind what was measured: on a CPU the *host's memory* is the same memory, and a swap is a copy. There is no bus."
        if device.type == "cpu"
        else "The swap crosses the bus twice, from pageable host memory."
    )
)

# %% [markdown]
# On a card it is a race between two machines: the bus, which must carry a token's $\kappa$ bytes of cache twice, and the
# arithmetic, which needs about $2N$ FLOPs per token once, with $N$ parameters. Both times grow with the length $L$, so the
# length hardly matters. What decides is a rate. Swapping wins when
#
# $$ \text{bus} > \frac{2 \kappa L}{t_\text{recompute}(L)} \approx \kappa \, \frac{\text{peak}}{N} $$
#
# Assumed for the bus is PCIe at its full rate in one direction: 64 GB/s for an H100 SXM (Gen5), 32 GB/s for an A100 and
# an L4 (Gen4). NVIDIA's data sheets print 128, 64 and 64, which count both directions.

# %%
PCIE = {"A100 80GB SXM": 32e9, "H100 SXM": 64e9, "L4": 32e9}  # B/s in one direction, at best


def break_even(name, chip, length=1024):
    """Rate of the bus below which computing `length` tokens again is faster. [B/s]"""
    seconds = cost.predict_prefill(CONFIGS[name], hardware.CHIPS[chip], length, dtype="bf16").seconds
    return 2 * length * cost.kv_bytes_per_token(CONFIGS[name], "bf16") / seconds


# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [name, chip_name, f"{2 * 1024 * cost.kv_bytes_per_token(CONFIGS[name], 'bf16') / PCIE[chip_name] * 1e3:.1f}",
         f"{1e3 * cost.predict_prefill(CONFIGS[name], hardware.CHIPS[chip_name], 1024, dtype='bf16').seconds:.1f}",
         f"{break_even(name, chip_name) / 1e9:.1f}", f"{PCIE[chip_name] / 1e9:.0f}"]
        for name in ("llama-2-7b", "llama-3-8b") for chip_name in PCIE
    ],
    ["model, bf16", "chip", "swap 1,024 tokens out and in (ms)", "recompute them (ms)", "break-even (GB/s)", "bus at best (GB/s)"],
    align="llrrrr",
)  # fmt: skip
assert break_even("llama-2-7b", "H100 SXM") > PCIE["H100 SXM"]
assert all(break_even("llama-3-8b", chip_name) < bus for chip_name, bus in PCIE.items())

# %% [markdown]
# All *predicted*, bounds from data sheets. With Llama-3's few KV heads a token is cheap to move and dear to compute, and
# swapping wins on every card. Llama-2-7B moves four times the bytes, and on an H100 computing them again is faster than
# fetching them.
#
# And yet [vLLM](https://docs.vllm.ai/en/v0.9.1/configuration/optimization.html), since its version 1, preempts by
# recomputing. One reason is in the word *block*. A block's keys in one layer lie together, those of the next layer lie
# elsewhere. Copied piece by piece, each transfer pays a fixed price before its first byte. Say 10 µs, an assumption of
# ours that you may change. With $t_0$ for it, a piece of $s$ bytes moves at $s / (t_0 + s/\text{bus})$.

# %%
FIXED = 10e-6  # seconds per transfer, assumed


def piece(name, size):
    """Bytes that lie together: the keys, or the values, of one block in one layer."""
    c = CONFIGS[name]
    return size * c.num_kv_heads * c.head_dim * 2


def smallest_block(name, chip):
    """Block size from which swapping piece by piece beats recomputing; None when it never does."""
    spare = 1 / break_even(name, chip) - 1 / PCIE[chip]  # seconds per byte that the fixed price may eat
    return FIXED / spare / piece(name, 1) if spare > 0 else None


# %% tags=["hide-input"]
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
cross = {c: smallest_block("llama-3-8b", c) for c in ("A100 80GB SXM", "H100 SXM")}
fig = figure(
    f"Piece by piece, swapping Llama-3-8B pays from blocks of {cross['A100 80GB SXM']:.0f} (A100) and {cross['H100 SXM']:.0f} (H100)",
    x="block size (positions)", y="rate of the bus (GB/s)", log_x=True, log_y=True,
)  # fmt: skip
for c, color in (("A100 80GB SXM", palette.blue), ("H100 SXM", palette.orange)):
    rates = [piece("llama-3-8b", s) / (FIXED + piece("llama-3-8b", s) / PCIE[c]) / 1e9 for s in sizes]
    level = break_even("llama-3-8b", c) / 1e9
    fig.add_scatter(x=sizes, y=rates, mode="lines", line_color=color)
    fig.add_scatter(
        x=[sizes[0], sizes[-1]], y=[level, level], mode="lines", line={"color": color, "dash": "dot"}
    )
    fig.add_scatter(x=[cross[c]], y=[level], mode="markers", marker={"color": color, "size": 10})
    label_line(fig, sizes[0], level, f"{c.split()[0]} recomputes as fast", color, anchor="left", shift=10)
    label_line(fig, sizes[-1], rates[-1], c.split()[0], color, shift=10 if c.startswith("H") else -36)
log_axis(fig, "x", sizes)
log_axis(fig, "y", [0.2, 0.5, 1, 2, 5, 10, 20, 50])
fig

# %% [markdown]
# The paper saw the same shape on its own system: swapping wins with large blocks, recomputing with small ones, and
# between 16 and 64 they are about equal (section 7.3). The cure is to gather a request's blocks on the card first and
# send them in one transfer, which is what `swap_out` does. Another reason is that recomputing needs no memory on the
# host, no second kind of block, and no code that can lose a race. And its arithmetic can ride along in a batch of
# decodes that leaves the arithmetic units idle.
#
# ## Which block size, then?
#
# Everything that depends on it, on one table, for Llama-3-8B in bf16.

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [size, f"{100 - 100 * np.mean(used['paged', size]):.1f}", -(-LIMIT // size), f"{size * cost.kv_bytes_per_token(llama, 'bf16') / 2**10:,.0f}",
         f"{piece('llama-3-8b', size) / 2**10:.0f}", f"{2 * llama.num_layers * -(-1024 // size):,}"]
        for size in (1, 4, 16, 64, 128)
    ],
    ["block size", "empty (%)", "table entries at 2,048 tokens", "KiB per copy-on-write", "KiB read in one go", "pieces when 1,024 tokens are swapped"],
    align="rrrrrr",
)  # fmt: skip

# %% [markdown]
# Waste and the price of a copy grow with the block; the table, the pieces and the look-ups shrink. Between 16 and 64
# nothing is bad, which is where most engines settle. And only *whole* blocks can be shared between strangers, so the next
# chapter pulls towards small ones.
#
# ## Who owns a block?
#
# A pool of counts and lists invites a kind of bug that no crash reports. A block is given back while it still stands in
# somebody's table. Nothing happens, until the pool hands it to another request. Then two strangers write over each
# other's memory, and both go on speaking fluently. [mini-sglang #142](https://github.com/sgl-project/mini-sglang/issues/142)
# was one of that kind.
#
# Engines audit their pools when idle. The obvious audit adds up: free blocks plus blocks in tables equals all blocks.
# As a negative control, we make the mistake on purpose.

# %% tags=["nbval-check-output"]
store = BlockStore.for_model(model, num_blocks=8, block_size=16)


def audit_by_counts():
    in_tables = {block for cache in store.caches for table in cache.tables for block in table}
    return store.pool.num_free + len(in_tables) == store.pool.num_blocks


def audit_by_owners():
    try:
        store.audit()
        return "passes"
    except PoolCorrupt as problem:
        return f"fails: {problem}"


one = torch.tensor([ids[:40]], device=device)
ours = store.rows(1)
model.hidden(one, None, ours)
print("before: counts", audit_by_counts(), "| owners:", audit_by_owners())

store.pool.release(ours.tables[0])  # the mistake: given back, and still in the table
stranger = store.rows(1)
recipe = tokenizer.encode("To bake a loaf of bread, mix flour, water, salt and yeast. " * 5)[:40]
model.hidden(torch.tensor([recipe], device=device), None, stranger)
print("after:  counts", audit_by_counts(), "| owners:", audit_by_owners())


# %% tags=["nbval-ignore-output"]
def greedy(cache, token, count=14):
    """`count` tokens behind what the cache holds and `token`, and the first logits."""
    logits = []
    for _ in range(count):
        logits.append(model(torch.tensor([[token]], device=device), None, cache)[0, -1])
        token = int(logits[-1].argmax())
        yield token, logits[0]


intact = StaticCache.for_model(model, 1, 60)
model.hidden(one, None, intact)
wrong, right = ([*greedy(cache, ids[40])] for cache in (ours, intact))
damage = relative_error(wrong[0][1], right[0][1])
print("the prompt ends: …", tokenizer.decode(ids[30:41]))
print("right:           …", tokenizer.decode([token for token, _ in right]).replace("\n", " "))
print("with the mistake: …", tokenizer.decode([token for token, _ in wrong]).replace("\n", " "))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    "The sum is right: the same blocks are in tables, the same number is free. And our request reads the keys and values "
    f"of somebody else's prompt: its next logits are off by {damage:.0%}. Nothing crashed. `BlockPool.audit` asks every "
    "table and every cache who holds each block, and compares with the count that the pool has kept. The tests of this "
    "course run it after each of ten thousand random steps."
)
assert damage > 0.01

# %% [markdown]
# ## Where it loses
#
# Paging sells one thing, memory that would be empty. Where nothing would be empty, only its price is left.

# %% tags=["measure", "nbval-ignore-output"]
cases = {f"blocks of {size}": one_step(paged(1024, size)) for size in (1, 16, 128)}
cases["static"] = one_step(filled(StaticCache.for_model(model, 1, 1040), 1024))
by_block = bench.compare(cases)
long_ones = Trace(np.full(64, LIMIT - 128), np.full(64, 128), LIMIT)  # everybody fills the limit
packed = {p: concurrent(long_ones, p, positions) for p in ("max", "paged")}

# %% tags=["hide-input", "nbval-ignore-output"]
at_1k = {name: f"{time.median / by_block['static'].median:.2f}×" for name, time in by_block.items()}
table(
    [
        ["every request fills its limit", f"{packed['paged']:.0f} fit paged, {packed['max']:.0f} reserved"],
        ["one long request alone (4,096 tokens)", f"no neighbour to share with; a step takes {slower:.2f}× a static one"],
        ["a step at 1,024 tokens, times a static one", ", ".join(f"{name}: {at_1k[name]}" for name in at_1k if name != "static")],
        ["a request of 5 tokens in blocks of 128", f"{cost.wasted_share(5, 128):.0%} of its block is empty"],
        ["a pool that is too small for its traffic", "preemptions: work is done twice, where reserving would have made users wait"],
    ],
    ["case", "what happens"],
)  # fmt: skip

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | requests are counted once each, although long answers stay longer | more of them fit than in a busy server | both means are printed after the first prediction |
# | a contiguous allocator without its holes | doubling looks nearly as good as paging | the first-fit run with exact lengths shows the holes; the doubled row says what it leaves out |
# | a swap measured where host and device share their memory | swapping wins by a factor that no card will see | bytes over an assumed bus, and FLOPs, for cards with one |
# | equal tokens taken for intact blocks | a corrupted row still writes fluent text | logits are compared, and owners audited |
#
# ## Play
#
# Twelve blocks of four positions, one button per event. Start a few requests, fork one, and watch whose last block is
# copied. Go on until the pool is dry: the youngest is preempted, waits, and is computed again. Then change the block
# size: the same events are played again.

# %%
lumen.explore.PagedStepper()

# %% [markdown]
# The live lab draws several answers to your own prompt over shared blocks, and counts.

# %% tags=["nbval-ignore-output"]
lab = lumen.explore.samples_lab(model, tokenizer, prompt=" ".join(story.split()))

# %% [markdown]
# ## In production
#
# | engine | where | version |
# | --- | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/v0.16.0/api/vllm/config/cache/) | `--block-size` (up to 32 on CUDA), `--gpu-memory-utilization` sizes the pool, `--num-gpu-blocks-override` sets it by hand; the pool is `vllm/v1/core/block_pool.py`; preempted requests are [recomputed](https://docs.vllm.ai/en/v0.14.0/configuration/optimization/) | 0.14 and 0.16, 2026 |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/server_arguments.md) | `--page-size`, 1 by default; `--mem-fraction-static` sizes the pool; a preemption is called *retraction*, and `--schedule-conservativeness` makes it rarer | read in November 2026 |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html) | `KvCacheConfig(tokens_per_block=32, free_gpu_memory_fraction=0.9, host_cache_size=…)`; the last one is the room for blocks moved to the host | read in November 2026 |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | no blocks: `--ctx-size` is divided among `--parallel` slots, which is this chapter's first picture; `--kv-unified` lets the slots share one buffer | read in November 2026 |
#
# [vAttention](https://arxiv.org/abs/2405.04437) goes another way: it keeps the addresses contiguous and lets the GPU's
# own virtual memory put pages behind them, so that kernels need no table.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **Where it was:** at one moment of a full pool {held / positions:.0%} held tokens, {to_come / positions:.0%} was reserved for "
    f"tokens to come, {never / positions:.0%} would never be used (internal). With exact lengths {empty:.0%} of the pool was free and too "
    "cut up to be used (external).\n"
    f"- **Requests that fit ≈ positions / (mean length + half a block):** {expected:.0f} predicted, {paged16:.0f} counted, {busy:.0f} in "
    f"a server that sees long answers more often, {slots} when the limit is reserved. Blocks of 16 leave {100 - share_of[4]:.1f} % empty.\n"
    f"- **A table of blocks is exact**, and shareable: four samples took {shared[2][-1]} blocks instead of {apart[2][-1]}, with "
    f"{shared[2][1] - shared[2][0]} copies on write.\n"
    f"- **Gathering is the price of our version:** {slower:.2f}× per step at 4,096 tokens. A kernel that reads through the table does not copy.\n"
    f"- **Swap or recompute** is a question of a rate: on an H100 swapping Llama-3-8B needs {break_even('llama-3-8b', 'H100 SXM') / 1e9:.0f} GB/s, "
    f"Llama-2-7B {break_even('llama-2-7b', 'H100 SXM') / 1e9:.0f} GB/s, of a bus that has {PCIE['H100 SXM'] / 1e9:.0f}.\n"
    "- **Counts add up even when owners do not.** An audit must ask the tables."
)
callout(
    "takeaway",
    f"**Takeaway.** Do not reserve what may never come. In blocks of 16, memory for {slots} requests holds {busy:.0f} to "
    f"{paged16:.0f}, because the only waste left is half a block each: {100 - share_of[4]:.1f} % instead of "
    f"{100 - 100 * np.mean(used['max', 16]):.0f} %.",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
lumen.explore.Quiz(
    [
        {
            "kind": "choice",
            "question": "Blocks do away with external fragmentation completely. Why?",
            "choices": [
                {"text": "Every free block fits every request.", "ok": True, "why": "A hole is useless only when it is smaller than what is wanted. Here all holes and all wishes have one size."},
                {"text": "Blocks are packed without gaps between them.", "why": "So were the pieces of the first-fit allocator. Gaps appear when neighbours end at different times, and they do in a pool of blocks, too."},
                {"text": "The last block of a request is filled before a new one is taken.", "why": "That keeps *internal* waste below one block."},
            ],
        },
        {
            "kind": "numeric",
            "question": "A pool has 10,000 positions in blocks of 16. Requests in flight hold 242.5 tokens on average. About how many fit?",
            "answer": 40, "tolerance": 0.5, "unit": "requests",
            "right": "10,000 / (242.5 + 7.5).",
            "wrong": "Each request takes its tokens and, on average, half a block more.",
            "slips": [
                {"answer": 41.2, "tolerance": 0.3, "why": "You left out the empty half of the last block, 7.5 positions."},
                {"answer": 38.7, "tolerance": 0.3, "why": "You counted a whole empty block per request. On average it is half of one."},
            ],
        },
        {
            "kind": "choice",
            "question": "Three rows share a half-full block, and each writes its next token. How many copies of the block are made?",
            "choices": [
                {"text": "2", "ok": True, "why": "The first two writers copy. Then the third holds the block alone and writes in place."},
                {"text": "3", "why": "Then nobody would hold the original, and it would have to be freed. After two copies the third row is its only reader."},
                {"text": "0", "why": "Then all three would write their token into the same place."},
                {"text": "1", "why": "The second writer still shares it with the third."},
            ],
        },
        {
            "kind": "choice",
            "question": "The bus gets twice as fast, the chip's arithmetic as well. What happens to the choice between swap and recompute?",
            "choices": [
                {"text": "Nothing.", "ok": True, "why": "The break-even rate is κ · peak / N. It doubles with the peak, and so does the bus."},
                {"text": "Swapping wins more often.", "why": "The bus must beat a rate that has doubled, too."},
                {"text": "It depends on the length of the request.", "why": "Both times are proportional to the length, but for what attention adds."},
            ],
        },
        {
            "kind": "choice",
            "question": "Free blocks and blocks in tables add up to the size of the pool. What does that prove?",
            "choices": [
                {"text": "Not that each block has the owners it should have.", "ok": True, "why": "A block in two tables with one reference leaves the sum intact. We built one."},
                {"text": "That no block leaks and no block is shared by mistake.", "why": "A leak would show. A block owned by two strangers does not."},
                {"text": "That no table holds a freed block.", "why": "Once a freed block was handed out again the sum was right, and the old table still held it."},
            ],
        },
    ],
    id="05",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/05_paged_cache.ipynb) ([solutions](../solutions/05_paged_cache.ipynb)). Checks answer at
# once and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("05"))

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
print(session)
print("fp32 throughout; traces are log-normal with seeds 0, 1, 2 (lumen.cost.trace)")
print(f"this machine: {chip.name}, {chip.bandwidth / 1e9:.1f} GB/s read; data-sheet chips are predictions")
print("evidence file read when present: paged_memory")
