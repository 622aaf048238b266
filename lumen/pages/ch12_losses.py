"""Chapter 12, what conversions cost: losses right after them, by what they know, and after training on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen.bench import Estimate, says, sentence
from lumen.bench.numbers import percent
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.pages.ch12_bytes import SMALL, Table
from lumen.pages.comparing import capital, loses

if TYPE_CHECKING:
    import plotly.graph_objects as go

Losses = Sequence[float]  # the mean loss of each window [nats per character]
Ranks = Mapping[int, Mapping[str, Losses]]  # rank -> "plain" or "whitened" -> losses
RULES = {"mean": "mean of the group", "first": "first of the group", "random": "at random"}
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


def average(losses: Losses) -> float:
    return sum(losses) / len(losses)


def apart(a: Losses, b: Losses) -> Estimate:
    """How much more a loses than b, window by window. [nats]"""
    from lumen.train.results import apart as paired

    return paired(list(a), list(b))


def nats(value: float) -> str:
    """A difference with its sign, to a thousandth of a nat or to two figures if it is smaller: +1.746, +0.0004."""
    places = 3 if abs(value) >= 0.01 else 4
    return f"{value:+.{places}f}".replace("-", "−")


# pooling ------------------------------------------------------------------------------------------
def pooled_title(base: float, pooled: float, blind: float) -> str:
    return f"From {base:.2f} to {pooled:.2f} nats; guessing blindly: {blind:.2f}"


def pooled_story(losses: Mapping[tuple[int, str], Losses], base: Losses, heads: int) -> str:
    mean, first, random = (losses[heads, rule] for rule in RULES)
    return (
        f"Right after pooling the model loses {average(mean):.2f} nats a character; "
        f"{loses(apart(mean, base), 'the pooled model', 'gptlite')}. Two baselines. Heads drawn at random, one draw, "
        f"leave the model at {average(random):.2f}: {loses(apart(mean, random), 'the mean', 'the random heads')}. "
        f"And in one line, keep the first head of each group and drop the others: "
        f"{loses(apart(mean, first), 'the mean', 'the first of each four')}."
    )


def pooled_figure(losses: Mapping[tuple[int, str], Losses], base: float, blind: float) -> go.Figure:
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


def over_draws(drawn: Sequence[Losses], base: Losses) -> Estimate:
    """How much more the models of several draws lose than one model: the mean of the draws. [nats]"""
    from lumen.train.results import average as mean

    return mean([average(losses) - average(base) for losses in drawn])


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["loses more"], less_words=["loses less"])
def turned_words(est: Estimate) -> str:
    """Heads turned at random and pooled, over draws, beside heads pooled as trained. Under 0.1 nats is no answer."""
    return says(
        est,
        at=0.0,
        worth=0.1,
        more="the pooled model loses more than one pooled as trained: {x} nats on average ({low} to {high}, {n} "
        "draws). Trained heads agree on some of their axes",
        same="the pooled model ends near one pooled as trained, {estimate} over draws: no difference of 0.1 nats to "
        "see. Pooled as trained, the model was near random heads already, so a turn had little left to spoil: this "
        "trial cannot tell how far trained heads agree",
        less="the pooled model loses less than one pooled as trained: {x} nats on average ({low} to {high}, {n} "
        "draws), so trained axes stand in the way of a mean",
    )


@sentence(
    example={"cost": 1.0, "rest": ""},
    at=0.0,
    unit="nats",
    effect=0.5,
    more_words=["loses more"],
    less_words=["saves"],
)
def aligned_words(est: Estimate, cost: float, rest: str = "") -> str:
    """Heads aligned and pooled, less heads pooled as trained, and which share of the damage that is."""
    share = percent(abs(est.value) / cost) if cost > 0 else "none"
    return says(
        est,
        at=0.0,
        worth=0.002,
        more="it loses more than without: {x} nats ({low} to {high}, n = {n})",
        same="that makes no difference to see ({estimate})",
        less=f"that saves {share} of what pooling had cost ({{x}} nats, {{low}} to {{high}}, n = {{n}}){rest}",
    )


def bases_story(
    base: Losses, plain: Losses, aligned: Losses, by_weights: Losses, turned: Sequence[Losses]
) -> str:
    """Three trials as differences to pooling as trained, whose loss the reader has guessed and may not have seen."""
    cost = apart(plain, base).value
    rest = ". So foreign axes are part of what hurts; the rest they do not explain"
    look = loses(apart(aligned, by_weights), "alignment by text", "alignment with $C = 1$", worth=0.05)
    return (
        f"- Turned at random, {len(turned)} draws: {turned_words(over_draws(turned, plain))}.\n"
        f"- Turned towards each other: {aligned_words(apart(aligned, plain), cost, rest)}.\n"
        f"- Must alignment have seen text? {capital(look)}.\n\n"
        f"And the control: behind two random turns alignment finds the same heads again (asserted)."
    )


# training on --------------------------------------------------------------------------------------
def estimate(fields: Mapping[str, Any]) -> Estimate:
    """An estimate as it lies in a file."""
    return Estimate(fields["value"], fields["low"], fields["high"], fields["n"], fields.get("unit", "nats"))


def losses_of(kept: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in kept["losses"]}


def losses_table(kept: Mapping[str, Any], names: Sequence[str]) -> Table:
    """What is stored, the cost at first and after training on, and the share of it that is still there."""
    found, rows = losses_of(kept), []
    for name in names:
        if name in found:
            row = found[name]
            cells = [NAMES[name], f"{row['numbers_per_token']:,}"]
            if name == "control":
                rows.append([*cells, None, None, None])
                continue
            left = estimate(row["above_control"])
            reach = (left.high - left.low) / 2
            places = 3 if reach >= 0.0005 else 4
            after = f"{left.value:+.{places}f} ± {reach:.{places}f}".replace("-", "−")
            rows.append([*cells, nats(row["start_above_gptlite"]["value"]), after, percent(left_of(row))])
    return rows, ["variant", "numbers a token", "at first", "above the control", "still missing"], "lrrrr"


def left_of(row: Mapping[str, Any]) -> float:
    """Share of what a conversion cost at first that is still there after training on; 0 for one that is ahead."""
    return max(0.0, float(row["above_control"]["value"] / row["start_above_gptlite"]["value"]))


def widest(x: Estimate, y: Estimate) -> Estimate:
    """x less y where their pairs are not kept: the widest interval that the two allow."""
    return Estimate(x.value - y.value, x.low - y.high, x.high - y.low, min(x.n, y.n), "nats")


def between(a: Mapping[str, Any], b: Mapping[str, Any]) -> Estimate:
    """How far a ends above b, from what each is above the control."""
    return widest(estimate(a["above_control"]), estimate(b["above_control"]))


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["loses more"], less_words=["loses less"])
def ends(est: Estimate, one: str = "the one", other: str = "the other") -> str:
    """Two variants after training on. Fewer than 0.02 nats are not told apart: each was trained with one seed."""
    return says(
        est,
        at=0.0,
        worth=0.02,
        more=f"{one} loses more than {other}: {{x}} nats ({{low}} to {{high}})",
        same=f"{one} against {other}: {{x}} nats ({{low}} to {{high}}), which one seed cannot decide",
        less=f"{one} loses less than {other}: {{x}} nats ({{low}} to {{high}})",
    )


def after(found: Mapping[str, Mapping[str, Any]], a: str, b: str, one: str, other: str) -> str:
    """Two variants after training on, in words; nothing where one of them was not trained."""
    return ends(between(found[a], found[b]), one, other) if {a, b} <= set(found) else ""


def trained_story(kept: Mapping[str, Any]) -> str:
    """Pooled heads, their baselines and the control after the same steps."""
    found = losses_of(kept)
    control, pooled = found["control"], found["gqa2"]
    steps, share = pooled["recipe"]["steps"], pooled["recipe"]["steps"] / pooled["recipe"]["first"]
    own = ""
    if "trained" in control:  # in pairs; without them nothing is said
        moved = loses(estimate(control["trained"]), "the control behind them", "gptlite before them")
        own = f"What they do to gptlite itself: {moved}. "
    baselines = [
        after(found, "gqa2", "gqa2-first", "the mean", "the first of each four"),
        after(found, "gqa2", "gqa2-fresh", "the mean", "a random start"),
    ]
    lines = [
        f"{steps} steps more, {percent(share)} of what gptlite was trained for, one seed. {own}What "
        f"separates a variant from the *control* is the conversion's. Of what two pooled heads lost at first "
        f"{percent(left_of(pooled))} is still missing."
    ]
    if any(baselines):
        lines.append(
            f"Was pooling worth it, as a place to start from? {capital('; '.join(filter(None, baselines)))}."
        )
    return "\n\n".join(lines)


def layers_trained(kept: Mapping[str, Any]) -> str:
    """Shared layers after training on, beside heads that store as much, and both at once."""
    found = losses_of(kept)
    stored = {name: found[name]["numbers_per_token"] for name in ("cla2", "mqa") if name in found}
    words = [
        after(found, "cla2", "cla2-mean", "keeping the lower layer's keys", "pooling both layers'"),
        after(
            found,
            "cla2",
            "gqa4",
            f"at {stored.get('cla2', 0):,} numbers, sharing layers",
            "pooling pairs of heads",
        ),
        after(
            found, "gqa2-cla2", "mqa", f"at {stored.get('mqa', 0):,}, both at once", "one head in every layer"
        ),
    ]
    told = "; ".join(filter(None, words))
    if not told:
        return ""
    return f"After training on, {told}. One training seed: the intervals are over windows."


def latents_trained(kept: Mapping[str, Any]) -> str:
    """Latents and heads of the same bytes, both trained on."""
    found = losses_of(kept)
    words = [
        after(found, "mla128", "gqa2", "a latent of 128", "two pooled heads"),
        after(found, "mla64", "mqa", "a latent of 64", "one head"),
    ]
    if not all(words):
        return ""
    best = found["mla128"]
    return (
        f"And after training on? The same {best['recipe']['steps']} steps and text as [above](#training-on), one seed, "
        f"at the same bytes: {'; '.join(words)}."
    )


# latents ------------------------------------------------------------------------------------------
def latent_table(
    ranks: Ranks, base: Losses, by_weights: Losses, aligned: Losses, rank: int, seen: int
) -> Table:
    """A latent beside two aligned heads of as many bytes, both by the weights alone, or both by some text."""
    rows = []
    for by, latent, heads in (
        ("the weights alone", ranks[rank]["plain"], by_weights),
        (f"{seen:,} characters of text", ranks[rank]["whitened"], aligned),
    ):
        both = (apart(losses, base) for losses in (latent, heads))
        rows.append(
            [
                by,
                *(
                    f"{nats(e.value)} ± {(e.high - e.low) / 2:.{3 if abs(e.value) >= 0.01 else 4}f}"
                    for e in both
                ),
            ]
        )
    return rows, ["chosen by", f"a latent of {rank}", "two aligned heads"], "lrr"


def latent_story(ranks: Ranks, base: Losses, heads: Losses, rank: int) -> str:
    """A latent that has seen some text, beside gptlite and beside `heads` that have seen the same."""
    small, found = min(ranks), ranks[rank]["whitened"]
    look = apart(ranks[small]["whitened"], ranks[small]["plain"])
    return (
        f"Nats above gptlite, no training, the same bytes everywhere, and like beside like: the plain SVD beside heads "
        f"aligned with $C = 1$, the whitened latent beside heads aligned by the same text. With text, "
        f"{loses(apart(found, base), f'a latent of {rank}', 'gptlite')}, and "
        f"{loses(apart(found, heads), 'that latent', 'the aligned heads')}. What the look at the text is worth at the "
        f"smallest rank, {small}: {loses(look, 'the whitened latent', 'the plain one')}. The figure leaves out what "
        "is below 0.001 nats. At full rank nothing is lost "
        f"(asserted)."
    )


def latent_title(found: Losses, base: Losses, aligned: Losses) -> str:
    more, copies = average(found) - average(base), average(aligned) - average(base)
    return f"The same bytes: {more:+.3f} nats as a latent, {copies:+.2f} as two aligned heads".replace(
        "-", "−"
    )


SHOWN = 1e-3  # nats: less than that is no point of the figure
PLACES = {  # at which point of a line its name stands, where no other line passes
    "latent, whitened": (1, "right"),
    "latent, plain SVD": (0, "left"),
    "heads, aligned": (-1, "right"),
    "heads, plain mean": (0, "left"),
}


def ranks_figure(
    ranks: Ranks, pooled: Mapping[int, Losses], aligned: Mapping[int, Losses], base: Losses
) -> go.Figure:
    """Loss right after conversion against the numbers that a token leaves in a layer, with and without text."""
    small, least = min(ranks), min(aligned)

    def far(losses: Losses) -> float:
        return average(losses) - average(base)

    fig = figure(
        f"Chosen by text: a latent of {small} numbers loses {far(ranks[small]['whitened']):.2f} nats, "
        f"{least} numbers of aligned heads {far(aligned[least]):.2f}",
        x="numbers a token leaves in a layer",
        y="nats above gptlite, right after",
        log_x=True,
        log_y=True,
        height=440,
    )
    ways = {
        "latent, whitened": ({r: some["whitened"] for r, some in ranks.items()}, palette.blue, "solid", -14),
        "latent, plain SVD": ({r: some["plain"] for r, some in ranks.items()}, palette.blue, "dot", 14),
        "heads, aligned": (aligned, palette.orange, "solid", -14),
        "heads, plain mean": (pooled, palette.orange, "dash", 14),
    }
    shown: list[float] = []
    for words, (losses, color, dash, shift) in ways.items():
        points = sorted((n, far(some)) for n, some in losses.items())
        points = [(n, y) for n, y in points if y >= SHOWN]
        if not points:
            continue
        x, y = zip(*points, strict=True)
        shown += y
        fig.add_scatter(x=x, y=y, mode="lines+markers", line={"color": color, "dash": dash})
        at, anchor = PLACES[words]
        label_line(fig, x[at], y[at], words, color, anchor=anchor, shift=shift)
    log_axis(fig, "x", sorted({*ranks, *pooled}))
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def enough(ranks: Ranks, way: str, heads: Losses) -> int | None:
    """The smallest rank whose loss is surely below that of heads, window by window."""
    less = (rank for rank, found in ranks.items() if apart(found[way], heads).high < 0)
    return min(less, default=None)


def takeaway(ranks: Ranks, by_weights: Losses, aligned: Losses, stored: int) -> str:
    """Latents beside two aligned heads in bytes, each way with its like; the losses are what the page asked for."""
    told = [
        f"{how} a latent of {rank}"
        for how, rank in (
            ("where both have seen the text,", enough(ranks, "whitened", aligned)),
            ("where both were made of the weights alone,", enough(ranks, "plain", by_weights)),
        )
        if rank is not None
    ]
    first = loses(
        apart(ranks[stored]["whitened"], aligned), "a latent that saw some text", "two heads aligned by it"
    )
    lines = [
        f"**Takeaway.** In gptlite, at the same {stored} numbers a token and layer, before any training, {first}."
    ]
    if told:
        lines.append(
            f"The smallest of those tried that still lost less than the two heads: {'; '.join(told)}."
        )
    return " ".join(lines)


def converted(seen: int, heads: int, rank: int) -> str:
    """What the second prediction is about."""
    return (
        f"{capital(NUMBERS[heads])} heads leave {2 * heads * SMALL.head_dim} numbers a token and layer. A latent of "
        f"{rank} does, too. Whitened by {seen:,} characters of text, no training:"
    )


NUMBERS = {1: "one", 2: "two", 4: "four"}
