"""A question as words: contractions opened, endings taken off, capitals and clauses remembered."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_WORD = re.compile(r"\d+(?:[.,:]\d+)*[^\W\d_]*|[^\W\d_]+\d[^\W_]*|[^\W\d_]+(?:'[^\W\d_]+)?|[^\W_]+|[,;.?!:]")
_CONTRACTIONS = (
    (r"\bwon't\b", "will not"),
    (r"\bcan't\b|\bcannot\b", "can not"),
    (r"\bshan't\b", "shall not"),
    (r"n't\b", " not"),
    (r"\b(i)'m\b", r"\1 am"),
    (r"'re\b", " are"),
    (r"'ll\b", " will"),
    (r"'ve\b", " have"),
    (r"'d\b", " would"),
    (r"'s?\b|'(?=\s)", ""),
)
_IRREGULAR = {
    **dict.fromkeys(("wrote", "written"), "write"),
    **dict.fromkeys(("won",), "win"),
    **dict.fromkeys(("bought",), "buy"),
    **dict.fromkeys(("sold",), "sell"),
    **dict.fromkeys(("lent",), "lend"),
    **dict.fromkeys(("paid",), "pay"),
    **dict.fromkeys(("went", "gone"), "go"),
    **dict.fromkeys(("ate", "eaten"), "eat"),
    **dict.fromkeys(("took", "taken"), "take"),
    **dict.fromkeys(("taught",), "teach"),
    **dict.fromkeys(("fell", "fallen"), "fall"),
    **dict.fromkeys(("rose", "risen"), "rise"),
    **dict.fromkeys(("grew", "grown"), "grow"),
    **dict.fromkeys(("found",), "find"),
    **dict.fromkeys(("lost",), "lose"),
    **dict.fromkeys(("ran",), "run"),
    **dict.fromkeys(("froze", "frozen"), "freeze"),
    **dict.fromkeys(("children",), "child"),
    **dict.fromkeys(("people",), "person"),
    **dict.fromkeys(("feet",), "foot"),
    **dict.fromkeys(("teeth",), "tooth"),
    **dict.fromkeys(("mice",), "mouse"),
    **dict.fromkeys(("leaves",), "leaf"),
    **dict.fromkeys(("men",), "man"),
    **dict.fromkeys(("women",), "woman"),
    **dict.fromkeys(("knives",), "knife"),
    **dict.fromkeys(("wives",), "wife"),
}
_VOWEL = re.compile(r"[aeiouy]")


def word_set(text: str) -> frozenset[str]:
    """Words written one after the other, as a set."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Word:
    """`text` in lower case, `stem` without endings; `capital`: written like a name; `clause` counts from 0."""

    text: str
    stem: str
    capital: bool
    clause: int

    @property
    def is_number(self) -> bool:
        return self.text[0].isdigit()


def stem(word: str) -> str:
    """The word without plural, -ing, -ed, -ly and a last e: "making", "makes", "make" all become "mak"."""
    word = _IRREGULAR.get(word, word)
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif re.search(r"(s|x|z|ch|sh)es$", word):
        word = word[:-2]
    elif re.search(r"[^siu]s$", word) and len(word) > 3:
        word = word[:-1]
    for ending in ("ing", "ed", "ly"):
        base = word.removesuffix(ending)
        if base != word and len(base) > 2 and _VOWEL.search(base) and not word.endswith("eed"):
            word = base[:-1] if re.search(r"([bdgmnprt])\1$", base) else base
            break
    if word.endswith("i") and len(word) > 3:
        word = word[:-1] + "y"
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def words(text: str) -> list[Word]:
    """All words and numbers in order. A sentence's first word is not taken for a name, unless it is like "NASA"."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'").replace("-", " ")
    for pattern, plain in _CONTRACTIONS:
        text = re.sub(pattern, plain, text, flags=re.IGNORECASE)
    found: list[Word] = []
    clause, starts = 0, True
    for token in _WORD.findall(text):
        if not token[0].isalnum():
            clause, starts = clause + 1, token in ".?!:"
            continue
        low = token.casefold()
        inner_capital = token[1:].lower() != token[1:] and low != "i"
        mixed = any(c.isdigit() for c in token) and any(c.isalpha() for c in token)
        capital = inner_capital or mixed or (token[0].isupper() and not starts and low != "i")
        found.append(Word(low, stem(low), capital, clause))
        starts = False
    if (
        found
        and all(word.capital or word.is_number or word.text == "i" for word in found[1:])
        and text.isupper()
    ):
        return [
            Word(word.text, word.stem, False, word.clause) for word in found
        ]  # all in capitals: none is a name
    return found
