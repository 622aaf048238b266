"""A figure's stored HTML, as Colab shows it: alone in a frame, with plotly.js fetched from its CDN."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from lumen.explore.figures import theme

PLOTLY = Path(find_spec("plotly").origin).parent / "package_data" / "plotly.min.js"


@pytest.mark.parametrize("dark", [False, True])
def test_the_html_part_draws_itself(dark, screen, modules):
    fig = theme.figure("Time grows with the batch", "batch (sequences)", "time (ms)", log_x=True)
    fig.add_scatter(x=[1, 2, 4], y=[3, 4, 9])
    stored = theme.LumenRenderer().to_mimebundle(fig.to_dict())["text/html"]
    screen.route("https://cdn.plot.ly/**", lambda r: r.fulfill(path=PLOTLY, content_type="text/javascript"))
    try:
        screen.goto(f"{modules}/explore.css", wait_until="load")
        theme_attribute = "theme='dark'" if dark else ""
        screen.set_content(f"<!doctype html><html {theme_attribute}><body>{stored}</body></html>")
        screen.wait_for_selector(".scatterlayer path.js-line", state="attached", timeout=120000)
    finally:
        screen.unroute("https://cdn.plot.ly/**")
    ink = screen.locator(".gtitle").evaluate("e => getComputedStyle(e).fill")
    assert ink == ("rgb(213, 219, 225)" if dark else "rgb(92, 100, 109)")
    assert screen.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert screen.problems == []
