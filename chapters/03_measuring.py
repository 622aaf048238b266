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
# CPU is enough · read 30 min · run 1 min · practise 96 min · here: [exercises](../exercises/03_measuring.ipynb), [solutions](../solutions/03_measuring.ipynb)
#
# </div>

# %% [markdown]
# A dashboard says 40 ms per token. A user says "it hangs". Both looked at the same server in the same minute, and both
# are right. Below, SmolLM2 writes an answer of 96 tokens, and on the way the server reads somebody else's prompt. The
# mean gap between two tokens grows by milliseconds; on the screen the text stands still. **How can the average be fine
# and the complaint be true?**
#
# By the end you can
#
# - read TTFT, TPOT, ITL and latency off the arrival times of a stream, and say which of them shows a stall;
# - compute how many users a slow gap in a hundred, or in a thousand, reaches;
# - say how many times a freeze is undercounted by a tester who waits for every answer, and measure without that error;
# - give the load at which throughput still looks good and goodput does not, and what a token then costs.
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

session = lumen.setup("03_measuring")

# %%
import importlib.util
import random
import statistics
import time
from itertools import pairwise

import numpy as np
import torch

import lumen
from lumen import bench, cost, grading, hardware
from lumen.explore import (
    QueueLoad,
    Quiz,
    callout,
    figure,
    label_line,
    markdown,
    palette,
    reveal,
    stall_lab,
    table,
)
from lumen.explore.lab import is_static, milliseconds
from lumen.explore.theme import log_axis
from lumen.serve.load import Record, arrivals, percentile, samples, summarize
from lumen.serve.load.queue import mean_wait, one_server

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m")
config, device = model.config, session.device

# %% [markdown]
# ## One answer, and somebody else's prompt
#
# A server that writes for you also reads for others. Here it reads a long prompt, in one piece, between two tokens of our
# answer. `bench.token_times` notes when each token came, and `Record` keeps these times for one answer.

# %% tags=["measure", "nbval-ignore-output"]
dice = torch.Generator().manual_seed(0)
SHORT, LONG = (256, 512) if device.type == "cpu" else (8000, 8000)  # a GPU reads 512 tokens in no time
long_prompt = torch.randint(config.vocab_size, (1, LONG), generator=dice).to(device)
prompt = tokenizer.encode("The evening sky is red because")


def read(count):
    """The prefill of somebody else's prompt of `count` tokens."""
    return model.head(model.hidden(long_prompt[:, :count])[:, -1])


def somebody_else(step):
    if step == 40:
        read(LONG)


bench.token_times(model, prompt, 8)  # warm-up
answer = Record.of_tokens(bench.token_times(model, prompt, 96, somebody_else), prompt_len=len(prompt))
alone = Record.of_tokens(bench.token_times(model, prompt, 48), prompt_len=len(prompt))
print(f"{len(answer.itl)} gaps between {answer.output_len} tokens, mean {milliseconds(answer.tpot)}")

# %% tags=["hide-input", "nbval-ignore-output"]
gaps = [1e3 * gap for gap in answer.itl]
longest, usual = max(gaps), statistics.median(gaps)
fig = figure(
    f"The mean gap is {1e3 * answer.tpot:.0f} ms, the longest {longest:,.0f} ms",
    x="token of the answer",
    y="gap before it (ms)",
)
colors = [palette.orange if gap > 3 * usual else palette.blue for gap in gaps]
positions = list(range(2, answer.output_len + 1))
fig.add_bar(x=positions, y=gaps, marker_color=colors)
fig.add_scatter(
    x=[positions[0], positions[-1]],
    y=[1e3 * answer.tpot] * 2,
    mode="lines",
    line={"color": palette.grey, "dash": "dash"},
)
label_line(fig, positions[-1], 1e3 * answer.tpot, "mean", palette.grey, anchor="right", shift=12)
fig

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"The visitor's prompt had {LONG:,} tokens. Without it the mean gap was {milliseconds(alone.tpot)}, with it {milliseconds(answer.tpot)}: on a chart of "
    f"means that is {100 * (answer.tpot / alone.tpot - 1):.0f} % more. On the user's screen the text stood still for **{milliseconds(longest / 1e3)}**, "
    f"{longest / usual:.0f} times as long as usual. Nothing is wrong with the sum: "
    f"{milliseconds(longest / 1e3 - usual / 1e3)} more, spread over {len(gaps)} gaps, is "
    f"{milliseconds((longest - usual) / len(gaps) / 1e3)} each. A mean divides a stall by the length of the answer."
)

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
# \text{E2EL} &= t_n - t_0 = \text{TTFT} + \text{TPOT}\,(n-1)
# \end{aligned}
# $$

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [
        ["TTFT", "time to first token: here the prefill alone", milliseconds(answer.ttft), "nothing"],
        [
            "$\\text{ITL}_i$",
            f"inter-token latency: {len(gaps)} gaps, one by one",
            f"{usual:.3g} to {longest:,.0f} ms",
            "**the stall**",
        ],
        [
            "TPOT",
            "time per output token: the mean of these gaps",
            milliseconds(answer.tpot),
            f"{milliseconds((longest - usual) / len(gaps) / 1e3)} of it",
        ],
        ["E2EL", "end-to-end latency, to the last token", milliseconds(answer.latency), "a later end"],
    ],
    ["symbol", "what it is", "here", "what it shows of the stall"],
    align="llrl",
)

