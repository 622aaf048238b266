"""Worked numbers of the literature, recomputed by the functions that the chapters call.

One test a row, named by the row's id. `WRONG` holds statements found in print that do not stand: for each the
printed value is shown to differ from the right one, so that nobody "mends" the formula towards the print.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from lumen import cost
from lumen.config import CONFIGS
from lumen.explore.explorers.kv_stepper import totals
from lumen.hardware import CHIPS, Chip, ridge

LLAMA_2_7B, LLAMA_2_70B, LLAMA_3_8B = CONFIGS["llama-2-7b"], CONFIGS["llama-2-70b"], CONFIGS["llama-3-8b"]
KIB, GIB = 2**10, 2**30
SEVEN, SEVENTY = 7e9, 70e9  # parameters, as the introductions round them
H100 = CHIPS["H100 SXM"]


def printed(tera: float, terabytes: float) -> Chip:
    """A chip with the rounded figures that a text prints."""
    return Chip("as printed", {"bf16": tera * 1e12, "fp16": tera * 1e12}, terabytes * 1e12, 80e9)


A100 = printed(312, 2.0)  # the round figures of most introductions
MHA_GELU = LLAMA_2_7B.with_(mlp="gelu", intermediate_size=4 * 4096)


def close(value: float, digits: float = 1e-3):
    return pytest.approx(value, rel=digits)


ROWS = [
    ("R1-rounded", lambda: ridge(printed(1000, 3.35)), close(298.5)),
    ("R1-white-paper", lambda: ridge(H100), close(295.3)),
    ("R2", lambda: ridge(A100), 156.0),
    ("R2-80GB-SXM", lambda: ridge(CHIPS["A100 80GB SXM"]), close(153.0)),
    ("R2-80GB-PCIe", lambda: ridge(CHIPS["A100 80GB PCIe"]), close(161.2)),
    ("R2-40GB", lambda: ridge(CHIPS["A100 40GB SXM"]), close(200.6)),
    ("R3-H100", lambda: ridge(printed(990, 3.35)), close(295.5)),
    ("R3-A100", lambda: ridge(A100), 156.0),
    ("R4", lambda: cost.intensity(cost.approx_token_flops(SEVEN), SEVEN * cost.bytes_per_value("bf16")), 1.0),
    ("R5-seconds", lambda: 1 / cost.bandwidth_bound(2 * SEVEN, A100), close(7.0e-3)),
    ("R5-rate", lambda: cost.bandwidth_bound(2 * SEVEN, A100), close(142.9)),
    ("R6", lambda: cost.roofline(1.0, A100) / A100.peak("bf16"), close(0.00641)),
    ("R7", lambda: cost.compute_bound(cost.approx_token_flops(SEVEN), A100), close(22_286)),
    ("R8-flops", lambda: cost.approx_prefill_flops(SEVEN, 2048), 28.672e12),
    ("R8-intensity", lambda: cost.intensity(cost.approx_prefill_flops(SEVEN, 2048), 2 * SEVEN), 2048.0),
    ("R8-seconds", lambda: 1 / cost.compute_bound(cost.approx_prefill_flops(SEVEN, 2048), A100), close(91.9e-3)),
    ("R8-attention", lambda: attention_share(2048), close(0.038, 0.01)),
    ("R9", lambda: 1 / cost.compute_bound(cost.approx_prefill_flops(SEVEN, 2000), A100), close(89.7e-3)),
    ("R10-rate", lambda: cost.bandwidth_bound(2 * SEVENTY, H100), close(23.93)),
    ("R10-two-cards", lambda: cost.bandwidth_bound(SEVENTY, H100), close(47.9)),
    ("R10-H200", lambda: cost.bandwidth_bound(2 * SEVENTY, CHIPS["H200 SXM"]), close(34.3)),
    ("R11-MHA-GELU", lambda: cost.crossover_context(MHA_GELU), 24_576),
    ("R11-llama-3-8b", lambda: cost.crossover_context(LLAMA_3_8B), 26_624),
    ("K1", lambda: cost.kv_bytes_per_token(LLAMA_2_7B), 512 * KIB),
    ("K2-one", lambda: cost.kv_bytes(LLAMA_2_7B, 4096), 2 * GIB),
    ("K2-32", lambda: cost.kv_bytes(LLAMA_2_7B, 4096, 32), 64 * GIB),
    ("K2-decimal", lambda: cost.kv_bytes(LLAMA_2_7B, 4096, 32) / 1e9, close(68.7)),
    ("K3-token", lambda: cost.kv_bytes_per_token(LLAMA_3_8B), 131_072),
    ("K3-8K", lambda: cost.kv_bytes(LLAMA_3_8B, 8192), GIB),
    ("K3-4K", lambda: cost.kv_bytes(LLAMA_3_8B, 4096), GIB / 2),
    ("K4", lambda: cost.kv_bytes_per_token(LLAMA_2_70B), 327_680),
    ("K5-one", lambda: cost.kv_bytes(LLAMA_2_70B, 4096), close(1.342e9)),
    ("K5-one-GiB", lambda: cost.kv_bytes(LLAMA_2_70B, 4096), 1.25 * GIB),
    ("K5-100", lambda: cost.kv_bytes(LLAMA_2_70B, 4096, 100), close(134.2e9)),
    ("K6-one", lambda: cost.kv_bytes(LLAMA_2_70B, 8192), close(2.684e9)),
    ("K6-64", lambda: cost.kv_bytes(LLAMA_2_70B, 8192, 64), 160 * GIB),
    ("K6-64-decimal", lambda: cost.kv_bytes(LLAMA_2_70B, 8192, 64), close(171.8e9)),
    ("K7-weights", lambda: cost.weight_storage(LLAMA_2_7B, "fp16"), 2 * 6_738_415_616),
    ("K7", lambda: cost.overtaking_batch(LLAMA_2_7B, 4096, "fp16"), close(6.28)),
    ("K8", lambda: cost.kv_bytes_per_token(LLAMA_2_7B.with_(num_kv_heads=1)), 16 * KIB),
    ("K9-MQA", lambda: cost.kv_saving(32, 1), 32),
    ("K9-GQA", lambda: cost.kv_saving(64, 8), 8),
    ("K10-empty-prompt", lambda: totals(1, 512).ratio, 256.5),
    ("K10-prompt", lambda: totals(2048, 512).ratio, close(460.9)),
    ("K11", lambda: cost.receptive_field(32, 4096), 131_072),
    ("K12-low", lambda: cost.wasted_share(0.204, 1), close(0.796)),
    ("K12-high", lambda: cost.wasted_share(0.382, 1), close(0.618)),
    ("K15-square", lambda: cost.mla_ratio(latent=4096, num_heads=32, head_dim=128), 0.5),
    ("K15-narrow", lambda: cost.mla_ratio(latent=512, num_heads=6, head_dim=64), close(0.667)),
    ("K16", lambda: cost.mla_bytes_per_token(layers=61, latent=512, rope=64), 70_272),
    ("K17", lambda: 1 / cost.mla_ratio(latent=512, rope=64, num_heads=128, head_dim=128), close(56.9)),
    ("S1", lambda: cost.expected_tokens(0.8, 4), close(3.3616, 1e-6)),
    ("S2", lambda: cost.expected_tokens_limit(0.8), close(5, 1e-9)),
    ("S3", lambda: cost.speculative_speedup(0.8, 4, 0.1), close(2.401)),
    ("S3-best-length", lambda: cost.best_draft_length(0.8, 0.1)[0], 6),
    ("S3-best", lambda: cost.best_draft_length(0.8, 0.1)[1], close(2.470)),
    ("S4-low", lambda: cost.speculative_speedup(0.7, 4, 0.1), close(1.98)),
    ("S4-high", lambda: cost.speculative_speedup(0.9, 4, 0.1), close(2.93, 2e-3)),
    ("S5-low", lambda: cost.expected_tokens(0.85, 1), close(1.85, 1e-9)),
    ("S5-high", lambda: cost.expected_tokens(0.90, 1), close(1.90, 1e-9)),
    ("Q1", lambda: cost.FLOATS["fp16"].largest, 65_504),
    ("Q2-E4M3", lambda: cost.FLOATS["e4m3"].largest, 448),
    ("Q2-E5M2", lambda: cost.FLOATS["e5m2"].largest, 57_344),
    ("Q2-E2M1", lambda: cost.FLOATS["e2m1"].largest, 6),
    ("Q3-BF16", lambda: cost.FLOATS["bf16"].largest, close(3.390e38)),
    ("Q3-FP32", lambda: cost.FLOATS["fp32"].largest, float(np.finfo(np.float32).max)),
    ("Q4-codes", lambda: len(cost.FLOATS["e2m1"].values()), 16),
    ("Q4-values", lambda: len(set(cost.FLOATS["e2m1"].values())), 15),
    ("Q5-fp16-128", lambda: cost.read_speedup(4, 16, 128), close(3.88)),
    ("Q5-fp16-64", lambda: cost.read_speedup(4, 16, 64), close(3.76, 2e-3)),
    ("Q5-fp32-64", lambda: cost.read_speedup(4, 32, 64), close(3.56, 2e-3)),
    ("Q6-MXFP4", lambda: cost.bits_per_weight("mxfp4"), 4.25),
    ("Q6-NVFP4", lambda: cost.bits_per_weight("nvfp4"), 4.5),
    ("Q6-Q4_0", lambda: cost.bits_per_weight("q4_0"), 4.5),
    ("Q6-Q4_K", lambda: cost.bits_per_weight("q4_k"), 4.5),
    ("Q6-Q8_0", lambda: cost.bits_per_weight("q8_0"), 8.5),
    ("Q6-Q6_K", lambda: cost.bits_per_weight("q6_k"), 6.5625),
    ("Q6-INT4", lambda: cost.grouped_bits(4, 32, 64), 4.5),
    ("Q7-16", lambda: cost.two_four_storage(16), 0.5625),
    ("Q7-8", lambda: cost.two_four_storage(8), 0.625),
    ("M1-Mixtral", lambda: cost.active_share(13, 47), close(0.277, 2e-3)),
    ("M1-DeepSeek-V3", lambda: cost.active_share(37, 671), close(0.055, 3e-3)),
    ("P2-16", lambda: cost.bandwidth_bound(13.48e9, A100), close(148.4)),
    ("P2-8", lambda: cost.bandwidth_bound(6.74e9, A100), close(296.7)),
    ("P2-4", lambda: cost.bandwidth_bound(3.37e9, A100), close(593.5)),
    ("P2-MBU-16", lambda: cost.mbu(13.48e9, 1 / 105, A100), close(0.71, 0.01)),
    ("P2-MBU-8", lambda: cost.mbu(6.74e9, 1 / 155, A100), close(0.52, 0.01)),
    ("P2-MBU-4", lambda: cost.mbu(3.37e9, 1 / 200, A100), close(0.34, 0.02)),
    ("T1", lambda: cost.end_to_end(0.5, 0.05, 100), close(5.45, 1e-9)),
    ("T2-slow-reader", lambda: cost.tpot_of_rate(5), 0.2),
    ("T2-fast-reader", lambda: cost.tpot_of_rate(10), 0.1),
    ("T3", lambda: cost.requests_per_s(1000, 10), 100),
    ("C1", lambda: cost.cached_prompt_break_even(), close(1.278)),
    ("C2-2", lambda: cost.cached_prompt_saving(2), close(0.325, 1e-9)),
    ("C2-5", lambda: cost.cached_prompt_saving(5), close(0.67, 1e-9)),
    ("C2-10", lambda: cost.cached_prompt_saving(10), close(0.785, 1e-9)),
    ("C2-100", lambda: cost.cached_prompt_saving(100), close(0.888, 1e-3)),
    ("U2-ridge", lambda: ridge(CHIPS["A100 40GB SXM"], "fp32"), close(12.54)),
    ("U2-vector-add", lambda: cost.elementwise_intensity(1, reads=2, writes=1, dtype="fp32"), 1 / 12),
]  # fmt: skip


def attention_share(prompt: int) -> float:
    """Attention FLOPs of a causal prefill of Llama-2-7B, over 2NP with N = 7e9."""
    return cost.prefill_flops(LLAMA_2_7B, prompt).attention / cost.approx_prefill_flops(SEVEN, prompt)


@pytest.mark.parametrize(("compute", "right"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_row(compute, right):
    assert compute() == right


# What is printed, what is right, and how far apart the two must be to be told apart.
WRONG = [
    ("2-to-4-halves-storage", 0.5, lambda: cost.two_four_storage(16)),
    ("2-to-4-halves-storage-of-8-bits", 0.5, lambda: cost.two_four_storage(8)),
    ("latency-is-TTFT-plus-TPOT-times-n", 0.5 + 0.05 * 100, lambda: cost.end_to_end(0.5, 0.05, 100)),
    ("4-bit-weights-read-4x-faster", 4.0, lambda: cost.read_speedup(4, 16, 128)),
    ("fp4-has-16-values", 16, lambda: len(set(cost.FLOATS["e2m1"].values()))),
    ("cache-saves-256x-whatever-the-prompt", 256, lambda: totals(2048, 512).ratio),
    ("attention-dominates-beyond-6d", 6 * 4096, lambda: cost.crossover_context(LLAMA_3_8B)),
    ("the-A100-ridge-is-156", 156, lambda: ridge(CHIPS["A100 40GB PCIe"])),
    ("5-tokens-a-second-is-50-ms", 0.05, lambda: cost.tpot_of_rate(5)),
]


@pytest.mark.parametrize(("claim", "compute"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_wrong_in_print(claim, compute):
    """The printed value is not what the formula gives: off by 0.9 % at least."""
    assert abs(compute() - claim) / claim > 0.009


def test_312_tera_are_flops_not_multiply_adds():
    """Printed: 312 T multiply-adds a second, 14 billion a token. Both are FLOPs; only the ratio survives."""
    flops = cost.approx_token_flops(SEVEN)
    assert flops == 14e9 and flops / 2 == SEVEN  # 14 G FLOPs, 7 G multiply-adds
    assert A100.peak() / flops == close(22_286) == (A100.peak() / 2) / (flops / 2)


def test_70b_in_bf16_does_not_fit_one_h100():
    """Printed: 24 tokens/s on an H100. The arithmetic holds; the weights do not fit."""
    assert cost.bandwidth_bound(2 * SEVENTY, H100) == close(23.93)
    assert cost.weight_storage(LLAMA_2_70B, "bf16") > H100.memory
    assert cost.max_users(H100.memory, LLAMA_2_70B, 1) == 0
    assert cost.max_users(2 * H100.memory, LLAMA_2_70B, 4096) > 0


def test_prefill_grows_with_the_square_only_in_part():
    """Attention over linear FLOPs of Llama-2-7B is P / 53,406: 3.8 % at 2k, 61 % at 32k."""
    assert attention_share(2048) == pytest.approx(2048 / 53_406, rel=1e-3)
    assert attention_share(32_768) == pytest.approx(0.61, rel=0.01)


def test_a_causal_prefill_crosses_at_twice_the_crossover():
    """Its tokens see half of the prompt on average."""
    context = int(2 * cost.crossover_context(LLAMA_3_8B))
    flops = cost.prefill_flops(LLAMA_3_8B, context)
    assert flops.attention == pytest.approx(flops.linear, rel=1e-4)


def test_caching_a_prompt_pays_from_the_second_use():
    assert cost.cached_prompt_price(1) > 1 and cost.cached_prompt_price(2) < 2
    assert math.ceil(cost.cached_prompt_break_even()) == 2


def test_ranges_of_rates_turn_round():
    """5-10 tokens/s are 100-200 ms; 50-100 ms are 10-20 tokens/s."""
    assert [cost.tpot_of_rate(rate) for rate in (5, 10, 20)] == [0.2, 0.1, 0.05]
