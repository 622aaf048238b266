"""From a reviewed text notebook (jupytext py:percent) to the `.ipynb` that Colab, nbval and the book read.

One way only: the text is the source. Pure functions, no kernel, no files; `notebooks.py` reads, runs and
writes. The result is byte-stable: cell ids come from the cells' content, metadata is fixed, nothing carries a
time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import jupytext
import templates
from nbformat import NotebookNode, v4

HEADER = """\
# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    # No version: the file does not change with the Python that ran it. Without the lexer `%magic` lines warn.
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
# What nbgrader wants on a cell; authors write what differs: `nbgrader={"grade_id": "x", "solution": true}`.
NBGRADER = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
SETUP_LINE = '# %% tags=["setup", "hide-input", "nbval-ignore-output"]'
BADGES_LINE = '# %% [markdown] tags=["badges"]'
TITLES = {"predict": "Your guess", "reveal": "Reveal"}  # of the forms in Colab
TITLE = re.compile(r"\A# @title[^\n]*\n")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class NotebookError(ValueError):
    """A notebook that cannot be built; the message says which and what to do."""


def fill(text: str, kind: str, name: str) -> str:
    """The text notebook with its header, badge row and set-up cell as the templates want them.

    The set-up cell must exist (an empty cell tagged `setup`), because only the author knows where it belongs;
    a missing badge row is put after the title.
    """
    body = re.sub(r"\A# ---\n.*?^# ---\n\s*", "", text, count=1, flags=re.S | re.M)
    cells = [c for c in re.split(r"^(?=# %%)", body, flags=re.M) if c.strip()]
    if not cells or not cells[0].startswith("# %% [markdown]"):
        raise NotebookError(f"{kind}/{name}.py: the first cell must be Markdown and hold the title")
    if not any(_tagged(c, "badges") for c in cells):
        cells.insert(1, BADGES_LINE + "\n\n")
    if sum(_tagged(c, "setup") for c in cells) != 1:
        raise NotebookError(
            f'{kind}/{name}.py: wants exactly one set-up cell; add the line `# %% tags=["setup"]`'
        )
    commented = "\n".join(f"# {line}".rstrip() for line in templates.badges(kind, name).split("\n"))
    for i, cell in enumerate(cells):
        if _tagged(cell, "badges"):
            cells[i] = f"{BADGES_LINE}\n{commented}\n\n"
        elif _tagged(cell, "setup"):
            cells[i] = f"{SETUP_LINE}\n{templates.setup(name)}\n\n"
    return HEADER + "".join(cells).rstrip() + "\n"


def _tagged(cell: str, tag: str) -> bool:
    found = re.search(r"tags=(\[[^\]]*\])", cell.split("\n", 1)[0])
    return bool(found) and tag in json.loads(found.group(1))


def parse(text: str) -> NotebookNode:
    """The notebook of a text, without outputs, with fixed metadata and content-made cell ids."""
    cells, seen = [], Counter()
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        make = v4.new_code_cell if cell.cell_type == "code" else v4.new_markdown_cell
        key = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:10]
        seen[key] += 1
        new = make(cell.source, id=key if seen[key] == 1 else f"{key}-{seen[key]}")
        new.metadata.update(cell.metadata)
        fold(new)
        if "nbgrader" in new.metadata:
            new.metadata["nbgrader"] = _graded(new.metadata["nbgrader"])
        cells.append(new)
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata.update(METADATA)
    return notebook


def fold(cell: NotebookNode) -> None:
    """In Jupyter and Colab a prediction arrives without its code, a reveal closed, and plumbing out of the way.

    Colab takes the title of a form from the first line of the source; the text notebook and the page do without it.
    """
    tags = set(cell.metadata.get("tags", []))
    title = next((TITLES[tag] for tag in TITLES if tag in tags), None)
    if cell.cell_type != "code" or not (title or "hide-input" in tags):
        return
    cell.metadata["cellView"] = "form"
    cell.metadata["jupyter"] = {"source_hidden": True}
    if "reveal" in tags:
        cell.metadata["jupyter"]["outputs_hidden"] = True
    if title:
        cell.source = f"# @title {title}\n{cell.source}"


def _graded(given: dict) -> dict:
    full = {**NBGRADER, **given}
    if full["grade"] and not full["solution"]:
        full["locked"] = True
    if "points" in given and not (full["grade"] or full["task"]):
        raise NotebookError(f"nbgrader cell '{given.get('grade_id')}' has points but is not graded")
    return full


