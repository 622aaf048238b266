"""The cost model against the real models: parameters, bytes and FLOPs are counted, not believed."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lumen import cost
from lumen.cache import StaticCache
from lumen.hardware import CHIPS, Achieved, Chip
from lumen.models import CONFIGS, GPTlite, Llama, ModelConfig
from lumen.parts import Experts, Latent

SMOL, LLAMA_3_8B = CONFIGS["smollm2-135m"], CONFIGS["llama-3-8b"]
H100 = CHIPS["H100 SXM"]


@st.composite
def latents(draw, rope):
    """Latent attention of any widths, queries compressed or not; none most of the time."""
    if draw(st.integers(0, 2)):
        return None
    width = st.integers(1, 9)
    return Latent(
        draw(width), 2 * draw(st.integers(1, 3)) if rope else 0, draw(st.none() | width), draw(st.none() | width),
        draw(st.booleans()),
    )  # fmt: skip


@st.composite
def configs(draw):
    """Small random decoders of both kinds, odd sizes, 9 query and 3 KV heads among them."""
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    llama = draw(st.booleans())
    return ModelConfig(
        name="random",
        vocab_size=draw(st.integers(2, 97)),
        num_layers=draw(st.integers(1, 3)),
        hidden_size=draw(st.integers(1, 50)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 7)),
        intermediate_size=draw(st.integers(1, 70)),
        max_positions=draw(st.integers(16, 40)),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        mlp="swiglu" if llama else "relu",
        positions="rope" if llama else "learned",
        norm="rms" if llama else "layer",
        latent=draw(latents(llama)),
    )


def build(config):
    return (Llama if config.norm == "rms" else GPTlite)(config).eval()


@given(configs())
@settings(max_examples=60, deadline=None)
def test_parameters_are_those_of_the_model(config):
    model = build(config)
    assert cost.parameters(config).total == sum(p.numel() for p in model.parameters())


@given(configs())
@settings(max_examples=30, deadline=None)
def test_a_step_reads_every_weight_but_the_rows_not_looked_up(config):
    """Weights stored, less the embedding and position rows that a step leaves alone; a tied head is read whole."""
    stored = sum(p.numel() * p.element_size() for p in build(config).parameters())
    unread = 0 if config.tied else (config.vocab_size - 1) * config.hidden_size
    extra = config.hidden_size if config.tied else 0  # the row looked up, beside the matrix read as head
    if config.positions == "learned":
        unread += (config.max_positions - 1) * config.hidden_size
    assert cost.weight_bytes(config, "fp32") == stored - 4 * unread + 4 * extra


def counted_flops(model, tokens, cache=None):
    """What torch counts. The plain attention is used: its products are seen one by one, masked halves included."""
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, None, cache)
    return counter.get_total_flops()


@given(configs(), st.integers(1, 3), st.integers(1, 13))
@settings(max_examples=40, deadline=None)
def test_prefill_flops_are_those_torch_counts(config, batch, prompt):
    """Exactly. torch computes all P x P scores and throws half away, so the rectangle is compared."""
    tokens = torch.zeros(batch, prompt, dtype=torch.int64)
    expected = cost.prefill_flops(config, prompt, batch, head_rows="all", causal=False)
    assert expected.total == counted_flops(build(config).double(), tokens)  # torch does not count packed fp32


@given(configs(), st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_step_flops_are_those_torch_counts(config, batch, context):
    """Exactly: one query reads `context` keys, all of them visible."""
    model = build(config).double()
    cache = StaticCache.for_model(model, batch, 16)
    with torch.inference_mode():
        if context > 1:
            model(torch.zeros(batch, context - 1, dtype=torch.int64), None, cache)
    counted = counted_flops(model, torch.zeros(batch, 1, dtype=torch.int64), cache)
    assert cost.step_flops(config, batch, context).total == counted


@given(st.integers(1, 40), st.integers(0, 40), st.none() | st.integers(1, 50))
@settings(deadline=None)
def test_causal_pairs_count_the_visible_mask(prompt, cached, window):
    from lumen.attention.core import visible

    keys = torch.arange(cached + prompt)[None]
    seen = visible(keys[:, cached:], keys, window)
    assert cost.causal_pairs(prompt, cached, window) == int(seen.sum())


@given(st.integers(1, 30), st.integers(1, 30))
@settings(deadline=None)
def test_chunks_add_up_to_the_whole_prefill(first, second):
    whole = cost.prefill_flops(SMOL, first + second, head_rows="all").total
    chunks = cost.prefill_flops(SMOL, first, head_rows="all").total
    chunks += cost.prefill_flops(SMOL, second, cached=first, head_rows="all").total
    assert whole == chunks


def test_kv_bytes_are_those_of_the_cache():
    cache = StaticCache(SMOL, 2, 9, dtype=torch.float16)  # reserves one slot more than its capacity
    assert cost.kv_bytes(SMOL, 10, batch=2, dtype="fp16") == cache.nbytes


def test_a_window_bounds_cache_and_attention():
    config = CONFIGS["mistral-7b"]
    assert cost.kv_bytes(config, 100_000) == cost.kv_bytes(config, 4096)
    assert cost.flops_per_token(config, 100_000) == cost.flops_per_token(config, 4096)


def test_the_rule_of_thumb_leaves_out_what_it_says():
    """24d² + 4nd is a layer of MHA with a GELU MLP of 4d; 2N is the linear part when N counts matrices only."""
    config = CONFIGS["llama-2-7b"].with_(mlp="gelu", intermediate_size=4 * 4096)
    flops = cost.flops_per_token(config, 777)
    assert (flops.linear + flops.attention) / config.num_layers == cost.approx_layer_flops(4096, 777)
    matrices = sum(m.weights for m in cost.matmuls(config))
    assert cost.flops_per_token(config).total == cost.approx_token_flops(matrices)


class CountWork(TorchDispatchMode):
    """Counts operators that make or change numbers; those that look at a tensor another way are left out."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        made = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, torch.Tensor)]
        self.count += func._schema.is_mutable or any(
            t.untyped_storage().data_ptr() not in given for t in made
        )
        return out


