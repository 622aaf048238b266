"""A linear layer that multiplies few rows by the kernel that was measured to be the fastest on this CPU.

The kernels stand in `kernels.py`; `lumen.hardware.kernel_choice` measures them and sets `chosen`. The parameters are
those of `nn.Linear`, and so are the numbers up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .kernels import BLOCKS, FEW, Kernel, can_pack, rule
from .tiles import Tiles


class Linear(nn.Linear):
    """y = x Wᵀ + b. x (..., in) -> (..., out).

    `chosen` holds the kernels of 1 to `FEW` rows, and of more, in this order; empty where nothing was measured.
    """

    chosen: tuple[Kernel, ...] = ()
    _blocks: Tensor | None = None
    _tiles: Tiles | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        trains = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        if trains or not x.is_cpu or torch.compiler.is_compiling() or x.numel() == 0:
            return super().forward(x)
        flat = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        y = self.kernel(flat.shape[0])(self, flat)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def kernel(self, rows: int) -> Kernel:
        """Which kernel multiplies this many rows."""
        return self.chosen[min(rows, FEW + 1) - 1] if self.chosen else rule(self, rows)

    def packs(self) -> bool:
        """Whether oneDNN can take the weight. Tensors made under inference mode count no writes: never packed."""
        weight = self.weight
        return (
            weight.dtype == torch.float32
            and not weight.is_inference()
            and weight.is_contiguous()
            and can_pack()
        )

    def blocks(self) -> Tensor:
        """The weight as blocks of output rows, (blocks, in, out / blocks): the same memory, taken apart once.

        The view keeps its memory, so no other weight can come to lie there: one address is one weight.
        """
        weight, held = self.weight, self._blocks
        if held is None or held.data_ptr() != weight.data_ptr():
            count = next((n for n in BLOCKS if self.out_features % n == 0), 1)
            self._blocks = held = weight.detach().view(count, -1, self.in_features).transpose(1, 2)
        return held

    def tiles(self) -> Tensor:
        """The weight in oneDNN's layout, packed again whenever the weight is another one or has been written."""
        if self._tiles is None or not self._tiles.fresh(self.weight):
            self._tiles = Tiles(self.weight)
        return self._tiles.packed

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        """`to`, `half`, `cuda` give the weight another storage; blocks and tiles must not keep the old one alive."""
        self._blocks = self._tiles = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave blocks and tiles out and make their own."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_blocks", "_tiles")}
