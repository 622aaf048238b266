"""Exercises of chapter 10: a queue by hand, a stream parser, two faults of layer 5, four sentences, one queue limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from lumen.config import CONFIGS
from lumen.cost import predict_decode, predict_prefill
from lumen.grading import (
    EXACT,
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Probe,
    Slip,
    Statements,
)
from lumen.hardware import CHIPS
from lumen.io.stop import StopMatcher
from lumen.io.stream import StreamDecoder

exercises = ExerciseSet("10", "Serving", then="chapter 11, FlashAttention")

# predict ------------------------------------------------------------------------------------------

MU = 32 / (32 * 0.02 + 128 * 0.025)
DOOR, EDGES = 600 / MU - 60, 128 * 0.025
QUEUE = {
    "saturation": Number(
        MU,
        unit="requests/s",
        slips=[
            Slip(10.0, "The prefills are missing: 32 of them, 20 ms each."),
            Slip(32 / (0.02 + 128 * 0.025), "Each of the 32 requests has a prefill of its own."),
            Slip(MU / 32, "That is one slot; there are 32."),
            Slip(
                32 / (32 * 0.02 + 129 * 0.025),
                "The prefill writes the first token; 128 steps write the others.",
            ),
        ],
    ),
    "inside": Number(
        15,
        unit="requests",
        slips=[Slip(2.4, "Rate times stay, not rate over stay."), Slip(32, "The slots are not all taken.")],
    ),
    "last wait": Number(
        DOOR + EDGES,
        unit="s",
        slips=[
            Slip(DOOR, "That is the wait at the door. The house has to fill and to drain, too."),
            Slip(60 + DOOR + EDGES, "That is when the server is done. The last request came at 60 s."),
            Slip(
                DOOR + 32 / MU, "Fill and drain cost steps, not prefills: each prefill is in R / µ already."
            ),
        ],
    ),
    "backlog": Number(
        MU * (DOOR + EDGES),
        unit="requests",
        slips=[
            Slip(600, "Those came. The server has finished most of them by then."),
            Slip(MU * DOOR, "That is the door alone. While the house fills, fewer are finished than by µ."),
            Slip(10 * (DOOR + EDGES), "They leave at the server's rate, not at that of the arrivals."),
        ],
    ),
}


exercises.add(
    "queue-by-hand",
    title="A queue by hand",
    kind="predict",
    difficulty=2,
    importance=5,
    minutes=12,
    points=3,
    shows="Two step times say what a server carries; one subtraction says how long people wait beyond.",
    check=Numbers(QUEUE),
)


# build --------------------------------------------------------------------------------------------

STREAM = (
    'data: {"a": 1}\n\ndata: two\ndata: lines\n\n: a comment\n\n'
    "event: note\ndata: 你好 🦆\nid: 7\n\ndata: [DONE]\n\n"
)
EVENTS = ['{"a": 1}', "two\nlines", "你好 🦆", "[DONE]"]


def _fed(probe: Probe, answer: Any, chunks: Sequence[bytes]) -> list[list[str]]:
    """What a fresh parser gives for each chunk."""
    parser = probe.call(answer)
    return [probe.call(parser.feed, chunk) for chunk in chunks]


def _lists(got: list[Any]) -> list[Any]:
    """A tuple of events is as good as a list."""
    return [list(part) if isinstance(part, tuple) else part for part in got]


@exercises.checks(
    "event-stream",
    title="Events out of bytes",
    kind="build",
    difficulty=3,
    importance=4,
    minutes=25,
    points=4,
    shows="A stream has no message boundaries: whoever reads it must be ready for a cut at any byte.",
    forbidden=("lumen.loadgen.sse.EventStream",),
)
def _event_stream(answer: Any, probe: Probe) -> None:
    raw = STREAM.encode()

    def alike(name: str, chunks: Sequence[bytes], want: list[str], slip: str) -> None:
        with probe.case(name):
            got = _fed(probe, answer, chunks)
            probe.that(
                all(isinstance(part, list | tuple) for part in got),
                gave=got,
                wanted="a list from every call of feed",
            )
            got = [list(part) for part in got]
            if any(isinstance(e, bytes) for part in got for e in part):
                slip = "Strings are asked for: decode the bytes of a line once it is whole."
            probe.equal([e for part in got for e in part], want, EXACT, what="events", slip=slip)

    alike(
        "one event in one piece",
        [b'data: {"a": 1}\n\n'],
        ['{"a": 1}'],
        "The data is what follows `data:` and one space.",
    )
    alike(
        "two events in one piece",
        [b"data: a\n\ndata: b\n\n"],
        ["a", "b"],
        "One read may bring several events.",
    )
    with probe.case("an event in two pieces"):
        got = _lists(_fed(probe, answer, [b'data: {"a"', b": 1}\n\n"]))
        probe.equal(
            got,
            [[], ['{"a": 1}']],
            EXACT,
            what="events of each piece",
            slip="Keep what is not complete until the rest has come, and give it then.",
        )
    with probe.case("an event in each of two pieces"):
        got = _lists(_fed(probe, answer, [b"data: a\n\n", b"data: b\n\n"]))
        probe.equal(
            got,
            [["a"], ["b"]],
            EXACT,
            what="events of each piece",
            slip="Give what this piece completes, not all events so far.",
        )
    with probe.case("the empty line comes later"):
        got = _lists(_fed(probe, answer, [b"data: a\n", b"\n"]))
        probe.equal(
            got,
            [[], ["a"]],
            EXACT,
            what="events of each piece",
            slip="An event is complete at its empty line.",
        )
    alike(
        "several data lines",
        [b"data: two\ndata: lines\n\n"],
        ["two\nlines"],
        "Data lines of one event are joined by a line break.",
    )
    alike(
        "comments and other fields",
        [b": ping\n\nevent: x\ndata: a\nid: 7\n\n"],
        ["a"],
        "Only `data` matters here, and an event without data is none.",
    )
    alike(
        "an event whose data is empty",
        [b"data:\n\ndata: a\n\n"],
        ["", "a"],
        "An event with an empty data line has data: the empty string. Without a data line it has none.",
    )
    alike(
        "an empty data line among others",
        [b"data: a\ndata\ndata: b\n\n"],
        ["a\n\nb"],
        "A line that is only the name, without a colon, has an empty value.",
    )
    alike(
        "a comment and another field between data lines",
        [b"data: a\n: ping\nid: 7\ndata: b\n\n"],
        ["a\nb"],
        "Skip such a line, and nothing else: the data lines before it still belong to the event.",
    )
    alike(
        "names that resemble data",
        [b"database: x\n data: y\nData: z\ndata: a\n\n"],
        ["a"],
        "The name is all that stands before the colon, and it must be `data` to the letter.",
    )
    alike(
        "a line separator (U+2028) in the data",
        ["data: a\u2028b\n\n".encode()],
        ["a\u2028b"],
        "Lines end with \\n or \\r\\n only; `str.splitlines` cuts at other signs, too.",
    )
    alike("no space behind the colon", [b"data:a\n\n"], ["a"], "The space is optional.")
    alike("two spaces", [b"data:  a\n\n"], [" a"], "One space belongs to the protocol, a second to the data.")
    alike(
        "spaces at the end of the data",
        [b"data: a \ndata:   \n\n"],
        ["a \n  "],
        "Only one space is the protocol's, the one behind the colon: strip no others.",
    )
    alike("a colon in the data", [b"data: a: b\n\n"], ["a: b"], "Only the first colon parts name and value.")
    alike(
        "lines that end with \\r\\n",
        [b"data: a\r\n\r\ndata: b\r\n\r\n"],
        ["a", "b"],
        "Servers may end lines with \\r\\n, too.",
    )
    alike(
        "a cut between \\r and \\n",
        [b"data: a\r", b"\n\r", b"\ndata: b\r\n\r", b"\n"],
        ["a", "b"],
        "A piece may end between \\r and \\n: look for them in the line, not in the piece.",
    )
    with probe.case("two parsers in turns"):
        one, other = probe.call(answer), probe.call(answer)
        pieces = [(one, b"data: a\nda"), (other, b"data: b"), (one, b"ta: c\n\n"), (other, b"\n\n")]
        got = _lists([probe.call(parser.feed, piece) for parser, piece in pieces])
        slip = "Two streams may be open at once: what is kept belongs to the instance, not to the class."
        probe.equal(got, [[], [], ["a\nc"], ["b"]], EXACT, what="events of each piece", slip=slip)
    with probe.case("nothing yet"):
        probe.equal(_lists(_fed(probe, answer, [b""])), [[]], EXACT, what="events of an empty piece", slip="")
    alike(
        "byte by byte, characters cut in two",
        [raw[i : i + 1] for i in range(len(raw))],
        EVENTS,
        "Decode a line when it is whole: half a character cannot be decoded.",
    )
    dice = random.Random(4)
    for number in range(20):
        cuts = sorted(dice.sample(range(len(raw)), 6))
        chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        alike(f"random cuts, {number + 1} of 20", chunks, EVENTS, "A cut may fall anywhere.")


# debug: characters --------------------------------------------------------------------------------


def stream_right(tokens: Sequence[bytes]) -> list[str]:
    """Lumen's decoder, over bytes instead of ids."""
    decoder = StreamDecoder(lambda number: tokens[number])
    return [*(decoder.feed(number) for number in range(len(tokens))), decoder.finish()]


