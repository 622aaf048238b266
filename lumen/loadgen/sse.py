"""Server-sent events out of bytes: the stream that a server sends while it still writes the answer.

An event is one or more `data:` lines and the empty line after them. The network cuts the stream where it likes:
in the middle of an event, of a line, of a character, or not at all between two events. So bytes are kept until
a line is whole. (WHATWG HTML, section "Server-sent events"; only the field `data` matters here.)
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

    def __init__(self) -> None:
        self._rest = bytearray()  # the line that is not whole yet
        self._data: list[str] = []  # lines of the event that is not whole yet
        self._size = 0  # bytes in both
        self._after_return = False  # the last byte was \r: a \n that follows belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes, in order. ValueError if one grows beyond 16 MiB."""
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
        self._size = len(self._rest) + sum(map(len, self._data))
        if self._size > MAX_EVENT_BYTES:
            raise ValueError(f"An event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB; gave up.")
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
            event, self._data = self._data, []
            return ["\n".join(event)] if event else []
        name, _, value = line.partition(b":")  # a comment has an empty name
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", errors="replace"))
        return []
