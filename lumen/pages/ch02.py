"""What chapter 02 shows: three clocks, the roofline, users, forecasts and moves. Functions of data, without a clock or
torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lumen import cost, hardware
from lumen.bench import Estimate, NoEvidence, load_evidence, miss, says, sentence
from lumen.bench.numbers import percent, shares
from lumen.config import CONFIGS, ModelConfig
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.figures.waterfall import waterfall
from lumen.explore.prose.boxes import milliseconds
from lumen.pages.forecasts import sides

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured, Timing
    from lumen.hardware import Chip

Table = tuple[list[list[Any]], list[str], str]
RESERVE = 0.1  # of a chip's memory, for activations and the program: the same wherever users are counted
DRAFT_COST = 0.1  # of a step of the target, for each drafted token


@dataclass(frozen=True)
class Pass:
    """One forward pass that was measured: its work, counted from the model's shape, and its time."""

    phase: str
    rows: int
    context: int
    flops: float
    moved: float
    measured: Estimate

    @classmethod
    def of(cls, config: ModelConfig, taken: Measured) -> Pass:
        name = taken.name
        flops, moved = work(config, name.phase, name.batch, name.context, name.dtype)
        return cls(name.phase, name.batch, name.context, flops, moved, taken.estimate)

    @property
    def intensity(self) -> float:
        return self.flops / self.moved

    @property
    def rate(self) -> float:
        """FLOP/s reached."""
        return self.flops / self.measured.value

    def clocks(self, chip: Chip, dtype: object) -> tuple[float, float]:
        """FLOPs at the peak, bytes at the bandwidth. [s]"""
        return self.flops / chip.peak(dtype), self.moved / chip.bandwidth


def work(config: ModelConfig, phase: str, batch: int, length: int, dtype: object) -> tuple[float, float]:
    """FLOPs and bytes of a prefill of `length` tokens, or of a decode step that sees as many."""
    if phase == "prefill":
        moved = cost.weight_bytes(config, dtype, batch * length) + cost.kv_bytes(config, length, batch, dtype)
        return cost.prefill_flops(config, length, batch).total, moved
    step = cost.step_bytes(config, batch, length, dtype)
    moved = step.weights + step.cache_read + step.cache_write
    return cost.step_flops(config, batch, length).total, moved


def starts(config: ModelConfig, chip: Chip, dtype: object, rows: int = 1) -> tuple[int, float]:
    """How many operators `rows` tokens start beside those in the products' own time, and how long that takes. [s]"""
    seconds = cost.predict_decode(config, chip, 1, rows, dtype).parts["overhead"]
    each = chip.overhead(cost.weight_bytes(config, dtype), rows)
    return round(seconds / each) if each else 0, seconds


def _share(part: float) -> str:
    return percent(part, 1 if part < 0.0995 else 0)


# three clocks -------------------------------------------------------------------------------------
@sentence(
    example={"what": "Reading a prompt", "rate": 7e10},
    at=50.0,
    unit="%",
    bound=(None, 100.0),
    more_words=["more than half"],
    less_words=["The rest"],
)
def share_of_peak(est: Estimate, what: str, rate: float) -> str:
    """The share of the peak that a pass reaches, in percent."""
    head = f"{what}, SmolLM2 does {rate / 1e9:,.3g} GFLOP/s, "
    return says(
        est,
        at=50.0,
        bound=(None, 100.0),
        contradicts="the peak, which was measured in another minute",
        less=head + "**{x} %** of the peak ({low} to {high}, n = {n}). The rest is left undone.",
        same=head
        + "{x} % of the peak ({low} to {high}, n = {n}), and whether that is over or under half this run "
        "does not say.",
        more=head + "more than half of the peak, {x} % ({low} to {high}, n = {n}).",
    )


def _shares(one: Pass, clock: float) -> Estimate:
    """clock / measured, in percent: its interval is that of the measured time."""
    m = one.measured
    return Estimate(100 * clock / m.value, 100 * clock / m.high, 100 * clock / m.low, m.n, "%")


def opening(decode: Pass, prefill: Pass, chip: Chip, dtype: object) -> str:
    words = [
        share_of_peak(_shares(one, one.flops / chip.peak(dtype)), what, one.rate)
        for what, one in (
            (f"Reading a prompt of {prefill.context} tokens", prefill),
            ("Writing one token", decode),
        )
    ]
    return (
        f"A large matrix product on this machine does **{chip.peak(dtype) / 1e9:,.0f} GFLOP/s**, a GFLOP being "
        f"$10^9$ additions and multiplications: its peak. {words[0]} {words[1]} A step for one token takes "
        f"{milliseconds(decode.measured.value)}."
    )


def clocks(decode: Pass, prefill: Pass, chip: Chip, dtype: object) -> Table:
    rows = []
    for name, one in ((f"prefill, {prefill.context} tokens", prefill), ("decode, 1 token", decode)):
        compute, memory = one.clocks(chip, dtype)
        rows.append(
            [name, *(milliseconds(s) for s in (compute, memory, one.measured.value)), f"{one.intensity:.3g}"]
        )
    headers = ["pass", "FLOPs / peak", "bytes / bandwidth", "measured", "FLOP per byte"]
    return rows, headers, "lrrrr"


