"""The answers of a quiz stand in no notebook: a folded cell is one click from being read."""

from __future__ import annotations

import json
from pathlib import Path

import jupytext
import pytest
import repo

from lumen import quizzes
from lumen.explore import Quiz
from lumen.quizzes import questions
from tests.book.not_yet import holds

CHAPTERS = [
    p for p in sorted((repo.ROOT / "chapters").glob("[0-9]*.py")) if not repo.chapter(p.stem).appendix
]
WRITTEN = sorted(p.stem.removeprefix("ch") for p in Path(quizzes.__file__).parent.glob("ch*.py"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_no_answer_stands_in_a_notebook(path):
    def secret():
        source = "\n".join(c.source for c in jupytext.read(path).cells)
        assert f'Quiz.of("{path.stem[:2]}")' in source, "the quiz is not shown with Quiz.of"
        for leak in ('"why":', '"ok":', '"slips":', '"right":'):
            assert leak not in source, f"{leak} gives an answer away"

    holds("quiz_apart", path.stem, secret)


@pytest.mark.parametrize("chapter", WRITTEN)
def test_every_written_quiz_can_be_shown(chapter):
    """Four to six questions, one of them numeric; the form of each is checked when it is made."""
    state = Quiz.of(chapter).state
    assert state["id"] == chapter and 4 <= len(state["questions"]) <= 6
    assert "numeric" in {q["kind"] for q in state["questions"]}


def test_a_chapter_without_a_quiz_says_where_it_belongs():
    with pytest.raises(ValueError, match=r"lumen/quizzes/ch99\.py"):
        Quiz.of("99")


@pytest.mark.parametrize("chapter", WRITTEN)
def test_the_page_s_source_does_not_give_the_answers_away(chapter):
    """Folded, not secret: no reason and no mark of the right choice can be read there at a glance."""
    page = Quiz.of(chapter).html()
    for question in questions(chapter):
        for choice in question.get("choices", []):
            assert json.dumps(choice["why"])[1:40] not in page
        if question["kind"] == "numeric":
            assert json.dumps(question["right"])[1:40] not in page
    assert '"ok":true' not in page and '"answer":' not in page
