"""What the appendix on chips shows: twelve chips for one model, units, levels of memory. All from data sheets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.hardware import CHIPS, LINKS, Chip, hourly, ridge
from lumen.pages.ch02 import RESERVE, Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

NAMES = ("T4", "L4", "A10G", "RTX 4090", "A100 40GB SXM", "A100 80GB PCIe", "A100 80GB SXM", "H100 SXM", "H200 "
"SXM", "B200",
         "MI300X", "TPU v6e")  # fmt: skip
MODEL, CONTEXT, LIMIT = CONFIGS["llama-3-8b"], 2048, 0.05  # served model, tokens a user, seconds a step


def form(chip: Chip) -> str:
    """The 16-bit format that the chip computes in."""
    return "bf16" if "bf16" in chip.flops else "fp16"


def served(name: str) -> dict[str, Any]:
    """What a chip gives for MODEL by its data sheet: bounds. None where the weights do not fit."""
    chip = CHIPS[name]
    fmt = form(chip)
    fits = chip.memory * (1 - RESERVE) > cost.weight_storage(MODEL, fmt)
    users = cost.max_batch(MODEL, chip, CONTEXT, LIMIT, fmt, reserve=RESERVE)
    alone = 1 / cost.predict_decode(MODEL, chip, CONTEXT, 1, fmt).seconds if fits else None
    price = None
    if chip.price_per_hour and users:
        step = cost.predict_decode(MODEL, chip, CONTEXT, users, fmt).seconds
        price = cost.cost_per_million_tokens(chip.price_per_hour, users / step)
    return {"chip": chip, "ridge": ridge(chip, fmt), "alone": alone, "users": users or None, "price": price}


def short(name: str) -> str:
    return name.replace(" SXM", "").replace(" ", "\u00a0")


def chips_table() -> Table:
    rows = []
    for name in NAMES:
        found = served(name)
        chip = found["chip"]
        alone = None if found["alone"] is None else f"{found['alone']:.0f}"
        memory = f"{chip.memory / 1e9:.0f} GB, {chip.bandwidth / 1e12:.2f} TB/s"
        rows.append([short(name), alone, found["users"], memory, f"{found['ridge']:.0f}"])
    return rows, ["chip", "tok/s, 1 user", "users at 50 ms", "memory, bandwidth", "ridge (FLOP/B)"], "lrrrr"


CHEAP, DEAR = "A10G", "H100 SXM"  # the two price tags of the prediction


def tags() -> str:
    """What the reader is asked to compare, before anything is said of the answer."""
    cheap, dear = hourly(CHEAP, DEAR).values()
    weights = cost.weight_storage(MODEL, form(CHIPS[DEAR])) / 1e9
    return (
        f"You serve Llama-3-8B in 16 bits, {weights:.0f} GB of weights, to users with {CONTEXT:,} tokens each, and "
        f"nobody may wait longer than {1e3 * LIMIT:.0f} ms for a token. An {CHEAP} has "
        f"{CHIPS[CHEAP].memory / 1e9:.0f} GB, reads {CHIPS[CHEAP].bandwidth / 1e12:.2f} TB/s and costs {cheap:.2f} "
        f"dollars an hour; an {short(DEAR)} has {CHIPS[DEAR].memory / 1e9:.0f} GB, reads "
        f"{CHIPS[DEAR].bandwidth / 1e12:.2f} TB/s and costs {dear:.2f}. Each takes as many users as fit in "
        f"{percent(1 - RESERVE)} of its memory, prompts not counted."
    )


def two_cards() -> tuple[dict[str, Any], dict[str, Any]]:
    """The cheap card and the dear one, served."""
    return served(CHEAP), served(DEAR)


def left(chip: Chip) -> float:
    """Bytes for caches: the memory less the reserve and the weights."""
    return chip.memory * (1 - RESERVE) - cost.weight_storage(MODEL, form(chip))


def hours(cheap: dict[str, Any], dear: dict[str, Any]) -> float:
    """The dear card's hour over the cheap one's."""
    return float(dear["chip"].price_per_hour / cheap["chip"].price_per_hour)


def tokens(cheap: dict[str, Any], dear: dict[str, Any]) -> float:
    """The dear card's tokens over the cheap one's."""
    return float(dear["price"] / cheap["price"])


def two_title(cheap: dict[str, Any], dear: dict[str, Any]) -> str:
    return f"{hours(cheap, dear):.2g} times the price of an hour, {tokens(cheap, dear):.2f} times that of a token"


def two_cards_story(cheap: dict[str, Any], dear: dict[str, Any]) -> str:
    """The factor between the two cards' tokens, taken apart: price, bandwidth, bytes that a token costs."""
    a, b = cheap["chip"], dear["chip"]
    read = [cost.weight_bytes(MODEL, form(c["chip"])) / c["users"] + cost.kv_bytes(MODEL, CONTEXT, 1, form(c["chip"]))
            for c in (cheap, dear)]  # fmt: skip
    price, bandwidth, bytes_each = (
        b.price_per_hour / a.price_per_hour,
        a.bandwidth / b.bandwidth,
        read[1] / read[0],
    )
    return (
        f"A million tokens cost {cheap['price']:.2f} dollars from the {short(a.name)} and {dear['price']:.3f} "
        f"from the {short(b.name)}: **{dear['price'] / cheap['price']:.2f} times as much**. The hour costs {price:.1f} "
        f"times. But the dear card reads {1 / bandwidth:.1f} times as fast, and each of its tokens needs less reading: "
        f"the weights leave {left(b) / 1e9:.0f} GB for caches there and {left(a) / 1e9:.1f} on the other (a tenth of "
        f"the "
        f"memory kept free), so {dear['users']} users share a reading of the weights against {cheap['users']}. With "
        f"its own cache a token takes {read[1] / 1e9:.2f} GB against {read[0] / 1e9:.2f}.\n\n"
        f"$$ \\underbrace{{{price:.2f}}}_{{\\text{{price}}}} \\times "
        f"\\underbrace{{{bandwidth:.2f}}}_{{\\text{{bandwidth}}}} \\times "
        f"\\underbrace{{{bytes_each:.2f}}}_{{\\text{{bytes a token}}}} = {price * bandwidth * bytes_each:.2f} $$"
    )


