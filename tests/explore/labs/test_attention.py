"""The attention lab pressed from Python: shares that add up, what it refuses, what the book stores of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import attention, lab  # noqa: E402

from ...tiny import tiny_llama  # noqa: E402


class Letters:
    """A token a letter."""

    def encode(self, text, add_special=True):
        return [ord(letter) % 60 for letter in text]

    def decode(self, ids):
        return "".join(chr(65 + i % 26) for i in ids)


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, attention):
        monkeypatch.setattr(module, "display", seen.append)
    return seen


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_what_is_read_adds_up(model):
    text = "a lighthouse keeper"
    found = attention.AttentionLab(model, Letters()).run(text, 2)
    assert len(found.tokens) == len(found.weights) == len(text)
    assert 0 < found.first < 1 and 0 < found.newest < 1 and found.first + found.newest < 1
    assert found.weights[-1] == 0 and len(found.heaviest) == attention.HEAVIEST and 0 not in found.heaviest


@pytest.mark.parametrize(
    ("text", "layer", "why"),
    [("long enough, I hope", 0, "are 1 to"), ("long enough, I hope", 99, "are 1 to"), ("short", 1, "has 5"),
     ("x" * 600, 1, "has 600")],
)  # fmt: skip
def test_what_cannot_be_read_gets_a_sentence(model, text, layer, why):
    with pytest.raises(ValueError, match=why):
        attention.AttentionLab(model, Letters()).run(text, layer)


def test_the_widget_reads_and_reports(model, shown):
    front = attention.attention_lab(model, Letters(), text="a text of the reader's own", layer=1)
    assert len(shown) == 1 and not hasattr(shown[0], "data")
    front.button.click()
    assert "on the first token" in front.out.value and front.button.disabled is False
    front.text.value = "no"
    front.button.click()
    assert "Write more, or less" in front.out.value


def test_the_book_stores_recorded_layers_and_no_widget(model, shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    attention.attention_lab(model, Letters(), text="<b>a text</b> with markup", recorded=(1, 2))
    page = shown[0].data
    assert "the runs recorded" in page and "Layer 1" in page and "Layer 2" in page and "<b>a" not in page
