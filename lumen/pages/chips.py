"""What the appendix on chips shows: twelve chips for one model, units, levels of memory. All from data sheets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.hardware import CHIPS, LINKS, Chip, ridge
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
    return rows, ["chip", "tok/s, 1 user", "users at 50 ms", "memory", "ridge"], "lrrrr"


def left_out_text() -> str:
    """What the bound has no line for where it misses by over a third, after the published set-ups."""
    from lumen.cost.published import THIRD, misses
    from lumen.explore.figures.published import left_out

    rows = misses()
    far = sum(abs(row.signed) > THIRD for row in rows)
    reasons = "\n".join(f"- {reason} ({n} of {far})" for reason, n in left_out(rows) if n > 3)
    return (
        f"For {far} of {len(rows)} the bound is off by more than a third. What it has no line for there, most "
        "frequent first, after the published set-ups; which of them took the time, no experiment here can tell:\n\n"
        f"{reasons}"
    )


def asked(chip: Chip) -> str:
    """What vendors asked on the day that `price_source` names, or a dash."""
    found = re.search(r"Asked on 7 May 2026: (.*)$", chip.price_source)
    return found[1] if found else "–"


def prices_table() -> Table:
    priced = sorted((s for s in map(served, NAMES) if s["price"]), key=lambda s: s["price"])
    rows = [
        [short(s["chip"].name), f"{s['price']:.3f}", f"{s['chip'].price_per_hour:.2f}", asked(s["chip"])]
        for s in priced
    ]
    return rows, ["chip", "$ per M tokens", "$/hour, our estimate", "asked on 7 May 2026"], "lrrl"


def reading() -> str:
    """What the two tables show, from the same numbers."""
    found = {name: served(name) for name in NAMES}
    fastest = max((n for n in NAMES if found[n]["alone"]), key=lambda n: found[n]["alone"])
    a100s = [found[n]["ridge"] for n in NAMES if n.startswith("A100")]
    a, h = found["A100 80GB SXM"], found["H100 SXM"]
    first, second = sorted((s for s in found.values() if s["price"]), key=lambda s: s["price"])[:2]
    turn = second["price"] / first["price"] * first["chip"].price_per_hour
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
        "- **How cheap?** By bandwidth and capacity per dollar. The order below stands on our estimates of "
        f"mid-2025. It is {first['chip'].name} before {second['chip'].name}, until the first costs {turn:.2f} "
        "dollars an hour.\n\n"
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
        f"it is {h.peak('bf16') / h.peak('fp32'):.0f} times. An operator that is no matrix product does not "
        "see the high roof."
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
