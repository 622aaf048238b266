"""What chapter 05 shows: a full pool that is empty, blocks and tables, their price, their gain. Functions of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost, hardware
from lumen.bench import Estimate, miss, outcome, says, sentence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.pages.engines import engines

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured, Timing
    from lumen.config import ModelConfig
    from lumen.hardware import Chip

Table = tuple[list[list[Any]], list[str], str]
Wait = tuple[int, list[tuple[int, int]], list[tuple[int, int, int]]]  # needed, holes, pieces: `first_fit`
LLAMA = CONFIGS["llama-3-8b"]
CARDS = ("A100 80GB SXM", "H100 SXM", "L4")
FIXED = 10e-6  # seconds per transfer, assumed


def tiny(error: float) -> str:
    """An error to one digit; 0 where the bits are the same."""
    return f"{error:.0e}" if error else "0"


# full, and mostly empty ---------------------------------------------------------------------------
def slots_figure(now: Sequence[int], final: Sequence[int], limit: int) -> go.Figure:
    """Each slot at one moment: what it holds, what is to come, what never will."""
    total = limit * len(now)
    names = [f"request {i + 1}" for i in range(len(now))]
    fig = figure(
        f"The pool is full; {percent(sum(now) / total)} of it holds tokens, {percent(1 - sum(final) / total)} "
        "never will",
        x="positions of 128 KiB",
        y="slot",
        height=420,
    )
    for values, color, name in (
        (list(now), palette.blue, "holds a token"),
        ([b - a for a, b in zip(now, final, strict=True)], palette.ochre, "will hold one"),
        ([limit - b for b in final], "rgba(128,136,144,.25)", "never used"),
    ):
        fig.add_bar(x=[int(v) for v in values], y=names, orientation="h", marker_color=color, name=name)
    fig.update_layout(barmode="stack", bargap=0.25, showlegend=True, legend_traceorder="normal")
    fig.update_yaxes(autorange="reversed", title_text=None, tickvals=names[::5])
    return fig


def reserved_story(shares: Sequence[float], budget: float) -> str:
    return (
        f"Over all steps of the trace {percent(shares[0])} of the reserved positions hold a token "
        f"({percent(shares[1])} and {percent(shares[2])} with the other two seeds). So of {budget / 2**30:.0f} GiB, "
        f"{budget * (1 - shares[0]) / 2**30:.1f} GiB are paid for and empty."
    )


# an oracle ----------------------------------------------------------------------------------------
def stuck(waits: Sequence[Wait]) -> list[Wait]:
    """The waits in which enough memory was free, in pieces that were all too small."""
    return [w for w in waits if sum(room for room, _ in w[1]) >= w[0]]


def holes_figure(waits: Sequence[Wait]) -> go.Figure:
    need, holes, pieces = max(stuck(waits), key=lambda w: sum(room for room, _ in w[1]))
    free = sum(room for room, _ in holes)
    fig = figure(
        f"{free:,} positions free, and no hole for {need:,} in one piece",
        x="position in the pool",
        y="pool",
        height=190,
    )
    for items, color in (
        ([(start, end - start) for start, end, _ in pieces], palette.blue),
        ([(start, room) for room, start in holes], palette.orange),
    ):
        fig.add_bar(
            base=[start for start, _ in items],
            x=[length for _, length in items],
            y=["pool"] * len(items),
            orientation="h",
            marker={"color": color, "line": {"color": "white", "width": 1}},
        )
    fig.update_layout(barmode="overlay", bargap=0.2)
    fig.update_yaxes(visible=False)
    label_line(fig, 0, 0, "blue: taken, orange: free", palette.grey, anchor="left", shift=52)
    return fig


def holes_free(waits: Sequence[Wait], positions: int) -> float:
    """Share of the pool that was free, on average over the steps in which no hole was large enough."""
    cases = stuck(waits)
    return sum(room for _, holes, _ in cases for room, _ in holes) / positions / len(cases)


def holes_story(waits: Sequence[Wait], positions: int) -> str:
    cases = stuck(waits)
    worst = max(cases, key=lambda w: sum(room for room, _ in w[1]))
    needed = sum(need for need, _, _ in cases) / len(cases)
    return (
        f"That was the worst moment: {len(worst[1])} holes, the largest of {max(worst[1])[0]:,} positions. In "
        f"{len(waits):,} steps the queue had to wait, and in {percent(len(cases) / len(waits), 1)} of those there "
        "*was* enough "
        f"free memory for the next request, {percent(holes_free(waits, positions))} of the pool on average, but "
        "no hole was "
        f"large enough: it is the long requests that get stuck, {needed:,.0f} positions on average, and all behind "
        "them wait. This is **external fragmentation**: memory between the allocations, too cut up to be of use."
    )


# blocks, a table, a pool --------------------------------------------------------------------------
def map_figure(lengths: Sequence[int], tables: Sequence[Sequence[int]], blocks: int, size: int) -> go.Figure:
    """Logical positions above, the pool below, and between them the tables as lines from block to block."""
    fig = figure(
        "In order for the request, anywhere in the pool", x="block of the pool", y="request, pool", height=400
    )
    colors = (palette.blue, palette.orange, palette.green)
    every = sum(len(t) for t in tables) * size + 2 * (len(tables) - 1)
    left, top = (blocks * size - every) / 2, 3.0
    cells: list[tuple[float, float, str, bool]] = []
    used: dict[tuple[int, int], str] = {}
    for name, length, table, color in zip("ABC", lengths, tables, colors, strict=True):
        label_line(
            fig,
            left,
            top + 1.85,
            f"{name}: table<br>[{', '.join(map(str, table))}]",  # two lines: a table of three on a phone
            color,
            anchor="left",
            shift=0,
        )
        for i, block in enumerate(table):
            fig.add_annotation(
                x=left + i * size + 0.5,
                y=top + 1.25,
                text=str(i * size),  # the first position alone: there is no room for more on a phone
                showarrow=False,
                font={"size": 12},
            )
            for j in range(size):
                p = i * size + j
                cells.append((left + p, top, color, p < length))
                if p < length:
                    used[block, j] = color
            fig.add_scatter(
                x=[left + (i + 0.5) * size, (block + 0.5) * size],
                y=[top, 1],
                mode="lines",
                line={"color": color, "width": 2},
                hoverinfo="skip",
            )
        left += len(table) * size + 2
    for block in range(blocks):
        held = next((c for (b, _), c in used.items() if b == block), palette.grey)
        for j in range(size):
            cells.append((block * size + j, 0, used.get((block, j), held), (block, j) in used))
        fig.add_shape(
            type="rect", x0=block * size, x1=(block + 1) * size, y0=0, y1=1, line={"color": held, "width": 3}
        )
        fig.add_annotation(
            x=(block + 0.5) * size, y=-0.4, text=str(block), showarrow=False, font={"size": 12}
        )
    for x, y, color, full in cells:
        fig.add_shape(
            type="rect",
            x0=x + 0.06,
            x1=x + 0.94,
            y0=y + 0.06,
            y1=y + 0.94,
            fillcolor=f"{color}40" if full else "rgba(0,0,0,0)",
            line={"color": color, "width": 1},
        )
    fig.update_xaxes(range=[-0.5, blocks * size + 0.5], showticklabels=False, showgrid=False, zeroline=False)
    fig.update_yaxes(range=[-0.8, 5.5], visible=False)
    return fig


# how many fit -------------------------------------------------------------------------------------
def fit_story(
    expected: float, counted: float, slots: int, mean: float, share: float, once: float, listed: float
) -> str:
    """`mean`: tokens that a request in flight holds, `share` of the limit. `once` and `listed`: what it would hold,
    and how many would fit, if each request of the list counted once."""
    return (
        f"From the list, a request halfway through its answer holds {once:.0f} tokens, so {listed:.0f} should fit. But "
        "who is *met* in a busy server is mostly in the middle of a long answer: a request of 400 steps stands there "
        "ten times as long as one of 40. So $\\bar L$ weighs each request by its steps, and the first picture knew it: "
        f"{percent(share, 1)} of its slots of 2,048 were full, {mean:.0f} tokens a request. With that the formula says "
        f"{expected:.1f}; counting says {counted:.1f}, because the last request must fit whole. Still "
        f"**{counted / slots:.1f} times** the {slots} of before. Who sizes a pool from a log of lengths, each line "
        "counted once, runs dry."
    )


def empty(used: Mapping[Any, Sequence[float]], policy: str, size: int = 16) -> float:
    """Percent of taken positions without a token, mean of the seeds."""
    shares = used[policy, size]
    return 100 - 100 * sum(shares) / len(shares)


def sizes_figure(used: Mapping[Any, Sequence[float]], blocks: Sequence[int]) -> go.Figure:
    shares = [100 - empty(used, "paged", size) for size in blocks]
    fig = figure(
        f"Blocks of 16 leave {empty(used, 'paged'):.1f} % empty, blocks of 128 {empty(used, 'paged', 128):.1f} %; "
        f"reserving leaves {empty(used, 'max'):.0f} %",
        x="block size (positions)",
        y="taken memory that holds tokens (%)",
        log_x=True,
    )
    fig.add_scatter(x=list(blocks), y=shares, mode="lines+markers", line_color=palette.blue)
    for policy, name, color in (
        ("power of two", "doubled when full", palette.ochre),
        ("max", "the limit, in one piece", palette.orange),
    ):
        level = 100 - empty(used, policy)
        fig.add_scatter(
            x=[blocks[0], blocks[-1]], y=[level, level], mode="lines", line={"color": color, "dash": "dot"}
        )
        label_line(fig, blocks[0], level, name, color, anchor="left", shift=11)
    label_line(fig, blocks[1], shares[1], "blocks", palette.blue, anchor="left", shift=-16)
    log_axis(fig, "x", list(blocks))
    fig.update_yaxes(range=[0, 104])
    return fig


def quoted_story(shares: Sequence[float], oracle: Sequence[float]) -> str:
    """The published 60 to 80 %, beside this page's server that reserves and its oracle."""
    ends = [100 * cost.wasted_share(share, 1) for share in (0.382, 0.204)]
    return (
        f"That is {ends[0]:.1f} and {ends[1]:.1f} % of waste, so the arithmetic agrees. But the two ends are no error "
        "bar. The lower share is a system that reserves the limit; the upper one is an *oracle*, which knows every "
        "length, on their model, their trace and their allocator. Our reserving server holds tokens in "
        f"{percent(min(shares))} to {percent(max(shares))} of its memory. Our oracle's pieces are "
        f"{percent(min(oracle))} to "
        f"{percent(max(oracle))} full over their lives, before the holes between them are counted. Quote the "
        "range with its "
        "systems, or compute your own: it takes a list of lengths."
    )


