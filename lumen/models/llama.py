"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. SmolLM2, Llama 2 and 3 and Mistral are this model.

Touvron et al. 2023, LLaMA, section 2.2; Shazeer 2020, GLU variants, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig
from .layers import Attention, Decoder, RMSNorm, rope_table
from .linear import Linear

if TYPE_CHECKING:
    from ..cache.base import Cache


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x). Gate and up are one matrix, read once. (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalised input and added back."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, pos: Tensor, cache: Cache, layer: int, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        x = x + self.attn(self.attn_norm(x), pos, cache, layer, turn)
        return x + self.mlp(self.mlp_norm(x))


class Llama(Decoder):
    """The decoder. Weights are random until `lumen.models.weights.load_hf_state` fills them."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if (config.mlp, config.positions, config.norm) != ("swiglu", "rope", "rms"):
            raise ValueError(
                f"Llama is RMSNorm + RoPE + SwiGLU; {config.name!r} asks for "
                f"{config.norm}, {config.positions}, {config.mlp}."
            )
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed.weight
        self.rope_cos: Tensor
        self.rope_sin: Tensor
        cos, sin = rope_table(config)
        self.register_buffer("rope_cos", cos, persistent=False)
        self.register_buffer("rope_sin", sin, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Llama:
        """Moves to devices take the rotary table along; changes of dtype leave it in fp32."""
        super()._apply(fn, recurse)
        if self.rope_cos.dtype != torch.float32:
            cos, sin = rope_table(self.config)
            self.rope_cos, self.rope_sin = cos.to(self.rope_cos.device), sin.to(self.rope_sin.device)
        return self

    def run(self, tokens: Tensor, pos: Tensor, cache: Cache) -> Tensor:
        x = self.embed(tokens)
        at = pos.clamp(min=0)
        turn = self.rope_cos[at][:, :, None], self.rope_sin[at][:, :, None]
        for layer, block in enumerate(self.blocks):
            x = block(x, pos, cache, layer, turn)
        return self.norm(x)
