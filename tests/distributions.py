"""Whether answers that were drawn have the distribution of the model they are drawn from."""

from __future__ import annotations

import torch
from torch import Tensor

from lumen.sampling import SamplingParams, distribution


def chi_square(counts: Tensor, probs: Tensor) -> float:
    """Pearson's statistic of counts against probabilities; fails for what came and cannot come."""
    expected = probs.double() * counts.sum()
    keep = expected > 0
    assert counts[~keep].sum() == 0, "a token of probability zero came out"
    return float(((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum())


def limit(freedom: int) -> float:
    """The 1 - 1e-6 quantile of chi-square. Wilson and Hilferty 1931."""
    return freedom * (1 - 2 / (9 * freedom) + 4.753 * (2 / (9 * freedom)) ** 0.5) ** 3


def assert_the_models(model, prompt: list[int], params: SamplingParams, answers: list[list[int]]) -> None:
    """Answers of one length against the probability of every path, computed without drafts: chi-square over the paths
    with 8 expected or more, the others together, one false alarm in a million. Greedy answers are all the one path."""
    size, paths, probs = model.config.vocab_size, [[]], torch.ones(1)
    for _ in answers[0]:
        logits = model(torch.tensor([prompt + path for path in paths]))[:, -1]
        each = distribution(logits, params, [prompt] * len(paths), paths)
        paths = [[*path, token] for path in paths for token in range(size)]
        probs = (probs[:, None] * each).flatten()
    index = {tuple(path): i for i, path in enumerate(paths)}
    counts = torch.bincount(torch.tensor([index[tuple(tokens)] for tokens in answers]), minlength=len(paths))
    if params.temperature == 0:
        assert counts.max() == len(answers) == counts[probs.argmax()]
        return
    assert counts[probs == 0].sum() == 0
    big = probs * len(answers) >= 8
    counts = torch.cat([counts[big], counts[~big].sum()[None]])
    probs = torch.cat([probs[big], probs[~big].sum()[None]])
    assert chi_square(counts, probs) < limit(int(big.sum()))
