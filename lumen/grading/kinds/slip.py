"""A known mistake with its diagnosis, shared by the kinds that can recognise one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slip:
    """A known mistake and the sentence that names it.

    `like` is what the mistake gives: for `Number` the number itself, or a function of the answer that is true
    for it; for `Cases` a wrong implementation with the reference's signature.
    """

    like: Any
    says: str
