"""What some decoders have and others have not, one frozen record each; a `ModelConfig` holds them or None.

No torch here. Every record is checked when it is made, so a model that cannot be is refused before it is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are slowed down for texts longer than the model was first trained on.

    linear   every frequency divided by `factor` (Chen et al. 2023)
    llama3   slow ones divided, fast ones kept, a ramp between wavelengths original/low_freq and original/high_freq
             (the Llama 3.1 release)
    yarn     the same by how often a channel turns within the original length, from `beta_slow` to `beta_fast` times;
             queries and keys are lengthened by `attention_factor` (Peng et al. 2023, YaRN, sections 3.2 to 3.4)
    divisors each frequency by its own number, as GGUF files store them: `divisors` (head_dim / 2)
    """

    kind: Literal["linear", "llama3", "yarn", "divisors"]
    factor: float = 1.0
    original_positions: int = 0
    low_freq: float = 1.0
    high_freq: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # None: 0.1 ln(factor) + 1, section 3.4
    truncate: bool = True  # bounds of YaRN's ramp rounded to whole channels
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "divisors":
            if not self.divisors or not all(0 < divisor < math.inf for divisor in self.divisors):
                raise ValueError("Rotary divisors are positive numbers, one for each pair of channels.")
        elif not 1 <= self.factor < math.inf:
            raise ValueError(f"A rotary scaling factor is at least 1, got {self.factor}.")
        if self.kind in ("llama3", "yarn") and self.original_positions < 1:
            raise ValueError(f"{self.kind} scaling needs the length it was trained on, original_positions.")
        if self.attention_factor is not None and not 0 < self.attention_factor < math.inf:
            raise ValueError(f"attention_factor is a positive number, got {self.attention_factor}.")
        if self.kind == "llama3" and not 0 < self.low_freq < self.high_freq < math.inf:
            raise ValueError(f"low_freq must lie below high_freq, got {self.low_freq} and {self.high_freq}.")
        if self.kind == "yarn" and not 0 < self.beta_slow < self.beta_fast < math.inf:
            raise ValueError(
                f"beta_slow must lie below beta_fast, got {self.beta_slow} and {self.beta_fast}."
            )


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of the MLP: `count` of width `size`, of which a token uses `per_token`.

    `normalised` says that the weights of the chosen ones are divided by their sum (Mixtral always, Qwen3-MoE by its
    `norm_topk_prob`). Jiang et al. 2024, Mixtral of Experts, section 2.1.
    """

    count: int
    per_token: int
    size: int
    normalised: bool = True

    def __post_init__(self) -> None:
        if self.count < 1 or self.size < 1 or not 1 <= self.per_token <= self.count:
            raise ValueError(
                f"Of {self.count} experts of width {self.size} a token cannot use {self.per_token}."
            )


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: what heads share of keys and values is compressed into `rank` channels, and a key
    of `rope` channels, which RoPE turns, stands beside it. Both are cached, once for all heads.

    A head's key is `head_dim` channels made of the latent and those `rope`; its value `value` channels made of the
    latent (`head_dim` if None). `query_rank` is the width that queries are compressed to on their way (None: not).
    `normed` puts an RMSNorm behind each compression, as DeepSeek does; conversions by SVD have none. The rotary key is
    `repeats` keys of rope / repeats channels side by side, all turned by the same frequencies; DeepSeek's is one.
    DeepSeek-AI 2024, DeepSeek-V2, section 2.1.
    """

    rank: int
    rope: int
    value: int | None = None
    query_rank: int | None = None
    normed: bool = True
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.rank < 1 or self.repeats < 1 or self.rope < 0 or self.rope % (2 * self.repeats):
            raise ValueError(
                f"A latent has channels and an even number of rotary ones in each of its rotary keys, got "
                f"{self.rank}, {self.rope} in {self.repeats}."
            )
        for field in ("value", "query_rank"):
            width = getattr(self, field)
            if width is not None and width < 1:
                raise ValueError(f"Latent.{field} is a number of channels or None, got {width}.")


