"""The four rules, one by one: what each must refuse, what must pass, and where rules end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen.semantic.check import RULES, check, words

REFUSED = {
    "negation": [
        ("How do I delete a file?", "How do I not delete a file?"),
        ("Why does the door lock?", "Why doesn't the door lock?"),
        ("Can I travel with a passport?", "Can I travel without a passport?"),
        ("Who can vote?", "Who can't vote?"),
        ("Who can vote?", "Who cannot vote?"),
    ],
    "number": [
        ("What is 5% of 200?", "What is 15% of 200?"),
        ("Is Python 3.9 supported?", "Is Python 3.12 supported?"),
        ("How do I feed two cats?", "How do I feed twelve cats?"),
        ("How long do 30 eggs keep?", "How long do eggs keep?"),
    ],
    "roles": [
        ("How do I convert euros to yen?", "How do I convert yen to euros?"),
        ("Do owls hunt bats?", "Do bats hunt owls?"),
        ("Is tea stronger than coffee?", "Is coffee stronger than tea?"),
    ],
    "edit": [
        ("How do I reset my router?", "How do I reset my router password?"),
        ("How do I increase my heart rate?", "How do I lower my heart rate?"),
        ("How do I clean a velvet sofa?", "How do I clean a linen sofa?"),
    ],
}
PASSES = [
    ("How do I delete a file?", "What is the way to delete a file?"),
    ("In winter, how do I store dahlias?", "How do I store dahlias in winter?"),
    ("What's the difference between cats and dogs?", "What is the difference between dogs and cats?"),
    ("How do I feed 3 cats?", "How do I feed three cats?"),
    ("Why can't I log in?", "why can not I log in"),
]
# Where rules end: other things in other words pass, and a synonym looks like any other changed word.
PASSES_WRONGLY = [("How do I get curry out of a shirt?", "What removes rust from linen?")]
REFUSED_WRONGLY = [("How do I fix a tap?", "How do I repair a tap?", "edit")]


@pytest.mark.parametrize("rule, one, other", [(r, *pair) for r, pairs in REFUSED.items() for pair in pairs])
def test_refused_for_its_own_reason_in_both_directions(rule, one, other):
    assert check(one, other) == check(other, one) == rule
    assert check(one, other, (rule,)) == rule
    assert check(one, other, ()) == ""


@pytest.mark.parametrize("one, other", PASSES + PASSES_WRONGLY)
def test_let_through_in_both_directions(one, other):
    assert check(one, other) == check(other, one) == ""


def test_the_limits_are_where_the_chapter_says_they_are():
    for one, other, rule in REFUSED_WRONGLY:
        assert check(one, other) == rule
    assert tuple(REFUSED) == RULES


def test_words_bring_spellings_together():
    assert (
        words("I can't find TWO cats")
        == words("i cannot find 2 cat")
        == ["i", "can", "not", "find", "2", "cat"]
    )
    assert words("1,000.5 gas") == ["1,000.5", "gas"]


VOCABULARY = "how do I not it the 5 Paris to from two , ? and delete won't 12:9 a me never"
texts = st.text(max_size=60) | st.lists(st.sampled_from(VOCABULARY.split()), max_size=30).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(one=texts, other=texts)
def test_any_text_gets_a_verdict_and_a_question_never_differs_from_itself(one, other):
    assert check(one, other) in ("", *RULES)
    assert (check(one, other) == "") == (check(other, one) == "") or "and" in words(one) + words(other)
    assert check(one, one) == ""
