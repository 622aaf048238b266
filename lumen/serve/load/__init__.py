"""The load generator behind `lumen load`: schedules, a streaming client, and the statistics of a benchmark.

from lumen.serve.load import Record, arrivals, summarize     # the sums: numpy only, no server, no torch
lumen load --request-rate 4 --num-prompts 100                # a run against http://127.0.0.1:8000
"""

from __future__ import annotations

from lumen.serve.load.record import Record
from lumen.serve.load.schedule import arrivals, lengths
from lumen.serve.load.statistics import is_good, peak_concurrency, percentile, samples, summarize

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
