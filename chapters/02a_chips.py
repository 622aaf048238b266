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
# # 2a · Chips, and why their roofs look so

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
# token costs. **One card for a dollar an hour, another for three: whose tokens are cheaper?**
#
# Then: twelve chips and what their data sheets say about one model; how far other people's measurements lie from that; why
# every roof has a ridge; and two tables that chapter 2 quotes.
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
from lumen.pages import ch02, chips

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

# %% tags=["reveal", "nbval-check-output"]
rows, headers, sides = chips.prices_table()
table(rows, headers, sides, stack=True)

# %% tags=["reveal", "nbval-check-output"]
markdown(chips.unpriced())

# %% [markdown]
# ## Twelve chips, one model

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips.chips_table()
table(rows, headers, sides, stack=True)

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.reading())

# %% [markdown]
# ## Your model, your limit
#
# The table's own two calls. Change the model, the context, the limit or the chip: for which contexts, long ones or short
# ones, is it the limit and not the memory that decides how many users an H100 takes?

# %% tags=["nbval-check-output"]
model, context, limit = CONFIGS["llama-3-8b"], 2048, 0.05
mine = hardware.CHIPS["H100 SXM"]

most = cost.max_batch(model, mine, context, limit, reserve=0.1)
room = cost.max_users(mine.memory, model, context, reserve=0.1)
print(f"{mine.name}: room for {room} users, {most} of them in time")
if most:
    step = cost.predict_decode(model, mine, context, most)
    rate = most / step.seconds
    print(
        f"{1e3 * step.seconds:.1f} ms a step, {rate:,.0f} tokens/s at most"
    )

# %% [markdown]
# ## What others measured
#
# How far measured times lie above such bounds, by chip: `measured / bound` is 1 when a program does all that peak and
# bandwidth allow. `prefill` and `decode` are one pass, `answer` a whole batch of prompts and answers, per token.

# %% tags=["hide-input"]
published_misses()

# %% tags=["hide-input", "nbval-check-output"]
published_table()

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.left_out_text())

# %% [markdown]
# Few set-ups stand behind each line, and they differ in model, batch and year: the table compares programs as much as chips.

# %% tags=["hide-input", "nbval-check-output"]
published_rows()

# %% [markdown]
# ## Why the roofs look like this

# %% tags=["hide-input", "nbval-ignore-output"]
chips.roofs(chip, dtype)

# %% [markdown]
# A CPU spends its area on a few fast cores and large caches, a GPU on thousands of slow lanes beside fast memory, a TPU on a
# few large matrix units that a compiler keeps fed. They do arithmetic with three kinds of units. *Scalar* units do one
# operation at a time: addresses, loops, Python. *Vector* units do one operation on many numbers: norms, activation functions,
# softmax. *Tensor* units multiply small matrices in one instruction; the advertised peaks are theirs, where a chip has them.

# %% tags=["hide-input", "nbval-check-output"]
markdown(chips.units())

# %% [markdown]
# Behind every ridge stands the same fact: memory that is large is far away. The memory on the chip itself
# ([SRAM](../book/glossary.md#term-SRAM)) is fast and small, the memory beside it large and slower, and everything else
# farther still. An H100 has 132 cores, each called an SM (streaming multiprocessor), and these levels around them. Sizes:
# [Hopper tuning guide](https://docs.nvidia.com/cuda/hopper-tuning-guide/index.html),
# [white paper](https://resources.nvidia.com/en-us-tensor-core). Rates inside the chip are bytes a clock
# ([table 3 here](https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015); registers: three operands for every
# multiply-add) times the clock that the fp32 peak implies: no program was timed.

# %% tags=["hide-input", "nbval-check-output"]
rows, headers, sides = chips.levels()
table(rows, headers, sides, stack=True)

# %% [markdown]
# NVLink is sold as 900 GB/s, both directions together; a cache that moves to another GPU gets half of it at most.
#
# ## FLOPs, model by model
#
# Chapter 2 quotes this table. A layer's matrices take $2d\,(2 d_q + 2 d_{kv})$ FLOPs a token for attention's four ($d$ the
# hidden size, $d_q$ and $d_{kv}$ the widths of all query and all KV heads) and $2df$ for each of the MLP's two or, with a
# gate, three ($f$ is its width). [Attention](02_roofline.ipynb#where-the-flops-are) takes $4 L\, d_q$ at a context of $L$. With all
# heads alike and two of $f = 4d$ (the table's textbook) that is $24 d^2$ against $4 L\, d$: level at $L = 6d$, the
# *crossover*. Shares of a token at 2,048.

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
# Data sheets: `lumen/hardware/chips.py`, a source for each row (Apple's peaks: our estimate); links: `lumen/hardware/links.py`; published measurements:
# `lumen/cost/data/published.yml`.

# %% tags=["hide-input", "nbval-ignore-output"]
provenance(session, evidence=["cost_model"], chip=chip)
