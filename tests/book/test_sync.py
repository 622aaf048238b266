"""The text notebook is the source: what `sync` and `notebooks` make of it, on a course of one chapter."""

from __future__ import annotations

import nbformat
import notebooks
import pytest
import repo
import sync
from nbformat import v4

NAME = "01_prefill_decode"


def text_of(course, kind="chapters"):
    return (course / kind / f"{NAME}.py").read_text("utf8")


def filled(course, kind="chapters"):
    return sync.fill(text_of(course, kind), kind, NAME)


def executed(code="1 + 1"):
    """A notebook as a run leaves it."""
    cell = v4.new_code_cell(
        code, execution_count=1, outputs=[v4.new_output("stream", name="stdout", text="2")]
    )
    notebook = v4.new_notebook(cells=[cell])
    notebook.metadata["lumen"] = {"source_hash": sync.source_hash(notebook)}
    return notebook


def test_fill_adds_header_badges_and_set_up_and_then_changes_nothing(course):
    text = filled(course)
    assert text.startswith(sync.HEADER)
    assert f'lumen.setup("{NAME}")' in text
    assert repo.colab(f"chapters/{NAME}.ipynb") in text
    assert repo.colab(f"exercises/{NAME}.ipynb") in text
    assert sync.fill(text, "chapters", NAME) == text


