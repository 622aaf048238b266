"""Which kernel multiplies: every candidate is the same product, the fastest one is taken, and the choice is kept."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from lumen.hardware import kernel_choice, kernel_times
from lumen.hardware.measured import kept_at
from lumen.models import kernels
from lumen.models.kernels import FEW, KERNELS, candidates
from lumen.models.linear import Linear

SHAPES = [(7, 24, True), (5, 12, False), (3, 6, True), (4, 9, False), (576, 41, False), (1, 1, True)]


def layer(size_in, size_out, bias=False, dtype=torch.float32):
    torch.manual_seed(size_in)
    return Linear(size_in, size_out, bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize(("size_in", "size_out", "bias"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_candidate_is_the_product(size_in, size_out, bias, dtype):
    made = layer(size_in, size_out, bias, dtype)
    for rows in (1, 2, 3, 5, 64, 65):
        x = torch.randn(rows, size_in, dtype=dtype)
        before = x.clone()
        wanted = x.double() @ made.weight.double().T + (made.bias.double() if bias else 0.0)
        for name in candidates(made, rows):
            got = KERNELS[name](made, x)
            close = 1e-5 if dtype == torch.float32 else 1e-12
            assert torch.allclose(got.double(), wanted, atol=close), name
            assert got.shape == (rows, size_out) and got.is_contiguous(), name
            assert torch.equal(x, before), name


def test_every_kernel_is_a_candidate_somewhere():
    made = layer(8, 8)
    assert {name for rows in (1, 2, 99) for name in candidates(made, rows)} == set(KERNELS) - (
        set() if kernels.can_pack() else {"packed", "packed_twice"}
    )


def test_a_layer_runs_what_was_chosen_for_its_rows():
    made, seen = layer(6, 8), []
    times = {1: {"plain": 1.0, "blocked": 2.0}, 4: {"blocked": 1.0, "plain": 2.0}, 256: {"plain": 1.0}}
    made.chosen = kernel_choice.kernels_of(times, made)
    assert len(made.chosen) == FEW + 1
    for rows, name in [(1, "plain"), (3, "plain"), (4, "blocked"), (FEW, "blocked"), (FEW + 1, "plain")]:
        assert made.kernel(rows) is KERNELS[name], rows
    made.chosen = tuple(
        (lambda m, x, n=n: seen.append((n, x.shape)) or x @ m.weight.T) for n in range(FEW + 1)
    )
    out = made(torch.ones(2, 1, 6))
    assert out.shape == (2, 1, 8) and seen == [(1, (2, 6))]
    assert copy.deepcopy(made).chosen == made.chosen


@pytest.mark.parametrize(
    ("seconds", "usual", "wanted"),
    [
        ({"plain": 1.0, "packed": 0.5}, "plain", "packed"),
        ({"plain": 1.0, "packed": 0.99}, "plain", "plain"),  # not clearly faster: the rule of thumb stays
        ({"plain": 1.0, "packed": 0.99}, "blocked", "packed"),  # the usual one fell out early
    ],
)
def test_the_usual_kernel_gives_way_only_to_a_clearly_faster_one(seconds, usual, wanted):
    assert kernel_times.fastest(seconds, usual) == wanted


class Clock:
    """Every kernel takes the seconds that a table says, whatever the machine does."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.calls = 0.0, []

        def slow(name):
            def run(made, x):
                self.now += seconds(name, made, x.shape[0])
                self.calls.append((name, kernel_times.shape_of(made), x.shape[0]))
                return x

            return run

        monkeypatch.setattr(kernel_choice, "KERNELS", {name: slow(name) for name in KERNELS})

    def __call__(self):
        return self.now


def test_the_fastest_by_the_clock_wins_and_a_hopeless_one_is_tried_no_more(monkeypatch):
    speed = {"plain": 9.0, "blocked": 1.0, "weight_first": 1.4, "weight_first_twice": 1.2, "packed": 2.0}
    clock = Clock(monkeypatch, lambda name, made, rows: 1e-6 * speed.get(name, 3.0))
    found, scatter = kernel_choice.measure(
        [layer(6, 8), layer(8, 6), layer(6, 8)], progress=False, clock=clock
    )
    assert scatter == pytest.approx(0, abs=1e-6)
    assert set(found) == {"6x8", "8x6"} and set(found["6x8"]) == set(kernel_choice.ROWS)
    assert min(found["8x6"][1], key=found["8x6"][1].get) == "blocked"
    assert "plain" not in found["6x8"][2], "nine times as slow at the first try"
    count = [sum(call == (name, "6x8", 2) for call in clock.calls) for name in ("plain", "packed", "blocked")]
    assert count[0] < count[1] < count[2]


