"""A publication measures in turns, judges everything, measures again what refused, and else changes nothing."""

from __future__ import annotations

import os

import publish
import pytest
import torch

from lumen import bench, hardware
from lumen.bench import Name, Timing
from lumen.bench.trust import Load
from lumen.models import Llama, ModelConfig

TINY = ModelConfig("tiny", 97, 2, 36, 9, 3, 4, 40, 64)
JOBS = [("decode", 1, 8, "static"), ("decode", 2, 8, "paged"), ("prefill", 1, 16, "static")]


class Still:
    """A watch over a quiet machine."""

    load = Load(0.0, 0.0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


CHIP = hardware.Chip("c", {"fp32": 1.0}, 1e9, 1e9)


def takes(answer):
    """A `sample` that measures nothing: it calibrates once and gives what `answer` says of each name."""

    def sample(model, names, rounds=1, between=lambda: None):
        between()
        return {name: answer(name) for name in names}

    return sample


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    torch.manual_seed(0)
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(hardware, "measure", lambda refresh=False: CHIP)
    monkeypatch.setattr(publish, "CANONICAL", JOBS)
    monkeypatch.setattr(publish, "floor", lambda model, name: (None, ""))
    monkeypatch.setattr(publish, "wait_until_quiet", lambda seconds: None)
    monkeypatch.setattr(publish, "Watch", Still)
    monkeypatch.setenv("LUMEN_PUBLISH", "1")
    monkeypatch.setenv("LUMEN_BOOK", "1")
    return Llama(TINY).eval().requires_grad_(False)


def steady(seconds=1.0):
    return Timing(tuple(seconds * x for x in (1.0, 1.01, 1.02) * 4))


WILD = Timing((1.0, 2.0, 3.0) * 4)


def test_samples_are_taken_in_turns(tiny, monkeypatch):
    order = []
    for kind in ("Decode", "Prefill"):
        real = getattr(publish, kind)

        class Watched(real):
            def samples(self, count):
                order.append(tuple(self.cache.lengths.tolist()))
                return super().samples(count)

        monkeypatch.setattr(publish, kind, Watched)
    names = [publish.name_of(tiny, *job) for job in JOBS]
    taken = publish.sample(tiny, names, rounds=3)
    assert order == [(7,), (7, 7), (0,), (0,), (7, 7), (7,), (7,), (7, 7), (0,)]
    assert [len(timing.samples) for timing, _ in taken.values()] == [24, 24, 9]


def test_what_was_good_is_published_and_quoted(tiny, monkeypatch):
    monkeypatch.setattr(publish, "sample", takes(lambda name: (steady(), Still())))
    assert publish.measure(tiny, 1.0) == []
    record = bench.load_evidence("measurements")
    assert len(record["data"]["quantities"]) == 3 and record["command"] == "make publish"
    assert bench.decode_step(tiny, 1, 8).kept and bench.prefill(tiny, 16).seconds == steady().median


def test_a_publication_starts_the_file_anew(tiny, monkeypatch):
    bench.quantity(Name("old", "decode"), steady)
    monkeypatch.setattr(publish, "sample", takes(lambda name: (steady(), Still())))
    publish.measure(tiny, 1.0)
    assert str(Name("old", "decode")) not in bench.load_evidence("measurements")["data"]["quantities"]


def test_what_refuses_is_measured_again(tiny, monkeypatch):
    rounds = []

    def sample(model, names, rounds_=1, between=lambda: None):
        between()
        rounds.append(list(names))
        bad = len(rounds) < 3
        return {n: (WILD if bad and n.phase == "prefill" else steady(), Still()) for n in names}

    monkeypatch.setattr(publish, "sample", sample)
    assert publish.measure(tiny, 1.0) == []
    assert [len(names) for names in rounds] == [3, 1, 1] and rounds[1][0].phase == "prefill"
    assert len(bench.load_evidence("measurements")["data"]["quantities"]) == 3


def test_what_refuses_every_time_stops_it_and_the_old_file_stands(tiny, monkeypatch):
    bench.quantity(Name("old", "decode"), steady)
    before = bench.load_evidence("measurements")
    monkeypatch.setattr(
        publish,
        "sample",
        takes(lambda name: (WILD if name.batch == 2 else steady(), Still())),
    )
    (why,) = publish.measure(tiny, 1.0)
    assert "batch 2" in why and "scatters" in why
    assert bench.load_evidence("measurements") == before


def test_an_interrupted_publication_leaves_the_old_file(tiny, monkeypatch):
    bench.quantity(Name("old", "decode"), steady)
    before = bench.load_evidence("measurements")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "sample", stopped)
    with pytest.raises(KeyboardInterrupt):
        publish.measure(tiny, 1.0)
    assert bench.load_evidence("measurements") == before


def test_a_busy_machine_publishes_nothing(monkeypatch, capsys):
    def busy(seconds):
        raise bench.Refused("The machine was not quiet.")

    monkeypatch.setattr(publish, "wait_until_quiet", busy)
    monkeypatch.setattr(publish, "tool", lambda *command: pytest.fail(f"ran {command}"))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert publish.main([]) == 1
    assert "nothing was published:\nThe machine was not quiet." in capsys.readouterr().out


def test_the_machine_is_calibrated_between_the_rounds(tiny, monkeypatch):
    """The calibration of the fastest minute made 24 of 32 forecasts too fast: it is the median of the same minutes."""
    order, rates = [], iter([28, 41, 30])
    real = publish.Decode.samples

    def samples(self, count):
        order.append("step")
        return real(self, count)

    def calibrate(refresh):
        order.append("calibration")
        rate = float(next(rates))
        return hardware.Chip("c", {"fp32": rate}, rate * 1e9, 1e9, overhead_s=1 / rate)

    monkeypatch.setattr(publish, "CANONICAL", JOBS[:1])
    monkeypatch.setattr(publish.Decode, "samples", samples)
    monkeypatch.setattr(hardware, "measure", calibrate)
    monkeypatch.setattr(publish, "judge", lambda model, taken: {})
    assert publish.measure(tiny, 1.0, rounds=6) == []
    assert order == ["calibration", *["step"] * 3] * 2 + ["calibration"]
    chip = hardware.kept()
    assert (chip.bandwidth, chip.flops["fp32"], chip.overhead_s) == (41e9, 41.0, 1 / 30)
