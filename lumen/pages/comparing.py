"""The two sentences that comparisons need: which of two is faster, and which of two loses more."""

from __future__ import annotations

from lumen.bench import Estimate, says, sentence


@sentence(more_words=["as fast"], less_words=["slower"])
def faster(est: Estimate, one: str = "the one", other: str = "the other") -> str:
    """How many times as fast `one` is as `other`: the time of the other over that of the one."""
    return says(
        est,
        more=f"{one} is {{x}} times as fast as {other} ({{low}} to {{high}}, n = {{n}})",
        same=f"between {one} and {other} this run shows no difference ({{estimate}})",
        less=f"{one} is {{size}} slower than {other} ({{estimate}})",
    )


@sentence(at=0.0, unit="nats", effect=0.5, more_words=["loses more"], less_words=["loses less"])
def loses(est: Estimate, one: str = "the one", other: str = "the other", worth: float = 0.002) -> str:
    """The loss of `one` less that of `other`. Less than `worth` nats is not called a difference."""
    return says(
        est,
        at=0.0,
        worth=worth,
        more=f"{one} loses more than {other}: {{x}} nats ({{low}} to {{high}}, n = {{n}})",
        same=f"between {one} and {other} there is no difference to see ({{estimate}})",
        less=f"{one} loses less than {other}: {{x}} nats ({{low}} to {{high}}, n = {{n}})",
    )


def capital(text: str) -> str:
    """The sentence with its first letter large."""
    return text[:1].upper() + text[1:]
