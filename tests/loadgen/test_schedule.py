"""Schedules, lengths and prompts: the right distributions, the same for the same seed.

Odds of a false alarm are zero, since seeds are fixed; the tolerances are those that a fresh seed would break less
than once in 10,000 runs (four standard errors), so a wrong distribution does not pass by luck.
"""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest

from lumen.loadgen import arrivals, lengths
from lumen.loadgen.prompts import cut, from_text, read_trace

N = 20_000


def gaps(burstiness, rate=5.0, seed=1):
    return np.diff([0.0, *arrivals(N, rate, burstiness, seed)])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_with_the_wanted_mean_and_shape(burstiness):
    got = gaps(burstiness)
    assert got.mean() == pytest.approx(1 / 5.0)  # exact: the schedule is stretched to count/rate
    # coefficient of variation 1/sqrt(shape); standard error of a CV estimate below cv·sqrt((1 + 2cv²)/2N)·~1.5
    cv = 1 / math.sqrt(burstiness)
    error = 1.5 * cv * math.sqrt((1 + 2 * cv**2) / (2 * N))
    assert got.std() / got.mean() == pytest.approx(cv, abs=4 * error)


def test_a_poisson_process_has_exponential_gaps_and_poisson_counts():
    got = gaps(1.0)
    for t in (0.05, 0.2, 0.6):
        p = math.exp(-5 * t)
        assert (got > t).mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / N))
    counts = np.bincount(np.cumsum(got).astype(int))[:-1]  # arrivals in each second
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * math.sqrt(2 / len(counts)))
    bursts = np.bincount(np.cumsum(gaps(0.25)).astype(int))[:-1]
    assert bursts.var() / bursts.mean() > 2.5  # negative control: bursts are not Poisson (4 in the long run)


def test_ends_of_the_scale():
    assert arrivals(3, math.inf) == [0.0, 0.0, 0.0]
    assert arrivals(4, 2.0, math.inf) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert arrivals(1, 2.0) == pytest.approx([0.5])
    times = arrivals(500, 3.0, 0.01, 0)
    assert times == sorted(times) and times[0] >= 0


def test_a_schedule_depends_on_its_seed_alone():
    assert arrivals(50, 3.0, seed=7) == arrivals(50, 3.0, seed=7) != arrivals(50, 3.0, seed=8)


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_lengths_are_lognormal_around_their_mean(sigma):
    got = np.array(lengths(N, 400, sigma, seed=3))
    mean_error = 400 * math.sqrt(math.exp(sigma**2) - 1) / math.sqrt(N)
    assert got.mean() == pytest.approx(400, abs=4 * mean_error)
    assert np.log(got).std() == pytest.approx(sigma, abs=4 * sigma / math.sqrt(2 * N) + 0.005)  # rounding
    median = 400 * math.exp(-(sigma**2) / 2)
    assert np.median(got) == pytest.approx(median, abs=1 + 4 * median * sigma * 1.2533 / math.sqrt(N))


def test_lengths_have_limits():
    assert lengths(3, 64) == [64, 64, 64]
    assert min(lengths(1000, 2, 2.0)) == 1
    assert max(lengths(1000, 100, 1.0, longest=150)) == 150
    inf, nan = math.inf, math.nan
    for bad in (
        (0, 5, 0.0),
        (1, 0, 0.0),
        (1, 5, -1.0),
        (1, inf, 0.0),
        (1, nan, 0.0),
        (1, 5, nan),
        (1, 5, inf),
        (1, 1e300, 1),
    ):
        with pytest.raises(ValueError, match="Lengths need"):
            lengths(*bad)


BOOK = " ".join(f"word{i}" for i in range(3000))


def test_prompts_have_their_length_and_share_no_beginning():
    made = from_text(BOOK, [5, 50, 500], [1, 2, 3], str.split, " ".join, seed=4)
    assert [p.prompt_len for p in made] == [len(p.text.split()) for p in made] == [5, 50, 500]
    assert [p.output_len for p in made] == [1, 2, 3]
    assert made == from_text(BOOK, [5, 50, 500], [1, 2, 3], str.split, " ".join, seed=4)
    assert made != from_text(BOOK, [5, 50, 500], [1, 2, 3], str.split, " ".join, seed=5)
    many = from_text(BOOK, [20] * 100, [1] * 100, str.split, " ".join)
    assert len({p.text.split()[0] for p in many}) > 80


