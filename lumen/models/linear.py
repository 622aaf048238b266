"""A linear layer whose few-row products use every CPU core.

BLAS libraries run a matrix-vector product, and often products of a few rows, on one core, so a decode step
would read its weights at one core's bandwidth. Cutting the weight into blocks of output rows and asking for a
batched product gives every core a share of the bytes. The numbers are those of `nn.Linear` up to the order of
additions; parameters are the same.
"""

from __future__ import annotations

from torch import Tensor, nn

MAX_ROWS = 64  # from about here on a plain product keeps all cores busy by itself
BLOCKS = (8, 4, 2)


class Linear(nn.Linear):
    """y = x Wᵀ + b. x (..., in) -> (..., out)."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        blocks = next((n for n in BLOCKS if self.out_features % n == 0), 1)
        if rows > MAX_ROWS or blocks == 1 or x.device.type != "cpu":
            return super().forward(x)
        weight = self.weight.view(blocks, -1, self.in_features)
        spread = x.reshape(1, rows, self.in_features).expand(blocks, -1, -1)
        y = spread.bmm(weight.transpose(1, 2)).transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias
