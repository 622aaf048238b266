"""The tokenizer built from the GGUF is SmolLM2's: equal to transformers on 3,000 awkward texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from lumen.io.cutting import cutting
from lumen.io.errors import BadFile
from lumen.io.gguf_header import read_header
from lumen.io.tokenizer import CharTokenizer, Tokenizer
from lumen.io.tokenizer_files import from_folder, from_gguf, write_folder


@pytest.fixture(scope="module")
def hf_tokenizer(smollm_gguf: Path):  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm_gguf.parent, gguf_file=smollm_gguf.name)


def test_equals_transformers_on_text_without_digits(smollm_tokenizer, hf_tokenizer, awkward_texts) -> None:  # type: ignore[no-untyped-def]
    texts = [text for text in awkward_texts if not any(c.isnumeric() for c in text)]
    assert len(texts) > 1000
    for text in texts:
        assert smollm_tokenizer.encode(text) == hf_tokenizer(text, add_special_tokens=False)["input_ids"], (
            text
        )


def test_equals_transformers_with_the_declared_cut_on_all_texts(  # type: ignore[no-untyped-def]
    smollm_tokenizer, hf_tokenizer, awkward_texts
) -> None:
    """Transformers 5.24 ignores `tokenizer.ggml.pre`. With the rule it names (llama.cpp, "smollm": every number
    character alone, then GPT-2's rule), written here as a pattern, the ids are ours."""
    backend = tokenizers.Tokenizer.from_str(hf_tokenizer.backend_tokenizer.to_str())
    numbers = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{N}"), "isolated")
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([numbers, cut])
    for text in awkward_texts:
        assert smollm_tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids, text


def test_a_run_of_spaces_before_a_digit_is_one_token(smollm_tokenizer) -> None:  # type: ignore[no-untyped-def]
    """Where the two rules differ: cutting digits out first leaves the spaces whole, GPT-2's rule alone parts them."""
    assert [smollm_tokenizer.backend.id_to_token(i) for i in smollm_tokenizer.encode("  42")] == [
        "ĠĠ",
        "4",
        "2",
    ]


def test_every_text_comes_back(smollm_tokenizer, awkward_texts) -> None:  # type: ignore[no-untyped-def]
    for text in awkward_texts:
        assert smollm_tokenizer.decode(smollm_tokenizer.encode(text), skip_special=False) == text


def test_decode_equals_transformers(smollm_tokenizer, hf_tokenizer, awkward_texts) -> None:  # type: ignore[no-untyped-def]
    for text in awkward_texts[:500]:
        ids = smollm_tokenizer.encode(text)
        assert smollm_tokenizer.decode(ids) == hf_tokenizer.decode(ids, skip_special_tokens=True)


def test_ids_that_matter(smollm_tokenizer) -> None:  # type: ignore[no-untyped-def]
    t = smollm_tokenizer
    assert t.vocab_size == 49152
    assert t.eos_ids == {2, 0} and t.eos_id == 2 and t.bos_id == 1
    assert t.special_ids == set(range(17))
    assert t.encode("Hi") == t.encode("Hi") and t.encode("Hi")[0] != t.bos_id, "SmolLM2 adds no first token"
    assert t.encode("<|im_start|>user") == [1, t.backend.token_to_id("user")]
    assert t.token_bytes(2) == b"<|im_end|>"
    assert b"".join(map(t.token_bytes, t.encode("naïve 🙂"))) == "naïve 🙂".encode()


def test_a_folder_gives_the_same_tokenizer_to_us_and_to_transformers(  # type: ignore[no-untyped-def]
    smollm_tokenizer, awkward_texts, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    write_folder(smollm_tokenizer, tmp_path, 8192)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "eos_token_id": [2, 0], "bos_token_id": 1}'
    )
    ours, theirs = from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.eos_ids, ours.eos_id, ours.bos_id, ours.add_bos) == ({0, 2}, 2, 1, False)
    assert ours.chat_template == smollm_tokenizer.chat_template == theirs.chat_template
    assert theirs.eos_token_id == 2
    for text in awkward_texts[:300]:
        ids = smollm_tokenizer.encode(text)
        assert ours.encode(text) == ids
        assert theirs(text)["input_ids"] == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_half_a_character_is_refused_with_its_place(smollm_tokenizer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="position 2"):
        smollm_tokenizer.encode("ab\ud83d")


