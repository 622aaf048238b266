"""The picture of chapter 07 says what its vectors and the checker say, and nothing that they do not."""

import html
import math
import re

import numpy as np
import pytest

from lumen.pages import ch07_picture

STORED = ("How do I delete a file?", "What does insulin do in the body?")
ASKED = (
    ("What's the command for deleting a file?", True),
    ("How do I not delete a file?", False),
    ("Why does bread rise?", False),
    ("Which organ makes insulin?", False),
)


def vectors(cosines):
    """(2 + n, 12): two stored ones at a cosine of 0.1, and questions with these cosines to each of them."""
    rows = np.zeros((2 + len(cosines), 12))
    rows[0, 0] = 1.0
    rows[1, :2] = 0.1, math.sqrt(1 - 0.1**2)
    for i, (first, second) in enumerate(cosines, 2):
        along = (second - 0.1 * first) / rows[1, 1]
        rows[i, :2] = first, along
        rows[i, i] = math.sqrt(1 - first**2 - along**2)
    return rows


PLACED = vectors([(0.88, 0.05), (0.92, 0.02), (0.0, 0.23), (0.03, 0.76)])


def test_both_angles_of_every_question_are_true_on_the_map():
    found = ch07_picture.ways(STORED, ASKED, PLACED, 0.72)
    apart = math.degrees(math.acos(0.1))
    for way, vector in zip(found, PLACED[2:], strict=True):
        for x, kept in ((0.0, PLACED[0]), (apart, PLACED[1])):
            assert math.hypot(way.x - x, way.y) == pytest.approx(math.degrees(math.acos(vector @ kept)))


def test_the_four_ends_are_those_of_threshold_and_checker():
    found = ch07_picture.ways(STORED, ASKED, PLACED, 0.72)
    assert [way.said for way in found] == ["right hit", "miss: negation", "miss", "false hit"]
    assert [way.stored for way in found] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("threshold", "title"),
    [
        (0.72, "3 of 4 questions are near enough, the second look stops 1; false hits: 1 of 2"),
        (0.80, "2 of 4 questions are near enough, the second look stops 1; false hits: 0 of 1"),
        (0.20, "4 of 4 questions are near enough, the second look stops 1; false hits: 2 of 3"),
    ],
)
def test_the_title_is_counted(threshold, title):
    assert ch07_picture.title(ch07_picture.ways(STORED, ASKED, PLACED, threshold)) == title


def test_whoever_hears_the_picture_hears_its_finding():
    drawn = ch07_picture.picture(STORED, ASKED, PLACED, 0.72)
    (label,) = re.findall(r'role="img" aria-label="([^"]*)"', drawn)
    said = html.unescape(label)
    assert "false hits: 1 of 2" in said
    for text, _ in ASKED:
        assert text in said
    assert "How do I delete a file" in drawn and "<b>" not in drawn


def test_another_number_of_vectors_is_refused():
    with pytest.raises(ValueError, match="a vector for each text"):
        ch07_picture.ways(STORED, ASKED, PLACED[:-1], 0.72)
