"""The cost model: bytes, FLOPs, time and price of a decoder, from its shape alone.

Pure functions of numbers, `lumen.config.ModelConfig` and `lumen.hardware.Chip`; no torch, no state.
Bytes are B, times are s, rates are 1/s. `dtype` may be a name ("bf16", "q4_0"), a torch dtype, or bytes per
value.

    shapes       matrices, parameters, weight bytes
    memory       KV cache, users that fit
    linear       states of linear layers: bytes, FLOPs
    ledger       the caches of published models
    flops        FLOPs by part, exact and approximate, crossover
    roofline     bytes of a step, intensity, ridge, MFU, MBU
    predict      seconds of a prefill and of a decode step
    waterfall    a measured step taken apart: floor, what each kind of operator adds, what is left
    mixed        seconds of a step over chunks of prompts and answers' tokens together
    speculation  expected tokens and speed-up of drafting
    money        end-to-end latency, price of tokens, prompt caching

Bits of number formats come from `lumen.formats`, the number of operators from `lumen.models.counts`.
"""

from __future__ import annotations

from lumen.cost.flops import (
    Flops,
    active_share,
    approx_layer_flops,
    approx_prefill_flops,
    approx_token_flops,
    causal_pairs,
    crossover_context,
    flops_per_token,
    prefill_flops,
    step_flops,
)
from lumen.cost.linear import state_bytes, state_flops
from lumen.cost.memory import (
    kv_bytes,
    kv_bytes_per_token,
    kv_read_bytes,
    kv_saving,
    max_users,
    mla_bytes_per_token,
    mla_ratio,
    overtaking_batch,
    quantized_bytes_per_token,
    receptive_field,
    wasted_share,
)
from lumen.cost.mixed import predict_mixed
from lumen.cost.money import (
    cached_prompt_break_even,
    cached_prompt_price,
    cached_prompt_saving,
    cost_per_million_tokens,
    end_to_end,
    requests_per_s,
    tpot_of_rate,
)
from lumen.cost.predict import (
    Part,
    Prediction,
    max_batch,
    predict_decode,
    predict_prefill,
)
from lumen.cost.roofline import (
    StepBytes,
    activation_bytes,
    bandwidth_bound,
    bound_by,
    compute_bound,
    elementwise_intensity,
    intensity,
    mbu,
    mfu,
    ridge,
    roofline,
    step_bytes,
    step_intensity,
)
from lumen.cost.shapes import Matmul, Parameters, matmuls, parameters, weight_bytes, weight_storage
from lumen.cost.speculation import (
    best_draft_length,
    expected_tokens,
    expected_tokens_limit,
    paying_length,
    round_seconds,
    speculative_speedup,
)
from lumen.cost.waterfall import waterfall
from lumen.formats import (
    FLOATS,
    FloatFormat,
    bits_per_weight,
    bytes_per_value,
    dtype_name,
    grouped_bits,
    read_speedup,
    two_four_storage,
)
from lumen.models.counts import elementwise_bytes, operators

__all__ = [
    "FLOATS",
    "FloatFormat",
    "Flops",
    "Matmul",
    "Parameters",
    "Part",
    "Prediction",
    "StepBytes",
    "activation_bytes",
    "active_share",
    "approx_layer_flops",
    "approx_prefill_flops",
    "approx_token_flops",
    "bandwidth_bound",
    "best_draft_length",
    "bits_per_weight",
    "bound_by",
    "bytes_per_value",
    "cached_prompt_break_even",
    "cached_prompt_price",
    "cached_prompt_saving",
    "causal_pairs",
    "compute_bound",
    "cost_per_million_tokens",
    "crossover_context",
    "dtype_name",
    "elementwise_bytes",
    "elementwise_intensity",
    "end_to_end",
    "expected_tokens",
    "expected_tokens_limit",
    "flops_per_token",
    "grouped_bits",
    "intensity",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_read_bytes",
    "kv_saving",
    "matmuls",
    "max_batch",
    "max_users",
    "mbu",
    "mfu",
    "mla_bytes_per_token",
    "mla_ratio",
    "operators",
    "overtaking_batch",
    "parameters",
    "paying_length",
    "predict_decode",
    "predict_mixed",
    "predict_prefill",
    "prefill_flops",
    "quantized_bytes_per_token",
    "read_speedup",
    "receptive_field",
    "requests_per_s",
    "ridge",
    "roofline",
    "round_seconds",
    "speculative_speedup",
    "state_bytes",
    "state_flops",
    "step_bytes",
    "step_flops",
    "step_intensity",
    "tpot_of_rate",
    "two_four_storage",
    "wasted_share",
    "waterfall",
    "weight_bytes",
    "weight_storage",
]
