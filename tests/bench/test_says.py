"""Every outcome has its own sentence, and nothing but the interval chooses it."""

from __future__ import annotations

import pytest

from lumen.bench import Estimate, Timing, miss, outcome, says

WORDS = {
    "more": "{x} {unit} as long ({low} to {high}, n = {n})",
    "less": "{size} shorter",
    "same": "nothing to see",
}


def est(value, low, high, n=12, unit="×"):
    return Estimate(value, low, high, n, unit)


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (est(1.24, 1.13, 1.35), "more"),
        (est(1.24, 0.99, 1.35), "same"),
        (est(1.24, 1.00, 1.35), "same"),
        (est(1.02, 1.01, 1.03), "same"),  # clear, and not worth a word
        (est(0.80, 0.70, 0.90), "less"),
        (est(0.80, 0.70, 1.01), "same"),
        (est(0.99, 0.985, 0.995), "same"),
        (est(2.00, 1.90, 2.10, n=2), "same"),  # two samples show nothing
        (est(2.00, 1.90, 2.10, n=3), "more"),
        (est(5.00, 4.50, 5.50), "implausible"),
        (est(5.00, 3.90, 5.50), "more"),  # the interval still allows what the bound allows
        (est(0.01, 0.01, 0.02), "implausible"),
    ],
)
def test_outcomes(shown, found):
    assert outcome(shown, bound=(0.1, 4.0)) == found


def test_a_bound_may_be_open_on_one_side():
    assert outcome(est(5, 4, 6), bound=(None, 3.0)) == "implausible"
    assert outcome(est(5, 4, 6), bound=(7.0, None)) == "implausible"
    assert outcome(est(5, 4, 6), bound=(1.0, None)) == "more"


def test_differences_are_judged_against_zero_in_their_own_unit():
    assert outcome(est(2.0, 1.0, 3.0), at=0, worth=0.5) == "more"
    assert outcome(est(0.4, 0.3, 0.5), at=0, worth=0.5) == "same"
    assert outcome(est(-2.0, -3.0, -1.0), at=0, worth=0.5) == "less"
    assert outcome(est(-2.0, -3.0, -1.9), at=-1.0) == "less"
    with pytest.raises(ValueError, match="share of 0"):
        says(est(2.0, 1.0, 3.0), at=0, more="{percent} more", less="less", same="same")


def test_the_text_holds_the_numbers():
    assert says(est(1.24, 1.13, 1.35), **WORDS) == "1.24 × as long (1.13 to 1.35, n = 12)"
    assert says(est(0.80, 0.70, 0.90), **WORDS) == "20 % shorter"
    assert says(est(1.0, 0.9, 1.1), **WORDS) == "nothing to see"
    percent = {"more": "{percent}!", "less": "{percent}.", "same": "{percent}?"}
    assert says(est(1.24, 1.13, 1.35), **percent) == "+24 %!"
    assert says(est(30.0, 29.0, 31.0), at=40, **percent) == "−25 %."
    assert says(est(1.0, 0.9, 1.1), **percent) == "0 %?"
    braces = says(est(1.034, 1.03, 1.04), more="{{{percent}}} {estimate}", less="-", same="=")
    assert braces == "{+3.4 %} 1.03 × (1.03 to 1.04, n = 12)"


