"""What chapter 08 shows: steps shared by users, rectangles with holes, slots that stand empty. No clock, no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench.estimate import Estimate
from lumen.bench.numbers import percent
from lumen.bench.says import miss, outcome, says, sentence
from lumen.config import CONFIGS
from lumen.cost.trace import lognormal_trace
from lumen.explore.explorers.timelines import WHOLE, WORKLOADS, Job, simulate
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.figures.waterfall import waterfall
from lumen.explore.prose.boxes import milliseconds
from lumen.hardware import CHIPS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured
    from lumen.bench.queue import Served
    from lumen.config import ModelConfig
    from lumen.hardware import Chip

Table = tuple[list[list[Any]], list[str], str]
Steps = Mapping[int, Mapping[int, "Measured"]]  # context -> batch -> a decode step
USERS, SHORT, LONG, PROMPT = (1, 2, 4, 8), 64, 1024, 512
LLAMA, H100, A100 = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"], CHIPS["A100 80GB SXM"]
WHY = (
    "The forecast adds up operators that were timed one by one; [chapter 2](02_roofline.ipynb) shows its misses over "
    "many sizes."
)


# bytes --------------------------------------------------------------------------------------------
def bytes_figure(config: ModelConfig) -> go.Figure:
    """MB that a decode step reads for each token it makes, by batch, for three contexts."""
    weights, kappa = cost.weight_bytes(config, "fp32"), cost.kv_bytes_per_token(config, "fp32")
    wide = [2**i for i in range(11)]
    fig = figure(
        f"From {weights / 1e6:.0f} MB a token down, but at {LONG:,} tokens of context never below "
        f"{LONG * kappa / 1e6:.0f} MB",
        x="sequences in the batch",
        y="MB read per token",
        log_x=True,
        log_y=True,
        height=420,
    )
    for context, color in ((SHORT, palette.blue), (LONG, palette.orange), (8192, palette.purple)):
        read = [(weights / b + context * kappa) / 1e6 for b in wide]
        fig.add_scatter(x=wide, y=read, mode="lines", line_color=color)
        label_line(fig, 1024, read[-1], f"context {context:,}", color, shift=22)
    alone = [weights / b / 1e6 for b in wide]
    fig.add_scatter(x=wide, y=alone, mode="lines", line={"color": palette.grey, "dash": "dot"})
    label_line(fig, 64, weights / 64e6, "weights alone", palette.grey, anchor="right", shift=-16)
    log_axis(fig, "x", wide[::2])
    return fig


def even_rows(config: ModelConfig, chip: Chip) -> float:
    """Rows whose arithmetic at the peak takes as long as reading the weights once."""
    read = cost.weight_bytes(config, "fp32") / chip.bandwidth
    return read / (2 * cost.parameters(config).total / chip.peak("fp32"))


def symbols(config: ModelConfig, chip: Chip) -> Table:
    weights, kappa = cost.weight_bytes(config, "fp32"), cost.kv_bytes_per_token(config, "fp32")
    row = 2 * cost.parameters(config).total / chip.peak("fp32")
    rows = [
        ["$W$", f"{weights / 1e6:.0f} MB", "weights that a step reads, fp32"],
        [r"$\kappa$", f"{kappa / 1e3:.1f} kB", "cache of one token of context"],
        [
            r"$W / (L\kappa)$",
            f"{weights / (SHORT * kappa):.0f} and {weights / (LONG * kappa):.1f}",
            f"batch whose caches weigh as much as the weights, at {SHORT} and {LONG:,} tokens",
        ],
        ["$W$ / bandwidth", f"{1e3 * weights / chip.bandwidth:.1f} ms", "to read the weights once"],
        [
            "$2N$ / peak",
            f"{1e3 * row:.2f} ms",
            "arithmetic of one row, two operations for each of $N$ weights",
        ],
        [
            "ratio of the two",
            f"{even_rows(config, chip):.0f}",
            "rows whose arithmetic takes as long as that reading",
        ],
    ]
    return rows, ["symbol", "here", "what it is"], "lrl"


# steps --------------------------------------------------------------------------------------------
def forecast(config: ModelConfig, chip: Chip, batch: int, context: int) -> float:
    return cost.predict_decode(config, chip, context, batch, "fp32").seconds


def step_title(ratio: Estimate) -> str:
    return f"A step for eight takes {ratio.value:.2g} times as long as a step for one"


def rate_title(gain: Estimate) -> str:
    return f"Eight users at {LONG:,} tokens get {gain.value:.2g} times the tokens/s of one"


def step_waterfall(steps: Steps, users: int, config: ModelConfig, chip: Chip) -> go.Figure:
    """Where a step at the short context goes, on an axis that one user and eight have in common."""
    seconds = steps[SHORT][users].seconds
    parts = cost.waterfall(config, chip, "decode", seconds, users, SHORT, "fp32")
    title = f"Users in the step: {users}; the floor is {percent(dict(parts)['floor'] / seconds)} of it"
    longest = max(max(steps[SHORT][b].seconds, forecast(config, chip, b, SHORT)) for b in (1, 8))
    return waterfall(parts, title, until=longest)


def step_of_eight(steps: Steps) -> Estimate:
    """A step for eight over a step for one, short context."""
    return Estimate.ratio(steps[SHORT][8].timing, steps[SHORT][1].timing)


def gain_of_eight(steps: Steps, context: int) -> Estimate:
    """Tokens/s of eight users over those of one."""
    return Estimate.ratio(steps[context][1].timing, steps[context][8].timing).scaled(8, "×")


def said_of_eight(config: ModelConfig, chip: Chip, context: int) -> float:
    """The same, forecast."""
    return 8 * forecast(config, chip, 1, context) / forecast(config, chip, 8, context)


@sentence(more_words=["longer"], less_words=["shorter"])
def eight_over_one(est: Estimate) -> str:
    """A step for eight over a step for one."""
    return says(
        est,
        more="it is {size} longer and makes eight tokens",
        same="this run shows no difference in time, and it makes eight tokens",
        less="it makes eight tokens and is {size} **shorter**, which no count of bytes explains",
    )


GLOSS = {"matrix products": " (what they take above the floor when timed alone at these shapes)"}


def short_story(steps: Steps, config: ModelConfig, chip: Chip) -> str:
    one, eight = steps[SHORT][1], steps[SHORT][8]
    ratio = step_of_eight(steps)
    read = cost.weight_bytes(config, "fp32") + 8 * SHORT * cost.kv_bytes_per_token(config, "fp32")
    rows = 16 * cost.parameters(config).total / chip.peak("fp32")
    first, last = (
        dict(cost.waterfall(config, chip, "decode", step.seconds, b, SHORT, "fp32"))
        for b, step in ((1, one), (8, eight))
    )
    grown = {name: last[name] - first.get(name, 0.0) for name in last if name not in ("floor", "residual")}
    most = max(grown, key=grown.__getitem__)
    gloss = GLOSS.get(most, "")
    return (
        f"A step takes {milliseconds(one.seconds)} for one; for eight, {milliseconds(eight.seconds)}: "
        f"{eight_over_one(ratio)}, **{8 / ratio.value:.1f} times the tokens/s**. The pictures below go from "
        f"the forecast to the clock. Their *floor* is bandwidth or peak, whichever takes longer: for eight, reading "
        f"takes {milliseconds(read / chip.bandwidth)}, arithmetic {milliseconds(rows)}. What grows most beyond it "
        f"is *{most}*{gloss}, by {milliseconds(grown[most])}. A chip with more arithmetic beside its bandwidth has "
        f"more room: by its datasheet an H100 computes {cost.ridge(H100, 'bf16'):.0f} rows in bf16 while it reads the "
        "weights once.\n\n"
        f"The forecast of the ratio: {miss(8 / said_of_eight(config, chip, SHORT), ratio, WHY)}"
    )


@sentence(example={"fewer": 2, "users": 4, "context": 64}, more_words=["longer"], less_words=["shorter"])
def doubling(est: Estimate, fewer: int, users: int, context: int) -> str:
    """A step for `users` over a step for `fewer`."""
    both = f"at {context:,} tokens a step for {users} users"
    return says(
        est,
        more=f"{both} is {{size}} longer than for {fewer}",
        same=f"{both} cannot be told from one for {fewer}",
        less=f"{both} is {{size}} **shorter** than for {fewer}, although it does more work",
    )


def doublings(steps: Steps, config: ModelConfig, chip: Chip) -> str:
    """Where more users took less time, and whether the forecast has it too; nothing to say where none did."""
    said, drops = [], []
    for context, found in steps.items():
        for a, b in pairwise(USERS):
            est = Estimate.ratio(found[b].timing, found[a].timing)
            if outcome(est) == "less":  # the table has the rest
                said.append(doubling(est, a, b, context))
                drops.append(forecast(config, chip, b, context) < forecast(config, chip, a, context))
    if not said:
        return ""
    return (
        f"One thing no count of bytes explains: {'; '.join(said)}. The forecast, which adds up matrix products "
        f"timed at each number of rows, has {sum(drops)} of these {len(drops)}: there another kernel multiplies. The "
        "rest this page does not explain."
    )


@sentence(more_words=["longer"], less_words=["shorter"])
def context_alone(est: Estimate) -> str:
    """A step for one at the long context over one at the short."""
    return says(
        est,
        more=f"For one user a step at {LONG:,} tokens is {{size}} longer than at {SHORT}.",
        same=f"For one user this run shows no difference between {LONG:,} tokens and {SHORT}.",
        less=f"For one user a step at {LONG:,} tokens is {{size}} **shorter** than at {SHORT}, although it reads more: "
        "this page does not explain that.",
    )


def misses(steps: Steps, config: ModelConfig, chip: Chip) -> Table:
    """Time of a step, forecast against clock, signed."""
    rows = []
    for context, found in steps.items():
        for users, step in found.items():
            said = forecast(config, chip, users, context)
            rows.append(
                [
                    f"{users} × {context:,}",
                    f"{1e3 * said:.1f}",
                    f"{step.ms:.1f}",
                    percent(said / step.seconds - 1, signed=True),
                ]
            )
    return rows, ["users × context", "forecast (ms)", "clock (ms)", "miss"], "lrrr"


def largest_miss(steps: Steps, config: ModelConfig, chip: Chip) -> tuple[int, int]:
    """(context, users) where forecast and clock are furthest apart."""
    off = {
        (c, b): abs(forecast(config, chip, b, c) / step.seconds - 1)
        for c, found in steps.items()
        for b, step in found.items()
    }
    return max(off, key=off.__getitem__)


def misses_story(steps: Steps, config: ModelConfig, chip: Chip) -> str:
    context, users = largest_miss(steps, config, chip)
    signed = [
        forecast(config, chip, b, c) / s.seconds - 1 for c, found in steps.items() for b, s in found.items()
    ]
    step = steps[context][users]
    return (
        f"{sum(x < 0 for x in signed)} of the {len(signed)} forecasts are below the clock, "
        f"{sum(x > 0 for x in signed)} "
        f"above. The largest miss, {users} × {context:,}: "
        f"{miss(forecast(config, chip, users, context), step.estimate, WHY)} "
        + context_alone(Estimate.ratio(steps[LONG][1].timing, steps[SHORT][1].timing))
    )


def rates_figure(steps: Steps, config: ModelConfig, chip: Chip) -> go.Figure:
    """Tokens/s by batch, measured and forecast, both contexts."""
    gain = {c: gain_of_eight(steps, c).value for c in steps}
    fig = figure(
        f"From 1 to 8 users: {gain[SHORT]:.1f} times the tokens/s at {SHORT} tokens, {gain[LONG]:.1f} times at "
        f"{LONG:,}",
        x="sequences in the batch",
        y="tokens/s, all together",
        log_x=True,
        log_y=True,
        height=440,
    )
    rates, names = [], []
    for (context, found), color in zip(steps.items(), (palette.blue, palette.orange), strict=True):
        said = [b / forecast(config, chip, b, context) for b in USERS]
        clock = [b / found[b].seconds for b in USERS]
        rates += clock
        fig.add_scatter(x=USERS, y=said, mode="lines", line={"color": color, "dash": "dash"})
        fig.add_scatter(x=USERS, y=clock, mode="lines+markers", line_color=color)
        names.append((f"context {context:,}", color))
    free = [b / steps[SHORT][1].seconds for b in USERS]
    fig.add_scatter(x=USERS, y=free, mode="lines", line={"color": palette.grey, "dash": "dot"})
    label_line(fig, 4, free[2], f"{SHORT} tokens, were company free", palette.grey, anchor="right", shift=14)
    for i, (name, color) in enumerate([("dashed: forecast", palette.grey), *reversed(names)]):
        label_line(fig, 8, min(rates), name, color, shift=4 + 20 * i)  # below on the right no line passes
    log_axis(fig, "x", USERS)
    ticks = [
        v for v in (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if min(rates) / 2 < v < 2 * free[-1]
    ]
    log_axis(fig, "y", ticks)
    return fig


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """a / b, with an interval that holds whatever the two have in common."""
    return Estimate(a.value / b.value, a.low / b.high, a.high / b.low, min(a.n, b.n), "×")


@sentence(more_words=["larger"], less_words=["smaller"])
def long_over_short(est: Estimate) -> str:
    """The gain of eight users at the long context over that at the short."""
    return says(
        est,
        more=f"{{size}} larger than at {SHORT}, against the model",
        same=f"this run cannot tell it from the gain at {SHORT}",
        less=f"{{size}} smaller than at {SHORT}",
    )


def long_story(steps: Steps, config: ModelConfig, chip: Chip) -> str:
    kappa = cost.kv_bytes_per_token(config, "fp32")
    one, eight = steps[LONG][1], steps[LONG][8]
    gain = gain_of_eight(steps, LONG)
    parts = cost.predict_decode(config, chip, LONG, 8, "fp32")
    return (
        f"Eight users get **{gain.value:.1f} times the tokens/s** of one at {LONG:,} tokens of context: "
        f"{long_over_short(quotient(gain, gain_of_eight(steps, SHORT)))}. The caches of eight weigh "
        f"{8 * LONG * kappa / 1e6:.0f} MB beside {cost.weight_bytes(config, 'fp32') / 1e6:.0f} MB of weights, and "
        f"attention over them is {percent(parts.parts['attention'] / parts.seconds)} of the forecast step. Each of the "
        f"eight waits {milliseconds(eight.seconds)} for a token; one alone, {milliseconds(one.seconds)}. The "
        f"forecast of the gain: {miss(said_of_eight(config, chip, LONG), gain, WHY)}"
    )


# another chip -------------------------------------------------------------------------------------
def ends() -> list[tuple[int, float, int, str, float]]:
    """Context, batch whose caches weigh as much as the weights, batch that fills memory, first end, gain when full."""
    ridge, found = cost.ridge(H100, "bf16"), []
    for context in (256, 2048, 8192, 32768):
        fits = cost.max_users(H100.memory, LLAMA, context, "bf16", "bf16", reserve=0.1)
        caches = cost.overtaking_batch(LLAMA, context, "bf16", "bf16", read=True)
        limits = {"caches": caches, "arithmetic": ridge, "memory": fits}
        one, full = (cost.predict_decode(LLAMA, H100, context, b).seconds for b in (1, fits))
        first = min(limits, key=limits.__getitem__)
        found.append((context, caches, fits, first, fits * one / full))
    return found


def ends_table() -> Table:
    rows = [
        [f"{c:,}", first, f"{caches:.0f}", fits, f"{gain:.0f} ×"] for c, caches, fits, first, gain in ends()
    ]
    return (
        rows,
        ["context", "what ends it first", "caches = weights at", "memory full at", "tokens/s when full"],
        "rlrrr",
    )


def ends_story() -> str:
    return (
        f"By the datasheet alone; a real step is longer. Arithmetic takes as long as reading the weights at "
        f"{cost.ridge(H100, 'bf16'):.0f} sequences, whatever the context. A tenth of the memory is kept free. The last "
        "column compares with one user; the caches are read after the matrix products, not meanwhile."
    )


def takeaway() -> str:
    rows = ends()
    return (
        "**Takeaway.** A batch shares what a step pays once: the reading of the weights, and the starting of its "
        r"operators. At $B = W / (L\kappa)$ half of what a step reads is caches; well below that, and below the ridge, "
        f"company is nearly free. With Llama-3-8B on an H100 the caches are half at {rows[1][1]:.0f} users of "
        f"{rows[1][0]:,} tokens of context, and at {rows[3][1]:.0f} users of {rows[3][0]:,}."
    )


# prompts ------------------------------------------------------------------------------------------
def prompt_gain(size: int, config: ModelConfig, chip: Chip, dtype: str) -> float:
    """Eight prompts read together instead of one by one, forecast."""
    one, eight = (cost.predict_prefill(config, chip, size, batch, dtype).seconds for batch in (1, 8))
    return 8 * one / eight


def prompt_gains(config: ModelConfig, chip: Chip) -> Table:
    rows = [
        [
            size,
            f"{prompt_gain(size, config, chip, 'fp32'):.1f}",
            f"{prompt_gain(size, LLAMA, H100, 'bf16'):.1f}",
        ]
        for size in (1, 2, 8, 32, 128, PROMPT)
    ]
    return (
        rows,
        ["tokens in each of eight prompts", "SmolLM2 here: times cheaper", "Llama-3-8B on an H100"],
        "rrr",
    )


def gain_of_prompts(one: Measured, eight: Measured) -> Estimate:
    """Eight prompts one by one over the eight together."""
    return Estimate.ratio(one.timing, eight.timing).scaled(8, "×")


def prompts_story(one: Measured, eight: Measured, config: ModelConfig, chip: Chip) -> str:
    size = one.name.context
    said = prompt_gain(size, config, chip, "fp32")
    return (
        f"Forecast; for {size} tokens by the clock, too: "
        f"{miss(said, gain_of_prompts(one, eight), WHY)} "
        "A prompt of one token gains about what a decode step is forecast to gain. The gain shrinks once the rows of "
        "all eight pass the batch "
        f"at which arithmetic takes as long as reading the weights ({even_rows(config, chip):.0f} here, "
        f"{cost.ridge(H100, 'bf16'):.0f} on the H100), and is gone where one prompt has many times as many. "
        "Below 1 some operator's rate, measured alone, is lower at so many rows."
    )


def rectangle(lengths: Sequence[int]) -> str:
    places = len(lengths) * max(lengths)
    return (
        f"Our eight questions have {min(lengths)} to {max(lengths)} tokens: {sum(lengths)} tokens in {places} "
        f"places, "
        f"$u$ = {percent(sum(lengths) / places)}."
    )


# slots --------------------------------------------------------------------------------------------
SPREADS, BATCHES = (0.25, 0.5, 1.0), (1, 2, 4, 8, 16, 32)


def mean_over_max(batch: int, spread: float) -> float:
    """Mean length over the mean longest of `batch`, on 12,800 log-normal lengths with a median of 64."""
    lengths = lognormal_trace(12_800, 8192, 1, 64, spread, 0).output.reshape(-1, batch)
    return float(lengths.mean() / lengths.max(1).mean())


def slots_figure() -> go.Figure:
    used = {s: [100 * mean_over_max(b, s) for b in BATCHES] for s in SPREADS}
    fig = figure(
        f"Eight answers with σ = 1: a static batch uses {used[1.0][3]:.0f} % of its slots",
        x="sequences in the batch",
        y="slots in use, u (%)",
        log_x=True,
        height=400,
    )
    for s, color in zip(SPREADS, (palette.green, palette.ochre, palette.orange), strict=True):
        fig.add_scatter(x=BATCHES, y=used[s], mode="lines+markers", line_color=color)
        label_line(fig, 32, used[s][-1], f"σ = {s:g}", color, shift=-14)
    log_axis(fig, "x", BATCHES)
    fig.update_yaxes(range=[0, 104])
    return fig


# the door -----------------------------------------------------------------------------------------
Rounds = Mapping[str, Sequence["Served"]]  # policy -> one run a round


def gain_of(rounds: Rounds) -> Estimate:
    """Tokens/s of continuous over static batching."""
    fast, slow = ([run.tokens_per_s for run in rounds[policy]] for policy in ("continuous", "static"))
    return Estimate.ratio(fast, slow)


def gain_forecast(lengths: Sequence[tuple[int, int]], slots: int, config: ModelConfig, chip: Chip) -> float:
    """The same from the cost model. `lengths`: tokens of prompt and answer of each request."""
    jobs = [Job(0, p, n) for p, n in lengths]
    fast, slow = (
        simulate(jobs, kind, slots, WHOLE, chip, config, "fp32", "paged").tokens_per_s
        for kind in ("continuous", "static")
    )
    return float(fast / slow)


def gain_title(gain: Estimate) -> str:
    return f"Another rule at the door: {gain.value:.2g} times the tokens/s"


def served_table(rounds: Rounds) -> Table:
    rows = []
    for policy, runs in rounds.items():
        rate, ttft = (
            statistics.median(getattr(r, key) for r in runs) for key in ("tokens_per_s", "mean_ttft")
        )
        rows.append([policy, f"{rate:.0f}", len(runs[0].steps), percent(runs[0].utilisation), f"{ttft:.2f}"])
    return rows, ["policy", "tokens/s", "steps", "slots in use", "mean TTFT (s)"], "lrrrr"


@sentence(example={"counted": 1.65}, at="counted", more_words=["more than"], less_words=["less than"])
def clock_and_count(est: Estimate, counted: float) -> str:
    """The gain by the clock beside the gain in steps."""
    return says(
        est,
        at=counted,
        more=f"The clock ({{estimate}}) shows more than the count of steps ({counted:.2f}): the "
        "steps of the two policies are not equally long.",
        same=f"Between the clock ({{estimate}}) and the count of steps, {counted:.2f}, this run "
        "shows no difference.",
        less=f"The clock ({{estimate}}) shows less than the count of steps ({counted:.2f}). Two things speak for that: "
        "no rule of admission saves the reading of prompts; and a step of few rows need not last as long as a full "
        "one.",
    )


def served_story(rounds: Rounds, expected: float) -> str:
    counted = len(rounds["static"][0].steps) / len(rounds["continuous"][0].steps)
    gain = gain_of(rounds)
    return (
        f"Both policies give the same {rounds['static'][0].tokens} tokens in each of {gain.n} rounds; the cell "
        f"asserts it. "
        "A static batch ends in steps of few rows: this engine leaves out rows that are done, a padded batch would "
        f"not. {clock_and_count(gain, counted)} The forecast: {miss(expected, gain, WHY)}"
    )


def ratio_of_steps(spread: float, seed: int, requests: int = 64, slots: int = 8) -> tuple[int, int]:
    """Steps of static and of continuous batching, counted by the scheduler alone."""
    lengths = lognormal_trace(requests, 1024, 1, 48, spread, seed).output.tolist()
    jobs = [Job(0, 8, n) for n in lengths]
    static, continuous = (
        len(simulate(jobs, p, slots, WHOLE, H100, LLAMA).steps) for p in ("static", "continuous")
    )
    return static, continuous


def spread_table() -> Table:
    rows = []
    for spread in (0.0, 0.5, 1.0):
        pairs = [ratio_of_steps(spread, seed) for seed in (0, 1, 2)]
        rows.append([f"{spread:g}", *(f"{a / b:.2f}" for a, b in pairs)])
    return rows, ["spread σ", "seed 0", "seed 1", "seed 2"], "rrrr"


SPREAD_STORY = (
    "Steps of static over steps of continuous batching: 64 requests with a median of 48 tokens, eight slots. A "
    "factor "
    "belongs to a spread of lengths, a number of slots and a length of the queue; without them it says nothing."
)


def published(data: Mapping[str, Any]) -> str:
    """The published run beside the one of the page, with what differs."""
    s, by = data["setting"], data["summary"]
    ratios = by["ratios"]["static"]
    return (
        f"A longer run (`benchmarks/continuous_batching.py`): {s['requests']} requests in place of 32, a median of "
        f"{s['output_median']} tokens in place of 7, the same {s['slots']} slots and σ = {s['sigma']:g}, seeds "
        f"{', '.join(map(str, s['seeds']))}. Continuous batching makes **{by['ratio']['static']:.2f} times** the "
        f"tokens/s "
        f"of static ({min(ratios):.2f} to {max(ratios):.2f} by seed). Two things differ in its favour: the prompts "
        "weigh less beside longer answers, and so does the end of a longer queue, when nobody is left to let in. "
        "Answers that differ between the "
        f"two: {s['differ']}."
    )


NOT_PUBLISHED = (
    "No published run of `benchmarks/continuous_batching.py` is at hand: 128 requests, three seeds."
)


# policies over time -------------------------------------------------------------------------------
POLICIES_STORY = (
    "And the explorer's requests, which arrive one after another: four slots, Llama-3-8B on one A100, forecast. The "
    "last "
    "column is the longest wait between two tokens of an answer. Continuous batching lets a prompt into a step with "
    "answers, and those answers wait for it; *chunked* cuts the prompt into pieces. That is the subject of the next "
    "chapter."
)


def policies() -> Table:
    """Each policy on the explorer's requests, forecast for one A100."""
    mixed, rows = WORKLOADS["mixed"], []
    for kind in mixed.policies:
        run = simulate(mixed.jobs, kind, 4, 128, A100, LLAMA)
        rows.append(
            [
                kind,
                f"{run.tokens_per_s:.0f}",
                percent(run.utilisation),
                f"{1e3 * run.mean_ttft:.0f}",
                f"{1e3 * run.longest_gap:.0f}",
            ]
        )
    return rows, ["policy", "tokens/s", "slots in use", "mean TTFT (ms)", "longest gap (ms)"], "lrrrr"


