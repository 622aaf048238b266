"""How long a prefill and a decode step take, from the model's shape and the chip's rates.

A matrix takes the longer of reading its weights and multiplying by them. A step is the sum of its matrices,
its attention, its other operators, and a fixed time an operator.

On a datasheet chip the rates are peaks, everything but matrices and attention is fused away and overhead is
nothing: the prediction is a **bound** that no program beats. It leaves out whatever keeps a program from its
peaks: kernels that reach part of them, launches, activations that travel through memory, the sampler, and
everything between chips and between steps.

On a measured chip the rates are medians of what such operators reached alone, so the prediction is a
**forecast** of a median. Nothing is fitted to the model that is being predicted. It leaves out what operators
do to each other, except that weights push everything else out of the caches; the sampler and the loop around
the step; and whatever else the machine did then or does now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumen.cost.flops import prefill_flops, step_flops
from lumen.cost.linear import state_bytes
from lumen.cost.memory import kv_bytes, kv_bytes_per_token, kv_read_bytes, max_users
from lumen.cost.shapes import matmuls, weight_bytes
from lumen.formats import bytes_per_value, dtype_name
from lumen.hardware import Chip, at
from lumen.inputs import nonnegative
from lumen.models.counts import elementwise_bytes, operators, products

if TYPE_CHECKING:
    from lumen.config import ModelConfig

CacheKind = Literal["static", "dynamic", "paged"]


@dataclass(frozen=True)
class Part:
    """Seconds of one part of a step, and which of the chip's two ceilings it stands under."""

    seconds: float
    bound_by: Literal["memory", "compute"]


@dataclass(frozen=True)
class Prediction:
    """A predicted time, its parts, and what most of it is bound by: "memory", "compute" or "overhead".

    `parts` are seconds of "projections", "mlp", "head", "attention", "cache" (writes), "elementwise"
    (measured chips only) and "overhead" (of a product on a CPU it lies in the product's own part). They add
    up to `seconds`, except on a GPU, where overhead runs beside the work.
    """

    seconds: float
    parts: dict[str, float]
    bound_by: str


def predict_prefill(
    config: ModelConfig,
    chip: Chip,
    prompt: int,
    batch: int = 1,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
    held: int = 0,
    cache: CacheKind = "static",
    overhead_operators: int | None = None,
) -> Prediction:
    """Seconds until `batch` prompts of `prompt` tokens are cached and their last rows are through the head.

    A bound on a datasheet chip, a forecast on a measured one; the module says what each leaves out. Not in it
    are tokenization and the choice of the first token.

    `dtype` is what the chip computes in, `weight_dtype` and `kv_dtype` what is stored; they default to
    `dtype`. `overhead_operators` replaces the count of an eager forward, for compiled or fused programs.

    `held` tokens stand in the cache in front of each prompt, from a prefix cache or an earlier chunk: the new
    rows attend to them and read them, and they are not computed. `cache="dynamic"` or `"paged"` adds the copy
    that growing by concatenation and gathering blocks make of the whole cache, read and written.
    """
    nonnegative(prompt=prompt, batch=batch, held=held)
    if prompt < 1 or batch < 1:
        raise ValueError(
            "A prefill needs a prompt and a batch of at least 1 and at least 0 held tokens, "
            f"got prompt={prompt}, batch={batch}, held={held}."
        )
    kv = dtype if kv_dtype is None else kv_dtype
    parts = _matrices(config, chip, batch * prompt, batch, dtype, weight_dtype)
    flops = prefill_flops(config, prompt, batch, cached=held).attention
    curves = chip.achieved.get(dtype_name(dtype))
    rate = at(curves.attention, held + prompt) if curves else chip.peak(dtype)
    states = 2 * state_bytes(config, batch, kv)  # read and written
    compute, memory = (
        flops / rate,
        ((kv_read_bytes(config, held, batch, kv) if held else 0.0) + states) / chip.bandwidth,
    )
    parts["attention"] = Part(max(compute, memory), "memory" if memory > compute else "compute")
    written = kv_bytes(config, prompt, batch, kv)
    copied = 0 if cache == "static" else 2 * kv_bytes(config, held + prompt, batch, kv)
    parts["cache"] = Part((written + copied) / chip.bandwidth, "memory")
    return _sum(config, chip, parts, batch * prompt, dtype, weight_dtype, overhead_operators)


