"""Run the reader's code so that nothing it does can stop the notebook: every failure becomes a verdict.

- An exception becomes WRONG with its type, its message and the reader's own last line. Ctrl-C passes through.
- `raise NotImplementedError` in the reader's code, or an empty body, means NOT STARTED.
- A limit on executed lines (a count, never a clock) ends a loop that does not end.
- Random generators are seeded before each call and put back afterwards: the same verdict every time. An answer that
  seeds or draws from the global ones itself is WRONG, unless its exercise allows it: every other user shares them.
"""

from __future__ import annotations

import copy
import dis
import linecache
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import compare
from .origin import is_readers
from .verdict import NotStarted, Wrong

SEED = 2_906_143_751  # no number that a reader types: seeding with this one would go unseen
STEPS = 200_000  # lines of the reader's code that one call may execute
EMPTY_BODY = {
    "RESUME",
    "LOAD_CONST",
    "RETURN_VALUE",
    "RETURN_CONST",
    "NOP",
    "COPY_FREE_VARS",
    "LOAD_COMMON_CONSTANT",
}
JUMPS = {*dis.hasjrel, *dis.hasjabs}
INERT = (str, bytes, int, float, complex, bool, type(None))


class LimitReached(BaseException):
    """A counter passed its limit.

    Not an `Exception`: the reader's own `except Exception` must not swallow it.
    """


