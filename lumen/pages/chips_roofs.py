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
# H100 data center GPUs; NVIDIA Ada white paper v2.01, 2023, for the RTX 4090. SMs, and what the tensor cores of one do
# in 16 bits (FLOPs a clock, dense): the first of the two.
WIRES = {"A100 80GB SXM": 5120, "H100 SXM": 5120, "RTX 4090": 384}
SMS = {"A100 80GB SXM": 108, "H100 SXM": 132}
TENSOR = {"A100 80GB SXM": 2048, "H100 SXM": 4096}
H100_PAPER = "https://resources.nvidia.com/en-us-tensor-core"
ADA_PAPER = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
NORM_FLOPS, NORM_BYTES = 4, 4  # a value of RMSNorm: square, add, scale, weight; 16 bits in, 16 bits out
WIDTH = MODEL.hidden_size  # of the matrix in the figure, which is square


def matrix(rows: int) -> float:
    """FLOP/B of (rows, WIDTH) @ (WIDTH, WIDTH) in 16 bits: weights, inputs and outputs cross once."""
    return 2 * rows * WIDTH**2 / (2 * (WIDTH**2 + 2 * rows * WIDTH))


def operators() -> list[tuple[str, str, float]]:
    """(sign in the figure, operator, FLOP/B) of MODEL in 16 bits; of a matrix weights, inputs and outputs."""
    users = served(DEAR)["users"]
    return [
        ("a", "norm, many rows", NORM_FLOPS / NORM_BYTES),
        ("a", "matrix, decode of 1 user", matrix(1)),
        ("b", "caches in decode, any number of users", MODEL.num_heads / MODEL.num_kv_heads),
        ("c", f"matrix, decode of {users} users", matrix(users)),
        ("d", f"matrix, prefill of {CONTEXT:,} tokens", matrix(CONTEXT)),
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


def operators_text() -> str:
    """What is counted in the table of operators, and what more rows change."""
    return (
        f"Letters stand on the H100's roof (bf16, as the L4's). A matrix is {WIDTH:,} × {WIDTH:,} here, with its "
        "inputs and outputs; a norm's rows outnumber its weights. One row more, a user or a prompt's token, uses a "
        "matrix once more for few more bytes; a norm reads a row for itself, decode a cache for one user. So the high "
        "ceiling is for matrices with many rows. (The bounds above leave inputs and outputs out.)"
    )


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
    label_line(fig, 4000, low, "vector units, fp32", palette.blue, shift=-11)
    signed: set[str] = set()
    for sign, name, x in operators():
        y = cost.roofline(x, h100, "bf16")
        fig.add_scatter(
            x=[x], y=[y], mode="markers", marker={"color": palette.blue, "size": 9},
            hovertemplate=f"{name}: %{{x:,.0f}} FLOP/B, %{{y:.3s}}FLOP/s<extra></extra>",
        )  # fmt: skip
        if sign not in signed:  # two operators in one place share their letter
            label_line(fig, x, y, f"<b>{sign}</b>", palette.blue, anchor="center", shift=-13)
        signed.add(sign)
    return fig


def units() -> str:
    """How far apart the kinds of units are."""
    a, h = CHIPS["A100 80GB SXM"], CHIPS["H100 SXM"]
    return (
        f"On an A100 vector units reach {a.peak('fp32') / 1e12:.1f} TFLOP/s in fp32 and tensor cores "
        f"{a.peak('bf16') / 1e12:.0f} in bf16, {a.peak('bf16') / a.peak('fp32'):.3g} times as much; on an H100 it is "
        f"{h.peak('fp32') / 1e12:.1f} and {h.peak('bf16') / 1e12:.0f}, {h.peak('bf16') / h.peak('fp32'):.3g} times. "
        "Arithmetic in fp32 that is no matrix product stands under the dashed roof below; at 1 FLOP per byte, where "
        "a norm "
        "stands, the two roofs are one."
    )


GENERATIONS = {"A100 80GB SXM": 2020, "H100 SXM": 2022, "B200": 2024}  # announced; the A100 first with 40 GB


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


def tensor_clock(name: str) -> float:
    """The clock that a chip's 16-bit peak implies. [Hz]"""
    return CHIPS[name].peak() / (SMS[name] * TENSOR[name])


def growth() -> str:
    """What stands behind the growth, as far as the sources carry it."""
    a, h, card = "A100 80GB SXM", "H100 SXM", "RTX 4090"
    faster = wire(h) / wire(a)
    more, wider, clocks = SMS[h] / SMS[a], TENSOR[h] / TENSOR[a], tensor_clock(h) / tensor_clock(a)
    return (
        f"From the A100 with 80 GB to the H100 the ridge grew {ridge(CHIPS[h]) / ridge(CHIPS[a]):.1f} times. Both "
        f"have {WIRES[a]:,} data wires to their memory "
        f"([white paper]({H100_PAPER}), comparison table): bandwidth came from wires that are {faster:.1f} times as "
        f"fast. The peak is a product: {more:.2f} times the SMs, whose tensor cores do {wider:.0f} times as much a "
        f"clock, at {clocks:.2f} times the clock that the peaks imply, {more * wider * clocks:.2f} times together. "
        "From H100 to B200 peak and bandwidth grew alike, and we claim no reason. Over twenty years of server chips "
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
LANES = 128  # fp32 lanes of an H100's SM
ARTICLE = "https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015"


def vector_clock() -> float:
    """The clock that an H100's fp32 peak implies; a lane does a multiply-add a clock. [Hz]"""
    return CHIPS[DEAR].peak("fp32") / (SMS[DEAR] * LANES * 2)


def rates() -> str:
    """Where the sizes and rates in the table of levels come from."""
    return (
        "SMs, sizes: those of an H100 SXM, [Hopper tuning "
        "guide](https://docs.nvidia.com/cuda/hopper-tuning-guide/index.html) and "
        f"[white paper]({H100_PAPER}). Rates inside the chip are no program's. Shared memory: 128 bytes a clock "
        f"and SM, what [table 3 here]({ARTICLE}) divides into by its clock and its 144 SMs, times our {SMS[DEAR]}; L2: "
        f"{L2_CLOCK:,} bytes a clock, from the same table, which gives an A100 as many, so it is the design's and not "
        f"measured. The clock is {vector_clock() / 1e9:.2f} GHz, which the fp32 peak implies; the bf16 peak implies "
        f"{tensor_clock(DEAR) / 1e9:.2f}. Registers: three operands for every "
        "multiply-add, at the same clock. NVLink is sold as 900 GB/s, both directions together; a cache that moves to "
        "another GPU gets half of it at most."
    )


def levels() -> Table:
    """An H100's memories, from the nearest to the farthest. Sizes: NVIDIA's Hopper tuning guide and white paper.

    Rates inside the chip: bytes a clock times the clock that the fp32 peak implies. A lane's multiply-add reads three
    operands of 4 bytes; shared memory and L2: ARTICLE (2023).
    """
    h, link, bus = CHIPS["H100 SXM"], LINKS["NVLink 4"], LINKS["PCIe 5.0 x16"]
    clock, sms = vector_clock(), SMS[DEAR]
    inner = (sms * LANES * 3 * 4 * clock, sms * 128 * clock, L2_CLOCK * clock)
    rates = [f"{rate / 1e12:.0f} TB/s" for rate in inner]
    rows = [
        ["registers", "256 KB per SM, 33 MB in all", rates[0], "the tile that is being multiplied"],
        ["shared memory, L1", "up to 228 KB per SM", rates[1], "the next tiles; FlashAttention's K and V (ch. 11)"],
        ["L2", "50 MB", rates[2], "activations of a decode step"],
        ["HBM3", f"{h.memory / 1e9:.0f} GB", f"{h.bandwidth / 1e12:.2f} TB/s",
         "weights, KV cache: *the* bandwidth of chapter 2"],
        ["another GPU, NVLink", "its memory", f"{link.bandwidth / 1e9:.0f} GB/s each way",
         "partial sums of sharded weights"],
        ["the host, PCIe 5 × 16", "its memory", f"{bus.bandwidth / 1e9:.0f} GB/s each way",
         "caches that were swapped out"],
    ]  # fmt: skip
    return rows, ["level", "size", "rate", "what lives there"], "llll"
