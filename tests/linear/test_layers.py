"""Linear layers in a model: against transformers' own, with their cache, described, counted and refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import get_args

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lumen import cost
from lumen.cache import (
    BlockStore,
    DynamicCache,
    LayeredCache,
    RecurrentCache,
    StaticCache,
    cache_for,
    with_states,
)
from lumen.config import CONFIGS, ModelConfig
from lumen.decode import NgramDrafter, generate, pad
from lumen.hardware import CHIPS
from lumen.models import Llama
from lumen.models.counts import operators
from lumen.models.describe import weights
from lumen.models.linear_attention import LinearAttention
from lumen.models.passing import Channels, Pass
from lumen.models.shard import shard_config
from lumen.models.weights import load_hf_state, to_hf_state
from lumen.parts import LinearLayers, Rule
from lumen.serve.engine import Engine

from ..drafters import Scripted
from ..tiny import relative_error, tiny_gpt, tiny_hybrid, tiny_llama

ALL = (0, 1, 2, 3)
PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9]]


class States:
    """A cache of one layer, as a layer sees it."""

    def __init__(self):
        self.held = None

    def state(self, layer):
        return self.held

    def stepwise(self, count):
        return False

    def set_state(self, layer, *state):
        self.held = state


@pytest.fixture(scope="module")
def theirs_and_ours():
    """transformers' gated delta net and ours with the same weights; four states share two queries and keys."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    torch.manual_seed(0)
    described = Qwen3_5TextConfig(
        hidden_size=72, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=6, linear_value_head_dim=10, linear_conv_kernel_dim=4, rms_norm_eps=1e-5,
    )  # fmt: skip
    theirs = Qwen3_5GatedDeltaNet(described, 0).eval().requires_grad_(False)
    for name, weight in theirs.named_parameters():
        weight.normal_(std=0.3)
        if name.endswith(("A_log", "dt_bias")):
            weight.sub_(1.0)
    model = tiny_hybrid()
    ours = model.blocks[0].attn
    state = {f"linear_attn.{name}": value for name, value in theirs.state_dict().items()}
    for weight in weights(model.config):
        if weight.name.startswith("blocks.0.attn."):
            rows = torch.cat([state[name.removeprefix("model.layers.0.")] for name, _ in weight.sources])
            ours.get_parameter(weight.name.removeprefix("blocks.0.attn.")).copy_(rows)
    return theirs, ours


@pytest.mark.parametrize("length", [1, 2, 63, 130])
def test_a_layer_equals_transformers(theirs_and_ours, length):
    theirs, ours = theirs_and_ours
    x = torch.randn(2, length, 72, generator=torch.Generator().manual_seed(length))
    at = Pass(torch.arange(length).expand(2, -1), States())
    assert relative_error(ours(x.flatten(0, 1), at, 0).view_as(x), theirs(x)) < 1e-5


def test_a_left_padded_row_equals_transformers_row_alone(theirs_and_ours):
    """And in pieces of 1, 5 and what is left, the padding among the first."""
    theirs, ours = theirs_and_ours
    x, states = torch.randn(2, 30, 72, generator=torch.Generator().manual_seed(3)), States()
    pos = torch.stack([torch.arange(30), (torch.arange(30) - 9).clamp(min=-1)])
    rows = [
        ours(part.flatten(0, 1), Pass(at, states), 0).view_as(part)
        for part, at in zip(x.split([1, 5, 24], 1), pos.split([1, 5, 24], 1), strict=True)
    ]
    ours_rows = torch.cat(rows, 1)
    assert relative_error(ours_rows[0], theirs(x[:1])[0]) < 1e-5
    assert relative_error(ours_rows[1, 9:], theirs(x[1:, 9:])[0]) < 1e-5