def two_ratios(decode: Pass, chip: Chip, dtype: object) -> str:
    ridge, a100 = hardware.ridge(chip, dtype), hardware.CHIPS["A100 80GB SXM"]
    value = cost.bytes_per_value(dtype)
    here, there = (
        cost.roofline(i, c, d) / c.peak(d)
        for i, c, d in ((decode.intensity, chip, dtype), (1.0, a100, "bf16"))
    )
    return (
        f"The decode step moves {decode.moved / 1e6:.0f} MB for {decode.flops / 1e9:.2f} GFLOP: "
        f"**{decode.intensity:.2f} FLOP per byte**. Each weight of {value:g} bytes is fetched for one multiply "
        "and one add. The prefill fetches it once for all its tokens.\n\n"
        "FLOPs per byte are the arithmetic intensity $I$, a property of the *work*. The machine has such a "
        f"ratio, too, peak over bandwidth: {chip.peak(dtype) / 1e9:,.0f} GFLOP/s over "
        f"{chip.bandwidth / 1e9:.1f} GB/s is **{ridge:.1f} FLOP per byte**, its ridge point. Work of a lower "
        "intensity waits for memory, work of a higher one for arithmetic. So as long as the weights come from "
        f"memory, a decode step for one user can use {percent(here, 1)} of the arithmetic here at most, however "
        "well the "
        f"program is written. On an {a100.name} with 16-bit weights the intensity is about 1 and the ridge at "
        f"{hardware.ridge(a100):.0f}: {percent(there, 2)}."
    )


def third_clock(config: ModelConfig, chip: Chip, dtype: object) -> str:
    count, seconds = starts(config, chip, dtype)
    each = seconds / count if count else 0.0
    inside = "" if chip.asynchronous else ", beside those inside its matrix products"  # not measured
    return (
        "Measured with operators that do next to nothing, between reads of weights, which empty the caches, a start "
        f"takes {1e6 * each:.1f} µs here. SmolLM2 has {count} of them in a decode step{inside}: "
        f"**{milliseconds(seconds)}**."
    )


# the picture --------------------------------------------------------------------------------------
def products(config: ModelConfig, chip: Chip, dtype: object) -> list[tuple[float, float]]:
    """(FLOP/B, FLOP/s) of one product by the widest matrix of a layer for each number of rows that was timed.

    Its start included, as whoever times a product has it: the lab of this page does. Of bytes the weight's alone.
    """
    curves = chip.achieved.get(cost.dtype_name(dtype))
    if not curves:
        return []
    wide = config.intermediate_size * (2 if config.gated else 1)
    points = []
    for rows, rate in curves.matmul:
        flops = 2.0 * rows * config.hidden_size * wide
        seconds = flops / rate + hardware.at(curves.matmul_start, rows)
        points.append((2 * rows / cost.bytes_per_value(dtype), flops / seconds))
    return points


def roof(
    title: str, config: ModelConfig, chip: Chip, dtype: object, low: float = 0.2, high: float = 1500
) -> go.Figure:
    """The chip's roof and the matrix products that were timed alone, on log-log axes."""
    peak, ridge = chip.peak(dtype), hardware.ridge(chip, dtype)
    fig = figure(title, x="arithmetic intensity (FLOP per byte)", y="arithmetic done (FLOP/s)", height=360)
    log_axis(fig, "x", [1, 10, 100, 1000])
    log_axis(fig, "y")
    alone = products(config, chip, dtype)
    corners = [low, ridge, max([high, *(x for x, _ in alone)])]
    fig.add_scatter(
        x=corners, y=[cost.roofline(x, chip, dtype) for x in corners], mode="lines", hoverinfo="skip",
        line={"color": palette.grey, "width": 3},
    )  # fmt: skip
    if alone:
        x, y = zip(*alone, strict=True)
        fig.add_scatter(
            x=x, y=y, mode="markers", marker={"size": 6, "color": palette.grey, "symbol": "circle-open"},
            hovertemplate="one product: %{x:.3g} FLOP/B, %{y:.3s}FLOP/s<extra></extra>",
        )  # fmt: skip
    label_line(fig, high, peak, "peak", palette.grey)
    label_line(fig, ridge / 3, peak / 3, "bandwidth", palette.grey, shift=13)
    return fig


def with_starts(config: ModelConfig, chip: Chip, dtype: object, context: int) -> list[tuple[float, float]]:
    """(FLOP/B, FLOP/s) of decode steps of 1 to 256 users, if only clocks and operator starts took time."""
    points = []
    for users in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        flops, moved = work(config, "decode", users, context, dtype)
        _, extra = starts(config, chip, dtype, users)
        floor = max(flops / chip.peak(dtype), moved / chip.bandwidth)
        points.append((flops / moved, flops / (max(floor, extra) if chip.asynchronous else floor + extra)))
    return points


