"""Every exercise accepts its right answers, rejects each wrong one for its own reason, and meets the adversaries."""

import functools
import importlib
import re
from pathlib import Path

import pytest

from lumen import grading
from lumen.grading import adversaries
from lumen.grading.adversaries import attack
from lumen.grading.proof import Notebook, Score, mismatched, notebook_answers, prove
from lumen.hardware import CHIPS
from tests.grading import example_answers, example_set
from tests.grading.not_yet import IDLE, NOT_YET, SLIPS

SOLUTIONS = Path(__file__).parents[2] / "solutions"
SETS = {"example": example_set.exercises, **{f"ch{n}": grading.exercise_set(n) for n in grading.chapters()}}
EXERCISES = [(name, one.id) for name, exercises in SETS.items() for one in exercises]
SCORE = {}


def answers_of(name):
    if name == "example":
        return example_answers.ANSWERS
    return importlib.import_module(f"tests.grading.answers.{name}").ANSWERS


@functools.cache
def notebook_of(name):
    if name == "example":
        return Notebook({id: answers.right[0] for id, answers in example_answers.ANSWERS.items()})
    (path,) = SOLUTIONS.glob(f"{name[2:]}_*.py")
    return notebook_answers(path)


def text_of(name, title):
    """The task of an exercise as the notebook words it: from its title to the answer's cell."""
    (path,) = SOLUTIONS.glob(f"{name[2:]}_*.py")
    _, _, after = path.read_text("utf8").partition(f"· {title}\n")
    assert after, f"no exercise is titled {title!r} in {path.name}"
    return " ".join(line.removeprefix("# ") for line in after.split("BEGIN SOLUTION")[0].splitlines())


@pytest.mark.parametrize("name", SETS)
def test_answers_and_exercises_are_paired(name):
    assert mismatched(SETS[name], answers_of(name)) == []


@pytest.mark.parametrize(("name", "id"), EXERCISES)
def test_exercise_is_proven(name, id):
    problems = prove(SETS[name][id], answers_of(name)[id], SCORE.setdefault(name, Score()), notebook_of(name))
    for slip in SLIPS.get((name, id), ()):
        told = [problem for problem in problems if problem.startswith(f"the slip {slip!r}"[:-1])]
        assert told, f"holds now, take it out of SLIPS: {slip}"
        problems = [problem for problem in problems if problem not in told]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("name", "id"), EXERCISES)
def test_exercise_meets_the_adversaries(name, id):
    report = attack(SETS[name][id], notebook_of(name).answers[id])
    SCORE.setdefault(name, Score()).adversaries += len(report.met)
    known = set(NOT_YET.get((name, id), ()))
    missed = set(report.missed)
    told = "\n".join(f"{one}: {report.missed[one]}" for one in sorted(missed - known))
    assert missed <= known, f"{report}\n{told}"
    assert known <= missed, f"no longer missed, take them out of NOT_YET: {sorted(known - missed)}"


@pytest.mark.parametrize(("name", "id"), EXERCISES[len(example_set.exercises.exercises) :])
def test_a_number_that_must_be_exact_is_asked_for_exactly(name, id):
    exercise = SETS[name][id]
    if any(number.exact for number in adversaries.numbers_of(exercise.check).values()):
        assert "exact" in text_of(name, exercise.title), (
            f"{id}: the text does not say that a number must be exact"
        )


DECISIONS = [(name, id) for name, id in EXERCISES if hasattr(SETS[name][id].check, "binding")]


@pytest.mark.parametrize(("name", "id"), DECISIONS)
def test_every_constraint_of_a_decision_binds(name, id):
    """It rules out some configuration all by itself; one that never does is decoration."""
    check = SETS[name][id].check
    never = {limit.name for limit in check.constraints} - check.binding()
    assert never == set(IDLE.get((name, id), ()))


@pytest.mark.parametrize(("name", "id"), [one for one in DECISIONS if one[0] != "example"])
def test_the_prices_of_a_decision_are_the_courses_and_stand_in_its_text(name, id):
    check, text = SETS[name][id].check, text_of(name, SETS[name][id].title)
    one = check.decide(*check.loads[0]) if hasattr(check, "decide") else check
    offered = [values for values in one.choices.values() if set(values) <= set(CHIPS)]
    chips = [chip for values in offered for chip in values if "$" in one.unit]
    assert [chip for chip in chips if not re.search(rf"\b{CHIPS[chip].price_per_hour:.2f}\b", text)] == []


@pytest.mark.parametrize("path", sorted(SOLUTIONS.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_no_other_price_of_a_chip_stands_in_a_text(path):
    """A row of a table, or "an A100 80GB SXM costs 1.80 $", has the price that `CHIPS` has."""
    text = path.read_text("utf8")
    for name, chip in CHIPS.items():
        said = re.findall(rf"\b{name} (?:costs )?(\d+\.\d\d) \$", text)
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if line.startswith(f"# | {name} |"):
                head = max(i for i in range(at) if lines[i].startswith("# | chip |"))
                cells = zip(lines[head].split("|"), line.split("|"), strict=True)
                said += [cell.strip() for column, cell in cells if "$" in column]
        assert set(said) <= {f"{chip.price_per_hour or 0:.2f}"}, name


def test_no_slip_says_often_twice():
    """A verdict puts "often because:" in front of a slip."""
    texts = {path.name: path.read_text("utf8") for path in Path(grading.__file__).parent.glob("sets/*.py")}
    assert texts and not [name for name, text in texts.items() if re.search(r'"Often\b', text)]


def test_opt_outs_name_an_adversary_and_a_reason():
    for name, id in EXERCISES:
        for one, reason in SETS[name][id].free.items():
            assert one.split(":")[0].rstrip(" 0123456789") in adversaries.KINDS, (id, one)
            assert len(reason.split()) > 3, f"{id}: why does {one!r} not apply?"


def test_the_score(capsys):
    with capsys.disabled():
        print("", *(f"{name}: {score}" for name, score in SCORE.items()), sep="\n")
