"""What chapter 12 shows: bytes of a token, times of a step, losses of conversions, latents, published models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS, ModelConfig
from lumen.cost.ledger import ledger
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.hardware import CHIPS
from lumen.models.counts import expand_flops, pair_flops
from lumen.pages.ch11 import size
from lumen.parts import Latent

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing

Table = tuple[list[list[Any]], list[str], str]
Losses = Mapping[str, Sequence[float]]  # name -> the mean loss of each window [nats per character]
OLD, NEW, SMALL = CONFIGS["llama-2-7b"], CONFIGS["llama-3-8b"], CONFIGS["gptlite"]
H100, MEMORY, LONG = CHIPS["H100 SXM"], 80e9, 131_072
V3 = ModelConfig(
    "deepseek-v3", 129280, 61, 7168, 128, 128, 128, 18432, 163840,
    latent=Latent(rank=512, rope=64, query_rank=1536),
    source="DeepSeek-AI 2024, DeepSeek-V3, section 4.2; its experts are left out",
)  # fmt: skip
RULES = {"mean": "mean of the group", "first": "first of the group", "random": "at random"}
NOT_PUBLISHED = (
    "These numbers come from a published measurement, `fewer_kv_heads`, which this copy of the course does not have: "
    "`python benchmarks/fewer_kv_heads.py` makes it."
)


# two models ---------------------------------------------------------------------------------------
def symbols() -> Table:
    """κ and what it is made of, for the two models of the opening and the small one that is converted here."""
    models, rows = (OLD, NEW, SMALL), []
    for symbol, values, says_ in (
        ("$L$", [m.num_layers for m in models], "layers"),
        ("$H$", [m.num_heads for m in models], "heads that ask"),
        ("$H_{kv}$", [m.num_kv_heads for m in models], "heads that are stored"),
        ("$D$", [m.head_dim for m in models], "width of a head"),
        ("$b$", [2, 2, 2], "bytes of a number"),
    ):
        rows.append([symbol, *(f"{v:,}" for v in values), says_])
    rows.append(["$\\kappa$", *(size(cost.kv_bytes_per_token(m)) for m in models), "of a token"])
    longest = [m.max_positions for m in models]
    rows.append(["longest", *(f"{n:,}" for n in longest), "tokens it was trained for"])
    held = [size(cost.kv_bytes(m, n)) for m, n in zip(models, longest, strict=True)]
    rows.append(["its cache", *held, "of one user"])
    return rows, ["", *(m.name for m in models), "what it is"], "lrrrl"


def opening() -> str:
    """The surprise in bytes."""
    old, new = (cost.kv_bytes(m, m.max_positions) for m in (OLD, NEW))
    ratio = cost.kv_bytes_per_token(OLD) / cost.kv_bytes_per_token(NEW)
    return (
        f"Llama-2-7B's longest conversation, {OLD.max_positions:,} tokens, takes {size(old)}. Llama-3-8B's is "
        f"{NEW.max_positions:,} tokens long and takes {size(new)}: {ratio:.0f} times fewer bytes a token."
    )


# a step -------------------------------------------------------------------------------------------
def shape(kept: Mapping[str, Any], name: str) -> ModelConfig:
    """The configuration that a published step was measured with."""
    (row,) = (row for row in kept["steps"] if row["name"] == name)
    fields = dict(row["config"])
    if fields.get("latent"):
        fields["latent"] = Latent(**fields["latent"])
    return ModelConfig(**fields)


def step_of(kept: Mapping[str, Any], name: str, context: int) -> tuple[Estimate, float]:
    """A published decode step and its forecast. [s]"""
    (row,) = (row for row in kept["steps"] if row["name"] == name)
    (one,) = (step for step in row["steps"] if step["context"] == context)
    return Estimate(one["measured_s"], one["low_s"], one["high_s"], one["n"], "s"), one["predicted_s"]


def gain_of(kept: Mapping[str, Any], name: str, context: int) -> tuple[Estimate, float]:
    """How many times as fast a variant's step is as that of all heads: measured in turns, and forecast."""
    (row,) = (row for row in kept["steps"] if row["name"] == name)
    (one,) = (step for step in row["steps"] if step["context"] == context)
    return Estimate(**one["gain"]), step_of(kept, "mha", context)[1] / one["predicted_s"]


def contexts_of(kept: Mapping[str, Any]) -> list[int]:
    return [step["context"] for step in kept["steps"][0]["steps"]]


def steps_table(kept: Mapping[str, Any]) -> Table:
    """Bytes of a token, and a step at every context: how many times as fast as with all heads, and the forecast's.

    "≈ 1" where the interval holds both faster and slower.
    """
    contexts, rows = contexts_of(kept), []
    for row in kept["steps"]:
        cells = []
        for context in contexts:
            if row["name"] == "mha":
                cells.append(milliseconds(step_of(kept, "mha", context)[0].value))
            else:
                won, said = gain_of(kept, row["name"], context)
                held = "≈ 1" if won.low < 1 < won.high else f"{won.value:.2f}"
                cells.append(f"{held} × ({said:.2f})")
        rows.append([f"`{row['name']}`", size(row["bytes_per_token"]), *cells])
    return rows, ["variant", "a token", *(f"at {c:,}" for c in contexts)], "lr" + "r" * len(contexts)


