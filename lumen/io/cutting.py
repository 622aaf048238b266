"""How text is cut into pieces before byte-level BPE merges them, by llama.cpp's names for the rules.

gpt-2       contractions, words, runs of digits, runs of signs, each with the space before it
smollm      every digit alone, then GPT-2's rule
llama-bpe   words with the sign before them, digits three by three, line ends with the signs before them
qwen2       the same with every digit alone; text is first brought into Unicode's composed form
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = {"gpt-2", "olmo", "jais", "mpt"}
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
_DIGITS = {"llama-bpe": r"\p{N}{1,3}", "llama3": r"\p{N}{1,3}", "qwen2": r"\p{N}"}
# The regular expression that Llama 3's and Qwen's tokenizer.json hold, but for the digits.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Cutting(NamedTuple):
    """`pieces` cuts, `normalizer` (or None) comes before it. `whole_first`: a piece that is a token is not merged anew.
    `add_bos`: the rule's models start every text with their first token unless their file says otherwise."""

    pieces: Any
    normalizer: Any = None
    whole_first: bool = False
    add_bos: bool = False


def cutting(rule: object) -> Cutting | None:
    """What the rule of this name does; None for one that is not known here."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule in _GPT2:
        return Cutting(plain)
    if rule in _DIGITS_FIRST:
        return Cutting(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]))
    if rule not in _DIGITS:
        return None
    words = Regex(_WORDS.format(digits=_DIGITS[str(rule)]))
    split = pre_tokenizers.Split(words, behavior="isolated")
    pieces = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if rule == "qwen2":
        return Cutting(pieces, normalizers.NFC())
    return Cutting(pieces, whole_first=True, add_bos=True)
