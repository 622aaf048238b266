"""The cache ledger against the configurations that transformers carries, and against the cost model."""

from __future__ import annotations

import pytest

from lumen import cost
from lumen.config import CONFIGS
from lumen.cost.ledger import PUBLISHED, Held, Layers, held, ledger
from lumen.parts import Latent

from .tiny import tiny_llama

ROWS = {row.name: row for row in ledger()}


@pytest.mark.parametrize("tokens", [1, 127, 128, 513, 5000, 131_072])
@pytest.mark.parametrize(
    "name, kind",
    [("gpt-oss-120b", "GptOssConfig"), ("deepseek-v3", "DeepseekV3Config"), ("falcon-7b", "FalconConfig"),
     ("gemma-3n-e4b", "Gemma3nTextConfig")],
)  # fmt: skip
def test_the_ledger_is_what_transformers_would_cache(name, kind, tokens):
    """Layer by layer over its default configuration, which is this model's."""
    import transformers

    config = getattr(transformers, kind)()
    storing = config.num_hidden_layers - getattr(config, "num_kv_shared_layers", 0)
    windows = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    numbers = 0
    for layer in range(storing):
        seen = min(tokens, config.sliding_window) if windows[layer] == "sliding_attention" else tokens
        if hasattr(config, "kv_lora_rank"):
            numbers += seen * (config.kv_lora_rank + config.qk_rope_head_dim)
        elif getattr(config, "multi_query", False):
            numbers += seen * 2 * config.hidden_size // config.num_attention_heads
        else:
            numbers += seen * 2 * config.num_key_value_heads * config.head_dim
    assert ROWS[name].bytes(tokens) == 2 * numbers


@pytest.mark.parametrize(
    "changes",
    [{}, {"window": 7}, {"window": 7, "full_layers": (1,)}, {"kv_from": (0, 0, 2)}, {"num_kv_heads": 9},
     {"num_kv_heads": 1, "kv_from": (0, 0, 0)}, {"latent": Latent(16, 4)}],
)  # fmt: skip
@pytest.mark.parametrize("tokens", [1, 6, 7, 8, 60])
def test_a_row_is_what_the_cost_model_counts(changes, tokens):
    config = tiny_llama().config.with_(**changes)
    assert held(config).bytes(tokens, "fp32") == cost.kv_bytes(config, tokens, dtype="fp32")


def test_what_a_row_is_called():
    base = tiny_llama().config
    assert held(base).kind == "GQA 9/3"
    assert held(base.with_(num_kv_heads=9, window=5)).kind == "MHA, window"
    assert held(base.with_(num_kv_heads=1, kv_from=(0, 0, 2))).kind == "MQA, shared layers"
    assert held(base.with_(latent=Latent(16, 4))).kind == "MLA"


def test_worked_numbers():
    """K1, K3, K16, and DeepSeek-V2's 93.3 % of K13, of which MLA alone is 82.2 %."""
    assert ROWS["llama-2-7b"].bytes(1) == 512 * 2**10 == 4 * ROWS["llama-3-8b"].bytes(1)
    assert ROWS["deepseek-v3"].bytes(1) == 70_272
    saved = 1 - ROWS["deepseek-v2"].bytes(1) / ROWS["deepseek-67b"].bytes(1)
    assert saved == pytest.approx(0.8224, abs=5e-5)
    assert 1 - (1 - saved) * 6 / 16 == pytest.approx(0.9334, abs=5e-5)


def test_users_are_whole_and_weights_are_left_out():
    row = ROWS["llama-3-8b"]
    assert row.users(80e9, 131_072) == 4 and row.users(row.bytes(100), 100) == 1
    assert row.users(row.bytes(100) - 1, 100) == 0 and row.users(-1.0, 100) == 0
    assert row.users(80e9, 131_072, "int8") == 9
    assert ROWS["mistral-7b"].users(80e9, 4096) == ROWS["mistral-7b"].users(80e9, 131_072)


def test_every_row_has_a_source_and_a_name_of_its_own():
    rows = list(ledger())
    assert len({row.name for row in rows}) == len(rows) >= len(PUBLISHED) + 6
    assert all(row.source and row.kind for row in rows) and "gptlite" not in ROWS
    assert {"smollm2-135m", *(name for name in CONFIGS if name != "gptlite")} <= ROWS.keys()


def test_rows_that_cannot_be_are_refused():
    for wrong in ((0, 1, None), (1, 0, None), (1, 1, 0)):
        with pytest.raises(ValueError, match="count from 1"):
            Layers(*wrong)
    row = Held("x", "MHA", (Layers(1, 2),), "nowhere")
    assert row.bytes(0) == 0
    with pytest.raises(ValueError, match="0 tokens or more"):
        row.bytes(-1)
    with pytest.raises(ValueError, match="1 token or more"):
        row.users(1.0, 0)