def steps_figure(kept: Mapping[str, Any]) -> go.Figure:
    """Times against context: dots measured, lines forecast."""
    contexts = contexts_of(kept)
    long = gain_of(kept, "mqa", contexts[-1])[0]
    short = gain_of(kept, "mqa", contexts[0])[0]
    fig = figure(
        f"One head of keys for sixteen: {short.value:.2g} times as fast at {contexts[0]:,} tokens, "
        f"{long.value:.2g} times at {contexts[-1]:,}",
        x="tokens of context",
        y="decode step (ms)",
        log_x=True,
        log_y=True,
        height=420,
    )
    shown = []
    for name, color in (("mha", palette.orange), ("gqa4", palette.green), ("mqa", palette.blue)):
        pairs = [step_of(kept, name, context) for context in contexts]
        y = [1e3 * m.value for m, _ in pairs]
        lines = [1e3 * p for _, p in pairs]
        shown += y + lines
        fig.add_scatter(
            x=contexts, y=lines, mode="lines", line={"color": color, "dash": "dot"}, hoverinfo="skip"
        )
        fig.add_scatter(
            x=contexts, y=y, mode="markers", marker={"color": color, "size": 10},
            error_y={
                "array": [1e3 * (m.high - m.value) for m, _ in pairs],
                "arrayminus": [1e3 * (m.value - m.low) for m, _ in pairs],
            },
        )  # fmt: skip
        label_line(fig, contexts[-1], y[-1], f"{name} ", color, anchor="right", shift=14)
    log_axis(fig, "x", contexts)
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


@sentence(example={"context": 256, "share": 0.1}, more_words=["as fast"], less_words=["slower"])
def step_gain(est: Estimate, context: int, share: float) -> str:
    """A step with a quarter of the heads stored, as a gain over all of them."""
    held = f"At {context:,} tokens, where the cache is {percent(share)} of the bytes of a step, "
    return says(
        est,
        more=held + "four heads for sixteen make the step {x} times as fast ({low} to {high}, n = {n})",
        same=held + "four heads for sixteen show no difference ({estimate})",
        less=held + "four heads for sixteen make the step {size} slower ({estimate})",
    )


def share_of(config: ModelConfig, context: int) -> float:
    """The cache's part of the bytes that a step reads."""
    held = cost.kv_bytes(config, context, dtype="fp32")
    return held / (held + cost.weight_bytes(config, "fp32"))


def bytes_gain(kept: Mapping[str, Any], name: str, context: int) -> tuple[float, float, float]:
    """How many times fewer bytes a step reads: if the matrices alone were smaller, the cache alone, and with both."""
    own, whole = shape(kept, name), shape(kept, "mha")
    (weights, cache), (less, smaller) = (
        (cost.weight_bytes(m, "fp32"), cost.kv_read_bytes(m, context, dtype="fp32")) for m in (whole, own)
    )
    read = weights + cache
    return read / (less + cache), read / (weights + smaller), read / (less + smaller)


def short_story(kept: Mapping[str, Any]) -> str:
    """The shortest context: what the cache is there, and what the gain is made of."""
    context = contexts_of(kept)[0]
    matrices, cache, _ = bytes_gain(kept, "gqa4", context)
    return (
        f"**Short contexts, few users.** At {context:,} tokens a quarter of the cache is worth {cache:.2f} ×, "
        f"by bytes. Fewer heads also need smaller matrices to make them, at every context; here these alone are worth "
        f"{matrices:.2f} ×. Both together, measured: {gain_of(kept, 'gqa4', context)[0]}."
    )


def steps_story(kept: Mapping[str, Any]) -> str:
    contexts, config = contexts_of(kept), shape(kept, "mha")
    words = [
        step_gain(gain_of(kept, "gqa4", context)[0], context, share_of(config, context))
        for context in (contexts[0], contexts[-1])
    ]
    won, said = gain_of(kept, "gqa4", contexts[-1])
    untold = (
        "The cost model has a rate of its own for reading caches, measured on plain heads, and arithmetic at the "
        "chip's peak; which of the two fails, nothing here tells apart."
    )
    level = cost.weight_bytes(NEW) / cost.kv_bytes_per_token(NEW)
    return (
        f"{words[0]}. {words[1]}. By bytes alone, as in the formula, the last would be "
        f"{bytes_gain(kept, 'gqa4', contexts[-1])[2]:.2f} ×; what the cost model says: "
        f"{miss(said, won, why_low=untold, why_high=untold)}"
        "\n\nThe gain ends at the weights: a cache of nothing would leave them to be read. Cache and weights weigh the "
        f"same where $B\\,T = W / \\kappa$: in Llama-3-8B at {level:,.0f} tokens, those of all users together. So, by "
        "the formula, a batch has the gain at a shorter context: its users read the same weights, and each a cache of "
        "their own."
    )