def priced() -> list[dict[str, Any]]:
    """The chips with a price that hold a batch, cheapest tokens first."""
    return sorted((s for s in map(served, NAMES) if s["price"]), key=lambda s: s["price"])


def room_figure() -> go.Figure:
    """Dollars per million tokens by the bytes that the weights leave for caches."""
    some = sorted(priced(), key=lambda s: (left(s["chip"]), s["price"]))
    first, last = some[0], some[-1]
    fig = figure(
        f"{left(first['chip']) / 1e9:.1f} GB left for caches: {first['price']:.2f} dollars a million tokens; "
        f"{left(last['chip']) / 1e9:.0f} GB: {last['price']:.3f}",
        x="memory left for caches (GB)",
        y="dollars per million tokens",
        log_x=True,
        log_y=True,
        height=380,
    )
    x, y = [left(s["chip"]) / 1e9 for s in some], [s["price"] for s in some]
    fig.add_scatter(
        x=x, y=y, mode="markers", marker={"color": palette.blue, "size": 11},
        customdata=[[short(s["chip"].name), s["users"], s["chip"].price_per_hour] for s in some],
        hovertemplate="%{customdata[0]}: %{customdata[1]} users, %{customdata[2]:.2f} dollars an hour<extra></extra>",
    )  # fmt: skip
    above: dict[float, int] = {}
    for s, gb, price in zip(some, x, y, strict=True):
        above[gb] = above.get(gb, -1) + 1  # chips with the same room stand in a column
        anchor, name = ("left", "\u2002{}") if gb < 20 else ("right", "{}\u2002")
        label_line(
            fig,
            gb,
            price,
            name.format(short(s["chip"].name)),
            palette.grey,
            anchor=anchor,
            shift=8 * above[gb] - 4,
        )
    log_axis(fig, "x", [5, 10, 20, 50, 100, 200])
    log_axis(fig, "y", [0.05, 0.1, 0.2, 0.5])
    return fig


