"""KIVI over blocks: keys in a scale for each channel, values in one for each token, and the newest tokens whole.

    block 4    codes of 32 tokens      k: step, min for each channel of a head     v: step, min for each token and head
    block 1    codes of 32 tokens
    block 6    k v k v k v .           still being filled: whole, in a place of its own, see `quant_tails`

A block is the group of tokens that shares the keys' scales, so it is rounded when it is full: a token at a time, in
chunks or all at once, the same tokens share a scale and the codes are the same. The forward that fills a block still
reads it whole where it was begun earlier: what is written last, drafts perhaps, changes nothing for who reads it. At
most `block_size` tokens of a sequence are whole (the paper keeps the newest 32 to 128, and values a little longer than
keys: section 3.3, algorithm 1). Full blocks are shared by prefix caches and copied like any other. Liu et al. 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from ..inputs import whole
from ..runtime import refuse_beyond_memory
from .quant_codes import ChannelCodec, TokenCodec
from .quant_format import QUANT_FORMATS, WHOLE_BLOCKS, QuantFormat
from .quant_tails import Filling, Tails
from .store import BlockStore, Content
from .traits import HasShape, Traits, storage_bytes, stored_dims

KIVI = QUANT_FORMATS["kivi"]
_NOTHING = Filling()


class KiviStore(BlockStore):
    """A `BlockStore` whose full blocks are codes. `sequences` of them may be unfinished at once; their blocks must be
    held in the pool. Blocks open and close in shapes that change with every step, so no graph is compiled over it."""

    fixed_shapes = False

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 32,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        form: QuantFormat = KIVI,
        sequences: int = 8,
    ):
        if not form.per_channel:
            raise ValueError(f"{form.name} scales every token by itself; use QuantStore.")
        heads, key, value = stored_dims(config)
        self.form, self.traits = form, Traits(tolerance=form.tolerance)
        self._keys = ChannelCodec(form, key, dtype, device)
        self._values = TokenCodec(form, value, dtype, device)
        super().__init__(config, num_blocks, block_size, dtype, device)
        count = min(WHOLE_BLOCKS * whole(sequences, "sequences", 1), num_blocks)
        tail = self.num_layers, count, block_size, heads
        refuse_beyond_memory(
            self.num_layers * count * block_size * heads * (key + value) * dtype.itemsize, device,
            f"{count} whole blocks of {block_size} positions", "Take fewer sequences, or smaller blocks.",
        )  # fmt: skip
        width, kind = self._keys.layout[1]
        self.key_scales = torch.zeros(
            self.num_layers, num_blocks + 1, heads, 2, width, dtype=kind, device=device
        )
        self.whole = tuple(torch.zeros(*tail, width, dtype=dtype, device=device) for width in (key, value))
        self._tails = Tails(count, block_size, self.spare, lambda block: self.pool.refs(block) > 0)
        self._filling, self._written = _NOTHING, True  # of the latest forward, and whether it got to its end

    @classmethod
    def for_model(
        cls,
        model: HasShape,
        num_blocks: int,
        block_size: int = 32,
        form: QuantFormat = KIVI,
        sequences: int = 8,
    ) -> KiviStore:
        """An empty store on the model's device, read in the model's dtype."""
        weight = next(model.parameters())
        return cls(model.config, num_blocks, block_size, weight.dtype, weight.device, form, sequences)

    @property
    def kind(self) -> str:
        return self.form.name

    def _layout(self, widths: Sequence[int], dtype: torch.dtype) -> tuple[tuple[int, torch.dtype], ...]:
        return self._keys.layout[0], *self._values.layout

    # What a forward does

    def prepare(self, slots: Iterable[int]) -> None:
        """Find whole places for the forward that writes `slots`. CacheFull changes nothing."""
        self._settle()
        filling = self._tails.fill(slots)
        for block, place in filling.opened:
            for plane, old in zip(self.whole, self._decoded(slice(None), self._index([block])), strict=True):
                plane[:, place] = old[:, 0]
        self._filling, self._written = filling, False
        self._of_whole = self._index([token for _, tokens in filling.whole for token in tokens])
        self._whole_blocks = self._index([block for block, _ in filling.whole])
        self._slots_now, self._tokens_now = self._index(filling.slots), self._index(filling.tokens)
        self._closing = tuple(self._index(side) for side in zip(*filling.closing, strict=True))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        if self._written:
            self.prepare(slots.tolist())
        filling = self._filling
        if filling.whole:
            shape = len(filling.whole), self.block_size
            new = (x.index_select(0, self._of_whole).unflatten(0, shape) for x in (k, v))
            self._round(layer, self._whole_blocks, *new)
        if filling.slots:
            for plane, x in zip(self.whole, (k, v), strict=True):
                plane[layer].flatten(0, 1).index_copy_(
                    0, self._slots_now, x.index_select(0, self._tokens_now)
                )
        if filling.closing:
            blocks, places = self._closing
            self._round(layer, blocks, *(plane[layer].index_select(0, places) for plane in self.whole))
        self._written = layer == self.num_layers - 1

    def _settle(self) -> None:
        """Close what the latest forward filled; one that died half-way has filled nothing."""
        if self._written:
            self._tails.commit(self._filling)
        self._filling, self._written = _NOTHING, True

    def _round(self, layer: int, blocks: Tensor, k: Tensor, v: Tensor) -> None:
        """Full blocks k, v (..., N, block_size, Hkv, D) become codes."""
        codes, scales = self._keys.encode(k)
        held = (*(plane[layer] for plane in self.planes), self.key_scales[layer])
        for plane, new in zip(held, (codes, *self._values.encode(v), scales), strict=True):
            plane.index_copy_(0, blocks, new)

    def _decoded(self, layer: int | slice, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """What the codes of blocks say: k and v (..., N, block_size, Hkv, D)."""
        at = 0 if isinstance(layer, int) else 1
        k, v, v_scales, k_scales = (
            plane[layer].index_select(at, blocks) for plane in (*self.planes, self.key_scales)
        )
        return self._keys.decode(k, k_scales), self._values.decode(v, v_scales)

    def _open(self, blocks: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which of the blocks are read whole, and where: index and place, each (N,)."""
        found = self._tails.open_among(blocks.tolist(), self._filling)
        return tuple(self._index(side) for side in zip(*found, strict=True)) or None  # type: ignore[return-value]

    def _blocks(
        self, layer: int, blocks: Tensor, found: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        read = self._decoded(layer, blocks)
        if found is not None:
            for x, plane in zip(read, self.whole, strict=True):
                x.index_copy_(0, found[0], plane[layer].index_select(0, found[1]))
        return read

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        return self._blocks(layer, blocks, self._open(blocks))

    def gather(self, tables: Tensor, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        blocks, shape = tables.flatten(), (tables.shape[0], tables.shape[1] * self.block_size)
        found = self._open(blocks)

        def one(layer: int) -> tuple[Tensor, Tensor]:
            k, v = (
                x.view(*shape, *x.shape[2:])[:, :length].transpose(1, 2)
                for x in self._blocks(layer, blocks, found)
            )
            return k, v

        return one

    # What comes and goes: full blocks as codes, the rest of a sequence whole

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._settle()
        needed = [block for pair in pairs for block in pair]
        for source, target in pairs:  # all places before any content
            if source in self._tails.place:
                self._tails.open(target, needed)
        super().copy(pairs)
        for source, target in pairs:
            self.key_scales[:, target] = self.key_scales[:, source]
            if source in self._tails.place:
                for plane in self.whole:
                    plane[:, self._tails.place[target]] = plane[:, self._tails.place[source]]
            elif source in self._tails.closed:
                self._tails.close(target)

    def _whole_of(self, block: int, layers: slice = slice(None)) -> tuple[Tensor, ...]:
        """One block's k and v (layers, block_size, Hkv, D), never rounded where its whole place is still there."""
        place = self._tails.place.get(block)
        if place is not None:
            return tuple(plane[layers, place] for plane in self.whole)
        return tuple(x[:, 0] for x in self._decoded(layers, self._index([block])))

    def take(self, blocks: Sequence[int], length: int) -> Content:
        self._settle()
        full, rest = divmod(length, self.block_size)
        index = self._index(blocks[:full])
        parts = [plane.index_select(1, index) for plane in (*self.planes, self.key_scales)]
        parts += [x[:, :rest] for x in self._whole_of(blocks[full])] if rest else []
        return Content(tuple(part.to("cpu", copy=True) for part in parts), length)

    def put(self, blocks: Sequence[int], content: Content) -> None:
        self._settle()
        full, rest = divmod(content.length, self.block_size)
        if rest:
            place = self._tails.open(blocks[full])
            for plane, x in zip(self.whole, content.planes[-2:], strict=True):
                plane[:, place, :rest] = x.to(plane.device)
        index = self._index(blocks[:full])
        for plane, x in zip((*self.planes, self.key_scales), content.planes, strict=False):
            plane.index_copy_(1, index, x.to(plane.device))
        for block in blocks[:full]:
            self._tails.close(block)

    @torch.inference_mode()
    def wipe(self, blocks: Sequence[int]) -> None:
        self._settle()
        super().wipe(blocks)
        for block in blocks:
            self.key_scales[:, block] = 0
            place = self._tails.forget(block)
            if place is not None:
                for plane in self.whole:
                    plane[:, place] = 0

    def export(
        self, blocks: Sequence[int], length: int, layers: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        self._settle()
        full, rest = divmod(length, self.block_size)
        k, v = (x.flatten(1, 2) for x in self._decoded(layers, self._index(blocks[:full])))
        if rest:
            last = self._whole_of(blocks[full], layers)
            k, v = (torch.cat([x, y[:, :rest]], 1) for x, y in zip((k, v), last, strict=True))
        return k, v

    def content(self, k: Tensor, v: Tensor) -> Content:
        self._check_plain(k, v)
        full, rest = divmod(k.shape[1], self.block_size)
        end = full * self.block_size
        keys, values = (x[:, :end].unflatten(1, (full, self.block_size)) for x in (k, v))
        codes, scales = self._keys.encode(keys)
        open_ = [x[:, end:] for x in (k, v)] if rest else []
        return Content((codes, *self._values.encode(values), scales, *open_), k.shape[1])

    @property
    def block_bytes(self) -> int:
        return super().block_bytes + self.key_scales[:, 0].nbytes

    @property
    def nbytes(self) -> int:
        return storage_bytes([*self.planes, self.key_scales, *self.whole])

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self.device)