# the price ----------------------------------------------------------------------------------------
def slower(steps: Mapping[str, Timing]) -> Estimate:
    """Paged step over static step, from one interleaved run."""
    return Estimate.ratio(steps["paged"], steps["static"])


@sentence(example={"context": 4096}, more_words=["longer"], less_words=["shorter"])
def slower_title(ratio: Estimate, context: int) -> str:
    return says(
        ratio,
        more=f"At {context:,} tokens a step through gathered blocks takes {{size}} longer",
        same=f"At {context:,} tokens the two steps do not differ in this run",
        less=f"At {context:,} tokens a step through gathered blocks came out {{size}} shorter",
    )


def price_table(
    steps: Mapping[int, Mapping[str, Timing]], config: ModelConfig, chip: Chip, dtype: object
) -> Table:
    rows = []
    for n, taken in steps.items():
        ratio = slower(taken)
        extra = Estimate.difference(taken["paged"], taken["static"]).scaled(1e3, "ms")
        static, paged = (
            cost.predict_decode(config, chip, n, dtype=dtype, cache=kind).seconds
            for kind in ("static", "paged")
        )
        rows.append(
            [
                f"{n:,}",
                f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                f"{paged / static:.2f}",
                f"{extra.value:+.1f} ({extra.low:.1f} to {extra.high:.1f})",
                f"{2e3 * cost.kv_bytes(config, n, 1, dtype) / chip.bandwidth:.1f}",
            ]
        )
    return (
        rows,
        ["context", "paged / static", "cost model", "more a step (ms)", "the copy's bytes (ms)"],
        "rrrrr",
    )


