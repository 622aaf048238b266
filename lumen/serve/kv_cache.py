"""What an engine keeps keys and values in, chosen by a word: `--kv-cache plain | int8 | int4 | kivi | kivi-2 |
window:N+S`.

A choice says how large a block is and what a sequence takes, before anything is loaded, and makes the store. Here
another kind gets its line: a class with the same questions, and its word in `kv_cache`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..arguments import quoted
from ..cache.held import KeepAll, KeepWindow
from ..cache.quant_format import QUANT_FORMATS, QuantFormat
from ..config import ModelConfig
from ..cost.memory import kv_bytes_per_token
from ..parts import Window

GIB = 2**30
BLOCK, GROUP = 16, 32  # positions in a block: of plain ones; of KIVI's, which share the scales of their keys


class KvCache(Protocol):
    """One choice. Bytes are those of a real store, scales and spare places included; `dtype` is the model's."""

    @property
    def name(self) -> str:
        """Its word."""

    @property
    def block_size(self) -> int:
        """Positions of a block, where the user names none."""

    def block_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        """One block, in all layers."""

    def sequence_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        """What a running sequence takes beside its blocks."""

    def maker(self, max_seqs: int) -> Callable[[Any, int, int], Any]:
        """`make_store(model, num_blocks, block_size)` of an `Engine` that runs so many sequences at once."""

    @property
    def window(self) -> Window | None:
        """What is kept of a sequence, None for all of it."""

    def blocks(self, length: int, block_size: int, chunk: int = 1) -> int:
        """The most blocks that a sequence of `length` positions holds while `chunk` tokens of it are computed."""


@dataclass(frozen=True)
class Plain:
    """Keys and values in the model's own dtype."""

    name: str = "plain"
    block_size: int = BLOCK

    def block_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return block_size * kv_bytes_per_token(config, dtype)

    def sequence_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return 0.0

    def maker(self, max_seqs: int) -> Callable[[Any, int, int], Any]:
        from ..cache.store import BlockStore

        return BlockStore.for_model

    @property
    def window(self) -> Window | None:
        return None

    def blocks(self, length: int, block_size: int, chunk: int = 1) -> int:
        return KeepAll(block_size).most(length, chunk)


@dataclass(frozen=True)
class Windowed:
    """Plain keys and values of a window and of the first tokens, see `lumen.cache.window`."""

    window: Window
    block_size: int = BLOCK

    @property
    def name(self) -> str:
        return f"window:{self.window}"

    def block_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return PLAIN.block_bytes(config, dtype, block_size)

    def sequence_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return 0.0

    def maker(self, max_seqs: int) -> Callable[[Any, int, int], Any]:
        return PLAIN.maker(max_seqs)

    def blocks(self, length: int, block_size: int, chunk: int = 1) -> int:
        return KeepWindow(block_size, self.window).most(length, chunk)


@dataclass(frozen=True)
class Quantized:
    """Keys and values in codes, see `lumen.cache.quant_format`."""

    form: QuantFormat

    @property
    def name(self) -> str:
        return self.form.name

    @property
    def block_size(self) -> int:
        return GROUP if self.form.per_channel else BLOCK

    def block_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return block_size * self.form.bytes_per_token(config, block_size)

    def sequence_bytes(self, config: ModelConfig, dtype: Any, block_size: int) -> float:
        return self.form.open_bytes(config, dtype, block_size)

    def maker(self, max_seqs: int) -> Callable[[Any, int, int], Any]:
        from ..cache.quant_kivi import KiviStore
        from ..cache.quant_store import QuantStore

        if self.form.per_channel:
            return partial(KiviStore.for_model, form=self.form, sequences=max_seqs)
        return partial(QuantStore.for_model, form=self.form)

    @property
    def window(self) -> Window | None:
        return None

    def blocks(self, length: int, block_size: int, chunk: int = 1) -> int:
        return KeepAll(block_size).most(length, chunk)


PLAIN: KvCache = Plain()


def kv_cache(text: str) -> KvCache:
    """The choice that a word of the command line stands for. argparse.ArgumentTypeError names all of them."""
    if text == PLAIN.name:
        return PLAIN
    if text in QUANT_FORMATS:
        return Quantized(QUANT_FORMATS[text])
    if words := re.fullmatch(r"window:(\d{1,8})(?:\+(\d{1,8}))?", text, re.ASCII):
        try:
            return Windowed(Window(int(words[1]), int(words[2] or 0)))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    known = ", ".join([PLAIN.name, *QUANT_FORMATS, "window:N+S (the newest N positions and the first S)"])
    raise argparse.ArgumentTypeError(f"needs one of {known}, got '{quoted(text)}'")


def users_per_gib(kind: KvCache, config: ModelConfig, dtype: Any, length: int, block_size: int) -> int:
    """How many sequences of `length` positions a GiB holds."""
    blocks = kind.blocks(length, block_size) * kind.block_bytes(config, dtype, block_size)
    return int(GIB // (blocks + kind.sequence_bytes(config, dtype, block_size)))


@dataclass(frozen=True)
class Kept:
    """What a choice means for one model: a token's bytes, and how many sequences of `length` tokens a GiB holds, in
    this kind and plain."""

    name: str
    block_size: int
    bytes_per_token: float
    length: int
    users: int
    plain_users: int

    def __str__(self) -> str:
        line = (
            f"KV cache {self.name}: {self.bytes_per_token:,.0f} bytes a token, {self.users:,} users of {self.length:,} "
            "tokens in a GiB"
        )
        return line if self.name == PLAIN.name else f"{line}, {self.plain_users:,} with {PLAIN.name}"


def kept(kind: KvCache, config: ModelConfig, dtype: Any, length: int, block_size: int) -> Kept:
    """The numbers of a choice, for the line with which a server starts and for its metrics."""
    token = kind.block_bytes(config, dtype, block_size) / block_size
    users = [users_per_gib(each, config, dtype, length, block_size) for each in (kind, PLAIN)]
    return Kept(kind.name, block_size, token, length, *users)
