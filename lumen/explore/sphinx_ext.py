"""The book's side of the explorers: draws stored plotly JSON and brings every script the pages need, offline.

List it under `sphinx.config.extensions`; the mime renderer is found through the entry point
`myst_nb.mime_renderers` of pyproject.toml.
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]

MIME = "application/vnd.plotly.v1+json"
_PLAIN_SPAN = re.compile(r'<span class="(?:n|p|w)">([^<]*)</span>')
_MARKER = re.compile(r"^[ \t]*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)[ \t]*\n?", flags=re.MULTILINE)


class PlotlyMime:
    """MyST-NB renderer for plotly JSON: the page keeps the numbers, `plotly-render.js` draws them when in sight."""

    mime_priority_overrides = (("html", MIME, 5), ("dirhtml", MIME, 5))

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[nodes.Node] | None:
        """A raw HTML node for one stored figure; None for anything else, which MyST-NB then renders itself."""
        if data.mime_type != MIME or inline:
            return None
        renderer.add_js_file("plotly", "plotly.min.js", {"defer": "defer"})
        renderer.add_js_file("plotly-render", "plotly-render.js", {"defer": "defer"})
        text = figure_html(data.content)
        return [nodes.raw(text=text, format="html", classes=["output", "plotly"])]


def figure_html(fig: dict[str, Any]) -> str:
    """The place of a figure: its height is reserved so that nothing jumps, its title serves screen readers."""
    layout = fig.get("layout", {})
    title = re.sub(r"<br>", " ", str((layout.get("title") or {}).get("text") or "figure"))
    title = html.unescape(re.sub(r"<[^>]*>", "", title))
    body = json.dumps(fig, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")
    return (
        f'<div class="plotly-json" role="group" aria-label="Figure: {html.escape(title)}" '
        f'style="min-height:{int(layout.get("height") or 400)}px">'
        f'<script type="{MIME}">{body}</script></div>'
    )


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the book needs the package {name!r}: pip install -r requirements.txt")
    return Path(spec.origin).parent


def _add_assets(app: Any, config: Any) -> None:
    """Plotly and MathJax from their own wheels, so that nothing is vendored and nothing comes from a CDN."""
    here = Path(__file__).parent / "static"
    config.html_static_path += [
        str(_package_folder("plotly") / "package_data" / "plotly.min.js"),
        str(_package_folder("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js"),
        str(here / "plotly-render.js"),
        str(here / "explore.css"),
    ]
    config.mathjax_path = "tex-svg-full.js"
    config.nb_render_markdown_format = (
        "myst"  # computed Markdown may hold tables and $math$, like written Markdown
    )
    app.add_css_file("explore.css")


def hide_markers(notebook: str) -> str:
    """The notebook's JSON without nbgrader's BEGIN and END lines: readers of a solution page do not need them."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        cell["source"] = _MARKER.sub("", "".join(cell["source"]))
    return json.dumps(content)


def _read(app: Any, docname: str, source: list[str]) -> None:
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = hide_markers(source[0])


def lean_code(body: str) -> str:
    """Highlighted code without the spans of names, punctuation and spaces, which have the colour of plain text.

    They are half of a page's bytes.
    """
    return _PLAIN_SPAN.sub(r"\1", body)


def _write(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = lean_code(context["body"])


def setup(app: Any) -> dict[str, Any]:
    app.connect("config-inited", _add_assets)
    app.connect("source-read", _read)
    app.connect("html-page-context", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
