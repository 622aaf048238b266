"""The contract that every key/value cache keeps, so that models, generation and serving never ask which kind it is.

One forward pass makes these calls, and `pos` (B, T) is the same tensor in all of them:

    begin(pos)                              once, before the first layer
    attend(layer, q, k, v, pos, window)     once per layer
    advance(pos)                            once, after the last layer

C1  pos = -1 writes nothing and advances nothing.
C2  `k_pos` is an absolute position, never a slot number.
C3  slots with k_pos = -1 hold finite numbers (a NaN in a masked value row leaks through attention).
C4  lossless kinds equal the forward without a cache, for any chunking, padding side and mix of rows.
C5  `rewind`, then replay, equals never having written; a kind that cannot rewind raises before it changes anything.
C6  no room: `CacheFull` from `begin`, before any layer is written.
C7  after `select` with repeated rows, writing to one copy leaves the others alone.
C8  `nbytes` is the real storage of keys and values, spare slots included.

A forward that dies half-way (an interrupt, memory) leaves no trace: what it stored becomes visible in `advance` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with, mask_for
from .errors import CacheFull

__all__ = ["Cache", "CacheFull", "NoCache", "storage_bytes"]


class Cache:
    """Base of all kinds. `lengths` (B,) int64 is the position of each row's next token."""

    lengths: Tensor
    same_positions = True  # every layer holds the same positions, so one mask serves all layers of a forward

    @property
    def capacity(self) -> int | None:
        """Positions that a row can hold, None where nothing but memory limits them."""
        return None

    def begin(self, pos: Tensor) -> None:
        """Check that positions `pos` (B, T) fit and prepare one forward. Raises `CacheFull`; stores nothing yet."""
        if pos.shape[0] != self.lengths.shape[0]:
            raise ValueError(
                f"This cache holds {self.lengths.shape[0]} rows, but the tokens have {pos.shape[0]}."
            )
        self._masks: dict[int | None, Mask] = {}

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Store k, v (B, Hkv, T, D) at `pos`; return the keys, values and key positions that may be read.

        Returns k, v (B, Hkv, S, D) and k_pos (B, S) or (B, Hkv, S). `q` is there for kinds that choose by the query.
        """
        raise NotImplementedError

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, window: int | None = None
    ) -> Tensor:
        """Store k, v and return attention of q (B, H, T, D) over everything visible. Fast kinds override this."""
        k, v, k_pos = self.update(layer, k, v, pos, q)
        mask = self._masks.get(window) if self.same_positions else None
        if mask is None:
            mask = mask_for(pos, k_pos, window, q.dtype, inspect=not torch.compiler.is_compiling())
            self._masks[window] = mask
        return attend_with(q, k, v, mask)

    def advance(self, pos: Tensor) -> None:
        """Make the forward's tokens part of the cache."""
        self.lengths = torch.maximum(self.lengths, pos.amax(1) + 1)

    def adopt(self, prompts: Sequence[Sequence[int]], extra: Sequence[object] = ()) -> list[int]:
        """Start empty rows from what is remembered of earlier sequences; returns how many tokens of each are held.

        Kinds without a memory of other sequences hold nothing. At least one token of a prompt is always left to run.
        """
        return [0] * len(prompts)

    def keep(self, sequences: Sequence[Sequence[int]], extra: Sequence[object] = ()) -> None:
        """Offer the rows, whose tokens are `sequences`, to later ones. Kinds without such a memory do nothing."""

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Forget every position >= lengths (B,), row by row."""
        raise NotImplementedError

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep, drop, reorder or repeat rows: row i of the result is row rows[i] of now."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of storage that the keys and values take, spare slots included; position tables are not counted."""
        raise NotImplementedError

    def _checked_lengths(self, lengths: Tensor | Sequence[int]) -> Tensor:
        new = torch.as_tensor(lengths, dtype=torch.int64, device=self.lengths.device)
        if new.shape != self.lengths.shape:
            raise ValueError(
                f"rewind needs one length per row ({self.lengths.shape[0]}), got {tuple(new.shape)}."
            )
        if bool((new < 0).any()) or bool((new > self.lengths).any()):
            raise ValueError(
                f"rewind goes back only: lengths {new.tolist()} against {self.lengths.tolist()} held now."
            )
        return new

    def _checked_rows(self, rows: Tensor | Sequence[int]) -> Tensor:
        index = torch.as_tensor(rows, device=self.lengths.device)
        if index.dtype == torch.bool or index.is_floating_point():
            raise ValueError(
                f"select takes row numbers, not {index.dtype}; turn a mask into numbers with nonzero()."
            )
        index = index.to(torch.int64).reshape(-1)
        held = self.lengths.shape[0]
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= held):
            raise ValueError(f"select {index.tolist()} names a row outside 0 to {held - 1}.")
        return index


class NoCache(Cache):
    """The null object: nothing is kept, attention reads the new tokens alone."""

    def begin(self, pos: Tensor) -> None:
        self.lengths = pos.new_zeros(pos.shape[0])
        super().begin(pos)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return k, v, pos

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Nothing is held, so there is nothing to forget."""

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Nothing is held, so there is nothing to move."""

    @property
    def nbytes(self) -> int:
        return 0


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`: a view counts as the whole it keeps alive."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
