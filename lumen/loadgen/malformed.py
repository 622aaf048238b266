"""JSON from a server that may send anything: each value has the type that its place asks for, or there is a sentence.

`BadStream` says what is wrong with an answer, in words that stand in a report. It never quotes more than a line.
"""

from __future__ import annotations

import json
from typing import Any

MAX_TOKENS = 2**31 - 1  # what a server may count in one request
SHOWN = 300  # characters of a server's words that a report repeats

_KINDS = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # json.loads would make one for every event


class BadStream(ValueError):
    """The server sent an error, or something that is no answer."""


def one_line(words: str) -> str:
    """A server's words as one line of a report: control characters escaped, cut after 300 characters."""
    line = " ".join(words[: 4 * SHOWN].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= SHOWN else line[:SHOWN] + " …"


def message_of(body: Any) -> str:
    """The sentence inside an error body, whatever its shape."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)
    return str(error)


def parsed(data: str | bytes, what: str = "an event") -> Any:
    """The JSON value in `data`, by RFC 8259: NaN and Infinity are none. BadStream if there is none."""
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise BadStream(f"{what} nests too deeply: {data[:80]!r}") from None
    except ValueError as error:
        raise BadStream(f"{what} is no JSON: {data[:80]!r}") from error


def typed(value: Any, *kinds: type, what: str) -> Any:
    """`value`, if it is of one of the JSON types. BadStream names `what` it is instead."""
    if not isinstance(value, kinds):
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise BadStream(f"{what} is no JSON {wanted}: {json.dumps(value)[:80]}")
    return value


def field(fields: dict[str, Any] | None, name: str, *kinds: type, what: str) -> Any:
    """fields[name] of one of the JSON types, or None where it is missing or null."""
    value = (fields or {}).get(name)
    return None if value is None else typed(value, *kinds, what=what)


def count(usage: dict[str, Any] | None, name: str) -> int:
    """How many tokens the server says; 0 where it says nothing."""
    value = field(usage, name, int, what=f"usage's {name}")
    if value is None:
        return 0
    if isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise BadStream(f"usage's {name} must be from 0 to {MAX_TOKENS}: {json.dumps(value)[:80]}")
    return value
