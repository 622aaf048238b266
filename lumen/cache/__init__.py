"""Key/value caches: one contract, one class per kind."""

from .base import Cache, CacheFull, NoCache
from .dense import DynamicCache, StaticCache

__all__ = ["Cache", "CacheFull", "DynamicCache", "NoCache", "StaticCache"]
