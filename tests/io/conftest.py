"""Small files to read and to damage, and the real model once per session."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from lumen import assets

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The 256 characters of a byte-level vocabulary, as transformers spells them."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return list(bytes_to_unicode().values())


@dataclass(frozen=True)
class Tiny:
    """A made-up Llama: shape, and its weights in fp32 under llama.cpp's names, in llama.cpp's row order."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    mlp: int = 32
    tied: bool = True
    arch: str = "llama"
    given: dict[str, np.ndarray] | None = None

    def tensors(self, vocab: int) -> dict[str, np.ndarray]:
        if self.given is not None:
            return self.given
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        found = {"token_embd.weight": draw(vocab, self.width), "output_norm.weight": draw(self.width)}
        if not self.tied:
            found["output.weight"] = draw(vocab, self.width)
        for i in range(self.layers):
            found |= {
                f"blk.{i}.attn_norm.weight": draw(self.width),
                f"blk.{i}.ffn_norm.weight": draw(self.width),
                f"blk.{i}.attn_q.weight": draw(self.heads * self.head_dim, self.width),
                f"blk.{i}.attn_k.weight": draw(self.kv_heads * self.head_dim, self.width),
                f"blk.{i}.attn_v.weight": draw(self.kv_heads * self.head_dim, self.width),
                f"blk.{i}.attn_output.weight": draw(self.width, self.heads * self.head_dim),
                f"blk.{i}.ffn_gate.weight": draw(self.mlp, self.width),
                f"blk.{i}.ffn_up.weight": draw(self.mlp, self.width),
                f"blk.{i}.ffn_down.weight": draw(self.width, self.mlp),
            }
        return found


def write_tiny(path: Path, shape: Tiny = Tiny(), kind: str = "Q4_1", **metadata: object) -> Path:
    """A whole, valid GGUF file. Matrices are stored as `kind`; `metadata` adds or replaces number and text keys."""
    tokens = SPECIAL + byte_characters() + ["th", "he", "the"]
    writer = gguf.GGUFWriter(path, shape.arch)
    writer.add_name("tiny")
    writer.add_block_count(shape.layers)
    writer.add_context_length(64)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["t h", "h e", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in metadata.items():
        kinds = {str: writer.add_string, float: writer.add_float32}
        add = kinds.get(type(value), writer.add_uint32)
        add(key.replace("__", "."), value)  # type: ignore[arg-type]
    for name, value in shape.tensors(len(tokens)).items():
        stored = gguf.GGMLQuantizationType[kind if value.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(value, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def make_gguf() -> Callable[..., Path]:
    return write_tiny


@pytest.fixture(scope="session")
def tiny_shape() -> type[Tiny]:
    return Tiny


@pytest.fixture(scope="session")
def smollm_gguf() -> Path:
    return assets.path("smollm2-135m")


@pytest.fixture(scope="session")
def smollm_header(smollm_gguf: Path):  # type: ignore[no-untyped-def]
    from lumen.io.gguf_header import read_header

    return read_header(smollm_gguf)


@pytest.fixture(scope="session")
def smollm_tokenizer(smollm_gguf: Path, smollm_header):  # type: ignore[no-untyped-def]
    from lumen.io.tokenizer_files import from_gguf

    return from_gguf(smollm_header, smollm_gguf.name)


PIECES = [
    "the ", "The cat", "def f(x):\n    return x + 1\n", "  ", "\n\n", "\t", " 7", "2024-11-29", "3.14159", "½²Ⅷ٣",
    "naïve café", "don't I'll we've",
    "日本語のテキスト", "한국어", "Привет, мир", "مرحبا", "हिन्दी", "👩‍👩‍👧‍👦", "🇩🇪", "e\u0301",
    "\u00a0", "\u200b", "\u3000", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_",
    "{'a': [1, 2]}", "$x^2$", "\r\n",
    "🙂", "ﬁ", "https://example.org/a?b=c&d=%20", "A" * 9, "0" * 9, "\x00", "\x7f", "…", "“quoted”", "<file_sep>",
]  # fmt: skip


@pytest.fixture(scope="session")
def awkward_texts() -> list[str]:
    """3,000 texts: code, numbers, many scripts, emoji, white space, special tokens, and random code points."""
    rng = random.Random(0)
    texts = ["", *PIECES]
    while len(texts) < 2500:
        texts.append("".join(rng.choices(PIECES, k=rng.randint(1, 8))))
    while len(texts) < 3000:
        points = (
            rng.choice([rng.randrange(32, 127), rng.randrange(0x20, 0xD800), rng.randrange(0x10000, 0x1FFFF)])
            for _ in range(12)
        )
        texts.append("".join(map(chr, points)))
    return texts
