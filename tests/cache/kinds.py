"""Small working kinds of cache that stand in the contract tests until the chapters bring the real ones.

Each declares in its traits what it cannot keep; the contract holds it to the rest.
"""

from __future__ import annotations

import math

import torch

from lumen.cache import BlockStore, Cache, Traits
from lumen.cache.traits import storage_bytes


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


class HeavyHitterCache(Cache):
    """Each head of each layer keeps the `budget` keys that were read most, and always the newest `recent`.

    Zhang et al. 2023, H2O, algorithm 1. Keys leave in `advance`: the forward that makes one leave still reads it.
    """

    traits = Traits(math.inf, max_rewind=0, per_head=True, same_positions=False, weighs=True)

    def __init__(self, model, rows, budget, recent):
        weight, config = next(model.parameters()), model.config
        self.budget, self.recent, self.heads = budget, recent, config.num_kv_heads
        none = torch.zeros(rows, self.heads, 0, config.head_dim, dtype=weight.dtype)
        self.k, self.v = [none] * config.num_layers, [none] * config.num_layers
        self.k_pos = [torch.zeros(rows, self.heads, 0, dtype=torch.int64)] * config.num_layers
        self.score = [torch.zeros(rows, self.heads, 0, dtype=torch.float64)] * config.num_layers
        self.lengths = torch.zeros(rows, dtype=torch.int64)

    def begin(self, pos):
        super().begin(pos)
        self._next = {}

    def update(self, layer, k, v, pos, q=None):
        at = pos[:, None].expand(-1, self.heads, -1)
        keys, values = torch.cat([self.k[layer], k], 2), torch.cat([self.v[layer], v], 2)
        self._next[layer] = keys, values, torch.cat([self.k_pos[layer], at], 2)
        return self._next[layer]

    def weigh(self, layer, weights, pos):
        keys, values, k_pos = self._next[layer]
        score = weights.unflatten(1, (self.heads, -1)).sum((2, 3)).double()
        score[:, :, : self.score[layer].shape[2]] += self.score[layer]
        self._next[layer] = keys, values, k_pos, score

    def advance(self, pos):
        super().advance(pos)
        for layer, (keys, values, k_pos, score) in self._next.items():
            newest = k_pos >= (self.lengths - self.recent)[:, None, None]
            rank = score.masked_fill(newest, math.inf).masked_fill(k_pos < 0, -1.0)
            kept = rank.topk(min(self.budget, rank.shape[2]), -1).indices.sort(-1).values
            self.k[layer], self.v[layer] = (x.take_along_dim(kept[..., None], 2) for x in (keys, values))
            self.k_pos[layer], self.score[layer] = k_pos.gather(2, kept), score.gather(2, kept)

    def rewind(self, lengths):
        self._checked_lengths(lengths)

    def select(self, rows):
        index = self._checked_rows(rows)
        for held in (self.k, self.v, self.k_pos, self.score):
            held[:] = [x[index] for x in held]
        self.lengths = self.lengths[index]

    @property
    def nbytes(self):
        return storage_bytes([*self.k, *self.v, *self.score])
