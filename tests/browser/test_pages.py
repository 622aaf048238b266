"""Every page, wide and narrow, light and dark: what a reader would trip over. What is looked for stands in audit.js."""

from pathlib import Path

import pytest

from .conftest import BOOK

AUDIT = (Path(__file__).parent / "audit.js").read_text("utf8")
LIMIT_KB = 300  # page HTML beside the shared scripts


def test_page_reads_well(path, screen, site):
    screen.goto(f"{site}/{path}", wait_until="load")
    found = {}
    for theme in ("light", "dark"):  # toggled in place, as a reader would
        found[theme] = screen.evaluate(AUDIT, {"theme": theme, "first": theme == "light"})["faults"]
    found["network and console"] = screen.problems
    lines = [f"{where}: {fault}" for where, faults in found.items() for fault in faults]
    assert not lines, "\n".join(lines)


def test_page_is_light(path, site):
    assert (BOOK / path).stat().st_size <= LIMIT_KB * 1000


def test_figures_and_explorers_work_from_a_folder(path, wide, site):
    page = (BOOK / path).read_text("utf8")
    if "plotly-json" not in page and "lumen-widget" not in page:
        pytest.skip("no figure and no explorer on this page")
    wide.goto((BOOK / path).as_uri(), wait_until="load")
    assert wide.evaluate(AUDIT, {"theme": "light", "first": True})["faults"] == []
    assert wide.problems == []


def test_figures_wait_until_they_are_near(site, wide):
    """A long page draws what is in sight and the rest later: ten figures must not hold up the first screen."""
    many = [p for p in BOOK.rglob("chapters/*.html") if p.read_text("utf8").count('class="plotly-json"') >= 3]
    if not many:
        pytest.skip("no page with three figures")
    wide.goto(f"{site}/{many[0].relative_to(BOOK).as_posix()}", wait_until="load")
    wide.wait_for_timeout(300)
    boxes = wide.locator(".plotly-json:visible")  # those in folded answers are drawn when they are opened
    last = boxes.nth(boxes.count() - 1)
    assert last.locator(".plotly-graph-div").count() == 0
    last.scroll_into_view_if_needed()
    last.locator(".plotly-graph-div[data-ready]").wait_for(timeout=5000)
    assert wide.problems == []
