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
# - predict the time of a step on paper, and say when the paper is wrong and by how much;
# - compute MFU and MBU from a measured speed, and say which of them ought to be high;
# - choose a chip and a batch for a model, a latency limit and a price.
#
# Needs: [prefill and decode](01_prefill_decode.ipynb).

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

session = lumen.setup("02_roofline")

# %%
import numpy as np
import torch

from lumen import CONFIGS, bench, cost, hardware
from lumen.explore import (
    Quiz,
    Roofline,
    figure,
    label_line,
    matmul_lab,
    palette,
    predicted_vs_measured,
    reveal,
    show,
)
from lumen.explore.theme import log_axis

model, tokenizer = lumen.load("smollm2-135m")
config, dtype = model.config, cost.dtype_name(session.dtype)
chip = hardware.measure()  # bandwidth and matmul rates; kept after the first time
_ = bench.generation(model, 64, 4)  # warm up

# %% tags=["measure", "nbval-ignore-output"]
# a prompt of 256 tokens, then eight decode steps
alone = bench.generation(model, 256, 9, repeats=2, warmup=0)
context = 260  # what a step sees, half-way through those eight

# %% tags=["hide-input", "nbval-ignore-output"]
prefill_rate = cost.prefill_flops(config, 256).total / alone.ttft
decode_rate = cost.step_flops(config, 1, context).total / alone.tpot
peak, bandwidth = chip.peak(dtype), chip.bandwidth
show.markdown(
    f"A large matrix product on this machine does **{peak / 1e9:,.0f} GFLOP/s**, a GFLOP being $10^9$ additions and "
    f"multiplications. Reading a prompt of 256 tokens, SmolLM2 does {prefill_rate / 1e9:,.0f} of them, "
    f"{prefill_rate / peak:.0%}. Writing the answer, it does **{decode_rate / 1e9:,.1f}: {decode_rate / peak:.1%}**."
)

# %% [markdown]
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
# the weights and the [KV cache](../book/glossary.md#term-KV-cache) against what its memory delivers. Here are both, for
# the two passes just timed.


# %%
def work(config, phase, batch, length):
    """FLOPs and bytes: a prefill of `length` tokens, a decode step that sees them."""
    if phase == "prefill":
        moved = cost.weight_bytes(config, dtype, batch * length)
        moved += cost.kv_bytes(config, length, batch, dtype)
        return cost.prefill_flops(config, length, batch).total, moved
    step = cost.step_bytes(config, batch, length, dtype)
    moved = step.weights + step.cache_read + step.cache_write
    return cost.step_flops(config, batch, length).total, moved


# %% tags=["hide-input", "nbval-ignore-output"]
rows = []
for name, phase, length, seconds in (
    ("prefill, 256 tokens", "prefill", 256, alone.ttft),
    ("decode, 1 token", "decode", context, alone.tpot),
):
    flops, moved = work(config, phase, 1, length)
    clocks = flops / peak * 1e3, moved / bandwidth * 1e3
    rows.append([name, f"{flops / 1e9:.2f}", f"{moved / 1e6:.0f}", *clocks, seconds * 1e3, flops / moved])
headers = [
    "pass",
    "GFLOP",
    "MB",
    "FLOPs / peak (ms)",
    "bytes / bandwidth (ms)",
    "measured (ms)",
    "FLOP per byte",
]
show.table(rows, headers, "lrrrrrr")

# %% tags=["hide-input", "nbval-ignore-output"]
ridge = hardware.ridge(chip, dtype)
flops, moved = work(config, "decode", 1, context)
step_intensity = flops / moved
value = cost.bytes_per_value(dtype)
a100 = hardware.CHIPS["A100 80GB SXM"]
show.markdown(f"""
Decode reads {moved / 1e6:.0f} MB to do {flops / 1e9:.2f} GFLOP: **{step_intensity:.2f} FLOP per byte**. Every weight of
{value:g} bytes is fetched for one multiply and one add, and dropped. The prefill fetches it once for 256 tokens.

That ratio is the [arithmetic intensity](../book/glossary.md#term-arithmetic-intensity) $I$, a property of the work.
The machine has a ratio too, peak over bandwidth: {peak / 1e9:,.0f} GFLOP/s over {bandwidth / 1e9:.0f} GB/s is
**{ridge:.1f} FLOP per byte**, its [ridge point](../book/glossary.md#term-ridge-point). Work below the ridge waits for
memory, work above it for arithmetic. So at batch 1 decode cannot use more than {step_intensity:.2f} / {ridge:.1f} =
{step_intensity / ridge:.1%} of the arithmetic here, whatever the code looks like.

A data-centre GPU is a more lopsided machine. In 16 bits the intensity of decode is $2N / 2N = 1$; the ridge of an
{a100.name} is {hardware.ridge(a100):.0f}. It writes one user's answer with at most
{cost.roofline(1.0, a100) / a100.peak():.2%} of its arithmetic.
""")

# %% [markdown]
# ## The picture
#
# Divide both clocks by the work, and the inequality becomes a drawing. A pass of intensity $I$ runs at
# $\min(\text{peak}, I \times \text{bandwidth})$ at best: a slope, then a ceiling. That is the
# [roofline](../book/glossary.md#term-roofline).


# %% tags=["hide-input", "nbval-ignore-output"]
def roof_figure(title, low=0.2, high=1500, height=430):
    """This machine's roof and the matrix products that `measure` timed under it, on log-log axes."""
    fig = figure(title, x="arithmetic intensity (FLOP per byte)", y="arithmetic done (FLOP/s)", height=height)
    log_axis(fig, "x", [1, 10, 100, 1000])
    log_axis(fig, "y")
    corners = [low, ridge, high]
    roof = [cost.roofline(at, chip, dtype) for at in corners]
    fig.add_scatter(
        x=corners, y=roof, mode="lines", line={"color": palette.grey, "width": 3}, hoverinfo="skip"
    )
    at = [2 * n / value for n, _ in chip.achieved[dtype].matmul]
    rate = [r for _, r in chip.achieved[dtype].matmul]
    products = {"size": 6, "color": palette.grey, "symbol": "circle-open"}
    fig.add_scatter(
        x=at, y=rate, mode="markers", marker=products, hovertemplate="%{x:.3g} FLOP/B: %{y:.3s}FLOP/s"
    )
    label_line(fig, high, peak, "peak", palette.grey)
    label_line(fig, ridge / 2, peak / 2, "bandwidth", palette.grey, shift=12)
    return fig


near = decode_rate > 0.5 * bandwidth * step_intensity
place = "close to the bandwidth slope" if near else "well below the bandwidth slope"
fig = roof_figure(
    f"Decode, {place}, does {decode_rate / peak:.0%} of the peak; prefill {prefill_rate / peak:.0%}"
)
for phase, length, seconds, color in (
    ("decode", context, alone.tpot, palette.orange),
    ("prefill", 256, alone.ttft, palette.blue),
):
    flops, moved = work(config, phase, 1, length)
    fig.add_scatter(
        x=[flops / moved], y=[flops / seconds], mode="markers", marker={"size": 13, "color": color}
    )
    label_line(fig, flops / moved, flops / seconds, phase, color, anchor="center", shift=-20)
fig

# %% [markdown]
# Open circles are single matrix products with 1, 2, 4 … rows, timed alone by `hardware.measure()`. They round the corner
# that the theory draws sharp: near the ridge neither clock hides behind the other. And since both axes are logarithmic, the
# slope does not "start at the origin", as drawings of this picture sometimes say. There is no origin on a logarithmic axis;
# the slope starts where we began to draw.
#
# The picture also says what would help. To climb, decode must do more arithmetic with each byte that it fetches. Room
# between a point and the roof is a different story, in two parts. Where the circles lie below the roof, the products do not
# reach the rates that the chip has. Where our points lie below the circles, time goes neither into arithmetic nor into
# bytes; that has its own section, *Where it loses*.

# %% [markdown]
# ## Eight users in one step
#
# Eight users are waiting for their next token. Put their eight tokens into one pass, as eight rows of the same matrices:
# eight times the arithmetic. How many times longer does the step take? Write your number, then run on.

# %% tags=["predict"]
my_guess = 8.0  # times as long as a step for one user

# %% tags=["measure", "nbval-ignore-output"]
users = (1, 2, 4, 8, 16, 32)
sweep = {n: bench.generation(model, 16, 6, n, repeats=1, warmup=0) for n in users}  # five decode steps each
seen = 18  # tokens of context, half-way

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
forecast = {n: cost.predict_decode(config, chip, seen, n, dtype) for n in users}
ratio = [seconds / sweep[1].tpot for seconds in sweep[8].decode.samples]
slower = sweep[8].tpot / sweep[1].tpot
title = f"Eight times the tokens for {slower:.1f} times the time"
reveal(
    guess=my_guess,
    model=forecast[8].seconds / forecast[1].seconds,
    measured=ratio,
    unit="×",
    what="step for 8 users, against 1",
    title=title,
)

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
one, eight = work(config, "decode", 1, seen), work(config, "decode", 8, seen)
gain = 8 / slower
verdict = (
    "Batching is the nearest thing to a free lunch in this field"
    if gain > 3
    else "Even here, where the ridge is low, sharing the weights pays"
    if gain > 1.2
    else "On this run it gave next to nothing: look at the spread, something else used the machine"
)
show.markdown(f"""
Eight users need {eight[0] / one[0]:.0f} times the FLOPs and **{eight[1] / one[1]:.2f} times the bytes**: the weights are
read once, whoever needs them. The intensity rises from {one[0] / one[1]:.2f} to {eight[0] / eight[1]:.2f}. The step takes
{slower:.1f} times as long, so the machine as a whole writes {gain:.1f} times as many tokens per second. {verdict}.
""")

# %% tags=["hide-input", "nbval-ignore-output"]
at, done = zip(
    *[(f / b, f / sweep[n].tpot) for n in users for f, b in [work(config, "decode", n, seen)]], strict=True
)
fig = roof_figure(
    f"From 1 to 32 users decode climbs from {done[0] / peak:.0%} to {done[-1] / peak:.0%} of the peak"
)
line = {"color": palette.orange, "width": 1.5}
fig.add_scatter(x=at, y=done, mode="markers+lines", marker={"size": 11, "color": palette.orange}, line=line)
for n, x, y in zip(users, at, done, strict=True):
    label_line(fig, x, y, f"{n}", palette.orange, anchor="center", shift=-18)
label_line(fig, at[-1], done[-1], "users", palette.orange, anchor="left", shift=-34)
fig

# %% [markdown]
# In 16 bits a batch of $B$ has intensity of about $B$: two FLOPs per user for each weight of two bytes. In fp32 it is
# $B/2$. In 16 bits, reaching the ridge takes as many users as the ridge says, on paper.
#
# ### MFU and MBU
#
# Two percentages say how close a run is to each ceiling.
# [MFU](../book/glossary.md#term-MFU), model FLOPs utilisation, is the FLOPs that the model needs over what the chip could
# have done in that time. [MBU](../book/glossary.md#term-MBU), model bandwidth utilisation, is the bytes that the step must
# read over what memory could have delivered.

# %% tags=["hide-input", "nbval-ignore-output"]
mfu = {n: cost.mfu(work(config, "decode", n, seen)[0], sweep[n].tpot, chip, dtype) for n in users}
mbu = {n: cost.mbu(work(config, "decode", n, seen)[1], sweep[n].tpot, chip) for n in users}
show.table(
    [
        [
            n,
            *(f"{x:.1f}" for x in (sweep[n].tpot * 1e3, 1 / sweep[n].tpot, n / sweep[n].tpot)),
            f"{mfu[n]:.1%}",
            f"{mbu[n]:.0%}",
        ]
        for n in users
    ],
    ["users", "ms per step", "tok/s per user", "tok/s in all", "MFU", "MBU"],
    "rrrrrr",
)

# %% tags=["hide-input", "nbval-ignore-output"]
fig = figure(
    f"More users: MFU rises from {mfu[1]:.0%} to {mfu[32]:.0%}, MBU goes from {mbu[1]:.0%} to {mbu[32]:.0%}",
    x="concurrent users",
    y="share of the ceiling (%)",
    height=360,
)
log_axis(fig, "x", users)
for name, share, color in (("MBU", mbu, palette.blue), ("MFU", mfu, palette.orange)):
    marker = {"size": 9, "color": color}
    fig.add_scatter(
        x=users, y=[100 * share[n] for n in users], mode="lines+markers", marker=marker, line_color=color
    )
    label_line(fig, users[1], 100 * share[2], name, color, anchor="center", shift=18)
fig.update_yaxes(rangemode="tozero")
fig

# %% tags=["hide-input", "nbval-ignore-output"]
meeting = ridge * value / 2
where = (
    f"They meet at the ridge, since MFU over MBU is intensity over ridge: here at about {meeting:.0f} users."
    if meeting <= 32
    else f"They would meet at the ridge, at about {meeting:.0f} users."
)
show.callout(
    "takeaway",
    f"**Takeaway.** A low MFU in decode is no fault. One user reached {mfu[1]:.1%}, and no program could have passed "
    f"{work(config, 'decode', 1, seen)[0] / work(config, 'decode', 1, seen)[1] / ridge:.1%} on this machine. Judge decode by MBU "
    f"at few users and by MFU at many. {where}",
)

# %% [markdown]
# ### Where batching ends
#
# If users are so cheap, why not put 300 of them on an H100 and reach its ridge? Because each brings a cache, which nobody
# shares. It is read anew in every step, and it fills the memory.

