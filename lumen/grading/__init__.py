"""Grading: a check takes the reader's object and answers NOT STARTED, WRONG (and why) or RIGHT (points).

**In a notebook** (the check is the last line of its cell, so that the verdict shows):

    grader = lumen.grading.for_chapter("04")
    grader.check("kv-bytes", kv_bytes)
    grader.scoreboard()

`lumen.grading.check("04", "kv-bytes", kv_bytes)` and `scoreboard("04")` are the same without the name.

**Writing a set**, `lumen/grading/sets/ch04.py`:

    from lumen.grading import Case, Cases, ExerciseSet, Number, Slip

    exercises = ExerciseSet("04", "The KV cache", then="chapter 05, the paged cache", headers='''
    | id | title | kind | difficulty | importance | minutes | points |
    | kv-bytes | The price of one token | predict | 1 | 5 | 4 | 1 |
    ''')
    exercises.add(
        "kv-bytes",
        shows="One token of context costs the same bytes, whatever the batch.",
        check=Number(46080, unit="bytes", slips=[Slip(23040, "Keys and values: a factor 2 is missing.")]),
    )

`check=` is one of the `kinds` (`Number`, `Numbers`, `Cases`, `Statements`, `Decision`) or any function of
(answer, probe): the latter raises through `probe` (see `Probe`), counts with `counters`, and registers with
`@exercises.checks("id", title=...)`.

**Proving a set**: the solution notebook gives the first right answer, the slips are wrong answers by themselves, and
generic adversaries (`adversaries`) try what every check must refuse or accept. What belongs to one exercise alone
stands in `tests/grading/answers/ch04.py` (`proof`). One test runs them all.

**In the notebooks** every answer, a number too, is a function: the stub that replaces a solution is `raise
NotImplementedError()`, and at the top level of a cell it would stop Run All. nbgrader metadata
(schema_version 3): the answer's cell has grade_id `<id>-answer`, solution true, grade false, locked false;
the check's cell has grade_id `<id>`, grade true, locked true, solution false and `points` equal to the
exercise's (`points("04")`). Anything on stderr in a check's cell costs all its points under nbgrader: no
progress bars there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from . import counters
from .compare import BF16, EXACT, FP32, FP32_DEEP, FP64, difference
from .counters import CountedAllocator, CountedCache, CountedCalls, CountedModel
from .exercise import Exercise, ExerciseSet, UnknownExercise
from .grader import Grader
from .kinds import Case, Cases, Constraint, Decision, Number, Numbers, Plan, Slip, Statements
from .probe import Probe
from .run import LimitReached
from .sets import chapters, exercise_set
from .verdict import NOT_STARTED, RIGHT, WRONG, GradingError, NotStarted, Scoreboard, Verdict, Wrong

__all__ = [
    "BF16",
    "EXACT",
    "FP32",
    "FP32_DEEP",
    "FP64",
    "NOT_STARTED",
    "RIGHT",
    "WRONG",
    "Case",
    "Cases",
    "Constraint",
    "CountedAllocator",
    "CountedCache",
    "CountedCalls",
    "CountedModel",
    "Decision",
    "Exercise",
    "ExerciseSet",
    "Grader",
    "GradingError",
    "LimitReached",
    "NotStarted",
    "Number",
    "Numbers",
    "Plan",
    "Probe",
    "Scoreboard",
    "Slip",
    "Statements",
    "UnknownExercise",
    "Verdict",
    "Wrong",
    "chapters",
    "check",
    "counters",
    "difference",
    "exercise_set",
    "for_chapter",
    "header",
    "points",
    "scoreboard",
    "table",
]


def for_chapter(chapter: str | int) -> Grader:
    """The kernel's one grader for a chapter, `4`, `"04"` or `"04_kv_cache"`."""
    return _grader(exercise_set(chapter).chapter)


@cache
def _grader(chapter: str) -> Grader:
    return Grader(exercise_set(chapter))


def check(chapter: str | int, id: str, answer: Any, strict: bool | None = None) -> Verdict:
    """The verdict on `answer` to exercise `id`. Raises `GradingError` in strict mode unless RIGHT."""
    return for_chapter(chapter).check(id, answer, strict)


def scoreboard(chapter: str | int) -> Scoreboard:
    """Points of a chapter so far, what is missing, where to go next."""
    return for_chapter(chapter).scoreboard()


def table(chapter: str | int) -> str:
    """The Markdown table of the chapter's exercises: title, kind, difficulty, importance, minutes."""
    return exercise_set(chapter).table()


def header(chapter: str | int, id: str) -> str:
    """The Markdown above an exercise: kind, ratings, minutes and points."""
    return exercise_set(chapter)[id].header()


def points(chapter: str | int) -> dict[str, int]:
    """Points by exercise id: what the check cells' nbgrader metadata must say."""
    return exercise_set(chapter).points()
