"""Benchmarks run rarely, so a name that moved is noticed late: each is imported here, and what reaches into the engine
runs on a tiny model."""

import importlib
import json
import os
import random
import subprocess
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
    """A tenth of a kilobyte for each request, one task, one file, one block in a hundred looks; and noise is none."""
    soak, dice = benchmark("soak"), random.Random(0)
    noise = {"in_use": 2e4, "resident": 3e5, "objects": 50, "python_pieces": 100}

    def looks(late=None, **more):
        still = {"lost_blocks": 0, "tasks": 3, "files": 9, "threads": 2}
        for i in range(100):
            grown = {
                name: 1e8 + more.get(name, 0) * soak.ROUND * i + dice.gauss(0, x) for name, x in noise.items()
            }
            yield still | grown | ((late or {}) if i == 90 else {})

    assert soak.judge(list(looks()))[1] == []
    for more, word in (
        ({"in_use": 100}, "in_use"), ({"resident": 1024}, "resident"), ({"objects": 0.2}, "objects"),
        ({"python_pieces": 0.2}, "python_pieces"), ({"late": {"tasks": 4}}, "tasks"),
        ({"late": {"files": 10}}, "files"), ({"late": {"threads": 43}}, "threads"),
        ({"late": {"lost_blocks": 1}}, "blocks"),
    ):  # fmt: skip
        (fault,) = soak.judge(list(looks(**more)))[1]
        assert word in fault


LEAKS = """
import gc, json, os, random, sys, threading
from memory import in_use, resident
leak, dice, kept, gaps, looks = int(sys.argv[1]), random.Random(0), [], [], []

def serve():
    for _ in range(100):
        used = [os.urandom(dice.randrange(600, 9000)) for _ in range(20)]
        gaps.append(os.urandom(600))  # lies among pieces that go, and keeps its page
        kept.extend([os.urandom(leak)] if leak else [])

for number in range(28):
    gaps.clear()
    worker = threading.Thread(target=serve)  # malloc gives it an arena that is not the main one
    worker.start(), worker.join(), gc.collect()
    looks.append({"in_use": in_use(), "resident": resident(), "python_pieces": sys.getallocatedblocks()})
print(json.dumps(looks))
"""
GAPS = """
import json, os
from memory import in_use, resident
before = in_use(), resident()
small, large = [], []
for _ in range(4000):
    small.append(os.urandom(600))
    large.append(os.urandom(3000))
full = in_use(), resident()
del large
print(json.dumps([after - was for after, was in zip(full + (in_use(), resident()), before * 2)]))
"""


@pytest.fixture
def read(benchmark):
    """What a script prints in a process of its own, whose threads keep no freed pieces; several arenas are allowed."""
    if benchmark("memory").in_use() is None:
        pytest.skip("mallinfo2 is glibc's")
    env = os.environ | {"GLIBC_TUNABLES": benchmark("soak").BOUNDS["GLIBC_TUNABLES"]}

    def run(script, *args):
        command = [sys.executable, "-c", script, *args]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=FOLDER, env=env)
        return json.loads(found.stdout)

    return run


@pytest.mark.parametrize("leak", [0, 2048])
def test_two_kilobytes_kept_for_each_request_are_found(benchmark, read, leak):
    """Not looks that a test made up: a process that keeps them in its threads, the meters, the judge."""
    others = {"lost_blocks": 0, "tasks": 3, "files": 9, "threads": 2, "objects": 1000}
    growth, faults = benchmark("soak").judge([others | look for look in read(LEAKS, str(leak))])
    assert growth["in_use"].value == pytest.approx(leak and leak + 49, abs=20)
    assert [fault.split()[0] for fault in faults] == (["in_use", "python_pieces", "resident"] if leak else [])


def test_gaps_between_pieces_are_resident_and_not_in_use(read):
    """4,000 pieces of 3,000 bytes between as many of 600: freed, they are out of use, and hardly a page is free."""
    used, pages, used_after, pages_after = read(GAPS)
    assert used == pytest.approx(4000 * 3700, rel=0.03) and pages == pytest.approx(used, rel=0.05)
    assert used_after == pytest.approx(4000 * 655, rel=0.05) and pages_after > 0.8 * pages


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
