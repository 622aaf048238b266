"""The appendix on chips says what data sheets, prices and published measurements carry, and no more."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lumen import cost
from lumen.bench import load_evidence
from lumen.config import CONFIGS
from lumen.cost.published import misses, published
from lumen.explore.figures.published import left_out
from lumen.hardware import CHIPS, ridge
from lumen.pages import chips, chips_prices, chips_roofs, forecasts

FOUND = {name: chips.served(name) for name in chips.NAMES}


# twelve chips -------------------------------------------------------------------------------------
def test_only_the_l4_is_decided_by_the_limit():
    slow = [name for name, s in FOUND.items() if s["room"] > (s["users"] or 0)]
    assert slow == ["L4"] and "Only on the L4 is it" in chips.reading()


def test_the_a100_computes_and_the_others_read():
    """Past its ridge an A100's matrices wait for arithmetic; a finer argument on price stood here on 1.4 %."""
    a, h, small = (FOUND[name] for name in ("A100 80GB SXM", "H100 SXM", chips.CHEAP))
    assert (
        a["users"] == h["users"] and h["ridge"] > a["users"] > a["ridge"] and small["users"] < small["ridge"]
    )
    waits = {row[0]: row[3] for row in chips.cheap_table()[0]}
    assert [name for name, how in waits.items() if "arithmetic" in how] == [chips.short("A100 80GB SXM")]
    assert small["step"].parts["attention"] < small["step"].seconds / 2, (
        "an A10G waits for weights most of the time"
    )
    per_dollar = [s["chip"].bandwidth / s["chip"].price_per_hour for s in (a, h, small)]
    assert max(per_dollar[:2]) / min(per_dollar[:2]) < 1.1 < per_dollar[1] / per_dollar[2]
    h100 = chips_prices.asked(h["chip"])
    assert a["price"] / h["price"] < max(h100) / min(h100), "closer together than two vendors' prices for one"


@pytest.mark.parametrize("value, text", [(0.0899, "0.090"), (3.0, "3.0"), (0.471, "0.47"), (12.4, "12")])
def test_a_price_has_two_digits(value, text):
    assert chips.two(value) == text


# a full chip --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in chips.NAMES if FOUND[n]["room"]])
@pytest.mark.parametrize("context", [chips.CONTEXT, chips.GROWN])
def test_a_full_chip_takes_its_used_memory_over_its_bandwidth_below_the_ridge_and_longer_above(name, context):
    users, seconds = chips.full_step(context, name)
    chip, fmt = CHIPS[name], chips.form(CHIPS[name])
    read = cost.weight_bytes(chips.MODEL, fmt) + cost.kv_bytes(chips.MODEL, context, users, fmt)
    if users < ridge(chip, fmt):
        assert seconds == pytest.approx(read / chip.bandwidth, rel=0.002)
        assert seconds == pytest.approx(chips.sweep_seconds(chip), rel=0.07)
    else:
        assert seconds > 1.03 * read / chip.bandwidth


def test_the_h100_s_step_stays_and_the_h200_s_does_not():
    assert chips.grown() == pytest.approx(1, abs=0.005) and chips.grown(chips.BIG) == pytest.approx(
        0.89, abs=0.005
    )
    for model in ("llama-2-7b", "llama-2-13b", "mistral-7b"):
        if model in CONFIGS:
            _, seconds = chips.full_step(chips.CONTEXT, model=CONFIGS[model])
            assert seconds == pytest.approx(chips.sweep_seconds(CHIPS["H100 SXM"]), rel=0.1)


def test_the_two_chips_of_the_third_question_stand_in_no_table_and_differ():
    assert not set(chips.OTHERS) & set(chips.NAMES)
    (in_time, fit), (users, room) = map(chips.tight_users, chips.OTHERS)
    assert in_time == fit and 0 < users < room
    for name in chips.OTHERS:
        chip, (fast, fits) = CHIPS[name], chips.tight_users(name)
        assert fits < ridge(chip, "bf16") and (chips.sweep_seconds(chip) <= chips.TIGHT) == (fast >= fits)
    assert str(room) not in chips.tight_question() and str(users) not in chips.tight_question()


# what vendors ask ---------------------------------------------------------------------------------
def test_the_a10_s_price_is_not_the_a10g_s():
    asked = chips_prices.asked
    assert asked(CHIPS["A10G"]) == [] and asked(CHIPS["H100 SXM"]) == [3.78, 3.95, 5.49]
    assert asked(CHIPS["A100 80GB SXM"]) == [2.5, 5.04] and asked(CHIPS["A100 40GB SXM"]) == [1.48]


def test_the_table_of_prices_names_vendors_and_chips_without_a_price_stand_below():
    rows = {row[0]: row[1:] for row in chips_prices.prices_table()[0]}
    assert rows[chips.short("A100 40GB SXM")] == [None, None, "1.48 (Lambda)"]
    assert rows["A10G"][2] is None and rows["T4"][0] is None
    none = [name for name in chips.NAMES if chips.short(name) not in rows]
    assert none == ["RTX 4090", "B200", "MI300X"] and chips.listed(none) in chips_prices.prices()


def test_prices_differ_by_more_than_the_chips_that_lie_close():
    """Two vendors ask 2.50 and 5.04 for one A100; the bounds of H200, H100 and both A100s lie within 1.3 times."""
    assert chips_prices.vendors_differ() == pytest.approx(5.04 / 2.5)
    assert chips_prices.above_ours() == pytest.approx(5.04 / 1.8)
    close = [s["price"] for s in chips.priced()][:4]
    assert max(close) / min(close) < chips_prices.vendors_differ()