# pooling ------------------------------------------------------------------------------------------
@sentence(at=0.0, unit="nats", effect=1.0, more_words=["above"], less_words=["below"])
def above(est: Estimate, other: str = "gptlite") -> str:
    """A model's loss less another's, over the same windows."""
    return says(
        est,
        at=0.0,
        worth=0.003,
        more=f"{{x}} nats above {other} ({{low}} to {{high}}, {{n}} windows)",
        same=f"no difference to {other} ({{estimate}})",
        less=f"{{x}} nats, so below {other} ({{low}} to {{high}}, {{n}} windows)",
    )


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["worse"], less_words=["better"])
def mean_over_random(est: Estimate) -> str:
    """The pooled model's loss less that of a model whose heads start at random."""
    return says(
        est,
        at=0.0,
        worth=0.01,
        more="The mean is worse than heads drawn at random by {x} nats ({low} to {high})",
        same="Between the mean and heads drawn at random there is no difference ({estimate})",
        less="Against heads drawn at random the mean is better: {x} nats ({low} to {high})",
    )


def pooled_title(base: float, pooled: float, blind: float) -> str:
    return f"From {base:.2f} to {pooled:.2f} nats; guessing blindly: {blind:.2f}"


def average(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def apart(a: Sequence[float], b: Sequence[float]) -> Estimate:
    from lumen.train.results import apart as paired

    return paired(list(a), list(b))


def pooled_story(losses: Mapping[tuple[int, str], Sequence[float]], base: Sequence[float], heads: int) -> str:
    mean, first, random = (losses[heads, rule] for rule in RULES)
    far = (average(mean) - average(base)) / (average(random) - average(base))
    return (
        f"Right after pooling the model loses {average(mean):.2f} nats a character, {above(apart(mean, base))}. "
        f"{mean_over_random(apart(mean, random))}: by the loss, pooling has gone {percent(far)} of the way "
        f"from gptlite to a cache of noise. The baseline of one line, keep the first head of each group and drop the "
        f"others, gives {average(first):.2f}."
    )


def pooled_figure(losses: Mapping[tuple[int, str], Sequence[float]], base: float, blind: float) -> go.Figure:
    """The loss right after, by the heads that are left and by how they were made."""
    counts = sorted({count for count, _ in losses}, reverse=True)
    least = average(losses[counts[0], "mean"])
    fig = figure(
        f"Half of the heads pooled away: {least:.2f} nats where all of them give {base:.2f}",
        x="heads of keys and values that are left",
        y="loss right after (nats a character)",
        height=400,
    )
    for (rule, words), color in zip(RULES.items(), (palette.orange, palette.blue, palette.grey), strict=True):
        y = [average(losses[count, rule]) for count in counts]
        fig.add_scatter(
            x=[str(c) for c in counts],
            y=y,
            mode="lines+markers",
            line_color=color,
            name=words,
            showlegend=True,
        )
    for level, words in ((base, "gptlite, 8 heads"), (blind, "blind guess")):
        fig.add_hline(y=level, line={"color": palette.grey, "dash": "dot"})
        fig.add_annotation(
            x=1,
            xref="paper",
            y=level,
            yshift=10,
            xanchor="right",
            text=words,
            showarrow=False,
            font_color=palette.grey,
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    fig.update_xaxes(type="category")
    fig.update_yaxes(range=[0, blind * 1.1])
    return fig


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["more"], less_words=["less"])
def turned_over_plain(est: Estimate) -> str:
    """Pooled after every head's basis was drawn anew, less pooled as it is."""
    return says(
        est,
        at=0.0,
        worth=0.01,
        more="{x} nats more than as trained ({low} to {high}); one draw of the rotations",
        same="no difference to pooling as trained ({estimate}), one draw of the rotations",
        less="{x} nats, less than as trained ({low} to {high})",
    )


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["more"], less_words=["saves"])
def aligned_over_plain(est: Estimate) -> str:
    """Pooled after the heads of a group were turned towards each other, less pooled as it is."""
    return says(
        est,
        at=0.0,
        worth=0.02,
        more="Turned towards each other first, the pooled heads lose {x} nats more ({low} to {high})",
        same="Turning them towards each other first changes nothing that these windows show ({estimate})",
        less="Turned towards each other first, pooling saves some of it: {x} nats ({low} to {high})",
    )


def bases_story(plain: Sequence[float], turned: Sequence[float], aligned: Sequence[float]) -> str:
    """Both trials as differences to pooling as trained, whose loss the reader has guessed and may not have seen."""
    return (
        f"Pooled after its heads were turned at random: {turned_over_plain(apart(turned, plain))}. "
        f"{aligned_over_plain(apart(aligned, plain))}."
    )


