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
# # 1 · Prefill and decode

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/01_prefill_decode.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/01_prefill_decode.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/01_prefill_decode.ipynb)
#
# CPU is enough · read 25 min · run 1 min · practise 75 min · here: [exercises](../exercises/01_prefill_decode.ipynb), [solutions](../solutions/01_prefill_decode.ipynb)
#
# </div>

# %% [markdown]
# Below is a paragraph about light, and a question about it: some two hundred tokens with the chat template around them.
# SmolLM2-135M reads all of them, then writes its answer one token at a time. Reader and writer are the same 135 million
# weights. A token is a token. And yet the clock treats the two very differently:
# **why does one token of the answer cost as much as a whole sentence of the prompt?**
#
# By the end you can
#
# - write the generation loop, and count its forward passes without running it;
# - predict the time per token of any model on any chip from two numbers, in your head;
# - say how many tokens of prompt one token of answer is worth, on your machine and on a GPU you have never touched;
# - name the levers that make inference faster, and for each the milliseconds that it can move.
#
# Needs: PyTorch, and having called an LLM once. Nothing else: this is where the course begins.

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

session = lumen.setup("01_prefill_decode")

# %%
import importlib.util
import textwrap
from itertools import accumulate, pairwise

import torch

from lumen import bench, cost, grading, hardware
from lumen.explore import (
    KVStepper,
    Quiz,
    callout,
    figure,
    generate_lab,
    label_line,
    markdown,
    palette,
    reveal,
    table,
)
from lumen.explore.lab import is_static, milliseconds
from lumen.explore.theme import log_axis

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m")
config = model.config

# %% [markdown]
# ## One prompt, one answer, one clock

# %%
LIGHT = """Sunlight looks white, but it holds all colours. On its way through the air it meets molecules that are much
smaller than the waves of light. They scatter short waves far more than long ones: blue light, with waves of about 450
nanometres, is scattered more than four times as much as red light of about 650 nanometres. So blue reaches our eyes
from every part of the sky, while red travels on nearly straight. In the evening the light comes in at a low angle and
crosses much more air. By then most of the blue has been scattered out of the beam, and what is left looks orange and
red. Clouds are white because their drops are larger than the waves and scatter all colours alike.""".replace(
    "\n", " "
)

prompt = tokenizer.apply_chat([{"role": "user", "content": LIGHT + "\n\nWhy is the evening sky red?"}])
answer = lumen.generate(model, [prompt], 33, tokenizer=tokenizer)[0]
print(f"{len(prompt)} tokens in: {prompt[:6]} …\n{len(answer.tokens)} tokens out: {answer.tokens[:6]} …\n")
print(textwrap.fill(answer.text, 72))

# %% [markdown]
# It is a small model; here we read it for its clock. `lumen.bench.generation` runs the same sizes a few times and keeps
# two times apart: from the start to the first token, and from each token to the next.

# %% tags=["measure", "nbval-ignore-output"]
timed = bench.generation(model, len(prompt), new_tokens=17, repeats=3)
print("to the first token:", timed.prefill)
print("from token to token:", timed.decode)

# %% tags=["hide-input", "nbval-ignore-output"]
per_prompt_token = timed.ttft / len(prompt)
worth = timed.tpot / per_prompt_token  # tokens of prompt that cost as much as one token of answer
markdown(
    f"The {len(prompt)} tokens of the prompt took **{milliseconds(timed.ttft)}**, which is "
    f"{milliseconds(per_prompt_token)} each. A token of the answer took **{milliseconds(timed.tpot)}**. "
    f"On this machine one token of the answer costs as much as **{worth:.0f} tokens of the prompt**. "
    "Keep that figure: the rest of the page explains it, and then moves it."
)

# %% tags=["hide-input", "nbval-ignore-output"]
steps = timed.decode.samples[-16:]
when = [1e3 * t for t in accumulate([timed.ttft, *steps])]
known = len(prompt) + 1
fig = figure(
    f"{len(prompt)} tokens are read in {milliseconds(timed.ttft)}; then each one takes {milliseconds(timed.tpot)}",
    x="time (ms)",
    y="tokens the model has been through",
)
fig.add_scatter(x=[0, when[0]], y=[0, known - 1], mode="lines", line={"color": palette.blue, "width": 4})
fig.add_scatter(
    x=when,
    y=list(range(known - 1, known + 16)),
    mode="lines+markers",
    line={"color": palette.orange, "shape": "hv"},
)
label_line(fig, when[0] / 2, known / 2, "prefill", palette.blue, anchor="left", shift=-14)
label_line(fig, when[-1], known + 15, "decode", palette.orange, shift=14)
fig

