"""What one decode step costs in each method: FLOPs of its matrix products, and bytes of keys and values that it reads.

For one layer and one query that follows `context` - 1 others. Blocks count whole, as they are fetched. A prompt costs
about the sum over its queries; what `routed` saves there is that a block is read once for all that want it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .nsa import NSA


@dataclass(frozen=True)
class Work:
    """FLOPs (two for each multiplication) and bytes read."""

    flops: int
    read: int

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.read + other.read)


@dataclass(frozen=True)
class Heads:
    """The heads of a layer: `query` of them read `kv`; widths of a key and a value, and bytes of one number of them."""

    query: int
    kv: int
    key: int
    value: int
    itemsize: int = 2

    def scores(self, keys: int) -> Work:
        """All query heads against `keys` keys of each key/value head."""
        return Work(2 * self.query * keys * self.key, self.kv * keys * self.key * self.itemsize)

    def attend(self, keys: int, choosers: int | None = None) -> Work:
        """Attention of one query over `keys` keys, fetched once for each of `choosers` (the key/value heads)."""
        choosers = self.kv if choosers is None else choosers
        width = self.key + self.value
        return Work(2 * self.query * keys * width, choosers * keys * width * self.itemsize)


def full_work(heads: Heads, context: int) -> Work:
    """Attention over everything."""
    return heads.attend(_checked(context))


def window_work(heads: Heads, context: int, window: int) -> Work:
    """The newest `window` keys."""
    return heads.attend(min(_checked(context), window))


def nsa_work(
    heads: Heads,
    context: int,
    shape: NSA = NSA(),  # noqa: B008 - frozen
    *,
    dense_map: bool = True,
) -> Work:
    """The three parts of NSA, and the sum of scores over blocks; compressed keys are kept and not made again.

    `block_scores` writes this sum as a product with a matrix that is nearly all zeros, `dense_map`. A kernel adds the
    few scores of each block and multiplies nothing.
    """
    coarse = max(0, (_checked(context) - shape.block) // shape.stride + 1)
    blocks = -(-context // shape.select)
    pointing = Work(2 * heads.kv * coarse * blocks if dense_map else 0, 0)
    fine = heads.attend(min(shape.count, blocks) * shape.select)
    return heads.attend(coarse) + pointing + fine + window_work(heads, context, shape.window)


def moba_work(heads: Heads, context: int, block: int = 512, top_k: int = 3) -> Work:
    """The mean keys, which are kept, and `top_k` blocks for each query head: heads of a group share nothing."""
    blocks = -(-_checked(context) // block)
    return heads.scores(blocks) + heads.attend(min(top_k, blocks) * block, heads.query)


def dsa_work(
    heads: Heads,
    context: int,
    top_k: int = 2048,
    index_heads: int = 64,
    index_dim: int = 128,
    index_itemsize: int = 1,
) -> Work:
    """The indexer over all keys, one of its own for each token, and attention over `top_k` of them."""
    index = Work(2 * index_heads * index_dim * _checked(context), context * index_dim * index_itemsize)
    return index + heads.attend(min(top_k, context))


def _checked(context: int) -> int:
    if context < 1:
        raise ValueError(f"A query reads one key at least, its own: context is 1 or more, got {context}.")
    return context
