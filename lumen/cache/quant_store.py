"""Blocks of codes: every token's heads are rounded by themselves, so blocks are written and shared as plain ones are.

    plain    k (.., Hkv, D)            v (.., Hkv, Dv)
    here     codes of k | of v         scales of k | of v          two pools: bytes, and two-byte scales

A token's codes depend on nothing but itself: any chunking stores the same bits, and `rewind`, copies, swapping and
prefix caches need no word about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from .quant_codes import TokenCodec
from .quant_format import QUANT_FORMATS, QuantFormat
from .store import BlockStore
from .traits import HasShape, Traits, stored_dims

INT8 = QUANT_FORMATS["int8"]


class QuantStore(BlockStore):
    """A `BlockStore` of codes. ValueError for a format that rounds the tokens of a block together: see `KiviStore`."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        form: QuantFormat = INT8,
    ):
        if form.per_channel:
            raise ValueError(
                f"{form.name} scales channels over the tokens of a block, which is filled first; use KiviStore."
            )
        self.form, self.traits = form, Traits(tolerance=form.tolerance)
        _, *widths = stored_dims(config)
        self._codecs = [TokenCodec(form, width, dtype, device) for width in widths]
        super().__init__(config, num_blocks, block_size, dtype, device)

    @classmethod
    def for_model(
        cls, model: HasShape, num_blocks: int, block_size: int = 16, form: QuantFormat = INT8
    ) -> QuantStore:
        """An empty store on the model's device, read in the model's dtype."""
        weight = next(model.parameters())
        return cls(model.config, num_blocks, block_size, weight.dtype, weight.device, form)

    @property
    def kind(self) -> str:
        return self.form.name

    def _layout(self, widths: Sequence[int], dtype: torch.dtype) -> tuple[tuple[int, torch.dtype], ...]:
        codes, scales = zip(*(codec.layout for codec in self._codecs), strict=True)
        return *codes, *scales

    def pack(self, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        codes, scales = zip(*(c.encode(x) for c, x in zip(self._codecs, (k, v), strict=True)), strict=True)
        return *codes, *scales

    def unpack(self, planes: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        keys, values = self._codecs
        return keys.decode(planes[0], planes[2]), values.decode(planes[1], planes[3])
