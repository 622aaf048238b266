"""Generic adversaries: a right answer, bent the way readers bend theirs, and what the check must say to it.

Each adversary takes an answer that is known to be right and changes what it does: honest mistakes that the check must
refuse, and harmless differences that it must accept. One test runs all of them against every exercise.

| refused | |
| --- | --- |
| `endless` | a call never returns |
| `constant` | every call gives what the first one gave |
| `ignores 2` | the second argument counts only in the first call |
| `mutates` | a list, dict, set or array that was handed in comes back changed |
| `seeds` | seeds the global random generators |
| `remembers` | results pile up in one list: a mutable default |
| `shared` | lists and dicts of one instance are those of all: class attributes instead of the instance's |
| `last item` | the last item is missing, the last row or number is off by one |
| `reversed` | the right items in the wrong order |
| `rows` | right for one row, wrong for several |
| `left padding` | right until a row begins with padding, wrong from then on |
| `first stop` | of several stop ids only the smallest counts |
| `does nothing` | a method without a result does nothing |
| `kibi` | a number is off by 2.4 %: 1000 for 1024 |

| accepted | |
| --- | --- |
| `tuples` | tuples where lists were given, and lists where tuples were |
| `numpy` | numpy scalars, and arrays for lists of numbers and for tensors |
| `rounded` | numbers rounded to three significant figures, where the text does not say "exactly" |
| `other order of keys` | dicts are filled in another order |

Which apply follows from what the check does with the answer: it is recorded once, call by call. A method of a class is
an adversary of its own (`rows: rewind`). Those about rows and padding apply to a class as soon as *any* method has met
several rows or left padding: then every method has to be tried so. An exercise that must be left alone says why:
`Exercise.free`.
"""

from __future__ import annotations

import copy
import dis
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import compare, run
from .exercise import Exercise
from .kinds import Number, Numbers, Statements
from .origin import functions_of
from .verdict import RIGHT, WRONG, Verdict

KINDS = {
    line.split("`")[1].rstrip(" 0123456789")
    for line in (__doc__ or "").splitlines()
    if line.startswith("| `")
}
Behaviour = Callable[["Call"], Any]