OPERATORS = [
    SMOL,
    CONFIGS["gptlite"],
    SMOL.with_(name="latent", latent=Latent(64, 32)),
    SMOL.with_(name="latent, queries compressed", latent=Latent(64, 32, query_rank=48)),
    CONFIGS["gptlite"].with_(name="latent, learned positions", latent=Latent(64, 0, normed=False)),
]


@pytest.mark.parametrize("config", OPERATORS, ids=lambda config: config.name)
def test_operators_are_those_of_the_model(config):
    """Within 20 %: the list is kept by hand."""
    config = config.with_(num_layers=12)
    model = build(config)
    cache = StaticCache.for_model(model, 1, 8)
    with torch.inference_mode(), CountWork() as work:
        model(torch.ones(1, 1, dtype=torch.int64), None, cache)
    assert cost.operators(config) == pytest.approx(work.count, rel=0.2)


# -- roofline and predictions ------------------------------------------------------------------------------------


@given(st.floats(0.01, 1e5), st.sampled_from(sorted(CHIPS)))
@settings(deadline=None)
def test_the_roofline_is_the_lower_of_two_ceilings(at, name):
    chip = CHIPS[name]
    dtype = "fp16" if "fp16" in chip.flops else next(iter(chip.flops))
    reached = cost.roofline(at, chip, dtype)
    assert reached <= chip.peak(dtype) and reached <= at * chip.bandwidth * (1 + 1e-12)
    limit = cost.bound_by(at, chip, dtype)
    assert reached == (at * chip.bandwidth if limit == "memory" else chip.peak(dtype))


def test_intensity_of_decode_is_about_the_batch_in_16_bits():
    for batch in (1, 4, 16):
        assert cost.step_intensity(LLAMA_3_8B, batch, 1) == pytest.approx(batch, rel=0.02)
    assert cost.step_intensity(LLAMA_3_8B, 1, 1, weight_dtype="int4") == pytest.approx(4, rel=0.02)


def test_intensity_of_a_step_counts_weights_and_cache():
    moved = cost.weight_bytes(SMOL, "fp32", 3) + cost.kv_bytes(SMOL, 101, 3, "fp32")  # 100 read and 1 written
    flops = cost.step_flops(SMOL, 3, 100).total
    assert cost.step_intensity(SMOL, 3, 100, "fp32") == pytest.approx(flops / moved)


