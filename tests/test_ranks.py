"""Loss against rank: nothing at full rank, and paired with the model that was converted."""

from __future__ import annotations

import pytest
import torch

from lumen.train.ranks import loss_against_rank, spread, table

from .tiny import tiny_gpt


def test_full_rank_adds_nothing_and_a_lower_one_adds_what_the_table_says():
    model, stream = tiny_gpt(torch.float64), torch.Generator().manual_seed(0)
    text = torch.randint(61, (700,), generator=stream)
    before, found = loss_against_rank(model, text, text.flip(0), (2, 48), 20, 12)
    assert before.n == 12 and [one.stored for one in found] == [2, 48]
    for one in (found[1].plain, found[1].whitened):
        assert abs(one.value) < 1e-9 and one.n == 12
    assert found[0].whitened.value != found[0].plain.value != 0
    lines = table(before, found)
    assert len(lines) == 4 and f"{found[0].plain.value:+.4f}" in lines[2]


def test_windows_for_the_moments_are_even_and_inside_the_text():
    text = torch.arange(103)
    assert spread(text, 10, 4)[:, 0].tolist() == [0, 31, 62, 93]
    assert spread(text, 10, 99).shape == (10, 10) and int(spread(text, 10, 99).max()) == 102
    with pytest.raises(ValueError, match="no window of 200"):
        spread(text, 200, 4)
