"""From a question to a point on the unit sphere: all-MiniLM-L6-v2, 23 million weights, 384 numbers a text.

The tokens' vectors of the last layer are averaged (mean pooling) and scaled to length 1, so that the inner
product of two texts is the cosine of the angle between them. It was trained to put texts that occur together
near each other; nobody taught it that "not" turns an answer around.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from ..extras import extra


class Encoder(Protocol):
    """What the cache asks of an encoder. `fingerprint` differs between any two that give different vectors."""

    width: int
    fingerprint: str

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """texts -> (len(texts), width) float32"""

    def reads_whole(self, text: str) -> bool:
        """False if only the beginning of `text` has an influence on its vector."""


class MiniLM:
    """The encoder of the course, from `lumen.assets`; `folder` names another sentence-transformers model."""

    def __init__(self, folder: str | Path | None = None, device: str | None = None):
        with extra("semantic"):
            from sentence_transformers import SentenceTransformer

        from lumen import assets
        from lumen.runtime import device as default_device

        where = Path(assets.path("minilm") if folder is None else folder)
        self._model: Any = _quietly(
            lambda: SentenceTransformer(
                str(where), device=device or str(default_device()), local_files_only=True
            )
        )
        self._lock = Lock()  # the tokenizer cannot be used by two threads at once ("Already borrowed")
        self._limit: int = self._model.max_seq_length
        self.width = int(self.encode(["width"]).shape[1])
        self.fingerprint = _fingerprint(where)

    def encode(self, texts: Sequence[str], *, batch: int = 64, progress: bool = False) -> np.ndarray:
        """texts -> (len(texts), 384) float32 of length 1"""
        with self._lock:
            vectors = self._model.encode(
                list(texts), batch_size=batch, normalize_embeddings=True, show_progress_bar=progress
            )
        return np.asarray(vectors, dtype=np.float32)

    def reads_whole(self, text: str) -> bool:
        """Whether `text` has no more than the 256 word pieces the encoder reads; what follows is ignored."""
        with self._lock:
            pieces = self._model.tokenizer(text, truncation=False, verbose=False)["input_ids"]
        return len(pieces) <= self._limit


def _quietly(load: Callable[[], Any]) -> Any:
    """Load without the progress bar of transformers, which is over before it can be read."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return load()
    finally:
        if shown:
            logging.enable_progress_bar()


def _fingerprint(folder: Path) -> str:
    """Of weights, vocabulary and pooling: everything that a vector depends on."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".safetensors", ".bin") or file.name in (
            "config.json",
            "vocab.txt",
            "tokenizer.json",
        ):
            content = file.read_bytes()
            name = file.relative_to(folder).as_posix()
            digest.update(json.dumps([name, len(content)]).encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def unit(vectors: np.ndarray, width: int) -> np.ndarray:
    """(n, width) float32, each of length 1. Raises ValueError for another width, NaN, or the zero vector."""
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise ValueError(
            f"Embeddings of shape (n, {width}) are wanted, got {tuple(vectors.shape)}; "
            "a cache takes the vectors of one encoder only."
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise ValueError("An embedding is zero or not finite, so it points nowhere; check the encoder.")
    return vectors / norms
