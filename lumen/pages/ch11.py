"""What chapter 11 shows: a loop over tiles beside three operators, what has to be held, and the recap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent, size
from lumen.explore.figures.theme import figure, log_axis, nice_ticks, palette
from lumen.hardware import Chip
from lumen.pages.ch11_operators import DIM, HEADS, Table, Times, clocks, operators
from lumen.pages.ch11_splits import split_gain

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing


@sentence(more_words=["times as long"], less_words=["sooner"])
def loop_over_operators(est: Estimate) -> str:
    """The Python loop over the three operators."""
    return says(
        est,
        more="the loop takes {x} times as long as the three operators ({low} to {high}, n = {n})",
        same="loop and operators take as long, as far as this run can show ({estimate})",
        less="the loop, in Python, is done {size} **sooner** than the three operators in C++ ({estimate})",
    )


@sentence(example={"asked": "324 ms (301 to 340, n = 7)"}, more_words=["longer"], less_words=["sooner"])
def kept_over_operators(est: Estimate, asked: str) -> str:
    """The three operators in memory that is there already, over the three that ask for it."""
    return says(
        est,
        more="they take {size} longer",
        same="they take as long, as far as this run can show, so that fresh memory costs time is not shown",
        less=f"they are done {{size}} sooner, so the asking cost {asked}",
    )


@sentence(example={"loop": Estimate(0.65, 0.6, 0.7, 7, "×")}, more_words=["longer"], less_words=["sooner"])
def loop_over_kept(est: Estimate, loop: Estimate) -> str:
    """The loop over tiles over the three operators in kept memory; `loop`: over the three in fresh memory."""
    beside = says(
        loop,
        more="against fresh memory, too, it lost",
        same="against fresh memory this run shows no difference",
        less="what it gains against fresh memory is lost against kept memory; bytes and Python are not told apart",
    )
    return says(
        est,
        more=f"The loop takes {{size}} longer than these: {beside}",
        same="Between the loop and these this run shows no difference",
        less="The loop is done {size} sooner than these",
    )


@sentence(example={"queries": 64}, more_words=["longer"], less_words=["sooner"])
def slices_over_operators(est: Estimate, queries: int) -> str:
    """The three operators on a few queries at a time, over the three on all at once."""
    return says(
        est,
        more=f"{queries} at a time take {{size}} longer than all at once",
        same=f"{queries} at a time take as long as all at once, as far as this run can show",
        less=f"{queries} at a time are done {{size}} sooner than all at once",
    )


@sentence(example={"queries": 256}, more_words=["costs"], less_words=["saves"])
def loop_over_slices(est: Estimate, queries: int) -> str:
    """The loop over tiles over the three operators on a few queries at a time: an ordinary softmax of whole rows."""
    return says(
        est,
        more=f"against {queries} at a time without it, the loop costs {{size}} more time",
        same=f"against {queries} at a time without it, the loop changes no time that this run can show",
        less=f"against {queries} at a time without it, the loop saves {{size}} of the time",
    )


def controls_table(at: Mapping[str, Timing], tokens: int, few: int, tile: tuple[int, int]) -> Table:
    """Each way with what it holds of scores and weights, over the three operators; and the loop over it."""
    three, loop = at["three operators"], at["loop over tiles"]
    row = 2 * 4 * HEADS  # scores and weights of one query and one key
    ways = {
        "three operators": row * tokens**2,
        "memory kept": row * tokens**2,
        at_a_time(tile[0]): row * tile[0] * tokens,
        at_a_time(few): row * few * tokens,
        "loop over tiles": row * tile[0] * tile[1],
    }
    rows = []
    for way, held in ways.items():
        over, under = (_brief(Estimate.ratio(*pair)) for pair in ((at[way], three), (loop, at[way])))
        rows.append([way, size(held), "1" if way == "three operators" else over,
                     "1" if way == "loop over tiles" else under])  # fmt: skip
    return rows, ["way", "held", "time, three operators = 1", "loop, this way = 1"], "lrrr"


def _brief(est: Estimate) -> str:
    value, low, high = est.texts()
    return f"{value} ({low} to {high})"


def loop_story(times: Times, short: int, longest: int, few: int, tile: tuple[int, int], chip: Chip) -> str:
    """The loop beside the two clocks, its controls (`few` queries at a time; a row of tiles), and a short prompt."""
    at = times[longest]
    three, kept, tiles = at["three operators"], at["memory kept"], at["loop over tiles"]
    loop, against_kept = Estimate.ratio(tiles, three), Estimate.ratio(tiles, kept)
    small = Estimate.ratio(times[short]["loop over tiles"], times[short]["three operators"])
    written, tiled = clocks(chip, "fp32", longest)
    arithmetic = sum(flops for _, flops, _ in operators(longest)) / chip.peak("fp32")
    asked = Estimate.difference(three, kept)
    sliced = "; ".join(
        slices_over_operators(Estimate.ratio(at[at_a_time(n)], three), n) for n in (few, tile[0])
    )
    beside = "; ".join(loop_over_slices(Estimate.ratio(tiles, at[at_a_time(n)]), n) for n in (tile[0], few))
    return (
        f"At {longest:,} tokens {loop_over_operators(loop)}.\n\n"
        f"By the two clocks arithmetic alone is {percent(arithmetic / written)} of the time with scores written "
        f"out and {percent(arithmetic / tiled)} of that in tiles. Loop over operators: "
        + miss(
            tiled / written,
            loop,
            why_low="Python and smaller products are not in the two clocks.",
            why_high="The two clocks leave out where the memory comes from; the first control tests that.",
        )
        + f" Scores and weights, {size(2 * 4 * HEADS * longest**2)}, must exist at once if all queries go at once, "
        "and each call asks the system for such memory anew: fresh memory. Three controls, in the table above:\n\n"
        f"- **Memory kept.** The same three operators in memory that is there already: "
        f"{kept_over_operators(Estimate.ratio(kept, three), str(asked))}. The two clocks on them: "
        + miss(
            written,
            kept,
            why_low="That remainder is not explained on this page.",
            why_high="They did better than their roofs.",
        )
        + f" {loop_over_kept(against_kept, loop)}.\n"
        f"- **A few queries at a time**, whole rows of scores, an ordinary softmax: {sliced}.\n"
        f"- **The online softmax**: {beside}. Corrections, Python and memory are not told apart. What the loop holds "
        "no longer grows with the keys.\n\n"
        f"With {short} tokens, all in one tile, {loop_over_operators(small)}."
    )


def at_a_time(queries: int) -> str:
    """The name of the three operators on a few queries at a time."""
    return f"{queries} queries at a time"


def loop_figure(times: Times, queries: int) -> go.Figure:
    """Each way over the three operators, by length. `queries` at a time are shown beside the loop."""
    lengths = list(times)
    ways = [
        ("loop over tiles", palette.orange),
        ("memory kept", palette.grey),
        (at_a_time(queries), palette.green),
        ("one operator", palette.blue),
    ]
    last = Estimate.ratio(times[lengths[-1]]["loop over tiles"], times[lengths[-1]]["three operators"])
    fig = figure(
        loop_title(last, lengths[-1]),
        x="tokens of the prompt",
        y="time, the three operators = 1",
        log_x=True,
        log_y=True,
        height=420,
    )
    shown = [1.0]
    for way, color in ways:
        y = [Estimate.ratio(times[n][way], times[n]["three operators"]).value for n in lengths]
        shown += y
        fig.add_scatter(x=lengths, y=y, mode="lines+markers", line_color=color, name=way, showlegend=True)
    fig.add_scatter(
        x=[lengths[0], lengths[-1]], y=[1, 1], mode="lines", line={"color": palette.grey, "dash": "dot"},
        showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "x", lengths)
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


@sentence(example={"tokens": 4096}, more_words=["times as long"], less_words=["of the time"])
def loop_title(est: Estimate, tokens: int) -> str:
    """The loop over the three operators, above a figure."""
    return says(
        est,
        more=f"At {tokens:,} tokens the loop takes {{x}} times as long as the operators",
        same=f"At {tokens:,} tokens this run shows no difference between loop and operators",
        less=f"At {tokens:,} tokens the loop takes {{x}} of the time of the operators",
    )


ALL, ONE = "all queries at once", "one operator"


def memory_table(peaks: Mapping[str, int], tokens: int, queries: int, tile: tuple[int, int]) -> Table:
    """Memory beyond the inputs by way: reckoned, counted at `tokens`, and reckoned where nobody should try.

    Scores and weights of what goes at once, and the output.
    """
    ways = {
        ALL: lambda n: n * n,
        at_a_time(queries): lambda n: queries * n,
        tiles_of(*tile): lambda n: tile[0] * tile[1],
    }
    rows = []
    for way, scores in ways.items():
        here, *far = (size(4 * HEADS * (2 * scores(n) + n * DIM)) for n in (tokens, 32768, 131072))
        rows.append([way, here, size(peaks[way]), *far])
    rows.append([ONE, "–", size(peaks[ONE]), "–", "–"])
    return rows, ["way", f"{tokens:,} tokens, reckoned", "counted", "32,768", "131,072"], "lrrrr"


def tiles_of(block_q: int, block_k: int) -> str:
    """The name of a loop over tiles."""
    return f"tiles of {block_q} × {block_k}"


def takeaway(times: Times, longest: int, chip: Chip) -> str:
    fused = Estimate.ratio(times[longest]["three operators"], times[longest]["one operator"])
    kept = Estimate.ratio(times[longest]["three operators"], times[longest]["memory kept"])
    written, tiled = clocks(chip, "fp32", longest)
    return (
        f"**Takeaway.** Attention over {longest:,} tokens moves {longest / DIM + 1:.0f} times the bytes of its inputs "
        "and output when its scores are written out, and all of them exist at once if all queries go at once. In tiles "
        "queries and outputs move once, keys and values once for each row of tiles. By the two clocks that is worth "
        f"{written / tiled:.1f} × on this machine. Measured, one operator that works so: {faster(fused)}; the three "
        f"operators in memory that is kept from call to call: {faster(kept)}. What else the two clocks miss is not "
        "told apart."
    )


@sentence(more_words=["times as fast"], less_words=["times as long"])
def faster(est: Estimate) -> str:
    """Three operators over one, as a gain."""
    return says(
        est,
        more="{x} times as fast ({low} to {high}, {n} rounds)",
        same="no difference that this run can show ({estimate})",
        less=f"{1 / est.value:.2f} times as long ({{x}} × as fast, {{low}} to {{high}}, {{n}} rounds)",
    )


def recap(
    times: Times,
    longest: int,
    peaks: Mapping[str, int],
    few: int,
    tile: tuple[int, int],
    splits: Mapping[int, Timing],
    cores: int,
) -> str:
    at = times[longest]
    fused = Estimate.ratio(at["three operators"], at["one operator"])
    kept = Estimate.ratio(at["three operators"], at["memory kept"])
    loop = Estimate.ratio(at["loop over tiles"], at["three operators"])
    sliced = Estimate.ratio(at["loop over tiles"], at[at_a_time(few)])
    two = Estimate.ratio(splits[1], splits[2])
    named = "one core" if cores == 1 else f"{cores} cores"
    return (
        f"- **The same products; by count fewer bytes and less memory.** At {longest:,} tokens, one operator against "
        f"three: {faster(fused)}; the three in memory that is kept: {faster(kept)}; a loop over tiles in Python took "
        f"{loop} of their time, and {sliced} of that of {few} queries at a time.\n"
        "- **A softmax needs no whole row:** a largest score, a sum and weighted values, scaled down when a larger "
        "score comes.\n"
        f"- **Memory** at {longest:,} tokens, counted: {size(peaks[ALL])} with all scores at once, "
        f"{size(peaks[tiles_of(*tile)])} in {tiles_of(*tile)}; the output is {size(4 * HEADS * longest * DIM)}.\n"
        f"- **One query has next to no scores to save; its keys can be split:** {split_gain(two, 2)}, on {named}; by "
        "cores "
        f"alone it would be {min(2, cores)} ×."
    )


PRODUCTION = [
    (
        "vllm",
        "FlashAttention 2 to 4, FlashInfer, FlexAttention, Triton: chosen by chip and model",
        "`--attention-backend FLASH_ATTN`, `FLASHINFER`, `FLEX_ATTENTION`",
        "design/attention_backends/",
    ),
    (
        "sglang",
        "one back end, or one for prefill and another for decode",
        "`--attention-backend`, `--prefill-attention-backend`, `--decode-attention-backend`",
        "advanced_features/attention_backend",
    ),
    (
        "tensorrt-llm",
        "fused kernels of its own, or FlashInfer",
        "`attn_backend`",
        "https://nvidia.github.io/TensorRT-LLM/features/attention.html",
    ),
    (
        "llama.cpp",
        "tiled attention on CPU and GPU; values in fewer bits need it",
        "`--flash-attn on`, `off`, `auto`",
        "tools/server/README.md",
    ),
]