# %% tags=["hide-input"]
llama, h100 = CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]
fig = figure(
    "Llama-3-8B on an H100 (predicted): memory is full before decode reaches the ridge",
    x="concurrent users",
    y="intensity (FLOP per byte)",
)
log_axis(fig, "x", [1, 4, 16, 64, 256, 1000])
log_axis(fig, "y", [1, 10, 100, 300])
full = {}
for length, color in ((512, palette.blue), (2048, palette.orange), (8192, palette.green)):
    most = cost.max_users(h100.memory, llama, length)
    batches = np.unique(np.geomspace(1, most, 24).round().astype(int)).tolist()
    level = [cost.step_intensity(llama, n, length) for n in batches]
    full[length] = (most, level[-1])
    fig.add_scatter(x=batches, y=level, mode="lines", line_color=color)
    fig.add_scatter(
        x=[most], y=level[-1:], mode="markers", marker={"color": color, "size": 11, "symbol": "x"}
    )
    label_line(fig, 1.4 * most, level[-1], f"{length:,} tokens", color, anchor="left", shift=0)
fig.add_hline(y=hardware.ridge(h100), line={"color": palette.grey, "dash": "dot"})
label_line(fig, 1, hardware.ridge(h100), "ridge of the H100", palette.grey, anchor="left", shift=-12)
fig.update_xaxes(range=[-0.1, 4.3])
fig.update_yaxes(range=[-0.2, 2.65])
fig

# %% tags=["hide-input", "nbval-check-output"]
show.markdown(
    f"At the crosses the 80 GB are full: {full[512][0]:,} users of 512 tokens, {full[8192][0]:,} of 8,192. With 8,192 tokens "
    f"each, the step never does more than {full[8192][1]:.0f} FLOP per byte, and the ridge is {hardware.ridge(h100):.0f}. "
    "More users raise the intensity of the *weights*; the cache is read for one user alone, however many there are. "
    "Most of this course is about that one sentence."
)

# %% [markdown]
# ## Where the FLOPs are
#
# So far a token cost "two FLOPs per weight". That leaves out attention, which has no weights: each query is multiplied
# with every key, and each attention weight with every value. One token in one layer, at a context of $L$ tokens:
#
# | part | FLOPs | with multi-head attention and a GELU MLP of width $4d$ |
# | --- | --- | --- |
# | projections: query, key, value, output | $2d\,(2 d_q + 2 d_{kv})$ | $8d^2$ |
# | MLP of width $f$ | $6df$ with SwiGLU, $4df$ without | $16d^2$ |
# | attention | $4 L\, d_q$ | $4Ld$ |
#
# with $d_q$ and $d_{kv}$ the width of all query heads and of all KV heads. Sharing KV heads makes the cache smaller and
# not the arithmetic: every query head still asks. Attention draws level with the matrices where $4Ld = 24d^2$, at $L = 6d$.
# That rule is often printed. Here it is for real models, exactly. *Crossover* is the context at which attention and the
# matrices of the layers take equally many FLOPs; the last column gives it in widths $d$ of the model.

# %% tags=["hide-input", "nbval-check-output"]
gelu = CONFIGS["llama-2-7b"].with_(name="d = 4096, MHA, GELU", mlp="gelu", intermediate_size=4 * 4096)
rows = []
for one in (config, gelu, CONFIGS["llama-2-7b"], llama):
    split = cost.flops_per_token(one, 2048)
    parts = [
        f"{part / split.total:.0%}" for part in (split.projections, split.mlp, split.head, split.attention)
    ]
    cross = cost.crossover_context(one)
    rows.append([one.name, *parts, int(cross), f"{cross / one.hidden_size:.2f} d"])
show.table(
    rows,
    ["model", "projections", "MLP", "head", "attention at 2,048", "crossover (tokens)", "in widths"],
    "lrrrrrr",
)

# %% tags=["hide-input", "nbval-check-output"]
seven = CONFIGS["llama-2-7b"]
prefills = {n: cost.prefill_flops(seven, n) for n in (2048, 32768)}
share = {n: f.attention / f.linear for n, f in prefills.items()}
show.markdown(
    f"SmolLM2 is narrow, so attention overtakes its matrices at {cost.crossover_context(config):,.0f} tokens; in Llama-3-8B, "
    f"with shared KV heads and a wide SwiGLU, it takes {cost.crossover_context(llama):,.0f}. SmolLM2's head is "
    f"{cost.flops_per_token(config).head / cost.flops_per_token(config).total:.0%} of its FLOPs: a small model pays for a "
    "large vocabulary.\n\n"
    "In a causal prefill a token sees half of the prompt on average, so the balance tips at twice that length. "
    '"Prefill is linear in the prompt" and "prefill grows with the square" are both said, and both are right somewhere: in '
    f"Llama-2-7B attention adds {share[2048]:.1%} to the matrices at 2,048 tokens and {share[32768]:.0%} at 32,768."
)

# %% [markdown]
# ### Predict
#
# The 256-token prompt took the time in the table above. How many times longer does a prompt of 1,024 take? Four times the
# tokens, or sixteen times the pairs?

# %% tags=["predict"]
my_guess = 4.0  # times the prefill of 256 tokens

# %% tags=["measure", "nbval-ignore-output"]
long = bench.generation(model, 1024, 1, repeats=1, warmup=0)

# %% tags=["reveal", "hide-input", "hide-output", "nbval-ignore-output"]
longer = cost.prefill_flops(config, 1024).total / cost.prefill_flops(config, 256).total
measured = [seconds / alone.ttft for seconds in long.prefill.samples]
title = f"Four times the prompt: {longer:.2f} times the FLOPs, {measured[0]:.1f} times the time"
what = "prefill, 1,024 against 256"
reveal(guess=my_guess, model=longer, measured=measured, unit="×", what=what, title=title, log=False)

# %% tags=["hide-input", "hide-output", "nbval-ignore-output"]
parts = {n: cost.predict_prefill(config, chip, n, 1, dtype) for n in (256, 1024)}
growth = {p: parts[1024].parts[p] / parts[256].parts[p] for p in ("mlp", "attention")}
gap = measured[0] / longer
why = (
    "close to where the FLOPs put it"
    if 0.85 < gap < 1.15
    else "more than the FLOPs say: attention reaches a smaller share of the peak than the matrices, and the values between "
    "operators no longer fit in the chip's caches"
    if gap > 1
    else "less than the FLOPs say: larger products come closer to the peak, and the fixed cost of an operator is spread "
    "over more tokens"
)
show.markdown(
    f"The matrices' FLOPs grow fourfold and the pairs of attention sixteenfold; together that makes {longer:.2f}. The clock says "
    f"{measured[0]:.1f}, {why}. The full forecast, from rates that each operator reached alone, is "
    f"{parts[1024].seconds / parts[256].seconds:.1f} (MLP × {growth['mlp']:.1f}, attention × {growth['attention']:.1f})."
)