# %% [markdown]
# [TPOT](../book/glossary.md#term-TPOT) and [ITL](../book/glossary.md#term-ITL) are often used as one word. TPOT is one
# number per *request*, ITL one per *gap*, and pooled over many requests their percentiles have little to do with each
# other. Small print: an answer of one token has no TPOT at all (it is left out of the mean, not counted as 0), and on a
# server TTFT is not the prefill alone. It holds the queue, the tokenizer and the network as well.
#
# ## Build it
#
# A report is a few sums. Here is the one that `vllm bench serve` prints, reduced to its heart.


# %%
def percentile_of(values, p):
    """The value that p % do not exceed; straight between the two neighbours."""
    ordered = sorted(values)
    at = p / 100 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def report(answers, seconds, limits):
    """`answers`: (sent, [arrival of each token]) in s; `limits`: (ttft, tpot) of a good request in ms."""
    ttfts, tpots, itls, good = [], [], [], 0
    for sent, came in answers:
        ttft, gaps = came[0] - sent, [b - a for a, b in pairwise(came)]
        tpot = sum(gaps) / len(gaps) if gaps else None
        ttfts.append(ttft)
        itls += gaps  # pooled: a long answer has more to say
        tpots += [tpot] if gaps else []  # one token: no TPOT
        good += 1e3 * ttft <= limits[0] and 1e3 * (tpot or 0) <= limits[1]
    lines = {"request_goodput": good / seconds}
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls)):
        lines[f"mean_{name}_ms"] = 1e3 * sum(values) / len(values)
        lines[f"p99_{name}_ms"] = 1e3 * percentile_of(values, 99)
    return lines


# %% [markdown]
# It must agree with `lumen.serve.load.summarize`, which is what `lumen load` prints, and its percentiles with two
# libraries that have nothing to do with us.

# %% tags=["nbval-check-output"]
rng = random.Random(3)
made = [
    (0.1 * i, [0.1 * i + t for t in sorted(rng.random() for _ in range(rng.randint(1, 9)))])
    for i in range(40)
]
records = [Record.of_tokens(came, start=sent) for sent, came in made]
ours = report(made, 5.0, (300, 120))
theirs = summarize(records, duration=5.0, goodput={"ttft": 300, "tpot": 120})
assert all(abs(ours[key] - theirs[key]) < 1e-9 for key in ours)

values = [rng.lognormvariate(0, 1) for _ in range(101)]
assert np.isclose(percentile_of(values, 99), np.percentile(values, 99))
assert np.isclose(percentile_of(values, 99), statistics.quantiles(values, n=100, method="inclusive")[-1])
print(
    f"{len(ours)} numbers agree; one-token answers among the {len(made)}: {sum(len(c) == 1 for _, c in made)}"
)

# %% [markdown]
# The sums are easy. The list of arrival times is where benchmarks go wrong. Take Hugging Face transformers: `generate`
# pushes every token into a streamer. Let us write one that looks at the clock, and count.


# %% tags=["nbval-ignore-output"]
class Stopwatch:
    """A streamer: `generate` calls put() with what it has and end() when it is done."""

    def __init__(self):
        self.start, self.calls = time.perf_counter(), []

    def put(self, tokens):
        self.calls.append((time.perf_counter() - self.start, tokens.numel()))

    def end(self):
        pass


pushed = []
if importlib.util.find_spec("transformers"):
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from lumen import assets
    from lumen.io.convert import hf_folder

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = hf_folder(assets.path("smollm2-135m"), "smollm2-135m", assets.cache_dir())
    hf = AutoModelForCausalLM.from_pretrained(folder).to(device).eval()
    ids = torch.tensor([prompt], device=device)
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    hf.generate(ids, attention_mask=torch.ones_like(ids), **settings)  # warm-up
    watch = Stopwatch()
    hf.generate(ids, attention_mask=torch.ones_like(ids), streamer=watch, **settings)
    pushed = watch.calls
    assert len(pushed) == 13 and pushed[0][1] == len(prompt)
    del hf

# %% tags=["hide-input", "nbval-ignore-output"]
if pushed:
    wrong_ttft, right = pushed[0][0], Record.of_tokens([t for t, _ in pushed[1:]])
    markdown(
        f"Twelve tokens, and **{len(pushed)} calls**. The first call carries {pushed[0][1]} tokens: it is the *prompt*, handed "
        f"over before anything was computed. Whoever stops the clock there reports a TTFT of "
        f"{milliseconds(wrong_ttft)} instead of {milliseconds(right.ttft)}, and the prefill turns up as a gap between tokens. "
        "The same trap waits in chat APIs: the first event of a stream may carry only the role. Real servers add more of "
        "the kind: three tokens in one event, an event cut in two by the network, an answer of a single token, a last event "
        "with the bill and no text. Exercise 4 gives you all of them."
    )