def _one_by_one(tokens: Sequence[bytes]) -> list[str]:
    return [*(token.decode("utf-8", errors="replace") for token in tokens), ""]


def _drops_rest(tokens: Sequence[bytes]) -> list[str]:
    return [*stream_right(tokens)[:-1], ""]


def _late(tokens: Sequence[bytes]) -> list[str]:
    return [*("" for _ in tokens), b"".join(tokens).decode("utf-8", errors="replace")]


exercises.add(
    "half-characters",
    title="The duck that never came",
    kind="debug",
    difficulty=3,
    importance=4,
    minutes=15,
    points=3,
    shows="Held bytes must come out at the end, and a sign that looks broken may be what was written.",
    given="broken_stream",
    check=Cases(
        reference=stream_right,
        cases=lambda: [
            Case("one ASCII token", ([b"hello"],)),
            Case("a duck in two tokens", ([b"\xf0\x9f", b"\xa6\x86"],)),
            Case("a duck with a letter before and one behind", ([b"a\xf0", b"\x9f\xa6\x86b"],)),
            Case("two Chinese characters in three tokens", (["你".encode()[:2], b"\xa0\xe5\xa5", b"\xbd!"],)),
            Case("the answer ends in the middle of a duck", ([b"a", b"\xf0\x9f"],)),
            Case("a replacement sign that the model wrote itself", (["a\ufffd".encode(), b" b"],)),
            Case("that sign again, as the last character", ([b"a", "\ufffd".encode()],)),
            Case(
                "a sign, and half a duck in the same token",
                (["a\ufffd".encode() + b"\xf0\x9f", b"\xa6\x86"],),
                slip="The sign before the half character is certain: how many bytes belong to what is not whole?",
            ),
            Case(
                "half a duck that never becomes whole",
                ([b"x\xf0\x9f", b"a", b"b"],),
                slip="Bytes that cannot become a character any more are certain too: they are `�`.",
            ),
            Case(
                "a stray byte in the middle",
                ([b"a\x80b", b"c"],),
                slip="Only bytes at the end can still become a character. Others that are none are `�`.",
            ),
            Case("no token", ([],)),
            Case("an empty token", ([b"a", b"", b"b"],)),
            Case(
                "a sentence, byte by byte",
                ([bytes([b]) for b in "Ente 🦆, canard 🦆, 鸭子 🦆".encode()],),
            ),
        ],
        slips=[
            Slip(_one_by_one, "Each token is decoded alone: a character that lies in two tokens is lost."),
            Slip(_drops_rest, "The answer may end in the middle of a character: what is held must come out."),
            Slip(_late, "Nothing is lost, and nothing is streamed: send what is certain at once."),
        ],
        tolerance=EXACT,
    ),
)