# training on --------------------------------------------------------------------------------------
def estimate(fields: Mapping[str, Any]) -> Estimate:
    """An estimate as it lies in a file."""
    return Estimate(fields["value"], fields["low"], fields["high"], fields["n"], fields.get("unit", "nats"))


def losses_of(kept: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in kept["losses"]}


NAMES = {
    "control": "gptlite, not converted",
    "gqa4": "4 heads, mean",
    "gqa2": "2 heads, mean",
    "gqa2-first": "2 heads, first",
    "gqa2-fresh": "2 heads, random",
    "mqa": "1 head, mean",
    "cla2": "3 of 6 layers store",
    "cla2-mean": "the same, layers pooled",
    "gqa2-cla2": "2 heads in 3 layers",
    "mla128": "latents of 128",
    "mla64": "latents of 64",
    "mla64-plain": "latents of 64, plain SVD",
}


def losses_table(kept: Mapping[str, Any], names: Sequence[str], missing: bool = False) -> Table:
    """What is stored, the loss after training on, and how far it is above the control.

    With `missing` the loss gives way to what the conversion cost at first and the share of it that is still there: only
    for variants whose start the page no longer asks for.
    """
    found, rows = losses_of(kept), []
    for name in names:
        if name in found:
            row = found[name]
            cost_ = estimate(row["above_control"])
            reach = (cost_.high - cost_.low) / 2
            places = 3 if reach >= 0.0005 else 4
            none = name == "control"
            far = "–" if none else f"{cost_.value:+.{places}f} ± {reach:.{places}f}".replace("-", "−")
            cells = [NAMES[name], f"{row['numbers_per_token']:,}"]
            if missing:
                first = "–" if none else f"{row['start_above_gptlite']['value']:+.3f}".replace("-", "−")
                rows.append([*cells, first, far, "–" if none else percent(left_of(row))])
            else:
                rows.append([*cells, f"{row['after']['value']:.3f}", far])
    if missing:
        return rows, ["variant", "numbers a token", "at first", "above the control", "still missing"], "lrrrr"
    return rows, ["variant", "numbers a token", "loss after", "above the control"], "lrrr"


def left_of(row: Mapping[str, Any]) -> float:
    """Share of what a conversion cost at first that is still there after training on."""
    return float(row["above_control"]["value"] / row["start_above_gptlite"]["value"])


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["ends above"], less_words=["ends below"])
def one_over_other(est: Estimate, one: str = "the one", other: str = "the other") -> str:
    """A variant's loss less another's, after training on."""
    return says(
        est,
        at=0.0,
        worth=0.005,
        more=f"{one} ends above {other} by {{x}} nats (at least {{low}})",
        same=f"between {one} and {other} no difference is left ({{estimate}})",
        less=f"{one} ends below {other}: {{x}} nats (at most {{high}})",
    )


def between(a: Mapping[str, Any], b: Mapping[str, Any]) -> Estimate:
    """How far a ends above b, from what each is above the control, with the widest interval that the two allow."""
    x, y = estimate(a["above_control"]), estimate(b["above_control"])
    return Estimate(x.value - y.value, x.low - y.high, x.high - y.low, min(x.n, y.n), "nats")


def trained_story(kept: Mapping[str, Any]) -> str:
    """Pooled heads, their baselines and the control after the same steps."""
    found = losses_of(kept)
    control, pooled = found["control"], found["gqa2"]
    start, end = control["before"], control["after"]
    recipe = pooled["recipe"]
    steps, share = recipe["steps"], recipe["steps"] / recipe["first"]
    lines = [
        f"{steps} steps more, {percent(share)} of what gptlite was trained for. The control took the same steps on the "
        f"same batches and went from {start['value']:.3f} to {end['value']:.3f} over all {end['n']} windows; what "
        f"separates a variant from *it* is the conversion's. Of what two pooled heads lost at first "
        f"{percent(left_of(pooled))} is still missing."
    ]
    if end["value"] > start["value"]:
        lines.append(
            "That the control got worse is the price of starting again: the rate is warmed up once more, and so few "
            "steps do not win that back. Against gptlite every conversion would be charged with it."
        )
    if {"gqa2-first", "gqa2-fresh"} <= set(found):
        first = one_over_other(between(pooled, found["gqa2-first"]), "the mean", "the first of each four")
        fresh = one_over_other(between(pooled, found["gqa2-fresh"]), "the mean", "a random start")
        lines.append(f"Was pooling worth it, as a place to start from? Two baselines: {first}; {fresh}.")
    return "\n\n".join(lines)


