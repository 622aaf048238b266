"""What a client asks for, and how far the engine has come with it. No torch.

    tokens    [ p p p p p p p p | o o o ]        total = prompt + output (+ drafts, when something proposes them)
    computed  [ x x x x x . . . . . . . ]        keys and values that stand in the blocks of the table

A step lets `computed` catch up with `total`; when they are equal the next token is sampled. There is no prefill phase
and no decode phase: a prompt has a long way to catch up, an answer one token at a time. So vLLM's V1 engine (2025)
counts its requests, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..cache.prefix import extra_key, with_adapter
from ..inputs import id_set, real, shown, strings, token_ids, whole

if TYPE_CHECKING:
    from ..sampling import Constraint, SamplingParams

INT32 = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it, checked when it is made: ValueError, with a sentence, for what no engine can do.

    `params` None is greedy. `stop` strings need an engine with a tokenizer. The smaller `priority`, the sooner.
    `extra` is what else cached numbers depend on (tenant, salt), in parts as `extra_key` takes them. `logprobs` k asks
    for each drawn token's log-probability and the k likeliest. `constraint` makes the matcher of a grammar, which says
    what tokens may come. `adapter` names one of the engine's. `arrival` is seconds on `time.monotonic`, or on the
    engine's own clock.
    """

    id: str
    prompt: Sequence[int]
    max_new_tokens: int
    params: SamplingParams | None = None
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    priority: int = 0
    extra: tuple[object, ...] = ()
    min_new_tokens: int = 0
    logprobs: int | None = None
    keep_stop: bool = False
    skip_special: bool = True
    constraint: Constraint | None = None
    adapter: str | None = None
    arrival: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise ValueError(f"id is a string that names the request, got {shown(self.id)}.")
        extra_key(self.extra)
        checked = {
            "prompt": token_ids(self.prompt, "prompt"),
            "max_new_tokens": whole(self.max_new_tokens, "max_new_tokens", 1),
            "eos_ids": id_set(self.eos_ids, "eos_ids"),
            "stop": strings(self.stop, "stop"),
            "priority": whole(self.priority, "priority", -INT32, INT32),
            "extra": tuple(self.extra),
            "min_new_tokens": whole(self.min_new_tokens, "min_new_tokens"),
            "logprobs": None if self.logprobs is None else whole(self.logprobs, "logprobs"),
            "arrival": real(self.arrival, "arrival", 0.0),
        }
        if not checked["prompt"]:
            raise ValueError(
                "The prompt is empty: there is nothing to predict from. Give it one token at least."
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def cached_under(self) -> tuple[object, ...]:
        """What must be equal, beside the tokens, for two requests to share cached numbers."""
        return with_adapter(self.extra, self.adapter)


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of a drawn token under the model's own distribution, and the likeliest (id, logprob) pairs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Times:
    """When things happened to a request, in seconds on `time.monotonic`; None for what never did."""

    arrival: float
    scheduled: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True)
class Delta:
    """What one step added to a request's answer. `text` never holds half a character or part of a stop string.

    `tokens` leave the end-of-sequence token out; `logprobs` stand for them one by one. `finish_reason` is None, "stop",
    "length", "abort" or "error"; with it come the `stop_reason` (string or id) and the request's `times`. An answer
    that cannot go on, because its grammar allows nothing, its logits are no numbers, or something raised, ends with
    "error" and a sentence as its reason.
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    time: float = 0.0
    times: Times | None = None

    @property
    def num_generated(self) -> int:
        """Tokens that were generated: an end-of-sequence token is not shown, but it took a step and is billed."""
        return len(self.tokens) + isinstance(self.stop_reason, int)


class SequenceState:
    """A request inside the scheduler: its tokens, its block table, how much of it is computed."""

    def __init__(self, request: Request, rank: tuple[float, int]):
        self.request, self.rank = request, rank  # the smaller the rank, the sooner
        self.prompt = list(request.prompt)
        self.output: list[int] = []
        self.drafts: list[int] = []  # proposed tokens that the next step verifies
        self.table: list[int] = []
        self.computed = 0
        self.swapped = False  # the computed part is in host memory
        self.num_cached_tokens = 0  # of the prompt, when it was first admitted
        self.num_preemptions = 0
        self.scheduled: float | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def tokens(self) -> list[int]:
        """Prompt, answer and drafts: what stands at positions 0, 1, 2 …"""
        return self.prompt + self.output + self.drafts

    @property
    def total(self) -> int:
        return len(self.prompt) + len(self.output) + len(self.drafts)

    @property
    def gap(self) -> int:
        """How many positions are still to be computed before the next token can be sampled."""
        return self.total - self.computed

    @property
    def decodes(self) -> bool:
        """All that was known is computed but the last token (and the drafts behind it)."""
        return self.gap == 1 + len(self.drafts)

    def span(self, start: int, count: int) -> list[int]:
        """The tokens at positions `start` to `start + count`."""
        at = start - len(self.prompt)
        return (self.output + self.drafts)[at : at + count] if at >= 0 else self.tokens[start : start + count]
