"""Can the question be understood alone? "How long does it take?" cannot, and its answer helps nobody else.

Two signs: an opening that only goes on ("And in winter?", "What about ...", "Make it shorter"), and a pronoun
that nothing in the same question can be meant by.
"""

from __future__ import annotations

import re
from itertools import pairwise

from .lexicon import FUNCTION
from .words import Word, word_set

_FILLERS = r"(?:(?:ok|okay|so|well|thanks|yes|no)\b[,.! ]*)*"
_GOES_ON = re.compile(
    rf"^{_FILLERS}(?:and|but|or|also|then|now|otherwise|instead|what about|how about|"
    r"what if (?:she|he|they|it|this|that|i)|what else|who else|where else|anything else|why not|how so|how come$|"
    r"same (?:for|with)|go on|continue|tell me more|more (?:detail|example)s?|another|"
    r"(?:give|show|tell|name) me (?:(?:one|two|three|four|five|ten|some|a few|\d+) )?(?:more|another)|"
    r"(?:make|try|do) (?:it|that|this)|that (?:did|does|is|was)|shorter|longer|simpler)\b",
    re.IGNORECASE,
)
_PLACE = r"(?:same|other|latter|former|previous|above|second|third|last|first|next)"
_PART = r"(?:one|term|option|step|answer|part|point|sentence|paragraph)"
_POINTS_BACK = re.compile(
    rf"\b(?:the {_PLACE} {_PART}|you (?:said|mentioned|wrote|told)|your (?:last|previous) (?:answer|message)|"
    r"which (?:one|ones)|(?:of|like) (?:those|these|them|that)|go into more detail|more simply|as above|"
    r"the other \w+\?|the (?:older|newer) model)",
    re.IGNORECASE,
)
_PRONOUNS = word_set("it its they them their he him his she her hers this that these those there")
_ARTICLES = word_set("a an the my our your some")
_AUXILIARIES = word_set("is was does did do has will would can could should are were")


def dangling(text: str, found: list[Word]) -> str:
    """What makes the question depend on an earlier one, as words of the question; "" if it stands alone."""
    bare = text.strip()
    if opening := _GOES_ON.match(bare):
        return opening.group(0).strip()
    if pointer := _POINTS_BACK.search(bare):
        return pointer.group(0)
    for at, word in enumerate(found):
        if word.text in _PRONOUNS and not _has_antecedent(found, at) and not _means_nothing(found, at):
            return word.text
    if not any(word.text not in FUNCTION for word in found):
        return bare
    return ""


def _content(found: list[Word]) -> list[Word]:
    return [word for word in found if word.text not in FUNCTION]


def _has_antecedent(found: list[Word], at: int) -> bool:
    """Something was named before: a name, a word after "the" or "my", or two words of which the first may be a verb."""
    before = _content(found[:at])
    marked = any(
        word.text in _ARTICLES and following.text not in FUNCTION for word, following in pairwise(found[:at])
    )
    return len(before) >= 2 or marked or any(word.capital for word in before)


def _means_nothing(found: list[Word], at: int) -> bool:
    """It looks like a pronoun and stands for nothing: "is it safe to ...", "is there a ...", "the day that ..."."""
    word, before, after = found[at].text, found[:at], found[at + 1 :]
    if word == "there":
        verbs = ("is", "are", "was", "were", "be", "will")
        return bool(
            (before and before[-1].text in verbs and _content(after)) or (after and after[0].text in verbs)
        )
    if word == "that":
        return bool(before and before[-1].text not in FUNCTION and after) or _clause_follows(after)
    if word == "this" and after:
        return after[0].text in ("year", "month", "week", "morning", "evening", "weekend", "summer", "winter")
    if word == "it":
        if any(later.text in ("raining", "snowing", "rain", "snow", "time", "mean") for later in after[:2]):
            return True
        for place, later in enumerate(after):  # "is it safe to eat snow", "is it worth learning Latin"
            if later.text in ("to", "that"):
                return len(_content(after[place + 1 :])) >= 2
            if later.text.endswith("ing") and len(later.text) > 5:
                return bool(_content(after[place + 1 :]))
    return False


def _clause_follows(after: list[Word]) -> bool:
    """ "Is it true that whales sleep?": a clause with a subject and a verb of its own."""
    return len(_content(after)) >= 2 and after[0].text not in _AUXILIARIES
