"""Latent attention made of attention that was trained without: one narrow latent in the place of keys and values.

The keys and values of all heads are linear in one input, [k; v] = M x, so a latent that keeps the r directions in which
they vary most keeps the most of both:

    U     the first r left singular vectors of M C^(1/2), C = E[x xᵀ]      (2 Hkv head_dim, r)
    Uᵀ M  makes the latent: the rows of `down`                  U  makes keys and values of it: `kv_up`

With C from real text this is the PCA of the keys and values themselves (a whitened SVD of M); without, C = 1, the plain
SVD of the matrix, which also keeps what no text ever asks for. Keys and values are compressed together because both are
read from one latent: Ji et al. 2025, MHA2MLA (joint SVD).

Positions that are learned (gptlite) sit in x, and **at full rank, min(D, 2 Hkv head_dim), nothing is lost**. Biases of
keys fall out of the softmax, for they add the same to every score of a query; those of values go into the bias of the
output, and with them the mean of what the latent leaves out. Below full rank the conversion is lossy.

RoPE turns keys after M, and what is made of a latent cannot be turned, so a part of each key must stay beside it:

    head           0   1   2          pair i of channels, a complex number in each head; RoPE turns all of them alike,
    pair i        k0  k1  k2          so a unitary mix of heads changes no score if queries are mixed as well:
    mixed, by V_i  y0  y1  y2         y0 varies most (PCA over heads, pair by pair), y2 least
                   └─ turned ─┘└ not turned: into the latent, turned back to heads

`rotary_keys` of the mixed keys keep RoPE and are cached beside the latent, one set for all heads. **With all Hkv of
them and full rank nothing is lost**, and nothing is won: the cache is as large as before. With fewer the rest of every
key loses its position, which is lossy at any rank; a model with one key/value head needs one. This is RoRoPE of Meng et
al. 2025, TransMLA, with complex rotations. MHA2MLA drops RoPE from chosen channels of each head instead, and keeps a
turned key for each head. Both train on afterwards, and so does `lumen.train.uptrain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ModelConfig
from ..parts import Latent
from .decoder import Decoder
from .describe import weights
from .rope import length_factor
from .surgery import M, rebuilt, split_heads
from .weights import tensor_of

RIDGE = 1e-10  # of the mean spread, so that directions that a text never takes have an order, too


@dataclass(frozen=True)
class Moments:
    """What the attention of one layer was given on some text: the mean (D,) and E[x xᵀ] (D, D), in fp64."""

    mean: Tensor
    second: Tensor


@torch.no_grad()
def input_moments(model: Decoder, batches: Iterable[Tensor]) -> list[Moments]:
    """Layer by layer, what `model` gives its attention to read over batches of tokens (B, T)."""
    layers, count = range(model.config.num_layers), 0
    device, width = next(model.parameters()).device, model.config.hidden_size
    sums = [torch.zeros(width, dtype=torch.float64, device=device) for _ in layers]
    squares = [torch.zeros(width, width, dtype=torch.float64, device=device) for _ in layers]
    for tokens in batches:
        pos = torch.arange(tokens.shape[1], device=device).expand(tokens.shape)
        _, after = model.features(tokens, pos, layers=layers[:-1])
        for layer, x in enumerate([model.embedded(tokens, pos), *after]):
            norm = model.blocks[layer].get_submodule("attn_norm")
            rows = norm(x).flatten(0, 1).double()
            sums[layer] += rows.sum(0)
            squares[layer] += rows.mT @ rows
        count += tokens.numel()
    if not count:
        raise ValueError("Moments need a token at least; hand over batches of the text that the model reads.")
    return [Moments(s / count, q / count) for s, q in zip(sums, squares, strict=True)]


@torch.no_grad()
def to_latent(model: M, rank: int, moments: Sequence[Moments] | None = None, rotary_keys: int = 1) -> M:
    """`model` with latents of `rank` in every layer, and so many keys beside them if it turns keys by RoPE. The model
    itself is left as it is; `moments`, from `input_moments`, make it a whitened SVD.

    ValueError for a rank that compresses nothing, and for options whose keys are not linear in the input.
    """
    old, config = model.config, latent_config(model.config, rank, rotary_keys)
    if moments is not None and len(moments) != old.num_layers:
        raise ValueError(f"{old.name} has {old.num_layers} layers, and there are moments of {len(moments)}.")
    held = {weight.name: tensor_of(model, weight) for weight in weights(old)}
    changed: dict[str, Tensor] = {}
    for layer in range(old.num_layers):
        home = f"blocks.{layer}.attn."
        own = {
            name.removeprefix(home): value.double() for name, value in held.items() if name.startswith(home)
        }
        made = _converted(old, config, own, None if moments is None else moments[layer])
        changed |= {home + name: value for name, value in made.items()}
    return rebuilt(model, config, changed)


def full_rank(config: ModelConfig) -> int:
    """The rank from which a latent holds all that keys and values can say: that of [k; v] = M x."""
    return min(config.hidden_size, 2 * config.num_kv_heads * config.head_dim)


def latent_config(old: ModelConfig, rank: int, rotary_keys: int = 1) -> ModelConfig:
    """The configuration of `to_latent`'s result, or a sentence."""
    rope = old.positions == "rope"
    if old.latent is not None:
        raise ValueError(f"{old.name} has latent attention already; truncate the model that it was made of.")
    if old.qk_norm or old.kv_from or old.local_theta is not None or old.qkv_bias or (rope and old.bias):
        raise ValueError(
            f"The keys of {old.name} are not linear in one input: norms on heads, shared layers, two rotary bases and "
            "biases that RoPE turns are not converted. Choose a Llama or gptlite."
        )
    if not 1 <= rank <= full_rank(old):
        raise ValueError(
            f"Ranks of {old.name} go from 1 to {full_rank(old)}, where nothing is lost and more would hold nothing; "
            f"{rank} is none."
        )
    if not rope:
        return old.with_(
            name=f"{old.name}-mla{rank}", num_kv_heads=old.num_heads, latent=Latent(rank, 0, normed=False)
        )
    if not 1 <= rotary_keys <= old.num_kv_heads:
        raise ValueError(
            f"{old.name} has {old.num_kv_heads} key/value heads, so 1 to {old.num_kv_heads} mixed keys can stay "
            f"turned, not {rotary_keys}."
        )
    latent = Latent(rank, rotary_keys * old.head_dim, normed=False, repeats=rotary_keys)
    scale = old.head_dim**-0.5 if old.query_scale is None else old.query_scale
    name = f"{old.name}-mla{rank}" + (f"x{rotary_keys}" if rotary_keys > 1 else "")
    return old.with_(name=name, num_kv_heads=old.num_heads, latent=latent, query_scale=scale)


