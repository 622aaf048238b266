"""Is what came back what was wanted? If not: the first place where it differs, in words.

Numbers are compared by relative error against the largest wanted magnitude, `max|got - want| / max|want|`:
one scale for the whole array, so that entries near zero are not asked for digits that rounding has taken.
Shape comes before dtype and dtype before values. Integers, tokens and strings are compared exactly. NaN and
infinity are named. Which container holds the right numbers does not matter: a tuple or an array of numbers stands for
a list, a numpy array for a tensor. Imports no torch: tensors are recognised by what they can do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

EXACT = 0.0
FP64 = 1e-10  # float64 throughout, additions in another order
FP32 = 1e-5  # float32 throughout, additions in another order
FP32_DEEP = 1e-4  # float32 through many layers
BF16 = 2e-2  # two or three bfloat16 roundings
NAMES = {
    EXACT: "exactly",
    FP64: "to float64 rounding",
    FP32: "to float32 rounding",
    BF16: "to bfloat16 rounding",
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference found: what stood there, what was wanted, and what that often means."""

    gave: str
    wanted: str
    slip: str = ""


def difference(
    got: Any, want: Any, tolerance: float = FP32, where: str = "", dtype: bool = True
) -> Difference | None:
    """The first difference between `got` and `want`, or None.

    `where` is the path so far; `dtype=False` ignores dtypes.
    """
    at = f" at {where}" if where else ""
    if got is None and want is not None:
        slip = "" if where else "Nothing came back. Is the `return` missing?"
        return Difference(f"None{at}", describe(want), slip)
    if is_array(want):
        return _arrays(got, want, tolerance, at, dtype)
    if isinstance(got, np.generic) or (is_array(got) and got.ndim == 0):
        got = got.item()
    if is_array(got) and isinstance(want, (list, tuple)):
        got = got.tolist()
    if isinstance(want, Real):
        return _numbers(got, want, tolerance, at)
    if isinstance(want, Mapping):
        return _mappings(got, want, tolerance, where, dtype)
    if isinstance(want, (list, tuple)):
        return _sequences(got, want, tolerance, where, dtype)
    if dataclasses.is_dataclass(want) and not isinstance(want, type) and type(got) is type(want):
        return _mappings(vars(got), vars(want), tolerance, where, dtype)
    if isinstance(want, (set, frozenset)):
        return _sets(got, want, at)
    if got != want:
        return Difference(f"{describe(got)}{at}", describe(want))
    return None


def is_array(value: Any) -> bool:
    """True for torch tensors and numpy arrays (numpy scalars are numbers)."""
    return isinstance(value, np.ndarray) or (
        type(value).__module__.split(".")[0] == "torch" and hasattr(value, "numel")
    )


def to_numpy(value: Any) -> np.ndarray:
    """A numpy copy on the CPU: bool stays, integers become int64, floats float64, complex complex128."""
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    kind = value.dtype.kind
    return value.astype(
        {"f": np.float64, "c": np.complex128, "i": np.int64, "u": np.int64}.get(kind, value.dtype)
    )


def _arrays(got: Any, want: Any, tolerance: float, at: str, dtype: bool) -> Difference | None:
    if not is_array(got):
        return Difference(f"{describe(got)}{at}", describe(want))
    if tuple(got.shape) != tuple(want.shape):
        return Difference(f"shape {tuple(got.shape)}{at}", f"shape {tuple(want.shape)}")
    if dtype and _dtype(got) != _dtype(want):
        return Difference(f"dtype {_dtype(got)}{at}", f"dtype {_dtype(want)}")
    a, b = to_numpy(got), to_numpy(want)
    if a.size == 0:
        return None
    wrong = ~_close(a, b, tolerance)
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"{at} at index {list(index)}" if index else at
    return Difference(f"{number(a[index])}{place}", number(b[index]), _special(a[index], b[index]))


