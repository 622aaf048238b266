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
# # 3 · Measuring

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/03_measuring.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/03_measuring.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/03_measuring.ipynb)
#
# CPU is enough · read 30 min · run 2 min · practise 96 min · here: [exercises](../exercises/03_measuring.ipynb), [solutions](../solutions/03_measuring.ipynb)
#
# </div>

# %% [markdown]
# A dashboard says 40 ms per token. A user says "it hangs". Both looked at the same server in the same minute, and both
# are right. Below, SmolLM2 writes an answer of 192 tokens, and on the way the server reads somebody else's prompt. The
# mean gap between two tokens moves by milliseconds; on the screen the text stands still. **How can a mean hide that?**
#
# By the end you can
#
# - read TTFT, TPOT, ITL and latency off the arrival times of a stream, and say which of them shows a stall;
# - compute how many users a slow gap in a hundred, or in a thousand, reaches, and say when the formula does not hold;
# - say how many times a freeze is undercounted by a tester who waits for every answer, and measure without that error;
# - give the load at which a promise breaks, for few places and for many, and what a token then costs.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb), [the roofline](02_roofline.ipynb).
#
# New terms: [TTFT](../book/glossary.md#term-TTFT), [TPOT](../book/glossary.md#term-TPOT),
# [ITL](../book/glossary.md#term-ITL), [E2EL](../book/glossary.md#term-E2EL),
# [percentile](../book/glossary.md#term-percentile), [SLO](../book/glossary.md#term-SLO),
# [goodput](../book/glossary.md#term-goodput),
# [coordinated omission](../book/glossary.md#term-coordinated-omission),
# [open loop](../book/glossary.md#term-open-loop), [closed loop](../book/glossary.md#term-closed-loop).

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

session = lumen.setup("03_measuring")

# %% tags=["hide-input"]
import importlib.util
import queue
import random
import statistics
import threading
import time
from bisect import bisect_left
from functools import cache
from itertools import pairwise

import numpy as np
import torch

import lumen
from lumen import bench, cost, grading, hardware
from lumen.explore import (
    QueueLoad,
    Quiz,
    callout,
    guess,
    markdown,
    provenance,
    reveal,
    stall_lab,
    table,
)
from lumen.explore.prose.boxes import is_static, milliseconds
from lumen.loadgen import (
    Record,
    arrivals,
    percentile,
    samples,
    summarize,
)
from lumen.loadgen.batched import batched
from lumen.loadgen.queue import mean_wait, one_server, places
from lumen.pages import ch03
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m")
config, device = model.config, session.device

# %% [markdown]
# ## One answer, and somebody else's prompt
#
# A server that writes for you also reads for others. Here it reads a long prompt, in one piece, between two tokens of our
# answer. `bench.token_times` notes when each token came, and `Record` keeps these times for one answer.

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
dice = torch.Generator().manual_seed(0)
LONG = 512 if device.type == "cpu" else 8000  # a GPU reads 512 in no time
long_prompt = torch.randint(config.vocab_size, (1, LONG), generator=dice)
long_prompt = long_prompt.to(device)
prompt = tokenizer.encode("The evening sky is red because")


def read(count):
    """The prefill of somebody else's prompt of `count` tokens."""
    return model.head(model.hidden(long_prompt[:, :count])[:, -1])


def somebody_else(step):
    if step == 40:
        read(LONG)


bench.token_times(model, prompt, 8)  # warm-up
times = bench.token_times(model, prompt, 192, somebody_else)
answer = Record.of_tokens(times, prompt_len=len(prompt))
others = [gap for gap in answer.itl if gap < max(answer.itl)]
print(f"{len(answer.itl)} gaps, mean {milliseconds(answer.tpot)}")

# %% tags=["hide-input", "nbval-ignore-output"]
ch03.gaps_figure(answer)

