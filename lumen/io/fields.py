"""Numbers that a file says about its model, believed only inside their range.

A config.json and a GGUF file's metadata are both names with values that a stranger wrote. Every value is asked for with
its kind and its limits, and what does not keep to them ends in one sentence that names it: a negative epsilon would
make NaN of every answer, a billion layers would be counted for hours. null is the same as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import BadFile

LONGEST = (
    2**22
)  # positions: four times the longest published context; a table of angles is made for all of them
MOST_NUMBER = 1e30


class Fields:
    """The values of one file. A method without a `default` asks for a value that must be there."""

    def __init__(self, values: Mapping[str, Any], file: str):
        self.values, self.file = values, file

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to `most`."""
        value = self._value(key, default)
        if not _is_whole(value) or not least <= value <= most:
            raise self.bad(key, f"a whole number from {least:,} to {most:,}")
        return int(value)

    def number(
        self, key: str, default: float | None = None, above: float = 0.0, most: float = MOST_NUMBER
    ) -> float:
        """A number above `above` and up to `most`; NaN and infinity are none."""
        value = self._value(key, default)
        if not (_is_whole(value) or isinstance(value, float)) or not above < value <= most:
            raise self.bad(key, f"a number above {above:g} and no more than {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false, and nothing that only counts as such in Python."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.bad(key, "a text")
        return value

    def table(self, key: str) -> Fields:
        """The values under `key`, none where it is absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, "a table of names and values")
        return Fields(value, self.file)

    def ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Token ids: one, a list of them, or none at all."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(not _is_whole(i) or not 0 <= i < vocab_size for i in ids):
            raise self.bad(key, f"a token id from 0 to {vocab_size - 1:,} or a list of them")
        return tuple(ids)

    def bad(self, key: str, wanted: str) -> BadFile:
        """What is wrong with the value of `key`."""
        value = f"{self.values.get(key)!r}"
        shown = value if len(value) <= 40 else f"{value[:40]}…"
        return BadFile(f"{self.file}: {key} is {shown}, and it must be {wanted}. Fetch it again.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise BadFile(
                f"{self.file} lacks {key}: it is damaged or describes no language model. Fetch it again."
            )
        return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
