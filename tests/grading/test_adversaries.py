"""A lazy check misses the adversaries, a diligent one meets them: each kind is seen from both sides."""

import copy

import numpy as np
import pytest
import torch

from lumen.grading import Case, Cases, Decision, ExerciseSet, Number, Numbers, Plan, Probe, Statements, Wrong
from lumen.grading.adversaries import KINDS, attack
from lumen.grading.kinds import Constraint

HEADER = {"title": "t", "difficulty": 1, "importance": 1, "minutes": 1, "points": 1, "shows": "s"}


def exercise(check, kind="build", **more):
    return ExerciseSet("98", "t", "u").add("one", check=check, kind=kind, **{**HEADER, **more})


def kept_ids(tokens, stop_ids):
    return [token for token in tokens if token not in stop_ids]


def shifted(rows, pos):
    return rows + pos[:, :1]


class Pool:
    def __init__(self, size):
        self.free, self.held = list(range(size)), {}

    def take(self, name, count):
        self.held[name] = [self.free.pop() for _ in range(count)]
        return list(self.held[name])

    def give(self, name):
        self.free += self.held.pop(name)


CALLS = {
    kept_ids: [([5, 0, 7], {0, 2}), ([3, 7, 9], {7, 2}), ([4, 4, 6], {1})],
    shifted: [
        (torch.arange(6.0).reshape(1, 6), torch.tensor([[3, 4]])),
        (torch.arange(12.0).reshape(2, 6), torch.tensor([[-1, 0], [0, 1]])),
    ],
}


def lazy(fn):
    def check(answer, probe):
        for args in CALLS[fn]:
            probe.draws = True
            probe.run(answer, *copy.deepcopy(args))

    return check


def diligent(fn):
    return Cases(reference=fn, cases=[Case(str(i), args) for i, args in enumerate(CALLS[fn])])


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (
            kept_ids,
            {"mutates", "constant", "ignores", "last item", "reversed", "remembers", "first stop", "seeds"},
        ),
        (
            shifted,
            {"mutates", "constant", "ignores", "last item", "reversed", "rows", "left padding", "seeds"},
        ),
    ],
)
def test_functions(fn, kinds):
    def known(fn):
        return lambda *args: fn(*args)

    missed = attack(exercise(lazy(fn)), known(fn)).missed
    assert {name.rstrip(" 0123456789") for name in missed} == kinds
    report = attack(exercise(diligent(fn)), known(fn))
    assert not report.missed and {name.rstrip(" 0123456789") for name in report.met} >= kinds | {"endless"}
    free = attack(exercise(diligent(fn), free={"reversed": "any order will do here"}), known(fn)).free
    assert free == ["reversed"]


def test_classes():
    def lazy(answer, probe):
        probe.draws = True
        for _ in range(2):
            pool = probe.call(answer, 4)
            probe.call(pool.take, "a", 2)
            probe.call(pool.take, "b", 1)
            probe.call(pool.give, "a")

    def diligent(answer, probe):
        for _ in range(2):
            pool = probe.call(answer, 4)
            probe.equal(probe.call(pool.take, "a", 2), [3, 2])
            probe.equal(probe.call(pool.take, "b", 1), [1])
            probe.equal(pool.held, {"a": [3, 2], "b": [1]})
            probe.call(pool.give, "a")
            probe.equal([sorted(pool.free), pool.held], [[0, 2, 3], {"b": [1]}])

    missed = set(attack(exercise(lazy), Pool).missed)
    assert missed >= {
        "shared",
        "does nothing: give",
        "ignores 2: take",
        "last item: take",
        "seeds 0",
        "seeds 12345",
    }
    assert not attack(exercise(diligent), Pool).missed


def test_rewind_that_was_tried_on_one_row_only_is_found():
    """The gap that readers found in chapter 04: no call of the method in question ever met several rows."""

    class Lengths:
        def begin(self, pos):
            self.lengths = pos.max(1) + 1
            return self.lengths.copy()

        def rewind(self, lengths):
            self.lengths = np.minimum(self.lengths, lengths)

    def check(answer, probe):
        left = np.array([[-1, 0, 1], [0, 1, 2]])
        probe.equal(probe.call(probe.call(answer).begin, left), np.array([2, 3]))
        one = probe.call(answer)
        probe.call(one.begin, np.array([[0, 1, 2]]))
        probe.call(one.rewind, [1])
        probe.equal(one.lengths, np.array([1]))

    assert {"rows: rewind", "left padding: rewind"} <= set(attack(exercise(check), Lengths).missed)


@pytest.mark.parametrize(
    ("check", "answer", "met"),
    [
        (Number(31.74), 31.74, {"rounded", "kibi", "numpy", "endless"}),
        (Number(57_344, exact=True), 57_344, {"kibi", "numpy", "endless"}),
        (
            Numbers({"a": Number(1.234), "b": Number(9)}),
            {"a": 1.234, "b": 9},
            {"kibi: a", "other order of keys"},
        ),
        (
            Statements(false="b", why={"a": "x", "b": "y"}, number=Number(1.2345)),
            ("b", 1.2345),
            {"tuples", "rounded"},
        ),
    ],
)
def test_values(check, answer, met):
    report = attack(exercise(check, "predict"), answer)
    assert not report.missed and met <= set(report.met)


def test_a_wide_tolerance_is_found():
    assert set(attack(exercise(Number(100.0, tolerance=0.03), "predict"), 100.0).missed) == {"kibi"}


def test_an_answer_that_is_not_right_cannot_be_bent():
    with pytest.raises(ValueError, match="is not right"):
        attack(exercise(Number(3.0), "predict"), 4.0)


def test_the_table_names_every_kind():
    assert {
        "endless", "constant", "ignores", "mutates", "seeds", "remembers", "shared", "last item", "reversed", "rows",
        "left padding", "first stop", "does nothing", "kibi", "tuples", "numpy", "rounded", "other order of keys",
    } == KINDS  # fmt: skip


def choose(users):
    return Decision(
        choices={"cards": range(1, 9)},
        constraints=[
            Constraint(
                "memory", lambda c: users / c["cards"], at_most=10, unit="GB", slip="Too many users a card."
            ),
            Constraint("decoration", lambda c: c["cards"], at_most=100),
        ],
        cost=lambda c: c["cards"],
        dearer="Fewer cards hold them.",
    )


def test_a_plan_is_a_function_of_the_load():
    plan = Plan(choose, ("users",), [(35,), (80,), (5,)])
    assert plan.binding() == {"memory"} and {one.name for one in plan.constraints} == {"memory", "decoration"}
    right = exercise(plan, "decide")
    assert right.grade(lambda users: {"cards": -(-users // 10)}).right
    assert not attack(right, lambda users: {"cards": -(-users // 10)}).missed
    for answer, case, slip in (
        ({"cards": 4}, "the answer", "The load changes; the answer follows it."),
        (lambda users: {"cards": 4}, "users 80: cards=4", "Too many users a card."),
        (lambda users: {"cards": 8}, "users 35: cards=8", "Fewer cards hold them."),
    ):
        with pytest.raises(Wrong) as caught:
            plan(answer, Probe())
        assert (caught.value.case, caught.value.slip) == (case, slip)
    assert right.grade(lambda users: {"cards": ...}).state == "NOT STARTED"
