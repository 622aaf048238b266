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
    """What each operator computes, moves and takes; FLOP per byte beside the ridge decides who is bound by what."""
    rows = []
    for name, flops, moved in operators(tokens):
        seconds = parts[name].median
        rows.append(
            [name, f"{flops / moved:.2g}", size(moved), milliseconds(seconds), f"{moved / seconds / 1e9:.0f}"]
        )
    return rows, ["operator", "FLOP per byte", "moves", "takes", "GB/s"], "lrrrr"


def operators_story(
    parts: Mapping[str, Timing], whole: Timing, fused: Timing, tokens: int, chip: Chip
) -> str:
    ridge = cost.ridge(chip, "fp32")
    found = operators(tokens)
    scores = HEADS * tokens * tokens * 4
    moved, least = sum(m for *_, m in found), 4 * 4 * HEADS * tokens * DIM
    alone = sum(parts[name].median for name, *_ in found)
    return (
        f"Alone the three take {milliseconds(alone)} together, in a row {milliseconds(whole.median)}. The ridge of "
        f"this machine lies at {ridge:.1f} FLOP per byte: the softmax stands far left of it. "
        f"The scores are {size(scores)}; they are written, read, written as weights and read again. In all "
        f"{size(moved)} move, for inputs and an output of {size(least)} together: {moved / least:.0f} times as much. "
        f"Moving that at {chip.bandwidth / 1e9:.0f} GB/s takes {milliseconds(moved / chip.bandwidth)}, the "
        f"arithmetic at peak {milliseconds(sum(f for _, f, _ in found) / chip.peak('fp32'))}, and the one operator "
        f"took {milliseconds(fused.median)}."
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
        less="the loop, in Python, is done {size} **sooner** than three operators in C++",
    )


@sentence(more_words=["longer"], less_words=["sooner"])
def slices_over_operators(est: Estimate) -> str:
    """The three operators on a few queries at a time, over the three on all at once."""
    return says(
        est,
        more="on a few queries at a time they take {size} longer",
        same="on a few queries at a time they take as long, as far as this run can show: then memory is not what "
        "they waited for",
        less="on a few queries at a time they are done {size} sooner. Nothing else changed, so that much was the "
        "way of the scores to memory and back",
    )


def loop_story(times: Times, short: int, longest: int, queries: int) -> str:
    """The loop, the control, and the short prompt."""
    at = times[longest]
    three = at["three operators"]
    loop, slices = (Estimate.ratio(at[way], three) for way in ("loop over tiles", "slices of queries"))
    small = Estimate.ratio(times[short]["loop over tiles"], times[short]["three operators"])
    return (
        f"At {longest:,} tokens {loop_over_operators(loop)}: {loop}. It makes more multiplications than they do, not "
        "fewer, and starts hundreds of operators.\n\n"
        f"Is it memory? A control: the same three operators, {queries} queries at a time, so that their scores stay "
        f"in a cache: {slices_over_operators(slices)} ({slices}). And with {short} tokens, where all scores fit into a "
        f"cache anyway, {loop_over_operators(small)}: {small}."
    )


