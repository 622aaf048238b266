"""A known mistake with its diagnosis, shared by the kinds that can recognise one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Slip:
    """A known mistake and the sentence that names it.

    `like` is what the mistake gives: for `Number` the number itself, or a function of the answer that is true
    for it; for `Cases` a wrong implementation with the reference's signature.
    """

    like: Any
    says: str


Slips = (
    Sequence[Slip] | Mapping[Any, str]
)  # a mapping is the short way: {what the mistake gives: its sentence}


def listed(slips: Slips) -> list[Slip]:
    if isinstance(slips, Mapping):
        return [Slip(like, says) for like, says in slips.items()]
    return list(slips)


def bends(reference: Callable[..., Any], says: Mapping[str, str]) -> list[Slip]:
    """The usual mistakes of one function: `reference(…, mode=name)` does what the mistake `name` does."""
    return [Slip(partial(reference, mode=name), text) for name, text in says.items()]
