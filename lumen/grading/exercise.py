"""An exercise (header, check, what may not be handed in) and a set: the exercises of one chapter."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import origin, run
from .kinds.slip import Slip
from .probe import Probe
from .run import LimitReached, translated
from .verdict import NOT_STARTED, RIGHT, WRONG, NotStarted, Verdict, Wrong

KINDS = ("build", "predict", "debug", "literature", "decide")
Check = Callable[[Any, Probe], "str | None"]


class UnknownExercise(ValueError):
    """No exercise or chapter of that name; the message lists those there are."""


@dataclass(frozen=True)
class Exercise:
    """What a reader sees in the header, and the check behind it.

    id          short and lasting, `kv-bytes`: it is the nbgrader grade_id of the check cell too
    kind        one of KINDS; difficulty and importance of 5; minutes; points (whole)
    shows       one sentence on what the exercise has shown; it ends the RIGHT verdict and stands nowhere else
    check       called with (answer, probe); see `kinds` and `Probe`
    forbidden   objects or dotted names of lumen that the reader's code may not use, `("lumen.generate",)`
    allow       dotted names of lumen classes that the answer may be or derive from
    steps       limit on executed lines of the reader's code per call: an endless loop is a verdict
    draws       the reader's code may draw from the global random generators
    slips       for a check that is a function: wrong answers and the sentence that each must get (see `proof`)
    given       debug: the name of the faulty function or class in the notebook, where alone it stands
    free        names of generic adversaries that do not apply here, each with the reason (see `adversaries`)
    """

    id: str
    chapter: str
    title: str
    kind: str
    difficulty: int
    importance: int
    minutes: int
    points: int
    shows: str
    check: Check = field(repr=False)
    forbidden: Sequence[Any] = ()
    allow: Sequence[str] = ()
    steps: int = run.STEPS
    draws: bool = False
    given: str = ""
    slips: Sequence[Slip] = ()
    free: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.id):
            raise ValueError(f"An exercise id is lower-case words joined by hyphens, not {self.id!r}.")
        if self.kind not in KINDS:
            raise ValueError(f"{self.id}: kind {self.kind!r} is none of {', '.join(KINDS)}.")
        for name in ("difficulty", "importance"):
            if getattr(self, name) not in range(1, 6):
                raise ValueError(f"{self.id}: {name} goes from 1 to 5, not {getattr(self, name)!r}.")
        if self.minutes < 1 or self.points < 1:
            raise ValueError(f"{self.id}: minutes and points are at least 1.")

    def grade(self, answer: Any) -> Verdict:
        """The verdict on `answer`. Nothing that the answer does gets out, Ctrl-C excepted."""
        given = origin.names_beside(answer).get(self.given)
        probe = Probe(self.steps, self.draws, given)
        try:
            self._admit(answer, given)
            # A check that is a function may reach the reader's code without the probe.
            limit = run.line_limit(10 * self.steps if inspect.isfunction(self.check) else None)
            with limit:
                note = self.check(answer, probe)
        except NotStarted as nothing:
            return self._verdict(NOT_STARTED, note=str(nothing))
        except Wrong as wrong:
            return self._wrong(wrong, probe)
        except LimitReached as reached:
            return self._wrong(Wrong(gave="no end", wanted="an end", where=str(reached)), probe)
        except Exception as error:  # the check stumbled over what the answer returned
            other = translated(error)
            if isinstance(other, NotStarted):
                return self._verdict(NOT_STARTED, note=str(other))
            where = getattr(other, "where", "") or "The check could not use what your code returned."
            return self._wrong(Wrong(gave=getattr(other, "gave", ""), where=where), probe)
        return self._verdict(
            RIGHT, points=self.points, note=" ".join(text for text in (self.shows, note) if text)
        )

    def _admit(self, answer: Any, given: Any) -> None:
        if run.is_placeholder(answer):
            raise NotStarted("The answer still holds a placeholder.")
        if given is not None and origin.same_code(answer, given):
            raise NotStarted(f"This is still `{self.given}` as it was given.")
        name = origin.lumen_name(answer, self.allow)
        if name is not None:
            raise Wrong(
                "whose code it is", f"`{name}`", "your own", "It comes from `lumen`. Write it here instead."
            )
        used = origin.forbidden_use(answer, [*self.forbidden, *self._own_reference()])
        if used is not None:
            raise Wrong(
                "whose code it is", f"a call of `{used}`", "your own", "That is the part to write here."
            )

    def _own_reference(self) -> list[Any]:
        """The reference, when lumen has it: calling it is not writing it."""
        reference = getattr(self.check, "reference", None)
        return [reference] if reference is not None and origin.lumen_name(reference) is not None else []

    def _wrong(self, wrong: Wrong, probe: Probe) -> Verdict:
        case = wrong.case or probe.name
        return self._verdict(WRONG, 0, case, wrong.gave, wrong.wanted, wrong.slip, wrong.where)

    def _verdict(
        self,
        state: str,
        points: int = 0,
        case: str = "",
        gave: str = "",
        wanted: str = "",
        slip: str = "",
        where: str = "",
        note: str = "",
    ) -> Verdict:
        verdict = Verdict(
            self.id, self.title, state, points, self.points, case, gave, wanted, slip, where, note
        )
        return verdict.with_tidy_lines()

    def header(self) -> str:
        """The Markdown line that stands above the exercise in the notebook."""
        points = f"{self.points} point{'s' if self.points != 1 else ''}"
        minutes = f"{self.minutes} minute{'s' if self.minutes != 1 else ''}"
        ratings = f"difficulty {self.difficulty} of 5 · importance {self.importance} of 5"
        return f"**{self.kind.capitalize()}** · {ratings} · {minutes} · {points}"


class ExerciseSet:
    """The exercises of one chapter, in the order in which they are read.

    `then` says where to go after the last one. `headers` is a Markdown table of what a reader sees above each:

        | id | title | kind | difficulty | importance | minutes | points |
        | loop | The loop, with an end | build | 3 | 5 | 20 | 4 |
    """

    def __init__(self, chapter: str, title: str, then: str, headers: str = ""):
        self.chapter, self.title, self.then = chapter, title, then
        self.exercises: dict[str, Exercise] = {}
        self.headers = _rows(headers)

    def add(self, id: str, *, check: Check, **header: Any) -> Exercise:
        """Register an exercise; `header` holds the other fields of `Exercise`, if they do not stand in the table."""
        header = {**self.headers.get(id, {}), **header}
        if id in self.exercises:
            raise ValueError(f"Chapter {self.chapter} has two exercises named {id!r}.")
        self.exercises[id] = Exercise(id=id, chapter=self.chapter, check=check, **header)
        return self.exercises[id]

    def checks(self, id: str, **header: Any) -> Callable[[Check], Check]:
        """Decorator form of `add`, for a check that is a function of (answer, probe)."""

        def register(check: Check) -> Check:
            self.add(id, check=check, **header)
            return check

        return register

    def __iter__(self) -> Iterator[Exercise]:
        return iter(self.exercises.values())

    def __getitem__(self, id: str) -> Exercise:
        if id not in self.exercises:
            near = difflib.get_close_matches(str(id), self.exercises, 1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(self.exercises)
            raise UnknownExercise(f"Chapter {self.chapter} has no exercise {id!r}.{guess} It has: {known}.")
        return self.exercises[id]

    def points(self) -> dict[str, int]:
        return {one.id: one.points for one in self}

    def table(self) -> str:
        """The Markdown table of a chapter's section 14."""
        rows = [
            f"| {one.title} | {one.kind} | {one.difficulty}/5 | {one.importance}/5 | {one.minutes} |"
            for one in self
        ]
        head = "| exercise | kind | hard | matters | minutes |\n| --- | --- | --- | --- | --- |"
        return "\n".join([head, *rows])


def _rows(headers: str) -> dict[str, dict[str, Any]]:
    """The rows of a Markdown table by the first column; whole numbers become numbers."""
    table = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in headers.splitlines()
        if line.strip()
    ]
    names, *rows = table or [[]]
    return {
        row[0]: {
            name: int(cell) if cell.isdigit() else cell for name, cell in zip(names[1:], row[1:], strict=True)
        }
        for row in rows
    }
