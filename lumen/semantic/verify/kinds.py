"""What kind of answer is wanted: a time, a place, a reason, a count, a yes. Another kind is another question."""

from __future__ import annotations

import re

from .words import word_set

ASKED_FOR = word_set("time year date day place")  # behind "what" or "which", they name the kind of answer

# The first pattern that matches decides; several names mean that the wording leaves it open.
_KINDS = tuple(
    (re.compile(pattern), frozenset(names.split()))
    for pattern, names in (
        (r"\b(?:tell|explain|show|describe)\b", ""),
        (
            r"\bhow (?:many|long|much) (?:\w+ ){0,1}?(?:seconds|minutes|hours|days|weeks|months|years)\b",
            "duration",
        ),
        (r"\bhow many (?:seconds|minutes|hours|days|weeks|months|years)\b", "duration"),
        (r"\bhow many\b|\bhow much\b", "amount"),
        (r"\bhow long\b", "duration"),
        (r"\bhow often\b", "frequency"),
        (r"\bhow (?:old|far|tall|deep|fast|big|high|wide|heavy)\b", "measure"),
        (
            r"\bhow come\b|\bwhy\b|\bwhat causes\b|\breasons?\b|\bwhat (?:\w+ ){0,3}?makes?\b|\bthe cause\b",
            "why",
        ),
        (r"\b(?:what|which) time\b", "time"),
        (r"\b(?:what|which) year\b", "year"),
        (r"\b(?:what|which) (?:date|day)\b", "date"),
        (r"\bwhen\b", "when time year date"),
        (r"\bwhere (?:do|can|should) (?:i|you|we)\b", "do where"),
        (r"\bwhere\b|\b(?:what|which) place\b", "where"),
        (r"\bwho\b|\bwhom\b", "who"),
        (r"\bis there (?:a|any) way\b|\bis it possible\b", "do yes"),
        (r"\bhow (?:to|do|can|could|should|would) ?(?:i|you|we)?\b|\bwhat can (?:i|you|we)\b", "do"),
        (r"\bwhat\b|\bwhich\b|\bhow\b", ""),
        (r"^(?:is|are|was|were|do|does|did|can|could|should|will|would|may|must|has|have)\b", "yes"),
    )
)


def kind(text: str) -> frozenset[str]:
    """Names of the kinds of answer that would fit; empty if any may."""
    for pattern, names in _KINDS:
        if pattern.search(text):
            return names
    return frozenset()


def other_kind(asked: str, stored: str) -> str:
    """Why the two want different kinds of answer; "" if one answer may fit both."""
    here, there = kind(asked), kind(stored)
    if here and there and not here & there:
        return f"one asks for {_named(here)!r}, the other for {_named(there)!r}"
    return ""


def _named(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))
