"""Right and wrong answers to the exercises of chapter 04."""

import torch
import torch.nn.functional as F

from lumen.cache.base import Cache, CacheFull
from lumen.grading.proof import Answers

RIGHT_PRICES = {"qwen2.5-7b": 57_344, "llama-2-13b": 819_200, "40 users": 107.4}


def priced(name, value):
    return lambda: {**RIGHT_PRICES, name: value}


def computed_prices():
    def kappa(layers, heads, width, size):
        return 2 * layers * heads * width * size

    return {
        "llama-2-13b": kappa(40, 40, 128, 2),
        "qwen2.5-7b": float(kappa(28, 4, 128, 2)),
        "40 users": kappa(80, 8, 128, 1) * 16384 * 40 / 1e9,
    }


# A cache with reserved slots ----------------------------------------------------------------------


class SlotCache(Cache):
    """The positions follow from the lengths: slot p holds position p when p lies below the row's length."""

    def __init__(self, config, rows, capacity, dtype=torch.float32, device="cpu"):
        shape = config.num_layers, rows, config.num_kv_heads, capacity, config.head_dim
        self.k, self.v = (
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )
        self.size = capacity
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)
        if int(pos.max()) >= self.size:
            raise CacheFull(f"position {int(pos.max())} does not fit into {self.size} slots")
        after = torch.maximum(self.lengths, pos.amax(1) + 1)
        slots = torch.arange(max(int(after.max()), 1)).expand(len(after), -1)
        self.table = torch.where(slots < after[:, None], slots, -1)

    def update(self, layer, k, v, pos, q=None):
        row, column = (pos >= 0).nonzero(as_tuple=True)
        slot = pos[row, column]
        self.k[layer][row, :, slot] = k[row, :, column]
        self.v[layer][row, :, slot] = v[row, :, column]
        read = self.table.shape[1]
        return self.k[layer][:, :, :read], self.v[layer][:, :, :read], self.table

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths)


class TableCache(SlotCache):
    """Written differently: a table of positions that is kept, a loop over rows, hidden slots in rewind."""

    def __init__(self, config, rows, capacity, dtype=torch.float32, device="cpu"):
        super().__init__(config, rows, capacity, dtype, device)
        self.positions = torch.full((rows, capacity), -1)

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
        return (
            self.k[layer, :, :, : self.read],
            self.v[layer, :, :, : self.read],
            self.positions[:, : self.read],
        )

    def rewind(self, lengths):
        lengths = torch.as_tensor(lengths)
        self.positions[self.positions >= lengths[:, None]] = -1
        self.lengths = lengths


class ReadsAll(SlotCache):
    def begin(self, pos):
        super().begin(pos)
        missing = self.size - self.table.shape[1]
        self.table = F.pad(self.table, (0, missing), value=-1)


class CopiesEachStep(SlotCache):
    def update(self, layer, k, v, pos, q=None):
        k, v, table = super().update(layer, k, v, pos, q)
        self.kept = [*getattr(self, "kept", []), k.clone()]
        return self.kept[-1], v.clone(), table


class MinusOneIsAnIndex(SlotCache):
    """pos = -1 is taken as an index: it writes the last slot, harmless until that slot is in use."""

    def update(self, layer, k, v, pos, q=None):
        row = torch.arange(len(pos))[:, None]
        read = self.table.shape[1]
        self.k[layer][row, :, pos] = k.transpose(1, 2)
        self.v[layer][row, :, pos] = v.transpose(1, 2)
        return self.k[layer][:, :, :read], self.v[layer][:, :, :read], self.table


class NeverFull(SlotCache):
    def begin(self, pos):
        self.size = max(self.size, int(pos.max()) + 1)
        super().begin(pos)


class HidesNothing(TableCache):
    """Right, too: a stale slot holds a position past every query's, until it is written again."""

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths)


class RewindsNothing(SlotCache):
    def rewind(self, lengths):
        self.forgotten = lengths


class ForgetsAll(SlotCache):
    def rewind(self, lengths):
        super().rewind(lengths)
        self.k.zero_()
        self.v.zero_()


class Uninitialised(SlotCache):
    def __init__(self, config, rows, capacity, dtype=torch.float32, device="cpu"):
        super().__init__(config, rows, capacity, dtype, device)
        self.k, self.v = torch.empty_like(self.k), torch.empty_like(self.v)


class OneLengthForAll(SlotCache):
    def rewind(self, lengths):
        self.lengths = torch.full_like(self.lengths, int(torch.as_tensor(lengths).max()))


