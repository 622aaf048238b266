"""What chapter 01 shows: one prompt, passes of many sizes, floors and levers. Functions of data, no clock, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lumen import cost, hardware
from lumen.bench import Estimate, miss, outcome, says, sentence
from lumen.bench.numbers import percent
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.figures.waterfall import waterfall
from lumen.explore.prose.boxes import milliseconds
from lumen.models.counts import products

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured
    from lumen.config import ModelConfig
    from lumen.hardware import Chip

Table = tuple[list[list[Any]], list[str], str]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # of one pass; the store's prefills of these lengths
PASSES = ROWS[:-1]  # those of the page: up to its own prompt
A100, H100 = hardware.CHIPS["A100 80GB SXM"], hardware.CHIPS["H100 SXM"]
SHADE = "rgba(128,136,144,.18)"
READING = 238  # words a minute, silent reading of English non-fiction: Brysbaert 2019, mean of 190 studies
DEEPSEEK = (
    "https://github.com/deepseek-ai/open-infra-index/blob/main/202502OpenSourceWeek/"
    "day_6_one_more_thing_deepseekV3R1_inference_system_overview.md"
)


# one prompt, one answer ---------------------------------------------------------------------------
def worth(read: Measured, step: Measured) -> float:
    """Tokens of the prompt whose share of the prefill takes as long as one token of the answer."""
    return step.seconds / (read.seconds / read.name.context)


def opening(read: Measured, step: Measured) -> str:
    length = read.name.context
    return (
        f"The {length} tokens of the prompt take **{milliseconds(read.seconds)}**, which is "
        f"{milliseconds(read.seconds / length)} each. One token of the answer takes **{milliseconds(step.seconds)}**: "
        f"as much as **{worth(read, step):.0f} tokens of the prompt**. Keep that number. The rest of the page explains "
        "it, and then moves it."
    )


def staircase_figure(times: Sequence[float], prompt: int) -> go.Figure:
    """One generation: tokens that the model has been through, against the clock. `times` of each token, in s."""
    when = [1e3 * t for t in times]
    written = when[0] / ((when[-1] - when[0]) / (len(when) - 1))  # tokens, in the time of the prefill
    count = f"{written:.0f}" if written >= 2 else f"{written:.1f}"
    fig = figure(
        f"One run: {prompt} tokens are read in the time it takes to write {count}",
        x="time (ms)",
        y="tokens the model has been through",
    )
    fig.add_scatter(x=[0, when[0]], y=[0, prompt], mode="lines", line={"color": palette.blue, "width": 4})
    steps = list(range(prompt, prompt + len(when)))
    fig.add_scatter(
        x=when, y=steps, mode="lines+markers", line={"color": palette.orange, "shape": "hv"}
    )  # a step's token is through when the next one comes
    fig.add_vrect(x0=when[0], x1=min(2 * when[0], when[-1]), fillcolor=SHADE, line_width=0, layer="below")
    spans = [
        f"<b>{name}</b><br>{n} in {when[0]:.0f} ms" for name, n in (("prefill", prompt), ("decode", count))
    ]
    label_line(fig, when[0] / 2, prompt / 2, spans[0], palette.blue, anchor="left", shift=-22)
    label_line(fig, when[0], prompt, spans[1], palette.orange, anchor="left", shift=-26)
    return fig


# the model ----------------------------------------------------------------------------------------
def matrices(config: ModelConfig, dtype: object, prompt: int) -> Table:
    """Bytes and arithmetic of each matrix, for one row and for a prompt, of which only the last row meets the head."""
    size = cost.bytes_per_value(dtype)
    rows: list[list[Any]] = []
    for m in cost.matmuls(config):
        met = 1 if m.part == "head" else prompt
        rows.append([m.name, m.weights * size / 1e6, 2 * m.weights / 1e6, 2 * m.weights * met / 1e9, m.count])
    one, many = (sum(row[i] for row in rows) for i in (2, 3))
    rows.append(["all", cost.weight_bytes(config, dtype) / 1e6, one, many, None])
    return rows, ["matrix", "MB to read", "MFLOP, 1 row", f"GFLOP, {prompt} rows", "layers"], "lrrrr"


def clocks(config: ModelConfig, chip: Chip, dtype: object) -> tuple[float, float]:
    """To read the weights once, and the arithmetic of one row at the peak. [s]"""
    one_row = 2 * cost.parameters(config).total / chip.peak(dtype)
    return cost.weight_bytes(config, dtype) / chip.bandwidth, one_row


def symbols(config: ModelConfig, chip: Chip, dtype: object) -> Table:
    """The formula's symbols as numbers of this machine."""
    n, w = cost.parameters(config).total, cost.weight_bytes(config, dtype)
    read, row = clocks(config, chip, dtype)
    head = sum(m.weights for m in cost.matmuls(config) if m.part == "head")
    rows = [
        ["$N$", f"{n / 1e6:.1f} million", "parameters of SmolLM2"],
        [
            "$2N$",
            f"{2 * n / 1e6:.0f} million",
            f"operations a token; without the head {2 * (n - head) / 1e6:.0f} million",
        ],
        [
            "$W$",
            f"{w / 1e6:.0f} MB",
            f"bytes that one pass reads, {8 * cost.bytes_per_value(dtype):.0f} bits a weight",
        ],
        ["bandwidth", f"{chip.bandwidth / 1e9:.3g} GB/s", "measured on this machine"],
        ["peak", f"{chip.peak(dtype) / 1e9:,.0f} GFLOP/s", "measured, the best of many sizes"],
        ["$W$ / bandwidth", f"{1e3 * read:.3g} ms", "to read the weights once"],
        ["$2N$ / peak", f"{1e3 * row:.3g} ms", "arithmetic of one row"],
    ]
    return rows, ["symbol", "here", "what it is"], "lrl"


