"""What a forward may be told beside tokens, positions and cache; and blocks made of other parts."""

from __future__ import annotations

import copy
import threading
from functools import partial

import pytest
import torch
from torch import nn

from lumen.cache import BlockStore, DynamicCache, StaticCache
from lumen.config import ModelConfig
from lumen.cost.memory import kv_bytes_per_token
from lumen.decode import generate
from lumen.models import Llama
from lumen.models.layers import Block, make_mlp
from lumen.models.lora import Adapters
from lumen.models.passing import Channels
from lumen.models.shard import shard_config, shard_state
from lumen.models.weights import load_hf_state, to_hf_state
from lumen.parts import Experts
from lumen.serve.engine import Engine
from lumen.serve.request import Request

from .tiny import relative_error, tiny_gpt, tiny_llama

CLOSE = 1e-12


def tokens_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(7))


def adapter(model, rank: int, seed: int, names=("attn.qkv", "attn.out", "mlp.gate_up", "mlp.down")):
    """A random change of some matrices of every block, and the model with it merged in."""
    draw, made, merged = torch.Generator().manual_seed(seed), {}, copy.deepcopy(model)
    for i in range(model.config.num_layers):
        for name in names:
            matrix = merged.get_submodule(f"blocks.{i}.{name}").weight
            a = torch.randn(rank, matrix.shape[1], generator=draw, dtype=matrix.dtype)
            b = torch.randn(matrix.shape[0], rank, generator=draw, dtype=matrix.dtype) * 0.1
            made[f"blocks.{i}.{name}"] = a, b
            matrix.add_(b @ a)
    return made, merged


@pytest.mark.parametrize("kind", ["none", "dynamic", "static"])
def test_adapters_side_by_side_equal_each_merged_model_alone(kind):
    """Four rows: adapters 1, none, 0 and one that changes its mind half-way; ranks differ, one skips matrices."""
    model = tiny_llama(torch.float64)
    one, first = adapter(model, 3, 1)
    two, second = adapter(model, 5, 2, ("attn.qkv", "mlp.down"))
    bank = Adapters(model.config, {"one": one, "two": two})
    tokens = tokens_of(4, 11)
    rows = torch.tensor([[1] * 11, [-1] * 11, [0] * 11, [0] * 6 + [1] * 5])
    cache = {
        "none": None,
        "dynamic": DynamicCache.for_model(model, 4),
        "static": StaticCache.for_model(model, 4, 11),
    }[kind]
    if cache is None:
        got = model(tokens, None, None, Channels(lora=bank.route(rows)))
    else:
        parts = zip(tokens.split([1, 7, 3], 1), rows.split([1, 7, 3], 1), strict=True)
        got = torch.cat([model(t, None, cache, Channels(lora=bank.route(r))) for t, r in parts], 1)
    for row, alone in ((0, second), (1, model), (2, first)):
        assert relative_error(got[row], alone(tokens[row : row + 1])[0]) < CLOSE
    assert relative_error(got[3, :6], first(tokens[3:])[0, :6]) < CLOSE
    held = DynamicCache.for_model(model, 1)
    first(tokens[3:, :6], None, held)
    assert relative_error(got[3, 6:], second(tokens[3:, 6:], None, held)[0]) < CLOSE


def test_adapters_that_do_not_fit_are_refused():
    model = tiny_llama(torch.float64)
    good, _ = adapter(model, 2, 1)
    bank = Adapters(model.config, {"good": good})
    cache = DynamicCache.for_model(model, 1)
    for rows, words in (
        ([[1]], "-1 .none. to 0"),
        ([[-2]], "-1 .none. to 0"),
        ([0], "shape"),
        ([[0.0]], "whole"),
    ):
        with pytest.raises(ValueError, match=words):
            bank.route(torch.tensor(rows))
    with pytest.raises(ValueError, match=r"each token \(1, 2\)"):
        model(tokens_of(1, 2), None, cache, Channels(lora=bank.route(torch.tensor([[0]]))))
    assert cache.lengths.tolist() == [0]
    a, b = good["blocks.0.attn.qkv"]
    for changed, words in (
        ({"blocks.9.attn.qkv": (a, b)}, "no matrix that adapters reach"),
        ({"blocks.0.attn.out": (a, b)}, r"B \(72, rank\)"),
        ({"blocks.0.attn.qkv": (a, b[:, :1])}, r"A must be \(rank, 72\)"),
    ):
        with pytest.raises(ValueError, match=words):
            Adapters(model.config, {"bad": changed})
    with pytest.raises(ValueError, match="at least"):
        Adapters(model.config, {})


