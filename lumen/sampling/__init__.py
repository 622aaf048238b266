"""From logits to a token: parameters, filters, and the one distribution that everything reads."""

from .filters import min_p, penalize, temperature, top_k, top_p, typical
from .sampler import SamplingParams, distribution, draw, generators

__all__ = [
    "SamplingParams",
    "distribution",
    "draw",
    "generators",
    "min_p",
    "penalize",
    "temperature",
    "top_k",
    "top_p",
    "typical",
]
