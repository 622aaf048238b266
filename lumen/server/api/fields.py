"""Read a JSON object from a stranger, field by field, each with its type, its range and its sentence.

Python's own parser lets through what JSON does not have (NaN, Infinity), what a float cannot hold (1e999), a name
that stands twice in one object (the last would win unseen), and text that no answer could repeat (half a surrogate
pair); all four end here, before anything was done.
"""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import Any

from ... import inputs
from .errors import BadRequest

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_LONG = 60  # characters of a stranger's text that a message repeats


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. BadRequest for anything else, whatever it is."""
    if not raw.strip():
        raise BadRequest("The body is empty; send a JSON object.")
    try:
        text = raw.decode("utf-8")
        found = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_name_once
        )
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body must be UTF-8; byte {error.start} is not.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply; a request needs a handful of levels.") from None
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except ValueError as error:  # a number with thousands of digits
        raise BadRequest(f"The body is not valid JSON: {str(error)[:_LONG]}.") from None
    if not isinstance(found, dict):
        raise BadRequest(f"The body must be a JSON object, it is {shown(found)}.")
    if _HALF_PAIR.search(text) and _has_surrogate(found):
        raise BadRequest("The body holds half a surrogate pair (\\ud800 to \\udfff), which is no character.")
    return found


def shown(value: Any) -> str:
    """A stranger's value in a message, spelled as in JSON: short, one line, never deeper than itself."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return inputs.shown(value, partial(json.dumps, ensure_ascii=False))


class Fields:
    """The fields of one request. Every read is noted, so that what nobody read can be refused (`known`).

    A field that is absent or null takes its default; `number`, `integer`, `flag` and `text` check the rest.
    """

    def __init__(self, found: dict[str, Any]):
        self._found = found
        self._read: set[str] = set()

    def unread(self) -> list[str]:
        """Fields that were sent, are not null, and were not read so far."""
        return [name for name, value in self._found.items() if value is not None and name not in self._read]

    def read(self) -> set[str]:
        """The names that were asked for so far, sent or not."""
        return set(self._read)

    def get(self, name: str) -> Any:
        """The value as it came, None if it is absent or null."""
        self._read.add(name)
        return self._found.get(name)

    def required(self, name: str, example: str) -> Any:
        value = self.get(name)
        if value is None:
            raise BadRequest(f"{name} is missing; give it as in {example}.", param=name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadRequest(
                f"{name} must be a number from {low:g} to {high:g}, not {shown(value)}.", param=name
            )
        return float(value)

    def integer(self, name: str, default: Any, low: int, high: int) -> Any:
        """An int from `low` to `high`; 3.0 counts as 3, since some clients have only one kind of number."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(
                f"{name} must be an integer from {low} to {high}, not {shown(value)}.", param=name
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false, not {shown(value)}.", param=name)
        return value

    def text(self, name: str, longest: int) -> str | None:
        value = self.get(name)
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= longest):
            raise BadRequest(
                f"{name} must be a string of 1 to {longest} characters, not {shown(value)}.", param=name
            )
        return value


def token_ids(value: Any, name: str, vocab: int, most: int | None = None) -> list[int]:
    """A list of ids of the vocabulary, checked one by one."""
    if not isinstance(value, list) or (most is not None and len(value) > most):
        limit = "" if most is None else f" of at most {most}"
        raise BadRequest(f"{name} must be a list{limit} token ids, not {shown(value)}.", param=name)
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise BadRequest(
                f"{name} must hold token ids from 0 to {vocab - 1}, {shown(token)} is none.", param=name
            )
    return value


def _no_constant(name: str) -> float:
    raise BadRequest(f"The body holds {name}, which is not JSON; numbers must be finite.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequest("The body holds a number that is too large for a float; numbers must be finite.")
    return value


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadRequest(f"The name {shown(name)} stands twice in one object; keep one of the two.")
        found[name] = value
    return found


def _has_surrogate(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str) and any("\ud800" <= c <= "\udfff" for c in item):
            return True
    return False
