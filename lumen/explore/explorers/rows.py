"""Rows in one pass: what the landing page lets a visitor discover within a minute of arriving."""

from __future__ import annotations

from collections.abc import Mapping

from lumen.explore.explorers.widget import JSWidget


class Rows(JSWidget):
    """A slider over the number of tokens in one forward pass; two bars: how much more arithmetic, how much more time.

    `passes` maps tokens in a pass to (measured milliseconds, times as long as one token's pass); `start` is shown
    first, `where` names the machine.

    >>> Rows({1: (34.6, 1.0), 16: (45.2, 1.31)}, start=16, where="a laptop")
    """

    module = "rows.js"
    label = "explorer of one pass"

    def __init__(self, passes: Mapping[int, tuple[float, float]], *, start: int, where: str) -> None:
        if 1 not in passes or start not in passes or not all(v > 0 for pair in passes.values() for v in pair):
            raise ValueError(
                "Rows needs times above zero, for a pass of 1 token and for the one it starts with"
            )
        kept = [[rows, *(float(f"{v:.6g}") for v in passes[rows])] for rows in sorted(passes)]
        super().__init__(passes=kept, start=start, where=where)
