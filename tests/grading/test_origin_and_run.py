"""What is refused as lumen's, and what becomes of code that raises, returns nothing or never returns."""

import functools
import random
import sys

import numpy as np
import pytest
import torch

from lumen.grading import ExerciseSet, NotStarted, Probe, Wrong, compare, run
from lumen.grading.origin import forbidden_use, lumen_name, resolve
from tests.grading.example_set import pretend


class Mine(pretend.Cache):
    pass


def own(x):
    return x


@functools.wraps(pretend.until_stop)
def alias(*args):
    return pretend.until_stop(*args)


@pytest.mark.parametrize(
    "theirs",
    [
        pretend,
        pretend.until_stop,
        functools.partial(functools.partial(pretend.until_stop, [1])),
        alias,
        functools.lru_cache(pretend.until_stop),
        staticmethod(pretend.until_stop),
        pretend.Cache,
        pretend.Cache(),
        pretend.Cache().attend,
        functools.partial(pretend.Cache().attend),
        Mine,
        Mine(),
        property(pretend.until_stop),
        torch.compile(pretend.until_stop, backend="eager"),
    ],
)
def test_lumens_own_is_seen_through_every_wrapping(theirs):
    assert lumen_name(theirs).startswith("lumen.pretend")


@pytest.mark.parametrize(
    "readers",
    [
        own,
        lambda: 1,
        functools.partial(own, 1),
        3,
        "x",
        [1],
        {"a": 1},
        torch.zeros(2),
        torch.nn.Linear,
        np.zeros(1),
        print,
    ],
)
def test_the_readers_own_passes(readers):
    assert lumen_name(readers) is None


def test_an_allowed_base_class_passes_but_its_children_do_not():
    allow = ["lumen.pretend.Cache"]
    assert lumen_name(Mine, allow) is None and lumen_name(Mine(), allow) is None
    assert lumen_name(pretend.Full, allow) == "lumen.pretend.Full"
    assert lumen_name(Mine) == "lumen.pretend.Cache"


def by_global(x):
    return pretend.until_stop(x, {0})


def by_import(x):
    from lumen.pretend import until_stop as quiet

    return quiet(x, {0})


def by_import_as(x):
    import lumen.pretend as p

    return p.until_stop(x, {0})


def by_plain_import(x):
    import lumen.pretend

    return lumen.pretend.until_stop(x, {0})


def by_local_name(x):
    f = pretend.until_stop
    return f(x, {0})


def by_comprehension(x):
    return [pretend.until_stop(x, {0}) for _ in range(1)]


class ByMethod:
    def run(self, x):
        return pretend.until_stop(x, {0})


@pytest.mark.parametrize(
    "answer",
    [
        by_global,
        by_import,
        by_import_as,
        by_plain_import,
        by_local_name,
        by_comprehension,
        ByMethod,
        ByMethod(),
        functools.partial(by_global),
    ],
)
@pytest.mark.parametrize("forbidden", ["lumen.pretend.until_stop", pretend.until_stop, pretend])
def test_a_call_of_the_forbidden_is_found(answer, forbidden, monkeypatch):
    monkeypatch.setattr(sys.modules["lumen"], "pretend", pretend, raising=False)
    assert forbidden_use(answer, [forbidden]) in ("lumen.pretend.until_stop", "lumen.pretend")


@pytest.mark.parametrize(
    "answer", [own, lambda x: pretend.repeat_kv(x, 2), lambda until_stop: until_stop(1), 5, torch.add]
)
def test_what_is_not_forbidden_may_be_used(answer):
    assert forbidden_use(answer, [pretend.until_stop]) is None


def test_a_forbidden_name_that_does_not_exist_is_the_authors_mistake():
    with pytest.raises(ValueError, match=r"no 'lumen\.pretend\.nothing' to forbid"):
        resolve("lumen.pretend.nothing")


def stub():
    """What stands in the exercise."""
    raise NotImplementedError()