@given(
    st.integers(1, 256), st.integers(1, 8192), st.sampled_from(["H100 SXM", "A100 80GB SXM", "L4", "TPU v5e"])
)
@settings(deadline=None)
def test_a_datasheet_prediction_is_a_bound(batch, context, name):
    """Never faster than all its bytes at the bandwidth, nor than all its FLOPs at the peak."""
    chip = CHIPS[name]
    step = cost.predict_decode(LLAMA_3_8B, chip, context, batch)
    moved = cost.step_bytes(LLAMA_3_8B, batch, context)
    flops = cost.step_flops(LLAMA_3_8B, batch, context)
    read = moved.weights + moved.cache_read + moved.cache_write
    # biases, norms and embedding rows are read too, but are not in the list of matrices: 0.01 % at most
    assert step.seconds >= max(read / chip.bandwidth * 0.999, flops.total / chip.peak() * (1 - 1e-12))
    assert step.seconds == pytest.approx(sum(step.parts.values()))
    more = cost.predict_decode(LLAMA_3_8B, chip, context, batch + 1)
    assert more.seconds >= step.seconds


def test_decode_of_one_sequence_is_bytes_over_bandwidth():
    step = cost.predict_decode(LLAMA_3_8B, H100, context=1)
    assert step.seconds == pytest.approx(cost.weight_bytes(LLAMA_3_8B) / H100.bandwidth, rel=1e-3)
    assert step.bound_by == "memory"


def test_prefill_is_flops_over_peak():
    prefill = cost.predict_prefill(LLAMA_3_8B, H100, 4096)
    flops = cost.prefill_flops(LLAMA_3_8B, 4096).total
    assert prefill.seconds == pytest.approx(flops / H100.peak("bf16"), rel=0.01)
    assert prefill.bound_by == "compute"


def test_held_tokens_are_attended_and_read_but_not_computed():
    whole = cost.predict_prefill(LLAMA_3_8B, H100, 4096)
    rest = cost.predict_prefill(LLAMA_3_8B, H100, 32, held=4064)
    pairs = cost.causal_pairs(32, 4064)
    assert pairs == cost.causal_pairs(4096) - cost.causal_pairs(4064)
    alone = cost.predict_prefill(LLAMA_3_8B, H100, 32)
    assert {p: rest.parts[p] for p in ("projections", "mlp", "head", "cache")} == {
        p: alone.parts[p] for p in ("projections", "mlp", "head", "cache")
    }
    # 32 rows read 4,064 held tokens for longer than they multiply by them: 0.53 GB against 69 GFLOP
    assert rest.parts["attention"] == pytest.approx(cost.kv_bytes(LLAMA_3_8B, 4064) / H100.bandwidth)
    many = cost.predict_prefill(LLAMA_3_8B, H100, 2048, held=2048).parts["attention"]
    flops = cost.prefill_flops(LLAMA_3_8B, 2048, cached=2048).attention
    assert many == pytest.approx(flops / H100.peak("bf16"))
    assert alone.seconds < rest.seconds < whole.seconds
    assert cost.predict_prefill(LLAMA_3_8B, H100, 4096, held=0) == whole


def test_held_tokens_are_attended_at_the_rate_that_was_reached():
    """Left out of the published run of chapter 6 at first, and its warm predictions were a fifth too low."""
    alone = cost.predict_prefill(SMOL, measured_chip(), 32, dtype="fp32")
    rest = cost.predict_prefill(SMOL, measured_chip(), 32, dtype="fp32", held=1024)
    more = 4 * SMOL.num_layers * SMOL.num_heads * SMOL.head_dim * 32 * 1024 / 25e9
    assert rest.seconds - alone.seconds == pytest.approx(more)


def test_a_paged_prefill_gathers_the_whole_cache():
    static = cost.predict_prefill(LLAMA_3_8B, H100, 32, 4, held=4064)
    paged = cost.predict_prefill(LLAMA_3_8B, H100, 32, 4, held=4064, cache="paged")
    gathered = 2 * cost.kv_bytes(LLAMA_3_8B, 4096, 4, "bf16")
    assert paged.seconds - static.seconds == pytest.approx(gathered / H100.bandwidth)


def measured_chip(**changes):
    """A machine whose operators reach half of its ceilings."""
    reached = Achieved(
        matmul=((1, 0.25e9), (512, 50e9)),
        attention=((1024, 25e9),),
        cache_read=((1, 5e9),),
        elementwise=((1, 8e9),),
    )
    fields = {"overhead_s": 1e-5, "kind": "measured", "achieved": {"fp32": reached}} | changes
    return Chip("half", {"fp32": 100e9}, 10e9, 16e9, **fields)


