"""Linear attention token by token: one state a head, which every token decays, writes to and reads.

    S <- diag(a) S                           a = exp(log_decay): one number a head, or one for each key channel
    S <- S + kᵀ u     u = v                  without beta: what is written is added
                      u = beta (v - k S)     with beta, the delta rule: k's old value goes out as the new one comes in
    y  = q S

    linear        neither      Katharopoulos et al. 2020, equations 16 to 20
    gated         log_decay    Sun et al. 2023, RetNet, equation 6; Yang et al. 2024, gated linear attention, section 3
    delta         beta         Schlag et al. 2021, equation 15; Yang et al. 2024, DeltaNet, section 2.2
    gated delta   both         Yang et al. 2025, Gated DeltaNet, equation 10; with a decay a channel, Kimi Linear

The state does not grow with the text, so a token costs the same behind ten others and behind a million: 2 H D Dv
multiply-adds, 3 H D Dv with the delta rule. `chunked` gives the same for many tokens at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .inputs import checked, finished


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
    pos: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y (B, H, T, Dv) in v's dtype and the state behind the last token (B, H, D, Dv) in fp32 at least.

    q, k (B, H, T, D); v (B, H, T, Dv); log_decay (B, H, T) or (B, H, T, D), 0 or below; beta (B, H, T); `state` is what
    the tokens before left, None at the beginning. Nothing is scaled or normalised here. pos (B, T): a token at -1 is
    padding, wherever it stands: it leaves the state as it is, to the last bit, and its y is zero. The others count
    from left to right. ValueError for shapes that do not belong together.
    """
    it = checked(q, k, v, log_decay, beta, state, pos)
    state, rows = it.state, []
    decay = None if it.log_decay is None else it.log_decay.exp()
    for t in range(k.shape[2]):
        key = it.k[:, :, t, None]  # (B, H, 1, D)
        after = state if decay is None else decay[:, :, t, :, None] * state
        write = it.v[:, :, t, None]
        if it.beta is not None:
            write = it.beta[:, :, t, None] * (write - key @ after)
        after = after + key.mT * write
        state = after if it.real is None else torch.where(it.real[:, t, None, None, None], after, state)
        rows.append(it.q[:, :, t, None] @ state)
    return finished(torch.cat(rows, 2), it.real, v.dtype), state
