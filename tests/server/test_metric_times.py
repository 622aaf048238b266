"""Every time that /metrics tells, on a clock that is given: a shift or a swap of two of them is another number.

A forward takes a quarter of a second and a sixteenth passes between steps; such fractions add up exactly.
"""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lumen.serve.engine import Engine
from lumen.serve.request import Request, Times
from lumen.serve.scheduler import Limits
from lumen.server.metrics import Metrics
from lumen.server.worker import EngineState

from ..drafters import Scripted
from ..tiny import tiny_llama

FORWARD, BETWEEN = 0.25, 0.0625  # seconds


class Timed:
    """A model and the clock on which its forwards take time."""

    def __init__(self, model):
        self.model, self.config, self.now = model, model.config, 100.0

    def parameters(self):
        return self.model.parameters()

    def hidden(self, *given):
        self.now += FORWARD
        return self.model.hidden(*given)

    def head(self, hidden):
        return self.model.head(hidden)


def told(model, requests, steps=999, **options):
    """Serve requests that all arrive now; returns the series at /metrics and each answer's `Times`."""
    engine = Engine(model, num_blocks=40, block_size=4, clock=lambda: model.now, **options)
    metrics = Metrics("tiny", lambda: EngineState(0, 0, 0.0, engine.counters))
    named, times = {}, {}
    for name, prompt, count in requests:
        named[name] = request = Request(name, prompt, count, arrival=model.now)
        engine.add(request)
        metrics.arrived(request)
    model.now += 0.5  # before the first step
    while engine.has_work and steps:
        steps -= 1
        for delta in engine.step():
            metrics.saw(named[delta.request_id], delta)
            times[delta.request_id] = delta.times
        model.now += BETWEEN
    for name in list(engine._live):
        delta = engine.abort(name)
        metrics.saw(named[name], delta)
        times[name] = delta.times
    series = {
        (
            sample.name.removeprefix("lumen:"),
            sample.labels.get("le") or sample.labels.get("finished_reason"),
        ): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    return series, times


def seen(series, name):
    """Sum and count of a histogram of seconds."""
    return series[f"{name}_seconds_sum", None], series[f"{name}_seconds_count", None]


def test_the_times_of_one_request():
    """A prompt of six tokens in two chunks, then five tokens: every quantity is another number but those that must
    be the same."""
    series, times = told(Timed(tiny_llama()), [("a", [5, 9, 2, 7, 1, 3], 5)], limits=Limits(1, 4))
    #  arrival 100 · waits 0.5 · chunk 0.25, pause, chunk 0.25 -> first token · 4 times pause and forward
    step = BETWEEN + FORWARD
    scheduled, first, last = 100.5, 100.5 + FORWARD + step, 100.5 + FORWARD + 5 * step
    assert times["a"] == Times(100.0, scheduled, first, last)
    assert seen(series, "request_queue_time") == (0.5, 1)
    assert seen(series, "time_to_first_token") == (1.0625, 1)
    assert seen(series, "request_prefill_time") == (0.5625, 1)
    assert seen(series, "request_decode_time") == (1.25, 1)
    assert seen(series, "request_inference_time") == (1.8125, 1)
    assert seen(series, "e2e_request_latency") == (2.3125, 1)
    assert seen(series, "inter_token_latency") == (1.25, 4)
    assert seen(series, "request_time_per_output_token") == (0.3125, 1)
    # and in the bucket where it belongs
    assert series["time_to_first_token_seconds_bucket", "1.0"] == 0
    assert series["time_to_first_token_seconds_bucket", "2.5"] == 1
    assert series["inter_token_latency_seconds_bucket", "0.3"] == 0
    assert series["inter_token_latency_seconds_bucket", "0.4"] == 4


def test_who_waits_for_another_has_waited_in_the_queue():
    """One seat, two requests: the second is first run in the step after the first one's last."""
    requests = [("a", [5, 9], 3), ("b", [7], 2)]
    series, times = told(Timed(tiny_llama()), requests, limits=Limits(1, 4))
    step = BETWEEN + FORWARD
    assert times["a"] == Times(100.0, 100.5, 100.75, 100.75 + 2 * step)
    assert times["b"] == Times(100.0, 100.5 + 3 * step, 100.75 + 3 * step, 100.75 + 4 * step)
    assert seen(series, "request_queue_time") == (0.5 + 0.5 + 3 * step, 2)
    assert seen(series, "time_to_first_token") == (0.75 + 0.75 + 3 * step, 2)
    assert seen(series, "e2e_request_latency") == (2 * 0.75 + 6 * step, 2)
    assert seen(series, "request_time_per_output_token") == (2 * step, 2)


def test_tokens_that_come_together_share_the_gap():
    """Drafts of three: passes of one, four and two tokens."""
    model, request = tiny_llama(), ("a", [5, 9, 2], 7)
    engine = Engine(model, num_blocks=40)
    engine.add(Request(*request))
    answer = [t for delta in engine.stream() for t in delta.tokens]
    series, _ = told(Timed(model), [request], drafter=Scripted({(5, 9, 2): answer}, 3))
    step = BETWEEN + FORWARD
    assert seen(series, "inter_token_latency") == (2 * step, 6)
    assert series["inter_token_latency_seconds_bucket", "0.1"] == 4  # a quarter of a step
    assert series["inter_token_latency_seconds_bucket", "0.2"] == 6  # half of one
    assert seen(series, "request_time_per_output_token") == (pytest.approx(2 * step / 6), 1)


def test_half_a_request_bends_no_distribution():
    series, times = told(Timed(tiny_llama()), [("a", [5, 9], 9)], steps=2, limits=Limits(1, 4))
    assert times["a"] == Times(100.0, 100.5, 100.75, 100.75 + FORWARD + 2 * BETWEEN)
    assert seen(series, "time_to_first_token") == (0.75, 1)
    assert seen(series, "e2e_request_latency") == seen(series, "request_queue_time") == (0.0, 0)
    assert series["request_success_total", "abort"] == 1
