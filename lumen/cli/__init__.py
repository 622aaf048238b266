"""The command line: what this machine can do, and what the model does with it.

lumen info                          versions, device, models, what was measured here
lumen roofline                      measure this machine and predict SmolLM2 on it
lumen generate "Once upon a time"   complete a text
lumen chat                          talk to the model; an empty line or Ctrl-D ends it
lumen serve                         answer HTTP requests as OpenAI's API does
lumen load                          measure a server under load

Whatever goes wrong is one sentence on stderr and an exit status: 2 for what was typed, 1 for what this machine or
the other side could not do, 130 for Ctrl-C, 141 for a reader that went away (`lumen … | head`). SIGTERM ends a command
as it ends any program (143 in a shell). `serve` lets running requests finish at the first signal, and its status is 0
then; the second ends it at once, with 130 or 143.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import argparse

USAGE, FAILED, INTERRUPTED, UNREAD = 2, 1, 128 + signal.SIGINT, 141


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    from .grammar import grammar

    return grammar()


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status. Raises SystemExit for arguments that argparse refuses."""
    return run(parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Run what was parsed. Errors become a sentence and a status; anything else that is raised is a bug of ours."""
    try:
        return options.run(options) or 0
    except BrokenPipeError:
        return UNREAD
    except ValueError as error:
        return _said(error, USAGE)
    except (RuntimeError, OSError, ModuleNotFoundError) as error:
        return _said(error, FAILED)
    except MemoryError:
        return _said("This machine has not enough memory for that; ask for less.", FAILED)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def console() -> NoReturn:
    """What the `lumen` script runs: a command, and the process around it."""
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a shell may have it ignored
    if (
        heard
    ):  # until all is imported: packages turn a KeyboardInterrupt in the middle of themselves into anything
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    _mend_streams()
    try:
        options = parser().parse_args()
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run(options)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else USAGE
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more: at once, and without a word
    _leave(status)


def _mend_streams() -> None:
    """A stream that the shell closed becomes one that nobody reads, lest `print` takes the other; a character that
    the terminal cannot show does not end the answer, nor one that it cannot say the conversation."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), "utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _leave(status: int) -> NoReturn:
    """End the process, and not in the orderly way where that goes wrong: a thread that still computes, as a server's
    engine may, would be cut down inside torch, which aborts; a stream that cannot be flushed now cannot be at the end
    either; and CPython remembers a KeyboardInterrupt that passed through an `exec`, whoever caught it."""
    import threading

    whole = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            whole, status = False, status or UNREAD
        except OSError as error:
            whole, status = False, _said(error, FAILED)
    if not whole or status == INTERRUPTED or threading.active_count() > 1:
        os._exit(status)
    sys.exit(status)


def _said(error: Exception | str, status: int) -> int:
    """Print the sentence of an error, on one line and no longer than a paragraph, and hand `status` on."""
    from ..arguments import quoted

    words = str(error)
    if isinstance(error, OSError) and error.strerror:  # the system's own, which begins with a number
        words = error.strerror + (f": {error.filename!r}" if error.filename else "")
    words = " ".join(words.split()) or type(error).__name__
    with suppress(OSError):  # nobody may read stderr either
        print(f"lumen: {quoted(words, 2000)}", file=sys.stderr, flush=True)
    return status