# sixteen rows -------------------------------------------------------------------------------------
def rows_title(ratio: Estimate) -> str:
    return f"Sixteen times the work takes {ratio.value:.2g} times as long"


def rows_figure(passes: Mapping[int, Measured], config: ModelConfig, chip: Chip, dtype: object) -> go.Figure:
    """Time of a pass by its rows, above its two bounds."""
    read = 1e3 * clocks(config, chip, dtype)[0]
    ms = {count: taken.ms for count, taken in passes.items()}
    busy = {count: 1e3 * cost.prefill_flops(config, count).total / chip.peak(dtype) for count in ms}
    free = nearly_free(passes)
    fig = figure(
        f"Up to {free} rows, a pass takes less than twice as long as with one",
        x="rows in one pass (tokens)",
        y="time of the pass (ms)",
        height=440,
        log_y=True,
    )
    counts = list(ms)
    log_axis(fig, "x", counts)
    fig.add_vrect(x0=1, x1=free, fillcolor=SHADE, line_width=0, layer="below")
    fig.add_scatter(
        x=counts, y=[read] * len(counts), mode="lines", line={"color": palette.blue, "dash": "dash"}
    )
    fig.add_scatter(
        x=counts, y=list(busy.values()), mode="lines", line={"color": palette.green, "dash": "dash"}
    )
    fig.add_scatter(x=counts, y=list(ms.values()), mode="lines+markers", line_color=palette.orange)
    label_line(fig, 1, read, "weights read once", palette.blue, anchor="left", shift=12)
    label_line(fig, 4, busy[4], "arithmetic at peak", palette.green, anchor="left", shift=-15)
    label_line(fig, 1, ms[1], "measured", palette.orange, anchor="left", shift=28)
    return fig


def rows_table(passes: Mapping[int, Measured]) -> Table:
    ms = {count: taken.ms for count, taken in passes.items()}
    rows = [[r, ms[r], ms[r] / r, ms[1] / (ms[r] / r)] for r in (1, 2, 4, 16, 64, 256)]
    return rows, ["rows", "ms a pass", "ms a row", "rows for the price of one alone"], "rrrr"


def nearly_free(passes: Mapping[int, Measured]) -> int:
    """The most rows, of those tried, up to which every pass takes less than twice as long as with one."""
    times = {rows: Estimate.ratio(taken.timing, passes[1].timing).value for rows, taken in passes.items()}
    return next((r for r, more in pairwise(times) if times[more] >= 2), list(times)[-1])


