"""A widget without a kernel: one ES module and the numbers it shows, both inside the cell's HTML output.

The same output runs in JupyterLab, Colab, VS Code and the built book, from a server or from a folder, because
it fetches nothing. It draws in a shadow root, so the page's styles and scripts do not reach it. Python
computes the numbers that belong to Python (chips, model sizes) and hands them over as JSON.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

_IMPORT = re.compile(r'^import [^;]* from "\./kit\.js";\n', flags=re.MULTILINE)
_EXPORT = re.compile(r"^export (default )?", flags=re.MULTILINE)


def _source(name: str) -> str:
    text = resources.files("lumen.explore").joinpath("static", name).read_text("utf8")
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError(f"{name} contains text that would end the script element it is put into")
    return text


def inline_module(name: str) -> str:
    """The module `name` with kit.js in front, as one script: imports resolved, exports dropped."""
    body = _IMPORT.sub("", _source(name))
    body = _EXPORT.sub(lambda m: "const widget = " if m.group(1) else "", body)
    return _EXPORT.sub("", _source("kit.js")) + body


class JSWidget:
    """Base of the explorers. A subclass names its `module` (a file in static/) and passes its state as keywords.

    The module's default export is `{ title, render({ state, el }) }`: it fills `el` from the JSON `state`.
    The element's id is a hash of module and state, so the same widget gives the same bytes on every machine
    and nbval may compare it.
    """

    module: str = ""
    label: str = "explorer"

    def __init__(self, **state: Any) -> None:
        self.state = state

    def html(self) -> str:
        # "<" escaped as a JSON escape: no string of the state can end the script or open a comment
        state = json.dumps(self.state, separators=(",", ":"), sort_keys=True, allow_nan=False).replace(
            "<", "\\u003c"
        )
        uid = "w" + hashlib.sha256((self.module + state).encode()).hexdigest()[:12]
        name = self.module.removesuffix(".js")
        return (
            f'<div class="lumen-widget" id="{uid}" data-widget="{html.escape(name)}">'
            f"<em>Run this cell to start the {html.escape(self.label)}.</em></div>\n"
            f'<script type="module">\n{inline_module(self.module)}'
            f'mount("{uid}", widget, {state});\n</script>'
        )

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        return {"text/html": self.html(), "text/plain": f"<{type(self).__name__}: {self.label}>"}, {}
