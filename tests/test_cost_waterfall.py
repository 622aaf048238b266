"""A waterfall adds up to what was measured, whatever was measured, and its parts are those of the forecast."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen import cost
from lumen.config import CONFIGS
from lumen.hardware import CHIPS

from .test_cost import measured_chip

SMOL, LLAMA, H100 = CONFIGS["smollm2-135m"], CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
ORDER = ["floor", "matrix products", "attention", "other operators", "operator starts", "residual"]


@given(
    st.sampled_from(["decode", "prefill"]), st.floats(1e-6, 100), st.integers(1, 64), st.integers(1, 4096),
    st.sampled_from(["static", "dynamic"]), st.booleans(),
)  # fmt: skip
@settings(deadline=None)
def test_parts_add_up_to_what_was_measured(phase, measured, batch, context, cache, waits):
    chip = measured_chip(asynchronous=waits)
    parts = cost.waterfall(SMOL, chip, phase, measured, batch, context, cache=cache)
    assert math.fsum(seconds for _, seconds in parts) == pytest.approx(measured, rel=1e-9)
    names = [name for name, _ in parts]
    assert names == [name for name in ORDER if name in names], "in order, none twice"
    assert all(seconds > 0 for name, seconds in parts if name not in ("residual", "attention"))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_residual_is_what_the_forecast_misses(phase):
    predict = cost.predict_decode if phase == "decode" else cost.predict_prefill
    forecast = predict(SMOL, measured_chip(), 512, 4, "fp32")
    slow = dict(cost.waterfall(SMOL, measured_chip(), phase, 1.25 * forecast.seconds, 4, 512))
    fast = dict(cost.waterfall(SMOL, measured_chip(), phase, 0.75 * forecast.seconds, 4, 512))
    assert slow["residual"] == pytest.approx(0.25 * forecast.seconds)
    assert fast["residual"] == pytest.approx(-0.25 * forecast.seconds)
    assert {k: v for k, v in slow.items() if k != "residual"} == {
        k: v for k, v in fast.items() if k != "residual"
    }
    assert slow["operator starts"] == pytest.approx(forecast.parts["overhead"])


def test_the_floor_is_bytes_over_bandwidth_or_flops_over_peak():
    step = cost.step_bytes(SMOL, 1, 512, "fp32")
    moved = step.weights + step.cache_read + step.cache_write
    chip = measured_chip(cold_overhead=((1, 3e-5),), cache_bytes=32e6)
    decode = dict(cost.waterfall(SMOL, chip, "decode", 0.1, 1, 512))
    assert decode["floor"] == pytest.approx(moved / measured_chip().bandwidth, rel=2e-3)
    prefill = dict(cost.waterfall(SMOL, measured_chip(), "prefill", 10.0, 1, 1024))
    flops = cost.prefill_flops(SMOL, 1024).total
    assert prefill["floor"] == pytest.approx(flops / measured_chip().peak("fp32"), rel=0.02)


def test_what_takes_no_time_is_left_out():
    assert [name for name, _ in cost.waterfall(LLAMA, H100, "decode", 0.01, 1, 512, "bf16")] == [
        "floor",
        "residual",
    ]
    exact = cost.predict_decode(LLAMA, H100, 512).seconds
    assert cost.waterfall(LLAMA, H100, "decode", exact, 1, 512, "bf16") == [("floor", pytest.approx(exact))]


def test_a_gpu_shows_only_the_starts_that_work_does_not_hide():
    hidden = cost.waterfall(SMOL, measured_chip(asynchronous=True, overhead_s=1e-9), "decode", 1.0, 1, 512)
    assert "operator starts" not in dict(hidden)
    shown = dict(
        cost.waterfall(SMOL, measured_chip(asynchronous=True, overhead_s=1e-2), "decode", 1.0, 1, 512)
    )
    forecast = cost.predict_decode(SMOL, measured_chip(asynchronous=True, overhead_s=1e-2), 512, dtype="fp32")
    work = sum(forecast.parts.values()) - forecast.parts["overhead"]
    assert shown["operator starts"] == pytest.approx(cost.operators(SMOL) * 1e-2 - work)


def test_a_cache_read_faster_than_memory_takes_time_away():
    fast = replace(measured_chip().achieved["fp32"], cache_read=((1, 20e9),))
    parts = dict(cost.waterfall(SMOL, measured_chip(achieved={"fp32": fast}), "decode", 0.2, 1, 1024))
    assert parts["attention"] == pytest.approx(-cost.kv_bytes(SMOL, 1024, dtype="fp32") / 20e9)


@pytest.mark.parametrize("bad", [("both", 1.0), ("decode", 0.0), ("decode", math.nan), ("prefill", math.inf)])
def test_nonsense_is_refused_with_a_sentence(bad):
    with pytest.raises(ValueError, match=r"\w+ \w+ "):
        cost.waterfall(SMOL, H100, *bad)
