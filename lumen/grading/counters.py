"""Count what an answer costs: forward passes, rows, bytes, blocks. Never seconds: a count is the same on every machine.

Each counter wraps an object and passes everything else through, so it stands wherever the object could. A
limit turns a loop that does not end into a verdict (`LimitReached` is caught by the check).

    CountedModel(tiny, limit=50)        passes, rows, slots, head_rows, shapes
    CountedCache(StaticCache(...))      rows_written, rows_read, bytes_written, bytes_read
    CountedAllocator(BlockPool(64))     taken, freed, in_use, peak
    CountedCalls(oracle, limit=10)      calls
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .run import LimitReached


class Counted:
    """Base: attributes that the counter does not have are the wrapped object's."""

    def __init__(self, inner: Any, limit: int | None = None):
        self._inner, self._limit = inner, limit

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also before __init__ has run: no endless look-up
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _stay_below(self, count: int, what: str) -> None:
        if self._limit is not None and count > self._limit:
            raise LimitReached(f"More than {self._limit} {what}. Which condition ends the loop?")


class CountedCalls(Counted):
    """Counts calls of a function: `calls`. `limit` bounds them."""

    def __init__(self, fn: Callable[..., Any], limit: int | None = None):
        super().__init__(fn, limit)
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self._stay_below(self.calls, "calls")
        return self._inner(*args, **kwargs)


class CountedModel(Counted):
    """Counts forward passes of a model with `forward`, `hidden` and `head`; `limit` bounds the passes.

    passes     calls of the model, of `forward` or of `hidden`
    rows       tokens computed, padding (`pos` -1) left out
    slots      tokens computed, padding included: B × T, summed
    head_rows  rows of logits made
    shapes     (B, T) of each pass, in order
    """

    def __init__(self, model: Any, limit: int | None = None):
        super().__init__(model, limit)
        self.passes = self.rows = self.slots = self.head_rows = 0
        self.shapes: list[tuple[int, ...]] = []

    def _count(self, tokens: Any, pos: Any) -> None:
        self.passes += 1
        self._stay_below(self.passes, "forward passes")
        self.shapes.append(tuple(tokens.shape))
        self.slots += tokens.numel()
        self.rows += tokens.numel() if pos is None else int((pos >= 0).sum())

    def forward(self, tokens: Any, pos: Any = None, cache: Any = None) -> Any:
        self._count(tokens, pos)
        self.head_rows += tokens.numel()
        return self._inner(tokens, pos, cache)

    __call__ = forward

    def hidden(self, tokens: Any, pos: Any = None, cache: Any = None) -> Any:
        self._count(tokens, pos)
        return self._inner.hidden(tokens, pos, cache)

    def head(self, hidden: Any) -> Any:
        self.head_rows += hidden.shape[:-1].numel()
        return self._inner.head(hidden)


class CountedCache(Counted):
    """Counts what goes into and comes out of a cache (`lumen.cache.base.Cache`), summed over layers.

    rows_written, bytes_written   real tokens stored (padding left out): keys and values together
    rows_read, bytes_read         slots handed back to attention that hold a token, keys and values together

    `attend` takes the default path, `update` and then `attention`, because only there can be seen what is
    read. Use it to count, not to time.
    """

    def __init__(self, cache: Any):
        super().__init__(cache)
        self.rows_written = self.rows_read = self.bytes_written = self.bytes_read = 0

    def update(self, layer: int, k: Any, v: Any, pos: Any, q: Any = None) -> tuple[Any, Any, Any]:
        keys, values, k_pos = self._inner.update(layer, k, v, pos, q)
        written = int((pos >= 0).sum())
        held = (k_pos >= 0).sum()
        read = (
            int(held) if k_pos.ndim == 2 else int(held) // k_pos.shape[1]
        )  # (B, Hkv, S): mean over the heads
        self.rows_written += written
        self.rows_read += read
        self.bytes_written += written * _row_bytes(k, v)
        self.bytes_read += read * _row_bytes(keys, values)
        return keys, values, k_pos

    def attend(
        self,
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        pos: Any,
        window: int | None = None,
        *,
        scale: float | None = None,
        causal: bool = True,
    ) -> Any:
        from ..attention.core import attention

        keys, values, k_pos = self.update(layer, k, v, pos, q)
        return attention(q, keys, values, pos, k_pos, window, scale=scale, causal=causal)


def _row_bytes(k: Any, v: Any) -> int:
    """Bytes of one token's key and value in one layer: k, v (B, Hkv, S, D)."""
    return sum(one.shape[1] * one.shape[3] * one.element_size() for one in (k, v))


class CountedAllocator(Counted):
    """Counts the blocks that a pool hands out and takes back. `allocate` and `free` name the pool's methods.

    taken, freed   blocks so far (a list counts its items, anything else is one block)
    in_use, peak   blocks out now, and at most
    """

    def __init__(self, pool: Any, allocate: str = "allocate", free: str = "free"):
        super().__init__(pool)
        self.taken = self.freed = self.peak = 0
        self._allocate, self._free = allocate, free
        setattr(self, allocate, self._take)
        setattr(self, free, self._give)

    @property
    def in_use(self) -> int:
        return self.taken - self.freed

    def _take(self, *args: Any, **kwargs: Any) -> Any:
        blocks = getattr(self._inner, self._allocate)(*args, **kwargs)
        self.taken += _how_many(blocks)
        self.peak = max(self.peak, self.in_use)
        return blocks

    def _give(self, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        count = _how_many(blocks)  # before the call: the pool may empty the list
        result = getattr(self._inner, self._free)(blocks, *args, **kwargs)
        self.freed += count
        return result


def _how_many(blocks: Any) -> int:
    return 0 if blocks is None else len(blocks) if isinstance(blocks, (list, tuple, set)) else 1