else:
    markdown(
        "transformers is not installed here. In the book's run its first call carried the prompt, not a token."
    )

# %% [markdown]
# ## Predict: who notices?
#
# Now a server with visitors. Before each token of our answers but the first, the chance is 4 in 100 that somebody
# else's prompt is read first. Of the gaps, 96 % are fine. An answer of 16 tokens has 15 gaps. What share of the *answers* has at
# least one stall in it? Write your number before you run the next cell.

# %% tags=["predict"]
my_guess = 4.0  # % of the answers

# %% tags=["measure", "nbval-ignore-output"]
CHANCE, ANSWERS, TOKENS = 0.04, 20, 16
coins = random.Random(0)


def visitor(step):
    if step and coins.random() < CHANCE:
        read(SHORT)


crowd = [Record.of_tokens(bench.token_times(model, prompt, TOKENS, visitor)) for _ in range(ANSWERS)]
pool = samples(crowd, "itl")
stall = 3 * statistics.median(pool)
stalled = [record for record in crowd if max(record.itl) > stall]
print(f"{sum(gap > stall for gap in pool)} of {len(pool)} gaps are stalls")

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
share = 100 * len(stalled) / len(crowd)
expected = 100 * (1 - (1 - CHANCE) ** (TOKENS - 1))
reveal(
    guess=my_guess,
    model=expected,
    measured=share,
    unit="%",
    what="answers with at least one stall",
    title=f"{100 * sum(g > stall for g in pool) / len(pool):.0f} % of the gaps reach {share:.0f} % of the answers",
    log=False,
)

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
error = 100 * (expected / 100 * (1 - expected / 100) / ANSWERS) ** 0.5
markdown(
    f"An answer is clean only if all {TOKENS - 1} gaps are: $1 - {1 - CHANCE:g}^{{{TOKENS - 1}}}$ = **{expected:.0f} %** stall. "
    f"Measured: {share:.0f} %; with {ANSWERS} answers a difference of {error:.0f} points either way is chance. Users do not "
    "sample gaps; they sit through all of them."
)

# %% tags=["hide-input", "nbval-ignore-output"]
means = samples(crowd, "tpot")
table(
    [
        [name, *(1e3 * (statistics.mean(v) if p is None else percentile(v, p)) for v in (pool, means))]
        for name, p in (("mean", None), ("p50", 50), ("p90", 90), ("max", 100))
    ],
    ["ms", f"ITL, {len(pool)} gaps", f"TPOT, {len(means)} answers"],
)
markdown(
    "The same tokens twice. The means agree, because all answers are of one length. Little else does: "
    f"at p90 the gaps say {milliseconds(percentile(pool, 90))} and TPOT {milliseconds(percentile(means, 90))}; the worst gap "
    f"is {milliseconds(max(pool))} and the worst TPOT {milliseconds(max(means))}, for it has averaged each stall away over its "
    "answer. A server that stalls can keep a limit on TPOT. To catch these stalls, put the limit on ITL, and beyond its "
    f"p{100 * (1 - CHANCE):.0f}."
)

# %% [markdown]
# How rare must a stall be before most users never meet one? By the same formula, stalls independent of each other:

# %% tags=["hide-input", "nbval-check-output"]
rates = (1e-2, 1e-3, 1e-4)
table(
    [[n, *(f"{100 * (1 - (1 - rate) ** (n - 1)):.1f} %" for rate in rates)] for n in (16, 100, 250, 500)],
    ["tokens of answer", *(f"one gap in {round(1 / rate):,}" for rate in rates)],
    align="rrrr",
)

# %% tags=["hide-input", "nbval-check-output"]
callout(
    "takeaway",
    f"**Takeaway.** A gap beyond p99 is not rare for a user. In an answer of 500 tokens, {100 * (1 - 0.99**499):.0f} % of the "
    f"users meet one, and {100 * (1 - 0.999**499):.0f} % one beyond p99.9. For half of them to meet no stall, no more than one "
    f"gap in {1 / (1 - 0.5 ** (1 / 499)):,.0f} may be one. Choose the percentile by the length of the answer, not by habit.",
)

# %% [markdown]
# ## The tester who waits
#
# So far we looked at one answer at a time. Now requests arrive at their own pace, and one that finds the server busy
# waits. The usual script to test that is short, and you have probably written it:


# %%
def one_by_one(requests, gap):
    """Send request i when it is due, at i * gap. Wait for its answer. Send the next."""
    seen = []
    with bench.quiet():
        zero = time.perf_counter()
        for i, request in enumerate(requests):
            time.sleep(max(0.0, zero + i * gap - time.perf_counter()))
            start = time.perf_counter() - zero
            request()
            bench.synchronize()  # a GPU may still be at work
            end = time.perf_counter() - zero
            seen.append(Record(intended=i * gap, start=start, arrivals=(end,), end=end, output_len=1))
    return seen