def test_badges_come_right_after_the_title(course):
    cells = sync.parse(filled(course)).cells
    assert cells[0].source.startswith("# 1 · A small notebook")
    assert cells[1].metadata["tags"] == ["badges"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_notebook_without_its_one_set_up_cell_is_refused(course, count):
    text = text_of(course).replace('# %% tags=["setup"]\n', '# %% tags=["setup"]\n\n' * count)
    with pytest.raises(sync.NotebookError, match="exactly one set-up cell"):
        sync.fill(text, "chapters", NAME)


def test_the_same_text_gives_the_same_bytes_and_equal_cells_get_different_ids(course):
    one, two = sync.parse(filled(course)), sync.parse(filled(course))
    assert notebooks.dumps(one) == notebooks.dumps(two)
    ids = [c.id for c in one.cells]
    assert len(set(ids)) == len(ids)
    assert [c.source for c in one.cells].count("answer = 6 * 7\nanswer") == 2


def test_prose_and_set_up_do_not_count_as_a_change_of_code(course):
    text = filled(course)
    before = sync.source_hash(sync.parse(text))
    assert sync.source_hash(sync.parse(text.replace("stands in for", "replaces"))) == before
    assert sync.source_hash(sync.parse(text.replace("/lumen@main", "/lumen@other"))) == before
    assert sync.source_hash(sync.parse(text.replace("6 * 7", "6 * 8", 1))) != before


def test_outputs_that_quote_an_older_measurement_are_out_of_step(course):
    quotes = executed('bench.load_evidence("speed")')
    assert sync.evidence_names(quotes) == ["speed"] and sync.evidence_names(executed()) == []
    page = 'def told():\n    return load_evidence("cost_model")["data"]\n'
    assert sync.evidence_names(quotes, [page]) == ["cost_model", "speed"]
    stamps = {sync.source_hash(quotes, evidence) for evidence in ((b"",), (b"1",), (b"2",))}
    assert len(stamps) == 3
    (course / "book" / "evidence").mkdir(parents=True, exist_ok=True)
    before = notebooks.stamp(quotes)
    (course / "book" / "evidence" / "speed.json").write_text("{}")
    assert before != notebooks.stamp(quotes) == notebooks.stamp(quotes)
    assert notebooks.stamp(executed()) == sync.source_hash(executed())


def test_verdicts_of_another_set_are_out_of_step(course):
    """A set changed the order of its exercises; the solutions' stored scoreboard kept the old one."""
    graded = executed('grader = grading.for_chapter("01")')
    assert sync.graded_sets(graded) == ["ch01.py"] and sync.graded_sets(executed()) == []
    sets = course / "lumen" / "grading" / "sets"
    sets.mkdir(parents=True)
    (sets / "ch01.py").write_text("first, second")
    before = notebooks.stamp(graded)
    (sets / "ch01.py").write_text("second, first")
    assert notebooks.stamp(graded) != before


def test_outputs_of_other_sentences_or_questions_are_out_of_step(course):
    """A chapter's prose lives in lumen/pages too: an edit there must not leave the old text on the page."""
    drawn = executed("from lumen.pages import ch01, ch02 as two")
    assert sync.page_modules(drawn) == ["pages/ch01.py", "pages/ch02.py"]
    assert sync.page_modules(executed("import lumen.pages.ch07")) == ["pages/ch07.py"]
    assert sync.page_modules(executed('Quiz.of("01")')) == ["quizzes/ch01.py"]
    assert sync.page_modules(executed("from lumen.pages import engines")) == []
    assert sync.page_modules(executed("from lumen.pages import (\n    ch09,\n    chips as c,\n)")) == [
        "pages/ch09.py",
        "pages/chips.py",
    ]
    (course / "lumen" / "pages").mkdir(parents=True)
    before = notebooks.stamp(drawn)
    (course / "lumen" / "pages" / "ch02.py").write_text("TITLE = 'x'")
    assert before != notebooks.stamp(drawn) == notebooks.stamp(drawn)


def test_outputs_of_what_a_page_takes_from_another_are_out_of_step(course):
    """chips.py, ch07_picture.py and ch09_cards.py changed, and no notebook was stale: only chNN.py was looked at."""
    pages = course / "lumen" / "pages"
    pages.mkdir(parents=True)
    (pages / "ch09.py").write_text("from lumen.pages.cards import Card\n")
    (pages / "cards.py").write_text("from lumen.pages import ch09  # a circle ends\n")
    drawn = executed("from lumen.pages import ch09")
    before = notebooks.stamp(drawn)
    (pages / "cards.py").write_text("TITLE = 'x'")
    assert notebooks.stamp(drawn) != before
    picture = executed("from lumen.pages.picture import picture")
    (pages / "picture.py").write_text("1")
    before = notebooks.stamp(picture)
    (pages / "picture.py").write_text("2")
    assert notebooks.stamp(picture) != before


def test_nbgrader_metadata_is_completed(course):
    cells = {
        c.metadata.nbgrader.grade_id: c
        for c in sync.parse(filled(course, "solutions")).cells
        if "nbgrader" in c.metadata
    }
    assert cells["double"].metadata.nbgrader == {
        **sync.NBGRADER, "grade_id": "double", "grade": True, "locked": True, "points": 2,
    }  # fmt: skip
    assert cells["double-answer"].metadata.nbgrader.locked is False


def test_predictions_and_reveals_arrive_folded_and_the_hash_does_not_know():
    """Colab shows the title, JupyterLab hides source and output; the text notebook holds neither."""
    text = '# %% tags=["{0}"]\nx = 1\n'
    guess, reveal, measure = (sync.parse(text.format(t)) for t in ("predict", "reveal", "measure"))
    assert guess.cells[0].source == "# @title Your guess\nx = 1"
    assert guess.cells[0].metadata["jupyter"] == {"source_hidden": True}
    assert reveal.cells[0].source == "# @title Reveal\nx = 1"
    assert reveal.cells[0].metadata == {
        "tags": ["reveal"], "cellView": "form", "jupyter": {"source_hidden": True, "outputs_hidden": True},
    }  # fmt: skip
    assert measure.cells[0].metadata == {"tags": ["measure"]} and measure.cells[0].source == "x = 1"
    quiet = sync.parse(text.format("hide-input")).cells[0]
    assert quiet.metadata["cellView"] == "form" and quiet.source == "x = 1"
    assert len({sync.source_hash(n) for n in (guess, reveal, measure)}) == 1
    assert len({n.cells[0].id for n in (guess, reveal, measure)}) == 1


def test_points_on_a_cell_that_is_not_graded_are_refused():
    with pytest.raises(sync.NotebookError, match="not graded"):
        sync.parse('# %% nbgrader={"grade_id": "x", "points": 1}\n1\n')


def test_outputs_of_other_code_are_not_shown():
    old = executed()
    assert sync.ran(old, sync.source_hash(old))
    assert not sync.ran(old, sync.source_hash(executed("1 + 2")))
    old.cells[0].outputs = [v4.new_output("error", ename="ValueError", evalue="", traceback=[])]
    assert not sync.ran(old, sync.source_hash(old))


def test_tidy_drops_times_and_widget_views():
    notebook = executed()
    cell = notebook.cells[0]
    cell.metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    view = {sync.WIDGET_VIEW: {"model_id": "1"}, "text/plain": "VBox()"}
    note = {sync.WIDGET_VIEW: {"model_id": "1"}, "text/plain": "VBox()", "text/html": "needs a kernel"}
    cell.outputs += [v4.new_output("display_data", data=data) for data in (view, note)]
    notebook.metadata["widgets"] = {"state": {}}
    sync.tidy(notebook)
    assert "execution" not in cell.metadata
    assert [o.output_type for o in cell.outputs] == ["stream", "display_data"]
    assert cell.outputs[1].data == {"text/html": "needs a kernel"}
    assert set(notebook.metadata) == {*sync.METADATA, "lumen"}


@pytest.mark.slow
def test_only_changed_code_runs_and_check_sees_what_is_out_of_step(course, capsys):
    text, target = course / f"chapters/{NAME}.py", course / f"chapters/{NAME}.ipynb"

    def run(*arguments):
        status = notebooks.main([NAME, *arguments])
        return status, capsys.readouterr().out

    assert run("--check")[0] == 1  # no .ipynb yet
    assert "ran in" in run()[1]
    assert run("--check")[0] == 0
    first = target.read_bytes()
    assert b"The answer is **42**." in first
    status, out = run()
    assert status == 0 and "ran" not in out and "synced" not in out and target.read_bytes() == first

    text.write_text(text.read_text("utf8").replace("Twice the same", "Two equal"), "utf8")
    assert run("--check")[0] == 1
    assert "synced" in run()[1]
    assert run("--check")[0] == 0

    text.write_text(text.read_text("utf8").replace("6 * 7", "6 * 0 + undefined", 1), "utf8")
    kept = target.read_bytes()
    status, out = run()
    assert status == 1 and "NameError" in out
    assert target.read_bytes() == kept  # a run that fails leaves what was there
    assert run("--check")[0] == 1


def test_a_notebook_without_text_is_found(course):
    (course / "chapters/07_stray.ipynb").write_text(nbformat.writes(v4.new_notebook()), "utf8")
    assert notebooks.strays(course) == ["chapters/07_stray.ipynb has no .py beside it"]


def test_a_notebook_is_out_of_step_with_evidence_that_its_page_quotes(tmp_path, monkeypatch):
    """Chapters 02 and 10 read theirs in lumen/pages: new evidence left their tables as they were."""
    import notebooks

    for folder in ("book/evidence", "lumen/pages"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(notebooks.repo, "ROOT", tmp_path)
    (tmp_path / "lumen/pages/ch02.py").write_text('told = load_evidence("speed")\n')
    (tmp_path / "book/evidence/speed.json").write_text("1")
    text = sync.parse("# %%\nfrom lumen.pages import ch02\n")
    before = notebooks.stamp(text)
    (tmp_path / "book/evidence/speed.json").write_text("2")
    assert notebooks.stamp(text) != before
