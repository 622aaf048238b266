"""The two readable decoders of the course, and what they are made of.

    describe            every parameter: name, shape, part, published tensors; weights and the cost model read it
    decoder, passing    what every model answers to; what one forward carries through all layers
    layers, mlp, rope   attention and block; MLPs and experts; rotary positions and their scaling
    norms, latent       norms; latent attention (DeepSeek), read expanded or absorbed
    linear_attention    layers that carry a state in the place of attention
    llama, gptlite      the decoders: Llama, Mistral, Mixtral, Qwen and Gemma are one, GPTlite is ours
    linear, kernels     a matrix, and how it is multiplied
    weights, shard      published tensors in and out; one of several equal parts of a model
    lora                adapters side by side in one batch
    observe, indexer    what attention is given in a forward; the small heads that learn to point (DSA)
    surgery             a trained model made again under another configuration; with it:
    fewer_heads         key/value heads merged (GQA, MQA)
    cross_layer         layers that share keys and values
    to_latent           latent attention made of a model that was trained without
    counts              operators of a forward, FLOPs of attention

A model's shape is `lumen.config`, which needs no torch; the classes here are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config import CONFIGS, ModelConfig

if TYPE_CHECKING:
    from .gptlite import GPTlite
    from .llama import Llama

__all__ = ["CONFIGS", "GPTlite", "Llama", "ModelConfig", "build"]


def build(config: ModelConfig) -> Any:
    """A model of this shape with random weights: `Llama` for RoPE, `GPTlite` for learned positions."""
    from .gptlite import GPTlite
    from .llama import Llama

    return (Llama if config.positions == "rope" else GPTlite)(config)


def __getattr__(name: str) -> Any:
    if name == "Llama":
        from .llama import Llama

        return Llama
    if name == "GPTlite":
        from .gptlite import GPTlite

        return GPTlite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
