"""An instructor can use the sets as they stand: the release is the published exercise, full marks for the solution,
none for the untouched release. `nbgrader_config.py` is the one that we ship.

`LUMEN_STRICT=1` is what the set-up page tells teachers: a verdict that is not RIGHT raises and loses its
points.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import make_exercises
import nbformat
import notebooks
import pytest
import repo
import sync
from nbgrader.api import Gradebook

NAME = "01_prefill_decode"
CONFIG = Path(make_exercises.__file__).parents[2] / "nbgrader_config.py"  # not repo.ROOT, which fixtures move


def nbgrader(folder: Path, *arguments: str) -> None:
    # nbgrader calls `alembic` by its bare name, so the environment's programs must be on the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "LUMEN_STRICT": "1", "PATH": path}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def cells(notebook: nbformat.NotebookNode) -> list[tuple]:
    """What a student sees and what is graded; checksums and ids left out."""
    kept = ("grade_id", "grade", "solution", "locked", "points", "task")
    return [
        (
            cell.cell_type,
            cell.source,
            cell.metadata.get("tags", []),
            {key: cell.metadata.get("nbgrader", {}).get(key) for key in kept},
            cell.get("outputs", []),
            cell.get("execution_count"),
        )
        for cell in notebook.cells
    ]


def scores(source: Path, tmp_path: Path) -> tuple[dict[str, float], float, set[str]]:
    """Score by student ("solved" hands in the solution, "untouched" the release), most points, grade ids."""
    name = source.stem
    shutil.copy(CONFIG, tmp_path)
    (tmp_path / "source" / name).mkdir(parents=True)
    shutil.copy(source, tmp_path / "source" / name)
    nbgrader(tmp_path, "generate_assignment", name)
    released = tmp_path / "release" / name / source.name
    published = repo.ROOT / "exercises" / source.name
    wanted = published.read_text("utf8") if published.exists() else make_exercises.convert(source)
    assert cells(nbformat.read(released, as_version=4)) == cells(nbformat.reads(wanted, as_version=4))
    for student, answer in (("solved", source), ("untouched", released)):
        folder = tmp_path / "submitted" / student / name
        folder.mkdir(parents=True)
        shutil.copy(answer, folder / source.name)
    nbgrader(tmp_path, "autograde", name)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        given = {s.id: book.find_submission(name, s.id).score for s in book.students}
        graded = {cell.name for cell in book.find_notebook(name, name).grade_cells}
        return given, book.find_assignment(name).max_score, graded


def check(source: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    marks = [c.metadata.nbgrader for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    given, most, graded = scores(source, tmp_path)
    assert graded == {m.grade_id for m in marks}
    assert most == sum(m.points for m in marks) > 0
    assert given["solved"] == most
    assert given["untouched"] == 0


SETS = sorted((repo.ROOT / "solutions").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.skipif(bool(SETS), reason="a real set is there to test")
def test_a_small_set(course, tmp_path_factory):
    """The tools' own fixture, whose check raises when it is not RIGHT."""
    text = (course / f"solutions/{NAME}.py").read_text("utf8")
    text = text.replace('print("NOT STARTED")', 'raise ValueError("NOT STARTED") from None')
    source = course / f"solutions/{NAME}.ipynb"
    source.write_text(notebooks.dumps(sync.parse(sync.fill(text, "solutions", NAME))), "utf8")
    check(source, tmp_path_factory.mktemp("nbgrader"))


@pytest.mark.slow
@pytest.mark.skipif(not SETS, reason="no solution set yet")
def test_a_real_set(tmp_path):
    """The last set stands for all: each is run by nbval, and nbgrader takes a quarter of a minute for one."""
    check(SETS[-1], tmp_path)
