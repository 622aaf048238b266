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
# blink. Now triple the pace. First tokens take seconds, and the later somebody comes, the longer they take. Yet once an
# answer has begun, its tokens come at a pace that no crowd outside can spoil: eight share a step, never nine.
#
# **Where do the seconds come from, if no step holds more than eight?**
#
# By the end you can
#
# - follow one request through five layers, and say how many milliseconds each of them takes;
# - build the part that never shows half a character or half a stop string, and break the short versions of it;
# - predict from two step times how many requests a second a server finishes, where its tail leaves the floor, and from
#   one subtraction how long people wait beyond;
# - say how far off a p99 on a dashboard can be, and read off one load test what a server carries under your limits.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb), [measuring](03_measuring.ipynb), [batching](08_batching.ipynb),
# [scheduling](09_scheduling.ipynb); blocks are those of [the paged cache](05_paged_cache.ipynb).
#
# New terms: [detokeniser](../book/glossary.md#term-detokeniser),
# [server-sent events](../book/glossary.md#term-server-sent-events),
# [Little's law](../book/glossary.md#term-Little-s-law), [knee](../book/glossary.md#term-knee).

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
    wanted = "lumen-inference[serve] @ " + address
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, wanted], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("10_serving")

# %% tags=["hide-input"]
import asyncio
import importlib.util
import json
import random
import statistics
import textwrap
import threading
import time
from itertools import islice, pairwise

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

