"""The one generation loop: forward the prompts, then step (see `lumen.decode.step`) until every row is done.

A row that is done goes on as padding (position -1), so the batch keeps its shape and its neighbours never notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import Cache, CacheFull, cache_for
from ..cache.prefix import extra_key, with_adapter
from ..inputs import INT64, id_set, strings, whole
from ..models.lora import NO_ADAPTERS, NoAdapters
from ..models.passing import PLAIN, Channels
from ..sampling import Constraint, NoToken, SamplingParams, Stream
from ..sampling.sampler import GREEDY
from .answer import Answer
from .batch import pad
from .compiled import Compiled, Model
from .completion import Completion
from .draft import NOTHING
from .drafter import Drafter, NoDraft
from .inputs import as_ids, check, for_generation, matchers, numbers, settings
from .row import Row
from .step import branched, forward, propose, verify

OnToken = Callable[[int, int, str], Any]
NO_DRAFT = NoDraft()


@torch.inference_mode()
def generate(
    model: Model,
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
    drafter: Drafter = NO_DRAFT,
    constraint: Constraint | Sequence[Constraint | None] | None = None,
    adapters: NoAdapters = NO_ADAPTERS,
    adapter: str | Sequence[str | None] | None = None,
    channels: Channels = PLAIN,
) -> list[Completion]:
    """Complete every prompt by at most `max_new_tokens` tokens, all in one batch. Greedy unless `params` says
    otherwise.

    `prompts` are strings (with `tokenizer`) or token-id lists. A row ends at an id of `eos_ids` (default: the
    model's; pass () to run on), at a `stop` string, or at exactly `max_new_tokens`. `cache` must be empty, with
    one row per prompt; default is `cache_for` of the needed size (of its bucket, if the model is `Compiled`).
    `prefill_chunk` feeds prompts in pieces of that many tokens. `extra` is what else the cached numbers depend on
    (tenant, adapter, salt): a cache that remembers prefixes shares them only where it is equal. `on_token(row, token,
    text)` sees each token as it is known, with the text that is certain by then; an exception from it ends generation
    and reaches the caller. `drafter` guesses chains or trees of tokens that are verified in one pass: the answers'
    distribution stays the model's, and greedy answers stay as they are. `constraint`, one for all rows or one or None
    for each, says which tokens may come. `adapter`, one name or one or None for each row, is one of the bank
    `adapters`; a prefix is then shared with rows of the same adapter only. `channels` is told to every forward.
    Bad input raises ValueError before the first forward. What only one row cannot do raises when it comes to that, and
    names the row and the token: NoToken where a grammar allows nothing or the logits are no numbers.
    """
    start = time.perf_counter()
    ids = as_ids(prompts, tokenizer)
    max_new_tokens = whole(max_new_tokens, "max_new_tokens")
    check(model, ids, max_new_tokens, cache is not None and cache.traits.endless)
    each = settings(params, len(ids))
    stop = strings(stop, "stop")
    extra_key(extra)
    if stop and tokenizer is None:
        raise ValueError("stop strings are found in text, so they need tokenizer=….")
    chunk = INT64 if prefill_chunk is None else whole(prefill_chunk, "prefill_chunk", 1)
    told, chosen = for_generation(channels), numbers(adapter, adapters, len(ids))
    held_to = matchers(constraint, len(ids), model.config.vocab_size)
    ends = id_set(model.config.eos_ids if eos_ids is None else eos_ids, "eos_ids")
    answers = [Answer(max_new_tokens, ends, tokenizer, stop) for _ in ids]
    results = [Completion(num_prompt_tokens=len(prompt)) for prompt in ids]
    if not ids or max_new_tokens == 0:
        return results
    longest = max(map(len, ids))
    if cache is None:
        needed = longest + max_new_tokens - 1
        room = model.capacity(needed) if isinstance(model, Compiled) else needed  # few sizes, so few graphs
        cache = cache_for(model, len(ids), room)
    elif cache.lengths.shape[0] != len(ids) or bool(cache.lengths.any()):
        raise ValueError(
            f"cache must be empty and have {len(ids)} rows; lengths are {cache.lengths.tolist()}."
        )
    elif cache.capacity is not None and cache.capacity < longest + max_new_tokens - 1:
        raise CacheFull(
            f"The longest prompt has {longest} tokens and asks for {max_new_tokens} more, which takes "
            f"{longest + max_new_tokens - 1} positions; this cache reserves {cache.capacity} per row."
        )
    far = cache.traits.max_rewind
    if far is not None and far < drafter.max_drafts:
        raise ValueError(
            f"{type(cache).__name__} can go back {far} positions, and {type(drafter).__name__} drafts up to "
            f"{drafter.max_drafts} tokens, which must be taken back where they are wrong. Draft fewer, or use a cache "
            "that can rewind."
        )
    if drafter.max_nodes and not cache.traits.takes_trees:
        raise ValueError(
            f"{type(drafter).__name__} drafts trees, and {type(cache).__name__} takes none; draft chains "
            "(max_nodes = 0), or use a cache of keys and values that can be read without storing."
        )
    rows = [
        Row(i, prompt, answer.tokens, p, Stream(p), max_new_tokens, ends, matcher=matcher)
        for i, (prompt, answer, p, matcher) in enumerate(zip(ids, answers, each, held_to, strict=True))
    ]

    def channels_over(width: int) -> Channels:
        return adapters.beside(told, [[number] * width for number in chosen], cache.lengths.device)

    extras = [with_adapter(extra, None if n < 0 else adapters.names[n]) for n in chosen]
    held = cache.adopt(ids, extras)
    for result, count in zip(results, held, strict=True):
        result.num_cached_tokens = count
    hidden = _prefill(model, ids, held, cache, min(chunk, longest), channels_over)
    cache.prompt_ended()
    written = [len(prompt) for prompt in ids]  # positions of each row that stand in the cache
    live, drafts, tree = list(range(len(ids))), [NOTHING] * len(ids), None
    try:
        while live:
            logits = model.head(hidden)
            new = verify([rows[i] for i in live], drafts, logits)
            drafter.saw([rows[i].key for i in live], drafts, logits)
            now = time.perf_counter() - start
            kept: list[list[int]] = [[] for _ in ids]
            for i, draft, tokens in zip(live, drafts, new, strict=True):
                if (error := rows[i].error) is not None:
                    raise _named(error, i, len(answers[i].tokens))
                count = _tell(i, answers[i], tokens, on_token)
                written[i] += count - 1 - len(draft.tokens)
                path = draft.path(tokens[:count])
                kept[i] = [0, *(node + 1 for node in path[: count - 1])]
                results[i].token_times += [now] * count
                results[i].num_draft_tokens += len(draft.tokens)
                results[i].num_accepted_tokens += len(path)
            if tree is not None:
                tree.accept(kept)
            elif any(draft.tokens for draft in drafts):
                cache.rewind(written)
            live = [i for i in live if not answers[i].done]
            if live:
                drafts = propose(drafter, [rows[i] for i in live], model.config.vocab_size)
                tree = branched(cache, dict(zip(live, drafts, strict=True)))
                fed: list[list[int]] = [[] for _ in ids]
                for i, draft in zip(live, drafts, strict=True):
                    fed[i] = [answers[i].tokens[-1], *draft.tokens]
                    written[i] += len(fed[i])
                hidden = forward(model, cache if tree is None else tree, fed, channels_over)
    finally:
        for row in rows:
            drafter.forget(row.key)
    cache.keep([prompt + answer.tokens for prompt, answer in zip(ids, answers, strict=True)], extras)
    for result, answer in zip(results, answers, strict=True):
        result.tokens, result.text = answer.tokens, answer.text
        result.finish_reason = answer.finish_reason or "length"
    return results


def _named(error: Exception, row: int, count: int) -> Exception:
    """A row's error, with its place where it is ours to say."""
    return NoToken(f"Row {row}, token {count}: {error.why}") if isinstance(error, NoToken) else error


def _tell(row: int, answer: Answer, tokens: list[int], on_token: OnToken | None) -> int:
    """Give an answer its new tokens until it ends; returns how many it took."""
    for count, token in enumerate(tokens, 1):
        text = answer.add(token)
        if on_token is not None:
            on_token(row, token, text)
        if answer.done:
            return count
    return len(tokens)


def _prefill(
    model: Model,
    prompts: list[list[int]],
    held: list[int],
    cache: Cache,
    chunk: int,
    channels: Callable[[int], Channels],
) -> Tensor:
    """Run what the cache does not hold of the prompts, in chunks; returns each row's last hidden state (B, D)."""
    tokens, pos = pad([prompt[start:] for prompt, start in zip(prompts, held, strict=True)])
    pos = torch.where(pos >= 0, pos + torch.tensor(held)[:, None], pos)
    tokens, pos = tokens.to(cache.lengths.device), pos.to(cache.lengths.device)
    last = pos.amax(1)
    found: Tensor | None = None
    for at in range(0, tokens.shape[1], chunk):
        part = pos[:, at : at + chunk]
        hidden = model.hidden(tokens[:, at : at + chunk], part, cache, channels(part.shape[1]))
        is_last = (part == last[:, None]) & (part >= 0)
        picked = hidden[torch.arange(len(prompts), device=hidden.device), is_last.int().argmax(1)]
        found = picked if found is None else torch.where(is_last.any(1)[:, None], picked, found)
    assert found is not None  # a prompt has one token at least
    return found
