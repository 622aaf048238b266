"""What is published is what is reviewed: text, notebook, exercises, map and table of contents agree."""

from __future__ import annotations

import coursemap
import make_exercises
import nbformat
import notebooks
import repo

from tests.book.not_yet import STALE

MAX_NOTEBOOK_BYTES = 1_000_000


def test_text_and_notebook_agree(text):
    """Cells, metadata, badge row and set-up cell; and the outputs were made by this very code."""
    name = f"{text.parent.name}/{text.stem}"
    older = [f"{name}.ipynb: its outputs come from other code or other evidence; run `make notebooks`"]
    assert notebooks.problems(text) == (older if name in STALE else [])


def test_every_notebook_has_its_text():
    assert notebooks.strays(repo.ROOT) == []


def test_exercises_are_what_the_generator_makes():
    assert make_exercises.main(check=True) == 0


def test_map_and_table_of_contents_are_current():
    assert coursemap.main(check=True) == 0


def test_the_landing_page_counts_what_is_there(course):
    """A course of one chapter says so, and promises nothing that it cannot keep."""
    page = coursemap.intro((course / "book/intro.md").read_text("utf8"))
    assert "One of 29 chapters are ready" not in page and "One of 29 chapters is ready" in page
    assert "[1 · Prefill and decode](../chapters/01_prefill_decode.ipynb)" in page
    assert "02_roofline" not in page and 'class="planned"' in page
    outcomes = page.split("<!-- outcomes")[1].split("<!-- end of outcomes")[0]
    assert "chapter" not in outcomes.split("-->")[1]  # the small chapter has no objectives


def test_the_outcomes_are_the_objectives_of_chapters_that_exist():
    for row in repo.ready():
        if row.number in coursemap.OUTCOMES:
            assert len(coursemap.objectives(row.slug)) >= max(coursemap.OUTCOMES[row.number], 3), row.slug
    assert coursemap.outcomes().count("\n") + 1 == len(
        {r.number for r in repo.ready()} & set(coursemap.OUTCOMES)
    )


def test_only_the_set_up_cell_installs(published):
    for cell in nbformat.read(published, as_version=4).cells:
        if cell.cell_type == "code" and "setup" not in cell.metadata.get("tags", []):
            assert "pip install" not in cell.source and '"pip"' not in cell.source


def test_notebook_is_small_and_carries_no_time(published):
    """Colab opens it over a phone line; git keeps every version of it."""
    assert published.stat().st_size < MAX_NOTEBOOK_BYTES
    notebook = nbformat.read(published, as_version=4)
    assert "widgets" not in notebook.metadata
    assert not any("execution" in c.metadata for c in notebook.cells)


def test_graded_cells_are_compared(solution):
    """A verdict that nbval ignores could change without anyone noticing."""
    for cell in nbformat.read(solution, as_version=4).cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
            assert not {"nbval-ignore-output", "nbval-skip"} & set(cell.metadata.get("tags", []))
            assert cell.outputs, f"graded cell {cell.metadata.nbgrader.grade_id} shows no verdict"