import lumen
from lumen import assets, bench, hardware
from lumen.explore import (
    Knee,
    Quiz,
    callout,
    guess,
    load_lab,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.explore.explorers.knee import step_times
from lumen.explore.labs.load import in_a_thread
from lumen.explore.prose.boxes import milliseconds
from lumen.io.stop import StopMatcher
from lumen.loadgen import arrivals, samples
from lumen.loadgen.client import Target
from lumen.loadgen.prompts import from_text
from lumen.loadgen.run import run
from lumen.pages import ch10
from lumen.pages.engines import production_table
from lumen.runtime import in_passing_thread
from lumen.serve.engine import Engine
from lumen.serve.scheduler import Limits
from lumen.server.app import create_app
from lumen.server.command import bind
from lumen.server.process import serving

torch.set_grad_enabled(False)
model, tokenizer = in_passing_thread(lumen.load, "smollm2-135m")
config, dtype = model.config, next(model.parameters()).dtype
plays = assets.shakespeare()[0]

# %% [markdown]
# ## One request, five layers
#
# On the command line the server is one line, `lumen serve --model smollm2-135m --port 8000`. Here it runs inside the
# notebook, so that we can look into it: `Noted` lets every call through and writes down when the named ones began and
# ended. (On Linux torch keeps helpers for every thread that ever computed, and too many slow the server's. So what else
# this page computes goes through `in_passing_thread`, which takes its helpers along when it ends.)


# %%
class Noted:
    """`inner` with a stopwatch on the methods that `layers` names.

    Each call is logged as (layer, begin, end).
    """

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
engine = in_passing_thread(
    lambda: Engine(model, tokenizer, num_blocks=512, limits=limits)
)
engine.scheduler = Noted(
    engine.scheduler, log, schedule="scheduler", update="scheduler"
)
engine.runner = Noted(engine.runner, log, run="forward")
watched = Noted(engine, log, add="scheduler", step="step")
words = Noted(tokenizer, log, apply_chat="tokenizer")
app = create_app(watched, words, "smollm2-135m")

listener = bind("127.0.0.1", 0)  # port 0: any free one
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
server = serving(app, "The server is up.")
threading.Thread(
    target=lambda: asyncio.run(server.serve([listener])), daemon=True
).start()
while not server.started:
    time.sleep(0.01)

# %% [markdown]
# Anything that speaks OpenAI's protocol can talk to it: their own client with another `base_url`, or `curl`:
#
# ```bash
# curl -N http://127.0.0.1:8000/v1/chat/completions \
#   -H 'content-type: application/json' -d '{
#   "model": "smollm2-135m", "stream": true, "max_tokens": 24,
#   "temperature": 0, "messages": [
#     {"role": "user", "content": "Why is the evening sky red?"}]}'
# ```
#
# Here is that request, with a clock beside it.

# %% tags=["nbval-ignore-output"]
chat = [{"role": "user", "content": "Why is the evening sky red?"}]
asked = {"model": "smollm2-135m", "max_tokens": 24, "temperature": 0}


def ask(body):
    """When we asked, and (time, line) of everything that came."""
    lines = []
    with httpx.Client(trust_env=False, timeout=60) as client:
        sent = time.monotonic()
        where = f"{url}/v1/chat/completions"
        with client.stream("POST", where, json=body) as answer:
            for line in answer.iter_lines():
                if line:
                    lines.append((time.monotonic(), line))
    return sent, lines


if importlib.util.find_spec("openai"):  # their own client
    from openai import OpenAI

    direct = httpx.Client(trust_env=False, timeout=60)
    theirs = OpenAI(base_url=f"{url}/v1", api_key="-", http_client=direct)
    said = theirs.chat.completions.create(messages=chat, **asked).usage
    print(
        f"openai: {said.prompt_tokens} + {said.completion_tokens} tokens\n"
    )

body = asked | {"messages": chat, "stream": True}
ask(body)  # warm-up
prefix = engine.store.prefix
prefix.evict(prefix.num_evictable())  # forget it: the next prompt is new
log.clear()
sent, lines = ask(body)
for at, line in [*lines[:3], lines[-1]]:
    at_word = max(6, line.find('"delta"'))  # of the JSON, what says it
    cut = f"{line[:6]}… {line[at_word:][:50]} …"
    short = line if len(line) <= 62 else cut
    print(f"{1e3 * (at - sent):6.1f} ms  {short}")

# %% [markdown]
# That is the whole protocol of a stream: lines that begin with `data:`, an empty line after each, JSON inside, and a
# `[DONE]` ([server-sent events](../book/glossary.md#term-server-sent-events); the first one only says whose turn it is).
# Are these the tokens that `lumen.generate` makes without a server?

# %% tags=["nbval-ignore-output"]
choices = [(at, json.loads(line[6:])["choices"]) for at, line in lines[:-1]]
events = [(at, c[0]["delta"].get("content", "")) for at, c in choices if c]
text = "".join(piece for _, piece in events)
(alone,) = in_passing_thread(
    lambda: lumen.generate(
        model, [tokenizer.apply_chat(chat)], 24, tokenizer=tokenizer
    )
)
assert text == alone.text or dtype != torch.float32  # 16 bits: near-ties
print(textwrap.fill(text, 76))

# %% [markdown]
# The `assert` says that they are. Now the clock. Everything ran in this process, so all the times lie on one axis: what
# the client saw, and what each layer of the server wrote down.

# %% tags=["hide-input", "nbval-ignore-output"]
pieces = [at for at, piece in events if piece]
way = ch10.way(log, sent, pieces, lines[-1][0])
fig = ch10.way_figure(way)  # drawn by figure(...)
fig

# %% [markdown]
# The picture ends at the fifth token; read it from top to bottom. The **API** parses HTTP and JSON and checks type and
# range of every field it knows, so that nothing behind it has to; a field it does not know is refused. The **template**
# turns messages into one text, the **tokenizer** turns that into ids. Encoded as one, a message that spells `<|im_end|>`
# ends its own turn and may open another, as was reported of
# [llama.cpp](https://github.com/ggml-org/llama.cpp/issues/24382) and
# [vLLM](https://github.com/vllm-project/vllm/pull/31735); transformers prevents it if asked (`sanitize_control_tokens`).
# Here control tokens in a message are text unless the request says `parse_special`, and the template writes its own; in a
# prompt of `/v1/completions`, which its sender has formatted, they count. HTTP and
# forwards run in two threads, so that no stream stands still during a forward; here the request changes over. The
# **scheduler** finds it a [slot](../book/glossary.md#term-slot), which is a place in the batch, and blocks, and from then
# on puts it into the plan of every step. The **engine** runs the forward and draws a token. The
# **[detokeniser](../book/glossary.md#term-detokeniser)** finds the text that is certain, and the stream sends it off.
# Then 3, 4, 5 again, once a token.

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch10.way_table(way))
markdown(ch10.way_text(way))

