"""The proof can fail: each way in which a set of answers does not prove its exercise is reported."""

import dataclasses

import pytest

from lumen.grading import ExerciseSet, Wrong
from lumen.grading.proof import mismatched, prove
from tests.grading.example_answers import ANSWERS
from tests.grading.example_set import exercises, pretend


def changed(id, **changes):
    return prove(exercises[id], dataclasses.replace(ANSWERS[id], **changes))


@pytest.mark.parametrize(
    ("id", "changes", "says"),
    [
        ("kv-bytes", {"right": [46080]}, "1 right answers; two are needed"),
        ("kv-bytes", {"wrong": []}, "2 wrong answers; three are needed"),
        ("kv-bytes", {"right": [46080, 23040]}, "right answer 1 is rejected"),
        ("kv-bytes", {"wrong": [(46080, "anything")]}, "wrong answer 0 ('anything') is not rejected"),
        ("kv-bytes", {"wrong": [(23040, "query heads")]}, "not for 'query heads'"),
        ("kv-bytes", {"wrong": [(23040, "")]}, "not for ''"),
        ("kv-bytes", {"wrong": [(1, "One layer"), (2, "One layer")]}, "give each its own"),
        ("kv-bytes", {"stubs": [46080]}, "should be NOT STARTED"),
        ("loop", {"lumen": []}, "names no object of lumen to refuse"),
        ("loop", {"lumen": [pretend.until_stop]}, "only calls"),
        ("loop", {"lumen": [len]}, "handed in as itself, is not refused"),
    ],
)
def test_what_does_not_hold_is_said(id, changes, says):
    assert any(says in problem for problem in changed(id, **changes))


def test_an_unchanged_set_is_proven_and_a_reason_can_replace_the_refused_object():
    assert changed("kv-bytes") == []
    assert changed("loop", lumen=[], no_lumen="lumen has no such function") == []


def test_missing_and_spare_answers_are_said():
    fewer = {id: answers for id, answers in ANSWERS.items() if id != "loop"}
    assert mismatched(exercises, fewer) == ["loop: has no answers."]
    spare = mismatched(exercises, {**ANSWERS, "lop": ANSWERS["loop"]})
    assert spare == ["lop: answers for an exercise that does not exist."]


def test_a_check_that_accepts_anything_or_changes_its_mind_is_caught():
    made = ExerciseSet("98", "t", "u")
    header = {
        "title": "t",
        "kind": "predict",
        "difficulty": 1,
        "importance": 1,
        "minutes": 1,
        "points": 1,
        "shows": "s",
    }
    made.add("lazy", check=lambda answer, probe: None, **header)
    assert any("is not rejected" in problem for problem in prove(made["lazy"], ANSWERS["kv-bytes"]))
    seen = []

    def moody(answer, probe):
        seen.append(answer)
        return str(len(seen))

    made.add("moody", check=moody, **header)
    assert any("two different texts" in problem for problem in prove(made["moody"], ANSWERS["kv-bytes"]))


def test_a_check_that_trips_over_an_answer_still_gives_a_verdict():
    made = ExerciseSet("98", "t", "u")
    header = {
        "title": "t",
        "kind": "build",
        "difficulty": 1,
        "importance": 1,
        "minutes": 1,
        "points": 1,
        "shows": "s",
    }

    @made.checks("shape", **header)
    def _(answer, probe):
        with probe.case("any input"):
            if probe.call(answer).shape != (2,):
                raise Wrong("any input", slip="shape")

    verdict = made["shape"].grade(lambda: 3)
    assert verdict.state == "WRONG" and verdict.case == "any input" and "AttributeError" in verdict.gave