def picture(config: ModelConfig, decode: Pass, prefill: Pass, chip: Chip, dtype: object) -> go.Figure:
    peak = chip.peak(dtype)
    fig = roof(
        f"Decode does {_share(decode.rate / peak)} of the peak, prefill {_share(prefill.rate / peak)}",
        config,
        chip,
        dtype,
    )
    x, y = zip(*with_starts(config, chip, dtype, decode.context), strict=True)
    fig.add_scatter(
        x=x, y=y, mode="lines", hoverinfo="skip", line={"color": palette.purple, "dash": "dash", "width": 1.5}
    )
    label_line(fig, 1500, 1.5 * y[0], "– – decode, with operator starts", palette.purple, shift=0)
    for name, one, color in (("decode", decode, palette.orange), ("prefill", prefill, palette.blue)):
        ceiling = cost.roofline(one.intensity, chip, dtype)
        fig.add_scatter(
            x=[one.intensity] * 2, y=[one.rate, ceiling], mode="lines", hoverinfo="skip",
            line={"color": color, "width": 1, "dash": "dot"},
        )  # fmt: skip
        fig.add_scatter(
            x=[one.intensity], y=[one.rate], mode="markers", marker={"size": 13, "color": color},
            hovertemplate=f"{name}: {_share(one.rate / ceiling)} of its roof<extra></extra>",
        )  # fmt: skip
        label_line(fig, one.intensity, one.rate, name, color, anchor="center", shift=-20)
    return fig


# where the time goes ------------------------------------------------------------------------------
def time_of(config: ModelConfig, one: Pass, chip: Chip, dtype: object) -> list[tuple[str, float]]:
    phase: Any = one.phase
    return cost.waterfall(config, chip, phase, one.measured.value, one.rows, one.context, dtype)


def waterfall_figure(config: ModelConfig, one: Pass, chip: Chip, dtype: object) -> go.Figure:
    parts = time_of(config, one, chip, dtype)
    what = "decode step" if one.phase == "decode" else f"prefill of {one.context} tokens"  # not measured
    floor, took = dict(parts)["floor"], one.measured.value
    return waterfall(
        parts,
        f"A {what}: {milliseconds(took)}, its floor {milliseconds(floor)} ({_binding(one, chip, dtype)})",
    )


def _binding(one: Pass, chip: Chip, dtype: object) -> str:
    words = {"memory": "bytes at the bandwidth", "compute": "FLOPs at the peak"}
    return words[cost.bound_by(one.intensity, chip, dtype)]


def unexplained(config: ModelConfig, decode: Pass, prefill: Pass, chip: Chip, dtype: object) -> str:
    lines = []
    for name, one in (("Decode", decode), ("Prefill", prefill)):
        left = dict(time_of(config, one, chip, dtype)).get("residual", 0.0)
        forecast = one.measured.value - left
        why = "The forecast adds up operators that were timed one by one; for the rest this page has no experiment."
        lines.append(
            f"{name}: {miss(forecast, one.measured, why)} Residual "
            f"{_signed(left)}, {percent(left / one.measured.value, signed=True)} of the time."
        )
    return "Grey and blue make the forecast. For the prefill the same sum:\n\n" + "\n".join(
        f"- {line}" for line in lines
    )


def _signed(seconds: float) -> str:
    return ("−", "+")[int(math.copysign(1, seconds) > 0)] + milliseconds(abs(seconds))


# users --------------------------------------------------------------------------------------------
@sentence(example={"users": 8, "flops": 8.0, "moved": 1.3}, at="users", less_words=["tokens per second"])
def sharing(est: Estimate, users: int, flops: float, moved: float) -> str:
    """What a step for `users` costs against one for a single user, with the growth of its FLOPs and bytes."""
    head = (
        f"{users} users need {flops:.0f} times the FLOPs and **{moved:.2f} times the bytes**: the weights are "
        "read once, whoever needs them. "
    )
    return head + says(
        est,
        at=users,
        less="The step takes {x} times as long ({low} to {high}, n = {n}), so the machine as a whole writes "
        f"**{users / est.value:.1f} times as many tokens per second**.",
        same="The step takes {x} times as long ({low} to {high}, n = {n}): no saving over as many steps for one user "
        "that this run can show.",
        more="The step takes {x} times as long ({low} to {high}, n = {n}), more than as many steps for one user: "
        "here each user would be better served alone.",
    )


@sentence(example={"few": 1, "many": 2}, more_words=["longer"], less_words=["less time"])
def dip(est: Estimate, few: int, many: int) -> str:
    """A step for `many` users against one for `few`, where its median is the lower one."""
    head = f"{many} users took {{x}} times as long as {few} ({{low}} to {{high}}, n = {{n}}): "
    return says(
        est,
        more=head + "longer, as it should be.",
        same=head + "this run cannot tell them apart.",
        less=head + "less time for more work, and no experiment here says why.",
    )


