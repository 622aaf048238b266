"""Stand-ins for the slow parts: an encoder that hashes words, and a clock that stands still until told."""

from __future__ import annotations

import hashlib

import numpy as np

WIDTH = 32


class BagOfWords:
    """A fixed random direction per word, added up: texts that share words are near, deterministic everywhere."""

    def __init__(self, width: int = WIDTH, fingerprint: str = "bag"):
        self.width, self.fingerprint = width, fingerprint

    def encode(self, texts):
        return np.stack([self._one(text) for text in texts])

    def reads_whole(self, text):
        return len(text.split()) <= 50

    def _one(self, text):
        total = np.zeros(self.width, np.float32)
        for word in text.lower().split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
            total += np.random.default_rng(seed).standard_normal(self.width).astype(np.float32)
        return total


class Clock:
    def __init__(self, now: float = 1_000_000.0):
        self.now = now

    def __call__(self) -> float:
        return self.now
