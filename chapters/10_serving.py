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
# CPU is enough · read 35 min · run 2 min · practise 105 min · here: [exercises](../exercises/10_serving.ipynb), [solutions](../solutions/10_serving.ipynb)
#
# </div>

# %% [markdown]
# Put SmolLM2 behind an HTTP port and send it requests at half of what it can take. Everybody sees a first token in a
# blink. Now triple the pace. First tokens take seconds, each guest waits longer than the one before, and there is no end
# to it. Yet an answer that has begun is written at a good pace, as before. You look at the engine, and every step takes
# what such a step always took.
#
# **Where do the seconds come from, if no step became slower?**
#
# By the end you can
#
# - follow one request through five layers, and say how many milliseconds each of them takes;
# - build the part that never shows half a character or half a stop string, and break the two short versions of it;
# - predict from two step times how many requests a second a server carries, and from one subtraction how long people wait
#   beyond that;
# - say how far off a p99 on a dashboard can be, and read off one load test what three engines carry under your limits.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb), [measuring](03_measuring.ipynb), [batching](08_batching.ipynb),
# [scheduling](09_scheduling.ipynb).

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
from itertools import pairwise

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

import lumen
from lumen import assets, bench, hardware
from lumen.explore import Knee, Quiz, callout, figure, label_line, load_lab, markdown, palette, reveal, table
from lumen.explore.knee import carried, judge, predicted_runs, step_times
from lumen.explore.lab import milliseconds
from lumen.explore.load import in_a_thread
from lumen.explore.theme import log_axis
from lumen.io.stop import StopMatcher
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
model, tokenizer = lumen.load("smollm2-135m")
config, dtype = model.config, next(model.parameters()).dtype

# %% [markdown]
# ## A server on this page
#
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
engine = Engine(model, tokenizer, num_blocks=512, limits=Limits(max_seqs=SLOTS, token_budget=256))
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
#   "model": "smollm2-135m", "stream": true, "max_tokens": 24,
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
    print(
        f"{1e3 * (at - sent):6.1f} ms  {line[:16]} … {line[-96:]}"
        if len(line) > 120
        else f"{1e3 * (at - sent):6.1f} ms  {line}"
    )

# %% [markdown]
# That is the whole protocol of a stream: lines that begin with `data:`, an empty line after each, JSON inside, and a `[DONE]`
# (*server-sent events*; the first event only says whose turn it is). Before we look at the clock: is it the right answer?

# %% tags=["nbval-ignore-output"]
events = [
    (at, json.loads(line[6:])["choices"][0]["delta"].get("content", ""))
    for at, line in lines[:-1]
    if json.loads(line[6:])["choices"]
]
text = "".join(piece for _, piece in events)
(alone,) = lumen.generate(model, [tokenizer.apply_chat(chat)], 24, tokenizer=tokenizer)
assert text == alone.text or dtype != torch.float32  # in 16 bits near-ties may flip
print(text)

