"""Why roofs look as they do: kinds of units, kinds of memory, three generations, and where operators fall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumen import cost
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.hardware import CHIPS, LINKS, Chip, ridge
from lumen.pages.ch02 import Table
from lumen.pages.chips import CONTEXT, DEAR, MODEL, served, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Data wires to the memory ("memory interface", bits): NVIDIA H100 white paper v1.04, 2023, comparison of A100 and
# H100 data center GPUs; NVIDIA Ada white paper v2.01, 2023, for the RTX 4090. Transistors: the first of the two.
WIRES = {"A100 80GB SXM": 5120, "H100 SXM": 5120, "RTX 4090": 384}
TRANSISTORS = {"A100 80GB SXM": 54.2e9, "H100 SXM": 80e9}
H100_PAPER = "https://resources.nvidia.com/en-us-tensor-core"
ADA_PAPER = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
NORM_FLOPS, NORM_BYTES = 4, 4  # a value of RMSNorm: square, add, scale, weight; 16 bits in, 16 bits out


def operators() -> list[tuple[str, str, float]]:
    """(sign in the figure, operator, FLOP/B) of MODEL in 16 bits; of a matrix the weights' bytes, as in all bounds."""
    users = served(DEAR)["users"]
    return [
        ("a", "norm, any number of rows", NORM_FLOPS / NORM_BYTES),
        ("a", "matrix, decode of 1 user", 1.0),
        ("b", "caches in decode, any number of users", MODEL.num_heads / MODEL.num_kv_heads),
        ("c", f"matrix, decode of {users} users", float(users)),
        ("d", f"matrix, prefill of {CONTEXT:,} tokens", float(CONTEXT)),
    ]


def operators_table() -> Table:
    """Where operators fall on an H100's roof, and which edge stops them there."""
    chip = CHIPS[DEAR]
    rows = []
    for sign, name, intensity in operators():
        edge = "arithmetic" if intensity > ridge(chip) else "memory"
        top = cost.roofline(intensity, chip, "bf16")
        rows.append([f"{sign}: {name}", f"{intensity:,.0f}", f"{top / 1e12:,.3g}", edge])
    return rows, ["operator", "FLOP/B", "TFLOP/s at most", "waits for"], "lrrl"


def roofs(chip: Chip, dtype: str) -> go.Figure:
    """The roof of the machine that runs the page beside those of an L4 and an H100, and operators on the last."""
    h100 = CHIPS[DEAR]
    rows = [
        (chip, dtype, palette.orange, f"this machine, {dtype}"),
        (CHIPS["L4"], "bf16", palette.green, "L4"),
        (h100, "bf16", palette.blue, short(DEAR)),
    ]
    fig = figure(
        "More rows push a matrix to the right; norms and the caches of decode stay",
        x="arithmetic intensity (FLOP per byte)",
        y="roof (FLOP/s)",
        height=400,
    )
    log_axis(fig, "x", [1, 10, 100, 1000])
    log_axis(fig, "y", [10.0**k for k in range(10, 16)])
    for one, fmt, color, name in rows:
        corner = ridge(one, fmt)
        corners = [0.3, corner, 4000]
        fig.add_scatter(
            x=corners, y=[cost.roofline(x, one, fmt) for x in corners], mode="lines", line_color=color,
            hoverinfo="skip",
        )  # fmt: skip
        label_line(fig, 4000, one.peak(fmt), f"{name}: ridge {corner:.0f}", color)
    low = h100.peak("fp32")
    fig.add_scatter(
        x=[ridge(h100, "fp32"), 4000], y=[low, low], mode="lines", hoverinfo="skip",
        line={"color": palette.blue, "dash": "dash"},
    )  # fmt: skip
    label_line(fig, 4000, low, "vector units", palette.blue, shift=-11)
    for sign, name, x in operators():
        y = cost.roofline(x, h100, "bf16")
        fig.add_scatter(
            x=[x], y=[y], mode="markers", marker={"color": palette.blue, "size": 9},
            hovertemplate=f"{name}: %{{x:,.0f}} FLOP/B, %{{y:.3s}}FLOP/s<extra></extra>",
        )  # fmt: skip
        label_line(fig, x, y, f"<b>{sign}</b>", palette.blue, anchor="center", shift=-13)
    return fig


