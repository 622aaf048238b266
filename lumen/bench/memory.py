"""Peak memory of a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def peak_memory(fn: Callable[[], Any]) -> int:
    """The most bytes of tensors that were alive at once during `fn()`, beyond those from before. [B]

    On a GPU what torch's allocator handed out. Elsewhere counted after each operator, so that what lives only inside
    one is not seen. The resident memory of the process would see it, and with it what C's allocator keeps of freed
    memory and the holes between its blocks: the same work then reads as nothing, or as many times what it needs.
    """
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    from lumen.bench.live import LiveTensors

    with LiveTensors() as live:
        fn()
    return live.peak