# %% [markdown]
# ## Layer 5: half a character
#
# The model does not write characters, it writes byte strings. A duck is four bytes in UTF-8, and SmolLM2's vocabulary
# has no token for it (the empty row is a space):

# %% tags=["hide-input", "nbval-check-output"]
duck = [
    tokenizer.token_bytes(i) for i in tokenizer.encode("a 🦆 says 你好")
]
alone_text = [raw.decode(errors="replace") for raw in duck]
table(
    [
        [repr(raw)[2:-1], seen]
        for raw, seen in zip(duck, alone_text, strict=True)
    ],
    ["a token's bytes", "decoded by itself"],
)
markdown("Decoded one by one: " + "".join(alone_text))

# %% [markdown]
# Two short ways come to mind. Turn each token into text as it comes: wrong, as you see. Turn the whole answer into text
# again after each token and send what is new: quadratic in its length, and wrong as well, because the sign `�` that was
# sent for half a character cannot be taken back. The right way holds bytes back until their character is whole.


# %%
def unfinished(raw):
    """Bytes at the end of `raw` whose character is not whole."""
    for back in range(1, min(3, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            return 0  # ASCII
        if byte >= 0xC0:  # a first byte says how long its character is
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < size else 0
    return 0


class Detokeniser:
    """Ids in, certain text out; `finish` gives what is held."""

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
    """Text in; certain text and the stop that was found out."""

    def __init__(self, stops):
        self.stops, self.held = stops, ""

    def feed(self, text):
        self.held += text
        held = self.held
        hits = [s for s in self.stops if s in held]
        # the one that ends first; of several, the longest
        first = lambda s: (held.find(s) + len(s), -len(s))  # noqa: E731
        stop = min(hits, key=first, default=None)
        if stop is not None:
            return held[: held.find(stop)], stop
        begun = [s[:k] for s in self.stops for k in range(1, len(s))]
        waits = max((len(b) for b in begun if held.endswith(b)), default=0)
        sure = len(held) - waits
        self.held = held[sure:]
        return held[:sure], None

    def finish(self):
        return self.held


# %% [markdown]
# Now the test: two thousand answers of random tokens, half of them from beyond ASCII, that end anywhere. The joined pieces
# must equal the text of the whole: by Lumen's stream decoder, by `tokenizer.decode`, and by the `tokenizers` library,
# which is what transformers uses.

# %% tags=["nbval-check-output"]
dice = random.Random(0)
special, spell = tokenizer.special_ids, tokenizer.token_bytes
plain = [i for i in range(tokenizer.vocab_size) if i not in special]
odd = [i for i in plain if max(spell(i)) > 0x7F]
broken = 0
for _ in range(2000):
    ids = [
        dice.choice(odd if dice.random() < 0.5 else plain)
        for _ in range(dice.randint(1, 24))
    ]
    ours, theirs = Detokeniser(spell), tokenizer.stream()
    text = "".join(ours.feed(i) for i in ids) + ours.finish()
    assert text == "".join(map(theirs.feed, ids)) + theirs.finish()
    assert text == tokenizer.decode(ids)
    assert text == tokenizer.backend.decode(ids, skip_special_tokens=True)
    one_by_one = [spell(i).decode(errors="replace") for i in ids]
    broken += text != "".join(one_by_one)
print(f"2000 right; token by token, {broken} of them would be broken")

# %% [markdown]
# That last number is a **negative control**: if the naive decoder passed, the test would be worth nothing. (It is small
# because random halves seldom fit; those of real text do.) The stops get the same treatment, with two short ways. One
# looks for the stop in each chunk. The other looks in the whole text, and has already sent the beginning of the stop when
# it finds it.

# %% tags=["nbval-check-output"]
missed = leaked = stopped = 0
for _ in range(2000):
    stops = [
        "".join(dice.choices("ab", k=dice.randint(2, 4)))
        for _ in range(dice.randint(1, 2))
    ]
    chunks = [
        "".join(dice.choices("abc", k=dice.randint(1, 3))) for _ in range(6)
    ]
    ours, theirs, out, hit = StopHolder(stops), StopMatcher(stops), "", None
    for chunk in chunks:
        got = ours.feed(chunk)
        assert got == theirs.feed(chunk)
        out, hit = out + got[0], got[1]
        if hit:
            break
    else:
        assert out + ours.finish() == "".join(chunks)
    stopped += hit is not None
    in_one = any(s in chunk for s in stops for chunk in chunks)
    missed += hit is not None and not in_one
    seen = ""  # the other short way: send the chunk, then look
    for chunk in chunks:
        before, seen = seen, seen + chunk
        if any(s in seen for s in stops):
            leaked += before != out[: len(before)]
            break
print(f"{stopped} of 2000 texts hold a stop. Looked for in each chunk,")
print(f"{missed} are missed; looked for in the text so far, {leaked} have")
print("sent a part of the stop before it is found")

# %% [markdown]
# Holding back costs latency, but only where text is uncertain: a character waits for its last byte, and of what could
# become a stop at most one letter less than the longest stop waits. [ITL](../book/glossary.md#term-ITL) measured at the
# client has a gap there which the engine never had.
#
# ## Layer 3: the queue
#
# Back to the seconds. A server has $B$ slots, and a request that finds them taken waits in front of the scheduler. With
# everyone asking for $n$ tokens, a full house of $B$ requests costs $B$ [prefills](../book/glossary.md#term-prefill) and
# $n - 1$ full [decode](../book/glossary.md#term-decode) steps, and then $B$ requests are done. So a server whose slots are
# always taken finishes about
#
# $$
# \mu = \frac{B}{B\, t_\text{prefill} + (n - 1)\, t_\text{step}(B)}
# $$
#
# requests a second, however many are asked of it. Then each is inside for the whole of a house, $B/\mu$ seconds. That is a case
# of a law that needs no model of the server at all. The mean number inside, $\bar k$, is the rate at which requests pass times
# the mean time that each stays, $\bar W$ ([Little's law](../book/glossary.md#term-Little-s-law), 1961):
#
# $$
# \bar k = \lambda\, \bar W
# $$

# %% tags=["nbval-ignore-output"]
PROMPT, ANSWER, COUNT = 64, 32, 40
chip = in_passing_thread(hardware.measure)
step = step_times(config, chip, dtype, prompt=PROMPT, answer=ANSWER)
t_prefill, t_full = step(1, 0), step(0, SLOTS)
mu_model = SLOTS / (SLOTS * t_prefill + (ANSWER - 1) * t_full)

# %% tags=["hide-input", "nbval-ignore-output"]
cells = ch10.symbols(SLOTS, PROMPT, ANSWER, t_prefill, t_full)
table(*cells)

# %% [markdown]
# ## Predict: how many a second?
#
# Eight users each send a prompt of 64 tokens, wait for their 32 tokens of answer, and at once ask again: a
# [closed loop](../book/glossary.md#term-closed-loop). How many requests a second does the server finish? (Put the table
# into the formula.)

# %% tags=["predict"]
my_guess = guess(
    "10-saturation",
    "Eight users in turns: finished a second?",
    unit="requests/s",
)

# %% tags=["measure", "nbval-ignore-output"]
extra = {"temperature": 0, "ignore_eos": True}
target = Target(url, "smollm2-135m", extra_body=extra)


def offer(count, rate=None, users=None, seed=1):
    """Send prompts that nobody has sent before: at `rate` a second,
    or from `users` who wait for answers. Times count from the start."""
    lens = [PROMPT] * count, [ANSWER] * count
    text_of = tokenizer.encode, tokenizer.decode
    asked = from_text(plays, *lens, *text_of, seed=seed)
    times = arrivals(count, rate, seed=seed) if rate else None
    records, seconds = in_a_thread(
        lambda: run(target, asked, times, max_concurrency=users)
    )
    assert all(record.ok for record in records)
    return records, seconds


offer(SLOTS, users=SLOTS, seed=9)  # warm-up
log.clear()
closed, closed_seconds = offer(COUNT, users=SLOTS)
computing = sum(e - b for layer, b, e in log if layer == "forward")
clock = ch10.houses(closed, SLOTS)
mu = clock.value

# %% tags=["reveal", "nbval-ignore-output"]
title = f"The server finishes {mu:.2f} requests a second"
reveal(
    guess=my_guess, model=mu_model, measured=[clock.low, mu, clock.high],
    unit="requests/s", what="finished by eight slots", title=title, log=False,
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
stay = statistics.mean(samples(closed, "e2el"))
share = computing / closed_seconds
markdown(ch10.saturation_text(mu_model, clock, share, stay, SLOTS))

# %% [markdown]
# ## Predict: half again too much
#
# Now nobody waits for anybody: an [open loop](../book/glossary.md#term-open-loop). Forty-eight requests come at random
# moments, one and a half times as fast as the server just finished them. How long does the last of them wait for its
# whole answer?

# %% tags=["predict"]
my_guess = guess(
    "10-last",
    "Seconds until the last of 48 has its whole answer?",
    unit="s",
)

# %% tags=["measure", "nbval-ignore-output"]
MANY, LOAD = 48, 1.5


def metrics():
    return httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text


calm, _ = offer(12, rate=0.5 * mu, seed=2)
before = metrics()
busy, _ = offer(MANY, rate=LOAD * mu, seed=3)
after = metrics()
ends = samples(busy, "e2el", intended=True)
shared, _ = ch10.parts(step, SLOTS)  # a: what all share in a step
edges = (ANSWER - 1) * shared
tub = ch10.bathtub(MANY, mu, LOAD * mu, edges)

# %% tags=["reveal", "nbval-ignore-output"]
title = f"The last of {MANY} has its answer after {ends[-1]:.1f} s"
reveal(
    guess=my_guess, model=tub, measured=ends[-3:], unit="s", log=False,
    what="the last three requests, to their end", title=title,
)  # fmt: skip

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch10.bathtub_text(MANY, clock, LOAD * mu, edges, ends))

# %% tags=["reveal", "nbval-ignore-output"]
ch10.crowd_figure(busy, calm, LOAD)

# %% [markdown]
# The model is a bathtub. Requests flow in at $\lambda$, and out at $\mu$: the last of $R$ comes at $R/\lambda$, and a house
# that is always full has answered all of them at $R/\mu$. But first it must fill, and at the end it drains. What a request
# costs by itself, its prefill and its part of every step, is paid once, however full the house is. But a step of $k$
# sequences takes $a + b\,k$ seconds, and $a$, for reading the weights, is then shared by fewer. The house is half full on
# average while it fills and while it drains, for $n - 1$ steps each at most, so about $n - 1$ steps are too many:
#
# $$
# \text{wait of the last} \approx
#   \underbrace{\frac{R}{\mu} - \frac{R}{\lambda}}_{\text{at the door}}
#   + \underbrace{(n-1)\, a}_{\text{fill and drain}}
# $$
#
# Whoever is not yet answered when the last one comes leaves within that wait, at $\mu$: so they are $\mu$ times the wait.
# With twice as many requests at the same rate the part at the door is twice as long. So the latency of an overloaded
# server is no property of the server. It says how long the overload has lasted.
#
# [TPOT](../book/glossary.md#term-TPOT) is another matter. Once inside, a request shares its steps with seven others at
# most. A full house takes $B/\mu$ and writes $n - 1$ tokens in it for each, so TPOT is capped at about $B / (\mu\,(n-1))$,
# whatever stands outside the door. [TTFT](../book/glossary.md#term-TTFT) has no cap. The server itself can say where it
# went: its scheduler notes when a request came and when it was first run.


# %%
def histograms(text):
    """{name: (sum, count, [(upper edge, how many up to it), …])}."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            total, edges = {}, []
            for s in family.samples:
                if "le" in s.labels:
                    edges.append((float(s.labels["le"]), s.value))
                else:
                    total[s.name.rsplit("_", 1)[1]] = s.value
            name = family.name.removeprefix("lumen:")
            found[name] = total["sum"], total["count"], edges
    return found


def between(name):
    """What happened between `before` and `after`: counters only grow."""
    (s0, c0, e0) = histograms(before)[name]
    (s1, c1, e1) = histograms(after)[name]
    edges = zip(e1, e0, strict=True)
    return (
        s1 - s0,
        c1 - c0,
        [(edge, n1 - n0) for (edge, n1), (_, n0) in edges],
    )


queue = between("request_queue_time_seconds")[0]
inside = between("request_prefill_time_seconds")[0]
queued = queue / (queue + inside)  # of TTFT, over all 48

# %% tags=["hide-input", "nbval-ignore-output"]
cells = queued, busy, clock, SLOTS, ANSWER
callout("takeaway", ch10.crowd_takeaway(*cells))

# %% [markdown]
# ## Below saturation: where the knee comes from
#
# The bathtub has no queue below $\mu$. Real arrivals have one: they come at random, in crowds and with gaps. How many are
# inside? Of a step of $a + b\,k$ seconds, $k$ share the $a$. Every request also brings work that nobody shares with it: its
# prefill and its $n - 1$ times $b$. Call that
# $w = t_\text{prefill} + (n-1)\,b$. Of each second $\lambda w$ goes into such work, so the shared part is stretched by
# $1/(1 - \lambda w)$, and Little's law gives
#
# $$
# \bar W \approx \frac{(n-1)\, a}{1 - \lambda w}, \qquad \bar k = \lambda \bar W
# $$
#
# That is a mean. A random crowd of mean $\bar k$ has a spread of about $\sqrt{\bar k}$, and in one moment out of ten it is
# larger than $\bar k + 1.28\sqrt{\bar k}$. When *that* reaches $B$, one newcomer in ten finds no slot: by then the p90
# of TTFT has left its floor. That is the [knee](../book/glossary.md#term-knee), and it comes before $\bar k = B$, which in
# this formula is $\lambda = \mu$ (put it in).

# %% tags=["hide-input", "nbval-ignore-output"]
bend = ch10.knee(step, ANSWER, SLOTS)
ch10.knee_figure(bend)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch10.knee_text(bend))

# %% [markdown]
# ## The p99 on the dashboard
#
# A server does not keep the latency of every request. It counts them in buckets, and Prometheus, which collects such
# counts, estimates the [percentile](../book/glossary.md#term-percentile): find the bucket in which it lies, and go into it
# as far as the count says, as if the values lay there evenly.


# %%
def histogram_quantile(q, buckets):
    """Prometheus's estimate from cumulative (upper edge, count) pairs."""
    rank, low, below = q * buckets[-1][1], 0.0, 0.0
    for edge, count in buckets:
        if count >= rank:
            part = (rank - below) / (count - below)
            return (
                low if edge == float("inf") else low + (edge - low) * part
            )
        low, below = edge, count


# %% tags=["hide-input", "nbval-ignore-output"]
_, counted, buckets = between("time_to_first_token_seconds")
assert counted == MANY
seen = samples(busy, "ttft")
rows, told, room = ch10.dashboard(seen, buckets, histogram_quantile)
table(*rows)
markdown(told)

# %% [markdown]
# ## Layer 1: a client who leaves
#
# People close tabs. Only the layer that holds the connection can know it. If it does not tell the engine, the engine
# writes to the end for an empty room. Here somebody asks for 400 tokens, reads five pieces and hangs up.

# %% tags=["nbval-ignore-output"]
pool = engine.store.pool


def in_use():
    return pool.num_blocks - pool.num_free - prefix.num_evictable()


story = {"model": "smollm2-135m", "prompt": plays[:400], "max_tokens": 400}
story |= {"stream": True, "ignore_eos": True}
where = f"{url}/v1/completions"
with httpx.Client(trust_env=False, timeout=60) as client:
    with client.stream("POST", where, json=story) as answer:
        got = [line for line in islice(answer.iter_lines(), 10) if line]
        held, running = in_use(), engine.num_running
    gone = time.monotonic()
while engine.num_running and time.monotonic() - gone < 5:
    time.sleep(0.001)
freed, left = time.monotonic() - gone, in_use()
assert left == 0 and engine.num_running == 0
print(f"while it ran: {held} blocks in use, {running} running")
print(f"{milliseconds(freed)} after the hang-up: {left} blocks in use")

# %% [markdown]
# Nobody read on, and nearly four hundred steps were saved, with a slot and its blocks. The rule: *every way out of a request frees
# its blocks*: its end, a stop, an error, a client that left, a client that reads nothing. A handler that does not stream
# needs its own ear on the connection, [which is easily forgotten](https://github.com/ROCm/ATOM/pull/1562); and with
# prefill and decode on two machines, [both must hear of it](https://github.com/vllm-project/vllm/issues/50425).
#
# ## Around the server
#
# Users who are refused come again. What does that do?

# %% tags=["hide-input"]
markdown(ch10.retry_text())

# %% [markdown]
# More users than one server carries need **replicas**, and then it matters who is sent where. The same engine, simulated,
# at 80 % of its saturation on each replica; requests are dealt by lot, or to the replicas in turns:

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch10.replicas(step, ANSWER, SLOTS))

# %% [markdown]
# In turns each replica sees arrivals that are more even than chance, and the knee moves to the right. (Here all answers
# are equally long. Where they are not, a router that knows who is inside can do better, and one that knows who has
# the prompt's prefix [cached](06_prefix_cache.ipynb) can save prefills.) A router must also know who is **ready**: a process
# that still loads weights is alive and must get no requests. `lumen serve` answers nobody until the model is loaded; then
# `/health` says 200, and 503 once the engine's thread has failed or the server was told to stop: it then takes nobody new
# and finishes who is inside.
#
# ## To the knee
#
# Is this server any good? `benchmarks/load_test.py` sends the same load, with the same prompts, lengths and arrival times,
# to all servers that are installed, on one machine, in three rounds that take turns. What is due at the beginning,
# while the house fills, or at the very end is not looked at. A server **carries** a load if nine requests in ten keep
# both limits. Move the limits, and see who carries what.

# %% tags=["hide-input", "nbval-ignore-output"]
short = step_times(
    config, chip, dtype, prompt=ch10.SENT, answer=ch10.ANSWER
)
engines, source = ch10.engines(short, SLOTS)
Knee(
    engines, *ch10.LIMITS,
    lead=f"Prompts of {ch10.SENT} tokens, answers of {ch10.ANSWER}; {source}.",
)  # fmt: skip

# %% tags=["hide-input", "nbval-ignore-output"]
carries = ch10.engines_table(engines)
table(*carries, stack=True)
markdown(ch10.engines_text(engines, source))

# %% [markdown]
# On a GPU with large models the order may be any other. What carries over is the method: same prompts, same arrivals, open
# loop, only the steady part, the percentile of your promise, and your own limits.
#
# ## Where it loses
#
# A server takes a toll of every token: scheduling, detokenising, JSON, HTTP, a change of threads. Here one stream of 64
# tokens, each gap at the client beside the forward that lies in it.

# %% tags=["measure", "nbval-ignore-output"]
log.clear()
solo = story | {"prompt": plays[900:1200], "max_tokens": 64}
with (
    httpx.Client(trust_env=False, timeout=60) as client,
    client.stream("POST", where, json=solo) as got,
):
    came = [
        time.monotonic() for line in got.iter_lines() if '"text":"' in line
    ]
forwards = [e - b for layer, b, e in log if layer == "forward"][2:]
gaps = [b - a for a, b in pairwise(came[1:])]
same = min(len(gaps), len(forwards))
toll = bench.Estimate.ratio(
    bench.Timing(tuple(gaps[:same])), bench.Timing(tuple(forwards[:same]))
)

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch10.toll_table(toll))

