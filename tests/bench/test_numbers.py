"""Shares of a whole add up to the whole, however they round."""

from __future__ import annotations

import random

import pytest

from lumen.bench.numbers import percent, shares


def test_shares_add_up_where_rounding_each_would_not():
    assert shares([91.4, 1.5, 7.1]) == ["91 %", "2 %", "7 %"]
    rounded = [percent(x / 100) for x in (90.6, 1.8, 7.6)]
    assert rounded == ["91 %", "2 %", "8 %"], "101 in all"
    assert shares([90.6, 1.8, 7.6]) == ["90 %", "2 %", "8 %"]


def test_no_share_is_a_whole_percent_off():
    draw = random.Random(0)
    for _ in range(500):
        parts = [draw.random() ** 3 for _ in range(draw.randint(1, 9))]
        found = [int(text.split()[0]) for text in shares(parts)]
        assert sum(found) == 100
        assert all(abs(a - 100 * b / sum(parts)) < 1 for a, b in zip(found, parts, strict=True))


@pytest.mark.parametrize("parts", [[], [0.0, 0.0], [1.0, -0.5], [float("nan"), 1.0], [float("inf")]])
def test_no_whole_no_shares(parts):
    with pytest.raises(ValueError, match="sum above"):
        shares(parts)
