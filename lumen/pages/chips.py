"""What the appendix on chips reads off data sheets: two price tags, twelve chips for one model, a full chip.

Vendors' prices: `chips_prices`. Roofs, units, levels of memory: `chips_roofs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import NoEvidence, load_evidence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.prose.show import table_markdown
from lumen.hardware import CHIPS, Chip, ridge
from lumen.pages.ch02 import MISSING, RESERVE, Table
from lumen.pages.forecasts import sides, sure

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


def listed(names: list[str]) -> str:
    """Chips in a sentence: "A, B and C"."""
    *some, last = map(short, names)
    return f"{', '.join(some)} and {last}" if some else last


def two(value: float) -> str:
    """Two significant digits: no price here is known better."""
    return f"{value:#.2g}".rstrip(".")


# two price tags -----------------------------------------------------------------------------------
CHEAP, DEAR = "A10G", "H100 SXM"


def tags() -> str:
    """What the reader is asked to compare, and by which rule, before anything is said of the answer."""
    cheap, dear = CHIPS[CHEAP], CHIPS[DEAR]
    fmt = form(dear)
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
        f"the input embedding it takes a row per token. A user's cache is {cache:.2f} GB.\n\n"
        f"An {CHEAP} has {cheap.memory / 1e9:.0f} GB, reads {cheap.bandwidth / 1e12:.2f} TB/s and costs "
        f"{two(cheap.price_per_hour or 0)} dollars an hour (our estimate, as the other's price); an "
        f"{short(DEAR)} has {dear.memory / 1e9:.0f} GB, reads "
        f"{dear.bandwidth / 1e12:.2f} TB/s and costs {two(dear.price_per_hour or 0)}. Each takes as many users as fit "
        f"in {share} of its memory, prompts not counted, and does what its data sheet allows. That is chapter 2's "
        "longer clock, taken for each weight matrix and for the caches, and summed:\n\n"
        "$$ t_\\text{step} = \\sum_\\text{parts} \\max\\left( \\frac{\\text{FLOPs}}{\\text{peak}},\\; "
        "\\frac{\\text{bytes}}{\\text{bandwidth}} \\right) $$"
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
    token = f"{two(tokens(cheap, dear))} times that of a token, by data-sheet bounds"
    return f"{two(hours(cheap, dear))} times the price of an hour, {token}"


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
        f"A million tokens cost at least {two(cheap['price'])} dollars from the {short(a.name)} and at least "
        f"{two(dear['price'])} from the {short(b.name)}: **{two(dear['price'] / cheap['price'])} times as much**, by "
        f"bounds. The hour costs {two(price)} times. But the dear card reads {1 / bandwidth:.1f} times as fast, and "
        f"beside the weights it has {left(b) / 1e9:.0f} GB for caches, not {left(a) / 1e9:.1f}: {dear['users']} users "
        f"share a reading of the weights, not {cheap['users']}. With its own cache a token takes "
        f"{read[1] / 1e9:.2f} GB on the {short(b.name)} and {read[0] / 1e9:.2f} on the {short(a.name)}.\n\n"
        f"$$ \\underbrace{{{two(price)}}}_{{\\text{{price}}}} \\times "
        f"\\underbrace{{{bandwidth:.3f}}}_{{\\text{{bandwidth}}}} \\times "
        f"\\underbrace{{{bytes_each:.2f}}}_{{\\text{{bytes a token}}}} = {price * bandwidth * bytes_each:.3f} $$"
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
        customdata=[[short(s["chip"].name), s["users"], two(s["chip"].price_per_hour)] for s in some],
        hovertemplate="%{customdata[0]}: %{customdata[1]} users, %{customdata[2]} dollars an hour<extra></extra>",
    )  # fmt: skip
    for gb in dict.fromkeys(x):  # chips with the same room stand in a column and share a label
        column = [(s["chip"].name, price) for s, at, price in zip(some, x, y, strict=True) if at == gb]
        names = ", ".join(
            dict.fromkeys(name.rsplit(" ", 1)[0] if len(column) > 1 else short(name) for name, _ in column)
        )
        anchor, label = ("left", f"\u2002{names}") if gb < 20 else ("right", f"{names}\u2002")
        label_line(fig, gb, column[len(column) // 2][1], label, palette.grey, anchor=anchor, shift=0)
    log_axis(fig, "x", [5, 10, 20, 50, 100, 200])
    log_axis(fig, "y", [0.05, 0.1, 0.2, 0.5])
    return fig


# twelve chips -------------------------------------------------------------------------------------
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


def reading() -> str:
    """How to read the table of chips, from the same numbers."""
    found = {name: served(name) for name in NAMES}
    fastest = max((n for n in NAMES if found[n]["alone"]), key=lambda n: found[n]["alone"])
    a, h = found["A100 80GB SXM"], found["H100 SXM"]
    slow = [name for name in NAMES if found[name]["room"] > (found[name]["users"] or 0)]
    return (
        f"Bounds for Llama-3-8B in 16 bits with {CONTEXT:,} tokens a user, a tenth of the memory kept free. A dash: "
        f"the weights do not fit, or no batch keeps {1e3 * LIMIT:.0f} ms. Read it by four questions.\n\n"
        f"- **Does it fit?** Memory says. Only on the {listed(slow)} is it the {1e3 * LIMIT:.0f} ms that keep users "
        "out.\n"
        f"- **How fast for one user?** Bandwidth says: the {short(fastest)} leads with "
        f"{found[fastest]['chip'].bandwidth / 1e12:.1f} TB/s.\n"
        f"- **How many users?** Memory again: {a['users']} on an A100 with 80 GB, {h['users']} on an H100 with as "
        f"much and {h['chip'].peak() / a['chip'].peak():.1f} times the FLOP/s.\n"
        "- **How cheap?** Three things together, in this table:"
    )


def cheap_table() -> Table:
    """What sets the price of a token on three chips: bandwidth per dollar, and what the step waits for."""
    rows = []
    for name in (CHEAP, "A100 80GB SXM", DEAR):
        s = served(name)
        chip, parts = s["chip"], s["step"].parts
        matrices = 1e3 * sum(parts[part] for part in ("projections", "mlp", "head"))
        reading = 1e3 * cost.weight_bytes(MODEL, form(chip)) / chip.bandwidth
        waits = "for arithmetic" if s["users"] > s["ridge"] else "for bytes"
        rows.append([
            short(name), two(chip.bandwidth / 1e12 / chip.price_per_hour), f"{s['users']}, {s['ridge']:.0f}",
            f"{matrices:.0f} ms {waits}" + (f", not {reading:.0f}" if s["users"] > s["ridge"] else ""),
            f"{1e3 * parts['attention']:.0f} ms",
        ])  # fmt: skip
    return rows, ["chip", "TB/s per $ an hour", "users, ridge", "matrices", "caches"], "lrrrr"


def why_cheap() -> str:
    """What the three rows show, no finer than prices are known."""
    h, a, small = (served(name) for name in ("H100 SXM", "A100 80GB SXM", CHEAP))
    group = MODEL.num_heads / MODEL.num_kv_heads
    return (
        "They are bandwidth per dollar, users who share a reading of the weights, and, once these are more than the "
        f"ridge, FLOP/s. The {CHEAP} is behind in the first two: its {small['users']} users wait for the weights most "
        "of the time. A100 and H100 lie closer together than the cheapest and the dearest "
        "vendor's price for an H100 ([below](#what-vendors-ask)).\n\n"
        "Each part of a step has its own place under the roof, so a whole step's "
        f"{cost.step_intensity(MODEL, h['users'], CONTEXT):.0f} FLOP/B on an H100 "
        f"([chapter 2](02_roofline.ipynb#where-batching-ends)) are a mean of two numbers, weighted by their bytes: "
        f"about {h['users']} for the matrices, {group:.0f} for the caches. An A100's {a['users']} users bring "
        "its matrices past the ridge while the step as a whole looks far from it.\n\n"
        "One trap in data sheets: headline FLOP/s often assume [2:4](../book/glossary.md#term-2-4) sparsity, which "
        "ordinary weights do not have. Halve them where sparsity is assumed, as these tables do."
    )


# a full chip --------------------------------------------------------------------------------------
GROWN = 4 * CONTEXT
BIG = "H200 SXM"  # full, it has more users than its ridge


def full_step(context: int, name: str = DEAR, model: Any = MODEL) -> tuple[int, float]:
    """Users of `context` tokens that fill the chip, and how long their step takes at least. [s]"""
    chip = CHIPS[name]
    users = cost.max_users(chip.memory, model, context, form(chip), form(chip), RESERVE)
    return users, cost.predict_decode(model, chip, context, users, form(chip)).seconds


def grown(name: str = DEAR) -> float:
    """A full chip's step with the longer contexts, over that with the shorter ones."""
    return full_step(GROWN, name)[1] / full_step(CONTEXT, name)[1]