# %% tags=["hide-input", "nbval-ignore-output"]
read_alone = bench.prefill(model, LONG)  # from the store
one_step = bench.decode_step(model, batch=1, context=256)
markdown(ch03.opening(answer, LONG, read_alone, one_step))

# %% tags=["hide-input"]
markdown(ch03.on_an_a100())

# %% [markdown]
# ## Four times, and what each forgets
#
# All that a client knows about the time of one answer is when it sent the request, $t_0$, and when each of the $n$ tokens
# arrived, $t_1 \le t_2 \le \dots \le t_n$. All the usual names are made of these:
#
# $$
# \begin{aligned}
# \text{TTFT} &= t_1 - t_0 \\
# \text{ITL}_i &= t_{i+1} - t_i \qquad i = 1 \dots n-1 \\
# \text{TPOT} &= (t_n - t_1) / (n-1) \\
# \text{E2EL} &= t_n - t_0 \\
#   &= \text{TTFT} + \text{TPOT}\,(n-1)
# \end{aligned}
# $$

# %% tags=["hide-input", "nbval-ignore-output"]
rows, headers, sides = ch03.four_times(answer)
table(rows, headers, sides, stack=True)

# %% [markdown]
# TPOT and ITL are often used as one word. TPOT is one number per *request*, ITL one per *gap*, and pooled over many
# requests their percentiles have little to do with each other. Small print: an answer of one token has no TPOT at all (it
# is left out of the mean, not counted as 0), and on a server TTFT is not the
# [prefill](../book/glossary.md#term-prefill) alone. It holds the wait in the queue, the tokenizer and the network as well.
#
# ## A promise in numbers
#
# Many requests make many numbers, and a service is judged by its slow ones. The **percentile** p99 is the value that 99 %
# of the samples do not exceed. To find it, sort: of $n$ sorted samples it is the one at rank $0.99\,(n-1)$, counted from 0,
# and between two ranks one interpolates linearly. p50 is the median.
#
# A promise, an **SLO**, puts limits on such numbers: say, TTFT within 500 ms and TPOT within 30 ms, for 99 of 100
# requests. **Goodput** counts only the requests that kept every limit, per second. A failed request is never good.
#
# What do people promise? MLPerf Inference, by whose rules vendors compare data centres, asks for these limits at p99 in its
# two scenarios with random (Poisson) arrivals:

# %% tags=["hide-input"]
rows, headers, sides = ch03.promises()
table(rows, headers, sides, stack=True)
markdown(f"[Rules]({ch03.RULES}) as of July 2026; limits in ms.")

# %% [markdown]
# ## Build it
#
# A report is a few sums. Here is the one that `vllm bench serve` prints, reduced to its heart.


# %%
def percentile_of(values, p):
    """The value that p % do not exceed."""
    ordered = sorted(values)
    at = p / 100 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def report(answers, seconds, limits):
    """answers: (sent, [arrival of each token]) in s;
    limits: (ttft, tpot) of a good request in ms."""
    ttfts, tpots, itls, good = [], [], [], 0
    for sent, came in answers:
        ttft = came[0] - sent
        gaps = [b - a for a, b in pairwise(came)]
        tpot = sum(gaps) / len(gaps) if gaps else None
        ttfts.append(ttft)
        itls += gaps  # pooled: a long answer has more to say
        tpots += [tpot] if gaps else []  # one token: no TPOT
        fast = 1e3 * ttft <= limits[0]
        good += fast and 1e3 * (tpot or 0) <= limits[1]
    lines = {"request_goodput": good / seconds}
    for name, seen in (("ttft", ttfts), ("tpot", tpots), ("itl", itls)):
        lines[f"mean_{name}_ms"] = 1e3 * sum(seen) / len(seen)
        lines[f"p99_{name}_ms"] = 1e3 * percentile_of(seen, 99)
    return lines


# %% [markdown]
# It must agree with `lumen.loadgen.summarize`, which is what `lumen load` prints, and its percentiles with two
# libraries that have nothing to do with us.

