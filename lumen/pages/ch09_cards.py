"""Chapter 09 on chips nobody here has run: which budget, how long a journey, eight A100 used in two ways. Predicted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.hardware import CHIPS, LINKS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.config import ModelConfig
    from lumen.hardware import Chip

Table = tuple[list[list[Any]], list[str], str]
Pieces = Sequence[tuple[int, int]]  # (positions that were cached, tokens computed behind them)
LLAMA, CARDS = CONFIGS["llama-3-8b"], ("A100 80GB SXM", "H100 SXM", "L4")


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}"


def seconds(
    pieces: Pieces, chip: Chip, config: ModelConfig, dtype: str = "fp32", kind: Any = "paged"
) -> float:
    """A step's predicted length. [s]"""
    return cost.predict_mixed(config, chip, pieces, dtype, cache=kind).seconds


# which budget -------------------------------------------------------------------------------------
def card_seconds(name: str, pieces: Pieces) -> float:
    return seconds(pieces, CHIPS[name], LLAMA, "bf16", "static")


def card_step(name: str, count: int, held: int = 4096) -> float:
    """A step of 32 answers at context 2,048 with `count` tokens of a prompt behind `held`."""
    return card_seconds(name, [(2048, 1)] * 32 + [(held, count)] * bool(count))


def most(limit: float, length: Callable[[int], float], top: int = 8192) -> int:
    """The largest of 0 … `top` whose `length` stays within the limit; -1 when even 0 takes longer."""
    return bisect_right(range(top + 1), limit, key=length) - 1


@cache
def nearly_free() -> dict[str, int]:
    """Tokens of a prompt that lengthen the step by 10 % at most, by chip."""
    return {name: most(1.1 * card_step(name, 0), partial(card_step, name)) for name in CARDS}


def cards_figure() -> go.Figure:
    """A step's length over the tokens of a prompt in it."""
    free, counts = nearly_free(), [2**k for k in range(3, 14)]
    fig = figure(
        f"Beside 32 answers, {free['H100 SXM']} prompt tokens are nearly free on an H100, "
        f"{free['A100 80GB SXM']} on an A100 (predicted)",
        x="tokens of a prompt in the step",
        y="step (ms)",
        log_x=True,
        log_y=True,
    )
    for name, color in zip(CARDS, (palette.blue, palette.orange, palette.green), strict=True):
        times = [1e3 * card_step(name, count) for count in counts]
        fig.add_scatter(x=counts, y=times, mode="lines+markers", line_color=color)
        label_line(fig, counts[0], times[0], name.split()[0], color, anchor="left", shift=12)
    log_axis(fig, "x", [8, 32, 128, 512, 2048, 8192], ["8", "32", "128", "512", "2,048", "8,192"])
    log_axis(fig, "y", [5, 10, 20, 50, 100, 200, 500, 1000])
    return fig


def chunk_table(prompt: int = 8192) -> Table:
    """The largest chunk under a limit on every gap, and the TTFT that follows."""
    rows = []
    for name in CARDS:
        for limit in (0.02, 0.1):

            def whole(count: int, name: str = name) -> float:
                return card_step(name, count, prompt - count)

            chunk = most(limit, whole, prompt)
            wait = "–"
            if chunk > 0:
                starts = range(0, prompt, chunk)
                wait = ms(sum(card_step(name, min(chunk, prompt - start), start) for start in starts))
            fits = {True: f"{chunk:,}", False: "none"}[chunk > 0]
            rows.append([f"{name}, {ms(limit)} ms", fits, wait])
    headers = ["chip, every gap under", "largest chunk (tokens)", f"TTFT of {prompt:,} tokens, no queue (ms)"]
    return rows, headers, "lrr"


# prefill here, decode there -----------------------------------------------------------------------
NETWORKS = ("network 400 Gbit/s", "network 100 Gbit/s", "network 10 Gbit/s")


def journey(card: str, length: int, link: float) -> tuple[float, float, float, float]:
    """(prefill, bytes, seconds left after it when sent whole, and layer by layer), Llama-3-8B in bf16."""
    prefill = cost.predict_prefill(LLAMA, CHIPS[card], length, dtype="bf16").seconds
    size = length * cost.kv_bytes_per_token(LLAMA, "bf16")
    compute, travel = prefill / LLAMA.num_layers, size / LLAMA.num_layers / link
    layered = max(travel, compute + LLAMA.num_layers * travel - prefill)
    return prefill, size, size / link, layered


@cache
def made_per_second() -> float:
    """Bytes of cache that a prefill of 4,096 tokens makes on an H100, a second."""
    prefill, size, *_ = journey("H100 SXM", 4096, 1e9)
    return size / prefill


def journeys_table() -> Table:
    rows = []
    for name in NETWORKS:
        _, _, whole, layered = journey("H100 SXM", 4096, LINKS[name].bandwidth)
        speed = LINKS[name].bandwidth / 1e9
        rows.append(
            [name.removeprefix("network "), f"{1e3 * layered:.1f}", f"{1e3 * whole:.1f}", f"{speed:g}"]
        )
    return (
        rows,
        ["link", "wait, layer by layer (ms)", "wait, sent whole (ms)", "GB/s in one direction"],
        "lrrr",
    )


def journeys_text() -> str:
    prefill, size, *_ = journey("H100 SXM", 4096, 1e9)
    return (
        f"*Predicted* for 4,096 tokens of Llama-3-8B in bf16 on an H100: {size / 1e6:,.0f} MB, made in "
        f"{1e3 * prefill:.0f} ms, "
        f"which is **{made_per_second() / 1e9:.1f} GB/s**. A link above that rate hides all but the last layer."
    )