def call(fn: Any, *args: Any, steps: int | None = STEPS, draws: bool = True, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)`, or raise `NotStarted` or `Wrong`.

    `steps` limits the lines executed in the reader's code. Without `draws` the global random generators must be left
    alone.
    """
    if not callable(fn):
        raise Wrong(
            gave=_kind(fn), wanted="a function", slip="Hand over the function itself, without calling it."
        )
    try:
        with same_luck() as touched, line_limit(steps):
            result = fn(*args, **kwargs)
    except LimitReached as reached:
        raise Wrong(gave="no end", wanted="an end", where=str(reached)) from None
    except (Exception, SystemExit) as error:
        raise translated(error) from None
    if result is None and is_empty(fn):
        raise NotStarted(f"`{_name(fn)}` has an empty body.")
    if touched and not draws:
        raise Wrong(
            gave=f"{touched[0]}'s global random generator, seeded or drawn from",
            wanted="a generator of your own, such as `random.Random(seed)`",
            slip="The global generator belongs to everybody in the process: a neighbour's draw moves yours.",
        )
    return result


def translated(error: BaseException) -> Exception:
    """The `NotStarted` or `Wrong` that an exception out of the reader's code stands for."""
    if isinstance(error, (NotStarted, Wrong)):
        return error
    frames = _readers_frames(error)
    if isinstance(error, NotImplementedError) and frames and _raised_here(error):
        return NotStarted(f"`{frames[-1].tb_frame.f_code.co_name}` still raises NotImplementedError.")
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return Wrong(gave=message, wanted="no exception", where=_last_line(frames))


def _readers_frames(error: BaseException) -> list[types.TracebackType]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        if is_readers(trace.tb_frame.f_code):
            frames.append(trace)
        trace = trace.tb_next
    return frames


def _raised_here(error: BaseException) -> bool:
    """Written as `raise …` in the reader's code. Torch raises NotImplementedError too, but from a call."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not is_readers(trace.tb_frame.f_code):
        return False
    steps = dis.get_instructions(trace.tb_frame.f_code)
    return any(step.offset == trace.tb_lasti and step.opname == "RAISE_VARARGS" for step in steps)


def _last_line(frames: list[types.TracebackType]) -> str:
    if not frames:
        return ""
    frame, number = frames[-1].tb_frame, frames[-1].tb_lineno
    text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
    return f"In `{frame.f_code.co_name}`, line {number}" + (f": `{text}`" if text else ".")


def is_empty(fn: Any) -> bool:
    """True when the body is only `...`, `pass` or a docstring."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    return code is not None and all(step.opname in EMPTY_BODY for step in dis.get_instructions(code))


def is_placeholder(value: Any) -> bool:
    """True for `...` and None, and for a list, tuple or dict that holds `...`. A None inside is an answer: code that
    found nothing gives it back."""
    if value is None or value is ...:
        return True
    if isinstance(value, dict):
        return any(item is not None and is_placeholder(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(item is ... for item in value)


def value_of(answer: Any, steps: int | None = STEPS) -> Any:
    """A value, given as itself or as a function without arguments. Raises `NotStarted` on a placeholder."""
    value = (
        call(answer, steps=steps) if isinstance(answer, (types.FunctionType, types.MethodType)) else answer
    )
    if is_placeholder(value):
        raise NotStarted("The answer still holds a placeholder.")
    return value


@contextmanager
def line_limit(steps: int | None) -> Iterator[None]:
    """Raise `LimitReached` after `steps` lines of the reader's code.

    A debugger's trace is put back afterwards.
    """
    if steps is None:
        yield
        return
    left = steps

    def line(frame: types.FrameType, event: str, arg: Any) -> Callable[..., Any]:
        nonlocal left
        if event == "line" or (event == "opcode" and frame.f_lasti in loops[frame.f_code]):
            left -= 1
            if left < 0:
                raise LimitReached(f"More than {steps} lines were executed. Which condition ends the loop?")
        return line

    known: dict[str, Callable[..., Any] | None] = {}  # by file: this runs at every call of every function
    loops: dict[
        types.CodeType, set[int]
    ] = {}  # `while True: pass` is one jump to itself: no new line, no event

    def entered(frame: types.FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename not in known:
            known[code.co_filename] = line if is_readers(code) else None
        if known[code.co_filename] is not None:
            if code not in loops:
                jumps = (step for step in dis.get_instructions(code) if step.opcode in JUMPS)
                loops[code] = {step.offset for step in jumps if step.argval == step.offset}
            frame.f_trace_opcodes = bool(loops[code])
        return known[code.co_filename]

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def same_luck() -> Iterator[list[str]]:
    """Seed every random generator inside, restore all of them afterwards.

    Yields a list that names, afterwards, the generators that were used inside.
    """
    python, numeric = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_initialized()
    tensors = torch.get_rng_state() if torch is not None else None
    chips = torch.cuda.get_rng_state_all() if torch is not None and cuda else None
    random.seed(SEED)
    np.random.seed(SEED)
    if torch is not None:
        torch.default_generator.manual_seed(SEED)
        if cuda:
            torch.cuda.manual_seed_all(SEED)
    seeded = _states(torch)
    used: list[str] = []
    try:
        yield used
        now = _states(torch)
        used += [name for name in now if now[name] != seeded.get(name, now[name])]
    finally:
        random.setstate(python)
        np.random.set_state(numeric)
        if torch is not None:
            torch.set_rng_state(tensors)
            if cuda:
                torch.cuda.set_rng_state_all(chips)


def _states(torch: Any) -> dict[str, Any]:
    """A comparable state of each global generator, by the name of its module."""
    numeric = np.random.get_state(legacy=False)["state"]
    states: dict[str, Any] = {
        "random": random.getstate(),
        "numpy": (numeric["key"].tobytes(), numeric["pos"]),
    }
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def fresh(value: Any) -> Any:
    """A deep copy, so that code which writes into its arguments spoils only its own."""
    return value if isinstance(value, INERT) else copy.deepcopy(value)


def is_plain(value: Any) -> bool:
    """Data that a caller may want back as it was: arrays and containers, no models, caches or functions."""
    if isinstance(value, (tuple, list, set, dict, deque)):
        items = value.values() if isinstance(value, dict) else value
        return all(isinstance(item, INERT) or is_plain(item) for item in items)
    return compare.is_array(value)


def kept(arguments: Sequence[Any]) -> list[Any]:
    """Copies of the plain ones, for `changed`."""
    return [fresh(one) if is_plain(one) else None for one in arguments]


def changed(arguments: Sequence[Any], before: Sequence[Any]) -> Wrong | None:
    """The verdict on the first argument that is not what it was; `before` comes from `kept`."""
    for i, (now, old) in enumerate(zip(arguments, before, strict=True), 1):
        found = None if old is None else compare.difference(_in_order(now), _in_order(old), compare.EXACT)
        if found:
            slip = "Work on a copy: the caller still needs what it handed in."
            return Wrong("", f"argument {i} changed to {found.gave}", f"{found.wanted}, untouched", slip)
    return None


def _in_order(value: Any) -> Any:
    return list(value) if isinstance(value, deque) else value


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
