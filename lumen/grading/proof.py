"""The checks are tested: an exercise must accept its right answers and reject each wrong one for its own reason.

`prove(exercise, answers)` lists what does not hold; an empty list is the proof. Nothing is written twice:

- the first right answer is the answer cell of `solutions/NN_*.py` (`notebook_answers`);
- every `Slip` of the check (`Number`, `Numbers`, `Statements`, `Cases`) and of the exercise is a wrong answer by
  itself, with its sentence as the reason;
- what all checks must refuse or accept is tried by `adversaries`.

What is left for `tests/grading/answers/chNN.py`, away from readers, is what belongs to one exercise alone:

    ANSWERS = {
        "loop": Submissions(
            right=[loop_of_static],  # another way to write it
            wrong=[(forgets_eos, "ends the answer"), ...],  # and a fragment of its verdict, of no other's
            lumen=["lumen.generate"],
        ),
    }
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .exercise import Exercise, ExerciseSet
from .kinds import Cases, Number, Numbers, Slip, Statements
from .origin import resolve
from .verdict import NOT_STARTED, RIGHT, WRONG

FUNCTIONS = ("build", "debug")  # kinds whose answer is code


@dataclass(frozen=True)
class Submissions:
    """What an exercise is tried with.

    right   answers written differently from the solution; two in all with it
    wrong   pairs (answer, fragment): the fragment stands in its own verdict and in no other's; three with the slips
    stubs   answers that must be NOT STARTED, beside the stub of the generator, `...` and the code as given
    lumen   objects or dotted names of lumen that do the same job and must be refused; build and debug need
            one, or `no_lumen` says why there is none
    """

    right: Sequence[Any] = ()
    wrong: Sequence[tuple[Any, str]] = ()
    stubs: Sequence[Any] = ()
    lumen: Sequence[Any] = ()
    no_lumen: str = ""


@dataclass(frozen=True)
class Notebook:
    """The answers of a solution notebook and its names, by exercise."""

    answers: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)


def notebook_answers(path: Path) -> Notebook:
    """Run the cells of a solution text (py:percent) that define something, and find what each check is handed."""
    import torch

    import lumen

    text = path.read_text("utf8")
    gradients = torch.is_grad_enabled()
    names: dict[str, Any] = {"__name__": "__main__", "lumen": lumen, "session": None}
    answers = {}
    starts = [match.start() for match in re.finditer(r"^# %%", text, re.M)] + [len(text)]
    for start, end in itertools.pairwise(starts):
        head, _, source = text[start:end].partition("\n")
        if "[markdown]" in head or re.search(r'"(setup|solution-only)"', head):
            continue
        line = text.count("\n", 0, start) + 1  # so that a traceback points into the file
        tree = ast.parse("\n" * line + source)
        checks: list[Any] = [node for node in ast.walk(tree) if _is_check(node)]
        if not checks and "scoreboard()" not in source:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(tree, str(path), "exec"), names)
            finally:
                torch.set_grad_enabled(gradients)  # the notebooks turn them off, for themselves
        for node in checks:
            code = compile(ast.Expression(node.args[1]), str(path), "eval")
            answers[node.args[0].value] = eval(code, names)
    return Notebook(answers, names)


def _is_check(node: Any) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "check"
    return called and len(node.args) == 2 and isinstance(node.args[0], ast.Constant)


def slips(exercise: Exercise) -> Iterator[tuple[Any, str]]:
    """Wrong answers out of the check itself, each with the sentence that its verdict must hold."""

    def of(number: Number) -> list[Slip]:
        return [slip for slip in number.slips if not callable(slip.like)]

    check = exercise.check
    for slip in exercise.slips:
        yield slip.like, slip.says
    if isinstance(check, Cases):
        for slip in check.slips:
            yield slip.like, slip.says
    if isinstance(check, Number):
        for slip in of(check):
            yield slip.like, slip.says
    if isinstance(check, Statements) and check.number is not None:
        for slip in of(check.number):
            yield (check.false, slip.like), slip.says
    if isinstance(check, Numbers):
        right = {name: number.value for name, number in check.numbers.items()}
        for name, number in check.numbers.items():
            for slip in of(number):
                yield {**right, name: slip.like}, slip.says


@dataclass
class Score:
    """Counted over a set: how many answers were tried and how many checks held."""

    exercises: int = 0
    right: int = 0
    wrong: int = 0
    refused: int = 0
    adversaries: int = 0

    def __str__(self) -> str:
        return (
            f"{self.exercises} exercises: {self.right} right answers accepted, "
            f"{self.wrong} wrong ones rejected for their own reason, {self.refused} objects of lumen refused, "
            f"{self.adversaries} adversaries met"
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


def prove(
    exercise: Exercise, answers: Submissions, score: Score | None = None, notebook: Notebook | None = None
) -> list[str]:
    """Sentences on everything that does not hold; empty when the check is proven."""
    score, problems, notebook = score or Score(), [], notebook or Notebook()
    score.exercises += 1
    right = [*([notebook.answers[exercise.id]] if exercise.id in notebook.answers else []), *answers.right]
    if len(right) < 2:
        problems.append(f"{len(right)} right answers; two are needed, written differently.")
    for i, answer in enumerate(right):
        first, again = exercise.grade(answer), exercise.grade(answer)
        if first.state != RIGHT or first.points != exercise.points:
            problems.append(f"right answer {i} is rejected:\n{first}")
        elif str(first) != str(again):
            problems.append(f"right answer {i} gets two different texts:\n{first}\n{again}")
        else:
            score.right += 1
    problems += _rejected(exercise, answers, score)
    given = [notebook.names[exercise.given]] if exercise.given in notebook.names else []
    if exercise.given and notebook.names and not given:
        problems.append(f"the notebook defines no {exercise.given!r}.")
    for answer in (..., None, _readers_stub(), *given, *answers.stubs):
        verdict = exercise.grade(answer)
        if verdict.state != NOT_STARTED:
            problems.append(f"{answer!r} should be NOT STARTED:\n{verdict}")
    return problems + _refused(exercise, answers, score)


def _rejected(exercise: Exercise, answers: Submissions, score: Score) -> list[str]:
    problems, reasons = [], []
    known = list(slips(exercise))
    if len(answers.wrong) + len(known) < 3:
        count = len(answers.wrong) + len(known)
        problems.append(f"{count} wrong answers; three are needed, each with its own reason.")
    for answer, says in known:
        verdict = exercise.grade(answer)
        if verdict.state != WRONG or says not in verdict.slip:
            problems.append(f"the slip {says!r} is not what its own answer is told:\n{verdict}")
        else:
            score.wrong += 1
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


def _refused(exercise: Exercise, answers: Submissions, score: Score) -> list[str]:
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


def mismatched(exercises: ExerciseSet, answers: dict[str, Submissions]) -> list[str]:
    """Exercises without answers, and answers without an exercise."""
    known = {one.id for one in exercises}
    problems = [f"{id}: has no answers." for id in sorted(known - set(answers))]
    return problems + [
        f"{id}: answers for an exercise that does not exist." for id in sorted(set(answers) - known)
    ]
