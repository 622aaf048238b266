"""What the KV cache costs, and how many users a memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumen.cache.quant_format import QUANT_FORMATS
from lumen.cost.flops import windows_of
from lumen.cost.linear import state_bytes
from lumen.cost.shapes import weight_bytes, weight_storage
from lumen.formats import bytes_per_value

if TYPE_CHECKING:
    from lumen.config import ModelConfig
    from lumen.parts import Window


def kv_bytes_per_token(config: ModelConfig, dtype: object = "fp16") -> float:
    """κ, the cache of one token: 2 (K and V) x layers x KV heads x head width x bytes per value. [B]

    Layers that read another's keys store none; a latent (MLA) stands for key and value of all heads.

    >>> from lumen.config import CONFIGS
    >>> kv_bytes_per_token(CONFIGS["llama-2-7b"]) / 2**10  # KiB
    512.0
    """
    return len(config.storing_layers) * config.cache_dims.stored * bytes_per_value(dtype)


def kv_bytes(
    config: ModelConfig, tokens: int, batch: int = 1, dtype: object = "fp16", kept: Window | None = None
) -> float:
    """The cache of `batch` sequences of `tokens` tokens: κ·T·B; a window bounds T in its layers. [B]

    `kept`: a cache that keeps a window and sinks bounds T in all layers.
    """
    tokens = tokens if kept is None else min(tokens, kept.positions)
    windows = (config.window_of(layer) for layer in config.storing_layers)
    held = sum(tokens if window is None else min(tokens, window) for window in windows)
    return config.cache_dims.stored * held * batch * bytes_per_value(dtype)


def kv_read_bytes(config: ModelConfig, tokens: int, batch: int = 1, dtype: object = "fp16") -> float:
    """What a decode step reads of the caches of `batch` sequences of `tokens` tokens. [B]

    `kv_bytes`, but where layers share keys and values each reads them again: sharing takes bytes from what is held, not
    from what is read. (Small enough to stay in the processor's cache, they come quicker the second time.)

    >>> from lumen.models.config import CONFIGS
    >>> kv_read_bytes(CONFIGS["llama-3-8b"], 1024) == kv_bytes(CONFIGS["llama-3-8b"], 1024)
    True
    """
    seen = sum(tokens if window is None else min(tokens, window) for window in windows_of(config))
    return config.cache_dims.stored * seen * batch * bytes_per_value(dtype)


def quantized_bytes_per_token(config: ModelConfig, kind: str, block_size: int = 32) -> float:
    """κ of a quantized cache, "int8", "int4", "kivi" or "kivi-2", scales included. [B]

    KIVI's keys share a scale over the `block_size` tokens of a block. What it keeps whole beside is
    `QuantFormat.open_bytes`, a constant for each sequence.

    >>> from lumen.config import CONFIGS
    >>> quantized_bytes_per_token(CONFIGS["llama-3-8b"], "int8") / kv_bytes_per_token(CONFIGS["llama-3-8b"])
    0.5078125
    """
    if kind not in QUANT_FORMATS:
        raise ValueError(f"Unknown kind of cache {kind!r}. Known: {', '.join(QUANT_FORMATS)}.")
    return QUANT_FORMATS[kind].bytes_per_token(config, block_size)


def mla_bytes_per_token(layers: int, latent: int, rope: int, dtype: object = "bf16") -> float:
    """κ of multi-head latent attention: one latent and one rotary key a layer, (latent + rope)·L·b. [B]

    Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.
    """
    return (latent + rope) * layers * bytes_per_value(dtype)


def mla_ratio(latent: int, num_heads: int, head_dim: int, rope: int = 0) -> float:
    """MLA's cache as a share of the cache of full multi-head attention: (latent + rope) / (2·H·D)."""
    return (latent + rope) / (2 * num_heads * head_dim)


def kv_saving(num_heads: int, num_kv_heads: int) -> float:
    """How many times smaller grouped heads make the cache: H / H_kv (MQA: H)."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} key/value heads evenly.")
    return num_heads / num_kv_heads


def receptive_field(layers: int, window: int) -> int:
    """How far back a stack of windowed layers can see at most: layers x window. [tokens]"""
    return layers * window


def wasted_share(used: float, reserved: float) -> float:
    """Share of reserved cache memory that holds no token: 1 - used / reserved."""
    if not 0 <= used <= reserved or reserved == 0:
        raise ValueError(f"Used memory lies between 0 and what is reserved, got {used} of {reserved}.")
    return 1 - used / reserved


def overtaking_batch(
    config: ModelConfig,
    context: int,
    weight_dtype: object = "bf16",
    kv_dtype: object = "fp16",
    *,
    read: bool = False,
) -> float:
    """The batch at which the cache is as large as the weights: W / (T·κ). [sequences]

    W is what the weights occupy; with `read=True` what a decode step reads of them, so that the answer is
    the batch from which the step spends most of its bytes on the cache.
    """
    weights = weight_bytes(config, weight_dtype) if read else weight_storage(config, weight_dtype)
    held = kv_bytes(config, context, dtype=kv_dtype) + state_bytes(config, 1, kv_dtype)
    return weights / held


def max_users(
    memory: float,
    config: ModelConfig,
    context: int,
    weight_dtype: object = "bf16",
    kv_dtype: object = "fp16",
    reserve: float = 0.0,
) -> int:
    """How many sequences of `context` tokens fit beside the weights in `memory` bytes.

    0 when the weights alone do not fit. floor((memory·(1 - reserve) - W) / (κ·T)). `reserve` is the share
    kept for activations and the allocator.
    Linear layers keep a state for each sequence, at any context: `linear.state_bytes`.
    """
    if not 0 <= reserve < 1:
        raise ValueError(
            f"reserve is a share of the memory, from 0 up to but not including 1; got {reserve}."
        )
    room = memory * (1 - reserve) - weight_storage(config, weight_dtype)
    held = kv_bytes(config, context, dtype=kv_dtype) + state_bytes(config, 1, kv_dtype)
    return max(0, int(room // held))
