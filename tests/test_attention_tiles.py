"""Attention in tiles of queries equals attention at once; whoever looks at the weights sees all of them, in order."""

from __future__ import annotations

import pytest
import torch

from lumen.attention import attend_in_tiles, attend_with, attention, mask_for, weigh_with
from lumen.parts import Window

from .tiny import relative_error


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("most", [1, 9 * 2 * 13 * 3, 10**9])
def test_tiles_equal_one_piece(per_head, window, most):
    """Tiles of 1, 3 and all of 11 queries; rows that are padded left and right; 9 query heads over 3."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, h, n, d, generator=g, dtype=torch.float64)
        for h, n, d in ((9, 11, 8), (3, 13, 8), (3, 13, 5))
    )
    q_pos = torch.stack([torch.arange(2, 13), torch.tensor([-1, -1, *range(9)])])
    k_pos = torch.stack([torch.arange(13), torch.tensor([*range(9), -1, -1, -1, -1])])
    if per_head:
        k_pos = torch.stack([k_pos, k_pos.flip(1), k_pos.roll(4, 1)], 1)
    expected = attention(q, k, v, q_pos, k_pos, window)
    seen, places = [], []

    def weigh(weights, pos):
        seen.append(weights)
        places.append(pos)

    for told in (None, weigh):
        out = attend_in_tiles(q, k, v, q_pos, k_pos, window, weigh=told, most=most)
        assert relative_error(out, expected) < 1e-12
    sinks = Window(3, 1)
    some = attend_in_tiles(q, k, v, q_pos, k_pos, window, kept=sinks, most=most)
    assert (
        relative_error(some, attend_with(q, k, v, mask_for(q_pos, k_pos, window, q.dtype, kept=sinks)))
        < 1e-12
    )
    _, weights = weigh_with(q, k, v, mask_for(q_pos, k_pos, window, q.dtype))
    assert torch.allclose(torch.cat(seen, 2), weights) and torch.equal(torch.cat(places, 1), q_pos)
    assert len(seen) == {1: 11, 10**9: 1}.get(most, 4)
    assert all(part.numel() <= most for part in seen) or most == 1
