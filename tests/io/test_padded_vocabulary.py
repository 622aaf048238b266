"""Models whose vocabulary is larger than their tokenizer's, and tokenizers larger than their model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lumen.io import safetensors
from lumen.io.convert import hf_folder
from lumen.io.errors import BadFile
from lumen.io.load import load
from lumen.io.tokenizer import CharTokenizer


@pytest.fixture
def folder(tiny_gguf: Path, tmp_path: Path) -> Path:
    return hf_folder(tiny_gguf, "tiny", tmp_path / "cache")


def padded(folder: Path, rows: int) -> Path:
    """The same model with rows without a token, as models are padded to a multiple of 64."""
    state, config = safetensors.read_folder(folder), folder / "config.json"
    embed = state[safetensors.EMBED]
    state[safetensors.EMBED] = torch.cat([embed, torch.ones(rows, embed.shape[1], dtype=embed.dtype)])
    safetensors.write(folder / "model.safetensors", state)
    fields = json.loads(config.read_text())
    config.write_text(json.dumps(fields | {"vocab_size": fields["vocab_size"] + rows}))
    return folder


def test_padding_leaves_no_text_as_in_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    model, tokenizer = load(padded(folder, 7), "cpu")
    theirs, size = AutoTokenizer.from_pretrained(folder), model.config.vocab_size
    assert size == tokenizer.vocab_size + 7 == len(theirs) + 7
    for ids in ([size - 1], [70, size - 1, 71], [0, size - 7, 5, 99_999], [size - 1] * 3):
        for skip in (True, False):
            want = theirs.decode(ids, skip_special_tokens=skip)
            stream = tokenizer.stream(skip)
            assert tokenizer.decode(ids, skip) == want
            assert "".join([*map(stream.feed, ids), stream.finish()]) == want
    assert CharTokenizer("abc").decode([0, 7, 2, 3]) == "ac"
    for each in (tokenizer, CharTokenizer("abc")):
        with pytest.raises(ValueError, match="no token -1"):
            each.token_bytes(-1)


def test_a_tokenizer_larger_than_its_model_is_refused(folder: Path) -> None:
    file = folder / "tokenizer.json"
    backend = Backend.from_file(str(file))
    backend.add_tokens([AddedToken("<|pad|>", special=True, normalized=False)])
    backend.save(str(file))
    with pytest.raises(BadFile, match="do not belong together"):
        load(folder, "cpu")
    assert load(padded(folder, 1), "cpu").tokenizer.vocab_size == backend.get_vocab_size()


def test_an_id_behind_a_gap_counts(folder: Path) -> None:
    """A vocabulary with a hole has fewer tokens than its largest id says; the id is what the model is asked for."""
    file = folder / "tokenizer.json"
    fields = json.loads(file.read_text())
    last = max(fields["model"]["vocab"], key=fields["model"]["vocab"].get)
    fields["model"]["vocab"][last] += 5
    file.write_text(json.dumps(fields))
    with pytest.raises(BadFile, match="do not belong together"):
        load(folder, "cpu")
    assert load(padded(folder, 5), "cpu").tokenizer.decode([last_id := fields["model"]["vocab"][last]]), (
        last_id
    )
