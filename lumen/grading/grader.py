"""The reader's side: `check` an answer, look at the `scoreboard`. State lives in the kernel, never in a file.

**Strict mode.** With `strict=True`, or `LUMEN_STRICT=1` in the environment, anything but RIGHT raises
`GradingError`: CI runs the solutions so. **nbgrader** sets no variable of its own, and gives full points to a
cell that neither raises nor writes to stderr. So when a notebook is executed by a program (the kernel may not
ask for input) and the mode is not set either way, a check that is not RIGHT also writes one line to stderr:
`nbgrader autograde` then gives 0 points as it stands, and Run All still reaches the end. A person at a
keyboard never sees that line.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .exercise import ExerciseSet
from .verdict import NOT_STARTED, RIGHT, WRONG, GradingError, Scoreboard, Verdict


class Grader:
    """Checks the answers to one set and remembers the last verdict on each."""

    def __init__(self, exercises: ExerciseSet, strict: bool | None = None):
        self.exercises = exercises
        self.strict = strict
        self.verdicts: dict[str, Verdict] = {}

    def check(self, id: str, answer: Any, strict: bool | None = None) -> Verdict:
        """The verdict on `answer`, which shows itself on a cell's last line.

        In strict mode, RIGHT or `GradingError`.
        """
        verdict = self.exercises[id].grade(answer)
        self.verdicts[id] = verdict
        if not verdict.right:
            mode = next(
                (one for one in (strict, self.strict, strict_from_environment()) if one is not None), None
            )
            if mode:
                raise GradingError(str(verdict))
            if mode is None and executed_by_a_program():
                print(f"{verdict.state}: {verdict.exercise}", file=sys.stderr)
        return verdict

    def scoreboard(self) -> Scoreboard:
        """Points, what is missing, and where to go next."""
        verdicts = [
            self.verdicts.get(one.id) or Verdict(one.id, one.title, NOT_STARTED, 0, one.points)
            for one in self.exercises
        ]
        title = f"Chapter {self.exercises.chapter} · {self.exercises.title}"
        return Scoreboard(title, verdicts, self._advice({one.exercise: one.state for one in verdicts}))

    def _advice(self, states: dict[str, str]) -> str:
        missing = [one for one in self.exercises if states[one.id] != RIGHT]
        if not missing:
            return f"All done. Next: {self.exercises.then}"
        # A wrong answer is closer to done than a blank one. Then importance counts, then ease.
        first = min(missing, key=lambda one: (states[one.id] != WRONG, -one.importance, one.difficulty))
        verb = "mend" if states[first.id] == WRONG else "start"
        return f"Next: {verb} {first.id} ({first.title}, {first.minutes} min)."

    def reset(self) -> None:
        """Forget every verdict."""
        self.verdicts.clear()


def strict_from_environment() -> bool | None:
    """True or False as `LUMEN_STRICT` says; None when it is not set."""
    value = os.environ.get("LUMEN_STRICT", "").strip().lower()
    return None if not value else value not in ("0", "false", "no", "off")


def executed_by_a_program() -> bool:
    """True in a Jupyter kernel driven by nbclient, nbgrader or nbval: nobody could answer `input()`."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    return getattr(kernel, "_allow_stdin", True) is False
