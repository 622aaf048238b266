"""Twenty tokenizers of different making, as the folders that models come in: trained here on a page of text.

Each is what one family of models ships, in small: the model, what comes before and after it, its added tokens, and what
its tokenizer_config.json asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

TEXT = [
    "The evening sky is red because the short waves are scattered away; it isn't, they're, we've, I'm, don't, John's.",
    "def answer(x):\n    return 42 * x + 1.5  # the answer, 1234567 times\n\n\nprint(answer(7))",
    "naïve café déjà vu, Straße, ÅNGSTRÖM, e\u0301, ﬁne ½ Ⅷ, “quoted” — and … so on ! what ? yes , no .",
    "日本語のテキスト 中文文本 한국어 Привет, мир مرحبا بالعالم हिन्दी 🙂🙂 👩‍👩‍👧‍👦",
    "<s> [INST] system user assistant tool [/INST] </s> <|im_start|> <|im_end|> the the the he her hers",
] * 3
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SENTENCE = ["<unk>", "<s>", "</s>"]
BERT = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(
    special: list[str], size: int = 500, bytes_too: bool = False, **options: Any
) -> tuple[Tokenizer, Any]:
    """An untrained BPE and its trainer."""
    alphabet = pre.ByteLevel.alphabet() if options.pop("byte_level", False) else []
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *(BYTES if bytes_too else [])], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    return Tokenizer(models.BPE(**options)), trainer


def trained(backend: Tokenizer, trainer: Any, ordinary: list[str] = BYTES) -> Tokenizer:
    """Trained on TEXT; what the trainer had to be told as special and is none becomes ordinary again."""
    backend.train_from_iterator(TEXT, trainer)
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in ordinary]
    return Tokenizer.from_str(json.dumps(state))


def around(before: str | None, after: str | None, backend: Tokenizer) -> Any:
    names = [name for name in (before, after) if name]
    single = ([f"{before}:0"] if before else []) + ["$A:0"] + ([f"{after}:0"] if after else [])
    return processors.TemplateProcessing(
        single=single, special_tokens=[(name, backend.token_to_id(name)) for name in names]
    )


def gpt2() -> tuple[Tokenizer, dict[str, Any]]:
    backend, trainer = bpe(["<|endoftext|>"], byte_level=True)
    backend.pre_tokenizer, backend.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(backend, trainer), {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}


def gpt2_prefix_space() -> tuple[Tokenizer, dict[str, Any]]:
    backend, settings = gpt2()
    backend.pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
    return backend, settings


def llama3() -> tuple[Tokenizer, dict[str, Any]]:
    """Special tokens behind the vocabulary, a first token by post-processor, whole words before merges."""
    backend, trainer = bpe([], byte_level=True, ignore_merges=True)
    backend.pre_tokenizer = pre.Sequence(
        [pre.Split(Regex(LLAMA3), "isolated"), pre.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend = trained(backend, trainer)
    backend.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"])
    backend.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), around("<|begin_of_text|>", None, backend)]
    )
    return backend, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def qwen() -> tuple[Tokenizer, dict[str, Any]]:
    """Composed text, no first token, ordinary added tokens beside the special ones."""
    backend, trainer = bpe(CHATML, byte_level=True)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre.Sequence(
        [pre.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), pre.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend = trained(backend, trainer)
    backend.add_tokens(
        [AddedToken(name, special=False, normalized=False) for name in ("<think>", "</think>", "<tool_call>")]
    )
    return backend, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def starcoder() -> tuple[Tokenizer, dict[str, Any]]:
    backend, trainer = bpe(["<|endoftext|>", "<fim_prefix>"], byte_level=True)
    backend.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(False)])
    backend.decoder = decoders.ByteLevel()
    return trained(backend, trainer), {"eos_token": "<|endoftext|>", "clean_up_tokenization_spaces": True}


def cut_and_padded() -> tuple[Tokenizer, dict[str, Any]]:
    """What a fine-tuning leaves behind: every prompt cut to six tokens and filled up to twelve, on the left."""
    backend, settings = gpt2()
    backend.enable_truncation(6)
    backend.enable_padding(length=12, direction="left", pad_token="<|endoftext|>")
    return backend, settings


def llama2() -> tuple[Tokenizer, dict[str, Any]]:
    """A sign for the space, one put before the text, bytes for the rest."""
    backend, trainer = bpe(
        SENTENCE, 700, bytes_too=True, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend = trained(backend, trainer)
    backend.post_processor = around("<s>", None, backend)
    return backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def llama2_both_ends() -> tuple[Tokenizer, dict[str, Any]]:
    """What the settings say of first and last tokens counts for nothing beside a tokenizer.json, as in transformers."""
    backend, settings = llama2()
    backend.post_processor = around("<s>", "</s>", backend)
    return backend, settings | {"add_bos_token": False, "add_eos_token": False}


def mistral() -> tuple[Tokenizer, dict[str, Any]]:
    """Metaspace that marks the first word only; control tokens that are words in brackets."""
    names = [*SENTENCE, "[INST]", "[/INST]"]
    backend, trainer = bpe(names, 700, bytes_too=True, unk_token="<unk>", byte_fallback=True)
    backend.pre_tokenizer = pre.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend = trained(backend, trainer)
    backend.post_processor = around("<s>", None, backend)
    return backend, {"bos_token": "<s>", "eos_token": "</s>"}


def gemma() -> tuple[Tokenizer, dict[str, Any]]:
    """Spaces replaced and none put before; line ends that are added tokens; nothing stripped."""
    names = [*SENTENCE, "<start_of_turn>", "<end_of_turn>"]
    backend, trainer = bpe(names, 700, bytes_too=True, unk_token="<unk>", byte_fallback=True)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend = trained(backend, trainer)
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\n", normalized=False)])
    backend.post_processor = around("<s>", None, backend)
    return backend, {"bos_token": "<s>", "eos_token": "<end_of_turn>"}


def metaspace_always() -> tuple[Tokenizer, dict[str, Any]]:
    backend, trainer = bpe(SENTENCE, unk_token="<unk>")
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return trained(backend, trainer), {"bos_token": "<s>", "eos_token": "</s>"}


def bert() -> tuple[Tokenizer, dict[str, Any]]:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre.BertPreTokenizer(),
    )
    backend.decoder = decoders.WordPiece()
    backend = trained(
        backend, trainers.WordPieceTrainer(vocab_size=400, special_tokens=BERT, show_progress=False)
    )
    backend.post_processor = around("[CLS]", "[SEP]", backend)
    return backend, {"unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]"}


def bert_cleaned() -> tuple[Tokenizer, dict[str, Any]]:
    """The decoder leaves the spaces before signs and the settings take them away."""
    backend, settings = bert()
    backend.normalizer, backend.decoder = normalizers.NFD(), decoders.WordPiece(cleanup=False)
    return backend, settings | {"clean_up_tokenization_spaces": True}


def unigram() -> tuple[Tokenizer, dict[str, Any]]:
    """T5's and XLNet's kind; an end token, no first one."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SENTENCE, unk_token="<unk>", show_progress=False
    )
    backend = trained(backend, trainer)
    backend.post_processor = around(None, "</s>", backend)
    return backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def unigram_bytes() -> tuple[Tokenizer, dict[str, Any]]:
    backend, settings = unigram()
    state = json.loads(backend.to_str())
    state["model"]["vocab"] += [[byte, -20.0] for byte in BYTES]
    state["model"]["byte_fallback"], state["normalizer"] = True, None
    state["decoder"] = json.loads(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]).__getstate__()
    )
    return Tokenizer.from_str(json.dumps(state)), settings | {"add_bos_token": True, "add_eos_token": False}


