"""Benchmarks run rarely, so a name that moved is noticed late: each is imported here, and what reaches into the engine
runs on a tiny model."""

import importlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lumen.bench.needle import ask, needles
from lumen.cache import EvictingCache
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


def test_a_script_that_takes_more_than_ten_minutes_is_none_of_make_bench(benchmark):
    """The Makefile's list is what the scripts say of themselves behind their first command."""
    words = dict(zip(("two", "three", "five", "eight", "ten"), (2, 3, 5, 8, 10), strict=True)) | {"half": 30}
    long = set()
    for path in FOLDER.glob("*.py"):
        told = re.search(
            rf"^    python benchmarks/{path.name} +(.*\n?.*)", benchmark(path.stem).__doc__, re.M
        )
        for number, unit in re.findall(
            r"(\w+) (minutes|an hour|hours)", told[1].split("--quick")[0] if told else ""
        ):
            takes = int(number) if number.isdigit() else words.get(number, 0)
            if takes * (60 if unit == "hours" else 1) > 10 or f"{unit} each" in told[1]:
                long.add(path.stem)
    listed = re.search(r"^LONG +:= (.*)$", (FOLDER.parent / "Makefile").read_text("utf8"), re.M)
    assert "smaller_cache" in long and set(listed[1].split()) == long


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


def test_smaller_caches_that_keep_everything_predict_as_the_full_one(benchmark):
    """One row a kind and share; codes and rules alike are compared with the full cache on the same stretches."""
    script, model = benchmark("smaller_cache"), tiny_llama(max_positions=128)
    blocks = [[(7 * i + j) % 97 for i in range(32)] for j in range(3)]
    sizes = script.Sizes(prompt=24, scored=8, stretch=4, shares=(1.0,))
    rows = list(script.perplexities(model, blocks, ["int8", "window", "quest", *script.RULES], sizes))
    assert [row["kind"] for row in rows] == ["full", "int8", "window", "quest", *script.RULES]
    for row in rows:
        assert len(row["losses"]) == 6 and row["ratio"].n == 6
        assert row["ratio"].value == pytest.approx(1, abs=0.03 if row["kind"] == "int8" else 1e-5)
    less = script.Sizes(prompt=24, scored=8, stretch=4, shares=(0.2,))
    by_kind = {
        row["kind"]: row for row in script.perplexities(model, blocks, ["quest", "h2o", "snapkv"], less)
    }
    for row in by_kind.values():
        apart = row["perplexity"].value / by_kind["full"]["perplexity"].value
        assert row["ratio"].value == pytest.approx(apart) and (row["kind"] == "full") == (apart == 1)
    assert by_kind["h2o"]["bytes"]["held"] < 0.3 < by_kind["snapkv"]["bytes"]["held"]
    assert by_kind["quest"]["bytes"]["read"] < 1 < by_kind["quest"]["bytes"]["held"]


@pytest.mark.parametrize("seen", [True, False])
def test_needles_of_one_reading_are_answered_as_if_each_rule_had_read_them(benchmark, tokenizer, seen):
    script, model = benchmark("smaller_cache"), tiny_llama(vocab_size=49152, max_positions=256)
    hay, only = [300 + i * i % 4001 for i in range(500)], ["h2o", "snapkv", "random"]
    sizes = script.Sizes(lengths=(110,), depths=(0.1, 0.9), count=2, shares=(0.5,))
    rows = {
        row["kind"]: row
        for row in script.hidden_needles(model, tokenizer, hay, only, sizes)
        if row["question_seen"] == seen
    }
    assert set(rows) == {*only, "told", *(["full"] if seen else [])}
    asked = [n for depth in sizes.depths for n in needles(tokenizer, hay, 110, depth, 2, script.SEED)]

    def make(model, rows, positions):
        return EvictingCache.for_model(model, rows, 55, script.RULES[name](55), "prompt")

    for name in only:
        answers = ask(model, asked, make, question_seen=seen, batch=2)
        assert rows[name]["logprobs"] == pytest.approx([logprob for _, logprob in answers], rel=1e-5)


def test_published_pairs_are_judged_by_the_needles_own_interval(benchmark, monkeypatch):
    script = benchmark("smaller_cache")
    monkeypatch.setitem(script.PUBLISHED, "kept", {0.5: {"a": 60, "b": 50, "c": 48.5, "d": 9}})
    logprobs = {
        "a": [-1.0, -2.0, -1.5],
        "b": [-3.0, -4.0, -3.6],
        "c": [-0.1, -9.0, -1.0],
        "d": [-1.5, -2.7, -2.0],
    }
    rows = [
        {"kind": kind, "share": 0.5, "question_seen": seen, "right": [kind == "b", False], "logprobs": part}
        for kind, each in logprobs.items()
        for seen, part in ((False, each[:2]), (False, each[2:]), (True, each))
    ]
    for row in rows:
        row["right"] = row["right"][:1] * len(row["logprobs"])
    (found,) = script.ranking(script.pooled(rows))
    assert found["order"] == ["b", "a", "d", "c"] and found["published"] == ["a", "b", "c", "d"]
    verdicts = {(better, worse): verdict for better, worse, _, verdict in found["pairs"]}
    assert verdicts == {
        ("a", "b"): "agrees", ("a", "c"): "open", ("a", "d"): "agrees", ("b", "d"): "reversed", ("c", "d"): "open",
    }  # fmt: skip


def test_attention_alone_computes_the_same_products_in_pieces_and_in_the_caches(benchmark):
    """16, 4 and 1 stored heads: as many keys a query, and a row that the page can read."""
    fewer = benchmark("fewer_kv_heads")
    shapes = {name: fewer.SHAPES[name] for name in ("mha", "gqa4", "mqa")}
    rows = fewer.attention(shapes, 2 * fewer.PIECE, rounds=1, last_cache=0)
    assert [row["name"] for row in rows] == list(shapes) and {row["flops"] for row in rows} == {
        4 * 16 * 64 * 2048
    }
    assert all(
        row[kind].value > 0 for row in rows for kind in ("whole", "pieces", "kept", "memory_over_caches")
    )