# %% tags=["hide-input", "nbval-check-output"]
rng = random.Random(3)
made = []
for i in range(40):
    later = sorted(rng.random() for _ in range(rng.randint(1, 9)))
    made.append((0.1 * i, [0.1 * i + t for t in later]))
records = [Record.of_tokens(came, start=sent) for sent, came in made]
ours = report(made, 5.0, (300, 120))
theirs = summarize(
    records, duration=5.0, goodput={"ttft": 300, "tpot": 120}
)
assert all(abs(ours[key] - theirs[key]) < 1e-9 for key in ours)

values = [rng.lognormvariate(0, 1) for _ in range(101)]
cuts = statistics.quantiles(values, n=100, method="inclusive")
assert np.isclose(percentile_of(values, 99), np.percentile(values, 99))
assert np.isclose(percentile_of(values, 99), cuts[-1])
single = sum(len(came) == 1 for _, came in made)
print(f"{len(ours)} numbers agree; {single} of {len(made)} have one token")

# %% [markdown]
# The sums are easy. The list of arrival times is where benchmarks go wrong. Take Hugging Face transformers: `generate`
# pushes every token into a streamer. Let us write one that looks at the clock, and ask for twelve tokens.


# %% tags=["nbval-ignore-output"]
class Stopwatch:
    """A streamer: `generate` calls put() with what it has, then end()."""

    def __init__(self):
        self.start, self.calls = time.perf_counter(), []

    def put(self, tokens):
        now = time.perf_counter() - self.start
        self.calls.append((now, tokens.numel()))

    def end(self):
        pass


# %% tags=["hide-input", "nbval-ignore-output"]
pushed = []
if importlib.util.find_spec("transformers"):
    from lumen.io.convert import hf_model

    hf = hf_model("smollm2-135m").to(device)
    ids = torch.tensor([prompt], device=device)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    options |= {"eos_token_id": None, "pad_token_id": 2}
    hf.generate(ids, max_new_tokens=2, **options)  # warm-up
    watch = Stopwatch()
    hf.generate(ids, max_new_tokens=12, streamer=watch, **options)
    pushed = watch.calls
    assert len(pushed) == 13 and pushed[0][1] == len(prompt)
    del hf
markdown(ch03.streamer_text(pushed))

# %% [markdown]
# ## Predict: who notices?
#
# Now a server with visitors. Before each token of our answers but the first, the chance is 4 in 100 that somebody
# else's prompt is read first. Of the gaps, 96 % are fine. An answer of 16 tokens has 15 gaps.

# %% tags=["predict"]
my_guess = guess(
    "03-notice",
    "What share of the answers has at least one stall in it?",
    unit="%",
)

# %% [markdown]
# The durations below are those measured above; where the stalls fall is drawn by a generator. So this is a *simulation*,
# of 20,000 answers.

# %% tags=["measure", "hide-input"]
CHANCE, ANSWERS, TOKENS = 0.04, 20_000, 16
drawn = np.random.default_rng(0)
stall = max(answer.itl) - statistics.median(answer.itl)


def visitors(in_a_row=1):
    """(answers, gaps): before which gaps somebody else is read.

    They come `in_a_row` at a time, as many gaps in all.
    """
    shape = (ANSWERS, TOKENS - 1 + in_a_row - 1)
    first = drawn.random(shape) < CHANCE / in_a_row
    kept = [first[:, i : i + TOKENS - 1] for i in range(in_a_row)]
    return np.any(kept, axis=0)


hit = visitors()
gaps = drawn.choice(others, hit.shape) + stall * hit
in_bursts = 100 * visitors(ch03.BURST).any(axis=1).mean()
share = 100 * hit.any(axis=1).mean()

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=100 * (1 - (1 - CHANCE) ** (TOKENS - 1)),
    measured=share,
    unit="%",
    what="answers with at least one stall",
    title=ch03.noticed_title(hit),
    log=False,
    names=("formula", "simulated"),
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch03.noticed(gaps, hit, CHANCE, in_bursts))

