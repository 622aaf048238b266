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
# # 9 · Scheduling

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/09_scheduling.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/09_scheduling.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/09_scheduling.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 96 min · here: [exercises](../exercises/09_scheduling.ipynb), [solutions](../solutions/09_scheduling.ipynb)
#
# </div>

# %% [markdown]
# Eight people are reading answers as SmolLM2 writes them. A ninth pastes a document of 1,000 tokens and asks for a summary.
# Nobody did anything wrong, no queue is long, no memory is full. All eight streams stop.
#
# **Who decided that, and what would a better decision have cost?**
#
# By the end you can
#
# - write the rule by which a server decides what every step computes, in forty lines, and hold it to the real one;
# - predict from FLOPs and bytes how long a step takes, and choose the token budget that keeps every gap under a limit;
# - take a running request's memory away, give it back, and prove that its answer did not change;
# - say who could wait for ever, why nobody does, and under which two limits prefill and decode belong on different machines.
#
# Needs: [the roofline](02_roofline.ipynb), [measuring](03_measuring.ipynb), [the paged cache](05_paged_cache.ipynb),
# [batching](08_batching.ipynb).
#
# New terms: after chapter 1's [prefill](../book/glossary.md#term-prefill) now
# [chunked prefill](../book/glossary.md#term-chunked-prefill), [token budget](../book/glossary.md#term-token-budget),
# [preemption](../book/glossary.md#term-preemption), [ageing](../book/glossary.md#term-ageing),
# [disaggregation](../book/glossary.md#term-disaggregation).

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

session = lumen.setup("09_scheduling")

# %% [markdown]
# Answers are compared token by token in this chapter, so SmolLM2 runs in fp32 everywhere, on a GPU too. "Predicted" and "the model"
# mean `lumen.cost` on this machine's measured rates, or on a data sheet where a card is named.

# %% tags=["hide-input"]
import textwrap
from bisect import insort
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from lumen import bench, cost, hardware
from lumen.bench.interference import meet
from lumen.cache import BlockPool
from lumen.explore import (
    Quiz,
    Timelines,
    budget_lab,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.pages import ch09, ch09_cards
from lumen.pages.engines import production_table
from lumen.serve import disagg
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits, Scheduler

model, tokenizer = lumen.load("smollm2-135m", dtype=torch.float32)
config = model.config
chip = hardware.measure(progress=False)

# %% [markdown]
# ## Eight answers and a document
#
# `meet` starts our engine, the one behind `lumen serve`, lets eight requests write a few tokens each, and then adds the long
# one. Time is counted from that moment. The tokens are drawn at random: in a dense model they cost what real ones do. Three rounds;
# in each, the meeting is held under smaller budgets, too, which this page comes to below.

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
LONG, ANSWERS, CONTEXT = 1000, 8, 32
BUDGETS = (2048, 256, 128, 64)
draw = torch.Generator().manual_seed(0)


def tokens(count):
    top = config.vocab_size
    return torch.randint(3, top, (count,), generator=draw).tolist()


prompts = [tokens(CONTEXT) for _ in range(ANSWERS)]
document = tokens(LONG)
meet(model, prompts, document[:64], budget=2048, after=1)  # warm up
runs = {budget: [] for budget in BUDGETS}
for number in range(3):  # in turns, so that a slow minute hits all
    for budget in BUDGETS[:: -1 if number % 2 else 1]:
        run = meet(model, prompts, document, budget, before=8, after=6)
        runs[budget].append(run)
whole = ch09.middle(runs[2048])

# %% tags=["hide-input", "nbval-ignore-output"]
ch09.freeze_figure(runs[2048])

# %% [markdown]
# Every dot is a token that a reader sees, in the round whose longest gap is the middle one. What happened in it? The engine keeps the
# plan of every step: who was computed, how many tokens, and behind how many that were there already.

# %% tags=["hide-input", "nbval-check-output"]
print(ch09.plan_lines(whole))

# %% [markdown]
# One step. Nobody was put into a queue: the eight were *in* it, and a step ends for everybody at once. The step was long. How long
# is a step?
#
# ## A step is as long as what is in it
#
# All $n$ tokens of a step go through the same matrices. A matrix of $w$ weights takes the longer of two times: reading it, or
# multiplying by it. In attention an answer reads its own cache, and $c$ tokens of a prompt behind $h$ cached ones look at
# $c\,h + c(c+1)/2$ pairs of a query and a key.
#
# $$
# \begin{gathered}
# t_\text{step} = t_\text{matrices} + t_\text{attention} + t_\text{rest} \\
# t_\text{matrices} = \sum_\text{matrices} \max(t_\text{read},\, t_\text{multiply}) \\
# t_\text{read} = \frac{b\,w}{\text{bandwidth}} \\[6pt]
# t_\text{multiply} = \frac{2\,w\,n}{\text{rate}(n)}
# \end{gathered}
# $$
#
# Here $b$ is bytes per weight, and $\text{rate}(n)$ the FLOP/s that this machine's matrix products reach with $n$ rows, measured
# once. The rest is writing the cache, elementwise work and the fixed cost of every operator. `lumen.cost.predict_mixed` adds it up.
# How good is that? The eight alone, before the document came:

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch09.eight_alone(runs[2048], chip, config, CONTEXT + 8))