def users_text(config: ModelConfig, sweep: Mapping[int, Pass], taken: Mapping[int, Timing], chip: Chip, dtype: Any,
               users: int = 8) -> str:  # fmt: skip
    """The answer to the first question: what grew, and where the forecast says it grew."""
    one, many = sweep[1], sweep[users]
    ratio = Estimate.ratio(taken[users], taken[1])
    said = {n: cost.predict_decode(config, chip, one.context, n, dtype) for n in sweep}
    text = sharing(ratio, users, many.flops / one.flops, many.moved / one.moved)
    matrices = {n: sum(said[n].parts[p] for p in ("projections", "mlp", "head")) for n in said}
    dents = [(a, b) for a, b in pairwise(said) if matrices[a] > 1.03 * matrices[b]]
    dent = "".join(
        f" It reckons the products of {a} row{'s' if a > 1 else ''} dearer than those of {b}, "
        f"{milliseconds(matrices[a])} against {milliseconds(matrices[b])}: so they were when timed alone."
        for a, b in dents[:1]
    )
    dips = [(a, b) for a, b in pairwise(sorted(taken)) if taken[b].median < taken[a].median]
    fell = "".join(f" {dip(Estimate.ratio(taken[b], taken[a]), a, b)}" for a, b in dips[:1])
    off = [percent(said[n].seconds / sweep[n].measured.value - 1, signed=True) for n in (1, users)]
    why = f"Of the single step it missed {off[0]}, of the step for {users} {off[1]}; no experiment here says why."
    return (
        f"{text}\n\n"
        f"The clocks alone would allow {_floor(many, chip, dtype) / _floor(one, chip, dtype):.2f} times. The "
        f"forecast from operators timed alone: {miss(said[users].seconds / said[1].seconds, ratio, why)} In it "
        f"the matrix products go from {milliseconds(matrices[1])} to {milliseconds(matrices[users])}, "
        f"attention from {milliseconds(said[1].parts['attention'])} to "
        f"{milliseconds(said[users].parts['attention'])}, the operator starts from "
        f"{milliseconds(said[1].parts['overhead'])} to {milliseconds(said[users].parts['overhead'])}.{dent}{fell}"
    )


def _floor(one: Pass, chip: Chip, dtype: object) -> float:
    return max(one.clocks(chip, dtype))


def users_table(sweep: Mapping[int, Pass], chip: Chip, dtype: object) -> Table:
    rows = []
    for n, one in sweep.items():
        compute, memory = one.clocks(chip, dtype)
        took = one.measured.value
        rows.append([n, milliseconds(took), f"{n / took:.3g}", _share(compute / took), _share(memory / took)])
    return rows, ["users", "a step", "tokens/s in all", "MFU", "MBU"], "rrrrr"


def low_mfu(one: Pass, chip: Chip, dtype: object) -> str:
    ridge = hardware.ridge(chip, dtype)
    users = ridge * cost.bytes_per_value(dtype) / 2
    reached = under_roof(
        _shares(one, _floor(one, chip, dtype)), one.rate / chip.peak(dtype), one.intensity / ridge
    )
    return (
        f"**Takeaway.** {reached} Judge decode by MBU at few users and by MFU at many. The two are equal where "
        f"intensity equals the ridge, on this machine at about {users:.0f} users of short contexts."
    )


@sentence(
    example={"reached": 0.06, "roof": 0.1},
    at=50.0,
    unit="%",
    bound=(None, 100.0),
    more_words=["more than half"],
    less_words=["less than half"],
)
def under_roof(est: Estimate, reached: float, roof: float) -> str:
    """What a low MFU means: how much of one user's roof was reached, in percent."""
    head = (
        "A low MFU in decode is by itself no fault of the program: for one user the roof is at "
        f"{percent(min(roof, 1.0), 1)}. This one reached {_share(reached)}, "
    )
    tail = " What is missing to the roof is what the waterfall shows above its floor."
    return says(
        est,
        at=50.0,
        bound=(None, 100.0),
        contradicts="the roof, which was measured in another minute",
        more=head + "more than half of that ({x} %, {low} to {high}, n = {n})." + tail,
        same=head + "{x} % of that ({low} to {high}, n = {n})." + tail,
        less=head + "less than half of that ({x} %, {low} to {high}, n = {n})." + tail,
    )


# where batching ends ------------------------------------------------------------------------------
LENGTHS = (512, 2048, 8192)


def full(length: int) -> tuple[int, float]:
    """Users of `length` tokens that fill an H100 beside Llama-3-8B in 16 bits, and the intensity of their step."""
    llama, h100 = CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]
    most = cost.max_users(h100.memory, llama, length, reserve=RESERVE)
    return most, cost.step_intensity(llama, most, length)


def longest(users: int) -> tuple[int, int]:
    """The longest contexts at which `users` of Llama-3-8B fit an H100, and at which their step reaches its ridge."""
    llama, h100 = CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]
    fit = [n for n in range(1, 2049) if cost.max_users(h100.memory, llama, n, reserve=RESERVE) >= users]
    reach = [n for n in range(1, 2049) if cost.step_intensity(llama, users, n) >= hardware.ridge(h100)]
    return max(fit), max(reach)


