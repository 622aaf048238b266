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
# # 10 · Serving

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/10_serving.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/10_serving.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/10_serving.ipynb)
#
# CPU is enough · read 35 min · run 2 min · practise 104 min · here: [exercises](../exercises/10_serving.ipynb), [solutions](../solutions/10_serving.ipynb)
#
# </div>

# %% [markdown]
# Put SmolLM2 behind an HTTP port and send it requests at half of what it can take. Everybody sees a first token in a
# blink. Now triple the pace. First tokens take seconds, and the later somebody comes, the longer they take. Yet an answer
# that has begun is written at a good pace. You look at the engine: a step with eight answers in it takes what such a step
# always took.
#
# **Where do the seconds come from, if no step became slower?**
#
# By the end you can
#
# - follow one request through five layers, and say how many milliseconds each of them takes;
# - build the part that never shows half a character or half a stop string, and break the short versions of it;
# - predict from two step times how many requests a second a server carries, and from one subtraction how long people wait
#   beyond that;
# - say how far off a p99 on a dashboard can be, and read off one load test what a server carries under your limits.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb), [measuring](03_measuring.ipynb), [batching](08_batching.ipynb),
# [scheduling](09_scheduling.ipynb); blocks are those of [the paged cache](05_paged_cache.ipynb).

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

session = lumen.setup("10_serving")

# %%
import asyncio
import importlib.util
import json
import random
import statistics
import threading
import time
from itertools import islice, pairwise

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

import lumen
from lumen import assets, bench, cost, hardware
from lumen.explore import Knee, Quiz, callout, figure, label_line, load_lab, markdown, palette, reveal, table
from lumen.explore.knee import carried, judge, predicted_runs, step_times
from lumen.explore.lab import milliseconds
from lumen.explore.load import in_a_thread
from lumen.explore.theme import log_axis
from lumen.io.stop import StopMatcher
from lumen.models import CONFIGS
from lumen.runtime import in_passing_thread
from lumen.serve.commands import bind
from lumen.serve.engine import Engine
from lumen.serve.load import arrivals, percentile, samples
from lumen.serve.load.client import Target
from lumen.serve.load.prompts import from_text
from lumen.serve.load.run import run
from lumen.serve.process import serving
from lumen.serve.scheduler import Limits
from lumen.serve.server import create_app

torch.set_grad_enabled(False)
model, tokenizer = in_passing_thread(lumen.load, "smollm2-135m")
config, dtype = model.config, next(model.parameters()).dtype

# %% [markdown]
# ## A server on this page
#
# The server will compute in a thread of its own. On Linux, torch keeps a team of helpers for every thread that ever computed,
# and where the teams outnumber the cores, all of them are slower. So whatever else this page computes goes through
# `in_passing_thread`: a thread that ends at once and takes its team along. First a bare loop, for comparison later, while there
# is no server yet.

# %% tags=["nbval-ignore-output"]
plays = assets.shakespeare()[0]
lone_prompt = tokenizer.encode(plays[:300])


def bare_gaps():
    """Seconds between the tokens of two answers, without any server."""
    runs = [bench.token_times(model, lone_prompt, 24) for _ in range(2)]
    return [b - a for times in runs for a, b in pairwise(times[1:])]


one_direct = statistics.median(in_passing_thread(bare_gaps))
print(f"{milliseconds(one_direct)} a token")

# %% [markdown]
# On the command line it is one line, `lumen serve --model smollm2-135m --port 8000`. Here it runs inside the notebook, so
# that we can look into it. `Noted` lets every call through and writes down when the ones that we name began and ended.


# %%
class Noted:
    """`inner` with a stopwatch on some of its methods: each call is logged as (layer, begin, end)."""

    def __init__(self, inner, log, **layers):
        self.inner, self.log, self.layers = inner, log, layers

    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name not in self.layers:
            return found

        def timed(*args, **options):
            begin = time.monotonic()
            result = found(*args, **options)
            self.log.append((self.layers[name], begin, time.monotonic()))
            return result

        return timed


# %% tags=["nbval-ignore-output"]
SLOTS, log = 8, []
limits = Limits(max_seqs=SLOTS, token_budget=256)
engine = in_passing_thread(lambda: Engine(model, tokenizer, num_blocks=512, limits=limits))
engine.scheduler = Noted(engine.scheduler, log, schedule="scheduler", update="scheduler")
engine.runner = Noted(engine.runner, log, run="forward")
watched = Noted(engine, log, add="scheduler", step="step")
app = create_app(watched, Noted(tokenizer, log, apply_chat="tokenizer"), "smollm2-135m")

listener = bind("127.0.0.1", 0)  # port 0: any free one
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
server = serving(app, "The server is up.")
threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True).start()
while not server.started:
    time.sleep(0.01)

# %% [markdown]
# Anything that speaks OpenAI's protocol can talk to it: their own client with another `base_url`, or `curl`:
#
# ```bash
# curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' -d '{
#   "model": "smollm2-135m", "stream": true, "max_tokens": 24, "temperature": 0,
#   "messages": [{"role": "user", "content": "Why is the evening sky red?"}]}'
# ```
#
# Here is that request, with a clock beside it.

# %% tags=["nbval-ignore-output"]
chat = [{"role": "user", "content": "Why is the evening sky red?"}]
body = {"model": "smollm2-135m", "messages": chat, "max_tokens": 24, "temperature": 0, "stream": True}


def ask(body):
    """(time, line) of everything that the server sends, and when we asked. Seconds on the clock of `log`."""
    lines = []
    with httpx.Client(trust_env=False, timeout=60) as client:
        sent = time.monotonic()
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line:
                    lines.append((time.monotonic(), line))
    return sent, lines


if importlib.util.find_spec("openai"):  # their own client, with another address
    from openai import OpenAI

    theirs = OpenAI(base_url=f"{url}/v1", api_key="-", http_client=httpx.Client(trust_env=False))
    said = theirs.chat.completions.create(model="smollm2-135m", messages=chat, max_tokens=24, temperature=0)
    print(f"openai's client: {said.usage.prompt_tokens} + {said.usage.completion_tokens} tokens\n")