# %% [markdown]
# Nothing forces 1,000 tokens into one step. Position 248 needs the keys and values of positions 0 to 247, and once computed
# those lie in blocks, where the next step finds them. A prompt can be read in pieces, with the eight answers in every step:
# [chunked prefill](../book/glossary.md#term-chunked-prefill) ([Agrawal and others, 2023](https://arxiv.org/abs/2308.16369)).
#
# So give the scheduler a **token budget**: no step computes more tokens than that. Answers under way come first, one token
# each. The rest goes to prompts. With a budget of 256 the document gets 248 tokens per step, and its first token after five.
#
# ## Predict: how much shorter is the freeze?
#
# The longest step now has 256 tokens in it instead of 1,008.

# %% tags=["predict"]
my_guess = guess(
    "09-freeze",
    "How many times shorter is the longest gap with a budget of 256?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
shorter = ch09.ratio(runs, ch09.longest, 2048, 256)
by_model = {
    budget: ch09.predicted(meetings[0], chip, config)
    for budget, meetings in runs.items()
}

# %% tags=["reveal", "nbval-ignore-output"]
gap_by_model = by_model[2048][0] / by_model[256][0]
reveal(
    guess=my_guess,
    model=gap_by_model,
    measured=shorter.value,
    unit="×",
    what="longest gap, whole over a budget of 256",
    title=f"Longest gap, whole over pieces: {shorter.texts()[0]}×",
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
in_tokens = (LONG + ANSWERS) / 256
markdown(ch09.shorter_gap(shorter, in_tokens, gap_by_model))
rows, headers, sides = ch09.parts_table(
    (0, 56, 120, 248, LONG), CONTEXT + 8, ANSWERS, chip, config
)
table(rows, headers, sides)
slowest = by_model[256][0]
markdown(
    "Predicted: the eight with the *first* tokens of a prompt. The slowest "
    f"piece of 248, which looks back furthest, takes {ch09.ms(slowest)} ms."
)

# %% [markdown]
# ## Predict: who pays?
#
# The document does. With a budget of 64 its tokens come 56 at a time, in 18 steps, and each of them reads all the weights, carries
# the eight answers along, and looks back at all the pieces before it.

# %% tags=["predict"]
my_guess = guess(
    "09-who-pays",
    "Budget 64: how many times as long does the document wait?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
later = ch09.ratio(runs, ch09.ttft, 64, 2048)
middle = ch09.ratio(runs, ch09.ttft, 128, 2048)
shorter_128 = ch09.ratio(runs, ch09.longest, 2048, 128).value

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=by_model[64][1] / by_model[2048][1],
    measured=later.value,
    unit="×",
    what="TTFT with a budget of 64 over TTFT in one piece",
    title=f"The document's wait, in crumbs over whole: {later.texts()[0]}×",
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch09.later_document(later, len(ch09.reading(runs[64][0]))))
ch09.trade_figure(runs, chip, config)

# %% tags=["reveal", "nbval-ignore-output"]
rows, headers, sides = ch09.trade_table(runs, chip, config)
table(rows, headers, sides)
markdown(ch09.trade_misses(runs, chip, config))
markdown(ch09.bargain(middle, 128, shorter_128))

# %% [markdown]
# The same scheduler on a larger stage, *predicted* for Llama-3-8B on an A100. A prompt of 8,000 tokens arrives among four
# answers. Look for it under *continuous*, then choose *chunked* and move the budget: watch the longest gap, and the document's own
# [TTFT](../book/glossary.md#term-TTFT).

# %% tags=["hide-input", "nbval-check-output"]
Timelines(
    workload="long-prompt",
    policy="chunked",
    title="A prompt of 8,000 tokens among answers, {slots} slots",
)

# %% [markdown]
# Did cutting the prompt change anything that was said? The witness knows no scheduler, no blocks and no cache: one causal
# `scaled_dot_product_attention` over prompt and answer at once, held to transformers' in [chapter 1](01_prefill_decode.ipynb). At
# every position the token that was written must be the likeliest, or within rounding of it.

# %% tags=["hide-input", "nbval-check-output"]
asked = [*prompts, document]


@torch.inference_mode()
def shortfall(ids, written):
    """How far the written tokens' logits lie below the best ones."""
    once = torch.tensor([ids + written], device=session.device)
    hidden = model.hidden(once)  # no cache, no scheduler
    logits = model.head(hidden[0, len(ids) - 1 : -1])
    chosen = logits[range(len(written)), written]
    return float((logits.max(-1).values - chosen).max())


def same(ids, written, known):
    """The tokens of `known` as far as both go, or ones as likely."""
    both = min(len(written), len(known))
    equal = written[:both] == known[:both]
    return equal or shortfall(ids, written[:both]) < 1e-3


pairs = zip(asked, whole.answers, strict=True)
likeliest = all(shortfall(*pair) < 1e-3 for pair in pairs)
print("whole: likeliest without a cache:", likeliest)
assert likeliest
for budget, meetings in runs.items():
    theirs = zip(asked, meetings[0].answers, whole.answers, strict=True)
    ok = all(same(*three) for three in theirs)
    print(f"budget {budget}: same answers: {ok}")
    assert ok

# %% [markdown]
# <div class="callout takeaway">
#
# **Takeaway.** A gap between tokens is as long as the step it contains. A token budget bounds what is in the step, and so the gap,
# but for the looking back, which grows with the prompt.
#
# </div>
#
# ## Which budget?
#
# On a CPU every token in a step costs time, almost from the first one on. A data-centre chip with 32 answers in a step waits for
# memory. Tokens of a prompt fill its idle arithmetic *nearly for nothing*, until the
# [ridge](../book/glossary.md#term-ridge-point); from there on each one costs its FLOPs. *Predicted* from data sheets, for Llama-3-8B
# in bf16, 32 answers at context 2,048 and a chunk behind 4,096 tokens of its prompt. "Nearly free" means 10 % on the step.

# %% tags=["hide-input", "nbval-check-output"]
ch09_cards.cards_figure()

# %% [markdown]
# Left of the bend a smaller chunk saves little and costs steps. Right of it, take the time that a limit on the gap (the
# [ITL](../book/glossary.md#term-ITL)) leaves beside the answers, divide it by what one token of a prompt costs, and you have the chunk.
# For a prompt of 8,192 tokens, down to its last and slowest chunk:

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = ch09_cards.chunk_table()
table(rows, headers, sides)

# %% [markdown]
# These are bounds: of the measurements that others published, none beats them and the median is well above
# ([chapter 2](02_roofline.ipynb)). Under the tight limit the L4 is too slow for the 32 users before any prompt arrives.
#
# ## The one rule
#
# Who hands out the tokens? Look again at what a plan is: a list of (request, from where, how many). It does not say whether that
# is prefill or [decode](../book/glossary.md#term-decode), and it need not. A request has a **total**, its prompt and what it has written, and a count **computed**, of
# positions whose keys and values lie in its blocks. With a budget of 256:
#
# | request | total | computed | gap | in this step |
# | --- | ---: | ---: | ---: | --- |
# | an answer under way | 131 | 130 | 1 | 1 token, then the next is sampled |
# | the document, just arrived | 1,000 | 0 | 1,000 | what the budget leaves: no sample |
# | the document, last chunk | 1,000 | 992 | 8 | 8 tokens, then its *first* is sampled |
# | a request whose blocks were taken | 131 | 0 | 131 | as a prompt of 131 would be |
#
# **Every step, computed catches up with total, inside a token budget and a block budget.** When they are equal, a token is sampled
# and total grows by one. There is no prefill phase and no decode phase. The rule is that of vLLM's V1 engine (2025), whose
# [scheduler](https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py) says so at the head of `schedule`.
#
# ## Build it
#
# Two lists in order of [rank](#who-goes-first), which says who goes first. The budget has a token for every [slot](../book/glossary.md#term-slot), at least. Running requests take their tokens, the
# single ones set aside beforehand. Whoever needs a block when there is none takes those of the worst rank. Then the queue is let in
# from its head while slots, tokens and blocks last, unless this step had to take blocks away.
#
# One choice needs a word. Whoever is let in takes blocks for *all* tokens that are known of it, though its first chunk fills only a
# few. With blocks for the chunk alone, two long prompts could be let in, each get stuck half-read, and hold what the other needs
# until one of them is preempted and its work thrown away.


# %%
@dataclass(eq=False)
class Job:
    rank: tuple
    total: int  # tokens known: prompt and answer
    left: int  # tokens still to be sampled
    computed: int = 0
    blocks: int = 0


# %%
class MyScheduler:
    """Every step, `computed` catches up with `total` within budgets."""

    def __init__(self, blocks, size, slots, budget):
        self.free, self.size = blocks, size
        self.slots, self.budget = slots, budget
        self.waiting, self.running = [], []  # in order of rank

    def take(self, job, length):
        """Blocks for `length` positions, or False and no change."""
        more = max(0, -(-length // self.size) - job.blocks)
        if more > self.free:
            return False
        self.free, job.blocks = self.free - more, job.blocks + more
        return True

    def plan(self):
        gaps = [job.total - job.computed for job in self.running]
        room, work, dry = self.budget - gaps.count(1), [], False
        for job, gap in zip(list(self.running), gaps, strict=True):
            count = 1 if gap == 1 else min(gap, room)
            room -= count if gap > 1 else 0
            while count and job in self.running:
                if self.take(job, job.computed + count):
                    work.append((job, job.computed, count))
                    break
                worst, dry = self.running.pop(), True
                self.free += worst.blocks
                worst.blocks = worst.computed = 0
                insort(self.waiting, worst, key=lambda j: j.rank)
        while self.waiting and not dry and room:
            job = self.waiting[0]
            if len(self.running) == self.slots:
                break
            if not self.take(job, job.total):
                break  # the head waits, and nobody passes it
            self.waiting.pop(0)
            insort(self.running, job, key=lambda j: j.rank)
            work.append((job, 0, min(job.total, room)))
            room -= work[-1][2]
        return work


# %%
def book(scheduler, work):
    """What was computed is noted; who has caught up gets a token."""
    for job, start, count in work:
        job.computed = start + count
        if job.computed == job.total:
            job.total, job.left = job.total + 1, job.left - 1
            if not job.left:
                scheduler.running.remove(job)
                scheduler.free += job.blocks


# %% [markdown]
# Is that the real one? In three hundred random workloads on tiny pools, prompts are cut and blocks run out. In every step our plan
# must be that of `lumen.serve.scheduler`: the same requests, the same positions, in the same order.


# %% tags=["hide-input"]
def same_plans(seed):
    """One workload under both; (steps, pieces before a sample, preempted)."""
    limits, coming = ch09.workload(seed)
    mine = MyScheduler(**limits)
    pool = BlockPool(limits["blocks"], limits["size"])
    lumens = Scheduler(
        pool, limits=Limits(limits["slots"], limits["budget"])
    )
    step = chunks = 0
    while coming or mine.waiting or mine.running:
        while coming and coming[0][0] <= step:
            at, priority, number, prompt, new = coming.pop(0)
            asked_for = Request(
                f"{number}",
                [0] * prompt,
                new,
                priority=priority,
                arrival=float(at),
            )
            theirs = lumens.add(asked_for)
            job = Job(theirs.rank, prompt, new)
            insort(mine.waiting, job, key=lambda j: j.rank)
        work, plan = mine.plan(), lumens.schedule(float(step))
        ours = [(job.rank, start, count) for job, start, count in work]
        assert ours == [
            (w.sequence.rank, w.start, w.count) for w in plan.work
        ]
        chunks += sum(not w.samples for w in plan.work)
        book(mine, work)
        drawn = {w.sequence.id: [0] for w in plan.work if w.samples}
        lumens.update(plan, drawn)
        for w in plan.work:
            if len(w.sequence.output) == w.sequence.request.max_new_tokens:
                lumens.finish(w.sequence)
        assert mine.free == lumens.pool.num_free
        step += 1
    return step, chunks, lumens.num_preemptions


# %% tags=["nbval-check-output"]
sums = [sum(c) for c in zip(*map(same_plans, range(300)), strict=True)]
print(f"{sums[0]:,} steps with equal plans")
print(f"{sums[1]:,} pieces that ended before a sample")
print(f"{sums[2]:,} preemptions")
assert min(sums) > 300

# %% [markdown]
# `lumen.serve.scheduler` adds block numbers instead of a count, prefix hits (computed *starts* at the hit), swapping, drafts for
# speculation (total is *larger* by the tokens proposed), and the two older ways to admit of [chapter 8](08_batching.ipynb). None
# of them is a phase.
#
# ## When the pool runs dry
#
# *Whoever needs a block when there is none takes those of the worst rank*: [preemption](../book/glossary.md#term-preemption), done by
# hand in [chapter 5](05_paged_cache.ipynb). Here the engine does it to four requests of 48 + 24 tokens, with 13 blocks of 16 where
# they would need 20. What the blocks held is computed again, or *swapped*: copied to the host's memory and back.


# %% tags=["hide-input"]
def squeezed(num_blocks, preemption="recompute", prefix="none"):
    """Four requests in a pool: answers, the counters, bytes moved."""
    limits = Limits(4, 256, preemption=preemption)
    engine = Engine(
        model, num_blocks=num_blocks, prefix=prefix, limits=limits
    )
    for i in range(4):
        engine.add(Request(f"{i}", starts[i], 24, arrival=float(i)))
    answers, moved = {f"{i}": [] for i in range(4)}, 0
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id] += delta.tokens
        plan = engine.last_plan
        moved += sum(swap.length for swap in plan.swap_out + plan.swap_in)
    kappa = cost.kv_bytes_per_token(config, "fp32")
    return list(answers.values()), engine.counters, moved * kappa


starts = [tokens(48) for _ in range(4)]
ways = {
    "room for all": squeezed(20),
    "recompute": squeezed(13),
    "recompute, with a prefix cache": squeezed(13, prefix="radix"),
    "swap": squeezed(13, "swap"),
}

# %% tags=["hide-input", "nbval-check-output"]
roomy, *_ = ways["room for all"]
assert all(
    shortfall(*pair) < 1e-3 for pair in zip(starts, roomy, strict=True)
)
needed, again, rows = 4 * (48 + 24 - 1), {}, []
for name, (answers, counters, moved) in ways.items():
    assert all(same(*a) for a in zip(starts, answers, roomy, strict=True))
    again[name] = counters.computed_tokens - needed
    row = [name, "yes", again[name], f"{moved / 1e6:.1f}"]
    rows.append([*row, counters.preemptions])
table(
    rows,
    [
        "pool",
        "same answers",
        "computed again (tokens)",
        "swapped (MB)",
        "preemptions",
    ],
    "llrrr",
    stack=True,
)

# %% [markdown]
# The answers are the same in all four ways, and that is no luck. A token depends on the tokens before it, their positions, and its
# request's own random stream. Preemption takes *computed*, and touches none of the three. Keys and values are a function of tokens
# and positions, so computing them again gives them again, up to the order of additions: where two logits nearly tie, either token may
# win.
#
# Recompute or swap? With a [prefix cache](../book/glossary.md#term-prefix-cache) ([chapter 6](06_prefix_cache.ipynb)) what nobody
# took meanwhile is found again. Otherwise it is the race of [chapter 5](05_paged_cache.ipynb#when-the-pool-runs-dry), the bus against
# the arithmetic, and a scheduler adds one thing: recomputed tokens go into a step *beside* answers, where arithmetic may be idle.

# %% [markdown]
# ## Who goes first
#
# Every list above was *in order of rank*. First come, first served lets a batch job delay a person behind it. Strict priorities
# serve people first, and then there is a day when people never stop coming.
#
# Our rank is $\text{priority} + \text{arrival}/a$, fixed when the request arrives; the smallest goes first. One step of priority is
# worth $a$ seconds of waiting. *Simulated* here, with the engine's own scheduler: two slots, which can serve four requests a second.
# Urgent ones (priority 0) keep it four fifths busy for a minute; then comes a rush in which they keep it busy altogether. Somebody
# hands in 30 background jobs (priority 1) at once in the calm minute, and 10 more at the beginning of the rush. Strict priority is the
# negative control: under it somebody must starve.

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = ch09.ranks_table()
table(rows, headers, sides, stack=True)
markdown(ch09.ranks_text())

# %% [markdown]
# Why does nobody starve? A request that comes $a$ seconds later and one step of priority ahead has the same rank; whoever comes later
# still has a worse one. So only finitely many can ever get in front of a given request. They finish: the best that runs moves in
# every step, takes any block it needs, and nobody takes its own; nobody passes the head of the queue, and it gets the next place.
#
# The head waits for a place until somebody ends, though; background answers that hold every slot can keep an urgent one waiting for
# their whole length. `Limits(priority_preemption=True)`, in `lumen serve` `--priority-preemption`, lets a better rank take the slot
# or the blocks of the worst that runs: it starts with the next step, and the other one goes on later with the same tokens, at the
# price of computing or swapping its cache again. It is off unless asked for.
#
# *Fixed at arrival* matters. If a score grew only while one waits, two requests could preempt each other again and again. And one
# request must be refused at the door, one that needs more blocks than the pool has: as the head of the queue it would hold up
# everybody for ever.

# %% tags=["hide-input", "nbval-check-output"]
scheduler = Scheduler(BlockPool(8, 16), limits=Limits(2, 64))
try:
    scheduler.add(Request("too large", [0] * 120, 20))
except ValueError as refused:
    print(textwrap.fill(str(refused), 42))

# %% [markdown]
# ## Prefill here, decode there
#
# Chunks make the freeze short, not nothing: while the document is read, every step is longer. If that is too much, let one machine
# read prompts and send keys, values and the first token to another, whose steps hold nothing but answers:
# [disaggregation](../book/glossary.md#term-disaggregation).
#
# The price is the journey of $\kappa L$ bytes. Sent *whole*, they leave when the prompt is done. Sent *layer by layer*, layer 0
# travels while layer 1 is computed, and only the last layer's journey is left at the end, if the link keeps up with the rate at which
# a prefill makes cache:
#
# $$ \frac{\kappa L}{t_\text{prefill}(L)} \approx \frac{\kappa \cdot \text{peak}}{2N} $$

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = ch09_cards.journeys_table()
table(rows, headers, sides)
markdown(ch09_cards.journeys_text())

# %% [markdown]
# Now for real, small: two processes on this machine, one core each, and `torch.distributed` between them. Blocks of 16 positions on
# one side and 4 on the other are no obstacle: what travels is a run of positions.

# %% tags=["hide-input", "nbval-ignore-output"]
warm = Request("warm-up", prompts[0], 2)
late = Request("document", document[:512], 4)
result = disagg.serve(
    partial(lumen.load, "smollm2-135m", dtype=torch.float32),
    [warm, late],
    prefill=disagg.Pool(40, 16),
    decode=disagg.Pool(200, 4),
    layerwise=True,
)
trips = {trip.request_id: trip for trip in result.handovers}
handed = trips["document"]
assert handed.num_bytes == 512 * cost.kv_bytes_per_token(config, "fp32")
assert shortfall(late.prompt, result.answers["document"]) < 1e-3
print(ch09.handover_text(handed, config.num_layers))

# %% tags=["hide-input", "nbval-check-output"]
kept = bench.load_evidence("disaggregation")["data"]["runs"]
rows, headers, sides = ch09.apart_table(kept)
table(rows, headers, sides, stack=True)
markdown(ch09.apart_text(kept))

# %% [markdown]
# ### When does it pay?
#
# Give both the same eight A100, Llama-3-8B in bf16, 4,096 tokens of prompt and 256 of answer per request, and no queues. Two limits:
# every gap, and the first token. *Together*: a chip always has the same number of answers under way, reads a prompt beside them in equal
# chunks, and starts the next when one of them ends; number and chunk are the best that keep both limits. *Apart*: some chips only read,
# the others only write, over a network of 400 Gbit/s; the best split is taken. [Goodput](../book/glossary.md#term-goodput), in requests
# per second, is then:

# %% tags=["hide-input", "nbval-check-output"]
ch09_cards.goodput_figure()

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch09_cards.goodput_text())

# %% [markdown]
# *Predicted*, for ideal chips: so disaggregation pays
#
# - when **both** limits are tight, and chunks small enough for the one break the other;
# - when the two sides want **different machines**: compute for reading, bandwidth and memory for writing, other parallelism;
# - when a mixed step is worse than its parts, because kernels or graphs are made for one kind of work.
#
# A link below the rate at which a prefill makes cache eats into that: it, and not the readers, then sets the pace. Goodput under two
# limits is [DistServe's](https://arxiv.org/abs/2401.09670) measure (2024). Compare by it, and let the other side choose its best chunk.
#
# ## Where it loses
#
# Chunked prefill has a price, and it is not FLOPs: each pair of a query and a key is computed once, however the prompt is cut. What
# repeats is *reading*: the weights once per chunk, and the keys and values of all earlier chunks. And where reading hides behind
# multiplying, few rows still reach a lower rate. The document, on this machine:

# %% tags=["hide-input", "nbval-ignore-output"]
rows, headers, sides = ch09.reading_table(LONG, chip, config)
table(rows, headers, sides)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
lone = {2048: [], 33: []}
for _ in range(3):
    for budget, kept_runs in lone.items():
        short = document[:512]
        run = meet(model, prompts[:1], short, budget, before=2, after=1)
        kept_runs.append(run)

# %% tags=["hide-input", "nbval-ignore-output"]
in_crumbs = ch09.ratio(lone, ch09.ttft, 33, 2048)
markdown(ch09.crumbs(in_crumbs, median(r.ttft for r in lone[2048])))

# %% [markdown]
# An offline job, where nobody reads along, wants a large budget. And a budget that is too small starves itself: with 60 answers under
# way, a budget of 64 leaves 4 tokens per step for all the prompts together.

# %% [markdown]
# ## How this could fool you
#
# <div class="stack">
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the mean gap, or p99 over a long answer | the freeze is one gap in hundreds: a server that is a little slow | [the longest gap](#predict-how-much-shorter-is-the-freeze), everywhere on this page |
# | TTFT of the *other* requests | chunking looks free | [the document's own TTFT](#predict-who-pays) beside the gaps |
# | disaggregation against an unchunked engine, or under one limit | "no more stalls", or "no throughput": each is true somewhere | [together is chunked, and both limits hold](#when-does-it-pay) |
#
# </div>

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch09.traps_text(runs))

# %% [markdown]
# ## Play
#
# The first experiment of this page with your numbers in it: answers are being written, a long prompt arrives, you set the budget.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = budget_lab(model)

# %% [markdown]
# ## In production

# %% tags=["hide-input", "nbval-check-output"]
production_table(
    [
        (
            "vllm",
            "the token budget, chunked prefill on by default; slots; "
            "priorities without ageing; preempts by recomputing",
            "`--max-num-batched-tokens`, `--max-num-seqs`, "
            "`--scheduling-policy`",
            "configuration/optimization/",
        ),
        (
            "sglang",
            "chunks and answers share a step only when told to",
            "`--chunked-prefill-size`, `--enable-mixed-chunk`, "
            "`--disaggregation-mode`",
            "advanced_features/server_arguments",
        ),
        (
            "tensorrt-llm",
            "lets in only who can finish (`GUARANTEED_NO_EVICT`), or "
            "preempts (`MAX_UTILIZATION`)",
            "`max_num_tokens`, `enable_chunked_prefill`, "
            "`cache_transceiver_config`",
            "features/disagg-serving.html",
        ),
        (
            "llama.cpp",
            "cuts prompts, fixed slots",
            "`--batch-size`, `--ubatch-size`, `--parallel`",
            "tools/server/README.md",
        ),
    ]
)

# %% [markdown]
# In this course: `lumen serve --token-budget …`, and `lumen/serve/scheduler.py`, which you have just written
# most of.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(f"{ch09.recap(runs, LONG, again, sums[0])}")
callout(
    "takeaway",
    "**Takeaway.** Ask of every latency: which step was it in, and what "
    "else was in that step?",
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("09")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/09_scheduling.ipynb) ([solutions](../solutions/09_scheduling.ipynb)). Checks answer at
# once and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("09"))

# %% [markdown]
# ## Further reading
#
# - [Sarathi-Serve](https://arxiv.org/abs/2403.02310) (Agrawal and others, 2024): read it for section 3, which measures what prefill
#   does to decode, and for the token budget.
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for scheduling by iteration.
# - [DistServe](https://arxiv.org/abs/2401.09670) (Zhong and others, 2024): read it for goodput per GPU under two limits, and for the queue in front of
#   the readers, which is left out here.
# - [Splitwise](https://arxiv.org/abs/2311.18677) (Patel and others, 2023): read it for different machines on the two sides, and for the
#   transfer layer by layer.
# - [Fairness in Serving Large Language Models](https://arxiv.org/abs/2401.00588) (Sheng and others, 2023): read it for fairness between *users*,
#   counted in tokens, which ranks alone do not give.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    evidence=["disaggregation"],
    chip=chip,
    notes=[
        "fp32 throughout; random prompts with seed 0",
        "workloads of the two schedulers with seeds 0 to 299",
        "chips named by data sheet are predictions",
    ],
)
