"""The questions of each chapter, out of its notebook, where a folded cell would give the answers away.

`chNN.py` holds `QUESTIONS`, a list in the form that `lumen.explore.Quiz` describes; a notebook shows it with
`Quiz.of("NN")`.
"""

from __future__ import annotations

import importlib
from typing import Any


def questions(chapter: str) -> list[dict[str, Any]]:
    """The questions of the chapter with this number ("01"); ValueError when it has none."""
    name = f"{__name__}.ch{chapter}"
    try:
        found: list[dict[str, Any]] = importlib.import_module(name).QUESTIONS
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"chapter {chapter!r} has no quiz: write lumen/quizzes/ch{chapter}.py") from None
    return found
