"""build, debug: a cache of the reader under the contract of `lumen.cache.base`, clause by clause.

    check=CacheContract("chunks", "padding", "rewind")             # answer(config, rows, dtype=...)
    check=CacheContract("chunks", "padding", "full", size=40)      # answer(config, rows, size, dtype=...)

Every comparison is with the forward without a cache, in float64, on rows of different length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lumen.cache.errors import CacheFull

from ..compare import FP64
from ..probe import Probe
from .tiny import tiny_llama

PADDED = {
    "left": "In a left-padded row slot 3 may hold position 0, and the slots before it hold nothing.",
    "right": "After right padding the next token lies in a later slot than its position says.",
}
OWN = "Each row keeps what lies below its own length."
REWINDS = (
    ("left", [5, 3], "Nothing was to be forgotten here. Is a slot's number taken for a position?"),
    ("right", [3, 3], "The lengths went back, but the slots are still there and are read."),
    (
        "left",
        [3, 3],
        "The last slots of a left-padded row hold early positions. What goes is decided by position.",
    ),
    ("left", [4, 1], OWN),
    ("right", [4, 1], OWN),
    ("left", [0, 0], "Everything goes."),
)
PROMPTS = [[5, 0, 7, 9, 11], [3, 4], [13, 2, 1]]


class CacheContract:
    """`clauses` in the order in which they are tried. `size`: positions that each row reserves, or None.

    A clause's slip in words of the exercise: `padding="Padding landed in a slot that is read."`
    """

    def __init__(self, *clauses: str, size: int | None = None, **slips: str):
        self.clauses, self.size, self.slips = clauses, size, slips

    def __call__(self, answer: Any, probe: Probe) -> None:
        with nan_in_empty():
            for clause in self.clauses:
                getattr(_Trial(answer, probe, self.size, self.slips.get(clause, "")), clause)()


@contextmanager
def nan_in_empty() -> Iterator[None]:
    """Memory from `torch.empty` holds NaN, so that a slot nobody wrote cannot be finite by luck."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def padded(prompts: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions as `lumen.pad` makes them, but empty prompts are welcome: rows of padding."""
    width = max(map(len, prompts))
    tokens, pos = torch.zeros(len(prompts), width, dtype=torch.int64), torch.full((len(prompts), width), -1)
    for row, ids in enumerate(prompts):
        at = slice(0, len(ids)) if side == "right" else slice(width - len(ids), width)
        tokens[row, at], pos[row, at] = torch.tensor(ids, dtype=torch.int64), torch.arange(len(ids))
    return tokens, pos