def left_out_text() -> str:
    """What the bound has no line for where it misses by over a third, after the published set-ups."""
    from lumen.cost.published import THIRD, misses
    from lumen.explore.figures.published import left_out

    rows = misses()
    far = sum(abs(row.signed) > THIRD for row in rows)
    reasons = "\n".join(f"- {reason} ({n} of {far})" for reason, n in left_out(rows) if n > 3)
    return (
        f"For {far} of {len(rows)} the bound is over a third too short (`measured / bound` above 1.5). What it has "
        "no line for there, most frequent first, after the published set-ups (one may have several); which of them "
        "took the time, no experiment here can tell:\n\n"
        f"{reasons}"
    )


def asked(chip: Chip) -> str:
    """What vendors asked on the day that `price_source` names, or a dash."""
    found = re.search(r"Asked on 7 May 2026: (.*)$", chip.price_source)
    return found[1] if found else "–"


def prices_table() -> Table:
    rows = [
        [short(s["chip"].name), f"{s['price']:.3f}", f"{s['chip'].price_per_hour:.2f}", asked(s["chip"])]
        for s in priced()
    ]
    return rows, ["chip", "$ per M tokens", "$/hour, our estimate", "asked on 7 May 2026"], "lrrl"


def unpriced() -> str:
    """Why a chip is missing from the table of prices, and when its order would change."""
    first, second = priced()[:2]
    turn = second["price"] / first["price"] * first["chip"].price_per_hour / second["chip"].price_per_hour
    none = [name for name in NAMES if not CHIPS[name].price_per_hour]
    small = [name for name in NAMES if CHIPS[name].price_per_hour and not served(name)["users"]]
    unlike = f" Not in the table: {', '.join(none)} (no price was read)"
    return (
        "The prices per hour are estimates of mid-2025 for one chip on demand, made to reckon with; beside them what "
        "Lambda and Modal asked on 7 May 2026 "
        "([read here](https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/)). "
        f"{short(first['chip'].name)} leads {short(second['chip'].name)} while its hour costs less than {turn:.2f} "
        f"times as much.{unlike}; {', '.join(small)} (no batch fits and keeps {1e3 * LIMIT:.0f} ms)."
    )


def reading() -> str:
    """What the two tables show, from the same numbers."""
    found = {name: served(name) for name in NAMES}
    fastest = max((n for n in NAMES if found[n]["alone"]), key=lambda n: found[n]["alone"])
    a100s = [found[n]["ridge"] for n in NAMES if n.startswith("A100")]
    a, h = found["A100 80GB SXM"], found["H100 SXM"]
    return (
        f"All of it is predicted for Llama-3-8B in 16 bits with {CONTEXT:,} tokens per user, by the two clocks "
        "of [chapter 2](02_roofline.ipynb): bounds, no promises. A tenth of the memory is kept free. A dash: "
        "the weights do not fit, or no batch keeps 50 ms. Four questions to ask it:\n\n"
        "- **Does it fit?** Weights and caches first: capacity decides what can run at all, and how many "
        "users share a step.\n"
        f"- **How fast for one user?** By bandwidth. The FLOP/s do not appear in that column; {fastest} leads "
        f"it with {found[fastest]['chip'].bandwidth / 1e12:.1f} TB/s.\n"
        f"- **How many users?** An A100 with 80 GB holds {a['users']} and an H100 {h['users']}, with "
        f"{h['chip'].peak() / a['chip'].peak():.1f} times the FLOP/s: both have 80 GB.\n"
        "- **How cheap?** By bandwidth per dollar, and by room: the more users, the more share a reading of the "
        "weights ([the prediction](#predict-two-price-tags)).\n\n"
        "Two traps in data sheets. Headline FLOP/s often assume [2:4](../book/glossary.md#term-2-4) sparsity, "
        "which ordinary "
        'weights do not have: halve them, as these tables do. And "the A100" is four products: the ridges of '
        f"the three here are {min(a100s):.0f} to {max(a100s):.0f}. The 156 that one often reads divides 312 "
        "TFLOP/s by 2.0 TB/s."
    )


