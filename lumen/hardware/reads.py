"""The bandwidth of memory that others use as well: several looks, of which the best is the roof."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lumen.hardware import probes
from lumen.hardware.sampling import Budget, Samples


@dataclass
class Reads:
    """Looks at the bandwidth, apart in time: what shares the memory is quiet now and then, and not when called."""

    looks: list[dict[str, Samples]] = field(default_factory=list)

    def look(self, device: torch.device, budget: Budget, seconds: float) -> None:
        self.looks.append(probes.read_bandwidth(device, budget, seconds))

    @property
    def best(self) -> dict[str, float]:
        """B/s by the way of reading, the best of all looks."""
        kinds = {kind for one in self.looks for kind in one}
        return {k: max(1 / one[k].best for one in self.looks if k in one) for k in sorted(kinds)}

    @property
    def uncertainty(self) -> float:
        """The spread of the steadiest way of reading, or by what share the poorest look fell short of the best."""
        spread = min(samples.spread for one in self.looks for samples in one.values())
        tops = [max(1 / samples.best for samples in one.values()) for one in self.looks]
        return max(spread, 1 - min(tops) / max(tops))
