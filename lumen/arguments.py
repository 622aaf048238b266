"""The words of a command line: numbers with limits, sizes, files; and a parser that says in one line what is wrong.

A type here raises argparse.ArgumentTypeError with the limit and what was given, so argparse never has to make a
sentence of its own out of a function's name ("invalid _count value").
"""

from __future__ import annotations

import argparse
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

MAX_COUNT = 2**31 - 1  # what no count of tokens, blocks or requests needs to exceed
MAX_SEED = 2**63 - 1  # torch and numpy both take seeds up to here

_SHOWN = 60  # characters of an argument that a sentence repeats
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Parser(argparse.ArgumentParser):
    """argparse's parser, with a sentence and a hint in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        said = quoted(message, 400)
        self.exit(2, f"{self.prog}: {said}\nTry `{self.prog} --help`.\n")


def quoted(text: str, limit: int = _SHOWN) -> str:
    """`text` for a sentence: one line, nothing that a terminal would obey, no longer than `limit`."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: limit + 1])
    return line if len(line) <= limit else line[:limit] + " …"


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int = 1
    high: int = MAX_COUNT

    def __call__(self, text: str) -> int:
        digits = re.fullmatch(r"\s*(-?\d{1,19})\s*", text, re.ASCII)
        if not digits or not self.low <= int(digits[1]) <= self.high:
            raise argparse.ArgumentTypeError(
                f"needs a whole number from {self.low} to {self.high}, got '{quoted(text)}'"
            )
        return int(digits[1])


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`; with `above`, `low` itself is refused, and with `endless` inf is taken."""

    low: float
    high: float
    above: bool = False
    endless: bool = False

    def __call__(self, text: str) -> float:
        try:
            value = math.nan if "_" in text else float(text)  # Python takes 1_000, and nobody else does
        except ValueError:
            value = math.nan
        if self.endless and text.strip().lower() in ("inf", "infinity"):  # 1e400 was meant to be a number
            return value
        if not self.low <= value <= self.high or (self.above and value == self.low):
            raise argparse.ArgumentTypeError(
                f"needs a number {'above' if self.above else 'from'} {self.low:g} {'up ' if self.above else ''}to "
                f"{self.high:g}{' or inf' if self.endless else ''}, got '{quoted(text)}'"
            )
        return value


def size(text: str) -> int:
    """A number of bytes, such as 512M or 2G, up to a petabyte."""
    match = re.fullmatch(
        r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII
    )
    if not match or not 1 <= (found := int(float(match[1]) * _UNITS[match[2].upper()])) <= 2**50:
        raise argparse.ArgumentTypeError(f"needs a size such as 512M or 2G, got '{quoted(text)}'")
    return found


def text(given: str) -> str:
    """A text that is UTF-8, as what was typed is in nearly every terminal, even where the locale says ASCII."""
    try:
        given.encode()
        return given
    except UnicodeEncodeError:  # bytes that the locale does not know came as surrogates
        pass
    try:
        return os.fsencode(given).decode()
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"is not UTF-8: '{quoted(given)}'") from None


def place(given: str) -> str:
    """A name that may be a path, kept as it was given; `path` says what no path can be."""
    if given.startswith("~") or "\0" in given:
        path(given)
    return text(given)


def path(text: str) -> Path:
    """A path that this system could have; whether there is a file is another question."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"needs a path, got '{quoted(text)}'")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~ without a home, ~nobody
        raise argparse.ArgumentTypeError(f"needs a path; whose home is '{quoted(text)}'?") from None


def folder_to_write(folder: Path) -> None:
    """Make `folder` if need be. OSError, with the reason, if no file can be written there: better said before the
    work than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"Cannot write into {quoted(str(folder), 200)!r}: {error.strerror}.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"Cannot write into {quoted(str(folder), 200)!r}: there is no permission.")


def file_name(words: str) -> str:
    """`words`, which a server may have chosen, as part of a file's name: no folder, no blank, no end."""
    return re.sub(r"[^\w.+=-]+", "_", words)[:100]