# %% [markdown]
# Each record keeps two beginnings: when the request was **intended**, and when it was **sent**. They differ when the answer
# before it was late. A person would have pressed Enter when it was time, so that wait is theirs.
#
# ## Predict: one freeze
#
# Here a request is one token behind a short prompt. The time that it takes alone is the *service time* $s$. The *load* is
# the share of time in which the server is busy: a request every $s / 0.75$ is a load of 75 %. Once, the server freezes,
# because it reads somebody's long prompt first. Both times, each measured alone:

# %% tags=["measure", "nbval-ignore-output"]
LOAD, REQUESTS, FROZEN = 0.75, 80, 20


def serve():
    """One token behind a prompt of 32."""
    read(32)


def frozen():
    read(LONG)
    serve()


rough = bench.measure(serve, repeats=3).median
calm = one_by_one(
    [serve] * 12, 2 * rough
)  # with pauses, as below: back to back, caches and threads are warmer
service = statistics.median(samples(calm, "e2el"))
freeze_timed = bench.measure(lambda: read(LONG), repeats=3)
freeze = freeze_timed.median
print(
    f"a request {milliseconds(service)}, the freeze {milliseconds(freeze)}, {freeze / service:.1f} times as long"
)

# %% [markdown]
# The freeze comes with request 20 of 80. How many of the 80 take more than twice the service time, counted from when they
# were intended?

# %% tags=["predict"]
my_guess = 1.0  # requests

# %% tags=["measure", "nbval-ignore-output"]
tested = one_by_one([frozen if i == FROZEN else serve for i in range(REQUESTS)], service / LOAD)
print(f"{len(tested)} requests in {tested[-1].end:.2f} s")

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
sent, due = samples(tested, "e2el"), samples(tested, "e2el", intended=True)
slow_sent, slow_due = (sum(value > 2 * service for value in values) for values in (sent, due))
forecast = min(REQUESTS - FROZEN, max(0.0, (freeze / service - 1) * LOAD / (1 - LOAD)))
reveal(
    guess=my_guess,
    model=forecast,
    measured=slow_due,
    unit="requests",
    what="slower than twice the service time",
    title=f"One freeze, {slow_due} slow requests; the tester counts {slow_sent}",
    log=False,
)

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
taken = statistics.mean(value for i, value in enumerate(sent) if i != FROZEN)
real = taken / service * LOAD
again = min(REQUESTS - FROZEN, (freeze / taken - 1) * real / (1 - real)) if real < 1 else REQUESTS - FROZEN
markdown(
    f"While the server stood still for {milliseconds(freeze)}, requests went on being due, one every $s / \\text{{load}}$. "
    "Afterwards the server answers one every $s$, so from request to request the wait shrinks by $s / \\text{load} - s$. It is "
    "above $s$ for $(\\text{freeze} / s - 1) \\cdot \\text{load} / (1 - \\text{load})$ requests: each service time of freeze "
    f"beyond the first makes {LOAD / (1 - LOAD):.0f} of them late. **{forecast:.0f}** by formula, {slow_due} measured. "
    + f"In the run itself a request took {milliseconds(taken)} on average, which is a load of {real:.0%}; with these two the "
    f"formula says {again:.0f}. A queue multiplies every delay. "
    + f"The script met the freeze once, politely sent nothing in the meantime, and reports {slow_sent}. "
    + (
        f"It undercounts {slow_due / max(1, slow_sent):.0f}-fold."
        if slow_due > slow_sent
        else "On this run other work on the machine blurred the difference; run the cell again when it is quiet."
    )
)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"p90 is {milliseconds(percentile(due, 90))} for those who asked, {milliseconds(percentile(sent, 90))} for the tester",
    x="when the request was due (s)",
    y="latency (ms)",
)
when = [record.intended for record in tested]
fig.add_scatter(x=when, y=[1e3 * v for v in due], mode="lines+markers", line_color=palette.orange)
fig.add_scatter(x=when, y=[1e3 * v for v in sent], mode="lines+markers", line_color=palette.blue)
peak_at = max(range(REQUESTS), key=lambda i: due[i])
label_line(fig, when[peak_at], 1e3 * due[peak_at], "   from when it was due", palette.orange, anchor="left")
label_line(
    fig, when[peak_at + 3], 0.3 * 1e3 * due[peak_at], "from when<br>it was sent", palette.blue, anchor="left"
)
fig.update_yaxes(rangemode="tozero")
fig

# %% [markdown]
# This is [coordinated omission](../book/glossary.md#term-coordinated-omission): the tester and the server agree, without a
# word, to leave out the moments in which the server is at its worst. The cure costs nothing. Make the schedule before
# the run, and measure from it. That is an [open loop](../book/glossary.md#term-open-loop): arrivals do not depend on
# answers. A *closed loop* of $u$ users, each waiting for an answer before asking again, is right when your traffic is $u$
# batch jobs, and wrong for people, who do not know about each other.
#
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
# And the tail? Simulating the queue takes one loop: a request starts when it has arrived and the one before is done.


