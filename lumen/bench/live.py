"""Tensors alive: the bytes of what operators made and nobody has let go yet."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """While it is entered, `peak` is the most bytes of tensors made inside that were alive at once.

    Looked at after each operator. Views and results written into memory that was given are nobody's new bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[
            int, tuple[StorageWeakRef, int]
        ] = {}  # a weak reference keeps the address from reuse

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._made = {at: made for at, made in self._made.items() if not made[0].expired()}
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(found):
            if storage._cdata not in given:
                self._made.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self._made.values()))
        return found


def _storages(tree: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
