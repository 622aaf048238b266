"""The exercises as a reader first meets them: Run All ends, every check says NOT STARTED, nothing leaks."""

from __future__ import annotations

import re

import nbformat
import pytest
import repo
from nbclient import NotebookClient

REGION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", flags=re.S)


def graded(notebook):
    return [
        c for c in notebook.cells if c.cell_type == "code" and c.metadata.get("nbgrader", {}).get("grade")
    ]


def shown(cell) -> str:
    """All text that a cell put out."""
    return "\n".join(o.get("text", "") or str(o.get("data", "")) for o in cell.outputs)


@pytest.mark.slow
def test_run_all_reaches_the_end_and_every_check_says_not_started(exercise, monkeypatch):
    monkeypatch.delenv("LUMEN_STRICT", raising=False)
    notebook = nbformat.read(exercise, as_version=4)
    resources = {"metadata": {"path": str(exercise.parent)}}
    NotebookClient(
        notebook, timeout=1800, record_timing=False, resources=resources
    ).execute()  # raises on any error
    checks = graded(notebook)
    assert checks
    for cell in checks:
        assert "NOT STARTED" in shown(cell), f"{cell.metadata.nbgrader.grade_id}: {shown(cell)[:200]}"


def solution_lines(notebook) -> set[str]:
    """Lines that stand in a solution region and nowhere else, but for those too short to say anything."""
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    inside = {line.strip() for region in REGION.findall(code) for line in region.splitlines()}
    outside = {line.strip() for line in REGION.sub("", code).splitlines()}
    return {line for line in inside - outside if len(line) > 12 and not line.startswith("#")}


def test_no_solution_line_is_published(exercise):
    secret = solution_lines(nbformat.read(repo.ROOT / "solutions" / exercise.name, as_version=4))
    assert secret, "no solution region: nothing for the reader to write"
    lines = {
        line.strip() for c in nbformat.read(exercise, as_version=4).cells for line in c.source.splitlines()
    }
    assert not secret & lines


def test_every_solution_set_is_published(solution):
    assert (repo.ROOT / "exercises" / solution.name).is_file()