# %% [markdown]
# The steep part is called [prefill](../book/glossary.md#term-prefill), the flat staircase
# [decode](../book/glossary.md#term-decode). Time to first token is [TTFT](../book/glossary.md#term-TTFT), the mean gap
# after it [TPOT](../book/glossary.md#term-TPOT). So what does the program do differently on the two slopes?
#
# ## The loop, by hand
#
# A language model is one function. Give it tokens, and it returns for every position a score for each entry of its
# vocabulary: what might come next. To generate, take the scores after the last token, pick the best, append it, and
# start again.

# %%
device = session.device


def greedy(model, prompt, n):
    """`n` tokens, each the most likely next one. Every pass runs all text so far."""
    tokens = list(prompt)
    for _ in range(n):
        logits = model(torch.tensor([tokens], device=device))  # (1, T, V)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


# %% [markdown]
# That is all of it: n tokens, n forward passes, and the next pass cannot start before the last one has ended, because
# its input is the last one's output. But it is wasteful. Pass 20 runs the whole prompt again to get one new row.
#
# A layer never needs the old rows again, only their keys and values ([chapter 4](04_kv_cache.ipynb) shows why). Keep
# those in a cache, and each pass is given only what is new:


# %%
def greedy_cached(model, prompt, n):
    """The same tokens: the first pass gets the prompt, every later one a token."""
    cache = lumen.DynamicCache.for_model(model, rows=1)
    answer, new = [], list(prompt)
    while len(answer) < n:
        given = torch.tensor([new], device=device)
        hidden = model.hidden(given, None, cache)  # (1, T) -> (1, T, D)
        scores = model.head(hidden[:, -1])  # the last row alone: (1, D) -> (1, V)
        token = int(scores.argmax())
        answer.append(token)
        new = [token]
    return answer


# %% [markdown]
# Does it give the same answer as the first loop, as `lumen.generate`, and as Hugging Face transformers on the same
# weights? Equality is checked in fp32: two correct programs add in different orders, and in 16 bits a near-tie between
# two tokens may fall either way.

# %% tags=["nbval-check-output"]
exact = model if session.dtype == torch.float32 else lumen.load("smollm2-135m", dtype=torch.float32).model
question = tokenizer.apply_chat([{"role": "user", "content": "What is the capital of France?"}])
counted = {"no cache": grading.CountedModel(exact), "cache": grading.CountedModel(exact)}

by_hand = greedy(counted["no cache"], question, 24)
cached = greedy_cached(counted["cache"], question, 24)
ours = lumen.generate(exact, [question], 24, eos_ids=())[0].tokens
assert by_hand == cached == ours

best = exact(torch.tensor([question + ours], device=device))[0, len(question) - 1 : -1].topk(2).values
assert float((best[:, 0] - best[:, 1]).min()) > 0.01  # no near-tie on the way: equality is no luck
for name, count in counted.items():
    shapes = ", ".join(f"{b} × {t}" for b, t in count.shapes[:4])
    print(f"{name:8}: {count.passes} passes, {count.rows:,} rows; the first passes: {shapes}")
print("same 24 tokens from both loops and lumen.generate:", by_hand == cached == ours)

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("transformers"):
    from transformers.utils import logging

    from lumen.io.convert import hf_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    theirs = hf_model("smollm2-135m", device)  # their code, the same weights
    ids = torch.tensor([question], device=device)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    made = theirs.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(question) :].tolist()
    assert made == ours
    print("same 24 tokens from Hugging Face transformers:", made == ours)
    del theirs
else:
    print("transformers is not installed here; the book's stored run made this comparison.")

# %% tags=["hide-input", "nbval-check-output"]
hidden_tokens = question.count(2)
callout(
    "trap",
    "**Trap.** Leave out `attention_mask`, and transformers guesses one: it hides every token that equals "
    "`pad_token_id`, unless that id also ends the answer. This model's pad id is 2, and the chat template itself "
    f"writes id 2 after every message: {hidden_tokens} of the {len(question)} prompt tokens would be hidden. A mask of "
    "ones says what is meant.",
)

# %% [markdown]
# Look at the shapes of the passes. The loop has no prefill phase and no decode phase. There is one forward, called once
# with all rows of the prompt and ever after with one. **Prefill and decode are two shapes of the same call**, and the whole puzzle is
# now this: why does a row cost so much when it comes alone, and so little in company?
#
# ## The same weights, another number of rows
#
# A layer is four matrices and a little glue. Whatever number of rows comes in, each is multiplied by the same matrices:
# with many rows that is a matrix-matrix product (GEMM), with one row a matrix-vector product (GEMV).

# %% tags=["hide-input", "nbval-ignore-output"]
size = cost.bytes_per_value(session.dtype)
rows = [
    [
        m.name,
        f"{m.inputs} × {m.outputs}",
        m.count,
        m.weights * size / 1e6,
        2 * m.weights / 1e6,
        2 * m.weights * len(prompt) / 1e9,
    ]
    for m in cost.matmuls(config)
]
W, N = cost.weight_bytes(config, session.dtype), cost.parameters(config).total
rows.append(
    [
        "all",
        "",
        None,
        W / 1e6,
        cost.flops_per_token(config).total / 1e6,
        cost.flops_per_token(config).total * len(prompt) / 1e9,
    ]
)
table(
    rows,
    ["matrix", "inputs × outputs", "layers", "MB to read", "MFLOP, 1 row", f"GFLOP, {len(prompt)} rows"],
    align="llrrrr",
)

# %% [markdown]
# Read the columns, not the rows. The arithmetic grows with the number of rows. **The bytes do not.** Each weight has to
# come from memory once, whether it then meets one row or two hundred.
#
# A weight that meets a row is one multiplication and one addition. So a token costs about $2N$ operations, a prompt of
# $P$ tokens about $2NP$, and a pass over $T$ rows takes at least
#
# $$
# \text{time}(T) \;\ge\; \max\!\left(\frac{W}{\text{bandwidth}},\; \frac{2\,N\,T}{\text{peak}}\right)
# $$
#
# The first term reads the weights, the second multiplies by them. On a chip that does both at once, the slower one is
# what you wait for. Here are the symbols as numbers:

# %% tags=["hide-input", "nbval-ignore-output"]
chip = hardware.measure(progress=False)
peak, read_ms, row_ms = chip.peak(session.dtype), 1e3 * W / chip.bandwidth, 2e3 * N / chip.peak(session.dtype)
meet = read_ms / row_ms  # rows at which both terms are equal
table(
    [
        ["$N$", "parameters of SmolLM2", f"{N / 1e6:.1f} million"],
        [
            "$2N$",
            f"operations per token (exact count: {cost.flops_per_token(config).total / 1e6:.0f} million)",
            f"{2 * N / 1e6:.0f} million",
        ],
        ["$W$", f"bytes that one pass reads, {8 * size:.0f} bits a weight", f"{W / 1e6:.0f} MB"],
        ["bandwidth", f"measured, {chip.name}", f"{chip.bandwidth / 1e9:.3g} GB/s"],
        ["peak", "measured, large matrices", f"{peak / 1e9:,.0f} GFLOP/s"],
        ["$W$ / bandwidth", "to read the weights once", f"{read_ms:.3g} ms"],
        ["$2N$ / peak", "arithmetic of one row", f"{row_ms:.3g} ms"],
        ["rows where they meet", "$W$ · peak / ($2N$ · bandwidth)", f"{meet:.0f}"],
    ],
    ["symbol", "what it is", "here"],
    align="llr",
)

# %% [markdown]
# ## Predict: sixteen rows instead of one
#
# One pass with 1 row, one pass with 16 rows: sixteen times the arithmetic. How many times as long does the second take?
# Write your number before you run the next cell.

# %% tags=["predict"]
my_guess = 16.0  # times as long

# %% tags=["measure", "nbval-ignore-output"]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
tokens = torch.randint(config.vocab_size, (1, 512), generator=torch.Generator().manual_seed(0)).to(device)


def one_pass(count):
    return lambda: model.head(model.hidden(tokens[:, :count])[:, -1])


passes = bench.compare({count: one_pass(count) for count in ROWS}, repeats=3, budget_s=12)
ms = {count: 1e3 * timing.median for count, timing in passes.items()}

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
forecast = {
    count: 1e3 * cost.predict_prefill(config, chip, count, 1, session.dtype).seconds for count in ROWS
}
ratio = ms[16] / ms[1]
reveal(
    guess=my_guess,
    model=forecast[16] / forecast[1],
    measured=[a / b for a, b in zip(passes[16].samples, passes[1].samples, strict=True)],
    unit="×",
    what="time of 16 rows against 1",
    title=f"Sixteen times the work takes {ratio:.2g} times as long",
)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"512 times the work takes {ms[512] / ms[1]:.0f} times as long",
    x="rows in one pass (tokens)",
    y="time of the pass (ms)",
    height=440,
    log_y=True,
)
log_axis(fig, "x", ROWS)
fig.add_scatter(x=ROWS, y=[read_ms] * len(ROWS), mode="lines", line={"color": palette.blue, "dash": "dash"})
fig.add_scatter(
    x=ROWS, y=[row_ms * r for r in ROWS], mode="lines", line={"color": palette.green, "dash": "dash"}
)
fig.add_scatter(x=ROWS, y=list(ms.values()), mode="lines+markers", line_color=palette.orange)
label_line(fig, 512, read_ms, "read the weights once", palette.blue, shift=-12)
label_line(fig, 32, row_ms * 32, "arithmetic at peak", palette.green, anchor="left", shift=-15)
label_line(fig, 1, ms[1], "measured", palette.orange, anchor="left", shift=28)
fig

# %% tags=["hide-input", "nbval-ignore-output"]
bounded = all(ms[r] >= max(read_ms, row_ms * r) for r in ROWS)
nearly_free = next((r for r, more in pairwise(ROWS) if ms[more] > 2 * ms[1]), ROWS[-1])
table(
    [[r, ms[r], ms[r] / r, ms[1] / (ms[r] / r)] for r in (1, 4, 16, 64, 256, 512)],
    ["rows", "ms a pass", "ms a row", "one row alone costs as much as … of these"],
)
markdown(
    f"Up to **{nearly_free} rows** a pass takes less than twice as long as with one. There the pass is busy with "
    "reading, and further rows ride along. "
    + ("Then the arithmetic takes over, and the line turns upwards. " if nearly_free < 512 else "")
    + f"In a pass of 512, a row costs {ms[512] / 512:.2g} ms; alone it costs {milliseconds(ms[1] / 1e3)}, "
    f"**{ms[1] / (ms[512] / 512):.0f} times** as much. "
    "(A dent in the measured line is a place where the library under the product changes its method with the number of "
    "rows. "
    + (
        "The line lies above both dashed ones because they are bounds: norms, attention, and the cost of starting each "
        "operator are not in them.)"
        if bounded
        else "The dashed lines are bounds, yet the measured one dips below them somewhere: the rates that they are drawn "
        "with were measured in another minute, and on a shared machine no two minutes are alike.)"
    )
)

# %% [markdown]
# That is the answer. **A token of the prompt shares its read of the weights with the whole prompt. A token of the answer
# pays for a read of its own**, because the token after it is not known yet, and there is nobody to share with.
#
# Where the two dashed lines meet depends on the chip alone, not on the model: $N$ cancels. Per 2-byte weight the chip
# could do $2 \times$ peak / bandwidth operations while it waits, and each row asks for two.

# %% tags=["hide-input", "nbval-check-output"]
a100, h100 = hardware.CHIPS["A100 80GB SXM"], hardware.CHIPS["H100 SXM"]
table(
    [
        [c.name, c.peak("bf16") / 1e12, c.bandwidth / 1e12, round(hardware.ridge(c, "bf16"))]
        for c in (a100, h100, hardware.CHIPS["L4"], hardware.CHIPS["MI300X"])
    ],
    ["chip (datasheet)", "TFLOP/s, bf16", "TB/s", "rows whose arithmetic takes as long as the read"],
)

# %% tags=["hide-input", "nbval-ignore-output"]
callout(
    "takeaway",
    "**Takeaway.** How many tokens of a long prompt one token of the answer is worth is peak × bytes per weight / "
    f"(2 × bandwidth). That is a property of the chip: {meet:.0f} for this one at {8 * size:.0f} bits, "
    f"{hardware.ridge(a100, 'bf16'):.0f} for an A100 and {hardware.ridge(h100, 'bf16'):.0f} for an H100 at 16 bits. "
    f"Measured here: {ms[1] / (ms[512] / 512):.0f}. What a pass pays once, whatever its rows, such as starting its "
    "operators, makes it larger, and a step that does not reach the full bandwidth does, too. "
    "[Chapter 2](02_roofline.ipynb) calls peak / bandwidth the ridge.",
)

# %% [markdown]
# ## How fast could it be?
#
# If a decode step is one read of the weights, its time has a floor that needs no benchmark: bytes per step over
# bandwidth. The step also reads the cache of all earlier tokens, which is small here. It is the first check to make of
# any speed you are shown.

# %% tags=["hide-input", "nbval-ignore-output"]
context = len(prompt) + 8
step = cost.step_bytes(config, 1, context, session.dtype)
floor = (step.weights + step.cache_read) / chip.bandwidth
forecast_step = cost.predict_decode(config, chip, context, 1, session.dtype)
seven = 7e9 * 2 / 2e12
table(
    [
        ["bytes of weights", f"{step.weights / 1e6:.0f}\u00a0MB"],
        [f"bytes of cache, {context} tokens", f"{step.cache_read / 1e6:.1f}\u00a0MB"],
        ["floor: bytes / bandwidth", f"{1e3 * floor:.3g}\u00a0ms"],
        [
            "forecast of the cost model: the floor, and everything else",
            milliseconds(forecast_step.seconds).replace(" ", "\u00a0"),
        ],
        ["measured", milliseconds(timed.tpot).replace(" ", "\u00a0")],
    ],
    ["one token of SmolLM2's answer", "here"],
    align="lr",
)
markdown(
    f"The step takes {timed.tpot / floor:.1f} times its floor: {floor / timed.tpot:.0%} of the time is reading that "
    "no program could avoid while the weights have this size. The same sum for a model that you have not got: "
    f"7 billion parameters in 16 bits on an A100 (2 TB/s) is 14 GB / 2 TB/s = **{1e3 * seven:.1f} ms**, at most "
    f"{1 / seven:.0f} tokens per second for one user, whoever writes the kernels."
)

# %% [markdown]
# ## Predict: a prompt sixteen times as long
#
# Same model, same answer, but the prompt has 512 tokens instead of 32. TTFT will grow. By what factor will **TPOT**
# grow?

# %% tags=["predict"]
my_tpot_guess = 4.0  # times

# %% tags=["measure", "nbval-ignore-output"]
short = bench.generation(model, 32, new_tokens=9, repeats=3)
long = bench.generation(model, 512, new_tokens=9, repeats=3)

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
expected = [cost.predict_decode(config, chip, p + 5, 1, session.dtype).seconds for p in (32, 512)]
middle = short.decode.median
reveal(
    guess=my_tpot_guess,
    model=expected[1] / expected[0],
    measured=[s / middle for s in long.decode.samples[:12]],
    unit="×",
    what="TPOT, 512 tokens against 32",
    title=f"TTFT is {long.ttft / short.ttft:.1f} times as long, TPOT {long.tpot / short.tpot:.2f} times",
)

# %% tags=["hide-input", "nbval-ignore-output"]
extra = cost.kv_bytes(config, 480, 1, session.dtype)
grown = long.tpot / short.tpot
markdown(
    f"The step reads the same {step.weights / 1e6:.0f} MB of weights as before. The 480 more tokens of context add "
    f"{extra / 1e6:.0f} MB of cache, {extra / step.weights:.0%}. "
    + f"The clock says {grown - 1:+.0%}"
    + (
        ". So a chat stays about as quick at its tenth message as at its first. "
        if grown < 1.3
        else ", more than these bytes explain. Look at the spread before you believe it: another program may have run "
        "beside this one. "
    )
    + f"It does not last for ever: at {step.weights / cost.kv_bytes_per_token(config, session.dtype):,.0f} tokens of "
    "context the cache would weigh as much as the weights."
)

# %% [markdown]
# ## Three levers, and a fourth
#
# So far we have explained the time. Now we want less of it. Everything in this course pulls one of four levers, and the
# cost model can say beforehand how far each of them reaches on this machine, for one token of this answer.

# %% tags=["hide-input", "nbval-ignore-output"]
now = 1e3 * forecast_step.seconds
read = 1e3 * (step.weights + step.cache_read) / chip.bandwidth
small = 1e3 * (cost.weight_bytes(config, "q4_0") + step.cache_read) / chip.bandwidth
eight = 1e3 * cost.predict_decode(config, chip, context, 8, session.dtype).seconds / 8
overhead = 1e3 * forecast_step.parts["overhead"]
again = 1e3 * cost.predict_prefill(config, chip, context, 1, session.dtype).seconds
levers = {
    "read fewer bytes": (
        "4.5 bits a weight in place of " + f"{8 * size:.0f}",
        read - small,
        "12, 13, 17–20, 26",
    ),
    "more work per byte": ("8 users in one pass, per token", now - eight, "8, 9, 15, 16"),
    "less overhead": (
        f"all of {cost.operators(config)} operator starts",
        min(overhead, now - read),
        "21, 22",
    ),
}
table(
    [
        [name, what, f"{saved:.3g} of {now:.3g} ms", f"{saved / now:.0%}", where]
        for name, (what, saved, where) in levers.items()
    ]
    + [
        [
            "no work twice",
            "no cache: run all tokens again",
            f"{milliseconds((again - now) / 1e3)} saved already",
            "–",
            "4–7",
        ]
    ],
    ["lever", "what is pulled, as an example", "could save per token", "share", "chapters"],
    align="llrrl",
)
best_lever = max(levers, key=lambda name: levers[name][1])
markdown(
    f"Of one predicted step of {now:.3g} ms, {read:.3g} ms is reading and {overhead:.3g} ms goes into starting "
    "operators"
    + (", which a GPU overlaps with the work of the last ones. " if chip.asynchronous else ". ")
    + f"On this machine the longest single reach is *{best_lever}*. The savings are what a perfect implementation would "
    "get, and they do not add up: bytes that are not read cannot be shared. Each chapter measures what is left of its "
    "promise."
)

# %% [markdown]
# ## Where it loses
#
# "Inference is bound by bandwidth" is said of decode, and decode is not always what you wait for. An answer of $n$ tokens
# takes TTFT + TPOT · $(n - 1)$: the first token comes out of the prefill. How much of the wait is decode?

# %% tags=["hide-input", "nbval-ignore-output"]
lengths = [1, 2, 3, 5, 9, 17, 33, 65, 129, 257]
fig = figure(
    f"Behind 512 tokens, up to {1 + long.ttft / long.tpot:.0f} tokens are mostly prefill",
    x="tokens of answer",
    y="share of the wait spent in decode (%)",
)
log_axis(fig, "x", [1, 2, 5, 10, 20, 50, 100, 200])
for run, color, name in ((short, palette.orange, "prompt of 32"), (long, palette.blue, "prompt of 512")):
    share = [100 * (1 - run.ttft / cost.end_to_end(run.ttft, run.tpot, n)) for n in lengths]
    fig.add_scatter(x=lengths, y=share, mode="lines+markers", line_color=color)
    label_line(fig, lengths[3], share[3], name, color, anchor="left", shift=-12)
