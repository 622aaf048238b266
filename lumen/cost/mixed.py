"""How long a mixed step takes: chunks of prompts and tokens of answers, computed side by side in one forward.

All their tokens go through one reading of the weights; each sequence reads its own cache. That one sentence is
why batching pays and where it stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lumen.cost.flops import causal_pairs, windows_of
from lumen.cost.linear import CHUNK, state_bytes, state_flops
from lumen.cost.memory import kv_bytes, kv_bytes_per_token, kv_read_bytes
from lumen.cost.predict import CacheKind, Part, Prediction, _matrices, _sum
from lumen.formats import dtype_name
from lumen.hardware import Chip, at
from lumen.models.counts import absorbs, expand_flops, pair_flops

if TYPE_CHECKING:
    from lumen.config import ModelConfig


def predict_mixed(
    config: ModelConfig,
    chip: Chip,
    pieces: Sequence[tuple[int, int]],
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    kv_dtype: object = None,
    cache: CacheKind = "static",
    head_rows: int | None = None,
    overhead_operators: int | None = None,
) -> Prediction:
    """Seconds of one step over `pieces`: (positions that are cached, tokens computed behind them), one a sequence.

    An answer's next token at context 100 is (99, 1). `head_rows` are the rows that are sampled, by default one a
    piece. The other arguments are those of `predict_decode` and `predict_prefill`, whose times this gives for
    pieces that are all alike and of one token, or for a single piece.
    """
    if not pieces or any(held < 0 or count < 1 for held, count in pieces):
        raise ValueError("A step needs a piece at least, each of (cached, 0 or more; computed, 1 or more).")
    kv = dtype if kv_dtype is None else kv_dtype
    tokens = sum(count for _, count in pieces)
    parts = _matrices(
        config, chip, tokens, len(pieces) if head_rows is None else head_rows, dtype, weight_dtype
    )
    curves = chip.achieved.get(dtype_name(dtype))
    absorbed = absorbs(config, tokens / len(pieces))  # latent attention reads a step in one way
    work = pair_flops(config, absorbed) * len(windows_of(config))
    made = 0 if absorbed else expand_flops(config) * len(windows_of(config))
    states = 2 * state_bytes(config, 1, kv) / chip.bandwidth  # read and written, by each sequence
    answers = [held for held, count in pieces if count == 1 and held]
    memory = compute = 0.0
    if answers:  # each reads its own keys and values once; few operations for many bytes
        speed = at(curves.cache_read, len(answers)) if curves else chip.bandwidth
        memory = (
            sum(kv_read_bytes(config, held + 1, dtype=kv) for held in answers) / speed + len(answers) * states
        )
        seen = ((causal_pairs(1, held, config.window), held) for held in answers)
        done = sum(work * pairs + made * held + state_flops(config) for pairs, held in seen)
        compute = done / chip.peak(dtype)
    attention = max(memory, compute)
    by_memory, by_compute = (attention, 0.0) if memory >= compute else (0.0, attention)
    for held, count in pieces:
        if count > 1 or not held:  # a piece of a prompt
            rate = at(curves.attention, held + count) if curves else chip.peak(dtype)
            inside = count * state_flops(config, None if count == 1 else min(count, CHUNK)) + made * held
            compute = (work * causal_pairs(count, held, config.window) + inside) / rate
            memory = (kv_read_bytes(config, held, dtype=kv) / chip.bandwidth if held else 0.0) + states
            by_memory += memory if memory > compute else 0.0
            by_compute += compute if memory <= compute else 0.0
    parts["attention"] = Part(by_memory + by_compute, "memory" if by_memory >= by_compute else "compute")
    copied = 0.0
    if cache != "static":
        copied = 2 * sum(kv_bytes(config, held + count, dtype=kv) for held, count in pieces)
    written = kv_bytes_per_token(config, kv) * tokens + copied
    parts["cache"] = Part(written / chip.bandwidth, "memory")
    return _sum(config, chip, parts, tokens, dtype, weight_dtype, overhead_operators)
