"""T45: GGUF tensors are those of two trusted readers, and the permutation of q and k is undone with the right heads."""

from __future__ import annotations

from pathlib import Path

import gguf as reference
import numpy as np
import pytest
import torch

from lumen.config import CONFIGS
from lumen.io.errors import BadFile
from lumen.io.gguf import read_config, read_state, unpermute
from lumen.io.gguf_header import read_header
from lumen.models.weights import hf_shapes


def read(path: Path):  # type: ignore[no-untyped-def]
    header, config = read_config(path, path.stem)
    return config, dict(read_state(path, header, config))


def transformers_state(path: Path) -> dict[str, torch.Tensor]:
    """What transformers' own GGUF loader makes of the file."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return {
        name: value
        for name, value in model.state_dict().items()
        if name != "lm_head.weight" or not tied(model)
    }


def tied(model) -> bool:  # type: ignore[no-untyped-def]
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize(("heads", "kv_heads", "tie"), [(9, 3, True), (4, 4, False), (6, 1, True)])
def test_every_tensor_equals_transformers(
    make_gguf, tiny_shape, tmp_path, heads: int, kv_heads: int, tie: bool
) -> None:  # type: ignore[no-untyped-def]
    """9 query and 3 key heads: undoing k with 9 heads leaves its rows in another order, and nothing crashes."""
    shape = tiny_shape(heads=heads, kv_heads=kv_heads, head_dim=32, width=32 * heads, tied=tie)
    path = make_gguf(tmp_path / "model.gguf", shape)
    config, ours = read(path)
    theirs = transformers_state(path)
    assert config.tied is tie and ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name].numpy(), rtol=1e-6, atol=1e-6, err_msg=name)


def test_smollm_tensors_equal_the_gguf_packages_own_reader(smollm_gguf: Path) -> None:
    """Every value of every tensor, q and k after sorting their rows into the other order."""
    config, ours = read(smollm_gguf)
    assert config.with_(source="", name="") == CONFIGS["smollm2-135m"].with_(source="", name="")
    assert {name: value.shape for name, value in ours.items()} == hf_shapes(config)
    reader = reference.GGUFReader(smollm_gguf)
    assert len(reader.tensors) == len(ours) == 272
    half = config.head_dim // 2
    for tensor, (name, value) in zip(
        sorted(reader.tensors, key=lambda t: t.name), by_gguf_name(ours), strict=True
    ):
        expected = reference.quants.dequantize(tensor.data, tensor.tensor_type)
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if heads:  # llama.cpp's row 2i is our row i, its row 2i + 1 is our row D/2 + i, in each head
            rows = [
                head * 2 * half + 2 * i + odd for head in range(heads) for odd in (0, 1) for i in range(half)
            ]
            expected = expected[rows]
        assert np.array_equal(value, expected), tensor.name


def by_gguf_name(state: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Our tensors in the order of llama.cpp's names for them."""
    parts = {
        "input_layernorm": "attn_norm",
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip

    def key(name: str) -> str:
        words = name.split(".")
        if "layers" not in words:
            return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[words[1]]
        return f"blk.{words[2]}.{parts[words[-2]]}.weight"

    return sorted(state.items(), key=lambda item: key(item[0]))


def test_unpermute_undoes_llama_cpps_permutation() -> None:
    for heads, dim in ((9, 64), (3, 64), (1, 2), (5, 6)):
        weight = np.arange(heads * dim * 7, dtype=np.float32).reshape(heads * dim, 7)
        permuted = weight.reshape(heads, 2, dim // 2, 7).swapaxes(1, 2).reshape(heads * dim, 7)
        np.testing.assert_array_equal(unpermute(permuted, heads), weight)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q5_1", "BF16"])
def test_other_storage_types(make_gguf, tmp_path, kind: str) -> None:  # type: ignore[no-untyped-def]
    path = make_gguf(tmp_path / "model.gguf", kind=kind)
    assert read_header(path).tensors["token_embd.weight"].kind.name == kind
    _, exact = read(make_gguf(tmp_path / "exact.gguf", kind="F32"))
    for name, value in read(path)[1].items():
        assert cosine(value, exact[name]) > 0.98, name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"general__architecture": "qwen3moe"}, "'qwen3moe' model"),
        ({"llama__expert_count": 8}, "llama.expert_count = 8"),
        ({"llama__rope__scaling__type": "yarn"}, "scaling"),
        ({"llama__rope__dimension_count": 4}, "part of each head"),
        ({"llama__block_count": 3}, "lacks blk.2"),
        (
            {"llama__block_count": 4_000_000_000},
            r"block_count is 4000000000, .* from 1 to 10,000",
        ),
        ({"llama__block_count": 1}, "holds blk.1"),
        ({"llama__feed_forward_length": 31}, "shape"),
        ({"llama__attention__head_count": 0}, r"llama\.attention\.head_count is 0"),
        ({"llama__attention__head_count_kv": 3}, "multiple"),
        ({"llama__embedding_length": "32"}, "embedding_length is '32'"),
        ({"tokenizer__ggml__eos_token_id": "x"}, None),
    ],
)
def test_a_file_that_says_other_things_than_it_holds(make_gguf, tmp_path, change, words) -> None:  # type: ignore[no-untyped-def]
    path = make_gguf(tmp_path / "model.gguf", **change)
    if words is None:
        assert read(path)[0].eos_ids == (0, 2), (
            "an end token that is no number is not one; the control tokens still are"
        )
        return
    with pytest.raises(BadFile, match=words):
        read(path)


def test_an_end_token_outside_the_vocabulary(make_gguf, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from lumen.io.tokenizer_files import from_gguf

    path = make_gguf(tmp_path / "model.gguf", tokenizer__ggml__eos_token_id=99_999)
    with pytest.raises(BadFile, match="outside the vocabulary"):
        from_gguf(read_header(path), path.name)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    for name, content in (
        ("empty", b""),
        ("short", b"GGUF\x03"),
        ("zip", b"PK\x03\x04" + bytes(60)),
        ("big endian", b"GGUF\x00\x00\x00\x03" + bytes(60)),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(BadFile, match="GGUF file"):
            read_header(file)
    with pytest.raises(BadFile, match="There is no file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(BadFile, match="There is no file"):
        read_header(tmp_path)
