"""The labelled pairs: enough of each kind, none twice, halves that share nothing and never move."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lumen.semantic.pairs import FILE, HALVES, KINDS, SAME, THIRD, load_pairs
from lumen.semantic.rivals import jaccard


def plain(question: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in question.lower()).split())


def test_there_are_enough_pairs_of_every_kind():
    counts = Counter(pair.kind for pair in load_pairs())
    assert set(counts) == set(KINDS) and sum(counts.values()) >= 320
    others = [count for kind, count in counts.items() if kind not in SAME]
    assert min(others) >= 45 and max(others) <= 1.35 * min(others)  # no kind of trap outweighs another
    assert counts["paraphrase"] >= 90 and counts["retyped"] >= 60


def test_no_question_stands_twice_in_any_spelling():
    questions = Counter(text for pair in load_pairs() for text in {plain(pair.stored), plain(pair.asked)})
    assert [question for question, count in questions.items() if count > 1] == []


def test_the_halves_are_equal_in_every_kind_and_disjoint():
    tune, report = load_pairs("tune"), load_pairs("report")
    assert set(tune).isdisjoint(report) and len(tune) + len(report) == len(load_pairs())
    for kind in KINDS:
        sizes = [sum(pair.kind == kind for pair in half) for half in (tune, report)]
        assert abs(sizes[0] - sizes[1]) <= 1


def test_the_split_does_not_depend_on_the_order_of_the_file(tmp_path):
    lines = FILE.read_text("utf-8").splitlines()
    random.Random(3).shuffle(lines)
    shuffled = tmp_path / "pairs.tsv"
    shuffled.write_text("\n".join(lines) + "\n", "utf-8")
    for half in HALVES:
        assert set(load_pairs(half, shuffled)) == set(load_pairs(half))


def test_questions_look_like_questions():
    for pair in load_pairs():
        for text in (pair.stored, pair.asked):
            assert text == text.strip() and 5 <= len(text) <= 120 and text.isascii()


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "pairs.tsv"
    for line in ("paraphrase\tonly one", "synonym\ta\tb", "paraphrase\t\tb"):
        file.write_text("opposite\ta\tb\n" + line + "\n")
        with pytest.raises(ValueError, match="Line 2 of the pairs is not"):
            load_pairs(file=file)
    with pytest.raises(ValueError, match="sets of pairs"):
        load_pairs("test")


def test_the_third_set_is_what_its_program_makes():
    import sys

    sys.path.insert(0, str(FILE.parents[3] / "benchmarks"))
    from third_set import assemble

    assert [tuple(line.split("\t")) for line in THIRD.read_text("utf-8").splitlines()] == assemble()
    third = load_pairs("third")
    assert {pair.kind for pair in third} == set(KINDS) and {pair.half for pair in third} == {"third"}
    assert len(set(third)) == len(third) >= 500
    known = {plain(text) for pair in load_pairs() for text in (pair.stored, pair.asked)}
    shared = {plain(text) for pair in third for text in (pair.stored, pair.asked)} & known
    assert len(shared) <= 3  # "What is the currency of Sweden?" and the like could meet by chance


@pytest.mark.parametrize("part", ["tune", "report", "third"])
def test_spelling_alone_does_not_tell_paraphrases_from_traps(part):
    """Both sides have pairs with many words in common and pairs with few."""
    for same in (True, False):
        shares = [jaccard(p.stored, p.asked) for p in load_pairs(part) if p.same is same]
        assert sum(share > 0.5 for share in shares) > 0.2 * len(shares)
        assert sum(share < 0.3 for share in shares) > 0.2 * len(shares)
