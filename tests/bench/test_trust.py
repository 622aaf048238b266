"""Refusals, with a /proc that says what it is told."""

from __future__ import annotations

import pytest

from lumen.bench import Estimate, Refused, Timing, refuse_if_scattered
from lumen.bench.trust import SCATTER, Load, Watch, doubts, wait_until_quiet

STEADY = Timing((1.0, 1.01, 1.02, 1.0, 1.01, 1.02, 1.0))


class Machine:
    """A /proc/stat of two cores, and the seconds that this process used."""

    def __init__(self, folder):
        self.folder, self.ticks, self.own = folder, [100, 0, 100, 100, 0, 0, 0, 0], 0.0
        self.write()

    def write(self):
        (self.folder / "stat").write_text("cpu  " + " ".join(map(str, self.ticks)) + " 0 0\ncpu0 1 2 3\n")

    def run(self, ours=0, others=0, idle=0, steal=0):
        """Let ticks pass; 100 are a second of one core."""
        self.ticks[0] += ours + others
        self.ticks[3] += idle
        self.ticks[7] += steal
        self.own += ours / 100
        self.write()

    def watch(self):
        return Watch(self.folder, lambda: self.own)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr("lumen.bench.trust._ticks_per_second", lambda: 100.0)
    return Machine(tmp_path)


def test_shares_are_those_of_the_file(machine):
    with machine.watch() as watch:
        machine.run(ours=100, others=40, idle=50, steal=10)
    assert watch.load == Load(steal=0.05, others=0.2)


def test_our_own_work_is_no_disturbance(machine):
    with machine.watch() as watch:
        machine.run(ours=200)
    assert watch.load == Load(0.0, 0.0) and doubts(STEADY, load=watch.load) == ""


def test_rounds_are_added_and_what_lies_between_is_not(machine):
    watch = machine.watch()
    for _ in range(2):
        machine.run(others=1000)
        watch.start()
        machine.run(ours=50, idle=50)
        watch.stop()
    assert watch.load == Load(0.0, 0.0)


def test_too_few_ticks_say_nothing(machine):
    with machine.watch() as watch:
        machine.run(others=20)
    assert watch.load is None


def test_without_proc_nothing_is_claimed(tmp_path):
    with Watch(tmp_path / "nowhere") as watch:
        pass
    assert watch.load is None
    (tmp_path / "stat").write_text("")
    with Watch(tmp_path) as watch:
        pass
    assert watch.load is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"load": Load(0.031, 0.0)}, "host took 3 % .* over 3 %"),
        ({"load": Load(0.0, 0.11)}, "Other processes used 11 % .* over 10 %"),
        ({"bound_s": 1.1, "bound": "its bytes"}, r"beats its own bound, 1.10 s \(its bytes\), by 8 %"),
    ],
)
def test_each_doubt_says_which(found, reason):
    import re

    assert re.search(reason, doubts(STEADY, **found))


def test_just_inside_every_limit_is_no_doubt():
    assert doubts(STEADY, bound_s=1.05, bound="its bytes", load=Load(0.03, 0.10)) == ""
    assert doubts(Timing((0.9, 1.0, 1.0, 1.0, 1.0, 0.899 + SCATTER))) == ""
    assert "scatters" in doubts(Timing((0.9, 1.0, 1.0, 1.0, 1.0, 0.91 + SCATTER)))
    assert doubts(Timing((1.0, 3.0))) == ""  # two samples: nothing is known of their scatter


def test_repeats_that_differ_by_more_than_the_effect(monkeypatch):
    good, bad = Estimate(1.2, 1.15, 1.25, 9, "×"), Estimate(1.02, 1.0, 1.05, 9, "×")
    assert refuse_if_scattered(good, 0.2) == "" == refuse_if_scattered(good, -0.2)
    assert "more than the effect it shows, 0.02" in refuse_if_scattered(bad, 0.02, "Paged over static")
    monkeypatch.setenv("LUMEN_PUBLISH", "1")
    assert refuse_if_scattered(good, 0.2) == ""
    with pytest.raises(Refused, match=r"Paged over static, 1.02"):
        refuse_if_scattered(bad, 0.02, "Paged over static")


def test_waiting_for_quiet(machine):
    monkey = iter([{"others": 150, "idle": 50}, {"steal": 20, "idle": 180}, {"idle": 200}])
    load = wait_until_quiet(60, proc=machine.folder, sleep=lambda s: machine.run(**next(monkey)))
    assert load == Load(0.0, 0.0) and next(monkey, None) is None
    with pytest.raises(Refused, match=r"not quiet for 2 s within 6 s: .* other processes 75 %"):
        wait_until_quiet(6, proc=machine.folder, sleep=lambda s: machine.run(others=150, idle=50))
