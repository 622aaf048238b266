"""The contract that every key/value cache keeps, so that models, generation and serving never ask which kind it is.

One forward pass makes these calls, and `pos` (B, T) is the same tensor in all of them, but for the kinds that take
rows apart in `laid_out`: their layers see one row a token.

    begin(pos)                              once, before the first layer
    attend(layer, q, k, v, pos, window)     once per layer; or, in a layer that carries a state,
    state(layer), set_state(layer, ...)     what it left behind the last token, and what it leaves now
    advance(pos)                            once, after the last layer

`layer` counts the layers that store something, see `ModelConfig.cache_place`.

C1  pos = -1 writes nothing and advances nothing.
C2  `k_pos` is an absolute position, never a slot number.
C3  slots with k_pos = -1 hold finite numbers (a NaN in a masked value row leaks through attention).
C4  lossless kinds equal the forward without a cache, for any chunking, padding side and mix of rows.
C5  `rewind`, then replay, equals never having written; a kind that cannot rewind raises before it changes anything.
C6  no room: `CacheFull` from `begin`, before any layer is written.
C7  after `select` with repeated rows, writing to one copy leaves the others alone.
C8  `nbytes` is the real storage of keys and values, spare slots included.

What a kind cannot keep of this it declares in `traits`; tests/cache/test_contract.py holds every kind to its traits.
New tokens of one row stand at different positions; siblings of a draft tree go through `lumen.cache.Tree`.

A forward that dies half-way (an interrupt, memory) leaves no trace: what it stored becomes visible in `advance` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with, mask_for
from ..attention.tiles import attend_in_tiles
from ..inputs import INT64, shown, wholes
from .errors import CacheFull
from .traits import Expand, Traits, refuse_repeats, storage_bytes

__all__ = ["MOST_ROWS", "Cache", "CacheFull", "Expand", "NoCache", "Traits", "storage_bytes"]

MOST_ROWS = 2**20  # of one batch, whatever its rows hold


class Cache:
    """Base of all kinds. `lengths` (B,) int64 is the position of each row's next token."""

    lengths: Tensor  # may be written in place: clone what is to be kept over a forward
    traits = Traits()

    @property
    def capacity(self) -> int | None:
        """Positions that a row can hold, None where nothing but memory limits them."""
        return None

    def begin(self, pos: Tensor) -> None:
        """Check that positions `pos` (B, T) fit and prepare one forward. Raises `CacheFull`; stores nothing yet.

        ValueError for what are no positions, for another number of rows, and for two new tokens of a row at one
        position.
        """
        if pos.dim() != 2 or pos.dtype != torch.int64:
            raise ValueError(f"Positions are int64 (rows, tokens), got {pos.dtype} {tuple(pos.shape)}.")
        if pos.shape[0] != self.lengths.shape[0]:
            raise ValueError(
                f"This cache holds {self.lengths.shape[0]} rows, but the tokens have {pos.shape[0]}."
            )
        if pos.shape[1] > 1 and pos.device.type == "cpu" and not torch.compiler.is_compiling():
            refuse_repeats(pos)  # on a GPU this look would stall the stream
        self._masks: dict[tuple[int | None, bool], Mask] = {}

    def laid_out(self, pos: Tensor) -> Tensor:
        """How the layers lay the forward's tokens out: their positions, in the same order, as (B, T) of `attend`."""
        return pos

    def num_sequences(self, pos: Tensor) -> int:
        """How many sequences' keys a layer of this forward reads; `pos` (B, T) as `laid_out` gave it."""
        return pos.shape[0]

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Store k (B, Hkv, T, D), v (B, Hkv, T, Dv) at `pos`; return the keys, values and positions that may be read.

        Returns k (B, Hkv, S, D), v (B, Hkv, S, Dv) and k_pos (B, S) or (B, Hkv, S). `q` is there for kinds that choose
        by the query.
        """
        raise NotImplementedError

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What `update` of this layer would return if there was nothing to store. Called inside a forward, after
        `begin`: new tokens are seen as soon as their layer is updated."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read without storing new tokens.")

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        pos: Tensor,
        window: int | None = None,
        *,
        scale: float | None = None,
        causal: bool = True,
        expand: Expand | None = None,
    ) -> Tensor:
        """Store k, v and return attention of q (B, H, T, D) over everything visible: (B, H, T, Dv).

        With k and v None nothing is stored: q reads what `layer` holds, its tokens of this forward among them. So
        layers share keys and values (Brandon et al. 2024, cross-layer attention; Sun et al. 2024, YOCO). `expand`
        turns what is stored into what is read. Fast kinds override this.
        """
        if k is None or v is None:
            k, v, k_pos = self.read(layer, q)
        else:
            k, v, k_pos = self.update(layer, k, v, pos, q)
        if expand is not None:
            k, v = expand(k, v)
        if self.traits.weighs or k_pos.dim() == 3:
            told = partial(self.weigh, layer) if self.traits.weighs else None
            return attend_in_tiles(
                q, k, v, pos, k_pos, window, scale=scale, causal=causal, kept=self.traits.kept, weigh=told
            )
        mask = self._masks.get((window, causal)) if self.traits.same_positions else None
        if mask is None:
            inspect = not torch.compiler.is_compiling()
            mask = mask_for(pos, k_pos, window, q.dtype, inspect, causal, kept=self.traits.kept)
            self._masks[window, causal] = mask
        return attend_with(q, k, v, mask, scale)

    def weigh(self, layer: int, weights: Tensor, pos: Tensor) -> None:
        """Take note of how much each key was read: weights (B, H, t, S) over the keys that `update` just returned.

        Only kinds whose traits say `weighs` are called; the others never form the weights. A long prompt comes in
        tiles of t queries at `pos` (B, t), first ones first, so that its weights never exist all at once.
        """

    def prompt_ended(self) -> None:
        """The last token of every row's prompt is in, and answers begin. Kinds that choose what to keep of a prompt
        choose now (Li et al. 2024, SnapKV); the others do nothing."""

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        """What a layer that carries a state left behind each row's last token, row by row; None before the first.

        Tensors are (B, ...). The layer computes, the cache stores. Padding neither adds to a state nor decays it.
        """
        raise NotImplementedError(self._no_state())

    def stepwise(self, count: int) -> bool:
        """Whether states are wanted behind each of a forward's `count` tokens, and not behind the last one alone."""
        return False

    def set_state(self, layer: int, *state: Tensor) -> None:
        """Store what the layer leaves behind this forward's tokens, or behind each in turn where `stepwise` asks for
        it. It counts from `advance` on."""
        raise NotImplementedError(self._no_state())

    def _no_state(self) -> str:
        return f"{type(self).__name__} holds keys and values and no state; linear layers need `cache_for(model, ...)`."

    def advance(self, pos: Tensor) -> None:
        """Make the forward's tokens part of the cache."""
        self.lengths = torch.maximum(self.lengths, pos.amax(1) + 1)

    def adopt(
        self, prompts: Sequence[Sequence[int]], extras: Sequence[Sequence[object]] | None = None
    ) -> list[int]:
        """Start empty rows from what is remembered of earlier sequences; returns how many tokens of each are held.

        `extras`, one for each row, are what else its numbers depend on (tenant, adapter, salt).
        Kinds without a memory of other sequences hold nothing. At least one token of a prompt is always left to run.
        """
        return [0] * len(prompts)

    def keep(
        self, sequences: Sequence[Sequence[int]], extras: Sequence[Sequence[object]] | None = None
    ) -> None:
        """Offer the rows, whose tokens are `sequences`, to later ones. Kinds without such a memory do nothing."""

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Forget every position >= lengths (B,), row by row."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget everything and keep the storage: the rows are empty and may start again."""
        self.rewind(torch.zeros_like(self.lengths))

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep, drop, reorder or repeat rows: row i of the result is row rows[i] of now."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of storage that the keys and values take, spare slots included; position tables are not counted."""
        raise NotImplementedError

    def _checked_lengths(self, lengths: Tensor | Sequence[int]) -> Tensor:
        new = _whole_numbers(lengths, "lengths", self.lengths.device)
        if new.shape != self.lengths.shape:
            raise ValueError(
                f"rewind needs one length per row ({self.lengths.shape[0]}), got {tuple(new.shape)}."
            )
        if bool((new < 0).any()) or bool((new > self.lengths).any()):
            raise ValueError(
                f"rewind goes back only: lengths {new.tolist()} against {self.lengths.tolist()} held now."
            )
        limit = self.traits.max_rewind
        if limit is not None and bool((self.lengths - new > limit).any()):
            raise ValueError(
                f"{type(self).__name__} can go back {limit} positions, not from {self.lengths.tolist()} to "
                f"{new.tolist()}. Start again with an empty cache, or use a kind that keeps every position."
            )
        return new

    def _checked_rows(self, rows: Tensor | Sequence[int]) -> Tensor:
        index = _whole_numbers(rows, "rows", self.lengths.device).reshape(-1)
        held = self.lengths.shape[0]
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= held):
            raise ValueError(f"select {index.tolist()} names a row outside 0 to {held - 1}.")
        return index


