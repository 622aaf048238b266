"""Verdicts read the same everywhere, and the grader knows when to raise."""

import subprocess
import sys
from decimal import Decimal

import pytest

from lumen.grading import (
    NOT_STARTED,
    RIGHT,
    WRONG,
    ExerciseSet,
    Grader,
    GradingError,
    Number,
    Numbers,
    Probe,
    Slip,
    Statements,
    UnknownExercise,
    Verdict,
    Wrong,
)
from lumen.grading import grader as module
from tests.grading.example_set import broken_until_stop, exercises, pretend


@pytest.fixture
def grader(monkeypatch):
    monkeypatch.delenv("LUMEN_STRICT", raising=False)
    return Grader(exercises)


def test_text_of_each_state(grader):
    assert str(grader.check("kv-bytes", ...)) == (
        "NOT STARTED  kv-bytes · The price of one token · 0 of 1 point\n"
        "  The answer still holds a placeholder."
    )
    assert str(grader.check("kv-bytes", 23040)) == (
        "WRONG  kv-bytes · The price of one token · 0 of 1 point\n"
        "  gave   23040 bytes\n"
        "  wanted a number larger by a factor of about 2\n"
        "  often because: Keys and values are two tensors: a factor 2 is missing."
    )
    assert str(grader.check("kv-bytes", 46080)) == (
        "RIGHT  kv-bytes · The price of one token · 1 of 1 point\n"
        "  One token of context costs the same whatever the batch."
    )


def test_a_verdict_is_a_cell_value_with_text_and_html(grader):
    bundle = grader.check("kv-bytes", "<b>46080</b>")._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "<b>46080" not in bundle["text/html"] and "&lt;b&gt;46080" in bundle["text/html"]
    assert 'class="lumen-verdict wrong' in bundle["text/html"]
    assert "color:" not in bundle["text/html"].replace("border-left", "")  # text keeps the page's colour


def test_long_and_addressed_messages_are_tidied():
    def noisy():
        raise ValueError(f"{object()!r}\n" + "x" * 5000)

    verdict = exercises["kv-bytes"].grade(noisy)
    assert "0x…" in verdict.gave and "\n" not in verdict.gave and len(verdict.gave) <= 400


def test_strict_mode_raises_the_text_and_only_when_not_right(grader, monkeypatch):
    with pytest.raises(GradingError, match="factor 2 is missing"):
        grader.check("kv-bytes", 23040, strict=True)
    assert grader.verdicts["kv-bytes"].state == WRONG  # the scoreboard still knows
    monkeypatch.setenv("LUMEN_STRICT", "1")
    with pytest.raises(GradingError, match="NOT STARTED"):
        grader.check("kv-bytes", ...)
    assert grader.check("kv-bytes", 46080).right
    assert grader.check("kv-bytes", 1, strict=False).state == WRONG
    monkeypatch.setenv("LUMEN_STRICT", "0")
    assert grader.check("kv-bytes", 1).state == WRONG
    with pytest.raises(GradingError):
        Grader(exercises, strict=True).check("kv-bytes", 1)


def test_scoreboard_counts_points_and_names_the_next_step(grader):
    assert str(grader.scoreboard()).splitlines()[0] == "Chapter 99 · An example: 0 of 12 points"
    last = str(grader.scoreboard()).splitlines()[-1]  # importance 5 like `loop`, and easier
    assert last == "Next: start kv-bytes (The price of one token, 4 min)."
    grader.check("stop-ids", lambda tokens, stops: tokens)
    assert str(grader.scoreboard()).splitlines()[-1].startswith("Next: mend stop-ids")
    text = str(grader.scoreboard())
    assert (
        "WRONG        stop-ids" in text
        and "NOT STARTED  kv-bytes" in text
        and text == str(grader.scoreboard())
    )


def test_scoreboard_at_the_end(grader):
    from tests.grading.example_answers import ANSWERS

    for one in exercises:
        grader.check(one.id, ANSWERS[one.id].right[0])
    board = grader.scoreboard()
    assert board.points == board.out_of == 12
    assert str(board).splitlines()[-1] == "All done. Next: chapter 100"
    assert "lumen-verdict right" in board._repr_mimebundle_()["text/html"]
    grader.reset()
    assert grader.scoreboard().points == 0


def test_unknown_exercise_lists_those_there_are(grader):
    with pytest.raises(UnknownExercise, match=r"Did you mean 'kv-bytes'\? It has: kv-bytes, repeat-kv"):
        grader.check("kv_bytes", 1)


def test_unknown_chapter_is_a_sentence():
    from lumen import grading

    with pytest.raises(UnknownExercise, match="no exercises for chapter '77'"):
        grading.check("77", "x", 1)


