"""The last cell of a chapter says what its numbers are, to a reader and to the test that compares all notebooks."""

from __future__ import annotations

import json

import pytest

import lumen.explore
from lumen import bench
from lumen.bench import Name, Timing
from lumen.explore.prose import last_cell
from lumen.hardware import Chip

STEADY = Timing((0.0340, 0.0341, 0.0342, 0.0340, 0.0341, 0.0342, 0.0340))
CHIP = Chip(
    "AMD EPYC 9R14 with a long name, 2 threads",
    {"fp32": 1e12},
    34.9e9,
    8e9,
    note="torch 2.13; the faster of two",
)
SESSION = "01_prefill_decode: AMD EPYC · 2 threads · float32 · Python 3.11.7 · lumen-inference 0.1.0 · torch 2 · seed 0"


@pytest.fixture
def shown(monkeypatch):
    bundles = []
    monkeypatch.setattr(last_cell, "display", lambda bundle, raw: bundles.append(bundle))
    monkeypatch.setattr(last_cell, "kept", lambda: CHIP)
    return bundles


def test_text_and_json_hold_what_was_quoted(shown):
    names = [
        Name("smollm2-135m", "decode", 8, 1024, cache="paged"),
        Name("smollm2-135m", "prefill", context=512),
    ]
    for name in names:
        bench.quantity(name, lambda: STEADY)
    bench.evidence("peers", {"x": 1})
    lumen.explore.provenance(SESSION, ["peers", "gone"], notes=["lengths are log-normal with seeds 0, 1, 2"])
    (bundle,) = shown
    text, record = bundle["text/plain"], json.loads(json.dumps(bundle[last_cell.MIME]))
    assert list(record["quantities"]) == list(map(str, names))
    assert record["quantities"][str(names[0])] == {
        "seconds": STEADY.median, "low": 0.0340, "high": 0.0342, "n": 7, "date": bench.quoted()[0].date,
    }  # fmt: skip
    assert record["machine"]["threads"] >= 1 and set(record["evidence"]) == {"peers", "gone"}
    for words in (
        "34.1 ms (34.0 to 34.2, n = 7)",
        "paged",
        "34.9 GB/s",
        "peers.json",
        "gone is not here",
        "seeds 0, 1, 2",
    ):
        assert words in " ".join(text.split())


def test_no_line_is_longer_than_the_page(shown):
    bench.quantity(Name("smollm2-135m", "decode"), lambda: STEADY)
    bench.quantity(
        Name("a-model-with-a-long-name", "decode", 128, 100000, "bf16", "onednn-tiles", "paged"),
        lambda: STEADY,
    )
    noisy = Timing((1.0, 2.0, 3.0, 1.0, 2.0, 3.0))
    assert bench.quantity(Name("smollm2-135m", "prefill", context=7), lambda: noisy).note
    lumen.explore.provenance(SESSION, ["gone"], notes=["many words " * 20])
    lines = shown[0]["text/plain"].splitlines()
    assert max(map(len, lines)) <= 76
    assert any("doubtful" in line for line in lines)


def test_nothing_quoted_is_said_without_a_table(shown):
    lumen.explore.provenance(SESSION)
    assert "store" not in shown[0]["text/plain"] and shown[0][last_cell.MIME]["quantities"] == {}
