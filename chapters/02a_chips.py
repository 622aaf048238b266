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
# # 2a · Chips and their roofs

# %% [markdown] tags=["badges"]
# <div class="badges">
#
# [Colab: chapter](https://colab.research.google.com/github/lumen-course/lumen/blob/main/chapters/02a_chips.ipynb)
#
# CPU is enough · read 10 min · run 1 min
#
# </div>

# %% [markdown]
# [Chapter 2](02_roofline.ipynb) needs two numbers of a chip, its peak and its bandwidth. With the memory they decide what a
# token costs. **One card for a dollar an hour, another for three: what is the factor between their tokens?**
#
# That is a question about data sheets. Then: how far programs stay behind those, how far prices lie apart, and what a
# chip is made of that its roof looks so.
#
# Needs: [the roofline](02_roofline.ipynb).
#
# New terms: [tensor core](../book/glossary.md#term-tensor-core), [HBM](../book/glossary.md#term-HBM),
# [SRAM](../book/glossary.md#term-SRAM), [2:4](../book/glossary.md#term-2-4).

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

session = lumen.setup("02a_chips")

# %% tags=["hide-input"]
from dataclasses import replace

from lumen import cost, hardware
from lumen.config import CONFIGS
from lumen.explore import (
    guess,
    markdown,
    provenance,
    published_misses,
    published_rows,
    published_table,
    reveal,
    table,
)
from lumen.pages import ch02, chips, chips_prices, chips_roofs

chip, dtype = hardware.measure(), cost.dtype_name(session.dtype)

# %% [markdown]
# ## Predict: two price tags

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.tags())

# %% tags=["predict"]
my_price = guess(
    "02a-price",
    "A million tokens: H100 over A10G, how many times the price?",
    unit="×",
)

# %% tags=["measure", "nbval-check-output"]
cheap, dear = chips.two_cards()

# %% tags=["reveal", "nbval-check-output"]
reveal(
    guess=my_price, model=chips.hours(cheap, dear),
    bound=chips.tokens(cheap, dear), unit="×", what="H100 over A10G",
    names=("an hour", "a million tokens"), title=chips.two_title(cheap, dear),
)  # fmt: skip

# %% tags=["reveal", "nbval-check-output"]
markdown(chips.two_cards_story(cheap, dear))

# %% tags=["reveal", "nbval-check-output"]
chips.room_figure()

# %% [markdown]
# ## Twelve chips, one model

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips.chips_table()
table(rows, headers, sides, stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.reading())

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips.cheap_table()
table(rows, headers, sides, stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.why_cheap())

# %% [markdown]
# ## Predict: a full chip
#
# The users of that H100 go on talking until each has 8,192 tokens behind them, not 2,048. The chip takes as many as fit.

# %% tags=["predict"]
my_full = guess(
    "02a-full",
    "A full H100's step, contexts 4 times as long: how many times as long?",
    unit="×",
)

# %% tags=["reveal", "nbval-check-output"]
reveal(
    guess=my_full, model=chips.GROWN / chips.CONTEXT, bound=chips.grown(),
    unit="×", what="8,192 over 2,048 tokens", title=chips.full_title(),
    names=("a context", "a full step"),
)  # fmt: skip

# %% tags=["reveal", "nbval-check-output"]
markdown(chips.full_story())

# %% [markdown]
# ### Your model, your limit

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.tight_question())

# %% tags=["nbval-check-output"]
model, context, limit = CONFIGS["llama-3-8b"], 2048, 0.05
mine = hardware.CHIPS["H100 SXM"]

fmt = chips.form(mine)  # bf16, or fp16 where a chip has no other
room = cost.max_users(mine.memory, model, context, fmt, fmt, 0.1)
endless = replace(mine, memory=1e15)
quick = cost.max_batch(model, endless, context, limit, fmt)
users, decides = min((room, "memory"), (quick, "time"))
print(f"{mine.name}: {room} fit, {quick} are in time")
print(f"{decides} decides: {users} users")
if users:
    step = cost.predict_decode(model, mine, context, users, fmt)
    rate = users / step.seconds
    print(f"{1e3 * step.seconds:.1f} ms a step, {rate:,.0f} tok/s at most")

