"""The appendix on chips says what data sheets, prices and published measurements carry, and no more."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lumen import cost
from lumen.bench import load_evidence
from lumen.config import CONFIGS
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
    assert (
        max(per_dollar[:2]) / min(per_dollar[:2]) < chips_prices.hour_error() < per_dollar[1] / per_dollar[2]
    )


@pytest.mark.parametrize("value, text", [(0.0899, "0.090"), (3.0, "3.0"), (0.471, "0.47"), (12.4, "12")])
def test_a_price_has_two_digits(value, text):
    assert chips.two(value) == text


# a full chip --------------------------------------------------------------------------------------
def test_a_full_chip_takes_its_memory_over_its_bandwidth():
    assert chips.grown() == pytest.approx(1, abs=0.005)
    for name in ("llama-3-8b", "llama-2-7b", "llama-2-13b", "mistral-7b"):
        for context in (2048, 4096, 8192):
            if name in CONFIGS:
                _, seconds = chips.full_step(context, model=CONFIGS[name])
                assert seconds == pytest.approx(chips.sweep_seconds(CHIPS["H100 SXM"]), rel=0.1)


def test_many_short_contexts_break_the_rule():
    users, seconds = chips.full_step(256)
    assert users > ridge(CHIPS["H100 SXM"]) and seconds > 1.5 * chips.sweep_seconds(CHIPS["H100 SXM"])


def test_memory_over_bandwidth_tells_who_stays_full():
    full, rest = chips.tight_chips()
    assert set(full) == {name for name in [*full, *rest] if chips.sweep_seconds(CHIPS[name]) <= chips.TIGHT}
    assert "H100 SXM" in full and "H200 SXM" in rest
    assert "decided on the L4 alone" in chips.tight_story()


# which ranks survive ------------------------------------------------------------------------------
def test_an_order_needs_both_ranges_apart():
    spans = {"a": (1.0, 2.0), "b": (1.9, 3.0), "c": (2.5, 9.0), "d": (9.5, 10.0)}
    assert chips_prices.kept(spans) == {"c": ["a"], "d": ["a", "b", "c"]}


def test_the_a10_s_price_is_not_the_a10g_s():
    assert chips_prices.asked(CHIPS["A10G"]) == [] and chips_prices.asked(CHIPS["H100 SXM"]) == [3.78, 3.95]


def test_a_range_has_the_error_of_the_hour_and_that_of_the_bound():
    error = chips_prices.hour_error()
    assert chips_prices.hour_range(CHIPS["A10G"]) == pytest.approx((1 / error, error))
    assert chips_prices.hour_range(CHIPS["H100 SXM"]) == (3.0, 3.95)
    near, far, n = chips_prices.miss_range("H100 SXM")
    assert n == 4 and 1 < near < far, "prefill and several chips apart"
    assert chips_prices.miss_range("A10G")[2] == 0
    low, high = chips_prices.span(FOUND["H100 SXM"])
    assert (low, high) == pytest.approx(
        (FOUND["H100 SXM"]["price"] * near, FOUND["H100 SXM"]["price"] * far * 3.95 / 3)
    )


def test_chips_without_a_measurement_are_named_and_get_the_widest_range():
    assert chips_prices.unmeasured() == ["T4", "L4", "A10G", "A100 80GB PCIe", "TPU v6e"]
    widest = chips_prices.miss_range("A10G")
    for name in chips.NAMES:
        low, high, _ = chips_prices.miss_range(name)
        assert widest[0] <= low <= high <= widest[1]
    assert chips.listed(chips_prices.unmeasured()) in chips_prices.ranks()


def test_the_prediction_s_own_pair_survives_and_few_others():
    sure, every = chips_prices.pairs()
    assert every == 15 and 0 < sure < every / 2
    assert chips.DEAR in chips_prices.kept(chips_prices._spans())[chips.CHEAP]
    assert f"Of {every} pairs of chips {sure} keep" in chips_prices.ranges_figure().layout.title.text


# roofs --------------------------------------------------------------------------------------------
def test_only_prefill_is_past_the_ridge():
    edges = {row[0]: row[3] for row in chips_roofs.operators_table()[0]}
    assert [name for name, edge in edges.items() if edge == "arithmetic"] == [
        "d: matrix, prefill of 2,048 tokens"
    ]
    signs = [sign for sign, _, _ in chips_roofs.operators()]
    at = [x for _, _, x in chips_roofs.operators()]
    assert all((a == b) == (x == y) for (a, x), (b, y) in pairwise(zip(signs, at, strict=True)))


def test_a_wire_carries_what_its_standard_says():
    """HBM2e 3.2, HBM3 up to 6.4, GDDR6X 21 Gbit/s."""
    rates = [chips_roofs.wire(name) / 1e9 for name in ("A100 80GB SXM", "H100 SXM", "RTX 4090")]
    assert rates == pytest.approx([3.19, 5.23, 21.0], abs=0.02)


def test_words_on_growth_are_those_of_the_data_sheets():
    a, h, b = (CHIPS[name] for name in chips_roofs.GENERATIONS)
    assert 1.7 < ridge(h) / ridge(a) < 2, "nearly doubled"
    assert abs(ridge(b) / ridge(h) - 1) < 0.06, "both edges rose alike"
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
    [chips.reading(), chips.why_cheap(), chips.full_story(), chips.tight_story(), chips_prices.ranks(),
     chips_prices.errors(), chips_prices.left_out_text(), chips_roofs.units(), chips_roofs.growth()],
)  # fmt: skip
def test_no_paragraph_runs_over_six_lines(text):
    shown = re.sub(r"\]\([^)]*\)", "]", text)
    assert max(map(len, shown.split("\n\n"))) < 6 * 118 + 40
