"""What a check holds in its hands: run the reader's code in a named case, compare, stop at the first difference.

    def check(answer, probe):
        with probe.case("prompt of one token"):
            got = probe.call(answer, [7])
            probe.equal(got, [7, 3], slip="The first token of the answer comes from the prefill.")
            probe.at_most("forward passes", model.calls, 2)

Every method raises `Wrong` when the answer fails, so a check reads from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import compare, run
from .verdict import NotStarted, Wrong


class Probe:
    """One run of one check. `passed` counts the cases that held.

    steps   lines of the reader's code per call; draws: it may use the global random generators
    given   the faulty function or class of a debug exercise as it stands in the reader's notebook, if there is one
    """

    def __init__(self, steps: int | None = run.STEPS, draws: bool = True, given: Any = None):
        self.steps, self.draws, self.given = steps, draws, given
        self.passed = 0
        self.name = ""

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Name what is being tried, for the verdict. A difference inside it is reported under this name."""
        self.name = name
        yield
        self.passed += 1

    def call(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the reader's code; exceptions, stubs, endless loops and changed arguments become verdicts."""
        arguments = [*args, *kwargs.values()]
        before = run.kept(arguments)
        result = self.run(fn, *args, **kwargs)
        if wrong := run.changed(arguments, before):
            wrong.case = self.name
            raise wrong
        return result

    def run(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """`call`, for code that may change its arguments: that is its task, or is looked at later."""
        try:
            return run.call(fn, *args, steps=self.steps, draws=self.draws, **kwargs)
        except Wrong as wrong:
            wrong.case = wrong.case or self.name
            raise

    def equal(
        self,
        got: Any,
        want: Any,
        tolerance: float = compare.FP32,
        *,
        what: str = "",
        slip: str = "",
        dtype: bool = True,
    ) -> None:
        """`got` equals `want`: numbers and arrays by relative error, the rest exactly.

        `what` names it in the verdict.
        """
        found = compare.difference(got, want, tolerance, what, dtype)
        if found:
            raise Wrong(self.name, found.gave, found.wanted, slip or found.slip)

    def that(self, holds: bool, gave: Any = "", wanted: Any = "", slip: str = "") -> None:
        """`holds` is true; otherwise say what it gave, what was wanted and what is behind it."""
        if not holds:
            raise Wrong(self.name, _text(gave), _text(wanted), slip)

    def at_most(self, what: str, count: float, limit: float, slip: str = "") -> None:
        """A cost that a counter counted: `count` of `what` may not exceed `limit`."""
        self.that(
            count <= limit,
            gave=f"{compare.number(count)} {what}",
            wanted=f"{compare.number(limit)} {what} at most",
            slip=slip or "The result is right; it costs more than it needs to.",
        )

    def refuses(self, error: type[BaseException], fn: Any, *args: Any, slip: str = "", **kwargs: Any) -> str:
        """The call raises `error`. Returns the message, for a look at what it says."""
        caught: list[BaseException] = []

        def attempt() -> Any:
            try:
                return fn(*args, **kwargs)
            except error as one:
                if isinstance(one, NotImplementedError) and error is not NotImplementedError:
                    raise  # a stub, not a refusal: NotImplementedError is a RuntimeError
                caught.append(one)
                return None

        try:
            result = run.call(attempt, steps=self.steps)
        except Wrong as wrong:
            raise Wrong(self.name, wrong.gave, error.__name__, slip or wrong.slip, wrong.where) from None
        if caught:
            return str(caught[0])
        if result is None and run.is_empty(fn):
            raise NotStarted(f"`{getattr(fn, '__name__', 'it')}` has an empty body.")
        raise Wrong(self.name, f"{compare.describe(result)} and no exception", error.__name__, slip)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compare.describe(value)