def evidence_names(notebook: NotebookNode, pages: Iterable[str] = ()) -> list[str]:
    """The published measurements that the code reads, or that of its pages, by `load_evidence("name")`."""
    code = "\n".join([*(c.source for c in notebook.cells if c.cell_type == "code"), *pages])
    return sorted(set(re.findall(r"load_evidence\(\s*[\"'](\w+)[\"']", code)))


def page_modules(notebook: NotebookNode, source: Callable[[str], str] = lambda name: "") -> list[str]:
    """The modules whose figures, sentences and questions the outputs hold, as paths in the package.

    `source(path)` is a module's text, "" if there is none: what pages take from other pages counts as well. The table
    of engines does not: what it says carries the day on which it was read, and stays true.
    """
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    found, ahead = set(), _pages_in(code)
    while ahead:
        found |= ahead
        ahead = set().union(*(_pages_in(source(page)) for page in ahead)) - found
    asked = {f"quizzes/ch{n}.py" for n in re.findall(r"\bQuiz\.of\(\s*[\"'](\w+)[\"']", code)}
    return sorted(found | asked)


def _pages_in(code: str) -> set[str]:
    """The pages that this code imports, by whichever form of the statement."""
    listed = re.findall(r"^\s*from lumen\.pages import (\([^)]*\)|.*)", code, re.M)
    names = [part.split()[0] for line in listed for part in line.strip("() \n").split(",") if part.split()]
    names += re.findall(r"^\s*(?:from|import) lumen\.pages\.(\w+)", code, re.M)
    return {f"pages/{name}.py" for name in names if name != "engines"}


def graded_sets(notebook: NotebookNode) -> list[str]:
    """The modules of `lumen/grading/sets` whose verdicts and order of exercises the outputs hold."""
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    return sorted({f"ch{n}.py" for n in re.findall(r"\bfor_chapter\(\s*[\"'](\w+)[\"']", code)})


def source_hash(notebook: NotebookNode, read: Sequence[bytes] = ()) -> str:
    """Hash of what the outputs depend on: the code cells in order, without the generated set-up cell and titles, and
    the content of the files that they read: evidence, the chapter's pages, the set of exercises."""
    code = [
        TITLE.sub("", c.source)
        for c in notebook.cells
        if c.cell_type == "code" and "setup" not in c.metadata.get("tags", [])
    ]
    digest = hashlib.sha256(json.dumps(code).encode())
    for content in read:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def ran(notebook: NotebookNode | None, wanted: str) -> bool:
    """Do the stored outputs come from code whose hash is `wanted`, all of it, without an error?"""
    if notebook is None or notebook.metadata.get("lumen", {}).get("source_hash") != wanted:
        return False
    code = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    return all(c.execution_count for c in code) and not any(
        o.output_type == "error" for c in code for o in c.outputs
    )


def carry(new: NotebookNode, old: NotebookNode) -> None:
    """Put the outputs of `old` into `new`, whose code cells are the same."""
    pairs = zip(_code(new), _code(old), strict=True)
    for mine, theirs in pairs:
        mine.execution_count, mine.outputs = theirs.execution_count, theirs.outputs


def carry_unchanged(new: NotebookNode, old: NotebookNode) -> None:
    """Put the outputs of `old` into those cells of `new` that did not change; the others stay without."""
    kept = {cell.id: cell for cell in _code(old)}
    for mine in _code(new):
        if theirs := kept.get(mine.id):
            mine.execution_count, mine.outputs = theirs.execution_count, theirs.outputs


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [c for c in notebook.cells if c.cell_type == "code"]


def tidy(notebook: NotebookNode) -> None:
    """Drop what a run leaves behind: times, widget state, views of widgets that have no kernel here."""
    notebook.metadata = NotebookNode({**METADATA, "lumen": notebook.metadata.get("lumen", {})})
    for cell in _code(notebook):
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if WIDGET_VIEW in output.get("data", {}):
                del output["data"][WIDGET_VIEW]
                output["data"].pop("text/plain", None)  # the widget's repr says nothing to a reader
        cell.outputs = [o for o in cell.outputs if o.output_type not in _SHOWN or o.data]


_SHOWN = {"display_data", "execute_result"}
