"""The engine: requests in, pieces of answers out, one step at a time.

    engine = Engine(model, tokenizer, num_blocks=256)
    engine.add(Request("a", tokenizer.encode("Once upon a time"), 40))
    while engine.has_work:
        for delta in engine.step():
            print(delta.text, end="")

One thread owns an engine. Everything a step decides is the scheduler's, everything it computes is the runner's; the
engine turns tokens into text, ends answers, and keeps count.

What raises in a step ends with `finish_reason` "error", and no more than that:

    one request's own      its matcher, bias, logits, text, stop strings, draft, swap        that request
    the forward's                                                                            those that ran in it
    the books'             scheduler, prefix cache, counters                                 everybody who is here

Afterwards every block is accounted for and the engine goes on; only where the audit of the books fails it raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cache.paged import BlockStore, Content
from ..cache.prefix import HashPrefix, NoPrefix, Prefix
from ..cache.radix import RadixPrefix
from ..decode.answer import Answer
from ..decode.drafter import Drafter
from ..decode.inputs import for_generation
from ..inputs import shown, token_ids
from ..models.lora import NO_ADAPTERS, NoAdapters
from ..models.passing import PLAIN, Channels
from ..parts import Window
from ..sampling import NoToken, SamplingParams
from .counters import Counters
from .forward import Told
from .request import Delta, Request, SequenceState, Times, TokenLogprobs
from .runner import NO_DRAFT, Runner
from .scheduler import Limits, Plan, Scheduler

if TYPE_CHECKING:
    from torch import Tensor

    from ..decode.compiled import Model
    from ..io.tokenizer import TextTokenizer

log = logging.getLogger("lumen.serve")

PREFIXES = {"none": NoPrefix, "hash": HashPrefix, "radix": RadixPrefix}


class Engine:
    """Serves requests on one model. Answers equal those of `lumen.generate` for each request alone. On a model that is
    `lumen.decode.Compiled`, steps that only decode run its graph.

    `num_blocks` blocks of `block_size` positions hold all keys and values. `prefix`: "radix", "hash" or "none". The
    limits are the scheduler's, see `lumen.serve.scheduler.Limits`. What a `drafter` guesses, chains only,
    is verified, several tokens a step; it gets what is left of the token budget and of the blocks, and an answer's
    distribution stays as it is.
    `make_store(model, num_blocks, block_size)` makes the memory; the default holds keys and values as they are.
    `clock` gives seconds; requests carry their `arrival` on the same one. A request may name one of the bank
    `adapters`; `channels` is told to every forward.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: TextTokenizer | None = None,
        *,
        num_blocks: int,
        block_size: int = 16,
        prefix: str = "radix",
        limits: Limits | None = None,
        drafter: Drafter = NO_DRAFT,
        make_store: Callable[[Model, int, int], BlockStore] = BlockStore.for_model,
        clock: Callable[[], float] = time.monotonic,
        adapters: NoAdapters = NO_ADAPTERS,
        channels: Channels = PLAIN,
        kept: Window | None = None,
    ):
        if prefix not in PREFIXES:
            raise ValueError(f"prefix is one of {', '.join(PREFIXES)}, got {prefix!r}.")
        if model.config.linear is not None:
            raise ValueError(
                f"{model.config.name} has linear layers, whose states no block of this engine holds; answer with "
                "lumen.generate, which keeps them beside keys and values."
            )
        self.model, self.tokenizer, self._clock = model, tokenizer, clock
        self.store = make_store(model, num_blocks, block_size)
        self.store.prefix, self.store.kept = _prefix(prefix, self.store), kept
        self.scheduler = Scheduler(self.store.pool, self.store.prefix, limits, kept)
        self.runner = Runner(model, self.store, drafter, Told(for_generation(channels), adapters))
        self.counters = Counters(accepted_per_position=(0,) * drafter.max_drafts)
        self.last_plan = Plan()  # what the latest step did, for those who draw timelines
        self._live: dict[str, tuple[SequenceState, Answer, list[float]]] = {}

    def check(self, request: Request) -> None:
        """Raise ValueError, with a sentence, for a request that this engine can never serve."""
        config = self.model.config
        self.scheduler.check(request)
        self.runner.told.adapters.number(request.adapter)
        if request.params is not None and not isinstance(request.params, SamplingParams):
            raise ValueError(f"params must be SamplingParams or None, got {shown(request.params)}.")
        token_ids(request.prompt, "The prompt", config.vocab_size)
        room = config.max_positions - len(request.prompt) + 1
        if request.max_new_tokens > room:
            raise ValueError(
                f"The prompt has {len(request.prompt)} tokens and asks for {request.max_new_tokens} more, but "
                f"{config.name} knows {config.max_positions} positions. Ask for {max(room, 0)} at most, or shorten the "
                "prompt."
            )
        if not 0 <= request.min_new_tokens <= request.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be between 0 and max_new_tokens ({request.max_new_tokens}), got "
                f"{request.min_new_tokens}."
            )
        token_ids(list(request.params.logit_bias if request.params else ()), "logit_bias", config.vocab_size)
        if request.logprobs is not None and not 0 <= request.logprobs <= config.vocab_size:
            raise ValueError(f"logprobs must be between 0 and {config.vocab_size}, got {request.logprobs}.")

    def add(self, request: Request) -> None:
        """Queue a request. ValueError, with a sentence, when it can never run here; nothing has changed then."""
        self.check(request)
        answer = self._answer(request)
        sequence = self.scheduler.add(request)
        self._open(sequence)
        self._live[request.id] = sequence, answer, []
        self.counters.prompt_tokens += len(request.prompt)

    def add_prefilled(
        self,
        request: Request,
        first: int,
        k: Tensor,
        v: Tensor,
        *,
        told: TokenLogprobs | None = None,
        scheduled: float | None = None,
        known: float | None = None,
    ) -> Delta:
        """Go on with a request whose prompt was computed elsewhere, and whose `first` token was drawn there.

        k, v (layers, prompt tokens, Hkv, D) hold its keys and values, in this engine's dtype; blocks there and here may
        differ in size. `told` are the first token's log-probabilities if the request asks for any; it was `scheduled`
        and the token `known` at these times there, default now. The delta tells the first token, and all goes on as if
        nothing had been handed over. Raises ValueError as `add` does, before anything has changed.
        """
        if self.store.kept is not None:
            raise ValueError(
                f"This engine keeps a window ({self.store.kept}), and what another one computed of a prompt was read "
                "without it. Send the prompt here, or hand over to an engine that keeps everything."
            )
        self.check(request)
        size = self.model.config.vocab_size
        if not isinstance(first, int) or not 0 <= first < size:
            raise ValueError(f"The first token is {first!r}, outside the vocabulary (0 to {size - 1}).")
        if request.logprobs is not None and (told is None or told.token != first):
            raise ValueError(
                f"Request {request.id!r} asks for log-probabilities; hand over those of its first token, {first}, with "
                "told=."
            )
        if k.shape[1:2] != (len(request.prompt),):
            raise ValueError(
                f"This prompt has {len(request.prompt)} tokens, but its keys are {tuple(k.shape)}."
            )
        content = self.store.content(k, v)
        answer = self._answer(request)
        now = self._clock()
        sequence = self.scheduler.add_prefilled(request, [first], len(request.prompt))
        sequence.scheduled = now if scheduled is None else scheduled
        self._open(sequence, content)
        self._live[request.id] = sequence, answer, []
        self.counters.prompt_tokens += len(request.prompt)
        asked = [told] if told is not None and request.logprobs is not None else []
        delta = self._tell(request.id, [first], asked, now if known is None else known)
        return self._end(request.id, delta) if answer.done else delta

    def _open(self, sequence: SequenceState, content: Content | None = None) -> None:
        try:
            self.runner.open(sequence)
            if content is not None:
                self.runner.receive(sequence, content)
        except BaseException:  # its grammar is none: it was never here
            self.scheduler.drop(sequence)
            self.runner.forget(sequence.id)
            raise

    def _answer(self, request: Request) -> Answer:
        return Answer(
            request.max_new_tokens, request.eos_ids, self.tokenizer, request.stop,
            keep_stop=request.keep_stop, skip_special=request.skip_special,
        )  # fmt: skip

    def step(self) -> list[Delta]:
        """Run one step; returns a delta for every request that got tokens or ended. PoolCorrupt when the books are."""
        deltas: list[Delta] = []
        try:
            self._step(deltas)
        except Exception as error:
            self._fail(dict.fromkeys(self._live, error), deltas)
            self.scheduler.audit()
        return deltas

    def _step(self, deltas: list[Delta]) -> None:
        if self.runner.drafter.max_drafts:
            self._fail(self.runner.propose(self.scheduler.running), deltas)
        plan = self.last_plan = self.scheduler.schedule(self._clock())
        found = self.runner.run(plan)
        now = self._clock()
        told: dict[str, Delta] = {}
        for name, tokens in found.tokens.items():
            try:
                told[name] = self._tell(name, tokens, found.logprobs.get(name, []), now)
            except Exception as error:
                found.errors[name] = error
        # What an answer did not take, because it ended, is rejected like any other draft.
        taken = {name: found.tokens[name][: delta.num_generated] for name, delta in told.items()}
        self.counters.step(plan, taken, self.scheduler)
        self._fail(found.errors, deltas)
        self.scheduler.update(plan, taken)
        for name, delta in told.items():
            deltas.append(self._end(name, delta) if delta.finish_reason else delta)

    def _fail(self, errors: Mapping[str, Exception], deltas: list[Delta]) -> None:
        """End requests by what they raised. Nothing of theirs is remembered: their blocks may hold NaN."""
        for name, error in errors.items():
            self.store.wipe(self.scheduler.drop(self._live[name][0]))
            deltas.append(
                self._last(name, Delta(name, (), "", (), "error", sentence(error), 0, self._clock()))
            )
            if not isinstance(error, NoToken):
                log.error("request %s ends with an error", name, exc_info=error)

    def abort(self, request_id: str) -> Delta | None:
        """End a request now and give its blocks back; None when nobody of that name is here."""
        if request_id not in self._live:
            return None
        return self._end(request_id, Delta(request_id, finish_reason="abort", time=self._clock()))

    def stream(self) -> Iterator[Delta]:
        """Step until nobody is left."""
        while self.has_work:
            yield from self.step()

    def _tell(self, name: str, tokens: list[int], told: list[TokenLogprobs], now: float) -> Delta:
        """One sequence's new tokens as a delta, as far as its answer takes them before it ends."""
        sequence, answer, times = self._live[name]
        shown, text = len(answer.tokens), ""
        for token in tokens:
            if not answer.done:
                times.append(now)
                text += answer.add(token)
        new = tuple(answer.tokens[shown:])
        delta = Delta(
            name, new, text, tuple(told[: len(new)]), answer.finish_reason, answer.stop_reason,
            sequence.num_cached_tokens, now,
        )  # fmt: skip
        self.counters.generation_tokens += delta.num_generated
        return delta

    def _end(self, name: str, last: Delta) -> Delta:
        self.scheduler.finish(self._live[name][0])
        return self._last(name, last)

    def _last(self, name: str, last: Delta) -> Delta:
        """Forget a request that the scheduler has let go; its last delta says when what happened."""
        sequence, _, times = self._live.pop(name)
        self.runner.forget(name)
        arrival = sequence.request.arrival
        stamps = Times(arrival, sequence.scheduled, times[0] if times else None, last.time)
        return replace(last, num_cached_tokens=sequence.num_cached_tokens, times=stamps)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that a sequence or the prefix cache needs now; what could be evicted counts as free."""
        pool = self.store.pool
        return 1 - (pool.num_free + self.store.prefix.num_evictable()) / pool.num_blocks


def sentence(error: Exception) -> str:
    """What is said to whoever asked. A ValueError's words are meant for him; another's are for the log."""
    if isinstance(error, NoToken):
        return error.why
    if isinstance(error, ValueError):
        return str(error)
    return f"This answer could not go on ({type(error).__name__}); the log says why. Other requests go on."


def _prefix(name: str, store: BlockStore) -> Prefix:
    return NoPrefix() if name == "none" else PREFIXES[name](store.pool)
