"""What a chapter's page does without a kernel: the guess box, the fold, the marks in the margin, the code switch."""

import pytest

from lumen.explore.explorers.widget import inline_module
from lumen.explore.figures.overlay import reveal
from lumen.explore.figures.theme import _plain
from lumen.explore.prose.guesses import Guess
from lumen.explore.sphinx_ext import figure_html
from tests.explore.prose.test_guess import NUMBERS

from .conftest import ROOT, STATIC
from .test_figures import PLOTLY

QUIET = (
    '<div class="cell"><details class="quiet"><summary title="Code of this cell">'
    '<span class="sr">Code of this cell</span></summary>'
)
TABLE = """<div class="stack"><div class="pst-scrollable-table-container"><table class="table">
<thead><tr><th>chip</th><th>TB/s</th><th>a long column</th></tr></thead>
<tbody><tr><td>H100</td><td>3.35</td><td>words</td></tr></tbody></table></div></div>"""


def html(**axis) -> str:
    """A small page in the form of a chapter's: a guess, its reveal with a figure, and two quiet cells."""
    fig = reveal(
        guess=Guess("01-a", "How many times?", "×"),
        model=1.3,
        measured=[1.2, 1.4, 1.5],
        unit="×",
        title="Hardly longer",
        **axis,
    )
    drawn = figure_html(_plain(fig.to_plotly_json()))
    styles = (ROOT / "book/static/course.css").read_text("utf8") + (STATIC / "explore.css").read_text("utf8")
    scripts = [(STATIC / name).read_text("utf8") for name in ("page.js", "plotly-render.js")] + [
        f"(() => {{{inline_module('guess.js')}widget.start();}})();"
    ]
    return f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>t</title>
<style>{styles}</style></head><body>
<div class="article-header-buttons"></div><main class="bd-article" style="margin:8px 40px">
{Guess("01-a", "How many times?", "×").html()}
<details class="reveal"><summary>Reveal</summary>{drawn}{QUIET}<pre>a = 1</pre></details><p>said</p></div></details>
{QUIET}<pre>b = 2</pre></details></div>{TABLE}</main>
{"".join(f"<script>{s}</script>" for s in scripts)}</body></html>"""


def show(page, modules, **axis):
    address = f"{modules}/chapter.html"
    page.route(address, lambda r: r.fulfill(body=html(**axis), content_type="text/html"))
    page.route(f"{modules}/plotly.js", lambda r: r.fulfill(path=PLOTLY))
    page.goto(address, wait_until="load")
    page.add_script_tag(url=f"{modules}/plotly.js")


@pytest.fixture
def page(screen, modules):
    show(screen, modules)
    yield screen
    screen.evaluate("localStorage.clear()")


def test_numbers_are_read_like_in_python(wide, modules):
    wide.goto(f"{modules}/", wait_until="load")
    got = wide.evaluate(
        "async ([url, all]) => { const { number } = await import(url); return all.map(([t, u]) => number(t, u)); }",
        [f"{modules}/kit.js", [[text, unit] for text, unit, _ in NUMBERS]],
    )
    assert [None if value != value else value for value in got] == [wanted for _, _, wanted in NUMBERS]


def test_a_guess_is_remembered_and_shown_beside_the_answer(page, modules):
    field = page.get_by_label("How many times?")
    field.fill("39,4")
    page.get_by_text("Reveal", exact=True).press("Enter")
    assert page.locator(".you-said").inner_text() == "You said 39,4 ×."
    page.locator(".plotly-graph-div[data-ready]").wait_for(timeout=120000)
    labels = page.locator(".ytick text").all_text_contents()
    assert set(labels) == {"your guess", "model", "measured"}
    show(page, modules)
    assert page.get_by_label("How many times?").input_value() == "39,4"
    page.get_by_label("How many times?").fill("")
    assert page.locator(".you-said").text_content() == ""
    assert page.problems == []


def test_words_in_place_of_a_number_are_answered(page):
    field = page.get_by_label("How many times?")
    field.fill("lots")
    field.press("Tab")
    assert "for example 39.4, 39,4 or 1e3" in page.locator(".lumen-guess .said").inner_text()
    assert page.locator(".you-said").text_content() == ""


def test_a_guess_that_came_after_the_figure_joins_it(page):
    page.get_by_text("Reveal", exact=True).press("Enter")
    page.locator(".plotly-graph-div[data-ready]").wait_for(timeout=120000)
    assert page.locator(".ytick text").count() == 2
    page.get_by_label("How many times?").fill("1000")
    page.wait_for_function("document.querySelectorAll('.ytick text').length === 3")
    assert page.problems == []


@pytest.mark.parametrize("guess, high", [("1.99", 2.0), ("3", 3.3)])
def test_a_whole_axis_grows_only_for_a_guess_beyond_it(guess, high, screen, modules):
    show(screen, modules, log=False, within=(0, 2))
    screen.get_by_label("How many times?").fill(guess)
    screen.get_by_text("Reveal", exact=True).press("Enter")
    screen.locator(".plotly-graph-div[data-ready]").wait_for(timeout=120000)
    low, top = screen.evaluate("document.querySelector('.plotly-graph-div').layout.xaxis.range")
    assert (low, top) == (0, pytest.approx(high))
    screen.evaluate("localStorage.clear()")


def test_the_code_switch_opens_every_cell_and_is_remembered(page, modules):
    code = page.locator(".bd-article pre")
    assert [code.nth(i).is_visible() for i in range(2)] == [False, False]
    switch = page.get_by_role("button", name="code")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.press("Enter")
    assert switch.get_attribute("aria-pressed") == "true" and code.nth(1).is_visible()
    show(page, modules)
    assert page.locator(".bd-article pre").nth(1).is_visible()
    page.get_by_role("button", name="code").press(" ")
    assert not page.locator(".bd-article pre").nth(1).is_visible()
    assert page.problems == []


def test_a_mark_in_the_margin_is_reached_by_keyboard_and_large_enough(page):
    mark = page.locator("details.quiet > summary").last
    box = mark.bounding_box()
    assert min(box["width"], box["height"]) >= 24
    mark.focus()
    page.keyboard.press("Enter")
    assert page.locator(".bd-article pre").last.is_visible()
    assert mark.evaluate("e => getComputedStyle(e).opacity") == "1"


def test_stacked_tables_name_every_value_on_a_phone(page):
    cell = page.locator(".stack td").nth(2)
    label = cell.evaluate("e => getComputedStyle(e, '::before').content")
    narrow = page.viewport_size["width"] < 540
    assert label == ('"a long column"' if narrow else "none")
    assert cell.evaluate("e => getComputedStyle(e).display") == ("flex" if narrow else "table-cell")
