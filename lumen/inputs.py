"""Numbers, token ids and strings from outside, checked where they enter: a plain value comes back, or a sentence.

One rule for the whole package. A whole number is what Python takes as an index (`operator.index`): an int, one of
numpy's integers, an integer tensor or array of no dimension. A real number is what `float` takes without reading text.
A bool is neither, NaN never is, and infinity only where it means something. Everything else is a ValueError that names
the parameter, the limit and what was given. No torch and no numpy here: their numbers answer for themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

INT64 = 2**63 - 1
_LONG = 60  # characters of what was given that a sentence repeats


def shown(value: Any, spelled: Callable[[Any], str] = repr) -> str:
    """What was given, in a sentence: short, on one line, whatever it is, `spelled` in Python's way or another."""
    if type(value) is int and abs(value) >= 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(spelled(value).split())
    except Exception:  # repr is the stranger's own code
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONG else text[:_LONG] + "…"


def whole(value: Any, name: str, least: int = 0, most: int = INT64) -> int:
    """`value` as an int from `least` to `most`; ValueError for anything else."""
    number = value if type(value) is int else as_int(value)
    if number is None or not least <= number <= most:
        huge = number is not None and number > most >= INT64
        span = f"of {least} or more" if most >= INT64 and not huge else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {span}, got {shown(value)}.")
    return number


def real(
    value: Any,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    infinite: bool = False,
) -> float:
    """`value` as a float from `least` to `most`, more than `above`; finite unless `infinite`. ValueError otherwise."""
    number = value if type(value) is float else as_float(value)
    if (
        number is None
        or not least <= number <= most
        or (above is not None and not number > above)
        or (math.isinf(number) and not infinite)
    ):
        span = "" if infinite else "finite "
        if above is not None:
            limits = f" above {above:g}" + (f" and up to {most:g}" if most < math.inf else "")
        elif most < math.inf:
            limits = f" from {least:g} to {most:g}"
        else:
            limits = f" of {least:g} or more" if least > -math.inf else ""
        raise ValueError(f"{name} must be a {span}number{limits}, got {shown(value)}.")
    return number


def nonnegative(**named: Any) -> None:
    """Raise ValueError unless each is a finite number of 0 or more: sizes, rates, prices, seconds."""
    for name, value in named.items():
        real(value, name, 0.0)


def positive(**named: Any) -> None:
    """Raise ValueError unless each is a finite number above 0: what something is divided by."""
    for name, value in named.items():
        real(value, name, above=0.0)


def counts(least: int = 1, /, **named: Any) -> None:
    """Raise ValueError unless each is a whole number of `least` or more."""
    for name, value in named.items():
        whole(value, name, least)


def wholes(values: Any, name: str, least: int = 0, most: int = INT64) -> list[int]:
    """Whole numbers, each from `least` to `most`, as a list of ints. ValueError for anything else.

    `values` is a list, a tuple, another sequence, or a tensor or array of one dimension; text is none.
    """
    values = _listed(values, name, "whole numbers")
    if _plain(values, least, most):
        return list(values)
    return [whole(value, f"{name}[{place}]", least, most) for place, value in enumerate(values)]


def token_ids(values: Any, name: str, size: int | None = None) -> list[int]:
    """Token ids from 0, below `size` where a vocabulary is known, given and returned as in `wholes`."""
    values = _listed(values, name, "token ids")
    most = INT64 if size is None else size - 1
    if _plain(values, 0, most):
        return list(values)
    found = [value if type(value) is int else as_int(value) for value in values]
    for place, (number, value) in enumerate(zip(found, values, strict=True)):
        if number is None:
            raise ValueError(
                f"{name} must hold token ids, which are whole numbers, got {shown(value)} at {place}."
            )
        if not 0 <= number <= most:
            known = f"0 to {most}" if size is not None else "ids start at 0"
            raise ValueError(f"{name} holds token {shown(number)}, outside the vocabulary ({known}).")
    return [operator.index(value) for value in values]


def id_set(values: Any, name: str, size: int | None = None) -> frozenset[int]:
    """Token ids whose order says nothing, such as those that end an answer: a set, or what `token_ids` takes."""
    return frozenset(token_ids(list(values) if isinstance(values, set | frozenset) else values, name, size))


def strings(values: Any, name: str) -> tuple[str, ...]:
    """Strings that are not empty, such as stop strings. ValueError for anything else, a single string included, which
    would be taken for its letters."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(
            f"{name} is a list of strings, got {shown(values)}; put brackets around a single one."
        )
    for value in values:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} must hold strings that are not empty, got {shown(value)}.")
    return tuple(values)


def _listed(values: Any, name: str, what: str) -> Sequence[Any]:
    if hasattr(values, "tolist") and getattr(values, "ndim", 1) == 1:
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise ValueError(f"{name} must be a list of {what}, got {shown(values)}.")
    return values


def _plain(values: Sequence[Any], least: int, most: int) -> bool:
    """The common case, quickly: ints within their limits."""
    return not len(values) or (
        set(map(type, values)) == {int} and min(values) >= least and max(values) <= most
    )


def as_int(value: Any) -> int | None:
    """The int that stands for `value`, None if there is none. A number of one dimension is a list of numbers."""
    if (
        isinstance(value, bool)
        or bool(getattr(value, "ndim", 0))
        or "bool" in str(getattr(value, "dtype", ""))
    ):
        return None
    try:
        return operator.index(value)
    except Exception:  # torch says TypeError, RuntimeError or NotImplementedError
        return None


def as_float(value: Any) -> float | None:
    """The float that stands for `value`, None if there is none or it is too large for one."""
    if isinstance(value, bool | str | bytes | bytearray) or bool(getattr(value, "ndim", 0)):
        return None
    if "bool" in str(getattr(value, "dtype", "")) or not (
        hasattr(value, "__float__") or hasattr(value, "__index__")
    ):
        return None
    try:
        number = float(value)
    except Exception:  # a complex tensor, an int of four hundred digits
        return None
    return None if math.isnan(number) else number