ask(body)  # warm-up
engine.store.prefix.evict(engine.store.prefix.num_evictable())  # and forget it: the next prompt is new
log.clear()
sent, lines = ask(body)
for at, line in [*lines[:3], lines[-1]]:
    short = line if len(line) <= 120 else f"{line[:16]} … {line[-96:]}"
    print(f"{1e3 * (at - sent):6.1f} ms  {short}")

# %% [markdown]
# That is the whole protocol of a stream: lines that begin with `data:`, an empty line after each, JSON inside, and a `[DONE]`
# ([server-sent events](../book/glossary.md#term-server-sent-events); the first one only says whose turn it is). Before we look
# at the clock: are these the tokens that `lumen.generate` makes without a server?

# %% tags=["nbval-ignore-output"]
events = [
    (at, json.loads(line[6:])["choices"][0]["delta"].get("content", ""))
    for at, line in lines[:-1]
    if json.loads(line[6:])["choices"]
]
text = "".join(piece for _, piece in events)
(alone,) = in_passing_thread(
    lambda: lumen.generate(model, [tokenizer.apply_chat(chat)], 24, tokenizer=tokenizer)
)
assert text == alone.text or dtype != torch.float32  # in 16 bits near-ties may flip
print(text)

# %% [markdown]
# ## One request, five layers
#
# The `assert` says that they are. Now the clock. Everything ran in this process, so all the times lie on one axis: what the
# client saw, and what each layer of the server wrote down.

# %% tags=["hide-input", "nbval-ignore-output"]
steps = [(begin, end) for layer, begin, end in log if layer == "step"]
forwards = [(begin, end) for layer, begin, end in log if layer == "forward"]
booked = sorted((begin, end) for layer, begin, end in log if layer == "scheduler")
((tok_begin, tok_end),) = [(begin, end) for layer, begin, end in log if layer == "tokenizer"]
spans = [("1 API", sent, tok_begin), ("2 template, tokenizer", tok_begin, tok_end)]
spans += [("3 scheduler", *pair) for pair in booked] + [("4 engine", *pair) for pair in forwards]
spans.append(("3 scheduler", tok_end, booked[0][0]))  # handed over to the engine's thread
shown = [(at, piece) for at, piece in events if piece]
for _, end in steps:
    spans.append(("5 detokeniser, stream", max(e for _, e in booked if e <= end), end))
for at, _ in shown:
    done = max((end for _, end in steps if end <= at), default=at)
    spans.append(("5 detokeniser, stream", done, at))
LAYERS = ("1 API", "2 template, tokenizer", "3 scheduler", "4 engine", "5 detokeniser, stream")
first, last = shown[0][0], lines[-1][0]
ready = max(end for _, end in steps if end <= first)  # the step that made the first token is done
spent = {layer: sum(e - b for name, b, e in spans if name == layer and b <= ready) for layer in LAYERS}
later = {layer: sum(e - b for name, b, e in spans if name == layer and b > ready) for layer in LAYERS}
outside = 1 - sum(end - begin for begin, end in forwards) / (last - sent)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"From sending to [DONE]: {1e3 * (last - sent):,.0f} ms, of which {outside:.1%} is not the engine",
    x="since the request was sent (ms)", y="layer", height=330,
)  # fmt: skip
colors = dict(
    zip(LAYERS, (palette.grey, palette.green, palette.purple, palette.blue, palette.orange), strict=True)
)
for layer in LAYERS:
    mine = [(1e3 * (b - sent), 1e3 * (e - b)) for name, b, e in spans if name == layer]
    fig.add_bar(
        base=[b for b, _ in mine], x=[max(w, 0.05) for _, w in mine], y=[layer] * len(mine), orientation="h",
        marker={"color": colors[layer], "line": {"color": colors[layer], "width": 1.5}},
    )  # fmt: skip
zoom = 1e3 * (shown[min(4, len(shown) - 1)][0] - sent)
fig.update_layout(barmode="overlay", bargap=0.35)
fig.update_xaxes(range=[-0.02 * zoom, 1.03 * zoom])
fig.update_yaxes(autorange="reversed", title_text=None)
fig

# %% [markdown]
# The picture ends at the fifth token; read it from top to bottom. The **API** parses HTTP and JSON and checks every field, so
# that nothing behind it has to. The **template** turns messages into one text, the **tokenizer** turns that into ids. HTTP and
# forwards run in two threads, so that no stream stands still during a forward; here the request changes over. The **scheduler** finds it a
# [slot](../book/glossary.md#term-slot), which is a place in the batch, and blocks, and from then on puts it into the plan of every step. The **engine** runs
# the forward and draws a token. The **[detokeniser](../book/glossary.md#term-detokeniser)** finds the text that is certain, and
# the **stream** sends it off. Then 3, 4, 5 again, once a token.

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [[layer, 1e3 * spent[layer], 1e3 * later[layer] / max(1, len(steps) - 1)] for layer in LAYERS]
    + [["all", 1e3 * (first - sent), 1e3 * (last - first) / max(1, len(steps) - 1)]],
    ["layer", "until the first token (ms)", "per later token (ms)"],
)
markdown(
    f"Of the {milliseconds(first - sent)} to the first token the engine took {spent['4 engine'] / (first - sent):.0%}. (In the last "
    "column the rows may add up to more than the whole: one token is sent while the next is computed.) For one guest, four of "
    "the five layers are nearly free. Layer 4 had chapters of its own. Here come the faults and the waits of the others, "
    "from the end: 5, 3 and 1."
)

# %% [markdown]
# ## Layer 5: half a character
#
# The model does not write characters, it writes byte strings. A duck is four bytes in UTF-8, and SmolLM2's vocabulary
# has no token for it:

# %% tags=["hide-input", "nbval-check-output"]
duck = tokenizer.encode("a 🦆 says 你好")
table(
    [
        [i, repr(tokenizer.token_bytes(i))[2:-1], tokenizer.token_bytes(i).decode(errors="replace")]
        for i in duck
    ],
    ["token", "its bytes", "decoded by itself"],
    align="rll",
)
markdown("Decoded one by one: " + "".join(tokenizer.token_bytes(i).decode(errors="replace") for i in duck))

# %% [markdown]
# Two short ways come to mind. Decode each token as it comes: wrong, as you see. Decode the whole answer again after each
# token and send what is new: quadratic in its length, and wrong as well, because the sign `�` that was sent for half a
# character cannot be taken back. The right way holds bytes back until their character is whole.


# %%
def unfinished(raw):
    """How many bytes at the end of `raw` begin a character whose rest has not come."""
    for back in range(1, min(3, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            return 0  # ASCII
        if byte >= 0xC0:  # a first byte says how long its character is
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
    return 0


class Detokeniser:
    """Ids in, certain text out; `finish` gives what is held when the answer ends."""

    def __init__(self, token_bytes):
        self.token_bytes, self.held = token_bytes, b""

    def feed(self, token):
        raw = self.held + self.token_bytes(token)
        whole = len(raw) - unfinished(raw)
        self.held = raw[whole:]
        return raw[:whole].decode("utf-8", errors="replace")

    def finish(self):
        return self.held.decode("utf-8", errors="replace")


# %% [markdown]
# Stop strings are the same problem, one level up. With `stop=["\n\nUser:"]`, the text `\n\nUs` may become the stop or may
# not. So it must wait too.


# %%
class StopHolder:
    """Text in, certain text out, and the stop that was found; `finish` gives what is held when the answer ends."""

    def __init__(self, stops):
        self.stops, self.held = stops, ""

    def feed(self, text):
        self.held += text
        hits = [(self.held.find(s) + len(s), -len(s), s) for s in self.stops if s in self.held]
        stop = min(hits)[2] if hits else None  # complete first; of those, the longest
        if stop is not None:
            return self.held[: self.held.find(stop)], stop
        starts = [k for s in self.stops for k in range(1, len(s)) if self.held.endswith(s[:k])]
        whole = len(self.held) - max(starts, default=0)
        out, self.held = self.held[:whole], self.held[whole:]
        return out, None

    def finish(self):
        return self.held


# %% [markdown]
# Now the test: two thousand answers of random tokens, half of them from beyond ASCII, that end anywhere. The joined pieces
# must equal the full decode: by Lumen's stream decoder, by `tokenizer.decode`, and by the `tokenizers` library, which is what
# transformers uses.

# %% tags=["nbval-check-output"]
dice = random.Random(0)
plain = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
odd = [i for i in plain if max(tokenizer.token_bytes(i)) > 0x7F]
broken = 0
for _ in range(2000):
    ids = [dice.choice(odd if dice.random() < 0.5 else plain) for _ in range(dice.randint(1, 24))]
    ours, theirs = Detokeniser(tokenizer.token_bytes), tokenizer.stream()
    text = "".join(ours.feed(i) for i in ids) + ours.finish()
    assert text == "".join(theirs.feed(i) for i in ids) + theirs.finish() == tokenizer.decode(ids)
    assert text == tokenizer.backend.decode(ids, skip_special_tokens=True)
    broken += text != "".join(tokenizer.token_bytes(i).decode(errors="replace") for i in ids)
print(f"2000 answers right; token by token, {broken} of them would have been broken")

# %% [markdown]
# That last number is a **negative control**: if the naive decoder passed, the test would be worth nothing. (It is small because
# random halves seldom fit; those of real text do.) The stops get the same treatment, with two short ways. One looks for the
# stop in each chunk. The other looks in the whole text, and has already sent the beginning of the stop when it finds it.

# %% tags=["nbval-check-output"]
missed = leaked = stopped = 0
for _ in range(2000):
    stops = ["".join(dice.choices("ab", k=dice.randint(2, 4))) for _ in range(dice.randint(1, 2))]
    chunks = ["".join(dice.choices("abc", k=dice.randint(1, 3))) for _ in range(6)]
    ours, theirs, sent_text, hit = StopHolder(stops), StopMatcher(stops), "", None
    for chunk in chunks:
        got = ours.feed(chunk)
        assert got == theirs.feed(chunk)
        sent_text, hit = sent_text + got[0], got[1]
        if hit:
            break
    else:
        assert sent_text + ours.finish() == "".join(chunks)
    stopped += hit is not None
    missed += hit is not None and not any(s in chunk for s in stops for chunk in chunks)
    seen = ""  # the other short way: send the chunk, then look
    for chunk in chunks:
        seen += chunk
        if any(s in seen for s in stops):
            leaked += seen[: len(seen) - len(chunk)] != sent_text[: len(seen) - len(chunk)]
            break
print(f"{stopped} of 2000 texts hold a stop. Looked for in each chunk, {missed} are missed;")
print(f"looked for in the text so far, {leaked} have sent a part of the stop before it is found")

# %% [markdown]
# Holding back costs latency, but only where text is uncertain: a character waits for its last byte, and of what could become a
# stop at most one letter less than the longest stop waits. [ITL](../book/glossary.md#term-ITL) measured at the client has a gap
# there which the engine never had.
#
# ## Layer 3: the queue
#
# Back to the seconds. A server has $B$ slots, and a request that finds them taken waits in front of the scheduler. With
# everyone asking for $n$ tokens, a full house of $B$ requests costs $B$ prefills and $n - 1$ full decode steps, and then
# $B$ requests are done. So the server finishes about
#
# $$
# \mu = \frac{B}{B\, t_\text{prefill} + (n - 1)\, t_\text{step}(B)}
# $$
#
# requests a second, however many are asked of it.

# %% tags=["nbval-ignore-output"]
PROMPT, ANSWER, COUNT = 64, 32, 24
chip = in_passing_thread(hardware.measure)
step = step_times(config, chip, dtype, prompt=PROMPT, answer=ANSWER)
t_prefill, t_full = step(1, 0), step(0, SLOTS)
mu_model = SLOTS / (SLOTS * t_prefill + (ANSWER - 1) * t_full)

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [
        ["$B$", "slots", "–", str(SLOTS)],
        ["$n$", "tokens of an answer", "tokens", str(ANSWER)],
        ["$t_\\text{prefill}$", f"one prompt of {PROMPT} tokens, by the cost model of chapter 2", "s", milliseconds(t_prefill)],
        ["$t_\\text{step}(B)$", f"one token for each of {SLOTS} sequences, halfway through their answers", "s", milliseconds(t_full)],
        ["$\\mu$", "saturation throughput", "1/s", f"{mu_model:.2f}"],
        ["$\\lambda$", "offered load, chosen by the world", "1/s", "?"],
    ],
    ["symbol", "what it is", "unit", "here"],
    align="lllr",
)  # fmt: skip

# %% [markdown]
# ## Predict: how many a second?
#
# Eight users each send a prompt of 64 tokens, wait for their 32 tokens of answer, and at once ask again: a
# [closed loop](../book/glossary.md#term-closed-loop). How many requests a second does the server finish?

# %% tags=["predict"]
my_guess = 8.0  # requests a second


# %% tags=["measure", "nbval-ignore-output"]
target = Target(url, "smollm2-135m", extra_body={"temperature": 0, "ignore_eos": True})


def offer(count, rate=None, users=None, seed=1):
    """Send `count` prompts that nobody has sent before: at `rate` a second, or from `users` who wait for answers."""
    lens = [PROMPT] * count, [ANSWER] * count
    asked = from_text(plays, *lens, tokenizer.encode, tokenizer.decode, seed=seed)
    times = arrivals(count, rate, seed=seed) if rate else None
    records, seconds = in_a_thread(lambda: run(target, asked, times, max_concurrency=users))
    assert all(record.ok for record in records)
    return records, seconds


closed, closed_seconds = offer(COUNT, users=SLOTS)
mu = COUNT / closed_seconds

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
reveal(
    guess=my_guess, model=mu_model, measured=mu, unit="requests/s", what="finished by eight slots",
    title=f"The server finishes {mu:.2f} requests a second", log=False,
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
off = mu / mu_model - 1
closed_stay = statistics.mean(samples(closed, "e2el"))
markdown(
    f"The formula says {mu_model:.2f}, the clock {mu:.2f}"
    + (f", {abs(off):.0%} {'less' if off < 0 else 'more'}. " if abs(off) > 0.02 else ". ")
    + "Three things are not in the formula. HTTP and the client share the cores with the model here, and a freed slot stays empty for "
    "a step, until its user has asked again: both take from the clock's number. A prompt that rides along with other people's "
    "tokens costs less than one alone: that adds to it. And the two times it starts from are predictions themselves. "
    f"Little's law, below, says {mu:.2f}/s × {closed_stay:.2f} s = **{mu * closed_stay:.1f}** requests inside, and "
    f"we know that it was {SLOTS}."
)

# %% [markdown]
# A check that needs no model at all is [Little's law](../book/glossary.md#term-Little-s-law): on average, the number of requests inside is the rate at which they
# pass times the time that each stays.
#
# ## Predict: half again too much
#
# Now nobody waits for anybody: an [open loop](../book/glossary.md#term-open-loop). Forty-eight requests come at random moments,
# one and a half times as fast as the server just finished them. How long does the last of them wait for its whole answer?

# %% tags=["predict"]
my_guess = 2.0  # seconds, for the last of 48 requests

# %% tags=["measure", "nbval-ignore-output"]
MANY, TOO_MUCH = 48, 1.5
calm, _ = offer(16, rate=0.5 * mu, seed=2)
before = httpx.get(f"{url}/metrics", trust_env=False).text
busy, busy_seconds = offer(MANY, rate=TOO_MUCH * mu, seed=3)
after = httpx.get(f"{url}/metrics", trust_env=False).text

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
fluid = MANY / mu - MANY / (TOO_MUCH * mu)
ends = samples(busy, "e2el", intended=True)
reveal(
    guess=my_guess, model=fluid, measured=[ends[i] for i in (-3, -2, -1)], unit="s", what="the last three requests, to their end",
    title=f"The last of {MANY} has its answer after {ends[-1]:.1f} s", log=False,
)  # fmt: skip

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
markdown(
    "The model is a bathtub. Requests flow in at $\\lambda$ and out at $\\mu$. The last of $R$ requests arrives at $R / \\lambda$; "
    "the server, busy all the time, is done with everything at about $R / \\mu$:\n\n"
    "$$\n\\text{wait of the last} \\approx \\frac{R}{\\mu} - \\frac{R}{\\lambda}\n$$\n\n"
    f"Here that is {MANY / mu:.1f} − {MANY / mu / TOO_MUCH:.1f} = **{fluid:.1f} s**; the clock said {ends[-1]:.1f} s. Do not expect "
    "them to agree to the last second. The house is not full at the beginning and at the end, which adds; the next request already "
    "stands at the door when a slot is freed, which subtracts; and a difference of two large numbers takes every error of $\\mu$, "
    f"which was measured once, {TOO_MUCH / (TOO_MUCH - 1):.0f} times over."
)

# %% [markdown]
# And with twice as many requests at the same rate? The last one waits twice as long. So the latency of an overloaded server is no
# property of the server. It says how long the overload has lasted.

# %% tags=["hide-input", "nbval-ignore-output"]
waits, calm_waits = samples(busy, "ttft", intended=True), samples(calm, "ttft", intended=True)
paces, calm_paces = samples(busy, "tpot"), samples(calm, "tpot")
fig = figure(
    f"First tokens come {percentile(waits, 90) / percentile(calm_waits, 90):.0f} times as late (p90), the next ones "
    f"{statistics.median(paces) / statistics.median(calm_paces):.1f} times as slowly (median)",
    x="request, in the order in which they came", y="TTFT and TPOT (seconds)", height=430, log_y=True,
)  # fmt: skip
for values, color, dash in (
    (waits, palette.orange, "solid"), (calm_waits, palette.blue, "solid"),
    (paces, palette.orange, "dot"), (calm_paces, palette.blue, "dot"),
):  # fmt: skip
    fig.add_scatter(
        x=list(range(1, len(values) + 1)),
        y=values,
        mode="lines",
        line={"color": color, "dash": dash, "width": 2.5},
    )
log_axis(fig, "y", [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10])
label_line(fig, 22, waits[21], "TTFT, 1.5 × capacity", palette.orange, anchor="left", shift=-16)
label_line(fig, 16, calm_waits[-1], "TTFT, half load", palette.blue, anchor="left", shift=10)
label_line(fig, 22, paces[21], "TPOT, 1.5 × capacity", palette.orange, anchor="left", shift=14)
label_line(fig, 16, calm_paces[-1], "TPOT, half load", palette.blue, anchor="left", shift=-12)
fig

# %% [markdown]
# Lines are [TTFT](../book/glossary.md#term-TTFT), dots [TPOT](../book/glossary.md#term-TPOT). Once inside, a request shares its
# steps with seven others at most, whatever stands outside the door. A fuller step is a little slower, and no step is fuller
# than eight. So TPOT is capped by the number of slots and TTFT by nothing.
#
# And the server itself can say where the time went. Its scheduler notes when a request came and when it was first run.


# %%
def histograms(text):
    """{name: (sum, count, [(upper edge, how many up to it), …])} of every histogram in a /metrics page."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            total = {s.name.rsplit("_", 1)[1]: s.value for s in family.samples if "le" not in s.labels}
            edges = [(float(s.labels["le"]), s.value) for s in family.samples if "le" in s.labels]
            found[family.name.removeprefix("lumen:")] = total["sum"], total["count"], edges
    return found


def between(name):
    """The histogram of what happened between `before` and `after`: counters only grow, so they can be subtracted."""
    (s0, c0, e0), (s1, c1, e1) = histograms(before)[name], histograms(after)[name]
    return s1 - s0, c1 - c0, [(edge, n1 - n0) for (edge, n1), (_, n0) in zip(e1, e0, strict=True)]


# %% tags=["hide-input", "nbval-ignore-output"]
queue, inside, writing = (
    between(f"request_{name}_time_seconds")[0] / MANY for name in ("queue", "prefill", "decode")
)
table(
    [["in the queue", queue], ["first run to first token", inside], ["first token to last", writing]],
    ["mean over the 48 requests, from /metrics", "seconds"],
)
callout(
    "takeaway",
    f"**Takeaway.** With all slots taken a token took {milliseconds(statistics.median(samples(closed, 'tpot')))} when eight users took "
    f"turns, and {milliseconds(statistics.median(paces))} with a crowd outside. The seconds are not in the steps: "
    f"{queue / (queue + inside):.0%} of the time to first token was spent in the queue. "
    + (
        f"At half load p90 of TTFT is {milliseconds(percentile(calm_waits, 90))}; at three times that load it grows for as long "
        "as the load lasts. "
        if percentile(waits, 90) > 3 * percentile(calm_waits, 90)
        else "(The machine was busy with other things here, so the calm run was not calm; run both again.) "
    )
    + "Beyond saturation a server does not become slow. Its queue no longer empties.",
)

# %% [markdown]
# ## The p99 on the dashboard
#
# A server does not keep the latency of every request. It counts them in buckets, and Prometheus, which collects such counts,
# estimates the percentile: find the bucket in which it lies, and go into it as far as the count says, as if the values lay
# there evenly.


# %%
def histogram_quantile(q, buckets):
    """Prometheus's estimate from cumulative (upper edge, count) pairs, the last edge being infinite."""
    rank, low, below = q * buckets[-1][1], 0.0, 0.0
    for edge, count in buckets:
        if count >= rank:
            return low if edge == float("inf") else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count


# %% tags=["hide-input", "nbval-ignore-output"]
_, seen, buckets = between("time_to_first_token_seconds")
assert seen == MANY
rows, worst = [], 0.0
for p in (50, 90, 99):
    exact, guess = percentile(samples(busy, "ttft"), p), histogram_quantile(p / 100, buckets)
    edges = [0.0, *(edge for edge, _ in buckets)]
    high = next(edge for edge in edges if edge >= exact)
    low = max(edge for edge in edges if edge < high)
    rows.append([f"p{p}", exact, guess, f"{low:g} to {high:g}", f"{100 * (guess / exact - 1):+.0f} %"])
    worst = max(worst, abs(guess / exact - 1))
room = high / low - 1  # for the p99, the last of them
table(
    rows,
    ["TTFT of the busy run", "at the client (s)", "from buckets (s)", "bucket (s)", "off by"],
    align="lrrrr",
)
markdown(
    f"Off by up to {worst:.0%} here. It could have been worse: all values with these counts give the same estimate, so a p99 "
    f"anywhere between {low:g} and {high:g} s can be off by up to {room:.0%}. Two consequences. If you promise 300 ms, "
    "there should be an edge at 300 ms: then the share *within* the promise is exact. And quantiles of several servers are made "
    "by adding buckets first, never by averaging quantiles."
)

# %% [markdown]
# ## Layer 1: a client who leaves
#
# People close tabs. Only the layer that holds the connection can know it. If it does not tell the engine, the engine writes to
# the end for an empty room. Here somebody asks for 400 tokens, reads five pieces and hangs up.

# %% tags=["nbval-ignore-output"]
pool, prefix = engine.store.pool, engine.store.prefix


def in_use():
    return pool.num_blocks - pool.num_free - prefix.num_evictable()


story = {
    "model": "smollm2-135m",
    "prompt": plays[:400],
    "max_tokens": 400,
    "stream": True,
    "ignore_eos": True,
}
with httpx.Client(trust_env=False) as client:
    with client.stream("POST", f"{url}/v1/completions", json=story) as answer:
        pieces = [line for line in islice(answer.iter_lines(), 10) if line]  # every other line is empty
        held, running = in_use(), engine.num_running
    gone = time.monotonic()
while engine.num_running and time.monotonic() - gone < 5:
    time.sleep(0.001)
freed, left = time.monotonic() - gone, in_use()
print(f"while it ran: {held} blocks in use, {running} running")
print(f"{milliseconds(freed)} after the hang-up: {left} blocks in use, {engine.num_running} running")

# %% tags=["hide-input", "nbval-ignore-output"]
unread = story["max_tokens"] - len(pieces)
full_blocks = -(-(len(tokenizer.encode(story["prompt"])) + story["max_tokens"]) // pool.block_size)
assert left == 0 and engine.num_running == 0
markdown(
    f"The blocks came back at the next step. Without that, about {unread} more steps would have been run for nobody, with one of "
    f"{SLOTS} slots taken and up to {full_blocks} blocks held. The rule: *every way out of a request frees its blocks*: its end, "
    "a stop, an error, a client that left, a client that reads nothing. A handler that does not stream needs its own ear on the connection, "
    "[which is easily forgotten](https://github.com/ROCm/ATOM/pull/1562); and with prefill and decode on two machines, "
    "[both must hear of it](https://github.com/vllm-project/vllm/issues/50425)."
)

# %% [markdown]
# ## To the knee, with three engines
#
# One more question is left: is this server any good? `benchmarks/load_test.py` sends the same load, with the same prompts,
# lengths and arrival times, to three servers on one machine: ours, `llama_cpp.server` and vLLM's server for CPUs. Each has a
# [knee](../book/glossary.md#term-knee), an offered load from which its curve bends up. A server **carries** a load if nine requests in ten keep both limits.
# Move the limits, and see who carries what.

# %% tags=["hide-input", "nbval-ignore-output"]
RATES, LIMITS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0), (1.0, 0.15)  # requests a second; seconds of TTFT and of TPOT
try:
    found = bench.load_evidence("load_test")
    engines, setting = found["data"]["engines"], found["data"]["setting"]
    source = f"measured {found['date']} on {found['cpu']}, {setting['threads']} threads"
except bench.NoEvidence:
    found = None
    engines = [
        {
            "name": "lumen, predicted",
            "weights": "",
            "version": "",
            "runs": predicted_runs(step, RATES, answer=ANSWER),
        }
    ]
    source = "predicted by the cost model for this machine, because no load test has been published yet"
for one in engines:
    one["note"] = ", ".join(
        x for x in (one["version"], one["weights"] and f"{one['weights']} weights", source) if x
    )
Knee(
    engines, *LIMITS,
    lead=f"Prompts of {PROMPT} tokens, answers of {ANSWER}, at random moments; {source}.",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
verdicts = {}
within = f"within {LIMITS[0]:g} s and {1e3 * LIMITS[1]:g} ms"
for one in engines:
    best = max(one["runs"], key=lambda r: judge(r, *LIMITS)["throughput"])
    first_run, peak = judge(one["runs"][0], *LIMITS), judge(best, *LIMITS)
    verdicts[one["name"]] = carried(one["runs"], *LIMITS), first_run, peak
table(
    [
        [name, milliseconds(low["ttft"][0]), milliseconds(low["tpot"][0]), f"{peak['throughput']:.2f}", f"{peak['tokens']:.0f}",
         "none of them" if carry is None else f"{carry:g}"]
        for name, (carry, low, peak) in verdicts.items()
    ],
    ["server", "TTFT p50, quiet", "TPOT p50, quiet", "most requests/s", "most tokens/s", f"carries {within} (requests/s)"],
    align="lrrrrr",
)  # fmt: skip
if found is None:
    markdown(
        "One row only: the others appear once `benchmarks/load_test.py` has been run with the peers installed."
    )
else:
    quick = min(verdicts, key=lambda name: verdicts[name][1]["tpot"][0])
    many = max(verdicts, key=lambda name: verdicts[name][2]["tokens"])
    markdown(
        f"At the lowest load **{quick}** writes fastest, at higher ones **{many}** writes most. "
        + (
            "llama-cpp-python's server runs one request at a time behind a lock: few bytes per weight make each answer quick, and "
            "the next in line waits for all of it. (By default, `interrupt_requests`, it even cuts a running answer off when a new "
            "request arrives; the test switches that off.) Servers that batch read the weights once for eight. "
            if "llama.cpp" in verdicts
            else ""
        )
        + " ".join(found["data"]["skipped"])
    )

# %% [markdown]
# The comparison is of *servers as one would use them on a CPU*, not of equal arithmetic: llama.cpp reads 4-bit weights, the
# other two 32-bit ones. On a GPU with large models the order may be any other. What carries over is the method: same prompts,
# same arrivals, open loop, and your own limits.
#
# ## Where it loses
#
# A server takes a toll of every token. How much at one stream, and how much at eight?

# %% tags=["measure", "nbval-ignore-output"]
solo = {
    "model": "smollm2-135m",
    "prompt": lone_prompt,
    "max_tokens": 24,
    "temperature": 0,
    "stream": True,
    "ignore_eos": True,
}
served_gaps = []
for _ in range(2):
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", f"{url}/v1/completions", json=solo) as got,
    ):
        came = [time.monotonic() for line in got.iter_lines() if '"text":"' in line]
    served_gaps += [b - a for a, b in pairwise(came[1:])]
one_served = statistics.median(served_gaps)

# %% tags=["hide-input", "nbval-ignore-output"]
try:
    toll = bench.load_evidence("server_overhead")["data"]
    parts = {
        name: 1e3 * toll["direct"][name]["median"]
        for name in ("schedule", "pack", "forward", "sample", "detokenise")
    }
    eight = (
        f"{1e3 * toll['summary']['model_step']:.1f} ms for the model, {1e3 * toll['summary']['served_step']:.1f} ms at the client: "
        f"{toll['summary']['overhead']:+.1%}"
    )
    split = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items()) + " ms"
    per_token = (toll["summary"]["served_step"] - toll["summary"]["model_step"]) / toll["summary"]["streams"]
except bench.NoEvidence:
    eight, split, per_token = "not published yet (`benchmarks/server_overhead.py`)", "–", None
collapse = [judge(r, *LIMITS) for r in engines[0]["runs"]]
table(
    [
        ["one stream, paged engine and HTTP against a bare loop", f"{milliseconds(one_direct)} → {milliseconds(one_served)} a token: {one_served / one_direct - 1:+.0%}"],
        ["eight streams, everything but the model", eight],
        ["the engine's step at eight streams", split],
        [f"{engines[0]['name']} at ever higher loads, {within}", f"[goodput](../book/glossary.md#term-goodput) {max(c['goodput'] for c in collapse):.2f} requests/s at best, {collapse[-1]['goodput']:.2f} at the highest load, where throughput is {collapse[-1]['throughput']:.2f}"],
    ],
    ["case", "price"],
)  # fmt: skip
STREAMS = 256
gpu_step = cost.predict_decode(
    CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"], 1024, STREAMS, "bf16"
).seconds
markdown(
    "The toll is per token and stream, the model's time per step. So a slower model makes its share vanish, and a faster chip makes it "
    "grow. "
    + (
        f"At {toll['summary']['streams']} streams it was {1e6 * per_token:,.0f} µs per token, clients on the same cores included. "
        f"{STREAMS} streams at that price would pay {milliseconds(STREAMS * per_token)} a step, where Llama-3-8B on an H100 takes "
        f"{milliseconds(gpu_step)} (predicted, contexts of 1,024 tokens). "
        if per_token
        else ""
    )
    + "That is why vLLM, for one, gives HTTP, tokenizing and streaming "
    "[a process of their own](https://docs.vllm.ai/en/stable/design/arch_overview/)."
)

# %% [markdown]
# And a second negative control, on the measuring side. The eight users above who waited for their answers never let the
# server rest. What did they think of it?

# %% tags=["hide-input", "nbval-ignore-output"]
closed_waits = samples(closed, "ttft")
markdown(
    f"p90 of TTFT was **{milliseconds(percentile(closed_waits, 90))}** for them, at a throughput of {mu:.2f} requests a second; the open "
    f"loop reported **{milliseconds(percentile(waits, 90))}** at {MANY / busy_seconds:.2f}. The same server, busy in both. Eight people "
    "who each wait their turn can never be nine, so no queue can form. A closed loop measures what a server can do; only an open "
    "loop measures what happens to people."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a closed loop | full throughput, and no queue in sight | both loops on one server, side by side |
# | a short test beyond the knee | a p99 that doubles when the test is twice as long | the bathtub says so; rates are compared, or tests of one length |
# | equal prompts | the prefix cache answers; TTFT is that of a hit | every prompt is cut from another place; the warm-up's are forgotten |
# | answers end when they like | the engine whose answers are shorter wins | lengths are fixed, end tokens ignored; llama-cpp-python cannot ignore them, so its few early ends count as they are |
# | events counted as tokens | TPOT too high when pieces are held back or joined | tokens are counted by the server's `usage` |
# | client and server on the same cores | the server looks slower | none: it is so here, for all three engines alike |
#
# ## Play
#
# The server is still running. Offer it what you like. Below its capacity the bars stay flat, above it they climb; shorter
# answers raise the capacity.

# %% tags=["nbval-ignore-output"]
lab = load_lab(url, tokenizer, plays, rate=round(2 * mu, 2), count=16, answer=16)

# %% [markdown]
# ## In production
#
# The same five layers stand in all of them. Read in November 2026; the last column gives slots, tokens per step, and the limit
# on the queue if there is one:
#
# | engine | take it when | slots · tokens per step · queue |
# | --- | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/stable/cli/serve/) | the default for GPUs: most models, most hardware, `vllm serve` | `--max-num-seqs` · `--max-num-batched-tokens` · [`--max-num-queued-reqs`](https://github.com/vllm-project/vllm/pull/49445), new in 2026, counts running ones too |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/server_arguments.md) | prompts share much (agents, few-shot), structured output | `--max-running-requests` · `--chunked-prefill-size` · `--max-queued-requests` |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.html) | NVIDIA only, and the last percents count; `trtllm-serve` runs on PyTorch by default since 1.0 | `--max_batch_size` · `--max_num_tokens` · – |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | CPU, laptop, any GPU; 2 to 8 bits; one file | `--parallel` · `--ubatch-size` · – |
# | [Ollama](https://docs.ollama.com/faq), [LM Studio](https://lmstudio.ai/docs) | one person, one machine, no wish to think about it | `OLLAMA_NUM_PARALLEL` · – · `OLLAMA_MAX_QUEUE` |
# | [MLX LM](https://github.com/ml-explore/mlx-lm) | Apple silicon and its shared memory; `mlx_lm.server` | `--decode-concurrency` · – · – |
# | [ONNX Runtime GenAI](https://github.com/microsoft/onnxruntime-genai) | inside an application, Windows and phones among them | a library, not a server |
# | [Dynamo](https://github.com/ai-dynamo/dynamo) | many nodes: routing by cache, prefill and decode apart, on top of vLLM, SGLang or TensorRT-LLM | the engines' |
# | [llm-d](https://llm-d.ai/docs/architecture/architecture) | the same idea on Kubernetes, around vLLM and the Inference Gateway | the engines' |
# | [DeepSpeed-FastGen](https://github.com/deepspeedai/DeepSpeed-MII) | you have it already; its Dynamic SplitFuse is what others call chunked prefill | – |
# | [TGI](https://github.com/huggingface/text-generation-inference) | not for anything new: in maintenance since 11 December 2025, archived since March 2026; its README points to vLLM, SGLang, llama.cpp and MLX | – |
#
# Where the last column has no limit on the queue, put one in front. `lumen serve --max-queue 256` (its default) answers 429, *too
# many requests*, beyond that, which is kinder than a place in a line that does not move.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **Five layers.** Of one request's {milliseconds(last - sent)}, {outside:.1%} was not the engine; to the first token "
    f"{milliseconds(spent['1 API'])} API, {milliseconds(spent['2 template, tokenizer'])} tokenizer, {milliseconds(spent['3 scheduler'])} scheduler and hand-over, "
    f"{milliseconds(spent['4 engine'])} engine, {milliseconds(spent['5 detokeniser, stream'])} stream.\n"
    f"- **Certain text only.** Token by token, {broken} of 2,000 answers came out broken; of {stopped} stops, the short ways missed {missed} and leaked {leaked}. "
    "With held bytes and held text: none.\n"
    f"- **Saturation.** $B / (B\\,t_\\text{{prefill}} + (n-1)\\,t_\\text{{step}}(B))$ said {mu_model:.2f} requests a second, the clock {mu:.2f}. "
    f"Beyond it, the bathtub, $R/\\mu - R/\\lambda$, said {fluid:.1f} s for the last of {MANY}, the clock {ends[-1]:.1f} s; "
    f"{queue / (queue + inside):.0%} of TTFT was queue.\n"
    f"- **Dashboards.** A percentile from buckets was off by {worst:.0%} here; a p99 in its bucket can be off by {room:.0%}.\n"
    f"- **Engines, {within}:** "
    + "; ".join(
        f"{name} carries {'none of the loads' if v[0] is None else f'{v[0]:g} requests/s'}"
        for name, v in verdicts.items()
    )
    + f" ({source})."
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz(
    [
        {
            "kind": "choice",
            "question": "TTFT has gone from 0.2 s to 8 s within a minute; TPOT is what it always is at this hour. What do you look at first?",
            "choices": [
                {"text": "requests waiting, and the arrival rate", "ok": True, "why": "A request inside is as fast as ever, so the time is lost in front of the scheduler."},
                {"text": "the tokenizer", "why": "It was among the shortest bars of the picture, and its work does not grow within a minute."},
                {"text": "the prefill kernels", "why": "A slow prefill would hold up everybody's decode steps as well, and TPOT would show it."},
                {"text": "the network", "why": "A slow line would stretch the gaps as well. A long one adds milliseconds, not seconds that grow."},
            ],
        },
        {
            "kind": "numeric",
            "question": "16 slots; a prefill takes 25 ms; a step with 16 sequences 40 ms; answers have 101 tokens. Saturation throughput?",
            "answer": 3.64, "tolerance": 0.03, "unit": "requests/s",
            "right": "16 / (16 · 0.025 + 100 · 0.040) = 16 / 4.4.",
            "wrong": "A full house costs 16 prefills and 100 steps, and finishes 16 requests.",
            "slips": [
                {"answer": 4.0, "tolerance": 0.01, "why": "You left the prefills out."},
                {"answer": 3.975, "tolerance": 0.01, "why": "Each of the 16 requests has a prefill of its own."},
                {"answer": 0.227, "tolerance": 0.01, "why": "That is one slot. There are sixteen."},
            ],
        },
        {
            "kind": "choice",
            "question": "The stop is `END`. The text so far ends in `… THE E`. What may be sent?",
            "choices": [
                {"text": "everything up to the space", "ok": True, "why": "`E` may be the beginning of the stop. It is held until the next character says no."},
                {"text": "everything", "why": "Then `E` is on the screen when `ND` comes, and cannot be taken back."},
                {"text": "nothing until the answer ends", "why": "Only text that could still become a stop has to wait."},
                {"text": "everything but the last two characters", "why": "Safe, and late: nothing that holds a space can become the stop. Hold the longest end that begins one."},
            ],
        },
        {
            "kind": "choice",
            "question": "A dashboard shows p99 of TTFT at 9.9 s for a server whose histogram has edges at 5 and 10 s. What do you know?",
            "choices": [
                {"text": "that it lies between 5 and 10 s", "ok": True, "why": "The rest is the assumption that values lie evenly in the bucket."},
                {"text": "that it is 9.9 s", "why": "If half of the requests took 5.1 s each and the others less than 5, the dashboard would show 9.9 as well."},
                {"text": "nothing", "why": "Counts say for certain in which bucket it lies."},
            ],
        },
        {
            "kind": "choice",
            "question": "There are limits on TTFT and on TPOT, and nobody may be turned away. Which of the two can you keep at any load, by settings of the server alone?",
            "choices": [
                {"text": "TPOT, by fewer slots", "ok": True, "why": "Who is inside shares a step with the other slots only (and with pieces of prompts, which the token budget bounds). TTFT needs a queue that empties: more capacity, or fewer requests."},
                {"text": "TTFT, by more slots", "why": "More slots raise throughput a little and slow every step. If arrivals exceed that, the queue still grows."},
                {"text": "both, by chunked prefill", "why": "It cuts long stalls into short ones. It does not make capacity, so the queue still grows."},
            ],
        },
    ],
    id="10",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/10_serving.ipynb) ([solutions](../solutions/10_serving.ipynb)). Checks answer at once and say
# what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("10"))

# %% [markdown]
# ## Further reading
#
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for the line between the
#   serving system and the engine, and for what moves when scheduling is done per iteration.
# - [vLLM's architecture overview](https://docs.vllm.ai/en/stable/design/arch_overview/): read it for how the five layers are
#   spread over processes, and who talks to whom.
# - [Server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html) in the HTML standard: read it, above all
#   the part on parsing, before you write the parser of exercise 2.
# - [Prometheus on histograms and summaries](https://prometheus.io/docs/practices/histograms/): read it for errors of quantile
#   estimation, with pictures, and for why quantiles do not aggregate.
# - [How NOT to measure latency](https://www.infoq.com/presentations/latency-response-time/) (Gil Tene, 2015): read it (or rather watch
#   it) for coordinated omission by the person who named it.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print(
    f"this machine: {chip.name}, {chip.bandwidth / 1e9:.1f} GB/s read; step times of the formula by lumen.cost"
)
print(
    "load on this page: prompts cut from Shakespeare, seeds 1 to 3; server, client and model in one process"
)
print("evidence files read when present: load_test, server_overhead")