def test_the_linear_rule_is_katharopoulos_formula():
    """elu + 1 of queries and keys, weights divided by their sum: equation 7, written out over all pairs."""
    model = tiny_hybrid(torch.float64, rule="linear", layers=ALL)
    layer = model.blocks[0].attn
    x = torch.randn(1, 17, 72, dtype=torch.float64)
    seen = {}
    layer.out.register_forward_hook(lambda module, given, result: seen.update(y=given[0]))
    layer(x[0], Pass(torch.arange(17)[None], States()), 0)
    mixed, gate = (x @ layer.proj.weight.mT).split([2 * 2 * 6 + 4 * 10, 40], -1)
    padded = torch.nn.functional.pad(mixed.mT, (3, 0))
    mixed = torch.nn.functional.conv1d(padded, layer.conv, groups=64).mT[0]
    q, k = (torch.nn.functional.elu(mixed[:, a : a + 12].view(17, 2, 6)).add(1) for a in (0, 12))
    v = torch.nn.functional.silu(mixed[:, 24:].view(17, 4, 10))
    for head in range(4):
        scores = (q[:, head // 2] @ k[:, head // 2].mT).tril()
        y = (scores / scores.sum(-1, keepdim=True)) @ v[:, head]
        y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.norm
        y = y * torch.nn.functional.silu(gate[0, :, 10 * head : 10 * head + 10])
        assert relative_error(seen["y"][:, 10 * head : 10 * head + 10], y) < 1e-10


# With a cache


@pytest.mark.parametrize("layers", [(0, 1, 2), ALL, (3,)])
@pytest.mark.parametrize("rule", get_args(Rule))
def test_generation_equals_the_forward_without_a_cache(rule, layers):
    """A batch of unequal prompts, chunks of 4, greedy: each token is the argmax of a forward over everything."""
    model = tiny_hybrid(torch.float64, rule=rule, layers=layers)
    for chunk in (None, 4):
        found = generate(model, PROMPTS, 5, eos_ids=(), prefill_chunk=chunk)
        for prompt, answer in zip(PROMPTS, found, strict=True):
            text = torch.tensor([prompt + answer.tokens])
            assert model(text)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == answer.tokens


def test_the_cache_that_a_model_needs():
    plain, hybrid, pure = tiny_llama(), tiny_hybrid(), tiny_hybrid(layers=ALL)
    assert type(cache_for(plain, 2, 9)) is StaticCache
    assert type(cache_for(pure, 2, 9)) is RecurrentCache and cache_for(pure, 2, 9).capacity is None
    both = cache_for(hybrid, 2, 9)
    assert isinstance(both, LayeredCache) and both.capacity == 9 and both.traits.max_rewind == 0
    assert both.places[0][0].k.shape[0] == 1, "one layer of four stores keys"


def test_a_state_does_not_grow_and_takes_what_the_cost_model_says():
    """Keys and values of one layer of four and three states in fp32, the convolution's tokens in the model's dtype."""
    model = tiny_hybrid(torch.bfloat16)
    cache = cache_for(model, 3, 40)
    tokens, pos = pad(PROMPTS)
    model(tokens, pos, cache)
    held = cache.states.nbytes
    for _ in range(20):
        model(tokens[:, :1], None, cache)
    assert cache.states.nbytes == held == cost.state_bytes(model.config, 3, "bf16")
    assert cache.nbytes == held + cost.kv_bytes(model.config, 41, 3, "bf16")
    assert all(state.dtype == torch.float32 for _, state in cache.states.kept[-1].states)


def test_keys_of_any_kind_stand_beside_states():
    model = tiny_hybrid(torch.float64)
    tokens, pos = pad(PROMPTS, "left")
    plain = model(tokens, pos)
    for keys in (DynamicCache.for_model(model, 3), BlockStore.for_model(model, 20, 4).rows(3)):
        cache = with_states(model, keys, RecurrentCache.for_model(model, 3))
        parts = [model(t, p, cache) for t, p in zip(tokens.split(4, 1), pos.split(4, 1), strict=True)]
        assert relative_error(torch.cat(parts, 1)[pos >= 0], plain[pos >= 0]) < 1e-12


def test_a_token_is_not_summed_up_twice():
    """At a position that the state holds already attention would read the newer key; a state would hold both."""
    model = tiny_hybrid()
    cache = cache_for(model, 2, 20)
    model(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[0, 1, 2], [0, 1, -1]]), cache)
    before = [x.clone() for x in cache.states.state(0)]
    for pos in ([[2], [2]], [[-1], [0]]):
        with pytest.raises(ValueError, match="summed up"):
            model(torch.tensor([[1], [1]]), torch.tensor(pos), cache)
    assert cache.lengths.tolist() == [3, 2]
    assert all(torch.equal(a, b) for a, b in zip(before, cache.states.state(0), strict=True))


