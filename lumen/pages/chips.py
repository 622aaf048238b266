"""What the appendix on chips shows: twelve chips for one model, units, levels of memory. All from data sheets."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import NoEvidence, load_evidence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.prose.show import table_markdown
from lumen.hardware import CHIPS, LINKS, Chip, hourly, ridge
from lumen.pages.ch02 import MISSING, RESERVE, Table

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
    step = cost.predict_decode(MODEL, chip, CONTEXT, users, fmt) if users else None
    price = None
    if step and chip.price_per_hour:
        price = cost.cost_per_million_tokens(chip.price_per_hour, users / step.seconds)
    room = cost.max_users(chip.memory, MODEL, CONTEXT, fmt, fmt, RESERVE) if fits else 0
    return {
        "chip": chip, "ridge": ridge(chip, fmt), "alone": alone, "users": users or None, "room": room, "step": step,
        "price": price,
    }  # fmt: skip


def short(name: str) -> str:
    """The chip's name on one line."""
    return name.replace(" ", "\u00a0")


def chips_table() -> Table:
    rows = []
    for name in NAMES:
        found = served(name)
        chip, step = found["chip"], found["step"]
        alone = None if found["alone"] is None else f"{found['alone']:.{found['alone'] < 100:d}f}"
        users = f"{found['users']}, {1e3 * step.seconds:.0f} ms" if step else None  # not measured
        memory = f"{chip.memory / 1e9:.0f} GB, {chip.bandwidth / 1e12:.2f} TB/s"
        rows.append([short(name), alone, users, memory, f"{found['ridge']:.0f}"])
    return (
        rows,
        ["chip", "tok/s, 1 user", "most users, a step", "memory, bandwidth", "ridge (FLOP/B)"],
        "lrrrr",
    )


CHEAP, DEAR = "A10G", "H100 SXM"  # the two price tags of the prediction


def tags() -> str:
    """What the reader is asked to compare, before anything is said of the answer."""
    cheap, dear = hourly(CHEAP, DEAR).values()
    fmt = form(CHIPS[DEAR])
    weights, read, cache = (
        n / 1e9
        for n in (
            cost.weight_storage(MODEL, fmt),
            cost.weight_bytes(MODEL, fmt),
            cost.kv_bytes(MODEL, CONTEXT, 1, fmt),
        )
    )
    share = percent(1 - RESERVE).replace(" ", "\u00a0")
    return (
        f"You serve Llama-3-8B in 16 bits to users with {CONTEXT:,} tokens each, and nobody may wait longer than "
        f"{1e3 * LIMIT:.0f} ms for a token. The weights are {weights:.1f} GB, of which a step reads {read:.1f}: of "
        f"the input embedding it takes a row per token. A user's cache is {cache:.2f} GB. An {CHEAP} has "
        f"{CHIPS[CHEAP].memory / 1e9:.0f} GB, reads {CHIPS[CHEAP].bandwidth / 1e12:.2f} TB/s and costs {cheap:.2f} "
        f"dollars an hour; an {short(DEAR)} has {CHIPS[DEAR].memory / 1e9:.0f} GB, reads "
        f"{CHIPS[DEAR].bandwidth / 1e12:.2f} TB/s and costs {dear:.2f}. Each takes as many users as fit in "
        f"{share} of its memory, prompts not counted, and does what its data sheet allows."
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
    token = f"{tokens(cheap, dear):.2f} times that of a token, by data-sheet bounds"
    return f"{hours(cheap, dear):.2g} times the price of an hour, {token}"


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
        f"A million tokens cost at least {cheap['price']:.2f} dollars from the {short(a.name)} and at least "
        f"{dear['price']:.2f} from the {short(b.name)} (data-sheet bounds, nobody's measurement): "
        f"**{dear['price'] / cheap['price']:.2f} times as much**. The hour costs {price:.1f} times. But the dear card "
        f"reads {1 / bandwidth:.1f} times as fast, and each of its tokens needs less reading: "
        f"the weights leave {left(b) / 1e9:.0f} GB for caches there and {left(a) / 1e9:.1f} on the other (a tenth of "
        f"the "
        f"memory kept free), so {dear['users']} users share a reading of the weights, not {cheap['users']}. With "
        f"its own cache a token takes {read[1] / 1e9:.2f} GB against {read[0] / 1e9:.2f}.\n\n"
        f"$$ \\underbrace{{{price:.2f}}}_{{\\text{{price}}}} \\times "
        f"\\underbrace{{{bandwidth:.2f}}}_{{\\text{{bandwidth}}}} \\times "
        f"\\underbrace{{{bytes_each:.2f}}}_{{\\text{{bytes a token}}}} = {price * bandwidth * bytes_each:.2f} $$"
    )