@sentence(example={"products": (31.0, 28.0)}, more_words=["longer"], less_words=["shorter"])
def two_for_four(ratio: Estimate, products: tuple[float, float]) -> str:
    """A pass of two rows over one of four; `products`: with the weights, timed alone, of two rows and of four. [s]"""
    two, four = (milliseconds(seconds) for seconds in products)
    alone = "so do" if products[0] > 1.03 * products[1] else "not so"
    return says(
        ratio,
        more=f"Two rows take {{size}} longer than four; {alone} the products with the weights, timed alone: {two} "
        f"against {four}.",
        same="Two rows cannot be told from four.",
        less="Two rows take {size} shorter than four.",
    )


def rows_story(
    passes: Mapping[int, Measured],
    forecast: float,
    ratio: Estimate,
    config: ModelConfig,
    chip: Chip,
    dtype: object,
) -> str:
    """What the curve says, and how far the forecast was off."""
    one, most = passes[1], passes[max(passes)]
    length = most.name.context
    pair = Estimate.ratio(passes[2].timing, passes[4].timing)
    apart = [cost.predict_prefill(config, chip, rows, 1, dtype).parts for rows in (2, 4)]
    two, four = (sum(parts[name] for name in ("projections", "mlp", "head")) for parts in apart)
    odd = f"{two_for_four(pair, (two, four))} " if outcome(pair) == "more" else ""
    why = "[Chapter 2](02_roofline.ipynb) shows its misses over many sizes and takes the largest apart."
    return (
        f"One read of the weights, {milliseconds(clocks(config, chip, dtype)[0])} at the measured bandwidth, serves "
        f"all rows of a pass. {odd}In a pass of {length} a row costs "
        f"{milliseconds(most.seconds / length)}; alone, with nothing before it, {milliseconds(one.seconds)}, "
        f"**{alone(passes):.3g} times** as much. The two dashed lines are bounds. What lies between them and a single "
        "row is taken apart below.\n\n"
        f"The cost model's forecast for sixteen rows against one: {miss(forecast, ratio, why)}"
    )


def alone(passes: Mapping[int, Measured]) -> float:
    """How many times as much a row costs alone as in the longest pass."""
    most = max(passes)
    return passes[1].seconds / (passes[most].seconds / most)


def ridges() -> Table:
    """Rows at which arithmetic and reading take equally long, from datasheets."""
    chips = (A100, H100, hardware.CHIPS["L4"], hardware.CHIPS["MI300X"])
    rows = [
        [c.name, round(hardware.ridge(c, "bf16")), c.peak("bf16") / 1e12, c.bandwidth / 1e12] for c in chips
    ]
    return (
        rows,
        ["chip (datasheet)", "rows until arithmetic takes as long as reading", "TFLOP/s, bf16", "TB/s"],
        "lrrr",
    )


def ridge_takeaway(config: ModelConfig, chip: Chip, dtype: object, measured: float) -> str:
    """`measured`: tokens of the prompt that one token of the answer cost, as in `worth`."""
    read, row = clocks(config, chip, dtype)
    bits = 8 * cost.bytes_per_value(dtype)
    return (
        "**Takeaway.** By the two rates alone, one token of the answer is worth peak × bytes per weight / "
        "(2 × bandwidth) tokens of a long prompt. The model's size is not in it, as long as every token meets every "
        f"weight: {read / row:.0f} for this chip at {bits:.0f} bits, {hardware.ridge(A100, 'bf16'):.0f} for an A100, "
        f"{hardware.ridge(H100, 'bf16'):.0f} for an H100 at 16 bits. The clock here says {measured:.0f}: a pass does "
        "more than read and multiply, and of a prompt only the last row meets the head. "
        "[Chapter 2](02_roofline.ipynb) calls peak / bandwidth the ridge."
    )


# the floor ----------------------------------------------------------------------------------------
@sentence(less_words=["below"])
def over_floor(ratio: Estimate) -> str:
    """A measured step over its floor, as a title."""
    return says(
        ratio,
        more="A decode step takes {x} times as long as its floor",
        same="A decode step takes as long as its floor, as far as this run can show",
        less="The step came out below its own floor, at {x} times: one of the two was disturbed",
    )


