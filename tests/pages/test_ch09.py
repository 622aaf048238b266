"""Chapter 09 says one number for one quantity, and of a slow link what its own model says."""

from __future__ import annotations

from statistics import median

import pytest

from lumen.bench.interference import Meeting
from lumen.pages import ch09, ch09_cards


def meeting(gap: float, alone: list[float]) -> Meeting:
    times = [[-0.1, gap - 0.1, gap]] * 8
    return Meeting(2048, times, gap - 0.1, [(0.0, gap - 0.1, ((39, 1),) * 8 + ((0, 1000),))], [], alone)


@pytest.mark.parametrize("order", [(1.0, 4.0, 2.0), (2.0, 1.0, 4.0), (4.0, 2.0, 1.0)])
def test_the_drawn_round_is_the_one_that_the_tables_speak_of(order):
    runs = [meeting(gap, [gap / 10, gap / 20]) for gap in order]
    assert ch09.longest(ch09.middle(runs)) == pytest.approx(median(map(ch09.longest, runs)))
    title = ch09.freeze_figure(runs).layout.title.text
    assert f"{ch09.ms(ch09.longest(ch09.middle(runs)))} ms" in title
    assert title.endswith(ch09.ms(ch09.alone(runs).value))
    assert f"longest gap is {ch09.ms(ch09.longest(ch09.middle(runs)))} ms" in ch09.traps_text({2048: runs})


def test_a_slow_link_takes_from_apart_and_does_not_forbid_it():
    """What the chapter says of a link below the rate of a prefill, by its own model."""
    read, _, whole, left = ch09_cards.journey(
        ch09_cards.CARD, ch09_cards.READ, ch09_cards.LINKS["network 10 Gbit/s"].bandwidth
    )
    assert whole > read and read + left < ch09_cards.TTFTS[0]
    rate = max(n / t / ch09_cards.WRITE for n, t in enumerate(ch09_cards.written(), 1) if t <= 0.0082)
    slow = max(min(k / whole, (ch09_cards.NUM_CHIPS - k) * rate) for k in range(1, ch09_cards.NUM_CHIPS))
    assert ch09_cards.together(0.0082, ch09_cards.TTFTS[0]) < slow < ch09_cards.apart(0.0082)[0]