class _Trial:
    """One clause: a model, the reader's class, and how to run the one through the other."""

    def __init__(self, answer: Any, probe: Probe, size: int | None, slip: str):
        self.answer, self.probe, self.size, self.slip = answer, probe, size, slip
        self.model = tiny_llama()

    def make(self, rows: int, size: int | None = None) -> Any:
        room = [] if self.size is None else [size or self.size]
        return self.probe.call(self.answer, self.model.config, rows, *room, dtype=torch.float64)

    def run(self, tokens: Any, pos: Any, cache: Any, chunk: int = 64) -> torch.Tensor:
        """Logits of all tokens, `chunk` per forward."""
        tokens = torch.as_tensor(tokens)
        parts = tokens.split(chunk, 1)
        places = [None] * len(parts) if pos is None else list(pos.split(chunk, 1))

        def forward() -> torch.Tensor:
            return torch.cat([self.model(t, p, cache) for t, p in zip(parts, places, strict=True)], 1)

        return self.probe.call(forward)

    def alone(self, prompts: list[list[int]], last: int = 1) -> torch.Tensor:
        """Logits of the last tokens of each prompt, each run by itself without a cache."""
        return torch.stack([self.model(torch.tensor([p]))[0, -last:] for p in prompts])

    def lengths(self, cache: Any, want: list[int], slip: str = "") -> None:
        self.probe.equal(cache.lengths.tolist(), want, what="lengths", slip=slip)

    def write(self, cache: Any, pos: list[list[int]], value: float = 1.0) -> list[Any]:
        """One forward by hand, keys and values all `value`: keys, values and positions of each layer."""
        at = torch.tensor(pos)
        new = torch.full((at.shape[0], 3, at.shape[1], 8), value, dtype=torch.float64)

        def forward() -> list[Any]:
            cache.begin(at)
            layers = [cache.update(layer, new, new.clone(), at) for layer in (0, 1)]
            cache.advance(at)
            return layers

        return self.probe.call(forward)

    # The clauses

    def chunks(self) -> None:
        ids = torch.randint(97, (2, 11), generator=torch.Generator().manual_seed(1))
        ids[:, 3] = 0  # an ordinary token
        for chunk, name in (
            (11, "the whole prompt"),
            (1, "one token at a time"),
            (4, "chunks of 4, 4 and 3"),
        ):
            with self.probe.case(name):
                got = self.run(ids, None, self.make(2), chunk)
                self.probe.equal(got, self.model(ids), FP64, slip=self.slip)
        with self.probe.case("two caches in turns"):
            one, two = self.make(2), self.make(2)
            self.run(ids[:, :6], None, one)
            self.run(ids[:, 1:9], None, two)
            got = self.run(ids[:, 6:], None, one)
            why = "Each cache keeps its own tensors; here the second wrote into the first."
            self.probe.equal(got, self.model(ids)[:, 6:], FP64, slip=why)

    def padding(self) -> None:
        for chunk, side in ((64, "left"), (64, "right"), (2, "left"), (2, "right")):
            with self.probe.case(
                f"three prompts padded on the {side}, {chunk} at a time, then one more token"
            ):
                cache, (tokens, pos) = self.make(3), padded(PROMPTS, side)
                logits = self.run(tokens, pos, cache, chunk)
                got = [logits[torch.arange(3), pos.argmax(1)], self.run([[8]] * 3, None, cache)[:, 0]]
                want = [self.alone(PROMPTS)[:, 0], self.alone([[*p, 8] for p in PROMPTS])[:, 0]]
                self.probe.equal(torch.stack(got), torch.stack(want), FP64, slip=self.slip or PADDED[side])
                self.lengths(cache, [6, 3, 4])
        with self.probe.case("a row that is all padding, beside a real one"):
            cache, (tokens, pos) = self.make(2), padded([[5, 0, 7], []], "left")
            logits = self.run(tokens, pos, cache)
            self.probe.equal(logits[:1], self.model(tokens[:1]), FP64)
            self.lengths(cache, [3, 0])
            self.probe.that(
                bool(logits.isfinite().all()), gave="NaN", wanted="finite logits in the empty row, too"
            )

    def positions(self) -> None:
        none = "−1 where a row holds nothing."
        longest = "S reaches to the longest row, also when that row pauses, and no further."
        cache = self.make(2)
        for name, pos, want in (
            ("k_pos of two rows, 3 tokens and 1", [[0, 1, 2], [0, -1, -1]], [[0, 1, 2], [0, -1, -1]]),
            ("k_pos while the longest row pauses", [[-1], [1]], [[0, 1, 2], [0, 1, -1]]),
            ("k_pos after a rewind of the longest row to 1", [[1], [-1]], [[0, 1], [0, 1]]),
        ):
            with self.probe.case(name):
                if "rewind" in name:
                    self.probe.call(cache.rewind, torch.tensor([1, 2]))
                for k, v, k_pos in self.write(cache, pos):
                    here = [list(k.shape[:3:2]), list(v.shape[:3:2]), list(k_pos.shape)]
                    size = [len(want), len(want[0])]
                    self.probe.equal(here, [size] * 3, what="(B, S) of keys, values, k_pos", slip=longest)
                    self.probe.equal(k_pos.tolist(), want, what="k_pos", slip=none)

    def pause(self) -> None:
        with self.probe.case("a full row that pauses while its neighbour goes on"):
            cache = self.make(2, 4)
            first = self.write(cache, [[0, 1, 2], [1, 2, 3]])[0][0].clone()
            then = self.write(cache, [[3], [-1]], 2.0)[0][0]
            why = "As an index −1 is the last slot. There lies a token of a row that is full."
            self.probe.equal(then[1, :, 1:4], first[1, :, 1:4], FP64, slip=self.slip or why)

    def unwritten(self) -> None:
        with self.probe.case("slots that nobody wrote"):
            for k, v, _ in self.write(self.make(2), [[0, 1], [0, -1]]):
                self.probe.that(
                    bool(k.isfinite().all()) and bool(v.isfinite().all()),
                    gave="NaN in a slot that nobody wrote",
                    wanted="finite numbers in every slot",
                    slip=self.slip
                    or "A masked value still takes part in the product, as 0 · NaN. Reserve with zeros.",
                )

    def rewind(self) -> None:
        prompts = [[5, 0, 7, 9, 11], [3, 4, 8]]
        for side, keep, why in REWINDS:
            with self.probe.case(
                f"prompts of 5 and 3 tokens, padded on the {side}, rewound to {keep}, two others"
            ):
                cache, (tokens, pos) = self.make(2), padded(prompts, side)
                self.run(tokens, pos, cache)
                self.probe.call(cache.rewind, torch.tensor(keep))
                self.lengths(cache, keep, "`rewind` sets the length of every row: each has its own.")
                kept = [p[:n] for p, n in zip(prompts, keep, strict=True)]
                want = self.alone([[*kept[0], 20, 21], [*kept[1], 22, 23]], 2)
                got = self.run([[20, 21], [22, 23]], None, cache, 1)
                self.probe.equal(got, want, FP64, slip=self.slip or why)
                if keep != [4, 1]:
                    continue
                self.probe.call(cache.rewind, torch.tensor(keep))
                got = self.run([[20, 21], [22, 23]], None, cache, 1)
                self.probe.equal(got, want, FP64, slip="It held once; this is the same rewind a second time.")

    def forward(self) -> None:
        with self.probe.case("rows of 5 and 3 tokens, rewound to [4, 4]"):
            cache, prompts = self.make(2), [[5, 0, 7, 9, 11], [3, 4, 8]]
            self.run(*padded(prompts, "right"), cache)
            why = "A row would claim tokens that nobody wrote. Compare with `self.lengths`, row by row."
            self.probe.refuses(ValueError, cache.rewind, torch.tensor([4, 4]), slip=self.slip or why)
            changed = "Refuse before anything changes: the other row was cut already."
            self.lengths(cache, [5, 3], changed)
            got = self.run([[20], [22]], None, cache)
            self.probe.equal(got, self.alone([[*prompts[0], 20], [*prompts[1], 22]]), FP64, slip=changed)

    def full(self) -> None:
        with self.probe.case("one token more than was reserved"):
            cache = self.make(1, 4)
            self.run([[5, 0, 7, 9]], None, cache)
            why = "Check in `begin`, before any layer has written: the first position is 0, so `size` is one too many."
            self.probe.refuses(CacheFull, cache.begin, torch.tensor([[4]]), slip=self.slip or why)
            self.lengths(cache, [4])
        cache = self.make(2, 4)
        self.run(*padded([[5, 0, 7], [3, 4]], "right"), cache)
        with self.probe.case("4 slots; the second of two rows gets positions 2, 3, 4 and padding"):
            pos = torch.tensor([[3, -1, -1, -1], [2, 3, 4, -1]])
            every = "One token without a slot is enough, whichever row and column it stands in."
            self.probe.refuses(CacheFull, cache.begin, pos, slip=every)
            self.lengths(cache, [3, 2])
        with self.probe.case("4 slots; the rows get positions 3 and padding, 2 and 3"):
            got = self.run([[9, 0], [8, 1]], torch.tensor([[3, -1], [2, 3]]), cache)
            want = torch.cat([self.alone([[5, 0, 7, 9]]), self.alone([[3, 4, 8, 1]])])[:, 0]
            self.probe.equal(
                got[torch.arange(2), [0, 1]], want, FP64, slip="Everything fits: padding needs no slot."
            )

    def in_place(self) -> None:
        with self.probe.case("what five steps read and move"):
            cache, seen = self.make(2), []  # `seen` keeps what came, so that no memory is used twice
            for token in range(5):
                seen.append(self.write(cache, [[token], [token]]))
            reads = max(x.shape[2] for layer in seen[-1] for x in layer[:2])
            why = "Hand back the slots up to the longest row, not the whole reservation."
            self.probe.at_most("slots handed to attention at the fifth token", reads, 5, self.slip or why)
            places = {tuple(x.data_ptr() for layer in step for x in layer[:2]) for step in seen}
            self.probe.that(
                len(places) == 1,
                gave="keys or values that lie somewhere else after a step",
                wanted="the same memory, written in place",
                slip="That is a copy of the cache per step. A slice of reserved memory is a view and costs nothing.",
            )