def _converted(
    old: ModelConfig, new: ModelConfig, own: dict[str, Tensor], moments: Moments | None
) -> dict[str, Tensor]:
    """The tensors of one layer that change. `own` are the old ones by name, fp64."""
    assert new.latent is not None
    rank, group = new.latent.rank, old.group_size
    q, k, v = split_heads(old, own["qkv.weight"])  # (H or Hkv, head_dim, D)
    second = torch.eye(old.hidden_size).to(q) if moments is None else moments.second.to(q.device)
    turned = q[:0, 0]
    if old.positions == "rope":
        q_turned, turned, k = _decoupled(old, new.latent.repeats, q, k, second)
        q = torch.cat([q, q_turned], 1)
    mean = None if moments is None or not old.bias else moments.mean.to(q.device)
    if mean is not None:
        second = second - torch.outer(mean, mean)  # what the mean loses goes into the output's bias
    stacked = torch.cat([k, v]).flatten(0, 1)  # M: (2 Hkv head_dim, D)
    up = _directions(stacked, second, rank)
    compress = up.mT @ stacked
    up_k, up_v = up.unflatten(0, (2, old.num_kv_heads, old.head_dim)).repeat_interleave(group, 1)
    made = {
        "down.weight": torch.cat([q.flatten(0, 1), compress, turned]),
        "kv_up.weight": torch.cat([up_k, up_v], 1).flatten(0, 1),
    }
    if old.bias:
        b_q, _, b_v = split_heads(old, own["qkv.bias"])
        if mean is not None:
            b_v = b_v + (v @ mean) - up_v[::group] @ (compress @ mean)
        lost = own["out.weight"] @ b_v.repeat_interleave(group, 0).flatten()
        made["down.bias"] = torch.cat([b_q.flatten(), b_q.new_zeros(rank)])
        made["out.bias"] = own["out.bias"] + lost
    return made


def _directions(stacked: Tensor, second: Tensor, rank: int) -> Tensor:
    """Orthonormal directions (rows, rank) in which `stacked` (rows, D) times x varies most; `second` (D, D) is of x."""
    spread, axes = torch.linalg.eigh(second)
    spread = spread.clamp(min=0) + RIDGE * spread.mean()
    return torch.linalg.svd(stacked @ (axes * spread.sqrt()), full_matrices=False).U[:, :rank]


def _decoupled(
    old: ModelConfig, kept: int, q: Tensor, k: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries for the turned keys (H, kept · head_dim, D), these keys (kept · head_dim, D), and what is left of each
    head's key (Hkv, head_dim, D), not to be turned. Pairs are neighbours in the turned channels, halves elsewhere.
    """
    pairs = old.head_dim // 2
    q, k = (torch.complex(*x.split(pairs, 1)) for x in (q, k))  # (heads, pairs, D)
    by_pair = k.transpose(0, 1)  # (pairs, Hkv, D)
    energy = by_pair @ second.to(k.dtype) @ by_pair.mH
    mix = torch.linalg.eigh(energy).eigenvectors.flip(-1)  # (pairs, Hkv, mixed keys), the largest first
    mixed = mix.mH @ by_pair  # (pairs, mixed keys, D)
    of_heads = mix.repeat_interleave(old.group_size, 1)[..., :kept]  # (pairs, H, kept)
    asked = torch.einsum("hid,ihj->hjid", q, of_heads.conj())
    rest = (mix[..., kept:] @ mixed[:, kept:]).transpose(0, 1) * length_factor(old) ** 2
    turned = mixed[:, :kept].transpose(0, 1)  # (kept, pairs, D)
    neighbours = [torch.view_as_real(x).transpose(-1, -2).flatten(-4, -2) for x in (asked, turned)]
    return neighbours[0], neighbours[1], torch.cat([rest.real, rest.imag], 1)