# peers --------------------------------------------------------------------------------------------
PEERS = {"lumen": "Lumen's engine", "transformers": "transformers, static batch", "vllm": "vLLM's CPU build"}
TARGETS = {"transformers": 2.0, "vllm": 1.5}


def peers_table(data: Mapping[str, Any]) -> Table:
    steps = {who: statistics.median(t["samples"]) for who, t in data["samples"].items()}
    rows = [
        [PEERS[who], f"{1e3 * step:.1f}", f"{data['sequences'] / step:.0f}"] for who, step in steps.items()
    ]
    return rows, ["eight decode together", "a step (ms)", "tokens/s"], "lrr"


@sentence(example={"who": "transformers, static batch"}, more_words=["times as fast"], less_words=["slower"])
def against(est: Estimate, who: str) -> str:
    """A peer's step over ours."""
    return says(
        est,
        more=f"{{x}} times as fast as {who} ({{low}} to {{high}})",
        same=f"not to be told from {who} here, {{estimate}}",
        less=f"slower than {who}, {{estimate}}",
    )


@sentence(more_words=["longer"], less_words=["shorter"])
def page_over_peers(est: Estimate) -> str:
    """The page's own step of eight over the one in the table."""
    return says(
        est,
        more="This page's own step for eight is {size} longer than the engine's: another machine or another "
        "day. Compare within the table.",
        same="This page's own step for eight lasts as long as the engine's.",
        less="This page's own step for eight is {size} shorter than the engine's: another machine or another "
        "day. Compare within the table.",
    )


