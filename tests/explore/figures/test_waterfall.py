"""The waterfall figure: bars that meet, a signed residual, a label on every bar, and the whole at the end."""

import math
from itertools import pairwise

import pytest

from lumen.explore import waterfall
from lumen.explore.figures.theme import palette

PARTS = [("floor", 0.0157), ("matrix products", 0.0084), ("operator starts", 0.0062), ("residual", 0.0021)]


def drawn(fig):
    """name -> (start, end) of every bar, in the figure's unit."""
    parts, whole = fig.data[0], fig.data[1]
    ends = {n: (b, b + x) for n, b, x in zip(parts.y, parts.base, parts.x, strict=True)}
    return ends | {whole.y[0]: (0.0, whole.x[0])}


def labels(fig):
    return {a.y: a.text for a in fig.layout.annotations}


@pytest.mark.parametrize("sign", [1, -1])
def test_each_bar_starts_where_the_last_one_ended(sign):
    parts = [*PARTS[:2], ("attention", sign * 0.001), PARTS[2], ("residual", sign * 0.0021)]
    bars = drawn(waterfall(parts, "Where the time goes"))
    ends = [bars[name] for name, _ in parts]
    assert ends[0][0] == 0
    assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(ends))
    assert (
        ends[-1][1]
        == pytest.approx(bars["measured"][1])
        == pytest.approx(1e3 * math.fsum(s for _, s in parts))
    )


def test_only_the_residual_and_what_takes_time_away_are_signed():
    text = labels(waterfall([*PARTS[:2], ("attention", -0.001), ("residual", 0.0021)], "Signs"))
    assert text["residual"].startswith("+2.1 ms<br>+") and text["attention"].startswith("−1 ms<br>−")
    assert text["floor"].startswith("15.7 ms<br>") and text["measured"] == "25.2 ms"
    assert labels(waterfall([*PARTS[:3], ("residual", -0.002)], "Signs"))["residual"].startswith("−2 ms<br>−")


def test_every_bar_has_its_label_and_the_order_is_kept():
    fig = waterfall(PARTS, "Where the time goes")
    assert list(fig.layout.yaxis.categoryarray) == [*(name for name, _ in PARTS), "measured"]
    assert fig.layout.yaxis.autorange == "reversed", "the floor is on top"
    assert set(labels(fig)) == {*(name for name, _ in PARTS), "measured"}
    assert fig.data[0].marker.pattern.shape == ("", "", "", "/"), "the residual is told apart without colour"
    assert set(fig.data[0].marker.color) <= set(vars(palette).values()), (
        "dark mode swaps colours of the palette"
    )


@pytest.mark.parametrize("unit, shown", [("s", "0.0157 s"), ("µs", "15,700 µs"), ("ms", "15.7 ms")])
def test_the_unit_is_the_readers_choice(unit, shown):
    fig = waterfall(PARTS, "Units", unit=unit)
    assert fig.layout.xaxis.title.text == f"time ({unit})"
    assert labels(fig)["floor"].startswith(shown)


@pytest.mark.parametrize(
    "parts, unit",
    [
        ([], "ms"), ([("floor", math.nan)], "ms"), (PARTS, "min"),
        ([("a", 1.0), ("a", 1.0)], "s"), ([("measured", 1.0)], "s"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_a_sentence(parts, unit):
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        waterfall(parts, "Nonsense", unit=unit)


def test_waterfalls_that_are_compared_end_at_the_same_place():
    short, long = (waterfall([("floor", s)], "t", until=0.08) for s in (0.04, 0.08))
    assert short.layout.xaxis.range == long.layout.xaxis.range
    assert long.layout.xaxis.range[1] < 1.5 * 80, "room for labels, not an axis twice as long as its bars"
    assert waterfall([("floor", 0.04)], "t").layout.xaxis.range != long.layout.xaxis.range
