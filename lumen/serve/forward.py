"""How a step's tokens reach the model: packed as they come, or in a batch of fixed shapes when a graph was compiled.

Packed     any mixture of chunks, answers and drafts; a new cache each step, so each call may look different
Bucketed   one token of each sequence: one compiled graph for each bucket of rows and lengths; the rest is packed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..cache.decode_batch import DecodeBatch, bucket
from ..cache.packed import PackedCache, Segment
from ..cache.store import BlockStore
from ..decode.compiled import Compiled, Model


class Forward(Protocol):
    """Computes the segments of a step; their blocks are reserved."""

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment]) -> Tensor:
        """tokens of all segments, one behind the other (N) -> final hidden states (N, D)."""


class Packed:
    """Everything in one row, see `lumen.cache.packed`."""

    def __init__(self, model: Model, store: BlockStore):
        self.model, self.store = model, store

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment]) -> Tensor:
        cache = PackedCache(self.store, segments)
        return self.model.hidden(torch.tensor([tokens], device=cache.pos.device), cache.pos, cache)[0]


class Bucketed:
    """Steps that only decode run the compiled model, padded to a bucket; the buckets' batches are kept."""

    def __init__(self, model: Compiled, store: BlockStore):
        self.model, self.store = model, store
        self._packed = Packed(model, store)
        self._batches: dict[tuple[int, int], DecodeBatch] = {}

    def __call__(self, tokens: Sequence[int], segments: Sequence[Segment]) -> Tensor:
        if any(segment.count > 1 for segment in segments):
            return self._packed(tokens, segments)
        rows = bucket(len(segments), self.model.rows)
        positions = self.model.capacity(max(segment.end for segment in segments))
        shape = rows, -(-positions // self.store.block_size)
        if shape not in self._batches:
            self._batches[shape] = DecodeBatch(self.store, *shape)
        batch = self._batches[shape]
        batch.load(segments)
        padded = torch.tensor([[*tokens, *[0] * (rows - len(tokens))]], device=batch.pos.device)
        return self.model.hidden(padded, batch.pos, batch)[0, : len(tokens)]


def forward_for(model: Model, store: BlockStore) -> Forward:
    """Who computes the steps of this model."""
    return Bucketed(model, store) if isinstance(model, Compiled) else Packed(model, store)
