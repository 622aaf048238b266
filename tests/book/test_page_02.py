"""What chapter 02 and its appendix say about datasheet chips holds, and both say the same."""

from __future__ import annotations

import pytest

from lumen import cost, hardware
from lumen.bench import Estimate, Timing, load_evidence
from lumen.config import CONFIGS
from lumen.pages import ch02, chips, forecasts

LLAMA, H100 = CONFIGS["llama-3-8b"], hardware.CHIPS["H100 SXM"]


def test_both_pages_count_the_same_users_on_an_h100():
    """208 stood in one table and 238 at the cross of a figure: one kept a tenth of the memory free."""
    assert ch02.full(2048)[0] == chips.served("H100 SXM")["users"]
    assert ch02.RESERVE == 0.1 and f"{ch02.full(2048)[0]} of 2,048" in ch02.batching_text()


def test_more_users_never_bring_a_cache_above_the_heads_that_share_it():
    share = LLAMA.num_heads / LLAMA.num_kv_heads
    for users in (1, 64, 1024):
        flops = 4 * LLAMA.num_heads * LLAMA.head_dim * LLAMA.num_layers * 8192 * users
        assert flops / cost.kv_bytes(LLAMA, 8192, users) == pytest.approx(share)
    assert f"stays at {share:.0f} FLOP per byte" in ch02.batching_text()


def test_the_question_of_play_has_one_answer():
    """1,024 users of Llama-3-8B on an H100: at 256 tokens they fit and reach the ridge, at 512 not."""
    from lumen.explore.explorers.roofline import CONTEXTS

    def both(context):
        fits = cost.max_users(H100.memory, LLAMA, context) >= 1024
        return fits and cost.step_intensity(LLAMA, 1024, context) >= hardware.ridge(H100)

    assert max(c for c in CONTEXTS if both(c)) == 256 and not both(512)


def test_the_largest_gain_moves_left_and_most_moves_right():
    found = ch02.moves()
    best = max(found, key=lambda name: ch02.gain(found[name]))
    right = [name for name, (before, after) in found.items() if after[0] > 1.004 * before[0]]
    assert best.startswith("KV cache") and found[best][1][0] < found[best][0][0]
    assert len(right) > len(found) / 2


def test_drafts_cost_what_the_page_says():
    found = ch02.moves()["4 drafts, 80 % accepted (ch. 15)"]
    assert ch02.gain(found) == pytest.approx(cost.expected_tokens(0.8, 4) / (1 + 4 * ch02.DRAFT_COST))


def test_a_draft_costs_a_share_of_a_plain_step_beyond_the_ridge_too():
    """It was charged a tenth of the pass that checks five rows, and the page said × 0.50 for × 0.65."""
    base = CONFIGS["llama-2-7b"]
    plain, checked, drafted = (
        1024 * kept / ch02.decode_point(base, 1024, 64, rows=rows, tokens=kept, extra=extra)[1]
        for rows, kept, extra in ((1, 1.0, 0.0), (5, 3.0, 0.0), (5, 3.0, 0.4))
    )
    assert checked > 4 * plain and drafted == pytest.approx(checked + 0.4 * plain)


def test_a_share_above_the_peak_is_called_implausible():
    """On a busy machine the peak was measured in a bad minute, and a prefill came out at 297 % of it."""
    text = ch02.share_of_peak(Estimate(297, 250, 340, 6, "%"), "Reading", 3.6e10)
    assert text.startswith("Implausible")


@pytest.mark.parametrize(
    "mib, sizes", [(32, (8, 256)), (36, (8, 256)), (300, (64, 1200)), (0, (4, 256)), (0.5, (0.25, 256))]
)
def test_the_control_picks_its_arrays_before_the_clock(mib, sizes):
    """The fastest of eleven sizes beat the largest by noise alone; one fits the last cache, one never does."""
    chip = hardware.Chip("a chip", {"fp32": 1e11}, 2e10, 1e10, cache_bytes=mib * 2**20)
    small, large = ch02.control_sizes(chip)
    assert (small / 2**20, large / 2**20) == sizes and (not mib or large >= 4 * mib * 2**20)
    assert "shows nothing" in ch02.control_text({n: Timing((n / 2e10,) * 6) for n in (small, large)}, chip)


def test_memory_above_its_roof_is_not_passed_over():
    """256 MiB came at 45 GB/s under a roof drawn at 41, and the text said nothing."""
    chip = hardware.Chip("a chip", {"fp32": 1e11}, 4e10, 1e10, cache_bytes=32 * 2**20)
    for rate, words in (
        (4.5e10, "too high by as much"),
        (4.04e10, "as they should"),
        (3e10, "too low by as much"),
    ):
        rates = {n: Timing((n / (rate if n == 2**28 else 1.6e11),) * 6) for n in (2**23, 2**28)}
        assert words in ch02.control_text(rates, chip)


def test_chapter_and_appendix_count_the_same_misses():
    """Chapter 2 counted every sign, the appendix those beyond the interval: 15 and 12 of the same 16 too short."""
    said = forecasts.sides(load_evidence("cost_model")["data"]["cells"])
    assert said in ch02.forecast_text() and said in chips.forecast()


def test_a_circle_is_what_the_lab_times():
    """The circles left the start of a product out, which the lab's clock has in it: 62 and 47 GFLOP/s for four rows."""
    curves = hardware.Achieved(((4, 6e10),), (), (), (), ((4, 8e-5),))
    chip = hardware.Chip("a chip", {"fp32": 2e11}, 4e10, 1e10, achieved={"fp32": curves})
    flops = 2 * 4 * 576 * 3072
    assert ch02.products(CONFIGS["smollm2-135m"], chip, "fp32") == [
        (2.0, pytest.approx(flops / (flops / 6e10 + 8e-5)))
    ]
    assert ch02.products(CONFIGS["smollm2-135m"], H100, "bf16") == []


def test_a_roof_is_as_sure_as_its_looks():
    """What lies within the roof's own uncertainty is no contradiction, and the page says how much that is."""
    for sure, words in ((0.2, "as they should (it is sure to 20 %)"), (0.02, "too high by as much")):
        chip = hardware.Chip(
            "a chip", {"fp32": 1e11}, 4e10, 1e10, cache_bytes=2**25, uncertainty={"bandwidth": sure}
        )
        rates = {n: Timing((n / (4.5e10 if n == 2**28 else 1.6e11),) * 6) for n in (2**23, 2**28)}
        assert words in ch02.control_text(rates, chip)
