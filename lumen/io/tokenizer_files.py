"""Tokenizers from a GGUF file's vocabulary and merges, from a Hugging Face folder, and into such a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, processors
from tokenizers import Tokenizer as Backend

from .cutting import cutting
from .errors import BadFile
from .gguf import CONTROL, config_of, eos_ids
from .gguf_header import Header
from .tokenizer import Tokenizer

USER_DEFINED = 4  # token_type of a token that is cut out of the text first but is ordinary otherwise


def from_gguf(header: Header, file: str) -> Tokenizer:
    """What a GGUF file describes: byte-level BPE, special tokens, chat template. Raises BadFile."""
    data = header.metadata
    kind, rule = data.get("tokenizer.ggml.model"), data.get("tokenizer.ggml.pre")
    cut = cutting(rule)
    if kind != "gpt2" or cut is None:
        raise BadFile(
            f"{file} has a tokenizer of kind {kind!r}, {rule!r}; from GGUF we read byte-level BPE. "
            "Load the model by its hub id."
        )
    tokens, merges = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.merges")
    types = data.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(merges, list) or not isinstance(types, np.ndarray):
        raise BadFile(f"{file} lacks the tokenizer's tokens, merges or token types. Fetch it again.")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise BadFile(
            f"{file}: the tokenizer's {len(tokens):,} tokens are not all different or not all typed."
        )
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise BadFile(f"{file}: a merge of the tokenizer is not two tokens. Fetch it again.")
    try:
        backend = Backend(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=cut.whole_first))
    except Exception as error:  # the library's own kind, for example for a merge of unknown tokens
        raise BadFile(
            f"{file}: the tokenizer's vocabulary and merges do not fit together ({error})."
        ) from error
    backend.pre_tokenizer = cut.pieces
    if cut.normalizer is not None:
        backend.normalizer = cut.normalizer
    backend.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, types.tolist(), strict=True):
        if token_type in (CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=token_type == CONTROL, normalized=False)])
    bos_id = config_of(header, file).bos_id
    if bos_id is not None and data.get("tokenizer.ggml.add_bos_token", cut.add_bos) is True:
        first = tokens[_inside((bos_id,), len(tokens), file)[0]]
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{first}:0", "$A:0"], special_tokens=[(first, bos_id)]
        )
    template = data.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        eos_ids=_inside(eos_ids(header), len(tokens), file),
        bos_id=bos_id,
        chat_template=template if isinstance(template, str) else None,
    )


def _inside(ids: tuple[int, ...], count: int, file: str) -> tuple[int, ...]:
    if any(i >= count for i in ids):
        raise BadFile(
            f"{file}: a first or end token of {max(ids)} lies outside the vocabulary of {count:,}. Fetch it again."
        )
    return ids


def from_folder(folder: Path) -> Tokenizer:
    """What a Hugging Face folder describes: tokenizer.json and the small files beside it. Raises BadFile."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise BadFile(
            f"{folder} has no tokenizer.json; make it with transformers (AutoTokenizer, save_pretrained)."
        )
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library's own kind
        raise BadFile(
            f"{file} is not a tokenizer this version of `tokenizers` can read ({error})."
        ) from error
    settings = read_json(folder / "tokenizer_config.json", missing={})
    config = read_json(folder / "config.json", missing={})
    generation = read_json(folder / "generation_config.json", missing={})
    _name_special(backend, settings)
    bos_id = _token_id(backend, settings.get("bos_token"), config.get("bos_token_id"))
    ends = [_token_id(backend, settings.get("eos_token"), None)]
    for source in (generation, config):
        declared = source.get("eos_token_id")
        ends += declared if isinstance(declared, list) else [declared]
    return Tokenizer(
        backend,
        eos_ids=[i for i in ends if isinstance(i, int) and not isinstance(i, bool)],
        bos_id=bos_id,
        chat_template=_template(folder, settings),
        cleans=_cleans(backend, settings),
    )


def _name_special(backend: Backend, settings: dict[str, Any]) -> None:
    """Tokens that the settings name are special, whether the tokenizer.json says so or not, as in transformers."""
    named = [settings.get(f"{name}_token") for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    for several in (settings.get("additional_special_tokens"), settings.get("extra_special_tokens")):
        named += several if isinstance(several, list) else []
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    texts = [token.get("content") if isinstance(token, dict) else token for token in named]
    for text in texts:
        if isinstance(text, str) and text not in known and backend.token_to_id(text) is not None:
            backend.add_tokens([AddedToken(text, special=True)])


def _cleans(backend: Backend, settings: dict[str, Any]) -> bool:
    """transformers takes spaces away before signs when asked, except in BPE, where it would do harm."""
    forced = settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output") is True
    bpe = isinstance(backend.model, models.BPE)
    return settings.get("clean_up_tokenization_spaces") is True and (forced or not bpe)


def _token_id(backend: Backend, token: Any, otherwise: Any) -> int | None:
    text = token.get("content") if isinstance(token, dict) else token
    found = backend.token_to_id(text) if isinstance(text, str) else None
    return found if found is not None else otherwise if isinstance(otherwise, int) else None


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_json(file: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from `file`; `missing` if there is no such file. Raises BadFile."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise BadFile(f"There is no {file.name} in {file.parent}.") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file} is not valid JSON ({error}); fetch it again.") from error
    if not isinstance(value, dict):
        raise BadFile(f"{file} should hold a JSON object. Fetch it again.")
    return value


def write_folder(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers reads them."""
    tokenizer.backend.save(str(folder / "tokenizer.json"), pretty=False)

    def text(i: int | None) -> str | None:
        return None if i is None else tokenizer.backend.id_to_token(i)

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "pad_token": text(tokenizer.eos_id),
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    if tokenizer.chat_template:
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
