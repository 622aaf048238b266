"""The timer is tested with a clock that tells what it is told; evidence with folders of its own."""

from __future__ import annotations

import gc
import json
import math
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from lumen import bench
from lumen.bench import published
from lumen.cache import DynamicCache
from lumen.models import Llama, ModelConfig

TINY = ModelConfig("tiny", 97, 2, 36, 9, 3, 4, 40, 32)


class FakeClock:
    """A clock that moves only when a task says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def task(self, *seconds):
        """A function that takes these times at its calls, the last one for ever."""
        durations = list(seconds)

        def run():
            self.now += durations.pop(0) if len(durations) > 1 else durations[0]

        return run


def test_warm_up_is_thrown_away_and_the_rest_is_kept_in_order():
    clock = FakeClock()
    timing = bench.measure(clock.task(9.0, 1.0, 3.0, 2.0), repeats=3, warmup=1, clock=clock)
    assert timing.samples == (1.0, 3.0, 2.0)
    assert (timing.median, timing.best, timing.spread) == (2.0, 1.0, (1.0, 3.0))


def test_without_warm_up_the_first_call_counts():
    clock = FakeClock()
    assert bench.measure(clock.task(9.0, 1.0), repeats=2, warmup=0, clock=clock).samples == (9.0, 1.0)


def test_inner_calls_are_one_sample_given_per_call():
    clock = FakeClock()
    timing = bench.measure(clock.task(1.0, 2.0, 4.0), repeats=1, warmup=0, inner=4, clock=clock)
    assert timing.samples == ((1 + 2 + 4 + 4) / 4,)


def test_a_budget_ends_sampling_after_one_sample_at_least():
    clock = FakeClock()
    assert len(bench.measure(clock.task(1.0), repeats=100, budget_s=3.5, clock=clock).samples) == 4
    assert len(bench.measure(clock.task(1.0), repeats=100, budget_s=0.0, clock=clock).samples) == 1


def test_quartiles_of_known_samples():
    timing = bench.Timing((5.0, 1.0, 3.0, 2.0, 4.0))
    assert timing.iqr == np.subtract(*np.percentile(timing.samples, [75, 25]))
    assert bench.Timing((1.0,)).iqr == 0.0


def test_units():
    timing = bench.Timing((2.0, 4.0, 6.0))
    assert timing.per(2).samples == (1.0, 2.0, 3.0)
    assert timing.rate(10) == 2.5
    assert str(timing) == "4 s (2–6, n = 3)"
    assert str(bench.Timing((0.0123,))).startswith("12.3 ms")
    assert str(bench.Timing((2e-9,))).startswith("0.002 µs")


def test_compare_takes_turns_so_that_drift_hits_all_alike():
    """A machine that slows down by 1 s a call: measured one after the other, b would look 4 s slower than a."""
    clock, calls = FakeClock(), []

    def slowing(name):
        def run():
            calls.append(name)
            clock.now += len(calls)

        return run

    timings = bench.compare({"a": slowing("a"), "b": slowing("b")}, repeats=4, warmup=0, clock=clock)
    assert "".join(calls) == "abba" * 2
    assert timings["a"].samples == (1, 4, 5, 8) and timings["b"].samples == (2, 3, 6, 7)
    assert sum(timings["a"].samples) == sum(timings["b"].samples)


def test_compare_stops_after_a_whole_round():
    clock = FakeClock()
    timings = bench.compare({"a": clock.task(1.0), "b": clock.task(1.0)}, 50, budget_s=3.0, clock=clock)
    assert {name: len(t.samples) for name, t in timings.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_off_while_timing_and_as_before_afterwards(was_on):
    seen = []
    (gc.enable if was_on else gc.disable)()
    try:
        bench.measure(lambda: seen.append(gc.isenabled()), repeats=2)
        with pytest.raises(ZeroDivisionError):
            bench.measure(lambda: 1 / 0)
        assert seen == [False] * 3 and gc.isenabled() == was_on
    finally:
        gc.enable()


def test_threads_are_given_back_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), bench.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_gpu_is_waited_for_before_each_reading(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))

    def clock():
        order.append("read")
        return 0.0

    bench.measure(lambda: order.append("work"), repeats=1, warmup=0, clock=clock)
    assert order == ["wait", "read", "work", "wait", "read"]


KIB = 256  # fp32 numbers


def test_peak_memory_is_of_what_lives_at_once():
    def work():
        first = torch.zeros(16 * KIB)
        second = first + 1
        del first
        third = second * 2  # where the first was
        del second, third
        torch.zeros(8 * KIB)

    assert bench.peak_memory(work) == 32 * 1024
    assert bench.peak_memory(work) == 32 * 1024  # memory that an allocator kept is no less needed


def test_peak_memory_counts_no_views_nothing_in_place_and_nothing_from_before():
    old = torch.zeros(16, KIB)

    def work():
        old.add_(1)[3:].t()
        torch.mul(old, 2, out=old)
        return [part.exp() for part in old.split(4)]  # 4 KiB each, all kept

    assert bench.peak_memory(work) == 16 * 1024


def test_peak_memory_of_many_results_at_once():
    assert (
        bench.peak_memory(lambda: torch.zeros(2, KIB).max(0)) == 2048 + 1024 + 2048
    )  # values, and places in int64


# -- generation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cache", ["static", "dynamic", lambda model, rows, capacity: DynamicCache.for_model(model, rows)]
)
def test_generation_counts_the_first_token_to_the_prefill(cache):
    clock = FakeClock()
    model = Llama(TINY).eval()
    plain = model.hidden
    shapes = []

    def slow(tokens, pos=None, cache=None):
        shapes.append(tuple(tokens.shape))
        clock.now += 10.0 if tokens.shape[1] > 1 else 1.0
        return plain(tokens, pos, cache)

    model.hidden = slow
    run = bench.generation(model, 5, 4, batch=2, cache=cache, repeats=2, warmup=1, clock=clock)
    assert shapes == [(2, 5), (2, 1), (2, 1), (2, 1)] * 3
    assert run.prefill.samples == (10.0, 10.0) and run.decode.samples == (1.0,) * 6
    assert (run.ttft, run.tpot, run.prefill_rate, run.decode_rate) == (10.0, 1.0, 1.0, 2.0)
    assert run.dtype == "float32"


def test_generation_of_one_token_has_no_decode():
    run = bench.generation(Llama(TINY).eval(), 3, 1, repeats=1, warmup=0)
    assert run.decode is None
    with pytest.raises(ValueError, match="two or more"):
        _ = run.tpot


def test_generation_up_to_the_last_position():
    run = bench.generation(
        Llama(TINY).eval(), 29, 4, repeats=1, warmup=0
    )  # the last token is not fed back: 32 used
    assert len(run.decode.samples) == 3


# -- evidence ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path / "evidence"))
    return tmp_path / "evidence"


def test_evidence_comes_back_with_its_machine(folder):
    data = {
        "timing": bench.Timing((1.0, 2.0)),
        "rate": np.float32(0.5),
        "tensor": torch.tensor([1, 2]),
        "ids": {2, 0},
    }
    path = bench.evidence("speed-1", data, command="make bench", seed=3)
    assert path == folder / "speed-1.json" and [p.name for p in folder.iterdir()] == ["speed-1.json"]
    record = bench.load_evidence("speed-1")
    assert record["data"]["timing"] == {
        "samples": [1.0, 2.0],
        "median": 1.5,
        "spread": [1.0, 2.0],
        "iqr": 0.5,
    }
    assert (
        record["data"]["rate"] == 0.5
        and record["data"]["tensor"] == [1, 2]
        and record["data"]["ids"] == [0, 2]
    )
    assert record["command"] == "make bench" and record["seed"] == 3
    assert record["threads"] == torch.get_num_threads() and record["versions"]["torch"] == torch.__version__
    assert {"date", "cpu", "gpu", "note", "device"} <= record.keys()


def test_absent_evidence_says_what_to_do(folder):
    with pytest.raises(bench.NoEvidence, match="make bench"):
        bench.load_evidence("nothing")


def test_damaged_evidence_says_so(folder):
    folder.mkdir()
    (folder / "cut.json").write_text('{"data": [1, ')
    with pytest.raises(ValueError, match="damaged"):
        bench.load_evidence("cut")


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1: object()}])
def test_what_cannot_be_read_back_is_refused_and_the_old_file_stays(folder, value):
    bench.evidence("kept", 1)
    with pytest.raises(ValueError, match="kept"):
        bench.evidence("kept", {"value": value})
    assert bench.load_evidence("kept")["data"] == 1 and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "secret", [str(Path.home()), os.getcwd(), f"{Path.home()}/x/y.txt", "box-17.example"]
)
def test_evidence_names_no_host_and_no_folder_of_its_user(folder, monkeypatch, secret):
    monkeypatch.setattr(socket, "gethostname", lambda: "box-17.example")
    with pytest.raises(ValueError, match="take it out"):
        bench.evidence("private", {"file": f"read from {secret}"})
    assert not folder.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Über", "a.json"])
def test_evidence_names_cannot_leave_the_folder(folder, name):
    with pytest.raises(ValueError, match="lower-case"):
        bench.evidence(name, 1)
    with pytest.raises(ValueError, match="lower-case"):
        bench.load_evidence(name)


def test_a_failed_write_leaves_the_old_file_and_no_litter(folder, monkeypatch):
    bench.evidence("kept", 1)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        bench.evidence("kept", 2)
    assert [p.name for p in folder.iterdir()] == ["kept.json"] and bench.load_evidence("kept")["data"] == 1


def test_an_installed_package_reads_the_data_files_of_its_wheel(tmp_path, monkeypatch):
    """In Colab there is no checkout: the wheel put the JSON under share/lumen/evidence."""
    monkeypatch.delenv("LUMEN_EVIDENCE", raising=False)
    monkeypatch.setattr(published, "repository", lambda: None)
    file = tmp_path / "share" / "lumen" / "evidence" / "speed.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"data": 42}))

    class Entry:
        def as_posix(self):
            return "../../../share/lumen/evidence/speed.json"

        def locate(self):
            return file

    monkeypatch.setattr(published.importlib.metadata, "files", lambda name: [Entry()])
    assert bench.load_evidence("speed")["data"] == 42
    with pytest.raises(ValueError, match="LUMEN_EVIDENCE"):
        bench.evidence("speed", 1)


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: bench.Timing(()),
        lambda: bench.Timing((1.0,)).per(0),
        lambda: bench.measure(lambda: 0, repeats=0),
        lambda: bench.measure(lambda: 0, warmup=-1),
        lambda: bench.measure(lambda: 0, inner=0),
        lambda: bench.compare({}),
        lambda: bench.threads(0).__enter__(),
        lambda: bench.generation(Llama(TINY), 0, 1),
        lambda: bench.generation(Llama(TINY), 30, 4),
        lambda: bench.generation(Llama(TINY), 3, 1, cache="paged"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(call):
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        call()


def test_token_times_holds_prefill_first_and_what_comes_between():
    """On a clock that counts the forward passes, the times are exact."""
    from tests.tiny import tiny_llama

    model, ticks = tiny_llama(), [0.0]
    plain = model.hidden

    def hidden(tokens, *args):
        ticks[0] += tokens.shape[1]
        return plain(tokens, *args)

    model.hidden = hidden

    def interrupt(step):
        if step == 2:
            hidden(torch.zeros(1, 10, dtype=torch.long))

    times = bench.token_times(model, [3, 0, 4], 4, interrupt, clock=lambda: ticks[0])
    assert times == [3, 4, 15, 16]
    for prompt, tokens in (([], 3), ([1], 0)):
        with pytest.raises(ValueError, match="one token"):
            bench.token_times(model, prompt, tokens)
    with pytest.raises(ValueError, match="positions"):
        bench.token_times(model, [1], 10_000)
