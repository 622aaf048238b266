"""Computed prose and the two comparison figures."""

import pytest

from lumen.bench import Estimate
from lumen.explore.figures import overlay
from lumen.explore.prose import show


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(show, "display", lambda thing: seen.append(thing.data))
    return seen


def test_table_formats_numbers_and_sets_them_to_the_right(shown):
    show.table([["H100", 989.4, 1234567, None], ["L4", 0.123456, 3, 1.0]], ["chip", "a", "b", "c"])
    assert shown == [
        "| chip | a | b | c |\n| :--- | ---: | ---: | ---: |\n"
        "| H100 | 989 | 1,234,567 | – |\n| L4 | 0.123 | 3 | 1 |"
    ]


def test_html_is_escaped_but_not_in_code_and_math(shown):
    show.table([["<b>&", "`a<b`", "$x<y|z$", "a|b"]], ["1", "2", "3", "4"])
    assert shown[0].splitlines()[2] == r"| &lt;b>&amp; | `a<b` | $x<y\vert z$ | a\|b |"


def test_a_table_that_may_be_stacked_stays_plain_markdown(shown):
    show.table([["a", 1]], ["name", "n"], stack=True)
    show.table([["a", 1]], ["name", "n"])
    assert shown[0] == f'<div class="stack">\n\n{shown[1]}\n\n</div>'


def test_callout_has_the_blank_lines_that_markdown_needs(shown):
    show.callout("takeaway", "**Takeaway.** 22.5 KiB. <script>")
    assert shown == ['<div class="callout takeaway">\n\n**Takeaway.** 22.5 KiB. &lt;script>\n\n</div>']


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: show.callout("warning", "x"), "there is no callout"),
        (lambda: show.table([[1]], ["a", "b"]), "row 1 has 1 cells"),
        (lambda: show.table([[1]], ["a"], align="x"), "align needs one of"),
        (lambda: overlay.reveal(guess=0, model=1, measured=1, unit="s", title="t"), "above zero"),
        (lambda: overlay.reveal(guess=1, model=1, measured=[], unit="s", title="t"), "measured needs"),
        (lambda: overlay.predicted_vs_measured({}, unit="s", title="t"), "nothing to compare"),
        (lambda: overlay.predicted_vs_measured({"a": [(1, 1)]}, unit="s", title="t", band=2), "band"),
    ],
)
def test_refusals_name_the_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_reveal_shows_median_and_whole_spread():
    fig = overlay.reveal(guess=10, model=109.1, measured=[9.0, 12.0, 9.5], unit="×", title="Nine times")
    guess, model, measured = fig.data
    assert [t.x[0] for t in (guess, model, measured)] == [10, 109.1, 9.5]
    assert measured.error_x.array[0] == 2.5 and measured.error_x.arrayminus[0] == 0.5
    assert guess.error_x.array is None
    assert 10 ** fig.layout.xaxis.range[0] < 9 and 10 ** fig.layout.xaxis.range[1] > 109.1


def test_reveal_takes_a_timing():
    class Timing:
        samples = (2.0, 4.0, 3.0)

    assert overlay.reveal(guess=1, model=2, measured=Timing(), unit="s", title="t").data[2].x[0] == 3


def test_predicted_vs_measured_keeps_every_point_in_view():
    fig = overlay.predicted_vs_measured({"a": [(1, [2.0, 3.0])], "b": [(100, 80)]}, unit="ms", title="t")
    low, high = (10**e for e in fig.layout.xaxis.range)
    assert low < 1 and high > 100 and fig.layout.xaxis.range == fig.layout.yaxis.range
    assert fig.data[2].error_y.array[0] == 0.5
    assert [t.name for t in fig.data if t.showlegend is not False] == ["a", "b"]


def test_a_reveal_without_a_clock_says_so():
    fig = overlay.reveal(
        model=46.0, measured=45.7, unit="%", title="Simulated", log=False, names=("formula", "simulated")
    )
    assert [trace.y[0] for trace in fig.data] == ["formula", "simulated"]


def test_a_reveal_draws_an_interval_and_the_whole_of_a_share():
    """60.0 and 60.6 % must look near, and the interval around either must be seen."""
    model, found = Estimate(60.0, 48.7, 70.3, 75, "%"), Estimate(60.6, 53.1, 67.6, 170, "%")
    fig = overlay.reveal(
        model=model, measured=found, unit="%", what="hits", title="t", log=False, within=(0, 100)
    )
    for trace, est in zip(fig.data, (model, found), strict=True):
        assert trace.x[0] == est.value
        assert trace.x[0] + trace.error_x.array[0] == pytest.approx(est.high)
        assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(est.low)
    assert list(fig.layout.xaxis.range) == [0, 100] and fig.layout.meta["whole"]


def test_a_quantity_without_a_unit_is_named_without_one():
    fig = overlay.reveal(
        model=1.0, measured=0.99, unit="", what="cosine", title="t", log=False, within=(0, 1)
    )
    assert fig.data[0].text[0] == "1" and fig.layout.xaxis.title.text == "cosine"
    assert list(fig.layout.xaxis.range) == [0, 1]  # no cosine of 1.04


def test_a_guess_beyond_the_ends_is_shown_a_measurement_beyond_them_refused():
    fig = overlay.reveal(guess=150, model=1.0, measured=2.0, unit="%", title="t", log=False, within=(0, 100))
    assert list(fig.layout.xaxis.range) == [0, 150]
    with pytest.raises(ValueError, match="is to end at"):
        overlay.reveal(model=1.0, measured=120.0, unit="%", title="t", log=False, within=(0, 100))
    with pytest.raises(ValueError, match="log=False"):
        overlay.reveal(model=1.0, measured=2.0, unit="%", title="t", within=(0, 100))