@dataclass
class Call:
    """One call of the answer: what went in, and `proceed()`, which gives what the right answer gives."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    proceed: Callable[..., Any]
    shared: dict[str, Any]  # lives as long as the bent answer
    own: dict[str, Any]  # lives as long as the instance
    outermost: bool = True
    result: Any = None

    @property
    def all(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]


@dataclass(frozen=True)
class Adversary:
    name: str
    wanted: str  # the state the check must give
    behave: Behaviour
    methods: tuple[str, ...] = ()  # whose behaviour changes; none: all

    @property
    def kind(self) -> str:
        return self.name.split(":")[0].rstrip(" 0123456789")


@dataclass
class Report:
    """What came of it: `missed` names the adversaries that the check took for the other kind, with the verdict."""

    met: list[str] = field(default_factory=list)
    missed: dict[str, Verdict] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.met)} of {len(self.met) + len(self.missed)} adversaries met" + (
            f", missed: {', '.join(self.missed)}" if self.missed else ""
        )


def attack(exercise: Exercise, answer: Any) -> Report:
    """Try every adversary that applies. `answer` is right; ValueError when it is not."""
    seen: list[Call] = []
    verdict = exercise.grade(bent(answer, _recorder(seen)))
    if verdict.state != RIGHT:
        raise ValueError(f"{exercise.id}: the answer to bend is not right:\n{verdict}")
    report = Report()
    for one in adversaries(exercise, answer, seen):
        if one.name in exercise.free or one.kind in exercise.free:
            report.free.append(one.name)
            continue
        verdict = exercise.grade(bent(answer, one.behave, one.methods))
        if verdict.state == one.wanted:
            report.met.append(one.name)
        else:
            report.missed[one.name] = verdict
    return report


# Bending an answer --------------------------------------------------------------------------------


def bent(answer: Any, behave: Behaviour, methods: tuple[str, ...] = ()) -> Any:
    """`answer`, with `behave` deciding what each call gives. A value is taken as a function that returns it."""
    shared: dict[str, Any] = {}
    if isinstance(answer, type):
        return _bent_class(answer, behave, methods or _methods(answer), shared)
    inner = answer if callable(answer) else lambda: copy.deepcopy(answer)

    def bent_function(*args: Any, **kwargs: Any) -> Any:
        return behave(Call("", args, kwargs, _proceed(inner, args, kwargs), shared, shared))

    return bent_function


def _methods(kind: type) -> tuple[str, ...]:
    """Methods that the reader wrote: found in no class of a library or of lumen, and not special."""
    written = {fn.__name__ for fn in functions_of(kind)}
    return tuple(sorted(name for name in written if not name.startswith("_")))


def _bent_class(kind: type, behave: Behaviour, methods: tuple[str, ...], shared: dict[str, Any]) -> type:
    def bend(name: str) -> Any:
        original = getattr(kind, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = shared.setdefault("own", {}).setdefault(id(self), {"instance": self})
            outermost, own["inside"] = not own.get("inside"), True
            try:
                call = Call(
                    name, args, kwargs, _proceed(original.__get__(self), args, kwargs), shared, own, outermost
                )
                return behave(call)
            finally:
                own["inside"] = not outermost

        return method

    inside = {
        name: bend(name) for name in methods if callable(getattr(kind, name, None)) and name != "__init__"
    }
    if "__init__" in methods:

        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            own = shared.setdefault("own", {}).setdefault(id(self), {"instance": self})
            own["instance"] = self
            behave(
                Call("__init__", args, kwargs, lambda: kind.__init__(self, *args, **kwargs), shared, own)  # type: ignore[misc]
            )

        inside["__init__"] = begin
    return type(kind.__name__, (kind,), inside)


def _proceed(inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    def proceed(*others: Any, **named: Any) -> Any:
        return inner(*(others or args), **(named or kwargs))

    return proceed


def _recorder(seen: list[Call]) -> Behaviour:
    def record(call: Call) -> Any:
        before = tuple(run.fresh(one) if run.is_plain(one) else one for one in call.args)
        kwargs = {name: run.fresh(one) if run.is_plain(one) else one for name, one in call.kwargs.items()}
        result = call.proceed()
        kept = run.fresh(result) if run.is_plain(result) else result
        seen.append(Call(call.method, before, kwargs, call.proceed, {}, call.own, call.outermost, kept))
        return result

    return record


# Which apply --------------------------------------------------------------------------------------


def adversaries(exercise: Exercise, answer: Any, seen: list[Call]) -> Iterator[Adversary]:
    """Every adversary that applies to an answer that was seen in these calls."""
    function = callable(answer) and (exercise.kind in ("build", "debug") or any(call.args for call in seen))
    if function:
        yield from _against_code(answer, seen)
    else:
        yield from _against_values(exercise, seen)
    yield Adversary("endless", WRONG, _endless, tuple(dict.fromkeys(call.method for call in seen)))
    results = [call.result for call in seen if call.outermost]
    if any(_holds(one, (list, tuple)) for one in results):
        yield Adversary("tuples", RIGHT, _outer(_swapped))
    if any(_holds(one, (int, float)) or compare.is_array(one) for one in results):
        yield Adversary("numpy", RIGHT, _outer(_numpy_scalars if isinstance(answer, type) else _as_numpy))
    if any(isinstance(one, dict) and len(one) > 1 for one in results):
        yield Adversary("other order of keys", RIGHT, _outer(lambda value: _keys_reversed(value)))


def _against_code(answer: Any, seen: list[Call]) -> Iterator[Adversary]:
    padded = any(_left_padded(one) for call in seen for one in call.all)
    several = any(_rows(one) > 1 for call in seen for one in call.all)
    for method in dict.fromkeys(call.method for call in seen):
        calls = [call for call in seen if call.method == method]
        results = [call.result for call in calls if call.result is not None]
        only, label = (method,) if method else (), f": {method}" if method else ""

        def against(
            name: str, behave: Behaviour, label: str = label, only: tuple[str, ...] = only
        ) -> Adversary:
            return Adversary(name + label, WRONG, behave, only)

        if any(_mutable(one, arrays=not method) for call in calls for one in call.all):
            yield against("mutates", _mutates)
        if not results:
            if method:
                yield against("does nothing", lambda call: None)
        else:
            if any(_differ(results[0], one) for one in results[1:]):
                yield against("constant", _constant)
            for i in range(len(calls[0].args)):
                if _matters(calls, i, answer):
                    yield against(f"ignores {i + 1}", _ignores(i))
            if any(_changed(one, _without_last) for one in results):
                yield against("last item", _outer(_without_last))
            if any(_changed(one, _backwards) for one in results):
                yield against("reversed", _outer(_backwards))
            if not method and any(isinstance(one, list) and one for one in results):
                yield against("remembers", _remembers)
        arguments = [one for call in calls for one in call.all]
        if several and (method or any(_rows(one) > 1 for one in arguments)):
            meets = _wrong_when(lambda call: any(_rows(one) > 1 for one in call.all), method, not results)
            yield against("rows", meets, only=())
        if padded and (method or any(_left_padded(one) for one in arguments)):
            meets = _wrong_when(lambda call: any(map(_left_padded, call.all)), method, not results)
            yield against("left padding", meets, only=())
        if any(_stop_ids(one) for one in arguments):
            yield against("first stop", _first_stop)
    if seen:
        yield Adversary("seeds", WRONG, _seeds, tuple(dict.fromkeys(call.method for call in seen)))
    instances = [call.own["instance"] for call in seen if call.method]
    if any(_containers(instance) for instance in instances):
        yield Adversary("shared", WRONG, _shares, ("__init__",))


def _against_values(exercise: Exercise, seen: list[Call]) -> Iterator[Adversary]:
    if not seen:
        return
    value, numbers = seen[0].result, numbers_of(exercise.check)
    for name, number in numbers.items():
        label = f": {name}" if len(numbers) > 1 else ""
        yield Adversary("kibi" + label, WRONG, _outer(_scaled(name, number, 1.024)))
    if any(not number.exact for number in numbers.values()) and _holds(value, (int, float)):
        yield Adversary("rounded", RIGHT, _outer(lambda value: _rounded(value, numbers)))


def numbers_of(check: Any) -> dict[Any, Number]:
    """The numbers that a check asks for, by where they stand in the answer: a key, 1 in a pair, None alone."""
    if isinstance(check, Number):
        return {None: check}
    if isinstance(check, Numbers):
        return dict(check.numbers)
    if isinstance(check, Statements) and check.number is not None:
        return {1: check.number}
    return {}


# What they do -------------------------------------------------------------------------------------

_scope: dict[str, Any] = {}
exec(compile("def forever():\n    while True:\n        pass\n", "<the reader's code>", "exec"), _scope)


def _endless(call: Call) -> Any:
    _scope["forever"]()


def _constant(call: Call) -> Any:
    if "first" not in call.shared:
        call.shared["first"] = call.proceed()
    return run.fresh(call.shared["first"])


def _ignores(i: int) -> Behaviour:
    def behave(call: Call) -> Any:
        first = call.shared.setdefault(
            "args", [run.fresh(one) if run.is_plain(one) else one for one in call.args]
        )
        if i >= len(call.args) or i >= len(first):
            return call.proceed()
        return call.proceed(*call.args[:i], run.fresh(first[i]), *call.args[i + 1 :])

    return behave


def _mutates(call: Call) -> Any:
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


def _seeds(call: Call) -> Any:
    result = call.proceed()
    random.seed(12345)
    return result


def _remembers(call: Call) -> Any:
    result = call.proceed()
    if not isinstance(result, list):
        return result
    call.shared.setdefault("all", []).extend(result)
    return list(call.shared["all"])


def _shares(call: Call) -> Any:
    """The lists, dicts and sets that `__init__` made are those of the first instance."""
    call.proceed()
    for name, value in _containers(call.own["instance"]).items():
        setattr(call.own["instance"], name, call.shared.setdefault(name, value))


def _containers(instance: Any) -> dict[str, Any]:
    """Lists, dicts and sets that the reader's own code keeps as attributes."""
    steps = [step for fn in functions_of(instance) for step in dis.get_instructions(fn)]
    kept = {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return {
        name: value
        for name, value in vars(instance).items()
        if name in kept and isinstance(value, (list, dict, set))
    }


def _wrong_when(meets: Callable[[Call], bool], method: str, void: bool) -> Behaviour:
    """Right until the condition is met, by any method of the instance or by this call of a function.

    From then on `method` gives a wrong result, or does nothing if it gives none (`void`).
    """

    def behave(call: Call) -> Any:
        met = meets(call) or (bool(method) and call.own.get("met", False))
        call.own["met"] = met
        if not met or call.method != method:
            return call.proceed()
        return None if void else _spoiled(call.proceed())

    return behave


def _first_stop(call: Call) -> Any:
    args = [{min(one)} if _stop_ids(one) else one for one in call.args]
    return call.proceed(*args)


def _outer(change: Callable[[Any], Any]) -> Behaviour:
    def behave(call: Call) -> Any:
        result = call.proceed()
        return change(result) if call.outermost else result

    return behave


def _without_last(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value:
        kept = value[:-1]
        if isinstance(value, tuple):  # a tuple is a record: its last field is off
            return (*kept, _without_last(value[-1]))
        return kept
    if compare.is_array(value) and value.shape and min(value.shape) > 0:
        other = value.copy() if isinstance(value, np.ndarray) else value.clone()
        last = (-1,) * other.ndim
        other[last] = ~other[last] if "bool" in str(other.dtype) else other[last] + 1
        return other
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return value + 1


def _backwards(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 1:
        return value[::-1]
    if compare.is_array(value) and value.shape and value.shape[-1] > 1:
        return value[..., ::-1].copy() if isinstance(value, np.ndarray) else value.flip(-1)
    return value


def _spoiled(value: Any) -> Any:
    """Wrong in every row but the first, or altogether where there are no rows."""
    if compare.is_array(value) and value.shape and value.shape[0] > 1:
        other = value.copy() if isinstance(value, np.ndarray) else value.clone()
        other[1:] = other[:1]
        return other if _differ(other, value) else _without_last(value)
    if isinstance(value, tuple):
        return tuple(map(_spoiled, value))
    if isinstance(value, list) and len(value) > 1:
        other = [value[0]] * len(value)
        return other if _differ(other, value) else value[:-1]
    return _without_last(value)


def _swapped(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_swapped, value))
    if type(value) is tuple:
        return list(map(_swapped, value))
    if isinstance(value, dict):
        return {name: _swapped(item) for name, item in value.items()}
    return value


def _numpy_scalars(value: Any) -> Any:
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int) and abs(value) < 2**62:
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else value


def _as_numpy(value: Any) -> Any:
    if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
        return np.array(value)
    if isinstance(value, list):
        return [_as_numpy(item) for item in value]
    if type(value) is tuple:
        return tuple(map(_as_numpy, value))
    if isinstance(value, dict):
        return {name: _as_numpy(item) for name, item in value.items()}
    if compare.is_array(value) and not isinstance(value, np.ndarray) and str(value.dtype) != "torch.bfloat16":
        return value.detach().cpu().numpy()
    return _numpy_scalars(value)


def _keys_reversed(value: Any) -> Any:
    return dict(reversed(list(value.items()))) if isinstance(value, dict) else value


def _rounded(value: Any, numbers: dict[Any, Number]) -> Any:
    def one(place: Any, item: Any) -> Any:
        number = numbers.get(place)
        return float(f"{item:.3g}") if number is not None and not number.exact else item

    if isinstance(value, dict):
        return {name: one(name, item) for name, item in value.items()}
    return (value[0], one(1, value[1])) if isinstance(value, tuple) else one(None, value)


def _scaled(place: Any, number: Number, factor: float) -> Callable[[Any], Any]:
    wrong = number.value * factor or 1.0

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, place: wrong}
        return (value[0], wrong) if isinstance(value, tuple) else wrong

    return change


