"""How the course writes a share: "23 %", with a space, a true minus, and never a minus before nothing."""

from __future__ import annotations


def percent(share: float, places: int = 0, *, signed: bool = False) -> str:
    """A share as percent, with `places` decimals; `signed` writes the plus, too. What rounds to zero has no sign.

    >>> percent(0.234), percent(-0.0712, 1), percent(0.05, signed=True), percent(-0.001, signed=True)
    ('23 %', '−7.1 %', '+5 %', '0 %')
    """
    size = f"{abs(100 * share):,.{places}f}"
    sign = "" if not size.strip("0.,") else "−" if share < 0 else "+" if signed else ""
    return f"{sign}{size} %"
