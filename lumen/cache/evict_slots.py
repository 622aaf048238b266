"""The slots of one layer of an evicting cache: keys that stay where they are, and tables that say what is where.

head 0   0 5 7 8 .     Each head has positions of its own; -1 is a free slot, whose numbers are finite and never read.
head 1   3 . 7 8 0
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Slots(NamedTuple):
    """k (B, Hkv, S, D), v (B, Hkv, S, Dv), pos (B, Hkv, S) int64, and `read` (B, Hkv, S) fp32: attention so far."""

    k: Tensor
    v: Tensor
    pos: Tensor
    read: Tensor

    @property
    def size(self) -> int:
        return self.pos.shape[2]

    def written(self, k: Tensor, v: Tensor, pos: Tensor) -> Slots:
        """New keys k, v at `pos` (B, Hkv, T), put into free slots in place. The tables are new: whoever holds the old
        ones sees nothing of it."""
        free = (self.pos < 0).int().topk(pos.shape[2], -1).indices
        for held, given in ((self.k, k), (self.v, v)):
            held.scatter_(2, free[..., None].expand_as(given), given)
        return self._replace(pos=self.pos.scatter(2, free, pos), read=self.read.scatter(2, free, 0.0))

    def joined(self, k: Tensor, v: Tensor, pos: Tensor, free: int = 0) -> Slots:
        """These slots, then the new keys, then `free` free ones, in new storage."""
        return self._then(Slots(k, v, pos, self.read.new_zeros(pos.shape)), self.empty(free))

    def chosen(self, slots: Tensor, free: int) -> Slots:
        """Copies of these slots (B, Hkv, N), then `free` free ones."""
        k, v = (x.take_along_dim(slots[..., None], 2) for x in (self.k, self.v))
        return Slots(k, v, self.pos.gather(2, slots), self.read.gather(2, slots))._then(self.empty(free))

    def _then(self, *others: Slots) -> Slots:
        return Slots(*(torch.cat(same, 2) for same in zip(self, *others, strict=True)))

    def only(self, slots: Tensor) -> Slots:
        """The same storage, with all slots free but these (B, Hkv, N)."""
        return self._replace(pos=torch.full_like(self.pos, -1).scatter(2, slots, self.pos.gather(2, slots)))

    def empty(self, count: int) -> Slots:
        """`count` free slots of the same kind."""
        k, v, pos, read = (x.new_zeros(*x.shape[:2], count, *x.shape[3:]) for x in self)
        return Slots(k, v, pos - 1, read)

    def rows(self, index: Tensor) -> Slots:
        """Rows `index` of these slots, copies."""
        return Slots(*(x[index] for x in self))
