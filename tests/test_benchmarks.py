"""Benchmarks run rarely, so a name that moved is noticed late: each is imported here, and what reaches into the engine
runs on a tiny model."""

import importlib
import random
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


def test_the_soak_finds_what_stays_behind(benchmark):
    """A kilobyte for each request, one task, one file, one block in a hundred looks; and noise is none."""
    soak, dice = benchmark("soak"), random.Random(0)

    def looks(resident=0.0, objects=0.0, **late):
        still = {"lost_blocks": 0, "tasks": 3, "files": 9, "threads": 2}
        for i in range(100):
            grown = {"resident": 3e8 + resident * soak.ROUND * i + dice.gauss(0, 2e5)}
            grown["objects"] = 1e5 + objects * soak.ROUND * i + dice.randrange(50)
            yield still | grown | (late if i == 90 else {})

    assert soak.judge(list(looks()))[1] == []
    for more, word in (
        ({"resident": 1024}, "resident"), ({"objects": 0.2}, "objects"), ({"tasks": 4}, "tasks"),
        ({"files": 10}, "files"), ({"threads": 43}, "threads"), ({"lost_blocks": 1}, "blocks"),
    ):  # fmt: skip
        (fault,) = soak.judge(list(looks(**more)))[1]
        assert word in fault


def test_the_soak_s_mix_is_what_it_says(benchmark):
    soak, dice = benchmark("soak"), random.Random(1)
    asks = [soak.ask(dice) for _ in range(4000)]
    share = {
        "off": sum(a.after is not None for a in asks), "wrong": sum(a.wrong for a in asks),
        "stream": sum(a.body["stream"] for a in asks),
    }  # fmt: skip
    assert (
        abs(share["off"] - 400) < 100 and abs(share["wrong"] - 200) < 70 and abs(share["stream"] - 2000) < 160
    )


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        (['{"choices":[{"index":0,"finish_reason":"stop"}]}', "{}"], "ended with"),
        (['{"choices":[]}', "[DONE]"], "choices"),
        (['{"choices":[{"index":0,"finish_reason":"abort"}]}', "[DONE]"], "choices"),
    ],
)
def test_the_soak_looks_at_streams(benchmark, pieces, word):
    with pytest.raises(ValueError, match=word):
        benchmark("soak").streamed(pieces, {})


def test_selections_are_compared_on_a_tiny_model(benchmark):
    """Every selection at a budget for all keys catches all of the weight, and the table has a row for each."""
    script, model = benchmark("sparse_recall"), tiny_llama(max_positions=128)
    recipe = script.Recipe(layers=(0, 2), texts=1, length=90, queries=16, steps=1, heads=2, dim=8)
    texts = script.texts_of([i % 97 for i in range(90)], recipe)
    trained, fresh = script.train(model, texts, recipe), script.new_indexers(model, recipe)
    rows = list(script.of_text(model, texts[0], fresh, trained, (128,), queries=5))
    found = script.summary([rows, rows])
    assert len(found) == 9 and len(rows) == 18
    assert all(one["mass"].value == pytest.approx(1, abs=1e-5) and one["top"].value == 1 for one in found)
    assert {one["method"] for one in script.costs(model)} == {"full", "window 512", "NSA", "MoBA", "DSA"}
