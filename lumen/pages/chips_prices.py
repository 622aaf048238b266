"""Whose tokens are cheaper when prices and bounds are as unsure as they are: ranges, and the order they leave."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from lumen.cost.published import THIRD, misses
from lumen.explore.figures.published import left_out
from lumen.explore.figures.theme import figure, log_axis, palette
from lumen.hardware import CHIPS, Chip
from lumen.pages.ch02 import Table
from lumen.pages.chips import CHEAP, DEAR, LIMIT, NAMES, listed, priced, served, short, two

if TYPE_CHECKING:
    import plotly.graph_objects as go


def left_out_text() -> str:
    """What the bound has no term for where it misses by over a third, and two yardsticks that are soft."""
    rows = misses()
    far = sum(abs(row.signed) > THIRD for row in rows)
    most = "; ".join(f"{reason} ({n})" for reason, n in left_out(rows)[:4])
    return (
        f"In {far} of {len(rows)} the program took over 1.5 times the bound. The bound has no term for much that a "
        f"program does. By how many of the {far} a thing applies to (several may apply to one): {most}. Which of them "
        "took the time, no experiment here can tell.\n\n"
        "The two RTX cards are held to their peaks with sums in fp32, as the other chips are; Apple's peaks are our "
        "estimates."
    )


# how far off an hour and a bound may be -----------------------------------------------------------
def asked(chip: Chip) -> list[float]:
    """What vendors asked on the day that `price_source` names. [dollars an hour]"""
    found = re.search(r"Asked on 7 May 2026: (.*)$", chip.price_source)
    return [float(price) for price in re.findall(r"\d+\.\d\d", found[1])] if found else []


def hour_error() -> float:
    """The largest factor between an estimated hour and one that was asked."""
    pairs = [(p, chip.price_per_hour) for chip in CHIPS.values() if chip.price_per_hour for p in asked(chip)]
    return max(max(p / own, own / p) for p, own in pairs)


def hour_range(chip: Chip) -> tuple[float, float]:
    """Between our estimate and what was asked; the largest factor either way where nothing was. [dollars]"""
    own, seen = chip.price_per_hour or 0.0, asked(chip)
    if seen:
        return min(own, *seen), max(own, *seen)
    return own / hour_error(), own * hour_error()


def miss_range(name: str) -> tuple[float, float, int]:
    """Measured over bound on one such chip, prefill apart: least, most, how many. All chips' range where none was."""
    rows = [r for r in misses() if r.measurement.chips == 1 and r.measurement.phase != "prefill"]
    own = [r.ratio for r in rows if r.measurement.chip == name]
    some = own or [r.ratio for r in rows]
    return min(some), max(some), len(own)


def span(found: dict[str, Any]) -> tuple[float, float]:
    """A million tokens on a chip with both errors. [dollars]"""
    chip = found["chip"]
    (cheap, dear), (near, far, _) = hour_range(chip), miss_range(chip.name)
    per_hour = found["price"] / chip.price_per_hour
    return per_hour * cheap * near, per_hour * dear * far


def kept(spans: dict[str, tuple[float, float]]) -> dict[str, list[str]]:
    """Of each chip the ones that are cheaper at both ends of both ranges; chips without any are left out."""
    found = {
        dear: [name for name, (_, high) in spans.items() if high < low] for dear, (low, _) in spans.items()
    }
    return {dear: names for dear, names in found.items() if names}


def unmeasured() -> list[str]:
    """Chips of the table of which no published measurement was read."""
    return [name for name in NAMES if not any(r.measurement.chip == name for r in misses())]


# what the page shows ------------------------------------------------------------------------------
def _spans() -> dict[str, tuple[float, float]]:
    return {s["chip"].name: span(s) for s in priced()}


def pairs() -> tuple[int, int]:
    """How many pairs keep their order, and how many there are."""
    spans = _spans()
    return sum(map(len, kept(spans).values())), len(spans) * (len(spans) - 1) // 2


