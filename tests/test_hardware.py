"""Published chips are checked for what can be checked without the datasheet; the measured one for its keeping."""

from __future__ import annotations

import json
import re
from time import perf_counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen import hardware
from lumen.hardware import CHIPS, Achieved, Chip, at, measured, probes, ridge, starts, working_set
from lumen.hardware.products import Layers
from lumen.hardware.sampling import UNSURE, Budget, Samples


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

CURVES = Achieved(((1, 1e9), (512, 9e9)), ((32, 2e9),), ((1, 3e9),), ((8, 4e9),), ((1, 1e-5),))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A cache folder of its own, and a measurement that counts its calls and takes no time."""
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))
    monkeypatch.setenv("LUMEN_DEVICE", "cpu")
    calls = []

    def quick(device, name, count, progress):
        calls.append(torch.get_num_threads())
        rates = {"fp32": 9e9}
        return Chip(
            name,
            rates,
            2e10,
            1e10,
            kind="measured",
            overhead_s=1e-6,
            cold_overhead=((1, 2e-6),),
            achieved={"fp32": CURVES},
        )

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


def test_what_was_kept_is_read_without_measuring(machine):
    assert hardware.kept() is None and not machine
    assert hardware.measure(progress=False) == hardware.kept() and len(machine) == 1


# -- the budget, on a clock that the test turns ------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        def call():
            self.now += seconds

        return call


def test_a_probe_samples_until_its_share_is_spent():
    clock = Clock()
    budget = Budget(10.0, clock)
    took = budget.each("work", {"a": clock.work(0.01), "b": clock.work(0.03)}, 2.0)
    assert 1.9 < clock.now <= 2.0 and not budget.cut
    assert took["a"].median == pytest.approx(0.01) and took["b"].best == pytest.approx(0.03)
    assert len(took["a"].seconds) == len(took["b"].seconds) > 40


def test_a_slow_machine_takes_fewer_samples_and_says_so():
    """Ten calls of 1 s in a share of 3 s: the first ones, once each, within twice the share."""
    clock = Clock()
    budget = Budget(15.0, clock)
    took = budget.each("many sizes", {n: clock.work(1.0) for n in range(10)}, 3.0)
    assert 0 in took and len(took) < 10 and clock.now <= 2 * 3.0 + 1.0
    assert all(samples.spread == UNSURE for samples in took.values())
    assert any("many sizes" in words for words in budget.cut)


def test_who_overruns_takes_from_those_that_follow():
    clock = Clock()
    budget = Budget(5.0, clock)
    budget.each("slow", {0: clock.work(6.0)}, 1.0)
    took = budget.each("late", {n: clock.work(1.0) for n in range(8)}, 4.0)
    assert list(took) == [0], "the first is always timed, nothing else once the budget is spent"
    assert clock.now <= 8.0


def test_progress_rises_to_the_end_and_never_falls():
    clock, seen = Clock(), []
    Budget(2.0, clock, seen.append).each("work", {0: clock.work(0.5)}, 9.0)
    assert seen == sorted(seen) and seen[0] > 0 and len(set(seen)) >= 3 and seen[-1] <= 1.0


def test_a_call_may_say_which_seconds_count():
    clock = Clock()

    def call():
        clock.now += 1.0
        return 0.25

    took = Budget(10.0, clock).each("part", {0: call}, 5.0)
    assert took[0].median == 0.25 and clock.now <= 5.0


def test_spread_is_half_the_middle_half():
    assert Samples((1.0, 1.0, 1.0, 1.0)).spread == 0
    assert Samples((8.0, 9.0, 10.0, 11.0, 12.0)).spread == pytest.approx(0.1)
    assert Samples((1.0, 1.0)).spread == UNSURE, "two samples that agree prove nothing"


@pytest.mark.parametrize(
    "last, memory, expected",
    [
        (32 * 2**20, 24e9, 512), (80 * 2**20, 24e9, 640), (300 * 2**20, 256e9, 768), (1 << 30, 1e12, 768),
        (300 * 2**20, 4 * 2**30, 512), (32 * 2**20, 2**30, 128), (32 * 2**20, 0.0, 512),
    ],
)  # fmt: skip
def test_the_working_set_is_capped(monkeypatch, last, memory, expected):
    """300 MiB of L3 made it 2.4 GiB, and `measure` 395 s and 5 GB."""
    monkeypatch.setattr(working_set, "last_cache", lambda device: last)
    monkeypatch.setattr(working_set, "memory_bytes", lambda: memory)
    assert working_set.beyond_cache(torch.device("cpu")) == expected * 2**20


@pytest.fixture
def small(monkeypatch):
    """Probes that read little, on layers that are soon multiplied by."""
    from lumen.config import CONFIGS

    for module in (probes, working_set, __import__("lumen.hardware.products", fromlist=["x"])):
        monkeypatch.setattr(module, "beyond_cache", lambda device: 2**22)
        monkeypatch.setattr(
            module,
            "probe_shape",
            lambda device: CONFIGS["smollm2-135m"].with_(hidden_size=64, intermediate_size=96),
        )


class Ticks(Clock):
    """Every look at this clock takes a fixed time: a machine whose speed does not depend on who else is there."""

    def __init__(self, tick):
        super().__init__()
        self.tick, self.first = tick, None

    def __call__(self):
        self.now += self.tick
        return self.now


@pytest.mark.parametrize("tick", [0.03, 0.25])
def test_the_whole_measurement_ends_in_time(small, tick):
    """With calls of 60 ms as of half a second: about 15 s, or up to 30 with fewer samples."""
    clock = Ticks(tick)
    with torch.inference_mode():
        chip = measured._measure(torch.device("cpu"), "some", 2, False, 15.0, clock)
    assert clock.now <= (17.0 if tick == 0.03 else 30.0)
    assert tick == 0.03 or "cut short: " in chip.note
    assert chip.details["seconds"] <= clock.now
    assert chip.overhead_s > 0 and chip.overhead(1e12) > 0 and chip.bandwidth > 0
    known = {
        "bandwidth",
        "overhead",
        "cold overhead",
        "fp32 matmul",
        "fp32 attention",
        "fp32 cache_read",
        "fp32 elementwise",
    }
    assert known <= set(chip.uncertainty) and all(share >= 0 for share in chip.uncertainty.values())


def test_a_cache_too_large_to_leave_behind_is_noted(small, monkeypatch):
    monkeypatch.setattr(working_set, "last_cache", lambda device: 2**22)
    with torch.inference_mode():
        chip = measured._measure(torch.device("cpu"), "some", 2, False, 15.0, Ticks(0.25))
    assert "1.0 times the last cache" in chip.note


# -- the probes, on a machine too small to take long --------------------------------------------------------------


def test_every_probe_gives_a_rate_of_a_real_machine(small):
    """Between a thousandth of and a thousand times a laptop: a wrong factor of a million in a unit would show."""
    cpu = torch.device("cpu")
    with torch.inference_mode():
        curves, products, _ = probes.achieved(
            Layers(cpu, torch.float32), (1, 3, 64), Budget(99.0, Ticks(0.01)), 3.0
        )
        reads = probes.read_bandwidth(cpu, Budget(1.0, Ticks(0.01)), 0.1)
        warm = starts.warm_start(cpu, torch.float32, Budget(1.0, Ticks(0.01)), 0.1)
    assert [rows for rows, _ in curves.matmul] == [1, 3, 64]
    named = (curves.matmul, curves.attention, curves.cache_read, curves.elementwise)
    rates = [rate for curve in named for _, rate in curve] + [1 / samples.best for samples in reads.values()]
    assert all(1e7 < rate < 1e13 for rate in rates)
    assert all(0 <= start < 1e-2 for _, start in curves.matmul_start)
    cold = dict(products.between.curve)
    assert set(cold) == {1, 3} and all(1e-7 < seconds < 1e-2 for seconds in [warm.median, *cold.values()])


def test_products_are_timed_with_the_kernel_that_a_loaded_model_runs(small, monkeypatch):
    """Weights made under inference mode are not packed; a probe that made such ones would time another kernel."""
    from lumen.models import kernels

    if not kernels.can_pack():
        pytest.skip("this torch has no prepacked linear")
    seen, packed = [], kernels.packed
    monkeypatch.setattr(kernels, "packed", lambda layer, x: seen.append(x.shape[0]) or packed(layer, x))
    with torch.inference_mode():
        Layers(torch.device("cpu"), torch.float32).products(Budget(9.0, Ticks(0.01)), 1.0, (1, 8))
    assert set(seen) == {4, 8}, "four rows lay the weights out, before the clock starts"


def test_a_step_keeps_products_and_operators_apart(small):
    """The products' seconds and the operators' seconds are all of the step, and each operator is counted once."""
    layers = Layers(torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        step = starts.Step(2, layers.some(1), torch.empty(()))
        began = perf_counter()
        products = step()
        whole = perf_counter() - began
    between = step.operators_s[-1] * step.count
    assert products > 0 and between > 0 and products + between <= whole
    assert len(step.between) == len(layers.some(1)) and step.count > 10 * len(layers.layers)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "model name\t: Intel(R) Xeon(R)  Platinum 8488C\nmodel\t: 143\ncpu family\t: 6\n",
            "Intel(R) Xeon(R) Platinum 8488C",
        ),
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 25, model 1)"),
        ("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 25, model 17)"),
        ("Hardware\t: BCM2711\n", "BCM2711"),
        ("processor\t: 0\n", ""),
    ],
)
def test_a_hidden_processor_is_told_from_its_siblings(text, name):
    from lumen.hardware.identity import cpu_of

    assert cpu_of(text) == name
