"""The semantic lab, pressed from Python with an encoder that counts letters."""

import numpy as np
import pytest

from lumen.explore.labs import lab, semantic

NOT = "How do I not delete a file?"


class Letters:
    width, fingerprint = 26, "letters"

    def encode(self, texts):
        return np.array([[1e-3 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])

    def reads_whole(self, text):
        return True


@pytest.fixture
def front(monkeypatch):
    seen = []
    for module in (lab, semantic):
        monkeypatch.setattr(module, "display", seen.append)
    made = semantic.semantic_lab(Letters(), threshold=0.9)
    made.shown = seen
    return made


def test_both_verdicts_are_given(front):
    done = front.compare(semantic.STORED, NOT)
    assert done.near and done.rule == "negation" and not done.hit
    same = front.compare(semantic.STORED, semantic.STORED)
    assert same.hit and same.cosine == pytest.approx(1)
    far = front.compare(semantic.STORED, "Zzz?")
    assert not far.near and not far.hit


def test_the_widget_says_why_and_follows_the_threshold(front):
    assert "negation" in front.out.value and "A miss" in front.out.value
    front.asked.value = semantic.STORED
    front.button.click()
    assert "The stored answer is served" in front.out.value
    front.asked.value, front.cut.value = "What file do I delete?", 1.0
    front.button.click()
    assert "too far" in front.out.value


def test_an_empty_question_gets_a_sentence(front):
    front.asked.value = "  "
    front.button.click()
    assert "<b>Two questions are compared" in front.out.value


def test_typed_text_is_escaped(front):
    assert "<script" not in front.view("<script>a", "b")


def test_the_stored_page_holds_runs_and_no_widget(front, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    semantic.semantic_lab(Letters(), threshold=0.9)
    assert lab.LIVE in front.shown[-1].data and front.shown[-1].data.count("second look") == len(
        semantic.RECORDED
    )
