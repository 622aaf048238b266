"""What the book does with stored outputs."""

import json
from importlib.metadata import entry_points
from pathlib import Path

from docutils import nodes
from docutils.utils import new_document

from lumen import explore
from lumen.explore.figures.theme import BRIGHT, palette
from lumen.explore.labs.lab import ink
from lumen.explore.sphinx_ext import MIME, PlotlyMime, figure_html, fold_reveals, for_the_page


class Data:
    def __init__(self, mime_type, content):
        self.mime_type, self.content = mime_type, content


class Page:
    def __init__(self):
        self.scripts = []

    def add_js_file(self, key, uri, attributes):
        self.scripts.append(uri)


def test_a_stored_figure_becomes_a_placeholder_and_its_scripts():
    page = Page()
    (node,) = PlotlyMime.handle_mime(page, Data(MIME, {"data": [], "layout": {"height": 300}}), inline=False)
    assert page.scripts == ["plotly.min.js", "plotly-render.js"]
    assert "min-height:300px" in node.astext() and node["classes"] == ["output", "plotly"]


def test_other_outputs_are_left_alone():
    assert PlotlyMime.handle_mime(Page(), Data("text/html", ""), inline=False) is None
    assert PlotlyMime.handle_mime(Page(), Data(MIME, {}), inline=True) is None


def test_titles_are_read_out_and_cannot_end_the_script():
    page = figure_html({"data": [], "layout": {"title": {"text": 'A<br>"b" </script>'}}})
    assert 'aria-label="Figure: A &quot;b&quot; "' in page and page.count("</script") == 1


def page_cell(source, tags=(), outputs=()):
    cell = {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": list(outputs)}
    return json.loads(for_the_page(json.dumps({"cells": [cell]})))["cells"][0]


def test_markers_and_titles_are_hidden_and_nothing_else():
    source = ["def f():\n", "    ### BEGIN SOLUTION\n", "    return 1\n", "    ### END SOLUTION"]
    assert page_cell(source)["source"] == "def f():\n    return 1\n"
    assert page_cell("# @title Reveal\nx\n# @title kept")["source"] == "x\n# @title kept"


def test_the_code_of_predictions_reveals_and_imports_is_quiet():
    assert page_cell("x", ["predict"])["metadata"]["tags"] == ["predict", "hide-input"]
    assert page_cell("x", ["reveal", "hide-input", "hide-output"])["metadata"]["tags"] == [
        "reveal",
        "hide-input",
    ]
    assert page_cell("import a\nfrom b import c\nx = 1")["metadata"]["tags"] == ["hide-input"]
    for source in ("import a\nx = 1\ny = 2", "x = 1\nimport a", "%pip x", ""):
        assert page_cell(source)["metadata"]["tags"] == []
    assert page_cell("import a", outputs=[{"output_type": "stream"}])["metadata"]["tags"] == []


def tagged(*tags):
    cell = nodes.container(classes=["cell", *(f"tag_{t}" for t in tags)])
    cell += nodes.Text("x")
    return cell


def test_reveals_in_a_row_become_one_fold():
    prose = nodes.paragraph("", "between")
    section = nodes.section(
        "", tagged("measure"), tagged("reveal"), tagged("reveal", "x"), prose, tagged("reveal")
    )
    document = new_document("page")
    document += section
    fold_reveals(None, document)
    kinds = [
        "<" if n.astext().startswith("<details") else ">" if n.astext().startswith("</") else "."
        for n in section
    ]
    assert "".join(kinds) == ".<..>.<.>"
    assert section[1].astext().count("<summary>Reveal</summary>") == 1


def test_the_book_finds_the_renderer():
    found = [e.value for e in entry_points(group="myst_nb.mime_renderers")]
    assert "lumen.explore.sphinx_ext:PlotlyMime" in found, "install the package: pip install -e ."


def test_labs_have_the_figures_colours_light_and_dark():
    """A lab's `var(--lumen-blue,…)` falls back on the palette; the book's style sheet holds the brighter twins."""
    css = (Path(explore.__file__).parent / "static" / "explore.css").read_text("utf8")
    for (name, color), bright in zip(vars(palette).items(), BRIGHT, strict=True):
        assert vars(ink)[name] == f"var(--lumen-{name},{color})"
        assert f"--lumen-{name}: {bright};" in css
