"""A ring of the newest positions behind a few first ones: memory that does not grow, however long the text.

    slot       0  1 | 2  3  4  5  6  7 | 8       sinks 2, newest 5, rewind 1: a ring of 6 slots, and one for padding
    position   0  1 |14  9 10 11 12 13 | -       position p of the ring lives in slot sinks + (p - sinks) % 6

A query at position q reads k > q - newest and k < sinks, and nothing else, whatever the chunks: one new token a row is
written over what no query can read any more; longer chunks are read beside the ring and settle in it at the end, so a
chunk that is longer than the ring still reads all that its rule lets it. The first tokens are kept because a softmax
must put its weight somewhere, and models learn to put it there: without them a window forgets how to read as soon as
they leave. Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks (StreamingLLM), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.core import mask_for
from ..config import ModelConfig
from ..inputs import whole
from ..parts import Window
from ..runtime import refuse_beyond_memory
from .base import MOST_ROWS, Cache
from .traits import Expand, HasShape, Traits, storage_bytes, stored_dims
from .window_shift import TurnOn, attend_apart, gaps


class WindowCache(Cache):
    """What `kept` says of each row, with `rewind` slots more to go back by.

    k, v (layers, B, Hkv, slots, ...), one table of positions (B, slots). Of a model that was trained with this very
    window it is lossless; to any other model it is another rule of who reads whom, and that is what its traits say.

    With `turn` (`lumen.models.rope.Turn`) distances are those inside the cache: a sink stands right before the ring,
    as far from the query as it would in a text of that length. Then no distance ever exceeds what is kept, and a text
    may be longer than the positions that the model was trained on.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        kept: Window,
        rewind: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        turn: TurnOn | None = None,
    ):
        rows, rewind = whole(rows, "rows", 0, MOST_ROWS), whole(rewind, "rewind", 0, 2**24)
        layers, (heads, *widths) = len(config.storing_layers), stored_dims(config)
        self.kept, self.turn = kept, turn
        self._ring, self._size = kept.newest + rewind, kept.positions + rewind
        shape = layers, rows, heads, self._size + 1
        refuse_beyond_memory(
            layers * rows * heads * (self._size + 1) * sum(widths) * dtype.itemsize, device,
            f"{rows} rows of {self._size + 1} positions", "Take fewer rows, a smaller dtype or a smaller window.",
        )  # fmt: skip
        self.k, self.v = (torch.zeros(*shape, width, dtype=dtype, device=device) for width in widths)
        # Keys of the sinks as they were stored; those in `k` are turned on as far as the text has come.
        self.sinks = self.k[:, :, :, : kept.sinks if turn else 0].clone()
        self.positions = torch.full((rows, self._size + 1), -1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._furthest = self.lengths.clone()  # what rows have reached before they went back
        own = {config.window_of(layer) for layer in range(config.num_layers)} == {kept.newest}
        self.traits = Traits(
            max_rewind=rewind, kept=None if own and not kept.sinks else kept,
            endless=turn is not None, readable=turn is None,
        )  # fmt: skip

    @classmethod
    def for_model(
        cls,
        model: HasShape,
        rows: int,
        newest: int,
        sinks: int = 0,
        *,
        rewind: int = 0,
        turn: TurnOn | None = None,
    ) -> WindowCache:
        """An empty cache on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, Window(newest, sinks), rewind, weight.dtype, weight.device, turn)

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        if pos.device.type == "cpu":
            self._refuse_backwards(pos)
        self._new: dict[int, tuple[Tensor, Tensor]] = {}
        self._gaps = self._place_sinks(pos)
        if pos.shape[1] > 1:
            read = min(int(self.lengths.max()), self._size)
            self._k_pos = torch.cat([self.positions[:, :read], pos], 1)
        else:
            read = min(max(int(self.lengths.max()), int(pos.max()) + 1, 1), self._size)
            self._at = self._slots(pos)
            self._after = self.positions.scatter(1, self._at, pos)
            self._k_pos = self._after[:, :read]
            first = int(self._at[0, 0])
            self._run = slice(first, first + 1) if bool((self._at == first).all()) else None
        self._rows = torch.arange(pos.shape[0], device=pos.device)[:, None]
        # One view of each kind for all layers, taken apart once.
        self._k, self._v = self.k.unbind(0), self.v.unbind(0)
        self._held = self.k[:, :, :, :read].unbind(0), self.v[:, :, :, :read].unbind(0)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if pos.shape[1] > 1:
            self._new[layer] = k, v
        else:
            for slots, new in ((self._k[layer], k), (self._v[layer], v)):
                if self._run is not None:
                    slots[:, :, self._run].copy_(new)
                else:
                    slots[self._rows, :, self._at] = new.transpose(1, 2)
        return self.read(layer)

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self._held[0][layer], self._held[1][layer]
        if layer not in self._new:
            return k, v, self._k_pos[:, : k.shape[2]]
        new_k, new_v = self._new[layer]
        if k.shape[2] == 0:
            return new_k, new_v, self._k_pos
        return torch.cat([k, new_k], 2), torch.cat([v, new_v], 2), self._k_pos

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
        if self.turn is None or self._gaps is None or pos.shape[1] == 1:
            return super().attend(layer, q, k, v, pos, window, scale=scale, causal=causal, expand=expand)
        # Every query of a chunk has a gap of its own: the sinks stay where they are and each query goes to them.
        held = self.read(layer, q) if k is None or v is None else self.update(layer, k, v, pos, q)
        mask = self._masks.get((window, causal))
        if mask is None:
            mask = mask_for(pos, held[2], window, q.dtype, causal=causal, kept=self.kept)
            self._masks[window, causal] = mask
        back = self.turn(q, -self._gaps[:, None])
        return attend_apart(q, back, *held, self.kept.sinks, mask, scale)

    def advance(self, pos: Tensor) -> None:
        if pos.shape[1] > 1:
            self._settle(pos)
        else:
            self.positions = self._after
        if self.sinks.shape[3]:
            rows = ((pos >= 0) & (pos < self.kept.sinks)).any(
                1
            )  # their gap is none: what stands there is as stored
            self.sinks[:, rows] = self.k[:, rows, :, : self.kept.sinks]
        super().advance(pos)
        self._furthest = torch.maximum(self._furthest, self.lengths)

    def _settle(self, pos: Tensor) -> None:
        """What stays of a chunk takes its slots; the rest of it has been read and is gone."""
        ends = torch.maximum(self.lengths, pos.amax(1) + 1)
        stays = (pos >= 0) & ((pos < self.kept.sinks) | (pos >= ends[:, None] - self._ring))
        columns = stays.any(0).nonzero().flatten()
        at = pos.masked_fill(~stays, -1)[:, columns]
        slots = self._slots(at)
        for layer, (k, v) in self._new.items():
            self._k[layer][self._rows, :, slots] = k[:, :, columns].transpose(1, 2)
            self._v[layer][self._rows, :, slots] = v[:, :, columns].transpose(1, 2)
        self.positions, self._new = self.positions.scatter(1, slots, at), {}

    def _slots(self, pos: Tensor) -> Tensor:
        """Where positions live; -1 behind everything that is read."""
        sinks = self.kept.sinks
        slots = torch.where(pos < sinks, pos, sinks + (pos - sinks) % self._ring)
        return torch.where(pos >= 0, slots, self._size)

    def _place_sinks(self, pos: Tensor) -> Tensor | None:
        """How far each query's text has come past what is kept (B, T), if the sinks move with it. One new token a row:
        they are turned on to stand right before the ring. A chunk finds them as they were stored."""
        if self.turn is None or not self.kept.sinks:
            return None
        gap = gaps(pos, self.kept)
        far = bool((gap > 0).any())
        on = far and pos.shape[1] == 1
        self.k[:, :, :, : self.kept.sinks] = (
            self.turn(self.sinks, gap[None, :, :, None]) if on else self.sinks
        )
        return gap if far else None

    def _refuse_backwards(self, pos: Tensor) -> None:
        behind = (pos >= 0) & (pos < self.lengths[:, None])
        if bool(behind.any()):
            row = int(behind.any(1).int().argmax())
            raise ValueError(
                f"Row {row} holds {int(self.lengths[row])} positions, and a new token stands at position "
                f"{int(pos[row][behind[row]][0])}: in a ring it would push out a newer one. Rewind first, or use a "
                "cache that keeps every position."
            )

    def _checked_lengths(self, lengths: Tensor | Sequence[int]) -> Tensor:
        """How far back is counted from the furthest that a row has reached: a ring that has wrapped holds no more."""
        new = super()._checked_lengths(lengths)
        back = self._ring - self.kept.newest
        if bool(((self._furthest > self._size) & (new < self._furthest - back)).any()):
            raise ValueError(
                f"The rows have reached {self._furthest.tolist()}, and this ring can go back {back} positions from "
                f"there, not to {new.tolist()}. Start again with an empty cache, or make one with a larger rewind."
            )
        return new

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        new = self._checked_lengths(lengths)
        self.positions = self.positions.masked_fill(self.positions >= new[:, None], -1)
        self.lengths = new

    def reset(self) -> None:
        self.lengths, self._furthest = (torch.zeros_like(self.lengths) for _ in range(2))
        self.positions = torch.full_like(self.positions, -1)

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self.k, self.v, self.sinks = self.k[:, index], self.v[:, index], self.sinks[:, index]
        self.positions, self.lengths = self.positions[index], self.lengths[index]
        self._furthest = self._furthest[index]

    @property
    def nbytes(self) -> int:
        return storage_bytes([self.k, self.v, self.sinks])
