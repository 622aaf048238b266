"""Turning heads changes no answer, and aligned heads are what they were before a random turn."""

from __future__ import annotations

import pytest
import torch

from lumen.models.fewer_heads import fewer_kv_heads
from lumen.models.to_latent import input_moments
from lumen.models.turned_heads import aligning_turns, random_turns, turned
from tests.tiny import tiny_gpt, tiny_llama


@pytest.fixture(scope="module")
def gpt():
    return tiny_gpt(torch.float64)


@pytest.fixture(scope="module")
def tokens(gpt):
    dice = torch.Generator().manual_seed(1)
    return torch.randint(gpt.config.vocab_size, (3, 12), generator=dice)


def doubled(turns):
    return [(keys.double(), values.double()) for keys, values in turns]


def test_a_turned_model_gives_the_same_logits(gpt, tokens):
    other = turned(gpt, doubled(random_turns(gpt, 3)))
    assert (other(tokens) - gpt(tokens)).abs().max() < 1e-5  # fp32 rotations
    assert not torch.equal(other.blocks[0].attn.qkv.weight, gpt.blocks[0].attn.qkv.weight)


def test_random_turns_are_rotations_and_reproducible(gpt):
    (keys, _), *_ = random_turns(gpt, 5)
    assert torch.allclose(keys @ keys.mT, torch.eye(gpt.config.head_dim).expand_as(keys), atol=1e-5)
    assert torch.equal(keys, random_turns(gpt, 5)[0][0]) and not torch.equal(keys, random_turns(gpt, 6)[0][0])


def test_alignment_undoes_a_turn(gpt, tokens):
    """Aligned and pooled, a model that was turned at random answers like one that was not; pooled alone it does not."""
    seen, count = input_moments(gpt, [tokens]), gpt.config.num_heads // 2
    other = turned(gpt, doubled(random_turns(gpt, 7)))

    def aligned(model, moments):
        return fewer_kv_heads(turned(model, aligning_turns(model, moments, count)), count)(tokens)

    for moments in (seen, None):  # by a text, or by the matrices alone
        assert (aligned(gpt, moments) - aligned(other, moments)).abs().max() < 1e-4
    pooled = [fewer_kv_heads(model, count)(tokens) for model in (gpt, other)]
    assert (pooled[0] - pooled[1]).abs().max() > 1e-3


def test_heads_that_are_turned_copies_lose_nothing(gpt, tokens):
    """Members of a group that differ by a rotation alone are found out: aligned, their mean is each of them."""
    config, size = gpt.config, gpt.config.head_dim
    alike = tiny_gpt(torch.float64)
    for block in alike.blocks:
        for rows in (block.attn.qkv.weight, block.attn.qkv.bias):
            heads = rows.unflatten(0, (3, config.num_heads, size))
            heads[1:, 1::2] = heads[1:, ::2]
    other = turned(alike, doubled(random_turns(alike, 2)))
    moments = input_moments(other, [tokens])
    count = config.num_heads // 2
    back = turned(other, aligning_turns(other, moments, count))
    assert (fewer_kv_heads(back, count)(tokens) - alike(tokens)).abs().max() < 1e-4


def test_models_that_cannot_be_turned_are_refused(gpt):
    llama = tiny_llama()
    with pytest.raises(ValueError, match="without RoPE"):
        turned(llama, random_turns(llama, 0))
    with pytest.raises(ValueError, match="turns for 1"):
        turned(gpt, random_turns(gpt, 0)[:1])