class AlwaysFromZero(SlotCache):
    """Writes the new tokens into the first slots, whatever their position."""

    def update(self, layer, k, v, pos, q=None):
        read = self.table.shape[1]
        self.k[layer][:, :, : k.shape[2]] = k
        self.v[layer][:, :, : v.shape[2]] = v
        return self.k[layer][:, :, :read], self.v[layer][:, :, :read], self.table


# Attention of several new tokens ------------------------------------------------------------------


def broken_attend(q, k, v):
    """As the exercise gives it."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def attend_with_mask(q, k, v):
    groups = q.shape[1] // k.shape[1]
    new, total = q.shape[2], k.shape[2]
    mask = torch.arange(total)[None] <= torch.arange(total - new, total)[:, None]
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), mask
    )


def attend_by_hand(q, k, v):
    _, heads, new, width = q.shape
    out = torch.empty_like(q)
    for head in range(heads):
        kv = head // (heads // k.shape[1])
        for t in range(new):
            end = k.shape[2] - new + t + 1
            weights = (q[:, head, t, None] * k[:, kv, :end]).sum(-1).div(width**0.5).softmax(-1)
            out[:, head, t] = (weights[..., None] * v[:, kv, :end]).sum(1)
    return out


def attend_tiled(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return attend_with_mask(q, k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1))


def attend_top_left(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def attend_without_mask(q, k, v):
    groups = q.shape[1] // k.shape[1]
    mask = None
    if q.shape[2] == k.shape[2]:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), mask
    )


def attend_one_too_far(q, k, v):
    groups = q.shape[1] // k.shape[1]
    new, total = q.shape[2], k.shape[2]
    mask = torch.arange(total)[None] <= torch.arange(total - new, total)[:, None] + (new != total)
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), mask
    )


def attend_unscaled(q, k, v):
    return attend_with_mask(q * q.shape[3] ** 0.5, k, v)


def attend_through_lumen(q, k, v):
    from lumen.attention.core import attention

    pos = torch.arange(k.shape[2]).expand(len(k), -1)
    return attention(q, k, v, pos[:, k.shape[2] - q.shape[2] :], pos)


# Slots and positions ------------------------------------------------------------------------------


class BrokenCache(Cache):
    """As the exercise gives it."""

    def __init__(self, config, rows, dtype=torch.float32, device="cpu"):
        empty = torch.zeros(rows, config.num_kv_heads, 0, config.head_dim, dtype=dtype, device=device)
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers
        self.positions = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def begin(self, pos):
        super().begin(pos)
        held = self.positions.shape[1]
        slots = torch.arange(held, held + pos.shape[1], device=pos.device).expand_as(pos)
        self.new_positions = torch.cat([self.positions, slots], 1)

    def update(self, layer, k, v, pos, q=None):
        self.k[layer] = torch.cat([self.k[layer], k], 2)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        return self.k[layer], self.v[layer], self.new_positions

    def advance(self, pos):
        super().advance(pos)
        self.positions = self.new_positions

    def rewind(self, lengths):
        self.lengths = torch.as_tensor(lengths, device=self.lengths.device)


class Mended(BrokenCache):
    def begin(self, pos):
        Cache.begin(self, pos)
        self.new_positions = torch.cat([self.positions, pos], 1)

    def rewind(self, lengths):
        super().rewind(lengths)
        self.positions = torch.where(self.positions < self.lengths[:, None], self.positions, -1)


class MendedByCutting(Mended):
    def rewind(self, lengths):
        BrokenCache.rewind(self, lengths)
        hidden = self.positions >= self.lengths[:, None]
        self.positions = self.positions.masked_fill(hidden, -1)
        keep = [i for i in range(hidden.shape[1]) if not bool(hidden[:, i].all())]
        self.positions = self.positions[:, keep]
        self.k, self.v = [k[:, :, keep] for k in self.k], [v[:, :, keep] for v in self.v]


class OnlyRewind(BrokenCache):
    rewind = Mended.rewind


class OnlyPositions(Mended):
    def rewind(self, lengths):
        BrokenCache.rewind(self, lengths)


class SlotsMinusPadding(Mended):
    """Left padding is subtracted, as many engines do; right padding is not thought of."""

    def begin(self, pos):
        Cache.begin(self, pos)
        held = self.positions.shape[1]
        if held == 0:
            self.shift = (pos < 0).sum(1, keepdim=True) * (pos[:, :1] < 0)
        slots = torch.arange(held, held + pos.shape[1]).expand_as(pos) - self.shift
        self.new_positions = torch.cat([self.positions, slots.clamp(min=-1)], 1)


class SlotsWherePadded(Mended):
    """Padding is hidden, but real tokens keep the number of their slot."""

    def begin(self, pos):
        Cache.begin(self, pos)
        held = self.positions.shape[1]
        slots = torch.arange(held, held + pos.shape[1]).expand_as(pos)
        self.new_positions = torch.cat([self.positions, slots.masked_fill(pos < 0, -1)], 1)


class RewindsTooFar(Mended):
    def rewind(self, lengths):
        BrokenCache.rewind(self, lengths)
        self.positions = torch.where(self.positions < self.lengths[:, None] - 1, self.positions, -1)


class LengthsOfPadding(Mended):
    def advance(self, pos):
        super().advance(pos)
        self.lengths = self.lengths.clamp(min=1)


ANSWERS = {
    "token-prices": Answers(
        right=[lambda: dict(RIGHT_PRICES), computed_prices],
        wrong=[
            (priced("qwen2.5-7b", 401_408), "28 query heads"),
            (priced("qwen2.5-7b", 28_672), "factor 2 is missing"),
            (priced("qwen2.5-7b", 2048), "All 28 keep"),
            (priced("llama-2-13b", 1_638_400), "2 bytes, not 4"),
            (priced("llama-2-13b", 409_600), "a key *and* a value"),
            (priced("llama-2-13b", 20_480), "All 40 keep"),
            (priced("40 users", 100.0), "are GiB"),
            (priced("40 users", 214.7), "takes one byte"),
            (priced("40 users", 859.0), "64 query heads"),
            (priced("40 users", 2.684), "one user"),
            (lambda: {"qwen2.5-7b": 57_344}, "a dict with the keys"),
        ],
        stubs=[lambda: {**RIGHT_PRICES, "40 users": ...}],
    ),
    "slot-cache": Answers(
        right=[SlotCache, TableCache, HidesNothing],
        wrong=[
            (AlwaysFromZero, "the position of the token in it"),
            (MinusOneIsAnIndex, "As an index"),
            (Uninitialised, "Reserve with zeros"),
            (RewindsNothing, "the length of every row"),
            (ForgetsAll, "must survive"),
            (OneLengthForAll, "a length of its own"),
            (NeverFull, "one too many"),
            (ReadsAll, "up to the longest row"),
            (CopiesEachStep, "a copy of the cache per step"),
        ],
        lumen=["lumen.cache.StaticCache", "lumen.cache.DynamicCache"],
    ),
    "two-new-tokens": Answers(
        right=[attend_with_mask, attend_by_hand],
        wrong=[
            (attend_tiled, "belongs to head 0"),
            (attend_top_left, "starts at the top left"),
            (attend_without_mask, "Without a mask"),
            (attend_one_too_far, "off by one"),
            (attend_unscaled, "at index [0, 0, 1, 0]"),
        ],
        stubs=[broken_attend],
        lumen=["lumen.attention.core.attention"],
    ),
    "slots-and-positions": Answers(
        right=[Mended, MendedByCutting],
        wrong=[
            (OnlyRewind, "slots 0 to 2 hold nothing"),
            (SlotsMinusPadding, "a later slot than its position"),
            (OnlyPositions, "the slots are still there"),
            (LengthsOfPadding, "a row that is all padding"),
        ],
        lumen=["lumen.cache.DynamicCache"],
    ),
    "saves-256": Answers(
        right=[("bd", 183.4), (" B, d.", 183.4), lambda: ({"d", "b"}, 200 * (1000 + 100.5) / 1200)],
        wrong=[
            (("b", 183.4), "2 statements are wrong"),
            (("ab", 183.4), "512 · 513 / 2"),
            (("bc", 183.4), "no second step"),
            (("bd", 100.5), "for an empty prompt"),
            (("bd", 600.5), "written token by token"),
            (("bd", 1100.5), "an average step"),
            (("bd", 166.7), "each step's own token"),
            ("bd", "the choice alone"),
        ],
    ),
    "sixty-four-users": Answers(
        right=[
            {"chip": "H200 SXM", "count": 2, "kv": "fp8"},
            lambda: {"kv": "fp8", "count": 2, "chip": "H200 SXM"},
        ],
        wrong=[
            ({"chip": "H200 SXM", "count": 2, "kv": "bf16"}, "must fit into 90 %"),
            ({"chip": "A100 80GB SXM", "count": 4, "kv": "fp8"}, "divide by the bandwidth of all cards"),
            ({"chip": "H100 SXM", "count": 4, "kv": "fp8"}, "cost 12 $ per hour"),
            ({"chip": "H200 SXM", "count": 4, "kv": "bf16"}, "cost 15.2 $ per hour"),
            ({"chip": "L4", "count": 2, "kv": "fp8"}, "one of 'A100 80GB SXM'"),
            ({"chip": "H100 SXM", "count": 3, "kv": "fp8"}, "count=3"),
        ],
        stubs=[{"chip": ..., "count": 2, "kv": "fp8"}],
    ),
}
