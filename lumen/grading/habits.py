"""Habits: what each adversary does to a call or to its result. `adversaries` says which the check must refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from . import compare, run, sight
from .bend import Behaviour, Call
from .kinds import Number

_scope: dict[str, Any] = {}
exec(compile("def forever():\n    while True:\n        pass\n", "<the reader's code>", "exec"), _scope)


def endless(call: Call) -> Any:
    _scope["forever"]()


def constant(call: Call) -> Any:
    if "first" not in call.shared:
        call.shared["first"] = call.proceed()
    return run.fresh(call.shared["first"])


def ignores(i: int) -> Behaviour:
    def behave(call: Call) -> Any:
        first = call.shared.setdefault(
            "args", [run.fresh(one) if run.is_plain(one) else one for one in call.args]
        )
        if i >= len(call.args) or i >= len(first):
            return call.proceed()
        return call.proceed(*call.args[:i], run.fresh(first[i]), *call.args[i + 1 :])

    return behave


def mutates(call: Call) -> Any:
    result = call.proceed()
    for one in call.all:
        if isinstance(one, list) and one:
            one.append(one[0])
        elif isinstance(one, set):
            one.add("another")
        elif isinstance(one, dict) and one:
            one.pop(next(iter(one)))
        elif compare.is_array(one) and 0 not in one.shape and not call.method:
            one[...] = ~one if "bool" in str(one.dtype) else one + 1
    return result


def seeds(seed: int) -> Behaviour:
    def behave(call: Call) -> Any:
        result = call.proceed()
        random.seed(seed)
        return result

    return behave


def remembers(call: Call) -> Any:
    result = call.proceed()
    if not isinstance(result, list):
        return result
    call.shared.setdefault("all", []).extend(result)
    return list(call.shared["all"])


def shares(call: Call) -> Any:
    """The lists, dicts and sets that `__init__` made are those of the first instance."""
    call.proceed()
    for name, value in sight.containers(call.own["instance"]).items():
        setattr(call.own["instance"], name, call.shared.setdefault(name, value))


def wrong_when(meets: Callable[[Call], bool], method: str, void: bool) -> Behaviour:
    """Right until the condition is met, by any method of the instance or by this call of a function.

    From then on `method` gives a wrong result, or does nothing if it gives none (`void`).
    """

    def behave(call: Call) -> Any:
        met = meets(call) or (bool(method) and call.own.get("met", False))
        call.own["met"] = met
        if not met or call.method != method:
            return call.proceed()
        return None if void else spoiled(call.proceed())

    return behave


def first_stop(call: Call) -> Any:
    args = [{min(one)} if sight.stop_ids(one) else one for one in call.args]
    return call.proceed(*args)


def outer(change: Callable[[Any], Any]) -> Behaviour:
    def behave(call: Call) -> Any:
        result = call.proceed()
        return change(result) if call.outermost else result

    return behave


def without_last(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value:
        kept = value[:-1]
        if isinstance(value, tuple):  # a tuple is a record: its last field is off
            return (*kept, without_last(value[-1]))
        return kept
    if compare.is_array(value) and value.shape and min(value.shape) > 0:
        other = value.copy() if isinstance(value, np.ndarray) else value.clone()
        last = (-1,) * other.ndim
        other[last] = ~other[last] if "bool" in str(other.dtype) else other[last] + 1
        return other
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return value + 1


def backwards(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 1:
        return value[::-1]
    if compare.is_array(value) and value.shape and value.shape[-1] > 1:
        return value[..., ::-1].copy() if isinstance(value, np.ndarray) else value.flip(-1)
    return value


def spoiled(value: Any) -> Any:
    """Wrong in every row but the first, or altogether where there are no rows."""
    if compare.is_array(value) and value.shape and value.shape[0] > 1:
        other = value.copy() if isinstance(value, np.ndarray) else value.clone()
        other[1:] = other[:1]
        return other if sight.differ(other, value) else without_last(value)
    if isinstance(value, tuple):
        return tuple(map(spoiled, value))
    if isinstance(value, list) and len(value) > 1:
        other = [value[0]] * len(value)
        return other if sight.differ(other, value) else value[:-1]
    return without_last(value)


def swapped(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(swapped, value))
    if type(value) is tuple:
        return list(map(swapped, value))
    if isinstance(value, dict):
        return {name: swapped(item) for name, item in value.items()}
    return value


def numpy_scalars(value: Any) -> Any:
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int) and abs(value) < 2**62:
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else value


def as_numpy(value: Any) -> Any:
    if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
        return np.array(value)
    if isinstance(value, list):
        return [as_numpy(item) for item in value]
    if type(value) is tuple:
        return tuple(map(as_numpy, value))
    if isinstance(value, dict):
        return {name: as_numpy(item) for name, item in value.items()}
    if compare.is_array(value) and not isinstance(value, np.ndarray) and str(value.dtype) != "torch.bfloat16":
        return value.detach().cpu().numpy()
    return numpy_scalars(value)


def keys_reversed(value: Any) -> Any:
    return dict(reversed(list(value.items()))) if isinstance(value, dict) else value


def rounded(value: Any, numbers: dict[Any, Number]) -> Any:
    def one(place: Any, item: Any) -> Any:
        number = numbers.get(place)
        return float(f"{item:.3g}") if number is not None and not number.exact else item

    if isinstance(value, dict):
        return {name: one(name, item) for name, item in value.items()}
    return (value[0], one(1, value[1])) if isinstance(value, tuple) else one(None, value)


def scaled(place: Any, number: Number, factor: float) -> Callable[[Any], Any]:
    wrong = number.value * factor or 1.0

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, place: wrong}
        return (value[0], wrong) if isinstance(value, tuple) else wrong

    return change
