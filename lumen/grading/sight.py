"""What recorded calls of an answer show: rows, padding, stop ids, arguments that matter. For `adversaries`."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

from . import compare, run
from .bend import Call
from .origin import functions_of


def containers(instance: Any) -> dict[str, Any]:
    """Lists, dicts and sets that the reader's own code keeps as attributes."""
    steps = [step for fn in functions_of(instance) for step in dis.get_instructions(fn)]
    kept = {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return {
        name: value
        for name, value in vars(instance).items()
        if name in kept and isinstance(value, (list, dict, set))
    }


def holds(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds) and not isinstance(value, bool):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(holds(item, kinds) for item in items)


def mutable(value: Any, arrays: bool) -> bool:
    if isinstance(value, (list, dict)):
        return bool(value)
    return isinstance(value, set) or (arrays and compare.is_array(value) and 0 not in value.shape)


def differ(one: Any, other: Any) -> bool:
    try:
        return compare.difference(one, other) is not None
    except Exception:
        return True


def changed(value: Any, change: Callable[[Any], Any]) -> bool:
    return differ(change(value), value)


def reads(kind: type, method: str, i: int) -> bool:
    """The method's own code reads its argument i (0 is the first after `self`)."""
    code = getattr(kind, method).__code__
    loads = [step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD")]
    read = {
        name for one in loads for name in (one if isinstance(one, tuple) else (one,))
    }  # 3.13 loads two at a time
    return i + 1 < len(code.co_varnames) and code.co_varnames[i + 1] in read


def matters(calls: list[Call], i: int, kind: Any) -> bool:
    """Argument i is data that varies, and the right answer gives something else without it on one of these calls."""
    first = calls[0].args[i] if i < len(calls[0].args) else None
    if not (run.is_plain(first) or isinstance(first, run.INERT)) or isinstance(first, type(None)):
        return False
    if not any(i < len(call.args) and differ(first, call.args[i]) for call in calls):
        return False
    if calls[0].method:
        return reads(kind, calls[0].method, i)
    for call in calls:
        args = [run.fresh(one) if run.is_plain(one) else one for one in call.args]
        if i >= len(args) or not all(run.is_plain(one) or isinstance(one, run.INERT) for one in args):
            return i < len(args)
        args[i] = run.fresh(first)
        try:
            with run.same_luck():
                if differ(call.proceed(*args), call.result):
                    return True
        except Exception:
            return True
    return False


def rows(value: Any) -> int:
    """Rows of a batch: the first axis of an array with two or more."""
    return int(value.shape[0]) if compare.is_array(value) and value.ndim > 1 else 0


def left_padded(value: Any) -> bool:
    """An array of positions (B, T) with a row that begins with -1 and holds a position."""
    if not (compare.is_array(value) and value.ndim == 2 and "int" in str(value.dtype)) or 0 in value.shape:
        return False
    positions = compare.to_numpy(value)
    return bool(((positions[:, 0] == -1) & (positions.max(1) >= 0)).any())


def stop_ids(value: Any) -> bool:
    return isinstance(value, (set, frozenset)) and bool(value) and all(isinstance(one, int) for one in value)
