"""Bytes of a step, intensity, and what a chip allows at that intensity.

A chip does at most `P` FLOP/s and reads at most `BW` B/s. Work that does I FLOPs per byte runs at min(P,
I·BW) at best; the two meet at the ridge, I = P/BW. Source: Williams, Waterman, Patterson 2009, Roofline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumen.cost.flops import step_flops
from lumen.cost.linear import state_bytes
from lumen.cost.memory import kv_bytes_per_token, kv_read_bytes
from lumen.cost.shapes import weight_bytes
from lumen.formats import bytes_per_value
from lumen.hardware import Chip, ridge

if TYPE_CHECKING:
    from lumen.config import ModelConfig
    from lumen.parts import Latent

__all__ = [
    "StepBytes", "activation_bytes", "bandwidth_bound", "bound_by", "compute_bound", "elementwise_intensity",
    "intensity", "mbu", "mfu", "ridge", "roofline", "step_bytes", "step_intensity",
]  # fmt: skip


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one decode step moves to and from memory."""

    weights: float
    cache_read: float
    cache_write: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.cache_read + self.cache_write + self.activations


def activation_bytes(
    config: ModelConfig, rows: int, dtype: object = "bf16", head_rows: int | None = None
) -> float:
    """Bytes of activations when every operator reads its inputs and writes its output once; an estimate. [B]

    A layer, in values a row: two norms 4d, q/k/v in and out, RoPE twice (q and k), attention's q and
    output, the projection, two additions 6d, the MLP's matrices and its activation function. Small beside
    the weights in decode, and usually served by the caches of the chip; in prefill it is what fused kernels
    save.
    """
    width, mlp = config.hidden_size, config.intermediate_size
    up = 2 * mlp if config.gated else mlp
    attention = _latent_values(config, config.latent) if config.latent else _attention_values(config)
    feed_forward = (width + up) + (up + mlp) + (mlp + width)
    layer = 4 * width + 6 * width + attention + feed_forward
    outside = (rows if head_rows is None else head_rows) * (3 * width + config.vocab_size)
    return (rows * layer * config.num_layers + outside) * bytes_per_value(dtype)


def _attention_values(config: ModelConfig) -> int:
    width, queries = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    rotation = 2 * (queries + keys) if config.positions == "rope" else 0
    return (width + queries + 2 * keys) + rotation + 2 * queries + (queries + width)


def _latent_values(config: ModelConfig, latent: Latent) -> int:
    """The same of latents that are read absorbed: queries into the latent space, answers out of it."""
    heads, width, stored = config.num_heads, config.hidden_size, latent.rank + latent.rope
    queries, values, compressed = heads * config.key_dim, heads * config.value_dim, latent.query_rank or 0
    down = width + (compressed or queries) + stored + 2 * (compressed + latent.rank) * latent.normed
    up = compressed + queries if compressed else 0
    absorbed = heads * (config.head_dim + 2 * latent.rank) + values
    return (
        down + up + 2 * (heads + 1) * latent.rope + absorbed + heads * (stored + latent.rank) + values + width
    )


def step_bytes(
    config: ModelConfig,
    batch: int,
    context: int,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
) -> StepBytes:
    """Bytes of one decode step of `batch` sequences that see `context` keys each, the new one included. [B]

    Weights once for the whole batch; the cache of every sequence once for each layer that reads it; one new token
    a sequence written.
    States of linear layers are read and written whole.
    `weight_dtype` and `kv_dtype` default to `dtype`.
    """
    kv = dtype if kv_dtype is None else kv_dtype
    states = state_bytes(config, batch, kv)
    return StepBytes(
        weights=weight_bytes(config, dtype if weight_dtype is None else weight_dtype, batch),
        cache_read=kv_read_bytes(config, context, batch, kv) + states,
        cache_write=kv_bytes_per_token(config, kv) * batch + states,
        activations=activation_bytes(config, batch, dtype),
    )


def intensity(flops: float, num_bytes: float) -> float:
    """Arithmetic intensity. [FLOP/B]"""
    if num_bytes <= 0:
        raise ValueError(f"Intensity needs bytes to divide by, got {num_bytes}.")
    return flops / num_bytes


def step_intensity(
    config: ModelConfig,
    batch: int,
    context: int,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
) -> float:
    """Intensity of a decode step without activations: about `batch` in 16 bits at short contexts. [FLOP/B]"""
    moved = step_bytes(config, batch, context, dtype, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    return intensity(step_flops(config, batch, context).total, moved.total - moved.activations)


def elementwise_intensity(flops: float, reads: int, writes: int, dtype: object = "fp32") -> float:
    """Intensity of an elementwise operator: a vector sum does 1 FLOP for two reads and a write. [FLOP/B]"""
    return intensity(flops, (reads + writes) * bytes_per_value(dtype))


def roofline(at: float, chip: Chip, dtype: object = "bf16") -> float:
    """The most that `chip` can do at intensity `at` FLOP/B: min(P, I·BW). [FLOP/s]"""
    return min(chip.peak(dtype), at * chip.bandwidth)


def bound_by(at: float, chip: Chip, dtype: object = "bf16") -> str:
    """What limits work of intensity `at`: "memory" to the left of the ridge, "compute" from the ridge on."""
    return "memory" if at < ridge(chip, dtype) else "compute"


def bandwidth_bound(num_bytes: float, chip: Chip) -> float:
    """The most steps a second that move `num_bytes` each: BW / bytes. [1/s]"""
    return chip.bandwidth / num_bytes


def compute_bound(flops: float, chip: Chip, dtype: object = "bf16") -> float:
    """The most steps a second that do `flops` each: P / FLOPs. [1/s]"""
    return chip.peak(dtype) / flops


def mfu(flops: float, seconds: float, chip: Chip, dtype: object = "bf16") -> float:
    """Model FLOPs utilisation: the FLOPs the model needs, over what the chip could have done in that time.

    Source: Chowdhery et al. 2022, PaLM, section 4.1. Low in decode by nature: see the roofline, not the
    engineer.
    """
    return flops / (seconds * chip.peak(dtype))


def mbu(num_bytes: float, seconds: float, chip: Chip) -> float:
    """Model bandwidth utilisation: bytes a step must move, over what memory can move in its time."""
    return num_bytes / (seconds * chip.bandwidth)
