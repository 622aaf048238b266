"""The parts that the two decoders share: attention with the cache passed in, what stands behind it, the block around.

Everything but attention works on tokens one by one and does not care whose they are, so between blocks the hidden
states are plain rows, (N, D) with N = B · T; the positions (B, T) in `Pass` say how attention lays them out.

Shapes: B sequences, T new tokens of each, D = hidden_size, H query heads, Hkv key/value heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .decoder import Decoder
from .latent import LatentAttention
from .linear import Linear
from .linear_attention import LinearAttention
from .mlp import MLP, GatedMLP, Mixture
from .norms import RMSNorm, make_norm
from .passing import Pass
from .rope import rope_table, rotate

__all__ = [
    "Attention", "Block", "Decoder", "RMSNorm", "make_mixer", "make_mlp", "make_norm", "rope_table", "rotate",
]  # fmt: skip


class Attention(nn.Module):
    """Grouped-query self-attention. Queries, keys and values come from one matrix: one weight read for three.

    In a layer that reads another's keys and values the matrix holds the queries alone.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.place = config.cache_place(layer)
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.num_kv_heads = config.num_kv_heads if config.cache_layer(layer) == layer else 0
        self.window, self.scale = config.window_of(layer), config.query_scale
        self.turn = 1 if config.local_theta is not None and self.window is not None else 0
        rows = (self.num_heads + 2 * self.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, rows, bias=config.bias or config.qkv_bias)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        stored = config.qk_norm and self.num_kv_heads > 0
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if stored else None
        self.out = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        """x (N, D) -> (N, D)."""
        batch, length = at.pos.shape
        h, kv = self.num_heads, self.num_kv_heads
        rows = at.linear(self.qkv, x, layer, "attn.qkv")  # (N, heads · head_dim)
        if length == 1:  # one token: its heads already lie one behind the other
            heads = rows.view(batch, -1, 1, self.head_dim)
        else:
            heads = rows.view(batch, length, -1, self.head_dim).transpose(1, 2)
        turned, v = heads.split([h + kv, kv], 1)
        turned = self._placed(turned, at)
        q, k = turned.split([h, kv], 1)
        y = self._attend(at, q, k, v)  # (B, H, T, head_dim)
        y = (y if length == 1 else y.transpose(1, 2)).reshape(x.shape[0], -1)
        return at.reduced(at.linear(self.out, y, layer, "attn.out"))

    def _placed(self, heads: Tensor, at: Pass) -> Tensor:
        """Queries and keys, normalised where the model does so, turned to their positions."""
        if self.q_norm is not None:
            q, k = heads.split([self.num_heads, self.num_kv_heads], 1)
            heads = torch.cat([self.q_norm(q), k if self.k_norm is None else self.k_norm(k)], 1)
        return rotate(heads, *at.turns[self.turn]) if at.turns else heads

    def _attend(self, at: Pass, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.num_kv_heads and self.scale is None and at.channels.causal:
            return at.cache.attend(self.place, q, k, v, at.pos, self.window)
        keys, values = (k, v) if self.num_kv_heads else (None, None)
        return at.cache.attend(
            self.place,
            q,
            keys,
            values,
            at.pos,
            self.window,
            scale=self.scale,
            causal=at.channels.causal,
        )


def make_mixer(config: ModelConfig, layer: int) -> nn.Module:
    """What mixes the tokens of this layer: attention over keys and values or over latents, or a state in its place."""
    if config.is_linear(layer):
        return LinearAttention(config, layer)
    return Attention(config, layer) if config.latent is None else LatentAttention(config, layer)


def make_mlp(config: ModelConfig, layer: int) -> nn.Module:
    """What stands behind attention: experts, a gated or a plain MLP."""
    if config.experts is not None:
        return Mixture(config, config.experts)
    return GatedMLP(config) if config.gated else MLP(config)


class Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalised input and added back.

    `mixer` and `mlp` make the two parts, `(config, layer) -> module` with `forward(x, at, layer)`: a layer that mixes
    tokens in another way than by attention, or another MLP, is a function handed in here.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        mixer: Callable[[ModelConfig, int], nn.Module] = make_mixer,
        mlp: Callable[[ModelConfig, int], nn.Module] = make_mlp,
    ):
        super().__init__()
        self.attn_norm = make_norm(config)
        self.attn = mixer(config, layer)
        self.attn_post = make_norm(config) if config.post_norms else None
        self.mlp_norm = make_norm(config)
        self.mlp = mlp(config, layer)
        self.mlp_post = make_norm(config) if config.post_norms else None

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        y = self.attn(self.attn_norm(x), at, layer)
        x = x + (y if self.attn_post is None else self.attn_post(y))
        y = self.mlp(self.mlp_norm(x), at, layer)
        return x + (y if self.mlp_post is None else self.mlp_post(y))
