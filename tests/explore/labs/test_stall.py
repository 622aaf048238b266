"""The stall lab over a tiny model: the live front, the recorded page, and an interruption that is really there."""

from __future__ import annotations

import pytest

from lumen.explore.labs import stall
from tests.tiny import tiny_llama


class Letters:
    def encode(self, text):
        return [ord(letter) % 20 for letter in text]


@pytest.fixture
def model():
    return tiny_llama()


def test_every_kth_token_waits_for_the_other_prompt(model):
    lab = stall.StallLab(model, Letters())
    shapes = []
    plain = model.hidden

    def watched(tokens, *args):
        shapes.append(tuple(tokens.shape))
        return plain(tokens, *args)

    model.hidden = watched
    record = lab.run("abcde", 8, 30, 3)
    assert shapes == [(1, 5), *[(1, 1)] * 2, (1, 30), *[(1, 1)] * 3, (1, 30), *[(1, 1)] * 2]
    assert (record.prompt_len, record.output_len, len(record.itl)) == (5, 8, 7)
    shapes.clear()
    lab.run("abcde", 8, 0, 3)
    assert (1, 1) in shapes and len(shapes) == 8


def test_the_widget_runs_and_says_what_is_wrong(model, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    lab = stall.StallLab(model, Letters())
    lab.widget("abc", 6, 64, 2)
    lab.button.click()
    assert "longest gap" in lab.out.value and lab.button.description == "Stream"
    lab.prompt.value = ""
    lab.button.click()
    assert "prompt of one token" in lab.out.value and not lab.button.disabled


def test_the_page_shows_a_recorded_run(model, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    shown = []
    monkeypatch.setattr(stall, "show_recorded", lambda sentence, body: shown.append(sentence + body))
    stall.stall_lab(model, Letters(), prompt="<b>", tokens=5, length=7, every=2)
    assert "Live in Jupyter" in shown[0] and "&lt;b&gt;" in shown[0] and "4 gaps" in shown[0]
