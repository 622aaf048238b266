"""What makes two requests the same: one canonical text of everything that can change the answer, and its sha256.

Two requests share a key only if prompt, model, sampling parameters and tenant are equal. Spelling does not
count: `0` and `0.0`, a tuple and a list, two orders of the same dict give one key; `1`, `"1"` and `True` do not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any


def key_of(prompt: Any, model: str = "", params: Any = None, tenant: str = "", context: Any = None) -> str:
    """64 hex digits. `prompt` is a text, token ids or chat messages; `params` a dataclass or a dict; `context` what
    was said before.

    Raises ValueError, with the place, for a value that has no canonical text (NaN, a tensor, a function).
    """
    return _sha256(["request", scope_of(model, params, tenant, context), canonical(prompt, "prompt")])


def scope_of(model: str = "", params: Any = None, tenant: str = "", context: Any = None) -> str:
    """Whose answers may be reused for whom: one tenant, one model, one set of parameters, one conversation so far."""
    for name, value in (("tenant", tenant), ("model", model)):
        if not isinstance(value, str):
            raise ValueError(f"{name} is a text, got {value!r}.")
    return _sha256(["scope", tenant, model, canonical(params, "params"), canonical(context, "context")])


def _sha256(parts: list[Any]) -> str:
    # A list in JSON says where each part ends, so ("ab", "c") and ("a", "bc") differ; ASCII needs no encoding rules.
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()


def canonical(value: Any, where: str = "value") -> Any:
    """`value` as nested lists of strings, numbers, booleans and None: equal for equal meaning, and only then."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(
                f"{where} is NaN, which equals nothing, itself included; it cannot be part of a key."
            )
        if math.isinf(value):
            return ["inf", value > 0]
        return int(value) if value.is_integer() else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items = [
            [canonical(key, f"a key of {where}"), canonical(item, f"{where}[{key!r}]")]
            for key, item in value.items()
        ]
        return ["map", sorted(items, key=json.dumps)]
    if isinstance(value, Set):
        return ["set", sorted((canonical(item, f"{where} item") for item in value), key=json.dumps)]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return ["list", [canonical(item, f"{where}[{i}]") for i, item in enumerate(value)]]
    raise ValueError(
        f"{where} is a {type(value).__name__}, which has no canonical text; "
        "use texts, numbers, lists, dicts and dataclasses of them."
    )