# %%
def latencies(times, service):
    """From arrival to answer, one server, first come first served."""
    free, seen = 0.0, []
    for due in times:
        free = max(due, free) + service
        seen.append(free - due)
    return seen


# %% tags=["nbval-check-output"]
LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
COUNT = 1_000_000  # near full load neighbours share their wait: a tail needs that many
curves = {load: np.array(latencies(arrivals(COUNT, load, seed=1), 1.0)) for load in LOADS}
checked = one_server(arrivals(500, 0.8, seed=1), [1.0] * 500)
assert np.allclose(latencies(arrivals(500, 0.8, seed=1), 1.0), samples(checked, "e2el", intended=True))
for load, latency in curves.items():
    assert abs(latency.mean() / (1 + mean_wait(load, 1.0)) - 1) < 0.03
print("the simulation equals lumen's queue, and its mean the formula within 3 % at every load")

# %% tags=["hide-input"]
ninety_nine = {load: percentile(curves[load], 99) for load in LOADS}
fig = figure(
    f"At 90 % load p99 is {ninety_nine[0.9]:.0f} times the service time, the median {percentile(curves[0.9], 50):.1f} times",
    x="load (share of the time the server is busy)",
    y="latency (service times)",
    height=440,
    log_y=True,
)
log_axis(fig, "y", [1, 2, 5, 10, 20, 50])
fine = np.linspace(0.05, 0.97, 93)
fig.add_scatter(
    x=fine,
    y=[1 + mean_wait(f, 1.0) for f in fine],
    mode="lines",
    line={"color": palette.grey, "dash": "dash"},
)
for name, p, color in (("p50", 50, palette.blue), ("p99", 99, palette.orange)):
    line = [percentile(curves[load], p) for load in LOADS]
    fig.add_scatter(x=LOADS, y=line, mode="lines+markers", line_color=color)
    side = ("right", 12) if p == 99 else ("left", -13)
    label_line(fig, 0.8, line[LOADS.index(0.8)], name, color, anchor=side[0], shift=side[1])
label_line(fig, 0.8, 1 + mean_wait(0.8, 1.0), "mean, formula", palette.grey, anchor="right", shift=10)
fig

# %% [markdown]
# One server and one fixed service time is the smallest model there is. An engine with batching serves many at once, and
# its service time grows with the load; chapters 8 and 10 measure that. But the shape stays, and so does its reason:
# $1 / (1 - \text{load})$. **The last tenth of a machine costs more latency than the first nine.**
#
# ## Goodput
#
# A service is a promise, an [SLO](../book/glossary.md#term-SLO): say, 99 of 100 answers within eight service times. Count
# only the answers within the limit, per second. That is [goodput](../book/glossary.md#term-goodput). Let us offer the queue
# more and more, beyond what it can do.

# %%
PROMISE = 8  # service times
throughput, goodput = {}, {}
for rate in (*LOADS, 1.0, 1.1, 1.2, 1.3):
    times = arrivals(COUNT, rate, seed=1)
    took = np.array(latencies(times, 1.0))
    duration = times[-1] + took[-1]  # until the last answer
    throughput[rate] = COUNT / duration
    goodput[rate] = np.sum(took <= PROMISE) / duration

# %% tags=["hide-input"]
best = max(goodput, key=goodput.get)
fig = figure(
    f"Offered 30 % too much: throughput {throughput[1.3]:.2f}, goodput {goodput[1.3]:.2f}",
    x="offered load (requests per service time)",
    y="requests per service time",
)
for name, line, color in (("throughput", throughput, palette.blue), ("goodput", goodput, palette.orange)):
    fig.add_scatter(x=list(line), y=list(line.values()), mode="lines+markers", line_color=color)
    label_line(fig, 1.2, line[1.2], name, color, anchor="right", shift=14)
fig

# %% tags=["hide-input"]
within = {load: 100 * np.mean(curves[load] <= PROMISE) for load in LOADS}
allowed = max(load for load in LOADS if within[load] >= 99)
markdown(
    f"Throughput rises to its ceiling and stays there: on that curve a hopeless overload looks like a full success. Goodput "
    f"peaks at an offered load of {best:g}, and beyond full load it falls to nothing, because everybody is served, and everybody "
    f"too late. The promise itself breaks earlier. Within eight service times are {within[0.7]:.1f} % of the requests at a load of 0.7, "
    f"{within[0.8]:.1f} % at 0.8, {within[0.9]:.1f} % at 0.9. Of the loads tried, **{allowed:g}** is the highest at which 99 of "
    "100 keep it."
)

# %% [markdown]
# ## What a token costs
#
# The price of a token is the price of an hour over the tokens of an hour, and a brochure divides by the tokens of a *full*
# hour. Take the decode steps of Llama-3-8B on an H100, 64 users with 1,024 tokens of context each, prompts left out, at
# datasheet rates, and suppose that its latency grows with load as in the queue above:

