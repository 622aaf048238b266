"""Generic adversaries: a right answer, bent the way readers bend theirs, and what the check must say to it.

Each adversary takes an answer that is known to be right and changes what it does: honest mistakes that the check must
refuse, and harmless differences that it must accept. One test runs all of them against every exercise.

| refused | |
| --- | --- |
| `endless` | a call never returns |
| `constant` | every call gives what the first one gave |
| `ignores 2` | the second argument counts only in the first call |
| `mutates` | a list, dict, set or array that was handed in comes back changed |
| `seeds 0` | seeds the global random generator, with a number that readers type |
| `remembers` | results pile up in one list: a mutable default |
| `shared` | lists and dicts of one instance are those of all: class attributes instead of the instance's |
| `last item` | the last item is missing, the last row or number is off by one |
| `reversed` | the right items in the wrong order |
| `rows` | right for one row, wrong for several |
| `left padding` | right until a row begins with padding, wrong from then on |
| `first stop` | of several stop ids only the smallest counts |
| `does nothing` | a method without a result does nothing |
| `kibi` | a number is off by 2.4 %: 1000 for 1024 |

| accepted | |
| --- | --- |
| `tuples` | tuples where lists were given, and lists where tuples were |
| `numpy` | numpy scalars, and arrays for lists of numbers and for tensors |
| `rounded` | numbers rounded to three significant figures, where the text does not say "exactly" |
| `other order of keys` | dicts are filled in another order |

Which apply follows from what the check does with the answer: it is recorded once, call by call. A method of a class is
an adversary of its own (`rows: rewind`). Those about rows and padding apply to a class as soon as *any* method has met
several rows or left padding: then every method has to be tried so. An exercise that must be left alone says why:
`Exercise.free`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import bend, compare, habits, sight
from .bend import Behaviour, Call
from .exercise import Exercise
from .kinds import Number, Numbers, Statements
from .verdict import RIGHT, WRONG, Verdict

KINDS = {
    line.split("`")[1].rstrip(" 0123456789")
    for line in (__doc__ or "").splitlines()
    if line.startswith("| `")
}


@dataclass(frozen=True)
class Adversary:
    name: str
    wanted: str  # the state the check must give
    behave: Behaviour
    methods: tuple[str, ...] = ()  # whose behaviour changes; none: all

    @property
    def kind(self) -> str:
        return self.name.split(":")[0].rstrip(" 0123456789")


@dataclass
class Report:
    """What came of it: `missed` names the adversaries that the check took for the other kind, with the verdict."""

    met: list[str] = field(default_factory=list)
    missed: dict[str, Verdict] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.met)} of {len(self.met) + len(self.missed)} adversaries met" + (
            f", missed: {', '.join(self.missed)}" if self.missed else ""
        )


def attack(exercise: Exercise, answer: Any) -> Report:
    """Try every adversary that applies. `answer` is right; ValueError when it is not."""
    seen: list[Call] = []
    verdict = exercise.grade(bend.bent(answer, bend.recorder(seen)))
    if verdict.state != RIGHT:
        raise ValueError(f"{exercise.id}: the answer to bend is not right:\n{verdict}")
    report = Report()
    for one in adversaries(exercise, answer, seen):
        if one.name in exercise.free or one.kind in exercise.free:
            report.free.append(one.name)
            continue
        verdict = exercise.grade(bend.bent(answer, one.behave, one.methods))
        if verdict.state == one.wanted:
            report.met.append(one.name)
        else:
            report.missed[one.name] = verdict
    return report


def adversaries(exercise: Exercise, answer: Any, seen: list[Call]) -> Iterator[Adversary]:
    """Every adversary that applies to an answer that was seen in these calls."""
    function = callable(answer) and (exercise.kind in ("build", "debug") or any(call.args for call in seen))
    if function:
        yield from _against_code(answer, seen)
    else:
        yield from _against_values(exercise, seen)
    yield Adversary("endless", WRONG, habits.endless, tuple(dict.fromkeys(call.method for call in seen)))
    results = [call.result for call in seen if call.outermost]
    if any(sight.holds(one, (list, tuple)) for one in results):
        yield Adversary("tuples", RIGHT, habits.outer(habits.swapped))
    if any(sight.holds(one, (int, float)) or compare.is_array(one) for one in results):
        change = habits.numpy_scalars if isinstance(answer, type) else habits.as_numpy
        yield Adversary("numpy", RIGHT, habits.outer(change))
    if any(isinstance(one, dict) and len(one) > 1 for one in results):
        yield Adversary("other order of keys", RIGHT, habits.outer(habits.keys_reversed))


def _against_code(answer: Any, seen: list[Call]) -> Iterator[Adversary]:
    padded = any(sight.left_padded(one) for call in seen for one in call.all)
    several = any(sight.rows(one) > 1 for call in seen for one in call.all)
    for method in dict.fromkeys(call.method for call in seen):
        calls = [call for call in seen if call.method == method]
        results = [call.result for call in calls if call.result is not None]
        only, label = (method,) if method else (), f": {method}" if method else ""

        def against(
            name: str, behave: Behaviour, label: str = label, only: tuple[str, ...] = only
        ) -> Adversary:
            return Adversary(name + label, WRONG, behave, only)

        if any(sight.mutable(one, arrays=not method) for call in calls for one in call.all):
            yield against("mutates", habits.mutates)
        if not results:
            if method:
                yield against("does nothing", lambda call: None)
        else:
            if any(sight.differ(results[0], one) for one in results[1:]):
                yield against("constant", habits.constant)
            for i in range(len(calls[0].args)):
                if sight.matters(calls, i, answer):
                    yield against(f"ignores {i + 1}", habits.ignores(i))
            if any(sight.changed(one, habits.without_last) for one in results):
                yield against("last item", habits.outer(habits.without_last))
            if any(sight.changed(one, habits.backwards) for one in results):
                yield against("reversed", habits.outer(habits.backwards))
            if not method and any(isinstance(one, list) and one for one in results):
                yield against("remembers", habits.remembers)
        arguments = [one for call in calls for one in call.all]
        if several and (method or any(sight.rows(one) > 1 for one in arguments)):
            meets = habits.wrong_when(
                lambda call: any(sight.rows(one) > 1 for one in call.all), method, not results
            )
            yield against("rows", meets, only=())
        if padded and (method or any(sight.left_padded(one) for one in arguments)):
            meets = habits.wrong_when(lambda call: any(map(sight.left_padded, call.all)), method, not results)
            yield against("left padding", meets, only=())
        if any(sight.stop_ids(one) for one in arguments):
            yield against("first stop", habits.first_stop)
    if seen:
        for seed in (0, 12345):
            methods = tuple(dict.fromkeys(call.method for call in seen))
            yield Adversary(f"seeds {seed}", WRONG, habits.seeds(seed), methods)
    instances = [call.own["instance"] for call in seen if call.method]
    if any(sight.containers(instance) for instance in instances):
        yield Adversary("shared", WRONG, habits.shares, ("__init__",))


def _against_values(exercise: Exercise, seen: list[Call]) -> Iterator[Adversary]:
    if not seen:
        return
    value, numbers = seen[0].result, numbers_of(exercise.check)
    for name, number in numbers.items():
        label = f": {name}" if len(numbers) > 1 else ""
        yield Adversary("kibi" + label, WRONG, habits.outer(habits.scaled(name, number, 1.024)))
    if any(not number.exact for number in numbers.values()) and sight.holds(value, (int, float)):
        yield Adversary("rounded", RIGHT, habits.outer(lambda value: habits.rounded(value, numbers)))


def numbers_of(check: Any) -> dict[Any, Number]:
    """The numbers that a check asks for, by where they stand in the answer: a key, 1 in a pair, None alone."""
    if isinstance(check, Number):
        return {None: check}
    if isinstance(check, Numbers):
        return dict(check.numbers)
    if isinstance(check, Statements) and check.number is not None:
        return {1: check.number}
    return {}
