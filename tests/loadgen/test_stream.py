"""Streams as servers really send them: TTFT, ITL and TPOT must come out right (vLLM #7242, #15106, #51172)."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from lumen.loadgen.answer import BadStream, StreamedAnswer
from lumen.loadgen.client import Prompt, Target, ask
from lumen.loadgen.sse import MAX_EVENT_BYTES, EventStream
from tests.serve.scripted import DONE, Tape, delta, event, text, usage

PROMPT = Prompt("Say it.", 3, 8)


def follow(*reads, api="completions", start=0.0, intended=None):
    """The record of a request whose bytes are read at given times; nothing here waits."""
    tape = Tape(*reads)
    tape.now = start

    async def go():
        async with httpx.AsyncClient(transport=tape) as session:
            target = Target("http://scripted", "m", api)
            return await ask(session, target, PROMPT, intended=intended, clock=tape.clock)

    return asyncio.run(go())


def approx(*values):
    return pytest.approx(values)


def test_a_chat_whose_first_event_is_only_a_role():
    got = follow(
        (0.1, delta(role="assistant", content="")),
        (0.5, delta(content="One")),
        (0.6, delta(content=" two")),
        (0.9, delta(content=" three")),
        (0.9, delta(finish="stop") + usage(3, 3) + DONE),
        api="chat",
    )
    assert got.ok and got.text == "One two three" and (got.prompt_len, got.output_len) == (3, 3)
    assert got.ttft == pytest.approx(0.5)  # 0.1 is what a client that counts the role reports
    assert got.itl == approx(0.1, 0.3)
    assert got.tpot == pytest.approx(0.2)
    assert got.latency == pytest.approx(0.9)


def test_three_tokens_in_one_event_count_as_three():
    got = follow((0.4, text("a")), (0.8, text("bcd")), (1.0, text("e", "length") + usage(3, 5) + DONE))
    assert got.output_len == 5
    assert got.itl == approx(0.4, 0.2)  # what the user saw: two gaps
    assert got.tpot == pytest.approx(0.6 / 4)  # 0.3 is what dividing by the events gives


def test_a_one_token_answer_has_no_tpot_and_no_gap():
    got = follow((0.4, text("42", "stop")), (0.7, usage(3, 1) + DONE))
    assert got.ok and got.output_len == 1
    assert (got.tpot, got.itl) == (None, ())
    assert got.ttft == got.latency == pytest.approx(0.4)  # the usage event is no part of the answer


def test_an_event_split_over_reads_arrives_with_its_last_byte():
    whole = text("née")
    cut = whole.index(b"\\u00e9") + 2
    got = follow((0.2, whole[:cut]), (0.5, whole[cut:-1]), (0.6, whole[-1:]), (0.9, text("!", "stop") + DONE))
    assert got.text == "née!" and got.ttft == pytest.approx(0.6) and got.itl == approx(0.3)


def test_several_events_in_one_read_arrive_together():
    got = follow((0.2, text("a") + text("b") + text("c")), (0.5, text("d", "stop") + usage(1, 4) + DONE))
    assert got.itl == approx(0.0, 0.0, 0.3) and got.tpot == pytest.approx(0.1)


def test_empty_deltas_are_nothing_a_user_sees():
    got = follow(
        (0.1, text("")),
        (0.3, text("a")),
        (0.4, text("")),
        (0.7, text("b")),
        (0.7, text("", "stop") + usage(1, 3) + DONE),
    )
    assert got.ttft == pytest.approx(0.3) and got.itl == approx(0.4) and got.tpot == pytest.approx(0.2)


def test_an_answer_without_any_text_is_an_answer():
    got = follow((0.3, text("", "stop") + usage(3, 1) + DONE))
    assert got.ok and got.text == "" and got.output_len == 1 and got.ttft == pytest.approx(0.3)


def test_reasoning_and_tool_calls_are_tokens_too():
    call = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    got = follow(
        (0.2, delta(reasoning_content="Hm")),
        (0.5, delta(content="Yes")),
        (0.6, delta(tool_calls=call)),
        (0.6, delta("tool_calls") + DONE),
        api="chat",
    )
    assert got.ttft == pytest.approx(0.2) and got.itl == approx(0.3, 0.1) and got.output_len == 3


def test_tokens_are_counted_by_logprobs_when_there_is_no_usage():
    one = event(choices=[{"text": "abc", "logprobs": {"tokens": ["a", "b", "c"]}, "finish_reason": "length"}])
    assert follow((0.1, one + DONE)).output_len == 3


def test_an_error_event_fails_the_request_and_keeps_what_came():
    got = follow((0.2, text("a")), (0.6, event(error={"message": "out of blocks", "code": 500})))
    assert not got.ok and got.error == "out of blocks"
    assert got.text == "a" and got.arrivals == approx(0.2) and got.end == pytest.approx(0.6)


@pytest.mark.parametrize(
    "reads, says",
    [
        ([(0.2, text("a"))], "ended before the answer did, after 1 events with text"),
        ([(0.2, b"")], "ended before the answer did, after no text"),
        ([(0.2, DONE)], "ended before the answer did, after no text"),
        ([(0.2, b"data: {oops}\n\n")], "no JSON"),
        ([(0.2, b"data: [1]\n\n")], "no JSON object"),
        ([(0.2, text("a")[:-9])], "no JSON"),  # cut in the middle of an event
        ([(0.2, b"data: " + b"x" * MAX_EVENT_BYTES), (0.3, b"x")], "longer than 16 MiB"),
    ],
)
def test_what_is_no_answer_is_a_failure_with_a_sentence(reads, says):
    got = follow(*reads)
    assert not got.ok and says in got.error


def test_the_intended_time_is_kept_apart_from_the_sending():
    got = follow((3.5, text("a", "stop") + DONE), start=3.0, intended=1.0)
    assert (got.queue, got.ttft) == approx(2.0, 0.5)


def test_done_without_a_finish_reason_is_enough():
    assert follow((0.2, text("a") + DONE)).ok


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_any_cut_of_the_bytes_gives_the_same_events(ending):
    """Every single cut, and 200 random ones into many pieces."""
    stream = '\ufeff: hello\nevent: x\ndata: {"é": 1}\n\ndata:two\ndata: lines\n\n\nid: 7\n\ndata: end\n\n'
    whole = stream.encode().replace(b"\n", ending)
    want = ['{"é": 1}', "two\nlines", "end"]
    dice = random.Random(0)
    cuts = [[i] for i in range(len(whole) + 1)]
    cuts += [sorted(dice.choices(range(len(whole)), k=dice.randrange(2, 30))) for _ in range(200)]
    for at in cuts:
        events = EventStream()
        pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
        got = [data for piece in pieces for data in events.feed(piece)]
        assert got + events.finish() == want, at


def test_the_last_event_may_lack_its_empty_line():
    events = EventStream()
    assert events.feed(b"data: [DONE]\n") == [] and events.finish() == ["[DONE]"] and events.finish() == []


def test_events_after_done_are_ignored():
    answer = StreamedAnswer()
    for data in ('{"choices": [{"text": "a", "finish_reason": "stop"}]}', "[DONE]", "rubbish"):
        answer.feed(data, 1.0)
    assert answer.record(0.0, 0.0).text == "a"
    with pytest.raises(BadStream, match="no JSON"):
        StreamedAnswer().feed("rubbish", 0.0)