# %% [markdown]
# ## How good is the forecast?
#
# `cost.predict_decode` and `cost.predict_prefill` add up what the two clocks say of each operator, with the rates measured
# alone on this machine, and a fixed time per operator. Nothing in them was fitted to SmolLM2. That is worth testing on more
# than two points: here is the whole grid, measured once on a quiet machine by `benchmarks/cost_model.py`.

# %% tags=["hide-input"]
try:
    record = bench.load_evidence("cost_model")
except bench.NoEvidence as missing:
    record = None
    show.callout("note", str(missing))
else:
    cells, total = record["data"]["cells"], record["data"]["summary"]
    batches = sorted({cell["batch"] for cell in cells})
    error = {
        (c["phase"], c["context"], c["batch"]): c["predicted_s"] / c["measured"]["median"] - 1 for c in cells
    }
    lines = sorted({key[:2] for key in error}, key=lambda key: (key[0] != "prefill", key[1]))
    show.table(
        [[p, n, *(f"{error[p, n, b]:+.0%}" for b in batches)] for p, n in lines],
        ["pass", "context", *(f"batch {b}" for b in batches)],
        "lr" + "r" * len(batches),
    )
    show.markdown(
        f"Predicted against measured time. **Median error {total['median_error']:.0%}** over {len(cells)} cells "
        f"(prefill {total['median_error_prefill']:.0%}, decode {total['median_error_decode']:.0%}); the course asks for "
        f"{total['target']:.0%} at most. {record['cpu']}, {record['threads']} threads, {record['date']}."
    )

# %% tags=["hide-input"]
fig = None
if record:
    points = {
        phase: [
            (c["predicted_s"] * 1e3, [1e3 * s for s in c["measured"]["samples"]])
            for c in cells
            if c["phase"] == phase
        ]
        for phase in ("prefill", "decode")
    }
    inside = sum(abs(e) <= 0.25 for e in error.values())
    fig = predicted_vs_measured(points, unit="ms", title=f"{inside} of {len(cells)} forecasts lie within 25%")
fig


# %% tags=["hide-input"]
def likely_cause(cell):
    """What the forecast does not know about this cell."""
    over = cell["predicted_s"] > cell["measured"]["median"]
    if cell["phase"] == "decode" and cell["batch"] > 1:
        return "the rate of a product of few rows depends on its shape, and one curve stands for all shapes"
    if cell["phase"] == "prefill" and over and cell["batch"] * cell["context"] > 512:
        return "the curve of measured products ends at 512 rows, and larger ones come closer to the peak"
    if over:
        return "an operator may find in the caches what the one before it left there; the probes go round all of memory"
    return "operators in a row push each other's data out of the caches, which a probe that runs alone never feels"


if record:
    by_cause = {}
    for cell in sorted(cells, key=lambda c: -c["error"])[:3]:
        took, said = cell["measured"]["median"] * 1e3, cell["predicted_s"] * 1e3
        text = f"{cell['phase']} at batch {cell['batch']}, context {cell['context']:,}: {said:,.0f} ms said, {took:,.0f} ms taken"
        by_cause.setdefault(likely_cause(cell), []).append(text)
    lines = [f"- {'; '.join(some)}. Likely cause: {cause}." for cause, some in by_cause.items()]
    show.markdown("The three worst:\n\n" + "\n".join(lines))

# %% [markdown]
# ## Other chips
#
# The same two numbers describe any chip. What changes from a laptop to an H100 is not only the height of the roof.

# %% tags=["hide-input", "nbval-ignore-output"]
others = [
    (chip, dtype, palette.orange),
    *((hardware.CHIPS[n], "bf16", c) for n, c in (("L4", palette.green), ("H100 SXM", palette.blue))),
]
ridges = [hardware.ridge(one, fmt) for one, fmt, _ in others]
fig = figure(
    f"Arithmetic has outgrown bandwidth: the ridge is at {ridges[0]:.0f} here, at {ridges[-1]:.0f} on an H100",
    x="arithmetic intensity (FLOP per byte)",
    y="roof (FLOP/s)",
    height=340,
)
log_axis(fig, "x", [1, 10, 100, 1000])
log_axis(fig, "y", [10.0**k for k in range(10, 16)])
for (one, fmt, color), at in zip(others, ridges, strict=True):
    corners = [0.3, at, 3000]
    fig.add_scatter(
        x=corners, y=[cost.roofline(x, one, fmt) for x in corners], mode="lines", line_color=color
    )
    fig.add_scatter(x=[at], y=[one.peak(fmt)], mode="markers", marker={"color": color, "size": 10})
    name = "this machine" if one is chip else one.name
    label_line(fig, 3000, one.peak(fmt), f"{name}, {fmt}", color)
fig


# %% tags=["hide-input", "nbval-check-output"]
def chip_row(one, model_config=llama, length=2048, limit=0.05):
    """What a chip gives for one model: a line of a shopping list. All predicted, and bounds."""
    fmt = "bf16" if "bf16" in one.flops else "fp16"
    fits = one.memory > cost.weight_storage(model_config, fmt)
    batch = cost.max_batch(model_config, one, length, limit, fmt, reserve=0.1)
    step = cost.predict_decode(model_config, one, length, max(batch, 1), fmt).seconds
    alone = 1 / cost.predict_decode(model_config, one, length, 1, fmt).seconds if fits else None
    price = (
        one.price_per_hour
        and batch
        and round(cost.cost_per_million_tokens(one.price_per_hour, batch / step), 3)
    )
    ridge = round(hardware.ridge(one, fmt))
    return [one.name, one.bandwidth / 1e12, int(one.memory / 1e9), one.power_w and int(one.power_w), one.price_per_hour, ridge,
            alone, batch or None, price or None]  # fmt: skip


def two_places(row):
    """The same row, with as many decimals as a price tag has."""
    tags = {1: ".2f", 4: ".2f", 6: ".0f", 8: ".3f"}
    return [f"{x:{tags[i]}}" if i in tags and x is not None else x for i, x in enumerate(row)]


names = [
    "T4",
    "L4",
    "A10G",
    "RTX 4090",
    "A100 40GB SXM",
    "A100 80GB PCIe",
    "A100 80GB SXM",
    "H100 SXM",
    "H200 SXM",
    "B200",
    "MI300X",
    "TPU v6e",
]
short = {"A100 40GB SXM": "A100 40G", "A100 80GB PCIe": "A100 PCIe", "A100 80GB SXM": "A100 SXM"}
shop = {name: chip_row(hardware.CHIPS[name]) for name in names}
show.table(
    [[short.get(row[0], row[0]).replace(" ", "\u00a0"), *two_places(row)[1:]] for row in shop.values()],
    ["chip", "TB/s", "GB", "W", "$/hour", "ridge", "tok/s, 1 user", "users at 50 ms", "$ per M tokens"],
    "lrrrrrrrr",
)

