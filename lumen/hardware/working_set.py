"""What the probes stand on: how much memory they read, the layer they take their shapes from, what they give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import nn

from lumen.hardware.chip import Curve
from lumen.hardware.identity import memory_bytes
from lumen.hardware.sampling import Samples

if TYPE_CHECKING:
    from lumen.config import ModelConfig
    from lumen.models.linear import Linear

MIB = 2**20
LEAST, MOST = 512 * MIB, 768 * MIB  # of the memory a probe reads in turn


def last_cache(device: torch.device) -> int:
    """Bytes of the device's last cache, as far as the system says; 32 MiB where it does not."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 32 * MIB))
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": MIB, "G": 2**30}
    texts = [path.read_text().strip() for path in sizes]
    return max((int(t[:-1]) * units[t[-1]] for t in texts if t[-1:] in units), default=32 * MIB)


def beyond_cache(device: torch.device) -> int:
    """Bytes that no cache holds: eight times the last one, 512 to 768 MiB, an eighth of the memory at most.

    At least 512, as a virtual machine may be told less cache than it has: with 128 MiB, a sum ran at twice the
    speed of memory now and then. At most 768, as there are CPUs with 300 MiB and more of cache: what is visited in turn
    misses a cache that is only a little smaller, too.
    """
    wanted = min(max(LEAST, 8 * last_cache(device)), MOST)
    room = memory_bytes() if device.type == "cpu" else 0.0
    return max(MIB, min(wanted, int(room / 8))) if room else wanted


def inner(device: torch.device) -> int:
    """Calls a sample: a GPU is kept busy by several, so that waiting for it is not what is timed."""
    return 10 if device.type == "cuda" else 1


def probe_shape(device: torch.device) -> ModelConfig:
    """The layer whose operators are timed: SmolLM2-135M's on a CPU, Llama-3-8B's on a GPU."""
    from lumen.config import CONFIGS

    return CONFIGS["llama-3-8b" if device.type == "cuda" else "smollm2-135m"]


def matrix(inputs: int, outputs: int, device: torch.device, dtype: torch.dtype) -> Linear:
    """A weight as `lumen.load` leaves it. Made under inference mode it would not be packed: another kernel."""
    from lumen.models.linear import Linear

    with torch.inference_mode(False), torch.no_grad():
        made = nn.utils.skip_init(Linear, inputs, outputs, bias=False, device=device, dtype=dtype)
        made.weight.requires_grad_(False).fill_(0.01)
    return made


@dataclass(frozen=True)
class Measured:
    """A curve, and how uncertain its points are in the middle."""

    curve: Curve
    uncertainty: float


def rates(work: dict[int, float], took: dict[int, Samples]) -> Measured:
    """Work over median seconds, by size, for the sizes there was time for."""
    curve = tuple((size, work[size] / took[size].median) for size in sorted(took))
    return Measured(curve, median(samples.spread for samples in took.values()))