# %% [markdown]
# The toll is per token and stream, the model's time per step: a slower model makes its share vanish, a faster chip makes
# it grow. That is why vLLM, for one, gives HTTP, tokenizing and streaming
# [a process of their own](https://docs.vllm.ai/en/stable/design/arch_overview/).
#
# And a second negative control, on the measuring side. The eight users above who took turns never let the server rest.
# What did they think of it?

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch10.loops_text(closed, busy))

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | a closed loop | full throughput, and no queue in sight | both loops on one server, in the control just above |
# | a short test | the tail of a queue that had no time to grow, or that already drains | [steady part only, three rounds](#to-the-knee), and their spread |
# | equal prompts | the [prefix cache](../book/glossary.md#term-prefix-cache) answers; TTFT is that of a hit | `offer` cuts every prompt from another place |
#
# ## Play
#
# The lab offers the server above what you like. Below its capacity the bars stay flat, beyond it they climb; shorter
# answers raise the capacity. In Jupyter and Colab the server still runs; the page shows a run that was recorded beyond
# capacity.

# %% tags=["nbval-ignore-output"]
lab = load_lab(
    url, tokenizer, plays, rate=round(4 * mu, 2), count=32, answer=16
)

# %% [markdown]
# ## In production
#
# The same five layers stand in all of them (flags as of November 2026):