def test_a_measured_prediction_uses_what_was_reached():
    """One row: weights at 0.25 GFLOP/s x 2 B/FLOP are slower than at 10 GB/s; and the step is still memory-bound."""
    step = cost.predict_decode(SMOL, measured_chip(), context=1, dtype="fp32")
    matrices = sum(m.weights for m in cost.matmuls(SMOL))
    assert step.parts["projections"] + step.parts["mlp"] + step.parts["head"] == pytest.approx(
        2 * matrices / 0.25e9
    )
    others = cost.operators(SMOL) - (4 * SMOL.num_layers + 1)  # a product was measured with its start
    assert step.parts["overhead"] == pytest.approx(others * 1e-5)
    assert step.bound_by == "memory"
    prefill = cost.predict_prefill(SMOL, measured_chip(), 1024, dtype="fp32")
    assert prefill.parts["mlp"] == pytest.approx(cost.prefill_flops(SMOL, 1024).mlp / 50e9)
    assert prefill.parts["attention"] == pytest.approx(cost.prefill_flops(SMOL, 1024).attention / 25e9)
    assert prefill.bound_by == "compute"


def test_overhead_adds_on_a_cpu_and_hides_on_a_gpu():
    work = cost.predict_decode(SMOL, measured_chip(overhead_s=0.0), 1, dtype="fp32").seconds
    waiting = (cost.operators(SMOL) - 4 * SMOL.num_layers - 1) * 1e-5
    assert cost.predict_decode(SMOL, measured_chip(), 1, dtype="fp32").seconds == pytest.approx(
        work + waiting
    )
    gpu = measured_chip(overhead_s=1.0, asynchronous=True)
    step = cost.predict_decode(SMOL, gpu, 1, dtype="fp32")
    assert step.seconds == cost.operators(SMOL) and step.bound_by == "overhead"
    assert cost.predict_decode(SMOL, gpu, 1, dtype="fp32", overhead_operators=0).seconds == pytest.approx(
        work
    )


def test_operators_between_weights_start_cold():
    """Left out at first: in batch 1 the forecast missed 7 % of the step, as the probe's own step fits the caches."""
    warm = cost.predict_decode(SMOL, measured_chip(), 1, dtype="fp32")
    cold_chip = measured_chip(cold_overhead=((1, 3e-5), (2, 4e-5)), cache_bytes=32e6)
    cold = cost.predict_decode(SMOL, cold_chip, 1, dtype="fp32")
    assert cold.parts["overhead"] == pytest.approx(3 * warm.parts["overhead"])
    rows = cost.predict_decode(SMOL, cold_chip, 1, 8, "fp32")
    assert rows.parts["overhead"] == pytest.approx(4 * warm.parts["overhead"]), "by rows"
    small = SMOL.with_(vocab_size=1000, num_layers=2)  # 16 MB of weights leave the rest where it is
    assert cost.weight_bytes(small, "fp32") < 32e6
    parts = [cost.predict_decode(small, c, 1, dtype="fp32").parts for c in (measured_chip(), cold_chip)]
    assert parts[0] == parts[1]


def test_every_product_pays_for_its_start():
    reached = measured_chip().achieved["fp32"]
    starts = replace(reached, matmul_start=((1, 1e-4), (8, 3e-4)))
    free, paid = (
        cost.predict_decode(SMOL, measured_chip(achieved={"fp32": curves}), 1, 8, "fp32").parts
        for curves in (reached, starts)
    )
    more = {part: paid[part] - free[part] for part in ("projections", "mlp", "head")}
    assert more == {
        "projections": pytest.approx(60 * 3e-4), "mlp": pytest.approx(60 * 3e-4), "head": pytest.approx(3e-4)
    }  # fmt: skip


def test_many_rows_move_their_values_at_the_rate_of_many_rows():
    """Flat beyond 512 rows at first: prefills of 4,096 and more were forecast 14 to 19 % too fast."""
    slow = replace(measured_chip().achieved["fp32"], elementwise=((512, 8e9), (4096, 2e9)))
    seconds = [
        cost.predict_prefill(SMOL, measured_chip(achieved={"fp32": slow}), 512, batch, "fp32").parts[
            "elementwise"
        ]
        for batch in (1, 8)
    ]
    assert seconds[1] == pytest.approx(4 * 8 * seconds[0])