def test_headers_and_table():
    line = "**Predict** · difficulty 1 of 5 · importance 5 of 5 · 4 minutes · 1 point"
    assert exercises["kv-bytes"].header() == line
    assert exercises.table().splitlines()[2] == "| The price of one token | predict | 1/5 | 5/5 | 4 |"
    assert exercises.points()["loop"] == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "KV_bytes"}, "lower-case words"),
        ({"kind": "essay"}, "none of build"),
        ({"difficulty": 6}, "from 1 to 5"),
        ({"points": 0}, "at least 1"),
    ],
)
def test_a_malformed_header_is_refused(change, says):
    fields = {
        "title": "t",
        "kind": "predict",
        "difficulty": 1,
        "importance": 1,
        "minutes": 1,
        "points": 1,
        "shows": "s",
    }
    fields = {"id": "fine", **fields, **change}
    with pytest.raises(ValueError, match=says):
        ExerciseSet("98", "t", "u").add(fields.pop("id"), check=lambda answer, probe: None, **fields)


def test_the_same_id_twice_is_refused():
    one = ExerciseSet("98", "t", "u")
    fields = {
        "title": "t",
        "kind": "build",
        "difficulty": 1,
        "importance": 1,
        "minutes": 1,
        "points": 1,
        "shows": "s",
    }
    one.add("same", check=lambda answer, probe: None, **fields)
    with pytest.raises(ValueError, match="two exercises named 'same'"):
        one.add("same", check=lambda answer, probe: None, **fields)


def test_the_broken_function_itself_is_not_started_but_a_copy_in_other_words_is_wrong(grader):
    assert grader.check("stop-ids", broken_until_stop).state == NOT_STARTED

    def rewritten(tokens, stops):
        ends = [i for i, token in enumerate(tokens) if token and token in stops]
        return tokens[: ends[0]] if ends else tokens

    assert grader.check("stop-ids", rewritten).state == WRONG


def test_a_run_in_plain_python_needs_no_torch():
    """The words of a verdict cost no torch import: `lumen info` and the book's tools use them."""
    code = "import sys, lumen.grading; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def notebook(*cells):
    nbformat = pytest.importorskip("nbformat")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.cells[1].metadata.nbgrader = {
        "grade_id": "kv-bytes",
        "grade": True,
        "locked": True,
        "solution": False,
        "points": 1,
        "schema_version": 3,
    }
    made.cells[2].metadata.nbgrader = made.cells[1].metadata.nbgrader
    return made


def test_nbgrader_gives_zero_without_any_setting_and_run_all_reaches_the_end(monkeypatch):
    """nbgrader gives full points to a cell that neither raises nor writes to stderr: no WRONG passes so."""
    nbclient = pytest.importorskip("nbclient")
    utils = pytest.importorskip("nbgrader.utils")
    monkeypatch.delenv("LUMEN_STRICT", raising=False)
    made = notebook(
        "from tests.grading.example_set import exercises\n"
        "from lumen.grading import Grader\n"
        "grader = Grader(exercises)",
        "grader.check('kv-bytes', 23040)",
        "grader.check('kv-bytes', 46080)",
        "grader.scoreboard()",
    )
    nbclient.NotebookClient(made, timeout=60, kernel_name="python3").execute()
    assert [utils.determine_grade(made.cells[i])[0] for i in (1, 2)] == [0, 1]
    shown = next(out for out in made.cells[1].outputs if out.output_type == "execute_result").data
    assert shown["text/plain"].startswith("WRONG  kv-bytes") and "lumen-verdict wrong" in shown["text/html"]
    assert [out.output_type for out in made.cells[2].outputs] == ["execute_result"]
    assert "1 of 12 points" in made.cells[3].outputs[0].data["text/plain"]


def test_nobody_sees_stderr_outside_a_kernel_run_by_a_program(grader, capsys, monkeypatch):
    grader.check("kv-bytes", 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "executed_by_a_program", lambda: True)
    grader.check("kv-bytes", 1)
    assert capsys.readouterr().err == "WRONG: kv-bytes\n"
    grader.check("kv-bytes", 46080)
    assert capsys.readouterr().err == ""
    grader.check("loop", pretend.generate, strict=False)
    assert capsys.readouterr().err == ""


def test_verdict_states():
    assert Verdict("a", "b", RIGHT, 1, 1).right and not Verdict("a", "b", WRONG, 0, 1).right


