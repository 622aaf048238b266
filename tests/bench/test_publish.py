"""A publication measures in turns, judges everything, measures again what refused, and else changes nothing."""

from __future__ import annotations

import os

import publish
import pytest
import torch

from lumen import bench
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


@pytest.fixture
def tiny(monkeypatch):
    torch.manual_seed(0)
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
    monkeypatch.setattr(publish, "sample", lambda model, names: {n: (steady(), Still()) for n in names})
    assert publish.measure(tiny, 1.0) == []
    record = bench.load_evidence("measurements")
    assert len(record["data"]["quantities"]) == 3 and record["command"] == "make publish"
    assert bench.decode_step(tiny, 1, 8).kept and bench.prefill(tiny, 16).seconds == steady().median


def test_a_publication_starts_the_file_anew(tiny, monkeypatch):
    bench.quantity(Name("old", "decode"), steady)
    monkeypatch.setattr(publish, "sample", lambda model, names: {n: (steady(), Still()) for n in names})
    publish.measure(tiny, 1.0)
    assert str(Name("old", "decode")) not in bench.load_evidence("measurements")["data"]["quantities"]


def test_what_refuses_is_measured_again(tiny, monkeypatch):
    rounds = []

    def sample(model, names):
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
        lambda model, names: {n: (WILD if n.batch == 2 else steady(), Still()) for n in names},
    )
    (why,) = publish.measure(tiny, 1.0)
    assert "batch 2" in why and "scatters" in why
    assert bench.load_evidence("measurements") == before


def test_an_interrupted_publication_leaves_the_old_file(tiny, monkeypatch):
    bench.quantity(Name("old", "decode"), steady)
    before = bench.load_evidence("measurements")

    def stopped(model, names):
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


def test_the_roof_is_the_best_of_the_calibrations(monkeypatch, tmp_path):
    """Within ten minutes one machine was calibrated at 28 and at 41 GB/s: a single look is no roof."""
    from lumen import hardware

    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))

    def after(*rates):
        measured = iter([hardware.Chip("c", {"fp32": float(rate)}, rate * 1e9, 1e9) for rate in rates])
        monkeypatch.setattr(hardware, "measure", lambda refresh: next(measured))
        chip = publish.calibrated()
        assert hardware.kept() == chip, "what the notebooks will read"
        return chip.peak("fp32"), chip.bandwidth / 1e9, round(chip.uncertainty["bandwidth"], 3)

    assert after(28, 30, 29.5) == (29.5, 30, 0.017)
    assert after(28, 41, 30, 40) == (40, 41, 0.024)
    assert after(41, 1, 2, 3, 4, 5) == (5, 41, 0.878)  # never near again: the sixth is the last
