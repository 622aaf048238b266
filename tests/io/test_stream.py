"""T42: pieces of text that come token by token join to exactly what decoding everything at once gives."""

from __future__ import annotations

import random

import pytest

from lumen.io.stream import StreamDecoder
from lumen.io.tokenizer import CharTokenizer

ALPHABET = "aé€𝄞🙂 \n\u0301\ufffd字"


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """`data` in pieces of 0 to 4 bytes."""
    pieces = []
    while data:
        n = rng.randint(0, 4)
        pieces.append(data[:n])
        data = data[n:]
    return pieces


def run(pieces: list[bytes]) -> list[str]:
    decoder = StreamDecoder(pieces.__getitem__)
    return [decoder.feed(i) for i in range(len(pieces))] + [decoder.finish()]


@pytest.mark.parametrize("kind", ["whole characters", "end cut", "random bytes"])
def test_joined_pieces_are_the_full_decode(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(3000):
        data = "".join(rng.choices(ALPHABET, k=rng.randint(0, 12))).encode()
        if kind == "end cut":
            data = data[: rng.randint(0, len(data))]
        elif kind == "random bytes":
            data = rng.randbytes(rng.randint(0, 12))
        pieces = cut(data, rng)
        assert "".join(run(pieces)) == data.decode("utf-8", errors="replace"), (data, pieces)


def test_no_replacement_sign_before_the_end_of_valid_text() -> None:
    """A character in four tokens appears once, with the last of them: sglang #31598 printed half of it."""
    assert run([b"\xf0", b"\x9f", b"\x99", b"\x82", b"!"]) == ["", "", "", "🙂", "!", ""]


def test_an_answer_cut_inside_a_character_ends_in_one_replacement_sign() -> None:
    assert run([b"a", b"\xf0\x9f"]) == ["a", "", "\ufffd"]


def test_special_tokens_leave_no_text_and_do_not_part_a_character() -> None:
    pieces = [b"\xe2", b"<|im_end|>", b"\x82\xac"]
    decoder = StreamDecoder(pieces.__getitem__, skip={1}.__contains__)
    assert [decoder.feed(i) for i in range(3)] == ["", "", "€"]


def test_smollm_streams_equal_decode_for_random_ids(smollm_tokenizer) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(1)
    for skip in (True, False):
        for _ in range(400):
            ids = [rng.choice([rng.randrange(300), rng.randrange(49152)]) for _ in range(rng.randint(0, 20))]
            stream = smollm_tokenizer.stream(skip)
            text = "".join([stream.feed(i) for i in ids] + [stream.finish()])
            assert text == smollm_tokenizer.decode(ids, skip)
            assert text == smollm_tokenizer.backend.decode(ids, skip_special_tokens=skip)


def test_character_model_streams_too() -> None:
    tokenizer = CharTokenizer("abé\n ")
    stream = tokenizer.stream()
    assert [stream.feed(i) for i in tokenizer.encode("bé a")] == ["b", "é", " ", "a"]
    assert stream.finish() == ""
