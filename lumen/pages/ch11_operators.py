"""Chapter 11: three operators against one, what they compute, move and take; the two clocks, here and on GPUs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import size
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.hardware import CHIPS, Chip

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing


Table = tuple[list[list[Any]], list[str], str]
Times = Mapping[int, Mapping[str, "Timing"]]  # length -> way -> times
HEADS, DIM = 9, 64  # one layer of SmolLM2, every query head with keys of its own


def opening(times: Times, longest: int) -> str:
    slow, fast = times[longest]["three operators"], times[longest]["one operator"]
    ratio = Estimate.ratio(slow, fast)
    return (
        f"At {longest:,} tokens the three operators take {milliseconds(slow.median)} and the one "
        f"{milliseconds(fast.median)}: {slower(ratio)}."
    )


@sentence(more_words=["times as long"], less_words=["shorter"])
def slower(est: Estimate) -> str:
    """Three operators over one."""
    return says(
        est,
        more="**{x} times as long** ({low} to {high}, {n} rounds)",
        same="no difference that this run can show, {estimate}",
        less="{size} shorter ({low} to {high} times, {n} rounds)",
    )


@sentence(example={"tokens": 4096}, more_words=["times as long"], less_words=["of the time"])
def times_title(est: Estimate, tokens: int) -> str:
    """Three operators over one, above the figure."""
    return says(
        est,
        more=f"At {tokens:,} tokens three operators take {{x}} times as long as one",
        same=f"At {tokens:,} tokens this run shows no difference between three operators and one",
        less=f"At {tokens:,} tokens three operators take {{x}} of the time of one",
    )


def times_figure(times: Times) -> go.Figure:
    """Both ways against the length of the prompt."""
    lengths = list(times)
    ratio = Estimate.ratio(times[lengths[-1]]["three operators"], times[lengths[-1]]["one operator"])
    fig = figure(
        times_title(ratio, lengths[-1]),
        x="tokens of the prompt",
        y="attention of one layer (ms)",
        log_x=True,
        log_y=True,
        height=400,
    )
    shown = []
    for way, color, anchor, shift in (
        ("three operators", palette.orange, "right", 14),
        ("one operator", palette.blue, "left", -22),
    ):
        y = [1e3 * times[n][way].median for n in lengths]
        shown += y
        fig.add_scatter(x=lengths, y=y, mode="lines+markers", line_color=color)
        label_line(fig, lengths[-2], y[-2], way, color, anchor=anchor, shift=shift)
    log_axis(fig, "x", lengths)
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def operators(tokens: int, bytes_each: int = 4) -> list[tuple[str, float, float]]:
    """(operator, FLOPs, bytes) of attention over `tokens` in this chapter's shape, scores written out."""
    scores, rows = HEADS * tokens * tokens, HEADS * tokens * DIM
    return [
        ("scores = q kᵀ", 2.0 * scores * DIM, bytes_each * (2 * rows + scores)),
        ("softmax", 5.0 * scores, bytes_each * 2 * scores),  # subtract, exp, add, compare, divide
        ("weights · v", 2.0 * scores * DIM, bytes_each * (scores + 2 * rows)),
    ]


def operators_table(parts: Mapping[str, Timing], tokens: int, chip: Chip) -> Table:
    """What each operator computes, moves and takes, beside what the two clocks say of it."""
    rows = []
    for name, flops, moved in operators(tokens):
        said = max(flops / chip.peak("fp32"), moved / chip.bandwidth)
        took = parts[name].median
        rows.append([name, f"{flops / moved:.2g}", size(moved), milliseconds(said),
                     f"{milliseconds(took)}, {took / said:.1f} ×"])  # fmt: skip
    return rows, ["operator", "FLOP per byte", "moves", "two clocks", "takes, × the clocks"], "lrrrr"


def clocks(chip: Chip, fmt: str, tokens: int) -> tuple[float, float]:
    """Seconds by the two clocks: operator by operator with scores written out, and as one piece of work in tiles.

    In tiles only inputs and output are counted as moved: keys and values that pass again come from a cache at best.
    """
    each = {"fp32": 4, "bf16": 2}[fmt]
    found = operators(tokens, each)
    written = sum(max(flops / chip.peak(fmt), moved / chip.bandwidth) for _, flops, moved in found)
    least = 4 * each * HEADS * tokens * DIM
    return written, max(sum(f for _, f, _ in found) / chip.peak(fmt), least / chip.bandwidth)