def by_bytes(config: ModelConfig, context: int, dtype: object) -> float:
    """Bytes that a paged step moves over those of a static one: weights and three times the cache, or once."""
    weights, held = cost.weight_bytes(config, dtype), cost.kv_bytes(config, context, 1, dtype)
    return (weights + 3 * held) / (weights + held)


@sentence(
    example={"by_model": 1.2, "alone": 1.5, "context": 4096},
    more_words=["longer"],
    less_words=["shorter"],
)
def price(ratio: Estimate, by_model: float, alone: float, context: int) -> str:
    """Paged step over static step at `context`; `by_model` is the forecast, `alone` the ratio of the bytes."""
    verdict = {"more": ", too little", "less": ", too much"}.get(outcome(ratio, by_model), "")
    forecast = (
        f"Counting nothing but bytes gives {alone:.2f} ×; the cost model adds what else both steps pay for, and "
        f"says {by_model:.2f} ×{verdict}. The last columns set what the copy cost beside its bytes."
    )
    return says(
        ratio,
        more=f"At {context:,} tokens a paged step takes {{size}} longer ({{estimate}}). {forecast}",
        same=f"At {context:,} tokens this run shows no difference between the two steps ({{estimate}}). {forecast}",
        less=f"At {context:,} tokens the paged step came out {{size}} shorter ({{estimate}}), although it moves more "
        f"bytes; what is behind that was not taken apart. {forecast}",
    )


