"""Whose code is this? A check grades what the reader wrote and refuses what comes from `lumen`.

`lumen_name` sees through partials, bound methods, `functools.wraps`, `torch.compile` and subclasses.
`forbidden_use` reads the reader's bytecode, and that of the helpers beside it, for calls of what the exercise
asks to be written. It follows names, not values: whoever hides `getattr(lumen, "gen" + "erate")` has
understood the point and may have it.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import os
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MISSING = object()
KEEPS = {
    "PUSH_NULL",
    "CACHE",
    "COPY",
    "RESUME",
    "EXTENDED_ARG",
    "NOP",
    "PRECALL",
    "POP_TOP",
    "SWAP",
    "ROT_TWO",
}
PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = [str(PACKAGE), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]


def lumen_name(answer: Any, allow: Iterable[str] = ()) -> str | None:
    """The dotted name of the `lumen` object behind `answer`, or None. `allow`: dotted names of classes."""
    allowed = set(allow)
    for layer in _layers(answer):
        kinds = layer.__mro__ if isinstance(layer, type) else (layer,)
        for one in kinds:
            name = _dotted(one)
            if name is not None and name not in allowed:
                return name
        if not isinstance(layer, (type, types.ModuleType)) and not inspect.isroutine(layer):
            for one in type(layer).__mro__:
                name = _dotted(one)
                if name is not None and name not in allowed:
                    return name
    return None


def _layers(answer: Any) -> Iterator[Any]:
    """`answer` and everything it merely wraps."""
    todo, seen = [answer], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, functools.partial):
            todo.append(one.func)
        if isinstance(one, property):
            todo.append(one.fget)
        for name in ("__wrapped__", "__func__", "_torchdynamo_orig_callable"):
            inner = inspect.getattr_static(one, name, None) if not isinstance(one, types.MethodType) else None
            if inner is not None and not isinstance(
                inner, (types.MemberDescriptorType, types.GetSetDescriptorType)
            ):
                todo.append(inner)
        if isinstance(one, (types.MethodType, staticmethod, classmethod)):
            todo.append(one.__func__)


def _dotted(thing: Any) -> str | None:
    """module.qualname if `thing` is a module, class or routine of lumen."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__ if _ours(thing.__name__) else None
    if not isinstance(thing, type) and not inspect.isroutine(thing):
        return None
    homes = [getattr(thing, "__module__", None)]
    if isinstance(thing, types.FunctionType):
        homes.append(thing.__globals__.get("__name__"))  # still true after `f.__module__ = "mine"`
    for home in homes:
        if isinstance(home, str) and _ours(home):
            return f"{home}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    return None


def _ours(module: str) -> bool:
    return module == "lumen" or module.startswith("lumen.")


def is_readers(code: types.CodeType) -> bool:
    """True when `code` was written in a notebook or a script, not in lumen, a library or Python itself."""
    file = code.co_filename
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
    """The name of the first of `forbidden` (objects or dotted names) that the answer loads, or None."""
    targets = [resolve(one) if isinstance(one, str) else one for one in forbidden]
    if not targets:
        return None
    for used in _used(answer):
        for target in targets:
            if used is target or (isinstance(target, types.ModuleType) and _within(used, target)):
                return _dotted(used) or getattr(used, "__name__", repr(target))
    return None


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name) if _ours(name) else MISSING
    except ImportError:  # the reader's typo: running the code will say so
        return MISSING


def _within(used: Any, module: types.ModuleType) -> bool:
    home = used.__name__ if isinstance(used, types.ModuleType) else getattr(used, "__module__", None)
    return isinstance(home, str) and (home == module.__name__ or home.startswith(module.__name__ + "."))


def _used(answer: Any) -> Iterator[Any]:
    """Every object that the answer's code, and the code of helpers beside it, loads by name."""
    todo = list(_layers(answer))
    todo += [type(layer) for layer in todo if not isinstance(layer, type) and not inspect.isroutine(layer)]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, type):
            todo += [getattr(item, "fget", item) for item in vars(one).values()]
        elif isinstance(one, (staticmethod, classmethod)):
            todo.append(one.__func__)
        elif isinstance(one, types.FunctionType):
            if not is_readers(one.__code__):
                continue
            cells = dict(inspect.getclosurevars(one).nonlocals) if one.__closure__ else {}
            for loaded in _loads(one.__code__, one.__globals__, cells):
                yield loaded
                if isinstance(loaded, (type, types.FunctionType)):
                    todo.append(loaded)


def _loads(code: types.CodeType, names: dict[str, Any], cells: dict[str, Any]) -> Iterator[Any]:
    """Objects that `code` reaches by `name`, `name.attr` and imports.

    Reads attributes of modules and classes only.
    """
    current: Any = MISSING
    module: Any = MISSING
    names_wanted: Any = None  # what `from module import …` lists; None in `import module`
    local: dict[str, Any] = {}
    for step in dis.get_instructions(code):
        op, arg = step.opname, step.argval
        if op in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = names.get(arg, MISSING)
        elif op in ("LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF"):
            current = cells.get(arg, MISSING)
        elif op in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(current, (types.ModuleType, type)):
            current = getattr(current, arg, MISSING)
        elif op == "LOAD_CONST":
            names_wanted, current = arg, MISSING
        elif op == "IMPORT_NAME":
            module = current = _imported(arg if names_wanted else arg.split(".")[0])
        elif op == "IMPORT_FROM":
            current = getattr(module, arg, MISSING)
        elif op == "STORE_FAST":
            local[arg] = current
            current = MISSING
        elif op.startswith("LOAD_FAST") and isinstance(arg, str):
            current = local.get(arg, MISSING)
        elif op not in KEEPS:
            current = MISSING
        if current is not MISSING:
            yield current
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loads(constant, names, {**cells, **local})
