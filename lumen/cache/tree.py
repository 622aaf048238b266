"""A draft tree over any cache: siblings stand at one position, and each new token sees only its own ancestors.

    held  a b c          new   0 ── 1 ── 3         parents   [-1, 0, 0, 1]      position of node = held + depth
                                └── 2              ancestors of 3: 3, 1, 0; of 2: 2, 0

The new keys stay in scratch: the cache below is read and not written, so it need not know about trees. `accept` then
writes one path of each row into it as any other forward would, and the rest is gone with this object. The one mask
rule decides what is read of the cache, the ancestor matrix what is read of the tree. Miao et al. 2024, SpecInfer,
section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with, mask_for
from ..inputs import INT64, wholes
from .base import Cache, CacheFull
from .traits import Expand, Traits, storage_bytes

PADDING = -1


class Tree(Cache):
    """One forward over `base`: `model(tokens, tree.pos, tree)`, then `tree.accept(paths)`.

    `parents[row][i]` is the node that new token i of a row continues, -1 for the last token that `base` holds; parents
    come before their children. Rows may have trees of different sizes, none at all with an empty list. `pos` (B, T)
    holds the positions, -1 behind a smaller tree; `ancestors` (B, T, T) says who descends from whom.
    """

    def __init__(self, base: Cache, parents: Sequence[Sequence[int]]):
        if not base.traits.takes_trees:
            raise ValueError(
                f"{type(base).__name__} takes no draft tree: a tree reads what is held and stores nothing, and this "
                "kind needs more. Draft a chain, or use a cache that can be read without storing."
            )
        rows = base.lengths.shape[0]
        if len(parents) != rows:
            raise ValueError(
                f"The cache holds {rows} rows, but there are {len(parents)} trees; give one per row."
            )
        trees = [tuple(wholes(tree, f"parents[{row}]", -INT64)) for row, tree in enumerate(parents)]
        for row, tree in enumerate(trees):
            wrong = next((i for i, parent in enumerate(tree) if not -1 <= parent < i), None)
            if wrong is not None:
                raise ValueError(
                    f"Row {row}: node {wrong} has parent {tree[wrong]}; a parent is -1 or a node before its child."
                )
        width = max(map(len, trees), default=0)
        if width == 0:
            raise ValueError("No row has a new token; a tree needs one node at least.")
        self.base, self.parents = base, trees
        lines: list[tuple[int, int, int]] = []  # row, node, ancestor
        depths = [[PADDING] * width for _ in range(rows)]
        for row, tree in enumerate(self.parents):
            above: list[list[int]] = []
            for node, parent in enumerate(tree):
                above.append([*above[parent], node] if parent >= 0 else [node])
                lines += [(row, node, ancestor) for ancestor in above[node]]
                depths[row][node] = len(above[node]) - 1
        related = torch.zeros(rows, width, width, dtype=torch.bool)
        related[tuple(torch.tensor(lines).unbind(1))] = True
        depth = torch.tensor(depths, device=base.lengths.device)
        self.ancestors = related.to(depth.device)
        self.pos = torch.where(depth >= 0, base.lengths[:, None] + depth, PADDING)
        self._new: dict[int, tuple[Tensor, Tensor]] = {}
        self._done = False

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return self.base.lengths

    @property
    def capacity(self) -> int | None:
        return self.base.capacity

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.base.traits

    def begin(self, pos: Tensor) -> None:
        if pos.shape != self.pos.shape or (pos.device.type == "cpu" and not torch.equal(pos, self.pos)):
            raise ValueError(
                "A tree's positions follow from its parents; pass the tree's own pos to the model."
            )
        if self.capacity is not None and int(self.pos.max()) >= self.capacity:
            raise CacheFull(
                f"The tree reaches position {int(self.pos.max())}, but this cache reserves {self.capacity} per row. "
                "Make it larger, or draft less deeply."
            )
        self.base.begin(self.pos.new_full((pos.shape[0], 1), PADDING))  # a forward that writes nothing
        self._masks: dict[tuple[int | None, bool], Mask] = {}
        self._new, self._done = {}, False

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
            self._new[layer] = k, v
        held_k, held_v, held_pos = self.base.read(layer, q)
        new_k, new_v = self._new[layer]
        keys, values = torch.cat([held_k, new_k], 2), torch.cat([held_v, new_v], 2)
        if expand is not None:
            keys, values = expand(keys, values)
        mask = self._masks.get((window, causal)) if self.traits.same_positions else None
        if mask is None:
            new_pos = pos if held_pos.dim() == 2 else pos[:, None].expand(-1, held_pos.shape[1], -1)
            k_pos = torch.cat([held_pos, new_pos], -1)
            kept = self.traits.kept
            mask = mask_for(pos, k_pos, window, q.dtype, causal=causal, ancestors=self.ancestors, kept=kept)
            self._masks[window, causal] = mask
        return attend_with(q, keys, values, mask, scale)

    def advance(self, pos: Tensor) -> None:
        self._done = True  # nothing is held yet: that is for `accept` to say

    def accept(self, paths: Sequence[Sequence[int]]) -> None:
        """Write one path of each row into the cache below: `paths[row]` lists its nodes from the top, maybe none.

        ValueError for what is no path and before the forward; CacheFull from the cache. Nothing has changed then.
        """
        if not self._done:
            raise ValueError("A tree is accepted once, after the model has run over it.")
        if len(paths) != len(self.parents):
            raise ValueError(
                f"{len(paths)} paths for {len(self.parents)} rows; give one per row, empty for none."
            )
        paths = [wholes(path, f"paths[{row}]", -INT64) for row, path in enumerate(paths)]
        for row, (path, tree) in enumerate(zip(paths, self.parents, strict=True)):
            above = [-1, *path]
            if any(not 0 <= n < len(tree) or tree[n] != p for n, p in zip(path, above, strict=False)):
                raise ValueError(
                    f"Row {row}: {list(path)} is no path of the tree {list(tree)}; it starts at a node whose parent is "
                    "-1, and each node continues the one before."
                )
        if longest := max(map(len, paths)):
            nodes = torch.tensor(
                [[*p, *[PADDING] * (longest - len(p))] for p in paths], device=self.pos.device
            )
            at = nodes.clamp(min=0)
            pos = torch.where(nodes >= 0, self.pos.gather(1, at), PADDING)
            self.base.begin(pos)
            index = at[:, None, :, None]
            for layer, (k, v) in self._new.items():
                self.base.update(layer, k.take_along_dim(index, 2), v.take_along_dim(index, 2), pos)
            self.base.advance(pos)
        self._new, self._done = {}, False

    @property
    def nbytes(self) -> int:
        """The cache below and the scratch."""
        return self.base.nbytes + storage_bytes([x for pair in self._new.values() for x in pair])