# %% tags=["hide-input", "nbval-check-output"]
priced = {name: row[8] for name, row in shop.items() if row[8]}
cheap = min(priced, key=priced.get)
fastest = max((row for row in shop.values() if row[6]), key=lambda row: row[6])[0]
a100s = [row[5] for name, row in shop.items() if name.startswith("A100")]
show.markdown(f"""
Predicted for Llama-3-8B in 16 bits with 2,048 tokens per user; bounds, not promises. Prices are dated estimates of ours
(`hardware.CHIPS[...].price_source`). A dash: the weights do not fit, no batch keeps 50 ms per token, or nothing is known.
Read the table in four questions:

- **Does it fit?** Weights and caches first: capacity decides what can run at all, and how many users share a step.
- **How fast for one user?** Bandwidth alone. The FLOP/s do not appear in that column, and {fastest} leads it.
- **How cheap for many?** Bandwidth and capacity per dollar: here {cheap}, at {priced[cheap]:.3f} $ per million tokens. An A100 and an
  H100 hold the same number of users, because both have 80 GB.
- **What does it draw?** A T4 and an L4 take about 70 W, an H100 ten times that.

Two traps in data sheets. Headline FLOP/s usually assume [2:4](../book/glossary.md#term-2-4) sparsity, which ordinary weights
do not have: halve them, as this table does. And "the A100" is four products: its ridge is {min(a100s)} to {max(a100s)},
not 156.
""")

# %% [markdown]
# ### Why the roofs look like this
#
# A CPU spends its area on a few fast cores and large caches, a GPU on thousands of slow lanes beside stacked memory, a TPU
# on one large matrix unit that a compiler keeps fed. All of them do arithmetic with three kinds of units. *Scalar* units do
# one operation at a time: addresses, loops, Python. *Vector* units do one operation on 8 to 64 numbers: norms, activation
# functions, softmax. *Tensor* units multiply small matrices in one instruction, and the advertised peaks are theirs.

# %% tags=["hide-input", "nbval-check-output"]
a, h = hardware.CHIPS["A100 80GB SXM"], h100
show.markdown(
    f"On an A100 the vector units reach {a.peak('fp32') / 1e12:.1f} TFLOP/s in fp32 and the tensor cores "
    f"{a.peak('bf16') / 1e12:.0f} in bf16, {a.peak('bf16') / a.peak('fp32'):.0f} times as much; on an H100 it is "
    f"{h.peak('bf16') / h.peak('fp32'):.0f} times. An operator that is no matrix product does not see the high roof at all."
)

# %% [markdown]
# Behind both ridges stands the same fact: memory that is large is far away. An H100 has 132 cores, each called an SM
# (streaming multiprocessor), and levels of memory around them
# ([Hopper tuning guide](https://docs.nvidia.com/cuda/hopper-tuning-guide/index.html),
# [white paper](https://resources.nvidia.com/en-us-tensor-core)):
#
# | level | size | what lives there |
# | --- | --- | --- |
# | registers | 256 KB per SM, 33 MB in all | the tile that is being multiplied |
# | shared memory, L1 | up to 228 KB per SM | the next tiles; FlashAttention's scores (chapter 11) |
# | L2 | 50 MB | activations of a decode step |
# | HBM3 | 80 GB at 3.35 TB/s | weights, KV cache: *the* bandwidth of this chapter |
# | another GPU, NVLink | 450 GB/s each way | sharded weights' partial sums |
# | host memory, PCIe 5 × 16 | 64 GB/s each way | swapped-out caches |
#
# NVLink is sold as 900 GB/s, which counts both directions. A cache that moves from one GPU to another moves at half of it.

# %% [markdown]
# ## Where each technique moves the point
#
# Every technique of this course does one of three things: fewer bytes for the same work, more work for the same bytes, or
# less work. With the cost model we can draw where each one moves a decode step *before* learning how it works. The step is
# that of Llama-2-7B on an H100, in 16 bits, with 8 users of 2,048 tokens; all of it is predicted.

# %%
base, fast = CONFIGS["llama-2-7b"], hardware.CHIPS["H100 SXM"]


def decode_point(
    config=base, batch=8, length=2048, weight=2, kv=2, rows=1, tokens=1.0, extra=0.0, on=fast
):  # fmt: skip
    """(FLOP/B, tokens/s) of a step: `rows` tokens a user go in, `tokens` are kept."""
    flops = cost.step_flops(config, batch, length).total * rows
    step = cost.step_bytes(config, batch, length, weight_dtype=weight, kv_dtype=kv)
    moved = step.weights + step.cache_read + step.cache_write
    seconds = max(flops / on.peak(), moved / on.bandwidth) * (1 + extra)
    return flops / moved, batch * tokens / seconds


# %% tags=["hide-input", "nbval-check-output"]
start = decode_point()
again = cost.prefill_flops(base, 2048, 8).total  # without a cache every step computes the whole sequence
weights = cost.weight_bytes(base, "bf16", 8 * 2048)
no_cache = again / weights, 8 / max(again / fast.peak(), weights / fast.bandwidth)
moves = {
    "KV cache instead of none (ch. 4)": (no_cache, start),
    "batch 8 → 32 (ch. 8)": (start, decode_point(batch=32)),
    "KV heads 32 → 8, GQA (ch. 12)": (start, decode_point(base.with_(num_kv_heads=8))),
    "cache in 8 bits (ch. 13)": (start, decode_point(kv=1)),
    "4 drafts, 80% accepted (ch. 15)": (
        start, decode_point(rows=5, tokens=cost.expected_tokens(0.8, 4), extra=0.1 * 4)),
    "weights in 4.5 bits (ch. 17)": (start, decode_point(weight="q4_0")),
    "half of the layers (ch. 20)": (start, decode_point(base.with_(num_layers=16))),
    "H200 instead of H100": (start, decode_point(on=hardware.CHIPS["H200 SXM"])),
}  # fmt: skip
gains = {name: after[1] / before[1] for name, (before, after) in moves.items()}

# %% tags=["hide-input"]
best = max(gains, key=gains.get)
fig = figure(
    f"Most techniques push decode right; the largest gain, × {gains[best]:.0f}, pulls it left",
    x="arithmetic intensity (FLOP per byte)",
    y="technique",
    height=520,
)
log_axis(fig, "x", [1, 10, 100, 1000, 10_000])
for i, (name, (before, after)) in enumerate(moves.items()):
    color = (
        palette.green
        if after[0] < before[0] * 0.99
        else palette.blue
        if after[0] > before[0] * 1.01
        else palette.orange
    )
    ends = np.log10([before[0], after[0]])
    if abs(ends[1] - ends[0]) > 0.01:
        fig.add_annotation(
            x=ends[1],
            y=i,
            ax=ends[0],
            ay=i,
            axref="x",
            ayref="y",
            text="",
            arrowhead=2,
            arrowwidth=2,
            arrowcolor=color,
        )
    hover = (
        f"{name}<br>{before[0]:.1f} → {after[0]:.1f} FLOP/B<br>{gains[name]:.1f} × tokens/s<extra></extra>"
    )
    fig.add_scatter(
        x=[before[0]], y=[i], mode="markers", marker={"color": color, "size": 9}, hovertemplate=hover
    )
    label_line(fig, 0.6, i, f"{name}: <b>× {gains[name]:.1f}</b>", anchor="left", shift=19)
