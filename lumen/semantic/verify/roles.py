"""Who does what to whom. "From A to B" and "from B to A" have the same words, and to an encoder the same vector.

Two words that both questions share have exchanged roles if they stand in the other order, each behind the
preposition (or none) that the other had, with something between them that relates them. Not so if one only
moved and kept its preposition ("in winter" to the front), if they are neighbours ("the laptop is slow", "the
slow laptop") or a list ("cats and dogs"). One word alone is turned around when "from" became "to".
"""

from __future__ import annotations

from itertools import combinations, pairwise

from .lexicon import FUNCTION
from .names import meaning
from .words import Word, word_set

_MARKERS = word_set(
    "from to into in on at by for with of than against between over under after before about as through"
)
_AWAY, _TOWARDS = word_set("from"), word_set("to into onto")
_JOINERS = word_set("and or vs versus")
_ARTICLES = word_set("a an the my your our his her their")


def exchanged(asked: list[Word], stored: list[Word]) -> str:
    """Two shared words whose roles were exchanged, or one that was turned around; "" if there are none."""
    here, there = _places(asked), _places(stored)
    shared = [word for word in here if word in there and _same_form(asked[here[word]], stored[there[word]])]
    marks = {word: (_marker(asked, here[word]), _marker(stored, there[word])) for word in shared}
    for word, mark in marks.items():
        if (mark[0] in _AWAY and mark[1] in _TOWARDS) or (mark[0] in _TOWARDS and mark[1] in _AWAY):
            return f"{mark[0]} {asked[here[word]].text!r} here, {mark[1]} {stored[there[word]].text!r} there"
    if turned := _of_me(asked) & _by_me(stored) or _by_me(asked) & _of_me(stored):
        return f"who does it: {min(turned)!r} is done by me in one question and to me in the other"
    for one, other in combinations(shared, 2):
        in_order = (here[one] < here[other]) == (there[one] < there[other])
        if in_order or marks[one] != marks[other][::-1]:
            continue  # neither has taken the other's place
        if marks[one][0] == marks[one][1] != "":
            continue  # "in summer at sea", "at sea in summer" have other marks; here both have the same one
        if _apart(asked, here[one], here[other]) and _apart(stored, there[one], there[other]):
            return f"{asked[here[one]].text!r} and {asked[here[other]].text!r} have exchanged places"
    return ""


def _by_me(found: list[Word]) -> set[str]:
    return {after.stem for word, after in pairwise(found) if word.text == "i" and after.text not in FUNCTION}


def _of_me(found: list[Word]) -> set[str]:
    return {word.stem for word, after in pairwise(found) if after.text == "me" and word.text not in FUNCTION}


def _places(found: list[Word]) -> dict[str, int]:
    """Where each content word stands first."""
    places: dict[str, int] = {}
    for at, word in enumerate(found):
        if word.text not in FUNCTION:
            places.setdefault(meaning(word), at)
    return places


def _same_form(one: Word, other: Word) -> bool:
    """A thing keeps its form but for the plural; a word that changes it ("boiling", "boil") is what is being done."""
    return one.text.removesuffix("s") == other.text.removesuffix("s")


def _marker(found: list[Word], at: int) -> str:
    """The preposition before word `at`, with articles and one other word at most between them."""
    for word in reversed(found[max(0, at - 3) : at]):
        if word.text in _MARKERS:
            return word.text
        if word.clause != found[at].clause:
            break
    return ""


def _apart(found: list[Word], one: int, other: int) -> bool:
    """Something relates the two: neither are they neighbours ("slow laptop") nor a list ("cats and dogs")."""
    between = found[min(one, other) + 1 : max(one, other)]
    listed = any(word.text in _JOINERS for word in between) and not any(
        word.text in _MARKERS for word in between
    )
    return not listed and any(word.text not in _ARTICLES for word in between)