# What is seen -------------------------------------------------------------------------------------


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds) and not isinstance(value, bool):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds(item, kinds) for item in items)


def _mutable(value: Any, arrays: bool) -> bool:
    if isinstance(value, (list, dict)):
        return bool(value)
    return isinstance(value, set) or (arrays and compare.is_array(value) and 0 not in value.shape)


def _differ(one: Any, other: Any) -> bool:
    try:
        return compare.difference(one, other) is not None
    except Exception:
        return True


def _changed(value: Any, change: Callable[[Any], Any]) -> bool:
    return _differ(change(value), value)


def _reads(kind: type, method: str, i: int) -> bool:
    """The method's own code reads its argument i (0 is the first after `self`)."""
    code = getattr(kind, method).__code__
    loads = [step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD")]
    return i + 1 < len(code.co_varnames) and code.co_varnames[i + 1] in loads


def _matters(calls: list[Call], i: int, kind: Any) -> bool:
    """Argument i is data that varies, and the right answer gives something else without it on one of these calls."""
    first = calls[0].args[i] if i < len(calls[0].args) else None
    if not (run.is_plain(first) or isinstance(first, run.INERT)) or isinstance(first, type(None)):
        return False
    if not any(i < len(call.args) and _differ(first, call.args[i]) for call in calls):
        return False
    if calls[0].method:
        return _reads(kind, calls[0].method, i)
    for call in calls:
        args = [run.fresh(one) if run.is_plain(one) else one for one in call.args]
        if i >= len(args) or not all(run.is_plain(one) or isinstance(one, run.INERT) for one in args):
            return i < len(args)
        args[i] = run.fresh(first)
        try:
            with run.same_luck():
                if _differ(call.proceed(*args), call.result):
                    return True
        except Exception:
            return True
    return False


def _rows(value: Any) -> int:
    """Rows of a batch: the first axis of an array with two or more."""
    return int(value.shape[0]) if compare.is_array(value) and value.ndim > 1 else 0


def _left_padded(value: Any) -> bool:
    """An array of positions (B, T) with a row that begins with -1 and holds a position."""
    if not (compare.is_array(value) and value.ndim == 2 and "int" in str(value.dtype)) or 0 in value.shape:
        return False
    return bool(
        (
            (value[:, 0] == -1) & (value.max(1) >= 0 if isinstance(value, np.ndarray) else value.amax(1) >= 0)
        ).any()
    )


def _stop_ids(value: Any) -> bool:
    return isinstance(value, (set, frozenset)) and bool(value) and all(isinstance(one, int) for one in value)
