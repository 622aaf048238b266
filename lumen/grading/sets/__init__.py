"""The exercise sets, loaded when asked for: `ch04.py` holds `exercises = ExerciseSet("04", ...)`."""

from __future__ import annotations

import importlib
import pkgutil
import re

from ..exercise import ExerciseSet, UnknownExercise


def chapters() -> list[str]:
    """The chapters that have a set, `["01", "02", "04"]`."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name[2:] for name in names if re.fullmatch(r"ch\d\d", name))


def exercise_set(chapter: str | int) -> ExerciseSet:
    """The set of a chapter, named as `4`, `"04"` or `"04_kv_cache"`.

    Raises `UnknownExercise` when there is none.
    """
    found = re.match(r"\d+", str(chapter))
    number = f"{int(found.group()):02d}" if found else ""
    if number not in chapters():
        raise UnknownExercise(
            f"There are no exercises for chapter {chapter!r}. There are some for: {', '.join(chapters())}."
        )
    exercises = importlib.import_module(f"{__name__}.ch{number}").exercises
    if exercises.chapter != number:
        raise ValueError(f"sets/ch{number}.py holds the exercises of chapter {exercises.chapter!r}.")
    if missing := set(exercises.headers) - set(exercises.exercises):
        raise ValueError(f"sets/ch{number}.py has a header and no check for {', '.join(sorted(missing))}.")
    return exercises
