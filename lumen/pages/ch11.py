"""What chapter 11 shows: operators and bytes, a loop over tiles, memory, masks, splits, keys in eight bits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.hardware import CHIPS, Chip

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing

Table = tuple[list[list[Any]], list[str], str]
Times = Mapping[int, Mapping[str, "Timing"]]  # length -> way -> times
HEADS, DIM = 9, 64  # one layer of SmolLM2, every query head with keys of its own
H100, LLAMA = CHIPS["H100 SXM"], CONFIGS["llama-3-8b"]
SMS = 132  # cores of an H100 SXM: NVIDIA's white paper, table 1


def size(count: float) -> str:
    """Bytes in words: 64 KiB, 576 MiB, 36 GiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}" if count < 1000 * unit else f"{count / unit:,.0f} {name}"
    return f"{count:,.0f} B"


# three operators ----------------------------------------------------------------------------------
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


def times_figure(times: Times) -> go.Figure:
    """Both ways against the length of the prompt."""
    lengths = list(times)
    ratio = Estimate.ratio(times[lengths[-1]]["three operators"], times[lengths[-1]]["one operator"])
    fig = figure(
        f"At {lengths[-1]:,} tokens three operators take {ratio.value:.2g} times as long as one",
        x="tokens of the prompt",
        y="attention of one layer (ms)",
        log_x=True,
        log_y=True,
        height=400,
    )
    shown = []
    for way, color in (("three operators", palette.orange), ("one operator", palette.blue)):
        y = [1e3 * times[n][way].median for n in lengths]
        shown += y
        fig.add_scatter(x=lengths, y=y, mode="lines+markers", line_color=color)
        label_line(
            fig, lengths[-2], y[-2], way, color, anchor="right" if "three" in way else "left", shift=14
        )
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
        rows.append(
            [name, f"{flops / moved:.2g}", size(moved), milliseconds(said), milliseconds(parts[name].median)]
        )
    return rows, ["operator", "FLOP per byte", "moves", "two clocks", "takes"], "lrrrr"


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
    alone = sum(parts[name].median for name, *_ in found)
    predicted = clocks(chip, "fp32", tokens)[0]
    low = (
        f"It took {whole.median / predicted:.1f} times as long as predicted. Two clocks know nothing of where the "
        "memory comes from: a control [below](#predict-a-loop-in-python) says how much of it that is."
    )
    return (
        f"Alone the three take {milliseconds(alone)} together. The ridge of this machine lies at {ridge:.1f} FLOP per "
        f"byte, the softmax at {softmax:.1f}. The scores are {size(scores)}; they are written, read, written as "
        f"weights "
        f"and read again. In all {size(moved)} move, for inputs and an output of {size(least)} together: "
        f"{moved / least:.0f} times as much. By the two clocks of chapter 2, operator by operator, the three in a row: "
        + miss(
            predicted,
            whole,
            why_low=low,
            why_high="This machine did better than its roofs.",
        )
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


# a loop over tiles --------------------------------------------------------------------------------
@sentence(more_words=["longer"], less_words=["sooner"])
def loop_over_operators(est: Estimate) -> str:
    """The Python loop over the three operators."""
    return says(
        est,
        more="the loop takes {size} longer than the three operators",
        same="loop and operators take as long, as far as this run can show",
        less="the loop, in Python, is done {size} **sooner** than the three operators in C++",
    )


@sentence(example={"pages": "324 ms of the 486 ms"}, more_words=["longer"], less_words=["sooner"])
def kept_over_operators(est: Estimate, pages: str) -> str:
    """The three operators in memory that is there already, over the three that ask for it."""
    return says(
        est,
        more="they take {size} longer ({estimate})",
        same="they take as long, as far as this run can show ({estimate})",
        less=f"they are done {{size}} sooner ({{estimate}}), so fresh pages cost {pages}",
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


@sentence(example={"queries": 64, "held": "18 MiB"}, more_words=["longer"], less_words=["sooner"])
def slices_over_operators(est: Estimate, queries: int, held: str) -> str:
    """The three operators on a few queries at a time, over the three on all at once."""
    way = f"{queries} at a time, with {held} of scores and weights,"
    return says(
        est,
        more=way + " take {size} longer than all at once ({estimate})",
        same=way + " take as long as all at once, as far as this run can show ({estimate})",
        less=way + " are done {size} sooner than all at once ({estimate})",
    )


@sentence(more_words=["costs"], less_words=["saves"])
def loop_over_slices(est: Estimate) -> str:
    """The loop over tiles over the three operators on as many queries at a time: only the keys are cut as well."""
    return says(
        est,
        more="cutting the keys as well costs {size} more time ({estimate})",
        same="cutting the keys as well changes no time that this run can show ({estimate})",
        less="cutting the keys as well saves {size} of the time ({estimate})",
    )


def loop_story(times: Times, short: int, longest: int, slices: Sequence[int], chip: Chip) -> str:
    """The loop beside the two clocks, its controls, and the short prompt. `slices`: queries at a time, the last B_q."""
    at = times[longest]
    three, kept, tiles = at["three operators"], at["memory kept"], at["loop over tiles"]
    loop, against_kept = Estimate.ratio(tiles, three), Estimate.ratio(tiles, kept)
    small = Estimate.ratio(times[short]["loop over tiles"], times[short]["three operators"])
    written, tiled = clocks(chip, "fp32", longest)
    arithmetic = sum(flops for _, flops, _ in operators(longest)) / chip.peak("fp32")
    row = 2 * 4 * HEADS * longest  # scores and weights of one query
    pages = (
        f"{milliseconds(three.median - kept.median)} of the {milliseconds(three.median - written)} by which the two "
        "clocks were too low"
    )
    few = "; ".join(
        slices_over_operators(Estimate.ratio(at[at_a_time(n)], three), n, size(row * n)) for n in slices
    )
    return (
        f"At {longest:,} tokens {loop_over_operators(loop)} ({loop}). It makes the same products, some operations "
        "more, and starts more than a thousand operators.\n\n"
        f"By the two clocks arithmetic alone is {percent(arithmetic / written)} of the time with scores written "
        f"out and {percent(arithmetic / tiled)} of that in tiles. Loop over operators: "
        + miss(
            tiled / written,
            loop,
            why_low="Python and smaller products are not in the two clocks.",
            why_high="The two clocks leave out where the memory comes from; the first control tests that.",
        )
        + f" Scores and weights, {size(row * longest)}, must exist at once if all queries go at once. Three "
        "controls:\n\n"
        f"- **Memory kept.** The same three operators in memory that is there already: "
        f"{kept_over_operators(Estimate.ratio(kept, three), pages)}. "
        f"{loop_over_kept(against_kept, loop)}. The two clocks on that: "
        + miss(
            tiled / written,
            against_kept,
            why_low="Python, smaller products and corrections are not in the two clocks.",
            why_high="Not told apart here.",
        )
        + f"\n- **A few queries at a time**, whole rows of scores, an ordinary softmax: {few}.\n"
        f"- **The online softmax**, against the same {slices[-1]} queries at a time without it: "
        f"{loop_over_slices(Estimate.ratio(tiles, at[at_a_time(slices[-1])]))}. It lets the keys be cut, so that what "
        "is held no longer grows with them.\n\n"
        f"With {short} tokens {loop_over_operators(small)} ({small})."
    )


def at_a_time(queries: int) -> str:
    """The name of the three operators on a few queries at a time."""
    return f"{queries} queries at a time"


def chips_table(chip: Chip, tokens: int) -> Table:
    """The two clocks on chips whose arithmetic has run away from their memory."""
    rows = []
    for one, fmt in ((chip, "fp32"), (CHIPS["L4"], "bf16"), (CHIPS["A100 80GB SXM"], "bf16"), (H100, "bf16")):
        written, tiled = clocks(one, fmt, tokens)
        name = "this machine" if one is chip else one.name
        rows.append([name, f"{cost.ridge(one, fmt):.0f}", milliseconds(written), milliseconds(tiled),
                     f"{written / tiled:.1f} ×"])  # fmt: skip
    return rows, ["chip", "ridge (FLOP/B)", "scores written out", "tiles", "gain, at most"], "lrrrr"


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
    first = Estimate.ratio(times[lengths[0]]["loop over tiles"], times[lengths[0]]["three operators"])
    fig = figure(
        f"The loop over tiles takes {first.value:.2g} times as long as the operators at {lengths[0]:,} tokens, "
        f"{last.value:.2g} times at {lengths[-1]:,}",
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


def loop_title(ratio: Estimate, tokens: int) -> str:
    return f"At {tokens:,} tokens the loop takes {ratio.value:.2f} times as long as the operators"


# memory -------------------------------------------------------------------------------------------
ALL = "all queries at once"


def memory_table(peaks: Mapping[str, int], tokens: int, queries: int, tile: tuple[int, int]) -> Table:
    """Memory beyond the inputs by way: reckoned, measured at `tokens`, and reckoned where nobody should try.

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
    return rows, ["way", f"{tokens:,} tokens, reckoned", "measured", "32,768", "131,072"], "lrrrr"


def tiles_of(block_q: int, block_k: int) -> str:
    """The name of a loop over tiles."""
    return f"tiles of {block_q} × {block_k}"


# the mask -----------------------------------------------------------------------------------------
CPU_KERNEL = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/FlashAttentionKernel.cpp"
)


def tiles_left(tokens: int, block_q: int, block_k: int) -> tuple[int, int]:
    """Tiles that a causal mask leaves, each that the diagonal touches counted whole; and all tiles."""
    rows = -(-tokens // block_q)
    left = sum(-(-min(block_q * (i + 1), tokens) // block_k) for i in range(rows))
    return left, rows * -(-tokens // block_k)


def causal_shares(took: Mapping[str, Timing]) -> tuple[Estimate, Estimate]:
    """Time with the mask over time without: on all cores, and on one."""
    every, one = (Estimate.ratio(took["causal" + on], took["all" + on]) for on in ("", ", one core"))
    return every, one


def causal_table(times: Times, block_q: int, block_k: int, cores: int) -> Table:
    """Share of the tiles, and of the time of torch's operator, by length."""
    rows = []
    for tokens, took in times.items():
        left, tiles = tiles_left(tokens, block_q, block_k)
        every, one = causal_shares(took)
        value, low, high = every.texts()
        rows.append([f"{tokens:,}", f"{left} of {tiles}", f"{left / tiles:.3f}", f"{value} ({low} to {high})",
                     one.texts()[0]])  # fmt: skip
    named = "measured" if cores == 1 else f"{cores} cores"
    return rows, ["tokens", "tiles left", "share", named, "one core"], "rrrrr"


@sentence(more_words=["longer"], less_words=["saves"])
def causal_over_all(est: Estimate) -> str:
    """The one operator with a causal mask over the one without."""
    return says(
        est,
        more="the mask makes it {size} longer",
        same="the mask changes nothing that this run can show",
        less="the mask saves {size} of the time",
    )


@sentence(more_words=["larger"], less_words=["smaller"])
def cores_over_one(est: Estimate) -> str:
    """The mask's share of the time on all cores, over its share on one."""
    return says(
        est,
        more="on all cores the share is {size} larger than on one ({estimate}), as it would be if one core got the "
        "longer rows; what else the cores share is not told apart",
        same="that rows of unlike length keep a core waiting does not show: the share on all cores over that on one "
        "is {estimate}",
        less="on all cores the share is {size} smaller than on one ({estimate}), so rows of unlike length are no "
        "cause of a miss",
    )


def causal_story(counts: Any, times: Times, tokens: int, block_q: int, block_k: int, cores: int) -> str:
    """The count, the clock at `tokens`, the length where the two are furthest apart, and one core as a control."""
    shares = {n: left / tiles for n in times for left, tiles in [tiles_left(n, block_q, block_k)]}
    found = {n: causal_shares(took)[0] for n, took in times.items()}
    worst = max(times, key=lambda n: abs(shares[n] / found[n].value - 1))
    took = times[tokens]
    every, one = (
        [a / b for a, b in zip(took["causal" + on].samples, took["all" + on].samples, strict=True)]
        for on in ("", ", one core")
    )
    control = (
        f" A control at {tokens:,}: {cores_over_one(Estimate.ratio(every, one))}."  # not measured
        if cores > 1
        else ""
    )
    return (
        f"At {tokens:,} tokens the loop computed {counts.tiles} of {counts.tiles + counts.skipped} tiles and skipped "
        f"{counts.skipped}. torch's operator for CPUs has [tiles of that size]({CPU_KERNEL}) from 768 queries on and "
        f"computes in full each that the diagonal touches. With `is_causal=True` {causal_over_all(found[tokens])}. "
        f"Its share of the time and the share of the tiles are furthest apart at {worst:,} tokens: "
        + miss(
            shares[worst],
            found[worst],
            why_low="Masking, and what a row of tiles costs besides its tiles, come on top; not told apart.",
            why_high="Less is computed than these tiles; another version of torch, perhaps.",
        )
        + control
    )


# one query ----------------------------------------------------------------------------------------
@sentence(more_words=["longer"], less_words=["faster"])
def one_query(est: Estimate) -> str:
    """Three operators over one, for a single query."""
    return says(
        est,
        more="The three take {size} longer than the one",
        same="The three take as long as the one, as far as this run can show",
        less="The three are {size} faster than the one",
    )


def one_query_story(ratio: Estimate, keys: int) -> str:
    scores, read = 4 * HEADS * keys, 2 * 4 * HEADS * keys * DIM
    return (
        f"One query against {keys:,} keys, as in a decode step, is the negative control: its scores are {size(scores)} "
        f"beside {size(read)} of keys and values that have to be read in any case, so there is next to nothing to "
        f"save. {one_query(ratio)}: {ratio}."
    )


@sentence(example={"splits": 2}, more_words=["times as fast"], less_words=["slower"])
def split_gain(est: Estimate, splits: int) -> str:
    """Time unsplit over time in `splits`."""
    return says(
        est,
        more=f"in {splits} splits the query is answered {{x}} times as fast ({{low}} to {{high}}, {{n}} rounds)",
        same=f"in {splits} splits this run shows no difference: {{estimate}}",
        less=f"in {splits} splits it is {{size}} slower: {{estimate}}",
    )


@sentence(more_words=["longer"], less_words=["sooner"])
def cut_cost(est: Estimate) -> str:
    """Two splits over none, both on one core."""
    return says(
        est,
        more="two splits take {size} longer than none ({estimate}), which is what cut and merge cost",
        same="two splits take as long as none, as far as this run can show ({estimate})",
        less="two splits are done {size} sooner than none ({estimate}), so a gain is not the second core's alone",
    )


def splits_story(times: Mapping[int, Timing], one_core: Mapping[int, Timing], cores: int) -> str:
    """Splits on all cores beside a core each, and two of them on `one_core` as the control."""
    gains = "; ".join(split_gain(Estimate.ratio(times[1], t), n) for n, t in times.items() if n > 1)
    if cores == 1:  # not measured
        return f"Torch has one core here, which does all the work however it is cut: {gains}. The merge is in the time."
    two, cost = Estimate.ratio(times[1], times[2]), Estimate.ratio(one_core[2], one_core[1])
    return (
        f"One head, one query: one piece of work, for one of {cores} cores. Cut: {gains}. Splits beyond the cores find "
        "no core that is idle.\n\n"
        "A core for each of two: "
        + miss(
            2.0,
            two,
            why_low="That is more than a second core's arithmetic; not told apart here.",
            why_high="A core each counts neither cut nor merge.",
        )
        + f" The control, `torch.set_num_threads(1)`: {cut_cost(cost)}. Two cores that share so much work: "
        + miss(
            2.0 / cost.value,
            two,
            why_low="The cut costs less on two cores than on one; not told apart here.",
            why_high="The start of threads, memory that cores share, other work on the machine: not told apart here.",
        )
    )


def splits_figure(times: Mapping[int, Timing], cores: int) -> go.Figure:
    gains = {n: Estimate.ratio(times[1], t) for n, t in times.items()}
    named = "one core" if cores == 1 else f"{cores} cores"
    fig = figure(
        f"On {named}: {gains[2].value:.2g} times as fast in two splits, {gains[max(gains)].value:.2g} in {max(gains)}",
        x="splits of the keys",
        y="how many times as fast",
        log_x=True,
        height=340,
    )
    fig.add_scatter(
        x=list(gains), y=[e.value for e in gains.values()], mode="lines+markers", line_color=palette.orange,
        error_y={
            "array": [e.high - e.value for e in gains.values()],
            "arrayminus": [e.value - e.low for e in gains.values()],
        },
    )  # fmt: skip
    ideal = [min(n, cores) for n in gains]
    fig.add_scatter(x=list(gains), y=ideal, mode="lines", line={"color": palette.grey, "dash": "dot"})
    label_line(fig, max(gains), ideal[-1], "a core for each split", palette.grey, anchor="right", shift=14)
    log_axis(fig, "x", list(gains))
    fig.update_yaxes(range=[0, max(*ideal, *(e.high for e in gains.values())) * 1.2])
    return fig


def busy_table() -> Table:
    """A decode step of Llama-3-8B on an H100: pieces of work without splits, and the splits that fit into one wave.

    A core does one piece at a time, so pieces come in waves, and the last wave may leave cores idle.
    """
    rows = []
    for users in (1, 4, 16, 64):
        pieces = users * LLAMA.num_kv_heads
        splits = max(1, SMS // pieces)
        waves = -(-pieces // SMS)
        rows.append([f"{users}", f"{pieces}", percent(pieces / (waves * SMS)), f"{splits}"])
    return rows, ["users", "KV heads × users", "of the cores busy", "splits that fit at once"], "rrrr"


# eight bits ---------------------------------------------------------------------------------------
def _gains(errors: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times smaller the error of the middle layer is than with keys as they are."""
    pairs = zip(errors["as they are"], errors[name], strict=True)
    return statistics.median(a / b for a, b in pairs)


def bits_figure(errors: Mapping[str, Sequence[float]]) -> go.Figure:
    """Error of a layer's attention with keys in a byte: as they are, smoothed, and with the first token's in full."""
    fig = figure(
        f"Smoothing divides the error by {_gains(errors, 'smoothed'):.1f}; by "
        f"{_gains(errors, 'smoothed, first exact'):.1f} with the first key unrounded",
        x="layer of SmolLM2",
        y="relative error of its attention (%)",
        log_y=True,
        height=400,
    )
    shown = []
    colors = {
        "as they are": palette.orange,
        "first exact": palette.grey,
        "smoothed": palette.blue,
        "smoothed, first exact": palette.green,
    }
    for name, color in colors.items():
        y = [100 * e for e in errors[name]]
        shown += y
        fig.add_scatter(
            x=list(range(1, len(y) + 1)),
            y=y,
            mode="lines+markers",
            line_color=color,
            name=name,
            showlegend=True,
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def bits_story(
    excerpts: Sequence[Mapping[str, Sequence[float]]], ranges: Sequence[tuple[float, float]]
) -> str:
    """The first excerpt's errors with its controls, and the range over all excerpts.

    `ranges`: of the first, by layer, a key's largest number over that of the smoothed key, first token and rest.
    """
    errors = excerpts[0]
    first, rest = (statistics.median(side) for side in zip(*ranges, strict=True))
    worse = sum(b > a for a, b in zip(errors["as they are"], errors["smoothed"], strict=True))

    def factor(name: str) -> str:
        return f"{_gains(errors, name):.1f}"

    def over_all(name: str) -> str:
        found = [_gains(one, name) for one in excerpts]
        return f"{min(found):.1f} to {max(found):.1f}"

    return (
        f"In this text the keys' largest numbers are {rest:.1f} times smaller without the mean, so their steps are as "
        f"much finer. The error is divided by {factor('smoothed')} (median over the layers; in {worse} of "
        f"{len(ranges)} it rises). One key is suspect: the first token's, the "
        "[sink](../book/glossary.md#term-attention-sink). By the subtraction its largest number becomes "
        f"{1 / first:.1f} times what it was, and so does its step. Three controls: with that one key unrounded the "
        f"factor is {factor('smoothed, first exact')}; with the second key unrounded in its place, "
        f"{factor('smoothed, second exact')}; with the first unrounded and nothing subtracted, "
        f"{factor('first exact')}.\n\n"
        f"Over {len(excerpts)} excerpts: smoothed {over_all('smoothed')}, with the first key unrounded "
        f"{over_all('smoothed, first exact')}, with the second {over_all('smoothed, second exact')}."
    )


# where it loses, recap ----------------------------------------------------------------------------
def takeaway(first: Times, times: Times, longest: int) -> str:
    fused = Estimate.ratio(first[longest]["three operators"], first[longest]["one operator"])
    kept = Estimate.ratio(times[longest]["three operators"], times[longest]["memory kept"])
    return (
        f"**Takeaway.** Attention over {longest:,} tokens moves {longest / DIM + 1:.0f} times the bytes of its inputs "
        "and output when its scores are written out, and all of them exist at once if all queries go at once. In tiles "
        "queries and outputs move once, keys and values once for each row of tiles. Here one operator that works so: "
        f"{faster(fused)}. Keeping the memory of the scores would alone have been: {faster(kept)}."
    )


@sentence(more_words=["times as fast"], less_words=["slower"])
def faster(est: Estimate) -> str:
    """Three operators over one, as a gain."""
    return says(
        est,
        more="{x} times as fast ({low} to {high}, {n} rounds)",
        same="no difference that this run can show ({estimate})",
        less="{size} slower ({low} to {high}, {n} rounds)",
    )


def recap(
    first: Times,
    times: Times,
    longest: int,
    peaks: Mapping[str, int],
    tile: tuple[int, int],
    splits: Mapping[int, Timing],
    cores: int,
) -> str:
    at = times[longest]
    fused = Estimate.ratio(first[longest]["three operators"], first[longest]["one operator"])
    kept = Estimate.ratio(at["three operators"], at["memory kept"])
    loop = Estimate.ratio(at["loop over tiles"], at["three operators"])
    two = Estimate.ratio(splits[1], splits[2])
    named = "one core" if cores == 1 else f"{cores} cores"
    return (
        f"- **The same products; by count fewer bytes and less memory.** At {longest:,} tokens, one operator against "
        f"three: {faster(fused)}; the three in memory that is kept: {faster(kept)}; a loop over tiles in Python took "
        f"{loop} of their time.\n"
        "- **A softmax needs no whole row:** a largest score, a sum and weighted values, scaled down when a larger "
        "score comes.\n"
        f"- **Memory** at {longest:,} tokens, measured: {size(peaks[ALL])} with all scores at once, "
        f"{size(peaks[tiles_of(*tile)])} in {tiles_of(*tile)}; the output is {size(4 * HEADS * longest * DIM)}.\n"
        f"- **One query has no scores to save; its keys can be split:** {split_gain(two, 2)}, on {named}; a core for "
        f"each would be {min(2, cores)} ×."
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