# debug: stops -------------------------------------------------------------------------------------


def hold_right(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    matcher = StopMatcher([stop])
    pieces: list[str] = []
    for chunk in chunks:
        text, found = matcher.feed(chunk)
        pieces.append(text)
        if found:
            return pieces, True
    return [*pieces, matcher.finish()], False


def _rechecks_once(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    """After a mismatch the letter is compared with the stop's first one only."""
    pieces: list[str] = []
    matched = 0
    for chunk in chunks:
        out = ""
        for letter in chunk:
            if letter != stop[matched]:
                out += stop[:matched]
                matched = 0
            if letter == stop[matched]:
                matched += 1
                if matched == len(stop):
                    return [*pieces, out], True
            else:
                out += letter
        pieces.append(out)
    return [*pieces, stop[:matched]], False


def _loses_rest(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    pieces, found = hold_right(chunks, stop)
    return (pieces, True) if found else ([*pieces[:-1], ""], False)


def _leaks(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    """Sends each chunk and looks at the text so far."""
    pieces: list[str] = []
    for number, chunk in enumerate(chunks):
        text = "".join(chunks[: number + 1])
        if stop in text:
            return [*pieces, text[: text.find(stop)][len("".join(pieces)) :]], True
        pieces.append(chunk)
    return [*pieces, ""], False


def _in_each_chunk(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    pieces: list[str] = []
    for chunk in chunks:
        if stop in chunk:
            return [*pieces, chunk[: chunk.find(stop)]], True
        pieces.append(chunk)
    return [*pieces, ""], False


def _cautious(chunks: Sequence[str], stop: str) -> tuple[list[str], bool]:
    """Always holds as many letters as the stop has, less one."""
    pieces: list[str] = []
    held = ""
    for chunk in chunks:
        held += chunk
        if stop in held:
            return [*pieces, held[: held.find(stop)]], True
        cut = max(0, len(held) - len(stop) + 1)
        pieces, held = [*pieces, held[:cut]], held[cut:]
    return [*pieces, held], False


exercises.add(
    "leaking-stop",
    title="The stop that was missed",
    kind="debug",
    difficulty=4,
    importance=4,
    minutes=20,
    points=3,
    shows="After a mismatch, part of what was held may begin the stop again.",
    given="broken_hold",
    check=Cases(
        reference=hold_right,
        cases=lambda: [
            Case("the stop in one chunk", (["say END now"], "END")),
            Case("the stop across two chunks", (["say E", "ND now"], "END")),
            Case("the stop letter by letter", (list("say END now"), "END")),
            Case("stop 12 in 1 1 2", (["1", "1", "2"], "12")),
            Case("stop aab in aaab", (["a", "aa", "b"], "aab")),
            Case("stop abac in ababac", (list("ababac"), "abac")),
            Case(
                "stop aabaac in aabaaabaac",
                (list("aabaaabaac"), "aabaac"),
                slip="A beginning may have to give way to a shorter one twice: aabaa, aa, a.",
            ),
            Case("half a stop, then something else", (["say E", "N route"], "END")),
            Case("half a stop at the end", (["the E", "N"], "END")),
            Case("a stop of one letter", (["ab", "c"], "b")),
            Case("no stop at all", (["hello", " world"], "END")),
            Case(
                "an empty chunk",
                (["a E", "", "ND"], "END"),
                slip="One piece for each chunk, an empty one too; what is held stays held.",
            ),
            Case(
                "the stop twice in one chunk",
                (["aENDbENDc"], "END"),
                slip="The first stop ends the answer.",
            ),
            Case(
                "a stop of signs, ||",
                (["a|b|", "|c"], "||"),
                slip="A stop is text, not a pattern: escape it, or do without regular expressions.",
            ),
            Case("no chunk", ([], "END")),
            Case("text behind the stop in the same chunk", (["aEND", "b"], "END")),
            Case("two line breaks across three chunks", (["a\n", "b\n", "\nUser"], "\n\n")),
        ],
        slips=[
            Slip(_loses_rest, "The answer ended, so what was held is no stop any more: send it."),
            Slip(
                _rechecks_once,
                "After a mismatch a longer part of what was held may begin the stop: aab in aaab.",
            ),
            Slip(_in_each_chunk, "A stop may lie in two chunks: look for it in the text, not in the chunk."),
            Slip(
                _cautious,
                "Only what could still become the stop has to wait: the longest end that begins it.",
            ),
            Slip(
                _leaks, "The beginning of the stop was sent before its end had come. It cannot be taken back."
            ),
        ],
        tolerance=EXACT,
    ),
)

# literature ---------------------------------------------------------------------------------------

exercises.add(
    "claims-on-throughput",
    title="Four sentences on throughput",
    kind="literature",
    difficulty=3,
    importance=3,
    minutes=12,
    points=2,
    shows="A factor without its baseline and its workload is not yet a statement.",
    check=Statements(
        false="bd",
        why={
            "a": "It names the baselines, FasterTransformer and Orca, and the condition, equal latency.",
            "b": "No workload is named. If all answers have one length and arrive together, the factor is 1.",
            "c": "Little's law: 2.5 / s · 4 s.",
            "d": "It has been in maintenance mode since December 2025, and its README recommends other engines.",
        },
        number=Number(
            640 / 150,
            unit="times",
            slips=[
                Slip(
                    150 / 640,
                    "That is the share of slot steps in which a token is written. The gain is its inverse.",
                ),
                Slip(8.0, "Not all slots idle after ten steps: one of them goes on for 80."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LLAMA, H100 = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
PROMPT, ANSWER, OFFERED, BURST = 1000, 250, 40.0, 400


@cache
def house(slots: int) -> float:
    """Seconds in which a full house of `slots` requests is served: their prefills and 249 full steps."""
    prefill = predict_prefill(LLAMA, H100, PROMPT, 1, "bf16").seconds
    step = predict_decode(LLAMA, H100, PROMPT + ANSWER // 2, slots, "bf16").seconds
    return slots * prefill + (ANSWER - 1) * step


def rate(slots: int) -> float:
    return slots / house(slots)


def _choice(fn: Callable[[int, int], float]) -> Callable[[dict[str, Any]], float]:
    return lambda choice: fn(choice["slots"], choice["queue"])


exercises.add(
    "queue-limit",
    title="How long a line?",
    kind="decide",
    difficulty=4,
    importance=5,
    minutes=20,
    points=3,
    shows="In overload somebody is turned away. A limit on the queue decides that it happens at once.",
    check=Decision(
        choices={"slots": range(1, 257), "queue": range(0, 1001)},
        constraints=[
            Constraint(
                "TPOT with all slots taken",
                _choice(lambda slots, _: 1e3 * house(slots) / (ANSWER - 1)),
                at_most=25.0,
                unit="ms",
                slip="Prefills of the others take their time from every answer: divide the whole house by 249.",
            ),
            Constraint(
                "wait of the last in the queue",
                _choice(lambda slots, queue: queue / rate(slots)),
                at_most=10.0,
                unit="s",
                slip="The queue leaves at the server's rate: its length over µ.",
            ),
            Constraint(
                "requests of the burst that find a place",
                _choice(lambda slots, queue: slots + queue),
                at_least=BURST,
                unit="requests",
                slip="A burst must fit into slots and queue together.",
            ),
        ],
        cost=_choice(lambda slots, _: max(0.0, OFFERED - rate(slots))),
        unit="requests refused a second",
        within=0.01,
        dearer="It keeps every promise, and turns away more people than it must: what raises µ?",
    ),
)
