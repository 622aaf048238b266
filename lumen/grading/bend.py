"""Bend an answer: the same function or class, with a behaviour between each call and its result. For `adversaries`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import run
from .origin import functions_of

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


def bent(answer: Any, behave: Behaviour, methods: tuple[str, ...] = ()) -> Any:
    """`answer`, with `behave` deciding what each call gives. A value is taken as a function that returns it."""
    shared: dict[str, Any] = {}
    if isinstance(answer, type):
        return _bent_class(answer, behave, methods or methods_of(answer), shared)
    inner = answer if callable(answer) else lambda: copy.deepcopy(answer)

    def bent_function(*args: Any, **kwargs: Any) -> Any:
        return behave(Call("", args, kwargs, _proceed(inner, args, kwargs), shared, shared))

    return bent_function


def methods_of(kind: type) -> tuple[str, ...]:
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


def recorder(seen: list[Call]) -> Behaviour:
    def record(call: Call) -> Any:
        before = tuple(run.fresh(one) if run.is_plain(one) else one for one in call.args)
        kwargs = {name: run.fresh(one) if run.is_plain(one) else one for name, one in call.kwargs.items()}
        result = call.proceed()
        kept = run.fresh(result) if run.is_plain(result) else result
        seen.append(Call(call.method, before, kwargs, call.proceed, {}, call.own, call.outermost, kept))
        return result

    return record