# the gain -----------------------------------------------------------------------------------------
def gain(pair: Timing, crowd: Timing, rows: tuple[int, int]) -> Estimate:
    """Tokens a second with blocks over tokens a second with reservations; `rows` of both steps."""
    return Estimate.ratio(pair, crowd).scaled(rows[1] / rows[0], "×")


def gain_by_model(config: ModelConfig, chip: Chip, pair: Sequence[int], crowd: Sequence[int]) -> float:
    """The cost model's answer. Both attend as far as the longest row, so that is the context."""
    few = cost.predict_decode(config, chip, max(pair) + 1, len(pair), "fp32", cache="static").seconds
    many = cost.predict_decode(config, chip, max(crowd) + 1, len(crowd), "fp32", cache="paged").seconds
    return len(crowd) / many / (len(pair) / few)


@sentence(example={}, more_words=["more tokens"], less_words=["fewer tokens"])
def gain_title(ratio: Estimate) -> str:
    return says(
        ratio,
        more="The same memory gives more tokens a second: {x} times as many",
        same="More rows in the same memory, and no gain that this run can show",
        less="The same memory gives fewer tokens a second: {x} times as many",
    )


@sentence(
    example={"rows": (2, 10), "longer": 1.7},
    more_words=["more tokens"],
    less_words=["fewer tokens"],
)
def gain_sentence(ratio: Estimate, rows: tuple[int, int], longer: float) -> str:
    few, many = rows
    return says(
        ratio,
        more=f"{many} rows in place of {few}, in a step that takes {longer:.1f} times as long: "
        "{estimate} the tokens a second from the same memory, with the gather and all. The weights are read once a "
        "step, for however many rows.",
        same=f"{many} rows in place of {few}, in a step that takes {longer:.1f} times as long: no gain that this run "
        "can show ({estimate}).",
        less=f"{many} rows in place of {few}, in a step that takes {longer:.1f} times as long: fewer tokens a second "
        "({estimate}). The longer step costs more than the rows bring.",
    )


def gain_story(pair: Timing, crowd: Timing, rows: tuple[int, int], forecast: float) -> str:
    longer, measured = Estimate.ratio(crowd, pair).value, gain(pair, crowd, rows)
    beside = miss(
        forecast,
        measured,
        why_high="It counts the bytes of the copy, and nothing else that blocks cost.",
        why_low="Why many rows came out cheaper than that was not taken apart.",
    )
    return (
        f"{gain_sentence(measured, rows, longer)} The model: {beside}\n\nThe "
        "[paper](https://arxiv.org/abs/2309.06180) measured 2 to 4 times the throughput at the same latency, against "
        "FasterTransformer and Orca, with a kernel that does not gather; more where sequences are longer, models "
        "larger, and decoding shares more."
    )


