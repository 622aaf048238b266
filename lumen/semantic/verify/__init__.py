"""The second check: may the answer to `stored` be given to `asked`? Rules, in order, each with its reason.

    context    the question needs the conversation before it
    negation   a "not" on one side only, or on another word
    number     another number or unit
    opposite   increase and lower, enable and disable
    name       another person, place or product; Monday and Friday
    kind       when and where, why and how many
    roles      from A to B and from B to A
    edit       one word was changed, and nobody said that it means the same

The rules see only that something differs, never that two questions are alike: that is the encoder's part, and
each passes what the other refuses. A rule that errs costs a hit; a hit that errs costs a reader's trust.

>>> check("How do I not delete a file?", "How do I delete a file?").rule
'negation'
>>> check("How to repair a faucet", "How do I fix a tap?").same
True
"""

from __future__ import annotations

from dataclasses import dataclass

from .context import dangling
from .edits import replaced
from .kinds import other_kind
from .names import other_name, sibling
from .negation import negation, opposites
from .quantities import Quantity, quantities, units
from .roles import exchanged
from .words import Word, words

RULES = ("context", "negation", "number", "opposite", "name", "kind", "roles", "edit")


@dataclass(frozen=True)
class Verdict:
    """`same`, or the rule that refused and why."""

    same: bool
    rule: str = ""
    reason: str = ""


def check(asked: str, stored: str) -> Verdict:
    """Compare two questions. Deterministic, and the same if they are exchanged.

    A question compared with itself is refused only if it does not stand alone.
    """
    here, there = words(asked), words(stored)
    alone = _context(asked, here) or _context(stored, there)
    if asked == stored and not alone:
        return Verdict(True)
    numbers, subject = quantities(asked, here)
    numbers_stored, subject_stored = quantities(stored, there)
    for rule, reason in (
        ("context", alone),
        ("negation", negation(here, there)),
        ("number", _numbers(numbers, numbers_stored) or _units(subject, subject_stored)),
        ("opposite", opposites(here, there)),
        ("name", other_name(subject, subject_stored) or sibling(subject, subject_stored)),
        ("kind", other_kind(_text(here), _text(there))),
        ("roles", exchanged(subject, subject_stored)),
        ("edit", replaced(subject, subject_stored)),
    ):
        if reason:
            return Verdict(False, rule, reason + ".")
    return Verdict(True)


def _context(text: str, found: list[Word]) -> str:
    sign = dangling(text, found)
    return f"{text!r} cannot be understood alone ({sign!r})" if sign else ""


def _numbers(here: list[Quantity], there: list[Quantity]) -> str:
    return "" if here == there else f"{_listed(here)} here, {_listed(there)} there"


def _units(here: list[Word], there: list[Word]) -> str:
    only_here, only_there = units(here) - units(there), units(there) - units(here)
    return f"in {min(only_here)} here, in {min(only_there)} there" if only_here and only_there else ""


def _listed(found: list[Quantity]) -> str:
    return ", ".join(f"{value:g} {kind}".strip() for kind, value in found) or "no number"


def _text(found: list[Word]) -> str:
    return " ".join(word.text for word in found)