def test_smaller_weights_are_not_held_to_the_rate_of_larger_ones():
    """A rate at one row is a reading rate of fp32 weights; int8 weights must be allowed to be faster."""
    whole = cost.predict_decode(SMOL, measured_chip(), 1, dtype="fp32")
    small = cost.predict_decode(SMOL, measured_chip(), 1, dtype="fp32", weight_dtype="int8")
    assert small.parts["mlp"] < whole.parts["mlp"] / 4


def test_a_dynamic_cache_is_copied_at_every_step():
    static = cost.predict_decode(LLAMA_3_8B, H100, 8192, 16)
    dynamic = cost.predict_decode(LLAMA_3_8B, H100, 8192, 16, cache="dynamic")
    copied = 2 * cost.kv_bytes(LLAMA_3_8B, 8192, 16, "bf16")
    assert dynamic.seconds - static.seconds == pytest.approx(copied / H100.bandwidth)
    assert cost.predict_decode(LLAMA_3_8B, H100, 8192, 16, cache="paged") == dynamic


def test_max_batch_is_the_last_that_is_fast_enough_and_fits():
    batch = cost.max_batch(LLAMA_3_8B, H100, 4096, tpot=0.02)
    assert cost.predict_decode(LLAMA_3_8B, H100, 4096, batch).seconds <= 0.02
    users = cost.max_users(H100.memory, LLAMA_3_8B, 4096)
    assert batch == users or cost.predict_decode(LLAMA_3_8B, H100, 4096, batch + 1).seconds > 0.02
    assert cost.max_batch(LLAMA_3_8B, H100, 4096, tpot=1.0) == users
    assert cost.max_batch(LLAMA_3_8B, H100, 4096, tpot=1e-6) == 0


def test_max_users_fill_the_memory_and_no_more():
    users = cost.max_users(24e9, LLAMA_3_8B, 8192, reserve=0.1)
    used = [cost.weight_storage(LLAMA_3_8B) + cost.kv_bytes(LLAMA_3_8B, 8192, n) for n in (users, users + 1)]
    assert used[0] <= 0.9 * 24e9 < used[1]


def test_where_the_cache_overtakes_the_weights_they_are_equal():
    batch = cost.overtaking_batch(SMOL, 512, "fp32", "fp32", read=True)
    moved = cost.step_bytes(SMOL, 1, 512, "fp32")
    assert moved.cache_read * batch == pytest.approx(moved.weights)


def test_price_of_a_million_tokens():
    assert cost.cost_per_million_tokens(3.6, 1000) == pytest.approx(1.0)