@sentence(more_words=["explains"], less_words=["below zero"])
def left_over(ratio: Estimate) -> str:
    """A measured step over the sum of its parts, which were timed one by one."""
    return says(
        ratio,
        more="The *residual*, {size} on top of the other bars, is what none of these measurements explains.",
        same="All parts together are the step, as far as this run can show.",
        less="The *residual* is below zero: the step is {size} shorter than its parts, timed one by one.",
    )


def step_waterfall(
    step: Measured, config: ModelConfig, chip: Chip, dtype: object, beside: Measured
) -> go.Figure:
    """A step taken apart, on the axis that it shares with the step `beside`."""
    parts = cost.waterfall(config, chip, "decode", step.seconds, 1, step.name.context, dtype)
    title = over_floor(step.estimate.scaled(1 / dict(parts)["floor"], "×"))
    return waterfall(parts, title, until=longest((step, beside), config, chip, dtype))


def longest(steps: Sequence[Measured], config: ModelConfig, chip: Chip, dtype: object) -> float:
    """Where the bars of these steps end: the longest of them, or of their parts. [s]"""
    forecast = (cost.predict_decode(config, chip, step.name.context, 1, dtype).seconds for step in steps)
    return max(*forecast, *(step.seconds for step in steps))


def starts(config: ModelConfig, chip: Chip) -> int:
    """Operators whose start is counted by itself: on a CPU a product's start was timed with the product."""
    return cost.operators(config) - (0 if chip.asynchronous else products(config))


def floor_story(step: Measured, config: ModelConfig, chip: Chip, dtype: object) -> str:
    parts = dict(cost.waterfall(config, chip, "decode", step.seconds, 1, step.name.context, dtype))
    moved = cost.step_bytes(config, 1, step.name.context, dtype)
    left = parts.get("residual", 0.0)
    rest = left_over(step.estimate.scaled(1 / (step.seconds - left), "×"))
    seven = 7e9 * 2 / A100.bandwidth
    return (
        f"The floor: {moved.weights / 1e6:.0f} MB of weights and {moved.cache_read / 1e6:.0f} MB of cache at "
        f"{chip.bandwidth / 1e9:.3g} GB/s are **{milliseconds(parts['floor'])}**. The step takes "
        f"{milliseconds(step.seconds)}, {step.seconds / parts['floor']:.1f} times as long. *Matrix products* is "
        "what the same matrices took beyond their floor when they were timed alone, one after another; *operator "
        f"starts* is Python and the library getting {starts(config, chip):,} operators under way. {rest}\n\n"
        "The floor needs no benchmark, so it is the first check to make of any speed you are shown. A model that you "
        f"have not got: 7 billion parameters in 16 bits are 14 GB; an A100 reads {A100.bandwidth / 1e12:.3g} TB/s; so "
        f"a token takes at least **{1e3 * seven:.1f} ms**, and one user gets at most {1 / seven:.0f} tokens a second, "
        "as long as every token is a pass of its own over all weights."
    )


# a long prompt ------------------------------------------------------------------------------------
def growth_title(ttft: Estimate, tpot: Estimate) -> str:
    return f"TTFT is {ttft.value:.0f} times as long, TPOT {tpot.value:.2f} times"


@sentence(
    example={"long": 1024, "short": 64},
    more_words=["longer"],
    less_words=["shorter"],
)
def growth(tpot: Estimate, long: int, short: int) -> str:
    """TPOT behind a long prompt over TPOT behind a short one, measured in turns."""
    return says(
        tpot,
        more="Measured in turns, the step takes {size} longer: {estimate}.",
        same=f"Measured in turns at {short} and {long:,} tokens, this run shows no difference ({{estimate}}).",
        less="Measured in turns, the step came out {size} shorter ({estimate}) although it reads more. Nothing on this "
        "page explains that.",
    )


