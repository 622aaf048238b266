"""Prompts of different lengths as one rectangle: tokens, and the positions that say which of them are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..inputs import token_ids


def pad(
    prompts: Sequence[Sequence[int]],
    side: Literal["right", "left"] = "right",
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Token lists -> tokens (B, T) and pos (B, T). Padding holds token 0 and position -1; only the position counts.

    Token 0 is an ordinary token elsewhere, so padding is never recognised by its id.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}.")
    rows = [token_ids(prompt, f"Prompt {row}") for row, prompt in enumerate(prompts)]
    if not rows or not all(rows):
        raise ValueError(
            "Every prompt needs one token at least: there is nothing to predict from in an empty one."
        )
    width = max(map(len, rows))
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    pos = torch.full((len(rows), width), -1, dtype=torch.int64)
    for row, ids in enumerate(rows):
        span = slice(0, len(ids)) if side == "right" else slice(width - len(ids), width)
        tokens[row, span] = torch.tensor(ids, dtype=torch.int64)
        pos[row, span] = torch.arange(len(ids))
    return tokens.to(device), pos.to(device)
