"""The quantized cache that grows: codes and scales of each token and head, appended as they come.

Per layer (codes of k, scales of k, codes of v, scales of v), each (B, Hkv, S, ...); one table of positions (B, S) for
all layers. What is new is read as it is stored, so a token at a time and all at once give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from ..inputs import whole
from .base import MOST_ROWS, Cache
from .quant_codes import TokenCodec
from .quant_format import QUANT_FORMATS, QuantFormat
from .traits import HasShape, Traits, storage_bytes, stored_dims

INT8 = QUANT_FORMATS["int8"]


class QuantCache(Cache):
    """`DynamicCache` in codes. Padding takes a slot and is never read. For KIVI: `KiviStore(...).rows(n)`."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        form: QuantFormat = INT8,
    ):
        if form.per_channel:
            raise ValueError(
                f"{form.name} scales channels over the tokens of a block, which is filled first; use "
                "KiviStore(...).rows(n)."
            )
        rows = whole(rows, "rows", 0, MOST_ROWS)
        self.form, self.traits = form, Traits(tolerance=form.tolerance)
        heads, *widths = stored_dims(config)
        self._codecs = [TokenCodec(form, width, dtype, device) for width in widths]
        empty = tuple(
            torch.zeros(rows, heads, 0, width, dtype=kind, device=device)
            for codec in self._codecs
            for width, kind in codec.layout
        )
        self.planes = [empty] * len(config.storing_layers)
        self.positions = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    @classmethod
    def for_model(cls, model: HasShape, rows: int, form: QuantFormat = INT8) -> QuantCache:
        """An empty cache on the model's device, read in the model's dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, weight.dtype, weight.device, form)

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        held = self.positions.shape[1]
        if any(planes[0].shape[2] > held for planes in self.planes):
            self._cut(held)  # what a forward that died left behind
        self._k_pos = torch.cat([self.positions, pos], 1)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        new = [plane for codec, x in zip(self._codecs, (k, v), strict=True) for plane in codec.encode(x)]
        self.planes[layer] = tuple(torch.cat(pair, 2) for pair in zip(self.planes[layer], new, strict=True))
        return self.read(layer)

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self._codecs
        planes = self.planes[layer]
        k, v = keys.decode(*planes[:2]), values.decode(*planes[2:])
        return k, v, self._k_pos[:, : k.shape[2]]

    def advance(self, pos: Tensor) -> None:
        super().advance(pos)
        self.positions = self._k_pos

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)
        positions = self.positions.masked_fill(self.positions >= new[:, None], -1)
        used = (positions >= 0).any(0).nonzero()
        size = int(used[-1]) + 1 if used.numel() else 0
        self.positions, self.lengths = positions[:, :size].clone(), new
        self._cut(size)

    def _cut(self, size: int) -> None:
        # a view would keep the forgotten part alive
        self.planes = [tuple(plane[:, :, :size].clone() for plane in planes) for planes in self.planes]

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.planes = [tuple(plane[index] for plane in planes) for planes in self.planes]
        self.positions, self.lengths = self.positions[index], self.lengths[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes([plane for planes in self.planes for plane in planes])
