"""Published chips are checked for what can be checked without the datasheet; the measured one for its keeping."""

from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen import hardware
from lumen.hardware import CHIPS, Achieved, Chip, at, measured, probes, ridge


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_a_published_chip_says_where_its_numbers_come_from(chip):
    assert re.search(r"\b20(19|2\d)\b", chip.source), "a source has a year"
    assert chip.kind in ("datasheet", "estimate")
    assert chip.overhead_s == 0 and not chip.achieved, "a datasheet is a bound"
    assert 1e11 < chip.bandwidth < 1e13 and 1e10 < chip.memory < 1e12
    assert all(1e12 < rate < 2e16 for rate in chip.flops.values())
    if chip.price_per_hour is not None:
        assert "estimate" in chip.price_source and re.search(r"\b20\d\d\b", chip.price_source)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_rates_are_dense(chip):
    """Half the bits is at most twice the rate; a sparse headline in one column would show as four times."""
    for wide, narrow in (("bf16", "fp8"), ("bf16", "int8"), ("fp8", "fp4"), ("tf32", "bf16")):
        if wide in chip.flops and narrow in chip.flops:
            ratio = chip.flops[narrow] / chip.flops[wide]
            assert 1.9 < ratio < 2.1 or (chip.name == "RTX 4090" and narrow in ("int8", "bf16"))


def test_ridges_that_everyone_quotes():
    assert ridge(CHIPS["H100 SXM"]) == pytest.approx(295.3, abs=0.1)
    assert ridge(CHIPS["A100 80GB SXM"], torch.bfloat16) == pytest.approx(153.0, abs=0.1)


@given(st.floats(0.5, 4096))
@settings(deadline=None)
def test_a_curve_passes_through_its_points_and_stays_between_them(size):
    curve = ((1, 10.0), (8, 80.0), (64, 100.0))
    assert [at(curve, x) for x, _ in curve] == [pytest.approx(y) for _, y in curve]
    value = at(curve, size)
    assert 10.0 <= value <= 100.0 * (1 + 1e-12)
    if 1 <= size <= 8:
        assert value == pytest.approx(10 * size)  # a power law is a straight line on log-log axes


# -- keeping a measurement ---------------------------------------------------------------------------------------

CURVES = Achieved(((1, 1e9), (512, 9e9)), ((32, 2e9),), ((1, 3e9),), 4e9)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A cache folder of its own, and a measurement that counts its calls and takes no time."""
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))
    monkeypatch.setenv("LUMEN_DEVICE", "cpu")
    calls = []

    def quick(device, name, count, progress):
        calls.append(torch.get_num_threads())
        rates = {"fp32": 9e9}
        return Chip(name, rates, 2e10, 1e10, kind="measured", overhead_s=1e-6, achieved={"fp32": CURVES})

    monkeypatch.setattr(measured, "_measure", quick)
    return calls


def kept_file(tmp_path):
    (path,) = (tmp_path / "chips").iterdir()
    return path


def test_a_measurement_is_made_once_and_comes_back_the_same(machine):
    first = hardware.measure(progress=False)
    assert hardware.measure(progress=False) == first and len(machine) == 1
    hardware.measure(refresh=True, progress=False)
    assert len(machine) == 2


def test_threads_have_their_own_measurement_and_are_given_back(machine):
    before = torch.get_num_threads()
    hardware.measure(threads=before, progress=False)
    hardware.measure(threads=before + 1, progress=False)
    hardware.measure(threads=before + 1, progress=False)
    assert machine == [before, before + 1] and torch.get_num_threads() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("20000000000.0", "-1.0"),
        lambda text: text.replace("20000000000.0", "0.0"),
        lambda text: text.replace("20000000000.0", '"fast"'),
        lambda text: text.replace('"matmul"', '"mutmal"'),
        lambda text: json.dumps(json.loads(text) | {"key": {"device": "another"}}),
        lambda text: b"\xff\xfe".decode("latin1"),
    ],
    ids=["cut", "list", "empty", "negative", "zero", "text", "renamed", "another machine", "noise"],
)
def test_a_damaged_file_is_measured_again_with_a_sentence(machine, tmp_path, damage):
    first = hardware.measure(progress=False)
    path = kept_file(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match="measuring this machine again"):
        assert hardware.measure(progress=False) == first
    assert len(machine) == 2
    assert hardware.measure(progress=False) == first and len(machine) == 2, "the file was mended"


def test_a_cache_folder_that_cannot_be_written_costs_a_warning_only(machine, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="LUMEN_CACHE"):
        assert hardware.measure(progress=False).bandwidth == 2e10


# -- the probes, on a machine too small to take long --------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(probes, "beyond_cache", lambda device: 2**22)
    monkeypatch.setattr(probes, "measure", lambda fn, *_, **__: _once(fn))
    monkeypatch.setattr(
        probes, "compare", lambda fns, *_, **__: {name: _once(fn) for name, fn in fns.items()}
    )


def _once(fn):
    from lumen import bench

    return bench.measure(fn, repeats=1, warmup=0)


def test_every_probe_gives_a_rate_of_a_real_machine(small):
    """Between a thousandth of and a thousand times a laptop: a wrong factor of a million in a unit would show."""
    cpu = torch.device("cpu")
    with torch.inference_mode():
        curves = probes.achieved(cpu, torch.float32, (1, 3))
        reads = probes.read_bandwidth(cpu)
        overhead = probes.operator_overhead(cpu, torch.float32)
    assert [rows for rows, _ in curves.matmul] == [1, 3]
    rates = [rate for curve in (curves.matmul, curves.attention, curves.cache_read) for _, rate in curve]
    assert all(1e7 < rate < 1e13 for rate in [*rates, curves.elementwise, *reads.values()])
    assert 1e-7 < overhead < 1e-2


def test_products_are_timed_with_the_kernel_that_a_loaded_model_runs(small, monkeypatch):
    """Weights made under inference mode are not packed; a probe that made such ones would time another kernel."""
    from lumen.models import linear

    if not linear.can_pack():
        pytest.skip("this torch has no prepacked linear")
    seen, packed = [], linear.packed
    monkeypatch.setattr(linear, "packed", lambda x, *rest: seen.append(x.shape[0]) or packed(x, *rest))
    with torch.inference_mode():
        probes.matmul_curve(torch.device("cpu"), torch.float32, (1, 8))
    assert set(seen) == {8}


def test_probes_leave_the_caches_of_the_chip_behind():
    assert probes.beyond_cache(torch.device("cpu")) >= 512 * 2**20
