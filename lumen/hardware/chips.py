"""Published chips. Every row names the document its numbers were read from; FLOP/s are dense.

Vendors headline rates with 2:4 structured sparsity, twice the dense rate: an "H100 with 1,979 TFLOP/s of
BF16" does 989. TF32 reads 32-bit values and computes with 19 bits. Rates of int8 and int4 are operations
per second. Bandwidth is decimal (GB/s), memory as sold (GB).

Prices are estimates to reckon with: a price of the day differs by vendor more than these chips differ from
each other. `price_source` says so, with a price that was asked on a day where one was read. An exercise that
decides by price states the price in its text, and so does a table that ranks by it: this one, from `hourly`.
"""

from __future__ import annotations

from lumen.hardware.chip import Chip, Kind

SPARSE = "dense; the headline with 2:4 sparsity is twice this"
SUMS = (
    SPARSE + "; products summed in fp32, as in every row here; sums in fp16 run at twice the rate"
)  # GeForce
CLOUD = (
    "USD, our estimate of mid-2025: one GPU on demand in a large cloud, rounded, a number to reckon with and no "
    "quotation; exercises state it in their text. "
)
TPU_LIST = (
    "USD, our estimate from 2025 list prices: one chip on demand in a US region, rounded, a number to reckon with; "
    "exercises state it in their text"
)
# What a vendor asked on one day, so that the reader sees how far an estimate may be off: Modal's, Replicate's and
# Lambda's price lists as read on 7 May 2026 by https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/
SEEN = CLOUD + "Asked on 7 May 2026: "
A100_40 = None, "USD, no estimate. Asked on 7 May 2026: 1.48 (Lambda)"  # form factors of A100s are not stated
A100_80 = 1.8, SEEN + "2.50 (Modal), 5.04 (Replicate)"


def _chip(
    name: str,
    tera: dict[str, float],
    bandwidth_gb: float,
    memory_gb: float,
    watts: float | None,
    source: str,
    note: str = SPARSE,
    *,
    price: tuple[float | None, str] | None = None,
    kind: Kind = "datasheet",
) -> Chip:
    """A row in a datasheet's units: TFLOP/s, GB/s, GB, W."""
    return Chip(
        name=name,
        flops={dtype: round(rate * 1e12) for dtype, rate in tera.items()},
        bandwidth=bandwidth_gb * 1e9,
        memory=memory_gb * 1e9,
        power_w=watts,
        price_per_hour=price[0] if price else None,
        source=source,
        kind=kind,
        note=note,
        price_source=price[1] if price else "",
    )


_A100 = {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624}
_H100 = {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9}

