"""GPTlite: GPT-2 style with learned positions, LayerNorm and a ReLU MLP, small enough to train on two cores.

Radford et al. 2019, section 2.3 (pre-norm blocks, learned absolute positions); ReLU instead of GELU so that
whole neurons are exactly zero, which later chapters prune.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..config import ModelConfig
from .layers import Block, Decoder, make_norm


class GPTlite(Decoder):
    """The decoder. Its positions are rows of a learned table, so nothing past `max_positions` can be represented."""

    def __init__(self, config: ModelConfig, block: Callable[[ModelConfig, int], nn.Module] = Block):
        if (config.mlp, config.positions, config.norm) != ("relu", "learned", "layer"):
            raise ValueError(
                f"GPTlite is LayerNorm + learned positions + ReLU; {config.name!r} asks for "
                f"{config.norm}, {config.positions}, {config.mlp}."
            )
        super().__init__(config, block, make_norm)

    def embedded(self, tokens: Tensor, pos: Tensor) -> Tensor:
        x: Tensor = self.embed(tokens) + self.positions(pos.clamp(min=0))
        return x
