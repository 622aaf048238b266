"""How large the result of an operation of a chat template can get, counted before the operation is done.

One rule for each that can make much of little: repetition, widths, replacing, joining, indenting. All others give
back no more than they got, but for a small factor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .chat_budget import MOST_BITS, Budget, OverBudget

_NUMBER = re.compile(r"\d+")
ITEM = 4  # steps
MOST_DIGITS = 100  # that `round` is asked for

_CONSTANT = ("attr", "count", "d", "default", "first", "last", "length")  # filters that look at nothing
# Filters that look at what they get but not into its parts.
_SHALLOW = ("items", "list", "map", "random", "reject", "rejectattr", "reverse", "select", "selectattr")
# Filters that go from item to item, and from character to character in a string.
_ITEMS = (
    *("groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr"),
    *("sort", "sum", "unique"),
)
_PADS = ("center", "ljust", "rjust", "zfill")


def of_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """`left operator right`, for + * % and **."""
    if operator == "+":
        budget.shallow(left)
        budget.shallow(right)
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | bytes) and isinstance(times, int):
                budget.text(len(many) * max(0, times))
            elif isinstance(many, list | tuple) and isinstance(times, int):
                budget.work(len(many) * max(0, times))
    elif operator == "%":
        if isinstance(left, str | bytes):
            budget.percent(left, right)
    elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MOST_BITS:
        raise OverBudget(f"it counts with numbers of more than {MOST_BITS:,} bits")


def of_method(budget: Budget, method: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A method of a built-in object, whose arguments are measured already. Returns `args`, with iterators as lists."""
    on, name = method.__self__, method.__name__
    if name in ("count", "index"):
        budget.deep(on)
    else:
        budget.shallow(on)
    args = tuple(list(budget.counted(arg)) if isinstance(arg, Iterator) else arg for arg in args)
    if isinstance(on, str | bytes):
        if name in _PADS:
            budget.text(sum(abs(arg) for arg in args if isinstance(arg, int)))
        elif name == "replace" and len(args) > 1 and all(isinstance(arg, type(on)) for arg in args[:2]):
            budget.replaced(on, args[0], args[1])
        elif name == "join" and args:
            budget.deep(args[0])
            budget.text(len(on) * _length(args[0]))
    return args


def of_format(budget: Budget, spec: str) -> None:
    """A format specification: its width and precision."""
    budget.text(sum(int(number[:12]) for number in _NUMBER.findall(spec)))


def of_filter(budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A filter. Returns `value`, an iterator as a list if it is to be looked into."""
    given = (*args, *kwargs.values())
    before = budget.characters
    for arg in given:
        budget.deep(arg)
    each = budget.characters - before
    if name in _CONSTANT:
        return value
    if name in _ITEMS and not isinstance(value, Iterator):
        budget.work(ITEM * _length(value))
        budget.text(each * _length(value))
    plain = not any(isinstance(arg, list | tuple | dict) or arg in ("lower", "upper") for arg in given)
    if name in _SHALLOW and plain:
        budget.shallow(value)
        return budget.counted(value, each) if isinstance(value, Iterator) else value
    if isinstance(value, Iterator):
        value = list(budget.counted(value))
    values, levels = budget.deep(value)
    numbers = sum(abs(arg) for arg in given if isinstance(arg, int))
    length = len(value) if isinstance(value, str) else 0
    if name == "center":
        budget.text(numbers or 80)
    elif name == "indent":
        lines = value.count("\n") + 1 if isinstance(value, str) else 1
        budget.text(length + lines * (numbers + each + 4))
    elif name == "join":
        budget.text(each * _length(value))
    elif name == "replace":
        named = dict(zip(("old", "new", "count"), args, strict=False)) | kwargs
        budget.replaced(str(value), str(named.get("old", "")), str(named.get("new", "")))
    elif name == "format":
        budget.percent(str(value), kwargs or args)
    elif name == "tojson":
        budget.text((values + 2) * (levels + 1) * (numbers + each + 1) if given else 0)
    elif name == "round" and numbers > MOST_DIGITS:
        raise OverBudget(f"it rounds to more than {MOST_DIGITS} digits")
    elif name == "sum" and any(not isinstance(arg, int | float | str | None) for arg in given):
        raise OverBudget("it adds up what are no numbers")
    return value


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 1