def batching_text() -> str:
    ridge = hardware.ridge(hardware.CHIPS["H100 SXM"])
    fit, reach = longest(1024)
    short, middle, long = (full(n) for n in LENGTHS)
    limit = (
        CONFIGS["llama-3-8b"].num_heads / CONFIGS["llama-3-8b"].num_kv_heads
    )  # 4 L d_q FLOPs, 4 L d_kv bytes
    return (
        f"With a tenth of the 80 GB kept free for the program, Llama-3-8B in 16 bits leaves room for {short[0]:,} "
        f"users of 512 tokens, {middle[0]:,} of 2,048, {long[0]:,} of 8,192; 1,024 fit up to {fit} tokens and reach "
        f"the ridge of {ridge:.0f} up to {reach}. The {long[0]:,} do {long[1]:.0f} FLOP per byte. Users "
        "add intensity to the *weights*. A cache is read for one user alone. "
        f"In this model {limit:.0f} query heads share the keys and values of one KV head, so in 16 bits the "
        f"cache's part of a step stays at {limit:.0f} FLOP per byte, however many users there are."
    )


# FLOPs --------------------------------------------------------------------------------------------
FLOPS_AT = 2048


def flops_table() -> Table:
    gelu = CONFIGS["llama-2-7b"].with_(name="textbook, d = 4,096", mlp="gelu", intermediate_size=4 * 4096)
    rows = []
    for one in (CONFIGS["smollm2-135m"], gelu, CONFIGS["llama-2-7b"], CONFIGS["llama-3-8b"]):
        split, cross = cost.flops_per_token(one, FLOPS_AT), cost.crossover_context(one)
        parts = (split.mlp + split.projections, split.head, split.attention)
        rows.append([one.name, *shares(parts), f"{cross:,.0f} = {cross / one.hidden_size:.2f} d"])
    return rows, ["model", "layers' matrices", "output matrix", "attention", "crossover (tokens)"], "lrrrr"


def flops_text() -> str:
    smol, seven, eight = (CONFIGS[name] for name in ("smollm2-135m", "llama-2-7b", "llama-3-8b"))
    share = {n: f.attention / f.linear for n in (2048, 32768) for f in [cost.prefill_flops(seven, n)]}
    head = cost.flops_per_token(smol, FLOPS_AT)
    return (
        f"In Llama-3-8B attention draws level at {cost.crossover_context(eight):,.0f} tokens, in SmolLM2, which is "
        f"narrow, at {cost.crossover_context(smol):,.0f} ([table](02a_chips.ipynb#flops-model-by-model)). A small "
        "model pays for a large vocabulary: SmolLM2's output matrix takes "
        f"{percent(head.head / head.total)} of a token's FLOPs at a context of {FLOPS_AT:,}. In a causal prefill "
        "a token "
        "sees half of the prompt on average, so the balance tips at twice that length: in Llama-2-7B attention adds "
        f"{percent(share[2048], 1)} to the matrices at 2,048 tokens and {percent(share[32768])} at 32,768."
    )


# forecasts ----------------------------------------------------------------------------------------
def _record() -> dict[str, Any] | None:
    try:
        return load_evidence("cost_model")
    except NoEvidence:
        return None


MISSING = "The published grid (`book/evidence/cost_model.json`) is not here. `benchmarks/cost_model.py` measures it."


def forecast_text() -> str:
    """The misses of the published grid in one sentence."""
    record = _record()
    if record is None:
        return MISSING
    return (
        f"Counting the misses whose interval excludes 0: {sides(record['data']['cells'])} "
        "([each pass](02a_chips.ipynb#the-forecast-pass-by-pass)). What is missing where it is over a tenth, no "
        "experiment here says."
    )


def published_text() -> str:
    """GPUs that nobody here has: how far the bound is from what others measured. What it leaves out: the appendix."""
    from lumen.cost.published import misses, summary

    rows = misses()
    sources = len({row.measurement.source.url for row in rows})
    dates = sorted(row.measurement.source.date for row in rows)
    medians = [median for _, _, n, median, _, _ in summary(rows) if n > 1]
    return (
        f"For chips that we never touched there are data sheets, and {len(rows)} measurements from {sources} "
        f"sources, published {dates[0][:4]} to {dates[-1][:4]} ([each of them](02a_chips.ipynb#what-others-measured)). "
        "Without rates of single operators the prediction "
        f"is the two clocks, a **bound**: too short for {sum(r.ratio > 1 for r in rows)} of {len(rows)}, by "
        f"{100 * (1 - statistics.median(1 / r.ratio for r in rows)):.0f} % in the median. By chip and phase the "
        f"medians run from {min(medians):.1f} to {max(medians):.1f} times the bound, so it does not say which of "
        "two similar chips serves faster. Read a bound as a bound: it says what cannot be."
    )


# techniques ---------------------------------------------------------------------------------------
Point = tuple[float, float]