def priced() -> list[dict[str, Any]]:
    """The chips with a price that hold a batch, cheapest tokens first."""
    return sorted((s for s in map(served, NAMES) if s["price"]), key=lambda s: s["price"])


def room_figure() -> go.Figure:
    """Dollars per million tokens by the bytes that the weights leave for caches.

    Room alone does not set the price: the title takes the step from CHEAP to DEAR apart.
    """
    cheap, dear = two_cards()
    rate = hours(cheap, dear) * cheap["chip"].bandwidth / dear["chip"].bandwidth
    some = sorted(priced(), key=lambda s: (left(s["chip"]), s["price"]))
    fig = figure(
        f"A token of the {short(DEAR)} costs {percent(tokens(cheap, dear))} of the {short(CHEAP)}'s: "
        f"÷ {rate / tokens(cheap, dear):.1f} by room, ÷ {1 / rate:.1f} by bandwidth per dollar",
        x="memory left for caches (GB)",
        y="least dollars per million tokens",
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
    """Which peak an RTX is held to, and what the bound has no term for where it misses by over a third."""
    from lumen.cost.published import THIRD, misses
    from lumen.explore.figures.published import left_out

    rows = misses()
    far = sum(abs(row.signed) > THIRD for row in rows)
    reasons = "\n".join(f"- {reason} ({n} of {far})" for reason, n in left_out(rows) if n > 3)
    new, old = (CHIPS[name].peak("fp16") / 1e12 for name in ("RTX 4090", "RTX 3090"))
    return (
        f"Both RTX cards are held to their peak with sums in fp32, {new:.0f} TFLOP/s (4090) and {old:.0f} (3090): the "
        "other chips reach their 16-bit peaks with such sums, these two are twice as fast with sums in fp16. Apple "
        "prints no peak, so ours is an estimate, and what prefill on these chips is divided by is no data sheet's.\n\n"
        f"In {far} of {len(rows)} measurements the bound is over a third too short (`measured / bound` above 1.5). "
        "It has no term for the following, by the number of such measurements that each applies to (several may "
        "apply to one); which of them took the time, no experiment here can tell:\n\n"
        f"{reasons}"
    )


def asked(chip: Chip) -> str:
    """What vendors asked on the day that `price_source` names, or a dash."""
    found = re.search(r"Asked on 7 May 2026: (.*)$", chip.price_source)
    return found[1] if found else "–"


def asked_dollars(chip: Chip) -> list[float]:
    """The prices in `asked`. [dollars an hour]"""
    return [float(price) for price in re.findall(r"\d+\.\d\d", asked(chip))]


def at_asked(found: dict[str, Any]) -> list[float]:
    """A million tokens at each asked price: it goes with the price of the hour. [dollars]"""
    chip = found["chip"]
    return [found["price"] * dollars / chip.price_per_hour for dollars in asked_dollars(chip)]


def prices_table() -> Table:
    rows = []
    for s in priced():
        dollars = dict.fromkeys(f"{price:.2f}" for price in at_asked(s))
        rows.append(
            [short(s["chip"].name), f"{s['price']:.2f}", " to ".join(dollars) or "–",
             f"{s['chip'].price_per_hour:.2f}", asked(s["chip"])]
        )  # fmt: skip
    return rows, ["chip", "$ per M tokens", "at the asked price", "$/hour, estimate", "asked"], "lrrrl"


def tiers(some: list[dict[str, Any]], factor: float) -> list[list[dict[str, Any]]]:
    """Chips by price, parted wherever the next is dearer by more than `factor`: the order that the error leaves."""
    groups = [[some[0]]]
    for before, after in itertools.pairwise(some):
        if after["price"] / before["price"] > factor:
            groups.append([])
        groups[-1].append(after)
    return groups


def price_error(some: list[dict[str, Any]]) -> tuple[float, float]:
    """Least and most of asked over estimated price."""
    off = [dollars / s["chip"].price_per_hour for s in some for dollars in asked_dollars(s["chip"])]
    return min(off), max(off)


def unpriced() -> str:
    """Which ranks survive the prices' own error, and why a chip is missing from the table."""
    some = priced()
    low, high = price_error(some)
    groups = [", ".join(short(s["chip"].name) for s in group) for group in tiers(some, high / low)]
    none = [short(name) for name in NAMES if not CHIPS[name].price_per_hour]
    small = [short(name) for name in NAMES if CHIPS[name].price_per_hour and not served(name)["users"]]
    return (
        "Bounds at prices. The hours are estimates of mid-2025 for one chip on demand; beside them what Lambda and "
        "Modal asked on 7 May 2026 "
        "([read here](https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/)), "
        f"{low:.2f} to {high:.2f} times our estimates (the others are taken to be no further off). So two "
        f"chips less than {high / low:.2f} times apart may change "
        f"places. The ranks that survive: **{' < '.join(f'({group})' for group in groups)}**; within brackets there "
        f"is no order. Not in the table: {', '.join(none)} (no price was read); {', '.join(small)} (the weights do "
        f"not fit, or one user's step takes over {1e3 * LIMIT:.0f} ms)."
    )


def why_cheap() -> str:
    """What sets the price of a token: bandwidth per dollar, room, and past the ridge FLOP/s."""
    a, h = served("A100 80GB SXM"), served("H100 SXM")
    fmt, batch = form(a["chip"]), a["users"]
    per = [s["chip"].bandwidth / 1e9 / s["chip"].price_per_hour for s in (a, h)]
    parts = a["step"].parts
    matrices = sum(parts[name] for name in ("projections", "mlp", "head"))
    reading = cost.weight_bytes(MODEL, fmt) / a["chip"].bandwidth
    past = [
        f"{short(name)} ({s['users']} > {s['ridge']:.0f})"
        for name, s in ((name, served(name)) for name in NAMES)
        if s["users"] and s["users"] > s["ridge"] and not name.startswith("A100")
    ]
    group = MODEL.num_heads / MODEL.num_kv_heads
    return (
        "By bandwidth per dollar, by room (the more users, the more share a reading of the weights, "
        "[the prediction](#predict-two-price-tags)), and past the ridge (users > ridge) by FLOP/s: the A100 has more "
        f"bandwidth per dollar than the H100 ({per[0]:,.0f} GB/s for a dollar an hour, not {per[1]:,.0f}), has the "
        f"same room, and still loses at our prices. Its {batch} users are past its ridge of {a['ridge']:.0f}: the "
        f"matrices take {1e3 * matrices:.1f} ms of arithmetic where reading them takes {1e3 * reading:.1f}, and the "
        f"caches {1e3 * parts['attention']:.1f} more. Past theirs, too: {', '.join(past)}. That [chapter "
        f"2](02_roofline.ipynb) counts {cost.step_intensity(MODEL, h['users'], CONTEXT):.0f} FLOP/B for a whole step "
        "of such a batch, far below any ridge, is no contradiction: matrices and caches are separate terms of the sum, "
        f"one at about {batch} FLOP/B, one at {group:.0f}, and each is held to the ridge alone."
    )


def reading() -> str:
    """What the two tables show, from the same numbers."""
    found = {name: served(name) for name in NAMES}
    fastest = max((n for n in NAMES if found[n]["alone"]), key=lambda n: found[n]["alone"])
    a100s = [found[n]["ridge"] for n in NAMES if n.startswith("A100")]
    a, h = found["A100 80GB SXM"], found["H100 SXM"]
    slow = [name for name in NAMES if found[name]["room"] > (found[name]["users"] or 0)]
    steps = [1e3 * s["step"].seconds for s in found.values() if s["step"]]
    return (
        f"All of it is predicted for Llama-3-8B in 16 bits with {CONTEXT:,} tokens per user, by the two clocks "
        "of [chapter 2](02_roofline.ipynb): bounds, no promises. A tenth of the memory is kept free. A dash: "
        f"the weights do not fit, or no batch keeps {1e3 * LIMIT:.0f} ms. That limit decides only "
        f"{', '.join(map(short, slow))}: every other chip that holds the weights is full when a step takes "
        f"{min(steps):.0f} to {max(steps):.0f} ms. Four questions to ask it:\n\n"
        "- **Does it fit?** Weights and caches first: capacity decides what can run at all, and how many "
        "users share a step.\n"
        f"- **How fast for one user?** By bandwidth. The FLOP/s do not appear in that column; {fastest} leads "
        f"it with {found[fastest]['chip'].bandwidth / 1e12:.1f} TB/s.\n"
        f"- **How many users?** An A100 with 80 GB holds {a['users']} and an H100 {h['users']}, with "
        f"{h['chip'].peak() / a['chip'].peak():.1f} times the FLOP/s: both have 80 GB.\n"
        f"- **How cheap?** {why_cheap()}\n\n"
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
    low = CHIPS["H100 SXM"].peak("fp32")
    fig.add_scatter(
        x=[ridge(CHIPS["H100 SXM"], "fp32"), 3000], y=[low, low], mode="lines",
        line={"color": palette.blue, "dash": "dash"},
    )  # fmt: skip
    label_line(fig, 3000, low, "H100 SXM, vector units, fp32", palette.blue, shift=-11)
    return fig


def units() -> str:
    a, h, small = CHIPS["A100 80GB SXM"], CHIPS["H100 SXM"], CHIPS["L4"]
    return (
        f"On an A100 the vector units reach {a.peak('fp32') / 1e12:.1f} TFLOP/s in fp32 and the tensor cores "
        f"{a.peak('bf16') / 1e12:.0f} in bf16, {a.peak('bf16') / a.peak('fp32'):.0f} times as much; on an H100 "
        f"it is {h.peak('fp32') / 1e12:.1f} and {h.peak('bf16') / 1e12:.0f}, "
        f"{h.peak('bf16') / h.peak('fp32'):.0f} times: a factor of 2 is the width of the numbers, the rest the "
        "kind of unit. An operator that is no matrix product stands under the dashed roof, not under the high one.\n\n"
        f"The small L4 has a ridge of {ridge(small):.0f}, above the H100's {ridge(h):.0f}, because its memory is of "
        f"another kind: it has {h.peak() / small.peak():.0f} times fewer FLOP/s but "
        f"{h.bandwidth / small.bandwidth:.0f} times fewer bytes a second. A100 and later "
        "of its class, MI300X and the TPUs carry [HBM](../book/glossary.md#term-HBM), stacked beside the chip on "
        "thousands of wires; T4, L4, A10G and the RTX cards carry GDDR6 or GDDR6X, around it on a few hundred: "
        "cheaper, and slower."
    )


L2_CLOCK = (
    5120  # bytes a clock from L2; 128 a clock and SM from shared memory: the article's table 3, see `levels`
)
SMS, LANES = 132, 128  # SMs of an H100 SXM, fp32 lanes of each


def levels() -> Table:
    """An H100's memories, from the nearest to the farthest. Sizes: NVIDIA's Hopper tuning guide and white paper.

    Rates inside the chip: bytes a clock times the clock that the fp32 peak implies. A lane's multiply-add reads three
    operands of 4 bytes; shared memory and L2: https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015 (2023).
    """
    h, link, bus = CHIPS["H100 SXM"], LINKS["NVLink 4"], LINKS["PCIe 5.0 x16"]
    clock = h.peak("fp32") / (SMS * LANES * 2)
    inner = (SMS * LANES * 3 * 4 * clock, SMS * 128 * clock, L2_CLOCK * clock)
    rates = [f"{rate / 1e12:.0f} TB/s" for rate in inner]
    rows = [
        ["registers", "256 KB per SM, 33 MB in all", rates[0], "the tile that is being multiplied"],
        ["shared memory, L1", "up to 228 KB per SM", rates[1], "the next tiles; FlashAttention's scores (ch. 11)"],
        ["L2", "50 MB", rates[2], "activations of a decode step"],
        ["HBM3", f"{h.memory / 1e9:.0f} GB", f"{h.bandwidth / 1e12:.2f} TB/s",
         "weights, KV cache: *the* bandwidth of chapter 2"],
        ["another GPU, NVLink", "its memory", f"{link.bandwidth / 1e9:.0f} GB/s each way",
         "partial sums of sharded weights"],
        ["the host, PCIe 5 × 16", "its memory", f"{bus.bandwidth / 1e9:.0f} GB/s each way",
         "caches that were swapped out"],
    ]  # fmt: skip
    return rows, ["level", "size", "rate", "what lives there"], "llll"


def forecast() -> str:
    """The signed misses of the published grid; in brackets those that the spread of the measurement may explain."""
    try:
        record = load_evidence("cost_model")
    except NoEvidence:
        return MISSING
    cells = record["data"]["cells"]
    found = {(c["phase"], c["context"], c["batch"]): c for c in cells}
    batches = sorted({c["batch"] for c in cells})
    lines = sorted({key[:2] for key in found}, key=lambda key: (key[0] != "prefill", key[1]))
    rows = [[f"{p}, {n:,}", *(_miss(found[p, n, b]) for b in batches)] for p, n in lines]
    table = table_markdown(
        rows, ["pass, context", *(f"batch {b}" for b in batches)], "l" + "r" * len(batches)
    )
    counts = []
    for phase in ("prefill", "decode"):
        some = [c for c in cells if c["phase"] == phase]
        short_by, long_by = (
            sum(sure(c) and (c["signed"] < 0) is side for c in some) for side in (True, False)
        )
        worst = max((abs(c["signed"]) for c in some if sure(c)), default=0.0)
        sides = f"too short in {short_by}, too long in {long_by} of {len(some)}"
        counts.append(f"{phase} {sides}, by {percent(worst)} at most")
    return (
        f"{table}\n\nIn brackets: the interval of the miss contains 0. **Outside: "
        f"{'; '.join(counts)}.** Measured {record['date']}: {record['cpu']}, {record['threads']} threads."
    )


def sure(cell: dict[str, Any]) -> bool:
    """Whether the miss's interval excludes 0."""
    return bool(cell["signed_low"] * cell["signed_high"] > 0)


def _miss(cell: dict[str, Any]) -> str:
    text = percent(cell["signed"], signed=True)
    return text if sure(cell) else f"({text})"
