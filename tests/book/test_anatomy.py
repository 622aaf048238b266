"""Every chapter has the parts that a reader of the course relies on, in their order, each with something in it.

The parts are those of the guide for authors. A chapter that has a reason to leave one out is listed in EXCEPTIONS with
that reason; a reason that is no longer needed makes the test fail too.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
import repo

from tests.book.not_yet import NOT_YET, holds

jupytext = pytest.importorskip("jupytext")

ROOT = Path(__file__).parents[2]
CHAPTERS = [p for p in sorted((ROOT / "chapters").glob("*.py")) if not repo.chapter(p.stem).appendix]
EXPLORERS = ("Roofline(", "KVStepper(", "CacheSize(", "PagedStepper(", "RadixTree(", "Threshold(",
             "QueueLoad(", "Knee(", "Timelines(", "TileStepper(", "CacheShape(", "StateMemory(", "Eviction(",
             "Eviction.of(")  # fmt: skip
SHOWS = re.compile(r"\b(print|display|markdown|table|callout|figure)\(|\.show\(")
LABS = re.compile(r"\b\w+_lab\(")
HEADINGS = ("Where it loses", "How this could fool you", "Play", "In production", "Recap", "Quiz", "Exercises",
            "Further reading", "Provenance")  # fmt: skip

EXCEPTIONS: dict[tuple[str, str], str] = {}


class Chapter:
    def __init__(self, path: Path):
        self.name = path.stem
        self.cells = jupytext.read(path).cells
        self.text = "\n\n".join(c.source for c in self.cells)
        self.code = [c for c in self.cells if c.cell_type == "code"]

    def tagged(self, tag: str) -> list[int]:
        return [i for i, c in enumerate(self.cells) if tag in c.metadata.get("tags", [])]

    def section(self, heading: str) -> str:
        """Markdown and code from the heading to the next one of its level."""
        found = re.search(rf"^## {re.escape(heading)}\s*$(.*?)(?=^## |\Z)", self.text, re.M | re.S)
        assert found, f"no section '## {heading}'"
        return found[1]


@lru_cache
def read(path: Path) -> Chapter:
    return Chapter(path)


def question(c: Chapter) -> None:
    """A bold question stands before the objectives."""
    opening = c.text.split("By the end you can")[0]
    assert re.search(r"\*\*[^*]+\?\*\*", opening), "no bold question before the objectives"


def objectives(c: Chapter) -> None:
    """Three or four of them, and what the chapter needs."""
    assert "By the end you can" in c.text and "Needs:" in c.text
    block = c.text.split("By the end you can")[1].split("Needs:")[0]
    assert 3 <= len(re.findall(r"^- ", block, re.M)) <= 4


def setup(c: Chapter) -> None:
    """One set-up cell, before all other code."""
    assert len(c.tagged("setup")) == 1
    assert c.code[0] is c.cells[c.tagged("setup")[0]]


def picture(c: Chapter) -> None:
    """A figure, or a drawing, before the first prediction."""
    first = c.tagged("predict")[0]
    assert any(re.search(r"(figure|picture)\(", cell.source) for cell in c.cells[:first])


def model(c: Chapter) -> None:
    """An equation, and a table that is computed."""
    assert "$$" in c.text and any(re.search(r"\btable\(", cell.source) for cell in c.code)


def predictions(c: Chapter) -> None:
    """Twice at least: predict, then measure, then reveal."""
    kinds = {i: k for k in ("predict", "measure", "reveal") for i in c.tagged(k)}
    order = "".join(kinds[i][0] for i in sorted(kinds))
    assert len(re.findall("pm+r", order)) >= 2, f"predict, measure, reveal stand in the order {order}"


def reveals(c: Chapter) -> None:
    """A reveal is one run of code cells right after its measurement, and the page folds it: nothing else hides it."""
    assert c.tagged("reveal")
    before = ""
    for cell in c.cells:
        tags = set(cell.metadata.get("tags", []))
        if "reveal" in tags:
            assert cell.cell_type == "code", (
                "prose between the cells of a reveal: write it with markdown(...)"
            )
            assert not {"hide-output", "remove-cell"} & tags, cell.source[:60]
            assert before in ("measure", "reveal"), (
                f"what is revealed was not just measured: {cell.source[:60]}"
            )
        before = next((t for t in ("predict", "measure", "reveal") if t in tags), "")


def silence(c: Chapter) -> None:
    """Between the prediction and its reveal nothing is printed that gives the answer away."""
    assert c.tagged("measure")
    asked = False
    for cell in c.cells:
        tags = set(cell.metadata.get("tags", []))
        asked = (asked or "predict" in tags) and "reveal" not in tags
        if asked and "measure" in tags:
            assert not SHOWS.search(cell.source), f"a measure cell shows something: {cell.source[:60]}"
            last = ast.parse(cell.source).body[-1]
            assert not isinstance(last, ast.Expr), f"a measure cell shows its last line: {cell.source[-60:]}"


def guesses(c: Chapter) -> None:
    """The page asks with a box that needs no kernel."""
    assert c.tagged("predict")
    for i in c.tagged("predict"):
        assert re.search(r"\bguess\(\s*\"", c.cells[i].source), f"not a guess(...): {c.cells[i].source[:60]}"


def imports(c: Chapter) -> None:
    """Lists of imports are plumbing."""
    lists = [s for s in c.code if len(re.findall(r"^(?:import|from) ", s.source, re.M)) >= 3]
    assert lists
    for cell in lists:
        assert {"hide-input", "setup"} & set(cell.metadata.get("tags", [])), cell.source[:60]


def built(c: Chapter) -> None:
    """The mechanism in 40 lines or fewer, and assertions that it equals the real one."""
    own = [cell.source for cell in c.code if re.search(r"^(def|class) ", cell.source, re.M)]
    assert own and all(len(s.splitlines()) <= 45 for s in own)
    assert len(re.findall(r"^\s*assert ", "\n".join(cell.source for cell in c.code), re.M)) >= 2
    assert "transformers" in c.text or "scaled_dot_product_attention" in c.text or "flop_counter" in c.text


def loses(c: Chapter) -> None:
    """Shown by code, with a negative control somewhere on the page."""
    assert re.search(r"(figure|table|markdown|print)\(", c.section("Where it loses"))
    assert re.search(r"negative control", c.text, re.I)


def traps(c: Chapter) -> None:
    """A table of three traps at least."""
    rows = re.findall(r"^\| .*\|$", c.section("How this could fool you"), re.M)
    assert len(rows) >= 5 and "guard" in rows[0]


def play(c: Chapter) -> None:
    """One explorer that needs no kernel, where it helps most, and one live lab."""
    assert any(e in c.text for e in EXPLORERS) and LABS.search(c.section("Play"))


def production(c: Chapter) -> None:
    """Real flags, with a version or a year."""
    section = c.section("In production")
    assert re.search(r"\b20\d\d\b", section) or "production_table(" in section  # whose versions have a date


def recap(c: Chapter) -> None:
    """Computed, not typed: a call that is given what was found."""
    assert re.search(
        r"(markdown|table|callout)\(\s*\w+[.(]\w*\(?.+\)", c.section("Recap"), re.S
    ) or "{" in c.section("Recap")


def quiz(c: Chapter) -> None:
    """Four to six questions, one of them numeric."""
    part = c.section("Quiz")
    if "Quiz.of(" in part:  # its questions stand apart, and test_quizzes counts them
        assert f'Quiz.of("{c.name[:2]}")' in part
        return
    assert 4 <= len(re.findall(r"\"question\":", part)) <= 6 and '"kind": "numeric"' in part


def exercises(c: Chapter) -> None:
    """The table comes from the exercise set."""
    assert f'grading.table("{c.name[:2]}")' in c.section("Exercises")


def reading(c: Chapter) -> None:
    """Three to six links, each with a reason to follow it."""
    items = re.split(r"^- ", c.section("Further reading"), flags=re.M)[1:]
    assert 3 <= len(items) <= 6
    for item in items:
        assert "](http" in item and re.search(r"\bread\b", item, re.I), item[:60]


def provenance(c: Chapter) -> None:
    """What the numbers were measured on, printed by a cell."""
    assert "session" in c.section("Provenance")


def order(c: Chapter) -> None:
    """The closing sections stand in the order that readers know from other chapters."""
    at = [c.text.index(f"\n## {h}\n") if f"\n## {h}\n" in c.text else -1 for h in HEADINGS]
    missing = [h for h, i in zip(HEADINGS, at, strict=True) if i < 0]
    assert not missing, f"missing: {missing}"
    assert at == sorted(at)


PARTS = (
    question, objectives, setup, picture, model, predictions, guesses, silence, reveals,
    imports, built, loses, traps, play, production, recap, quiz, exercises, reading, provenance, order,
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_anatomy(path, part):
    chapter = read(path)
    reason = EXCEPTIONS.get((chapter.name, part.__name__))
    if reason is None:
        holds(part.__name__, chapter.name, lambda: part(chapter))
        return
    with pytest.raises(AssertionError):  # an exception that is no longer needed must go
        part(chapter)


def test_the_parts_can_fail():
    """An empty chapter fails every one of them."""

    class Empty(Chapter):
        def __init__(self):
            self.name, self.cells, self.text, self.code = "99_empty", [], "", []

    for part in PARTS:
        with pytest.raises((AssertionError, IndexError, StopIteration)):
            part(Empty())


def test_exceptions_name_chapters_and_parts_that_exist():
    names = {p.stem for p in CHAPTERS}
    for chapter, part in EXCEPTIONS:
        assert chapter in names and part in {p.__name__ for p in PARTS}


def test_a_rule_that_is_kept_leaves_the_list():
    NOT_YET["99_empty"] = "made-up"
    try:
        with pytest.raises(pytest.fail.Exception, match="delete it"):
            holds("made-up", "99_empty", lambda: None)
    finally:
        del NOT_YET["99_empty"]
