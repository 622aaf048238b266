"""Servers that answer with anything: each answer that is none is one failed request with its sentence, and the run
goes on. Everything goes through a socket, as exact bytes; nothing here waits."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from lumen.loadgen import spec
from lumen.loadgen.answer import BadStream, StreamedAnswer
from lumen.loadgen.client import Prompt, Target, ask, first_model
from lumen.loadgen.malformed import SHOWN, one_line
from lumen.loadgen.run import run
from lumen.loadgen.sse import MAX_EVENT_BYTES
from lumen.loadgen.statistics import is_good, samples
from tests.serve.scripted import DONE, delta, event, text, usage


@asynccontextmanager
async def raw(*answers: bytes):
    """A server that answers request i with answers[i], to the byte, and then closes its half of the connection."""
    left = iter(answers)

    async def serve(reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                length = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(int(length.split(b":")[1]))
            writer.write(next(left))
            await writer.drain()
            writer.write_eof()
            await reader.read()  # until the client closes its half
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def http(body: bytes, *fields: str, status: int = 200, kind: str = "text/event-stream") -> bytes:
    head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "connection: close", *fields]
    return "\r\n".join([*head, "", ""]).encode() + body


def choices(*values) -> bytes:
    """An answer of one choice each in an event of its own, and a proper end."""
    return http(b"".join(event(choices=[value]) for value in values) + text("", "stop") + DONE)


def counted(written: str) -> bytes:
    tail = b'data: {"choices": [], "usage": {"completion_tokens": %b}}\n\n' % written.encode()
    return http(text("a", "stop") + tail + DONE)


ODD = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"  # what str.splitlines and httpx's iter_lines cut at
RAW = json.dumps({"choices": [{"text": ODD, "finish_reason": "stop"}]}, ensure_ascii=False)
GOOD = http(text("good", "stop") + usage(3, 2) + DONE)
LARGE, LONG = 100 * 2**20, b"0" * MAX_EVENT_BYTES
HOSTILE = {
    "null choice": (choices(None), "a choice is no JSON object: null"),
    "no choice": (http(event(choices=[]) + DONE), "ended before the answer did, after no text"),
    "choices an object": (http(event(choices={"a": 1})), 'choices is no JSON list: {"a": 1}'),
    "choice a string": (choices("hello"), 'a choice is no JSON object: "hello"'),
    "delta a string": (choices({"delta": "hello"}), 'a delta is no JSON object: "hello"'),
    "content a number": (choices({"delta": {"content": 3}}), "a delta's content is no JSON string or list: 3"),
    "text a list": (choices({"text": ["a"]}), 'a choice\'s text is no JSON string: ["a"]'),
    "reason a list": (choices({"text": "a", "finish_reason": []}), "a finish reason is no JSON string: []"),
    "logprobs a list": (choices({"text": "a", "logprobs": [1]}), "logprobs is no JSON object: [1]"),
    "logprobs of a string": (choices({"text": "a", "logprobs": {"tokens": "ab"}}), "tokens is no JSON list"),
    "usage a string": (http(event(choices=[], usage="three")), 'usage is no JSON object: "three"'),
    "three": (counted('"three"'), 'completion_tokens is no JSON number: "three"'),
    "NaN": (counted("NaN"), "an event is no JSON"),
    "Infinity": (counted("-Infinity"), "an event is no JSON"),
    "1e400": (counted("1e400"), "completion_tokens is no JSON number"),
    "two and a half": (counted("2.5"), "completion_tokens is no JSON number: 2.5"),
    "true": (counted("true"), "completion_tokens must be from 0 to 2147483647: true"),
    "below zero": (counted("-1"), "completion_tokens must be from 0 to 2147483647: -1"),
    "1e300 in digits": (counted("1" + "0" * 300), "completion_tokens must be from 0 to 2147483647"),
    "5,000 digits": (counted("1" * 5000), "an event is no JSON"),
    "deep lists": (http(b"data: " + b"[" * 10**5 + b"]" * 10**5 + b"\n\n"), "an event nests too deeply"),
    "deep choice": (http(b'data: {"choices":' + b'{"a":' * 10**5), "an event nests too deeply"),
    "a list": (http(b"data: []\n\n"), "an event is no JSON object: []"),
    "not UTF-8": (http(text("a").replace(b'"a"', b'"\xff"') + DONE), "not UTF-8"),
    "half a character": (http(text("a").replace(b'"a"', b'"\xe2\x82"') + DONE), "not UTF-8"),
    "no end": (http(text("a") + text("b")), "ended before the answer did, after 2 events with text"),
    "nothing": (http(b""), "ended before the answer did, after no text"),
    "error event": (http(text("a") + event(error={"message": "out of blocks"})), "out of blocks"),
    "error as a string": (http(event(error="no room")), "no room"),
    "vLLM's error": (http(event(object="error", message="too long", code=400) + DONE), "too long"),
    "error in colour": (http(event(error="\x1b[31mred\n\nand more")), "\\x1b[31mred and more"),
    "a page": (http(b"<html>Sign in", kind="text/html"), "HTTP 200: no stream of events but text/html: <html>Sign in"),
    "whole answer": (http(b'{"choices": []}', kind="application/json"), "no stream of events but application/json"),
    "redirect": (http(b"", "location: https://elsewhere/v1", status=307), "HTTP 307: the server is at https://elsewhere"),
    "hung up": (b"", "RemoteProtocolError"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.7\r\n", "RemoteProtocolError"),
    "cut chunk": (http(b"99\r\n" + text("a"), "transfer-encoding: chunked"), "incomplete chunked read"),
    "cut body": (http(text("a"), "content-length: 9999"), "RemoteProtocolError"),
    "chunk without size": (http(b"zz\r\n" + text("a"), "transfer-encoding: chunked"), "RemoteProtocolError"),
    "not gzip": (http(text("a"), "content-encoding: gzip"), "DecodingError"),
    "endless event": (http(b"%x\r\ndata: " % LARGE + LONG, "transfer-encoding: chunked"), "longer than 16 MiB"),
    "gzip bomb": (http(gzip.compress(b"data: " + LONG, 1), "content-encoding: gzip"), "longer than 16 MiB"),
    "endless refusal": (http(b"no " * 10**5, f"content-length: {10**9}", status=503, kind="text/plain"), "503: no no"),
    "deep refusal": (http(b"[" * 10**5, status=500, kind="application/json"), "HTTP 500: [[["),
}  # fmt: skip


def ask_all(*answers, api="completions", **fields):
    async def go():
        async with raw(*answers) as url:
            target = Target(url, "m", api, **fields)
            records, _ = await run(target, [Prompt("Say it.", 3, 8)] * len(answers), max_concurrency=1)
            return records

    return asyncio.run(go())


def test_each_hostile_answer_is_one_failed_request_with_its_sentence():
    """One run meets all of them, with good answers in between."""
    answers = [answer for hostile, _ in HOSTILE.values() for answer in (hostile, GOOD)]
    records = ask_all(*answers)
    for (name, (_, says)), bad, good in zip(HOSTILE.items(), records[::2], records[1::2], strict=True):
        assert good.ok and good.text == "good" and (good.prompt_len, good.output_len) == (3, 2), name
        assert not bad.ok and says in bad.error, (name, bad.error)
        assert len(bad.error) <= SHOWN + 2 and bad.error.isprintable(), name
        assert json.loads(json.dumps(bad.error)) == bad.error


WELL = {
    "U+2028 and its kind": http(f"data: {RAW}\n\n".encode() + DONE),
    "CR": http((text(ODD, "stop") + DONE).replace(b"\n", b"\r")),
    "CRLF": http((text(ODD, "stop") + DONE).replace(b"\n", b"\r\n")),
    "comments": http(b": ping\n\n:\n" + text(ODD, "stop") + b":x\n" + DONE),
    "data over lines": http(
        text(ODD, "stop").replace(b", ", b",\ndata:").replace(b"[{", b"[{\ndata\ndata:\n") + DONE
    ),
}


def test_awkward_and_right_answers_are_read_to_the_character():
    for name, record in zip(WELL, ask_all(*WELL.values()), strict=True):
        assert record.ok and record.text == ODD, (name, record)


def test_an_answer_without_a_token_counts_none_and_has_no_ttft():
    """It succeeded; its length is 0 unless the server says otherwise, and no average of first tokens has it."""
    answers = http(text("", "stop") + DONE), http(text("", "stop") + usage(3, 0) + DONE), GOOD
    *empty, full = ask_all(*answers, count_tokens=lambda said: 9)
    for record in empty:
        assert record.ok and (record.text, record.output_len, record.arrivals) == ("", 0, ())
        assert is_good(record, {"ttft": 1e6}) and not is_good(record, {"ttft": 0.0})
    assert full.output_len == 2 and samples([*empty, full], "ttft") == [full.ttft]
    (hidden,) = ask_all(http(text("", "stop") + usage(3, 1) + DONE))
    assert hidden.output_len == 1 and len(hidden.arrivals) == 1  # the end token: made, and never seen


def test_text_that_a_tokenizer_counts_as_nothing_still_came_in_events():
    (got,) = ask_all(http(text(" ") + text(" ", "stop") + DONE), count_tokens=lambda said: len(said.split()))
    assert got.ok and got.output_len == 2


def test_halves_of_a_character_are_joined_and_one_alone_is_replaced():
    """JavaScript cuts strings between UTF-16 halves. A half alone made tokenizers and files raise."""

    def encoded(said):
        return said.encode() and len(said)

    whole, alone = delta(content="\ud83d") + delta(content="\ude00"), delta(content="a\ud83d")
    end = delta("stop") + DONE
    both, half = ask_all(http(whole + end), http(alone + end), api="chat", count_tokens=encoded)
    assert (both.text, half.text) == ("😀", "a\ufffd")


def test_a_tool_call_nested_as_deep_as_json_allows():
    """What the reader takes the writer need not."""
    answer = StreamedAnswer()
    for depth in range(50, 5000, 25):
        call = '{"choices": [{"delta": {"tool_calls": ' + "[" * depth + "]" * depth + "}}]}"
        try:
            answer.feed(call, 0.0)
        except BadStream as error:
            assert "nests too deeply" in str(error)
            return
    raise AssertionError("nothing was too deep")


@pytest.mark.parametrize(
    "body, says",
    [
        (b"", "no JSON"),
        (b"{}", "'data'"),
        (b'{"data": []}', "out of range"),
        (b'{"data": [{"id": 7}]}', "no JSON string"),
        (b"[" * 10**5, "nests too deeply"),
        (b"<html>", "no JSON"),
    ],
)
def test_a_list_of_models_that_is_none(body, says):
    async def go():
        async with raw(http(body)) as url:
            target = Target(url)
            async with target.session() as session:
                await first_model(session, target)

    with pytest.raises(ConnectionError, match=says) as caught:
        asyncio.run(go())
    assert "Is the server running there?" in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "problem", [OSError("cable"), RuntimeError("cable"), RecursionError("cable"), KeyError("cable")]
)
def test_whatever_else_one_request_meets_is_its_own_failure(problem):
    class Broken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            raise problem

    async def go():
        async with httpx.AsyncClient(transport=Broken()) as session:
            return await ask(session, Target("http://h"), Prompt("Say it.", 3, 8))

    got = asyncio.run(go())
    assert got.error.startswith(type(problem).__name__) and "cable" in got.error and got.output_len == 0


def test_one_line_is_one_line():
    assert one_line("a\r\n\tb\u2028c\x07") == "a b c\\x07"
    assert one_line("x" * 10**6) == "x" * SHOWN + " …"
    assert one_line("\ud800") == "\\ud800"


@pytest.mark.parametrize(
    "url",
    ["ftp://h:1", "http://h:99999", "http://h:x", "http://h:-1", "http://h:0", "http://[::1", "http://[::g]",
     "http://h\0", "http://a b"],
)  # fmt: skip
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="base URL looks like"):
        Target(url)


@pytest.mark.parametrize(
    "fields", [{"headers": {"x": "é"}}, {"headers": {"x": "a\nb"}}, {"headers": {"a b": "c"}}]
)
def test_a_header_that_none_can_send(fields):
    with pytest.raises(ValueError, match="printable ASCII"):
        Target(**fields)


def test_an_address_of_ipv6_is_one():
    assert Target("http://[::1]:8000/v1").url == "http://[::1]:8000/v1/completions"


@pytest.mark.parametrize("value", ["1e400", "NaN", "-1", "e", "1e", "+", ".", "1" * 400, "1.2.3"])
def test_metrics_that_are_no_numbers_leave_the_report_alone(value):
    lines = "spec_decode_num_drafts_total 10\nspec_decode_num_draft_tokens_total 20\n"
    found = spec.difference(
        {}, spec.read(lines + f"vllm:spec_decode_num_accepted_tokens_total{{}} {value}\n")
    )
    assert found["spec_decode_accepted_tokens"] == 0 and found["spec_decode_num_drafts"] == 10


def test_metrics_without_end_or_in_no_alphabet():
    async def go(body):
        async with (
            raw(http(body, kind="text/plain; charset=base64")) as url,
            Target(url).session() as session,
        ):
            return await spec.fetch(session, url)

    assert asyncio.run(go(b"spec_decode_num_drafts_total 7\n\xff")) == {"num_drafts": 7.0}
    assert asyncio.run(go(b"spec_decode_num_drafts_total 7\n" + b"#" * spec.MAX_BYTES)) == {}
    assert asyncio.run(go(b"")) == {}
