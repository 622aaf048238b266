"""What search engines, previews and editors see: addresses of one site, and an edit link to the text behind a page."""

from __future__ import annotations

import struct
from xml.etree import ElementTree

import repo
import sharing


def test_every_address_is_on_the_one_site():
    assert repo.site() == f"https://{repo.slug().split('/')[0]}.github.io/{repo.slug().split('/')[1]}/"
    found = ElementTree.fromstring(sharing.sitemap(["book/intro", "chapters/01_prefill_decode"]))
    addresses = [loc.text for loc in found.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    assert addresses == [f"{repo.site()}book/intro.html", f"{repo.site()}chapters/01_prefill_decode.html"]


def test_a_chapter_is_described_by_its_question():
    question = repo.chapter("01_prefill_decode").question
    assert sharing.description("chapters/01_prefill_decode").startswith(question)
    assert "Exercises" in sharing.description("exercises/01_prefill_decode")
    assert sharing.description("book/glossary") == sharing.ABOUT
    head = sharing.head("chapters/01_prefill_decode", 'A "title"')
    assert 'content="A &quot;title&quot;"' in head and f"{repo.site()}_static/card.png" in head


def test_suggest_edit_opens_the_text():
    start = "https://github.com/o/n/edit/main"
    assert sharing.edited(f"{start}/chapters/01_a.ipynb") == f"{start}/chapters/01_a.py"
    assert sharing.edited(f"{start}/solutions/01_a.ipynb") == f"{start}/solutions/01_a.py"
    assert sharing.edited(f"{start}/exercises/01_a.ipynb") == f"{start}/solutions/01_a.py"
    assert sharing.edited(f"{start}/book/setup.md") == f"{start}/book/setup.md"
    inner = {"url": f"{start}/chapters/01_a.ipynb"}
    context = {"header_buttons": [{"buttons": [inner]}, {"url": "#"}]}
    sharing._page(None, "chapters/01_a", "", context, None)
    assert inner["url"].endswith("/chapters/01_a.py")


def test_the_card_has_the_size_that_it_claims():
    png = (repo.ROOT / "book/static/card.png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == sharing.CARD_SIZE
    assert len(png) < 200_000 and (repo.ROOT / "book/static/favicon.svg").is_file()
