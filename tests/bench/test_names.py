"""A quantity has one name, and the name has one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumen.bench import Name

WORD = st.text("abz09._-+", min_size=1, max_size=6)


@given(
    st.builds(
        Name, WORD, WORD, st.integers(1, 9999), st.integers(1, 9999), WORD, WORD, WORD,
        st.dictionaries(WORD, WORD, max_size=3).map(lambda d: tuple(d.items())),
    )
)  # fmt: skip
def test_a_text_gives_its_name_back(name):
    assert Name.parse(str(name)) == name


def test_the_order_of_extra_fields_does_not_matter():
    one = Name("m", "mix", extra=(("rate", 2), ("answers", 8)))
    other = Name("m", "mix", extra=(("answers", "8"), ("rate", "2")))
    assert one == other and str(one) == str(other) and str(one).endswith("answers=8 rate=2")


def test_short_leaves_out_the_usual():
    assert Name("m", "prefill", 4, 32, "bf16", "onednn", "paged", (("rate", 2),)).short() == (
        "m prefill, batch 4, prompt 32, bf16, kernel onednn, paged, rate 2"
    )
    assert Name("m", "decode", context=64).short() == "m decode, context 64"


@pytest.mark.parametrize(
    "bad",
    [
        {"model": "a b"}, {"phase": ""}, {"kernel": "x=y"}, {"batch": 0}, {"context": 0}, {"cache": "a/b"},
        {"extra": (("batch", 2),)}, {"extra": (("a", ""),)}, {"extra": (("a", "b c"),)},
    ],
)  # fmt: skip
def test_words_that_would_be_ambiguous_are_refused(bad):
    with pytest.raises(ValueError, match=r"A word of a name|An extra field|at least 1"):
        Name(**{"model": "m", "phase": "decode", **bad})


@pytest.mark.parametrize(
    "text",
    ["", "m", "m/decode batch=1", "m/decode batch=x context=1 dtype=fp32 kernel=default cache=static",
     "m/decode context=1 batch=1 dtype=fp32 kernel=default cache=static",
     "m/decode batch=1 context=1 dtype=fp32 kernel=default cache=static b=1 a=1"],
)  # fmt: skip
def test_only_the_canonical_text_is_a_name(text):
    with pytest.raises(ValueError, match=r"not the name|canonical"):
        Name.parse(text)
