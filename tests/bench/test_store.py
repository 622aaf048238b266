"""A quantity is measured once; nothing that another process kept is lost; a damaged file costs a measurement."""

from __future__ import annotations

import json
import multiprocessing
import time

import pytest

from lumen import bench
from lumen.bench import Name, Refused, Timing, store

NAME = Name("m", "decode", context=64)
STEADY = Timing((1.0, 1.01, 1.02, 1.0, 1.01, 1.02, 1.0))
WILD = Timing((1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0))


def never():
    raise AssertionError("measured although it was kept")


def new_process(monkeypatch):
    """What the next process knows: the file, not the ledger."""
    monkeypatch.setattr(store, "_quoted", {})


def test_it_is_measured_once_per_machine(monkeypatch):
    first = bench.quantity(NAME, lambda: STEADY)
    assert not first.kept and first.seconds == 1.01 and first.ms == 1010
    assert bench.quantity(NAME, never) is first
    new_process(monkeypatch)
    again = bench.quantity(NAME, never)
    assert (
        again.kept
        and again.timing == STEADY
        and again.estimate == first.estimate
        and again.date == first.date
    )


def test_another_machine_measures_for_itself(monkeypatch):
    bench.quantity(NAME, lambda: STEADY)
    new_process(monkeypatch)
    mine = store.machine()
    for other in ({"device": "another"}, {"threads": 77}, {"torch": "9.9"}, {"layout": -1}):
        monkeypatch.setattr(store, "machine", lambda other=other: mine | other)
        assert not bench.quantity(NAME, lambda: STEADY, fresh=False).kept
        new_process(monkeypatch)


def test_a_process_quotes_one_number_whatever_happens_to_the_file(own_store):
    first = bench.quantity(NAME, lambda: STEADY)
    for file in (own_store / "cache/measured").glob("*.json"):
        file.unlink()
    assert bench.quantity(NAME, never) is first


def test_fresh_measures_again_and_replaces(monkeypatch):
    bench.quantity(NAME, lambda: STEADY)
    slower = Timing(tuple(2 * s for s in STEADY.samples))
    assert bench.quantity(NAME, lambda: slower, fresh=True).timing == slower
    new_process(monkeypatch)
    assert bench.quantity(NAME, never).timing == slower


def test_the_ledger_is_in_the_order_of_first_use():
    names = [Name("m", "decode", context=c) for c in (3, 1, 2)]
    for name in [*names, names[0]]:
        bench.quantity(name, lambda: STEADY)
    assert [m.name for m in bench.quoted()] == names


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"key": 1}', "entry", "zero", "name"],
)
def test_a_damaged_file_is_a_sentence_and_a_measurement(damage, own_store, monkeypatch):
    bench.quantity(NAME, lambda: STEADY)
    new_process(monkeypatch)
    (file,) = (own_store / "cache/measured").glob("*.json")
    content = json.loads(file.read_text())
    if damage == "entry":
        content["quantities"][str(NAME)] = {"date": "2026-01-01"}
    elif damage == "zero":
        content["quantities"][str(NAME)]["samples"] = [0.0]
    elif damage == "name":
        content["quantities"]["nonsense"] = content["quantities"][str(NAME)]
    file.write_text(json.dumps(content) if damage in ("entry", "zero", "name") else damage)
    if damage == '{"key": 1}':  # readable, of another machine: no reason to worry anybody
        assert not bench.quantity(NAME, lambda: STEADY).kept
    else:
        with pytest.warns(UserWarning, match="measured again"):
            assert not bench.quantity(NAME, lambda: STEADY).kept
    new_process(monkeypatch)
    assert bench.quantity(NAME, never).kept


def test_a_folder_that_cannot_be_written_costs_a_warning(own_store, monkeypatch):
    (own_store / "file").write_text("")
    monkeypatch.setenv("LUMEN_CACHE", str(own_store / "file"))
    with pytest.warns(UserWarning, match="LUMEN_CACHE"):
        assert bench.quantity(NAME, lambda: STEADY).seconds == 1.01