# %% tags=["reveal", "nbval-check-output"]
markdown(chips.tight_story())

# %% [markdown]
# ## What others measured
#
# All of these are bounds. How far do programs stay behind them? `measured / bound` is 1 for one that does all that peak and
# bandwidth allow. A [decode](../book/glossary.md#term-decode) and a
# [prefill](../book/glossary.md#term-prefill) are one pass; an *answer* is a whole batch of prompts and answers, per token.

# %% tags=["hide-input"]
published_misses()

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_prices.left_out_text())

# %% tags=["hide-input", "nbval-check-output"]
published_table()

# %% tags=["hide-input", "nbval-check-output"]
published_rows()

# %% [markdown]
# Few set-ups stand behind each line, and they differ in model, batch and year: the table compares programs as much as chips.
#
# ### What vendors ask

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips_prices.prices_table()
table(rows, headers, sides, stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_prices.prices())

# %% [markdown]
# ## Why the roofs look so
#
# A roof has two edges, and different parts of a chip set them: the slope its memory, the ceiling its arithmetic units. Of
# those there are three kinds. *Scalar* units do one operation at a time: addresses, loops. *Vector* units do one
# operation on many numbers: norms, activation functions, softmax. *Tensor* units multiply small matrices in one
# instruction; the advertised peaks are theirs, where a chip has them.
#
# A CPU spends its area on a few fast cores and large caches, a GPU on thousands of slow lanes, a TPU on a few large
# matrix units that a compiler keeps fed.

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_roofs.units())

# %% tags=["hide-input", "nbval-ignore-output"]
chips_roofs.roofs(chip, dtype)

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips_roofs.operators_table()
table(rows, headers, sides)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_roofs.operators_text())

# %% [markdown]
# ### Three generations

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips_roofs.growth_table()
table(rows, headers, sides)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_roofs.growth())

# %% [markdown]
# ### From near to far
#
# Large memory is far away. The memory on the chip itself ([SRAM](../book/glossary.md#term-SRAM)) is fast and small, the
# memory beside it large and slower, everything else farther still. An H100 SXM has 132 cores, each called an SM (streaming
# multiprocessor), and these levels around them.

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips_roofs.levels()
table(rows, headers, sides, stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips_roofs.rates())

# %% [markdown]
# ## FLOPs, model by model
#
# Chapter 2 quotes this table. A layer's matrices take $2d\,(2 d_q + 2 d_{kv})$ FLOPs a token for attention's four ($d$ the
# hidden size, $d_q$ and $d_{kv}$ the widths of all query and all KV heads) and $2df$ for each of the MLP's two or, with a
# gate, three ($f$ is its width). [Attention](02_roofline.ipynb#where-the-flops-are) takes $4 L\, d_q$ at a context of $L$.
#
# With all heads alike and two of $f = 4d$ (the table's textbook) that is $24 d^2$ against $4 L\, d$: level at $L = 6d$, the
# *crossover*. Shares of a token at 2,048, rounded so that a row adds up to 100 %.

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = ch02.flops_table()
table(rows, headers, sides, stack=True)

# %% [markdown]
# ## The forecast, pass by pass
#
# SmolLM2-135M, predicted against measured by `benchmarks/cost_model.py`. Minus: the forecast is too short.

# %% tags=["hide-input"]
markdown(chips.forecast())

# %% [markdown]
# ## Provenance
#
# Data sheets: `lumen/hardware/chips.py`, a source for each row; links: `lumen/hardware/links.py`; published measurements:
# `lumen/cost/data/published.yml`.

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, evidence=["cost_model"], chip=chip)