def test_bounds_in_16_bits_are_held_against_programs_in_16_bits_alone():
    rows = chips_prices.like_ours()
    found = {(r.measurement.chips, r.measurement.weights, r.measurement.kv) for r in rows}
    assert found == {(1, "bf16", "bf16"), (1, "fp16", "fp16")}
    assert len(rows) == 10 and 1.2 < min(r.ratio for r in rows) < max(r.ratio for r in rows) < 1.8


def test_reasons_are_those_of_the_sources():
    counts = dict(left_out(misses()))
    preliminary = {m.source.key for m in published() if any("preliminary" in x for x in m.leaves_out)}
    limited = {m.source.name for m in published() if any("power limit" in x for x in m.leaves_out)}
    assert preliminary == {"trtllm-h200"} and limited == {"gpt-fast"}
    early = {m.source.key for m in published() if any("early release" in x for x in m.leaves_out)}
    assert early == {"trtllm-0.6", "trtllm-h200"}
    assert all("early release" in " ".join(m.leaves_out) for m in published() if m.source.key in early)
    power = next(n for reason, n in counts.items() if "power limit" in reason)
    assert f"which the authors state ({power})" in chips_prices.left_out_text()


# roofs --------------------------------------------------------------------------------------------
def test_only_prefill_is_past_the_ridge():
    edges = {row[0]: row[3] for row in chips_roofs.operators_table()[0]}
    assert [name for name, edge in edges.items() if edge == "arithmetic"] == [
        "d: matrix, prefill of 2,048 tokens"
    ]
    signs = [sign for sign, _, _ in chips_roofs.operators()]
    at = [x for _, _, x in chips_roofs.operators()]
    assert all(
        (a == b) == (f"{x:.2f}" == f"{y:.2f}") for (a, x), (b, y) in pairwise(zip(signs, at, strict=True))
    )
    assert chips_roofs.matrix(2048) == 1024, "of 4,096 x 4,096, inputs and outputs counted"


def test_a_wire_carries_what_its_standard_says():
    """HBM2e 3.2, HBM3 up to 6.4, GDDR6X 21 Gbit/s."""
    rates = [chips_roofs.wire(name) / 1e9 for name in ("A100 80GB SXM", "H100 SXM", "RTX 4090")]
    assert rates == pytest.approx([3.19, 5.23, 21.0], abs=0.02)


def test_the_peak_s_growth_is_the_product_of_its_three_factors():
    a, h = "A100 80GB SXM", "H100 SXM"
    assert [chips_roofs.tensor_clock(n) / 1e9 for n in (a, h)] == pytest.approx([1.41, 1.83], abs=0.005)
    assert chips_roofs.vector_clock() == pytest.approx(1.98e9, rel=0.001)
    assert CHIPS[h].peak() / CHIPS[a].peak() == pytest.approx(1.22 * 2 * 1.30, rel=0.01)
    assert "1.22 times the SMs" in chips_roofs.growth() and "3.17 times together" in chips_roofs.growth()


def test_words_on_growth_are_those_of_the_data_sheets():
    a, h, b = (CHIPS[name] for name in chips_roofs.GENERATIONS)
    assert 1.7 < ridge(h) / ridge(a) < 2, "nearly doubled"
    assert abs(ridge(b) / ridge(h) - 1) < 0.06, "peak and bandwidth grew alike"
    assert ridge(CHIPS["L4"]) > ridge(h)
    assert CHIPS["RTX 4090"].bandwidth < CHIPS["H100 SXM"].bandwidth


def test_a_step_s_intensity_is_a_mean_of_its_parts():
    whole = cost.step_intensity(chips.MODEL, FOUND["H100 SXM"]["users"], chips.CONTEXT)
    assert 4 < whole < FOUND["H100 SXM"]["users"] and f"{whole:.0f} FLOP/B" in chips.why_cheap()


# the forecast -------------------------------------------------------------------------------------
def test_the_forecast_counts_the_passes_whose_interval_excludes_0():
    cells = [
        {"phase": "prefill", "signed": -0.04, "signed_low": -0.09, "signed_high": 0.01},
        {"phase": "prefill", "signed": -0.1, "signed_low": -0.12, "signed_high": -0.01},
        {"phase": "decode", "signed": 0.5, "signed_low": -0.1, "signed_high": 0.9},
    ]
    found = forecasts.sides(cells).split("; ")
    assert found[0] == "prefill too short in 1 and too long in 0 of 2, by 10 % at most"
    assert found[1] == "decode too short in 0 and too long in 0 of 1"
    said = forecasts.sides(load_evidence("cost_model")["data"]["cells"])
    assert said in chips.forecast()


def test_a_forecast_within_the_spread_stands_in_brackets():
    cell = {"signed": -0.24, "signed_low": -0.27, "signed_high": 0.03}
    assert chips._miss(cell) == "(−24\u00a0%)" and chips._miss(cell | {"signed_high": -0.1}) == "−24\u00a0%"


@pytest.mark.parametrize(
    "text",
    [chips.reading(), chips.why_cheap(), chips.full_story(), chips.tight_question(), chips.tight_story(),
     chips_prices.prices(), chips_prices.left_out_text(), chips_roofs.units(), chips_roofs.operators_text(),
     chips_roofs.rates(), chips_roofs.growth()],
)  # fmt: skip
def test_no_paragraph_runs_over_six_lines(text):
    shown = re.sub(r"\]\([^)]*\)", "]", text)
    assert max(map(len, shown.split("\n\n"))) < 6 * 118 + 40
