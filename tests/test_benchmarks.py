"""Benchmarks run rarely, so a name that moved is noticed late: each is imported here, and what reaches into the engine
runs on a tiny model."""

import importlib
import sys
from pathlib import Path

import pytest

from lumen.io.tokenizer import CharTokenizer
from lumen.loadgen.prompts import Prompt
from tests.tiny import tiny_llama

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_benchmark_is_imported(benchmark, name):
    assert benchmark(name).__doc__


def test_the_parts_of_an_engine_step_are_timed(benchmark):
    overhead = benchmark("server_overhead")
    letters = CharTokenizer("".join(chr(0x4E00 + i) for i in range(97)))
    model = tiny_llama(eos_ids=())
    steps = overhead.direct(
        model, letters, [Prompt("\u4e05\u4e06\u4e07", 3, 6) for _ in range(overhead.STREAMS)]
    )
    assert steps and all(set(step) == {"step", *overhead.PARTS} for step in steps)
    assert all(
        0 < seconds < step["step"] for step in steps for part, seconds in step.items() if part != "step"
    )
