"""No sentence of a page is chosen by a bare comparison: `"faster" if a < b else "slower"` has no "cannot tell".

Read from the syntax trees of the text notebooks and of `lumen.pages`. Sentences about measurements come from
`lumen.bench.says`. What is not about a measurement (a plural, a device's name) carries the comment `# not measured`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Chapters that still choose prose by hand. Each must have a finding, so a chapter that was swept leaves the list.
NOT_YET: set[str] = set()
WORDS = 4  # a text of so many words is prose


def findings(source: str) -> list[str]:
    """Places where one of two texts of more than three words is chosen outside `says`."""
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.M)  # IPython's lines
    lines = plain.splitlines()

    def excused(first: int, last: int) -> bool:
        return any("# not measured" in line for line in lines[first - 1 : last])

    tree = ast.parse(plain)
    in_errors = {id(n) for error in ast.walk(tree) if isinstance(error, ast.Raise) for n in ast.walk(error)}
    found = {}
    for node in ast.walk(tree):
        if id(node) in in_errors:
            continue
        if isinstance(node, ast.IfExp):
            if any(map(_prose, (node.body, node.orelse))) and not excused(node.lineno, node.end_lineno):
                found[node.lineno] = "a conditional expression"
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Tuple | ast.List | ast.Dict):
            chosen = any(isinstance(n, ast.Compare | ast.BoolOp) for n in ast.walk(node.slice))
            if chosen and _holds_prose(node.value) and not excused(node.lineno, node.end_lineno):
                found[node.lineno] = "an index that is a comparison"
        for _, block in ast.iter_fields(node):
            if not isinstance(block, list):
                continue
            for i, statement in enumerate(block):
                if not isinstance(statement, ast.If) or excused(
                    statement.lineno, statement.body[0].lineno - 1
                ):
                    continue
                other = statement.orelse
                if not other and isinstance(statement.body[-1], ast.Return):
                    other = block[i + 1 : i + 2]  # if …: return "…" and then return "…"
                if _writes(statement.body) and _writes(other):
                    found[statement.lineno] = "an if with two texts"
    return [f"line {line}: {what}: {lines[line - 1].strip()}" for line, what in sorted(found.items())]


def _text(node: ast.AST) -> str | None:
    """The literal text of a string expression, None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return " ".join(v.value if isinstance(v, ast.Constant) else "x" for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [t for t in map(_text, (node.left, node.right)) if t is not None]
        return " ".join(parts) if parts else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _text(node.func.value)
    return None


def _prose(node: ast.AST) -> bool:
    text = _text(node)
    return text is not None and len(text.split()) >= WORDS


def _holds_prose(node: ast.AST) -> bool:
    return any(_prose(n) for n in ast.walk(node))


def _writes(block: list[ast.stmt]) -> bool:
    """Does a branch assign, return or show prose? Errors and nested functions do not count."""
    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
    return any(_holds_prose(s) for s in block if isinstance(s, kinds))


def _name(path: Path) -> str:
    return path.stem if path.parent.name == "chapters" else path.relative_to(ROOT).as_posix()


FILES = [*sorted((ROOT / "chapters").glob("[0-9]*.py")), *sorted((ROOT / "lumen/pages").rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_prose_is_chosen_by_a_comparison(path):
    found = findings(path.read_text("utf8"))
    if _name(path) in NOT_YET:
        assert found, f"{_name(path)} is clean: take it off NOT_YET"
    else:
        assert found == [], "use lumen.bench.says, or say `# not measured` on that line"


def test_not_yet_names_chapters_that_exist():
    assert {_name(p) for p in FILES} >= NOT_YET


@pytest.mark.parametrize(
    "bad",
    [
        'text = "it is really much faster" if a < b else "slower"',
        'text = "" if a < b else f"it is {a} times faster"',
        'markdown("x" + (f"a lot {a} of words" if a else f"other words {b} to say"))',
        'if a < b:\n    text = "it is really much faster"\nelse:\n    text = "it is not any faster"',
        'def f():\n    if a:\n        return "it is really much faster"\n    return "it is not any faster"',
        'if a:\n    markdown("it is really much faster")\nelse:\n    markdown("it is not so fast")',
        'text = ("it is not any faster", "it is really much faster")[a < b]',
        'text = {True: "it is really much faster", False: "not"}[a < b]',
        '%pip install x\ntext = "it is really much faster" if a < b else "slower"',
        'text = "so {} it is much".format(a) if a < b else ""',
    ],
)
def test_a_choice_is_found(bad):
    assert findings(bad)


@pytest.mark.parametrize(
    "good",
    [
        'unit = "step" if n == 1 else "steps"',
        'text = "on the graphics card here" if gpu else "on the processor"  # not measured',
        'text = (\n    "on the graphics card here"  # not measured\n    if gpu\n    else "on the processor"\n)',
        'if gpu:  # not measured\n    text = "it runs on the card"\nelse:\n    text = "it runs on the processor"',
        'def f():\n    if a < 1:\n        raise ValueError("at least one is wanted")\n    return "this is always said"',
        'raise ValueError("there must be one" + (", and at most so many" if most else ""))',
        "x = a if a < b else b",
        'text = says(est, more="it is really much faster", less="it is much slower", same="who can say this")',
        'if a:\n    markdown("it is said or not said")',
        'note = {"a b c d e": "some longer words of text"}[name]',
    ],
)
def test_what_is_allowed(good):
    assert findings(good) == []
