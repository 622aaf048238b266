"""Peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(fn: Callable[[], Any]) -> int:
    """The most memory that was in use at once during `fn()`, beyond what was in use before it. [B]

    On a GPU what torch's allocator handed out; elsewhere the resident memory of the process, whose highest value
    Linux can reset before the call. Where it cannot be reset, only growth beyond the highest value so far is seen: a
    lower bound. What C's allocator kept of freed memory is given back first where it can be (glibc): used again, it
    would not count as growth, and `fn` would seem to need nothing.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    _give_back_freed()
    before = _reset_high_water()
    fn()
    return max(0, _high_water() - before)


def _give_back_freed() -> None:
    """Return to the system the pages that the allocator keeps after `free` (malloc_trim(3), glibc only)."""
    with suppress(OSError, AttributeError, TypeError):  # another C library; Windows has none for None
        ctypes.CDLL(None).malloc_trim(0)


def _reset_high_water() -> int:
    """Set the high-water mark of resident memory to the present where possible; return the mark. [B]"""
    with suppress(OSError):
        _RESET.write_text("5")  # proc(5): resets the peak resident set size
    return _high_water()


def _high_water() -> int:
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
