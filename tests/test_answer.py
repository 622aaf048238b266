"""How one answer ends and what text of it may be shown when: the same for `generate` and for the serving engine."""

from __future__ import annotations

import random

import pytest

from lumen.decode.answer import Answer
from lumen.io.tokenizer import CharTokenizer

LETTERS = CharTokenizer("abcdefgh")


def told(answer, text):
    return [answer.add(token) for token in LETTERS.encode(text) if not answer.done]


@pytest.mark.parametrize(
    ("stop", "keep", "shown", "reason", "count"),
    [
        ((), False, "abcde", "length", 5),
        (("cd",), False, "ab", "stop", 4),
        (("cd",), True, "abcd", "stop", 4),
        (("de", "bc"), False, "a", "stop", 3),
        (("def",), False, "abcde", "length", 5),  # the beginning of a stop is shown when nothing follows
        (("de",), False, "abc", "stop", 5),  # complete at the very last token
    ],
)
def test_where_an_answer_ends(stop, keep, shown, reason, count):
    answer = Answer(5, (), LETTERS, stop, keep_stop=keep)
    pieces = told(answer, "abcdefgh")
    assert "".join(pieces) == answer.text == shown
    assert (answer.finish_reason, len(answer.tokens)) == (reason, count)
    assert answer.stop_reason == (None if reason == "length" else stop[-1])


def test_an_end_token_is_not_part_of_the_answer_and_releases_what_was_held():
    answer = Answer(9, {7, 0}, LETTERS, ("bx", "bcdx"[:3]))
    assert [answer.add(t) for t in LETTERS.encode("efb")] == ["e", "f", ""]
    assert answer.add(0) == "b" and answer.tokens == LETTERS.encode("efb")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", 0)


def test_nothing_shown_ever_contains_a_stop_or_has_to_be_taken_back():
    """2,000 random streams and stops over three letters: the text is the prefix before the first stop."""
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("abc", k=rng.randint(1, 12)))
        stops = tuple("".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3)))
        answer = Answer(12, (), LETTERS, stops)
        pieces = told(answer, text)
        ends = [text.index(s) + len(s) for s in stops if s in text]
        if ends:
            first = min(ends)
            longest = max((s for s in stops if text[:first].endswith(s)), key=len)
            assert "".join(pieces) == text[: first - len(longest)] and answer.stop_reason == longest
        else:
            assert text.startswith("".join(pieces)) and (len(text) < 12 or answer.text == text)


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="tokenizer"):
        Answer(5, (), None, ("a",))
