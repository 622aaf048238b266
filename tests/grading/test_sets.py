"""Every exercise accepts its right answers and rejects each wrong one for its own reason."""

import importlib

import pytest

from lumen import grading
from lumen.grading.proof import Score, prove, prove_set
from tests.grading import example_answers, example_set

SETS = {"example": example_set.exercises, **{f"ch{n}": grading.load(n) for n in grading.chapters()}}


def answers_of(name):
    if name == "example":
        return example_answers.ANSWERS
    return importlib.import_module(f"tests.grading.answers.{name}").ANSWERS


@pytest.mark.parametrize(
    ("name", "id"), [(name, one.id) for name, exercises in SETS.items() for one in exercises]
)
def test_exercise_is_proven(name, id):
    answers = answers_of(name)
    assert id in answers, f"tests/grading/answers/{name}.py has no answers for {id!r}"
    problems = prove(SETS[name][id], answers[id])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", SETS)
def test_set_is_proven_as_a_whole(name, capsys):
    score = Score()
    assert prove_set(SETS[name], answers_of(name), score) == []
    with capsys.disabled():
        print(f"\n{name}: {score}")
