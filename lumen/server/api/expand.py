"""From one HTTP request to engine requests: one per prompt and choice, each with its own seed and its room."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...io.tokenizer import TextTokenizer
from ...sampling import Constraint
from ...sampling.words import WordRules, spelled
from ...serve.request import Request
from .errors import BadRequest, TooLong
from .fields import shown
from .options import ModelCard, Options


def choice_seed(seed: int | None, choice: int) -> int | None:
    """The seed of one of n choices. Choice 0 keeps the seed, so n = 1 and the first of n agree.

    The others are hashed rather than counted up: choice 1 of seed 5 must not be choice 0 of seed 6.
    """
    if seed is None or choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def word_rules(options: Options, tokenizer: TextTokenizer, card: ModelCard) -> Constraint | None:
    """What `allowed_token_ids` and `bad_words` leave, None if neither was given. BadRequest if that is nothing."""
    if options.allowed_ids is None and not options.bad_words:
        return None
    try:
        runs = spelled(options.bad_words, partial(tokenizer.encode, add_special=False))
        return WordRules(card.vocab_size, options.allowed_ids, runs)
    except ValueError as error:
        raise BadRequest(
            str(error), param="bad_words" if options.bad_words else "allowed_token_ids"
        ) from None


def engine_requests(
    request_id: str,
    prompts: Sequence[list[int]],
    options: Options,
    card: ModelCard,
    default_tokens: int | None,
    constraint: Constraint | None = None,
) -> list[Request]:
    """One engine request per prompt and choice, in the order of the answer's `index`. TooLong if one cannot fit."""
    found = []
    for number, ids in enumerate(prompts):
        limit = _room(ids, options.max_tokens, default_tokens, card)
        if options.min_tokens > limit:
            raise BadRequest(
                f"min_tokens is {options.min_tokens}, but this answer may have {limit}; lower it, or raise max_tokens.",
                param="min_tokens",
            )
        for choice in range(options.n):
            found.append(
                Request(
                    id=f"{request_id}-{number * options.n + choice}",
                    prompt=ids,
                    max_new_tokens=limit,
                    params=replace(options.params, seed=choice_seed(options.params.seed, choice)),
                    eos_ids=options.eos_ids,
                    stop=options.stop,
                    priority=options.priority,
                    extra=() if options.salt is None else (options.salt,),
                    min_new_tokens=options.min_tokens,
                    logprobs=options.logprobs,
                    keep_stop=options.keep_stop,
                    skip_special=options.skip_special,
                    constraint=constraint,
                )
            )
    return found


def _room(ids: list[int], asked: int | None, default: int | None, card: ModelCard) -> int:
    """How many tokens the answer may have."""
    if not ids:
        raise BadRequest(
            "The prompt is empty; give the model one token at least to continue from.", param="prompt"
        )
    left = card.max_len - len(ids)
    if left < 1:
        raise TooLong(
            f"The prompt has {len(ids)} tokens and {card.id} takes {card.max_len}, prompt and answer together; "
            "shorten the prompt."
        )
    if asked is None:
        return left if default is None else min(left, default)
    if asked > left:
        raise TooLong(
            f"The prompt has {len(ids)} tokens and max_tokens asks for {shown(asked)} more, but {card.id} takes "
            f"{card.max_len} together; ask for {left} at most or shorten the prompt.",
            param="max_tokens",
        )
    return asked
