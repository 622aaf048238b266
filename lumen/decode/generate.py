"""The one generation loop: forward the prompts, then sample and forward one token per row until every row is done.

A row that is done goes on as padding (position -1), so the batch keeps its shape and its neighbours never notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache import Cache, CacheFull, StaticCache
from ..sampling import SamplingParams, distribution, draw, generators
from ..sampling.sampler import GREEDY
from .answer import Answer
from .batch import pad

if TYPE_CHECKING:
    from ..models.layers import Decoder

OnToken = Callable[[int, int, str], Any]


@dataclass
class Completion:
    """What one prompt became. Times are seconds since `generate` was called.

    `tokens` are the sampled ids without the end-of-sequence token; `text` is their decoding, cut before a stop
    string. `finish_reason` is "stop" (end of sequence or stop string) or "length". `num_cached_tokens` of the
    prompt came from a prefix cache. `token_times[i]` is when sampled token i was known; an end-of-sequence token
    has its time too.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds; None when no token was made."""
        return self.token_times[0] if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token: the mean gap after the first, in seconds; None below two tokens."""
        n = len(self.token_times)
        return (self.token_times[-1] - self.token_times[0]) / (n - 1) if n > 1 else None


def _as_ids(prompts: Sequence[str | Sequence[int]], tokenizer: Any) -> list[list[int]]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        raise ValueError(
            "prompts is a list of prompts, each a string or a list of token ids; "
            "put brackets around a single one."
        )
    if tokenizer is None and any(isinstance(p, str) for p in prompts):
        raise ValueError("A prompt given as text needs tokenizer=…; pass token ids or the tokenizer.")
    return [tokenizer.encode(p) if isinstance(p, str) else [int(t) for t in p] for p in prompts]


