"""The phone-book lab pressed from Python: what it remembers, what it refuses, what the book stores of it."""

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import lab, phone_book  # noqa: E402


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, phone_book):
        monkeypatch.setattr(module, "display", seen.append)
    return seen


@pytest.mark.parametrize("rule", phone_book.WRITES)
def test_one_number_comes_back_from_a_wide_state(rule):
    run = phone_book.PhoneBook().run("Ann 5550142", rule, 128)
    assert run.answers == run.told == {"Ann": "5550142"} and run.right == run.digits == 7


def test_a_number_that_has_changed_is_corrected_by_one_rule_and_mixed_by_the_other():
    front = phone_book.PhoneBook()
    corrected = front.run("Ann 1111\nBob 2222\nAnn 7777", "delta", 128)
    assert corrected.answers == corrected.told == {"Ann": "7777", "Bob": "2222"} and corrected.digits == 12
    mixed = front.run("Ann 1111\nBob 2222\nAnn 7777", "linear", 128)
    assert mixed.answers["Bob"] == "2222" and set(mixed.answers["Ann"]) <= {"1", "7"}
    assert len(front.runs) == 2


def test_too_narrow_a_state_mixes_things_up_and_says_so():
    front = phone_book.PhoneBook()
    run = front.run("\n".join(f"N{i} 123456789{i}" for i in range(10)), "linear", 8)
    assert run.right < 60
    page = front.report()
    assert f"{run.right} of 100" in page and "<u " in page and "1,600" in page


def test_numbers_may_be_of_unequal_length_and_names_of_several_words():
    run = phone_book.PhoneBook().run("  Ann B. 1\n\nBob <b> 0123456789\n", "delta", 200)
    assert run.told == {"Ann B.": "1", "Bob <b>": "0123456789"} == run.answers
    assert "&lt;b&gt;" in phone_book.book(run)


@pytest.mark.parametrize(
    ("text", "rule", "width", "why"),
    [
        ("", "linear", 8, "one number at least"),
        ("Ann", "linear", 8, "a name and a number"),
        ("Ann 55-12", "linear", 8, "got “Ann 55-12”"),
        ("555", "linear", 8, "a name and a number"),
        ("Ann ٣٤", "linear", 8, "a name and a number"),
        ("Ann " + "1" * 401, "linear", 8, "400 digits"),
        ("Ann 1", "linear", 0, "1 to 256"),
        ("Ann 1", "mamba", 8, "one of linear"),
    ],
)
def test_what_cannot_be_told_gets_a_sentence(text, rule, width, why):
    front = phone_book.PhoneBook()
    with pytest.raises(ValueError, match=why):
        front.run(text, rule, width)
    assert front.runs == []


def test_the_widget_runs_and_reports(shown):
    front = phone_book.phone_book_lab("Ann 5550142", rule="linear", width=64)
    assert len(shown) == 1 and not hasattr(shown[0], "data")
    front.button.click()
    assert "7 of 7" in front.out.value and front.button.disabled is False
    front.text.value = "Ann"
    front.button.click()
    assert "a name and a number" in front.out.value


def test_the_book_stores_recorded_runs_and_no_widget(shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    phone_book.phone_book_lab("Ann 12", recorded=(("linear", 16), ("delta", 32)))
    page = shown[0].data
    assert "the runs recorded" in page and page.count("<table") == 2 and "correct, D = 32" in page
