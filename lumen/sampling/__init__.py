"""From logits to a token: parameters, filters, and the one distribution that everything reads."""

from .constraint import Constraint, Matcher
from .draws import Stream, draw, generators, pick
from .filters import min_p, penalize, temperature, top_k, top_p, typical
from .sampler import NoToken, SamplingParams, distribution

__all__ = [
    "Constraint",
    "Matcher",
    "NoToken",
    "SamplingParams",
    "Stream",
    "distribution",
    "draw",
    "generators",
    "min_p",
    "penalize",
    "pick",
    "temperature",
    "top_k",
    "top_p",
    "typical",
]