# four answers -------------------------------------------------------------------------------------
def samples_table(shared: Sequence[int], apart: Sequence[int]) -> Table:
    rows = [
        ["after the prompt", shared[0], apart[0]],
        ["after the first token", shared[1], apart[1]],
        [f"after {len(shared) - 1} tokens", shared[-1], apart[-1]],
    ]
    return rows, ["blocks taken", "shared", "four separate rows"], "lrr"


def samples_story(shared: Sequence[int], apart: Sequence[int], full: int) -> str:
    return (
        f"{full} full blocks are held once instead of four times, for good. At the first token "
        f"{shared[1] - shared[0]} copies of the last block were made, not four: the last writer found itself alone "
        f"and kept the original. At the end {shared[-1]} blocks hold what takes {apart[-1]} in separate rows, a factor "
        f"{apart[-1] / shared[-1]:.2f}. The longer the prompt against the answers, the nearer to four. The prompt was "
        "also *computed* once instead of four times."
    )


# the pool runs dry --------------------------------------------------------------------------------
def preempted_table(swap: Timing, again: Measured, row_bytes: float, errors: Mapping[str, float]) -> Table:
    moved = Estimate.of(swap).scaled(1e3, "ms")
    tokens = again.name.context
    rows = [
        [
            "swap out and in",
            f"{moved.value:.1f}",
            tiny(errors["swapped"]),
            f"{2 * row_bytes / 1e6:.0f} MB moved",
        ],
        ["recompute", f"{again.ms:.0f}", tiny(errors["recomputed"]), f"a prefill of {tokens}"],
    ]
    return rows, [f"{tokens} tokens of SmolLM2", "ms", "error of the next logits", "work"], "lrrl"


@sentence(example={}, more_words=["Swapping is faster"], less_words=["Recomputing is faster"])
def swap_sentence(ratio: Estimate) -> str:
    """Time to recompute over time to swap."""
    return says(
        ratio,
        more="Swapping is faster here: recomputing takes {estimate} as long.",
        same="The two take as long as each other here, as far as this run can show ({estimate}).",
        less="Recomputing is faster here: it takes {estimate} the time of a swap.",
    )


def swap_story(swap: Timing, again: Measured, cpu: bool) -> str:
    where = {
        True: "But mind what was measured: on a CPU the *host's memory* is the same memory, and a swap is a copy. "
        "There is no bus.",
        False: "The swap crosses the bus twice, from pageable host memory.",
    }
    return f"{swap_sentence(Estimate.ratio(again.timing, swap))} {where[cpu]}"


def break_even(name: str, card: str, length: int = 1024) -> float:
    """Rate of the bus below which computing `length` tokens again is faster, both from data sheets. [B/s]"""
    model = CONFIGS[name]
    seconds = cost.predict_prefill(model, hardware.CHIPS[card], length, dtype="bf16").seconds
    return 2 * cost.kv_bytes(model, length, 1, "bf16") / seconds


def race_table() -> Table:
    rows = []
    for name in ("llama-2-7b", "llama-3-8b"):
        for card in CARDS:
            bus, model = hardware.host_link(card), CONFIGS[name]
            swap = bus.seconds(2 * cost.kv_bytes(model, 1024, 1, "bf16"))
            again = cost.predict_prefill(model, hardware.CHIPS[card], 1024, dtype="bf16").seconds
            rows.append(
                [
                    f"{name}, {card.split()[0]}",
                    f"{1e3 * swap:.1f}",
                    f"{1e3 * again:.1f}",
                    f"{break_even(name, card) / 1e9:.1f} of {bus.bandwidth / 1e9:.0f}",
                ]
            )
    return rows, ["1,024 tokens, bf16", "swap (ms)", "recompute (ms)", "needs … of the bus (GB/s)"], "lrrr"


def piece(name: str, size: int) -> int:
    """Bytes that lie together: the keys, or the values, of one block in one layer, 16 bits."""
    model = CONFIGS[name]
    return size * model.num_kv_heads * model.head_dim * 2


