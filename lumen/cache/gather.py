"""Blocks brought together for attention, a layer at a time, into one buffer that serves every layer of a forward.

A layer then costs one copy a pool. Memory is asked for once and stays in the CPU's caches, and the buffer is taken
apart into rows, heads and planes once: done in every layer, all of that costs more than attention over short texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .store import BlockStore


class Gather:
    """Keys and values at positions 0 to `length` of tables (rows, width), which lists the blocks of each row.

    Called with a layer, it gives k (rows, Hkv, length, D) and v (rows, Hkv, length, Dv), good until the next call.
    """

    def __init__(self, store: BlockStore, tables: Tensor, length: int):
        self._store, self._blocks = store, tables.flatten()
        self._buffers = store.buffers(len(self._blocks))
        shape = tables.shape[0], tables.shape[1] * store.block_size
        self._planes = tuple(
            plane.view(*shape, *plane.shape[2:])[:, :length].transpose(1, 2)
            for plane in store.split(self._buffers)
        )

    def __call__(self, layer: int) -> tuple[Tensor, Tensor]:
        for pool, buffer in zip(self._store.pools[layer], self._buffers, strict=True):
            torch.index_select(pool, 0, self._blocks, out=buffer)
        return self._store.unpack(self._planes)