def _close(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray:
    if a.dtype.kind not in "fc":
        return a == b
    finite = np.isfinite(a) & np.isfinite(b)
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    return np.where(finite, gap <= tolerance * scale, same)


def _numbers(got: Any, want: Any, tolerance: float, at: str) -> Difference | None:
    whole = isinstance(want, Integral)
    if not isinstance(got, Real) or isinstance(got, bool) != isinstance(want, bool):
        return Difference(f"{describe(got)}{at}", describe(want))
    if got == want or (not whole and math.isnan(got) and math.isnan(want)):
        return None
    finite = math.isfinite(got) and math.isfinite(want)  # any distance is below a tolerance times infinity
    if not whole and finite and abs(got - want) <= tolerance * abs(want):
        return None
    return Difference(f"{number(got)}{at}", number(want), _special(got, want))


def _mappings(
    got: Any, want: Mapping[Any, Any], tolerance: float, where: str, dtype: bool
) -> Difference | None:
    at = f" at {where}" if where else ""
    if not isinstance(got, Mapping):
        return Difference(f"{describe(got)}{at}", describe(want))
    missing, extra = [k for k in want if k not in got], [k for k in got if k not in want]
    if missing or extra:
        return Difference(f"keys {sorted(map(repr, got))}{at}", f"keys {sorted(map(repr, want))}")
    found = (difference(got[key], want[key], tolerance, f"{where}[{key!r}]", dtype) for key in want)
    return next((one for one in found if one), None)


def _sequences(got: Any, want: Any, tolerance: float, where: str, dtype: bool) -> Difference | None:
    at = f" at {where}" if where else ""
    if not isinstance(got, (list, tuple)):
        return Difference(f"{describe(got)}{at}", describe(want))
    for i, (one, other) in enumerate(zip(got, want, strict=False)):
        found = difference(one, other, tolerance, f"{where}[{i}]", dtype)
        if found:
            return found
    if len(got) != len(want):
        then = "stops too early" if len(got) < len(want) else "goes on"
        same = min(len(got), len(want))
        slip = f"The first {same} agree; then it {then}." if same else ""
        long = max(len(got), len(want)) > 12
        shown = [f"{len(one)} items" if long else describe(one) for one in (got, want)]
        return Difference(f"{shown[0]}{at}", shown[1], slip)
    return None


def _sets(got: Any, want: Any, at: str) -> Difference | None:
    if not isinstance(got, (set, frozenset)):
        return Difference(f"{describe(got)}{at}", describe(want))
    missing, extra = sorted(want - got, key=repr), sorted(got - want, key=repr)
    if not missing and not extra:
        return None
    parts = [
        f"{word} {', '.join(map(describe, items))}"
        for word, items in (("without", missing), ("with", extra))
        if items
    ]
    return Difference(f"{describe(got)}{at}", f"{describe(want)}; yours is {' and '.join(parts)}")


def _special(got: Any, want: Any) -> str:
    if not isinstance(got, (Real, np.number)) or not math.isfinite(want):
        return ""
    if math.isnan(got):
        return "NaN comes from 0/0, inf − inf, or a softmax over a row with nothing visible."
    if math.isinf(got):
        return "Infinity comes from an overflow or a division by zero."
    near = isinstance(got, (float, np.floating)) and got != want and abs(got - want) < 1e-5 * abs(want)
    return (
        "The first digits agree: something was computed in fp32, as `torch.tensor` of Python floats is."
        if near
        else ""
    )


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def number(value: Any) -> str:
    """A number as a reader would write it.

    Whole numbers in full, others to four digits, NaN and inf by name.
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        value = float(value)
        if math.isnan(value) or math.isinf(value):
            return "NaN" if math.isnan(value) else ("inf" if value > 0 else "−inf")
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def describe(value: Any) -> str:
    """A value in a few words. Short lists in full, arrays by kind, shape and dtype, objects by type."""
    if is_array(value):
        kind = "numpy array" if isinstance(value, np.ndarray) else "tensor"
        return f"a {kind} of shape {tuple(value.shape)}, {_dtype(value)}"
    if value is None or isinstance(value, (Real, np.number)):
        return number(value) if value is not None else "None"
    if isinstance(value, (str, bytes)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(describe(item) for item in value[:12])
        more = f", … ({len(value)} items)" if len(value) > 12 else ""
        return f"[{inside}{more}]" if isinstance(value, list) else f"({inside}{more})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(item)}" for key, item in list(value.items())[:12]) + "}"
    if isinstance(value, (set, frozenset)):
        return (
            "{" + ", ".join(describe(item) for item in sorted(value, key=repr)[:12]) + "}"
            if value
            else "an empty set"
        )
    if isinstance(value, type) or callable(value):
        kind = "class" if isinstance(value, type) else "function"
        return f"the {kind} {getattr(value, '__name__', type(value).__name__)}"
    return f"a {type(value).__name__}"