def smallest_block(name: str, card: str, fixed: float = FIXED) -> float | None:
    """Block size from which swapping piece by piece beats recomputing; None when it never does."""
    spare = 1 / break_even(name, card) - 1 / hardware.host_link(card).bandwidth
    return fixed / spare / piece(name, 1) if spare > 0 else None


def pieces_figure(name: str = "llama-3-8b") -> go.Figure:
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    cards = CARDS[:2]
    cross = {card: smallest_block(name, card) or 0.0 for card in cards}
    fig = figure(
        f"Piece by piece, swapping pays from blocks of {cross[cards[0]]:.0f} (A100) and {cross[cards[1]]:.0f} (H100)",
        x="block size (positions)",
        y="rate of the bus (GB/s)",
        log_x=True,
        log_y=True,
    )
    for card, color in zip(cards, (palette.blue, palette.orange), strict=True):
        bus, short = hardware.host_link(card), card.split()[0]
        rates = [piece(name, s) / (FIXED + bus.seconds(piece(name, s))) / 1e9 for s in sizes]
        level = break_even(name, card) / 1e9
        fig.add_scatter(x=sizes, y=rates, mode="lines", line_color=color)
        fig.add_scatter(
            x=[sizes[0], sizes[-1]], y=[level, level], mode="lines", line={"color": color, "dash": "dot"}
        )
        fig.add_scatter(x=[cross[card]], y=[level], mode="markers", marker={"color": color, "size": 10})
        label_line(fig, sizes[0], level, f"{short} recomputes as fast", color, anchor="left", shift=10)
        label_line(fig, sizes[-1], rates[-1], short, color, shift=10 if card == cards[1] else -36)
    log_axis(fig, "x", sizes)
    log_axis(fig, "y", [0.2, 0.5, 1, 2, 5, 10, 20, 50])
    return fig


def recompute_story() -> str:
    return (
        f"And yet [vLLM]({engines()['vllm'].link('configuration/optimization/')}) recomputes; its documentation says "
        "that this has lower overhead in its present architecture, and no more. One candidate is in the word *block*, "
        "and it can be computed. A block's keys in one layer lie together, those of the next layer lie elsewhere. "
        "Copied piece by piece, each transfer pays a fixed price $t_0$ before its first byte, so a piece of $s$ bytes "
        f"moves at $s / (t_0 + s/\\text{{bus}})$. Here with {1e6 * FIXED:.0f} µs, an assumption of ours:"
    )