# -- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("e4m3", torch.float8_e4m3fn),
        ("e5m2", torch.float8_e5m2),
    ],
)
def test_largest_values_are_those_of_torch(name, dtype):
    assert cost.FLOATS[name].largest == torch.finfo(dtype).max


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_values_are_those_of_every_code(name, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    assert cost.FLOATS[name].values() == sorted(codes[codes.isfinite()].tolist())


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4"])
def test_block_formats_take_what_gguf_says(name):
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert cost.bits_per_weight(name.lower()) == 8 * size / values


def test_a_dtype_has_one_name():
    names = [torch.bfloat16, "torch.bfloat16", "bfloat16", "BF16"]
    assert {cost.dtype_name(name) for name in names} == {"bf16"}
    assert cost.bytes_per_value(torch.float16) == 2 and cost.bytes_per_value(0.5625) == 0.5625


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: cost.bytes_per_value("fp17"),
        lambda: cost.bytes_per_value(0),
        lambda: cost.grouped_bits(4, 16, 0),
        lambda: cost.kv_saving(9, 2),
        lambda: cost.wasted_share(2, 1),
        lambda: cost.max_users(1e9, SMOL, 10, reserve=1.0),
        lambda: cost.prefill_flops(SMOL, 0),
        lambda: cost.predict_prefill(SMOL, H100, 0),
        lambda: cost.predict_prefill(SMOL, H100, 32, held=-1),
        lambda: cost.predict_decode(SMOL, H100, 5, 0),
        lambda: cost.intensity(1, 0),
        lambda: cost.expected_tokens(1.5, 4),
        lambda: cost.end_to_end(1, 1, 0),
        lambda: cost.cost_per_million_tokens(1, 0),
        lambda: cost.cached_prompt_price(0),
        lambda: cost.cached_prompt_break_even(read=1.0),
        lambda: cost.FLOATS["fp32"].values(),
        lambda: CHIPS["T4"].peak("bf16"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(call):
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        call()


def test_no_torch_is_loaded():
    """The calculators run where torch is not installed."""
    code = "import sys, lumen.cost, lumen.hardware, lumen.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mixture_of_experts_stores_all_and_uses_some():
    """Mixtral 8x7B: 46.7 B parameters, 12.9 B of them active (Jiang et al. 2024, table 2 and section 2.1)."""
    dense = ModelConfig("mixtral", 32000, 32, 4096, 32, 8, 128, 14336, 32768, tied=False)
    mixtral = dense.with_(experts=Experts(8, 2, 14336), family="mixtral")
    parts = cost.parameters(mixtral)
    assert (parts.total, parts.active) == (46_702_792_704, 12_879_925_248)
    assert cost.parameters(dense).active == cost.parameters(dense).total
    router, mlp = 32 * 8 * 4096, 32 * 3 * 4096 * 14336
    assert cost.flops_per_token(mixtral).mlp == 2 * (2 * mlp + router)
    one, many = (
        cost.weight_bytes(mixtral, 1, batch) - cost.weight_bytes(dense, 1, batch) for batch in (1, 1000)
    )
    assert one == mlp + router and many == pytest.approx(7 * mlp + router)
    two = cost.weight_bytes(mixtral, 1, 2) - cost.weight_bytes(dense, 1, 2)
    assert two == pytest.approx(8 * (1 - 0.75**2) * mlp - mlp + router)


def test_layers_of_two_kinds_and_layers_that_share():
    """Gemma's windows in five of six layers; two layers that read one cache; one latent for all heads."""
    base = ModelConfig("x", 100, 6, 64, 4, 2, 16, 64, 4096)
    gemma = base.with_(window=10, full_layers=(5,))
    per_layer = 2 * 2 * 16
    assert cost.kv_bytes(gemma, 100, dtype=1) == per_layer * (5 * 10 + 100)
    assert cost.step_flops(gemma, 1, 100).attention == 4 * 64 * (5 * 10 + 100)
    pairs = 5 * cost.causal_pairs(40, 3, 10) + cost.causal_pairs(40, 3)
    assert cost.prefill_flops(gemma, 40, cached=3).attention == 4 * 64 * pairs
    shared = base.with_(kv_from=(0, 0, 2, 2, 4, 4))
    assert cost.kv_bytes_per_token(shared, 1) == 3 * per_layer
    assert cost.kv_bytes(shared, 100, dtype=1) == 3 * per_layer * 100
    assert cost.kv_read_bytes(shared, 100, dtype=1) == 6 * per_layer * 100, "each layer reads, whoever stores"
    assert cost.step_bytes(shared, 1, 100, 1).cache_read == cost.step_bytes(base, 1, 100, 1).cache_read
    assert cost.kv_read_bytes(gemma, 100, 2, 1) == cost.kv_bytes(gemma, 100, 2, 1)
    assert cost.parameters(base).projections - cost.parameters(shared).projections == 3 * 2 * 32 * 64
    latent = base.with_(latent=Latent(24, 8))
    assert cost.kv_bytes_per_token(latent, 1) == cost.mla_bytes_per_token(6, 24, 8, 1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 10**400, "3", None, True, [1]])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: cost.end_to_end(x, 0.1, 3),
        lambda x: cost.end_to_end(0.1, x, 3),
        lambda x: cost.tpot_of_rate(x),
        lambda x: cost.requests_per_s(10.0, x),
        lambda x: cost.cost_per_million_tokens(x, 10.0),
        lambda x: cost.cost_per_million_tokens(1.0, x),
        lambda x: cost.cached_prompt_price(2, x),
        lambda x: cost.speculative_speedup(0.5, 3, x),
        lambda x: cost.predict_decode(CONFIGS["llama-3-8b"], CHIPS["H100 SXM"], x),
        lambda x: cost.predict_prefill(CONFIGS["llama-3-8b"], CHIPS["H100 SXM"], 8, held=x),
        lambda x: cost.prefill_flops(CONFIGS["llama-3-8b"], x),
    ],
)
def test_a_number_that_is_none_gets_a_sentence_and_no_price(call, wrong):
    """NaN passed every `< 1`, and 1e400 became a price of inf."""
    with pytest.raises(ValueError, match=r"must be a finite number"):
        call(wrong)
