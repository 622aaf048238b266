"""Small working kinds of cache that stand in the contract tests until the chapters bring the real ones.

Each declares in its traits what it cannot keep; the contract holds it to the rest.
"""

from __future__ import annotations

import torch

from lumen.cache import BlockStore, Traits


class Int8Store(BlockStore):
    """Blocks of int8: one scale for each token and head, the largest magnitude over 127."""

    traits = Traits(tolerance=0.03)

    def _layout(self, widths, dtype):
        self.dtype = dtype
        return *((width, torch.int8) for width in widths), *((1, torch.float32) for _ in widths)

    def pack(self, k, v):
        scales = [x.abs().amax(-1, keepdim=True).float() / 127 for x in (k, v)]
        numbers = [
            (x / s.clamp(min=1e-12)).round().to(torch.int8) for x, s in zip((k, v), scales, strict=True)
        ]
        return *numbers, *scales

    def unpack(self, planes):
        k, v, *scales = planes
        return tuple((x * s).to(self.dtype) for x, s in zip((k, v), scales, strict=True))
