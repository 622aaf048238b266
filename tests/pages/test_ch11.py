"""What chapter 11 counts and says: tiles under a mask as the loop has them, waves of work, controls read jointly."""

from __future__ import annotations

import pytest
import torch

from lumen.attention import Traffic, flash_attention
from lumen.bench import Estimate
from lumen.pages import ch11, ch11_mask, ch11_splits


@pytest.mark.parametrize(
    ("tokens", "tile"), [(64, (8, 16)), (64, (16, 8)), (65, (8, 16)), (7, (8, 16)), (50, (7, 3))]
)
def test_tiles_under_a_causal_mask_are_those_that_the_loop_computes(tokens, tile):
    q = torch.randn(1, 1, tokens, 4)
    pos, count = torch.arange(tokens)[None], Traffic()
    flash_attention(q, q, q, pos, pos, block_q=tile[0], block_k=tile[1], traffic=count)
    assert ch11_mask.tiles_left(tokens, *tile) == (count.tiles, count.tiles + count.skipped)


def test_more_work_than_cores_comes_in_waves():
    busy = {row[0]: row[2] for row in ch11_splits.busy_table()[0]}
    assert busy["17"] == "52 %"  # 136 pieces: a second wave for four of them
    assert busy["64"] == busy["16"] != "100 %"  # 512 pieces are four waves of 132, the last not full


def test_a_gain_is_called_lost_only_where_there_was_one():
    worse, better = Estimate(1.2, 1.1, 1.3, 7, "×"), Estimate(0.6, 0.5, 0.7, 7, "×")
    assert "is lost against kept memory" in ch11.loop_over_kept(worse, better)
    assert "lost against kept memory" not in ch11.loop_over_kept(worse, worse)
    assert "lost" not in ch11.loop_over_kept(better, better)


def test_what_is_reckoned_grows_as_its_way_says():
    peaks = dict.fromkeys((ch11.ALL, ch11.at_a_time(64), ch11.tiles_of(256, 512), ch11.ONE), 1)
    (_, every, *_), (_, few, *_), (_, tiles, *_), _ = ch11.memory_table(peaks, 4096, 64, (256, 512))[0]
    assert (every, few, tiles) == ("1.13 GiB", "27 MiB", "18 MiB")
