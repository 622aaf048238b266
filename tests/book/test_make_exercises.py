"""Exercises are made from solutions: what is dropped, what is kept, and that nothing leaks."""

from __future__ import annotations

import make_exercises
import nbformat
import notebooks
import pytest
import repo
import sync

NAME = "01_prefill_decode"


def write_solution(course, text=None):
    path = course / f"solutions/{NAME}.ipynb"
    source = text or (course / f"solutions/{NAME}.py").read_text("utf8")
    path.write_text(notebooks.dumps(sync.parse(sync.fill(source, "solutions", NAME))), "utf8")
    return path


def test_conversion(course):
    solution = write_solution(course)
    text = make_exercises.convert(solution)
    assert text == make_exercises.convert(solution)  # byte-stable
    cells = nbformat.reads(text, as_version=4).cells
    sources = [c.source for c in cells]
    assert "secret" not in text and "The trick is to add" not in text and "SOLUTION" not in text
    assert sources[0] == "# Exercises 1 · A small set"
    assert repo.colab(f"exercises/{NAME}.ipynb") in sources[1]
    stub = next(s for s in sources if s.startswith("def double"))
    assert stub.endswith("    # YOUR CODE HERE\n    raise NotImplementedError()")
    task = next(c for c in cells if c.source.startswith("## Double it"))
    assert "remove-cell" not in task.metadata["tags"]
    assert next(c for c in cells if c.source.startswith("try:")).metadata["editable"] is False
    assert not any(c.get("outputs") for c in cells)
    assert any("setup" in c.metadata.get("tags", []) for c in cells)


def test_a_solution_at_the_left_margin_is_refused(course):
    text = (course / f"solutions/{NAME}.py").read_text("utf8")
    text += (
        '\n\n# %% nbgrader={"grade_id": "n", "solution": true}\n### BEGIN SOLUTION\nn = 3\n### END SOLUTION\n'
    )
    with pytest.raises(sync.NotebookError, match="left margin"):
        make_exercises.convert(write_solution(course, text))


def test_check_tells_stale_from_fresh(course, capsys):
    write_solution(course)
    assert make_exercises.main(check=True) == 1
    assert make_exercises.main(check=False) == 0
    assert make_exercises.main(check=True) == 0
    target = course / f"exercises/{NAME}.ipynb"
    target.write_text(target.read_text("utf8").replace("Write `double(x)`", "Write it"), "utf8")
    assert make_exercises.main(check=True) == 1
    (course / f"solutions/{NAME}.ipynb").unlink()
    assert make_exercises.main(check=True) == 1
    assert "has no solution" in capsys.readouterr().out