def operators_story(parts: Mapping[str, Timing], whole: Timing, tokens: int, chip: Chip) -> str:
    found = operators(tokens)
    ridge, softmax = cost.ridge(chip, "fp32"), found[1][1] / found[1][2]
    scores = HEADS * tokens * tokens * 4
    moved, least = sum(m for *_, m in found), 4 * 4 * HEADS * tokens * DIM
    alone = [math.fsum(round) for round in zip(*(parts[name].samples for name, *_ in found), strict=True)]
    beside = Estimate.ratio(alone, whole.samples)
    predicted = clocks(chip, "fp32", tokens)[0]
    last, flops, last_moved = found[-1]
    return (
        f"{alone_over_whole(beside, milliseconds(statistics.median(alone)))}. The ridge of this machine lies "
        f"at {ridge:.1f} FLOP per byte, the softmax at {softmax:.1f}. The scores are {size(scores)}; they are written, "
        f"read, written as weights and read again. In all {size(moved)} move, for inputs and an output of "
        f"{size(least)} together: {moved / least:.0f} times as much. By the two clocks of chapter 2, operator by "
        "operator, the three in a row: "
        + miss(
            predicted,
            whole,
            why_low="Two clocks know nothing of where the memory comes from; a control "
            "[below](#predict-a-loop-in-python) asks what that is worth.",
            why_high="This machine did better than its roofs.",
        )
        + f" The last of them writes {size(4 * HEADS * tokens * DIM)} only: "
        + miss(
            max(flops / chip.peak("fp32"), last_moved / chip.bandwidth),
            parts[last],
            why_low="Memory for large results is no part of that; what is, is not told apart here.",
            why_high="It did better than its roofs.",
        )
    )


@sentence(example={"alone": "1.2 s"}, more_words=["longer"], less_words=["sooner"])
def alone_over_whole(est: Estimate, alone: str) -> str:
    """The three operators each by itself, summed, over the three in a row: two runs, one after the other."""
    return says(
        est,
        more=f"Alone the three take {alone} together, {{size}} longer than in a row ({{estimate}}); that these are two "
        "runs, and what one operator leaves in the caches for the next, is not told apart",
        same=f"Alone the three take {alone} together, no difference to the three in a row that this run can show "
        "({estimate})",
        less=f"Alone the three take {alone} together and are done {{size}} sooner than in a row ({{estimate}}); that "
        "these are two runs, and what memory each of them asks for, is not told apart",
    )


def symbols(chip: Chip, tokens: int, block_q: int, block_k: int) -> Table:
    rows = [
        ["$H$", f"{HEADS}", "heads"],
        ["$D$", f"{DIM}", "width of a head"],
        ["$T$, $S$", f"{tokens:,}", "queries and keys: a whole prompt has as many of each"],
        ["$b$", "4", "bytes of a value"],
        ["$B_q \\times B_k$", f"{block_q} × {block_k}", "a tile: queries by keys"],
        ["$H\\,T\\,S\\,b$", size(HEADS * tokens * tokens * 4), "all scores"],
        ["$B_q\\,B_k\\,b$", size(4 * block_q * block_k), "one head's tile of them"],
        ["last cache", size(chip.cache_bytes), "of this machine"],
    ]
    return rows, ["symbol", "here", "what it is"], "lrl"


def moved_table(naive: Any, tiled: Mapping[tuple[int, int], Any]) -> Table:
    """Bytes moved by tile, counted in the loop."""
    rows = [["scores written out", "–", size(naive.moved), "1"]]
    for (block_q, block_k), traffic in tiled.items():
        rows.append(
            [
                f"tiles of {block_q} × {block_k}",
                size(HEADS * block_q * block_k * 4),
                size(traffic.moved),
                f"1 / {naive.moved / traffic.moved:.1f}",
            ]
        )
    return rows, ["way", "scores held", "bytes moved", "share"], "lrrr"


def chips_table(chip: Chip, tokens: int) -> Table:
    """The two clocks on chips whose arithmetic has run away from their memory."""
    rows = []
    for one in (chip, CHIPS["L4"], CHIPS["A100 80GB SXM"], CHIPS["H100 SXM"]):
        fmt = "fp32" if one is chip else "bf16"
        written, tiled = clocks(one, fmt, tokens)
        name = "this machine" if one is chip else one.name
        rows.append([name, f"{cost.ridge(one, fmt):.0f}", milliseconds(written), milliseconds(tiled),
                     f"{written / tiled:.1f} ×"])  # fmt: skip
    return rows, ["chip", "ridge (FLOP/B)", "scores written out", "tiles", "gain by two clocks"], "lrrrr"


def chips_story(times: Times, tokens: int, chip: Chip) -> str:
    """What the one operator gains on this machine, beside what the two clocks say."""
    written, tiled = clocks(chip, "fp32", tokens)
    fused = Estimate.ratio(times[tokens]["three operators"], times[tokens]["one operator"])
    return "One operator against three, on this machine: " + miss(
        written / tiled,
        fused,
        why_low="The three operators are further from their roofs than the one is from its. Kept memory was tested "
        "[above](#predict-a-loop-in-python); what else differs is not told apart.",
        why_high="The one operator is further from its roof than the three are from theirs.",
    )
