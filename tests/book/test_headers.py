"""The line of ratings under each exercise's title is what its set says, in the text itself.

Exercises are published without outputs, so a cell that computed the line would leave it blank.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import repo

from lumen import grading
from lumen.grading import sets

SOLUTIONS = sorted((Path(__file__).parents[2] / "solutions").glob("*.py"))


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_every_header_stands_in_the_text(path):
    chapter = path.stem[:2]
    prose = "\n".join(line.removeprefix("#").strip() for line in path.read_text("utf8").splitlines())
    for name in grading.points(chapter):
        for line in filter(None, grading.header(chapter, name).splitlines()):
            assert line.strip() in prose, f"{name}: {line}"


@pytest.mark.parametrize("chapter", sets.chapters())
def test_the_minutes_to_practise_are_those_of_the_exercises(chapter):
    (row,) = (row for row in repo.chapters().values() if row.number == chapter)
    assert row.minutes["practise"] == sum(
        one.minutes for one in sets.exercise_set(chapter).exercises.values()
    )