def units() -> str:
    """How far apart the kinds of units are."""
    a, h = CHIPS["A100 80GB SXM"], CHIPS["H100 SXM"]
    return (
        f"On an A100 vector units reach {a.peak('fp32') / 1e12:.1f} TFLOP/s in fp32 and tensor cores "
        f"{a.peak('bf16') / 1e12:.0f} in bf16, {a.peak('bf16') / a.peak('fp32'):.0f} times as much; on an H100 it is "
        f"{h.peak('fp32') / 1e12:.1f} and {h.peak('bf16') / 1e12:.0f}, {h.peak('bf16') / h.peak('fp32'):.0f} times. "
        "The width of the numbers is a factor of 2 of that, the kind of unit the rest. What is no matrix product "
        "stands under the dashed roof below; at 1 FLOP per byte, where a norm stands, the two roofs are one."
    )


GENERATIONS = {"A100 80GB SXM": 2021, "H100 SXM": 2022, "B200": 2024}


def growth_table() -> Table:
    """Peak, bandwidth and ridge of three generations, each over the one before."""
    rows, before = [], None
    for name, year in GENERATIONS.items():
        chip = CHIPS[name]
        peak, wide = f"{chip.peak() / 1e12:,.0f}", f"{chip.bandwidth / 1e12:.2f}"
        if before:
            peak += f" (×\u00a0{chip.peak() / before.peak():.1f})"
            wide += f" (×\u00a0{chip.bandwidth / before.bandwidth:.1f})"
        rows.append([f"{short(name)}, {year}", peak, wide, f"{ridge(chip):.0f}"])
        before = chip
    return rows, ["chip", "TFLOP/s, 16 bits", "TB/s", "ridge"], "lrrr"


def wire(name: str) -> float:
    """What one data wire to the memory carries. [bit/s]"""
    return 8 * CHIPS[name].bandwidth / WIRES[name]


def growth() -> str:
    """What stands behind the growth, as far as the sources carry it."""
    a, h, card = "A100 80GB SXM", "H100 SXM", "RTX 4090"
    faster = wire(h) / wire(a)
    return (
        f"From A100 to H100 the ridge nearly doubled. Both have {WIRES[a]:,} data wires to their memory "
        f"([white paper]({H100_PAPER}), comparison table): bandwidth came from wires that are {faster:.1f} times as "
        f"fast. Arithmetic had {TRANSISTORS[h] / TRANSISTORS[a]:.1f} times the transistors, and tensor cores that do "
        "twice as much a clock. From H100 to B200 both edges rose alike. Over twenty years of server chips "
        "peaks grew 3.0 times every two years and memory bandwidth 1.6 times "
        "([Gholami et al., 2024](https://arxiv.org/abs/2403.14123), abstract).\n\n"
        f"Wires are also what tells two kinds of memory apart. [HBM](../book/glossary.md#term-HBM) is stacked beside "
        f"the chip and has thousands: an H100's carry {wire(h) / 1e9:.1f} Gbit/s each. The GDDR6X of an {short(card)} "
        f"drives its {WIRES[card]} ([white paper]({ADA_PAPER})) at {wire(card) / 1e9:.0f}, and brings "
        f"{CHIPS[card].bandwidth / CHIPS[h].bandwidth:.1f} times the bytes. The small L4 has GDDR6: with "
        f"{CHIPS[h].peak() / CHIPS['L4'].peak():.0f} times fewer FLOP/s than an H100 and "
        f"{CHIPS[h].bandwidth / CHIPS['L4'].bandwidth:.0f} times fewer bytes a second its ridge is the higher one, "
        f"{ridge(CHIPS['L4']):.0f}."
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
