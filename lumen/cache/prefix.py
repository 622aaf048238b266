"""Prefix caching with hash-chained blocks: the same beginning of a token sequence is computed once. No torch.

A full block is known by a sha256 over its parent's key, its tokens, and what else its numbers depend on (tenant,
adapter, salt). A key says everything about the whole prefix, so one dictionary look-up per block finds the longest
match. A hash alone is never trusted: the stored tokens and the parent are compared too, so that a collision is a miss
and not somebody else's text.

What is remembered is held in the pool by one reference of the cache's own. A block that a sequence reads has more
references and is not evicted; among the others the least recently used leaf goes first, because a block whose child
stays behind would leave the child unreachable. vLLM's design document "Automatic Prefix Caching" describes this scheme.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..inputs import shown, token_ids
from .pool import BlockPool

ROOT = b""
_PARTS = (str, bytes, int, bool, type(None))


def extra_key(extra: Sequence[object]) -> tuple[tuple[str, object], ...]:
    """`extra` as prefix caches compare it: 1, True and "1" differ. ValueError for what cannot be compared.

    A part is a string, bytes, an int, a bool, None, or a tuple of strings: these are equal to themselves, to nothing of
    another kind, and stay as they are. (A float may be a NaN, a list may change.)
    """
    if not isinstance(extra, list | tuple):
        raise ValueError(
            f"extra is a tuple of what else cached numbers depend on, got {shown(extra)}; put brackets around a single "
            "part."
        )
    for part in extra:
        if type(part) not in _PARTS and not (type(part) is tuple and set(map(type, part)) <= {str}):
            raise ValueError(
                f"A part of extra is a string, bytes, an int, a bool, None or a tuple of strings, got {shown(part)} "
                f"({type(part).__name__}); write anything else as a string."
            )
    return tuple((type(part).__name__, part) for part in extra)


class Prefix:
    """What a block store asks of a prefix cache. Tokens are ids; `extra` is what else the cached numbers depend on, see
    `extra_key`. ValueError for other things; nothing has changed then."""

    queries = 0  # tokens asked for
    hits = 0  # tokens found

    def match(self, tokens: Sequence[int], extra: Sequence[object] = ()) -> list[int]:
        """Blocks that hold the longest remembered prefix, with one more reference each for the caller.

        Never the whole prompt: the last token must run, or there is nothing to sample from.
        """
        raise NotImplementedError

    def insert(self, tokens: Sequence[int], blocks: list[int], extra: Sequence[object] = ()) -> None:
        """Remember the full blocks of the table `blocks`, which holds `tokens` in order. Takes references of its own.

        What was computed twice, by sequences that ran side by side, is exchanged in the table for the copy that is
        remembered already: memory comes back, and whoever holds a block holds its parent too.
        """
        raise NotImplementedError

    def evict(self, count: int) -> int:
        """Free up to `count` blocks that no sequence reads, least recently used first; returns how many."""
        raise NotImplementedError

    def num_evictable(self) -> int:
        """How many blocks `evict` could free now: those that no sequence reads."""
        raise NotImplementedError

    def blocks(self) -> list[int]:
        """All blocks that are remembered, for the audit."""
        raise NotImplementedError


def with_adapter(extra: Sequence[object], adapter: str | None) -> tuple[object, ...]:
    """What numbers depend on that were computed with an adapter: one name means one adapter wherever it is shared."""
    return tuple(extra) if adapter is None else (*extra, ("adapter", adapter))


def allocate(pool: BlockPool, prefix: Prefix, count: int) -> list[int]:
    """Blocks from the pool; when it is short, what only the prefix cache remembers is evicted first.

    CacheFull takes no block; prefixes that nobody reads may be forgotten even then.
    """
    if count > pool.num_free:
        prefix.evict(count - pool.num_free)
    return pool.allocate(count)


def exchange(pool: BlockPool, table: list[int], place: int, block: int) -> None:
    """Let a table read `block`, which holds the same tokens, instead of its own copy."""
    pool.share([block])
    pool.release([table[place]])
    table[place] = block


class NoPrefix(Prefix):
    """The null object: remembers nothing."""

    def match(self, tokens: Sequence[int], extra: Sequence[object] = ()) -> list[int]:
        return []

    def insert(self, tokens: Sequence[int], blocks: list[int], extra: Sequence[object] = ()) -> None:
        """Nothing is remembered."""

    def evict(self, count: int) -> int:
        return 0

    def num_evictable(self) -> int:
        return 0

    def blocks(self) -> list[int]:
        return []


@dataclass
class _Entry:
    """One remembered block. `children` counts remembered blocks that continue it."""

    block: int
    tokens: tuple[int, ...]
    extra: tuple[object, ...]
    parent: bytes
    children: int = 0


def chain_key(parent: bytes, tokens: Sequence[int], extra: Sequence[object]) -> bytes:
    """sha256 over (parent, tokens, extra), each part with its length, so that no two inputs spell the same bytes."""
    digest = hashlib.sha256(len(parent).to_bytes(2, "little") + parent)
    digest.update(len(tokens).to_bytes(4, "little"))
    for token in tokens:
        digest.update(token.to_bytes(8, "little", signed=True))
    for part in extra:
        text = f"{type(part).__name__}:".encode() + _spelled(part)
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()


def _spelled(part: object) -> bytes:
    """A part of `extra` in bytes; half a surrogate pair and an int of a thousand digits have some, too."""
    if isinstance(part, bytes):
        return part
    text = f"{part:x}" if isinstance(part, int) else str(part)
    return text.encode("utf8", "surrogatepass")


class HashPrefix(Prefix):
    """Hash-chained blocks. The dictionary's order is the order of use: oldest first."""

    def __init__(
        self, pool: BlockPool, key: Callable[[bytes, Sequence[int], Sequence[object]], bytes] = chain_key
    ):
        self.pool, self.key = pool, key
        self._entries: dict[bytes, _Entry] = {}

    def _find(
        self, parent: bytes, tokens: tuple[int, ...], extra: tuple[object, ...]
    ) -> tuple[bytes, _Entry | None]:
        key = self.key(parent, tokens, extra)
        entry = self._entries.get(key)
        same = entry is not None and (entry.tokens, entry.extra, entry.parent) == (tokens, extra, parent)
        return key, entry if same else None

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # leaves become older than their parents, so they go first
            self._entries[key] = self._entries.pop(key)

    def match(self, tokens: Sequence[int], extra: Sequence[object] = ()) -> list[int]:
        extra_key(extra)
        tokens, others = token_ids(tokens, "tokens"), tuple(extra)
        size, parent, keys, blocks = self.pool.block_size, ROOT, [], []
        for start in range(0, (len(tokens) - 1) // size * size, size):
            key, entry = self._find(parent, tuple(tokens[start : start + size]), others)
            if entry is None:
                break
            keys.append(key)
            blocks.append(entry.block)
            parent = key
        self._touch(keys)
        self.pool.share(blocks)
        self.queries += len(tokens)
        self.hits += len(blocks) * size
        return blocks

    def insert(self, tokens: Sequence[int], blocks: list[int], extra: Sequence[object] = ()) -> None:
        extra_key(extra)
        tokens, others = token_ids(tokens, "tokens"), tuple(extra)
        size, parent, keys = self.pool.block_size, ROOT, []
        for place in range(min(len(tokens) // size, len(blocks))):
            part = tuple(tokens[place * size : (place + 1) * size])
            key, entry = self._find(parent, part, others)
            if entry is None:
                if key in self._entries:  # a collision: the one who came first stays, the chain ends here
                    break
                self.pool.remember([blocks[place]])
                self._entries[key] = _Entry(blocks[place], part, others, parent)
                if parent != ROOT:
                    self._entries[parent].children += 1
            elif entry.block != blocks[place]:
                exchange(self.pool, blocks, place, entry.block)
            keys.append(key)
            parent = key
        self._touch(keys)

    def evict(self, count: int) -> int:
        freed = 0
        while freed < count:
            leaf = next(
                (k for k, e in self._entries.items() if not e.children and self.pool.refs(e.block) == 1), None
            )
            if leaf is None:
                break
            entry = self._entries.pop(leaf)
            if entry.parent != ROOT:
                self._entries[entry.parent].children -= 1
            freed += len(self.pool.release([entry.block]))
        return freed

    def num_evictable(self) -> int:
        return self.pool.num_evictable

    def blocks(self) -> list[int]:
        return [entry.block for entry in self._entries.values()]
