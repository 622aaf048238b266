"""The HTML that labs and guesses are set in, numbers in words, and whether a cell's output will be stored."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence

BOX = "margin:8px 0;border:1px solid #8a939c66;border-radius:10px;padding:12px 16px;max-width:860px;line-height:1.5"
SOFT = "opacity:.8;font-size:14px"


def is_static() -> bool:
    """True when the output will be stored for the book (LUMEN_BOOK=1): then no widget state may be left behind."""
    return os.environ.get("LUMEN_BOOK", "") not in ("", "0")


def text_block(prompt: str, answer: str) -> str:
    """Prompt and answer, escaped, the prompt paler; line breaks kept."""
    return (
        '<div style="white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0;min-height:3em">'
        f'<span style="opacity:.75">{html.escape(prompt)}</span>{html.escape(answer)}</div>'
    )


def numbers(items: Sequence[tuple[str, str]]) -> str:
    """Named values side by side; they wrap on a narrow screen."""
    cells = "".join(
        f'<div><div style="{SOFT}">{html.escape(name)}</div>'
        f'<div style="font-size:18px;font-weight:600">{html.escape(value)}</div></div>'
        for name, value in items
    )
    columns = "repeat(auto-fit,minmax(150px,1fr))"
    return f'<div style="display:grid;grid-template-columns:{columns};gap:10px 20px">{cells}</div>'


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