def growth_story(
    tpot: Estimate, config: ModelConfig, dtype: object, long: int, short: int, users: int = 8
) -> str:
    extra = cost.kv_bytes(config, long - short, 1, dtype)
    weights = cost.weight_bytes(config, dtype)
    even = weights / cost.kv_bytes_per_token(config, dtype) / users
    return (
        f"The step reads the same {weights / 1e6:.0f} MB of weights. {long - short:,} more tokens of context add "
        f"{extra / 1e6:.0f} MB of cache, {100 * extra / weights:.0f} %, and attention's work on them, a bar of its own "
        f"below. {growth(tpot, long, short)} The prefill multiplies every row of the prompt.\n\n"
        f"That is one user; {users} share the read of the weights and bring {users} caches. At {even:,.0f} tokens "
        "each, the caches weigh as much as the weights."
    )


def long_waterfall(
    step: Measured, config: ModelConfig, chip: Chip, dtype: object, beside: Measured
) -> go.Figure:
    context = step.name.context
    parts = cost.waterfall(config, chip, "decode", step.seconds, 1, context, dtype)
    taken = cost.predict_decode(config, chip, context, 1, dtype).parts["attention"]
    inside = milliseconds(taken - dict(parts).get("attention", 0.0))
    title = (
        f"At {context:,} tokens attention takes {milliseconds(taken)} of {milliseconds(step.seconds)}: "
        f"its bar, and {inside} in the floor"
    )
    return waterfall(parts, title, until=longest((step, beside), config, chip, dtype))


# levers -------------------------------------------------------------------------------------------
def levers(
    config: ModelConfig, chip: Chip, dtype: object, context: int
) -> dict[str, tuple[str, float, float]]:
    """name -> (example, seconds a token that it could save, seconds it saves from)."""
    step = cost.predict_decode(config, chip, context, 1, dtype)
    moved = cost.step_bytes(config, 1, context, dtype)
    small = cost.weight_bytes(config, "q4_0")
    eight = cost.predict_decode(config, chip, context, 8, dtype).seconds / 8
    again = cost.predict_prefill(config, chip, context, 1, dtype).seconds
    overhead = min(step.parts["overhead"], step.seconds - (moved.weights + moved.cache_read) / chip.bandwidth)
    bits = 8 * cost.bytes_per_value(dtype)
    return {
        "read fewer bytes": (
            f"4.5 bits a weight for {bits:.0f}",
            (moved.weights - small) / chip.bandwidth,
            step.seconds,
        ),
        "more work per byte": ("8 users in one pass", step.seconds - eight, step.seconds),
        "less overhead": (f"no cost of starting {starts(config, chip)} operators", overhead, step.seconds),
        "no work twice": ("a cache; without it, all tokens again", again - step.seconds, again),
    }


def lever_table(found: Mapping[str, tuple[str, float, float]]) -> Table:
    rows = [
        [name, f"{milliseconds(saved)} of {milliseconds(of)}", percent(saved / of), what]
        for name, (what, saved, of) in found.items()
    ]
    return rows, ["lever", "could save per token", "share", "example"], "lrrl"


def lever_story(found: Mapping[str, tuple[str, float, float]], step: Measured) -> str:
    open_ones = {name: saved for name, (_, saved, _) in found.items() if name != "no work twice"}
    best = max(open_ones, key=open_ones.__getitem__)
    why = "Its operators were timed one by one: the difference is the *residual* of the step above."
    return (
        "These are the cost model's forecasts for this machine, of what a perfect implementation would get, from a "
        f"step that is itself a forecast: {miss(found[best][2], step.estimate, why)} They do not add up: bytes that "
        "are not read cannot be shared. The last lever is pulled already, by the cache of our loop; of the other three "
        f"*{best}* reaches furthest here. Most later chapters pull one of the four, and measure what is left of the "
        "promise."
    )


# where it loses -----------------------------------------------------------------------------------
def balance(read: Measured, step: Measured) -> float:
    """Tokens of answer at which prefill and decode take equally long."""
    return 1 + read.seconds / step.seconds