def sweep_seconds(chip: Chip) -> float:
    """How long it takes to read once what of the memory is used. [s]"""
    return chip.memory * (1 - RESERVE) / chip.bandwidth


def full_title() -> str:
    return f"Contexts {GROWN / CONTEXT:.0f} times as long, a full chip's step {grown():.2f} times"


def full_story() -> str:
    """Why the step of a full chip hardly depends on what fills it, and where it does."""
    chip, fmt = CHIPS[DEAR], form(CHIPS[DEAR])
    users, many, other = full_step(CONTEXT), full_step(GROWN), full_step(CONTEXT, model=CONFIGS["llama-2-7b"])
    wide, big = full_step(CONTEXT, BIG), CHIPS[BIG]
    return (
        f"**{grown():.2f} times.** {many[0]} users of {GROWN:,} tokens take {1e3 * many[1]:.1f} ms, {users[0]} of "
        f"{CONTEXT:,} take {1e3 * users[1]:.1f}. A step reads the weights and every cache once. With four times the "
        "context a quarter of the users fit, and the bytes are the same: nearly all that the memory holds (of the "
        "input "
        "embedding a row per token).\n\n"
        "So a full chip has a time of its own, at most used memory over bandwidth, **as long as its users stay below "
        f"the ridge**: here {1e3 * sweep_seconds(chip):.1f} ms, {users[0]} users below a ridge of "
        f"{ridge(chip, fmt):.0f}. "
        f"The model hardly enters: Llama-2-7B, {other[0]} users, {1e3 * other[1]:.1f} ms. Above the ridge the matrices "
        f"wait for arithmetic, and a step takes longer. An {short(BIG)} holds {wide[0]} users of {CONTEXT:,} tokens, "
        f"its ridge is {ridge(big, form(big)):.0f}; contexts four times as long bring it below: {grown(BIG):.2f} times."
    )


