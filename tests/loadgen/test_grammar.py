"""Event streams by the grammar of WHATWG HTML, section "Server-sent events", and what a client must read in them.

What is to be read follows from how a stream was made, not from a parser. openai's decoder is asked too, wherever it
and the standard are of one mind (it keeps a byte order mark, and reports events that have no data).
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from lumen.loadgen.sse import EventStream

# any-char: all but LF and CR. The others are what str.splitlines cuts at, and what a parser could take for syntax.
ODD = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x00\t :\ufeff\U0001f986dat"
ANY = st.text(
    st.one_of(st.sampled_from(ODD), st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=6
)
NAMES = st.sampled_from(
    ["data", "data", "data", "event", "id", "retry", "Data", "data ", "dat", "\u2028data"]
)
FIELD = st.tuples(NAMES, st.sampled_from(["", ":", ": "]), ANY)
COMMENT = st.tuples(st.just(""), st.just(":"), ANY)
EVENTS = st.lists(st.lists(st.one_of(FIELD, FIELD, COMMENT), max_size=5), max_size=5)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def streams(draw):
    """(bytes, the data of its events), with line ends of all three kinds mixed."""
    whole, want = draw(st.sampled_from(["", "\ufeff"])), []
    for lines in draw(EVENTS):
        data = []
        for name, colon, value in lines:
            value = value if colon else ""
            if name == "data":
                data.append(value[1:] if colon == ":" and value[:1] == " " else value)
            whole += name + colon + value + draw(ENDS)
        end = draw(ENDS)
        whole += "\r\n" if whole.endswith("\r") and end == "\n" else end  # CR, LF would be one line end
        want += ["\n".join(data)] if data else []
    return whole.encode(), want


def cut(whole: bytes, at: list[int]) -> list[bytes]:
    places = sorted({min(i, len(whole)) for i in at})
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(streams(), st.lists(st.integers(0, 80), max_size=12))
@example((b"data\n\n", [""]), [])
@example((b"data:a\r\r", ["a"]), [])
@example((b"\xef\xbb\xbfdata:a\r\ndata: \r\n\r\n", ["a\n"]), [1, 2, 10, 11])
@example(("data: a\u2028data: b\x85\n\n".encode(), ["a\u2028data: b\x85"]), [8, 9, 10])
def test_every_stream_of_the_grammar_is_read_as_it_was_made(stream, at):
    whole, want = stream
    events = EventStream()
    assert [
        data for piece in cut(whole, at) for data in events.feed(piece)
    ] == want  # with the last byte, not later
    assert events.finish() == []
    if not whole.startswith(b"\xef\xbb\xbf"):
        theirs = [event.data for event in SSEDecoder().iter_bytes(iter(cut(whole, at)))]
        assert [data for data in theirs if data] == [data for data in want if data]


def test_an_event_that_never_ends_is_bounded_in_bytes_and_in_lines():
    for piece in (
        b"x" * 100,
        b"data: " + b"x" * 94,
        b"data: " + b"x" * 93 + b"\n",
        b"data\n" * 20,
        b"data:\r" * 17,
    ):
        events = EventStream(limit=1000)
        with pytest.raises(ValueError, match="longer than"):
            for _ in range(60):
                events.feed(piece)
    events = EventStream(limit=1000)
    assert sum(len(events.feed(b"data: " + b"x" * 93 + b"\n\n")) for _ in range(100)) == 100


def test_bytes_that_are_not_utf8_are_refused_only_where_they_are_read():
    assert EventStream().feed(b": \xff\nid: \xff\n\xff\ndata: a\n\n") == ["a"]
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"):
        with pytest.raises(ValueError, match="not UTF-8"):
            EventStream().feed(b"data: " + bad + b"\n\n")