# latents ------------------------------------------------------------------------------------------
@sentence(example={"rank": 128}, at=0.0, unit="nats", effect=1.0, more_words=["above"], less_words=["below"])
def latent_cost(est: Estimate, rank: int) -> str:
    """A model with latents less the model it was made of, right after conversion."""
    return says(
        est,
        at=0.0,
        worth=0.002,
        more=f"a latent of {rank} ends {{x}} nats above gptlite ({{low}} to {{high}}, {{n}} windows)",
        same=f"a latent of {rank} shows no difference to gptlite ({{estimate}})",
        less=f"a latent of {rank} ends below gptlite: {{x}} nats ({{low}} to {{high}}, {{n}} windows)",
    )


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["costs"], less_words=["saves"])
def whitened_over_plain(est: Estimate) -> str:
    """Whitened less plain, at the smallest rank."""
    return says(
        est,
        at=0.0,
        worth=0.005,
        more="the look at the text costs {x} nats there ({low} to {high})",
        same="the look at the text changes nothing there that these windows show ({estimate})",
        less="the look at the text saves nats there: {x} ({low} to {high})",
    )


def latent_story(
    ranks: Mapping[int, Mapping[str, Sequence[float]]],
    base: Sequence[float],
    pooled: Sequence[float],
    rank: int,
) -> str:
    found = ranks[rank]["whitened"]
    cost_, copies = apart(found, base), apart(pooled, base)
    small = min(ranks)
    return (
        f"As many bytes as the two pooled heads, and {latent_cost(cost_, rank)}; the copies ended {above(copies)}. "
        f"Neither bytes nor training separate the two; the latent has looked at 4,096 characters of text, and plain "
        f"SVD, which has looked at none, ends {above(apart(ranks[rank]['plain'], base))}. The small ranks tell the two "
        f"decompositions apart: at "
        f"{small}, {whitened_over_plain(apart(ranks[small]['whitened'], ranks[small]['plain']))}. At the full "
        f"rank of 256 nothing is lost (asserted); points under a thousandth of a nat are left out of the figure."
    )


def latent_title(found: Sequence[float], base: Sequence[float], pooled: Sequence[float]) -> str:
    more, copies = average(found) - average(base), average(pooled) - average(base)
    return f"The same bytes: {more:+.3f} nats as a latent, {copies:+.2f} as two means".replace("-", "−")


SHOWN = 1e-3  # nats: less than that is no point of the figure


def ranks_figure(
    ranks: Mapping[int, Mapping[str, Sequence[float]]],
    pooled: Mapping[int, Sequence[float]],
    base: Sequence[float],
) -> go.Figure:
    """Loss right after conversion against the numbers that a token leaves in a layer."""
    small = min(ranks)
    fig = figure(
        f"A latent of {small} numbers loses {average(ranks[small]['whitened']) - average(base):.2f} nats; "
        f"{min(pooled)} numbers as pooled heads, {average(pooled[min(pooled)]) - average(base):.2f}",
        x="numbers a token leaves in a layer",
        y="nats above gptlite, right after",
        log_x=True,
        log_y=True,
        height=420,
    )
    shown = []
    for key, words, color in (
        ("whitened", "latent, whitened SVD", palette.blue),
        ("plain", "latent, plain SVD", palette.green),
    ):
        points = [(r, average(some[key]) - average(base)) for r, some in ranks.items()]
        points = [(r, y) for r, y in points if y >= SHOWN]
        shown += [y for _, y in points]
        fig.add_scatter(
            x=[r for r, _ in points], y=[y for _, y in points], mode="lines+markers", line_color=color, name=words,
            showlegend=True,
        )  # fmt: skip
    y = [average(some) - average(base) for some in pooled.values()]
    fig.add_scatter(
        x=list(pooled),
        y=y,
        mode="lines+markers",
        line_color=palette.orange,
        name="heads, mean",
        showlegend=True,
    )
    log_axis(fig, "x", sorted({*ranks, *pooled}))
    log_axis(fig, "y", nice_ticks(min(shown + y), max(shown + y)))
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    return fig


# the bill of latents ------------------------------------------------------------------------------
def flops_a_key(config: ModelConfig, new: int) -> tuple[float, float]:
    """FLOPs of one layer for each key of a long context, `new` queries reading it: expanded, and absorbed."""
    return expand_flops(config) + new * pair_flops(config, False), float(new * pair_flops(config, True))


def even(config: ModelConfig) -> float:
    """The queries at which expanding costs as much as absorbing."""
    return expand_flops(config) / (pair_flops(config, True) - pair_flops(config, False))


def ways_figure() -> go.Figure:
    """Both ways against the queries that read the cache together, DeepSeek-V3's shape."""
    new = [2**i for i in range(13)]
    fig = figure(
        f"On a long context, absorbing computes less below {even(V3):.0f} queries, expanding above",
        x="new tokens that read the cache",
        y="MFLOP for each key, one layer",
        log_x=True,
        log_y=True,
        height=400,
    )
    shown = []
    for place, (name, color) in enumerate((("expanded", palette.orange), ("absorbed", palette.blue))):
        y = [flops_a_key(V3, n)[place] / 1e6 for n in new]
        shown += y
        fig.add_scatter(x=new, y=y, mode="lines", line_color=color)
        at, shift = ((2, 14), (3, -16))[place]  # above the flat line, below the rising one
        label_line(fig, new[at], y[at], name, color, anchor="left", shift=shift)
    log_axis(fig, "x", [1, 8, 64, 512, 4096])
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def intensity(config: ModelConfig) -> float:
    """FLOPs of a decode step's attention for each byte of the cache that it reads, at 16 bits."""
    numbers = config.cache_dims.stored
    return pair_flops(config, True) / (2 * numbers)