class Ring:
    """Adds up what `size` threads bring, as an all-reduce between devices does."""

    def __init__(self, size: int):
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def reduce(self, rank: int, y: torch.Tensor) -> torch.Tensor:
        self.parts[rank] = y
        self.barrier.wait()
        total = torch.stack(self.parts).sum(0)
        self.barrier.wait()
        return total


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": True, "qk_norm": True, "bias": False},
        {"tied": False, "window": 4},
        {"experts": Experts(4, 2, 12), "family": "mixtral"},
    ],
)
def test_three_shards_equal_the_whole(options):
    """9 query and 3 key/value heads over three shards, each with its own cache, prompt and answer."""
    model = tiny_llama(torch.float64, intermediate_size=99, **options)
    state, ring, got = to_hf_state(model), Ring(3), {}

    def run(rank: int) -> None:
        own = Llama(shard_config(model.config, 3)).double().eval().requires_grad_(False)
        load_hf_state(own, shard_state(model.config, state, rank, 3))
        cache, channels = StaticCache.for_model(own, 2, 16), Channels(reduce=partial(ring.reduce, rank))
        with torch.no_grad():
            got[rank] = torch.cat(
                [own(t, None, cache, channels) for t in tokens_of(2, 13).split([9, 1, 3], 1)], 1
            )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = model(tokens_of(2, 13))
    assert all(relative_error(got[rank], expected) < CLOSE for rank in range(3))


def test_shards_that_cannot_be_cut_are_refused():
    config = tiny_llama().config
    for shards, words in (
        (2, "9 query heads"),
        (9, "3 key/value heads"),
        (0, "0 shards"),
        (3, "100 MLP channels"),
    ):
        with pytest.raises(ValueError, match=words):
            shard_config(config, shards)
    with pytest.raises(ValueError, match="one published tensor"):
        shard_config(tiny_gpt().config, 2)
    with pytest.raises(ValueError, match="numbered 0 to 0"):
        shard_state(config, {}, 1, 1)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_layers_in_two_stretches_are_the_whole(make):
    """A pipeline of two stages, each with a cache, over a prompt and a token."""
    model = make(torch.float64)
    last, tokens = model.config.num_layers, tokens_of(2, 9)
    stages = [DynamicCache.for_model(model, 2), DynamicCache.for_model(model, 2)]
    for part, pos in ((slice(0, 8), torch.arange(8)), (slice(8, 9), torch.tensor([8]))):
        pos = pos.expand(2, -1)
        x = model.stretch(model.embedded(tokens[:, part], pos), pos, stages[0], 0, 1)
        x = model.stretch(x, pos, stages[1], 1, last)
        got = model.head(model.norm(x))
        assert relative_error(got, model(tokens)[:, part]) < CLOSE
    assert stages[0].lengths.tolist() == [9, 9] and stages[0].k[1].shape[2] == 0


def test_an_early_exit_is_the_shallow_model():
    model = tiny_llama(torch.float64)
    shallow = Llama(model.config.with_(num_layers=2)).double().requires_grad_(False)
    shallow.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("blocks.2")})
    tokens = tokens_of(2, 7)
    assert torch.equal(model(tokens, None, None, Channels(exit=2)), shallow(tokens))
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="1 to 3 layers"):
            model(tokens, None, None, Channels(exit=wrong))


