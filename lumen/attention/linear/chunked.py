"""Linear attention by chunks: matrix products inside a chunk of C tokens, the state from chunk to chunk.

With S the state in front of the chunk and b the decay summed up since then (in logarithms, up to and with a token):

    y_i  = (q_i e^b_i) S  +  Σ_j≤i (q_i · k_j e^(b_i - b_j)) u_j          what is older, and what is in the chunk
    S'   = e^b_C S        +  Σ_j   (k_j e^(b_C - b_j))ᵀ u_j
    u_i  = v_i, or with the delta rule  beta_i (v_i  -  (k_i e^b_i) S  -  Σ_j<i (k_i · k_j e^(b_i - b_j)) u_j)

The last line is a triangular system, (I + A) U = beta (V - K̄ S), with A known before S is. It is solved for the two
right-hand sides beta V and beta K̄ in all chunks at once, and U = (solution 1) - (solution 2) S: the WY form of a
product of Householder-like factors (Bischof and Van Loan 1987). Yang et al. 2024, Parallelizing linear transformers
with the delta rule, section 3.2; with decay Yang et al. 2025, Gated DeltaNet, section 3.3.

Every b_i - b_j is summed up over the tokens between, 0 or below: nothing overflows however strong the decay, and none
of it cancels, as differences of two long sums do (Dao and Gu 2024, Mamba-2, listing 1: segsum). With one decay a head
it is a C x C matrix beside the scores. With one a channel the scores need C · C · D numbers, taken chunk by chunk: keep
C small there (gated linear attention, section 4.3, cuts chunks a second time for this).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs import Inputs, checked, finished


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    state: Tensor | None = None,
    pos: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """What `recurrent` computes, up to the order of additions. Takes and gives the same, by chunks of `chunk` tokens.

    A row that is all padding keeps its state to the last bit. ValueError for shapes that do not belong together.
    """
    if chunk < 1:
        raise ValueError(f"A chunk holds one token at least, got {chunk}.")
    it = checked(q, k, v, log_decay, beta, state, pos)
    size = min(chunk, k.shape[2])
    queries, keys, values, beta, decay = _in_chunks(it, size)
    scores = _scores(queries, keys, decay)  # (B, H, N, C, C)
    since: Tensor | float = 1.0
    kept, left = None, keys
    if decay is not None:
        since = decay.cumsum(3).exp()
        kept, left = since[..., -1:, :].mT, keys * _behind(decay).exp()
    writes, reads = values, None
    if beta is not None:
        system = _scores(beta * keys, keys, decay)  # its diagonal is not read
        sides = torch.cat([beta * values, beta * since * keys], -1)
        solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        writes, reads = solved.split([values.shape[-1], keys.shape[-1]], -1)
    queries = queries * since
    state, rows = it.state, []
    for n in range(keys.shape[2]):
        write = writes[:, :, n] if reads is None else writes[:, :, n] - reads[:, :, n] @ state
        rows.append(queries[:, :, n] @ state + scores[:, :, n] @ write)
        older = state if kept is None else kept[:, :, n] * state
        state = older + left[:, :, n].mT @ write
    y = torch.cat(rows, 2)[:, :, : k.shape[2]]
    return finished(y, it.real, v.dtype), state


def _in_chunks(it: Inputs, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, k, v, beta and log_decay, each (B, H, N, C, ...). What stands for no token, padding and what fills the last
    chunk, has neither key nor value and decays nothing."""
    short = -it.k.shape[2] % size

    def cut(x: Tensor) -> Tensor:
        if it.real is not None:
            x = x.masked_fill(~it.real[:, None, :, None], 0.0)
        return F.pad(x, (0, 0, 0, short)).unflatten(2, (-1, size))

    beta = None if it.beta is None else cut(it.beta)
    decay = None if it.log_decay is None else cut(it.log_decay)
    return cut(it.q), cut(it.k), cut(it.v), beta, decay


def _behind(decay: Tensor) -> Tensor:
    """Summed up over the tokens behind each one, to the end of its chunk: (B, H, N, C, W)."""
    return F.pad(decay[..., 1:, :], (0, 0, 0, 1)).flip(3).cumsum(3).flip(3)


def _between(decay: Tensor) -> Tensor:
    """Summed up over the tokens behind j and up to i, -inf where j stands behind i: (..., C, W) -> (..., C, C, W)."""
    place = torch.arange(decay.shape[-2], device=decay.device)
    early = (place[:, None] <= place)[..., None]  # (C, C, 1): a token, j
    late = (place[:, None] < place)[..., None]  # i, j
    each = decay[..., None, :].expand(*decay.shape[:-1], len(place), -1)
    return each.masked_fill(early, 0.0).cumsum(-3).masked_fill(late, float("-inf"))


def _scores(x: Tensor, k: Tensor, decay: Tensor | None) -> Tensor:
    """x_i · k_j, decayed on the way from j to i, zero for j behind i. (B, H, N, C, D) twice -> (B, H, N, C, C)."""
    if decay is None:
        return (x @ k.mT).tril()
    if decay.shape[-1] == 1:
        return (x @ k.mT) * _between(decay)[..., 0].exp()
    found = []
    for n in range(k.shape[2]):
        share = _between(decay[:, :, n]).exp()  # (B, H, C, C, D)
        found.append(torch.einsum("bhid,bhjd,bhijd->bhij", x[:, :, n], k[:, :, n], share))
    return torch.stack(found, 2)