def intensity_table() -> Table:
    """What a step of attention computes for each byte that it reads."""
    rows = [
        [
            m.name,
            f"{2 * m.cache_dims.stored:,} B",
            f"{pair_flops(m, True) / 1e3:,.0f} kFLOP",
            f"{intensity(m):.0f}",
        ]
        for m in (OLD, NEW, V3)
    ]
    return rows, ["model", "a token, one layer", "one query on it", "FLOP per byte"], "lrrr"


def intensity_story() -> str:
    ridge = cost.ridge(H100, "bf16")
    return (
        f"An H100 can compute {ridge:.0f} FLOP while it reads a byte. Llama-2-7B's heads ask it for "
        f"{intensity(OLD):.0f}; absorbed latents for {percent(intensity(V3) / ridge)} of what it can do. The bytes "
        f"that were saved are paid for in arithmetic that was lying idle. That is with one query a user: with two "
        f"tokens of each at once, as in [speculative decoding](../book/glossary.md#term-speculative-decoding), it is "
        f"twice as much, and more than an H100 computes in that time."
    )


def symbols_latent() -> Table:
    latent = V3.latent
    assert latent is not None
    rows = [
        ["$r$", f"{latent.rank}", "numbers of the latent, for all heads"],
        ["$D_R$", f"{latent.rope}", "numbers of the key that carries the position, for all heads"],
        ["$H$", f"{V3.num_heads}", "heads"],
        ["$D$", f"{V3.head_dim}", "width of a head's key without position, and of its value"],
        ["$r + D_R$", f"{V3.cache_dims.stored}", "numbers a token leaves in a layer"],
        ["$2\\,H\\,D$", f"{2 * V3.num_heads * V3.head_dim:,}", "numbers of heads with their own"],
    ]
    return rows, ["symbol", "DeepSeek-V3", "what it is"], "lrl"


# layers -------------------------------------------------------------------------------------------
def layers_story(first: Sequence[float], mean: Sequence[float], base: Sequence[float], stored: int) -> str:
    return (
        f"Three layers of six store, {stored:,} numbers a token. The keys and values of the lower layer for both: "
        f"{average(first):.2f} nats, {above(apart(first, base))}. The keys and values of both layers pooled: "
        f"{average(mean):.2f}."
    )


@sentence(example={"context": 8192}, more_words=["as fast"], less_words=["slower"])
def layers_gain(est: Estimate, context: int) -> str:
    """A step in which every other layer stores nothing, as a gain over one in which all do."""
    held = f"At {context:,} tokens the step of `cla2` [above](#what-fewer-bytes-buy) "
    return says(
        est,
        more=held + "is {x} times as fast as that of `mha` ({low} to {high}, n = {n})",
        same=held + "shows no difference to that of `mha` ({estimate})",
        less=held + "is {size} slower than that of `mha` ({estimate})",
    )


def layers_read(kept: Mapping[str, Any]) -> str:
    """What sharing among layers does to a step: bytes held are halved, bytes read are not."""
    context = contexts_of(kept)[-1]
    own, whole = shape(kept, "cla2"), shape(kept, "mha")
    held = cost.kv_bytes(own, context) / cost.kv_bytes(whole, context)
    read = cost.kv_read_bytes(own, context) / cost.kv_read_bytes(whole, context)
    return (
        f"What it saves is room. The upper layer still goes through what its neighbour stored, so a step reads "
        f"{percent(read)} of the bytes that `mha` reads of its cache, and holds {percent(held)}. "
        f"{layers_gain(gain_of(kept, 'cla2', context)[0], context)}."
    )


def layers_trained(kept: Mapping[str, Any]) -> str:
    """Shared layers after training on, beside heads that store as much."""
    found = losses_of(kept)
    if not {"cla2", "gqa4"} <= set(found):
        return ""
    return (
        f"Over all windows the first costs {found['cla2']['start_above_gptlite']['value']:.3f} nats before training on "
        f"and {found['cla2']['above_control']['value']:.3f} after it. At the same bytes, 1,536 numbers: "
        f"{one_over_other(between(found['cla2'], found['gqa4']), 'sharing layers', 'pooling pairs of heads')}"
        " (one training seed; the interval is over windows)."
    )