def test_an_interrupted_write_leaves_the_old_file(own_store, monkeypatch):
    bench.quantity(NAME, lambda: STEADY)

    def broken(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lumen.bench.published.os.replace", broken)
    with pytest.warns(UserWarning, match="No space left"):
        bench.quantity(Name("m", "decode", context=65), lambda: STEADY)
    files = [p for p in (own_store / "cache/measured").iterdir() if p.suffix != ".lock"]
    assert len(files) == 1 and list(json.loads(files[0].read_text())["quantities"]) == [str(NAME)]


def _crowd(who: int, together) -> None:
    together.wait()
    for i in range(5):
        store.current().add(store.Measured(Name("m", f"p{who}", context=1 + i), STEADY, "2026-01-01"))


def test_two_processes_at_once_lose_nothing(monkeypatch):
    """Three processes add five entries each to one file. A write takes 20 ms behind its read here, so that without the
    lock they would take turns at losing the others' entries."""
    write = store.Store._write
    monkeypatch.setattr(store.Store, "_write", lambda self, entries: (time.sleep(0.02), write(self, entries)))
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(3)
    crowd = [fork.Process(target=_crowd, args=(who, together)) for who in range(3)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(60)
        assert process.exitcode == 0
    assert len(store.current().all()) == 15


def _slow(folder, together, answers) -> None:
    def measure():
        with open(folder / "measured", "a") as file:
            file.write("x")
        time.sleep(0.5)
        return Timing((time.time(),) * 6)

    together.wait()
    answers.put(bench.quantity(NAME, measure).seconds)


def test_two_processes_that_want_the_same_measure_it_once(own_store):
    fork = multiprocessing.get_context("fork")
    together, answers = fork.Barrier(2), fork.Queue()
    both = [fork.Process(target=_slow, args=(own_store, together, answers)) for _ in range(2)]
    for process in both:
        process.start()
    one, other = answers.get(timeout=60), answers.get(timeout=60)
    for process in both:
        process.join(60)
    assert one == other and (own_store / "measured").read_text() == "x"


def test_a_measurement_may_ask_for_another_one():
    inner = Name("m", "inner")

    def measure():
        return bench.quantity(inner, lambda: STEADY).timing

    assert bench.quantity(NAME, measure).timing == STEADY
    assert [m.name for m in bench.quoted()] == [inner, NAME]


def test_for_the_book_the_store_is_the_evidence(own_store, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    bench.quantity(NAME, lambda: STEADY)
    record = bench.load_evidence("measurements")
    assert {"device", "versions", "command", "threads", "cpu"} <= set(record)
    assert record["data"]["quantities"][str(NAME)]["samples"] == list(STEADY.samples)
    assert not list((own_store / "cache/measured").glob("*.json"))
    new_process(monkeypatch)
    assert bench.quantity(NAME, never).kept


def test_the_evidence_names_nothing_private(own_store, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    monkeypatch.setattr(store, "machine", lambda: {"device": str(own_store.home()), "threads": 1})
    with pytest.raises(ValueError, match="would publish"):
        bench.quantity(NAME, lambda: STEADY)


def test_on_another_machine_the_published_numbers_stay(monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    bench.quantity(NAME, lambda: STEADY)
    before = bench.load_evidence("measurements")
    new_process(monkeypatch)
    monkeypatch.setattr(store, "machine", lambda: {"device": "another", "threads": 1})
    with pytest.warns(UserWarning, match="make publish"):
        assert not bench.quantity(NAME, lambda: STEADY).kept
    assert bench.load_evidence("measurements") == before
    new_process(monkeypatch)
    monkeypatch.setenv("LUMEN_PUBLISH", "1")  # a publication starts the file anew
    assert not bench.quantity(NAME, lambda: STEADY).kept
    assert bench.load_evidence("measurements")["data"]["key"]["device"] == "another"


def test_a_doubtful_measurement_warns_a_reader_and_refuses_a_publication(monkeypatch):
    kept = bench.quantity(NAME, lambda: WILD)
    assert "scatters" in kept.note
    new_process(monkeypatch)
    assert "scatters" in bench.quantity(NAME, never).note
    other = Name("m", "decode", context=65)
    assert (
        "beats its own bound, 2.00 s (why)"
        in bench.quantity(other, lambda: STEADY, bound_s=2.0, bound="why").note
    )
    new_process(monkeypatch)
    monkeypatch.setenv("LUMEN_PUBLISH", "1")
    with pytest.raises(Refused, match=r"context 64: .* scatters"):
        bench.quantity(NAME, never)  # kept by somebody less strict
    with pytest.raises(Refused, match=r"context 9: .*beats"):
        bench.quantity(Name("m", "decode", context=9), lambda: STEADY, bound_s=2.0)
    assert store.current().get(Name("m", "decode", context=9)) is None
    assert bench.quoted() == []


def test_the_evidence_takes_nothing_doubtful(monkeypatch):
    """A benchmark that measured a cell more, on a busy machine, had put it into the published store."""
    monkeypatch.setenv("LUMEN_BOOK", "1")
    shown = bench.quantity(NAME, lambda: WILD)
    assert shown.note and shown.timing == WILD, "it is shown, with what speaks against it"
    new_process(monkeypatch)
    assert not bench.quantity(NAME, lambda: STEADY).kept
    new_process(monkeypatch)
    assert bench.quantity(NAME, never).timing == STEADY
