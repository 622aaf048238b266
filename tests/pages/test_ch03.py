"""The sums behind chapter 03's figures and sentences, against queues worked out one by one."""

from __future__ import annotations

import pytest

from lumen.loadgen import Record
from lumen.loadgen.queue import one_server
from lumen.pages import ch03


def rig(freeze: float, load: float = 0.5, requests: int = 60) -> ch03.Testers:
    """Three rounds of a server that takes 1 s, and once `freeze` more; the batching one answers at once."""
    services = [1.0] * requests
    services[requests // 5] += freeze
    due = [i / load for i in range(requests)]
    queue = [r for r in one_server(due, services)]
    sends = [Record(r.intended, r.intended, r.arrivals, r.end, 0, 1) for r in queue]
    fast = [Record(t, t, (t + 1.0,), t + 1.0, 0, 1) for t in due]
    rounds = {
        "waits": [(queue, services)] * 3,
        "sends": [(sends, services)] * 3,
        "batched": [(fast, services)] * 3,
    }
    return ch03.Testers(rounds, 1.0, freeze, load)


@pytest.mark.parametrize("freeze, load", [(8.0, 0.5), (12.0, 0.6), (5.5, 0.75), (1.0, 0.5)])
def test_the_formula_counts_what_a_queue_counts(freeze, load):
    t = rig(freeze, load)
    (true, *_), (replayed, *_) = t.slow("sends"), [t.replayed(s) for _, s in t.rounds["sends"]]
    assert true == replayed == t.forecast()
    assert (
        t.slow("waits", intended=True) == t.slow("sends")
        and t.slow("waits", intended=False) == [int(freeze > 1)] * 3
    )
    assert t.inside(t.rounds["sends"][0][1]) == (1.0, freeze)


def test_a_backlog_that_outlives_the_run_is_all_that_is_left():
    assert rig(500.0).forecast() == 48.0


def test_the_text_says_how_the_testers_differ():
    text = ch03.testers_text(rig(8.0))
    assert "undercounts 8.00-fold" in text or "undercounts 7.00-fold" in text
    assert "agrees with the tester who really sends" in text and "times the slow requests there were" in text


def test_service_times_are_blamed_only_where_a_replay_bears_it_out():
    t = rig(8.0)
    late = [Record(r.intended, r.start, (r.end + 3.0,), r.end + 3.0, 0, 1) for r in t.rounds["sends"][0][0]]
    slow = ch03.Testers({**t.rounds, "sends": [(late, t.rounds["sends"][0][1])] * 3}, 1.0, 8.0, 0.5)
    text = ch03.testers_text(slow)
    assert "something besides the service times" in text and "enough to explain" not in text


def test_mlperfs_promises_are_those_of_the_rules():
    """Two rows and the count, typed again from inference_rules.adoc of July 2026."""
    assert ch03.MLPERF["Llama-3.1-8B"] == ((2000, 100), (500, 30))
    assert ch03.MLPERF["DeepSeek-R1"] == ((2000, 80), (1500, 15))
    assert ch03.QUERIES == 33 * 2**13
