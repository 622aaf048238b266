"""What a grammar, a schema or a list of choices must answer, so that an answer can be held to it.

The three verbs are those of xgrammar (`fill_next_token_bitmask`, `accept_token`, `rollback`) and outlines-core
(`write_mask_into`, `advance`, `rollback_state`): either fits behind this protocol in a few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class Matcher(Protocol):
    """Follows one answer, token by token."""

    def allowed(self) -> Tensor | None:
        """Which tokens may come next: bool (V,) on the CPU, or None for all. An answer that may end here allows its
        end-of-sequence tokens."""

    def advance(self, token: int) -> bool:
        """Take the next token. False, and nothing has changed, when it may not come here."""

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back: drafts are only tried."""


Constraint = Callable[[], Matcher]
"""Makes a new matcher for every answer, so that no two answers share a state."""
