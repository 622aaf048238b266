"""Typed access to the key-value pairs of a GGUF file."""

from __future__ import annotations

from typing import Any

from .errors import BadFile


class Metadata:
    """`get(key, kind)`, a value that must be there or has a default. A wrong type is the file's fault and said so."""

    def __init__(self, pairs: dict[str, Any], file: str):
        self.pairs, self.file = pairs, file

    def __call__(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.optional(key, kind)
        if value is None:
            value = default
        if value is None:
            raise BadFile(f"{self.file} does not say its {key!r}; it is no language model or it is damaged.")
        return value

    def optional(self, key: str, kind: type) -> Any:
        value = self.pairs.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise BadFile(
                f"{self.file}: {key!r} should be a {kind.__name__}, not {str(value)[:40]!r}. Fetch it again."
            )
        return value
