"""What a step may do, and what the scheduler decided that it does. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..inputs import real, whole
from .request import SequenceState

Policy = Literal["continuous", "static", "dynamic"]
POLICIES = ("continuous", "static", "dynamic")


@dataclass(frozen=True)
class Limits:
    """How much a step may do. `max_seqs` sequences run at once; a step computes `token_budget` tokens at most.

    `ageing`: after so many seconds of waiting a request outranks a new one that is one priority step ahead.
    `priority_preemption`: who waits for a slot or for blocks takes them from running sequences of worse rank, with the
    policy "continuous"; without it only a running sequence preempts, for blocks.
    """

    max_seqs: int = 8
    token_budget: int = 256
    policy: Policy = "continuous"
    preemption: Literal["recompute", "swap"] = "recompute"
    max_wait: float = 0.05
    ageing: float = 10.0
    priority_preemption: bool = False

    def __post_init__(self) -> None:
        checked = {
            "max_seqs": whole(self.max_seqs, "max_seqs", 1),
            "token_budget": whole(self.token_budget, "token_budget", 1),
            "max_wait": real(self.max_wait, "max_wait (seconds)", 0.0),
            "ageing": real(self.ageing, "ageing (seconds; inf never ages)", above=0.0, infinite=True),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.token_budget < self.max_seqs:
            raise ValueError(
                f"token_budget must be max_seqs or more, or somebody could never decode; got {self.token_budget} "
                f"tokens and {self.max_seqs} sequences."
            )
        if self.policy not in POLICIES or self.preemption not in ("recompute", "swap"):
            raise ValueError(
                f"policy is one of {', '.join(POLICIES)} and preemption recompute or swap; got {self.policy!r} and "
                f"{self.preemption!r}."
            )
        if self.priority_preemption and self.policy != "continuous":
            raise ValueError(
                f"priority_preemption lets a request in while others run, which the policy {self.policy!r} never does; "
                "use continuous."
            )


@dataclass(frozen=True)
class Work:
    """Positions `start` to `start + count` of a sequence are computed in this step; the last one may be sampled."""

    sequence: SequenceState
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == self.sequence.total


@dataclass(frozen=True)
class Swap:
    """Content of `blocks`, the first `length` positions of a sequence, moves between the pool and host memory."""

    sequence: SequenceState
    blocks: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class Plan:
    """One step. Order matters: first what leaves the pool, then what returns, then the forward over `work`."""

    work: tuple[Work, ...] = ()
    swap_out: tuple[Swap, ...] = ()
    swap_in: tuple[Swap, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(work.count for work in self.work)
