"""Numbers out of their range in a config.json or in a GGUF's metadata: one sentence that names the field, at once."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from lumen.config import CONFIGS
from lumen.io.convert import hf_folder
from lumen.io.errors import BadFile
from lumen.io.gguf import read_config
from lumen.io.hf_config import FAMILIES, from_hf
from lumen.io.load import load
from lumen.parts import RopeScaling

NAN, INF = float("nan"), float("inf")
PLAIN = {
    "model_type": "llama", "vocab_size": 97, "num_hidden_layers": 3, "hidden_size": 72, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 100, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "eos_token_id": 2,
}  # fmt: skip
GEMMA = {"model_type": "gemma3_text", "sliding_window": 8, "head_dim": 8}
QWEN = {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8, "head_dim": 8}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {"model_type": "deepseek_v3", "kv_lora_rank": 21, "q_lora_rank": 17, "qk_nope_head_dim": 8, "v_head_dim": 5,
            "qk_rope_head_dim": 6, "first_k_dense_replace": 3}  # fmt: skip
SIZES = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
NO_SIZE = (0, -1, 10**9, 10**400, True, "8", 8.0, NAN, INF, [8], {}, None)
NO_NUMBER = (0, -1e-5, NAN, INF, -INF, 10**400, True, "1e-5", [1.0], {})
BAD = [
    *((field, {field: value}) for field in SIZES for value in NO_SIZE),
    *((f, {f: v}) for f in ("num_key_value_heads", "head_dim") for v in NO_SIZE if v is not None),
    *((field, {field: value}) for field in ("rms_norm_eps", "rope_theta") for value in NO_NUMBER),
    ("rms_norm_eps", {"rms_norm_eps": 2.0}),
    ("rope_theta", {"rope_theta": 1}),
    *(("eos_token_id", {"eos_token_id": v}) for v in ([[2]], {}, "2", 2.0, True, -1, 97, [2, 97], [2, None], 10**400)),
    *(("bos_token_id", {"bos_token_id": v}) for v in ([[2]], "1", True, -1, 97)),
    ("hidden_size", {"hidden_size": 73}),  # nine heads
    ("head_dim", {"head_dim": 7}),
    ("query heads", {"num_key_value_heads": 2}),
    *(("tie_word_embeddings", {"tie_word_embeddings": v}) for v in ("no", 1, [])),
    *(("model", {"model_type": v}) for v in ([], {}, 7, "x" * 10_000)),
    *(("rope_parameters", {"rope_parameters": v}) for v in ("x", [1], 7)),
    *(("rope_type", {"rope_parameters": {"rope_type": v}}) for v in (7, [])),
    *(("factor", {"rope_parameters": {"rope_type": "linear", "factor": v}}) for v in (*NO_NUMBER, 0.5, None)),
    *((f, {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 64, f: v}})
      for f in ("low_freq_factor", "high_freq_factor") for v in NO_NUMBER),
    *(("original_max_position_embeddings",
       {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": v}}) for v in (-1, "64", True, 0.5)),
    *((f, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, f: v}})
      for f in ("beta_fast", "beta_slow", "attention_factor") for v in NO_NUMBER),
    *(("mscale", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": v, "mscale_all_dim": 1.0}})
      for v in (-1.0, NAN, "1", [1])),
    *(("query_pre_attn_scalar", {**GEMMA, "query_pre_attn_scalar": v}) for v in NO_NUMBER),
    *(("rope_local_base_freq", {**GEMMA, "rope_local_base_freq": v}) for v in NO_NUMBER),
    *(("sliding_window_pattern", {**GEMMA, "sliding_window_pattern": v}) for v in (0, -1, "6", True)),
    ("sliding_attention", {**GEMMA, "rope_parameters": {"sliding_attention": "x"}}),
    *(("sliding_window", {**QWEN, "sliding_window": v}) for v in (0, -4, "8", True, 10**400)),
    *(("use_sliding_window", {**QWEN, "use_sliding_window": v}) for v in ("yes", 1)),
    *(("max_window_layers", {**QWEN, "max_window_layers": v}) for v in (-1, "x", 1.5)),
    *(("layer_types", {**QWEN, "layer_types": v}) for v in ("x", 3, ["full_attention"])),
    ("layers of the kind", {**QWEN, "layer_types": [["full_attention"]] * 3}),
    *((f, {**MIXTRAL, f: v}) for f in ("num_local_experts", "num_experts_per_tok") for v in (0, True, "2", 10**9)),
    *((f, {**DEEPSEEK, f: v}) for f in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
      for v in NO_SIZE),
    *((f, {**DEEPSEEK, f: v}) for f in ("q_lora_rank", "first_k_dense_replace") for v in (-1, True, "8", 10**400)),
    *(("mscale_all_dim", {**DEEPSEEK, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale_all_dim": v}})
      for v in (-1.0, NAN, "1", [1])),
]  # fmt: skip


def test_the_plain_one_is_read():
    """Or the refusals below would prove nothing."""
    for more in ({}, GEMMA, QWEN, MIXTRAL, DEEPSEEK, {"num_key_value_heads": None}, {"eos_token_id": [2, 3]}):
        assert from_hf({**PLAIN, **more}, "x").num_layers == 3


@pytest.mark.parametrize(("field", "changes"), BAD)
def test_a_config_json_out_of_range_is_refused_by_name(field: str, changes: dict[str, object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match=field) as refused:
            from_hf({**PLAIN, **changes}, "x")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 400 and str(refused.value).endswith((".", ".)"))


@pytest.mark.parametrize("kind", FAMILIES)
def test_values_of_any_kind_in_any_field_are_read_or_refused(kind: str) -> None:
    """Whatever JSON can hold, in every field that is looked at: a model or a sentence, never another exception."""
    said = {
        **PLAIN, **GEMMA, **QWEN, **MIXTRAL, **DEEPSEEK, "moe_intermediate_size": 8, "norm_topk_prob": True,
        "model_type": kind,
        "tie_word_embeddings": True, "bos_token_id": 1, "attention_bias": False, "layer_types": None,
        "sliding_window_pattern": 6, "max_window_layers": 2, "query_pre_attn_scalar": 8, "rope_parameters": None,
        "rope_scaling": None, "partial_rotary_factor": 1.0, "rope_local_base_freq": 1e4, "hidden_act": "silu",
    }  # fmt: skip
    if kind == "gemma3_text":
        said["hidden_act"] = None
    from_hf(said, "x")
    values = [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**63,
        10**400,
        0.5,
        NAN,
        INF,
        -INF,
        "",
        "8",
        [],
        [[]],
        [{}],
        {},
        {"a": []},
    ]
    refused = 0
    for field in said:
        for value in values:
            try:
                from_hf({**said, field: value}, "x")
            except BadFile:
                refused += 1
    assert refused > 100


GGUF = {
    "llama.block_count": (0, 10**9, "2", 2.0),
    "llama.embedding_length": (0, 2**31, 33),
    "llama.attention.head_count": (0, 2**31),
    "llama.attention.head_count_kv": (0, 2**31),
    "llama.attention.key_length": (0, 2**31),
    "llama.feed_forward_length": (0, 2**31),
    "llama.context_length": (0, 2**31, "64"),
    "llama.vocab_size": (0, 2**31),
    "llama.attention.layer_norm_rms_epsilon": (0.0, -1e-5, NAN, INF, -INF, 2.0, "x"),
    "llama.rope.freq_base": (0.0, -1.0, 1.0, NAN, INF, "x"),
    "tokenizer.ggml.bos_token_id": (99_999, "x"),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in GGUF.items() for value in values]
)
def test_metadata_out_of_range_is_refused_by_name(make_gguf, tmp_path, field: str, value: object) -> None:  # type: ignore[no-untyped-def]
    changed = {field.replace(".", "__"): value}
    if field.endswith("embedding_length") and value == 33:
        path = make_gguf(tmp_path / "odd.gguf", **changed)
        path.write_bytes(
            path.read_bytes().replace(b"llama.attention.key_length", b"llama.attention.key_lengtx")
        )
    else:
        path = make_gguf(tmp_path / "odd.gguf", **changed)
    with pytest.raises(BadFile, match=field.replace(".", r"\.")):
        read_config(path, "odd")


@pytest.mark.parametrize(
    ("kind", "factor", "original"),
    [("linear", NAN, 64), ("linear", INF, 64), ("yarn", 2.0, 0), ("yarn", 2.0, 2**31), ("yarn", 2.0, "64")],
)
def test_metadata_of_a_scaling_that_is_none(make_gguf, tmp_path, kind, factor, original) -> None:  # type: ignore[no-untyped-def]
    said = {"type": kind, "factor": factor, "original_context_length": original}
    path = make_gguf(tmp_path / "odd.gguf", **{f"llama__rope__scaling__{key}": v for key, v in said.items()})
    with pytest.raises(BadFile, match=r"factor|original_context_length"):
        read_config(path, "odd")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10_000}, "10,000 layers .* cannot be made of 20 tensors"),
        ({"vocab_size": 2**22}, r"wrong shape: model\.embed_tokens\.weight"),
        ({"hidden_size": 2**20}, "wrong shape"),
        ({"intermediate_size": 2**22}, "wrong shape"),
        ({"num_attention_heads": 2**16}, "hidden_size|wrong shape"),
        ({"head_dim": 2**16}, "wrong shape"),
        (
            {"model_type": "mixtral", "num_local_experts": 2**14, "num_experts_per_tok": 2},
            "cannot be made of",
        ),
    ],
)
def test_a_shape_that_the_tensors_have_not_is_refused_before_a_model_is_made(
    tiny_gguf: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    folder = hf_folder(tiny_gguf, "tiny", tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match=words):
            load(folder, "cpu")
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("norm_eps", "rope_theta", "embed_scale") for value in (0, -1.0, NAN, INF)),
        ("query_scale", -1.0), ("local_theta", NAN), ("num_layers", 10**9), ("num_layers", True), ("eos_ids", ([2],)),
        ("eos_ids", (-1,)), ("eos_ids", (True,)), ("bos_id", 1.0), ("window", True), ("window", 2.5),
    ],
)  # fmt: skip
def test_a_description_made_in_python_has_the_same_limits(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"ModelConfig|Token ids|window"):
        CONFIGS["smollm2-135m"].with_(**{field: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"factor": NAN},
        {"factor": INF},
        {"attention_factor": 0.0},
        {"attention_factor": NAN},
        {"beta_fast": INF},
        {"beta_slow": NAN},
    ],
)
def test_a_scaling_made_in_python_has_them_too(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"factor|beta"):
        RopeScaling("yarn", **{"factor": 2.0, "original_positions": 64, **wrong})