def test_a_case_that_must_be_refused_knows_slips_and_the_broken_function():
    from lumen.grading import Case, Cases

    def broken(n):
        return n

    def strict(n):
        if n < 0:
            raise ValueError("n is negative")
        return n

    check = Cases(
        reference=strict,
        cases=[Case("negative", (-1,), raises=ValueError)],
        slips=[Slip(lambda n: {}[n], "A missing key is no answer.")],
        broken=broken,
    )
    made = ExerciseSet("98", "t", "u")
    fields = {"title": "t", "kind": "debug", "difficulty": 1, "importance": 1, "minutes": 1, "points": 1}
    made.add("refuse", check=check, shows="s", **fields)

    def copied(n):
        return n

    assert made["refuse"].grade(strict).right
    assert made["refuse"].grade(copied).state == NOT_STARTED
    assert made["refuse"].grade(lambda n: dict()[n]).slip == "A missing key is no answer."
    assert made["refuse"].grade(lambda n: n + 0).slip == "On this case it still does what the broken one did."


@pytest.mark.parametrize(
    ("want", "got", "right"),
    [
        (107.37, 107, True),
        (107.37, 107.4, True),
        (107.37, 106.8, False),  # 0.53 % off: another third figure
        (107.37, 108, False),
        (52.81, 52.8, True),
        (0.02064, 0.0206, True),
        (0.02064, 0.021, False),
        (9, 9.0, True),
        (9, 8.99, False),
        (57_344, 57_300, True),
        (999.6, 1000, True),
        (-3.14159, -3.14, True),
        (0, 0.0, True),
        (0, 1e-9, False),
    ],
)
def test_three_significant_figures_suffice(want, got, right):
    if right:
        assert Number(want)(got, Probe()) is None
    else:
        with pytest.raises(Wrong):
            Number(want)(got, Probe())


def test_an_exact_number_takes_every_digit_and_says_so():
    assert Number(57_344, exact=True)(57_344.0, Probe()) is None
    assert Number(0.3)(Decimal("0.3"), Probe()) is None
    with pytest.raises(Wrong) as caught:
        Number(57_344, exact=True)(57_300, Probe())
    assert caught.value.wanted == "a number slightly larger; it must be exact"
    with pytest.raises(Wrong) as caught:
        Number(100.0, unit="ms")(100.9, Probe())
    assert caught.value.wanted == "a number slightly smaller in ms"


@pytest.mark.parametrize(
    ("answer", "gave", "wanted"),
    [
        ("e", "'e'", "2 letters out of a, b, c, d"),
        (("bx", 3.0), "'x'", "2 letters out of a, b, c, d"),
        (5.45, "5.45", "2 letters out of a, b, c, d"),
        ((5.45, "bc"), "5.45", "2 letters out of a, b, c, d"),
        ("bc", "the choice alone", 'a pair: ("bc", number)'),
    ],
)
def test_what_a_choice_of_statements_lacks(answer, gave, wanted):
    check = Statements(false="bc", why=dict.fromkeys("abcd", "so"), number=Number(5.45))
    with pytest.raises(Wrong) as caught:
        check(answer, Probe())
    assert (caught.value.gave, caught.value.wanted) == (gave, wanted)
    for right in (("bc", 5.45), ["cb", 5.45], ({"b", "c"}, 5.45), (["b", "c"], 5.45), ("B, C", 5.45)):
        assert check(right, Probe())
    for answer in (["b", "c"], "b and c", "(b) (c)"):
        assert Statements(false="bc", why=dict.fromkeys("abcd", "so"))(answer, Probe())


def test_numbers_by_name():
    check = Numbers({"one": Number(1), "two": Number(2, slips=[Slip(4, "Halve it.")])})
    assert check({"two": 2, "one": 1}, Probe()) is None
    for answer, gave, wanted in (
        (3, "3", "a dict with the keys 'one', 'two'"),
        ({"one": 1}, "the keys 'one'", "a dict with the keys 'one', 'two'"),
        ({"one": 1, "two": 4}, "4", "a number smaller by a factor of about 2"),
    ):
        with pytest.raises(Wrong) as caught:
            check(answer, Probe())
        assert (caught.value.gave, caught.value.wanted) == (gave, wanted)


def test_what_was_computed_in_fp32_is_told_so():
    """A wrong eighth digit used to read 'gave 0.8814, wanted 0.8814', and no word more."""
    import math

    from lumen.grading import compare

    want = math.log(3) - 0.2173
    assert "fp32" in compare.difference(want * (1 + 3e-7), want, 1e-9).slip
    assert "fp32" not in compare.difference(want * 1.01, want, 1e-9).slip
    assert compare.difference([], [1], 1e-9).slip == "", "no 'first 0 agree'"
    assert "The first 1 agree" in compare.difference([1], [1, 2], 1e-9).slip