fig.update_yaxes(range=[-5, 105])
fig

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    "A classifier reads 512 tokens and says one word: **0 %** decode. A smaller weight format, a compiler for the decode "
    f"step, a drafter: each would save nothing of its {milliseconds(long.ttft)}. Prefill and decode weigh the same when "
    f"the answer has 1 + TTFT / TPOT tokens, here {1 + short.ttft / short.tpot:.0f} behind the short prompt and "
    f"{1 + long.ttft / long.tpot:.0f} behind the long one. Before you choose a technique, find out on which side of that "
    "number your traffic is."
)

# %% [markdown]
# And a negative control. A common benchmark divides the whole latency by the number of tokens and calls it TPOT, so the
# first token's prefill is counted as decode. If that were right, the result would hardly depend on the prompt, because
# the bytes of a step hardly do.

# %% tags=["hide-input", "nbval-ignore-output"]
wrong = {run.prompt_len: cost.end_to_end(run.ttft, run.tpot, 9) / 9 for run in (short, long)}
table(
    [
        ["gaps after the first token", 1e3 * short.tpot, 1e3 * long.tpot, f"{long.tpot / short.tpot:.2f} ×"],
        ["latency / tokens", 1e3 * wrong[32], 1e3 * wrong[512], f"{wrong[512] / wrong[32]:.2f} ×"],
    ],
    ["TPOT (ms), 9 tokens of answer", "prompt of 32", "prompt of 512", "the prompt changes it"],
    align="lrrr",
)
apart = (wrong[512] / wrong[32]) / (long.tpot / short.tpot)
markdown(
    "The wrong one fails as it should: "
    f"it blames decode for {1e3 * (wrong[512] - long.tpot):.3g} ms a token that belong to the prompt. Ask for more "
    'tokens and the "TPOT" gets better without anything having become faster.'
    if apart > 1.2
    else "On this machine a prefill of 512 tokens takes hardly longer than a step, so the mistake does not show here. "
    "Give it 8,000 tokens."
)

# %% [markdown]
# ## Who can pull which lever
#
# A *server* is a program on a chip. A *service* is a promise about it: the first token within half a second, for 99 of
# 100 requests. What the promise is about depends on who waits. **Online**, somebody does, and with **streaming** they
# feel TTFT first and then whether TPOT keeps up with their reading. In a **batch** job nobody waits, and only tokens per
# second and per dollar count: the same chip, filled with as many rows as it holds.

# %% tags=["hide-input", "nbval-check-output"]
table(
    [
        [
            "calls an API",
            "ask for fewer tokens, shorter prompts; keep prefixes the same so that they are cached; stream",
            "bits, batches, kernels",
        ],
        [
            "runs an engine",
            "quantized weights, batching and scheduling, prefix cache, compiled steps, drafters",
            "the architecture",
        ],
        [
            "trains or adapts the model",
            "fewer KV heads, experts, distillation, pruning, draft heads",
            "nothing",
        ],
    ],
    ["who", "can pull", "must take as given"],
)
words_per_minute = 238  # silent reading of English non-fiction, the mean of 190 studies
per_word = len(tokenizer.encode(LIGHT)) / len(LIGHT.split())
markdown(
    f"Adults read some {words_per_minute} words a minute "
    "([Brysbaert 2019](https://doi.org/10.1016/j.jml.2019.104047), a review). At the "
    f"{per_word:.1f} tokens a word of our paragraph that is {words_per_minute / 60 * per_word:.0f} tokens a second. For "
    f"readers of 5 to 10 tokens a second, a stream that keeps up has a TPOT of {1e3 * cost.tpot_of_rate(10):.0f} to "
    f"{1e3 * cost.tpot_of_rate(5):.0f} ms. (A range turns round when it is inverted. In print you will find 50 to 100.)"
)

# %% [markdown]
# The asymmetry has a price tag. Providers charge more for tokens out than for tokens in, and one of them has published
# both its prices and its machines' rates, for
# [24 hours in February 2025](https://github.com/deepseek-ai/open-infra-index/blob/main/202502OpenSourceWeek/day_6_one_more_thing_deepseekV3R1_inference_system_overview.md).

