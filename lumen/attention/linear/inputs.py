"""What linear attention takes, checked and brought to one form for the loop and for the chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """q, k (B, H, T, D), v (B, H, T, Dv), state (B, H, D, Dv) in fp32 at least.

    `log_decay` (B, H, T, 1 or D) and `beta` (B, H, T, 1), None for a rule without; `real` (B, T) says which tokens are
    no padding, None if all are.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    state: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    real: Tensor | None


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    state: Tensor | None,
    pos: Tensor | None,
) -> Inputs:
    """The inputs in fp32 or better, an empty state where none is given. ValueError for shapes that do not belong
    together."""
    if k.dim() != 4 or k.shape[2] < 1 or q.shape != k.shape or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f"Linear attention takes q and k (B, H, T, D) and v (B, H, T, Dv) with T at least 1, got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; repeat keys that several heads share."
        )
    batch, heads, length, dim = k.shape
    for name, given, allowed in (
        ("log_decay", log_decay, ((batch, heads, length), (batch, heads, length, dim))),
        ("beta", beta, ((batch, heads, length),)),
        ("state", state, ((batch, heads, dim, v.shape[3]),)),
        ("pos", pos, ((batch, length),)),
    ):
        if given is not None and tuple(given.shape) not in allowed:
            shapes = " or ".join(map(str, allowed))
            raise ValueError(f"{name} must be {shapes} beside k {tuple(k.shape)}, got {tuple(given.shape)}.")
    kind = torch.promote_types(v.dtype, torch.float32)
    if log_decay is not None:
        log_decay = log_decay.to(kind)
        log_decay = log_decay[..., None] if log_decay.dim() == 3 else log_decay
    held = v.new_zeros(batch, heads, dim, v.shape[3], dtype=kind) if state is None else state.to(kind)
    return Inputs(
        q.to(kind), k.to(kind), v.to(kind), held, log_decay,
        None if beta is None else beta.to(kind)[..., None],
        None if pos is None else pos >= 0,
    )  # fmt: skip


def finished(y: Tensor, real: Tensor | None, dtype: torch.dtype) -> Tensor:
    """y (B, H, T, Dv) as it is handed out: zeros where padding asks."""
    return (y if real is None else y.masked_fill(~real[:, None, :, None], 0.0)).to(dtype)
