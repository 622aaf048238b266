"""Rules of the page that a chapter does not keep yet. The list only shrinks: a rule that is kept must leave it.

Whoever mends a chapter deletes the rule from its line in the same commit; the test of that rule says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

NOT_YET: dict[str, set[str]] = {
    "01_prefill_decode": {"guesses", "imports_folded", "reveals_are_folded"},
    "02_roofline": {"guesses", "imports_folded", "reveals_are_folded"},
    "03_measuring": {"guesses", "imports_folded", "measured_in_silence", "reveals_are_folded"},
    "04_kv_cache": {"guesses", "imports_folded", "measured_in_silence", "reveals_are_folded"},
    "05_paged_cache": {"guesses", "imports_folded", "reveals_are_folded"},
    "06_prefix_cache": {"guesses", "imports_folded", "measured_in_silence", "reveals_are_folded"},
    "07_semantic_cache": {"guesses", "imports_folded", "reveals_are_folded"},
    "08_batching": {"guesses", "imports_folded", "reveals_are_folded"},
    "09_scheduling": {"guesses", "imports_folded", "reveals_are_folded"},
    "10_serving": {"guesses", "imports_folded", "reveals_are_folded"},
}


def holds(rule: str, name: str, check: Callable[[], None]) -> None:
    """Run `check` on the chapter `name`; where the rule is not kept yet, it must fail."""
    if rule not in NOT_YET.get(name, ()):
        check()
        return
    try:
        check()
    except AssertionError:
        return
    pytest.fail(f"{name} keeps the rule '{rule}' now: delete it from NOT_YET in tests/book/not_yet.py")
