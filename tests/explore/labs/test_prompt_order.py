"""The prompt-order lab: what it counts, and its buttons."""

import zlib

import pytest

from lumen.explore.labs import lab, prompt_order
from lumen.explore.labs.prompt_order import PARTS, STATIC_FIRST, Part, PromptOrderLab, count, price


def words(text):
    return [zlib.crc32(word.encode()) for word in text.split()]


def letters(text):
    return [ord(letter) for letter in text]


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(lab, "display", seen.append)
    monkeypatch.setattr(prompt_order, "display", seen.append)
    return seen


def test_held_is_what_stands_before_the_first_change_in_whole_blocks():
    # with its line breaks "a" has 40 letters and "b" 3
    parts = (Part("a", "never", ("x" * 38,)), Part("b", "often", ("1", "2", "3")))
    assert count(letters, parts, ("a", "b"), requests=3) == [(0, 43), (32, 43), (32, 43)]
    assert count(letters, parts, ("b", "a"), requests=3) == [(0, 43)] * 3
    same = (Part("a", "never", ("x" * 46,)),)  # three blocks exactly: the last token must run
    assert count(letters, same, ("a",), requests=2) == [(0, 48), (32, 48)]


def test_the_default_parts_teach_what_they_should():
    order = [part.name for part in PARTS]
    first, static = count(words, PARTS, order), count(words, PARTS, STATIC_FIRST)
    assert sum(held for held, _ in first) == 0
    assert static[2][0] > static[1][0] > 100, "the same passenger comes back in request 3"
    assert price(first) == 1.25 and price(static) < 0.6
    assert [length for _, length in first] == [length for _, length in static]


def test_price_is_writes_and_reads():
    assert price([(0, 100), (100, 100)]) == pytest.approx((1.25 + 0.1) / 2)


def test_order_must_name_every_part_once():
    with pytest.raises(ValueError, match="each of clock, booking"):
        count(words, PARTS, ("rules", "rules"))


class Words:
    encode = staticmethod(words)


def test_buttons_move_parts(shown, monkeypatch):
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    front = prompt_order.prompt_order_lab(Words())
    assert len(shown) == 1 and ": 0 % of all prompt tokens" in front.out.value
    assert front.ups[0].disabled and front.downs[-1].disabled
    front.downs[0].click()
    assert front.order[:2] == ["booking", "clock"] and "<b>booking</b>" in front.labels[0].value
    assert ": 0 % of all" not in front.out.value
    front.ups[1].click()
    assert front.order == [part.name for part in PARTS]


def test_the_stored_page_holds_two_orders_and_no_widget(shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    prompt_order.prompt_order_lab(Words())
    page = shown[0].data
    assert page.startswith('<div class="lumen-lab"') and page.count("Blue: found") == 2


def test_moving_past_the_ends_changes_nothing():
    front = PromptOrderLab(words)
    before = list(front.order)
    front.move(0, -1)
    front.move(len(before) - 1, 1)
    assert front.order == before
