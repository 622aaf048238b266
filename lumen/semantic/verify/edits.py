"""Small edits are the dangerous ones. Who rewords a question changes many words; who changes one word means it.

So two questions with the same frame and another word in it are refused unless the words are known to mean
the same, and so are two that share all subject words but one.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher

from .kinds import ASKED_FOR
from .lexicon import FUNCTION
from .names import meaning
from .words import Word


def replaced(asked: list[Word], stored: list[Word]) -> str:
    """The small edit that may change the answer; "" if there is none."""
    here, there = _subjects(asked), _subjects(stored)
    only_here, only_there = list((here - there).elements()), list((there - here).elements())
    if not only_here and not only_there:
        return ""
    if len(only_here) == len(only_there) == 1:
        return f"{only_there[0]!r} became {only_here[0]!r}"
    return _same_frame(asked, stored)


def _subjects(found: list[Word]) -> Counter[str]:
    return Counter(meaning(word) for at, word in enumerate(found) if _is_subject(found, at))


def _is_subject(found: list[Word], at: int) -> bool:
    """A word that says what the question is about; in "what year" and "which place" the kind of answer says it."""
    asked_for = at > 0 and found[at - 1].text in ("what", "which") and found[at].text in ASKED_FOR
    return found[at].text not in FUNCTION and not asked_for


def _same_frame(asked: list[Word], stored: list[Word]) -> str:
    """Every difference is a stretch of subject words put in, left out or put in place of others."""
    here, there = [meaning(word) for word in asked], [meaning(word) for word in stored]
    changes = [
        op for op in SequenceMatcher(None, there, here, autojunk=False).get_opcodes() if op[0] != "equal"
    ]
    equal = len(there) - sum(end - begin for _, begin, end, _, _ in changes)
    if not changes or 2 * equal < max(len(here), len(there)):
        return ""
    for _, begin, end, begin_here, end_here in changes:
        old = any(_is_subject(stored, at) for at in range(begin, end))
        if not old and not any(_is_subject(asked, at) for at in range(begin_here, end_here)):
            return ""
    _, begin, end, begin_here, end_here = changes[0]
    before = " ".join(word.text for word in stored[begin:end])
    after = " ".join(word.text for word in asked[begin_here:end_here])
    return f"the same frame, but {before!r} became {after!r}"
