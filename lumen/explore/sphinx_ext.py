"""The book's side of the explorers: draws stored plotly JSON and brings every script the pages need, offline.

List it under `sphinx.config.extensions`; the mime renderer is found through the entry point
`myst_nb.mime_renderers` of pyproject.toml.
"""

from __future__ import annotations

import ast
import html
import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]
from myst_nb.sphinx_ import HideCodeCellNode  # type: ignore[import-untyped]
from sphinx.util.docutils import SphinxDirective

from lumen.explore.explorers.widget import inline_module

MIME = "application/vnd.plotly.v1+json"
MEASURED = (
    "application/vnd.lumen.measured+json"  # beside the text of `provenance`: for a test, not for readers
)
_PLAIN_SPAN = re.compile(r'<span class="(?:n|p|w)">([^<]*)</span>')
_TITLE = re.compile(r"\A# @title[^\n]*\n")
_MARKER = re.compile(r"^[ \t]*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)[ \t]*\n?", flags=re.MULTILINE)


class PlotlyMime:
    """MyST-NB renderer for plotly JSON: the page keeps the numbers, `plotly-render.js` draws them when in sight."""

    mime_priority_overrides = (("html", MIME, 5), ("dirhtml", MIME, 5))

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[nodes.Node] | None:
        """A raw HTML node for one stored figure; None for anything else, which MyST-NB then renders itself."""
        if data.mime_type == MEASURED:
            return []
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
    made = Path(app.doctreedir).parent / "lumen-scripts" / "guess.js"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(f"(() => {{\n{inline_module('guess.js')}widget.start();\n}})();\n", "utf8")
    config.html_static_path += [
        str(_package_folder("plotly") / "package_data" / "plotly.min.js"),
        str(_package_folder("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js"),
        str(here / "plotly-render.js"),
        str(here / "page.js"),
        str(made),
        str(here / "explore.css"),
    ]
    config.mathjax_path = "tex-svg-full.js"
    config.nb_render_markdown_format = (
        "myst"  # computed Markdown may hold tables and $math$, like written Markdown
    )
    app.add_css_file("explore.css")
    for script in ("page.js", "guess.js"):
        app.add_js_file(script, loading_method="defer")


def for_the_page(notebook: str) -> str:
    """The notebook's JSON as a reader of the page wants it.

    Without nbgrader's BEGIN and END lines and Colab's form titles. The code of predictions, of reveals and of imports
    is quiet, whatever else their tags say; a reveal's output is shown, because the fold around it hides it.
    """
    content = json.loads(notebook)
    for cell in content["cells"]:
        source = _TITLE.sub("", _MARKER.sub("", "".join(cell["source"])))
        cell["source"] = source
        tags = cell.setdefault("metadata", {}).get("tags", [])
        if cell["cell_type"] != "code":
            continue
        if {"predict", "reveal"} & set(tags) or (not cell.get("outputs") and mostly_imports(source)):
            tags = [t for t in tags if t != "hide-input" and (t != "hide-output" or "reveal" not in tags)]
            cell["metadata"]["tags"] = [*tags, "hide-input"]
    return json.dumps(content)


def mostly_imports(source: str) -> bool:
    """Does the cell begin with an import, and are half of its statements imports at least?"""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic, or a stub
        return False
    kinds = [isinstance(line, (ast.Import, ast.ImportFrom)) for line in body]
    return bool(kinds) and kinds[0] and 2 * sum(kinds) >= len(kinds)


def _read(app: Any, docname: str, source: list[str]) -> None:
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = for_the_page(source[0])


def fold_reveals(app: Any, document: Any) -> None:
    """Cells tagged `reveal`, one after the other, become one fold: figure, table and explanation open together."""

    def revealed(node: Any) -> bool:
        return isinstance(node, nodes.container) and "tag_reveal" in node["classes"]

    firsts = [c for c in document.findall(revealed) if not revealed(_beside(c, -1))]
    for first in firsts:
        run = [first]
        while revealed(_beside(run[-1], 1)):
            run.append(_beside(run[-1], 1))
        parent, at = first.parent, first.parent.index(first)
        opening = '<details class="reveal"><summary>Reveal</summary>\n'
        parent.insert(at + len(run), nodes.raw("", "</details>\n", format="html"))
        parent.insert(at, nodes.raw("", opening, format="html"))


def _beside(node: Any, step: int) -> Any:
    at = node.parent.index(node) + step
    return node.parent[at] if 0 <= at < len(node.parent) else None


class Explorer(SphinxDirective):
    """`{explorer} lumen.pages.landing:rows_explorer`: the widget that this function returns, on a page that is no
    notebook."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, function = self.arguments[0].partition(":")
        widget = getattr(importlib.import_module(module), function)()
        return [nodes.raw("", widget.html(), format="html")]


# The theme's bar "Show code cell source" above every cell that only draws or writes becomes a mark in the margin.
def _visit_hidden(self: Any, node: Any) -> None:
    if "above-input" in node["classes"]:
        self.body.append(
            '<details class="quiet"><summary title="Code of this cell">'
            '<span class="sr">Code of this cell</span></summary>\n'
        )
    else:
        self.body.append('<details class="hide below-input"><summary>Show the output</summary>\n')


def _depart_hidden(self: Any, node: Any) -> None:
    self.body.append("</details>\n")


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
    app.add_node(HideCodeCellNode, html=(_visit_hidden, _depart_hidden), override=True)
    app.add_directive("explorer", Explorer)
    app.connect("source-read", _read)
    app.connect("doctree-read", fold_reveals)
    app.connect("html-page-context", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
