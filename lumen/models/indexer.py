"""The lightning indexer: small queries, one small key a token, and a weight for each of its heads.

DeepSeek-AI 2025, DeepSeek-V3.2-Exp, equation 1. What it gives is scored by `lumen.attention.sparse.dsa.index_scores`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .rope import rotate


class Indexer(nn.Module):
    """x (B, T, hidden), the input of a layer's attention -> queries (B, heads, T, dim), keys (B, T, dim), weights
    (B, T, heads).

    The first channels of queries and keys turn with their positions, as many as the table has; keys are normalised. The
    weights carry 1/sqrt(heads) and 1/sqrt(dim).
    """

    def __init__(self, hidden_size: int, heads: int = 4, dim: int = 64):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.q = nn.Linear(hidden_size, heads * dim, bias=False)
        self.k = nn.Linear(hidden_size, dim, bias=False)
        self.k_norm = nn.LayerNorm(dim, eps=1e-6)
        self.w = nn.Linear(hidden_size, heads, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """`turn`: rotary (cos, sin) of the tokens' positions, each (B, 1, T, dim at most), see `Llama.turns`."""
        q = self.q(x).unflatten(-1, (self.heads, self.dim)).transpose(1, 2)
        k = self.k_norm(self.k(x))[:, None]
        q, k = self._placed(q, turn), self._placed(k, turn)
        return q, k[:, 0], self.w(x) * (self.heads * self.dim) ** -0.5

    def _placed(self, heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        turned = turn[0].shape[-1]
        return torch.cat([rotate(heads[..., :turned], *turn), heads[..., turned:]], -1)
