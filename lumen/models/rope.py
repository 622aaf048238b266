"""Rotary positions: how fast each pair of channels turns, and the table of angles.

Su et al. 2021, RoFormer, section 3.4; channel i is paired with i + head_dim/2 as in the Llama releases, and in the
rotary channels of latents (DeepSeek) with its neighbour. Models that read longer texts than they were first trained on
turn more slowly (`parts.RopeScaling`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..config import ModelConfig
from ..parts import RopeScaling


def frequencies(config: ModelConfig, local: bool = False) -> list[float]:
    """Radians per position of the pairs of one key, fastest first. `local`: of the windowed layers."""
    pairs = config.rotary // 2
    theta = config.local_theta if local and config.local_theta is not None else config.rope_theta
    plain = [theta ** (-i / pairs) for i in range(pairs)]
    scaling = config.rope_scaling
    if scaling is None or (local and config.local_theta is not None):
        return plain
    if scaling.kind == "divisors":
        return [f / by for f, by in zip(plain, scaling.divisors, strict=True)]
    kept = _kept(scaling, plain, theta)
    return [keep * f + (1 - keep) * f / scaling.factor for f, keep in zip(plain, kept, strict=True)]


def length_factor(config: ModelConfig) -> float:
    """What YaRN multiplies queries and keys by, so that attention over long texts stays as sharp; else 1."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0


def _kept(scaling: RopeScaling, plain: list[float], theta: float) -> list[float]:
    """Share of each frequency that stays as it is; the rest is divided by the factor."""
    pairs, length = len(plain), scaling.original_positions
    if scaling.kind == "linear":
        return [0.0] * pairs
    if scaling.kind == "llama3":
        turns = [length * f / (2 * math.pi) for f in plain]  # within the original length
        return [_clamp((t - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)) for t in turns]

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original length."""
        return pairs * math.log(length / (turns * 2 * math.pi)) / math.log(theta)

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    return [1 - _clamp((i - low) / ((high - low) or 0.001)) for i in range(pairs)]


def _clamp(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def rope_at(config: ModelConfig, pos: Tensor, local: bool = False) -> tuple[Tensor, Tensor]:
    """cos and signed sin of the angles at `pos` (...), each (..., channels that turn): from fp64, held in fp32.

    In every pair the first sin is negated, which spares `rotate` and `rotate_pairs` an operation.
    """
    speeds = torch.tensor(frequencies(config, local), dtype=torch.float64, device=pos.device)
    angles = pos.double()[..., None] * speeds
    factor = 1.0 if local and config.local_theta is not None else length_factor(config)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    if config.latent is None:
        return torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float()
    cos, sin = torch.stack([cos, cos], -1).flatten(-2), torch.stack([-sin, sin], -1).flatten(-2)
    keys = config.latent.repeats
    return torch.cat([cos] * keys, -1).float(), torch.cat([sin] * keys, -1).float()


def rope_table(config: ModelConfig, local: bool = False) -> tuple[Tensor, Tensor]:
    """`rope_at` every position that the model knows, each (max_positions, channels that turn).

    Angles in bf16 are off by whole turns at a few thousand positions, so the table never follows the model's dtype.
    """
    return rope_at(config, torch.arange(config.max_positions), local)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys to their positions. x (..., head_dim); cos, sin broadcast with it. Three operators."""
    turned = (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` where the two channels of a pair are neighbours, as in DeepSeek's latent attention. x (..., rope)."""
    turned = (x * cos).addcmul_(x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), sin)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


class Turn:
    """Turns what stands at its position already to another one: rotations add up, R(a) R(b) = R(a + b).

    For caches that move keys: `turn(x, by)` with x (..., head_dim) and `by` (...) positions, back where negative.
    ValueError for a model whose keys cannot be moved so.
    """

    def __init__(self, config: ModelConfig):
        if config.positions != "rope":
            raise ValueError(
                f"{config.name} adds a learned vector to the token at each position, before any key is made, so a key "
                "cannot be moved to another place. Keep positions as they are in the text (no turn), or use a model "
                "with rotary positions."
            )
        if config.latent is not None or config.local_theta is not None:
            why = "keeps keys in a latent" if config.latent else "turns some layers from another base"
            raise ValueError(
                f"{config.name} {why}, so one turn cannot move the keys of all layers. "
                "Keep positions as they are in the text (no turn)."
            )
        self._speeds = torch.tensor(frequencies(config), dtype=torch.float64)

    def __call__(self, x: Tensor, by: Tensor) -> Tensor:
        angles = by.double()[..., None] * self._speeds.to(by.device)
        exact = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angles.cos().to(exact), angles.sin().to(exact)
        return rotate(x, torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
