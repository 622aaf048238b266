"""One quantity, one number: what the stored notebooks quote is what the measurement store holds, and other evidence
that happens to measure the same thing agrees with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lumen import bench
from lumen.bench import Name, NoEvidence
from lumen.explore.prose.last_cell import MIME
from tests.book.not_yet import OLDER_STORE, STALE

ROOT = Path(__file__).parents[2]
# Chapters without `provenance` in their last cell. Each must lack it, so a chapter that has it leaves the list.
NOT_YET: set[str] = set()
NEAR = 0.10  # how far a second measurement of a quantity may lie from the store's: other minutes, other neighbours


def step(batch: int, context: int, cache: str = "static") -> Name:
    return Name("smollm2-135m", "decode", batch, context, cache=cache)


def prefill(prompt: int, batch: int = 1) -> Name:
    return Name("smollm2-135m", "prefill", batch, prompt)


# Evidence that has another clock run over a quantity of the store: (file, what it is, where, the quantity).
# Answers of 64 tokens behind a prompt of 32 see 33 to 96 positions, 64 in the middle.
Find = Callable[[Any], float]
ALSO: list[tuple[str, str, Find, Name]] = [
    ("vs_hf", "our decode", lambda d: d["rows"]["decode"]["lumen"]["median"], step(1, 64)),
    ("vs_hf", "our decode of 8", lambda d: d["rows"]["decode, 8 sequences"]["lumen"]["median"], step(8, 64)),
    ("vs_hf", "our prefill", lambda d: d["rows"]["prefill of 512"]["lumen"]["median"], prefill(512)),
    ("batching_peers", "our step of 8", lambda d: d["samples"]["lumen"]["median"], step(8, 64)),
    ("server_overhead", "the model's step of 8", lambda d: d["summary"]["model_step"], step(8, 64)),
]


def store() -> dict[str, Any] | None:
    """The published measurements, None when there are none yet."""
    try:
        return json.loads((ROOT / "book/evidence/measurements.json").read_text("utf8"))["data"]
    except FileNotFoundError:
        return None


def records(notebook: Path) -> list[dict[str, Any]]:
    """What a stored notebook says that it quoted."""
    cells = json.loads(notebook.read_text("utf8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]


def differences(record: dict[str, Any], published: dict[str, Any] | None) -> list[str]:
    """Where a notebook and the store give two values for one quantity, a sentence each."""
    if not record["quantities"]:
        return []
    if published is None:
        return [
            "it quotes measurements, and book/evidence/measurements.json does not exist; run `make publish`"
        ]
    if record["machine"] != published["key"]:
        return [f"it ran on {record['machine']}, the store on {published['key']}; run `make publish`"]
    found = []
    for text, quoted in record["quantities"].items():
        kept = published["quantities"].get(text)
        if kept is None:
            found.append(f"{text}: quoted as {1e3 * quoted['seconds']:.4g} ms, and not in the store")
        elif kept["median"] != quoted["seconds"]:
            found.append(
                f"{text}: {1e3 * quoted['seconds']:.4g} ms here, {1e3 * kept['median']:.4g} ms in the store"
            )
    return found


CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
NOTEBOOKS = [*CHAPTERS, *sorted((ROOT / "solutions").glob("[0-9]*.ipynb"))]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_says_what_it_quoted(path):
    found = records(path)
    if f"chapters/{path.stem}" in STALE:
        return
    if path.stem in NOT_YET:
        assert not found, f"{path.stem} has its provenance: take it off NOT_YET"
    else:
        assert len(found) == 1, "its last cell is lumen.explore.provenance(session, ...)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_what_a_notebook_quotes_is_what_the_store_holds(path):
    name, found = f"{path.parent.name}/{path.stem}", []
    if name not in STALE:
        found = [line for record in records(path) for line in differences(record, store())]
    assert bool(found) == (name in OLDER_STORE), found


def test_not_yet_names_chapters_that_exist():
    assert {path.stem for path in CHAPTERS} >= NOT_YET


@pytest.mark.parametrize(
    ("evidence", "what", "find", "name"), ALSO, ids=lambda x: x if isinstance(x, str) else ""
)
def test_other_evidence_agrees_with_the_store(evidence, what, find, name):
    published = store()
    if published is None:
        pytest.skip("nothing is published in the store yet: make publish")
    try:
        record = bench.load_evidence(evidence)
    except NoEvidence:
        pytest.skip(f"{evidence} is not published")
    machine = published["key"]["device"]
    if record["cpu"] != machine:
        pytest.skip(f"{evidence} was measured on another machine: {record['cpu']}, the store on {machine}")
    theirs = find(record["data"])
    named = {
        replace(Name.parse(text), kernel="default"): entry for text, entry in published["quantities"].items()
    }
    kept = named.get(name)
    assert kept is not None, f"{name} is not in the store: book/tools/publish.py measures it"
    ours = kept["median"]
    assert abs(theirs / ours - 1) <= NEAR, (
        f"two values for {name.short()}: {1e3 * theirs:.1f} ms ({what} in {evidence}.json), "
        f"{1e3 * ours:.1f} ms in the store"
    )


def test_every_entry_of_the_store_is_a_measurement():
    published = store()
    if published is None:
        pytest.skip("nothing is published in the store yet: make publish")
    for text, entry in published["quantities"].items():
        assert str(Name.parse(text)) == text
        assert bench.Timing(tuple(entry["samples"])).median == entry["median"], text
        if not STALE:  # until a publication went through as a whole, pages show what speaks against a number
            assert not entry.get("note"), f"{text} was published although {entry['note']}"


RECORD = {"machine": {"device": "a"}, "quantities": {str(step(1, 64)): {"seconds": 0.034}}}
KEPT = {"key": {"device": "a"}, "quantities": {str(step(1, 64)): {"median": 0.034}}}


@pytest.mark.parametrize(
    ("record", "held", "reason"),
    [
        (RECORD, KEPT, None),
        (RECORD, None, "does not exist"),
        (RECORD, KEPT | {"key": {"device": "b"}}, "it ran on"),
        (RECORD, KEPT | {"quantities": {}}, "not in the store"),
        (
            RECORD,
            KEPT | {"quantities": {str(step(1, 64)): {"median": 0.0351}}},
            "34 ms here, 35.1 ms in the store",
        ),
        (RECORD | {"quantities": {}}, None, None),
    ],
)
def test_two_values_are_found(record, held, reason):
    found = differences(record, held)
    assert (found == []) if reason is None else (len(found) == 1 and reason in found[0])


def test_a_record_is_read_from_a_stored_notebook(tmp_path):
    output = {"output_type": "display_data", "data": {MIME: RECORD, "text/plain": ["x"]}}
    cell = {"cell_type": "code", "outputs": [output]}
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, cell]}))
    assert records(path) == [RECORD]
