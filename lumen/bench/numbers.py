"""How the course writes a share: "23 %", with a space, a true minus, and never a minus before nothing; and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percent(share: float, places: int = 0, *, signed: bool = False) -> str:
    """A share as percent, with `places` decimals; `signed` writes the plus, too. What rounds to zero has no sign.

    >>> percent(0.234), percent(-0.0712, 1), percent(0.05, signed=True), percent(-0.001, signed=True)
    ('23 %', '−7.1 %', '+5 %', '0 %')
    """
    size = f"{abs(100 * share):,.{places}f}"
    sign = "" if not size.strip("0.,") else "−" if share < 0 else "+" if signed else ""
    return f"{sign}{size} %"


def shares(parts: Sequence[float]) -> list[str]:
    """The parts of a whole as whole percents that add up to 100: the largest remainders are rounded up.

    Raises ValueError unless the parts are finite, none is below zero, and they add up to more than zero.

    >>> shares([2, 2, 2])
    ['34 %', '33 %', '33 %']
    """
    whole = math.fsum(parts) if parts else 0.0
    if not (math.isfinite(whole) and whole > 0 and min(parts) >= 0):
        raise ValueError(f"Shares need parts of at least 0 and a sum above it, got {list(parts)}.")
    exact = [100 * part / whole for part in parts]
    found = [math.floor(x) for x in exact]
    for i in sorted(range(len(parts)), key=lambda i: found[i] - exact[i])[: 100 - sum(found)]:
        found[i] += 1
    return [f"{x} %" for x in found]


def size(count: float) -> str:
    """Bytes in the largest binary unit that they fill, to three figures.

    >>> size(900), size(64 * 2**10), size(1.125 * 2**30), size(1152 * 2**30)
    ('900 B', '64 KiB', '1.12 GiB', '1,152 GiB')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}" if count < 1000 * unit else f"{count / unit:,.0f} {name}"
    return f"{count:,.0f} B"
