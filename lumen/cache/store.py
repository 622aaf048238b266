"""The memory that paged caches share: blocks of keys and values, the pool's books, a prefix cache.

    planes   k  (layers, num_blocks + 1, block_size, Hkv, D)     the block behind the last takes what padding writes
             v  (layers, num_blocks + 1, block_size, Hkv, Dv)
    pool     k k k k v v v v                                     planes of one dtype lie side by side, read at once

Whoever reads and writes blocks does it through this class and never sees a plane, so a store may keep something else
than what it is given: a subclass says which planes there are (`_layout`) and how keys and values become their content
and come back (`pack`, `unpack`). A slot is `block * block_size + place`; a position is found by a table, see `paged`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config import ModelConfig
from ..formats import dtype_name
from ..inputs import whole
from ..parts import Window
from ..runtime import refuse_beyond_memory
from .gather import Gather
from .pool import BlockPool
from .prefix import NoPrefix, Prefix, allocate
from .traits import HasShape, Traits, storage_bytes, stored_dims

if TYPE_CHECKING:
    from .paged import PagedCache


@dataclass(frozen=True)
class Content:
    """What the first `length` positions of a sequence hold, away from the blocks: planes (layers, length, Hkv, ...), or
    what else a kind of store makes of them."""

    planes: tuple[Tensor, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return storage_bytes(self.planes)


class BlockStore:
    """`num_blocks` blocks of `block_size` positions. `traits` are those of the caches that live here.

    ValueError, before any memory is taken, when there is not enough of it.
    """

    traits = Traits()
    fixed_shapes = (
        True  # of what reads and writes do, whatever comes: a compiled step may run over this store
    )

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        num_blocks, block_size = whole(num_blocks, "num_blocks", 1), whole(block_size, "block_size", 1, 2**20)
        self.num_layers = len(config.storing_layers)  # a layer that reads another's keys takes no memory
        heads, *widths = stored_dims(config)
        self.dtype, self._plain = dtype, [(self.num_layers, heads, width) for width in widths]
        shape = self.num_layers, num_blocks + 1, block_size, heads
        self._kept = self._layout(widths, dtype)
        self._widths = {
            kind: [width for width, other in self._kept if other == kind]
            for kind in dict.fromkeys(kind for _, kind in self._kept)
        }
        refuse_beyond_memory(
            math.prod(shape) * sum(width * kind.itemsize for width, kind in self._kept), device,
            f"{num_blocks} blocks of {block_size} positions", "Take fewer of them, or a smaller dtype.",
        )  # fmt: skip
        self.pool = BlockPool(num_blocks, block_size)
        self.prefix: Prefix = NoPrefix()
        self.kept: Window | None = (
            None  # what forwards over these blocks read of a sequence, if not all of it
        )
        self.block_size, self.spare = block_size, num_blocks
        kinds = tuple(
            torch.zeros(*shape, sum(widths), dtype=kind, device=device)
            for kind, widths in self._widths.items()
        )
        self.planes = self.split(kinds)
        self.caches: list[PagedCache] = []  # whoever holds tables; the audit asks them all
        # The same memory layer by layer, once as blocks and once as slots, so that no layer pays for taking it apart.
        self.pools = list(zip(*(pool.unbind(0) for pool in kinds), strict=True))
        self._slots = list(zip(*(plane.flatten(1, 2).unbind(0) for plane in self.planes), strict=True))

    @classmethod
    def for_model(cls, model: HasShape, num_blocks: int, block_size: int = 16) -> BlockStore:
        """An empty store on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, num_blocks, block_size, weight.dtype, weight.device)

    # What a kind of store decides

    def _layout(self, widths: Sequence[int], dtype: torch.dtype) -> tuple[tuple[int, torch.dtype], ...]:
        """The planes: how many numbers of which dtype each keeps of a head at a position. `widths` of k and v."""
        return tuple((width, dtype) for width in widths)

    def pack(self, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """k (..., D), v (..., Dv) as the planes hold them."""
        return k, v

    def unpack(self, planes: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """What `pack` was given, up to the tolerance of `traits`."""
        k, v = planes
        return k, v

    # What everybody asks

    @property
    def device(self) -> torch.device:
        return self.planes[0].device

    @property
    def kind(self) -> str:
        """What a user would call it: the number format of what is held."""
        return dtype_name(self.dtype)

    def prepare(self, slots: Iterable[int]) -> None:
        """Told once, before the layers write: the slots of a forward in the order of its tokens.

        CacheFull changes nothing. Plain blocks need not know, and do not look at `slots`.
        """

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k (N, Hkv, D), v (N, Hkv, Dv) in the slots (N,) of a layer."""
        for plane, new in zip(self._slots[layer], self.pack(k, v), strict=True):
            plane.index_copy_(0, slots, new)

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """One layer's blocks (N,) in this order: k (N, block_size, Hkv, D) and v (N, block_size, Hkv, Dv), copies."""
        return self.unpack(self.split(tuple(pool.index_select(0, blocks) for pool in self.pools[layer])))

    def gather(self, tables: Tensor, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """`read` for all layers of one forward: positions 0 to `length` of tables (rows, width)."""
        return Gather(self, tables, length)

    def buffers(self, count: int) -> tuple[Tensor, ...]:
        """Memory for `count` blocks of one layer, a tensor for each pool, not yet written."""
        return tuple(pool.new_empty(count, *pool.shape[1:]) for pool in self.pools[0])

    def split(self, pools: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Pools (..., widths of their planes) taken apart into planes, in the order of `_layout`."""
        parts = {
            kind: iter(pool.split(widths, -1))
            for (kind, widths), pool in zip(self._widths.items(), pools, strict=True)
        }
        return tuple(next(parts[kind]) for _, kind in self._kept)

    def rows(self, count: int) -> PagedCache:
        """A cache of `count` empty rows in this store."""
        from .paged import PagedCache

        if self.kept is not None:
            raise ValueError(
                f"This store serves windows ({self.kept}), and rows of one batch keep theirs in a WindowCache."
            )

        return PagedCache(self, count)

    def allocate(self, count: int) -> list[int]:
        """Blocks for whoever writes next; see `lumen.cache.prefix.allocate`."""
        return allocate(self.pool, self.prefix, count)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to) in all layers."""
        if pairs:
            source, target = (torch.tensor(side, device=self.device) for side in zip(*pairs, strict=True))
            for plane in self.planes:
                plane[:, target] = plane[:, source]

    def take(self, blocks: Sequence[int], length: int) -> Content:
        """Copy the first `length` positions of a table to host memory, as they are stored."""
        slots = self._slots_of(blocks, length)
        return Content(tuple(p.flatten(1, 2).index_select(1, slots).cpu() for p in self.planes), length)

    def put(self, blocks: Sequence[int], content: Content) -> None:
        """Bring content back into the blocks of a table, which need not be those it came from."""
        slots = self._slots_of(blocks, content.length)
        for plane, held in zip(self.planes, content.planes, strict=True):
            plane.flatten(1, 2).index_copy_(1, slots, held.to(plane.device))

    @torch.inference_mode()
    def wipe(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold NaN: their next owner multiplies by what it does not see, and 0 NaN is NaN."""
        index = torch.tensor(list(blocks), dtype=torch.int64, device=self.device)
        for plane in self.planes:
            plane.index_fill_(1, index, 0)

    def export(
        self, blocks: Sequence[int], length: int, layers: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Plain k and v (layers, length, Hkv, ...) of a table's first positions, on this device."""
        slots = self._slots_of(blocks, length)
        return self.unpack(tuple(p[layers].flatten(1, 2).index_select(1, slots) for p in self.planes))

    def content(self, k: Tensor, v: Tensor) -> Content:
        """Plain k and v (layers, length, Hkv, ...) that were computed elsewhere, ready for `put`.

        ValueError when they are not of this store's model.
        """
        self._check_plain(k, v)
        return Content(self.pack(k, v), k.shape[1])

    def _check_plain(self, k: Tensor, v: Tensor) -> None:
        want = self._plain
        if [(*x.shape[:1], *x.shape[2:]) for x in (k, v)] != want or k.shape[1] != v.shape[1]:
            raise ValueError(
                f"Keys and values of this model are {want[0]} and {want[1]} with a length behind the layers, "
                f"got {tuple(k.shape)} and {tuple(v.shape)}."
            )
        if k.dtype != self.dtype or v.dtype != self.dtype:
            raise ValueError(
                f"This store holds {self.dtype}, and keys and values of {k.dtype} and {v.dtype} were given; "
                "let both sides compute in one dtype."
            )

    def _slots_of(self, blocks: Sequence[int], length: int) -> Tensor:
        first = torch.tensor(list(blocks), dtype=torch.int64, device=self.device) * self.block_size
        return (first[:, None] + torch.arange(self.block_size, device=self.device)).flatten()[:length]

    def audit(self) -> None:
        """Raise PoolCorrupt unless every reference is explained by a table or the prefix cache."""
        tables = [table for cache in self.caches for table in cache.tables]
        self.pool.audit([*tables, self.prefix.blocks()])

    @property
    def block_bytes(self) -> int:
        """What one block takes, in all layers."""
        return sum(plane[:, 0].nbytes for plane in self.planes)

    @property
    def nbytes(self) -> int:
        return storage_bytes(self.planes)