# %% [markdown]
# How rare must a stall be before most users meet none? By the same formula, stalls independent of each other:

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = ch03.reached()
table(rows, headers, sides)

# %% tags=["hide-input", "nbval-check-output"]
callout("takeaway", ch03.rare())

# %% [markdown]
# ## The tester who waits
#
# So far we looked at one answer at a time. Now requests arrive at their own pace, and one that finds the server busy
# waits. The usual script to test that sends a request when it is due, waits for the answer, sends the next. You have
# probably written it. Below it is `wait=True`; with `wait=False` the tester sends each request when it is due, whatever
# the server does.
#
# The server is the loop at the end: it takes what waits in line, one request at a time, or up to `most` in one forward.


# %%
def load_test(count, gap, *, wait, most=1):
    """Request i is due at i * gap. Returns records and service times.

    The server freezes before it serves request count // 5.
    """
    line, sent, done = queue.Queue(), [0.0] * count, [0.0] * count
    answered = [threading.Event() for _ in range(count)]
    taken, left = [], count
    with bench.quiet():
        zero = time.perf_counter()

        def now():
            return time.perf_counter() - zero

        def tester():
            for i in range(count):
                time.sleep(max(0.0, i * gap - now()))
                sent[i] = now()
                line.put(i)
                if wait:
                    answered[i].wait()

        threading.Thread(target=tester).start()
        while left:  # the server
            batch = [line.get()]
            while len(batch) < most and not line.empty():
                batch.append(line.get())
            begin = now()
            if count // 5 in batch:
                freeze()
            serve(len(batch))
            bench.synchronize()  # a GPU may still be at work
            taken.append(now() - begin)
            for i in batch:
                done[i] = now()
                answered[i].set()
            left -= len(batch)
    seen = [
        Record(i * gap, sent[i], (done[i],), done[i], output_len=1)
        for i in range(count)
    ]
    return seen, taken


# %% [markdown]
# Each record keeps two beginnings: when the request was **intended**, and when it was **sent**. They differ when the tester
# was still waiting for the answer before it. A person would have pressed Enter when it was time, so that wait is theirs.
#
# ## Predict: one freeze
#
# A request asks for one token behind a short prompt; alone it takes the *service time* $s$. The *load* is the share of
# time in which the server is busy: one request every $s / 0.6$ is a load of 60 %. The tester sends on time, the server
# takes one request at a time. Once it freezes: it reads somebody else's long prompts first. Both times, measured alone:

# %% tags=["hide-input", "nbval-ignore-output"]
LOAD, REQUESTS, ROUNDS = 0.6, 60, 3
short = torch.randint(config.vocab_size, (8, 4), generator=dice)
short = short.to(device)


def serve(rows):
    """One token each behind `rows` short prompts, in one forward."""
    return model.head(model.hidden(short[:rows])[:, -1])


