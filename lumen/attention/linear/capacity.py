"""What a state of fixed size can remember: pairs of random keys and values, written one after the other, asked for.

A state is a matrix of D x Dv numbers, so at most D keys can be told apart without error; random unit keys overlap by
about 1/sqrt(D) each, and what a question brings back is the value that was stored and the overlaps with all others.
Added up, n pairs give a squared error of (n - 1) / D. The delta rule takes the old value of a key out before it writes,
so the latest pair is exact and older ones fade instead. `recall_error` is the expectation in closed form,
`simulated_recall` the share of questions whose answer is still the nearest value of a vocabulary.

Schlag et al. 2021, Linear transformers are secretly fast weight programmers, section 3.1 and appendix C (capacity).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...inputs import real, whole
from .chunked import chunked


def recall_error(pairs: int, age: int, key_dim: int, *, delta: bool = False, decay: float = 1.0) -> float:
    """Expected |k S - v|² for the pair written `age` pairs before the last of `pairs`, |v|² being 1.

    Keys are uniform on the unit sphere of `key_dim` dimensions, values have length 1 and mean 0, all independent; beta
    is 1, and every write decays the state by `decay` first. Exact: the expectations of |k S|², k S · v and |S|² follow
    linear recursions, with E[k kᵀ] = 1/D and the sphere's fourth moments, 1/(D (D + 2)).
    """
    pairs, dim = whole(pairs, "pairs", 1, 2**24), whole(key_dim, "key_dim", 1, 2**24)
    age, decay = whole(age, "age", 0, pairs - 1), real(decay, "decay", 0.0, 1.0)
    if not delta:
        others = sum(decay ** (2 * other) for other in range(pairs) if other != age)
        return (1.0 - decay**age) ** 2 + others / dim
    norm = 0.0  # E |S|²
    for _ in range(pairs - age):
        norm = decay**2 * norm * (1 - 1 / dim) + 1
    along, square = 1.0, 1.0  # E (k S · v), E |k S|²: exact where the pair was written
    for _ in range(age):
        square = decay**2 * (square - 2 * square / dim + (norm + 2 * square) / (dim * (dim + 2))) + 1 / dim
        along = decay * along * (1 - 1 / dim)
        norm = decay**2 * norm * (1 - 1 / dim) + 1
    return square - 2 * along + 1.0


def simulated_recall(
    pairs: int,
    key_dim: int,
    value_dim: int,
    vocabulary: int,
    *,
    delta: bool = False,
    decay: float = 1.0,
    trials: int = 200,
    seed: int = 0,
) -> tuple[int, int]:
    """(right answers, questions): each of `pairs` random pairs is asked for in each of `trials` states.

    Keys and the `vocabulary` values are drawn uniformly from unit spheres; an answer is right if the value that was
    stored is the nearest of all to what the state gives back. It is what a layer reaches that has only the state, and
    keys and values that know nothing of each other. A trained one may choose better keys, or fall short of it.
    """
    pairs, trials = whole(pairs, "pairs", 1, 2**16), whole(trials, "trials", 1, 2**20)
    shape = whole(key_dim, "key_dim", 1, 2**12), whole(value_dim, "value_dim", 1, 2**12)
    vocabulary, decay = whole(vocabulary, "vocabulary", 1, 2**20), real(decay, "decay", 0.0, 1.0, above=0.0)
    stream = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(trials, 1, pairs, shape[0], generator=stream), dim=-1)
    table = F.normalize(torch.randn(trials, vocabulary, shape[1], generator=stream), dim=-1)
    stored = torch.randint(vocabulary, (trials, pairs), generator=stream)
    values = table.take_along_dim(stored[..., None], 1)[:, None]
    ones = torch.ones(trials, 1, pairs)
    _, state = chunked(
        keys, keys, values, log_decay=ones * torch.tensor(decay).log(), beta=ones if delta else None
    )
    given = (keys @ state)[:, 0] @ table.mT  # (trials, pairs, vocabulary)
    return int((given.argmax(-1) == stored).sum()), trials * pairs