# %% tags=["hide-input"]
production_table(ch10.PRODUCTION, headers=ch10.PRODUCTION_HEADERS)

# %% [markdown]
# Where the last column has no limit on the queue, put one in front. `lumen serve --max-queue 256` (its default) answers
# 429, *too many requests*, beyond that, which is kinder than a place in a line that does not move.
#
# What such a server promises to people who do not know each other, and what it does not (no TLS, one key, a prefix cache
# that tells who asked the same), stands in [SECURITY.md](https://github.com/lumen-course/lumen/blob/main/SECURITY.md).
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
rates, lasts = (mu_model, clock), (tub, ends[-1], MANY)
checks = broken, stopped, missed, leaked
markdown(ch10.recap(way, checks, rates, lasts, queued, bend, room, carries))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("10")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/10_serving.ipynb) ([solutions](../solutions/10_serving.ipynb)). Checks answer at once
# and say what went wrong.

# %% tags=["hide-input"]
markdown(lumen.grading.table("10"))

# %% [markdown]
# ## Further reading
#
# - [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (Yu and others, 2022): read it for the line between the
#   serving system and the engine, and for what moves when scheduling is done per iteration.
# - [vLLM's architecture overview](https://docs.vllm.ai/en/stable/design/arch_overview/): read it for how the five layers
#   are spread over processes, and who talks to whom.
# - [Server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html) in the HTML standard: read it,
#   above all the part on parsing, before you write the parser of exercise 2.
# - [Prometheus on histograms and summaries](https://prometheus.io/docs/practices/histograms/): read it for errors of
#   quantile estimation, with pictures, and for why quantiles do not aggregate.
# - [How NOT to measure latency](https://www.infoq.com/presentations/latency-response-time/) (Gil Tene, 2015): read it (or
#   rather watch it) for [coordinated omission](../book/glossary.md#term-coordinated-omission) by the person who named it.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(
    session,
    evidence=["load_test", "server_overhead"],
    chip=chip,
    notes=[
        "prompts cut from Shakespeare, seeds 1 to 3",
        "client, server and model in one process",
    ],
)
