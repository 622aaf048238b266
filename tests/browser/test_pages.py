"""Every page, wide and narrow, light and dark: what a reader would trip over. What is looked for stands in audit.js.

`axe` looks for what those trip over who listen, or do not use a mouse: nothing moderate or worse is let through.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.book.not_yet import NOT_YET, STALE

from .conftest import BOOK

AUDIT = (Path(__file__).parent / "audit.js").read_text("utf8")
LIMIT_KB = 300  # page HTML beside the shared scripts
# Contrast is for audit.js: among thousands of spans of code axe would take ten seconds a page. It is not to fetch the
# style sheets once more.
AXE = """async () => {
  const seen = { exclude: [[".highlight"], [".plotly-json svg"], ["mjx-container"]] };
  const options = { resultTypes: ["violations"], preload: false, rules: { "color-contrast": { enabled: false } } };
  const found = await axe.run(seen, options);
  return found.violations.filter((v) => ["moderate", "serious", "critical"].includes(v.impact))
    .map((v) => `[axe:${v.id}] ${v.help}: ${v.nodes.slice(0, 2).map((n) => n.html.slice(0, 120)).join(" … ")}`);
}"""


def forgiven(path: str) -> set[str]:
    """Rules that this page does not keep yet."""
    name = path.removesuffix(".html").removeprefix("chapters/")
    return set(NOT_YET.get(name, "").split())


def judged(path: str, faults: list[str]) -> list[str]:
    """The faults that count. Outputs that the next publication replaces are not judged by their looks."""
    if path.removesuffix(".html") in STALE:
        return []
    return [f for f in faults if rule(f) not in forgiven(path)]


def rule(fault: str) -> str:
    found = re.match(r"\[([\w:-]+)\]", fault)
    return found[1] if found else ""


def axe(page) -> list[str]:
    """Findings of axe-core, moderate or worse."""
    if not page.evaluate("typeof axe === 'object'"):
        source = Path(find_spec("axe_playwright_python").origin).with_name("axe.min.js")
        page.evaluate(source.read_text("utf8"))
    return page.evaluate(AXE)


def test_page_reads_well(path, screen, site):
    screen.goto(f"{site}/{path}", wait_until="load")
    found = {}
    for theme in ("light", "dark"):  # toggled in place, as a reader would
        found[theme] = screen.evaluate(AUDIT, {"theme": theme, "first": theme == "light"})["faults"]
    if screen.viewport_size["width"] > 1000:
        found["axe"] = axe(screen)
    lines = [f"{where}: {f}" for where, faults in found.items() for f in judged(path, faults)]
    lines += [f"network and console: {problem}" for problem in screen.problems]
    assert not lines, "\n".join(lines)


def test_page_is_light(path, site):
    assert (BOOK / path).stat().st_size <= LIMIT_KB * 1000


def test_figures_and_explorers_work_from_a_folder(path, wide, site):
    page = (BOOK / path).read_text("utf8")
    if "plotly-json" not in page and "lumen-widget" not in page:
        pytest.skip("no figure and no explorer on this page")
    wide.goto((BOOK / path).as_uri(), wait_until="load")
    faults = wide.evaluate(AUDIT, {"theme": "light", "first": True})["faults"]
    assert judged(path, faults) == []
    assert wide.problems == []


def chapter(at_least: str, count: int = 1) -> str:
    """A chapter's page that holds the text `at_least` so many times."""
    found = [p for p in sorted(BOOK.rglob("chapters/*.html")) if p.read_text("utf8").count(at_least) >= count]
    if not found:
        pytest.skip(f"no page with {count} × {at_least}")
    return found[0].relative_to(BOOK).as_posix()


def test_figures_wait_until_they_are_near(site, wide):
    """A long page draws what is in sight and the rest later: ten figures must not hold up the first screen."""
    page = chapter('class="plotly-json"', 3)
    wide.goto(f"{site}/{page}", wait_until="load")
    wide.wait_for_timeout(300)
    boxes = wide.locator(".plotly-json:visible")  # those in folded answers are drawn when they are opened
    last = boxes.nth(boxes.count() - 1)
    assert last.locator(".plotly-graph-div").count() == 0
    last.scroll_into_view_if_needed()
    last.locator(".plotly-graph-div[data-ready]").wait_for(timeout=120000)
    assert wide.problems == []


def test_paper_shows_everything_and_cuts_nothing(site, wide):
    """A4 at 96 dots an inch without its margins is 680 px wide."""
    page = chapter('<details class="reveal"')
    wide.goto(f"{site}/{page}", wait_until="load")
    wide.set_viewport_size({"width": 680, "height": 960})
    wide.emulate_media(media="print")
    try:
        wide.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        wide.wait_for_timeout(500)
        assert wide.locator(".bd-article details:not(.quiet):not([open])").count() == 0
        assert (
            wide.locator(
                "details.quiet summary:visible, .bd-sidebar-primary:visible, .bd-header-article:visible"
            ).count()
            == 0
        )
        assert wide.locator(".plotly-json .main-svg").count() >= wide.locator(".plotly-json").count()
        wider = """() => [...document.querySelectorAll("article *")].filter((e) => e.checkVisibility()
          && !e.closest("mjx-container, .sr, svg") && e.getBoundingClientRect().right > innerWidth + 2)
          .map((e) => e.localName + "." + e.className)"""
        assert wide.evaluate(wider) == []
        assert (
            wide.evaluate("getComputedStyle(document.querySelector('article pre')).whiteSpace") == "pre-wrap"
        )
        wide.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert wide.locator(".bd-article details.reveal[open]").count() == 0
    finally:
        wide.emulate_media(media="screen")
        wide.set_viewport_size({"width": 1280, "height": 900})


def test_landing_page_shows_both_ways_in_above_the_fold(screen, site):
    screen.goto(f"{site}/book/intro.html", wait_until="load")
    for name in ("Start chapter 1", "Open in Colab"):
        box = screen.get_by_role("link", name=name).bounding_box()
        assert box["y"] + box["height"] <= screen.viewport_size["height"]
    slider = screen.get_by_role("slider", name="Tokens in one pass of the model")
    slider.press("Home")
    assert screen.locator(".lumen-widget .verdict").inner_text().startswith("One token alone")
    assert screen.problems == []
