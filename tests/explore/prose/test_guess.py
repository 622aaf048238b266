"""The reader's number: read the same way in Python and on the page, and None until it is there."""

import builtins

import pytest

from lumen.explore.figures.overlay import YOURS, reveal
from lumen.explore.prose import guesses
from lumen.explore.prose.guesses import Guess, guess, number

# text, unit, number; the browser test reads the same list
NUMBERS = [
    ("39.4", "", 39.4), ("39,4", "", 39.4), (" 12 ms ", "ms", 12), ("1e3", "", 1000), ("1,5e3", "", 1500),
    ("1,024", "", 1024), ("1,234,567", "", 1234567), ("1,024.5", "", 1024.5), ("0,025", "", 0.025), ("1 024", "", 1024),
    ("−3", "", -3), (".5", "", 0.5), ("7 ×", "×", 7), ("", "", None), ("ms", "ms", None), ("1.2.3", "", None),
    ("1,2,3", "", None), ("many", "", None), ("1e999", "", None), ("12 GB", "ms", None),
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(guesses, "_typed", {})


@pytest.mark.parametrize("text, unit, wanted", NUMBERS)
def test_numbers_are_read_as_people_write_them(text, unit, wanted):
    assert number(text, unit) == wanted


def test_the_stored_box_is_labelled_and_needs_no_kernel(monkeypatch):
    shown = []
    monkeypatch.setenv("LUMEN_BOOK", "1")
    monkeypatch.setattr(guesses, "display", lambda thing: shown.append(thing.data))
    mine = guess("01-rows", 'How "many" <times>?', unit="×")
    assert mine.value is None
    (page,) = shown
    assert '<label for="guess-01-rows">How &quot;many&quot; &lt;times&gt;?</label>' in page
    assert '<input id="guess-01-rows"' in page and "<script" not in page and 'data-unit="×"' in page


def test_a_kernel_shows_a_widget_and_remembers_what_was_typed(monkeypatch):
    import ipywidgets

    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    shown = []
    monkeypatch.setattr(guesses, "display", shown.append)
    mine = guess("01-rows", "How many?", unit="×")
    assert mine.value is None
    (box,) = [w for w in shown[0].children[1].children if isinstance(w, ipywidgets.Text)]
    box.value = "39,4"
    assert mine.value == 39.4
    assert guess("01-rows", "How many?", unit="×").value == 39.4  # Run All must not lose it
    box.value = "lots"
    assert mine.value is None


def test_without_ipywidgets_a_sentence_says_how(monkeypatch, capsys):
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    real = builtins.__import__

    def missing(name, *rest):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    mine = guess("01-rows", "How many?")
    assert ".value = 39.4" in capsys.readouterr().out
    mine.value = 12
    assert mine.value == 12


@pytest.mark.parametrize("words", [{"id": " "}, {"question": ""}])
def test_a_guess_needs_words(words):
    with pytest.raises(ValueError, match="a guess needs its"):
        Guess(**({"id": "a", "question": "b"} | words))


def names(fig):
    return [trace.y[0] for trace in fig.data]


def test_a_bound_is_not_given_as_a_measurement():
    words = ("an hour", "a token")
    assert names(reveal(model=2, bound=3.0, unit="×", title="t", names=words)) == list(words)
    for both in ({}, {"measured": 1, "bound": 1}):
        with pytest.raises(ValueError, match="give one of the two"):
            reveal(model=2, unit="×", title="t", **both)


def test_a_reveal_without_a_number_leaves_the_row_to_the_page():
    numbers = {"model": 2, "measured": [3.0, 3.5], "unit": "ms", "title": "t"}
    given = Guess("01-a", "How long?", "ms")
    fig = reveal(guess=given, **numbers)
    assert names(fig) == ["model", "measured"]
    assert fig.layout.meta == {"guess": "01-a", "unit": "ms"}
    assert reveal(**numbers).layout.meta["guess"] == ""
    given.value = 5
    fig = reveal(guess=given, **numbers)
    assert names(fig) == [YOURS, "model", "measured"] and fig.layout.meta is None
    given.value = -1  # has no place on a logarithmic axis, and must not stop the reader
    assert names(reveal(guess=given, **numbers)) == ["model", "measured"]
