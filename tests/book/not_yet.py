"""Rules of the page that a chapter does not keep yet. The list only shrinks: a rule that is kept must leave it.

Whoever mends a chapter deletes the rule from its line in the same commit; the test of that rule says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

NOT_YET: dict[str, str] = {}  # page: its rules, a blank between them


# Executed before their last edits, on a busy machine: the next publication (`make publish`) executes them again. The
# tests of outputs pass them over, and fail as soon as one of them is in step again.
STALE: set[str] = set()

# In step with its text, but it quotes a store that was measured again.
OLDER_STORE: set[str] = set()


def holds(rule: str, name: str, check: Callable[[], None]) -> None:
    """Run `check` on the chapter `name`; where the rule is not kept yet, it must fail."""
    if rule not in NOT_YET.get(name, "").split():
        check()
        return
    try:
        check()
    except AssertionError:
        return
    pytest.fail(f"{name} keeps the rule '{rule}' now: delete it from NOT_YET in tests/book/not_yet.py")