fig.add_vline(x=hardware.ridge(fast), line={"color": palette.grey, "dash": "dot"}, layer="below", opacity=0.5)
fig.add_annotation(
    x=np.log10(hardware.ridge(fast)),
    y=7.6,
    text="ridge",
    showarrow=False,
    xanchor="left",
    font_color=palette.grey,
)
fig.update_yaxes(visible=False, range=[7.9, -0.8])
fig.update_xaxes(range=[-0.25, 4.5])
fig

# %% tags=["hide-input", "nbval-check-output"]
show.markdown(f"""
The bold numbers are tokens per second, after over before. Three readings:

- **Right is not the goal.** Without a KV cache the step sits at {no_cache[0]:,.0f} FLOP per byte, far beyond the ridge, with a
  splendid MFU. It computes the same rows again and again. The cache moves the point *left* and gives × {gains[best]:.0f}.
- **Bits and heads buy bytes**, so their gain depends on which bytes there are. At 8 users and 2,048 tokens,
  {cost.step_bytes(base, 8, 2048).cache_read / cost.step_bytes(base, 8, 2048).total:.0%} of this step is cache: 4-bit weights
  alone give × {gains["weights in 4.5 bits (ch. 17)"]:.1f}, not {16 / 4.5:.1f}.
- **Speculation** fills idle arithmetic: five tokens checked for one read. It is worth × {gains["4 drafts, 80% accepted (ch. 15)"]:.1f}
  while the point is left of the ridge, and nothing once batching has already taken it there.

Compiled graphs (chapter 21) move nothing on this picture. They remove what the picture leaves out: see *Where it loses*.
""")

# %% [markdown]
# ## Build it
#
# The whole model in a few lines: the work of a decode step from the config alone, then the longer of two clocks. No weights
# are touched and nothing is run.


# %%
def decode_step(c, batch, context, bytes_each):
    """FLOPs and bytes of a decode step: `batch` users, `context` tokens each."""
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    projections = c.hidden_size * (queries + 2 * keys)  # q, k, v
    projections += queries * c.hidden_size  # and the output
    mlp = 3 * c.hidden_size * c.intermediate_size  # gate, up, down
    head = c.hidden_size * c.vocab_size
    matrices = c.num_layers * (projections + mlp) + head
    pairs = c.num_layers * 2 * queries * context  # q·k and p·v
    flops = 2 * batch * (matrices + pairs)

    norms = (2 * c.num_layers + 1) * c.hidden_size
    looked_up = batch * c.hidden_size  # one embedding row a user
    cache = batch * c.num_layers * 2 * keys * (context + 1)  # read all, write one
    return flops, (matrices + norms + looked_up + cache) * bytes_each


def roofline(flops, moved, peak, bandwidth):
    """Seconds at least, and the resource that sets them."""
    clocks = {"compute": flops / peak, "memory": moved / bandwidth}
    limit = max(clocks, key=clocks.get)
    return clocks[limit], limit


# %% [markdown]
# Is it right? Against `lumen.cost` for several models and shapes, and against torch, which counts the FLOPs of the real
# SmolLM2 while it runs.

# %% tags=["nbval-check-output"]
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

shapes = [
    (name, b, n)
    for name in ("smollm2-135m", "llama-3-8b", "llama-2-70b")
    for b in (1, 8)
    for n in (1, 777, 4096)
]
for name, b, n in shapes:
    flops, moved = decode_step(CONFIGS[name], b, n, 2)
    step = cost.step_bytes(CONFIGS[name], b, n, "bf16")
    assert flops == cost.step_flops(CONFIGS[name], b, n).total
    assert moved == step.weights + step.cache_read + step.cache_write

# in bf16, because torch's counter does not know the product of packed fp32 weights
counted_model = lumen.load("smollm2-135m", dtype=torch.bfloat16).model
cache = lumen.StaticCache.for_model(counted_model, 3, 32)
tokens = torch.arange(51, device=session.device).view(3, 17)
# with plain attention, of which torch sees each product
with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
    counted_model(tokens[:, :16], None, cache)
    with FlopCounterMode(display=False) as counter:
        counted_model(tokens[:, 16:], None, cache)
counted, ours = counter.get_total_flops(), decode_step(config, 3, 17, 4)[0]
assert counted == ours
print(f"equal to lumen.cost on {len(shapes)} shapes")
print(f"torch counts {counted:,} FLOPs, we say {ours:,}")
del counted_model

# %% [markdown]
# ## Where it loses
#
# The roofline is a bound: no pass is faster than both clocks. It never promised that a pass is as fast. Between two
# operators there is Python, a dispatcher, a kernel to start; and none of it is on the picture. A small model shows it best.

# %% tags=["nbval-ignore-output"]
toy = lumen.ModelConfig("toy: 24 layers of width 32", 64, 24, 32, 4, 2, 8, 32, 64)
small = {toy.name: lumen.Llama(toy), "gptlite": lumen.GPTlite(CONFIGS["gptlite"])}
runs = {
    name: bench.generation(m.to(session.device, session.dtype).eval(), 16, 17) for name, m in small.items()
}
runs["smollm2-135m"] = alone

# %% tags=["hide-input", "nbval-ignore-output"]
rows, gaps = [], {}
for name, run in runs.items():
    shape = {**{n: m.config for n, m in small.items()}, "smollm2-135m": config}[name]
    bound = max(
        f / peak if k == 0 else f / bandwidth
        for k, f in enumerate(work(shape, "decode", 1, run.prompt_len + 4))
    )
    gaps[name] = run.tpot / bound
    toll = cost.operators(shape) * chip.overhead_s
    rows.append(
        [name, cost.weight_bytes(shape, dtype) / 1e6, bound * 1e3, run.tpot * 1e3, gaps[name], toll * 1e3]
    )
show.table(
    rows,
    ["model", "MB read", "two clocks (ms)", "measured (ms)", "ratio", "operators × their toll (ms)"],
    "lrrrrr",
)
tolls = {row[0]: row[5] for row in rows}
eighth = cost.predict_decode(llama, chip, 260, 1, dtype)
show.markdown(
    f"The toy takes {gaps[toy.name]:,.0f} times what the clocks say. The toll is the fixed cost of an operator, "
    f"{chip.overhead_s * 1e6:.0f} µs as measured alone; {cost.operators(toy):,} of them make "
    f"{min(1, tolls[toy.name] / (1e3 * runs[toy.name].tpot)):.0%} of the toy's step. SmolLM2 has {cost.operators(config):,} "
    f"and takes {gaps['smollm2-135m']:.1f} times its bound: {tolls['smollm2-135m']:.1f} ms of the step are toll, and what "
    "else is missing are products that do not reach the full bandwidth. Llama-3-8B would pay about the same toll on this "
    f"machine in a step of {eighth.seconds:.1f} s, and nobody would notice. The smaller the model or the faster the memory, "
    "the more of a step is neither arithmetic nor bandwidth."
)