def loop_figure(times: Times) -> go.Figure:
    """Each way over the three operators, by length."""
    lengths = list(times)
    ways = [
        ("loop over tiles", palette.orange),
        ("slices of queries", palette.green),
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
    fig.update_layout(legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "x", lengths)
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def loop_title(ratio: Estimate, tokens: int) -> str:
    return f"At {tokens:,} tokens the loop takes {ratio.value:.2f} times as long as the operators"


# memory -------------------------------------------------------------------------------------------
def memory_table(peaks: Mapping[int, Mapping[str, int]], block_q: int, block_k: int) -> Table:
    """Memory beyond the inputs, measured, and by the formula for lengths that nobody should try."""
    rows = []
    for tokens, found in peaks.items():
        rows.append(
            [f"{tokens:,}", size(found["three operators"]), size(found["loop over tiles"]), "measured"]
        )
    for tokens in (32768, 131072):
        scores, out = 4 * HEADS * tokens * tokens, 4 * HEADS * tokens * DIM
        tile = 4 * HEADS * block_q * block_k
        rows.append([f"{tokens:,}", size(2 * scores + out), size(2 * tile + out), "by the formula"])
    return rows, ["tokens", "scores written out", "tiles", ""], "lrrl"


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
    why = "Whoever skips whole tiles still computes those on the diagonal in full, and starts and ends as before."
    return (
        f"Of {counts.tiles + counts.skipped} tiles the loop computed {counts.tiles} and skipped {counts.skipped}: "
        f"(n + 1) / 2n of them remain, here {percent(share)}. torch's operator with `is_causal=True` at {tokens:,} "
        f"tokens: {causal_over_all(ratio)}. If it skips tiles of {block}, its time as a share of the whole is "
        f"{miss(share, ratio, why)}"
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
        f"save. {one_query(ratio)}: {ratio}; for {keys:,} queries it was the factor at the top of this page."
    )


@sentence(example={"splits": 2, "cores": 2}, more_words=["times as fast"], less_words=["slower"])
def split_gain(est: Estimate, splits: int, cores: int) -> str:
    """Time unsplit over time in `splits`."""
    return says(
        est,
        more=f"in {splits} splits the query is answered {{x}} times as fast ({{low}} to {{high}}, {{n}} rounds), with "
        f"{cores} cores at work",
        same=f"in {splits} splits this run shows no difference: {{estimate}}",
        less=f"in {splits} splits it is {{size}} slower: {{estimate}}",
    )


def splits_story(times: Mapping[int, Timing], cores: int) -> str:
    gains = {n: Estimate.ratio(times[1], t) for n, t in times.items() if n > 1}
    first = next(iter(gains))
    more = "; ".join(split_gain(est, n, cores) for n, est in gains.items() if n != first)
    return (
        f"One head, one query: one piece of work, so one core has it and the others wait. In halves there are two: "
        f"{split_gain(gains[first], first, cores)}. More splits than cores bring nothing by themselves: {more}. The "
        "merge is in the time."
    )


def splits_figure(times: Mapping[int, Timing], cores: int) -> go.Figure:
    base = times[1]
    gains = {n: Estimate.ratio(base, t) for n, t in times.items()}
    best = max(gains.values(), key=lambda e: e.value)
    fig = figure(
        f"Splits make one query up to {best.value:.2g} times as fast on {cores} cores",
        x="splits of the keys",
        y="how many times as fast",
        log_x=True,
        height=340,
    )
    values = [e.value for e in gains.values()]
    fig.add_scatter(
        x=list(gains), y=values, mode="lines+markers", line_color=palette.orange,
        error_y={
            "array": [e.high - e.value for e in gains.values()],
            "arrayminus": [e.value - e.low for e in gains.values()],
        },
    )  # fmt: skip
    ideal = [min(n, cores) for n in gains]
    fig.add_scatter(x=list(gains), y=ideal, mode="lines", line={"color": palette.grey, "dash": "dot"})
    label_line(fig, 2, min(2, cores), "a core for each split", palette.grey, anchor="left", shift=12)
    log_axis(fig, "x", list(gains))
    fig.update_yaxes(range=[0, max(*ideal, *values) * 1.2])
    return fig


def busy_table() -> Table:
    """A decode step of Llama-3-8B on an H100: pieces of work without splits, and the splits that fill the chip."""
    rows = []
    for users in (1, 4, 16, 64):
        pieces = users * LLAMA.num_kv_heads
        splits = max(1, -(-SMS // pieces))
        rows.append([f"{users}", f"{pieces}", percent(min(1.0, pieces / SMS)), f"{splits}"])
    return rows, ["users", "KV heads × users", "of the cores busy", "splits that fill them"], "rrrr"


# eight bits ---------------------------------------------------------------------------------------
def _gains(errors: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times smaller the error of the middle layer is than with keys as they are."""
    pairs = zip(errors["as they are"], errors[name], strict=True)
    return statistics.median(a / b for a, b in pairs)


def bits_figure(errors: Mapping[str, Sequence[float]]) -> go.Figure:
    """Error of a layer's attention with keys in a byte: as they are, smoothed, and with the first token's in full."""
    fig = figure(
        f"Smoothing divides the error by {_gains(errors, 'smoothed'):.1f}; by "
        f"{_gains(errors, 'smoothed, first exact'):.1f} with the first key left out",
        x="layer of SmolLM2",
        y="relative error of its attention (%)",
        log_y=True,
        height=400,
    )
    shown = []
    for (name, some), color in zip(
        errors.items(), (palette.orange, palette.blue, palette.green), strict=True
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
    fig.update_layout(legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def bits_story(errors: Mapping[str, Sequence[float]], ranges: Sequence[tuple[float, float]]) -> str:
    """`ranges`: by layer, a key's largest number over that of the smoothed key, of the first token and of the rest."""
    first, rest = (statistics.median(side) for side in zip(*ranges, strict=True))
    plain, exact = _gains(errors, "smoothed"), _gains(errors, "smoothed, first exact")
    grows = "grows" if first < 1 else "shrinks"
    return (
        f"Without their mean the keys' largest numbers are {rest:.1f} times smaller, so their steps are as much finer. "
        f"The error of the middle layer falls by a factor of {plain:.1f} only. One token is unlike all others: the "
        "first, the [sink](../book/glossary.md#term-attention-sink) that every query reads. Its key has no part in "
        f"what the others have in common; by the subtraction it {grows}, to {1 / first:.1f} times its size, and so "
        "does its step, where most of the weight lies. A control: with that one key left unrounded the factor is "
        f"{exact:.1f}."
    )


# where it loses, recap ----------------------------------------------------------------------------
def takeaway(times: Times, longest: int) -> str:
    three = times[longest]["three operators"]
    fused = Estimate.ratio(three, times[longest]["one operator"])
    return (
        f"**Takeaway.** Attention over {longest:,} tokens moves {longest / DIM + 1:.0f} times the bytes of its "
        "inputs and output when its scores are written out. In tiles queries and outputs move once, keys and values "
        f"once for each row of tiles; on this machine one operator that works so is {fused.value:.1f} times as fast."
    )


def recap(
    times: Times,
    longest: int,
    peaks: Mapping[int, Mapping[str, int]],
    splits: Mapping[int, Timing],
    cores: int,
) -> str:
    at = times[longest]
    fused, loop = (
        Estimate.ratio(at["three operators"], at[way]) for way in ("one operator", "loop over tiles")
    )
    most = max(peaks)
    two = Estimate.ratio(splits[1], splits[2])
    return (
        f"- **The same arithmetic, other bytes.** At {longest:,} tokens one operator was {fused} as fast as three, a "
        f"loop over tiles in Python {loop}.\n"
        "- **A softmax needs no whole row:** a largest score, a sum and weighted values, scaled down when a larger "
        "score comes.\n"
        f"- **Memory** at {most:,} tokens: {size(peaks[most]['three operators'])} with scores, "
        f"{size(peaks[most]['loop over tiles'])} with tiles.\n"
        f"- **One query gains nothing from tiles, but from splits:** {two} as fast in two, on {cores} cores."
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
        "a back end for prefill and another for decode",
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
        "tiled attention on CPU and GPU, cache in fewer bits with it",
        "`--flash-attn on`, `off`, `auto`",
        "tools/server/README.md",
    ),
]
