"""Key/value caches: one contract, one class per kind; prefix caches over the paged one.

`CacheFull`, the pool and the prefix caches need no torch; the caches themselves are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import CacheFull

if TYPE_CHECKING:
    from .base import Cache, NoCache
    from .decode_batch import DecodeBatch
    from .dense import DynamicCache, StaticCache
    from .evict import EvictingCache
    from .layered import LayeredCache, cache_for, with_states
    from .packed import PackedCache, Segment
    from .paged import PagedCache
    from .pool import BlockPool, PoolCorrupt
    from .prefix import HashPrefix, NoPrefix
    from .quant_dense import QuantCache
    from .quant_format import QUANT_FORMATS, QuantFormat
    from .quant_kivi import KiviStore
    from .quant_store import QuantStore
    from .radix import RadixPrefix
    from .recurrent import RecurrentCache
    from .select import QuestCache
    from .store import BlockStore
    from .traits import Traits
    from .tree import Tree
    from .window import WindowCache
    from .window_layers import trained_windows

_HOME = {
    "BlockPool": "pool",
    "BlockStore": "store",
    "Cache": "base",
    "DecodeBatch": "decode_batch",
    "DynamicCache": "dense",
    "EvictingCache": "evict",
    "LayeredCache": "layered",
    "cache_for": "layered",
    "with_states": "layered",
    "HashPrefix": "prefix",
    "KiviStore": "quant_kivi",
    "NoCache": "base",
    "NoPrefix": "prefix",
    "PackedCache": "packed",
    "PagedCache": "paged",
    "PoolCorrupt": "pool",
    "QUANT_FORMATS": "quant_format",
    "QuantCache": "quant_dense",
    "QuantFormat": "quant_format",
    "QuantStore": "quant_store",
    "QuestCache": "select",
    "RecurrentCache": "recurrent",
    "RadixPrefix": "radix",
    "Segment": "packed",
    "StaticCache": "dense",
    "Traits": "traits",
    "Tree": "tree",
    "WindowCache": "window",
    "trained_windows": "window_layers",
}

__all__ = [
    "QUANT_FORMATS",
    "BlockPool",
    "BlockStore",
    "Cache",
    "CacheFull",
    "DecodeBatch",
    "DynamicCache",
    "EvictingCache",
    "HashPrefix",
    "KiviStore",
    "LayeredCache",
    "NoCache",
    "NoPrefix",
    "PackedCache",
    "PagedCache",
    "PoolCorrupt",
    "QuantCache",
    "QuantFormat",
    "QuantStore",
    "QuestCache",
    "RadixPrefix",
    "RecurrentCache",
    "Segment",
    "StaticCache",
    "Traits",
    "Tree",
    "WindowCache",
    "cache_for",
    "trained_windows",
    "with_states",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
