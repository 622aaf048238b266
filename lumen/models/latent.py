"""Multi-head latent attention: one latent a token is cached, and every head's key and value are made of it.

    x ── down ─┬─ queries, or their latent ─ norm ─ q_up ─┬─ (N, H, head_dim)
               │                                          └─ (N, H, rope) ── turned by RoPE
               ├─ latent (N, rank) ─ norm ──┐
               └─ key (N, rope) ─ turned ───┴─ cached: rank + rope numbers, whatever the number of heads

    key of head h    [W_k latent ; turned key]      value of head h    W_v latent      both halves of `kv_up`

RoPE cannot turn what is made of the latent, for then W_k could not change sides below; so a few channels beside it
carry the position, one key for all heads. There are two ways to read the cache, the same numbers up to rounding:

    expanded   keys and values of H heads are made of all the latents in the cache, then attention as usual
    absorbed   q · (W_k c) = (W_kᵀ q) · c: the query is taken into the latent space and the answer out of it by W_v.
               To the cache this is multi-query attention: H queries of rank + rope channels, one key, whose first
               rank channels are the value

Either way a score is divided by sqrt(head_dim + rope), the width of a head's key and not of what is multiplied. Which
way takes fewer FLOPs is counted by `counts.absorbs`: prompts expand, answers absorb.
DeepSeek-AI 2024, DeepSeek-V2, section 2.1 and appendix C.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..cache.traits import Expand
from ..config import ModelConfig
from .counts import absorbs
from .linear import Linear
from .norms import RMSNorm
from .passing import Pass
from .rope import rotate_pairs

NORM_EPS = 1e-6  # of the norms of latents, whatever the model's others have: so DeepSeek's code


class LatentAttention(nn.Module):
    """`Attention` over latents. `absorb` True or False reads in one way always; None, as it is cheaper."""

    absorb: bool | None = None

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        assert config.latent is not None
        latent = config.latent
        self.config, self.place, self.window = config, config.cache_place(layer), config.window_of(layer)
        self.rank, self.rope, self.heads = latent.rank, latent.rope, config.num_heads
        self.head_dim, self.value_dim = config.head_dim, config.value_dim
        self.scale = config.key_dim**-0.5 if config.query_scale is None else config.query_scale
        queries = self.heads * config.key_dim
        self.first = latent.query_rank or queries
        bias = config.bias or config.qkv_bias
        self.down = Linear(config.hidden_size, self.first + self.rank + self.rope, bias=bias)
        self.q_norm = _norm(latent.query_rank if latent.normed else None)
        self.q_up = Linear(latent.query_rank, queries, bias=False) if latent.query_rank else None
        self.kv_norm = _norm(latent.rank if latent.normed else None)
        self.kv_up = Linear(self.rank, self.heads * (self.head_dim + self.value_dim), bias=False)
        self.out = Linear(self.heads * self.value_dim, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        """x (N, D) -> (N, D)."""
        q, stored = self._projected(x, at, layer)
        absorb = self.absorb
        if absorb is None:
            absorb = absorbs(self.config, x.shape[0] / at.cache.num_sequences(at.pos))
        y = self._absorbed(q, stored, at) if absorb else self._attend(q, stored, at, self._expand)
        return at.reduced(at.linear(self.out, y.flatten(1), layer, "attn.out"))

    def _projected(self, x: Tensor, at: Pass, layer: int) -> tuple[Tensor, Tensor]:
        """Queries (N, H, head_dim + rope) and what is stored (N, rank + rope), turned to their positions."""
        rows = at.linear(self.down, x, layer, "attn.down")
        q, latent, key = rows.split([self.first, self.rank, self.rope], 1)
        if self.q_up is not None:
            q = at.linear(self.q_up, self.q_norm(q), layer, "attn.q_up")
        q, latent = q.unflatten(1, (self.heads, -1)), self.kv_norm(latent)
        if not self.rope:
            return q, latent
        cos, sin = (table.reshape(len(x), 1, self.rope) for table in at.turns[0])
        turned = rotate_pairs(torch.cat([q[..., self.head_dim :], key[:, None]], 1), cos, sin)
        q = torch.cat([q[..., : self.head_dim], turned[:, :-1]], -1)
        return q, torch.cat([latent, turned[:, -1]], 1)

    def _attend(self, q: Tensor, stored: Tensor, at: Pass, expand: Expand) -> Tensor:
        """Store (N, rank + rope), and let q (N, H, width) read what `expand` makes of the cache: (N, H, Dv)."""
        batch, length = at.pos.shape
        k = stored.unflatten(0, (batch, length))[:, None]
        q = q.unflatten(0, (batch, length)).transpose(1, 2)
        y = at.cache.attend(
            self.place, q, k, k[..., :0], at.pos, self.window, scale=self.scale,
            causal=at.channels.causal, expand=expand,
        )  # fmt: skip
        return y.transpose(1, 2).flatten(0, 1)

    def _expand(self, stored: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, S, rank + rope) -> keys (B, H, S, head_dim + rope) and values (B, H, S, value_dim) of every head."""
        latent, turned = stored.split([self.rank, self.rope], -1)
        made = self.kv_up(latent[:, 0]).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = made.split([self.head_dim, self.value_dim], -1)
        if self.rope:
            k = torch.cat([k, turned.expand(-1, self.heads, -1, -1)], -1)
        return k, v

    def _absorbed(self, q: Tensor, stored: Tensor, at: Pass) -> Tensor:
        """`_attend` of queries that were taken into the latent space, and the way out of it: (N, H, value_dim)."""
        up = self.kv_up.weight.unflatten(0, (self.heads, -1))
        up_k, up_v = up.split([self.head_dim, self.value_dim], 1)  # (H, head_dim or value_dim, rank)
        inner = torch.bmm(q[..., : self.head_dim].transpose(0, 1), up_k).transpose(0, 1)
        q = torch.cat([inner, q[..., self.head_dim :]], -1) if self.rope else inner
        y = self._attend(q, stored, at, self._latents)  # (N, H, rank)
        return torch.bmm(y.transpose(0, 1), up_v.mT).transpose(0, 1)

    def _latents(self, stored: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        """The cache as it is: keys (B, 1, S, rank + rope), of which the first `rank` channels are the values."""
        return stored, stored[..., : self.rank]


def _norm(size: int | None) -> nn.Module:
    """An RMSNorm of so many channels; nothing where there are none to be normalised."""
    return RMSNorm(size, NORM_EPS) if size else nn.Identity()