# %% tags=["hide-input"]
h100, llama = hardware.CHIPS["H100 SXM"], lumen.CONFIGS["llama-3-8b"]
step = cost.predict_decode(llama, h100, 1024, 64, "bf16").seconds
full = cost.cost_per_million_tokens(h100.price_per_hour, 64 / step)
table(
    [
        [
            f"{100 * load:.0f} %",
            f"{percentile(curves[load], 99):.1f}",
            f"{within[load]:.1f} %",
            f"{full / load:.3f}",
        ]
        for load in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    ],
    ["load", "p99 (service times)", "within 8", "$ per million tokens"],
    align="rrrr",
)
markdown(
    f"{64 / step:,.0f} tokens/s at ${h100.price_per_hour:.2f} an hour (an estimate of mid-2025) is {full:.3f} dollars per million "
    f"on a machine that never idles, *predicted*. Kept at the {100 * allowed:.0f} % that the promise allows, it is "
    f"{full / allowed:.3f}. **The unused share is the price of the tail**: latency and cost per token are one decision."
)

# %% [markdown]
# ## Where it loses
#
# A p99 needs requests, and benchmarks are short. Take a load of 80 % and measure it again and again, each time with a
# run of only so many requests:

# %% tags=["hide-input", "nbval-check-output"]
spread = {}
for size in (50, 100, 1_000, 10_000):
    runs = [latencies(arrivals(size, 0.8, seed=seed), 1.0) for seed in range(200)]
    found = ([percentile(run, p) for run in runs] for p in (90, 99))
    spread[size] = [[percentile(values, q) for q in (5, 50, 95)] for values in found]
table(
    [
        [size, f"{p90[0]:.1f} to {p90[2]:.1f}", f"{p99[0]:.1f} to {p99[2]:.1f}", f"{p99[1]:.1f}"]
        for size, (p90, p99) in spread.items()
    ],
    ["requests in a run", "p90 in 9 runs of 10", "p99 in 9 runs of 10", "p99 of the middle run"],
    align="rrrr",
)

# %% tags=["hide-input", "nbval-check-output"]
low, middle, high = spread[100][1]
markdown(
    f"With 100 requests nine runs in ten put the p99 of the *same* server between {low:.1f} and {high:.1f} service times, and "
    f"the middle run says {middle:.1f} where a run of {COUNT:,} says {ninety_nine[0.8]:.1f}: one request in a hundred is one "
    "request, and a short run starts with an empty queue. Two engines that differ by a third cannot be told apart like that. "
    "p90 is no way out: neighbours in a queue wait for the same reason, so a hundred of them tell less than a hundred "
    "independent samples. Rule of thumb: a hundred requests *beyond* the percentile, ten thousand for p99; the last row shows "
    "how far that carries."
)

# %% [markdown]
# Two negative controls. A tester who waits for every answer is asked for the p99 at two loads. And two servers, a large
# one with little to do and a small one near its limit, report their p99s, of which a dashboard takes the mean.

# %% tags=["hide-input", "nbval-check-output"]
blind = {
    load: percentile(samples(one_server(arrivals(2_000, load, seed=1), [1.0] * 2_000), "e2el"), 99)
    for load in (0.3, 0.9)
}
large, small = curves[0.3][:9_000], curves[0.95][:1_000]
averaged = (percentile(large, 99) + percentile(small, 99)) / 2
pooled = percentile(np.concatenate([large, small]), 99)
table(
    [
        [
            "the waiting tester: p99 at loads of 30 % and 90 %",
            f"{blind[0.3]:.1f} and {blind[0.9]:.1f}",
            f"{ninety_nine[0.3]:.1f} and {ninety_nine[0.9]:.1f}",
        ],
        [
            f"mean of the p99s of two servers, of {len(large):,} and {len(small):,} requests",
            f"{averaged:.1f}",
            f"{pooled:.1f}",
        ],
    ],
    ["in service times", "it says", "true"],
    align="lrr",
)
assert abs(blind[0.3] - blind[0.9]) < 1e-6

# %% [markdown]
# Both fail as they should. The first tester cannot see load at all. And percentiles do not average: pool the samples, or
# the counts of a histogram, and take the percentile last (exercise 3).
#
# ## How this could fool you
#
# Some traps need no queue. These are in the numbers of this very page:

# %% tags=["hide-input", "nbval-ignore-output"]
speeds = [1 / record.tpot for record in crowd]
nothing = bench.measure(lambda: None, repeats=9, inner=1)
many_nothings = bench.measure(lambda: None, repeats=9, inner=10_000)
rows = [
    ["mean of the answers' speeds, not tokens over seconds", f"{statistics.mean(speeds):.1f} tokens/s",
     f"{1 / statistics.mean(means):.1f} tokens/s"],
    ["TTFT + TPOT · n as the latency", milliseconds(answer.ttft + answer.tpot * answer.output_len), milliseconds(answer.latency)],
    ["an empty function, timed once", f"{1e9 * nothing.median:.0f} ns", f"{1e9 * many_nothings.median:.0f} ns"],
]  # fmt: skip
if pushed:
    rows.append(
        ["the first call of a streamer taken for a token", milliseconds(wrong_ttft), milliseconds(right.ttft)]
    )
