"""Multi-query associative recall: pairs of a key and a value, then some keys again, each to be answered by its value.

    k3 v7 k1 v2 k8 v7 | n n n n k8 n n n k3 n n n ...      behind k8 the answer is v7, behind k3 it is v7, behind k1 v2
    the pairs         | questions at even places, noise elsewhere

A language model of text does this at every repeated name. Attention looks the key up; a state of fixed size must have
kept every pair. Arora et al. 2023, Zoology: measuring and improving recall in efficient language models, section 3.2.
Unlike there, noise has tokens of its own: with a vocabulary as small as this one a random token is often a key, and
what stands behind it would be another value for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..inputs import whole

NONE = -100  # where nothing is asked; cross-entropy passes it over


@dataclass(frozen=True)
class Recall:
    """How many different keys, values and noise tokens there are: ids in this order from 0."""

    keys: int = 64
    values: int = 64
    noise: int = 32

    def __post_init__(self) -> None:
        for name in ("keys", "values", "noise"):
            whole(getattr(self, name), name, 1, 2**20)

    @property
    def vocab_size(self) -> int:
        return self.keys + self.values + self.noise

    def batch(self, rows: int, pairs: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
        """tokens and answers, each (rows, length) int64; an answer stands at its question, `NONE` elsewhere.

        Each of `pairs` different keys gets a value and is asked for once. The same seed gives the same batch.
        ValueError for more pairs than there are keys, and for a length below 4 · pairs: nobody could be asked.
        """
        rows, pairs = whole(rows, "rows", 1), whole(pairs, "pairs", 1)
        if pairs > self.keys or length < 4 * pairs:
            raise ValueError(
                f"{pairs} pairs take as many different keys, of which there are {self.keys}, and a length of "
                f"{4 * pairs} at least, got {length}."
            )
        stream = torch.Generator().manual_seed(seed)
        keys = torch.rand(rows, self.keys, generator=stream).argsort(1)[:, :pairs]
        values = self.keys + torch.randint(self.values, (rows, pairs), generator=stream)
        first_noise = self.keys + self.values
        tokens = first_noise + torch.randint(self.noise, (rows, length), generator=stream)
        tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        places = (length - 2 * pairs) // 2
        asked = torch.rand(rows, places, generator=stream).argsort(1)[:, :pairs]
        at = 2 * pairs + 2 * asked
        answers = torch.full((rows, length), NONE)
        return tokens.scatter(1, at, keys), answers.scatter(1, at, values)
