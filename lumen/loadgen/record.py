"""What the client saw of one request: when it should have been sent, when it was, and when tokens came.

Times are seconds on one clock, usually from the start of the run.

    intended      start           arrivals[0]        arrivals[1]  …    end
       |-- queue ---|----- TTFT -------|------ ITL -------|-- ITL --| |
                    |------------------- latency (E2EL) --------------|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Record:
    """One request. `error` is empty when it succeeded; a failed one keeps what had arrived."""

    intended: float  # when the schedule wanted it sent; the same as `start` in a closed loop
    start: float  # when it was sent
    arrivals: tuple[float, ...] = ()  # when new text came, once per event that brought some
    end: float = 0.0  # when the answer was complete
    prompt_len: int = 0  # tokens
    output_len: int = 0  # tokens, which may be more than arrivals: an event may bring several
    text: str = ""
    error: str = ""

    @classmethod
    def of_tokens(
        cls, times: Sequence[float], start: float = 0.0, intended: float | None = None, prompt_len: int = 0
    ) -> Record:
        """A successful request whose tokens came one by one at `times`."""
        if not times:
            raise ValueError("A successful request has one token at least.")
        when = start if intended is None else intended
        return cls(when, start, tuple(times), times[-1], prompt_len, len(times))

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft(self) -> float:
        """Time to first token, from sending. [s]"""
        return self.arrivals[0] - self.start if self.arrivals else 0.0

    @property
    def latency(self) -> float:
        """End to end, from sending. [s]"""
        return self.end - self.start

    @property
    def queue(self) -> float:
        """How long the client itself held the request back. [s]"""
        return self.start - self.intended

    @property
    def tpot(self) -> float | None:
        """Mean time per token after the first: (latency - TTFT) / (output_len - 1). None for one token. [s]"""
        if self.output_len < 2:
            return None
        return (self.latency - self.ttft) / (self.output_len - 1)

    @property
    def itl(self) -> tuple[float, ...]:
        """Every gap between arrivals. Tokens that came in one event have no gap between them. [s]"""
        return tuple(after - before for before, after in pairwise(self.arrivals))
