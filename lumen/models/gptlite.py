"""GPTlite: GPT-2 style with learned positions, LayerNorm and a ReLU MLP, small enough to train on two cores.

Radford et al. 2019, section 2.3 (pre-norm blocks, learned absolute positions); ReLU instead of GELU so that
whole neurons are exactly zero, which later chapters prune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig
from .layers import Attention, Decoder
from .linear import Linear

if TYPE_CHECKING:
    from ..cache.base import Cache


class MLP(nn.Module):
    """down(relu(up x)). (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=config.bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalised input and added back."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.bias)
        self.attn = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, pos: Tensor, cache: Cache, layer: int) -> Tensor:
        x = x + self.attn(self.attn_norm(x), pos, cache, layer, None)
        return x + self.mlp(self.mlp_norm(x))


class GPTlite(Decoder):
    """The decoder. Its positions are rows of a learned table, so nothing past `max_positions` can be represented."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if (config.mlp, config.positions, config.norm) != ("relu", "learned", "layer"):
            raise ValueError(
                f"GPTlite is LayerNorm + learned positions + ReLU; {config.name!r} asks for "
                f"{config.norm}, {config.positions}, {config.mlp}."
            )
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.bias)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed.weight

    def run(self, tokens: Tensor, pos: Tensor, cache: Cache) -> Tensor:
        x = self.embed(tokens) + self.positions(pos.clamp(min=0))
        for layer, block in enumerate(self.blocks):
            x = block(x, pos, cache, layer)
        return self.norm(x)
