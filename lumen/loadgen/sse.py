"""Server-sent events out of bytes: the stream that a server sends while it still writes the answer.

An event is one or more `data:` lines and the empty line after them. The network cuts the stream where it likes:
in the middle of an event, of a line, of a character, or not at all between two events. So bytes are kept until
a line is whole. (WHATWG HTML, section "Server-sent events"; only the field `data` matters here.)

Why not httpx-sse (0.4.3): it has no limit on an event's size, keeps a byte order mark, and holds an event that ends
with CR back until the next read, which would be counted as the server's delay.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 2**20  # a server that never ends its event must not fill our memory


class EventStream:
    """Feed bytes as they come; get the data of every event that is complete.

    >>> events = EventStream()
    >>> events.feed(b'data: {"a"')
    []
    >>> events.feed(b': 1}\\n\\ndata: [DONE]\\n\\n')
    ['{"a": 1}', '[DONE]']
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()  # the line that is not whole yet
        self._data: list[str] = []  # lines of the event that is not whole yet
        self._held = 0  # their bytes, line ends included
        self._after_return = False  # the last byte was \r: a \n that follows belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes, in order.

        ValueError if an event grows beyond `limit` bytes, or is not UTF-8: a browser would put U+FFFD there, but JSON
        must be UTF-8 (RFC 8259), and a measured answer must be the one that was sent.
        """
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found: list[str] = []
        for part in lines:
            self._rest += part
            found += self._line(bytes(self._rest))
            self._rest.clear()
        self._rest += rest
        if len(self._rest) + self._held > self._limit:
            raise ValueError(f"An event of the stream is longer than {self._limit >> 20} MiB; gave up.")
        return found

    def finish(self) -> list[str]:
        """What stood behind the last empty line when the connection ended: usually nothing."""
        found = self._line(bytes(self._rest)) if self._rest else []
        self._rest.clear()
        return found + self._line(b"")

    def _line(self, line: bytes) -> list[str]:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if not line:  # the empty line: the event is complete
            event, self._data, self._held = self._data, [], 0
            return ["\n".join(event)] if event else []
        name, _, value = line.partition(b":")  # a comment has an empty name
        if name == b"data":
            self._held += len(value) + 1
            try:
                self._data.append(value.removeprefix(b" ").decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(f"An event of the stream is not UTF-8: {error.object[:80]!r}") from None
        return []
