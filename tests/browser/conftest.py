"""The built book in headless Chromium, served on 127.0.0.1, with every other network blocked.

`BOOK_HTML` names the built book (default book/_build/html), `CHROMIUM` the browser (default /usr/bin/chromium).
"""

from __future__ import annotations

import functools
import http.server
import os
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOOK = Path(os.environ.get("BOOK_HTML") or ROOT / "book" / "_build" / "html").resolve()
CHROMIUM = os.environ.get("CHROMIUM") or "/usr/bin/chromium"
STATIC = ROOT / "lumen" / "explore" / "static"
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}


def pages() -> list[str]:
    """Every page of the book, relative to its root; the redirect at the root and generated lists left out."""
    skipped = {"index.html", "genindex.html", "search.html"}
    found = (
        p.relative_to(BOOK).as_posix()
        for p in BOOK.rglob("*.html")
        if not {"_static", "_sources"} & set(p.parts)
    )
    return sorted(p for p in found if p not in skipped)


def pytest_generate_tests(metafunc):
    """`path` runs over the pages. Without a built book one test remains, and says what to do."""
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", pages() or ["(no page)"])


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


def cannot(sentence: str) -> None:
    """Skip with a sentence that names the cure; fail where the browser tests are part of the proof."""
    if os.environ.get("CI") or os.environ.get("LUMEN_REQUIRE_BROWSER"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        cannot(
            f"No Chromium at {CHROMIUM}. Cure: apt-get install chromium (Debian), or set CHROMIUM to a Chrome or "
            "Chromium that is installed."
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        cannot(
            "The browser tests need playwright. Cure: pip install -r requirements.txt (no browser download needed)."
        )
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM,
            headless=True,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        yield running
        running.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}

    def log_message(self, *args):
        pass


def _serve(folder: Path):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="session")
def site():
    """Address of the built book."""
    if not pages():
        cannot(
            f"No built book in {BOOK}. Cure: make book, or set BOOK_HTML to the folder that holds index.html."
        )
    server = _serve(BOOK)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="session")
def modules():
    """Address of the explorers' sources, for tests that import their formulas."""
    server = _serve(STATIC)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def watched(browser, size: str):
    """A page that reaches nothing but this machine and writes what goes wrong into `page.problems`."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    context.set_default_timeout(120_000)  # ms; a busy machine is no failure
    page = context.new_page()
    page.problems = []

    def route(r):
        if r.request.url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:")):
            r.continue_()
        else:
            page.problems.append(f"asks another host: {r.request.url}")
            r.abort()

    context.route("**/*", route)
    page.on("requestfailed", lambda r: page.problems.append(f"request failed: {r.url} {r.failure}"))
    page.on("response", lambda r: r.status >= 400 and page.problems.append(f"{r.status}: {r.url}"))
    page.on("pageerror", lambda e: page.problems.append(f"page error: {e}"))
    page.on("console", lambda m: m.type == "error" and page.problems.append(f"console: {m.text}"))
    return page


@pytest.fixture(scope="module")
def screens(browser):
    """One page per screen size for all tests of a module: opening one for each test would take most of the time."""
    made = {size: watched(browser, size) for size in SIZES}
    yield made
    for page in made.values():
        page.context.close()


@pytest.fixture(params=list(SIZES))
def screen(request, screens):
    """Both screens in turn, with a clean record."""
    page = screens[request.param]
    page.problems.clear()
    return page


@pytest.fixture
def wide(screens):
    screens["wide"].problems.clear()
    return screens["wide"]