def freeze():
    for _ in range(visits):
        read(LONG // 2)


visits = 0
rough = bench.measure(lambda: serve(1), repeats=5).median
calm, _ = load_test(12, 2 * rough, wait=True)  # with pauses, as below
service = statistics.median(samples(calm, "e2el"))
reading = bench.measure(lambda: read(LONG // 2), repeats=5)
visits = max(1, round(12 * service / reading.median))

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch03.one_freeze(service, visits * reading.median, REQUESTS))

# %% tags=["predict"]
my_guess = guess(
    "03-freeze",
    "How many of the 60 take more than twice the service time, counted "
    "from when they were due?",
    unit="requests",
)

# %% tags=["measure", "hide-input", "nbval-ignore-output"]
rounds = {"waits": [], "sends": [], "batched": []}
for _ in range(ROUNDS):  # in turns
    gap = service / LOAD
    rounds["waits"].append(load_test(REQUESTS, gap, wait=True))
    rounds["sends"].append(load_test(REQUESTS, gap, wait=False))
    rounds["batched"].append(load_test(REQUESTS, gap, wait=False, most=8))
frozen = visits * reading.median
testers = ch03.Testers(rounds, service, frozen, LOAD)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=testers.forecast(),
    measured=testers.slow("sends"),
    unit="requests",
    what="slower than twice the service time",
    title=ch03.testers_title(testers),
    log=False,
)

# %% tags=["reveal", "nbval-ignore-output"]
ch03.testers_figure(testers)

# %% tags=["reveal", "nbval-ignore-output"]
rows, headers, sides = ch03.testers_table(testers)
table(rows, headers, sides)
markdown(ch03.testers_text(testers))

# %% [markdown]
# This is coordinated omission: the tester and the server agree, without a word, to leave out the moments in which the
# server is at its worst. Three ways to offer load, each right for some traffic
# ([Schroeder et al. 2006](https://www.usenix.org/conference/nsdi-06/open-versus-closed-cautionary-tale)):
#
# <div class="stack">
#
# | loop | who asks next | right for |
# | --- | --- | --- |
# | closed loop | one of $u$ users, when its answer has come | $u$ batch jobs or agents, each waiting for itself |
# | open loop | whoever is due, whether or not others wait | many people who do not know of each other |
# | partly open | sessions begin like an open loop; inside, each question waits for the answer before it | chats |
#
# </div>
#
# The authors' rule of thumb: with up to five requests a session, on average, a partly open loop behaves like an open one, with
# ten or more like a closed one. For an open loop make the schedule before the run, send every request on time, in a task
# of its own, and measure from then. Correcting a waiting tester's numbers afterwards, as above, is second best.
#
# In the explorer the tester who waits has one connection for each place of the server. Pull the freeze to 0 with even
# arrivals: both testers agree. Raise it. Then set it to 0 again, choose random arrivals and raise the load.

# %%
QueueLoad(load=0.75, freeze=2.0)

# %% [markdown]
# ## The queue, without any freeze
#
# Real arrivals are not evenly spaced either. If they are independent (a Poisson process), some come close together, and
# a queue forms at any load. For one server with a fixed service time $s$ the mean latency has a formula, that of the
# [M/D/1 queue](https://en.wikipedia.org/wiki/M/D/1_queue):
#
# $$
# \text{mean latency} = s + \frac{\text{load}}{1 - \text{load}} \cdot \frac{s}{2}
# $$
#
# And the tail? Simulating a queue takes one loop. Let there be several places, so that as many requests are served side by
# side. All take the same time, so they leave in the order in which they came, and request $i$ takes the place that request
# $i - \text{places}$ left.


# %%
def latencies(times, count, service=1.0):
    """From arrival to answer, `count` places, first come first served."""
    ends = []
    for i, due in enumerate(times):
        free = ends[i - count] if i >= count else 0.0
        ends.append(max(due, free) + service)
    return [end - due for end, due in zip(ends, times, strict=True)]


# %% tags=["hide-input", "nbval-check-output"]
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
COUNT = 2_000_000  # near full load neighbours share their wait


def simulate(load, count):
    times = arrivals(COUNT, load * count, seed=1)
    return places(times, count)


one_place = {load: simulate(load, 1) for load in LOADS}
for load, latency in one_place.items():
    assert abs(latency.mean() / (1 + mean_wait(load, 1.0)) - 1) < 0.03
few = arrivals(500, 0.8, seed=1)
alike = samples(one_server(few, [1.0] * 500), "e2el", intended=True)
assert np.allclose(latencies(few, 1), alike)
assert np.allclose(latencies(few, 3), places(few, 3))
print("ours equals lumen's; its mean is the formula's within 3 %")

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch03.one_place(one_place[0.9]))

# %% tags=["predict"]
my_guess = guess(
    "03-places",
    "64 places at a load of 90 %: p99 of the latency?",
    unit="service times",
)