# which block size ---------------------------------------------------------------------------------
def choice_table(used: Mapping[Any, Sequence[float]], limit: int) -> Table:
    rows = [
        [
            size,
            f"{empty(used, 'paged', size):.1f}",
            f"{cost.kv_bytes(LLAMA, size, 1, 'bf16') / 2**10:,.0f}",
            -(-limit // size),
            f"{2 * LLAMA.num_layers * -(-1024 // size):,}",
        ]
        for size in (1, 4, 16, 64, 128)
    ]
    headers = [
        "block size",
        "empty (%)",
        "KiB a copy-on-write",
        f"table entries, {limit:,} tokens",
        "pieces in a swap of 1,024",
    ]
    return rows, headers, "rrrrr"


# owners -------------------------------------------------------------------------------------------
def owners_story(damage: float) -> str:
    return (
        "The mistake shows in the sum only until the stranger has taken the same blocks. Then the sum is right "
        "again, and our request reads the "
        f"keys and values of somebody else's prompt: its next logits are off by {percent(damage)}. Nothing crashed. "
        "`BlockPool.audit` asks every table who holds each block, and compares with the count that the pool has kept. "
        "The tests of this course run it after each of ten thousand random steps."
    )


# where it loses -----------------------------------------------------------------------------------
def losses_table(packed: Mapping[str, float], ratio: Estimate) -> Table:
    """`packed`: requests that fit when all fill the limit."""
    rows = [
        [
            "every request fills its limit",
            f"{packed['paged']:.0f} fit in blocks, {packed['max']:.0f} reserved",
        ],
        [
            "nobody waits for memory",
            f"no row more, and one user's step at 4,096 tokens takes {ratio}",
        ],
        [
            "requests of 5 tokens, blocks of 128",
            f"{percent(cost.wasted_share(5, 128))} of the taken memory is empty",
        ],
    ]
    return rows, ["case", "what happens"], "ll"


# recap --------------------------------------------------------------------------------------------
@sentence(example={}, more_words=["is the price"], less_words=["shorter"])
def recap_price(ratio: Estimate) -> str:
    """Paged step over static step, one user."""
    return says(
        ratio,
        more="**Gathering is the price of our version:** {estimate} a step at 4,096 tokens, one user.",
        same="**Gathering** cost one user at 4,096 tokens nothing that this run can show ({estimate}).",
        less="**Gathering** came out shorter for one user at 4,096 tokens ({estimate}), against its bytes.",
    )


@sentence(example={}, more_words=["are the gain"], less_words=["fewer tokens"])
def recap_gain(ratio: Estimate) -> str:
    return says(
        ratio,
        more="**More rows for the same memory are the gain:** {estimate} the tokens a second.",
        same="**More rows for the same memory** gained no tokens a second that this run can show ({estimate}).",
        less="**More rows for the same memory** gave fewer tokens a second here ({estimate}).",
    )


def recap(
    now: Sequence[int],
    final: Sequence[int],
    limit: int,
    free: float,
    fit: tuple[float, float],
    used: Mapping[Any, Sequence[float]],
    ratio: Estimate,
    more: Estimate,
    blocks: tuple[int, int],
) -> str:
    total, slots = limit * len(now), len(now)
    held, never = sum(now) / total, 1 - sum(final) / total
    expected, counted = fit
    return (
        f"- **Where it was:** at one moment of a full pool {percent(held)} held tokens, "
        f"{percent(1 - held - never)} was reserved "
        f"for tokens to come, {percent(never)} would never be used (internal). With exact lengths {percent(free)} "
        "of the pool "
        "was free and too cut up when the queue was stuck (external).\n"
        f"- **Requests that fit ≈ positions / (mean length + half a block):** {expected:.0f} predicted, {counted:.0f} "
        f"counted, {slots} when the limit is reserved. Blocks of 16 leave {empty(used, 'paged'):.1f} % empty.\n"
        f"- {recap_price(ratio)} A kernel that reads through the table does not copy.\n"
        f"- {recap_gain(more)}\n"
        f"- **Blocks can be shared:** four answers took {blocks[0]} blocks instead of {blocks[1]}.\n"
        "- **Swap or recompute** is a question of a rate: on an H100 swapping 1,024 tokens of Llama-3-8B needs "
        f"{break_even('llama-3-8b', 'H100 SXM') / 1e9:.0f} GB/s, Llama-2-7B "
        f"{break_even('llama-2-7b', 'H100 SXM') / 1e9:.0f} GB/s, of a bus that has "
        f"{hardware.host_link('H100 SXM').bandwidth / 1e9:.0f}.\n"
        "- **Counts can add up where owners do not.** An audit must ask the tables."
    )


def takeaway(slots: int, counted: float, used: Mapping[Any, Sequence[float]]) -> str:
    return (
        f"**Takeaway.** Do not reserve what may never come. In blocks of 16, memory for {slots} requests holds "
        f"{counted:.0f} of this traffic, because the only waste left is half a block each: "
        f"{empty(used, 'paged'):.1f} % instead of {empty(used, 'max'):.0f} %."
    )


PRODUCTION = [
    (
        "vllm",
        "blocks of 16 by default; the pool is what a share of the card leaves",
        "`--block-size`, `--gpu-memory-utilization`, `vllm/v1/core/block_pool.py`",
        "configuration/engine_args/",
    ),
    (
        "sglang",
        "pages of 1 by default; preemption is called *retraction*",
        "`--page-size`, `--mem-fraction-static`, `--schedule-conservativeness`",
        "advanced_features/server_arguments",
    ),
    (
        "tensorrt-llm",
        "blocks of 32; room on the host for blocks that are moved there",
        "`KvCacheConfig`: `tokens_per_block`, `free_gpu_memory_fraction`, `host_cache_size`",
        "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
    ),
    (
        "llama.cpp",
        "no blocks: slots share one buffer, unless their number is given: then each has its part, this page's first "
        "picture",
        "`--ctx-size`, `--parallel`, `--kv-unified`",
        "tools/server/README.md",
    ),
]