def peers_story(data: Mapping[str, Any], eight: Measured) -> str:
    taken = {who: t["samples"] for who, t in data["samples"].items()}
    steps, run = taken.pop("lumen"), data["new"] - 1
    means = [statistics.fmean(steps[i : i + run]) for i in range(0, len(steps), run)]
    won = {  # of a peer only the mean of each run may be known
        who: Estimate.ratio(theirs, steps if len(theirs) == len(steps) else means)
        for who, theirs in taken.items()
    }
    aims = {who: f"where our aim was {TARGETS[who]:g}" for who in won}
    return (
        "`benchmarks/batching_peers.py`: same weights, fp32, one machine, medians. Ours are times of "
        "`Engine.step`; vLLM's is the wall time of a whole run over its steps, the way in and out of its worker "
        f"process included, beside the mean of each of our runs. Our engine is "
        f"{', and '.join(f'{against(est, PEERS[who])}, {aims[who]}' for who, est in won.items())}. A small model in "
        f"fp32 on a CPU is not what vLLM is built for, "
        "and none of this is about GPUs. "
        f"{page_over_peers(Estimate.ratio(eight.timing, steps))}"
    )


NO_PEERS = "No published run of `benchmarks/batching_peers.py` is at hand."


# where it loses -----------------------------------------------------------------------------------
@sentence(example={"steps": (16, 16)}, more_words=["more tokens/s"], less_words=["fewer tokens/s"])
def equal_jobs(est: Estimate, steps: tuple[int, int]) -> str:
    """Continuous over static where all answers are equally long. `steps`: static, continuous."""
    counted = f"{steps[0]} steps static, {steps[1]} continuous, and the clock says {{estimate}}. "
    return (
        says(
            est,
            more=counted
            + "The scheduler had nothing to gain here, so {size} more tokens/s are not its doing.",
            same=counted + "The door has nobody to let in before all are done: nothing is gained.",
            less=counted + "{size} fewer tokens/s: here the open door is a loss.",
        )
        + " For such work a plain loop over batches is enough."
    )


