"""Chapter 12 summed up: what was found, and what engines do. Its figures and sentences stand in `ch12_*`, by idea."""

from __future__ import annotations

from collections.abc import Sequence

from lumen import cost
from lumen.bench.numbers import percent, size
from lumen.pages.ch12_bytes import NEW, OLD, V3, on_each
from lumen.pages.ch12_latents import even
from lumen.pages.ch12_losses import average, left_of, losses_of
from lumen.pages.ch12_steps import Kept, contexts_of, gain_of
from lumen.pages.comparing import faster

NOT_PUBLISHED = (
    "These numbers come from a published measurement, `fewer_kv_heads`, which this copy of the course does not have: "
    "`python benchmarks/fewer_kv_heads.py` makes it."
)


def recap(
    base: Sequence[float], pooled: Sequence[float], latent: Sequence[float], rank: int, kept: Kept | None
) -> str:
    """The objectives again, with the numbers of this run and of the published one."""
    lines = [
        "- **What it cost Llama-3-8B** cannot be looked up: its twin with 32 stored heads was never published. Where "
        "twins were, grouped heads came out level with all heads on most tasks (30 billion weights, Llama 2) and "
        "behind them on four hard ones (7 billion, DeepSeek-V2).",
        f"- **Bytes:** $2\\,L\\,H_{{kv}}\\,D\\,b$ for heads, $L\\,(r + D_R)\\,b$ for latents: "
        f"{size(cost.kv_bytes_per_token(OLD))} a token in Llama-2-7B, {size(cost.kv_bytes_per_token(NEW))} in "
        f"Llama-3-8B, {size(cost.kv_bytes_per_token(V3))} in DeepSeek-V3.",
        f"- **A conversion is a start:** two means of four heads put gptlite from {average(base):.3f} to "
        f"{average(pooled):.2f} nats on {len(base)} windows of unseen text; a latent of {rank} "
        f"numbers, as many, chosen by some text, to {average(latent):.3f}.",
        f"- **Two ways to read latents,** the same numbers: on a context long beside the new tokens, below "
        f"{even(V3):.0f} of them absorbed (DeepSeek-V3), above expanded.",
        f"- **Chips that split heads:** Llama-3-8B on 16 hold each KV head "
        f"{on_each(NEW, 16) * 16 / on_each(NEW, 1):.0f} times; a latent lies on each of them.",
    ]
    if kept is not None:
        found, last = losses_of(kept), contexts_of(kept)[-1]
        lines.insert(
            3,
            f"- **After {found['gqa2']['recipe']['steps']} steps** {percent(left_of(found['gqa2']))} of what pooling "
            f"had cost was still missing (one seed). A step of four layers with 16 heads of 64, one user, at "
            f"{last:,} tokens: "
            f"{faster(gain_of(kept, 'gqa4', last)[0], 'a quarter of the heads', 'all of them')}.",
        )
    return "\n".join(lines)


PRODUCTION = [
    (
        "vllm",
        "heads from `config.json`; latents absorbed in decode, expanded in prefill",
        "`--tensor-parallel-size` (KV heads are copied beyond their number), `--decode-context-parallel-size`",
        "design/attention_backends/",
    ),
    (
        "sglang",
        "latents lie on one chip each instead of on all: requests are dealt out, not heads",
        "`--enable-dp-attention`, `--dp-size`",
        "basic_usage/deepseek_v3",
    ),
    (
        "tensorrt-llm",
        "MHA, MQA, GQA and MLA kernels; attention by requests for MLA",
        "`enable_attention_dp`",
        "https://nvidia.github.io/TensorRT-LLM/features/attention.html",
    ),
    (
        "llama.cpp",
        "KV heads from the GGUF's `attention.head_count_kv`; MLA caches latents, absorbed",
        "`deepseek2.attention.kv_lora_rank` in the file",
        "src/models/deepseek2.cpp",
    ),
]
