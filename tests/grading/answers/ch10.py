"""Right and wrong answers to the exercises of chapter 10."""

import re

from lumen.grading.proof import Submissions
from lumen.loadgen.sse import EventStream


def by_flows():
    """What a request costs in a full house; the steps too many; who is left leaves at that rate."""
    each = 0.020 + 128 * 0.025 / 32
    wait = 600 * each + 128 * 0.025 - 600 / 10
    return {"saturation": 1 / each, "inside": 15, "last wait": wait, "backlog": wait / each}


# Events out of bytes ------------------------------------------------------------------------------


class Lines:
    """Keeps bytes until a line is whole, and lines until the empty one."""

    def __init__(self):
        self.rest, self.data = b"", []

    def feed(self, chunk):
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self.data:
                found.append("\n".join(self.data))
                self.data = []
            name, _, value = line.partition(b":")
            if name == b"data":
                self.data.append(value.removeprefix(b" ").decode())
        return found


class Blocks:
    """Written differently: cut the buffer at empty lines, then read each block."""

    def __init__(self):
        self.buffer = b""

    def feed(self, chunk):
        self.buffer += chunk
        whole = self.buffer if not self.buffer.endswith(b"\r") else self.buffer[:-1]
        text = whole.replace(b"\r\n", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self.buffer = rest + self.buffer[len(whole) :]
        events = []
        for block in blocks:
            data = [
                v.removeprefix(b" ")
                for n, _, v in (x.partition(b":") for x in block.split(b"\n"))
                if n == b"data"
            ]
            if data:
                events.append(b"\n".join(data).decode())
        return events


class AllSoFar(Blocks):
    """Gives every event again with each piece."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def feed(self, chunk):
        self.seen += super().feed(chunk)
        return list(self.seen)


class OnePerPiece(Lines):
    def feed(self, chunk):
        return super().feed(chunk)[:1]


class Forgets(Lines):
    """Reads each piece by itself."""

    def feed(self, chunk):
        self.rest, self.data = b"", []
        return super().feed(chunk)


class DecodesPieces(Lines):
    """Decodes each piece as it comes."""

    def feed(self, chunk):
        return super().feed(chunk.decode(errors="replace").encode())


class LastLine(Lines):
    def feed(self, chunk):
        return [event.rsplit("\n", 1)[-1] for event in super().feed(chunk)]


class Strips(Lines):
    def feed(self, chunk):
        return [event.strip() for event in super().feed(chunk)]


class DropsEmpty(Lines):
    """Joins first and asks then: an event of an empty data line is lost."""

    def feed(self, chunk):
        return [event for event in super().feed(chunk) if event]


class OnlyLineFeeds(Lines):
    def feed(self, chunk):
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        found = []
        for line in lines:
            if not line and self.data:
                found.append("\n".join(self.data))
                self.data = []
            name, _, value = line.partition(b":")
            if name == b"data":
                self.data.append(value.removeprefix(b" ").decode())
        return found


class ReplacesInPieces(OnlyLineFeeds):
    """Turns \\r\\n into \\n piece by piece, and misses one that was cut in two."""

    def feed(self, chunk):
        return super().feed(chunk.replace(b"\r\n", b"\n"))


class Impatient(Lines):
    """Gives the data of a line without waiting for the empty one."""

    def feed(self, chunk):
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [
            line.removesuffix(b"\r")[5:].removeprefix(b" ").decode() for line in lines if line.startswith(b"data:")
        ]  # fmt: skip


class Shared:
    """Keeps its rest in the class."""

    kept: dict = {"rest": b"", "data": []}  # noqa: RUF012

    def feed(self, chunk):
        lines = Lines()
        lines.rest, lines.data = self.kept["rest"], self.kept["data"]
        found = lines.feed(chunk)
        self.kept.update(rest=lines.rest, data=lines.data)
        return found


class AsBytes(Lines):
    def feed(self, chunk):
        return [event.encode() for event in super().feed(chunk)]


class StripsEnds(Lines):
    """Takes the line break off with rstrip, and the spaces of the data with it."""

    def feed(self, chunk):
        self.rest += chunk
        *lines, self.rest = self.rest.split(b"\n")
        kept, self.rest = self.rest, b""
        found = super().feed(b"".join(line.rstrip() + b"\n" for line in lines))
        self.rest = kept
        return found


class SplitLines(Lines):
    """str.splitlines ends lines at U+2028, too."""

    def feed(self, chunk):
        self.rest += chunk
        cut = self.rest.rfind(b"\n") + 1
        text, kept = self.rest[:cut].decode(), self.rest[cut:]
        self.rest = b""
        found = super().feed(b"".join(line.encode() + b"\n" for line in text.splitlines()))
        self.rest = kept
        return found


class CommentResets(Lines):
    """A comment ends what was begun."""

    def feed(self, chunk):
        self.rest += chunk
        *lines, kept = self.rest.split(b"\n")
        self.rest, found = b"", []
        for line in lines:
            if line.startswith(b":"):
                self.data = []
            found += super().feed(line + b"\n")
        self.rest = kept
        return found


class AnyCase(Lines):
    def feed(self, chunk):
        return super().feed(chunk.replace(b"Data:", b"data:"))


# Characters ---------------------------------------------------------------------------------------


def by_hand(tokens):
    """Holds back a beginning of a character by looking at the bytes."""
    pieces, held = [], b""
    for token in tokens:
        raw, keep = held + token, 0
        for back in range(1, min(3, len(raw)) + 1):
            byte = raw[-back]
            if byte >> 6 != 0b10:
                size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                keep = back if back < size else 0
                break
        held = raw[len(raw) - keep :]
        pieces.append(raw[: len(raw) - keep].decode(errors="replace"))
    return [*pieces, held.decode(errors="replace")]


def as_given(tokens):
    """Text to send after each token, and once more at the end. tokens: list of bytes."""
    pieces, raw, sent = [], b"", 0
    for token in tokens:
        raw += token
        text = raw.decode("utf-8", errors="replace")
        if text.endswith("\ufffd"):
            pieces.append("")
        else:
            pieces.append(text[sent:])
            sent = len(text)
    return [*pieces, ""]


def flushes_only(tokens):
    """Half mended: the rest comes out, and a replacement sign that the model wrote still waits."""
    pieces = as_given(tokens)
    whole = b"".join(tokens).decode(errors="replace")
    return [*pieces[:-1], whole[len("".join(pieces)) :]]


def strips_signs(tokens):
    """Sends what stands before a sign at the end, whoever wrote the sign."""
    pieces, raw, sent = [], b"", 0
    for token in tokens:
        raw += token
        text = raw.decode(errors="replace").rstrip("\ufffd")
        pieces.append(text[sent:])
        sent = max(sent, len(text))
    return [*pieces, raw.decode(errors="replace")[sent:]]


def sends_what_decodes(tokens):
    """Waits for ever behind a byte that is no character."""
    pieces, held = [], b""
    for token in tokens:
        held += token
        try:
            text, held = held.decode(), b""
        except UnicodeDecodeError as error:
            text, held = held[: error.start].decode(), held[error.start :]
        pieces.append(text)
    return [*pieces, held.decode(errors="replace")]


def spares_whole_signs(tokens):
    """Strips signs at the end unless the last one was written, and then all of them."""
    pieces, raw, sent = [], b"", 0
    for token in tokens:
        raw += token
        text = raw.decode(errors="replace")
        if not raw.endswith(b"\xef\xbf\xbd"):
            text = text.rstrip("\ufffd")
        pieces.append(text[sent:])
        sent = max(sent, len(text))
    return [*pieces, raw.decode(errors="replace")[sent:]]


def like_the_chapter(tokens):
    """The chapter's own: how long a character is, its first byte says."""
    pieces, held = [], b""
    for token in tokens:
        raw, keep = held + token, 0
        for back in range(1, min(3, len(raw)) + 1):
            byte = raw[-back]
            if byte < 0x80:
                break
            if byte >= 0xC0:
                size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                keep = back if back < size else 0
                break
        held = raw[len(raw) - keep :]
        pieces.append(raw[: len(raw) - keep].decode(errors="replace"))
    return [*pieces, held.decode(errors="replace")]


# Stops --------------------------------------------------------------------------------------------


def by_failure_table(chunks, stop):
    """Knuth, Morris and Pratt."""
    table, k = [0] * len(stop), 0
    for i in range(1, len(stop)):
        while k and stop[i] != stop[k]:
            k = table[k - 1]
        k += stop[i] == stop[k]
        table[i] = k
    pieces, matched = [], 0
    for chunk in chunks:
        out = ""
        for letter in chunk:
            before = matched
            while matched and letter != stop[matched]:
                matched = table[matched - 1]
            out += stop[: before - matched]
            if letter == stop[matched]:
                matched += 1
            else:
                out += letter
            if matched == len(stop):
                return [*pieces, out], True
        pieces.append(out)
    return [*pieces, stop[:matched]], False


def falls_back_once(chunks, stop):
    """A failure table, asked once where it must be asked until something fits."""
    table, k = [0] * len(stop), 0
    for i in range(1, len(stop)):
        while k and stop[i] != stop[k]:
            k = table[k - 1]
        k += stop[i] == stop[k]
        table[i] = k
    pieces, matched = [], 0
    for chunk in chunks:
        out = ""
        for letter in chunk:
            before = matched
            if matched and letter != stop[matched]:
                matched = table[matched - 1]
            out += stop[: before - matched]
            if letter == stop[matched]:
                matched += 1
            else:
                out, matched = out + stop[:matched] + letter, 0
            if matched == len(stop):
                return [*pieces, out], True
        pieces.append(out)
    return [*pieces, stop[:matched]], False


def searching(find):
    """The longest beginning is held; `find(held, stop)` says where the stop is, or -1."""

    def hold(chunks, stop):
        pieces, held = [], ""
        for chunk in chunks:
            held += chunk
            if (at := find(held, stop)) >= 0:
                return [*pieces, held[:at]], True
            keep = max(k for k in range(len(stop)) if held.endswith(stop[:k]))
            pieces.append(held[: len(held) - keep])
            held = held[len(held) - keep :]
        return [*pieces, held], False

    return hold


def by_pattern(held, stop):
    found = re.search(stop, held)
    return found.start() if found else -1


def skips_empty(chunks, stop):
    return searching(str.find)([chunk for chunk in chunks if chunk], stop)


ANSWERS = {
    "queue-by-hand": Submissions(
        right=[by_flows],
        wrong=[
            (lambda: 8.3, "a dict with the keys"),
            (lambda: by_flows() | {"last wait": 12.0}, "to fill and to drain"),
            (lambda: by_flows() | {"last wait": 15.84}, "each prefill is in R / µ"),
            (lambda: by_flows() | {"backlog": 100}, "the door alone"),
        ],
        no_lumen="no function of lumen answers it",
    ),
    "event-stream": Submissions(
        right=[Blocks],
        wrong=[
            (OnePerPiece, "several events"),
            (Forgets, "Keep what is not complete"),
            (DecodesPieces, "half a character cannot be decoded"),
            (LastLine, "joined by a line break"),
            (Strips, "a second to the data"),
            (DropsEmpty, "the empty string"),
            (OnlyLineFeeds, "\\r\\n, too"),
            (ReplacesInPieces, "between \\r and \\n"),
            (Impatient, "complete at its empty line"),
            (Shared, "belongs to the instance"),
            (AllSoFar, "not all events so far"),
            (AsBytes, "Strings are asked for"),
            (StripsEnds, "strip no others"),
            (SplitLines, "`str.splitlines` cuts"),
            (CommentResets, "Skip such a line, and nothing else"),
            (AnyCase, "to the letter"),
            (EventStream, "lumen"),
        ],
        lumen=["lumen.loadgen.sse.EventStream"],
    ),
    "half-characters": Submissions(
        right=[by_hand, like_the_chapter],
        wrong=[
            (flushes_only, "a letter before and one behind"),
            (strips_signs, "a replacement sign that the model wrote"),
            (spares_whole_signs, "before the half character is certain"),
            (sends_what_decodes, "cannot become a character any more"),
        ],
        no_lumen="lumen's decoder takes ids and has methods",
    ),
    "leaking-stop": Submissions(
        right=[by_failure_table, searching(str.find)],
        wrong=[
            (falls_back_once, "a shorter one twice"),
            (searching(str.rfind), "The first stop ends the answer"),
            (searching(by_pattern), "not a pattern"),
            (skips_empty, "One piece for each chunk"),
        ],
        no_lumen="lumen's matcher has methods and takes a list of stops",
    ),
    "claims-on-throughput": Submissions(
        right=[lambda: ("db", 640 / 150)],
        wrong=[
            (lambda: ("b", 4.267), "2 statements are wrong"),
            (lambda: ("abd", 4.267), "baselines"),
            (lambda: ("bcd", 4.267), "Little"),
        ],
        no_lumen="nothing to import",
    ),
    "queue-limit": Submissions(
        right=[lambda: {"slots": 196, "queue": 300}],
        wrong=[
            (lambda: {"slots": 256, "queue": 200}, "divide the whole house by 249"),
            (lambda: {"slots": 190, "queue": 400}, "its length over"),
            (lambda: {"slots": 196, "queue": 100}, "slots and queue together"),
            (lambda: {"slots": 128, "queue": 280}, "turns away more people"),
        ],
        no_lumen="no function of lumen decides it",
    ),
}
