"""A mixed batch without padding: the new tokens of many sequences side by side in one row.

    tokens    a9 | b4 | c0 c1 c2 c3 c4        two answers and a chunk of a prompt: 7 tokens, not a 3 x 5 rectangle
    pos        9    4    0  1  2  3  4

Every layer but attention works on tokens one by one and does not care whose they are; there every token is a row of its
own, (N, 1). Attention takes the rows to their sequences: each reads its own blocks through its own table, and
neighbours of like shape are read together. Yu et al. 2022, Orca, section 3.2 (selective batching).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with, mask_for
from ..inputs import INT64, whole
from .base import Cache
from .held import HOLE, places_left
from .store import BlockStore
from .traits import Expand, Traits

_SLACK = 64  # rows whose lengths differ by less are read together, however short they are
_FEW = 16  # new tokens, an answer with its drafts: rows of more fill the cores by themselves


@dataclass(frozen=True)
class Segment:
    """Positions `start` to `start + count` of one sequence, whose blocks are listed in `table`."""

    table: Sequence[int]
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


class _Group:
    """Neighbouring segments with equally many new tokens and tables of like width: one attention call a layer.

    B segments of T new tokens; `tokens` is their place in the row; positions 0 to `read_to` are read.
    """

    def __init__(self, at: int, segments: list[Segment], store: BlockStore):
        device = store.device
        self.rows, self.count = len(segments), segments[0].count
        self.tokens = slice(at, at + self.rows * self.count)
        read_to = max(s.end for s in segments)
        starts = torch.tensor([[s.start] for s in segments], device=device)
        self.q_pos = starts + torch.arange(self.count, device=device)
        # What a shorter neighbour's table does not hold lies behind its query, where the one mask rule hides it.
        self.k_pos = torch.arange(read_to, device=device).expand(self.rows, -1)
        self.masks: dict[tuple[int | None, bool], Mask] = {}
        # Nothing older than the new tokens: they are read where they are, not back from the blocks; from a lossy store
        # they come back as all others will read them, so that no neighbour and no chunk changes an answer.
        self._fresh = self.rows == 1 and segments[0].start == 0 and store.traits.lossless
        if store.kept is not None and not self._fresh:
            tables, self.k_pos = windows(segments, store)
            read_to = self.k_pos.shape[1]
        else:
            width = -(-read_to // store.block_size)
            tables = [[*s.table[:width], *[store.spare] * (width - len(s.table))] for s in segments]
        self._tables = torch.tensor(tables, dtype=torch.int64, device=device)
        self._store, self._read_to = store, read_to
        self._gather: Callable[[int], tuple[Tensor, Tensor]] | None = None

    def queries(self, rows: Tensor) -> Tensor:
        """The row's queries (N, H, 1, D) of these segments, (B, H, T, D)."""
        mine = rows if len(rows) == self.rows * self.count else rows[self.tokens]
        if self.count == 1:
            return mine
        return mine.view(self.rows, self.count, *mine.shape[1::2]).transpose(1, 2)

    def answers(self, out: Tensor) -> Tensor:
        """What attention gave (B, H, T, Dv), one row a token again."""
        return out if self.count == 1 else out.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    def read(self, layer: int, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """The segments' keys and values (B, Hkv, S, ...); k, v (N, Hkv, 1, ...) are those of the row's new tokens."""
        if self._fresh and k is not None and v is not None:
            return k[self.tokens].transpose(0, 2), v[self.tokens].transpose(0, 2)
        if self._gather is None:
            self._gather = self._store.gather(self._tables, self._read_to)
        return self._gather(layer)


def positions_read(segment: Segment, store: BlockStore) -> int:
    """How far into what is left of its table a segment reads."""
    if store.kept is None:
        return segment.end
    return len(places_left(segment.table, segment.end, store.block_size)) * store.block_size


def windows(segments: Sequence[Segment], store: BlockStore, width: int = 1) -> tuple[list[list[int]], Tensor]:
    """What is left of the segments' tables, filled up to the longest or to `width`, and the positions (B, S) in it."""
    size = store.block_size
    there = [places_left(s.table, s.end, size) for s in segments]
    width = max(width, *map(len, there))
    tables = [
        [*(s.table[p] for p in at), *[store.spare] * (width - len(at))]
        for s, at in zip(segments, there, strict=True)
    ]
    first = torch.tensor([[p * size for p in at] + [-size] * (width - len(at)) for at in there])
    return tables, (first[:, :, None] + torch.arange(size)).flatten(1).to(store.device)


class PackedCache(Cache):
    """One forward over `segments` of a block store. The caller owns the tables and has reserved the blocks.

    `pos` (1, N) goes with the tokens into the model. A packed cache lives for one forward, so it neither rewinds nor
    selects: the next step makes another one from the scheduler's plan.
    """

    def __init__(self, store: BlockStore, segments: Sequence[Segment]):
        if not segments:
            raise ValueError("A packed forward needs one segment at least.")
        size = store.block_size
        for s in segments:
            whole(s.start, "start of a segment", -INT64)
            whole(s.count, "count of a segment", -INT64)
            if s.start < 0 or s.count < 1 or s.end > len(s.table) * size:
                raise ValueError(
                    f"Positions {s.start} to {s.end} do not fit into {len(s.table)} blocks of {size}; "
                    "reserve the blocks before the forward."
                )
            if store.kept is not None and HOLE in s.table[s.start // size : -(-s.end // size)]:
                raise ValueError(
                    f"A block of positions {s.start} to {s.end} has been given back; what a window has left is never "
                    "written again."
                )
        self.store = store
        device = store.device
        places = [(s.table[p // size] * size + p % size, p) for s in segments for p in range(s.start, s.end)]
        slots, positions = zip(*places, strict=True)
        if len(set(slots)) < len(slots):
            twice = next(p for (s, p), n in Counter(places).items() if n > 1)
            raise ValueError(
                f"Two new tokens at position {twice} of one block table: each would overwrite the other. "
                "Give a sequence one segment, and the branches of a tree tables of their own."
            )
        self._slots, self._places = torch.tensor(slots, device=device), slots
        self.pos = torch.tensor([positions], device=device)
        self.lengths = torch.zeros(1, dtype=torch.int64, device=device)
        self._groups = self._grouped(segments)

    def _grouped(self, segments: Sequence[Segment]) -> list[_Group]:
        runs: list[list[Segment]] = []
        kept = self.store.kept
        for segment in segments:
            run = runs[-1] if runs else []
            ends = [s.end for s in (*run, segment)]
            if kept is not None:  # longer tables have holes
                ends = [min(end, kept.positions + segment.count) for end in ends]
            alike = run and segment.count == run[0].count <= _FEW
            if alike and max(ends) <= 2 * min(ends) + _SLACK:  # padding must not double what is read
                run.append(segment)
            else:
                runs.append([segment])
        groups, at = [], 0
        for run in runs:
            groups.append(_Group(at, run, self.store))
            at = groups[-1].tokens.stop
        return groups

    def begin(self, pos: Tensor) -> None:
        if pos.shape != self.pos.shape:
            raise ValueError(
                f"The segments have {self.pos.shape[1]} tokens, so pos is {tuple(self.pos.shape)}, "
                f"not {tuple(pos.shape)}; pass the cache's own pos."
            )
        self.store.prepare(self._places)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.store.traits

    def laid_out(self, pos: Tensor) -> Tensor:
        return pos.transpose(0, 1)

    def num_sequences(self, pos: Tensor) -> int:
        return sum(group.rows for group in self._groups)

    def store_new(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write the row's keys and values (N, Hkv, 1, ...) into their blocks."""
        self.store.write(layer, self._slots, k.squeeze(2), v.squeeze(2))

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
        if k is not None and v is not None:
            self.store_new(layer, k, v)
        parts = []
        for group in self._groups:
            keys, values = group.read(layer, k, v)
            if expand is not None:
                keys, values = expand(keys, values)
            mask = group.masks.get((window, causal))
            if mask is None:
                kept = self.store.kept
                mask = mask_for(group.q_pos, group.k_pos, window, q.dtype, causal=causal, kept=kept)
                group.masks[window, causal] = mask
            parts.append(group.answers(attend_with(group.queries(q), keys, values, mask, scale)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def advance(self, pos: Tensor) -> None:
        """The scheduler keeps the books: nothing is to be moved on here."""

    @property
    def nbytes(self) -> int:
        """The whole store: blocks belong to nobody until they are written."""
        return self.store.nbytes