def decode_point(
    config: ModelConfig, batch: int = 8, length: int = 2048, weight: object = "bf16", kv: object = "bf16",
    rows: int = 1, tokens: float = 1.0, extra: float = 0.0, on: str = "H100 SXM",
) -> Point:  # fmt: skip
    """(FLOP/B, tokens/s) of a step by the two clocks: `rows` tokens a user go in, `tokens` are kept; `extra` plain
    steps, of a row a user, come on top."""
    chip = hardware.CHIPS[on]
    plain = cost.step_flops(config, batch, length).total
    flops = plain * rows
    step = cost.step_bytes(config, batch, length, weight_dtype=weight, kv_dtype=kv)
    moved = step.weights + step.cache_read + step.cache_write
    seconds, one = (max(work / chip.peak(), moved / chip.bandwidth) for work in (flops, plain))
    return flops / moved, batch * tokens / (seconds + extra * one)


def moves() -> dict[str, tuple[Point, Point]]:
    """Where techniques move a decode step of Llama-2-7B on an H100, 8 users of 2,048 tokens: before and after."""
    base = CONFIGS["llama-2-7b"]
    chip = hardware.CHIPS["H100 SXM"]
    start = decode_point(base)
    again, weights = cost.prefill_flops(base, 2048, 8).total, cost.weight_bytes(base, "bf16", 8 * 2048)
    none = (again / weights, 8 / max(again / chip.peak(), weights / chip.bandwidth))
    kept = cost.expected_tokens(0.8, 4)
    return {
        "KV cache instead of none (ch. 4)": (none, start),
        "batch 8 → 32 (ch. 8)": (start, decode_point(base, batch=32)),
        "KV heads 32 → 8 (ch. 12)": (start, decode_point(base.with_(num_kv_heads=8))),
        "cache in 8 bits (ch. 13)": (start, decode_point(base, kv=1)),
        "4 drafts, 80 % accepted (ch. 15)": (
            start,
            decode_point(base, rows=5, tokens=kept, extra=4 * DRAFT_COST),
        ),
        "weights in 4.5 bits (ch. 17)": (start, decode_point(base, weight="q4_0")),
        "half of the layers (ch. 20)": (start, decode_point(base.with_(num_layers=16))),
        "H200 instead of H100": (start, decode_point(base, on="H200 SXM")),
    }


def gain(pair: tuple[Point, Point]) -> float:
    return pair[1][1] / pair[0][1]


def moves_figure() -> go.Figure:
    found = moves()
    best = max(map(gain, found.values()))
    fig = figure(
        f"Most techniques push decode right; the largest gain, × {best:.0f}, pulls it left",
        x="arithmetic intensity (FLOP per byte)",
        y="technique",
        height=400,
    )
    log_axis(fig, "x", [1, 10, 100, 1000, 10_000])
    ridge = hardware.ridge(hardware.CHIPS["H100 SXM"])
    for i, (name, pair) in enumerate(found.items()):
        (before, _), (after, _) = pair
        turn = math.log10(after / before)
        color = palette.green if turn < -0.004 else palette.blue if turn > 0.004 else palette.orange
        if abs(turn) > 0.01:
            fig.add_annotation(
                x=math.log10(after), y=i, ax=math.log10(before), ay=i, axref="x", ayref="y", text="", arrowhead=2,
                arrowwidth=2, arrowcolor=color,
            )  # fmt: skip
        hover = f"{name}<br>{before:.1f} → {after:.1f} FLOP/B<br>{gain(pair):.1f} × tokens/s<extra></extra>"
        fig.add_scatter(
            x=[before], y=[i], mode="markers", marker={"color": color, "size": 9}, hovertemplate=hover
        )
        label_line(fig, 0.6, i, f"{name}: <b>× {gain(pair):.1f}</b>", anchor="left", shift=19)
    fig.add_vline(x=ridge, line={"color": palette.grey, "dash": "dot"}, layer="below", opacity=0.5)
    fig.add_annotation(
        x=math.log10(ridge), y=7.6, text="ridge", showarrow=False, xanchor="left", font_color=palette.grey
    )
    fig.update_yaxes(visible=False, range=[7.9, -0.8])
    fig.update_xaxes(range=[-0.25, 4.5])
    return fig


def moves_text() -> str:
    found, base = moves(), CONFIGS["llama-2-7b"]
    none = found["KV cache instead of none (ch. 4)"]
    step = cost.step_bytes(base, 8, 2048)
    spec = gain(found["4 drafts, 80 % accepted (ch. 15)"])
    drafts: dict[str, Any] = {"rows": 5, "tokens": cost.expected_tokens(0.8, 4), "extra": 4 * DRAFT_COST}
    no_drafts: dict[str, Any] = {}
    crowd = [decode_point(base, batch=1024, length=64, **more) for more in (no_drafts, drafts)]
    return (
        "Bold are tokens per second, after over before; numbers in brackets are chapters, some still planned. "
        "Operator starts are not here.\n\n"
        "- **Right is not the goal.** Without a KV cache the step does the same rows again and again, at "
        f"{none[0][0]:,.0f} FLOP per byte and a splendid MFU. The cache moves the point *left*: × {gain(none):.0f}.\n"
        f"- **Bits and heads save bytes.** {percent(step.cache_read / step.total)} of these are cache, so 4.5-bit "
        f"weights alone give × {gain(found['weights in 4.5 bits (ch. 17)']):.1f}, not {16 / 4.5:.1f}.\n"
        "- **Speculation** fills idle arithmetic: a cheap drafter proposes four tokens, one pass checks them. "
        f"Each draft is reckoned at {percent(DRAFT_COST)} of a plain step; free ones would give × "
        f"{spec * (1 + 4 * DRAFT_COST):.1f} for × {spec:.1f}. Beyond the ridge it costs: with 1,024 users of 64 "
        f"tokens the same drafts give × {crowd[1][1] / crowd[0][1]:.2f}."
    )


