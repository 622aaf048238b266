"""From seconds to what a user waits for and what a token costs."""

from __future__ import annotations

from lumen.inputs import nonnegative, positive


def end_to_end(ttft: float, tpot: float, tokens: int) -> float:
    """Latency of an answer of n tokens: TTFT + TPOT·(n - 1), since the first token arrives with TTFT. [s]

    TPOT is the mean gap between tokens, and n tokens have n - 1 gaps.
    """
    nonnegative(ttft=ttft, tpot=tpot, tokens=tokens)
    if tokens < 1:
        raise ValueError(f"An answer has at least one token, got {tokens}.")
    return ttft + tpot * (tokens - 1)


def tpot_of_rate(tokens_per_s: float) -> float:
    """Time per token of a stream: 1 / rate. A range of rates turns round: 5-10 per s is 200-100 ms. [s]"""
    positive(tokens_per_s=tokens_per_s)
    return 1 / tokens_per_s


def requests_per_s(tokens_per_s: float, tokens_per_request: float) -> float:
    """Requests a second that a token rate serves. [1/s]"""
    nonnegative(tokens_per_s=tokens_per_s)
    positive(tokens_per_request=tokens_per_request)
    return tokens_per_s / tokens_per_request


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """Price of 10^6 tokens on a machine that is always busy: price/h / 3600 / rate x 10^6."""
    nonnegative(price_per_hour=price_per_hour)
    positive(tokens_per_s=tokens_per_s)
    return price_per_hour / 3600 / tokens_per_s * 1e6


def cached_prompt_price(uses: int, write: float = 1.25, read: float = 0.1) -> float:
    """Price of sending one prefix `uses` times with prompt caching, in units of sending it once without.

    write + read·(n - 1). The defaults are multipliers one provider published in 2024-2025; providers change
    them, so date them where you print them.
    """
    nonnegative(uses=uses, write=write, read=read)
    if uses < 1:
        raise ValueError(f"A prompt is used at least once, got {uses}.")
    return write + read * (uses - 1)


def cached_prompt_break_even(write: float = 1.25, read: float = 0.1) -> float:
    """Uses beyond which caching is cheaper: write + read·(n-1) < n gives n > (write - read)/(1 - read)."""
    nonnegative(write=write, read=read)
    if read >= 1:
        raise ValueError(
            f"Reading a cached prompt must cost less than 1 of its price to pay off, got {read}."
        )
    return (write - read) / (1 - read)


def cached_prompt_saving(uses: int, write: float = 1.25, read: float = 0.1) -> float:
    """Share of the price that caching saves over `uses` uses; negative when it costs more."""
    return 1 - cached_prompt_price(uses, write, read) / uses
