"""Prose that a cell computes: Markdown, tables, callouts. The same in Colab, Jupyter and the book.

All three display Markdown, so that the book styles them like the text around them. Strings are treated as
inline Markdown (`code`, **bold**, links, $math$); HTML in them is escaped. Output depends on the arguments
alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from IPython.display import Markdown, display

__all__ = [
    "callout",
    "callout_markdown",
    "markdown",
    "table",
    "table_markdown",
]

CALLOUTS = ("takeaway", "question", "trap", "note")
_CODE_OR_MATH = re.compile(r"(`[^`]*`|\$[^$]*\$)")


def _escaped(text: str) -> str:
    """HTML made harmless outside `code` and $math$, where Markdown shows it as it stands."""
    parts = _CODE_OR_MATH.split(text)
    return "".join(p if i % 2 else p.replace("&", "&amp;").replace("<", "&lt;") for i, p in enumerate(parts))


def markdown(text: str) -> None:
    """Show Markdown that was computed, as if it had been written: paragraphs, lists, headings, $math$.

    >>> markdown(f"The formula says **{109.1:.0f}×** less arithmetic.")
    """
    display(Markdown(text))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    parts = _CODE_OR_MATH.split(_escaped(str(value)).replace("\n", " "))
    # a bar would end the cell; in math it is written \vert
    return "".join(p.replace("|", r"\vert " if p.startswith("$") else r"\|") for p in parts)


def table_markdown(rows: Sequence[Sequence[Any]], headers: Sequence[str], align: str = "") -> str:
    """The Markdown of `table`, for use inside a longer text."""
    for i, row in enumerate(rows, 1):
        if len(row) != len(headers):
            raise ValueError(f"row {i} has {len(row)} cells, the table has {len(headers)} columns")
    if align and (len(align) != len(headers) or set(align) - set("lrc")):
        raise ValueError(f"align needs one of l, r, c for each of the {len(headers)} columns, got {align!r}")
    numeric = [
        bool(rows) and all(isinstance(r[i], (int, float)) or r[i] is None for r in rows)
        for i in range(len(headers))
    ]
    sides = align or "".join("r" if n else "l" for n in numeric)
    rule = {"l": ":---", "r": "---:", "c": ":---:"}
    lines = [
        [_cell(h) for h in headers],
        [rule[side] for side in sides],
        *[[_cell(v) for v in row] for row in rows],
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(
    rows: Sequence[Sequence[Any]], headers: Sequence[str], align: str = "", *, stack: bool = False
) -> None:
    """Show a table. Numbers get thousands separators and three digits; columns of numbers stand to the right.

    `align` is one letter a column (l, r, c) and overrides that. With `stack` every row becomes a small card on a
    screen as narrow as a phone, headed by its first cell: for tables of sentences, or of more than four columns.

    >>> table([["H100 SXM", 989.4, 3350], ["L4", 121.0, 300]], ["chip", "TFLOP/s", "GB/s"])
    """
    text = table_markdown(rows, headers, align)
    markdown(stacked(text) if stack else text)


def stacked(table: str) -> str:
    """The Markdown of a table whose rows the book's page may turn into cards: a div with blank lines around it."""
    return f'<div class="stack">\n\n{table}\n\n</div>'


def callout_markdown(kind: str, text: str) -> str:
    """The Markdown of `callout`: a div with blank lines, so that Markdown inside it is rendered everywhere."""
    if kind not in CALLOUTS:
        raise ValueError(f"there is no callout {kind!r}; choose from: {', '.join(CALLOUTS)}")
    return f'<div class="callout {kind}">\n\n{_escaped(text.strip())}\n\n</div>'


def callout(kind: str, text: str) -> None:
    """Show a takeaway, question, trap or note whose numbers were computed.

    >>> callout("takeaway", f"**Takeaway.** A token costs {22.5} KiB of cache.")
    """
    markdown(callout_markdown(kind, text))
