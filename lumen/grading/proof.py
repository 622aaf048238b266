"""The checks are tested: an exercise must accept its right answers and reject each wrong one for its own reason.

`prove(exercise, answers)` lists what does not hold; an empty list is the proof.

The answers live in `tests/grading/answers/chNN.py`, away from readers:

    ANSWERS = {
        "kv-bytes": Answers(
            right=[46080, lambda: 2 * 30 * 3 * 64 * 4],
            wrong=[(23040, "factor 2 is missing"), (138240, "KV heads"), (46.08, "prefix")],
        ),
        "loop": Answers(
            right=[loop, loop_with_while],
            wrong=[(forgets_eos, "EOS"), ...],
            lumen=["lumen.generate"],
        ),
    }
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .exercise import Exercise, ExerciseSet
from .origin import resolve
from .verdict import NOT_STARTED, RIGHT, WRONG

FUNCTIONS = ("build", "debug")  # kinds whose answer is code


@dataclass(frozen=True)
class Answers:
    """What an exercise is tried with.

    right   two or more answers, written differently
    wrong   three or more pairs (answer, fragment): the fragment stands in its own verdict and in no other's
    stubs   answers that must be NOT STARTED, beside the stub of the generator and `...`
    lumen   objects or dotted names of lumen that do the same job and must be refused; build and debug need
            one, or `no_lumen` says why there is none
    """

    right: Sequence[Any]
    wrong: Sequence[tuple[Any, str]]
    stubs: Sequence[Any] = ()
    lumen: Sequence[Any] = ()
    no_lumen: str = ""


@dataclass
class Score:
    """Counted over a set: how many answers were tried and how many checks held."""

    exercises: int = 0
    right: int = 0
    wrong: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return (
            f"{self.exercises} exercises: {self.right} right answers accepted, "
            f"{self.wrong} wrong ones rejected for their own reason, {self.refused} objects of lumen refused"
        )


def _readers_stub() -> Any:
    """The stub as a notebook would hold it: its code must not count as lumen's."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    source = "def stub(*args, **kwargs):\n    # YOUR CODE HERE\n    raise NotImplementedError()\n"
    exec(compile(source, "<exercise>", "exec"), scope)
    return scope["stub"]


def _disguises(one: Any) -> list[tuple[str, Any]]:
    """Ways to hand in someone else's function. The code of the wrappers is the reader's."""
    if not callable(one):
        return [("itself", one)]
    scope: dict[str, Any] = {"__name__": "__main__", "theirs": one, "functools": functools}
    source = "@functools.wraps(theirs)\ndef mine(*args, **kwargs):\n    return theirs(*args, **kwargs)\n"
    exec(compile(source, "<exercise>", "exec"), scope)
    return [("itself", one), ("a partial of it", functools.partial(one)), ("a wrapper of it", scope["mine"])]


def prove(exercise: Exercise, answers: Answers, score: Score | None = None) -> list[str]:
    """Sentences on everything that does not hold; empty when the check is proven."""
    score, problems = score or Score(), []
    score.exercises += 1
    if len(answers.right) < 2:
        problems.append(f"{len(answers.right)} right answers; two are needed, written differently.")
    if len(answers.wrong) < 3:
        problems.append(f"{len(answers.wrong)} wrong answers; three are needed, each with its own reason.")
    for i, answer in enumerate(answers.right):
        first, again = exercise.grade(answer), exercise.grade(answer)
        if first.state != RIGHT or first.points != exercise.points:
            problems.append(f"right answer {i} is rejected:\n{first}")
        elif str(first) != str(again):
            problems.append(f"right answer {i} gets two different texts:\n{first}\n{again}")
        else:
            score.right += 1
    problems += _rejected(exercise, answers, score)
    for answer in (..., None, _readers_stub(), *answers.stubs):
        verdict = exercise.grade(answer)
        if verdict.state != NOT_STARTED:
            problems.append(f"{answer!r} should be NOT STARTED:\n{verdict}")
    return problems + _refused(exercise, answers, score)


def _rejected(exercise: Exercise, answers: Answers, score: Score) -> list[str]:
    problems, reasons = [], []
    for i, (answer, fragment) in enumerate(answers.wrong):
        verdict = exercise.grade(answer)
        reasons.append(verdict.reason)
        if verdict.state != WRONG:
            problems.append(f"wrong answer {i} ({fragment!r}) is not rejected:\n{verdict}")
        elif not fragment or fragment not in verdict.reason:
            problems.append(f"wrong answer {i} is rejected, but not for {fragment!r}:\n{verdict}")
        else:
            score.wrong += 1
    for i, (_, fragment) in enumerate(answers.wrong):
        others = [j for j, reason in enumerate(reasons) if j != i and fragment in reason]
        if others:
            problems.append(
                f"the reason {fragment!r} of wrong answer {i} is given to {others} too: give each its own."
            )
    return problems


def _refused(exercise: Exercise, answers: Answers, score: Score) -> list[str]:
    problems = []
    if exercise.kind in FUNCTIONS and not answers.lumen and not answers.no_lumen:
        problems.append(
            "names no object of lumen to refuse; give `lumen=[...]`, or `no_lumen=` with the reason."
        )
    for theirs in answers.lumen:
        one = resolve(theirs) if isinstance(theirs, str) else theirs
        for disguise, answer in _disguises(one):
            verdict = exercise.grade(answer)
            if verdict.state != WRONG or "whose code" not in verdict.case:
                problems.append(f"{theirs!r}, handed in as {disguise}, is not refused:\n{verdict}")
            else:
                score.refused += 1
        if exercise.kind in FUNCTIONS and callable(one):
            problems += _hidden(exercise, theirs, one, score)
    return problems


def _hidden(exercise: Exercise, theirs: Any, one: Any, score: Score) -> list[str]:
    """A function of the reader's that only calls lumen's: refused when `forbidden` names it."""
    scope: dict[str, Any] = {"__name__": "__main__", "theirs": one}
    exec(
        compile("def mine(*args, **kwargs):\n    return theirs(*args, **kwargs)\n", "<exercise>", "exec"),
        scope,
    )
    verdict = exercise.grade(scope["mine"])
    if "whose code" not in verdict.case:
        return [f"a function that only calls {theirs!r} is not refused; add it to `forbidden`."]
    score.refused += 1
    return []


def prove_set(exercises: ExerciseSet, answers: dict[str, Answers], score: Score | None = None) -> list[str]:
    """`prove` over a set; ids without answers and answers without an exercise count as problems."""
    known = {one.id for one in exercises}
    problems = [f"{id}: has no answers." for id in sorted(known - set(answers))]
    problems += [f"{id}: answers for an exercise that does not exist." for id in sorted(set(answers) - known)]
    for one in exercises:
        if one.id in answers:
            problems += [f"{one.id}: {problem}" for problem in prove(one, answers[one.id], score)]
    return problems
