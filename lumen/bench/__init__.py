"""The one timer, estimates and the sentences they allow, prefill and decode apart, memory, published measurements.

>>> from lumen import bench
>>> timing = bench.measure(lambda: sorted(range(1000)), repeats=3)
>>> len(timing.samples)
3
"""

from __future__ import annotations

from lumen.bench.estimate import Estimate
from lumen.bench.memory import peak_memory
from lumen.bench.phases import Generation, generation
from lumen.bench.published import NoEvidence, evidence, load_evidence
from lumen.bench.queue import Served, serve_queue
from lumen.bench.says import miss, outcome, says, sentence, sentences
from lumen.bench.stream import token_times
from lumen.bench.timer import Timing, compare, measure, quiet, synchronize, threads

__all__ = [
    "Estimate",
    "Generation",
    "NoEvidence",
    "Served",
    "Timing",
    "compare",
    "evidence",
    "generation",
    "load_evidence",
    "measure",
    "miss",
    "outcome",
    "peak_memory",
    "quiet",
    "says",
    "sentence",
    "sentences",
    "serve_queue",
    "synchronize",
    "threads",
    "token_times",
]
