"""What a process holds: the bytes that malloc has handed out, and the pages that are resident.

The two part where free pieces lie between used ones: a page goes back to the system only when all of it is free. Both
rise when something is kept; what is resident rises as well when as many pieces lie worse than before.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2` (mallinfo(3)): all arenas together, in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def in_use() -> int | None:
    """Bytes of malloc's pieces that nobody has freed; None where the C library is not glibc of 2.33 or later.

    Python's pieces of up to 512 bytes lie in pools of its own and are not seen here: `sys.getallocatedblocks` counts
    all of Python's.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    ask.restype = _Mallinfo2
    found = ask()
    return int(found.uordblks + found.hblkhd)


def resident() -> int:
    """Memory that the process has now, without what malloc holds ready, in bytes; off Linux, the most that it had."""
    with contextlib.suppress(AttributeError, OSError):  # a C library that is not glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
