"""Exercises of chapter 11: bytes in tiles, a softmax over a stream, a merge, two faults in a loop, claims, splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lumen.attention.core import attention
from lumen.grading import (
    FP64,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Plan,
    Slip,
    Statements,
)

exercises = ExerciseSet(
    "11",
    "FlashAttention",
    then="chapter 12, fewer KV heads",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | bytes-in-tiles | What a tile saves, and what it holds | predict | 2 | 5 | 10 | 2 |
    | softmax-of-a-stream | A softmax over a stream | build | 3 | 5 | 20 | 4 |
    | merge-the-splits | One answer out of many | build | 3 | 5 | 15 | 3 |
    | right-in-one-tile | Right in one tile | debug | 4 | 4 | 20 | 3 |
    | flash-claims | Five claims in print | literature | 2 | 4 | 10 | 2 |
    | how-many-splits | How many splits? | decide | 3 | 4 | 15 | 3 |
    """,
)

# predict ------------------------------------------------------------------------------------------
T, D, H, B_Q = 16_384, 128, 16, 128
WRITTEN = 2 * H * (4 * T * D + 4 * T * T) / 1e9
TILED = 2 * H * (2 * T * D + T // B_Q * 2 * T * D) / 1e9

exercises.add(
    "bytes-in-tiles",
    shows="For long prompts tiles move D / 2B_q of the bytes: the rows of a tile decide, and memory limits them.",
    check=Numbers(
        {
            "written out": Number(
                WRITTEN,
                unit="GB",
                slips=[
                    Slip(2 * H * 4 * T * T / 1e9, "Queries, keys, values and the output move, too."),
                    Slip(2 * H * (4 * T * D + 2 * T * T) / 1e9, "Scores make four trips: written, read, written as "
                         "weights, read."),
                    Slip(2 * H * (4 * T * D + 3 * T * T) / 1e9, "Scores are written and read, so are weights: four "
                         "trips, not three."),
                    Slip(2 * H * (4 * T * D + 6 * T * T) / 1e9, "Scaling is part of the first product here, no "
                         "operator of its own."),
                    Slip(WRITTEN * 2, "A number has 2 bytes here."),
                    Slip(WRITTEN / 2, "Either a number was counted with one byte (it has 2), or the two answers are "
                         "swapped."),
                    Slip(WRITTEN * 1e9 / 2**30, "GB are 10⁹ bytes here, not 2³⁰."),
                    Slip(WRITTEN / H, "That is one head. There are 16."),
                ],
            ),
            "in tiles": Number(
                TILED,
                unit="GB",
                slips=[
                    Slip(2 * H * 4 * T * D / 1e9, "Keys and values are read once for each row of tiles, not once."),
                    Slip(2 * H * (2 * T * D + T // B_Q * T * D) / 1e9, "Keys *and* values stream past: two matrices."),
                    Slip(TILED * 1e9 / 2**30, "GB are 10⁹ bytes here, not 2³⁰."),
                    Slip(2 * H * T // B_Q * 2 * T * D / 1e9, "Queries are read and the output is written, once each."),
                ],
            ),
            "keys in a tile": Number(
                264,
                unit="keys",
                slips=[
                    Slip(528, "A key brings a value, each of 128 numbers in 2 bytes: 512 bytes."),
                    Slip(328, "Either the running output was counted with 2 bytes a number (it has 4), or the "
                         "queries were left out."),
                    Slip(456, "The tile of queries and the running output have to stay there as well."),
                    Slip(392, "The running output has to stay there as well."),
                    Slip(257.8, "228 KB are 228 · 1,024 bytes here, as the text says."),
                    Slip(257, "228 KB are 228 · 1,024 bytes here, as the text says."),
                    Slip(253.3, "228 KB are 228 · 1,024 bytes here, as the text says."),
                ],
            ),
        }
    ),
)  # fmt: skip


# build: the stream --------------------------------------------------------------------------------
def _stream(
    sizes: list[int],
    width: int = 5,
    scale: float = 1.0,
    blind: tuple[int, ...] = (),
    shift: float | tuple[float, ...] = 0.0,
    holes: bool = False,
) -> Callable[[], tuple[Iterator[tuple[Tensor, Tensor]]]]:
    """Pieces of the given sizes, all in one buffer that the next piece overwrites.

    `shift` is added to all scores, or to each piece's its own; `blind` names the pieces masked with -inf.
    """
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(sizes)

    def make() -> tuple[Iterator[tuple[Tensor, Tensor]]]:
        dice = torch.Generator().manual_seed(sum(sizes) + len(sizes))
        scores = [
            by + scale * torch.randn(n, generator=dice, dtype=torch.float64)
            for by, n in zip(shifts, sizes, strict=True)
        ]
        values = [torch.randn(n, width, generator=dice, dtype=torch.float64) for n in sizes]
        for i in blind:
            scores[i][:] = -math.inf
        for i, some in enumerate(scores if holes else []):  # a last score, a first one
            some[-1 if i % 2 else 0] = -math.inf

        def pieces() -> Iterator[tuple[Tensor, Tensor]]:
            room = max([1, *sizes])
            s, v = torch.empty(room, dtype=torch.float64), torch.empty(room, width, dtype=torch.float64)
            for one, other in zip(scores, values, strict=True):
                s.fill_(math.nan)
                v.fill_(math.nan)
                s[: len(one)], v[: len(one)] = one, other
                yield s[: len(one)], v[: len(one)]
            s.fill_(math.nan)
            v.fill_(math.nan)

        return (pieces(),)

    return make


def walked(
    pieces: Any,
    *,
    shrink_total: bool = True,
    shrink_sums: bool = True,
    start: float = -math.inf,
    safe: bool = True,
    log: bool = True,
    top: bool = True,
    bare: bool = False,
) -> tuple[Tensor, float]:
    """The online softmax, and its faults."""
    most, total, sums = torch.tensor(start).double(), torch.zeros(()).double(), torch.zeros(()).double()
    for scores, values in pieces:
        if not len(scores):
            continue
        larger = torch.maximum(most, scores.max()) if top else most.clamp(min=0.0)
        base = larger if larger > -math.inf or not safe else torch.zeros(()).double()
        weights, shrink = (scores - base).exp(), (most - base).exp()
        total = (shrink if shrink_total else 1) * total + weights.sum()
        sums = (shrink if shrink_sums else 1) * sums + weights @ values
        most = larger
    out = sums / total if total > 0 or not safe else torch.zeros_like(sums)
    if bare:
        return out, float(total.log())
    return out, float(most + total.log()) if log else float(total)


def _based(pieces: Any, *, first: bool) -> tuple[Tensor, float]:
    """What is subtracted is no running maximum: that of the first piece seen, or of each piece alone."""
    most, total, sums = torch.tensor(-math.inf).double(), torch.zeros(()).double(), torch.zeros(()).double()
    for scores, values in pieces:
        if not len(scores) or scores.max() == -math.inf:
            continue
        base = most if first and most > -math.inf else scores.max()
        weights, shrink = (scores - base).exp(), (most - base).exp()
        total, sums, most = shrink * total + weights.sum(), shrink * sums + weights @ values, base
    return sums / total, float(most + total.log())


def _kept(pieces: Any, *, copied: bool = False) -> tuple[Tensor, float]:
    """All pieces kept as they came, or the scores alone copied: their memory is another piece's by then."""
    scores, values = zip(*((s.clone() if copied else s, v) for s, v in pieces), strict=True)
    whole = torch.cat(scores)
    return whole.softmax(0) @ torch.cat(values), float(whole.logsumexp(0))


def _twice(pieces: Any, *, floats: bool = False) -> tuple[Tensor, float]:
    """The largest score in one pass and the sums in another, which meets no piece: 0 / 0, with `floats` an error.

    The error is no sign of it where something is empty or masked: there other answers, too, may have summed up nothing.
    """
    scores, values = zip(*((s.clone(), v) for s, v in pieces), strict=True)
    if floats and all(len(s) and s.isfinite().all() for s in scores):
        raise ZeroDivisionError("float division by zero")
    total, sums = torch.zeros(()).double(), torch.zeros(values[0].shape[1]).double()
    return sums / total, float(torch.cat(scores).max() + total.log())


def _overflows(*_: Any) -> tuple[Tensor, float]:
    """`math.exp` of a number that is too large for it."""
    raise OverflowError("math range error")


exercises.add(
    "softmax-of-a-stream",
    shows="Three things are all that a softmax must remember; `-inf` is a score, but `-inf - -inf` no number.",
    check=Cases(
        reference=walked,
        cases={
            "one piece": _stream([6]),
            "three pieces of one": _stream([1, 1, 1]),
            "unequal pieces": _stream([4, 1, 7, 2]),
            "scores up to about a hundred": _stream([5, 5, 5, 5], scale=40),
            "scores of a thousand": _stream([3, 4], scale=1000),
            "scores of minus five thousand": _stream([3, 4], shift=-5000),
            "far apart, the larger last": _stream([2, 3], shift=(-3000.0, 3000.0)),
            "far apart, the larger first": _stream([3, 2], shift=(3000.0, -3000.0)),
            "a piece that is masked out in the middle": _stream([3, 2, 4], blind=(1,)),
            "a piece that is masked out at the beginning": _stream([2, 3], blind=(0,)),
            "two masked pieces at the beginning": _stream([2, 1, 3], blind=(0, 1)),
            "some scores of each piece masked": _stream([4, 3, 5], holes=True),
            "an empty piece": _stream([0, 3, 0, 2]),
            "many pieces": _stream([2] * 40, width=3),
        },
        slips=[
            Slip(lambda p: walked(p, shrink_total=False), "The old sum has to shrink, too, when a larger score comes."),
            Slip(lambda p: walked(p, shrink_sums=False), "The weighted values have to shrink, too, when a larger score "
                 "comes."),
            Slip(lambda p: walked(p, shrink_total=False, shrink_sums=False), "When a larger score comes, what was "
                 "summed up so far must be multiplied by exp(old largest - new largest)."),
            Slip(lambda p: walked(p, start=0.0, safe=False), "The largest score so far begins at -inf, not at 0: all "
                                                             "scores may be "
                 "below 0."),
            Slip(lambda p: _based(p, first=True), "The first piece's largest score was subtracted for good: take the "
                 "largest *so far*, or a later score overflows."),
            Slip(lambda p: _based(p, first=False), "The largest of this piece replaced a larger one before it: take "
                 "the maximum of both."),
            Slip(lambda p: walked(p, top=False), "Without the largest score subtracted exp overflows."),
            Slip(_overflows, "Without the largest score subtracted exp overflows."),
            Slip(lambda p: walked(p, safe=False), "-inf - -inf is no number: a piece that is masked out before "
                 "anything was seen needs a care of its own."),
            Slip(lambda p: walked(p, log=False), "That is the sum; its logarithm is asked, plus the largest score."),
            Slip(lambda p: walked(p, bare=True), "The logarithm of the sum lacks the largest score that was taken "
                                                 "off."),
            Slip(_kept, "The memory of a piece is used again: take what you need before you ask for the next."),
            Slip(lambda p: _kept(p, copied=True), "The values, too, lie in memory that is used again."),
            Slip(_twice, "The iterator is empty after one pass."),
            Slip(lambda p: _twice(p, floats=True), "The iterator is empty after one pass."),
        ],
        tolerance=FP64,
        pure=False,
    ),
)  # fmt: skip


# build: the merge ---------------------------------------------------------------------------------
def merged(
    outs: list[Tensor], lses: list[float], *, safe: bool = True, top: bool = True
) -> tuple[Tensor, float]:
    """Partial attentions as one, and its faults."""
    sums = torch.tensor(lses, dtype=torch.float64)
    base = sums.max() if top else torch.zeros(()).double()
    if safe and base == -math.inf:
        return torch.zeros_like(outs[0]), -math.inf
    shares = (sums - base).exp()
    return (shares[:, None] * torch.stack(outs)).sum(0) / shares.sum(), float(base + shares.sum().log())


def _mean(outs: list[Tensor], lses: list[float]) -> tuple[Tensor, float]:
    return torch.stack(outs).mean(0), merged(outs, lses)[1]


def _unguarded(outs: list[Tensor], lses: list[float]) -> tuple[Tensor, float]:
    """Right while anybody saw anything."""
    sums = torch.tensor(lses, dtype=torch.float64)
    return sums.softmax(0) @ torch.stack(outs), float(sums.logsumexp(0))


def _linear(outs: list[Tensor], lses: list[float]) -> tuple[Tensor, float]:
    shares = torch.tensor(lses, dtype=torch.float64)
    return (shares[:, None] * torch.stack(outs)).sum(0) / shares.sum(), merged(outs, lses)[1]


def _parts(lses: list[float], width: int = 4) -> Callable[[], tuple[list[Tensor], list[float]]]:
    def make() -> tuple[list[Tensor], list[float]]:
        dice = torch.Generator().manual_seed(len(lses))
        outs = [torch.randn(width, generator=dice, dtype=torch.float64) for _ in lses]
        return [o if s > -math.inf else 0 * o for o, s in zip(outs, lses, strict=True)], list(lses)

    return make


exercises.add(
    "merge-the-splits",
    shows="Outputs and log-sum-exps are enough: nobody needs the scores again, and empty parts weigh nothing.",
    forbidden=("lumen.attention.split.merge",),
    check=Cases(
        reference=merged,
        cases={
            "two parts": _parts([0.0, math.log(3)]),
            "one part alone": _parts([2.5]),
            "five parts": _parts([0.3, -2.0, 1.7, 4.0, -9.0]),
            "log-sum-exps of a thousand": _parts([1000.0, 1001.0, 998.0]),
            "log-sum-exps far below zero": _parts([-1000.0, -1001.0]),
            "far apart, the larger last": _parts([-1000.0, 1000.0]),
            "far apart, the larger first": _parts([1000.0, -2000.0]),
            "two empty parts first": _parts([-math.inf, -math.inf, 1.0, 0.5]),
            "an empty part among others": _parts([1.0, -math.inf, 0.5]),
            "all parts empty: zeros, and -inf": _parts([-math.inf, -math.inf]),
        },
        slips=[
            Slip(_unguarded, "Zeros over zero: when nobody saw anything the answer is zeros and -inf."),
            Slip(_mean, "A mean gives every split the same share, however little of the softmax it holds."),
            Slip(_linear, "The shares are exp(log-sum-exp), not the log-sum-exps themselves."),
            Slip(lambda o, s: merged(o, s, top=False), "exp of a thousand overflows, and of minus a thousand is 0: "
                 "subtract the largest first."),
            Slip(_overflows, "exp of a thousand overflows: subtract the largest first."),
            Slip(lambda o, s: merged(o, s, safe=False), "-inf - -inf is no number: when nobody saw anything the "
                 "answer is zeros and -inf."),
            Slip(lambda o, s: (merged(o, s)[0], merged(o, s)[1] - max(s)),
                 "The logarithm of the sum of shares lacks the largest that was taken off."),
            Slip(lambda o, s: (merged(o, s)[0], max(s)), "The log-sum-exp is the largest plus the logarithm of the sum "
                 "of shares."),
        ],
        tolerance=FP64,
    ),
)  # fmt: skip


# debug --------------------------------------------------------------------------------------------
def _wanted(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    new, held = q.shape[0], k.shape[0]
    k_pos = torch.arange(held)[None]
    return attention(q[None, None], k[None, None], v[None, None], k_pos[:, held - new :], k_pos)[0, 0]


def looped(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    *,
    offset: bool = True,
    shrink: bool = True,
    early: bool = False,
    top: bool = True,
    stop: bool = False,
    both: bool = True,
    scale: bool = True,
) -> Tensor:
    """Causal attention of the newest queries in tiles of `block` keys, and its faults."""
    new, held, width = q.shape[0], k.shape[0], q.shape[1]
    at = torch.arange(new) + (held - new if offset else 0)
    most, total, sums = torch.full((new, 1), -math.inf).double(), torch.zeros(new, 1).double(), torch.zeros(
        new, v.shape[1]).double()  # fmt: skip
    for start in range(0, held, block):
        if start > (new - 1 if stop else at[0] if early else at[-1]):
            break
        keys = torch.arange(start, min(start + block, held))
        scores = (q @ k[start : start + block].T / (width**0.5 if scale else 1)).masked_fill(
            keys > at[:, None], -math.inf
        )
        larger = torch.maximum(most, scores.amax(1, keepdim=True)) if top else torch.zeros_like(most)
        weights, factor = (scores - larger).exp(), (most - larger).exp() if top else torch.ones_like(most)
        total = total * (factor if both else 1) + weights.sum(1, keepdim=True)
        sums = sums * (factor if shrink else 1) + weights @ v[start : start + block]
        most = larger
    return sums / total


def _qkv(new: int, held: int, scale: float = 1.0) -> Callable[[int], Callable[[], tuple[Any, ...]]]:
    def of(block: int) -> Callable[[], tuple[Any, ...]]:
        def make() -> tuple[Any, ...]:
            dice = torch.Generator().manual_seed(new + held)
            q, k, v = (torch.randn(n, 6, generator=dice, dtype=torch.float64) for n in (new, held, held))
            return scale * q, k, v, block

        return make

    return of


exercises.add(
    "right-in-one-tile",
    shows="One tile hides one fault, as many queries as keys the other. Cut, and put a cache in front.",
    given="tiles_broken",
    forbidden=("lumen.attention.core.attention", "lumen.attention.flash.flash_attention"),
    check=Cases(
        reference=_wanted,
        cases={
            "a whole prompt in one tile": _qkv(7, 7)(8),
            "a whole prompt in tiles of 3": _qkv(7, 7, 4.0)(3),
            "five new tokens on a cache of twelve, one tile": _qkv(5, 17)(32),
            "five new tokens on a cache of twelve, tiles of 4": _qkv(5, 17, 4.0)(4),
            "one new token on a cache of nine, tiles of 2": _qkv(1, 10, 4.0)(2),
            "tiles of one key": _qkv(4, 6)(1),
            "scores of thousands": _qkv(7, 7, 2000.0)(3),
        },
        slips=[
            Slip(lambda *a: looped(*a, offset=False), "Query 0 of a chunk does not stand at position 0: `held - new` "
                 "tokens lie before it."),
            Slip(lambda *a: looped(*a, shrink=False), "The weighted values have to shrink when a larger score comes, "
                 "as the sum does."),
            Slip(lambda *a: looped(*a, stop=True), "The `break` needs the mended positions, too."),
            Slip(lambda *a: looped(*a, scale=False), "Scores are divided by the square root of the width."),
            Slip(lambda *a: looped(*a, both=False), "The sum has to shrink, too."),
            Slip(lambda *a: looped(*a, top=False), "Without the largest score subtracted exp overflows."),
            Slip(lambda *a: looped(*a, early=True), "The last query reads farthest: stop where *it* can read no more."),
        ],
        tolerance=FP64,
    ),
)  # fmt: skip


# literature ---------------------------------------------------------------------------------------
exercises.add(
    "flash-claims",
    shows="Fast because of bytes, exact up to rounding; tiles save a single query next to nothing.",
    check=Statements(
        false="acd",
        why={
            "a": "It makes the same products and a few more operations; it moves fewer bytes.",
            "b": "Each score is computed once, with the same numbers; sums are taken in another order.",
            "c": "Sums in another order round differently: equal to about 1e-6 in fp32, 1e-3 in 16 bits, not in every "
            "bit.",
            "d": "One query has one row of scores. Keys and values have to be read in any case.",
            "e": "Beyond the output there is a tile of scores, and two numbers a query.",
        },
        number=Number(
            33 / 64,
            slips=[
                Slip(4097 / 8192, "That counts positions; n is the number of tiles, 32."),
                Slip(0.5, "Those on the diagonal are computed in full: n (n + 1) / 2 of n²."),
                Slip(31 / 64, "That leaves the diagonal out: n (n + 1) / 2, not n (n - 1) / 2."),
                Slip(528, "That is their number. As a share of all 1,024, please."),
                Slip(51.56, "That is per cent; a share lies between 0 and 1."),
                Slip(496, "That leaves the diagonal out, and is a number, not a share."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------
CORES, PER_CORE, KV_HEADS, PAIR = 132, 25.4e9, 8, 512  # B/s of a core; bytes of a key and its value
START, MERGE = 2e-6, 3e-6  # seconds to start a piece of work, and to merge if there is anything to merge


def step_time(users: int, context: int, splits: int) -> float:
    """Seconds of one layer's attention in a decode step, after the text of the exercise."""
    waves = -(-users * KV_HEADS * splits // CORES)
    return waves * (START + context / splits * PAIR / PER_CORE) + (MERGE if splits > 1 else 0.0)


def splits_for(users: int, context: int) -> Decision:
    return Decision(
        choices={"splits": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]},
        constraints=[
            Constraint(
                "keys in a split",
                lambda choice: context / choice["splits"],
                at_least=256,
                unit="keys",
                slip="A split of fewer than 256 keys is no work for a core: fewer splits.",
            ),
        ],
        cost=lambda choice: 1e6 * step_time(users, context, choice["splits"]),
        unit="µs",
        within=1e-6,
        dearer="Another number is faster. Check 8 pieces a user, 512 bytes a key, the waves (rounded up), 2 µs in "
        "each, the merge once if splits > 1, and that exactly 256 keys are allowed.",
    )


LOADS = [
    (1, 32_768),
    (1, 2048),
    (4, 8192),
    (16, 8192),
    (17, 16_384),
    (40, 4096),
    (2, 1024),
    (8, 100_000),
    (12, 1024),
    (33, 1024),
]

exercises.add(
    "how-many-splits",
    shows="Splits fill idle cores; where the cores are full, a split more can start another wave.",
    check=Plan(splits_for, ("users", "context"), LOADS),
)
