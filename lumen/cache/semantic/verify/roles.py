"""Who does what to whom. "From A to B" and "from B to A" have the same words, and to an encoder the same vector.

For two words that both questions share and that stand in the other order, one of three things is true:
the questions list them ("cats and dogs"), so order says nothing; each keeps the preposition before it
("in winter" moved to the front); or their roles were exchanged.
"""

from __future__ import annotations

from itertools import combinations

from .lexicon import FUNCTION
from .names import meaning
from .words import Word, word_set

_MARKERS = word_set(
    "from to into in on at by for with of than against between over under after before about as through"
)
_JOINERS = word_set("and or vs versus")


def exchanged(asked: list[Word], stored: list[Word]) -> str:
    """Two shared words whose roles were exchanged; "" if there are none."""
    here, there = _places(asked), _places(stored)
    shared = [word for word in here if word in there and _same_form(asked[here[word]], stored[there[word]])]
    for one, other in combinations(shared, 2):
        if (here[one] < here[other]) == (there[one] < there[other]):
            continue
        if _listed(asked, here[one], here[other]) and _listed(stored, there[one], there[other]):
            continue
        marks = [(_marker(asked, here[word]), _marker(stored, there[word])) for word in (one, other)]
        if all(mark == mark_stored for mark, mark_stored in marks) and any(mark for mark, _ in marks):
            continue
        first, second = asked[here[one]].text, asked[here[other]].text
        return f"{first!r} and {second!r} have exchanged places"
    return ""


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


def _listed(found: list[Word], one: int, other: int) -> bool:
    between = found[min(one, other) + 1 : max(one, other)]
    return any(word.text in _JOINERS for word in between) and not any(
        word.text in _MARKERS for word in between
    )
