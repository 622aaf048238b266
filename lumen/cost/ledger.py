"""The cache ledger: what a token leaves in the caches of real models, and how many long conversations a memory holds.

Several of these have parts that `ModelConfig` does not describe (shared experts, soft caps), and their weights are
not counted here: a row says how many layers store, how many numbers a token takes in one of them, and whether
they forget what lies behind a window. Layers that read another layer's cache store nothing and are in no row.

>>> row = {held.name: held for held in ledger()}["deepseek-v3"]
>>> row.bytes(1), row.users(80e9, 131072)
(70272.0, 8)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lumen.config import CONFIGS, ModelConfig
from lumen.formats import bytes_per_value


@dataclass(frozen=True)
class Layers:
    """So many layers that store `numbers` a token each, of the last `window` tokens or of all."""

    count: int
    numbers: int
    window: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or self.numbers < 1 or (self.window is not None and self.window < 1):
            raise ValueError(
                f"Layers that store count from 1, and so do numbers and windows; got {self.count}, {self.numbers} and "
                f"{self.window}."
            )


@dataclass(frozen=True)
class Held:
    """A model's cache: how it is made smaller, in words, its layers by what they store, and where that was read."""

    name: str
    kind: str
    layers: tuple[Layers, ...]
    source: str

    def bytes(self, tokens: int, dtype: object = "bf16") -> float:
        """The cache of one sequence of so many tokens. [B]"""
        if tokens < 0:
            raise ValueError(f"A sequence has 0 tokens or more, got {tokens}.")
        kept = (
            part.count * part.numbers * (tokens if part.window is None else min(tokens, part.window))
            for part in self.layers
        )
        return sum(kept) * bytes_per_value(dtype)

    def users(self, memory: float, tokens: int, dtype: object = "bf16") -> int:
        """Sequences of so many tokens whose caches `memory` bytes hold, weights left out."""
        if tokens < 1:
            raise ValueError(f"A sequence that takes memory has 1 token or more, got {tokens}.")
        return int(max(memory, 0.0) // self.bytes(tokens, dtype))


def held(config: ModelConfig) -> Held:
    """The row of a model that `ModelConfig` describes."""
    windows = Counter(config.window_of(layer) for layer in config.storing_layers)
    numbers = config.cache_dims.stored
    layers = tuple(Layers(count, numbers, window) for window, count in windows.items())
    return Held(config.name, _kind(config), layers, config.source)


def _kind(config: ModelConfig) -> str:
    if config.latent is not None:
        kind = "MLA"
    elif config.num_kv_heads == config.num_heads:
        kind = "MHA"
    else:
        kind = "MQA" if config.num_kv_heads == 1 else f"GQA {config.num_heads}/{config.num_kv_heads}"
    shared = len(config.storing_layers) < config.num_layers
    return kind + (", shared layers" if shared else "") + (", window" if config.window is not None else "")


def _heads(count: int, width: int) -> int:
    """Numbers of a token in a layer that stores a key and a value for each of so many heads."""
    return 2 * count * width


PUBLISHED = (
    Held("falcon-7b", "MQA", (Layers(32, _heads(1, 64)),),
         "Almazrouei et al. 2023, The Falcon Series, and transformers' FalconConfig"),
    Held("qwen2.5-7b", "GQA 28/4", (Layers(28, _heads(4, 128)),), "Qwen Team 2024, Qwen2.5, table 1"),
    Held("qwen3-8b", "GQA 32/8", (Layers(36, _heads(8, 128)),), "Qwen Team 2025, Qwen3, table 1"),
    Held("deepseek-67b", "GQA 64/8", (Layers(95, _heads(8, 128)),), "DeepSeek-AI 2024, DeepSeek LLM, table 2"),
    Held("deepseek-v2", "MLA", (Layers(60, 512 + 64),), "DeepSeek-AI 2024, DeepSeek-V2, section 3.1.2"),
    Held("deepseek-v3", "MLA", (Layers(61, 512 + 64),),
         "DeepSeek-AI 2024, DeepSeek-V3, section 4.2, and transformers' DeepseekV3Config"),
    Held("gemma-2-9b", "GQA 16/8, every other layer windowed",
         (Layers(21, _heads(8, 256)), Layers(21, _heads(8, 256), 4096)), "Gemma Team 2024, Gemma 2, table 1"),
    Held("gemma-3-27b", "GQA 32/16, five of six layers windowed",
         (Layers(10, _heads(16, 128)), Layers(52, _heads(16, 128), 1024)),
         "Gemma Team 2025, Gemma 3, section 2, and the released config.json"),
    Held("gemma-3n-e4b", "GQA 8/2, windows, 15 of 35 layers read a lower one's",
         (Layers(4, _heads(2, 256)), Layers(16, _heads(2, 256), 512)),
         "transformers' Gemma3nTextConfig, whose defaults are this model's"),
    Held("gpt-oss-120b", "GQA 64/8, every other layer windowed",
         (Layers(18, _heads(8, 64)), Layers(18, _heads(8, 64), 128)),
         "OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, section 2, and transformers' GptOssConfig"),
)  # fmt: skip


def ledger() -> Iterator[Held]:
    """Every published model that the course reckons with, those of `CONFIGS` first; models made here are left out."""
    yield from (held(config) for config in CONFIGS.values() if config.family != "gptlite")
    yield from PUBLISHED
