"""The one timer, estimates and the sentences they allow, prefill and decode apart, memory, published measurements.

>>> from lumen import bench
>>> timing = bench.measure(lambda: sorted(range(1000)), repeats=3)
>>> len(timing.samples)
3
"""

from __future__ import annotations

from lumen.bench.estimate import Estimate, wilson
from lumen.bench.memory import peak_memory
from lumen.bench.names import Name
from lumen.bench.numbers import percent
from lumen.bench.phases import Generation, generation
from lumen.bench.published import NoEvidence, evidence, load_evidence
from lumen.bench.queue import Served, serve_queue
from lumen.bench.says import miss, outcome, says, sentence, sentences
from lumen.bench.steps import decode_step, prefill
from lumen.bench.store import Measured, quantity, quoted
from lumen.bench.stream import token_times
from lumen.bench.trust import Refused, refuse_if_scattered
from lumen.timing import Timing, compare, measure, quiet, synchronize, threads

__all__ = [
    "Estimate",
    "Generation",
    "Measured",
    "Name",
    "NoEvidence",
    "Refused",
    "Served",
    "Timing",
    "compare",
    "decode_step",
    "evidence",
    "generation",
    "load_evidence",
    "measure",
    "miss",
    "outcome",
    "peak_memory",
    "percent",
    "prefill",
    "quantity",
    "quiet",
    "quoted",
    "refuse_if_scattered",
    "says",
    "sentence",
    "sentences",
    "serve_queue",
    "synchronize",
    "threads",
    "token_times",
    "wilson",
]
