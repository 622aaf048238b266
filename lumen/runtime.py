"""Where the course runs: the device, the dtype that suits it, and the name of the processor."""

from __future__ import annotations

import os
import platform
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def device() -> Any:
    """The torch device to use: `LUMEN_DEVICE` if set, else cuda if there is one, else cpu."""
    import torch

    name = os.environ.get("LUMEN_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ValueError(f"LUMEN_DEVICE={name!r} is not a device; use 'cpu' or 'cuda'.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "LUMEN_DEVICE asks for cuda, but torch sees no GPU; unset it, or choose a GPU runtime."
        )
    return chosen


def default_dtype(on: Any = None) -> Any:
    """bf16 on GPUs that compute in it, fp16 on older GPUs, fp32 on CPUs (most have no fast bf16 units)."""
    import torch

    on = device() if on is None else torch.device(on)
    if on.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(on) >= (8, 0) else torch.float16


def in_passing_thread(fn: Callable[..., T], *args: Any) -> T:
    """fn(*args), computed by a thread that ends with it.

    For processes that compute in a second thread, as a server's engine does. OpenMP keeps a team of threads for every
    thread that ever computed, until that thread ends. As soon as all teams together have more threads than there are
    cores, GNU's libgomp, which torch uses on Linux, no longer lets a team spin between two operators but puts it to
    sleep, and every decode step pays for waking it. So whatever is computed before the second thread takes over,
    loading a model for one, is better done in passing.

    Ctrl-C ends the waiting, and the thread with the process: a download in it may have minutes to go.
    """
    done: Future[T] = Future()

    def compute() -> None:
        try:
            done.set_result(fn(*args))
        except BaseException as error:
            done.set_exception(error)

    passing = threading.Thread(target=compute, name="lumen-passing", daemon=True)
    passing.start()
    found = done.result()
    passing.join()
    return found


def seed_everything(seed: int) -> None:
    """Seed Python and torch (all devices). numpy generators are passed around explicitly in this course."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)


def available_memory(on: Any) -> float | None:
    """Bytes that can be taken on a device now; None where the system does not say.

    A GPU's free memory and what torch keeps of it unused. On Linux `MemAvailable`, and no more than the control group
    (a container) may have at all.
    """
    import torch

    on = torch.device(on)
    if on.type == "cuda":
        unused = torch.cuda.memory_reserved(on) - torch.cuda.memory_allocated(on)
        return float(torch.cuda.mem_get_info(on)[0] + unused)
    if on.type != "cpu":
        return None
    found = []
    try:
        with open("/proc/meminfo", encoding="utf8") as lines:
            found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        with open("/sys/fs/cgroup/memory.max", encoding="utf8") as limit:
            found += [float(text) for text in limit if text.strip().isdigit()]
    except OSError:
        pass  # another system, or no control group
    return min(found, default=None)


def refuse_beyond_memory(num_bytes: float, on: Any, what: str, cure: str) -> None:
    """ValueError, before anything is taken, when `what` needs more memory than the device has left."""
    if num_bytes < 2**28:  # not worth the look
        return
    room = available_memory(on)
    if room is not None and num_bytes > room:
        raise ValueError(
            f"{what} need {num_bytes / 2**30:,.1f} GiB, and {room / 2**30:,.1f} GiB are available on {on}. {cure}"
        )


def processor_name(on: Any) -> str:
    """The name of the GPU or CPU that does the work."""
    import torch

    if on.type == "cuda":
        return torch.cuda.get_device_name(on)
    try:
        with open("/proc/cpuinfo", encoding="utf8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
