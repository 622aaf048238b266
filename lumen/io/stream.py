"""Token ids in, text out, one token at a time, and never a broken character.

A byte-level token may hold half a character: the four bytes of an emoji are often two tokens. Decoding each
token alone prints replacement signs; decoding everything again after each token is quadratic and still
prints them at the cut. The decoder below keeps the bytes of an unfinished character back until the rest has
come, so that

    "".join(feed(id) for id in ids) + finish()  ==  decode(ids)     for every list of ids, cut anywhere.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Feed ids, print what comes back, and `finish` at the end. One decoder per answer.

    token_bytes(id) gives the bytes of one token; ids for which `skip(id)` holds (special tokens) leave no
    text and do not part the characters around them, as in the full decode. For vocabularies whose tokens are
    not simply bytes there is `lumen.io.decoding`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Callable[[int], bool] = lambda _: False):
        self._token_bytes, self._skip = token_bytes, skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that is certain after this token; often its own text, sometimes nothing yet."""
        return "" if self._skip(token_id) else self._utf8.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        """What is still held back: half a character becomes a replacement sign, as in the full decode."""
        return self._utf8.decode(b"", final=True)