def _check(model: Decoder, prompts: list[list[int]], limit: int) -> None:
    config = model.config
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ValueError(f"max_new_tokens must be 0 or a positive integer, got {limit!r}.")
    for row, ids in enumerate(prompts):
        if not ids:
            raise ValueError(
                f"Prompt {row} is empty: there is nothing to predict from. Give it one token at least."
            )
        bad = next((t for t in ids if not 0 <= t < config.vocab_size), None)
        if bad is not None:
            raise ValueError(
                f"Prompt {row} holds token {bad}, outside the vocabulary of {config.name} "
                f"(0 to {config.vocab_size - 1})."
            )
        room = config.max_positions - len(ids) + 1  # the last token is never fed, so it needs no position
        if limit > room:
            raise ValueError(
                f"Prompt {row} has {len(ids)} tokens and asks for {limit} more, but {config.name} knows "
                f"{config.max_positions} positions. Ask for {max(room, 0)} at most, or shorten the prompt."
            )


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int,
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
    *,
    tokenizer: Any = None,
    eos_ids: Sequence[int] | frozenset[int] | None = None,
    stop: Sequence[str] = (),
    cache: Cache | None = None,
    prefill_chunk: int | None = None,
    extra: Sequence[object] = (),
    on_token: OnToken | None = None,
) -> list[Completion]:
    """Complete every prompt by at most `max_new_tokens` tokens, all in one batch. Greedy unless `params` says
    otherwise.

    `prompts` are strings (with `tokenizer`) or token-id lists. A row ends at an id of `eos_ids` (default: the
    model's; pass () to run on), at a `stop` string, or at exactly `max_new_tokens`. `cache` must be empty, with
    one row per prompt; default is a `StaticCache` of the needed size. `prefill_chunk` feeds prompts in pieces of
    that many tokens. `extra` is what else the cached numbers depend on (tenant, adapter, salt): a cache that
    remembers prefixes shares them only where it is equal. `on_token(row, token, text)` sees each token as it is
    known, with the text that is certain by then; an exception from it ends generation and reaches the caller. Bad
    input raises ValueError before the first forward.
    """
    start = time.perf_counter()
    ids = _as_ids(prompts, tokenizer)
    _check(model, ids, max_new_tokens)
    settings = [params] * len(ids) if isinstance(params, SamplingParams) else list(params)
    if len(settings) != len(ids):
        raise ValueError(
            f"{len(settings)} sampling parameters for {len(ids)} prompts; give one, or one per prompt."
        )
    if stop and tokenizer is None:
        raise ValueError("stop strings are found in text, so they need tokenizer=….")
    if prefill_chunk is not None and prefill_chunk < 1:
        raise ValueError(f"prefill_chunk must be 1 or more, got {prefill_chunk}.")
    ends = frozenset(model.config.eos_ids if eos_ids is None else eos_ids)
    rows = [Answer(max_new_tokens, ends, tokenizer, stop) for _ in ids]
    results = [Completion(num_prompt_tokens=len(prompt)) for prompt in ids]
    if not ids or max_new_tokens == 0:
        return results
    longest = max(map(len, ids))
    if cache is None:
        cache = StaticCache.for_model(model, len(ids), longest + max_new_tokens - 1)
    elif cache.lengths.shape[0] != len(ids) or bool(cache.lengths.any()):
        raise ValueError(
            f"cache must be empty and have {len(ids)} rows; lengths are {cache.lengths.tolist()}."
        )
    elif cache.capacity is not None and cache.capacity < longest + max_new_tokens - 1:
        raise CacheFull(
            f"The longest prompt has {longest} tokens and asks for {max_new_tokens} more, which takes "
            f"{longest + max_new_tokens - 1} positions; this cache reserves {cache.capacity} per row."
        )
    streams = generators(settings)

    held = cache.adopt(ids, extra)
    for result, count in zip(results, held, strict=True):
        result.num_cached_tokens = count
    hidden = _prefill(model, ids, held, cache, prefill_chunk or longest)
    while True:
        logits = model.head(hidden)
        probs = distribution(logits, settings, ids, [row.tokens for row in rows])
        sampled = draw(probs, streams).tolist()
        now = time.perf_counter() - start
        for i, row in enumerate(rows):
            if not row.done:
                text = row.add(sampled[i])
                results[i].token_times.append(now)
                if on_token is not None:
                    on_token(i, sampled[i], text)
        if all(row.done for row in rows):
            cache.keep([prompt + row.tokens for prompt, row in zip(ids, rows, strict=True)], extra)
            for result, row in zip(results, rows, strict=True):
                result.tokens, result.text = row.tokens, row.text
                result.finish_reason = row.finish_reason or "length"
            return results
        active = torch.tensor([[not row.done] for row in rows], device=logits.device)
        tokens = torch.tensor(sampled, device=logits.device)[:, None]
        hidden = model.hidden(tokens, torch.where(active, cache.lengths[:, None], -1), cache)[:, -1]


def _prefill(model: Decoder, prompts: list[list[int]], held: list[int], cache: Cache, chunk: int) -> Tensor:
    """Run what the cache does not hold of the prompts, in chunks; returns each row's last hidden state (B, D)."""
    tokens, pos = pad([prompt[start:] for prompt, start in zip(prompts, held, strict=True)])
    pos = torch.where(pos >= 0, pos + torch.tensor(held)[:, None], pos)
    tokens, pos = tokens.to(cache.lengths.device), pos.to(cache.lengths.device)
    last = pos.amax(1)
    found: Tensor | None = None
    for at in range(0, tokens.shape[1], chunk):
        part = pos[:, at : at + chunk]
        hidden = model.hidden(tokens[:, at : at + chunk], part, cache)
        is_last = (part == last[:, None]) & (part >= 0)
        picked = hidden[torch.arange(len(prompts), device=hidden.device), is_last.int().argmax(1)]
        found = picked if found is None else torch.where(is_last.any(1)[:, None], picked, found)
    assert found is not None  # a prompt has one token at least
    return found
