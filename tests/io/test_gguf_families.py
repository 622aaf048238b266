"""GGUF files of the families: transformers' weights written by the `gguf` package, read by us, logits compared."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from lumen.io.convert import hf_folder
from lumen.io.errors import BadFile
from lumen.io.gguf import read_config
from lumen.io.hf_config import to_hf
from lumen.io.load import load
from tests.tiny import relative_error

VOCAB = 262  # of the small files' tokenizer
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def divisors(head_dim: int, scaling: dict[str, float]) -> np.ndarray:
    """What llama.cpp's converter writes for Llama 3.1, after its `LlamaModel.generate_extra_tensors`."""
    found = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * 10000.0 ** (i / head_dim)
        low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
        high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        if wavelength < high:
            found.append(1.0)
        elif wavelength > low:
            found.append(scaling["factor"])
        else:
            smooth = (
                scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]
            ) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(found, np.float32)


@pytest.fixture
def written(make_gguf, tiny_shape, tmp_path):
    """A random model of transformers and the GGUF file that holds it."""

    def write(
        kind: str, rope: dict[str, object] | None = None, extra: np.ndarray | None = None, **metadata: object
    ):
        import transformers

        torch.manual_seed(4)
        described = getattr(transformers, f"{kind}Config")(
            vocab_size=VOCAB, hidden_size=72, intermediate_size=64, num_hidden_layers=2, num_attention_heads=9,
            num_key_value_heads=3, head_dim=32, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.2,
            tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **(rope or {})},
        )  # fmt: skip
        model = getattr(transformers, f"{kind}ForCausalLM")(described).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        arch = kind.lower()
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], 2)
        found = {}
        for name, value in model.state_dict().items():
            if arch == "llama" and ("q_proj" in name or "k_proj" in name):  # LlamaModel.permute
                heads = 9 if "q_proj" in name else 3
                value = value.view(heads, 2, 16, 72).transpose(1, 2).reshape(value.shape)
            found[names.get_name(name, (".weight", ".bias"))] = value.numpy()
        if extra is not None:
            found["rope_freqs.weight"] = extra
        shape = tiny_shape(2, 72, 9, 3, 32, 64, False, arch, found)
        return model, make_gguf(tmp_path / "model.gguf", shape, "F32", **metadata)

    return write


@pytest.mark.parametrize(
    ("kind", "rope", "extra", "metadata"),
    [
        ("Llama", None, None, {}),
        ("Llama", LLAMA3, divisors(32, LLAMA3), {}),
        ("Llama", {"rope_type": "linear", "factor": 3.0}, np.full(16, 3.0, np.float32), {}),
        ("Qwen2", None, None, {}),
        ("Qwen2", {"rope_type": "linear", "factor": 2.0}, None,
         {"qwen2__rope__scaling__type": "linear", "qwen2__rope__scaling__factor": 2.0}),
        ("Qwen3", None, None, {}),
        ("Qwen3", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, None,
         {"qwen3__rope__scaling__type": "yarn", "qwen3__rope__scaling__factor": 4.0,
          "qwen3__rope__scaling__original_context_length": 16}),
    ],
)  # fmt: skip
def test_a_file_of_each_family_computes_what_transformers_does(written, kind, rope, extra, metadata):
    theirs, path = written(kind, rope, extra, **metadata)
    ours = load(path, "cpu", torch.float32).model
    tokens = torch.randint(0, VOCAB, (2, 61), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        assert relative_error(ours(tokens), theirs(tokens).logits) < 2e-5


def test_divisors_of_the_released_rule_become_the_rule_again(written, tmp_path):
    _, path = written("Llama", LLAMA3, divisors(32, LLAMA3))
    _, config = read_config(path, "llama")
    assert config.rope_scaling.kind == "llama3" and config.rope_scaling.factor == 8.0
    folder = hf_folder(path, "tiny", tmp_path / "cache")
    assert load(folder, "cpu").model.config.rope_scaling == config.rope_scaling


def test_divisors_of_no_rule_are_kept_and_not_written_as_one(written):
    odd = np.linspace(1.0, 2.0, 16, dtype=np.float32)
    _, config = read_config(written("Llama", None, odd)[1], "llama")
    assert config.rope_scaling.divisors == tuple(map(float, odd))
    with pytest.raises(ValueError, match=r"config\.json cannot say"):
        to_hf(config)


@pytest.mark.parametrize(
    ("extra", "metadata", "words"),
    [
        (np.ones(15, np.float32), {}, "16 pairs; there are 15"),
        (np.zeros(16, np.float32), {}, "positive"),
        (np.ones(16, np.float32), {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0},
         "twice"),
        (None, {"llama__rope__scaling__type": "longrope"}, "longrope"),
        (None, {"llama__rope__scaling__type": "yarn"}, "linear and yarn scaling by a factor"),
        (None, {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0,
                "llama__rope__scaling__yarn_ext_factor": 2.0}, "yarn_ext_factor"),
        (None, {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 0.5}, "at least 1"),
    ],
)  # fmt: skip
def test_scaling_that_is_none_is_refused(written, extra, metadata, words):
    with pytest.raises(BadFile, match=words):
        read_config(written("Llama", None, extra, **metadata)[1], "llama")