def test_a_common_prefix_comes_on_top():
    made = from_text(BOOK, [10, 20], [1, 1], str.split, " ".join, prefix_len=30)
    assert [p.prompt_len for p in made] == [40, 50]
    assert made[0].text.split()[:30] == made[1].text.split()[:30]


def test_the_real_tokenizer_gives_the_length_that_was_asked(tokenizer):
    from lumen import assets

    text = assets.shakespeare()[0]
    dice = random.Random(0)
    for n in (1, 2, 17, 256, 1000):
        piece = cut(text, n, tokenizer.encode, tokenizer.decode, dice)
        assert len(tokenizer.encode(piece)) == n


def test_a_text_too_short_is_read_again():
    (made,) = from_text("one two three", [8], [1], str.split, " ".join)
    assert made.prompt_len == 8
    with pytest.raises(ValueError, match="empty"):
        from_text("  \n", [8], [1], str.split, " ".join)
    with pytest.raises(ValueError, match="prefix"):
        from_text("a", [8], [1], str.split, " ".join, prefix_len=-1)


def test_a_trace_is_sorted_and_counted_from_its_first(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"arrival": 5, "input_len": 9, "output_len": 2}\n{"timestamp": 3000, "input_length": 4, "output_length": 1}\n'
    )
    times, rows = read_trace(file, speed=4)
    assert times == [0.0, 0.5] and [r["input_len"] for r in rows] == [4, 9]


@pytest.mark.parametrize("line", ["{}", "[1]", "3", "{", '{"arrival": 0, "input_len": 1}',
                                  '{"arrival": -1, "input_len": 1, "output_len": 1}',
                                  '{"arrival": 0, "input_len": 0, "output_len": 1}',
                                  '{"arrival": Infinity, "input_len": 1, "output_len": 1}',
                                  '{"arrival": NaN, "input_len": 1, "output_len": 1}',
                                  '{"arrival": 1e400, "input_len": 1, "output_len": 1}',
                                  '{"arrival": 1%s, "input_len": 1, "output_len": 1}' % ("0" * 400),
                                  '{"arrival": [], "input_len": 1, "output_len": 1}',
                                  '{"arrival": 0, "input_len": 1e400, "output_len": 1}',
                                  '{"arrival": 0, "input_len": 1, "output_len": 1e400}',
                                  '{"arrival": 0, "input_len": 1, "output_len": NaN}',
                                  '{"arrival": 0, "input_len": 1, "output_len": 2.5}',
                                  '{"arrival": 0, "input_len": 1, "output_len": true}',
                                  '{"arrival": 0, "input_len": 1, "output_len": "9"}',
                                  '{"arrival": 0, "input_len": 1, "output_len": 1e12}',
                                  '{"arrival": 0, "input_len": 1e12, "output_len": 1}',
                                  '{"arrival": 0, "output_len": 1, "prompt": ["a"]}',
                                  '{"arrival": 0, "output_len": 1, "prompt": "\\ud83d"}',
                                  "[" * 100_000])  # fmt: skip
def test_a_bad_line_of_a_trace_is_named(tmp_path, line):
    file = tmp_path / "t.jsonl"
    file.write_text('{"arrival": 0, "input_len": 1, "output_len": 1}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"Line 2 of t\.jsonl"):
        read_trace(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="holds no requests"):
        read_trace(file)


def test_a_trace_may_hold_any_character_and_times_since_1970(tmp_path):
    """U+2028 ends no line of JSONL, and what counts is the time since the first request."""
    file = tmp_path / "t.jsonl"
    lines = [{"arrival": 1.8e9 + i, "output_len": 1.0, "prompt": "a\u2028b\x85c"} for i in range(2)]
    file.write_text("\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines), "utf-8")
    times, rows = read_trace(file)
    assert times == [0.0, 1.0] and [row["prompt"] for row in rows] == ["a\u2028b\x85c"] * 2


def test_a_trace_that_no_run_can_wait_for_and_files_that_are_no_text(tmp_path):
    file = tmp_path / "t.jsonl"
    line = '{"arrival": %s, "input_len": 1, "output_len": 1}\n'
    file.write_text(line % 0 + line % 1e9)
    with pytest.raises(ValueError, match="Request 2 would be sent at 1e"):
        read_trace(file)
    assert read_trace(file, speed=1e6)[0] == [0.0, 1e3]
    for speed in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="speed of a replay"):
            read_trace(file, speed=speed)
    file.write_bytes(b"\xff")
    for place, why in (
        (file, "it is not UTF-8"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(ValueError, match=f"Cannot read .*{why}"):
            read_trace(place)
