"""A term of the glossary is a link where a chapter first uses it, and the new ones are named before the chapter begins.

Only the notebook's own Markdown is read, from its "New terms" line on: title and objectives stay free of links.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import pytest
import repo

from tests.book.not_yet import holds

CHAPTERS = sorted((repo.ROOT / "chapters").glob("[0-9]*.py"))
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
NOT_PROSE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|<[^>]*>|^#+ [^\n]*$", re.S | re.M)


def glossary() -> list[str]:
    """All terms, in the order of the page."""
    text = (repo.ROOT / "book/glossary.md").read_text("utf8")
    blocks = re.findall(r"^```\{glossary\}\n(.*?)^```", text, re.S | re.M)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(" ")]


def address(term: str) -> str:
    return "../book/glossary.md#term-" + re.sub(r"[^\w.]+", "-", term).strip("-")


def unlinked(text: str, terms: list[str]) -> list[str]:
    """Terms of which the first use in `text` is not a link to their entry. The text of a link to another term is that
    term's: "chunked prefill" is no use of "prefill"."""
    prose, bad = NOT_PROSE.sub(" ", text), []
    for term in terms:

        def shown(match: re.Match, mine: str = address(term)) -> str:
            if match[2] == mine:
                return f"\x00{match[1]}\x02"
            return " " if "glossary.md#term-" in match[2] or match[2].startswith("http") else match[1]

        plain = LINK.sub(shown, prose)
        first = re.search(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])", plain, 0 if term.isupper() else re.I)
        if first and plain.rfind("\x00", 0, first.start()) <= plain.rfind("\x02", 0, first.start()):
            bad.append(term)
    return bad


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_first_uses_are_links(path: Path):
    def linked():
        text = "\n\n".join(c.source for c in jupytext.read(path).cells if c.cell_type == "markdown")
        line = re.search(r"^Needs:.*?\n\nNew terms: (.*?)\n\n", text, re.S | re.M)
        assert line, "no line 'New terms: [term](../book/glossary.md#term-…), …' after the paragraph 'Needs:'"
        assert LINK.findall(line[1]), "the new terms are no links"
        bad = unlinked(text[line.start(1) :], glossary())
        assert not bad, f"first used without a link: {', '.join(bad)}"

    holds("terms_linked", path.stem, linked)


@pytest.mark.parametrize(
    "prose, bad",
    [
        ("a [KV cache](../book/glossary.md#term-KV-cache) is", []),
        ("a KV cache, later a [KV cache](../book/glossary.md#term-KV-cache)", ["KV cache"]),
        ("two KV caches", ["KV cache"]),
        ("a [KV cache](04_kv_cache.ipynb)", ["KV cache"]),
        ("a [chapter](04_kv_cache.ipynb) on the KV cache", ["KV cache"]),
        ("# The KV cache\n\n`KV cache`, $KV cache$, <b title='KV cache'>", []),
        ("a non-SLO word, slow", []),
        ("[SLO](../book/glossary.md#term-SLO) and SLOs", []),
        ("[chunked prefill](../book/glossary.md#term-chunked-prefill)", []),
        ("## A heading\n\nthe KV cache behind it", ["KV cache"]),
    ],
)
def test_an_unlinked_first_use_is_found(prose, bad):
    assert unlinked(prose, ["KV cache", "SLO"]) == bad


def test_the_glossary_is_read():
    terms = glossary()
    assert {"prefill", "KV cache", "TTFT"} <= set(terms) and len(terms) == len(set(terms)) > 50
