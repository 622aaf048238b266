"""Caches that keep the contract of `lumen.grading.kinds.cache`, and wrong ones with the sentence each must be told."""

from typing import ClassVar

import torch

from lumen.cache.base import Cache, CacheFull


# A cache with reserved slots ----------------------------------------------------------------------
class TableCache(Cache):
    """A table of positions that is kept, a loop over rows, hidden slots in rewind. The wrong ones derive from it."""

    def __init__(self, config, rows, size, dtype=torch.float32, device="cpu"):
        shape = config.num_layers, rows, config.num_kv_heads, size, config.head_dim
        self.k, self.v = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.size, self.lengths = size, torch.zeros(rows, dtype=torch.int64)
        self.positions = torch.full((rows, size), -1)

    def begin(self, pos):
        Cache.begin(self, pos)
        if bool((pos >= self.size).any()):
            raise CacheFull("full")
        for row in range(len(pos)):
            real = pos[row][pos[row] >= 0]
            self.positions[row, real] = real
        self.read = max(1, int(self.positions.max()) + 1)

    def update(self, layer, k, v, pos, q=None):
        for row in range(len(pos)):
            for column, place in enumerate(pos[row].tolist()):
                if place >= 0:
                    self.k[layer, row, :, place] = k[row, :, column]
                    self.v[layer, row, :, place] = v[row, :, column]
        return self._held(layer)

    def _held(self, layer):
        return *(x[layer, :, :, : self.read] for x in (self.k, self.v)), self.positions[:, : self.read]

    def rewind(self, lengths):
        lengths = torch.as_tensor(lengths)
        if bool((lengths > self.lengths).any()):
            raise ValueError("forward")
        self.positions[self.positions >= lengths[:, None]] = -1
        self.lengths = lengths


class KeepsStale(TableCache):
    """A stale slot holds a position past every query's, so no logit changes, but S stays long."""

    def rewind(self, lengths):
        self.lengths = self._checked_lengths(lengths)


class ReadsAll(TableCache):
    def begin(self, pos):
        super().begin(pos)
        self.read = self.size


class EveryRowIsLong(TableCache):
    """No row says that it holds less: no query gets that far, so no logit changes."""

    def _held(self, layer):
        keys, values, positions = super()._held(layer)
        return keys, values, torch.arange(self.read).expand_as(positions)


class ReadsWhatIsActive(TableCache):
    """A long row that pauses is not counted."""

    def begin(self, pos):
        super().begin(pos)
        self.read = max(1, int(pos.max()) + 1)


class CopiesValues(TableCache):
    def update(self, layer, k, v, pos, q=None):
        k, v, positions = super().update(layer, k, v, pos, q)
        return k, v.clone(), positions


class OneStorage(TableCache):
    """All caches of one shape share their memory."""

    shared: ClassVar = {}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.k, self.v = self.shared.setdefault(self.k.shape, (self.k, self.v))


class MinusOneIsAnIndex(TableCache):
    """pos = -1 is taken as an index: it writes the last slot, harmless until that slot is in use."""

    def update(self, layer, k, v, pos, q=None):
        row = torch.arange(len(pos))[:, None]
        self.k[layer][row, :, pos], self.v[layer][row, :, pos] = k.transpose(1, 2), v.transpose(1, 2)
        return self._held(layer)


class AlwaysFromZero(TableCache):
    """Writes the new tokens into the first slots, whatever their position."""

    def update(self, layer, k, v, pos, q=None):
        self.k[layer][:, :, : k.shape[2]], self.v[layer][:, :, : v.shape[2]] = k, v
        return self._held(layer)


class NeverFull(TableCache):
    def begin(self, pos):
        super().begin(pos.clamp(max=self.size - 1))


class FullByTheFirstRow(TableCache):
    def begin(self, pos):
        if int(pos[0].max()) >= self.size:
            raise CacheFull("full")
        super().begin(pos.clamp(max=self.size - 1))


class PaddingNeedsRoom(TableCache):
    def begin(self, pos):
        if bool((self.lengths + pos.shape[1] > self.size)[(pos >= 0).any(1)].any()):
            raise CacheFull("full")
        super().begin(pos)


class ForgetsAll(TableCache):
    def rewind(self, lengths):
        super().rewind(lengths)
        self.k.zero_()
        self.v.zero_()


class Uninitialised(TableCache):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.k, self.v = torch.empty_like(self.k), torch.empty_like(self.v)


class OneLengthForAll(TableCache):
    def rewind(self, lengths):
        super().rewind(torch.full_like(self.lengths, int(torch.as_tensor(lengths).min())))


class LongestRowDecides(TableCache):
    def rewind(self, lengths):
        if int(lengths.max()) > int(self.lengths.max()):
            raise ValueError("forward")
        super().rewind(torch.minimum(lengths, self.lengths))