def _whole_numbers(given: Tensor | Sequence[int], name: str, device: torch.device) -> Tensor:
    """Lengths or rows as int64 on `device`. ValueError for a mask of bools and for fractions: neither counts."""
    if not isinstance(given, Tensor):
        return torch.tensor(wholes(given, name, -INT64), dtype=torch.int64, device=device)
    if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise ValueError(
            f"{name} must be whole numbers, got {given.dtype} {shown(given)}; turn a mask into numbers with nonzero()."
        )
    return given.to(device, torch.int64)


class NoCache(Cache):
    """The null object: nothing is kept, attention reads the new tokens alone."""

    def begin(self, pos: Tensor) -> None:
        self.lengths = pos.new_zeros(pos.shape[0])
        super().begin(pos)
        self._latest: tuple[int, Tensor, Tensor, Tensor] | None = None

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self._latest = layer, k, v, pos
        return k, v, pos

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if self._latest is None or self._latest[0] != layer:
            raise ValueError(
                f"Without a cache only the layer that stored last can be read again, not layer {layer}; "
                "pass a DynamicCache."
            )
        return self._latest[1:]

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        return None

    def set_state(self, layer: int, *state: Tensor) -> None:
        """Nothing is kept."""

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Nothing is held, so there is nothing to forget."""

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Nothing is held, so there is nothing to move."""

    @property
    def nbytes(self) -> int:
        return 0