def latents_trained(kept: Mapping[str, Any]) -> str:
    """Latents and heads of the same bytes, both trained on."""
    found = losses_of(kept)
    pairs = [
        ("mla128", "gqa2", "a latent of 128", "two heads"),
        ("mla64", "mqa", "a latent of 64", "one head"),
    ]
    words = [
        one_over_other(between(found[a], found[b]), one, other)
        for a, b, one, other in pairs
        if {a, b} <= set(found)
    ]
    if not words:
        return ""
    told = "; ".join(words)
    return f"Trained on for the same steps, at the same bytes: {told}."


# the ledger ---------------------------------------------------------------------------------------
def ledger_table() -> Table:
    """Published models by the cache of one long conversation, the largest first."""
    some = sorted(ledger(), key=lambda held: -held.bytes(LONG))
    rows = [
        [
            held.name,
            held.kind,
            f"{held.bytes(1) / 2**10:,.1f}",
            size(held.bytes(LONG)),
            f"{held.users(MEMORY, LONG)}",
        ]
        for held in some
    ]
    return rows, ["model", "how", "KiB a token", f"{LONG:,} tokens", "users in 80 GB"], "llrrr"


def ledger_story() -> str:
    rows = {held.name: held for held in ledger()}
    v2, dense = rows["llama-2-7b"], rows["deepseek-v3"]
    ratio = v2.bytes(LONG) / dense.bytes(LONG)
    windowed = rows["gemma-3-27b"]
    naive = windowed.bytes(1) * LONG / windowed.bytes(LONG)
    return (
        f"Llama-2-7B would need {size(v2.bytes(LONG))} for one user; DeepSeek-V3, with about a hundred times its "
        f"weights, takes {ratio:.0f} times less. And bytes a token are not the whole of it: Gemma-3-27B's first token "
        f"costs {size(windowed.bytes(1))}, but most of its layers forget, and at {LONG:,} tokens the product would be "
        f"{naive:.1f} times too large."
    )


# where it loses -----------------------------------------------------------------------------------
def chips_table() -> Table:
    """Bytes of a token on each of so many chips, when heads are dealt out and what cannot be dealt is copied."""
    rows = []
    for chips in (1, 2, 4, 8, 16, 32):
        row = [f"{chips}"]
        for model in (OLD, NEW, V3):
            row.append(size(on_each(model, chips)))
        rows.append([*row, f"{on_each(NEW, chips) * chips / on_each(NEW, 1):.0f} ×"])
    return rows, ["chips", OLD.name, NEW.name, V3.name, f"{NEW.name}, all chips"], "rrrrr"


def on_each(model: ModelConfig, chips: int) -> float:
    """Cache bytes of a token on one of `chips` that split the heads: a head is not cut, a latent serves them all."""
    whole = cost.kv_bytes_per_token(model)
    if model.latent is not None:
        return whole
    return whole * math.ceil(model.num_kv_heads / chips) / model.num_kv_heads


@sentence(example={"new": 512}, more_words=["longer"], less_words=["sooner"])
def absorbed_over_expanded(est: Estimate, new: int) -> str:
    """The absorbed way over the expanded one."""
    asked = ("One new token" if new == 1 else f"{new} new tokens") + ": absorbed takes"
    return says(
        est,
        more=asked + " {size} longer than expanded ({estimate})",
        same=asked + " as long as expanded, as far as this run can show ({estimate})",
        less=asked + " {x} of the time, so it is done sooner ({low} to {high}, {n} rounds)",
    )


def forecast(new: int, held: int = 2048, heads: int = 16, dim: int = 64, rank: int = 256) -> float:
    """FLOPs of the absorbed way over those of the expanded one, by their products."""
    turned_in = 2 * new * heads * dim * rank * 2
    absorbed = turned_in + 2 * new * held * heads * rank * 2
    expanded = 2 * held * heads * dim * rank * 2 + 2 * new * held * heads * dim * 2
    return absorbed / expanded


def ways_story(times: Mapping[int, Mapping[str, Timing]], said: Mapping[int, float]) -> str:
    words = []
    why = (
        "FLOPs leave out the softmax, the scores and their bytes, which both ways have, and the rate of each product; "
        "nothing here tells them apart."
    )
    for new, some in times.items():
        ratio = Estimate.ratio(some["absorbed"], some["expanded"])
        words.append(f"{absorbed_over_expanded(ratio, new)}. By FLOPs alone: {miss(said[new], ratio, why)}")
        why = "As above."
    return "\n\n".join(words)


