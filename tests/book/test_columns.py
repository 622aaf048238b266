"""Nothing is cut on the page: what a reader sees of code and printed output has 76 columns at most.

The browser test of the built pages (tests/browser) looks at the same from the other side: nothing scrolls sideways.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from lumen.explore.sphinx_ext import for_the_page
from tests.book.not_yet import holds

COLUMNS = 76
QUIET = {"hide-input", "remove-input", "remove-cell", "hide-cell"}
SILENT = {"remove-output", "remove-cell"}


def printed(output) -> str:
    """The text of an output as the page prints it; what is drawn or rendered has no columns."""
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return data.get("text/plain", "") if not {k for k in data if k != "text/plain"} else ""


def too_long(notebook: nbformat.NotebookNode) -> list[str]:
    """Lines of visible code and of printed output that the column of the page would cut."""
    found = []
    for cell in nbformat.reads(for_the_page(nbformat.writes(notebook)), as_version=4).cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type != "code" or "setup" in tags:  # the set-up's line is wrapped
            continue
        shown = "" if QUIET & tags else cell.source
        if not SILENT & tags:
            shown += "\n" + "\n".join(map(printed, cell.outputs))
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        found += [line for line in plain.splitlines() if len(line) > COLUMNS]
    return found


def test_code_and_output_fit_the_column(published: Path):
    def fits():
        long = too_long(nbformat.read(published, as_version=4))
        assert not long, f"{len(long)} lines of more than {COLUMNS} columns: {long[:3]}"

    folder = "" if published.parent.name == "chapters" else f"{published.parent.name}/"
    holds("nothing_cut", folder + published.stem, fits)


def cell(source, tags=(), outputs=()):
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}, outputs=list(outputs))


@pytest.mark.parametrize(
    "made, count",
    [
        (cell("x = 1"), 0),
        (cell("#" * 76), 0),
        (cell("#" * 77), 1),
        (cell("#" * 77, ["hide-input"]), 0),
        (cell("#" * 77, ["predict"]), 0),
        (cell("x", outputs=[nbformat.v4.new_output("stream", text="-" * 77)]), 1),
        (cell("x", outputs=[nbformat.v4.new_output("stream", text="\x1b[31m" + "-" * 76)]), 0),
        (cell("x", outputs=[nbformat.v4.new_output("display_data", {"text/plain": "-" * 77})]), 1),
        (
            cell(
                "x",
                outputs=[nbformat.v4.new_output("display_data", {"text/plain": "-" * 77, "text/html": ""})],
            ),
            0,
        ),
    ],
)
def test_a_long_line_is_found_where_a_reader_sees_it(made, count):
    assert len(too_long(nbformat.v4.new_notebook(cells=[made]))) == count
