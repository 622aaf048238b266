"""What an engine has done so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..decode.draft import matched
from .plan import Plan
from .scheduler import Scheduler


@dataclass
class Counters:
    """Sums since the engine was made. `slot_steps` counts sequences over all steps: divided by steps and by max_seqs
    it is the slot utilisation. A draft is one sequence's guesses in one step; accepted are the tokens of it that became
    part of the answer, `accepted_per_position[i]` those at place i of a draft."""

    steps: int = 0
    slot_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def step(self, plan: Plan, taken: Mapping[str, Sequence[int]], scheduler: Scheduler) -> None:
        """Count a plan that was computed, before it is booked; `taken` are the new tokens of answers by request."""
        self.steps += bool(plan.work)
        self.slot_steps += len(plan.work)
        self.computed_tokens += plan.num_tokens
        self.preemptions = scheduler.num_preemptions
        self.prefix_queries, self.prefix_hits = scheduler.num_queried, scheduler.num_found
        for sequence in (work.sequence for work in plan.work if work.sequence.drafts):
            kept = matched(sequence.drafts, taken.get(sequence.id, ()))
            self.num_drafts += 1
            self.draft_tokens += len(sequence.drafts)
            self.accepted_tokens += kept
            self.accepted_per_position = tuple(
                n + (place < kept) for place, n in enumerate(self.accepted_per_position)
            )
