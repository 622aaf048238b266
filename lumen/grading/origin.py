"""Whose code is this? A check grades what the reader wrote and refuses what comes from `lumen`.

Honest mistakes are what it meets: the library's own function or class handed in, a class that derives from the one
to be written, a function that only calls it. Whoever hides such a call has understood the point and may have it.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MISSING = object()
PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = [str(PACKAGE), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]


def lumen_name(answer: Any, allow: Iterable[str] = ()) -> str | None:
    """The dotted name of the `lumen` object behind `answer`, or None. `allow`: dotted names of classes."""
    inner = _unwrapped(answer)
    if not isinstance(inner, (type, types.ModuleType)) and not inspect.isroutine(inner):
        inner = type(inner)  # an object is as foreign as its class
    names = [_dotted(one) for one in (inner.__mro__ if isinstance(inner, type) else [inner])]
    return next((name for name in names if name and name not in set(allow)), None)


def _unwrapped(answer: Any) -> Any:
    """What a partial, a bound method, a decorator or `torch.compile` merely wraps."""
    inner: Any
    for _ in range(20):
        if isinstance(answer, functools.partial):
            inner = answer.func
        elif isinstance(answer, property):
            inner = answer.fget
        elif isinstance(answer, (types.MethodType, staticmethod, classmethod)):
            inner = answer.__func__
        else:
            inner = getattr(answer, "_torchdynamo_orig_callable", None) or getattr(
                answer, "__wrapped__", None
            )
        if inner is None:
            break
        answer = inner
    return answer


def _dotted(thing: Any) -> str | None:
    """module.qualname if `thing` is a module, class or routine of lumen; the exercise sets teach nothing."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    if not isinstance(name, str) or name.split(".")[0] != "lumen" or name.startswith("lumen.grading"):
        return None
    return name if isinstance(thing, types.ModuleType) else f"{name}.{thing.__qualname__}"


def is_readers(code: types.CodeType) -> bool:
    """True when `code` was written in a notebook or a script, not in lumen, a library or Python itself."""
    return _readers_file(code.co_filename)


@functools.lru_cache(maxsize=4096)
def _readers_file(file: str) -> bool:
    if file.startswith("<frozen") or any(folder in file for folder in ("site-packages", "dist-packages")):
        return False
    return not any(file.startswith(folder + os.sep) for folder in LIBRARIES)


def resolve(dotted: str) -> Any:
    """The object named `a.b.c`. Raises ValueError when there is none: a typo in an exercise set."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, MISSING)
        if found is not MISSING:
            return found
    raise ValueError(f"There is no {dotted!r} to forbid. Name it as it would be imported.")


def forbidden_use(answer: Any, forbidden: Iterable[Any]) -> str | None:
    """The name of the first of `forbidden` (objects or dotted names) that the answer's own code names, or None."""
    targets = [resolve(one) if isinstance(one, str) else one for one in forbidden]
    for fn in functions_of(answer) if targets else ():
        for code in _codes(fn.__code__):
            for name in code.co_names:
                found = fn.__globals__.get(name, MISSING)
                for target in targets:
                    if found is target or (found is MISSING and _called(target, name, code.co_names)):
                        return _dotted(target) or name
                    if isinstance(target, types.ModuleType) and _home(found).startswith(target.__name__):
                        return _dotted(found) or target.__name__
    return None


def _called(target: Any, name: str, names: tuple[str, ...]) -> bool:
    """`name` is the target's, reached as an attribute or import of lumen (or of a part of it) in the same code."""
    if isinstance(target, types.ModuleType):
        return name == target.__name__
    return (
        name == getattr(target, "__name__", None)
        and _home(target).split(".")[0] == "lumen"
        and len(names) > 1
    )


def _home(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, types.ModuleType) else str(getattr(thing, "__module__", ""))


def functions_of(answer: Any) -> list[types.FunctionType]:
    """The reader's functions behind an answer: itself, or the methods of its class."""
    inner = _unwrapped(answer)
    if isinstance(inner, types.FunctionType):
        return [inner] if is_readers(inner.__code__) else []
    kind = inner if isinstance(inner, type) else type(inner)
    methods = [_unwrapped(one) for base in kind.__mro__ for one in vars(base).values()]
    return [one for one in methods if isinstance(one, types.FunctionType) and is_readers(one.__code__)]


def names_beside(answer: Any) -> dict[str, Any]:
    """The global names where the answer was written: in a notebook, those of its cells."""
    for fn in functions_of(answer):
        return fn.__globals__
    module = sys.modules.get(getattr(answer, "__module__", None) or "")
    return vars(module) if module is not None else {}


def same_code(one: Any, other: Any) -> bool:
    """Both are the same function or class, or were written in the same words (names and comments aside)."""
    if one is other:
        return True
    if isinstance(one, type) and isinstance(other, type):
        mine, theirs = _methods(one), _methods(other)
        return bool(mine) and mine == theirs
    codes = [getattr(fn, "__code__", None) for fn in (one, other)]
    return None not in codes and _words(codes[0]) == _words(codes[1])


def _methods(kind: type) -> dict[str, Any]:
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
    return {name: _words(fn.__code__) for name, fn in found.items() if isinstance(fn, types.FunctionType)}


def _words(code: Any) -> Any:
    """A function's instructions with what they work on, without its name, its lines and its docstring."""
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP", "EXTENDED_ARG")
    ]
    inner = [_words(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return [
        (s.opname, None if isinstance(s.argval, types.CodeType) else repr(s.argval)) for s in steps
    ], inner


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
