"""Matchers for tests: a list of permitted answers, as a trie would hold them."""

from __future__ import annotations

from functools import partial

import torch


class Choices:
    """The answer is one of `texts` (token ids), then an end token. Counts its calls; rollback undoes single tokens."""

    def __init__(self, texts, ends, size):
        self.texts, self.ends, self.size = [list(t) for t in texts], list(ends), size
        self.said: list[int] = []

    def _open(self, said):
        return [t for t in self.texts if t[: len(said)] == said]

    def allowed(self):
        mask = torch.zeros(self.size, dtype=torch.bool)
        for text in self._open(self.said):
            mask[text[len(self.said)] if len(text) > len(self.said) else self.ends] = True
        return mask

    def advance(self, token):
        assert token not in self.ends, "an end is no part of the answer"
        if not self._open([*self.said, token]):
            return False
        self.said.append(token)
        return True

    def rollback(self, count):
        assert count <= len(self.said)
        del self.said[len(self.said) - count :]


def choices(texts, ends=(2, 0), size=97):
    return partial(Choices, texts, ends, size)