def roofs(chip: Chip, dtype: str) -> go.Figure:
    """The roof of the machine that runs the page beside those of an L4 and an H100."""
    rows = [
        (chip, dtype, palette.orange),
        (CHIPS["L4"], "bf16", palette.green),
        (CHIPS["H100 SXM"], "bf16", palette.blue),
    ]
    at = [ridge(one, fmt) for one, fmt, _ in rows]
    fig = figure(
        f"The ridge: at {at[0]:.0f} FLOP per byte here, at {at[1]:.0f} on an L4, at {at[2]:.0f} on an H100",
        x="arithmetic intensity (FLOP per byte)",
        y="roof (FLOP/s)",
        height=340,
    )
    log_axis(fig, "x", [1, 10, 100, 1000])
    log_axis(fig, "y", [10.0**k for k in range(10, 16)])
    for (one, fmt, color), corner in zip(rows, at, strict=True):
        corners = [0.3, corner, 3000]
        fig.add_scatter(
            x=corners, y=[cost.roofline(x, one, fmt) for x in corners], mode="lines", line_color=color
        )
        fig.add_scatter(x=[corner], y=[one.peak(fmt)], mode="markers", marker={"color": color, "size": 10})
        name = "this machine" if one is chip else one.name  # not measured
        label_line(fig, 3000, one.peak(fmt), f"{name}, {fmt}", color)
    return fig


def units() -> str:
    a, h = CHIPS["A100 80GB SXM"], CHIPS["H100 SXM"]
    return (
        f"On an A100 the vector units reach {a.peak('fp32') / 1e12:.1f} TFLOP/s in fp32 and the tensor cores "
        f"{a.peak('bf16') / 1e12:.0f} in bf16, {a.peak('bf16') / a.peak('fp32'):.0f} times as much; on an H100 "
        f"it is {h.peak('bf16') / h.peak('fp32'):.0f} times: a factor of 2 is the width of the numbers, the rest the "
        "kind of unit. An operator that is no matrix product does not see the high roof."
    )


def levels() -> Table:
    """An H100's memories, from the nearest to the farthest. Sizes: NVIDIA's Hopper tuning guide and white paper."""
    h, link, bus = CHIPS["H100 SXM"], LINKS["NVLink 4"], LINKS["PCIe 5.0 x16"]
    rows = [
        ["registers", "256 KB per SM, 33 MB in all", "the tile that is being multiplied"],
        ["shared memory, L1", "up to 228 KB per SM", "the next tiles; scores of FlashAttention (chapter 11)"],
        ["L2", "50 MB", "activations of a decode step"],
        [
            "HBM3",
            f"{h.memory / 1e9:.0f} GB at {h.bandwidth / 1e12:.2f} TB/s",
            "weights, KV cache: *the* bandwidth of chapter 2",
        ],
        [
            "another GPU, NVLink",
            f"{link.bandwidth / 1e9:.0f} GB/s each way",
            "partial sums of sharded weights",
        ],
        ["the host, PCIe 5 × 16", f"{bus.bandwidth / 1e9:.0f} GB/s each way", "caches that were swapped out"],
    ]
    return rows, ["level", "size or rate", "what lives there"], "lll"