def test_features_are_what_the_layers_gave():
    model, cache = tiny_llama(torch.float64), None
    tokens, pos = tokens_of(2, 7), torch.arange(7).expand(2, -1)
    hidden, (last, first) = model.features(tokens, pos, cache, [2, 0])
    assert torch.equal(hidden, model.hidden(tokens)) and torch.equal(model.norm(last), hidden)
    assert torch.equal(first, model.stretch(model.embedded(tokens, pos), pos, None, 0, 1))
    held = DynamicCache.for_model(model, 2)
    with pytest.raises(ValueError, match="layers 0 to 2"):
        model.features(tokens, pos, held, [3])
    with pytest.raises(ValueError, match="layers 0 to 1"):
        model.features(tokens, pos, held, [2], Channels(exit=2))
    for first_layer, last_layer in ((2, 1), (0, 4), (-1, 2)):
        with pytest.raises(ValueError, match="layers 0 to 2"):
            model.stretch(hidden, pos, held, first_layer, last_layer)
    with pytest.raises(ValueError, match=r"\(B, T, D\)"):
        model.stretch(hidden[:, :3], pos, held, 0, 1)
    assert held.lengths.tolist() == [0, 0]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_reading_in_both_directions(make):
    """Without causality every token's logits change with the last token; padding stays unread."""
    model = make(torch.float64)
    tokens = tokens_of(1, 6)
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % 61
    both = Channels(causal=False)
    assert torch.equal(model(tokens)[:, :-1], model(other)[:, :-1])
    changed = (model(tokens, None, None, both) - model(other, None, None, both)).abs().amax(-1)
    assert bool((changed > 1e-6).all())
    pos = torch.tensor([[0, 1, 2, 3, 4, -1]])
    assert torch.equal(model(tokens, pos, None, both)[:, :-1], model(other, pos, None, both)[:, :-1])


@pytest.mark.parametrize("kv_from", [(0, 0, 0), (0, 0, 2), (0, 1, 1), (0, 1, 0), (0, 1, 2)])
@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
def test_a_layer_that_reads_anothers_keys_takes_no_memory(kind, kv_from):
    """Bytes of the layers that store, as the cost model counts them; logits as written out by hand."""
    model = tiny_llama(torch.float64, kv_from=kv_from)
    storing, x = len(set(kv_from)), tokens_of(2, 9)
    cache, slots = {
        "dynamic": (DynamicCache.for_model(model, 2), 2 * 9),
        "static": (StaticCache.for_model(model, 2, 9), 2 * (9 + 1)),
        "paged": (BlockStore.for_model(model, 6, 4).rows(2), (6 + 1) * 4),
    }[kind]
    got = torch.cat([model(t, None, cache) for t in x.split([4, 1, 4], 1)], 1)
    assert relative_error(got, by_hand(model, x)) < CLOSE
    assert cache.nbytes == slots * storing * 2 * 3 * 8 * 8  # k and v, heads, channels, bytes
    assert cache.nbytes == slots * kv_bytes_per_token(model.config, torch.float64)


def test_the_engine_serves_layers_that_share_keys():
    model = tiny_llama(torch.float64, kv_from=(0, 1, 0))
    engine = Engine(model, num_blocks=20, block_size=4)
    asked = [[5, 9, 2], [7] * 11]
    for name, prompt in enumerate(asked):
        engine.add(Request(str(name), prompt, 8))
    found = {"0": [], "1": []}
    for delta in engine.stream():
        found[delta.request_id] += delta.tokens
    assert [*found.values()] == [c.tokens for c in generate(model, asked, 8, eos_ids=())]
    assert engine.store.planes[0].shape[0] == 2


@pytest.mark.parametrize("kind", ["none", "dynamic", "static"])
def test_a_layer_that_reads_anothers_keys(kind):
    """Layers 1 and 2 read what layer 0 stores: equal to layers of their own that compute the very same keys."""
    shared = tiny_llama(torch.float64, kv_from=(0, 0, 0), max_positions=32)
    x = tokens_of(2, 9)
    assert shared.blocks[1].attn.qkv.out_features == 72 and shared.config.storing_layers == (0,)
    cache = {
        "none": None,
        "dynamic": DynamicCache.for_model(shared, 2),
        "static": StaticCache.for_model(shared, 2, 9),
    }[kind]
    got = (
        shared(x) if cache is None else torch.cat([shared(t, None, cache) for t in x.split([4, 1, 4], 1)], 1)
    )
    assert relative_error(got, by_hand(shared, x)) < CLOSE