def word_ends() -> tuple[Tokenizer, dict[str, Any]]:
    """The first GPT's and CLIP's kind: the sign stands at the end of a word."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    backend.pre_tokenizer, backend.decoder = pre.BertPreTokenizer(), decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SENTENCE, end_of_word_suffix="</w>", show_progress=False
    )
    return trained(backend, trainer), {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def words() -> tuple[Tokenizer, dict[str, Any]]:
    """Whole words and no decoder."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre.Whitespace()
    backend = trained(
        backend, trainers.WordLevelTrainer(vocab_size=200, special_tokens=SENTENCE, show_progress=False)
    )
    return backend, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def stripping() -> tuple[Tokenizer, dict[str, Any]]:
    """Added tokens that take spaces along, that stand alone only, that are matched after normalization."""
    backend, trainer = bpe(CHATML, byte_level=True)
    backend.normalizer, backend.decoder = normalizers.Lowercase(), decoders.ByteLevel()
    backend.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    backend = trained(backend, trainer)
    backend.add_tokens(
        [
            AddedToken("<left>", special=True, lstrip=True, normalized=False),
            AddedToken("<right>", special=True, rstrip=True, normalized=False),
            AddedToken("alone", single_word=True, normalized=False),
            AddedToken("<norm>", special=True, normalized=True),
            AddedToken("two words", normalized=True),
            AddedToken("é", normalized=False),
        ]
    )
    return backend, {"eos_token": "<|im_end|>"}


def gaps() -> tuple[Tokenizer, dict[str, Any]]:
    """Ids that no token has, inside and at the end, and a model with more ids than that."""
    backend, settings = gpt2()
    state = json.loads(backend.to_str())
    vocab = state["model"]["vocab"]
    state["model"]["vocab"] = {token: i + 7 * (i > 300) + 64 * (i > 400) for token, i in vocab.items()}
    return Tokenizer.from_str(json.dumps(state)), settings


def deepseek() -> tuple[Tokenizer, dict[str, Any]]:
    """Control tokens with wide bars; named in the settings and not marked special in the file."""
    wide = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
    backend, trainer = bpe([], byte_level=True)
    backend.pre_tokenizer = pre.Sequence([pre.Digits(True), pre.ByteLevel(False)])
    backend.decoder = decoders.ByteLevel()
    backend = trained(backend, trainer)
    backend.add_tokens([AddedToken(name, special=name in wide[2:], normalized=False) for name in wide])
    backend.post_processor = around(wide[0], None, backend)
    return backend, {"bos_token": wide[0], "eos_token": wide[1]}


MAKERS: list[Callable[[], tuple[Tokenizer, dict[str, Any]]]] = [
    gpt2, gpt2_prefix_space, llama3, qwen, starcoder, cut_and_padded, llama2, llama2_both_ends, mistral, gemma,
    metaspace_always, bert, bert_cleaned, unigram, unigram_bytes, word_ends, words, stripping, gaps, deepseek,
]  # fmt: skip


def write(maker: Callable[[], tuple[Tokenizer, dict[str, Any]]], folder: Path) -> Path:
    """The files of one tokenizer in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    backend, settings = maker()
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder
