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
# # 2 · The roofline

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/02_roofline.ipynb) [Colab: exercises](https://colab.research.google.com/github/lumen-course/lumen/blob/main/exercises/02_roofline.ipynb) [Colab: solutions](https://colab.research.google.com/github/lumen-course/lumen/blob/main/solutions/02_roofline.ipynb)
#
# CPU is enough · read 30 min · run 1 min · practise 68 min · here: [exercises](../exercises/02_roofline.ipynb), [solutions](../solutions/02_roofline.ipynb)
#
# </div>

# %% [markdown]
# SmolLM2 is answering one user on this machine. Every token of the answer is one pass through the same 135 million
# weights, and a pass is matrix multiplication and little else. Matrix multiplication is what processors do best. And yet,
# while the model writes, most of the arithmetic that this machine can do is not done. The same matrices, the same library,
# the same cores; nothing is broken. **What is the machine waiting for, and can it be made to stop waiting?**
#
# By the end you can
#
# - name the resource that binds a prefill or a decode step, from a model card and two numbers of a chip;
# - predict the time of a step on paper, and say what the paper leaves out and how much that is;
# - compute MFU and MBU from a measured speed, and say which of them ought to be high;
# - say how many users bring a step to the ridge of a chip, and what fills the memory before.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb).
#
# New terms: [arithmetic intensity](../book/glossary.md#term-arithmetic-intensity),
# [ridge point](../book/glossary.md#term-ridge-point), [roofline](../book/glossary.md#term-roofline),
# [operator start](../book/glossary.md#term-operator-start), [MFU](../book/glossary.md#term-MFU),
# [MBU](../book/glossary.md#term-MBU).

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

session = lumen.setup("02_roofline")

# %% tags=["hide-input"]
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lumen import CONFIGS, bench, cost, hardware
from lumen.explore import (
    Quiz,
    Roofline,
    callout,
    guess,
    markdown,
    matmul_lab,
    provenance,
    reveal,
    table,
)
from lumen.pages import ch02
from lumen.pages.engines import production_table

model, tokenizer = lumen.load("smollm2-135m")
config, dtype = model.config, cost.dtype_name(session.dtype)
chip = (
    hardware.measure()
)  # rates of this machine; kept after the first time

# %% tags=["measure", "nbval-ignore-output"]
step = bench.decode_step(model, batch=1, context=256)
read = bench.prefill(model, prompt=256)
decode = ch02.Pass.of(config, step)  # its FLOPs and bytes, and its time
prefill = ch02.Pass.of(config, read)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch02.opening(decode, prefill, chip, dtype))

# %% [markdown]
# These two passes, a [prefill](../book/glossary.md#term-prefill) of 256 tokens and a
# [decode](../book/glossary.md#term-decode) step whose token sees as many, are the example of this whole page.
#
# ## Two clocks
#
# A forward pass has two jobs. It must fetch every byte that it needs from memory, and it must do its arithmetic. The next
# bytes travel while the last ones are being used, so the jobs overlap and the longer one sets the time:
#
# $$
# \text{time} \;\ge\; \max\left( \frac{\text{FLOPs}}{\text{peak}},\; \frac{\text{bytes}}{\text{bandwidth}} \right)
# $$
#
# A multiply and an add are two FLOPs. The left clock counts the model's FLOPs against what the chip can do, the right one
# the weights and the [KV cache](../book/glossary.md#term-KV-cache) against what its memory delivers.

# %% tags=["hide-input", "nbval-ignore-output"]
rows, headers, sides = ch02.clocks(decode, prefill, chip, dtype)
table(rows, headers, sides)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch02.two_ratios(decode, chip, dtype))

# %% [markdown]
# Two percentages say how close a pass came to each clock. **MFU**, model FLOPs utilisation, is the first clock over the
# measured time; **MBU**, model bandwidth utilisation, the second. Divide one by the other and the time cancels: MFU / MBU
# is intensity / ridge.
#
# ## The third clock
#
# The formula has a ≥ in it. Between two operators (a matrix product, a norm, an addition) there is Python, a dispatcher,
# a kernel to wake. Such an operator start moves no byte and does no FLOP, and it takes time:
#
# $$
# \begin{aligned}
# \text{time} \approx{} & \max\left( \frac{\text{FLOPs}}{\text{peak}},\; \frac{\text{bytes}}{\text{bandwidth}} \right) \\
# & + \text{operators} \times \text{start}
# \end{aligned}
# $$
#
# On a CPU the starts come on top. A GPU works on one operator while its host starts the next, so there the third clock is
# one more term inside the max.

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch02.third_clock(config, chip, dtype))

# %% [markdown]
# ## One picture
#
# Divide the work by the longer of the two clocks, and the inequality becomes a drawing. A pass of intensity $I$ runs at
# $\min(\text{peak}, I \times \text{bandwidth})$ at best: a slope, then a ceiling. That is the
# [roofline](../book/glossary.md#term-roofline). The third clock is the dashed line below it: decode steps of more and more
# users, if bytes, FLOPs and starts were all that takes time.

# %% tags=["hide-input", "nbval-ignore-output"]
ch02.picture(config, decode, prefill, chip, dtype)

# %% [markdown]
# Open circles are one product alone: 1, 2, 4 … rows by the widest matrix of a layer, its own start included, from what
# `hardware.measure()` timed. The lab [below](#play) times the same product.
#
# So decode can be helped in two ways. More arithmetic for each byte moves the point *right, along the slope*: more users,
# fewer bits. Fewer starts and faster products move it *up*.
#
# ## Where the time goes
#
# Products, attention, small operators and starts were each timed alone; added up for the operators of SmolLM2 they
# forecast the pass. No number in that was fitted to a pass; *which* operators count, and how they are timed, was mended
# while misses were looked at. The decode step: its floor, what each kind of operator adds (products: about as far as the
# leftmost circle lies below the slope), and in orange what is left.

# %% tags=["hide-input", "nbval-ignore-output"]
ch02.waterfall_figure(config, decode, chip, dtype)

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch02.unexplained(config, decode, prefill, chip, dtype))

# %% [markdown]
# ## Eight users in one step
#
# Eight users wait for their next token, each with 256 positions behind them. Put their eight tokens into one pass, as eight
# rows for the same matrices: eight times the arithmetic.

# %% tags=["predict"]
my_guess = guess(
    "02-eight",
    "A step for 8 users against one for 1: how many times as long?",
    unit="×",
)

# %% tags=["measure", "nbval-ignore-output"]
users = (1, 2, 4, 8, 16, 32)
steps = {n: bench.decode_step(model, n, context=256) for n in users}
sweep = {n: ch02.Pass.of(config, taken) for n, taken in steps.items()}
times = {n: taken.timing for n, taken in steps.items()}
said = {n: cost.predict_decode(config, chip, 256, n, dtype) for n in users}

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=said[8].seconds / said[1].seconds,
    measured=[s / times[1].median for s in times[8].samples],
    unit="×",
    what="a step for 8 users against 1",
    title="Eight tokens in one step, in steps of one token",
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch02.users_text(config, sweep, times, chip, dtype))

# %% tags=["reveal", "nbval-ignore-output"]
rows, headers, sides = ch02.users_table(sweep, chip, dtype)
table(rows, headers, sides)
callout("takeaway", ch02.low_mfu(sweep[1], chip, dtype))

# %% [markdown]
# In general: a batch of $B$ short contexts does two FLOPs a user for each weight, so in 16 bits its intensity is about $B$,
# in fp32 about $B/2$. On paper, then, it takes as many users as the ridge says to get there with 16-bit weights.
#
# ### Where batching ends
#
# If users are so cheap, why not put 300 of them on an H100 and reach its ridge? Because each brings a cache of their own
# (a beginning that many share apart: chapter 6). It is read anew in every step, and it fills the memory. Move the batch,
# then the context: up to which context do 1,024 users fit *and* reach the ridge? For the six steps of the reveal
# above choose this machine, SmolLM2, the format of the run and 256 tokens.

# %% tags=["hide-input", "nbval-ignore-output"]
Roofline(
    chips=["H100 SXM", chip, "A100 80GB SXM", "L4", "MI300X"],
    models=["llama-3-8b", "smollm2-135m"],
    formats=("fp32", "bf16", "q8_0", "q4_0"),
    format="bf16",
    context=2048,
    measured=ch02.points(config, [*sweep.values(), prefill], chip, dtype),
    title="Where does batching end?",
    lead="Hollow points are the least times that the two clocks allow.",
)

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch02.batching_text())

# %% [markdown]
# ## Where the FLOPs are
#
# "Two FLOPs per weight" leaves out attention, which has no weights: each query is multiplied with every key, and each
# attention weight with every value. At a context of $L$ tokens that is $4 L\, d_q$ FLOPs a token and layer, $d_q$ being the
# width of all query heads. Sharing KV heads ([GQA](../book/glossary.md#term-GQA)) saves bytes and none of these. In a
# textbook's layer ([counted here](02a_chips.ipynb#flops-model-by-model)) attention draws level with the matrices at six
# times the hidden size.

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch02.flops_text())

# %% [markdown]
# ## How good is the forecast?
#
# `benchmarks/cost_model.py` measured a grid of passes beside the waterfall's sums, `cost.predict_decode` and
# `cost.predict_prefill`.

# %% tags=["hide-input"]
markdown(f"{ch02.forecast_text()}\n\n{ch02.published_text()}")

# %% [markdown]
# ## Where each technique moves the point
#
# A technique asks for fewer bytes, gets more work from the same bytes, or does less work. The two clocks draw where it moves a
# decode step *before* we learn how it works: Llama-2-7B on an H100, in 16 bits, 8 users of 2,048 tokens, all of it predicted.

# %% tags=["hide-input"]
ch02.moves_figure()

# %% tags=["hide-input", "nbval-check-output"]
markdown(ch02.moves_text())

# %% [markdown]
# ## Build it
#
# What the two clocks count of a decode step, from the config alone. No weights are touched and nothing is run.


# %%
def step_work(c, batch, context, bytes_each):
    """FLOPs and bytes of a decode step: `context` tokens a user."""
    queries = c.num_heads * c.head_dim
    keys = c.num_kv_heads * c.head_dim
    attention = c.hidden_size * (queries + 2 * keys)  # q, k, v
    attention += queries * c.hidden_size  # and the output
    mlp = 3 * c.hidden_size * c.intermediate_size  # gate, up, down
    last = c.hidden_size * c.vocab_size  # the output matrix
    matrices = c.num_layers * (attention + mlp) + last
    pairs = c.num_layers * 2 * queries * context  # q·k and p·v
    flops = 2 * batch * (matrices + pairs)

    norms = (2 * c.num_layers + 1) * c.hidden_size
    looked_up = batch * c.hidden_size  # an embedding row a user
    cache = batch * c.num_layers * 2 * keys * (context + 1)
    values = matrices + norms + looked_up + cache  # read, one k, v written
    return flops, values * bytes_each


# %% [markdown]
# Is it right? Against `lumen.cost` for several models and shapes, and against torch, whose `flop_counter` watches the
# matrix products of the real SmolLM2 while it runs.

# %% tags=["hide-input", "nbval-check-output"]
shapes = [
    (name, b, n)
    for name in ("smollm2-135m", "llama-3-8b", "llama-2-70b")
    for b in (1, 8)
    for n in (1, 777, 4096)
]
for name, b, n in shapes:
    flops, moved = step_work(CONFIGS[name], b, n, 2)
    theirs = cost.step_bytes(CONFIGS[name], b, n, "bf16")
    assert flops == cost.step_flops(CONFIGS[name], b, n).total
    assert moved == theirs.total - theirs.activations

# in bf16: torch's counter does not know products of packed fp32 weights
watched = lumen.load("smollm2-135m", dtype=torch.bfloat16).model
cache = lumen.StaticCache.for_model(watched, 3, 32)
tokens = torch.arange(51, device=session.device).view(3, 17)
# plain attention, of which torch sees each product
with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
    watched(tokens[:, :16], None, cache)
    with FlopCounterMode(display=False) as counter:
        watched(tokens[:, 16:], None, cache)
counted = counter.get_total_flops()
ours = step_work(config, 3, 17, 4)[0]
assert counted == ours
print(f"equal to lumen.cost on {len(shapes)} shapes")
print(f"torch counts {counted:,} FLOPs, we say {ours:,}")
del watched

# %% [markdown]
# ## Where it loses
#
# The smaller a model, the less two clocks say.

# %% tags=["hide-input", "nbval-ignore-output"]
toy = lumen.ModelConfig("toy-24x32", 64, 24, 32, 4, 2, 8, 32, 64)
markdown(ch02.toy_text(toy, 64, chip, dtype))

# %% tags=["predict"]
my_guess = guess(
    "02-toy",
    "The toy's decode step: how many times what the two clocks say?",
    unit="×",
)


# %% tags=["measure", "hide-input", "nbval-ignore-output"]
def ready(made):
    return made.to(session.device, session.dtype).eval()


lite = CONFIGS["gptlite"]
toy_step = bench.decode_step(ready(lumen.Llama(toy)), 1, 64)
lite_step = bench.decode_step(ready(lumen.GPTlite(lite)), 1, 64)
floor = ch02.toy_floor(toy, 64, chip, dtype)

# %% tags=["reveal", "nbval-ignore-output"]
reveal(
    guess=my_guess,
    model=cost.predict_decode(toy, chip, 64, 1, dtype).seconds / floor,
    measured=[s / floor for s in toy_step.timing.samples],
    unit="×",
    what="the toy's step against its two clocks",
    title="A small model's step, in what its two clocks say",
)

# %% tags=["reveal", "nbval-ignore-output"]
markdown(ch02.toy_answer(toy, toy_step, chip, dtype))

# %% tags=["reveal", "nbval-ignore-output"]
rows, headers, sides = ch02.losers(
    [
        (toy, toy_step, 64),
        (lite, lite_step, 64),
        (config, step, 256),
        (CONFIGS["llama-3-8b"], None, 256),
    ],
    chip,
    dtype,
)
table(rows, headers, sides, stack=True)

# %% [markdown]
# ### A negative control
#
# A bound that nothing can break says nothing. So let us try to break it: read one array again and again, as a careless
# bandwidth benchmark does, once so small that the last cache holds it, once so large that it does not.


# %% tags=["hide-input", "nbval-ignore-output"]
def summed(size):
    """Seconds of reading `size` bytes, over and over."""
    data = torch.ones(size // 4, device=session.device)
    inner = max(1, 2**24 // size)
    return bench.measure(data.sum, repeats=24, inner=inner, budget_s=1)


rates = {size: summed(size) for size in ch02.control_sizes(chip)}
markdown(ch02.control_text(rates, chip))

# %% [markdown]
# ## How this could fool you
#
# <div class="stack">
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the benchmark's array fits in a cache | bandwidth too high, every MBU too low | [the control above](#a-negative-control) |
# | multiply-adds counted once, or a peak with [2:4](../book/glossary.md#term-2-4) sparsity | MFU at half of what it is | [torch counts with us](#build-it); dense peaks only |
# | work that is done twice is counted | reading everything again scores best | tokens per second beside every percentage, as below |
#
# </div>

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(ch02.best_mfu(decode, prefill, chip, dtype))

# %% [markdown]
# ## Play
#
# A roof of your own to stand under: multiply a matrix of any size. On the slope twice the rows should take no longer, on
# the ceiling twice as long. Start with one row and double: where does this machine turn, and where does its ridge say it
# should? Then multiply by the *same* weight each time. If it fits a cache, the share can pass 100 %: the slope is the
# memory's.

# %% tags=["nbval-ignore-output"]
lab = matmul_lab(rows=8, inputs=576, outputs=3072, chip=chip)

# %% [markdown]
# ## In production

# %% tags=["hide-input"]
production_table(ch02.PRODUCTION)

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
markdown(f"{ch02.recap(config, sweep, prefill, chip, dtype)}")

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
Quiz.of("02")

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/02_roofline.ipynb), with checks that look at your own functions.

# %% tags=["hide-input"]
markdown(lumen.grading.table("02"))

# %% [markdown]
# ## Further reading
#
# - Williams, Waterman and Patterson, [Roofline](https://doi.org/10.1145/1498765.1498785) (2009): read it for the ceilings
#   *below* the roof, each named after the optimisation that is missing.
# - He, [Making deep learning go brrrr from first principles](https://horace.io/brrr_intro.html) (2022): read it for the
#   three clocks, compute, bandwidth and overhead, seen from training.
# - Chowdhery et al., [PaLM](https://arxiv.org/abs/2204.02311) (2022), section 4.1 and appendix B: read it for the definition
#   of MFU, a name of theirs, and why the FLOPs of recomputation do not count.
# - Austin et al., [How to scale your model](https://jax-ml.github.io/scaling-book/roofline/) (2025): read it for the same
#   picture drawn for TPUs and for the links between chips.
# - Databricks, [LLM inference performance engineering](https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices)
#   (2023): read it for MBU, named there, on real clusters.

# %% [markdown]
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, evidence=["cost_model"], chip=chip)
