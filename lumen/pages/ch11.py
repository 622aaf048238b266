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
    low = (
        "Two clocks know nothing of where the memory comes from: controls "
        "[below](#predict-a-loop-in-python) show how much of the miss that is."
    )
    return (
        f"Alone the three take {milliseconds(alone)} together. The ridge of this machine lies at {ridge:.1f} FLOP per "
        f"byte, the softmax at {softmax:.1f}. The scores are {size(scores)}; they are written, read, written as "
        f"weights "
        f"and read again. In all {size(moved)} move, for inputs and an output of {size(least)} together: "
        f"{moved / least:.0f} times as much. By the two clocks of chapter 2, operator by operator, the three in a row: "
        + miss(
            clocks(chip, "fp32", tokens)[0],
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


@sentence(more_words=["longer"], less_words=["sooner"])
def kept_over_operators(est: Estimate) -> str:
    """The three operators in memory that is there already, over the three that ask for it."""
    return says(
        est,
        more="in memory that is there already they take {size} longer ({estimate})",
        same="in memory that is there already they take as long, as far as this run can show ({estimate})",
        less="in memory that is there already they are done {size} sooner ({estimate}): so much was the handing out of "
        "fresh pages",
    )


@sentence(more_words=["longer"], less_words=["sooner"])
def slices_over_kept(est: Estimate) -> str:
    """The three on a few queries at a time, over the three on all, both in kept memory."""
    return says(
        est,
        more="on a few queries at a time they take {size} longer than that ({estimate}): fewer rows a product, more "
        "calls and copies, not told apart",
        same="on a few queries at a time they take as long as that, as far as this run can show ({estimate})",
        less="on a few queries at a time they are done {size} sooner still ({estimate}): so much was the scores' way "
        "to "
        "memory and back",
    )


@sentence(more_words=["longer"], less_words=["sooner"])
def loop_over_kept(est: Estimate) -> str:
    """The loop over tiles over the three operators in kept memory."""
    return says(
        est,
        more="against kept memory the loop takes {size} longer ({estimate}): here tiles in Python win by what they "
        "need "
        "not hold, not by what they need not move",
        same="against kept memory the loop shows no difference ({estimate})",
        less="against kept memory, too, the loop is done {size} sooner ({estimate})",
    )


def loop_story(times: Times, short: int, longest: int, queries: int, chip: Chip) -> str:
    """The loop, two controls, and the short prompt."""
    at = times[longest]
    three, kept = at["three operators"], at["memory kept"]
    loop = Estimate.ratio(at["loop over tiles"], three)
    small = Estimate.ratio(times[short]["loop over tiles"], times[short]["three operators"])
    written, tiled = clocks(chip, "fp32", longest)
    pages, held = 2 * 4 * HEADS * longest * longest, 2 * 4 * HEADS * queries * longest
    return (
        f"At {longest:,} tokens {loop_over_operators(loop)} ({loop}). It makes the same products, some operations "
        f"more, "
        "and starts more than a thousand operators.\n\n"
        f"The two clocks, with {percent(tiled / written)} of the time, say that on this machine the arithmetic takes "
        f"most of both. What they leave out: scores and weights, {size(pages)}, must *exist*. Two controls. The same "
        f"three operators: {kept_over_operators(Estimate.ratio(kept, three))}. {queries} queries at a time need "
        f"{size(held)} at once: {slices_over_kept(Estimate.ratio(at['slices, memory kept'], kept))}. "
        f"And {loop_over_kept(Estimate.ratio(at['loop over tiles'], kept))}.\n\n"
        f"With {short} tokens {loop_over_operators(small)} ({small})."
    )


def chips_table(chip: Chip, tokens: int) -> Table:
    """The two clocks on chips whose arithmetic has run away from their memory."""
    rows = []
    for one, fmt in ((chip, "fp32"), (CHIPS["L4"], "bf16"), (CHIPS["A100 80GB SXM"], "bf16"), (H100, "bf16")):
        written, tiled = clocks(one, fmt, tokens)
        name = "this machine" if one is chip else one.name
        rows.append([name, f"{cost.ridge(one, fmt):.0f}", milliseconds(written), milliseconds(tiled),
                     f"{written / tiled:.1f} ×"])  # fmt: skip
    return rows, ["chip", "ridge (FLOP/B)", "scores written out", "tiles", "gain"], "lrrrr"


def loop_figure(times: Times) -> go.Figure:
    """Each way over the three operators, by length."""
    lengths = list(times)
    ways = [
        ("loop over tiles", palette.orange),
        ("memory kept", palette.grey),
        ("slices, memory kept", palette.green),
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
def memory_table(peaks: Mapping[int, int], block_q: int, block_k: int) -> Table:
    """Memory beyond the inputs: by the formula, and measured where anybody should try."""
    rows = []
    for tokens in (*peaks, 32768, 131072):
        scores, out = 4 * HEADS * tokens * tokens, 4 * HEADS * tokens * DIM
        tile = 4 * HEADS * block_q * block_k
        found = peaks.get(tokens)
        rows.append(
            [f"{tokens:,}", size(2 * scores + out), size(found) if found else "–", size(2 * tile + out)]
        )
    return rows, ["tokens", "scores written out", "measured", "tiles"], "rrrr"


# the mask -----------------------------------------------------------------------------------------
def tiles_share(tokens: int, block: int) -> float:
    """Share of the tiles that a causal mask leaves: (n + 1) / 2n of n x n."""
    n = -(-tokens // block)
    return (n + 1) / (2 * n)


@sentence(more_words=["longer"], less_words=["saves"])
def causal_over_all(est: Estimate) -> str:
    """The one operator with a causal mask over the one without."""
    return says(
        est,
        more="the mask makes it {size} longer",
        same="the mask changes nothing that this run can show",
        less="the mask saves {size} of the time",
    )


def causal_story(counts: Any, ratio: Estimate, tokens: int, block: int) -> str:
    share = tiles_share(tokens, block)
    low = "The masking of the diagonal, and rows of unlike length on the cores, come on top; not told apart here."
    high = "Then it skips more than whole tiles of this size."
    return (
        f"Of {counts.tiles + counts.skipped} tiles the loop computed {counts.tiles} and skipped {counts.skipped}: "
        f"(n + 1) / 2n of them remain, here {percent(share)}. torch's operator with `is_causal=True` at {tokens:,} "
        f"tokens: {causal_over_all(ratio)}. If it skips tiles of {block}, its time as a share of the whole is "
        f"{miss(share, ratio, why_low=low, why_high=high)}"
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


def splits_story(times: Mapping[int, Timing], cores: int) -> str:
    gains = "; ".join(split_gain(Estimate.ratio(times[1], t), n) for n, t in times.items() if n > 1)
    if cores == 1:  # not measured
        return f"Torch has one core here, which does all the work however it is cut: {gains}. The merge is in the time."
    return (
        f"One head, one query: one piece of work, for one of {cores} cores. Cut: {gains}. Splits beyond the cores find "
        f"nobody who is idle. A core for each of two would be {min(2, cores)} ×: the merge, the start of threads and "
        f"the "
        "memory that the cores share come off it, not told apart here."
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
    """A decode step of Llama-3-8B on an H100: pieces of work without splits, and the splits that fit into one wave."""
    rows = []
    for users in (1, 4, 16, 64):
        pieces = users * LLAMA.num_kv_heads
        splits = max(1, SMS // pieces)
        rows.append([f"{users}", f"{pieces}", percent(min(1.0, pieces / SMS)), f"{splits}"])
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
    for (name, some), color in zip(
        errors.items(), (palette.orange, palette.grey, palette.blue, palette.green), strict=True
    ):
        y = [100 * e for e in some]
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


def bits_story(errors: Mapping[str, Sequence[float]], ranges: Sequence[tuple[float, float]]) -> str:
    """`ranges`: by layer, a key's largest number over that of the smoothed key, of the first token and of the rest."""
    first, rest = (statistics.median(side) for side in zip(*ranges, strict=True))
    plain, exact = _gains(errors, "smoothed"), _gains(errors, "smoothed, first exact")
    worse = sum(b > a for a, b in zip(errors["as they are"], errors["smoothed"], strict=True))
    grows = "grows" if first < 1 else "shrinks"
    return (
        f"Without their mean the keys' largest numbers are {rest:.1f} times smaller, so their steps are as much finer. "
        f"The error is divided by {plain:.1f} (median over the layers; in {worse} of {len(ranges)} it "
        "rises). One token is unlike all others: the first, the [sink](../book/glossary.md#term-attention-sink) that "
        f"every query reads. Its key has no part in what the others have in common; by the subtraction it {grows}, to "
        f"{1 / first:.1f} times its size, and so does its step. Two controls: with that one key unrounded the factor "
        f"is "
        f"{exact:.1f}; with it unrounded and nothing subtracted, {_gains(errors, 'first exact'):.1f}."
    )


# where it loses, recap ----------------------------------------------------------------------------
def takeaway(first: Times, times: Times, longest: int) -> str:
    fused = Estimate.ratio(first[longest]["three operators"], first[longest]["one operator"])
    kept = Estimate.ratio(times[longest]["three operators"], times[longest]["memory kept"])
    return (
        f"**Takeaway.** Attention over {longest:,} tokens moves {longest / DIM + 1:.0f} times the bytes of its inputs "
        f"and "
        "output when its scores are written out, and all of them must exist. In tiles queries and outputs move once, "
        "keys "
        f"and values once for each row of tiles. Here one operator that works so: {faster(fused)}. Keeping the memory "
        f"of "
        f"the scores would alone have been: {faster(kept)}."
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
    peaks: Mapping[int, int],
    splits: Mapping[int, Timing],
    cores: int,
) -> str:
    fused = Estimate.ratio(first[longest]["three operators"], first[longest]["one operator"])
    loop = Estimate.ratio(times[longest]["loop over tiles"], times[longest]["three operators"])
    most = max(peaks)
    two = Estimate.ratio(splits[1], splits[2])
    named = "one core" if cores == 1 else f"{cores} cores"
    return (
        f"- **The same products, fewer bytes, less memory.** At {longest:,} tokens, one operator against three: "
        f"{faster(fused)}; a "
        f"loop over tiles in Python took {loop} of their time.\n"
        "- **A softmax needs no whole row:** a largest score, a sum and weighted values, scaled down when a larger "
        "score comes.\n"
        f"- **Memory** at {most:,} tokens: {size(peaks[most])} with scores; in tiles the output, "
        f"{size(4 * HEADS * most * DIM)}, and two tiles.\n"
        f"- **One query has no scores to save; its keys can be split:** {split_gain(two, 2)}, on {named}."
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