def test_tokens_out_of_order_are_refused():
    model = tiny_hybrid()
    with pytest.raises(ValueError, match=r"Row 1 .*\[1, -1, 0\].*in order"):
        model(torch.ones(2, 3, dtype=torch.int64), torch.tensor([[0, 1, -1], [1, -1, 0]]))
    model(torch.ones(1, 3, dtype=torch.int64), torch.tensor([[0, -1, 1]]))


def test_what_a_state_cannot_do_is_said_before_anything_runs():
    model, pure = tiny_hybrid(), tiny_hybrid(layers=ALL)
    with pytest.raises(ValueError, match="can go back 0 positions"):
        generate(model, PROMPTS, 4, drafter=NgramDrafter(2))
    with pytest.raises(ValueError, match=r"linear layers.*generate"):
        Engine(model, num_blocks=8)
    with pytest.raises(ValueError, match="left to right"):
        model(torch.tensor([[1, 2]]), channels=Channels(causal=False))
    with pytest.raises(ValueError, match="not cut"):
        shard_config(tiny_hybrid(num_heads=9, num_kv_heads=9, intermediate_size=99).config, 3)
    with pytest.raises(NotImplementedError, match="cache_for"):
        pure(torch.tensor([[1, 2]]), None, StaticCache.for_model(pure, 1, 4))
    with pytest.raises(ValueError, match="keeps keys and values in every layer"):
        RecurrentCache.for_model(tiny_llama(), 1)
    with pytest.raises(ValueError, match="attention in layer 3"):
        LinearAttention(model.config, 3)
    with pytest.raises(ValueError, match="equally many rows"):
        with_states(model, DynamicCache.for_model(model, 2), RecurrentCache.for_model(model, 3))


# Described and counted


@pytest.mark.parametrize("rule", get_args(Rule))
def test_the_description_is_the_built_model(rule):
    config = tiny_hybrid(rule=rule).config
    own = {name: tuple(p.shape) for name, p in Llama(config).named_parameters()}
    assert own == {w.name: w.shape for w in weights(config)}
    model = Llama(config)
    assert cost.parameters(config).total == sum(p.numel() for p in model.parameters())
    stored = sum(p.numel() for p in model.parameters())
    assert cost.weight_bytes(config, "fp32") == 4 * (stored + config.hidden_size), "the head is the embedding"


def test_weights_survive_the_round_trip():
    model = tiny_hybrid(tied=False)
    state = to_hf_state(model)
    assert state["model.layers.1.linear_attn.conv1d.weight"].shape == (64, 1, 4)
    copy = load_hf_state(Llama(model.config), state)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), copy.state_dict().values(), strict=True)
    )


