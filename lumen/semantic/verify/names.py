"""Who or what the question is about: names by their capitals, and words that exclude each other."""

from __future__ import annotations

from .lexicon import FUNCTION, SIBLINGS, SYNONYM
from .words import Word


def meaning(word: Word) -> str:
    """The stem, or the one word that stands for all its synonyms."""
    return SYNONYM.get(word.stem, word.stem)


def other_name(asked: list[Word], stored: list[Word]) -> str:
    """A name that only one of the two questions has; "" if both have the same names."""
    for one, other, where in ((asked, stored, "asked"), (stored, asked, "stored")):
        known = {meaning(word) for word in other}
        for word in one:
            if word.capital and word.text not in FUNCTION and meaning(word) not in known:
                return f"only the {where} question has the name {word.text!r}"
    return ""


def sibling(asked: list[Word], stored: list[Word]) -> str:
    """Two things of one kind, one in each question; "" if there are none."""
    here, there = {meaning(word) for word in asked}, {meaning(word) for word in stored}
    for kind in SIBLINGS:
        one, other = (here - there) & kind, (there - here) & kind
        if one and other:
            return f"{min(one)!r} here and {min(other)!r} there exclude each other"
    return ""