# %% tags=["hide-input", "nbval-ignore-output"]
tokens_in, tokens_out = 73_700, 14_800  # per second and node of 8 H800: prefill (cache hits included), decode
price_in, price_hit, price_out = 0.55, 0.14, 2.19  # $ per million tokens, DeepSeek-R1
hits = 0.563  # share of the tokens in that were found in a cache
paid_in = hits * price_hit + (1 - hits) * price_in
many = (
    cost.predict_decode(config, chip, context, 32, session.dtype).seconds
    / 32
    / (cost.predict_prefill(config, chip, len(prompt), 1, session.dtype).seconds / len(prompt))
)
table(
    [
        ["node time: rate in / rate out", f"{tokens_in / tokens_out:.1f}"],
        ["list price: out / in", f"{price_out / price_in:.1f}"],
        ["average price, with the published share of cache hits: out / in", f"{price_out / paid_in:.1f}"],
        ["SmolLM2 here, one user, measured", f"{worth:.0f}"],
        ["SmolLM2 here, 32 users in a batch, predicted", f"{many:.1f}"],
    ],
    ["one token out is worth … tokens in", "tokens"],
    align="lr",
)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"Why about {tokens_in / tokens_out:.0f} there, and {worth:.0f} here? Their decode steps carry many users at once, "
    "so the read of the weights is shared again, and what remains is each user's own cache. Thirty-two users at once "
    f"should bring this machine to {many:.1f}. Sharing a read among strangers is what batching is (chapter 8)."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the first token counted as decode | TPOT too high, and better for longer answers | `bench` gives it to prefill |
# | one small matrix timed in a loop | it stays in the chip's cache: GEMV at several times the real bandwidth | whole passes over all weights are timed |
# | all rows of a prompt through the head | prefill looks slower, by a table of P × 49,152 scores nobody reads | only the last row goes through the head |
# | a GPU that is not waited for | a pass takes microseconds | `bench` waits for the device before and after |
#
# ## Play
#
# Step through a generation, with the cache and without. Orange rows are computed, blue ones read. The first pass is the
# prefill; count what each later pass computes.

# %%
KVStepper(prompt=5, steps=6, title="Prefill once, then one row a step")

# %% [markdown]
# Now your own prompt. Make it long and watch TTFT; make the answer long and watch TPOT stay.

# %% tags=["nbval-ignore-output"]
lab = generate_lab(model, tokenizer, prompt="Why is the evening sky red?", max_new_tokens=48, chip=chip)

