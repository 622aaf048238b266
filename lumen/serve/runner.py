"""Plan to tokens: one forward over whatever the scheduler chose, and one draw for every sequence that caught up.

Prompt chunks, whole prompts and running answers share the forward through `PackedCache`; only the rows that are
sampled go through the head. Each request draws from its own stream of random numbers, so a neighbour never changes an
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache.packed import PackedCache, Segment
from ..cache.paged import BlockStore
from ..sampling import distribution, draw, generators
from ..sampling.sampler import GREEDY, SamplingParams
from .request import SequenceState, TokenLogprobs
from .scheduler import Plan, Swap

if TYPE_CHECKING:
    from ..models.layers import Decoder


class Runner:
    """Owns the model, the block store's content and the random streams; the scheduler owns the tables."""

    def __init__(self, model: Decoder, store: BlockStore):
        self.model, self.store = model, store
        self._streams: dict[str, torch.Generator] = {}
        self._host: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.inference_mode()
    def run(self, plan: Plan) -> tuple[dict[str, list[int]], dict[str, TokenLogprobs]]:
        """Compute a plan. Returns the new token of every sequence that was sampled, and what was asked about it."""
        for swap in plan.swap_out:
            self._out(swap)
        for swap in plan.swap_in:
            self._in(swap)
        if not plan.work:
            return {}, {}
        if any(work.sequence.drafts for work in plan.work):
            raise NotImplementedError(
                "This runner samples the row behind the last token only, so it cannot verify drafts; leave them empty."
            )
        # Short reads first and prompts last: neighbours of like shape are then read together.
        works = sorted(plan.work, key=lambda w: (w.count > 1, w.start + w.count))
        cache = PackedCache(self.store, [Segment(w.sequence.table, w.start, w.count) for w in works])
        tokens = torch.tensor([[t for w in works for t in w.sequence.span(w.start, w.count)]])
        hidden = self.model.hidden(tokens.to(cache.pos.device), cache.pos, cache)
        chosen, at, last = [], 0, []
        for work in works:
            at += work.count
            if work.samples:
                chosen.append(work.sequence)
                last.append(at - 1)
        if not chosen:
            return {}, {}
        return self.sample(chosen, self.model.head(hidden[0, last]))

    def receive(self, sequence: SequenceState, k: Tensor, v: Tensor) -> None:
        """Take over keys and values that were computed elsewhere: k, v (layers, computed, Hkv, D) on the host.

        The random stream moves on by one number for every token that was drawn there.
        """
        size = self.store.block_size
        spare = -k.shape[1] % size
        blocks = (torch.nn.functional.pad(t, (0, 0, 0, 0, 0, spare)).unflatten(1, (-1, size)) for t in (k, v))
        self._host[sequence.id] = tuple(blocks)
        stream = self._stream(sequence)
        for _ in sequence.output:
            torch.rand((), generator=stream, dtype=torch.float64)

    def forget(self, request_id: str) -> None:
        """Drop what is held for a request that has ended."""
        self._streams.pop(request_id, None)
        self._host.pop(request_id, None)

    def sample(
        self, sequences: Sequence[SequenceState], logits: Tensor
    ) -> tuple[dict[str, list[int]], dict[str, TokenLogprobs]]:
        """Draw one token for each sequence from logits (sequences, V), each with its own parameters and stream."""
        params = [self._params(s) for s in sequences]
        probs = distribution(logits, params, [s.prompt for s in sequences], [s.output for s in sequences])
        drawn = draw(probs, [self._stream(s) for s in sequences]).tolist()
        told = {
            s.id: describe(logits[row], drawn[row], s.request.logprobs)
            for row, s in enumerate(sequences)
            if s.request.logprobs is not None
        }
        return {s.id: [token] for s, token in zip(sequences, drawn, strict=True)}, told

    @staticmethod
    def _params(sequence: SequenceState) -> SamplingParams:
        """The request's parameters; before its least length an end token is impossible."""
        request = sequence.request
        params = request.params or GREEDY
        if len(sequence.output) >= request.min_new_tokens or not request.eos_ids:
            return params
        never = dict.fromkeys(request.eos_ids, float("-inf"))
        return replace(params, logit_bias={**params.logit_bias, **never})

    def _stream(self, sequence: SequenceState) -> torch.Generator:
        if sequence.id not in self._streams:
            (self._streams[sequence.id],) = generators([sequence.request.params or GREEDY])
        return self._streams[sequence.id]

    def _out(self, swap: Swap) -> None:
        at = torch.tensor(swap.blocks, device=self.store.k.device)
        k, v = (t.index_select(1, at).cpu() for t in (self.store.k, self.store.v))
        self._host[swap.sequence.id] = k, v

    def _in(self, swap: Swap) -> None:
        at = torch.tensor(swap.blocks, device=self.store.k.device)
        k, v = self._host.pop(swap.sequence.id)
        self.store.k.index_copy_(1, at, k.to(at.device))
        self.store.v.index_copy_(1, at, v.to(at.device))


def describe(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities under the model's own distribution, before bias, penalties, temperature and filters.

    logits (V,). The `count` likeliest are listed best first; the drawn token need not be among them.
    """
    logprobs = logits.float().log_softmax(-1)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    return TokenLogprobs(
        token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