table(rows, ["slip", "it says", "right"], align="lrr")

# %% [markdown]
# For answers of one length the mean of the speeds is never below the speed of the whole, because slow answers take more of
# the time and count the same. And a clock that is read around something shorter than the reading measures the reading.
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the first call is timed | a compiled step or a cold cache is part of the median | `bench` throws warm-ups away |
# | a GPU that is not waited for | a step takes microseconds | `bench` waits for the device before and after |
# | latency from the sending | p99 is flat until the server is on fire | records keep the intended time; both are reported |
# | too few requests | a new p99 every run | queues run to a million requests; tables name the number of samples |
# | failed requests dropped in silence | the fastest server is the one that refuses | failures are counted, and never good |
#
# ## Play
#
# First pull the freeze to 0, with even arrivals: both testers agree. Then raise it. Then set it to 0 again, choose random
# arrivals, and raise the load: to the very end the waiting tester sees the service time and nothing else.

# %%
QueueLoad(load=0.75, freeze=2.0)

# %% [markdown]
# Now stalls of your own. How long may the other prompt be before you would notice? What does TPOT say then?

# %% tags=["nbval-ignore-output"]
lab = stall_lab(model, tokenizer, tokens=40, length=256, every=16)

# %% [markdown]
# ## In production
#
# | tool | what to set, what to read | seen in |
# | --- | --- | --- |
# | lumen | `lumen load --request-rate 4 --goodput ttft:500 tpot:50 --save-result`: any OpenAI-style server, vLLM's report | this repository, chapter 10 |
# | vLLM | `vllm bench serve --request-rate`, `--burstiness` (1 is Poisson), `--max-concurrency`, `--goodput ttft:500 tpot:50`, `--metric-percentiles 50,90,99` | [docs](https://docs.vllm.ai/en/v0.33.0/benchmarking/cli/), v0.33, 2026 |
# | vLLM, live | `/metrics`: histograms `vllm:time_to_first_token_seconds`, `vllm:inter_token_latency_seconds`, `vllm:e2e_request_latency_seconds` | [docs](https://docs.vllm.ai/en/v0.33.0/design/metrics/), v0.33, 2026 |
# | SGLang | `python -m sglang.bench_serving --request-rate … --max-concurrency …` | [docs](https://github.com/sgl-project/sglang/blob/main/docs/developer_guide/bench_serving.md), November 2026 |
# | TensorRT-LLM | `python -m tensorrt_llm.serve.scripts.benchmark_serving --max-concurrency … --percentile-metrics ttft,tpot,itl,e2el`: began as vLLM's client, same report | [docs](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/commands/trtllm-serve/run-benchmark-with-trtllm-serve.html), 1.3, 2026 |
# | Prometheus | `histogram_quantile(0.99, sum by (le) (rate(…_bucket[5m])))`: add the buckets first, take the quantile last | [docs](https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile), 3.x, 2026 |
# | llama.cpp | `llama-bench` prints mean ± standard deviation of tokens per second, prompt and answer apart; no percentiles | [README](https://github.com/ggml-org/llama.cpp/blob/master/tools/llama-bench/README.md), November 2026 |
#
# Two gaps to know. `--goodput` takes ttft, tpot and e2el, in vLLM as in lumen: a server that stalls can be all good, so read
# p99 of ITL beside it. And with `--request-rate` *and* `--max-concurrency` vLLM's client holds requests back when the server
# is slow, while TTFT counts from the sending. It prints the time held back as "Client-side Queueing" and a latency that
# includes it, but no such TTFT ([source](https://github.com/vllm-project/vllm/blob/009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1/vllm/benchmarks/serve.py),
# 2026). `lumen load` prints both whenever there is a schedule.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **Four times.** Of one answer with a stall of {milliseconds(longest / 1e3)}, TPOT said {milliseconds(answer.tpot)}, the "
    f"median gap {milliseconds(usual / 1e3)}. Only the gaps one by one showed it.\n"
    f"- **Who notices.** Stalls in {100 * CHANCE:.0f} % of the gaps reach {expected:.0f} % of answers of {TOKENS} tokens by formula, "
    f"{share:.0f} % measured. For 500 tokens, one gap in a thousand reaches {100 * (1 - 0.999**499):.0f} %.\n"
    f"- **The tester who waits.** One freeze made {slow_due} of {REQUESTS} requests slow; the tester who waits counted {slow_sent}. "
    "Measure from the intended time.\n"
    f"- **Goodput.** At 90 % load p99 is {ninety_nine[0.9]:.0f} service times. A promise of eight is kept by 99 % up to a load of "
    f"{allowed:g}, and a token then costs {1 / allowed:.2f} times what the full machine's would."
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz(
    [
        {
            "kind": "choice",
            "question": "p99 of TPOT is 45 ms, p99 of ITL is 900 ms. What is going on?",
            "choices": [
                {
                    "text": "One of the two was measured wrongly.",
                    "why": "Both can be right: one is per answer, the other per gap.",
                },
                {
                    "text": "Answers are quick on average, and some of their gaps are stalls.",
                    "ok": True,
                    "why": "TPOT divides each stall by the length of its answer; ITL keeps it whole.",
                },
                {
                    "text": "One request in a hundred is twenty times slower than the others, from its first token to its last.",
                    "why": "Then its TPOT would be high, and p99 of TPOT with it.",
                },
                {
                    "text": "The first tokens are slow.",
                    "why": "The wait for the first token is TTFT, in neither of the two.",
                },
            ],
        },
        {
            "kind": "numeric",
            "question": "One gap in 200 is a stall, independently. What share of answers of 101 tokens has at least one?",
            "answer": 39.4,
            "tolerance": 1.0,
            "unit": "%",
            "right": "100 gaps: 1 − 0.995^100 = 39.4 %.",
            "wrong": "All gaps of an answer must be clean for it to be clean.",
            "slips": [
                {"answer": 0.5, "why": "That is the share of the gaps. An answer has a hundred of them."},
                {"answer": 50, "why": "Adding 100 × 0.5 % counts answers with two stalls twice."},
                {"answer": 60.6, "why": "That is the share of clean answers."},
            ],
        },
        {
            "kind": "choice",
            "question": "A load test with 16 users, each waiting for its answer, finds p99 = 300 ms. What do real users see at the same request rate?",
            "choices": [
                {
                    "text": "More, if the server ever slows down.",
                    "ok": True,
                    "why": "People go on arriving. A closed loop leaves out the requests that would have come meanwhile.",
                },
                {
                    "text": "The same: the number of requests per second is the same.",
                    "why": "In the test no more than 16 are ever under way. When the server is slow it is asked less.",
                },
                {
                    "text": "Less: 16 at every moment is a harder test than people who come and go.",
                    "why": "16 is a ceiling as well. While the server is slow, real users pile up beyond it.",
                },
            ],
        },
        {
            "kind": "numeric",
            "question": "One server, service time 100 ms, Poisson arrivals at a load of 80 %. The mean latency?",
            "answer": 300,
            "tolerance": 5,
            "unit": "ms",
            "right": "100 + 0.8 / 0.2 · 100 / 2 = 300 ms.",
            "wrong": "s + load / (1 − load) · s / 2.",
            "slips": [
                {"answer": 200, "why": "That is the wait alone; being served takes 100 ms more."},
                {
                    "answer": 500,
                    "why": "That is for exponential service times. Here all are equal, and the wait is half.",
                },
                {"answer": 100, "why": "That is a request that never finds anybody before it."},
            ],
        },
        {
            "kind": "choice",
            "question": "Three replicas report p99 latencies of 1, 1 and 4 s. The p99 of the service?",
            "choices": [
                {
                    "text": "2 s, the mean of the three",
                    "why": "Percentiles do not average. If a third of the requests go to the slow replica, look near its p97.",
                },
                {
                    "text": "4 s, that of the slowest replica",
                    "why": "That is the p99 of the slow replica's own requests. Those of the others dilute it, by an unknown amount.",
                },
                {
                    "text": "These three numbers do not say.",
                    "ok": True,
                    "why": "You need the samples, or histograms with the same buckets, added up.",
                },
            ],
        },
    ],
    id="03",
)

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
# - [Gil Tene, How NOT to Measure Latency](https://www.infoq.com/presentations/latency-response-time/): the talk that named
#   coordinated omission; read or watch it for how often good people made this mistake.
# - [Schroeder, Wierman and Harchol-Balter 2006, Open Versus Closed](https://www.usenix.org/conference/nsdi-06/open-versus-closed-cautionary-tale):
#   read it for how differently one system behaves under the two kinds of load.
# - [Zhong et al. 2024, DistServe](https://arxiv.org/abs/2401.09670): read it for goodput as the thing to optimise in LLM
#   serving.
# - [Hoefler and Belli 2015, Scientific Benchmarking of Parallel Computing Systems](https://htor.inf.ethz.ch/publications/img/hoefler-scientific-benchmarking.pdf):
#   read it for twelve rules of reporting times, all of which this course tries to keep.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print("timed by lumen.bench.token_times and lumen.bench.measure: device waited for, garbage collector off")
print("queues: simulated, seed 1; the short runs of 'Where it loses': seeds 0 to 199")
if is_static():  # run for the book: publish the raw samples
    bench.evidence(
        "ch03_measuring",
        {
            "answer": answer.arrivals,
            "alone": alone.arrivals,
            "crowd": [record.arrivals for record in crowd],
            "tested": [(r.intended, r.start, r.end) for r in tested],
            "service": samples(calm, "e2el"),
            "freeze": freeze_timed,
        },
        seed=0,
    )
print("raw samples: book/evidence/ch03_measuring.json")
