"""How a step's tokens reach the model: packed as they come, or in a batch of fixed shapes when a graph was compiled.

Packed     any mixture of chunks, answers and drafts; a new cache each step, so each call may look different
Bucketed   one token of each sequence: one compiled graph for each bucket of rows and lengths; the rest is packed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..cache.decode_batch import DecodeBatch, bucket
from ..cache.packed import PackedCache, Segment, positions_read
from ..cache.store import BlockStore
from ..decode.compiled import Compiled, Model
from ..models.lora import NO_ADAPTERS, NoAdapters
from ..models.passing import PLAIN, Channels


@dataclass(frozen=True)
class Told:
    """What the model is told beside tokens: `channels` in every step, and of the bank `adapters` each token's own."""

    channels: Channels = PLAIN
    adapters: NoAdapters = NO_ADAPTERS


class Forward(Protocol):
    """Computes the segments of a step; their blocks are reserved."""

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment], adapters: Sequence[int]) -> Tensor:
        """Tokens of all segments, one behind the other, and each one's adapter (N) -> final hidden states (N, D)."""


class Packed:
    """Everything in one row, see `lumen.cache.packed`."""

    def __init__(self, model: Model, store: BlockStore, told: Told):
        self.model, self.store, self.told = model, store, told

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment], adapters: Sequence[int]) -> Tensor:
        cache = PackedCache(self.store, segments)
        channels = self.told.adapters.beside(self.told.channels, [adapters], self.store.device)
        ids = torch.tensor([tokens], device=self.store.device)
        return self.model.hidden(ids, cache.pos, cache, channels)[0]


class Bucketed:
    """Steps that only decode run the compiled model, padded to a bucket; the buckets' batches are kept."""

    def __init__(self, model: Compiled, store: BlockStore, told: Told):
        self.model, self.store, self.told = model, store, told
        self._packed = Packed(model, store, told)
        self._batches: dict[tuple[int, int], DecodeBatch] = {}

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment], adapters: Sequence[int]) -> Tensor:
        if any(segment.count > 1 for segment in segments):
            return self._packed(tokens, segments, adapters)
        rows = bucket(len(segments), self.model.rows)
        positions = self.model.capacity(max(positions_read(segment, self.store) for segment in segments))
        width = -(-positions // self.store.block_size)
        shape = rows, min(width, self.store.pool.num_blocks)  # a table is never longer
        if shape not in self._batches:
            self._batches[shape] = DecodeBatch(self.store, *shape)
        batch = self._batches[shape]
        batch.load(segments)
        free = rows - len(tokens)
        ids = torch.tensor([[*tokens, *[0] * free]], device=self.store.device)
        chosen = [*adapters, *[-1] * free]
        channels = self.told.adapters.beside(self.told.channels, [chosen], self.store.device)
        return self.model.hidden(ids, batch.pos, batch, channels)[0, : len(tokens)]


def forward_for(model: Model, store: BlockStore, told: Told) -> Forward:
    """Who computes the steps of this model. ValueError where the store cannot follow: KIVI a graph, or a window."""
    if store.kept is not None and not store.fixed_shapes:
        raise ValueError(
            f"{type(store).__name__} knows which blocks are full by filling them in order, and a window ({store.kept}) "
            "gives them back; keep the window plain, as int8 or as int4."
        )
    if isinstance(model, Compiled) and not store.fixed_shapes:
        raise ValueError(
            f"{type(store).__name__} writes and reads in shapes that change with every step, and a compiled graph is "
            "made for one; serve the model uncompiled, or keep the cache as int8 or int4."
        )
    return Bucketed(model, store, told) if isinstance(model, Compiled) else Packed(model, store, told)
