"""The load generator behind `lumen load`: schedules, a streaming client, and the statistics of a benchmark.

It is not called `lumen.load`: that is the function that loads a model, and a subpackage of the same name would replace
it in the namespace of `lumen` as soon as somebody imported it.

from lumen.loadgen import Record, arrivals, summarize     # the sums: numpy only, no server, no torch
lumen load --request-rate 4 --num-prompts 100                # a run against http://127.0.0.1:8000
"""

from __future__ import annotations

from lumen.loadgen.record import Record
from lumen.loadgen.schedule import arrivals, lengths
from lumen.loadgen.statistics import is_good, peak_concurrency, percentile, samples, summarize

__all__ = [
    "Record",
    "arrivals",
    "is_good",
    "lengths",
    "peak_concurrency",
    "percentile",
    "samples",
    "summarize",
]
