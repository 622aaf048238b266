"""The sums against values worked by hand."""

from __future__ import annotations

import math

import pytest

from lumen.loadgen import Record, is_good, peak_concurrency, percentile, samples, summarize
from lumen.loadgen.report import render, result
from lumen.loadgen.statistics import peak_output_rate

# intended, start, arrivals, end, prompt, output
A = Record(0.0, 0.0, (1.0, 1.5, 2.5), 2.5, 10, 3)  # ttft 1000, gaps 500 1000, tpot 750, e2el 2500
B = Record(0.0, 1.0, (1.5,), 1.5, 20, 1)  # queued a second; one token: no tpot
C = Record(2.0, 2.0, (2.2, 2.6), 2.6, 30, 5)  # five tokens in two events: tpot 100, one gap of 400
F = Record(2.0, 2.0, (2.1,), 2.9, 40, 7, error="hang-up")
ALL = [A, B, C, F]


def test_every_number_of_a_small_run():
    got = summarize(ALL, duration=4.0, goodput={"ttft": 600, "tpot": 100}, percentiles=(50, 99))
    assert (got["completed"], got["failed"]) == (3, 1)
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (60, 9)
    assert (got["request_throughput"], got["output_throughput"], got["total_token_throughput"]) == (
        0.75,
        2.25,
        17.25,
    )
    assert got["mean_ttft_ms"] == pytest.approx((1000 + 500 + 200) / 3)
    assert got["median_ttft_ms"] == got["p50_ttft_ms"] == pytest.approx(500)
    assert got["p99_ttft_ms"] == pytest.approx(500 + 0.98 * 500)
    assert got["std_ttft_ms"] == pytest.approx(
        math.sqrt(((1700 / 3) ** 2 * 3 - 2 * 1700**2 / 3 + 1290000) / 3)
    )
    assert got["mean_tpot_ms"] == pytest.approx((750 + 100) / 2)  # B is left out, not counted as 0
    assert got["mean_itl_ms"] == pytest.approx((500 + 1000 + 400) / 3)  # pooled, not a mean of means
    assert got["mean_e2el_ms"] == pytest.approx((2500 + 500 + 600) / 3)
    assert got["mean_client_queue_time_ms"] == pytest.approx(1000 / 3)
    assert got["mean_ttft_including_client_queue_ms"] == pytest.approx((1000 + 1500 + 200) / 3)
    assert got["mean_e2el_including_client_queue_ms"] == pytest.approx((2500 + 1500 + 600) / 3)
    assert got["request_goodput"] == pytest.approx(2 / 4)  # B and C
    assert got["request_goodput_including_client_queue"] == pytest.approx(1 / 4)  # B waited in the client


def test_goodput_needs_every_limit_and_allows_equality():
    assert is_good(A, {"ttft": 1000, "tpot": 750, "e2el": 2500})
    for name, limit in (("ttft", 999), ("tpot", 749), ("e2el", 2499)):
        assert not is_good(A, {"ttft": 1000, "tpot": 750, "e2el": 2500, name: limit})
    assert is_good(B, {"tpot": 0}) and not is_good(F, {"ttft": 1e9}) and is_good(A, {})


def test_peak_concurrency_counts_half_open_intervals():
    assert peak_concurrency(ALL) == 2  # A with B, then A with C
    back_to_back = [Record.of_tokens([float(i + 1)], start=float(i)) for i in range(5)]
    assert peak_concurrency(back_to_back) == 1
    assert peak_concurrency([]) == 0


def test_peak_rate_counts_tokens_not_events():
    assert peak_output_rate([C]) == 5  # both events in the first second after its start
    assert peak_output_rate([A]) == 2  # tokens at 1.0 and 1.5
    assert peak_output_rate([]) == 0


def test_nothing_to_average_is_none_and_not_zero():
    got = summarize([F], duration=1.0, goodput={"ttft": 1})
    assert got["mean_ttft_ms"] is None and got["request_goodput"] == 0 and got["request_throughput"] == 0
    assert summarize([B], duration=1.0)["p99_tpot_ms"] is None
    assert summarize([])["completed"] == 0


def test_duration_is_from_the_first_send_to_the_last_token():
    assert summarize([A, C])["duration"] == pytest.approx(2.6)
    assert summarize([C], goodput={"ttft": 500})["request_goodput"] == pytest.approx(1 / 0.6)


@pytest.mark.parametrize("p, want", [(0, 1), (50, 2.5), (75, 3.25), (99, 3.97), (100, 4)])
def test_percentiles_lie_straight_between_neighbours(p, want):
    assert percentile([4, 1, 3, 2], p) == pytest.approx(want)


def test_bad_questions_get_a_sentence():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1], 101)
    with pytest.raises(ValueError, match="no metric"):
        samples([A], "fps")
    with pytest.raises(ValueError, match="ttft, tpot or e2el"):
        is_good(A, {"itl": 3})
    with pytest.raises(ValueError, match="one token"):
        Record.of_tokens([])


def test_records_of_a_generation():
    got = Record.of_tokens([0.5, 0.6, 0.8], start=0.1, intended=0.0, prompt_len=7)
    assert (got.ttft, got.latency, got.queue) == pytest.approx((0.4, 0.7, 0.1))
    assert got.tpot == pytest.approx(0.15) and got.itl == pytest.approx((0.1, 0.2))


def test_the_report_rounds_and_aligns_as_vllm_does():
    text = render(summarize(ALL, duration=4.0, goodput={"ttft": 600}), request_rate=2.0, max_concurrency=8)
    lines = text.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============" and len(lines[0]) == 50
    assert "Maximum request concurrency:             8" in lines
    assert "Request rate configured (RPS):           2.00" in lines
    assert "Total generated tokens:                  9" in lines
    assert "Request goodput (req/s):                 0.50" in lines
    assert "Peak concurrent requests:                2.00" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "Mean TTFT (ms):                          566.67" in lines
    assert not any("Std" in line for line in lines)  # written, not printed


def test_the_file_can_be_read_by_any_json_parser():
    import json

    kept = result(summarize(ALL), ALL, date="20260101-000000", api="chat", model="m", tokenizer=None,
                  request_rate=math.inf, burstiness=math.inf, max_concurrency=None, detailed=True)  # fmt: skip
    again = json.loads(json.dumps(kept, allow_nan=False))
    assert again["request_rate"] == again["burstiness"] == "inf" and again["backend"] == "openai-chat"
    assert again["output_lens"] == [3, 1, 5, 0] and again["errors"][-1] == "hang-up"
