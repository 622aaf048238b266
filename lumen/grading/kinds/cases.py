"""build and debug: the reader's function against a reference, with mistakes recognised by what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import compare, origin, run
from ..probe import Probe
from ..verdict import NotStarted, Wrong
from .slip import Slips, listed

UNSET: Any = object()


@dataclass(frozen=True)
class Case:
    """One call. `args` is a tuple, or a function that makes it (fresh and only when needed).

    `want` overrides the reference; `raises` asks for an exception instead; `slip` is said when this case
    fails and no known slip explains it; `tolerance` overrides the check's.
    """

    name: str = ""
    args: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    want: Any = UNSET
    raises: type[BaseException] | None = None
    slip: str = ""
    tolerance: float | None = None

    def arguments(self) -> tuple[Any, ...]:
        return self.args() if callable(self.args) else run.fresh(self.args)


Listed = Iterable[Case] | Mapping[str, Any]  # a mapping: by name its arguments, or a `Case` that says more


@dataclass(frozen=True)
class Cases:
    """build and debug: the reader's function against a reference, case by case.

    `cases` is a list, or a function that makes it on first use. `slips` are wrong implementations: when the
    reader's result equals one of theirs on the failing case, its sentence is the diagnosis. `broken` (debug)
    is the function as the reader found it; better `Exercise.given`, which finds it in the notebook, where alone it
    stands. `pure=True` also asks that lists, dicts and arrays handed in come back as they were. `view` makes of a
    result what is compared, such as a part sorted whose order is free; it must pass through what has another shape.
    """

    reference: Callable[..., Any]
    cases: Listed | Callable[[], Listed]
    slips: Slips = ()
    tolerance: float = compare.FP32
    dtype: bool = True
    pure: bool = True
    broken: Callable[..., Any] | None = None
    view: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "slips", listed(self.slips))

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        if self.broken is not None and origin.same_code(answer, self.broken):
            raise NotStarted("This is still the function as it was given.")
        for case in _named(self.cases() if callable(self.cases) else self.cases):
            with probe.case(case.name):
                if case.raises is not None:
                    self._refusal(answer, case, case.raises, probe)
                else:
                    self._one(answer, case, probe)
        return None

    def _refusal(self, answer: Any, case: Case, error: type[BaseException], probe: Probe) -> None:
        try:
            probe.refuses(error, answer, *case.arguments(), slip=case.slip, **run.fresh(case.kwargs))
        except Wrong as wrong:
            name = "" if wrong.gave.endswith("no exception") else wrong.gave.split(":")[0]
            raise self._explained(answer, case, wrong, lambda result: _raises(result, name), probe) from None

    def _one(self, answer: Any, case: Case, probe: Probe) -> None:
        tolerance = self.tolerance if case.tolerance is None else case.tolerance
        args, kwargs = case.arguments(), run.fresh(case.kwargs)
        before = run.kept(args)
        try:
            got = probe.run(answer, *args, **kwargs)
        except Wrong as wrong:
            name = wrong.gave.split(":")[0]
            raise self._explained(answer, case, wrong, lambda result: _raises(result, name), probe) from None
        want = self._reference(case) if case.want is UNSET else case.want
        if self.view is not None:
            got, want = self.view(got), self.view(want)
        found = compare.difference(got, want, tolerance, dtype=self.dtype)
        if found:
            differs = Wrong(case.name, found.gave, found.wanted, case.slip or found.slip)
            raise self._explained(
                answer, case, differs, lambda result: _same(got, result, tolerance, self.dtype), probe
            )
        if self.pure and (spoiled := run.changed(args, before)):
            spoiled.case = case.name
            raise spoiled

    def _reference(self, case: Case) -> Any:
        with run.same_luck():
            return self.reference(*case.arguments(), **run.fresh(case.kwargs))

    def _seen(self, outcome: Any) -> Any:
        return outcome if self.view is None or isinstance(outcome, Exception) else self.view(outcome)

    def _explained(
        self, answer: Any, case: Case, wrong: Wrong, same: Callable[[Any], bool], probe: Probe
    ) -> Exception:
        """`wrong`, with the sentence of the first slip that behaves in the same way on this case."""
        for slip in self.slips:
            if same(self._seen(_outcome(slip.like, case))):
                return Wrong(wrong.case, wrong.gave, wrong.wanted, slip.says, wrong.where)
        broken = self.broken or probe.given
        if broken is not None and same(self._seen(_outcome(broken, case))):
            says = wrong.slip or "On this case it still does what the broken one did."
            return Wrong(wrong.case, wrong.gave, wrong.wanted, says, wrong.where)
        return wrong


def _named(cases: Listed) -> Iterator[Case]:
    if not isinstance(cases, Mapping):
        yield from cases
        return
    for name, one in cases.items():
        yield replace(one, name=name) if isinstance(one, Case) else Case(name, one)


def _outcome(fn: Callable[..., Any], case: Case) -> Any:
    """What an author's own function gives on the case: the result, or the exception as an object."""
    try:
        with run.same_luck():
            return fn(*case.arguments(), **run.fresh(case.kwargs))
    except Exception as error:
        return error


def _same(got: Any, result: Any, tolerance: float, dtype: bool) -> bool:
    return (
        not isinstance(result, Exception) and compare.difference(got, result, tolerance, dtype=dtype) is None
    )


def _raises(result: Any, name: str) -> bool:
    """`result` is an exception of that name; no name means that nothing was raised."""
    return type(result).__name__ == name if isinstance(result, Exception) else not name
