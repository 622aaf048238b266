"""What a forward consists of, counted from the configuration alone, no torch.

Operators and the bytes the small ones move: the cost model multiplies by these counts and the probes of
`lumen.hardware` divide by them, so both mean the same thing by "an operator". FLOPs of attention: the cost model adds
them up, and latent attention chooses by them how it reads its cache.
"""

from __future__ import annotations

from lumen.config import ModelConfig
from lumen.formats import bytes_per_value


def operators(config: ModelConfig) -> int:
    """Operators that do work in one eager forward (views left out), the matrices among them.

    A layer: four matrices, attention, two cache writes, two norms, two additions, three of RoPE, four biases,
    and the activation function (with a product in SwiGLU). Norms of each head's query and key are two more and
    a concatenation, norms behind attention and MLP two. Around the layers about thirty: look-ups, the mask,
    checks, norm and head. Experts are not counted: how many run depends on the tokens.

    A linear layer has, in the place of attention, cache writes and RoPE, a multiply-add for each tap of its convolution
    and 26 more: SiLU, lengths of queries and keys, the state written and read, norm, gate. Decay is 7, delta 4.

    Latent attention that absorbs: two products more and the answer in rows again; queries and keys brought together
    and taken apart around RoPE; the latents' norms; compressed queries are one matrix more.
    """
    rope = 3 if config.positions == "rope" else 0
    biases = 4 if config.bias else 0
    activation = 2 if config.gated else 1
    norms = 3 * config.qk_norm + 2 * config.post_norms
    latent = config.latent
    if latent is not None:
        rope, biases = (7 if rope else 0), (3 if config.bias else 0)
        compressed = 2 if latent.query_rank else 1
        norms += 3 + compressed * latent.normed + compressed - 1
    layer, linear = 11 + rope + biases + activation + norms, config.linear
    if linear is None:
        return config.num_layers * layer + 30
    mixing = linear.conv + 26 + 7 * linear.decays + 4 * linear.corrects
    mixed = 8 + mixing + (2 if config.bias else 0) + activation + 2 * config.post_norms
    return (config.num_layers - len(linear.layers)) * layer + len(linear.layers) * mixed + 30


def products(config: ModelConfig) -> int:
    """How many of them multiply by a weight matrix: four a layer and the head; absorbed latents two or three more."""
    latent = config.latent
    more = 0 if latent is None else 3 if latent.query_rank else 2
    return (4 + more) * config.num_layers + 1


def elementwise_bytes(config: ModelConfig, rows: int, dtype: object = "bf16") -> float:
    """Bytes that eager norms, additions, RoPE, activation functions and reshapes read and write. [B]

    Values a row and layer: two norms 4d, two additions 6d; RoPE on queries and keys, a product 2, a
    concatenation 2, a multiply-add 4; activation function 2F, product with the gate 3F; attention's output
    copied once into rows, 2·H·D. Linear layers: 4 a tap of the convolution, its SiLU, norms and gate. Latents:
    their norms 4 a channel, and 2 for what is brought together and stored.
    """
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rope = 8 * (queries + keys) if config.positions == "rope" else 0
    latent = config.latent
    if latent is not None:
        wide = config.num_heads * (latent.rank + latent.rope) + latent.rank + latent.rope
        compressed = latent.rank + (latent.query_rank or 0)
        rope = 8 * (config.num_heads + 1) * latent.rope + 2 * wide + 4 * compressed * latent.normed
    activation = (5 if config.gated else 2) * config.intermediate_size
    layer = 10 * config.hidden_size + rope + activation + 2 * config.num_heads * config.value_dim
    linear = config.linear
    if linear is None:
        return rows * config.num_layers * layer * bytes_per_value(dtype)
    mixed = 10 * config.hidden_size + activation + (4 * linear.conv + 6) * linear.channels
    mixed += 8 * linear.heads * linear.value_dim
    values = (config.num_layers - len(linear.layers)) * layer + len(linear.layers) * mixed
    return rows * values * bytes_per_value(dtype)


def pair_flops(config: ModelConfig, absorbed: bool = True) -> int:
    """FLOPs of one query and one key in all heads of a layer: q·k and p·v, a multiply-add a channel each.

    Query heads count, not KV heads: sharing keys saves bytes, not arithmetic. Latent attention that is `absorbed`
    multiplies rank + rope channels and rank of them; expanded, those of a head.
    """
    width = config.key_dim + config.value_dim
    if config.latent is not None and absorbed:
        width = 2 * config.latent.rank + config.latent.rope
    return 2 * config.num_heads * width


def expand_flops(config: ModelConfig) -> int:
    """FLOPs of making the keys and values of all heads of one layer out of one cached latent; 0 where there is none.

    As many as absorbing takes for a query: into the latent space and out of it.
    """
    if config.latent is None:
        return 0
    return 2 * config.latent.rank * config.num_heads * (config.head_dim + config.value_dim)


def absorbs(config: ModelConfig, new: float) -> bool:
    """Whether latent attention of `new` tokens a sequence is cheaper absorbed, over a context long against them.

    Expanding pays for every key of the context once and has narrow pairs, absorbing has wide pairs alone, so decode
    absorbs and prefill expands. They are even at rank · (head_dim + value) / (2 rank - head_dim - value) new tokens:
    171 for DeepSeek-V2 and V3. Of a prompt without a context in front either is right: expanding saves little.
    """
    return new * pair_flops(config, True) <= expand_flops(config) + new * pair_flops(config, False)