def test_a_contradiction_says_so_whatever_the_writer_hoped_for():
    text = says(est(5.0, 4.5, 5.5), bound=(None, 4.0), contradicts="the bandwidth that was measured", **WORDS)
    assert text.startswith(
        "Implausible: 5.00 × (4.50 to 5.50, n = 12) contradicts the bandwidth that was measured"
    )
    assert "at most 4.00 ×" in text
    with pytest.raises(ValueError, match="contradicts"):
        says(est(5.0, 4.5, 5.5), bound=(None, 4.0), **WORDS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"same": ""}, "empty"),
        ({"less": " \n"}, "empty"),
        ({"less": WORDS["more"]}, "are the same"),
        ({"same": "{low} {unit} as long ({low} to {high},  n = {n})"}, "are the same"),
        ({"more": "{speed}"}, "asks for"),
        ({"more": "{x:.2f} more"}, "asks for"),
        ({"more": "{x!r} more"}, "asks for"),
        ({"more": "{} more"}, "asks for"),
        ({"more": r"$\frac{a}{b}$"}, "asks for"),
    ],
)
def test_templates_are_checked_whatever_the_outcome(changes, reason):
    for shown in (est(1.24, 1.13, 1.35), est(1.0, 0.9, 1.1), est(0.8, 0.7, 0.9)):
        with pytest.raises(ValueError, match=reason):
            says(shown, **{**WORDS, **changes})


def test_a_miss_has_a_sign_and_over_ten_percent_a_reason(monkeypatch):
    measured = Estimate(0.034, 0.033, 0.035, 24, "s")
    assert (
        miss(0.0333, measured) == "predicted 33.3 ms, measured 34.0 ms (33.0 to 35.0, n = 24): 2.1 % too low."
    )
    assert miss(0.0347, measured).endswith("2.1 % too high.")
    assert miss(0.034, measured).endswith("less than 1 % off.")
    both = {"why_low": "It forgets the norms.", "why_high": "The cache was warm."}
    assert miss(0.0281, measured, **both).endswith("17 % too low. It forgets the norms.")
    assert miss(0.0420, measured, **both).endswith("24 % too high. The cache was warm.")
    assert miss(0.0281, measured, "Some reason.").endswith("Some reason.")
    assert miss(0.0333, measured, "Some reason.").endswith("too low.")
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    monkeypatch.delenv("LUMEN_PUBLISH", raising=False)
    assert "did not foresee" in miss(0.0281, measured)
    monkeypatch.setenv("LUMEN_BOOK", "1")
    with pytest.raises(ValueError, match="wants a reason"):
        miss(0.0281, measured)
    with pytest.raises(ValueError, match="wants a reason"):
        miss(0.0281, measured, why_high="The cache was warm.")


def test_a_miss_inside_the_interval_has_no_cause():
    """A page explained by what the bytes leave out a difference that its clock had not seen."""
    wide = Estimate(0.0118, 0.0053, 0.0185, 16, "s")
    assert miss(0.0075, wide, "The bytes leave out the pages.").endswith("36 % too low, inside the interval.")
    assert miss(0.0050, wide, "The bytes leave out the pages.").endswith(
        "too low. The bytes leave out the pages."
    )
    assert miss(0.0075, Estimate(0.0118, 0.0118, 0.0118, 1, "s"), "One sample.").endswith("One sample.")


def test_a_miss_takes_a_timing_and_other_units():
    assert "measured 2.00 s (1.00 to 3.00, n = 3)" in miss(2.0, Timing((1.0, 2.0, 3.0)))
    assert miss(10.0, Estimate(10.5, 10.0, 11.0, 8, "GB/s")).startswith(
        "predicted 10.0 GB/s, measured 10.5 GB/s"
    )
    with pytest.raises(ValueError, match="above 0"):
        miss(0.0, Timing((1.0,)))


def test_an_estimate_inside_brackets_loses_its_own():
    text = says(est(1.14, 1.07, 1.22), more="{size} longer ({estimate})", less="-", same="({low} to {high})")
    assert text == "14 % longer (1.14 ×, 1.07 to 1.22, n = 12)"
    text = says(
        est(1.14, 1.07, 1.22), more="now {estimate}, as (one) said", less="-", same="({low} to {high})"
    )
    assert text == "now 1.14 × (1.07 to 1.22, n = 12), as (one) said"


def test_a_single_sample_has_no_interval_to_show():
    assert str(Estimate(0.816, 0.816, 0.816, 1, "s")) == "816 ms (n = 1)"
