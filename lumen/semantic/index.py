"""Nearest vectors through FAISS: four kinds of index behind one small class that can also delete.

    flat   compares with every vector: exact, and the yardstick for the others
    ivf    sorts the vectors into lists around k-means centres and reads the `probes` nearest lists
    hnsw   walks a graph of near neighbours, keeping the `ef` best places seen
    pq     stores 8 bits for each of `parts` stretches of the vector and compares with those

All use the inner product of unit vectors, the cosine. IVF and PQ learn from data, so below `train_from`
vectors they are flat, and they learn anew each time the number has doubled. HNSW cannot delete and the
others shift what follows, so a deleted vector stays in place as a tombstone that is never returned, and
the index is built again when a quarter is dead. The vectors themselves are kept beside the index:
candidates are scored with them, so a score is the same in every kind, and only which candidates are found
depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..extras import extra
from .encoder import unit

KINDS = ("flat", "ivf", "hnsw", "pq")


@dataclass(frozen=True)
class IndexSpec:
    """Kind and settings. `lists=0` chooses min(4 sqrt(n), n / 39); `train_from=0` what FAISS asks for."""

    kind: str = "flat"
    lists: int = 0
    probes: int = 8
    links: int = 32
    ef_build: int = 100
    ef: int = 64
    parts: int = 48
    bits: int = 8
    train_from: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"There is no index kind {self.kind!r}; there are {', '.join(KINDS)}.")
        if min(self.probes, self.links, self.ef_build, self.ef, self.parts, self.bits) < 1 or self.lists < 0:
            raise ValueError(f"The settings of an index are positive numbers, got {self}.")

    @property
    def needs(self) -> int:
        """The fewest vectors this kind can be trained on; below, the index is flat."""
        return self.train_from or {"ivf": 39 * 8, "pq": 39 * 2**self.bits}.get(self.kind, 0)


def build(spec: IndexSpec, vectors: np.ndarray) -> Any:
    """A trained FAISS index of the given kind that holds `vectors` (n, width), numbered 0 to n - 1."""
    with extra("semantic"):
        import faiss

    index: Any
    count, width = vectors.shape
    if spec.kind == "pq" and width % spec.parts:
        raise ValueError(f"PQ cuts a vector into equal parts: {width} cannot be cut into {spec.parts}.")
    if spec.kind == "flat" or count < spec.needs:
        index = faiss.IndexFlatIP(width)
    elif spec.kind == "ivf":
        lists = spec.lists or max(1, min(int(4 * math.sqrt(count)), count // 39))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(spec.probes, lists)
    elif spec.kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, spec.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = spec.ef_build, spec.ef
    else:
        index = faiss.IndexPQ(width, spec.parts, spec.bits, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        index.train(vectors)
    if count:
        index.add(vectors)
    return index


class VectorIndex:
    """Unit vectors by key. `add`, `remove`, `search`; not thread-safe by itself."""

    def __init__(self, width: int, spec: IndexSpec | str = "flat"):
        self.width = width
        self.spec = IndexSpec(spec) if isinstance(spec, str) else spec
        self._vectors: dict[str, np.ndarray] = {}
        self._slots: list[str | None] = []  # slot in FAISS -> key, None: deleted
        self._slot_of: dict[str, int] = {}
        self._built_for = 0
        self._faiss: Any = build(self.spec, np.zeros((0, width), np.float32))

    def add(self, key: str, vector: np.ndarray) -> None:
        """Put in one vector (width,), in place of an older one with the same key."""
        row = unit(np.asarray(vector)[None], self.width)
        self.remove(key)
        self._vectors[key] = row[0]
        if len(self._vectors) >= max(self.spec.needs, 2 * self._built_for) and self.spec.kind in (
            "ivf",
            "pq",
        ):
            self._rebuild()
            return
        self._faiss.add(row)
        self._slot_of[key] = len(self._slots)
        self._slots.append(key)

    def remove(self, key: str) -> bool:
        """Take out one vector; False if it was not there."""
        if key not in self._vectors:
            return False
        del self._vectors[key]
        self._slots[self._slot_of.pop(key)] = None
        if 4 * self.dead > len(self._slots) and self.dead >= 16:
            self._rebuild()
        return True

    def search(self, vector: np.ndarray, count: int) -> list[tuple[str, float]]:
        """At most `count` (key, cosine) pairs, nearest first; the deleted are never among them."""
        row = unit(np.asarray(vector)[None], self.width)
        if not self._vectors:
            return []
        keys: list[str] = []
        for wanted in _growing(count, len(self._slots)):
            _, slots = self._faiss.search(row, wanted)
            keys = [key for slot in slots[0] if slot >= 0 and (key := self._slots[slot]) is not None]
            if len(keys) >= count:
                break
        scored = [(key, float(self._vectors[key] @ row[0])) for key in keys]
        return sorted(scored, key=lambda pair: -pair[1])[:count]

    @property
    def dead(self) -> int:
        """Deleted vectors that are still in the FAISS index."""
        return len(self._slots) - len(self._vectors)

    @property
    def nbytes(self) -> int:
        """Bytes of the FAISS index, written out; the vectors kept beside it come on top."""
        return index_bytes(self._faiss)

    def __len__(self) -> int:
        return len(self._vectors)

    def _rebuild(self) -> None:
        self._slots = list(self._vectors)
        self._slot_of = {key: slot for slot, key in enumerate(self._vectors)}
        rows = (
            np.stack(list(self._vectors.values())) if self._vectors else np.zeros((0, self.width), np.float32)
        )
        self._faiss = build(self.spec, rows)
        self._built_for = len(rows)


def _growing(first: int, last: int) -> Iterator[int]:
    """How many to ask for, until enough of them are not deleted ones: first, 4 first, ..., last."""
    while first < last:
        yield first
        first *= 4
    yield last


def index_bytes(index: Any) -> int:
    """The size of a FAISS index as it would be written to a file. [B]"""
    with extra("semantic"):
        import faiss

    return int(faiss.serialize_index(index).nbytes)


def recall_at_1(found: Sequence[int], exact: Sequence[int]) -> float:
    """Share of the queries whose nearest vector was found."""
    if len(found) != len(exact) or not len(exact):
        raise ValueError(f"Recall compares equally many answers, got {len(found)} and {len(exact)}.")
    return float(np.mean(np.asarray(found) == np.asarray(exact)))