def shares(runs: Sequence[tuple[Measured, Measured]]) -> go.Figure:
    """Share of the wait that is decode, by length of the answer; computed from two measured times a line."""
    lengths = [1, 2, 3, 5, 9, 17, 33, 65, 129, 257]
    long = runs[-1]
    fig = figure(
        f"Behind {long[0].name.context:,} tokens, an answer of up to {balance(*long):.0f} tokens is mostly prefill",
        x="tokens of answer",
        y="share of the wait spent in decode (%)",
    )
    log_axis(fig, "x", [1, 2, 5, 10, 20, 50, 100, 200])
    places = (palette.orange, 5, "right", 12), (palette.blue, 3, "left", -12)
    for (read, step), (color, at, anchor, shift) in zip(runs, places, strict=True):
        share = [100 * (1 - read.seconds / cost.end_to_end(read.seconds, step.seconds, n)) for n in lengths]
        fig.add_scatter(x=lengths, y=share, mode="lines+markers", line_color=color)
        name = f"prompt of {read.name.context:,}"
        label_line(fig, lengths[at], share[at], name, color, anchor=anchor, shift=shift)
        half = balance(read, step)
        if lengths[0] < half < lengths[-1]:
            fig.add_scatter(x=[half], y=[50], mode="markers", marker={"color": color, "size": 11})
            label_line(fig, half, 50, f"{half:.0f} tokens", color, anchor="right", shift=13)
    ends = [lengths[0], lengths[-1]]
    fig.add_scatter(x=ends, y=[50, 50], mode="lines", line={"color": palette.grey, "dash": "dot"})
    fig.update_yaxes(range=[-5, 105])
    return fig


def shares_story(runs: Sequence[tuple[Measured, Measured]]) -> str:
    (short_read, short_step), (long_read, long_step) = runs
    return (
        f"A classifier reads {long_read.name.context:,} tokens and answers with one: 0 % decode. A lever of decode, "
        "such as sharing a step with other users or guessing several tokens ahead, saves nothing of its "
        f"{milliseconds(long_read.seconds)}. Prefill and decode weigh the same when the answer has 1 + TTFT / TPOT "
        f"tokens: {balance(short_read, short_step):.0f} behind {short_read.name.context} tokens, "
        f"{balance(long_read, long_step):.0f} behind {long_read.name.context:,}. Before you choose a technique, find "
        "out on which side of that number your traffic is."
    )


def wrong_tpot(runs: Sequence[tuple[Measured, Measured]], tokens: int = 9) -> Table:
    """The negative control: latency over tokens, called TPOT."""
    wrong = [cost.end_to_end(read.seconds, step.seconds, tokens) / tokens for read, step in runs]
    rows = [
        ["gaps after the first token", *(step.ms for _, step in runs)],
        ["latency / tokens", *(1e3 * seconds for seconds in wrong)],
    ]
    headers = [
        f"TPOT (ms), {tokens} tokens of answer",
        *(f"prompt of {read.name.context:,}" for read, _ in runs),
    ]
    return rows, headers, "lrr"


def wrong_tpot_story(read: Measured, step: Measured, tokens: int = 9) -> str:
    blamed = cost.end_to_end(read.seconds, step.seconds, tokens) / tokens - step.seconds
    return (
        f"Behind the long prompt, the wrong one charges decode with {milliseconds(blamed)} a token that belong to the "
        'prefill. It follows from the two formulas alone: ask for more tokens, and the wrong "TPOT" gets better '
        "without anything having become faster."
    )


# what it is worth ---------------------------------------------------------------------------------
def readers(tokens_per_word: float) -> str:
    rate = READING / 60 * tokens_per_word
    return (
        f"Adults read some {READING} words a minute ([Brysbaert 2019](https://doi.org/10.1016/j.jml.2019.104047), a "
        f"review; most of them 175 to 300). At the {tokens_per_word:.1f} tokens a word of our paragraph that is "
        f"{rate:.1f} tokens a second, so a stream keeps up with such a reader when its TPOT is below "
        f"{1e3 * cost.tpot_of_rate(rate):.0f} ms."
    )


