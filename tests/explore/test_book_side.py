"""What the book does with stored outputs."""

import json
from importlib.metadata import entry_points

from lumen.explore.sphinx_ext import MIME, PlotlyMime, figure_html, hide_markers


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


def test_markers_of_nbgrader_are_hidden_and_nothing_else():
    source = ["def f():\n", "    ### BEGIN SOLUTION\n", "    return 1\n", "    ### END SOLUTION"]
    notebook = {"cells": [{"cell_type": "code", "source": source}], "nbformat": 4}
    assert json.loads(hide_markers(json.dumps(notebook))) == {
        "cells": [{"cell_type": "code", "source": "def f():\n    return 1\n"}],
        "nbformat": 4,
    }


def test_the_book_finds_the_renderer():
    found = [e.value for e in entry_points(group="myst_nb.mime_renderers")]
    assert "lumen.explore.sphinx_ext:PlotlyMime" in found, "install the package: pip install -e ."