# %% [markdown]
# ## One request, five layers
#
# Now the clock. Everything ran in this process, so all the times lie on one axis: what the client saw, and what each layer
# of the server wrote down.

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
spent = {
    layer: sum(max(0.0, min(e, first) - b) for name, b, e in spans if name == layer and b < first)
    for layer in LAYERS
}
later = {
    layer: sum(e - max(b, first) for name, b, e in spans if name == layer and e > first) for layer in LAYERS
}
outside = 1 - sum(end - begin for begin, end in forwards) / (last - sent)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"From sending to [DONE]: {1e3 * (last - sent):,.0f} ms, of which {outside:.1%} is not the model",
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
# Read it from top to bottom. The **API** parses HTTP and JSON and checks every field, so that nothing behind it has to. The
# **template** turns messages into one text, the **tokenizer** turns that into ids. The **scheduler** gets the request through a
# door between two threads, finds it a slot and blocks, and from then on puts it into the plan of every step. The **engine**
# runs the forward and draws a token. The **detokeniser** finds the text that is certain, and the **stream** sends it off. Then
# 3, 4, 5 again, once a token.

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [[layer, 1e3 * spent[layer], 1e3 * later[layer] / max(1, len(steps) - 1)] for layer in LAYERS]
    + [["all", 1e3 * (first - sent), 1e3 * (last - first) / max(1, len(steps) - 1)]],
    ["layer", "until the first token (ms)", "per later token (ms)"],
)
markdown(
    f"Of the {milliseconds(first - sent)} to the first token the model took {spent['4 engine'] / (first - sent):.0%}. So for one "
    "guest, four of the five layers are nearly free. They are where servers go wrong all the same; let us take them "
    "apart from the end."
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
# token and send what is new: quadratic, and at every cut the broken character is in the text, only to change when the next
# token comes; what was sent cannot be taken back. The right way holds bytes back until their character is whole.
#
# Stop strings are the same problem, one level up. With `stop=["\n\nUser:"]`, the text `\n\nUs` may become the stop or may
# not. So it must wait too.


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
    """Ids in, certain text out."""

    def __init__(self, token_bytes):
        self.token_bytes, self.held = token_bytes, b""

    def feed(self, token):
        raw = self.held + self.token_bytes(token)
        whole = len(raw) - unfinished(raw)
        self.held = raw[whole:]
        return raw[:whole].decode("utf-8", errors="replace")

    def finish(self):
        return self.held.decode("utf-8", errors="replace")


class StopHolder:
    """Text in, certain text out, and the stop that was found."""

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


# %% [markdown]
# Now the proof. Two thousand streams of random tokens, half of them fragments of characters, cut off anywhere. The joined
# pieces must equal the full decode: by Lumen's stream decoder, by `tokenizer.decode`, and by the `tokenizers` library, which is
# what transformers uses.

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
print(f"2000 streams right; token by token, {broken} of them would have been broken")

# %% [markdown]
# That last number is a **negative control**: if the naive decoder passed, the test would be worth nothing. The stops get the
# same treatment, with two ways that are often written. One looks for the stop in each chunk. The other looks in the whole text,
# and has already sent the beginning of the stop when it finds it.

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
# Holding back costs latency, but only where text is uncertain: one token of the duck, and at most the length of the longest
# stop. ITL measured at the client has a gap there which the engine never had.
#
# ## Layer 3: the queue
#
# Back to the seconds. A server has $S$ slots, and a request that finds them taken waits in front of the scheduler. With
# everyone asking for $n$ tokens, a full house of $S$ requests costs $S$ prefills and $n - 1$ full decode steps, and then
# $S$ requests are done. So the server finishes
#
# $$
# \mu = \frac{S}{S\, t_\text{prefill} + (n - 1)\, t_\text{step}(S)}
# $$
#
# requests a second, and no more, whatever is asked of it.

# %% tags=["nbval-ignore-output"]
PROMPT, ANSWER, COUNT = 64, 32, 24
chip = hardware.measure()
step = step_times(config, chip, dtype, prompt=PROMPT, answer=ANSWER)
t_prefill, t_full = step(1, 0), step(0, SLOTS)
mu_model = SLOTS / (SLOTS * t_prefill + (ANSWER - 1) * t_full)

# %% tags=["hide-input", "nbval-ignore-output"]
table(
    [
        ["$S$", "slots", "1", str(SLOTS)],
        ["$n$", "tokens of an answer", "tokens", str(ANSWER)],
        ["$t_\\text{prefill}$", f"one prompt of {PROMPT} tokens, by the cost model of chapter 2", "s", milliseconds(t_prefill)],
        ["$t_\\text{step}(S)$", "one token for each of eight sequences, halfway", "s", milliseconds(t_full)],
        ["$\\mu$", "saturation throughput", "1/s", f"{mu_model:.2f}"],
        ["$\\lambda$", "offered load, chosen by the world", "1/s", "?"],
    ],
    ["symbol", "here", "unit", "value"],
    align="lllr",
)  # fmt: skip

# %% [markdown]
# ## Predict: how many a second?
#
# Eight users each send a prompt of 64 tokens, wait for their 32 tokens of answer, and at once ask again. One user alone
# would be served in about 32 steps. How many requests a second does the server finish?

# %% tags=["predict"]
my_guess = 8.0  # requests a second


# %% tags=["measure", "nbval-ignore-output"]
plays = assets.shakespeare()[0]
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

# %% tags=["hide-input", "nbval-ignore-output"]
off = mu / mu_model - 1
closed_stay = statistics.mean(samples(closed, "e2el"))
markdown(
    f"The formula says {mu_model:.2f}, the clock {mu:.2f}"
    + (f", {abs(off):.0%} {'less' if off < 0 else 'more'}: " if abs(off) > 0.02 else ": ")
    + "the formula knows no HTTP and no client, and here both share the cores with the model; the prompts, on the other hand, "
    "ride along with other people's tokens. **Little's law** checks the measurement: the number of "
    f"requests inside is their rate times their stay, {mu:.2f}/s × {closed_stay:.2f} s = **{mu * closed_stay:.1f}**, and we know "
    f"that it was {SLOTS}."
)

# %% [markdown]
# ## Predict: half again too much
#
# Now nobody waits for anybody. Forty-eight requests come at random moments, one and a half times as fast as the server can
# finish them. How long does the last of them wait for its whole answer?

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

# %% [markdown]
# The model is a bathtub. Requests flow in at $\lambda$ and out at $\mu$. The last one arrives at $N / \lambda$; the server,
# busy all the time, is done with everything at about $N / \mu$:
#
# $$
# \text{wait of the last} \approx \frac{N}{\mu} - \frac{N}{\lambda}
# $$
#
# Do not expect the clock to agree to the last second. The house is not full at the beginning and at the end, which adds; and the
# difference of two large numbers takes every error of $\mu$, which was measured once, threefold. But the shape is right: the wait
# grows with $N$, without end. There is no such thing as the latency of an overloaded server, only the time for which it has been
# overloaded.

# %% tags=["hide-input", "nbval-ignore-output"]
waits, calm_waits = samples(busy, "ttft", intended=True), samples(calm, "ttft", intended=True)
paces, calm_paces = samples(busy, "tpot"), samples(calm, "tpot")
fig = figure(
    f"First tokens come {percentile(waits, 90) / percentile(calm_waits, 90):.0f} times as late, the next ones "
    f"{statistics.median(paces) / statistics.median(calm_paces):.1f} times as slowly",
    x="request, in the order in which they came", y="seconds", height=430, log_y=True,
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
# Lines are TTFT, dots TPOT. Once inside, a request shares its steps with seven others at most, whatever stands outside
# the door. So TPOT is capped by the number of slots and TTFT by nothing.
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
    f"**Takeaway.** No step became slower. {queue / (queue + inside):.0%} of the time to first token was spent in the queue. "
    + (
        f"At half load p90 of TTFT is {milliseconds(percentile(calm_waits, 90))}; at three times that load it is as long as "
        "the overload has lasted. "
        if percentile(waits, 90) > 3 * percentile(calm_waits, 90)
        else "(The machine was busy with other things here, so the calm run was not calm; run both again.) "
    )
    + "A server has no speed limit that one could hit. It has a queue, and either it empties or it does not.",
)

# %% [markdown]
# ## The p99 on the dashboard
#
# Nobody keeps every latency of every request. A server counts them in buckets, and Prometheus guesses the percentile:
# find the bucket in which it lies, and go into it as far as the count says, as if the values lay there evenly.


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
table(rows, ["TTFT of the busy run", "exact (s)", "from buckets (s)", "bucket (s)", "off by"], align="lrrrr")
markdown(
    f"Off by up to {worst:.0%} here, and the bucket's width is all that one may rely on. Two consequences. If you promise 300 ms, "
    "there should be an edge at 300 ms: then the share *within* the promise is exact. And quantiles of several servers are made "
    "by adding buckets first, never by averaging quantiles."
)

# %% [markdown]
# ## A client who leaves
#
# People close tabs. Their request has a slot, blocks, and a long way to go. If nobody tells the engine, it writes to the end
# for an empty room. Here somebody asks for 400 tokens, reads five pieces and hangs up.

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
        pieces = [line for line, _ in zip(answer.iter_lines(), range(10), strict=False) if line]
        held, running = in_use(), engine.num_running
    gone = time.monotonic()
while engine.num_running and time.monotonic() - gone < 5:
    time.sleep(0.001)
freed, left = time.monotonic() - gone, in_use()
print(f"while it ran: {held} blocks in use, {running} running")
print(f"{milliseconds(freed)} after the hang-up: {left} blocks in use, {engine.num_running} running")

# %% tags=["hide-input", "nbval-ignore-output"]
unread = 400 - len(pieces)
full_blocks = -(-(len(tokenizer.encode(plays[:400])) + 400) // pool.block_size)
assert left == 0 and engine.num_running == 0
markdown(
    f"The blocks came back at the next step. Without that, about {unread} more steps would have been run for nobody, with up to "
    f"{full_blocks} blocks held, and one slot in {SLOTS} taken: while it lasts, an eighth of the server is gone. The rule: *every way out of a request frees its blocks*: its end, a stop, an error, a client that left, a client that "
    "reads nothing. A handler that does not stream needs its own ear on the connection, "
    "[which is easily forgotten](https://github.com/ROCm/ATOM/pull/1562); and with prefill and decode on two machines, "
    "[both must hear of it](https://github.com/vllm-project/vllm/issues/50425)."
)

# %% [markdown]
# ## To the knee, with three engines
#
# One more question is left: is this server any good? The same load, with the same prompts, lengths and arrival times,
# went to three servers on one machine (`benchmarks/load_test.py`): ours, `llama_cpp.server` and vLLM's server for CPUs. Move the
# two limits, and see who carries what.

# %% tags=["hide-input", "nbval-ignore-output"]
RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
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
    engines, ttft=1.0, tpot=0.15,
    lead=f"Prompts of {PROMPT} tokens, answers of {ANSWER}, at random moments; {source}.",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
LIMITS = 1.0, 0.15
verdicts = {}
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
    ["server", "TTFT p50, quiet", "TPOT p50, quiet", "most requests/s", "most tokens/s", "carries within 1 s and 150 ms (requests/s)"],
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
        f"For one guest, **{quick}** writes fastest. Under load, **{many}** writes most. "
        + (
            "They are not the same engine, and that is the lesson of batching once more. "
            if quick != many
            else ""
        )
        + (
            "llama-cpp-python's server runs one request at a time behind a lock: few bytes per weight make each answer quick, and the next "
            "in line waits for all of it. (By default it even cuts a running answer off when a new request arrives; the test had to "
            "switch that off.) Servers that batch read the weights once for eight."
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
# A server is a toll. What is it at one stream, and what at eight?

# %% tags=["measure", "nbval-ignore-output"]
ids = tokenizer.encode(plays[:300])
solo = {
    "model": "smollm2-135m",
    "prompt": ids,
    "max_tokens": 24,
    "temperature": 0,
    "stream": True,
    "ignore_eos": True,
}
direct_gaps, served_gaps = [], []
for _ in range(2):
    times = bench.token_times(model, ids, 24)
    direct_gaps += [b - a for a, b in pairwise(times[1:])]
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", f"{url}/v1/completions", json=solo) as got,
    ):
        came = [time.monotonic() for line in got.iter_lines() if '"text":"' in line]
    served_gaps += [b - a for a, b in pairwise(came[1:])]
one_direct, one_served = statistics.median(direct_gaps), statistics.median(served_gaps)

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
except bench.NoEvidence:
    eight, split = "not published yet (`benchmarks/server_overhead.py`)", "–"
collapse = [judge(r, *LIMITS) for r in engines[0]["runs"]]
table(
    [
        ["one stream, paged engine and HTTP against a bare loop", f"{milliseconds(one_direct)} → {milliseconds(one_served)} a token: {one_served / one_direct - 1:+.0%}"],
        ["eight streams, everything but the model", eight],
        ["the engine's step at eight streams", split],
        ["past the knee", f"goodput {max(c['goodput'] for c in collapse):.2f} at best, {collapse[-1]['goodput']:.2f} a second at the highest load, while throughput stays at {collapse[-1]['throughput']:.2f}"],
    ],
    ["case", "price"],
)  # fmt: skip

# %% [markdown]
# The toll is per token and per stream, the model's time is per step. A larger model makes the share vanish; a faster chip
# makes it grow. At 5 ms a step and 256 streams, JSON, detokenising and sockets in one Python process would be the
# bottleneck, which is why engines move them into processes of their own.
#
# And a second negative control, on the measuring side. The eight users above who waited for their answers kept the server
# at 100 % of its capacity all the time. What did they think of it?

# %% tags=["hide-input", "nbval-ignore-output"]
closed_waits = samples(closed, "ttft")
markdown(
    f"p90 of TTFT was **{milliseconds(percentile(closed_waits, 90))}** for them, at a throughput of {mu:.2f} requests a second; the open loop "
    f"reported **{milliseconds(percentile(waits, 90))}** at {MANY / busy_seconds:.2f}. The same server, equally full. Eight people who each wait "
    "their turn can never be nine, so no queue can form. A closed loop measures what a server can do; only an open loop "
    "measures what happens to people."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a closed loop | full throughput, and no queue in sight | both loops on one server, side by side |
# | a short test beyond the knee | a p99 that doubles when the test is twice as long | the bathtub: it is a duration, not a property |
# | equal prompts | the prefix cache answers; TTFT is that of a hit | every prompt is cut from another place; the warm-up's are forgotten |
# | answers end when they like | the engine whose answers are shorter wins | lengths are fixed, end tokens ignored |
# | events counted as tokens | TPOT too high when pieces are held back or joined | tokens are counted by the server's `usage` |
# | client and server on the same cores | the server looks slower | true here, and for all three engines alike |
#
# ## Play
#
# The server is still running. Offer it what you like. Below its capacity the bars stay flat, above it they climb; shorter answers raise the capacity.

# %% tags=["nbval-ignore-output"]
lab = load_lab(url, tokenizer, plays, rate=round(2 * mu, 2), count=16, answer=16)

# %% [markdown]
# ## In production
#
# The same five layers stand everywhere; what differs is which of them was somebody's reason to begin. Read in November 2026:
#
# | engine | take it when | slots · queue · tokens per step |
# | --- | --- | --- |
# | [vLLM](https://docs.vllm.ai/en/stable/cli/serve/) | the default for GPUs: most models, most hardware, `vllm serve` | `--max-num-seqs`, `--max-num-batched-tokens` |
# | [SGLang](https://docs.sglang.io/docs/advanced_features/server_arguments.md) | prompts share much (agents, few-shot), structured output | `--max-running-requests`, `--chunked-prefill-size` |
# | [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.html) | NVIDIA only, and the last percents count; `trtllm-serve` runs on PyTorch by default since 1.0 | `--max_batch_size`, `--max_num_tokens` |
# | [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md) | CPU, laptop, any GPU; 2 to 8 bits; one file | `--parallel`, `--ubatch-size` |
# | [Ollama](https://docs.ollama.com/faq), [LM Studio](https://lmstudio.ai/docs) | one person, one machine, no wish to think about it | `OLLAMA_NUM_PARALLEL`, `OLLAMA_MAX_QUEUE` |
# | [MLX LM](https://github.com/ml-explore/mlx-lm) | Apple silicon and its shared memory; `mlx_lm.server` | – |
# | [ONNX Runtime GenAI](https://github.com/microsoft/onnxruntime-genai) | inside an application, Windows and phones among them | a library, not a server |
# | [Dynamo](https://github.com/ai-dynamo/dynamo) | many nodes: routing by cache, prefill and decode apart, on top of vLLM, SGLang or TensorRT-LLM | the engines' |
# | [llm-d](https://llm-d.ai/docs/architecture/architecture) | the same idea on Kubernetes, around vLLM and the Inference Gateway | the engines' |
# | [DeepSpeed-FastGen](https://github.com/deepspeedai/DeepSpeed-MII) | you have it already; its Dynamic SplitFuse is what others call chunked prefill | – |
# | [TGI](https://github.com/huggingface/text-generation-inference) | not for anything new: in maintenance since 11 December 2025, archived since March 2026; its README points to vLLM, SGLang, llama.cpp and MLX | – |
#
# A queue limit belongs to every one of them. `lumen serve --max-queue 256` answers 429 beyond that, which is kinder than a
# place in a line that does not move.
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **Five layers.** Of one request's {milliseconds(last - sent)}, {outside:.1%} was not the model; to the first token "
    f"{milliseconds(spent['1 API'])} API, {milliseconds(spent['2 template, tokenizer'])} tokenizer, {milliseconds(spent['3 scheduler'])} scheduler and hand-over, "
    f"{milliseconds(spent['4 engine'])} engine, {milliseconds(spent['5 detokeniser, stream'])} stream.\n"
    f"- **Certain text only.** Token by token, {broken} of 2,000 streams came out broken; of {stopped} stops, the short ways missed {missed} and leaked {leaked}. "
    "Held bytes and held text: none.\n"
    f"- **Saturation.** $S / (S\\,t_\\text{{prefill}} + (n-1)\\,t_\\text{{step}}(S))$ said {mu_model:.2f} requests a second, the clock {mu:.2f}. "
    f"Beyond it, the last of {MANY} waits $N/\\mu - N/\\lambda$ = {fluid:.1f} s; it was {ends[-1]:.1f} s, {queue / (queue + inside):.0%} of TTFT in the queue.\n"
    f"- **Dashboards.** A p99 from buckets was off by up to {worst:.0%}.\n"
    "- **Engines, within 1 s and 150 ms:** "
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
                {"text": "the tokenizer", "why": "It takes about a millisecond for a prompt, and would not grow within a minute."},
                {"text": "the prefill kernels", "why": "A slow prefill would hold up everybody's decode steps as well, and TPOT would show it."},
                {"text": "the network", "why": "It would delay every token alike. The gaps are as ever."},
            ],
        },
        {
            "kind": "numeric",
            "question": "16 slots; a prefill takes 25 ms; a step with 16 sequences 40 ms; answers have 101 tokens. Saturation throughput?",
            "answer": 3.64, "tolerance": 0.03, "unit": "requests/s",
            "right": "16 / (16 · 0.025 + 100 · 0.040) = 16 / 4.4.",
            "wrong": "A full house costs 16 prefills and 100 steps, and finishes 16 requests.",
            "slips": [
                {"answer": 4.0, "tolerance": 0.03, "why": "You left the prefills out."},
                {"answer": 3.98, "tolerance": 0.01, "why": "Each of the 16 requests has a prefill of its own."},
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
                {"text": "everything but the last three characters", "why": "Safe, and late: `HE ` can never become the stop. Hold the longest end that begins one."},
            ],
        },
        {
            "kind": "choice",
            "question": "A dashboard shows p99 of TTFT at 9.9 s for a server whose histogram has edges at 5 and 10 s. What do you know?",
            "choices": [
                {"text": "that it lies between 5 and 10 s", "ok": True, "why": "The rest is the assumption that values lie evenly in the bucket."},
                {"text": "that it is 9.9 s", "why": "If 1 % of the requests took 5.1 s each, the dashboard would show a value near 10 as well."},
                {"text": "nothing", "why": "The bucket is known."},
            ],
        },
        {
            "kind": "choice",
            "question": "Which of the two limits can you keep at any load, by settings of the server alone?",
            "choices": [
                {"text": "TPOT, by fewer slots", "ok": True, "why": "Who is inside shares steps with S − 1 others at most (and with prompts, which chunking bounds). TTFT needs a queue that empties: more capacity, or fewer admitted requests."},
                {"text": "TTFT, by more slots", "why": "More slots raise throughput a little and slow every step. If arrivals exceed that, the queue still grows."},
                {"text": "both, by chunked prefill", "why": "It spreads stalls. It does not make capacity."},
            ],
        },
    ],
    id="10",
    shuffle=True,
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
# - [Server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html) in the HTML standard: read it before you
#   write the parser of exercise 2; it is two pages.
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
