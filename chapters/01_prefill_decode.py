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
# Below is a paragraph about light, and a question about it: 256 tokens with the chat template around them.
# SmolLM2-135M reads all of them, then writes its answer one token at a time. Reader and writer are the same 135 million
# weights. A token is a token. And yet the clock treats the two very differently:
# **why does one token of the answer cost as much as a whole sentence of the prompt?**
#
# By the end you can
#
# - write the generation loop, and count its forward passes without running it;
# - put a floor under the time per token of any model on any chip, from two numbers, in your head;
# - say how many tokens of prompt one token of answer is worth, on your machine and on a GPU you have never touched;
# - name the four levers that make inference faster, and for each the milliseconds that it could move.
#
# Needs: PyTorch, and having called an LLM once. Nothing else: this is where the course begins.
#
# New terms: [prefill](../book/glossary.md#term-prefill), [decode](../book/glossary.md#term-decode),
# [TTFT](../book/glossary.md#term-TTFT), [TPOT](../book/glossary.md#term-TPOT),
# [KV cache](../book/glossary.md#term-KV-cache).

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

session = lumen.setup("01_prefill_decode")

# %% tags=["hide-input"]
import textwrap

import torch

import lumen
from lumen import bench, cost, grading, hardware
from lumen.bench.steps import Decode, name_of
from lumen.explore import (
    KVStepper,
    Quiz,
    callout,
    generate_lab,
    guess,
    markdown,
    provenance,
    reveal,
    table,
)
from lumen.pages import ch01
from lumen.pages.engines import production_table

torch.set_grad_enabled(False)
model, tokenizer = lumen.load("smollm2-135m")
config, device, dtype = model.config, session.device, session.dtype
chip = hardware.measure(progress=False)

# %% [markdown]
# ## One prompt, one answer, one clock

# %% tags=["hide-input"]
LIGHT = """Sunlight looks white, but it holds all colours. On its way through the
air it meets molecules that are much smaller than the waves of light. They
scatter short waves far more than long ones: blue light, with waves of about
450 nanometres, is scattered more than four times as much as red light of
about 650 nanometres. So blue reaches our eyes from every part of the sky,
while red travels on nearly straight. In the evening the light comes in at a
low angle and crosses much more air. By then most of the blue has been
scattered out of the beam, and what is left looks orange and red. Clouds are
white because their drops are larger than the waves and scatter all colours
alike. On the Moon there is no air to scatter anything: its sky is black at
noon, and the stars stand beside the Sun. And on Mars fine dust turns the
matter round: there the day is the colour of butterscotch, and the sky around
the setting Sun is blue, as the rovers there saw.""".replace("\n", " ")

# %% tags=["nbval-check-output"]
question = LIGHT + "\n\nWhy is the evening sky red?"
prompt = tokenizer.apply_chat([{"role": "user", "content": question}])
answer = lumen.generate(model, [prompt], 33, tokenizer=tokenizer)[0]
print(f"{len(prompt)} tokens in: {prompt[:6]} …")
print(f"{len(answer.tokens)} tokens out: {answer.tokens[:6]} …\n")
print(textwrap.fill(answer.text, 72))

# %% [markdown]
# It is a small model; what we want of it is its clock. Two times matter: from the start to the first token, and from each
# token to the next. `bench` measures both once per machine and keeps them: every page that speaks of this step quotes
# this number.

# %% tags=["nbval-ignore-output"]
read = bench.prefill(model, prompt=256)
step = bench.decode_step(model, context=256)
print("to the first token:  ", read.estimate)
print("from token to token: ", step.estimate)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch01.opening(read, step))

# %% tags=["hide-input", "nbval-ignore-output"]
ch01.staircase_figure(bench.token_times(model, prompt, 17), len(prompt))

# %% [markdown]
# The steep part is called [prefill](../book/glossary.md#term-prefill), the flat one
# [decode](../book/glossary.md#term-decode). Time to first token is [TTFT](../book/glossary.md#term-TTFT), the mean gap
# after it [TPOT](../book/glossary.md#term-TPOT). So what does the program do differently on the two slopes?
#
# ## The loop, by hand
#
# A language model is one function. Give it tokens, and it returns for every position a score for each entry of its
# vocabulary: what might come next. To generate, take the scores after the last token, pick the best, append it, and
# start again.


# %%
def greedy(model, prompt, n):
    """`n` tokens, each the most likely next one; each pass runs it all."""
    tokens = list(prompt)
    for _ in range(n):
        logits = model(torch.tensor([tokens], device=device))  # (1, T, V)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


# %% [markdown]
# That is all of it: n tokens, n forward passes, and the next pass cannot start before the last one has ended, because
# its input is the last one's output. But it is wasteful. Pass 20 runs the whole prompt again to get one new row.
# (A *row* is one token on its way through the model: one row of each matrix of numbers that the layers hand on.)
#
# A layer never needs the old rows again, only two vectors that each of them left behind, its key K and its value V
# ([chapter 4](04_kv_cache.ipynb) shows why, and why the query Q serves only once). Keep those in a cache, and each pass
# is given only what is new. Step through it: orange is computed, blue read from the cache.

# %% tags=["hide-input"]
KVStepper(prompt=5, steps=6, title="Prefill once, then one row a step")


# %%
def greedy_cached(model, prompt, n):
    """The same tokens: first the whole prompt, then a token a pass."""
    cache = lumen.DynamicCache.for_model(model, rows=1)
    answer, new = [], list(prompt)
    while len(answer) < n:
        given = torch.tensor([new], device=device)
        hidden = model.hidden(given, None, cache)  # (1, T) -> (1, T, D)
        scores = model.head(hidden[:, -1])  # last row: (1, D) -> (1, V)
        token = int(scores.argmax())
        answer.append(token)
        new = [token]
    return answer


# %% [markdown]
# (`head` is the model's last matrix: it turns a row into 49,152 scores. Only the last row needs it.)
#
# Does it give the same answer as the first loop, as `lumen.generate`, and as Hugging Face transformers on the same
# weights? Equality is checked in fp32: two correct programs add in different orders, and in 16 bits a near-tie between
# two tokens may fall either way.


# %% tags=["hide-input"]
def in_fp32(model):
    """The model itself, or its weights once more in fp32."""
    if dtype == torch.float32:
        return model
    return lumen.load("smollm2-135m", dtype=torch.float32).model


# %% tags=["nbval-check-output"]
exact = in_fp32(model)
capital = [{"role": "user", "content": "What is the capital of France?"}]
short = tokenizer.apply_chat(capital)
plain, cached = grading.CountedModel(exact), grading.CountedModel(exact)

by_hand = greedy(plain, short, 16)
with_cache = greedy_cached(cached, short, 16)
ours = lumen.generate(exact, [short], 16, eos_ids=())[0].tokens
assert by_hand == with_cache == ours

scores = exact(torch.tensor([short + ours], device=device))[0]
best = scores[len(short) - 1 : -1].topk(2).values
assert float((best[:, 0] - best[:, 1]).min()) > 0.01  # no near-tie
for name, count in (("no cache", plain), ("cache", cached)):
    first = ", ".join(f"{b} × {t}" for b, t in count.shapes[:4])
    print(
        f"{name:8}: {count.passes} passes, {count.rows:,} rows: {first} …"
    )
print("the same 16 tokens from all three:", by_hand == with_cache == ours)

# %% tags=["hide-input", "nbval-ignore-output"]
try:
    from lumen.io.convert import hf_model

    theirs = hf_model("smollm2-135m", device)
    ids = torch.tensor([short], device=device)
    options = {
        "max_new_tokens": 16,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 2,
    }
    made = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), **options
    )
    assert made[0, len(short) :].tolist() == ours
    print("the same 16 tokens from Hugging Face transformers: True")
    del theirs
except ImportError as missing:
    print(f"Not compared here: {missing}")

# %% tags=["hide-input", "nbval-check-output"]
callout(
    "trap",
    "**Trap.** Leave out `attention_mask`, and transformers guesses one: it hides every token that equals "
    "`pad_token_id`, unless that id also ends the answer. This model's pad id is 2, the chat template itself writes "
    "id 2 after every message, and the call above ends at no id: "
    f"{short.count(2)} of the {len(short)} prompt tokens would be hidden. A mask of ones says what is meant.",
)

# %% [markdown]
# Look at the shapes of the passes. The loop has no prefill phase and no decode phase. There is one forward, called once
# with all rows of the prompt and then with one row at a time. **Prefill and decode are two shapes of the same call**, and
# the puzzle is now this: why does a row cost so much when it comes alone, and so little in company?
#
# ## The same weights, another number of rows
#
# A layer is four matrices (q, k and v are joined into one, gate and up into another) and a little glue; the table adds
# up all layers. However many rows come in, the matrices are the same: with many rows that is a matrix-matrix product
# (GEMM), with one row a matrix-vector product (GEMV).

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch01.matrices(config, dtype, len(prompt)), stack=True)

# %% [markdown]
# The arithmetic grows with the number of rows. **The bytes do not**, so one column of them suffices: each weight has to
# come from memory once, whether it then meets one row or two hundred.
#
# A weight that meets a row is one multiplication and one addition. So a token costs about $2N$ operations, a prompt of
# $P$ tokens about $2NP$ (less what the head would take, since only the last row meets it: a fifth of this small model,
# a fiftieth of a 7B). A pass over $T$ rows takes at least about
#
# $$
# \text{time}(T) \;\ge\; \max\!\left(\frac{W}{\text{bandwidth}},\; \frac{2\,N\,T}{\text{peak}}\right)
# $$
#
# The first term reads the weights, the second multiplies by them. On a chip that does both at once, the slower one is
# what you wait for. Here are the symbols as numbers:

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch01.symbols(config, chip, dtype))

# %% [markdown]
# ## Predict: sixteen rows instead of one
#
# One pass with 1 row, one pass with 16 rows: sixteen times the arithmetic, and the symbols above to think with. The
# course's *cost model* guesses, too: it adds up operators that were timed one by one on this machine.

# %% tags=["predict"]
my_rows = guess(
    "01-rows",
    "16 rows against 1: how many times as long does the pass take?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
passes = {rows: bench.prefill(model, prompt=rows) for rows in ch01.PASSES}
ratio = bench.Estimate.ratio(passes[16].timing, passes[1].timing)
one, sixteen = (
    cost.predict_prefill(config, chip, rows, 1, dtype).seconds
    for rows in (1, 16)
)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_rows,
    model=sixteen / one,
    measured=ratio.value,
    unit="×",
    what="time of 16 rows against 1",
    title=ch01.rows_title(ratio),
)

# %% tags=["reveal", "nbval-ignore-output"]
ch01.rows_figure(passes, config, chip, dtype)

# %% tags=["reveal", "nbval-ignore-output"]
table(*ch01.rows_table(passes))

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch01.rows_story(passes, sixteen / one, ratio, config, chip, dtype))

# %% [markdown]
# That is the answer to the question at the top. **A token of the prompt shares the read of the weights, and all else that
# a pass costs once, with the whole prompt. A token of the answer pays for a pass of its own**, because the token after it
# is not known yet, and there is nobody to share with.
#
# Where the two terms of the formula are equal depends on the chip and on $b$, the bytes of a weight, not on the model's
# size: $W = bN$, so $N$ cancels, and $T = b \cdot \text{peak} / (2 \cdot \text{bandwidth})$. With two bytes a weight
# that is peak / bandwidth:

# %% tags=["hide-input", "nbval-check-output"]
table(*ch01.ridges())

# %% tags=["hide-input", "nbval-ignore-output"]
callout(
    "takeaway",
    ch01.ridge_takeaway(config, chip, dtype, ch01.worth(read, step)),
)

# %% [markdown]
# ## How fast could it be?
#
# If a decode step is one read of the weights, its time has a floor that needs no benchmark: bytes a step over bandwidth.
# The step also reads the cache of all earlier tokens, which is small here. Between the floor and the clock stands what
# the formula leaves out. Each part was measured by itself, on this machine; the *residual* is what remains, below zero
# where the parts alone took longer than the step:

# %% tags=["hide-input", "nbval-ignore-output"]
far_step = bench.decode_step(model, context=1024)  # shares its axis, below
ch01.step_waterfall(step, config, chip, dtype, beside=far_step)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch01.floor_story(step, config, chip, dtype))

# %% [markdown]
# ## Predict: a prompt sixteen times as long
#
# Same model, same answer, but the prompt has 1,024 tokens instead of 64. TTFT will grow. What about TPOT?

# %% tags=["predict"]
my_tpot = guess(
    "01-tpot",
    "A prompt of 1,024 tokens against one of 64: by what factor does TPOT grow?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
runs = [
    (bench.prefill(model, prompt=n), bench.decode_step(model, context=n))
    for n in (64, 1024)
]
names = {n: name_of(model, "decode", 1, n, "static") for n in (64, 1024)}
turns = bench.compare(  # a step of each in turns: drift falls on both
    {n: Decode(model, name).step for n, name in names.items()}, repeats=16
)
ttft = bench.Estimate.ratio(runs[1][0].timing, runs[0][0].timing)
tpot = bench.Estimate.ratio(turns[1024], turns[64])
near, far = (
    cost.predict_decode(config, chip, context, 1, dtype).seconds
    for context in (64, 1024)
)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_tpot,
    model=far / near,
    measured=tpot.value,
    unit="×",
    what="TPOT, 1,024 tokens against 64",
    title=ch01.growth_title(ttft, tpot),
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch01.growth_story(tpot, config, dtype, 1024, 64))

# %% tags=["reveal", "nbval-ignore-output"]
ch01.long_waterfall(far_step, config, chip, dtype, beside=step)

# %% [markdown]
# ## Four levers
#
# So far we have explained the time. Now we want less of it. Nearly everything in this course pulls one of four levers,
# and the cost model can say beforehand how far each of them reaches on this machine, for one token of this answer.

# %% tags=["hide-input", "nbval-ignore-output"]
found = ch01.levers(config, chip, dtype, 256)
table(*ch01.lever_table(found), stack=True)
markdown(ch01.lever_story(found, step))

# %% [markdown]
# ## Where it loses
#
# "Inference is bound by bandwidth" is said of decode, and decode is not always what you wait for. An answer of $n$ tokens
# takes TTFT + TPOT · $(n - 1)$: the first token comes out of the prefill. How much of the wait is decode?

# %% tags=["hide-input", "nbval-ignore-output"]
ch01.shares(runs)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch01.shares_story(runs))

# %% [markdown]
# And a negative control. It is easy to divide the whole latency by the number of tokens and to call that TPOT; then the
# first token's prefill is counted as decode. Put the times of both prompts into that formula, and into the right one:

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch01.wrong_tpot(runs))
markdown(ch01.wrong_tpot_story(*runs[1]))

# %% [markdown]
# ## Who waits, and who pays
#
# What a server promises depends on who waits. **Online**, somebody does, and with streaming they feel TTFT first and then
# whether TPOT keeps up with their reading. In a **batch** job nobody waits, and tokens per second and per dollar count:
# the same chip, filled with as many rows as it holds.

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch01.readers(len(tokenizer.encode(LIGHT)) / len(LIGHT.split())))

# %% [markdown]
# The asymmetry has a price tag. Providers charge more for tokens out than for tokens in, and one of them has published
# both its prices and its machines' rates.

# %% tags=["hide-input", "nbval-ignore-output"]
table(*ch01.prices(256, ch01.worth(read, step), config, chip, dtype, 256))
markdown(ch01.prices_story())

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the first token counted as decode | TPOT too high, and better for longer answers | the negative control above |
# | all rows of a prompt through the head | prefill looks slower, by a table of P × 49,152 scores nobody reads | `head(hidden[:, -1])` in [the loop](#the-loop-by-hand) |
# | one small matrix timed in a loop | it stays in the chip's cache: a GEMV faster than memory could feed it | whole passes over all weights, in [the reveal](#predict-sixteen-rows-instead-of-one) |
#
# ## Play
#
# Your own prompt. Make it long and watch TTFT; make the answer long and watch TPOT stay.

# %% tags=["hide-input", "nbval-ignore-output"]
lab = generate_lab(
    model,
    tokenizer,
    prompt="Why is the evening sky red?",
    max_new_tokens=48,
    chip=chip,
)

# %% [markdown]
# ## In production

# %% tags=["hide-input", "nbval-ignore-output"]
production_table(ch01.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
counted = (cached.passes, cached.rows, plain.rows)
markdown(ch01.recap(counted, read, step, config, chip, dtype))

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("01")

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
# - [Kwon et al. 2023, PagedAttention](https://arxiv.org/abs/2309.06180): read section 2.3 for what a serving engine does
#   between two steps of our loop.
# - [The DeepSeek-V3/R1 inference system](https://github.com/deepseek-ai/open-infra-index/blob/main/202502OpenSourceWeek/day_6_one_more_thing_deepseekV3R1_inference_system_overview.md):
#   read it for prefill and decode on different machines, with a day of real traffic.
#
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, chip=chip)