# when does it pay ---------------------------------------------------------------------------------
CARD, READ, WRITE, NUM_CHIPS = "A100 80GB SXM", 4096, 256, 8
TTFTS = (0.5, 0.25)  # the two limits on the first token that are compared [s]
LIMITS = (0.0079, 0.0082, 0.009, 0.01, 0.02, 0.04, 0.1)


@cache
def written() -> list[float]:
    """Seconds of a step of 1, 2, … answers, everybody halfway, up to what fits into the memory."""
    context = READ + WRITE // 2
    room = cost.max_users(CHIPS[CARD].memory, LLAMA, context, "bf16", "bf16", reserve=0.1)
    return [card_seconds(CARD, [(context, 1)] * users) for users in range(1, room + 1)]


@cache
def designs() -> list[tuple[float, float, float]]:
    """(requests/s of a chip, longest step, TTFT) of every way to work together.

    `users` answers are always under way. A prompt is read in `pieces` steps beside them; then steps without a prompt
    follow until one of the answers has ended and the next prompt comes.
    """
    found, context = [], READ + WRITE // 2
    for users, alone in enumerate(written()[:-1], 1):
        for pieces in range(1, WRITE // users + 1):
            if pieces > 64 and pieces % 16:
                continue
            chunk = -(-READ // pieces)
            usual = card_seconds(CARD, [(context, 1)] * users + [((READ - chunk) // 2, chunk)])
            last = card_seconds(CARD, [(context, 1)] * users + [(READ - chunk, chunk)])
            between = WRITE / users - pieces
            found.append((1 / (pieces * usual + between * alone), last, pieces * usual))
    return found


def together(gap: float, first: float = float("inf")) -> float:
    """Requests a second of all chips with every gap and every TTFT within the limits; 0 when there is no way."""
    return NUM_CHIPS * max(
        (rate for rate, last, wait in designs() if last <= gap and wait <= first), default=0.0
    )


def apart(gap: float, first: float = float("inf")) -> tuple[float, int, float]:
    """(requests/s, chips that read, share of the time that these are busy) of the best split."""
    read, _, _, left = journey(CARD, READ, LINKS["network 400 Gbit/s"].bandwidth)
    rate = max((n / t / WRITE for n, t in enumerate(written(), 1) if t <= gap), default=0.0)
    if read + left > first or not rate:
        return 0.0, 0, 0.0
    best, readers = max((min(k / read, (NUM_CHIPS - k) * rate), k) for k in range(1, NUM_CHIPS))
    return best, readers, best * read / readers


def crossing(first: float = float("inf")) -> float:
    """The largest limit on the gap, in steps of 0.1 ms, under which apart serves more. [s]"""
    grid = [k / 1e4 for k in range(70, 1001)]
    return max(limit for limit in grid if apart(limit, first)[0] > together(limit, first))


def goodput_figure() -> go.Figure:
    """Requests per second within both limits, over the limit on the gap."""
    fig = figure(
        f"Apart serves more under {1e3 * crossing(TTFTS[0]):.1f} ms a gap when a first token may take "
        f"{1e3 * TTFTS[0]:.0f} ms, under "
        f"{1e3 * crossing(TTFTS[1]):.0f} when {1e3 * TTFTS[1]:.0f} (predicted)",
        x="every gap within (ms)",
        y="requests/s within both limits",
        log_x=True,
    )
    gaps = [k / 1e4 for k in range(75, 120)] + [k / 1e3 for k in range(12, 101)]
    rates = [[apart(gap)[0] for gap in gaps], *([together(gap, first) for gap in gaps] for first in TTFTS)]
    names = ["apart", *(f"together, TTFT ≤ {ms(first)} ms" for first in TTFTS)]
    looks = [(palette.orange, "solid"), (palette.blue, "solid"), (palette.blue, "dash")]
    for name, (color, dash), rate in zip(names, looks, rates, strict=True):
        line = {"color": color, "dash": dash, "shape": "hv"}
        fig.add_scatter(x=[1e3 * gap for gap in gaps], y=rate, mode="lines", line=line, name=name)
    fig.update_layout(showlegend=True)
    log_axis(fig, "x", [8, 10, 20, 50, 100])
    return fig


def goodput_text() -> str:
    """What the figure says; all of it from the model's numbers."""
    read, _, _, left = journey(CARD, READ, LINKS["network 400 Gbit/s"].bandwidth)
    busy = [apart(gap)[2] for gap in LIMITS]
    loose = (together(LIMITS[-1]), apart(LIMITS[-1])[0])
    writer = max(n / t / WRITE for n, t in enumerate(written(), 1) if t <= LIMITS[-1])
    return (
        f"- Apart, the first token comes after {ms(read + left)} ms under every limit on the gap that leaves room for "
        "an answer. Together, a tight limit on the gap forces small chunks, and these make the first token late: under "
        "both limits it serves nothing at the left edge of the figure.\n"
        f"- With both limits loose together serves more ({loose[0]:.1f} requests/s against {loose[1]:.1f} at "
        f"{ms(LIMITS[-1])} ms), mostly because a split must be a whole number of chips: with fractions of a chip apart "
        f"would serve {NUM_CHIPS / (read + 1 / writer):.1f}.\n"
        f"- There is no queue in all this. In the best splits the readers are busy {100 * min(busy):.0f} to "
        f"{100 * max(busy):.0f} % of the time: with random arrivals prompts would wait for them, along "
        "[chapter 3's curve](03_measuring.ipynb)."
    )