def test_a_configuration_survives_json():
    config = tiny_hybrid().config
    assert ModelConfig(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("rule", get_args(Rule))
def test_flops_are_those_torch_counts(rule):
    """But for the outer product k ᵀ u of a step, and triangular systems, which torch does not count: added by hand."""
    model = tiny_hybrid(torch.float64, rule=rule, max_positions=128)
    linear = model.config.linear
    heads, keys, values = linear.state_shape
    written = 3 * heads * 2 * keys * values
    for length in (1, 64, 128):
        with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(torch.zeros(2, length, dtype=torch.int64))
        uncounted = 2 * written if length == 1 else 0
        if linear.corrects and length > 1:
            uncounted += 2 * length * 3 * heads * 64 * (keys + values)
        expected = cost.prefill_flops(model.config, length, 2, head_rows="all", causal=False).total
        assert expected == counter.get_total_flops() + uncounted
    assert cost.step_flops(model.config, 2, 1).total == cost.prefill_flops(model.config, 1, 2).total


def test_a_hybrid_costs_what_its_layers_cost():
    smol = CONFIGS["smollm2-135m"]
    rows = tuple(i for i in range(30) if i % 4 != 3)  # 23 of 30
    hybrid = smol.with_(linear=LinearLayers(rows, "gated_delta", 9, 64, 64))
    assert cost.kv_bytes_per_token(hybrid) == cost.kv_bytes_per_token(smol) * 7 / 30
    assert cost.max_users(2**30, hybrid, 8192) > 2 * cost.max_users(2**30, smol, 8192)
    for context in (1, 8192):
        near, far = (cost.step_bytes(hybrid, 1, n) for n in (context, context + 1))
        assert far.cache_read - near.cache_read == cost.kv_bytes_per_token(hybrid, "bf16")
    chip = CHIPS["H100 SXM"]
    alone, mixed = (
        cost.predict_decode(hybrid, chip, 4096, 3),
        cost.predict_mixed(hybrid, chip, [(4095, 1)] * 3),
    )
    assert mixed.seconds == pytest.approx(alone.seconds)
    pure = smol.with_(linear=LinearLayers(tuple(range(30)), "delta", 9, 64, 64))
    assert cost.predict_decode(pure, chip, 10).seconds == cost.predict_decode(pure, chip, 8000).seconds
    assert cost.kv_bytes(pure, 4096) == 0
    with pytest.raises(ValueError, match="nothing in it grows"):
        cost.crossover_context(pure)


GOOD = {"layers": (0, 2), "rule": "delta", "heads": 4, "key_dim": 8, "value_dim": 8}


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"layers": ()}, "numbered"), ({"layers": (1, 0)}, "in order"), ({"layers": (1, 1)}, "once"),
        ({"layers": (-1, 0)}, "from 0"), ({"layers": (0.5,)}, "whole"), ({"rule": "mamba"}, "mamba"),
        ({"heads": 0}, "heads"), ({"key_dim": 0}, "key_dim"), ({"value_dim": True}, "whole"), ({"conv": 0}, "conv"),
        ({"key_heads": 3}, "evenly"), ({"key_heads": 0}, "evenly"), ({"key_heads": 8}, "evenly"),
    ],
)  # fmt: skip
def test_linear_layers_that_cannot_be_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        LinearLayers(**(GOOD | wrong))


def test_a_model_whose_layers_contradict_each_other_is_refused():
    config, linear = tiny_llama(num_layers=4).config, LinearLayers(**GOOD)
    for changes, word in (
        ({"linear": LinearLayers(**(GOOD | {"layers": (0, 4)}))}, "layer 4 is to be linear"),
        ({"linear": linear, "kv_from": (0, 0, 2, 3)}, "no keys and values to share"),
        ({"linear": linear, "kv_from": (0, 1, 1, 3)}, "no keys and values to share"),
        ({"linear": linear, "window": 4, "full_layers": (2,)}, "one or the other"),
    ):
        with pytest.raises(ValueError, match=word):
            config.with_(**changes)
    shared = config.with_(linear=linear, kv_from=(0, 1, 2, 1))
    assert shared.storing_layers == (1,) and [shared.cache_place(i) for i in range(4)] == [0, 0, 1, 0]


def test_gptlite_may_have_linear_layers_too():
    model = tiny_gpt(torch.float64, linear=LinearLayers(**(GOOD | {"layers": (0,)})))
    cache = cache_for(model, 1, 12)
    tokens = torch.tensor([PROMPTS[0]])
    parts = [model(part, None, cache) for part in tokens.split(4, 1)]
    assert relative_error(torch.cat(parts, 1), model(tokens)) < 1e-12


# Back over states that were kept


