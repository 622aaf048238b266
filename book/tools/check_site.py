"""The built book stands on its own: every local link works, nothing comes from another host, pages are small.

    python book/tools/check_site.py book/_build/html

Sphinx checks what it resolved itself; this reads the finished HTML and CSS instead: raw HTML, scripts,
fragments, files. A link that the reader may click can lead anywhere; what the browser loads by itself must be
in the folder.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_PAGE_BYTES = 300_000
LOADED = {  # what a browser fetches by itself
    *((tag, "src") for tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "input")),
    ("link", "href"),
    ("object", "data"),
    ("video", "poster"),
}
ADDRESS = r"""((?:https?:)?//[^"'`)\s]+)"""
IN_CODE = re.compile(r"""(?:\bimport\s*\(\s*|\bimport\s+|\bfrom\s*|\bfetch\s*\(\s*)["'`]""" + ADDRESS)
IN_STYLE = re.compile(r"""(?:@import\s+|url\(\s*)["']?""" + ADDRESS)


class Page(HTMLParser):
    """Ids, references and inline code of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.references: list[tuple[str, str, str]] = []  # tag, attribute, address
        self.code: list[str] = []
        self._in_code = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[k] for k in ("id", "name") if given.get(k)}
        self._in_code = tag == "style" or (tag == "script" and "json" not in (given.get("type") or ""))
        if given.get("style"):
            self.code.append(given["style"])
        if tag == "link" and given.get("rel") == "canonical":
            return
        for key in ("href", "src", "data", "poster"):
            if given.get(key) is not None:
                self.references.append((tag, key, given[key]))
        for address in re.findall(r"(\S+)(?:\s+[\d.]+[wx])?(?:,|$)", given.get("srcset") or ""):
            self.references.append(("img", "src", address))

    def handle_endtag(self, tag):
        if tag in ("style", "script"):
            self._in_code = False

    def handle_data(self, data):
        if self._in_code:
            self.code.append(data)


def fetched(code: str) -> list[str]:
    """Addresses on other hosts that a script or a style would load."""
    return IN_CODE.findall(code) + IN_STYLE.findall(code)


def check(root: Path) -> tuple[list[str], int, int]:
    """(faults, pages, references) of the built book under `root`."""
    root = root.resolve()
    pages = {p: Page(p.read_text("utf8")) for p in sorted(root.rglob("*.html")) if "_static" not in p.parts}
    faults = []

    @cache
    def exists(target: Path) -> bool:
        return target.exists()

    for path, page in pages.items():
        name = path.relative_to(root)
        if path.stat().st_size > MAX_PAGE_BYTES:
            faults.append(f"{name}: {path.stat().st_size:,} bytes, more than {MAX_PAGE_BYTES:,}")
        faults += [f"{name}: code loads {address}" for code in page.code for address in fetched(code)]
        for tag, key, address in page.references:
            where = urlsplit(address)
            if where.scheme or where.netloc:
                if (tag, key) in LOADED and where.scheme not in ("data", "blob"):
                    faults.append(f"{name}: loads {address}")
                continue
            target = (path.parent / unquote(where.path)).resolve() if where.path else path
            if target.is_dir():
                target = target / "index.html"
            if not exists(target):
                faults.append(f"{name}: no file for {address}")
            elif where.fragment and target in pages and unquote(where.fragment) not in pages[target].ids:
                faults.append(f"{name}: no id for {address}")
    for sheet in sorted(root.rglob("*.css")):
        addresses = IN_STYLE.findall(re.sub(r"/\*.*?\*/", "", sheet.read_text("utf8"), flags=re.S))
        faults += [f"{sheet.relative_to(root)}: loads {address}" for address in addresses]
    return faults, len(pages), sum(len(p.references) for p in pages.values())


def main(folder: str) -> int:
    root = Path(folder)
    if not root.is_dir():
        print(f"no built book at {root}: run `make book` first")
        return 1
    faults, pages, references = check(root)
    print(*faults, f"{pages} pages, {references} references, {len(faults)} faults", sep="\n")
    return int(bool(faults) or pages == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "book/_build/html"))
