"""A linear layer whose few-row products use every CPU core and read the weight in the order the kernel wants.

BLAS libraries run a matrix-vector product, and often products of a few rows, on one core, so a decode step would read
its weights at one core's bandwidth. oneDNN, which ships inside torch, does better when it may first lay the weight out
in tiles of its own ("prepacking": the copy costs the weight's bytes once more in memory). The operator is the one that
torch.compile emits for linear layers on CPUs. For a single row, and where the operator is missing, a batched product
over blocks of output rows gives every core a share of the bytes. The numbers are those of `nn.Linear` up to the order
of additions; parameters are the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

MAX_ROWS = 64  # from about here on a plain product keeps all cores busy by itself
BLOCKS = (8, 4, 2)
_ROWS_HINT = 8  # the tiles are chosen for a batch of this size; they serve 1 to 512 rows equally well


@cache
def can_pack() -> bool:
    """Whether this build of torch has oneDNN and its prepacked linear."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """y = x Wᵀ + b. x (..., in) -> (..., out)."""

    _packed: Tensor | None = None
    _packed_from: tuple[Tensor, int, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        trains = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        if x.device.type != "cpu" or torch.compiler.is_compiling() or trains or x.numel() == 0:
            return super().forward(x)
        # For a single row oneDNN's kernel is no better than blocks of the plain weight.
        several = x.numel() > x.shape[-1]
        if several and x.dtype == weight.dtype == torch.float32 and not weight.is_inference() and can_pack():
            return packed(x, self._tiles(), self.bias)
        return blocked(x, weight, self.bias)

    def _tiles(self) -> Tensor:
        """The weight in oneDNN's layout, packed again whenever the weight is another one or has been written.

        Tensors made under inference mode count no writes, so they are never packed.
        """
        weight, held = self.weight, self._packed_from
        if held is None or held[0] is not weight or held[1:] != (weight.data_ptr(), weight._version):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)
            self._packed_from = weight, weight.data_ptr(), weight._version
        assert self._packed is not None
        return self._packed

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the tiles out and pack for themselves."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_packed")}


def packed(x: Tensor, tiles: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's product. Two rows are doubled: its kernel for four reads the weight faster than the one for two."""
    rows = x.numel() // x.shape[-1]
    if rows != 2:
        return torch.ops.mkldnn._linear_pointwise(x, tiles, bias, "none", [], "")
    four = x.reshape(2, -1).repeat(2, 1)
    y = torch.ops.mkldnn._linear_pointwise(four, tiles, bias, "none", [], "")
    return y[:2].reshape(*x.shape[:-1], -1)


def blocked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same product as one batched product over blocks of output rows, up to `MAX_ROWS` rows of x."""
    rows, width = x.numel() // x.shape[-1], weight.shape[0]
    blocks = next((n for n in BLOCKS if width % n == 0), 1)
    if rows > MAX_ROWS or blocks == 1:
        return nn.functional.linear(x, weight, bias)
    spread = x.reshape(1, rows, -1).expand(blocks, -1, -1)
    y = spread.bmm(weight.view(blocks, -1, x.shape[-1]).transpose(1, 2)).transpose(0, 1)
    y = y.reshape(*x.shape[:-1], width)
    return y if bias is None else y + bias
