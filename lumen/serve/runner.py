"""Plan to tokens: one forward over whatever the scheduler chose, and new tokens for every sequence that caught up.

Prompt chunks, whole prompts, running answers and their drafts share the forward (`lumen.serve.forward`); only the rows
that are sampled go through the head. What is drawn, and which drafts are kept, is decided by `lumen.decode.step`, as in
`generate`; what was rejected the scheduler takes back. Each request draws from its own stream of random numbers, so a
neighbour never changes an answer. What one request raises is its own error and no neighbour's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache.packed import Segment
from ..cache.paged import BlockStore, Content
from ..decode.draft import Draft
from ..decode.drafter import Drafter, NoDraft
from ..decode.row import Row, started
from ..decode.step import propose, verify
from ..sampling import Stream
from ..sampling.sampler import GREEDY
from .forward import Told, forward_for
from .request import SequenceState, TokenLogprobs
from .scheduler import Plan, Swap, Work

if TYPE_CHECKING:
    from ..decode.compiled import Model


log = logging.getLogger("lumen.serve")

NO_DRAFT, NOTHING_TOLD = NoDraft(), Told()


@dataclass
class Outcome:
    """What a step gave, by request: new tokens, what was asked about them, and what was raised."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


class Runner:
    """Owns the model, the block store's content, the drafter and the random streams; the scheduler owns the tables."""

    def __init__(
        self, model: Model, store: BlockStore, drafter: Drafter = NO_DRAFT, told: Told = NOTHING_TOLD
    ):
        if drafter.max_nodes:
            raise ValueError(
                f"{type(drafter).__name__} drafts trees, and the engine verifies chains only. Let it draft chains "
                "(max_nodes = 0), or use `generate`."
            )
        self.model, self.store, self.drafter = model, store, drafter
        self.told, self.forward = told, forward_for(model, store, told)
        self._rows: dict[str, Row] = {}
        self._drafts: dict[str, Draft] = {}
        self._host: dict[str, Content] = {}

    @torch.inference_mode()
    def propose(self, sequences: Sequence[SequenceState]) -> dict[str, Exception]:
        """Ask the drafter about those that decode. The scheduler cuts what does not fit; `run` verifies the rest.

        Returns what was raised, by request: if all together raise, each is asked alone.
        """
        decoding, size = [s for s in sequences if s.gap == 1], self.model.config.vocab_size
        rows = [self._row(s) for s in decoding]
        try:
            found: list[Draft | Exception] = [*propose(self.drafter, rows, size)]
        except Exception as error:
            found = [self._propose_alone(row) for row in rows] if len(rows) > 1 else [error]
        errors = {
            s.id: draft for s, draft in zip(decoding, found, strict=True) if isinstance(draft, Exception)
        }
        for sequence, draft in zip(decoding, found, strict=True):
            if isinstance(draft, Draft):
                sequence.drafts = list(draft.tokens)
                self._drafts[sequence.id] = draft
        return errors

    def _propose_alone(self, row: Row) -> Draft | Exception:
        try:
            return propose(self.drafter, [row], self.model.config.vocab_size)[0]
        except Exception as error:
            return error

    @torch.inference_mode()
    def run(self, plan: Plan) -> Outcome:
        """Compute a plan: new tokens for every sequence that was sampled. What the forward raises is the error of all
        that run in it."""
        found = Outcome()
        for move, swaps in ((self._out, plan.swap_out), (self._in, plan.swap_in)):
            for swap in swaps:
                try:
                    move(swap)
                except Exception as error:
                    found.errors[swap.sequence.id] = error
        works = [work for work in plan.work if work.sequence.id not in found.errors]
        if works:
            try:
                chosen, logits = self._forward(works)
                if chosen:
                    self.sample(chosen, logits, found)
            except Exception as error:
                found.errors |= {work.sequence.id: error for work in works}
        return found

    def _forward(self, works: Sequence[Work]) -> tuple[list[SequenceState], Tensor]:
        """The sequences that have caught up, and the logits (N, V) behind the last token and the drafts of each."""
        # Answers first, by their drafts and length, and prompts last: neighbours of like shape are then read together.
        works = sorted(works, key=lambda w: (w.count, w.start + w.count))
        segments = [Segment(w.sequence.table, w.start, w.count) for w in works]
        tokens = [t for w in works for t in w.sequence.span(w.start, w.count)]
        number = self.told.adapters.number
        adapters = [n for w in works for n in [number(w.sequence.request.adapter)] * w.count]
        hidden = self.forward(tokens, segments, adapters)
        chosen: list[SequenceState] = []
        places: list[int] = []  # the last known token of a sequence and the drafts behind it
        at = 0
        for work in works:
            at += work.count
            if work.samples:
                chosen.append(work.sequence)
                places += range(at - len(work.sequence.drafts) - 1, at)
        return chosen, self.model.head(hidden[places]) if chosen else hidden

    def receive(self, sequence: SequenceState, content: Content) -> None:
        """Take over what was computed elsewhere, `store.content(k, v)`.

        The random stream moves on by one number for every token that was drawn there, the grammar by the token.
        """
        self._host[sequence.id] = content
        self._row(sequence).take(sequence.output)

    def forget(self, request_id: str) -> None:
        """Drop what is held for a request that has ended."""
        for held in (self._rows, self._drafts, self._host):
            held.pop(request_id, None)
        try:
            self.drafter.forget(request_id)
        except Exception:  # it has ended all the same
            log.exception("the drafter could not forget request %s", request_id)

    def sample(self, sequences: Sequence[SequenceState], logits: Tensor, found: Outcome) -> None:
        """Find new tokens for each sequence from logits (N, V): one row behind its last token and behind each draft."""
        drafts, rows = [self._draft(s) for s in sequences], [self._row(s) for s in sequences]
        new = verify(rows, drafts, logits)
        try:
            self.drafter.saw([s.id for s in sequences], drafts, logits)
        except Exception:  # the tokens are known all the same
            log.exception("the drafter could not take in what was said of its drafts")
        at = 0
        for sequence, row, draft, tokens in zip(sequences, rows, drafts, new, strict=True):
            wanted = sequence.request.logprobs
            try:
                if row.error is not None:
                    raise row.error
                if wanted is not None:
                    told = [describe(logits[at + i], t, wanted) for i, t in enumerate(tokens)]
                    found.logprobs[sequence.id] = told
                found.tokens[sequence.id] = tokens
            except Exception as error:
                found.errors[sequence.id] = error
            at += len(draft.tokens) + 1

    def open(self, sequence: SequenceState) -> None:
        """Begin a request. ValueError, with a sentence, for a grammar that does not fit the model."""
        request, size = sequence.request, self.model.config.vocab_size
        matcher = None if request.constraint is None else started(request.constraint, size)
        params = request.params or GREEDY
        self._rows[sequence.id] = Row(
            sequence.id, sequence.prompt, sequence.output, params, Stream(params), request.max_new_tokens,
            request.eos_ids, request.min_new_tokens, matcher,
        )  # fmt: skip

    def _row(self, sequence: SequenceState) -> Row:
        if sequence.id not in self._rows:
            self.open(sequence)
        return self._rows[sequence.id]

    def _draft(self, sequence: SequenceState) -> Draft:
        """What is left of the sequence's draft, with the probabilities that it was drawn from."""
        draft = self._drafts.pop(sequence.id, None)
        if draft is None or list(draft.tokens[: len(sequence.drafts)]) != sequence.drafts:
            return Draft(sequence.drafts)
        return draft.first(len(sequence.drafts))

    def _out(self, swap: Swap) -> None:
        self._host[swap.sequence.id] = self.store.take(swap.blocks, swap.length)

    def _in(self, swap: Swap) -> None:
        self.store.put(swap.blocks, self._host.pop(swap.sequence.id))


def describe(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities under the model's own distribution, before bias, penalties, temperature and filters.

    logits (V,). The `count` likeliest are listed best first; the drawn token need not be among them.
    """
    logprobs = logits.float().log_softmax(-1)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    return TokenLogprobs(
        token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