TIGHT = 0.04  # the promise of the play, seconds a step
OTHERS = ("H100 PCIe", "L40S")  # chips that no table of the page holds


def tight_users(name: str) -> tuple[int, int]:
    """Users of a chip who are in time at TIGHT, and those who fit."""
    chip = CHIPS[name]
    users = cost.max_batch(MODEL, chip, CONTEXT, TIGHT, form(chip), reserve=RESERVE)
    return users, cost.max_users(chip.memory, MODEL, CONTEXT, form(chip), form(chip), RESERVE)


def tight_question() -> str:
    """The promise and the two chips, with all that an answer needs."""
    said = [
        f"{short(c.name)} ({c.memory / 1e9:.0f} GB, {c.bandwidth / 1e12:.2f} TB/s, ridge {ridge(c, form(c)):.0f})"
        for c in map(CHIPS.__getitem__, OTHERS)
    ]
    return (
        f"Two things cap a batch: what fits, and what is in time. Promise {1e3 * TIGHT:.0f} ms a token instead of "
        f"{1e3 * LIMIT:.0f}. Two chips that stand in no table here: {' and '.join(said)}. Which one loses users? "
        "Answer before you put them into this cell."
    )


def tight_story() -> str:
    """Which of OTHERS a promise of TIGHT leaves full, and how one could have known."""
    full, rest = (CHIPS[name] for name in OTHERS)
    (_, fit), (users, room) = map(tight_users, OTHERS)
    gb = [(1 - RESERVE) * chip.memory / 1e9 for chip in (full, rest)]
    return (
        f"The {short(full.name)} stays full, the {short(rest.name)} does not. Used memory over bandwidth tells: "
        f"{gb[0]:.0f} GB at {full.bandwidth / 1e12:.2f} TB/s take {1e3 * sweep_seconds(full):.0f} ms, and its {fit} "
        f"users are below the ridge of {ridge(full, form(full)):.0f}. The {gb[1]:.0f} GB of the {short(rest.name)} "
        f"take {1e3 * sweep_seconds(rest):.0f} ms at {rest.bandwidth / 1e12:.2f} TB/s: it has less to read and is "
        f"still slower, and {users} of {room} users are in time."
    )


# the forecast, pass by pass -----------------------------------------------------------------------
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
    most = _miss(max((c for c in cells if not sure(c)), key=lambda c: abs(c["signed"])))
    return (
        f"{table}\n\n{record['cpu']}, {record['threads']} threads, {record['date']}. In brackets: the interval of "
        f"the miss contains 0; the largest of these is {most.strip('()')}. "
        f"Outside: {sides(cells)}. Why prefills are missed, no experiment here says."
    )


def _miss(cell: dict[str, Any]) -> str:
    text = percent(cell["signed"], signed=True).replace(" ", "\u00a0")
    return text if sure(cell) else f"({text})"