def test_one_disturbed_round_does_not_decide(monkeypatch):
    rounds = iter([1.0, 1.0, 1.0, 5.0])

    def seconds(name, made, rows):
        return 1e-6 * (next(rounds, 1.0) if name == "blocked" else 2.0)

    found, _ = kernel_choice.measure([layer(6, 8)], progress=False, clock=Clock(monkeypatch, seconds))
    assert min(found["6x8"][1], key=found["6x8"][1].get) == "blocked"


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_choice, "LEAST", 0)

    class Measured(list):
        how = None

    measured = Measured()

    def measure(layers, progress=True, clock=None):
        measured.append(sorted({kernel_times.shape_of(each) for each in layers}))
        return {s: {n: {"plain": 1.0} for n in kernel_choice.ROWS} for s in measured[-1]}, measure.scatter

    measure.scatter = 0.0
    measured.how = measure

    monkeypatch.setattr(kernel_choice, "measure", measure)
    return measured


def test_a_choice_is_kept_and_only_new_shapes_are_measured(small):
    model = nn.Sequential(layer(6, 8), layer(8, 6))
    kernel_choice.choose(model)
    assert all(part.kernel(1) is kernels.plain for part in model)
    again = nn.Sequential(layer(6, 8), layer(8, 10))
    kernel_choice.choose(again)
    assert small == [["6x8", "8x6"], ["8x10"]]
    assert set(kernel_times.kept()) == {"6x8", "8x6", "8x10"}
    kernel_choice.choose(again, refresh=True)
    assert small[-1] == ["6x8", "8x10"]


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}', "[]"])
def test_a_kept_file_that_cannot_be_read_is_measured_again(small, damage, tmp_path):
    model = nn.Sequential(layer(6, 8))
    kernel_choice.choose(model)
    kept_at(kernel_times.key()).write_text(damage)
    kernel_choice.choose(model)
    assert len(small) == 2 and kernel_times.kept()


def test_a_choice_of_another_number_of_threads_is_not_taken(small, monkeypatch):
    kernel_choice.choose(nn.Sequential(layer(6, 8)))
    path = kept_at(kernel_times.key())
    other = json.loads(path.read_text())
    other["key"]["threads"] += 1
    path.write_text(json.dumps(other))
    assert kernel_times.kept() == {}


def test_small_models_and_other_formats_keep_the_rule(monkeypatch, small):
    assert kernel_choice.choose(nn.Sequential(layer(6, 8, dtype=torch.bfloat16))) == {}
    monkeypatch.setattr(kernel_choice, "LEAST", 1 << 40)
    model = nn.Sequential(layer(6, 8))
    assert kernel_choice.choose(model) == {} and model[0].chosen == () and small == []


def test_a_folder_that_cannot_be_written_keeps_the_choice_for_this_process(small, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path / "file"))
    model = nn.Sequential(layer(6, 8))
    with pytest.warns(UserWarning, match="LUMEN_CACHE"):
        kernel_choice.choose(model)
    assert model[0].kernel(1) is kernels.plain


def test_the_choice_on_this_machine_is_never_far_from_the_best(tmp_path, monkeypatch):
    """On real clocks: whatever is chosen was within the stated share of the best that was measured."""
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_choice, "LEAST", 0)
    model = nn.Sequential(*(layer(64, 96) for _ in range(3)))
    for table in kernel_choice.choose(model, progress=False).values():
        for rows, seconds in table.items():
            chosen = next(n for n, k in KERNELS.items() if k is model[0].kernel(rows))
            assert seconds[chosen] * kernel_choice.CAREFUL <= min(seconds.values()) < math.inf


def test_a_busy_machine_is_measured_again_until_it_was_quiet(small):
    model = nn.Sequential(layer(6, 8))
    small.how.scatter = 0.5
    for count in (1, 2):
        kernel_choice.choose(model)
        assert len(small) == count
    small.how.scatter = 0.01
    for _ in range(3):
        kernel_choice.choose(model)
        assert len(small) == 3, "quiet at last: kept for good"


def test_a_machine_that_is_never_quiet_is_measured_four_times(small):
    small.how.scatter = 0.5
    for _ in range(9):
        kernel_choice.choose(nn.Sequential(layer(6, 8)))
    assert len(small) == kernel_choice.TRIES
    times = {1: {"blocked": 1.0, "plain": 0.9}}
    careful = kernel_choice.kernels_of(times, layer(6, 8), kernel_choice.CAREFUL)
    assert careful[0] is kernels.blocked, "what may be noise does not overrule the rule of thumb"
    assert kernel_choice.kernels_of(times, layer(6, 8))[0] is kernels.plain


def test_the_shorter_time_of_two_measurements_counts():
    old, new = {1: {"plain": 3.0, "packed": 1.0}}, {1: {"plain": 2.0, "blocked": 5.0}, 2: {"plain": 1.0}}
    assert kernel_times.merged(old, new) == {
        1: {"plain": 2.0, "packed": 1.0, "blocked": 5.0},
        2: {"plain": 1.0},
    }


@pytest.mark.parametrize(
    ("progress", "said", "hides"), [(True, None, False), (True, "1", True), (False, "0", True)]
)
def test_a_bar_is_shown_unless_somebody_said_no(progress, said, hides, monkeypatch, capfd):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    if said is not None:
        monkeypatch.setenv("TQDM_DISABLE", said)
    monkeypatch.setattr(kernel_choice, "ROWS", (1,))
    kernel_choice.measure([layer(6, 8)], progress)
    assert ("choosing" in capfd.readouterr().err) != hides