# %% tags=["measure"]
curves = {1: one_place}
for count in (8, 64):
    curves[count] = {load: simulate(load, count) for load in LOADS}

# %% tags=["reveal", "nbval-check-output"]
reveal(
    guess=my_guess,
    model=percentile(curves[1][0.9], 99),
    measured=percentile(curves[64][0.9], 99),
    unit="service times",
    what="p99 at 90 % load",
    title="The more places, the nearer to full before waits are long",
    names=("1 place", "64 places"),
)

# %% tags=["reveal", "nbval-check-output"]
ch03.places_figure(curves)

# %% tags=["reveal", "nbval-check-output"]
markdown(ch03.places_text(curves))

# %% [markdown]
# ## An engine is no post office
#
# In that model everybody in a place is served as fast as if alone. In an engine with
# [continuous batching](../book/glossary.md#term-continuous-batching) everybody inside shares each step: it is the longer the
# more are inside, and longer again when somebody's prompt is read in it. **Its service time depends on its load.** Take
# Llama-3-8B on an H100, prompts of 1,000 tokens and answers of 250, with steps by the cost model at datasheet rates:

# %% tags=["hide-input"]
PROMPT, ANSWER, PLAYED = 1000, 250, 30_000
llama, h100 = lumen.CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]


@cache
def step(new, old):
    """Seconds of one forward: `new` prompts, one token of `old` answers."""
    halfway = (PROMPT + ANSWER // 2, 1)
    pieces = [halfway] * old + [(0, PROMPT)] * new
    return cost.predict_mixed(llama, h100, pieces, "bf16").seconds


def engine(rate, count):
    """A simulated engine with `count` places, `rate` requests/s."""
    times = arrivals(PLAYED, rate, seed=1)
    return batched(times, step, answer=ANSWER, places=count)


def full_rate(count):
    """Requests/s when all places are taken: what one pass of all of
    them through ANSWER steps takes, their prompts included."""
    one_more = step(1, count - 1) - step(0, count - 1)
    return count / (ANSWER * step(0, count) + count * one_more)


# %% [markdown]
# The same on paper. $B$ places make $B$ tokens every $t(B)$ seconds; each request brings one prompt,
# which takes $p$, and needs $n$ tokens:
#
# $$
# \begin{aligned}
# \mu &= \frac{B}{n\,t(B) + B\,p} \\
# \text{TPOT} &= \frac{t(B)}{1 - r\,p} \\
# \text{load} &= \frac{r\,\bigl(p + (n-1)\,\text{TPOT}\bigr)}{B}
# \end{aligned}
# $$
#
# At a rate of $r$ requests a second, reading prompts takes the share $r\,p$ of the time, and steps get the rest: TPOT is
# that with all places taken, the slowest. The load is the share of places that are taken: rate × time in a place, over
# places.

# %% tags=["hide-input", "nbval-check-output"]
mu = full_rate(64)
flood = engine(1.5 * mu, 64)
assert abs(PLAYED / flood.seconds / mu - 1) < 0.05
paper = step(0, 64) / (1 - mu * (step(1, 63) - step(0, 63)))
assert abs(np.mean(flood.tpot) / paper - 1) < 0.05
idle = step(1, 0) + (ANSWER - 1) * step(0, 1)
by_load = {load: engine(load * mu, 64) for load in LOADS}
tail = {load: percentile(run, 99) for load, run in curves[64].items()}
ch03.engine_figure(by_load, idle, tail)

# %% [markdown]
# The post office stays flat and then bends; the engine gets slower from the first neighbour on. With 64 places, every load is
# felt in TPOT, and a queue for a place only near full.
#
# ## Goodput
#
# Let us offer the engine more and more, beyond what it can do, and promise what MLPerf's interactive scenario asks of this
# size of model: TTFT within 500 ms, TPOT within 30 ms.

# %% tags=["hide-input"]
LOOSE = "TTFT 500, TPOT 30 ms"
PROMISES = {LOOSE: (0.5, 0.03), "TTFT 500, TPOT 10 ms": (0.5, 0.01)}
offered = {}
for load in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3):
    run = engine(load * mu, 64)
    kept = run.good(*PROMISES[LOOSE])
    offered[load * mu] = (PLAYED / run.seconds, kept / run.seconds)

