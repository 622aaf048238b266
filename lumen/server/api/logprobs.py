"""Log-probabilities in OpenAI's two formats.

A token of a byte-level vocabulary may be a fragment of a character. Chat answers give its `bytes`; the older
completions format has only strings, where a fragment is written `bytes:\\xf0\\x9f`, so that two fragments do not
become the same replacement sign.
"""

from __future__ import annotations

from typing import Any

from ...io.tokenizer import TextTokenizer
from ...serve.request import TokenLogprobs

LOWEST = -9999.0  # stands for minus infinity, which JSON does not have (vLLM's number)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST  # also for NaN


def chat_logprobs(tokenizer: TextTokenizer, entries: tuple[TokenLogprobs, ...]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*likely) for likely in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, piece by piece: offsets go on where the last piece ended."""

    def __init__(self, tokenizer: TextTokenizer, skip_special: bool = True):
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream(skip_special)
        self._offset = 0

    def piece(self, entries: tuple[TokenLogprobs, ...]) -> dict[str, Any]:
        """The four lists for these tokens. A token's offset is where the text stood before it, in characters."""
        found: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry in entries:
            found["tokens"].append(self._name(entry.token))
            found["token_logprobs"].append(_finite(entry.logprob))
            named: dict[str, float] = {}
            for token, value in ((entry.token, entry.logprob), *entry.top):
                named.setdefault(
                    self._name(token), _finite(value)
                )  # of those spelled alike, the drawn one or the best
            found["top_logprobs"].append(named)
            found["text_offset"].append(self._offset)
            self._offset += len(self._decoder.feed(entry.token))
        return found

    def _name(self, token: int) -> str:
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
