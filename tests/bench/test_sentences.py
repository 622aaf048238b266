"""Every sentence of the pages, read at no effect, a noisy one, the reverse, twice the effect, and the impossible.

Functions that `lumen.pages` marks with `@bench.sentence` are found by themselves; a new one needs no test of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from contextlib import suppress

import pytest

import lumen.pages
from lumen.bench import Estimate, says, sentence
from lumen.bench.says import _SENTENCES, Sentence, sentences

MODULES = [module.name for module in pkgutil.walk_packages(lumen.pages.__path__, "lumen.pages.")]
for _name in MODULES:
    with suppress(
        Exception
    ):  # each has a test of its own below: one broken page hides no other one's sentences
        importlib.import_module(_name)
PAGES = [s for s in sentences() if s.name.startswith("lumen.pages.")]


def problems(marked: Sentence) -> list[str]:
    """What is wrong with a sentence, one line each; nothing for a good one."""
    found, texts = [], {}
    for case, (expected, est) in marked.cases().items():
        try:
            text = marked.render(est)
        except Exception as error:  # any error is the finding
            found.append(f"{case}: raises {type(error).__name__}: {error}")
            continue
        if not isinstance(text, str) or not text.strip():
            found.append(f"{case}: no text")
            continue
        texts.setdefault(expected, set()).add(_bare(text))
        if re.search(r"(?<!\w)(nan|inf)(?!\w)", text, re.I):
            found.append(f"{case}: not a number: {text!r}")
        if re.search(r"\{\w*\}", re.sub(r"\$[^$]*\$", "", text)):
            found.append(f"{case}: a brace is left over: {text!r}")
        for side, words in (("more", marked.more_words), ("less", marked.less_words)):
            if side != expected:
                found += [f"{case}: says {w!r}: {text!r}" for w in words if _holds(text, w)]
        if expected == "implausible" and not text.startswith("Implausible"):
            found.append(f"{case}: does not say that it is implausible: {text!r}")
    kinds = [k for k in ("more", "same", "less") if k in texts]
    for i, one in enumerate(kinds):
        for other in kinds[i + 1 :]:
            if texts[one] & texts[other]:
                found.append(f"{one} and {other} read alike: {sorted(texts[one] & texts[other])[0]!r}")
    return found


def _bare(text: str) -> str:
    """The words without the numbers."""
    return re.sub(r"[+−-]?\d[\d,.]*", "#", text)


def _holds(text: str, words: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.I))


@pytest.mark.parametrize("name", MODULES)
def test_a_page_can_be_imported(name):
    importlib.import_module(name)


@pytest.mark.parametrize("marked", PAGES, ids=lambda s: s.name)
def test_a_sentence_of_the_pages_is_no_stronger_than_its_measurement(marked, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")  # as for the book: a miss of more than 10 % wants its reason
    assert problems(marked) == []


def good(est: Estimate, what: str = "A step") -> str:
    return says(
        est,
        more=what + " takes {percent} longer.",
        less=what + " is {size} faster.",
        same=what + " takes as long, as far as this run can show.",
        bound=(0.2, 4.0),
        contradicts="its bytes",
    )


def test_a_good_sentence_passes():
    marked = Sentence(good, {"what": "A page"}, 1.0, "×", 1.0, (0.2, 4.0), ("longer",), ("faster",))
    assert problems(marked) == []
    assert {case for case in marked.cases()} == {"zero", "noisy", "reversed", "doubled", "implausible"}


@pytest.mark.parametrize(
    ("fn", "finding"),
    [
        (
            lambda est: "Counting bytes was enough." if est.value > 1 else "Counting bytes was not enough.",
            "read alike",
        ),
        (lambda est: f"It took {est.value:.2f} times as long.", "read alike"),
        (lambda est: f"{float('nan')} times", "not a number"),
        (lambda est: good(est) + " {x}", "brace"),
        (lambda est: good(est) + " It is faster.", "says 'faster'"),
        (lambda est: [][0], "raises IndexError"),
        (lambda est: " ", "no text"),
        (lambda est: good(est).replace("Implausible: ", ""), "implausible"),
    ],
)
def test_a_bad_sentence_is_found(fn, finding):
    marked = Sentence(fn, {}, 1.0, "×", 1.0, (0.2, 4.0), ("longer",), ("faster",))
    assert any(finding in line for line in problems(marked))


def test_marking_registers_and_changes_nothing():
    before = dict(_SENTENCES)
    try:
        same = sentence({"forecast": 30.0, "what": "x"}, at="forecast", unit="ms")(good)
        assert same is good
        (marked,) = [s for s in sentences() if s.fn is good]
        assert (marked.at, marked.unit) == (30.0, "ms")
        assert marked.cases()["doubled"][1].value == 60.0
    finally:
        _SENTENCES.clear()
        _SENTENCES.update(before)


def test_differences_are_tried_at_an_effect_of_their_unit():
    def points(est: Estimate) -> str:
        return says(
            est, at=0.0, worth=2.0, more="{x} points more", less="{x} points fewer", same="no difference"
        )

    before = dict(_SENTENCES)
    try:
        sentence(at=0.0, unit="points")(points)
        (marked,) = [s for s in sentences() if s.fn is points]
        assert marked.cases()["doubled"][1].value == 10.0 and problems(marked) == []
    finally:
        _SENTENCES.clear()
        _SENTENCES.update(before)


def test_a_near_bound_makes_the_double_impossible_too():
    marked = Sentence(good, {}, 1.0, "×", 1.0, (None, 1.2))
    assert [expected for expected, _ in marked.cases().values()].count("implausible") == 2