@pytest.mark.parametrize("layers", [(0, 1, 2), ALL])
def test_speculation_goes_back_over_states_that_were_kept(layers):
    """Rows of a batch accept 0 to 3 drafts a step; the answers are those without drafts."""
    model = tiny_hybrid(torch.float64, layers=layers)
    plain = generate(model, PROMPTS, 12, eos_ids=())

    def bend(context, draft):
        right = (len(context.prompt) + 3 * len(context.output)) % 4
        return [*draft[:right], *((token + 1) % 97 for token in draft[right:])]

    answers = {tuple(prompt): answer.tokens for prompt, answer in zip(PROMPTS, plain, strict=True)}
    drafter = Scripted(answers, 3, bend)
    found = generate(model, PROMPTS, 12, eos_ids=(), drafter=drafter, cache=cache_for(model, 3, 30, rewind=3))
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain]
    accepted, drafted = (sum(getattr(a, f"num_{x}_tokens") for a in found) for x in ("accepted", "draft"))
    assert 0 < accepted < drafted


def test_states_behind_each_token_of_a_short_forward_are_those_of_single_steps():
    """Padding among them; a long forward keeps its last state alone, and says so when a row wants back into it."""
    model, tokens = tiny_hybrid(torch.float64, layers=ALL), torch.tensor([PROMPTS[0][:9], PROMPTS[0][1:10]])
    cache, plain = (cache_for(model, 2, 20, rewind=n) for n in (3, 0))
    model(tokens[:, :5], None, cache)
    with pytest.raises(ValueError, match=r"lengths \[0, 5\] and none of 3: .* up to 4 tokens"):
        cache.rewind([3, 5])
    assert cache.lengths.tolist() == [5, 5]
    model(tokens[:, 5:9], torch.tensor([[5, -1, 6, 7], [5, 6, 7, 8]]), cache)
    cache.rewind([6, 8])
    assert cache.lengths.tolist() == [6, 8]
    model(tokens[:, :5], None, plain)
    for step in range(3):
        pos = torch.tensor([[5 + step if step < 1 else -1], [5 + step]])
        model(tokens[:, 5 + step : 6 + step], pos, plain)
    for ours, expected in zip(cache.state(2), plain.state(2), strict=True):
        assert relative_error(ours, expected) < 1e-12
    cache.rewind([6, 6])
    with pytest.raises(ValueError, match="goes back only"):
        cache.rewind([6, 8])  # what lay behind is void
    single = sum(x.numel() * 8 for layer in range(4) for x in plain.state(layer)) // 2
    assert cache.nbytes == 4 * 2 * single


def test_a_rewind_that_the_states_refuse_leaves_the_keys_as_they_were():
    """Both parts are asked before either goes back."""
    model = tiny_hybrid(torch.float64)
    cache, tokens = cache_for(model, 1, 20, rewind=3), torch.tensor([PROMPTS[0]])
    model(tokens[:, :8], None, cache)
    with pytest.raises(ValueError, match="none of 6"):
        cache.rewind([6])
    assert [part.lengths.tolist() for part in cache.parts] == [[8], [8]]
    rest = model(tokens[:, 8:], None, cache)
    assert relative_error(rest, model(tokens)[:, 8:]) < 1e-12


@pytest.mark.parametrize("rule", ["gated", "delta", "gated_delta"])
def test_operators_are_about_as_many_as_torch_starts(rule):
    """Of a decode step, within a tenth: views and what only looks or changes nothing left out."""
    silent = (
        "view",
        "split",
        "transpose",
        "slice",
        "select",
        "squeeze",
        "expand",
        "alias",
        "unflatten",
        "mT",
        "flatten",
    )
    silent += ("to.dtype", "reshape", "promote", "matmul", "chunk", "item", "is_nonzero", "repeat_interleave")

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names += [] if any(word in func.name() for word in silent) else [func.name()]
            return func(*args, **(kwargs or {}))

    counted = []
    for layers in ((0,), ALL):
        model = tiny_hybrid(rule=rule, layers=layers)
        cache, token = cache_for(model, 1, 9), torch.ones(1, 1, dtype=torch.int64)
        with torch.inference_mode():
            for _ in range(3):
                model(token, None, cache)
            with Count() as seen:
                model(token, None, cache)
        counted.append((len(seen.names), operators(model.config)))
    for found, said in counted:
        assert said == pytest.approx(found, rel=0.1), counted