def test_an_id_outside_the_vocabulary_leaves_no_text_unless_it_is_negative(
    smollm_tokenizer, hf_tokenizer
) -> None:  # type: ignore[no-untyped-def]
    assert smollm_tokenizer.decode([504, 49152]) == hf_tokenizer.decode([504, 49152]) != ""
    with pytest.raises(ValueError, match="begin at 0"):
        smollm_tokenizer.decode([5, -1])


def test_a_begin_token_is_added_to_plain_text_once(tmp_path: Path) -> None:
    """Llama 2's kind: SentencePiece pieces, byte fallback, a first token; the template writes its own."""
    words = ["<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], "▁", "h", "i", "▁h", "▁hi"]
    vocabulary = {word: i for i, word in enumerate(words)}
    merges = [("▁", "h"), ("▁h", "i")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<s>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    tokenizer = Tokenizer(
        backend, bos_id=0, eos_ids=[1], add_bos=True, chat_template="{{ bos_token }}{{ messages[0].content }}"
    )
    ids = tokenizer.encode("hi hi €")
    assert ids[0] == 0 and ids.count(0) == 1
    assert tokenizer.decode(ids) == "hi hi €" == backend.decode(ids)
    stream = tokenizer.stream()
    assert "".join([stream.feed(i) for i in ids] + [stream.finish()]) == "hi hi €"
    assert tokenizer.apply_chat([{"role": "user", "content": "hi"}]).count(0) == 1


def test_characters() -> None:
    tokenizer = CharTokenizer("\n abc")
    assert tokenizer.encode("cab\n") == [4, 2, 3, 0] and tokenizer.vocab_size == 5
    assert tokenizer.decode([4, 2, 3, 0]) == "cab\n"
    assert tokenizer.eos_ids == frozenset() and tokenizer.bos_id is None
    with pytest.raises(ValueError, match="'x' is not among them"):
        tokenizer.encode("abx")
    with pytest.raises(ValueError, match="begin at 0"):
        tokenizer.decode([-1])
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat([{"role": "user", "content": "a"}])
    for wrong in ("", "aa"):
        with pytest.raises(ValueError, match="each character once"):
            CharTokenizer(wrong)


def test_other_kinds_of_gguf_tokenizer_are_named(make_gguf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for key, value in (("tokenizer__ggml__model", "llama"), ("tokenizer__ggml__pre", "gpt-4o")):
        file = tmp_path / "other.gguf"
        shutil.rmtree(file, ignore_errors=True)
        with pytest.raises(BadFile, match="byte-level BPE"):
            from_gguf(read_header(make_gguf(file, **{key: value})), "other.gguf")


def test_a_folder_without_a_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="save_pretrained"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadFile, match="not a tokenizer"):
        from_folder(tmp_path)


@pytest.mark.parametrize("rule", ["qwen2", "llama-bpe"])
def test_the_families_cut_text_as_their_own_tokenizers_do(make_gguf, tmp_path, awkward_texts, rule) -> None:  # type: ignore[no-untyped-def]
    """Qwen 2 against transformers' tokenizer, Llama 3 against the pattern that transformers converts its files with."""
    import inspect

    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = make_gguf(tmp_path / "model.gguf", tokenizer__ggml__pre=rule)
    header = read_header(path)
    ours = from_gguf(header, path.name)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in header.metadata["tokenizer.ggml.merges"]]
    theirs = Qwen2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)._tokenizer
    if rule == "llama-bpe":
        pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
        theirs.pre_tokenizer = Sequence(
            [Split(Regex(pattern), "isolated"), ByteLevel(False, use_regex=False)]
        )
        theirs.normalizer = None
    for text in [*awkward_texts[:500], "the 1234567 théô e\u0301 \r\n\n  don't DON'T x"]:
        if "<|" not in text:
            pieces = cutting(rule).pieces.pre_tokenize_str(text)
            assert pieces == theirs.pre_tokenizer.pre_tokenize_str(text), repr(text)
            bos = [1] * (rule == "llama-bpe")
            assert ours.encode(text) == bos + theirs.encode(text, add_special_tokens=False).ids, repr(text)