# %% [markdown]
# ## In production
#
# | engine | prefill and decode apart | seen in |
# | --- | --- | --- |
# | vLLM | `vllm bench serve` prints TTFT, TPOT (without the first token) and ITL; a server's `/metrics` has `vllm:time_to_first_token_seconds` | [docs](https://docs.vllm.ai/en/v0.33.0/benchmarking/cli/), v0.33, 2026 |
# | SGLang | `python -m sglang.bench_serving` for a running server; `sglang.bench_one_batch` for one static batch | [docs](https://github.com/sgl-project/sglang/blob/main/docs/developer_guide/benchmark_and_profiling.md), November 2026 |
# | TensorRT-LLM | `trtllm-bench latency`, `trtllm-bench throughput` | [docs](https://nvidia.github.io/TensorRT-LLM/commands/trtllm-bench.html), 1.3, 2026 |
# | llama.cpp | `llama-bench -p 512 -n 128` prints tokens per second as `pp512` and `tg128` | [README](https://github.com/ggml-org/llama.cpp/blob/master/tools/llama-bench/README.md), November 2026 |
# | transformers | `generate` keeps a cache unless `use_cache=False`; pass the `attention_mask` | [docs](https://huggingface.co/docs/transformers/main_classes/text_generation), 5.x, 2026 |
#
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(
    f"- **The loop.** {len(ours)} tokens took {counted['cache'].passes} passes and {counted['cache'].rows} rows with a "
    f"cache, {counted['no cache'].rows:,} rows without. Prefill and decode are two shapes of one call.\n"
    f"- **Time per token.** Bytes over bandwidth: {W / 1e6:.0f} MB at {chip.bandwidth / 1e9:.3g} GB/s is {read_ms:.3g} ms; "
    f"measured {milliseconds(timed.tpot)}. A 7B model in 16 bits on an A100: {1e3 * seven:.1f} ms.\n"
    f"- **In against out.** One token of the answer cost {worth:.0f} tokens of the prompt here. From the two rates alone "
    f"it is {meet:.0f} here, {hardware.ridge(a100, 'bf16'):.0f} on an A100, {hardware.ridge(h100, 'bf16'):.0f} on an H100.\n"
    f"- **Levers.** Fewer bytes, more work per byte, less overhead, no work twice. Longest reach here: {best_lever}, "
    f"{levers[best_lever][1]:.3g} of {now:.3g} ms."
)

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz(
    [
        {
            "kind": "choice",
            "question": "Why does a token of the answer cost so much more than a token of the prompt?",
            "choices": [
                {
                    "text": "It attends to more tokens.",
                    "why": "The last prompt token attends to just as many. Behind 512 tokens TPOT was nearly that behind 32.",
                },
                {
                    "text": "It needs a pass of its own, and the pass reads all weights.",
                    "ok": True,
                    "why": "Tokens of the prompt are all known, so they share one read.",
                },
                {
                    "text": "Choosing from 49,152 scores is slow.",
                    "why": "The head is one matrix of five, and prefill runs it too, for its last row.",
                },
                {
                    "text": "It takes more operations.",
                    "why": "Both take about 2N. Arithmetic is not what a decode step waits for.",
                },
            ],
        },
        {
            "kind": "numeric",
            "question": "A prompt of 300 tokens, an answer of 100, a cache, greedy. How many forward passes?",
            "answer": 100,
            "tolerance": 0.5,
            "unit": "passes",
            "right": "The prefill yields the first token, 99 decode steps the others.",
            "wrong": "Count what each pass yields: one token, the first one too.",
            "slips": [
                {
                    "answer": 101,
                    "why": "The last token is never run through the model: nobody asks what follows it.",
                },
                {"answer": 400, "why": "The 300 tokens of the prompt go through in a single pass."},
                {"answer": 99, "why": "These are the decode steps. The prefill is a pass as well."},
            ],
        },
        {
            "kind": "numeric",
            "question": "A model of 3 billion parameters in 8 bits, on a chip that reads 300 GB/s. The least time per token?",
            "answer": 10,
            "tolerance": 0.3,
            "unit": "ms",
            "right": "3 GB / 300 GB/s = 10 ms.",
            "wrong": "Bytes of weights over bytes per second.",
            "slips": [
                {"answer": 20, "why": "That would be 16 bits: two bytes a weight."},
                {"answer": 80, "why": "Bandwidth is in bytes, so count the weights in bytes too."},
                {"answer": 100, "why": "That is tokens per second."},
            ],
        },
        {
            "kind": "choice",
            "question": "The prompt doubles from 2,000 to 4,000 tokens; the answer stays at 200. On a GPU, which is right?",
            "choices": [
                {
                    "text": "TTFT and TPOT both double.",
                    "why": "A decode step reads the same weights as before; only the cache it reads has grown.",
                },
                {
                    "text": "TTFT about doubles, TPOT hardly changes.",
                    "ok": True,
                    "why": "2NP doubles. The step gets a little more cache to read.",
                },
                {
                    "text": "Neither changes: prefill is parallel.",
                    "why": "It is parallel, and past the ridge the arithmetic units are full: twice the work takes twice the time.",
                },
            ],
        },
        {
            "kind": "choice",
            "question": "A service labels long documents with one word. Which change makes it faster?",
            "choices": [
                {
                    "text": "Weights in 4 bits, multiplied in 16.",
                    "why": "Fewer bytes to read, the same arithmetic. This prefill waits for arithmetic.",
                },
                {
                    "text": "A chip with twice the FLOP/s.",
                    "ok": True,
                    "why": "All of its time is prefill of long prompts, which is bound by arithmetic.",
                },
                {
                    "text": "A drafter for speculative decoding.",
                    "why": "There is one token of answer, and it comes out of the prefill.",
                },
                {"text": "A compiled decode step.", "why": "It has no decode step."},
            ],
        },
    ],
    id="01",
)

# %% [markdown]
# ## Exercises
#
# In [the exercise notebook](../exercises/01_prefill_decode.ipynb); each has a check that looks at your own function.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(grading.table("01"))

# %% [markdown]
# ## Further reading
#
# - [Pope et al. 2022, Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102): read it for prefill
#   and decode treated as two workloads with two layouts, on a 540B model.
# - [Kipply 2022, Transformer Inference Arithmetic](https://kipp.ly/transformer-inference-arithmetic/): read it for the
#   same sums done slowly, with the hardware's point of view.
# - [How to Scale Your Model, chapter on inference](https://jax-ml.github.io/scaling-book/inference/): read it for
#   latency and throughput of a served model derived from a handful of numbers.
# - [Kwon et al. 2023, PagedAttention](https://arxiv.org/abs/2309.06180): read section 2 for what a serving engine does
#   between two steps of our loop.
# - [The DeepSeek-V3/R1 inference system](https://github.com/deepseek-ai/open-infra-index/blob/main/202502OpenSourceWeek/day_6_one_more_thing_deepseekV3R1_inference_system_overview.md):
#   read it for prefill and decode on different machines, with a day of real traffic.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
print(session)
print(f"chip: {chip.name}; {chip.kind}, {chip.note}")
print("timed by lumen.bench: medians of interleaved repeats, device waited for, garbage collector off")
if is_static():  # run for the book: publish the raw samples
    bench.evidence(
        "ch01_prefill_decode", {"opening": timed, "passes": passes, "short": short, "long": long}, seed=0
    )
print("raw samples: book/evidence/ch01_prefill_decode.json")