_ROWS = (
    _chip("A100 40GB PCIe", _A100, 1555, 40, 250, "NVIDIA A100 datasheet, 2020", price=A100_40),
    _chip("A100 40GB SXM", _A100, 1555, 40, 400, "NVIDIA A100 datasheet, 2020", price=A100_40),
    _chip("A100 80GB PCIe", _A100, 1935, 80, 300, "NVIDIA A100 datasheet, 2021", price=A100_80),
    _chip("A100 80GB SXM", _A100, 2039, 80, 400, "NVIDIA A100 datasheet, 2021", price=A100_80),
    _chip(
        "H100 PCIe",
        {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513, "int8": 1513},
        2000, 80, 350, "NVIDIA H100 datasheet, 2023",
    ),
    _chip(
        "H100 SXM", _H100, 3350, 80, 700, "NVIDIA H100 white paper v1.04, 2023",
        price=(3.0, SEEN + "3.78 (Lambda), 3.95 (Modal), 5.49 (Replicate)"),
    ),
    _chip(
        "H200 SXM", _H100, 4800, 141, 700,
        "NVIDIA H200 datasheet, 2023; FLOP/s as H100 SXM", price=(3.8, CLOUD + "No list price of that day was read"),
    ),
    _chip(
        "B200",
        {"tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500, "fp4": 9000}, 8000, 180, 1000,
        "NVIDIA Blackwell architecture technical brief, 2024, one GPU of HGX B200 at 1,000 W, as listed at "
        "glennklockwood.com/garden/processors/B200; 180 GB and 1,000 W: MLPerf Inference v6.0, nebius_b200_n1, 2026",
    ),
    _chip(
        "L4",
        {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5, "int8": 242.5},
        300, 24, 72, "NVIDIA L4 datasheet, 2023", price=(0.8, SEEN + "0.80 (Modal)"),
    ),
    _chip(
        "T4", {"fp32": 8.1, "fp16": 65, "int8": 130, "int4": 260}, 320, 16, 70,
        "NVIDIA T4 datasheet, 2019", "neither sparsity nor bf16 in this generation",
        price=(0.5, SEEN + "0.59 (Modal), 0.81 (Replicate)"),
    ),
    _chip(
        "L40S",
        {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733},
        864, 48, 350, "NVIDIA L40S datasheet, 2023",
    ),
    _chip(
        "A10G", {"fp32": 35, "tf32": 35, "bf16": 70, "fp16": 70, "int8": 140}, 600, 24, 300,
        "NVIDIA A10G datasheet for AWS G5, 2021", price=(1.0, CLOUD + "No list price of that day was read"),
    ),
    _chip(
        "RTX 4090",
        {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "int8": 660.6},
        1008, 24, 450, "NVIDIA Ada white paper v2.01, 2023", SUMS,
    ),
    _chip(
        "RTX 3090", {"fp32": 35.6, "fp16": 71}, 936, 24, 350,
        "NVIDIA's specifications of 2020 as listed by Tom's Hardware, 2022", SUMS,
    ),
    _chip(
        "MI250X (one die)", {"bf16": 191.5, "fp16": 191.5}, 1600, 64, None,
        "AMD Instinct MI250X specifications, 2021, half of the card: programs see its two dies as two GPUs",
        "no sparsity feature",
    ),
    _chip(
        "MI300X",
        {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9},
        5300, 192, 750, "AMD Instinct MI300X data sheet, 2023",
    ),
    _chip(
        "TPU v5e", {"bf16": 197, "int8": 393}, 819, 16, None,
        "Google Cloud TPU v5e documentation, 2023", "no sparsity feature", price=(1.2, TPU_LIST),
    ),
    _chip(
        "TPU v5p", {"bf16": 459, "int8": 918}, 2765, 95, None,
        "Google Cloud TPU v5p documentation, 2023", "no sparsity feature", price=(4.2, TPU_LIST),
    ),
    _chip(
        "TPU v6e", {"bf16": 918, "int8": 1836}, 1640, 32, None,
        "Google Cloud TPU v6e documentation, 2024", "no sparsity feature", price=(2.7, TPU_LIST),
    ),
    _chip(
        "Apple M2 Ultra", {"fp32": 27.2}, 800, 192, None,
        "bandwidth, memory: Apple newsroom, 5 June 2023, 76-core GPU",
        "FLOP/s: our estimate, 76 cores x 128 lanes x 2 x 1.4 GHz; Apple publishes no clock", kind="estimate",
    ),
    _chip(
        "Apple M3 Max", {"fp32": 14.3}, 400, 128, None,
        "bandwidth, memory: Apple MacBook Pro specifications, 2023, 16-core CPU and 40-core GPU",
        "FLOP/s: our estimate, 40 cores x 128 lanes x 2 x 1.4 GHz; Apple publishes no clock", kind="estimate",
    ),
)  # fmt: skip

CHIPS: dict[str, Chip] = {chip.name: chip for chip in _ROWS}


def hourly(*names: str) -> dict[str, float]:
    """Dollars an hour of these chips, the prices that exercises reckon with. KeyError for one without."""
    prices = {name: CHIPS[name].price_per_hour for name in names}
    if missing := [name for name, price in prices.items() if price is None]:
        raise KeyError(f"no price is kept for {', '.join(missing)}")
    return {name: price for name, price in prices.items() if price is not None}
