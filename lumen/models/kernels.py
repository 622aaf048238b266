"""Ways to multiply a few rows by a weight matrix on a CPU. The same numbers up to the order of additions.

A decode step multiplies one row, or one row a sequence, by every matrix: all its time goes into reading weights. BLAS
libraries are made for square products and do this one at very different speeds, depending on the CPU, the shape and
which operand comes first. Nothing but a measurement says which way is fastest: `lumen.hardware.kernel_choice` tries
all of these on the model's own weights, as cuDNN's benchmark mode tries convolutions.

A kernel takes a layer and x (rows, in), contiguous, and returns x Wᵀ + b, (rows, out), contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .linear import Linear

Kernel = Callable[["Linear", Tensor], Tensor]
BLOCKS = (8, 4, 2)
FEW = 64  # from about here on a plain product keeps all cores busy by itself


def plain(layer: Linear, x: Tensor) -> Tensor:
    """What `nn.Linear` does. For one row many libraries use one core only."""
    return F.linear(x, layer.weight, layer.bias)


def blocked(layer: Linear, x: Tensor) -> Tensor:
    """One batched product over blocks of output rows: every core gets a share of the weight."""
    weight = layer.blocks()
    y = x.expand(weight.shape[0], *x.shape).bmm(weight)  # (blocks, rows, out / blocks)
    # the blocks of a single row lie one behind the other as they are
    y = (y if x.shape[0] == 1 else y.transpose(0, 1)).reshape(-1, layer.out_features)
    return y if layer.bias is None else y.add_(layer.bias)


def weight_first(layer: Linear, x: Tensor) -> Tensor:
    """(W xᵀ)ᵀ: the weight is the large left operand, whose rows libraries share out among cores."""
    y = torch.mm(layer.weight, x.t()).t().contiguous()
    return y if layer.bias is None else y.add_(layer.bias)


def weight_first_twice(layer: Linear, x: Tensor) -> Tensor:
    """A single row, doubled: a matrix product where the library would run its matrix-vector product on one core."""
    y = torch.mm(layer.weight, x.repeat(2, 1).t())[:, :1].t().contiguous()
    return y if layer.bias is None else y.add_(layer.bias)


def packed(layer: Linear, x: Tensor) -> Tensor:
    """oneDNN's product with the weight laid out in tiles of its own, a second copy of the weight in memory.

    The operator is the one that torch.compile emits for linear layers on CPUs.
    """
    return torch.ops.mkldnn._linear_pointwise(x, layer.tiles(), layer.bias, "none", [], "")


def packed_twice(layer: Linear, x: Tensor) -> Tensor:
    """Two rows, doubled: on some CPUs oneDNN's kernel for four rows reads the weight faster than that for two."""
    return packed(layer, x.repeat(2, 1))[: x.shape[0]]


KERNELS: dict[str, Kernel] = {
    kernel.__name__: kernel
    for kernel in (plain, blocked, weight_first, weight_first_twice, packed, packed_twice)
}


@cache
def can_pack() -> bool:
    """Whether this build of torch has oneDNN and its prepacked linear."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def candidates(layer: Linear, rows: int) -> list[str]:
    """Names of the kernels that can multiply `rows` rows by this layer and that have a chance to be the fastest."""
    names = ["plain"]
    if rows <= FEW:
        names += ["blocked"] if layer.out_features % BLOCKS[-1] == 0 else []
        names += ["weight_first_twice" if rows == 1 else "weight_first"]
    if layer.packs():
        names += ["packed", "packed_twice"] if rows == 2 else ["packed"]
    return names


def rule(layer: Linear, rows: int) -> Kernel:
    """A choice for shapes that nobody has measured: blocks for one row, oneDNN's tiles for more where it is there."""
    if rows > 1 and layer.packs():
        return packed_twice if rows == 2 else packed
    return plain if rows > FEW else blocked