# where it loses -----------------------------------------------------------------------------------
def toy_floor(config: ModelConfig, context: int, chip: Chip, dtype: object) -> float:
    flops, moved = work(config, "decode", 1, context, dtype)
    return max(flops / chip.peak(dtype), moved / chip.bandwidth)


def toy_text(config: ModelConfig, context: int, chip: Chip, dtype: object) -> str:
    return (
        f"The toy has {config.num_layers} layers of width {config.hidden_size}: "
        f"{cost.weight_bytes(config, dtype) / 1e6:.1f} MB of weights. By the longer of FLOPs / peak and bytes "
        f"/ bandwidth a decode step could take {1e6 * toy_floor(config, context, chip, dtype):.0f} µs."
    )


def losers(found: Sequence[tuple[ModelConfig, Measured | None, int]], chip: Chip, dtype: object) -> Table:
    """Clocks, starts and time of a decode step, model by model; without a measurement the forecast stands in."""
    rows = []
    for config, taken, context in found:
        floor = toy_floor(config, context, chip, dtype)
        count, toll = starts(config, chip, dtype)
        took = milliseconds(taken.seconds) if taken else (
            milliseconds(cost.predict_decode(config, chip, context, 1, dtype).seconds) + " (forecast)"
        )  # fmt: skip
        rows.append([config.name, took, milliseconds(floor), milliseconds(toll), count])
    return rows, ["model", "a step", "two clocks", "operator starts", "how many"], "lrrrr"


@sentence(example={"count": 300, "toll": 3e-3, "cold": 2e-5}, less_words=["beats"])
def toy_over(est: Estimate, count: int, toll: float, cold: float) -> str:
    """The toy's step as a multiple of its two clocks; `cold` is the price of a start between reads of weights."""
    each = toll / count if count else 0.0
    tail = (
        f" Its {count} operators beside the matrix products would take {milliseconds(toll)}, each at the "
        f"{1e6 * each:.1f} µs of a start in a model that stays in the cache (between reads of weights: "
        f"{1e6 * cold:.1f})."
    )
    return (
        says(
            est,
            more="The toy takes **{x} times** ({low} to {high}, n = {n}) what the two clocks say.",
            same="The toy takes {x} times ({low} to {high}, n = {n}) what the two clocks say: no third clock that "
            "this run can show.",
            less="The toy beats the two clocks, {x} times ({low} to {high}, n = {n}). It may: the bytes of so small "
            "a model need not come from memory.",
        )
        + tail
    )


def toy_answer(config: ModelConfig, taken: Measured, chip: Chip, dtype: object) -> str:
    floor = toy_floor(config, taken.name.context, chip, dtype)
    count, toll = starts(config, chip, dtype)
    cold = chip.overhead(math.inf)
    forecast = cost.predict_decode(config, chip, taken.name.context, 1, dtype).seconds
    reason = "The forecast adds operators timed one by one; what they do to each other is not in it."
    return (
        f"{toy_over(taken.estimate.scaled(1 / floor, '×'), count, toll, cold)} The whole forecast: "
        f"{miss(forecast, taken.estimate, reason)}\n\n"
        "Larger models start about as many operators (reckoned in the table, not measured), and beside their "
        "bytes the starts fade; `gptlite` is the course's own character model. Chapter 21 removes the third clock."
    )


@sentence(example={"small": 4.0, "large": 256.0}, more_words=["fails as it should"])
def control(est: Estimate, small: float, large: float) -> str:
    """An array that fits the last cache against the largest; sizes in MiB."""
    head = f"An array of {small:g} MiB is read **{{x}} times** ({{low}} to {{high}}, n = {{n}}) as fast as one of "
    return says(
        est,
        more=head
        + f"{large:g} MiB. The control fails as it should: the small one fits the last cache, and after the "
        "first round need not come from memory. The roof is a statement about memory; what stays in a cache does "
        "not live under it.",
        same=head
        + f"{large:g} MiB: in this run the control did not break the roof, so it shows nothing. Another "
        "process may have used the caches.",
        less=head
        + f"{large:g} MiB: often because the start of an operator weighs more than what a cache saves. "
        "So the control shows nothing here.",
    )


def control_sizes(chip: Chip) -> tuple[int, int]:
    """Bytes that fill an eighth to a quarter of the last cache, and bytes that fill it four times or more."""
    cache = int(chip.cache_bytes or 2**24)
    return max(2**18, 2 ** (cache.bit_length() - 3)), max(2**28, 4 * cache)


def control_text(rates: Mapping[int, Timing], chip: Chip) -> str:
    small, large = min(rates), max(rates)
    per = {n: [s / n for s in rates[n].samples] for n in (small, large)}
    rate = Estimate.of(rates[large])  # [s]
    value, low, high = (large / s / chip.bandwidth for s in (rate.value, rate.high, rate.low))
    over = Estimate(value, low, high, rate.n, "×")
    return (
        f"{control(Estimate.ratio(per[large], per[small]), small / 2**20, large / 2**20)} "
        f"{right_end(over, large / 2**20, max(0.05, chip.uncertainty.get('bandwidth', 0.0)))}"
    )


@sentence(example={"large": 256.0}, more_words=["too high"], less_words=["too low"])
def right_end(est: Estimate, large: float, sure: float = 0.05) -> str:
    """The rate of the largest array, in roofs; `sure` is the share by which the roof is uncertain."""
    head = f"Even {large:g} MiB come at {{x}} times ({{low}} to {{high}}, n = {{n}}) the roof"
    return says(
        est,
        worth=sure,
        more=head
        + ": some of them from the cache still, or the roof was measured in a slower minute. If so, every "
        "MBU here is too high by as much.",
        same=f"The {large:g} MiB come at {{x}} times ({{low}} to {{high}}, n = {{n}}) the roof, as they should "
        f"(it is sure to {percent(sure)}).",
        less=f"The {large:g} MiB come at {{x}} times ({{low}} to {{high}}, n = {{n}}) the roof, the best look of "
        f"`hardware.measure()`, which is sure to {percent(sure)}. A pass in a minute as slow as this one shows an MBU "
        "too low by as much.",
    )


def best_mfu(step: Pass, again: Pass, chip: Chip, dtype: object) -> str:
    """A token written with a cache, and by reading all of its context again: MFU against tokens per second."""
    with_cache, without = (
        f"{1 / one.measured.value:.1f} tokens/s with {_share(one.rate / chip.peak(dtype))} of the peak"
        for one in (step, again)
    )
    return (
        f"The third trap, measured. The successor of token {again.context} comes from a decode step at {with_cache}; "
        f"from reading all {again.context} tokens again at {without}."
    )


# play and recap -----------------------------------------------------------------------------------
def points(config: ModelConfig, passes: Sequence[Pass], chip: Chip, dtype: str) -> list[dict[str, Any]]:
    """What was measured, for the explorer: it stands under the roof, not on it."""
    return [
        {"chip": chip.name, "model": config.name, "format": dtype, "phase": p.phase, "batch": p.rows,
         "context": p.context, "seconds": p.measured.value}
        for p in passes
    ]  # fmt: skip


def recap(config: ModelConfig, sweep: Mapping[int, Pass], prefill: Pass, chip: Chip, dtype: object) -> str:
    one, last = sweep[1], max(sweep)
    many, ridge = sweep[last], hardware.ridge(chip, dtype)
    left = dict(time_of(config, one, chip, dtype)).get("residual", 0.0)
    shares = {p: [_share(clock / p.measured.value) for clock in p.clocks(chip, dtype)] for p in (one, many)}
    users, level = full(2048)
    why = "No experiment here says why."
    return (
        "- **Which resource binds?** Compare FLOP per byte with peak over bandwidth. Here decode stands at "
        f"{one.intensity:.2f}, the ridge at {ridge:.1f}, the prefill of {prefill.context} tokens at "
        f"{prefill.intensity:.0f}.\n"
        "- **Predict a step:** the longer of FLOPs / peak and bytes / bandwidth is "
        f"{milliseconds(_floor(one, chip, dtype))} for one user. With the rates of single operators and their "
        f"starts: {miss(one.measured.value - left, one.measured, why)}\n"
        f"- **MFU and MBU:** {shares[one][0]} and {shares[one][1]} for one user, {shares[many][0]} and "
        f"{shares[many][1]} for {last}.\n"
        f"- **Where batching ends:** an H100 holds {users:,} users of Llama-3-8B with 2,048 tokens each, and "
        f"their step does {level:.0f} FLOP per byte; the ridge is at "
        f"{hardware.ridge(hardware.CHIPS['H100 SXM']):.0f}."
    )


PRODUCTION = [
    ("vllm", "times one batch without a server; `--max-num-seqs` caps the users of a step",
     "`vllm bench latency --batch-size 8 --input-len 32 --output-len 128`", "cli/bench/latency/"),
    ("sglang", "runs the model alone, without server and scheduler",
     "`python -m sglang.bench_one_batch --batch-size 1 8 32`", "developer_guide/benchmark_and_profiling"),
    ("tensorrt-llm", "`--max_batch_size` caps the users of a step, `--max_num_tokens` its rows",
     "`trtllm-bench throughput`, `trtllm-bench latency`", "commands/trtllm-bench.html"),
    ("llama.cpp", "prefill and decode speed for each number of users",
     "`llama-batched-bench -npp 128 -ntg 128 -npl 1,2,4,8,16,32`", "tools/batched-bench/README.md"),
]  # fmt: skip
