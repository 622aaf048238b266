"""Norms: what keeps the size of hidden states, latents and heads in hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import ModelConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in fp32 at least. (..., D) -> (..., D). Zhang and Sennrich 2019."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if x.dtype.itemsize >= 4 and x.dtype == weight.dtype:
            return nn.functional.rms_norm(x, weight.shape, weight, self.eps)
        return nn.functional.rms_norm(x.float(), weight.shape, weight.float(), self.eps).to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm that the configuration asks for."""
    if config.norm == "rms":
        return RMSNorm(config.hidden_size, config.norm_eps)
    return nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.bias)