def ranges_figure() -> go.Figure:
    """Dollars per million tokens, chip by chip: the bound at our price, and the range of both errors."""
    sure, every = pairs()
    some = priced()
    fig = figure(
        f"Of {every} pairs of chips {sure} keep their order",
        x="dollars per million tokens",
        y="chip",
        height=360,
        log_x=True,
    )
    diamond = {"color": palette.grey, "symbol": "diamond", "size": 11, "line": {"color": "white", "width": 1}}
    for s in some:
        name, (low, high) = s["chip"].name, span(s)
        own = miss_range(name)[2]
        color = palette.blue if own else palette.orange
        label = short(name) if own else f"{short(name)}<br>not measured"
        fig.add_scatter(
            x=[low, high],
            y=[label, label],
            mode="lines",
            line={"color": color, "width": 7},
            hovertemplate="%{x:.2g} dollars<extra></extra>",
        )
        fig.add_scatter(
            x=[s["price"]], y=[label], mode="markers", marker=diamond,
            hovertemplate="bound at our price: %{x:.2g}<extra></extra>",
        )  # fmt: skip
    log_axis(fig, "x", [0.1, 0.2, 0.5, 1, 2])
    fig.update_xaxes(range=[math.log10(0.055), math.log10(3)])
    fig.update_yaxes(title_text=None, type="category", autorange="reversed")
    return fig


def ranks() -> str:
    """Which orders the two errors leave, and which chips nothing is known of."""
    spans = _spans()
    orders = "; ".join(f"{short(dear)} dearer than {listed(names)}" for dear, names in kept(spans).items())
    none = [name for name in NAMES if not CHIPS[name].price_per_hour]
    small = [name for name in NAMES if CHIPS[name].price_per_hour and not served(name)["users"]]
    sure, every = pairs()
    least, most = (spans[CHEAP][i] / spans[DEAR][1 - i] for i in (0, 1))
    return (
        f"**What survives within these ranges, {sure} of {every}: {orders or 'nothing'}.** Every other order could "
        f"turn. The prediction's answer stands, if not its number: a token of the {short(CHEAP)} costs {two(least)} to "
        f"{two(most)} times one of the {short(DEAR)}.\n\n"
        f"{listed(unmeasured())} have no published measurement here at all. Not in the figure: "
        f"{listed(none)}, of which no price was read, and {listed(small)}, which hold no batch that is in time "
        f"({1e3 * LIMIT:.0f} ms)."
    )


def errors() -> str:
    """Where the two errors come from, before the ranges are drawn."""
    low, high, _ = miss_range("")
    return (
        "The grey diamond is the bound at our price. Two things are unsure about it.\n\n"
        "- *The hour.* Ours is an estimate of mid-2025, one chip on demand. Where Modal or Lambda named a price on 7 "
        "May 2026 ([prices](https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/)) "
        f"it reaches from ours to theirs, elsewhere {two(hour_error())} times either way, the most that they differ.\n"
        f"- *The bound.* On one chip, published decode steps and answers took {low:.1f} to {high:.1f} times theirs. A "
        "chip that was measured (blue) gets its own range, another (orange) all of that."
    )


def prices_table() -> Table:
    rows = []
    for s in priced():
        chip = s["chip"]
        near, far, n = miss_range(chip.name)
        seen = " and ".join(dict.fromkeys(map(two, asked(chip))))
        rows.append([
            short(chip.name), " to ".join(map(two, span(s))), two(s["price"]),
            two(chip.price_per_hour) + (f" (asked: {seen})" if seen else ""),
            f"{near:.1f} to {far:.1f} ({n})" if n else "not measured",  # not measured: whether a row is there
        ])  # fmt: skip
    return rows, ["chip", "$ per M tokens", "bound", "$ an hour", "measured / bound (how many)"], "lrrrr"
