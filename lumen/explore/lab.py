"""What the live labs share: when they may be live, what stands on the page when they may not, and how they
write HTML."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence

from IPython.display import HTML, display

LIVE = "Live in Jupyter and Colab: run this cell to try your own. Below: the run recorded for this page."
_NO_WIDGETS = "This lab needs ipywidgets: pip install ipywidgets and restart the kernel. Until then, one run:"

BOX = "margin:8px 0;border:1px solid #8a939c66;border-radius:10px;padding:12px 16px;max-width:860px;line-height:1.5"
SOFT = "opacity:.8;font-size:14px"


def is_static() -> bool:
    """True when the output will be stored for the book (LUMEN_BOOK=1): then no widget state may be left behind."""
    return os.environ.get("LUMEN_BOOK", "") not in ("", "0")


def why_static() -> str | None:
    """The sentence that explains why there is no widget, or None when there can be one."""
    if is_static():
        return LIVE
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return _NO_WIDGETS
    return None


def show_recorded(sentence: str, body: str) -> None:
    """The lab as plain HTML: a sentence and one recorded run. `body` is HTML whose texts are already escaped."""
    display(
        HTML(
            f'<div class="lumen-lab" style="{BOX}"><p style="{SOFT}">{html.escape(sentence)}</p>{body}</div>'
        )
    )


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
