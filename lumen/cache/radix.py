"""Prefix caching with a radix tree over pages: edges carry runs of tokens, so a lookup compares and never hashes.

        (root)
          | [1 2 3 4 | 5 6 7 8]        blocks 0 1        pages of four tokens; a node keeps the run that leads
          +--+---------------+                           to it and the block of each page of that run
             | [9 9 9 9]     | [7 7 7 7 | 1 1 1 1]
             block 2         blocks 3 4

A new sequence that leaves a run in its middle splits the node at a page. Blocks that a sequence reads have a second
reference in the pool, which locks them; eviction takes pages from the least recently used leaf, last page first.
Zheng et al. 2023, SGLang, section 3 (RadixAttention). No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from .pool import BlockPool
from .prefix import Prefix, exchange, extra_key

Page = tuple[int, ...]
Key = tuple[tuple[str, object], ...]  # what the numbers in a tree's blocks depend on beside the tokens


class _Node:
    """A run of pages below its parent; `children` by their first page. A root has no pages, and the key of its tree."""

    def __init__(
        self, parent: _Node | None, pages: list[Page], blocks: list[int], used: int, key: Key | None = None
    ):
        self.parent, self.pages, self.blocks, self.used, self.key = parent, pages, blocks, used, key
        self.children: dict[Page, _Node] = {}


class RadixPrefix(Prefix):
    """One tree for each `extra` (tenant, adapter, salt), all over one pool. A tree goes with its last block: salts that
    were used once leave nothing behind, and a step costs what the pool holds, whatever came before."""

    def __init__(self, pool: BlockPool):
        self.pool = pool
        self._roots: dict[Key, _Node] = {}
        self._clock = 0

    def _pages(self, tokens: Sequence[int], count: int) -> list[Page]:
        size = self.pool.block_size
        return [tuple(tokens[i * size : (i + 1) * size]) for i in range(count)]

    def _walk(self, root: _Node, pages: list[Page]) -> tuple[_Node, int, int]:
        """The node where the match ends, how many of its pages match, and how many pages match in all."""
        node, inside, total = root, 0, 0
        while total < len(pages) and (child := node.children.get(pages[total])) is not None:
            node, inside = child, 0
            while inside < len(node.pages) and total < len(pages) and node.pages[inside] == pages[total]:
                inside, total = inside + 1, total + 1
            if inside < len(node.pages):
                break
        return node, inside, total

    @staticmethod
    def _path(node: _Node, inside: int) -> list[int]:
        """The blocks from the root to the first `inside` pages of a node."""
        parts, above = [node.blocks[:inside]], node.parent
        while above is not None:
            parts.append(above.blocks)
            above = above.parent
        return [block for part in reversed(parts) for block in part]

    def _touch(self, node: _Node | None) -> None:
        self._clock += 1
        while node is not None:
            node.used, node = self._clock, node.parent

    def match(self, tokens: Sequence[int], extra: Sequence[object] = ()) -> list[int]:
        root = self._roots.get(extra_key(extra))
        self.queries += len(tokens)
        if root is None:
            return []
        node, inside, _ = self._walk(root, self._pages(tokens, (len(tokens) - 1) // self.pool.block_size))
        self._touch(node)
        blocks = self._path(node, inside)
        self.pool.share(blocks)
        self.hits += len(blocks) * self.pool.block_size
        return blocks

    def insert(self, tokens: Sequence[int], blocks: list[int], extra: Sequence[object] = ()) -> None:
        key = extra_key(extra)
        pages = self._pages(tokens, min(len(tokens) // self.pool.block_size, len(blocks)))
        if not pages:
            return
        root = self._roots.get(key) or _Node(None, [], [], 0, key)
        node, inside, total = self._walk(root, pages)
        for place, block in enumerate(self._path(node, inside)):
            if block != blocks[place]:
                exchange(self.pool, blocks, place, block)
        if total < len(pages):
            if inside < len(node.pages):
                self._split(node, inside)
            new = list(blocks[total : len(pages)])
            self.pool.remember(new)
            child = _Node(node, pages[total:], new, 0)
            node.children[pages[total]] = child
            self._roots[key] = root
            node = child
        self._touch(node)

    @staticmethod
    def _split(node: _Node, at: int) -> None:
        """Cut a run after `at` pages: the node keeps the front, a new child gets the rest and all children."""
        rest = _Node(node, node.pages[at:], node.blocks[at:], node.used)
        rest.children = node.children
        for child in rest.children.values():
            child.parent = rest
        node.pages, node.blocks = node.pages[:at], node.blocks[:at]
        node.children = {rest.pages[0]: rest}

    def _nodes(self) -> Iterator[_Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def evict(self, count: int) -> int:
        freed = 0
        leaves = [(node.used, id(node), node) for node in self._nodes() if node.blocks and not node.children]
        heapify(leaves)
        while leaves and freed < count:
            _, _, leaf = heappop(leaves)
            while leaf.blocks and freed < count and self.pool.refs(leaf.blocks[-1]) == 1:
                first = leaf.pages[0]
                freed += len(self.pool.release([leaf.blocks.pop()]))
                leaf.pages.pop()
                if not leaf.pages and leaf.parent is not None:
                    parent = leaf.parent
                    del parent.children[first]
                    if parent.blocks and not parent.children:
                        heappush(leaves, (parent.used, id(parent), parent))
                    elif parent.key is not None and not parent.children:
                        del self._roots[parent.key]
        return freed

    def num_evictable(self) -> int:
        return self.pool.num_evictable

    def blocks(self) -> list[int]:
        return [block for node in self._nodes() for block in node.blocks]
