"""Twenty tokenizers of different making: the ids and the text that transformers has of them, whole and streamed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from lumen.io.tokenizer_files import from_folder

from . import zoo

HOSTILE = [
    "",
    " ",
    "   ",
    "\n",
    " \n\t ",
    "a",
    " a",
    "a ",
    "  a  b  ",
    "The evening sky isn't red, they're 1234567 ! what ? ' '",
    "e\u0301 ﬁ ½ Ⅷ ÅNGSTRÖM Straße ＜s＞ ｆｕｌｌ",
    "🙂🙂 👩‍👩‍👧‍👦 🇩🇪 \u200d\ufe0f",
    "日本語のテキスト中文한국어",
    "مرحبا بالعالم שלום \u202e",
    "\x00\x01\x1b[0m\x7f\x85\u00a0\u2028\u3000\ufeff\ufffd\ufffe",
    "a\r\nb\rc",
    "def f(x):\n    return x\n\n\n\tpass",
    "<s>",
    "</s>",
    "x<s>y",
    " <s> </s> ",
    "<unk>",
    "[INST] hi [/INST]",
    "[CLS] a [SEP] [MASK]",
    "<|im_start|>user\nHi<|im_end|>",
    "<|im_",
    "<|endoftext|><|endoftext|>",
    "<|begin_of_text|>Hi<|eot_id|>",
    "<start_of_turn>user\nHi<end_of_turn>\n",
    "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>",
    "<think>so</think> <tool_call>",
    "a  <left>  b <right>  c",
    "alone aloner alone",
    "<NORM> <norm> Two Words",
    "é É",
    "<0x41><0xE2>",
    "▁▁a▁b",
    "Ġa",
    "##ing </w>",
    "\U000f0000\U0010ffff\ue000",
    "word " * 50,
]


@pytest.fixture(scope="module", params=zoo.MAKERS, ids=lambda maker: maker.__name__)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Ours and transformers', of the same folder."""
    folder: Path = zoo.write(request.param, tmp_path_factory.mktemp(request.param.__name__))
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.backend_tokenizer.no_truncation()  # which transformers itself leaves to the call
    theirs.backend_tokenizer.no_padding()
    return from_folder(folder), theirs


def test_ids_equal_transformers(both) -> None:  # type: ignore[no-untyped-def]
    ours, theirs = both
    for text in [*HOSTILE, *zoo.TEXT]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.encode(text, add_special=False) == theirs(text, add_special_tokens=False)["input_ids"], (
            text
        )


def test_a_hundred_thousand_characters(both) -> None:  # type: ignore[no-untyped-def]
    ours, theirs = both
    text = "".join(zoo.TEXT)
    text = (text * (100_000 // len(text) + 1))[:100_000]
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"] and len(ids) > 5_000
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def streamed(tokenizer, ids: list[int], skip: bool) -> str:  # type: ignore[no-untyped-def]
    stream = tokenizer.stream(skip)
    return "".join([*map(stream.feed, ids), stream.finish()])


def test_text_equals_transformers_whole_and_streamed(both) -> None:  # type: ignore[no-untyped-def]
    """Of texts, and of random ids: half characters, padding, special tokens anywhere."""
    ours, theirs = both
    rng = random.Random(0)
    lists = [ours.encode(text) for text in [*HOSTILE, *zoo.TEXT[:5]]]
    rare = [i for i in range(ours.vocab_size) if (theirs.convert_ids_to_tokens(i) or "<0x").startswith("<")]
    for _ in range(300):
        pick = rare if rng.random() < 0.3 else range(ours.vocab_size + 9)
        lists.append([rng.choice(pick) for _ in range(rng.randint(0, 12))])
    for ids in lists:
        for skip in (True, False):
            want = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip) == want, ids
            assert streamed(ours, ids, skip) == want, ids


def test_a_stream_is_not_a_full_decode_at_the_end(both) -> None:  # type: ignore[no-untyped-def]
    """Text comes out while tokens go in, and never another than that of the ids so far."""
    ours, _ = both
    ids = ours.encode("The evening sky is red because they are the waves")
    stream, text, whole = ours.stream(), "", ours.decode(ids)
    for ids_so_far in range(len(ids)):
        text += stream.feed(ids[ids_so_far])
        assert whole.startswith(text)
    assert len(text) >= len(whole) - 10


def test_half_a_character_is_refused(both) -> None:  # type: ignore[no-untyped-def]
    ours, _ = both
    for parse in (True, False):
        with pytest.raises(ValueError, match="half a character at position 1"):
            ours.encode("a\ud83d", parse_special=parse)