def latency_table() -> Table:
    """Largest batch within a limit on the time per token, and within memory."""
    rows = [
        [
            f"{context:,}",
            *(cost.max_batch(LLAMA, H100, context, t, reserve=0.1) for t in (0.006, 0.008, 0.012)),
            cost.max_users(H100.memory, LLAMA, context, "bf16", "bf16", reserve=0.1),
        ]
        for context in (2048, 8192, 32768)
    ]
    return rows, ["context", "TPOT ≤ 6 ms", "≤ 8 ms", "≤ 12 ms", "memory alone"], "rrrrr"


def recap(
    steps: Steps,
    one: Measured,
    eight: Measured,
    rounds: Rounds,
    equal: Estimate,
    config: ModelConfig,
    chip: Chip,
) -> str:
    gain = {c: gain_of_eight(steps, c).value for c in steps}
    won, counted = gain_of(rounds), len(rounds["static"][0].steps) / len(rounds["continuous"][0].steps)
    return (
        rf"- **A step reads $W + B L \kappa$.** Eight users got {gain[SHORT]:.1f} times the tokens/s of one at {SHORT} "
        f"tokens of context, {gain[LONG]:.1f} times at {LONG:,}.\n"
        f"- **A long prompt is a batch already:** eight of {one.name.context} tokens gained "
        f"{gain_of_prompts(one, eight)} from being read together; for eight of {PROMPT} the forecast "
        f"is {prompt_gain(PROMPT, config, chip, 'fp32'):.1f} ×.\n"
        f"- **Mean over maximum:** with σ = 1 a static batch of eight uses {percent(mean_over_max(8, 1.0))} of its "
        f"slots.\n"
        f"- **A door that opens at every step** took {percent(1 / counted)} of the steps of static batching for "
        "the same "
        f"tokens, and made {won} the tokens/s; with equal answers {equal}."
    )


PRODUCTION = [
    (
        "vllm",
        "always continuous; slots and tokens of a step are limited",
        "`--max-num-seqs`, `--max-num-batched-tokens`; `VLLM_BATCH_INVARIANT=1`",
        "features/batch_invariance/",
    ),
    (
        "sglang",
        "slots, pieces of prompts, answers that ignore the batch",
        "`--max-running-requests`, `--chunked-prefill-size`, `--enable-deterministic-inference`",
        "advanced_features/server_arguments",
    ),
    (
        "tensorrt-llm",
        "calls it in-flight batching; packed input",
        "`max_batch_size`, `max_num_tokens`",
        "https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html",
    ),
    (
        "llama.cpp",
        "slots; continuous by default",
        "`--parallel`, `--cont-batching`",
        "tools/server/README.md",
    ),
    (
        "triton",
        "dynamic batching, for models without a state",
        "`dynamic_batching`, `max_queue_delay_microseconds`",
        "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html",
    ),
]
