"""A decode step and a prefill do what their names say: the context stays, every step is timed, nothing else is."""

from __future__ import annotations

import pytest
import torch

from lumen import bench
from lumen.bench import Name, steps
from lumen.models import Llama, ModelConfig

TINY = ModelConfig("tiny", 97, 2, 36, 9, 3, 4, 40, 64)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return Llama(TINY).eval().requires_grad_(False)


class Clock:
    """Moves by a millisecond whenever a timed forward runs, and by nothing else."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch, tiny):
    clock, forward = Clock(), steps._forward

    def timed(*args):
        clock.now += 0.001
        return forward(*args)

    monkeypatch.setattr(steps, "_forward", timed)
    return clock


def watched(model, monkeypatch):
    """The list to which every forward adds the shape of its tokens and what its cache holds before it."""
    seen, hidden = [], type(model).hidden

    def watch(self, tokens, pos, cache):
        seen.append((tokens.shape, cache.lengths.tolist()))
        return hidden(self, tokens, pos, cache)

    monkeypatch.setattr(type(model), "hidden", watch)
    return seen


@pytest.mark.parametrize("cache", ["static", "dynamic", "paged"])
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (1, 33), (3, 17), (2, 64)])
def test_every_step_sees_the_context_of_its_name(tiny, clock, monkeypatch, cache, batch, context):
    seen = watched(tiny, monkeypatch)
    monkeypatch.setattr(steps, "SHORT_S", 0.03)
    measured = bench.decode_step(tiny, batch, context, cache, clock=clock)
    assert measured.name == Name("tiny", "decode", batch, context, "fp32", "default", cache)
    single = [lengths for shape, lengths in seen if shape == (batch, 1)][-40:]
    assert all(lengths == [context - 1] * batch for lengths in single[-32:])
    assert len(measured.timing.samples) == 32
    assert measured.timing.samples == pytest.approx([0.001] * 32)


@pytest.mark.parametrize("cache", ["static", "dynamic", "paged"])
def test_every_prefill_starts_empty(tiny, clock, monkeypatch, cache):
    seen = watched(tiny, monkeypatch)
    measured = bench.prefill(tiny, 19, 2, cache, clock=clock)
    assert measured.name == Name("tiny", "prefill", 2, 19, "fp32", "default", cache)
    assert seen == [((2, 19), [0, 0])] * (steps.PREFILLS + 1)
    assert measured.timing.samples == pytest.approx([0.001] * steps.PREFILLS)


def test_slow_machines_stop_at_the_fewest(tiny, clock, monkeypatch):
    monkeypatch.setattr(steps, "STEP_BUDGET_S", 0.02)
    monkeypatch.setattr(steps, "PREFILL_BUDGET_S", 0.002)
    assert len(bench.decode_step(tiny, clock=clock, context=8).timing.samples) == steps.FEWEST_STEPS
    assert len(bench.prefill(tiny, 8, clock=clock).timing.samples) == steps.FEWEST_PREFILLS


def test_a_toys_steps_are_sampled_for_longer(tiny, clock, monkeypatch):
    """A step of 7 ms was judged by a quarter of a second: its interval was 30 % of the value."""
    monkeypatch.setattr(steps, "SHORT_S", 0.05)  # steps of a millisecond, eight a round
    assert len(bench.decode_step(tiny, clock=clock, context=8).timing.samples) == 56
    monkeypatch.setattr(steps, "SHORT_S", 1.0)
    assert len(bench.decode_step(tiny, clock=clock, context=9).timing.samples) == 8 * steps.MOST_ROUNDS


def test_the_cache_is_filled_with_what_the_model_computes(tiny):
    """The step's token is the one that the model gives without a cache."""
    name = Name("tiny", "decode", 2, 20)
    decode = steps.Decode(tiny, name)
    with torch.inference_mode():
        ours = steps._forward(tiny, decode.next, decode.cache)
        reference = tiny(steps._tokens(tiny, 2, 20))[:, -1].argmax(-1, keepdim=True)
    assert torch.equal(ours, reference)


def test_the_name_holds_the_dtype_and_the_kernel(tiny, monkeypatch):
    import copy

    from lumen.models import linear

    half = copy.deepcopy(tiny).to(torch.bfloat16)
    assert steps.name_of(half, "decode", 1, 8, "static").dtype == "bf16"
    assert steps.name_of(tiny, "decode", 1, 8, "static").kernel == "default"
    monkeypatch.setattr(linear, "kernel_name", lambda model: "tiles", raising=False)
    assert steps.name_of(tiny, "decode", 1, 8, "static").kernel == "tiles"


def test_what_cannot_be_is_a_sentence(tiny):
    with pytest.raises(ValueError, match="64 positions, 65"):
        bench.decode_step(tiny, context=65)
    with pytest.raises(ValueError, match="cache is"):
        bench.prefill(tiny, 8, cache="paper")
    with pytest.raises(ValueError, match="at least 1"):
        bench.decode_step(tiny, batch=0, context=8)


def test_the_bound_is_the_slower_of_bytes_and_arithmetic(tiny, monkeypatch):
    from lumen.hardware import Chip

    chip = Chip("c", {"fp32": 1e12}, 1e9, 1e9)
    monkeypatch.setattr(steps, "_chip", lambda: chip)
    monkeypatch.setattr(steps, "IN_CACHE", 0)
    seconds, why = steps.floor(tiny, Name("tiny", "decode", 1, 32))
    from lumen import cost

    moved = cost.step_bytes(TINY, 1, 32, "fp32")
    assert seconds == (moved.weights + moved.cache_read) / 1e9 and "GB/s" in why
    seconds, why = steps.floor(tiny, Name("tiny", "prefill", 8, 64))
    assert "GFLOP" in why or seconds == cost.weight_bytes(TINY, "fp32") / 1e9
    monkeypatch.setattr(steps, "IN_CACHE", 1e9)  # it fits a processor's caches: only arithmetic bounds it
    assert "GFLOP" in steps.floor(tiny, Name("tiny", "decode", 1, 32))[1]
    monkeypatch.setattr(steps, "_chip", lambda: None)
    assert steps.floor(tiny, Name("tiny", "decode", 1, 32)) == (None, "")
