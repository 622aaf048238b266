"""Find stop sequences in a stream, and let nothing of them out before it is sure.

One automaton for all stops (Aho and Corasick 1975): its state is the longest end of what was read that
could still become a stop. Everything before that end is safe to emit; the end itself is held. Each item
moves the state once, so the work is linear in the stream however many stops there are and however it is cut
into chunks.

Restarting the search at zero after a mismatch, the short way, misses stop [1, 2] in 1 1 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any


class StopMatcher:
    """Matches stops that are all strings or all lists of ids; `feed` takes chunks of the same kind.

    The stop that is complete first wins; of those complete at the same place the longest, so that none of
    its text is emitted. With no stops at all everything passes through. Raises ValueError for an empty stop
    or mixed kinds.
    """

    def __init__(self, stops: Sequence[str] | Sequence[Sequence[int]]):
        if isinstance(stops, str):
            raise ValueError(f"Stops are a list, so write [{stops!r}] for one stop.")
        self.stops: list[Any] = [stop if isinstance(stop, str) else tuple(stop) for stop in stops]
        if len({isinstance(stop, str) for stop in self.stops}) > 1:
            raise ValueError("Stops must be all strings or all lists of token ids, not both.")
        if any(len(stop) == 0 for stop in self.stops):
            raise ValueError("An empty stop would end every answer before it begins; leave it out.")
        self._is_text = isinstance(self.stops[0], str) if self.stops else None  # None: the first chunk says
        self._next: list[dict[Any, int]] = [{}]  # per state: item -> state
        self._depth = [0]  # per state: how many items it stands for
        self._back = [0]  # per state: the next shorter end that is also a beginning of a stop
        self._found: list[int] = [-1]  # per state: the longest stop that ends here
        self._build()
        self._state = 0
        self._held: deque[Any] = deque()
        self.stopped_by: Any = None

    def _build(self) -> None:
        for index, stop in enumerate(self.stops):
            state = 0
            for item in stop:
                if item not in self._next[state]:
                    self._next[state][item] = len(self._next)
                    self._next.append({})
                    self._depth.append(self._depth[state] + 1)
                    self._back.append(0)
                    self._found.append(-1)
                state = self._next[state][item]
            if self._found[state] < 0:
                self._found[state] = index
        queue = deque(self._next[0].values())
        while queue:  # breadth first: shorter ends are finished before longer ones need them
            state = queue.popleft()
            for item, child in self._next[state].items():
                self._back[child] = self._step(self._back[state], item)
                if self._found[child] < 0:
                    self._found[child] = self._found[self._back[child]]
                queue.append(child)

    def _step(self, state: int, item: Any) -> int:
        while item not in self._next[state] and state:
            state = self._back[state]
        return self._next[state].get(item, 0)

    def feed(self, chunk: str | Sequence[int]) -> tuple[Any, Any]:
        """`(emit, stop)`: what may be shown now, and the stop that was found, or None.

        Once a stop is found, what follows it is dropped, in this chunk and later ones.
        """
        if self._is_text is None:
            self._is_text = isinstance(chunk, str)
        if isinstance(chunk, str) != self._is_text:
            raise ValueError(
                "Stops that are strings match text; stops that are lists of ids match lists of ids."
            )
        out: list[Any] = []
        for item in chunk:
            if self.stopped_by is not None:
                break
            self._state = self._step(self._state, item)
            self._held.append(item)
            if (found := self._found[self._state]) >= 0:
                self.stopped_by = self.stops[found]
                for _ in self.stopped_by:
                    self._held.pop()
                out.extend(self._held)
                self._held.clear()
                break
            while len(self._held) > self._depth[self._state]:
                out.append(self._held.popleft())
        return self._joined(out), self.stopped_by

    def finish(self) -> Any:
        """The stream is over: what was held back in case it became a stop, a str or a list of ids."""
        out = list(self._held)
        self._held.clear()
        self._state = 0
        return self._joined(out)

    def _joined(self, items: list[Any]) -> Any:
        return "".join(items) if self._is_text else items