def outer_stub():
    return stub() + 1


def docstring_only():
    """Not written yet."""


def ellipsis_only(x=1): ...


@pytest.mark.parametrize("fn", [stub, outer_stub, docstring_only, ellipsis_only, lambda: None])
def test_a_stub_is_not_started(fn):
    with pytest.raises(NotStarted):
        run.call(fn)


def test_not_implemented_by_a_library_is_wrong_not_a_stub():
    def uses_torch():
        return torch.nn.Module()(1)  # raises NotImplementedError inside torch

    with pytest.raises(Wrong) as caught:
        run.call(uses_torch)
    assert (
        caught.value.gave.startswith("NotImplementedError") and "torch.nn.Module()(1)" in caught.value.where
    )


def test_an_exception_names_type_message_and_the_readers_last_line():
    def divides(x):
        return torch.zeros(2).view(3, x)

    with pytest.raises(Wrong) as caught:
        run.call(divides, 5)
    assert (
        caught.value.gave.startswith("RuntimeError: shape")
        and "torch.zeros(2).view(3, x)" in caught.value.where
    )


def test_exit_becomes_a_verdict_and_ctrl_c_passes():
    def leaves():
        sys.exit("bye")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(Wrong):
        run.call(leaves)
    with pytest.raises(KeyboardInterrupt):
        run.call(interrupted)


def test_a_loop_that_is_one_jump_to_itself_ends():
    """CPython 3.11 sends no line event for it: checks hung on `while True: pass`."""

    # fmt: off
    def waits(flag):
        while flag: pass  # noqa: E701
    # fmt: on

    with pytest.raises(Wrong, match="Which condition ends the loop"):
        run.call(waits, True, steps=1000)


def test_an_endless_loop_ends_even_when_it_swallows_exceptions():
    def stubborn():
        n = 0
        while True:
            try:
                n += 1
            except Exception:
                n = 0

    before = sys.gettrace()
    with pytest.raises(Wrong, match="Which condition ends the loop"):
        run.call(stubborn, steps=500)
    assert sys.gettrace() is before
    assert run.call(lambda: sum(i for i in range(100)), steps=500) == 4950


def test_luck_is_the_same_inside_and_untouched_outside():
    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    torch.manual_seed(5)
    want = torch.rand(2)[1]
    torch.manual_seed(5)
    torch.rand(1)
    assert run.call(draw) == run.call(draw)
    assert torch.rand(1) == want


def test_a_value_or_a_function_that_returns_it():
    assert run.value_of(3) == run.value_of(lambda: 3) == 3
    for placeholder in (None, ..., (1, ...), {"a": ...}, lambda: ...):
        with pytest.raises(NotStarted):
            run.value_of(placeholder)
    for nothing in ({"full": None}, [None]):  # what code gives back that found nothing: an answer, and wrong
        assert run.value_of(nothing) == nothing


def test_probe_refuses():
    probe = Probe()

    def good(n):
        if n < 0:
            raise ValueError("n is negative")

    assert probe.refuses(ValueError, good, -1) == "n is negative"
    for fn, gave in [(lambda n: n, "-1 and no exception"), (lambda n: {}[n], "KeyError")]:
        with pytest.raises(Wrong) as caught:
            probe.refuses(ValueError, fn, -1)
        assert caught.value.gave.startswith(gave) and caught.value.wanted == "ValueError"
    for empty in (stub, docstring_only):
        with pytest.raises(NotStarted):
            probe.refuses(RuntimeError, empty)


x = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("got", "want", "gave", "wanted"),
    [
        (x.T, x, "shape (3, 2)", "shape (2, 3)"),
        (x.double()[:1], x, "shape (1, 3)", "shape (2, 3)"),  # shape before dtype
        (x.double(), x, "dtype float64", "dtype float32"),
        (x + torch.tensor([0, 0, 1e-3]), x, "2.001 at index [0, 2]", "2"),
        (x / 0, x, "NaN at index [0, 0]", "0"),
        ((x + 1) / 0, x, "inf at index [0, 0]", "0"),
        ({1, 2}, {2, 3}, "{1, 2}", "{2, 3}; yours is without 3 and with 1"),
        (set(), {2}, "an empty set", "{2}; yours is without 2"),
        (x.tolist(), x, "[[0, 1, 2], [3, 4, 5]]", "a tensor of shape (2, 3), float32"),
        ([5, 2], [5, 3], "2 at [1]", "3"),
        ([5], [5, 3], "[5]", "[5, 3]"),
        ([5] * 13, [5] * 14, "13 items", "14 items"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "2 at ['a'][1]", "3"),
        ({"b": 1}, {"a": 1}, "keys [\"'b'\"]", "keys [\"'a'\"]"),
        (None, 3, "None", "3"),
        (True, 1, "True", "1"),
        ("a", "b", "'a'", "'b'"),
        (2.0001, 2, "2", "2"),
        (float("nan"), 1.5, "NaN", "1.5"),
        (7.5, float("inf"), "7.5", "inf"),
        (0.0, -float("inf"), "0", "−inf"),
        (float("inf"), -float("inf"), "inf", "−inf"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "2 at index [1]", "3"),
    ],
)
def test_the_first_difference_in_words(got, want, gave, wanted):
    found = compare.difference(got, want)
    assert (found.gave, found.wanted) == (gave, wanted)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (x * (1 + 1e-6), x),
        (x + 4e-5, x),  # 1e-5 of the largest entry, also at the entry that is 0
        (x / 0, x / 0),
        (x.bfloat16(), x.bfloat16()),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (np.int64(3), 3),
        (3.0, 3),
        (torch.tensor(3), 3),
        (x.numpy(), x),
        (x, x.numpy()),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([1.0, 2.0]), (1.0, 2.0)),
        (np.bool_(True), True),
        ((1, 2), [1, 2]),
        (float("nan"), float("nan")),
        (-float("inf"), -float("inf")),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        ({1, 2}, {2, 1}),
    ],
)
def test_what_counts_as_equal(got, want):
    assert compare.difference(got, want) is None


def test_an_endless_loop_that_the_probe_does_not_see_is_a_verdict():
    made = ExerciseSet("98", "t", "u")
    header = {
        "title": "t",
        "kind": "build",
        "difficulty": 1,
        "importance": 1,
        "minutes": 1,
        "points": 1,
        "shows": "s",
    }

    class Endless:
        @property
        def free(self):
            while True:
                pass

    @made.checks("free", steps=100, **header)
    def _(answer, probe):
        assert probe.call(answer).free

    verdict = made["free"].grade(Endless)
    assert verdict.gave == "no end" and "Which condition ends the loop?" in verdict.where


def test_what_a_call_must_leave_alone():
    def appends(tokens):
        tokens.append(1)

    def changes_inside(rows):
        rows[0]["a"] = 2

    def seeds():
        random.seed(3)
        return 1

    for fn, argument, gave in (
        (appends, [5], "argument 1 changed to [5, 1]"),
        (changes_inside, ({"a": 1},), "2 at"),
    ):
        with pytest.raises(Wrong) as caught:
            Probe().call(fn, argument)
        assert gave in caught.value.gave and caught.value.wanted.endswith("untouched")
        assert Probe().run(fn, argument) is None
    typed = [lambda seed=seed: seed(0) for seed in (random.seed, np.random.seed, torch.manual_seed)]
    for draw in (seeds, *typed, random.random, np.random.rand, lambda: torch.rand(1)):
        with pytest.raises(Wrong, match="belongs to everybody"):
            Probe(draws=False).call(draw)
    assert Probe(draws=True).call(seeds) == 1
    assert Probe(draws=False).call(lambda: random.Random(3).random()) > 0