class RefusesTooLate(TableCache):
    def rewind(self, lengths):
        self.positions[self.positions >= lengths[:, None]] = -1
        super().rewind(lengths)


# Slots and positions ------------------------------------------------------------------------------
class Growing(Cache):
    """Right: it keeps positions, and cuts off what a rewind hides in every row."""

    def __init__(self, config, rows, dtype=torch.float32, device="cpu"):
        empty = torch.zeros(rows, config.num_kv_heads, 0, config.head_dim, dtype=dtype)
        self.k, self.v = [empty] * config.num_layers, [empty] * config.num_layers
        self.positions, self.lengths = (
            torch.zeros(rows, 0, dtype=torch.int64),
            torch.zeros(rows, dtype=torch.int64),
        )

    def begin(self, pos):
        Cache.begin(self, pos)
        self.new_positions = torch.cat([self.positions, self.named(pos)], 1)

    def named(self, pos):
        return pos

    def update(self, layer, k, v, pos, q=None):
        self.k[layer], self.v[layer] = torch.cat([self.k[layer], k], 2), torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self.new_positions

    def advance(self, pos):
        super().advance(pos)
        self.positions = self.new_positions

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths)
        hidden = self.hidden(self.lengths[:, None])
        self.positions = self.positions.masked_fill(hidden, -1)
        self.keep([i for i in range(hidden.shape[1]) if not bool(hidden[:, i].all())])

    def hidden(self, lengths):
        return self.positions >= lengths

    def keep(self, slots):
        self.positions = self.positions[:, slots]
        self.k, self.v = [k[:, :, slots] for k in self.k], [v[:, :, slots] for v in self.v]


class SlotsMinusPadding(Growing):
    """Left padding is subtracted, as many engines do; right padding is not thought of."""

    def named(self, pos):
        held = self.positions.shape[1]
        if held == 0:
            self.shift = (pos < 0).sum(1, keepdim=True) * (pos[:, :1] < 0)
        return (torch.arange(held, held + pos.shape[1]).expand_as(pos) - self.shift).clamp(min=-1)


class SlotsWherePadded(Growing):
    """Padding is hidden, but real tokens keep the number of their slot."""

    def named(self, pos):
        held = self.positions.shape[1]
        return torch.arange(held, held + pos.shape[1]).expand_as(pos).masked_fill(pos < 0, -1)


class HidesBySlot(Growing):
    def hidden(self, lengths):
        return torch.arange(self.positions.shape[1]).expand_as(self.positions) >= lengths


class HidesByTheFirstRow(Growing):
    def hidden(self, lengths):
        return self.positions >= lengths[:1]


class CutsStorage(Growing):
    """The last slots go, as many as the longest row loses."""

    def rewind(self, lengths):
        lost = int((self.lengths - torch.as_tensor(lengths)).max())
        self.lengths = torch.as_tensor(lengths)
        self.keep(list(range(self.positions.shape[1] - lost)))


class HidesOnce(Growing):
    """A flag that is set by the first rewind and never taken back."""

    def hidden(self, lengths):
        first = not getattr(self, "done", False)
        self.done = self.done if not first else bool((self.positions >= lengths).any())
        return super().hidden(lengths) & first


class HidesNothingHere(Growing):
    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths)


class LengthsOfPadding(Growing):
    def advance(self, pos):
        super().advance(pos)
        self.lengths = self.lengths.clamp(min=1)


# What each is told. Caches with reserved slots need the clauses of a reservation, the growing ones do not.
RESERVED = [
    (AlwaysFromZero, "in the slot of its position"),
    (MinusOneIsAnIndex, "As an index"),
    (Uninitialised, "Reserve with zeros"),
    (ForgetsAll, "Nothing was to be forgotten"),
    (OneLengthForAll, "each has its own"),
    (LongestRowDecides, "row by row"),
    (RefusesTooLate, "the other row was cut already"),
    (NeverFull, "one too many"),
    (FullByTheFirstRow, "whichever row and column"),
    (PaddingNeedsRoom, "positions 3 and padding, 2 and 3"),
    (ReadsAll, "40 at (B, S)"),
    (KeepsStale, "k_pos after a rewind"),
    (EveryRowIsLong, "where a row holds nothing"),
    (ReadsWhatIsActive, "while the longest row pauses"),
    (OneStorage, "the second wrote into the first"),
    (CopiesValues, "a copy of the cache per step"),
]
GROWING = [
    (SlotsWherePadded, "slot 3 may hold position 0"),
    (SlotsMinusPadding, "a later slot than its position"),
    (HidesBySlot, "a slot's number taken for a position"),
    (HidesByTheFirstRow, "below its own length"),
    (CutsStorage, "What goes is decided by position"),
    (HidesOnce, "a second time"),
    (HidesNothingHere, "slots are still there"),
    (LengthsOfPadding, "a row that is all padding"),
]
