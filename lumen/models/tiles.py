"""A weight laid out in oneDNN's tiles: a second copy, and how it is noticed that the first one was written since.

PyTorch counts writes (`_version`), but not those that go past it: `weight.data.mul_(2)`, `weight.numpy()[...] *= 2`,
whatever shares the memory. A fingerprint of every value would read as much memory as the product itself. So a few
runs of values are kept and compared before every use, on a lattice: a step down the rows, a golden step along the
columns, which leaves no wide band without a point (Kronecker's sequence).

    a write that PyTorch counts, of any size                                    noticed
    a write past it to the whole matrix, or to a ninth of its rows or columns   noticed (a head of SmolLM2 is a ninth)
    a write past it to fewer values                  say so: `torch.autograd.graph.increment_version(weight)`
"""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

POINTS = 16
RUN = 8  # neighbours in one cache line, so that zeros of a pruned weight do not hide a multiplication
_GOLDEN = (5**0.5 - 1) / 2


class Tiles:
    """`packed`, made from a contiguous fp32 `weight` (out, in) on the CPU, as it stands now."""

    def __init__(self, weight: Tensor):
        # the tiles are chosen for a batch of 8; they serve 1 to 512 rows equally well
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8)
        self._made_from = weight, weight.data_ptr(), weight._version
        flat = weight.detach().view(-1)
        self._points = flat.unfold(0, min(RUN, flat.numel()), lattice(*weight.shape)).numpy()
        self._seen = self._points.tobytes()

    def fresh(self, weight: Tensor) -> bool:
        """Whether these are the tiles of this weight as it stands. Runs no operator of PyTorch."""
        same, pointer, version = self._made_from
        return (
            weight is same
            and weight._version == version
            and weight.data_ptr() == pointer
            and self._points.tobytes() == self._seen
        )


def lattice(rows: int, columns: int) -> int:
    """The step through a row-major matrix that visits about `POINTS` values, spread over rows and columns alike."""
    if rows < POINTS:  # several points a row
        return max(1, rows * columns // POINTS)
    spread = (step for step in range(1, columns + 1) if columns // gcd(step, columns) >= min(POINTS, columns))
    return rows // POINTS * columns + min(spread, key=lambda step: abs(step - _GOLDEN * columns))
