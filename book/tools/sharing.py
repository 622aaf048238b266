"""Sphinx extension: what search engines, link previews and would-be editors see of a page.

Title, description, canonical address, OpenGraph card, sitemap, and an edit link that opens the text a person may edit:
the `.py` beside a notebook, the solution behind a generated exercise. All addresses come from repo.py.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import repo

NAME = "Lumen"
TITLE = "Lumen, a course on LLM inference"
ABOUT = (
    "Why is a language model slow, and what makes it faster? A free course on LLM inference that predicts the number "
    "first, then measures it on a real model in front of you."
)
KINDS = {"chapters": "", "exercises": "Exercises with checks that explain. ", "solutions": "Solutions. "}
CARD = "_static/card.png"
CARD_SIZE = (1200, 630)


def address(pagename: str) -> str:
    return f"{repo.site()}{pagename}.html"


def description(pagename: str) -> str:
    """One sentence or two about a page; a chapter's is the question that it answers."""
    folder, _, name = pagename.partition("/")
    if folder in KINDS and name in repo.chapters():
        return f"{KINDS[folder]}{repo.chapter(name).question} {TITLE}."
    return ABOUT


def head(pagename: str, title: str) -> str:
    """The elements that a link preview reads."""
    facts = {
        "og:type": "website" if pagename == "book/intro" else "article",
        "og:site_name": NAME,
        "og:title": title,
        "og:description": description(pagename),
        "og:url": address(pagename),
        "og:image": repo.site() + CARD,
        "og:image:width": str(CARD_SIZE[0]),
        "og:image:height": str(CARD_SIZE[1]),
        "og:image:alt": f"{TITLE}: a roofline with a measured point under it",
    }
    lines = [f'<meta property="{key}" content="{html.escape(value)}">' for key, value in facts.items()]
    lines.append(f'<meta name="description" content="{html.escape(description(pagename))}">')
    lines.append('<meta name="twitter:card" content="summary_large_image">')
    return "\n".join(lines) + "\n"


def edited(url: str) -> str:
    """The edit address of the text behind a page."""
    url = re.sub(r"/exercises/([^/]+\.ipynb)$", r"/solutions/\1", url)
    return re.sub(r"/((?:chapters|solutions)/[^/]+)\.ipynb$", r"/\1.py", url)


def _buttons(buttons: Any) -> Any:
    """All header buttons, those inside of menus too."""
    for button in buttons or ():
        yield button
        yield from _buttons(button.get("buttons"))


def _page(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    context["docstitle"] = (
        TITLE  # behind the page's own in the window's title; the sidebar shows the name alone
    )
    context["theme_logo"] = {**(context.get("theme_logo") or {}), "text": NAME}
    if pagename == "book/intro":
        context["title"], context["docstitle"] = "LLM inference, measured", NAME
    if doctree is not None:
        title = re.sub(r"<[^>]*>", "", html.unescape(str(context.get("title") or NAME)))
        context["metatags"] = context.get("metatags", "") + head(pagename, title)
    for button in _buttons(context.get("header_buttons")):
        if "/edit/" in str(button.get("url", "")):
            button["url"] = edited(button["url"])


def sitemap(pages: list[str]) -> str:
    lines = "".join(f"<url><loc>{escape(address(page))}</loc></url>\n" for page in sorted(pages))
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{lines}</urlset>\n'
    )


def _finish(app: Any, error: Exception | None) -> None:
    """The sitemap, and what a preview of the bare address needs: the root is a redirect, which robots do not follow."""
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / "sitemap.xml").write_text(sitemap(list(app.env.found_docs)), "utf8")
    root = out / "index.html"
    if root.is_file() and "og:title" not in (text := root.read_text("utf8")):
        canonical = f'<link rel="canonical" href="{address("book/intro")}">\n<title>{TITLE}</title>\n'
        extra = head("book/intro", TITLE) + canonical
        text = (
            f"<head>\n{extra}</head>\n{text}"
            if "<head>" not in text
            else text.replace("<head>", f"<head>\n{extra}", 1)
        )
        root.write_text(text, "utf8")


def _configure(app: Any, config: Any) -> None:
    config.html_baseurl = repo.site()


def setup(app: Any) -> dict[str, Any]:
    app.connect("config-inited", _configure)
    app.connect("html-page-context", _page, priority=900)  # after the theme has made its buttons
    app.connect("build-finished", _finish, priority=900)  # after the redirect at the root was written
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
