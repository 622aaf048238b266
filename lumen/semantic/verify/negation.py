"""A "not" on one side only, a "not" that moved, a pair of opposites, a prefix that turns a word around."""

from __future__ import annotations

import re

from .lexicon import ANTONYMS, FUNCTION, NEGATORS, SYNONYM
from .words import Word

# Words of negation that deny nothing.
_IDIOMS = re.compile(
    r"\b(?:not only|not sure|why not|or not|no longer than|no idea|do not know|did not know|would not mind|"
    r"is not it|are not they|can not wait)\b"
)
# "Stop my glasses from fogging", "avoid getting sick": the thing that follows is not wanted.
_UNWANTED = re.compile(r"\b(?:stop|avoid|quit|keep|prevent)s?(?: \w+ing\b|(?: \w+){1,4}? from\b)")
_PREFIXES = ("un", "dis", "in", "im", "il", "ir", "non", "de", "mis")


def denials(found: list[Word]) -> int:
    """How often the question says no."""
    text = _IDIOMS.sub(" ", " ".join(word.text for word in found))
    plain = sum(word in NEGATORS for word in text.split())
    return plain + len(_UNWANTED.findall(text))


def denied(found: list[Word]) -> set[str]:
    """The content words behind a word of negation, to the end of the clause."""
    inside: set[str] = set()
    clause = -1
    for word in found:
        if word.text in NEGATORS:
            clause = word.clause
        elif word.clause == clause and word.text not in FUNCTION:
            inside.add(word.stem)
    return inside


def negation(asked: list[Word], stored: list[Word]) -> str:
    """Why the two do not deny the same; "" if they do."""
    here, there = denials(asked), denials(stored)
    if here != there:
        words = "word" if here == 1 else "words"
        return f"{here} {words} of negation in the one, {there} in the other"
    inside, inside_stored = denied(asked), denied(stored)
    moved_in = (inside - inside_stored) & {word.stem for word in stored}
    moved_out = (inside_stored - inside) & {word.stem for word in asked}
    if moved_in and moved_out:
        return f"the no belongs to {_named(moved_in)} in one and to {_named(moved_out)} in the other"
    return ""


def opposites(asked: list[Word], stored: list[Word]) -> str:
    """A pair of opposites between the questions; "" if there is none."""
    here, there = _forms(asked), _forms(stored)
    only_here = {text: forms for text, forms in here.items() if not _shared(forms, there)}
    only_there = {text: forms for text, forms in there.items() if not _shared(forms, here)}
    for one, forms in only_here.items():
        for other, other_forms in only_there.items():
            if any(frozenset((a, b)) in ANTONYMS for a in forms for b in other_forms) or _prefixed(
                one, other
            ):
                return f"{one!r} here is the opposite of {other!r} there"
    return ""


def _forms(found: list[Word]) -> dict[str, set[str]]:
    return {word.text: {word.text, word.stem, SYNONYM.get(word.stem, word.stem)} for word in found}


def _shared(forms: set[str], others: dict[str, set[str]]) -> bool:
    return any(forms & other for other in others.values())


def _prefixed(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) > 3 and any(long == prefix + short for prefix in _PREFIXES)


def _named(stems: set[str]) -> str:
    return ", ".join(repr(word) for word in sorted(stems))