Rule = Literal["linear", "gated", "delta", "gated_delta"]


@dataclass(frozen=True)
class LinearLayers:
    """Layers that carry a state of fixed size in the place of attention over keys and values.

    `rule` is how a token changes the state, see `lumen.attention.linear.recurrent`. A layer has `heads` states of
    `key_dim` x `value_dim`; `key_heads` queries and keys serve heads / key_heads of them each (None: one each). A short
    convolution over `conv` tokens stands in front of q, k and v (1: over none but the token itself).
    Yang et al. 2025, Gated DeltaNet, section 3.4; Qwen3-Next has three such layers to one of attention.
    """

    layers: tuple[int, ...]
    rule: Rule
    heads: int
    key_dim: int
    value_dim: int
    key_heads: int | None = None
    conv: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))  # a list, when it comes from a file
        if self.rule not in get_args(Rule):
            raise ValueError(f"A state changes by one of {', '.join(get_args(Rule))}, not {self.rule!r}.")
        ints = (*self.layers, self.heads, self.key_dim, self.value_dim, self.conv, self.key_heads or 1)
        if any(not isinstance(n, int) or isinstance(n, bool) for n in ints):
            raise ValueError(f"Linear layers are numbered and sized by whole numbers, got {self}.")
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ValueError(f"Linear layers are numbered from 0, each once and in order, got {self.layers}.")
        sizes = {"heads": self.heads, "key_dim": self.key_dim, "value_dim": self.value_dim, "conv": self.conv}
        for name, value in sizes.items():
            if not 1 <= value <= 2**16:
                raise ValueError(f"{name} of a linear layer is from 1 to {2**16}, got {value}.")
        if self.shared_keys < 1 or self.heads % self.shared_keys:
            raise ValueError(
                f"{self.heads} states cannot share {self.key_heads} queries and keys evenly; "
                "heads must be a multiple of key_heads."
            )

    @property
    def shared_keys(self) -> int:
        """Queries and keys of a layer: `key_heads`, one for each state if None."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def channels(self) -> int:
        """Channels of q, k and v together, which the convolution runs over."""
        return 2 * self.shared_keys * self.key_dim + self.heads * self.value_dim

    @property
    def decays(self) -> bool:
        """Whether a token decays the state, by a share that it says itself."""
        return self.rule in ("gated", "gated_delta")

    @property
    def corrects(self) -> bool:
        """Whether a token writes by the delta rule, with a strength that it says itself."""
        return self.rule in ("delta", "gated_delta")

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """A row's state in a layer. The rule "linear" divides by the sum of its weights, one value channel more."""
        return self.heads, self.key_dim, self.value_dim + (self.rule == "linear")


class CacheDims(NamedTuple):
    """What a layer's cache holds for a token: `heads` keys of `key` channels, values of `value`.

    `shared`: the values are the first `value` channels of the keys and are not stored again.
    """

    heads: int
    key: int
    value: int
    shared: bool = False

    @property
    def stored(self) -> int:
        """Numbers that a token takes in a layer."""
        return self.heads * (self.key + (0 if self.shared else self.value))


@dataclass(frozen=True)
class Window:
    """What a windowed cache keeps of a sequence: its `newest` positions, and for ever the first ones, the `sinks`.

    A query at position q reads itself and the newest - 1 before it, k > q - newest, and the sinks, k < sinks.
    Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, section 3.2.
    """

    newest: int
    sinks: int = 0

    def __post_init__(self) -> None:
        for name, least in (("newest", 1), ("sinks", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**24:
                raise ValueError(
                    f"A window keeps 1 position at least and no fewer than 0 sinks, up to {2**24:,} of each; "
                    f"{name} is {value!r}."
                )

    def __str__(self) -> str:
        return f"{self.newest}+{self.sinks}"

    @property
    def positions(self) -> int:
        """How many a long sequence keeps."""
        return self.newest + self.sinks
