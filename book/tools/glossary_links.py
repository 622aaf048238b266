"""Sphinx extension: plain Markdown links reach glossary terms, `[KV cache](../book/glossary.md#term-KV-cache)`.

Notebooks may not use MyST roles such as {term}, which Colab would print as they are. MyST resolves `#fragments` of
another page against that page's headings only; here the terms are added to them, so that such a link is checked
like any other, and a term that does not exist fails the build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes


def _add_terms(app: Any, document: nodes.document) -> None:
    slugs = app.env.metadata[app.env.docname].get("myst_slugs")
    if slugs is None:
        return
    for glossary in document.findall(addnodes.glossary):
        for term in glossary.findall(nodes.term):
            for name in term["ids"]:
                slugs.setdefault(name, (term.line, name, term.astext()))


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-read", _add_terms)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
