"""A decoder whose decode step is compiled: one token of each row, over a cache whose shapes stay, is one graph.

    fast = Compiled(model)
    generate(fast, prompts, 40)          # the first call compiles, the next ones in the same bucket do not
    Engine(fast, num_blocks=256)         # steps that only decode run the graph

A graph is made for each number of rows and each size of cache, so sizes are taken from few: powers of two times a
least one. Prompts, drafts, trees and growing caches come in as many shapes as there are calls and run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..cache import Cache, CacheFull, DecodeBatch, StaticCache
from ..cache.decode_batch import bucket
from ..models.decoder import check_range
from ..models.passing import PLAIN, Channels

if TYPE_CHECKING:
    from ..config import ModelConfig
    from ..models.layers import Decoder

GRAPHS = 64  # of one model; torch itself gives up at 8, which is fewer than two bucketed sizes need


class Model(Protocol):
    """What generation and serving ask of a model: a `Decoder`, or a `Compiled` one."""

    config: ModelConfig

    def parameters(self) -> Iterator[Tensor]: ...
    def hidden(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        channels: Channels = PLAIN,
    ) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...


class Compiled:
    """Takes the place of `model` in `generate` and in `Engine`; answers are the same.

    `rows` and `positions` are the smallest batch and the shortest cache that a graph is made for; larger ones double.
    Compiled attention reads every position of its bucket under a mask, so `positions` far above what is asked for cost
    time. `backend` and `mode` go to `torch.compile`; "inductor" needs a C++ compiler on a CPU.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        rows: int = 1,
        positions: int = 256,
        backend: str | Callable[..., Any] = "inductor",
        mode: str | None = None,
    ):
        if rows < 1 or positions < 1:
            raise ValueError(
                f"The smallest bucket has a row and a position at least, got rows={rows} and positions={positions}."
            )
        self.model, self.config, self.rows, self.positions = model, model.config, rows, positions
        self._step = torch.compile(model.hidden, fullgraph=True, dynamic=False, backend=backend, mode=mode)

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def capacity(self, count: int) -> int:
        """The bucket of `count` positions, cut to what the model knows."""
        return max(count, min(bucket(count, self.positions), self.config.max_positions))

    def hidden(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        channels: Channels = PLAIN,
    ) -> Tensor:
        """As `Decoder.hidden`: through the graph where each row has one new token and the cache keeps its shapes."""
        if cache is None or not _steps(tokens, pos, cache):
            return self.model.hidden(tokens, pos, cache, channels)
        # Copies: strides of a slice are another graph, and so are the cache's own lengths, which are written.
        pos = cache.lengths[:, None] if pos is None else pos
        tokens, pos = (x.clone(memory_format=torch.contiguous_format) for x in (tokens, pos))
        if tokens.device.type == "cpu":  # a graph cannot raise; on a GPU the look would hold it up
            check_range(tokens, pos, self.config)
            if cache.capacity is not None and (last := int(pos.max())) >= cache.capacity:
                raise CacheFull(
                    f"Position {last} does not fit: this cache reserves {cache.capacity} positions per row."
                )
        with torch._dynamo.config.patch(recompile_limit=GRAPHS):
            return self._step(tokens, pos, cache, channels)

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden)


def _steps(tokens: Tensor, pos: Tensor | None, cache: Cache) -> bool:
    """One token of each row over a cache of fixed shapes. What does not fit is left to the model, which says so."""
    if pos is not None and pos.shape != tokens.shape:
        return False
    if isinstance(cache, DecodeBatch):
        return tokens.shape == cache.pos.shape
    return isinstance(cache, StaticCache) and tokens.shape == (cache.lengths.shape[0], 1)