# %% tags=["hide-input"]
ch03.goodput_figure(list(offered), offered)

# %% tags=["hide-input"]
markdown(ch03.goodput_text(offered, PLAYED))

# %% [markdown]
# ## What a token costs
#
# The price of a token is the price of an hour over the tokens of an hour, and a brochure divides by the tokens of a *full*
# hour. A promise forbids the full hour. How much of it is left? For engines with 8, 64 and 256 places, the highest rate at
# which 99 of 100 requests keep the promise, to a hundredth of the full rate:


# %% tags=["hide-input"]
def allowed(count, limits):
    """The highest share of the full rate that keeps the promise."""

    def broken(percent):
        run = engine(percent / 100 * full_rate(count), count)
        return run.good(*limits) < 0.99 * PLAYED

    return bisect_left(range(1, 101), True, key=broken) / 100


def price(rate):
    """Dollars per million tokens of answers at `rate` requests/s."""
    return cost.cost_per_million_tokens(h100.price_per_hour, rate * ANSWER)


priced = []
for count in (8, 64, 256):
    full, left = full_rate(count), {}
    for name, limits in PROMISES.items():
        part = allowed(count, limits)
        left[name] = (part, price(part * full))
    priced.append((count, full, price(full), left))

# %% tags=["hide-input"]
rows, headers, sides = ch03.prices(priced)
table(rows, headers, sides, stack=True)
markdown(ch03.prices_text(priced, h100))

# %% [markdown]
# ## Where it loses
#
# A p99 needs requests, and benchmarks are short. Take one server at a load of 80 % and measure it again and again, each
# time with a run of only so many requests:

# %% tags=["hide-input", "nbval-check-output"]
spread = {}
for size in (50, 100, 1_000, 10_000):
    runs = [
        places(arrivals(size, 0.8, seed=seed), 1) for seed in range(200)
    ]
    found = ([percentile(run, p) for run in runs] for p in (90, 99))
    spread[size] = [[percentile(v, q) for q in (5, 50, 95)] for v in found]
markdown(ch03.spread_text(spread, percentile(one_place[0.8], 99)))

# %% [markdown]
# Two negative controls. A tester who waits for every answer is asked for the p99 at two loads. And two servers, a large
# one with little to do and a small one near its limit, report their p99s, of which a dashboard takes the mean.

# %% tags=["hide-input", "nbval-check-output"]
blind, true = {}, {}
for load in (0.3, 0.9):
    run = one_server(arrivals(2_000, load, seed=1), [1.0] * 2_000)
    blind[load] = percentile(samples(run, "e2el"), 99)
    true[load] = percentile(one_place[load], 99)
assert abs(blind[0.3] - blind[0.9]) < 1e-6
large, small = one_place[0.3][:9_000], one_place[0.95][:1_000]
averaged = (percentile(large, 99) + percentile(small, 99)) / 2
pooled = percentile(np.concatenate([large, small]), 99)
rows, headers, sides = ch03.controls(blind, true, averaged, pooled)
table(rows, headers, sides)

# %% [markdown]
# Both fail as they should. The first tester cannot see load at all. And percentiles do not average: pool the samples, or
# the counts of a histogram, and take the percentile last (exercise 3).
#
# ## How this could fool you
#
# Some traps need no queue. These are in the numbers of this very page:

# %% tags=["hide-input", "nbval-ignore-output"]
empty = [
    bench.measure(lambda: None, repeats=9, inner=inner).median
    for inner in (1, 10_000)
]
speeds = (1 / gaps.mean(axis=1)).tolist()
firsts = (pushed[0][0], pushed[1][0]) if pushed else None
rows, headers, sides = ch03.slips(answer, speeds, empty, firsts)
table(rows, headers, sides, stack=True)

