"""Small random models for tests: awkward sizes, quick to run, the same weights every time."""

from __future__ import annotations

import torch

from lumen.models import GPTlite, Llama, ModelConfig
from lumen.parts import Latent, LinearLayers, Rule


def tiny_llama(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> Llama:
    """A Llama with 9 query and 3 KV heads, as SmolLM2 has, and nothing else that is round."""
    base = ModelConfig("tiny-llama", 97, 3, 72, 9, 3, 8, 100, 64, eos_ids=(2, 0)).with_(**changes)
    return _spread(Llama(base), dtype, seed)


def tiny_hybrid(
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    rule: Rule = "gated_delta",
    layers: tuple[int, ...] = (0, 1, 2),
    **changes: object,
) -> Llama:
    """Four layers, those in `layers` linear: four states of 6 x 10 that share two queries and keys, four taps."""
    linear = LinearLayers(layers, rule, heads=4, key_dim=6, value_dim=10, key_heads=2)
    model = tiny_llama(dtype, seed, num_layers=4, linear=linear, **changes)
    for block in model.blocks:
        if hasattr(block.attn, "a_log"):
            block.attn.a_log.sub_(3.0)  # a head forgets half within a token or within a few dozen
    return model


def tiny_latent(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> Llama:
    """A Llama with latent attention: no two of its widths are equal, queries are compressed."""
    shape = {"head_dim": 7, "num_kv_heads": 9, "latent": Latent(11, 6, 5, query_rank=14)}
    return tiny_llama(dtype, seed, **(shape | changes))


def tiny_gpt(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> GPTlite:
    """A GPTlite of the same awkwardness."""
    base = ModelConfig(
        "tiny-gpt", 61, 2, 48, 4, 4, 12, 80, 48, mlp="relu", positions="learned", norm="layer", bias=True
    ).with_(**changes)
    return _spread(GPTlite(base), dtype, seed)


def _spread(model, dtype, seed):  # type: ignore[no-untyped-def]
    """Weights large enough that logits differ clearly and attention is far from uniform."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model.to(dtype).eval().requires_grad_(False)


def relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """|ours - reference| / |reference| in the Euclidean norm."""
    return float((ours.double() - reference.double()).norm() / reference.double().norm().clamp(min=1e-30))