def latents_lose(kept: Mapping[str, Any]) -> str:
    """The published step on latents: its arithmetic, and the rate at which it would run if it took all the time."""
    first, last = contexts_of(kept)[0], contexts_of(kept)[-1]
    own = shape(kept, "mla")
    flops = pair_flops(own, True)
    whole = shape(kept, "mha")
    each, plain = (
        pair_flops(m, m is own) / (cost.kv_bytes_per_token(m, "fp32") / m.num_layers) for m in (own, whole)
    )
    (short, _), (long, _) = step_of(kept, "mla", first), step_of(kept, "mla", last)
    rate = flops * own.num_layers * (last - first) / (long.value - short.value)
    return (
        f"**Latents where arithmetic is not idle.** In fp32 this shape computes {each:.0f} FLOP for each byte of "
        f"latents, heads of their own {plain:.1f}. "
        f"From {first:,} to {last:,} tokens a step took {milliseconds(long.value - short.value)} more: if arithmetic "
        f"is all of it, it ran at {rate / 1e9:.0f} GFLOP/s. At {last:,} tokens "
        f"{latents_gain(gain_of(kept, 'mla', last)[0])}; the cost model had said {gain_of(kept, 'mla', last)[1]:.2f} ×."
    )


@sentence(more_words=["as fast"], less_words=["slower"])
def latents_gain(est: Estimate) -> str:
    """A step on latents, as a gain over one on keys and values of all heads."""
    return says(
        est,
        more="it was {x} times as fast as with all heads ({low} to {high}, n = {n})",
        same="it shows no difference to all heads ({estimate})",
        less="it was {size} slower than with all heads ({estimate})",
    )


# recap --------------------------------------------------------------------------------------------
def enough(ranks: Mapping[int, Mapping[str, Sequence[float]]], pooled: Sequence[float]) -> int | None:
    """The smallest rank whose loss is surely below that of the pooled heads, window by window."""
    less = (rank for rank, found in ranks.items() if apart(found["whitened"], pooled).high < 0)
    return min(less, default=None)


def takeaway(ranks: Mapping[int, Mapping[str, Sequence[float]]], pooled: Sequence[float], stored: int) -> str:
    """Latents beside two pooled heads in bytes; the losses are what the page has asked for."""
    small = enough(ranks, pooled)
    lines = [
        "**Takeaway.** What a small cache loses depends on what may be computed from it, and not on its bytes alone."
    ]
    if small is not None:
        lines.append(
            f"Before any training, a latent of {small} numbers lost less here than two pooled heads, which store "
            f"{stored}."
        )
    return " ".join(lines)


def recap(
    base: Sequence[float],
    pooled: Sequence[float],
    latent: Sequence[float],
    rank: int,
    kept: Mapping[str, Any] | None,
) -> str:
    lines = [
        "- **What it cost Llama-3-8B** cannot be looked up: its twin with 32 stored heads was never published. Where "
        "both were (30 billion weights), GQA came out level.",
        f"- **Bytes:** $2\\,L\\,H_{{kv}}\\,D\\,b$ for heads, $L\\,(r + D_R)\\,b$ for latents: "
        f"{size(cost.kv_bytes_per_token(OLD))} a token in Llama-2-7B, {size(cost.kv_bytes_per_token(NEW))} in "
        f"Llama-3-8B, {size(cost.kv_bytes_per_token(V3))} in DeepSeek-V3.",
        f"- **A conversion is a start:** two means of four heads put gptlite from {average(base):.3f} to "
        f"{average(pooled):.2f} nats; a latent of the same bytes, {average(latent):.3f}.",
        f"- **Two ways to read latents,** the same numbers: on a context long beside the new tokens, below "
        f"{even(V3):.0f} of them absorbed (DeepSeek-V3), above expanded.",
        f"- **Chips that split heads:** Llama-3-8B on 16 hold each KV head "
        f"{on_each(NEW, 16) * 16 / on_each(NEW, 1):.0f} times; a latent lies on each of them.",
    ]
    if kept is not None:
        found = losses_of(kept)
        contexts = contexts_of(kept)
        won = gain_of(kept, "gqa4", contexts[-1])[0]
        lines.insert(
            3,
            f"- **After {found['gqa2']['recipe']['steps']} steps** {percent(left_of(found['gqa2']))} of what pooling "
            f"had cost was still missing. A step at {contexts[-1]:,} tokens with a quarter of the heads: {won}.",
        )
    return "\n".join(lines)


PRODUCTION = [
    (
        "vllm",
        "heads from `config.json`; latents absorbed in decode, expanded in prefill",
        "`--tensor-parallel-size` (KV heads are copied beyond their number), `--decode-context-parallel-size`",
        "design/attention_backends/",
    ),
    (
        "sglang",
        "latents lie on one chip each instead of on all: requests are dealt out, not heads",
        "`--enable-dp-attention`, `--dp-size`",
        "basic_usage/deepseek_v3",
    ),
    (
        "tensorrt-llm",
        "MHA, MQA, GQA and MLA kernels; attention by requests for MLA",
        "`enable_attention_dp`",
        "https://nvidia.github.io/TensorRT-LLM/features/attention.html",
    ),
    (
        "llama.cpp",
        "KV heads from the GGUF's `attention.head_count_kv`; MLA caches latents, absorbed",
        "`deepseek2.attention.kv_lora_rank` in the file",
        "src/models/deepseek2.cpp",
    ),
]
