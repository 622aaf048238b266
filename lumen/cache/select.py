"""A cache that forgets nothing and reads little: each decode step looks at the pages that may matter to its query.

    page        0             1             2             3         16 positions each
    low, high   channel by channel the least and the greatest number of its keys
    bound       sum over channels of max(q · low, q · high): no key of the page can score more
    read        the `pages` of the highest bounds, among them always the one being filled

A step then reads the bounds, two vectors a page, and the keys and values of the chosen pages; how many bytes that is,
`bytes_read` says. Memory stays that of a full cache. Prompts, and anything else of several tokens a row, read all.
Tang et al. 2024, Quest, section 3 and algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.sparse.blocks import upper_bound
from ..config import ModelConfig
from ..inputs import whole
from .base import Cache
from .dense import StaticCache
from .traits import HasShape, Traits, storage_bytes, stored_dims


class QuestCache(Cache):
    """`capacity` positions a row (rounded up to whole pages), of which a decode step reads `pages` pages a head.

    The first `dense_layers` read everything: their attention is not sparse (section 3.1 of the paper). Query heads that
    share a key/value head share its pages: each spreads one vote by the softmax of its bounds, and the votes are added.
    With room for all pages it is exact, and says so in its traits.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        pages: int,
        page_size: int = 16,
        dense_layers: int = 2,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.pages, self.page_size = whole(pages, "pages", 1), whole(page_size, "page_size", 1)
        self.dense_layers, self.config = whole(dense_layers, "dense_layers"), config
        if config.latent is not None:
            raise ValueError(
                f"Bounds are of keys, but {config.name} stores latents that its layers expand. Take another cache."
            )
        count = -(-whole(capacity, "capacity", 1) // page_size)
        self.dense = StaticCache(config, rows, count * page_size, dtype, device)
        heads, width, _ = stored_dims(config)
        shape = len(config.storing_layers), rows, heads, count, width
        self.low, self.high = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.traits = Traits(0.0 if pages >= count else math.inf, per_head=True, same_positions=False)

    @classmethod
    def for_model(
        cls,
        model: HasShape,
        rows: int,
        capacity: int,
        pages: int,
        page_size: int = 16,
        dense_layers: int = 2,
    ) -> QuestCache:
        """An empty cache on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, capacity, pages, page_size, dense_layers, weight.dtype, weight.device)

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return self.dense.lengths

    @property
    def capacity(self) -> int:
        return self.dense.capacity

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        self.dense.begin(pos)
        size, count = self.page_size, self.low.shape[3]
        k_pos = self.dense.read(0)[2]
        self._used = -(-k_pos.shape[1] // size)  # pages that any row reaches into
        self._pos = F.pad(k_pos, (0, count * size - k_pos.shape[1]), value=-1).unflatten(1, (count, size))
        self._ends = torch.maximum(self.lengths, pos.amax(1) + 1)
        first = torch.where(pos >= 0, pos, self.capacity).amin(1) // size
        touched = (pos.amax(1).clamp(min=0) // size - first).clamp(min=0).amax() + 1 if len(pos) else 1
        steps = torch.arange(int(touched), device=pos.device)
        self._touched = (first[:, None] + steps).clamp(
            max=count - 1
        )  # (B, n): pages that this forward writes to
        self._row = torch.arange(len(pos), device=pos.device)[:, None]

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.dense.update(layer, k, v, pos, q)
        self._bound(layer)
        return self.read(layer, q)

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if (
            q is None
            or q.shape[2] > 1
            or layer < self.dense_layers  # as layers are counted here: those that store
            or self._used <= self.pages
        ):
            return self.dense.read(layer, q)
        chosen = self._choose(layer, q)  # (B, Hkv, pages)
        heads = torch.arange(chosen.shape[1], device=q.device)[:, None]
        keys, values = (
            self._paged(x)[self._row[..., None], heads, chosen].flatten(2, 3)
            for x in (self.dense.k[layer], self.dense.v[layer])
        )
        return keys, values, self._pos[self._row[..., None], chosen].flatten(2)

    def _paged(self, x: Tensor) -> Tensor:
        """A layer's slots (B, Hkv, capacity + 1, D) as pages (B, Hkv, P, page_size, D)."""
        return x[:, :, : self.capacity].unflatten(2, (-1, self.page_size))

    def _bound(self, layer: int) -> None:
        """Work out the bounds of the pages that were written to, from the keys that they hold now.

        So they depend on what is held and on nothing that was: a rewind needs no care, for whatever is written next is
        written into the page that was cut.
        """
        keys = self._paged(self.dense.k[layer])[self._row, :, self._touched]  # (B, n, Hkv, page_size, D)
        empty = (self._pos[self._row, self._touched] < 0)[:, :, None, :, None]
        none = empty.all(3)
        low = keys.masked_fill(empty, math.inf).amin(3).masked_fill(none, 0.0)
        high = keys.masked_fill(empty, -math.inf).amax(3).masked_fill(none, 0.0)
        self.low[layer][self._row, :, self._touched] = low
        self.high[layer][self._row, :, self._touched] = high

    def _choose(self, layer: int, q: Tensor) -> Tensor:
        """The pages (B, Hkv, pages) that q (B, H, 1, D) reads."""
        low, high = (x[layer, :, :, : self._used] for x in (self.low, self.high))
        scale = q.shape[3] ** -0.5 if self.config.query_scale is None else self.config.query_scale
        bounds = (upper_bound(q, low, high) * scale).float().unflatten(1, (low.shape[1], -1)).squeeze(3)
        newest = self._pos[:, : self._used].amax(2)  # of each page
        out = newest < 0
        window = self.config.window_of(self.config.storing_layers[layer])
        if window is not None:
            out = out | (newest < self._ends[:, None] - window)
        bounds = bounds.masked_fill(out[:, None, None], torch.finfo(bounds.dtype).min)
        votes = bounds.softmax(-1).sum(2)
        filling = ((self._ends - 1).clamp(min=0) // self.page_size)[:, None, None]
        votes = votes.scatter(2, filling.expand(-1, votes.shape[1], -1), math.inf)
        return votes.topk(self.pages, -1).indices

    def bytes_read(self, length: int) -> int:
        """Bytes of keys, values and bounds that a decode step reads of a row which holds `length` positions with it.

        A step over several rows reads this of each, if they are equally long.
        """
        length = whole(length, "length", 1, self.capacity)
        used = -(-length // self.page_size)
        layers, _, heads, _, width = self.low.shape
        size, position = self.low.dtype.itemsize, self.dense.k.shape[4] + self.dense.v.shape[4]
        dense = layers if used <= self.pages else min(self.dense_layers, layers)
        sparse = self.pages * self.page_size * position + used * 2 * width
        return size * heads * (dense * length * position + (layers - dense) * sparse)

    def advance(self, pos: Tensor) -> None:
        self.dense.advance(pos)

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        self.dense.rewind(lengths)

    def reset(self) -> None:
        self.dense.reset()

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.dense.select(index)
        self.low, self.high = self.low[:, index], self.high[:, index]

    @property
    def nbytes(self) -> int:
        """Keys and values, spare slots included, and the bounds of the pages."""
        return self.dense.nbytes + storage_bytes([self.low, self.high])