# %% [markdown]
# ### A negative control
#
# A bound that nothing can break says nothing. So let us try to break it: read arrays of different sizes, again and again,
# as a careless bandwidth benchmark does. Small ones should come out *above* the roof, because after the first round they no
# longer come from memory.


# %% tags=["measure", "nbval-ignore-output"]
def read_rate(size):
    """Bytes per second of summing `size` bytes over and over."""
    data = torch.ones(size // 4, device=session.device)
    inner = max(1, 2**22 // size)
    return size / bench.measure(data.sum, repeats=20, inner=inner, budget_s=0.12).best


sizes = [2**k for k in range(18, 29)]  # 256 KiB to 256 MiB
rates = {size: read_rate(size) for size in sizes}

# %% tags=["hide-input", "nbval-ignore-output"]
peak_size = max(rates, key=rates.get)
memory = max(bandwidth, rates[sizes[-1]])  # what the largest array got counts as memory, too
over = rates[peak_size] / memory
fig = figure(
    f"An array of {peak_size / 2**20:g} MiB is read {over:.1f} times as fast as memory allows"
    if over > 1.1
    else "On this run no array was read faster than memory delivers",
    x="size of the array (MiB)",
    y="apparent bandwidth (GB/s)",
    height=360,
)
fig.add_scatter(
    x=[s / 2**20 for s in sizes],
    y=[r / 1e9 for r in rates.values()],
    mode="lines+markers",
    line_color=palette.orange,
)
fig.add_hline(y=bandwidth / 1e9, line={"color": palette.grey, "dash": "dot"})
log_axis(fig, "x", [0.25, 1, 4, 16, 64, 256])
label_line(fig, 0.25, bandwidth / 1e9, "the roof: chip.bandwidth", palette.grey, anchor="left", shift=-12)
fig.update_yaxes(rangemode="tozero")
fig

# %% tags=["hide-input", "nbval-ignore-output"]
beyond = [s for s in sizes if rates[s] > 1.1 * memory]
small_ones = (
    " Still smaller ones are read before the next sum can be started: that is the toll again."
    if beyond[:1] > sizes[:1]
    else ""
)
drift = (
    f" (The largest array got {memory / 1e9:.0f} GB/s, more than the dotted line says. On a shared machine memory has good "
    "minutes and bad ones, and a cache may be larger than the machine admits; so we compare with the better of the two.)"
    if memory > 1.1 * bandwidth
    else ""
)
show.markdown(
    f"Arrays of {min(beyond) / 2**20:g} to {max(beyond) / 2**20:g} MiB beat the roof, so they came from the chip's own "
    f"caches.{small_ones}{drift} The control "
    "fails as it should, and the lesson holds for models too: the roof is a statement about memory, and a model small enough "
    "to stay in the last-level cache does not live under it. `hardware.measure()` goes round at least 512 MiB, and "
    f"SmolLM2's {cost.weight_bytes(config, dtype) / 2**20:.0f} MiB do not fit either."
    if beyond
    else "No size beat the roof by 10% here: the caches are too small or too slow for this test, or the machine was busy. "
    "On a quiet desktop or server the left half of the curve stands well above the line."
)

# %% [markdown]
# ## How this could fool you
#
# | trap | how it looks | guard here |
# | --- | --- | --- |
# | the benchmark's array fits in a cache | bandwidth above the data sheet, MBU of every model too low | probes go round eight times the last-level cache, 512 MiB at least |
# | multiply-adds counted once, or a peak with 2:4 sparsity | MFU half, or half again, of what it is | two FLOPs a multiply-add; dense peaks only |
# | MFU taken for the goal | recomputing everything scores best | tokens per second stand beside every percentage |

# %% [markdown]
# ## Play
#
# Move the batch and the context. Start with this machine, then try to take Llama-3-8B to the ridge of an H100 with 2,048
# tokens a user. No number of users is enough, and 4-bit weights do not help. What does?

# %% tags=["hide-input", "nbval-ignore-output"]
Roofline(
    chips=[chip, "H100 SXM", "A100 80GB SXM", "L4", "MI300X"],
    models=["smollm2-135m", "llama-3-8b"],
    formats=("fp32", "bf16", "q8_0", "q4_0"),
    format="fp32" if dtype == "fp32" else "bf16",
    context=256,
    title="Where on the roofline?",
)

# %% [markdown]
# And a roof of your own to stand under. Multiply one matrix of any size, on the machine that runs this page. Start with one
# row and double it until the share of the roof stops growing. Then tick the box, so that the weight stays in the chip's own
# cache, and watch the roof being broken.

# %% tags=["nbval-ignore-output"]
lab = matmul_lab(rows=8, inputs=576, outputs=3072, chip=chip)
# %% [markdown]
# ## In production
#
# | engine | what moves or shows the point | where |
# | --- | --- | --- |
# | vLLM 0.15 | `--max-num-seqs` caps the users of a step, `--max-num-batched-tokens` its rows; `vllm bench latency --batch-size 8 --input-len 32 --output-len 128` times one batch | [docs](https://docs.vllm.ai/en/v0.15.0/api/vllm/benchmarks/latency/) |
# | SGLang, docs of 2026 | `python -m sglang.bench_one_batch --batch-size 1 8 32` runs the model alone, without server and scheduler | [docs](https://github.com/sgl-project/sglang/blob/main/docs/developer_guide/benchmark_and_profiling.md) |
# | TensorRT-LLM 1.0 | `trtllm-bench throughput` and `latency`; `--max_batch_size`, `--max_num_tokens` | [docs](https://nvidia.github.io/TensorRT-LLM/1.0.0rc6/commands/trtllm-bench.html) |
# | llama.cpp, 2025 | `llama-batched-bench -npp 128 -ntg 128 -npl 1,2,4,8,16,32`: prefill and decode speed for each number of users | [docs](https://github.com/ggml-org/llama.cpp/tree/master/tools/batched-bench) |
#
# The columns to look for are decode tokens/s against users: on the slope they rise almost in proportion, at the ridge they
# stop. `-npl` of llama.cpp draws the figure of this chapter for any GGUF on any machine.

# %% [markdown]
# ## Recap

# %% tags=["hide-input", "nbval-ignore-output"]
paper = work(config, "decode", 1, context)[1] / bandwidth
toll = cost.operators(config) * chip.overhead_s
show.markdown(f"""
- **Which resource binds?** Compare FLOP per byte with peak over bandwidth. Here decode stands at {step_intensity:.2f}, the ridge at
  {ridge:.1f}, the prefill of 256 tokens at {work(config, "prefill", 1, 256)[0] / work(config, "prefill", 1, 256)[1]:.0f}.
- **Predict a step:** the longer of FLOPs / peak and bytes / bandwidth, {paper * 1e3:.1f} ms for SmolLM2's
  decode step; measured {alone.tpot * 1e3:.1f} ms. Of the difference {toll * 1e3:.1f} ms is the start of operators, a share
  that grows as models shrink; the rest are products that do not reach the full bandwidth.
- **MFU and MBU:** {mfu[1]:.1%} and {mbu[1]:.0%} for one user, {mfu[32]:.0%} and {mbu[32]:.0%} for 32. Eight users took
  {slower:.1f} times the time of one.
- **Choose a chip:** capacity first, bandwidth for one user, both per dollar for many; dense FLOP/s only where the work is
  right of the ridge. For Llama-3-8B attention overtakes the matrices at {cost.crossover_context(llama):,.0f} tokens, in
  SmolLM2 at {cost.crossover_context(config):,.0f}.
""")

# %% [markdown]
# ## Quiz

# %% tags=["hide-input"]
two_cards = cost.bandwidth_bound(140e9 / 2, h100)
Quiz(
    [
        {
            "question": "Decode at batch 1 runs at an MFU of 1% on an H100. What do you do first?",
            "choices": [
                {
                    "text": "Look at MBU",
                    "ok": True,
                    "why": "Left of the ridge bandwidth sets the time. An MBU of 80% says that there is little to gain at this batch.",
                },
                {
                    "text": "Write a faster matmul kernel",
                    "why": "At 1 FLOP per byte the arithmetic units wait whatever the kernel does.",
                },
                {
                    "text": "Buy a chip with more FLOP/s",
                    "why": "Its ridge would only be further away. Time here follows bandwidth.",
                },
                {
                    "text": "Nothing: 1% cannot be right",
                    "why": "Intensity 1 against a ridge near 295 allows 0.34%, so 1% at batch 1 already means fewer than 16 bits a weight, or several rows.",
                },
            ],
        },
        {
            "kind": "numeric",
            "question": "The ridge of an A100 80 GB SXM: 312 TFLOP/s dense in bf16, 2,039 GB/s. In FLOP per byte?",
            "answer": hardware.ridge(a100),
            "tolerance": 1,
            "unit": "FLOP/B",
            "right": "Peak over bandwidth. The 156 that circulates divides by 2.0 TB/s.",
            "wrong": "Divide FLOP/s by bytes per second, and watch the prefixes.",
            "slips": [
                {"answer": 2 * hardware.ridge(a100), "why": "624 TFLOP/s is the headline with 2:4 sparsity."},
                {
                    "answer": hardware.ridge(a100, "fp32"),
                    "tolerance": 0.3,
                    "why": "19.5 TFLOP/s are the fp32 vector units.",
                },
            ],
        },
        {
            "kind": "numeric",
            "question": "A 70B model in BF16 'runs at 24 tokens/s on an H100'. But 140 GB do not fit on 80. With tensor parallelism over two cards, each reading half: tokens/s at best, for one user?",
            "answer": two_cards,
            "tolerance": 1,
            "unit": "tok/s",
            "right": "70 GB at 3.35 TB/s each. A bound: it leaves out the cache and what the cards have to tell each other.",
            "wrong": "Each card reads its half of the weights for every token, at its own bandwidth.",
            "slips": [
                {
                    "answer": two_cards / 2,
                    "tolerance": 1,
                    "why": "That is the number for one card that could hold all 140 GB at 3.35 TB/s. There is none.",
                }
            ],
        },
        {
            "question": "A model with 32 KV heads gets 8 instead (GQA). What happens to attention's FLOPs in a decode step?",
            "choices": [
                {
                    "text": "They stay the same",
                    "ok": True,
                    "why": "All query heads still meet all keys. The cache's bytes fall to a quarter, so intensity rises.",
                },
                {
                    "text": "They fall to a quarter",
                    "why": "That is what the cache does. The number of query heads has not changed.",
                },
                {
                    "text": "They quadruple",
                    "why": "Nothing is computed more often. Shared keys are read once for four query heads.",
                },
            ],
        },
        {
            "question": "A benchmark reads a 16 MiB array 1,000 times and reports three times the bandwidth of the data sheet. Why?",
            "choices": [
                {
                    "text": "The array stayed in the last-level cache",
                    "ok": True,
                    "why": "Memory delivered it once. Read something larger than the cache, in turn.",
                },
                {
                    "text": "Data sheets are conservative",
                    "why": "They state what memory can do at best; programs stay below it.",
                },
                {
                    "text": "It forgot to warm up",
                    "why": "A missing warm-up makes a result slower, not faster.",
                },
            ],
        },
    ],
    id="02",
)

# %% [markdown]
# ## Exercises
#
# [Open the exercises](../exercises/02_roofline.ipynb), with checks that look at your own functions.

# %% tags=["hide-input"]
show.markdown(lumen.grading.table("02"))

# %% [markdown]
# ## Further reading
#
# - Williams, Waterman and Patterson, [Roofline](https://doi.org/10.1145/1498765.1498785) (2009): read it for the ceilings
#   *below* the roof, each named after the optimisation that is missing.
# - Pope et al., [Efficiently scaling transformer inference](https://arxiv.org/abs/2211.05102) (2022): read it for MFU against
#   latency on a 540B model, and for how the best layout changes between prefill and decode.
# - Chowdhery et al., [PaLM](https://arxiv.org/abs/2204.02311) (2022), section 4.1 and appendix B: read it for the definition
#   of MFU, and why the FLOPs of recomputation do not count.
# - Austin et al., [How to scale your model](https://jax-ml.github.io/scaling-book/roofline/) (2025): read it for the same
#   picture drawn for TPUs and for the links between chips.
# - Databricks, [LLM inference performance engineering](https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices)
#   (2023): read it for MBU measured on real clusters.

# %% [markdown]
# ## Provenance

# %% tags=["hide-input", "nbval-ignore-output"]
source = f"book/evidence/cost_model.json, {record['date']}" if record else "none yet for the accuracy table"
show.table(
    [
        ["machine", chip.name],
        ["ceilings", f"{bandwidth / 1e9:.1f} GB/s, {peak / 1e9:,.0f} GFLOP/s in {dtype}; {chip.note}"],
        ["versions", ", ".join(f"{name} {number}" for name, number in session.versions.items())],
        ["seed", str(session.seed)],
        ["evidence", source],
        ["datasheet chips", "lumen/hardware/chips.py, a source for each row"],
    ],
    ["what", "value"],
)
