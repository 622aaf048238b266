"""The link checker finds each kind of fault, and lets a sound page pass."""

from __future__ import annotations

import check_site
import pytest

SOUND = """<html><head><link rel="stylesheet" href="s.css"></head><body id="top">
<a href="other.html#there">local</a> <a href="https://example.org/">a link to click</a> <a href="#top">up</a>
<img src="data:image/png;base64,AAAA"><script type="application/json">{"u": "import('https://x.org/a.js')"}</script>
</body></html>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text(SOUND)
    (tmp_path / "other.html").write_text('<p id="there">here</p>')
    (tmp_path / "s.css").write_text("/* from https://example.org/ */ a { background: url(data:x) }")
    return tmp_path


def test_a_sound_site_passes(site):
    assert check_site.check(site)[0] == []
    assert check_site.main(str(site)) == 0


@pytest.mark.parametrize(
    ("addition", "fault"),
    [
        ('<a href="gone.html">x</a>', "no file for gone.html"),
        ('<a href="other.html#nowhere">x</a>', "no id for other.html#nowhere"),
        ('<script src="https://cdn.example.org/a.js"></script>', "loads https://cdn.example.org/a.js"),
        ('<img src="//example.org/a.png">', "loads //example.org/a.png"),
        ('<img srcset="https://example.org/a.png 2x">', "loads https://example.org/a.png"),
        ('<iframe src="https://example.org/"></iframe>', "loads https://example.org/"),
        (
            '<script type="module">await import("https://example.org/a.js")</script>',
            "code loads https://example.org",
        ),
        ("<style>@import url('https://example.org/a.css')</style>", "code loads https://example.org/a.css"),
        (
            '<p style="background: url(https://example.org/a.png)">x</p>',
            "code loads https://example.org/a.png",
        ),
        ("x" * (check_site.MAX_PAGE_BYTES + 1), "bytes, more than"),
    ],
)
def test_each_fault_is_found(site, addition, fault):
    (site / "index.html").write_text(SOUND.replace("</body>", addition + "</body>"))
    faults, _, _ = check_site.check(site)
    assert len(faults) == 1 and fault in faults[0]


def test_a_style_sheet_may_not_load_from_outside(site):
    (site / "s.css").write_text("@font-face { src: url(https://example.org/f.woff2) }")
    assert "loads https://example.org/f.woff2" in check_site.check(site)[0][0]


def test_no_site_is_a_sentence(tmp_path, capsys):
    assert check_site.main(str(tmp_path / "nothing")) == 1
    assert "make book" in capsys.readouterr().out