# %% [markdown]
# For answers of one length the mean of the speeds is at least the speed of the whole, because slow answers take more of
# the time and count the same. And a clock that is read around something shorter than the reading measures the reading.
#
# <div class="stack">
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the first call is timed | a compiled step or a cold cache is part of the median | `bench` throws warm-ups away |
# | a GPU that is not waited for | a step takes microseconds | `bench` waits for the device before and after |
# | latency from the sending | p99 is flat until the server is on fire | records keep the intended time; `lumen load` reports both |
# | too few requests | a new p99 every run | queues run to two million requests |
# | failed requests dropped in silence | the fastest server is the one that refuses | failures are counted, and never good |
#
# </div>
#
# ## Play
#
# Stalls of your own. How long may the other prompt be before you would notice? What does TPOT say then?

# %% tags=["nbval-ignore-output"]
lab = stall_lab(model, tokenizer, tokens=40, length=256, every=16)

# %% [markdown]
# ## In production

# %% tags=["hide-input"]
production_table(ch03.PRODUCTION, ("tool", "what", "flag or metric"))

# %% [markdown]
# Ours is `lumen load --request-rate 4 --goodput ttft:500 tpot:50 --save-result`, for any server of OpenAI's style, with
# vLLM's report ([chapter 10](10_serving.ipynb)). It sends in an open loop, each request in a task of its own.
#
# Two holes to know. `--goodput` takes ttft, tpot and e2el, in vLLM as in lumen: a server that stalls can be all good, so read
# p99 of ITL beside it. And with `--request-rate` *and* `--max-concurrency` vLLM's client holds requests back when the server
# is slow, while TTFT counts from the sending. It prints the time held back as "Client-side Queueing" and a latency that
# includes it, but no such TTFT ([source](https://github.com/vllm-project/vllm/blob/009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1/vllm/benchmarks/serve.py),
# 2026). `lumen load` prints both whenever there is a schedule.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(f"{ch03.recap(answer, CHANCE, TOKENS, testers, curves, priced)}")

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("03")

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/03_measuring.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("03"))

# %% [markdown]
# ## Further reading
#
# - [Dean and Barroso 2013, The Tail at Scale](https://research.google/pubs/the-tail-at-scale/): read it for what a p99
#   becomes when one page asks a hundred servers.
# - [Gil Tene, How NOT to Measure Latency](https://www.infoq.com/presentations/latency-response-time/): by the one who named
#   coordinated omission; read or watch it for how often good people made this mistake.
# - [Schroeder, Wierman and Harchol-Balter 2006, Open Versus Closed](https://www.usenix.org/conference/nsdi-06/open-versus-closed-cautionary-tale):
#   read it for how differently one system behaves under the two kinds of load.
# - [Zhong et al. 2024, DistServe](https://arxiv.org/abs/2401.09670): read it for goodput as the thing to optimise in LLM
#   serving.
# - [Hoefler and Belli 2015, Scientific Benchmarking of Parallel Computing Systems](https://htor.inf.ethz.ch/publications/img/hoefler-scientific-benchmarking.pdf):
#   read it for twelve rules of reporting measured times.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
if is_static():  # run for the book: publish the raw samples
    bench.evidence(
        "ch03_measuring",
        {
            "answer": answer.arrivals,
            "service": samples(calm, "e2el"),
            "reading": reading,
            "visits": visits,
            "load": LOAD,
            "rounds": {
                who: [
                    {
                        "due_sent_done": [
                            (r.intended, r.start, r.end) for r in seen
                        ],
                        "taken": taken,
                    }
                    for seen, taken in several
                ]
                for who, several in rounds.items()
            },
        },
        seed=0,
    )
provenance(
    session,
    evidence=["ch03_measuring"],
    notes=["simulated, seed 1: the queues and the engine; seed 0: stalls"],
)
