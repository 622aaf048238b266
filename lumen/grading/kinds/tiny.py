"""A random model, small enough to count with, strange enough to catch mistakes: 9 query heads on 3 KV heads."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def tiny_llama(vocab: int = 97, zero: int | None = None) -> Any:
    """A Llama in float64 whose logits differ clearly; the same one every time.

    With `zero`, token `zero` and token 0 change their names: a case gets the id 0 exactly where it wants it, and
    whatever the model says, it says in another alphabet.
    """
    import torch

    from lumen.models import Llama, ModelConfig

    config = ModelConfig("tiny", vocab, 2, 72, 9, 3, 8, 100, 64)
    model, noise = Llama(config), torch.Generator().manual_seed(28)
    with torch.no_grad():
        for weights in model.parameters():
            mean = 1.0 if weights.dim() == 1 else 0.0
            weights.copy_(torch.normal(mean, 0.3, weights.shape, generator=noise))
        if zero:
            rows = list(range(vocab))
            rows[0], rows[zero] = zero, 0
            model.embed.weight.copy_(model.embed.weight[rows].clone())
    return model.double().eval().requires_grad_(False)
