"""The bandwidth is looked at more than once, and in every way in which the pages read memory."""

from __future__ import annotations

import pytest
import torch

from lumen.hardware import measured, probes
from lumen.hardware.reads import Reads
from lumen.hardware.sampling import Budget, Samples

from .test_hardware import Ticks, small  # noqa: F401


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("last, again", [(2**18, True), (2**22, False)])
def test_memory_is_read_as_the_page_that_doubts_it_reads(monkeypatch, last, again):
    """Chapter 2 sums an array again and again: no probe may leave that to it, where no cache helps."""
    monkeypatch.setattr(probes, "last_cache", lambda device: last)
    with torch.inference_mode():
        kinds = probes.read_bandwidth(torch.device("cpu"), Budget(9.0, Ticks(0.01)), 1.0)
    assert ("sum_again" in kinds) == again and {"sum", "maximum", "matrix_vector"} <= set(kinds)


@pytest.mark.usefixtures("small")
def test_the_roof_is_the_best_of_all_looks():
    """Looks lie apart in time; what the poorest fell short is not hidden."""
    reads = Reads([{"sum": Samples((2.0, 2.0, 2.0))}, {"sum": Samples((4.0,)), "maximum": Samples((2.5,))}])
    assert reads.best == {"sum": 0.5, "maximum": 0.4} and reads.uncertainty == pytest.approx(0.2)
    clock, seen = Ticks(0.03), []
    look = Reads.look
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(Reads, "look", lambda self, *a: (seen.append(clock.now), look(self, *a)))
        chip = measured._measure(torch.device("cpu"), "some", 2, False, 15.0, clock)
    assert len(seen) >= 2 and seen[-1] - seen[0] > 5.0, "at the beginning, and after every format"
    assert chip.bandwidth == max(rate for kind, rate in chip.details.items() if kind.startswith("read_"))