def predict_decode(
    config: ModelConfig,
    chip: Chip,
    context: int,
    batch: int = 1,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
    cache: CacheKind = "static",
    overhead_operators: int | None = None,
) -> Prediction:
    """Seconds of one decode step: `batch` new tokens that see `context` keys each, themselves included.

    A bound on a datasheet chip, a forecast on a measured one; the module says what each leaves out. Not in it
    are the sampler, detokenization and the engine's own work between two steps.

    `cache="dynamic"` or `"paged"` adds the copy of the whole cache that growing by concatenation and gathering
    blocks make, read and written. The other arguments are those of `predict_prefill`.
    """
    nonnegative(context=context, batch=batch)
    if context < 1 or batch < 1:
        raise ValueError(
            f"A step needs a context and a batch of at least 1, got context={context}, batch={batch}."
        )
    kv = dtype if kv_dtype is None else kv_dtype
    parts = _matrices(config, chip, batch, batch, dtype, weight_dtype)
    read = kv_read_bytes(config, context, batch, kv)
    flops = step_flops(config, batch, context).attention
    curves = chip.achieved.get(dtype_name(dtype))
    speed = at(curves.cache_read, batch) if curves else chip.bandwidth
    states = 2 * state_bytes(config, batch, kv)  # read and written
    memory, compute = read / speed + states / chip.bandwidth, flops / chip.peak(dtype)
    parts["attention"] = Part(max(memory, compute), "memory" if memory >= compute else "compute")
    written = kv_bytes_per_token(config, kv) * batch + (
        0 if cache == "static" else 2 * kv_bytes(config, context, batch, kv)
    )
    parts["cache"] = Part(written / chip.bandwidth, "memory")
    return _sum(config, chip, parts, batch, dtype, weight_dtype, overhead_operators)


def max_batch(
    config: ModelConfig,
    chip: Chip,
    context: int,
    tpot: float,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
    reserve: float = 0.0,
) -> int:
    """The largest batch that fits the chip and decodes in at most `tpot` seconds a step; 0 when none does."""
    weights, kv = dtype if weight_dtype is None else weight_dtype, dtype if kv_dtype is None else kv_dtype

    def fast_enough(batch: int) -> bool:
        step = predict_decode(config, chip, context, batch, dtype, weight_dtype=weights, kv_dtype=kv)
        return step.seconds <= tpot

    low, high = 0, max_users(chip.memory, config, context, weights, kv, reserve)
    while low < high:  # the step's time rises with the batch
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fast_enough(middle) else (low, middle - 1)
    return low


def _matrices(
    config: ModelConfig, chip: Chip, rows: int, head_rows: int, dtype: object, weight_dtype: object
) -> dict[str, Part]:
    """The weight matrices by part: the longer of their bytes at the bandwidth and their FLOPs at the rate.

    The measured rate at few rows has the reading of weights in `dtype` in it, so it says nothing of weights
    that are stored smaller: for these the peak is used, which asks for a kernel that unpacks them in
    registers.
    """
    stored = bytes_per_value(dtype if weight_dtype is None else weight_dtype)
    curves = chip.achieved.get(dtype_name(dtype)) if stored == bytes_per_value(dtype) else None
    parts: dict[str, Part] = {}
    for matrix in matmuls(config):
        used = head_rows if matrix.part == "head" else rows
        flops, memory = 2 * matrix.active * used, matrix.read(used) * stored / chip.bandwidth
        rate = at(curves.matmul, used) if curves else chip.peak(dtype)
        limit: Literal["memory", "compute"] = "memory" if memory >= flops / chip.peak(dtype) else "compute"
        before = parts[matrix.part].seconds if matrix.part in parts else 0.0
        starts = matrix.count * at(curves.matmul_start, used) if curves else 0.0
        parts[matrix.part] = Part(before + max(memory, flops / rate + starts), limit)
    return parts


def _sum(
    config: ModelConfig,
    chip: Chip,
    parts: dict[str, Part],
    rows: int,
    dtype: object,
    weight_dtype: object,
    count: int | None,
) -> Prediction:
    """Add what only eager programs on measured chips pay, add up, and say what took longest."""
    curves = chip.achieved.get(dtype_name(dtype))
    if curves:
        moved = elementwise_bytes(config, rows, dtype)
        parts["elementwise"] = Part(moved / at(curves.elementwise, rows), "memory")
    if count is None:
        # The start of a product was measured with the product; a GPU's host has to start every operator.
        count = operators(config) - (products(config) if curves and not chip.asynchronous else 0)
    read = weight_bytes(config, dtype if weight_dtype is None else weight_dtype)
    overhead = chip.overhead(read, rows) * count
    work = sum(part.seconds for part in parts.values())
    # A CPU starts an operator when the last one has ended; a GPU works while the host prepares the next.
    seconds = max(work, overhead) if chip.asynchronous else work + overhead
    limits = {"memory": 0.0, "compute": 0.0, "overhead": overhead}
    for part in parts.values():
        limits[part.bound_by] += part.seconds
    named = {name: part.seconds for name, part in parts.items()} | {"overhead": overhead}
    return Prediction(seconds, named, max(limits, key=limits.__getitem__))
