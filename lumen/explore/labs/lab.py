"""What the live labs share: when they may be live, what stands on the page when not, and what a button does."""

from __future__ import annotations

import html
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from IPython.display import HTML, display

from lumen.explore.figures.theme import palette
from lumen.explore.prose.boxes import BOX, SOFT, is_static

LIVE = "Live in Jupyter and Colab: run this cell to try your own. Below: the run recorded for this page."
# Colours for HTML: on the book's dark page `explore.css` says them brighter; a notebook has those of the figures.
ink = SimpleNamespace(**{name: f"var(--lumen-{name},{color})" for name, color in vars(palette).items()})
_NO_WIDGETS = "This lab needs ipywidgets: pip install ipywidgets and restart the kernel. Until then, one run:"


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


def on_press(button: Any, out: Any, work: Callable[[], str], busy: str = "") -> Callable[[Any], None]:
    """Let `button` do `work` and show the HTML that it returns in `out`. Returns what a press does.

    Until `work` is done the button is off and says `busy`. A ValueError or ConnectionError is shown as its sentence,
    which says what to do (a prompt that is empty, a server that does not answer); all else is a fault and is raised.
    """
    idle = button.description

    def pressed(_: Any) -> None:
        button.disabled, button.description, out.value = True, busy or idle, ""
        try:
            out.value = work()
        except (ValueError, ConnectionError) as error:
            out.value = f"<b>{html.escape(str(error))}</b>"
        finally:
            button.disabled, button.description = False, idle

    button.on_click(pressed)
    return pressed