def by_hand(model, tokens):
    """The same stack with attention written out: keys and values of the layer that `kv_from` names."""
    pos = torch.arange(tokens.shape[1]).expand(tokens.shape)
    x, ((cos, sin),), stored = model.embedded(tokens, pos), model.turns(pos), {}

    def turned(heads):
        half = heads.shape[-1] // 2
        return heads * cos + torch.cat([heads[..., half:], heads[..., :half]], -1) * sin

    for i, block in enumerate(model.blocks):
        rows = block.attn.qkv(block.attn_norm(x)).unflatten(-1, (-1, 8)).transpose(1, 2)
        q = turned(rows[:, :9])
        if model.config.kv_from[i] == i:
            stored[i] = turned(rows[:, 9:12]).repeat_interleave(3, 1), rows[:, 12:].repeat_interleave(3, 1)
        k, v = stored[model.config.kv_from[i]]
        scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
        x = x + block.attn.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        gate, up = block.mlp.gate_up(block.mlp_norm(x)).chunk(2, -1)
        x = x + block.mlp.down(nn.functional.silu(gate) * up)
    return model.head(model.norm(x))


def test_a_block_takes_another_mixer_and_another_mlp():
    """A layer that does not attend at all, and an MLP of another kind, are functions handed to the block."""

    class Shift(nn.Module):
        """Each token reads the one before it."""

        def __init__(self, config: ModelConfig, layer: int):
            super().__init__()

        def forward(self, x, at, layer):
            rows = x.view(*at.pos.shape, -1)
            return torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], 1).flatten(0, 1)

    config = tiny_llama().config

    def mlp(config: ModelConfig, layer: int) -> nn.Module:
        return make_mlp(config.with_(experts=Experts(3, 1, 8)) if layer == 1 else config, layer)

    model = Llama(config, partial(Block, mixer=Shift, mlp=mlp)).requires_grad_(False)
    got = model(tokens_of(2, 5))
    assert (
        got.shape == (2, 5, 97)
        and hasattr(model.blocks[1].mlp, "router")
        and hasattr(model.blocks[0].mlp, "down")
    )
    assert relative_error(model(tokens_of(2, 5)[:, :3]), got[:, :3]) < 1e-6


def test_padding_is_not_routed(monkeypatch):
    """An expert is given real tokens only, and padding of any content changes nothing."""
    model = tiny_llama(torch.float64, experts=Experts(4, 2, 12), family="mixtral")
    tokens, pos = tokens_of(2, 8), torch.arange(8).expand(2, -1).clone()
    pos[1, 5:] = -1
    seen = []
    for block in model.blocks:
        for expert in block.mlp.experts:
            expert.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    got = model(tokens, pos)
    assert sum(seen) == 13 * 2 * model.config.num_layers
    tokens[1, 5:] = 3
    assert torch.equal(model(tokens, pos)[pos >= 0], got[pos >= 0])


def test_saving_goes_through_modules():
    """A quantized layer gives the weight that it computes with; one that cannot is named, and nothing is returned."""

    class Int8(nn.Module):
        def __init__(self, linear: nn.Linear):
            super().__init__()
            self.scale = linear.weight.abs().amax(1, keepdim=True) / 127
            self.codes = (linear.weight / self.scale).round().to(torch.int8)

        def dequantized(self) -> torch.Tensor:
            return self.codes * self.scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.dequantized().T

    model = tiny_llama(torch.float64)
    expected = {name: value.clone() for name, value in to_hf_state(model).items()}
    model.blocks[1].attn.qkv = Int8(model.blocks[1].attn.qkv)
    state = to_hf_state(model)
    changed = [name for name in state if not torch.equal(state[name], expected[name])]
    assert changed == [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    again = load_hf_state(Llama(model.config).double(), state).eval().requires_grad_(False)
    assert relative_error(again(tokens_of(1, 9)), model(tokens_of(1, 9))) < CLOSE
    model.blocks[2].mlp.down = nn.Identity()
    with pytest.raises(ValueError, match=r"blocks\.2\.mlp\.down is a Identity .* dequantized"):
        to_hf_state(model)