def prices(
    in_tokens: float, here: float, config: ModelConfig, chip: Chip, dtype: object, context: int
) -> Table:
    """Tokens in that one token out is worth: DeepSeek's day, and this machine. `in_tokens` long was our prompt."""
    rate_in, rate_out, hits = (
        73_700,
        14_800,
        0.563,
    )  # per second and node of 8 H800; share of the input from caches
    price_in, price_hit, price_out = 0.55, 0.14, 2.19  # $ per million tokens, DeepSeek-R1, same source
    paid = hits * price_hit + (1 - hits) * price_in
    step = cost.predict_decode(config, chip, context, 32, dtype).seconds / 32
    read = cost.predict_prefill(config, chip, int(in_tokens), 1, dtype).seconds / in_tokens
    rows = [
        ["DeepSeek: rate in / rate out, cached tokens left out", f"{rate_in * (1 - hits) / rate_out:.1f}"],
        ["DeepSeek: the same, cached tokens counted", f"{rate_in / rate_out:.1f}"],
        ["DeepSeek: list price out / in", f"{price_out / price_in:.1f}"],
        ["DeepSeek: price out / average price in", f"{price_out / paid:.1f}"],
        ["SmolLM2 here, one user, measured", f"{here:.0f}"],
        ["SmolLM2 here, 32 users in a pass, forecast", f"{step / read:.1f}"],
    ]
    return rows, ["one token out is worth … tokens in", "tokens"], "lr"


def prices_story() -> str:
    return (
        f"DeepSeek's rows follow from its own figures for [24 hours in February 2025]({DEEPSEEK}), for a node of eight "
        "H800 that does one of the two only; 56.3 % of the tokens in came from a cache on disk. The last row is "
        "the cost model's answer to one change, 32 users in place of one, everything else as "
        "it is here. Their service differs from ours in many more: model, chip, precision, experts. So the rows say "
        "how far apart the two kinds of tokens are in different hands, and what sharing the read does to *our* number; "
        "they do not say what made theirs."
    )


def recap(
    passes: tuple[int, int, int],
    read: Measured,
    step: Measured,
    config: ModelConfig,
    chip: Chip,
    dtype: object,
) -> str:
    """`passes`: passes and rows with a cache, rows without, as counted."""
    count, rows, rows_without = passes
    floor = dict(cost.waterfall(config, chip, "decode", step.seconds, 1, step.name.context, dtype))["floor"]
    seven = 7e9 * 2 / A100.bandwidth
    ridge, row = clocks(config, chip, dtype)
    return (
        f"- **The loop.** {count} tokens took {count} passes: {rows} rows with a cache, {rows_without:,} without. "
        "Prefill and decode are two shapes of one call.\n"
        f"- **Time per token.** At least bytes over bandwidth: {milliseconds(floor)} here, measured "
        f"{milliseconds(step.seconds)}; {1e3 * seven:.1f} ms for a 7B model in 16 bits on an A100.\n"
        f"- **In against out.** One token of the answer cost {worth(read, step):.0f} tokens of the prompt here. "
        f"From the "
        f"two rates alone it would be {ridge / row:.0f} here, {hardware.ridge(A100, 'bf16'):.0f} on an A100, "
        f"{hardware.ridge(H100, 'bf16'):.0f} on an H100.\n"
        "- **Levers.** Fewer bytes, more work per byte, less overhead, no work twice; what each could move here is in "
        "the table above, as a forecast."
    )


PRODUCTION = [
    (
        "vllm",
        "TTFT, TPOT without the first token, and every gap",
        "`vllm bench serve`; `/metrics` has `vllm:time_to_first_token_seconds`",
        "benchmarking/cli/",
    ),
    (
        "sglang",
        "the same for a running server, or for one static batch",
        "`python -m sglang.bench_serving`, `python -m sglang.bench_one_batch`",
        "https://github.com/sgl-project/sglang/blob/main/docs/developer_guide/benchmark_and_profiling.md",
    ),
    (
        "tensorrt-llm",
        "latency and throughput as two runs",
        "`trtllm-bench latency`, `trtllm-bench throughput`",
        "https://nvidia.github.io/TensorRT-LLM/commands/trtllm-bench.html",
    ),
    (
        "llama.cpp",
        "tokens a second of both phases",
        "`llama-bench -p 512 -n 128`: `pp512`, `tg128`",
        "tools/llama-bench/README.md",
    ),
    (
        "transformers",
        "a cache unless told otherwise",
        "`generate(use_cache=...)`; pass `attention_mask`",
        "https://huggingface.co/docs/transformers/main_classes/text_generation",
    ),
]
