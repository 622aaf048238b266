"""Quizzes that answer back: every wrong choice says why it is wrong. No kernel, nothing stored, nothing sent."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from lumen.explore.explorers.widget import JSWidget
from lumen.quizzes import questions


def _text(owner: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{owner} needs a text")
    return value


def _folded(key: Any) -> str:
    """JSON in base64: who looks at the page's source for something else does not meet the answers. No secret."""
    return base64.b64encode(json.dumps(key, separators=(",", ":")).encode()).decode()


def _choice(question: Mapping[str, Any], where: str) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [
        {
            "text": _text(f"{where}, choice {i}", choice.get("text")),
            "ok": bool(choice.get("ok", False)),
            "why": _text(f"{where}, choice {i} ({choice.get('text')!r}): 'why'", choice.get("why")),
        }
        for i, choice in enumerate(question.get("choices", []), 1)
    ]
    if len(choices) < 2 or sum(choice["ok"] for choice in choices) != 1:
        raise ValueError(f"{where} needs two choices at least, exactly one of them with ok=True")
    random.Random(where + question["question"]).shuffle(choices)  # the same order for everybody, every time
    return {"choices": [{"text": c["text"], "key": _folded([c["ok"], c["why"]])} for c in choices]}


def _slip(where: str, slip: Mapping[str, Any], default: float) -> dict[str, Any]:
    value = float(slip["answer"])
    return {
        "answer": value,
        "tolerance": float(slip.get("tolerance", min(default, 0.02 * abs(value)) or default)),
        "why": _text(f"{where}, slip {value:g}: 'why'", slip.get("why")),
    }


def _numeric(question: Mapping[str, Any], where: str) -> dict[str, Any]:
    answer = float(question["answer"])
    tolerance = float(question.get("tolerance", 0.05 * abs(answer)))
    if not math.isfinite(answer) or tolerance < 0:
        raise ValueError(f"{where} needs a finite answer and a tolerance of 0 or more")
    slips = [_slip(where, slip, tolerance) for slip in question.get("slips", [])]
    for slip in slips:
        if abs(slip["answer"] - answer) <= tolerance:
            raise ValueError(
                f"{where}: the slip {slip['answer']:g} lies inside the tolerance of the right answer"
            )
    key = {
        "answer": answer,
        "tolerance": tolerance,
        "right": _text(f"{where}: 'right'", question.get("right")),
        "wrong": _text(f"{where}: 'wrong'", question.get("wrong")),
        "slips": slips,
    }
    return {"unit": str(question.get("unit", "")), "key": _folded(key)}


class Quiz(JSWidget):
    """Questions, each on its own card, with a score line below.

    A choice question: `{"kind": "choice", "question": …, "choices": [{"text": …, "ok": True, "why": …}, …]}`.
    Exactly one is right, and every choice has its `why`. A numeric question: `{"kind": "numeric", "question":
    …, "answer": 7.0, "tolerance": 0.3, "unit": "ms", "right": …, "wrong": …, "slips": [{"answer": 14, "why":
    …}]}`; the tolerance is absolute, in the unit of the answer (default: 5 % of it), and a slip is a wrong
    answer with a cause worth naming.

    Texts may hold `code`, **bold** and *emphasis*; everything else is shown as it stands. Choices are
    shuffled, the same way for every reader, so authors may write the right one first. Shape errors raise
    ValueError and name the question.

    >>> Quiz([{"kind": "numeric", "question": "14 GB at 2 TB/s?", "answer": 7, "unit": "ms",
    ...        "right": "14e9 / 2e12 s.", "wrong": "Divide bytes by bytes per second."}], id="01")
    """

    module = "quiz.js"
    label = "quiz"

    def __init__(self, questions: Sequence[Mapping[str, Any]], *, id: str) -> None:
        if not questions:
            raise ValueError(f"quiz {id!r} has no questions")
        checked = []
        for i, question in enumerate(questions, 1):
            where = f"quiz {id!r}, question {i}"
            kind = question.get("kind", "choice")
            base = {"kind": kind, "question": _text(f"{where}: 'question'", question.get("question"))}
            if kind == "choice":
                checked.append(base | _choice(question, where))
            elif kind == "numeric":
                checked.append(base | _numeric(question, where))
            else:
                raise ValueError(f"{where}: kind is 'choice' or 'numeric', not {kind!r}")
        super().__init__(id=id, questions=checked)

    @classmethod
    def of(cls, chapter: str) -> Quiz:
        """The quiz of a chapter by its number; its questions stand in `lumen/quizzes/chNN.py`.

        >>> Quiz.of("01")
        """
        return cls(questions(chapter), id=chapter)
