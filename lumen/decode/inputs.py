"""What `generate` was asked, looked at before anything runs: every error is a ValueError with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..inputs import INT64, shown, wholes
from ..models.lora import NoAdapters
from ..models.passing import Channels
from ..sampling import Constraint, Matcher, SamplingParams
from .row import started

if TYPE_CHECKING:
    from .compiled import Model


def as_ids(prompts: Sequence[str | Sequence[int]], tokenizer: Any) -> list[list[int]]:
    """Prompts as token ids: text encoded, ids checked to be whole numbers."""
    if isinstance(prompts, str) or not hasattr(prompts, "__iter__"):
        raise ValueError(
            f"prompts is a list of prompts, got {shown(prompts)}; put brackets around a single one."
        )
    each = list(prompts)
    if each and not isinstance(each[0], str) and not hasattr(each[0], "__len__"):
        raise ValueError(
            "prompts is a list of prompts, each a string or a list of token ids; put brackets around a single one."
        )
    if tokenizer is None and any(isinstance(p, str) for p in each):
        raise ValueError("A prompt given as text needs tokenizer=…; pass token ids or the tokenizer.")
    return [
        tokenizer.encode(p) if isinstance(p, str) else wholes(p, f"Prompt {row}", -INT64)
        for row, p in enumerate(each)
    ]


def check(model: Model, prompts: list[list[int]], limit: int, endless: bool = False) -> None:
    """Raise ValueError for a prompt that this model cannot continue by `limit` tokens. With a cache that is `endless`
    its positions are no limit."""
    config = model.config
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "torch.compile(model) compiles `forward`, which generation never calls, so nothing would run compiled; "
            "use lumen.decode.Compiled(model)."
        )
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
        if limit > room and not endless:
            raise ValueError(
                f"Prompt {row} has {len(ids)} tokens and asks for {limit} more, but {config.name} knows "
                f"{config.max_positions} positions. Ask for {max(room, 0)} at most, or shorten the prompt."
            )


def settings(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """The sampling parameters of each row."""
    each = [params] * count if isinstance(params, SamplingParams) else params
    if not isinstance(each, list | tuple) or not all(isinstance(one, SamplingParams) for one in each):
        raise ValueError(f"params is one SamplingParams, or a list of one per prompt, got {shown(params)}.")
    if len(each) != count:
        raise ValueError(f"{len(each)} sampling parameters for {count} prompts; give one, or one per prompt.")
    return list(each)


def matchers(
    constraint: Constraint | Sequence[Constraint | None] | None, count: int, size: int
) -> list[Matcher | None]:
    """A matcher of its own for each row that is constrained."""
    each = list(constraint) if isinstance(constraint, Sequence) else [constraint] * count
    if len(each) != count:
        raise ValueError(
            f"{len(each)} constraints for {count} prompts; give one, or one (or None) per prompt."
        )
    return [None if one is None else started(one, size) for one in each]


def numbers(adapter: str | Sequence[str | None] | None, bank: NoAdapters, count: int) -> list[int]:
    """Each row's adapter by its place in the bank, -1 for none."""
    each = [adapter] * count if adapter is None or isinstance(adapter, str) else list(adapter)
    if len(each) != count:
        raise ValueError(f"{len(each)} adapters for {count} prompts; give one, or one (or None) per prompt.")
    return [bank.number(name) for name in each]


def for_generation(channels: Channels) -> Channels:
    """What may be told to every forward of an answer. The adapters' place is taken by those of each row."""
    if channels.lora is not None or not channels.causal:
        raise ValueError(
            "Answers are generated token by token, so channels must be causal; adapters are chosen by name: adapter=… "
            "beside adapters=…."
        )
    return channels
