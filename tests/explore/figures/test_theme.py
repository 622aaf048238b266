"""The house style: legible colours, small and reproducible figures, text that fits."""

import json
import math

import numpy as np
import pytest

from lumen.explore.figures import theme


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_can_be_read_on_a_light_and_on_a_dark_page():
    for color, bright in zip(theme.COLORS, theme.BRIGHT, strict=True):
        assert contrast(color, "#ffffff") >= 4.5, color
        assert contrast(bright, "#121212") >= 4.5, bright
        assert contrast(color, "#121212") >= 3, color  # a dark notebook keeps the first set
    assert contrast(theme.INK, "#ffffff") >= 4.5


def test_the_script_of_the_book_swaps_exactly_these_colours():
    from importlib import resources

    script = resources.files("lumen.explore").joinpath("static/plotly-render.js").read_text("utf8")
    for color, bright in zip(theme.COLORS, theme.BRIGHT, strict=True):
        assert f'"{color}": "{bright}"' in script


def drawn():
    fig = theme.figure("Time grows with the batch", "batch (sequences)", "time (ms)", log_x=True)
    fig.add_scatter(x=np.array([1, 2, 4]), y=np.array([1 / 3, 0.1 + 0.2, np.nan], dtype=np.float64))
    return fig


def test_a_figure_is_small_and_the_same_bytes_every_time():
    first, second = (theme.LumenRenderer().to_mimebundle(drawn().to_dict()) for _ in range(2))
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    fig = first[theme.MIME]
    assert fig["data"][0]["y"] == [
        0.333333,
        0.3,
        None,
    ]  # six digits: the last bits of a sum differ between machines
    assert len(json.dumps(fig)) < 2000


def test_the_html_part_cannot_be_broken_by_a_title():
    fig = theme.figure("</script><script>alert(1)</script>", "x (s)", "y (s)")
    assert theme.LumenRenderer().to_mimebundle(fig.to_dict())["text/html"].count("</script") == 1


def test_setup_makes_the_house_style_the_default():
    import plotly.io as pio

    theme.setup_plotly()
    assert (pio.templates.default, pio.renderers.default) == ("lumen", "lumen")
    layout = pio.templates["lumen"].layout
    assert layout.font.size >= 12 and layout.paper_bgcolor == "rgba(0,0,0,0)"


@pytest.mark.parametrize("missing", ["title", "x", "y"])
def test_a_figure_without_words_is_refused(missing):
    words = {"title": "t", "x": "x (s)", "y": "y (s)"} | {missing: " "}
    with pytest.raises(ValueError, match=missing):
        theme.figure(**words)


def test_a_long_title_is_wrapped_and_gets_its_room():
    short, long = theme.figure("short", "x", "y"), theme.figure("word " * 30, "x", "y")
    assert long.layout.title.text.count("<br>") == 2
    assert long.layout.margin.t > short.layout.margin.t


def test_labels_land_on_the_point_on_a_logarithmic_axis():
    fig = theme.figure("t", "x", "y", log_x=True)
    theme.label_line(fig, 100, 7, "here")
    assert fig.layout.annotations[0].x == pytest.approx(2, abs=2e-3) and fig.layout.annotations[0].y == 7
    theme.label_line(fig, 1024, 7, "the last point")
    assert float(f"{fig.layout.annotations[1].x:.6g}") < math.log10(1024)  # not rounded past the axis' end
    with pytest.raises(ValueError, match="above zero"):
        theme.label_line(fig, 0, 7, "nowhere")


@pytest.mark.parametrize(
    "low, high, ticks",
    [
        (1, 10, [1, 2, 5, 10]),
        (0.9, 1100, [1, 10, 100, 1000]),
        (7, 60, [10, 20, 50]),
        (3, 4, [3, 3.5, 4]),
        (0.98, 1.97, [1, 1.2, 1.4, 1.6, 1.8]),
        (1.01, 1.04, [1.01, 1.02, 1.03, 1.04]),
        (2, 2, [2]),
        (3, 3, [3, 3]),
    ],
)
def test_nice_ticks(low, high, ticks):
    assert theme.nice_ticks(low, high) == pytest.approx(ticks)


def test_tick_labels_are_short():
    assert [theme.tick_label(v) for v in (0.05, 20, 5000, 2e6, 3e9, 1.5e12)] == [
        "0.05",
        "20",
        "5k",
        "2M",
        "3G",
        "1.5T",
    ]
    with pytest.raises(ValueError, match="zero or less"):
        theme.log_axis(theme.figure("t", "x", "y"), "x", [0, 1])


def test_two_dollar_signs_are_no_formula():
    """MathJax set "0.47 a million tokens; 111 GB:" as one word in the title of a published figure."""
    with pytest.raises(ValueError, match="two dollar signs"):
        theme.figure("From $0.47 to $0.08", x="x", y="y")
    with pytest.raises(ValueError, match="two dollar signs"):
        theme.figure("a", x="x", y="$ and $")
    assert theme.figure("5 $ an hour", x="x", y="y").layout.title.text == "5 $ an hour"
