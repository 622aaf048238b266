"""Exercises of chapter 12: heads into fewer heads, whose key it is, latents read as they lie, a ledger, a choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lumen.grading import (
    FP64,
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Plan,
    Probe,
    Slip,
    Statements,
)
from lumen.grading.kinds.slip import bends

exercises = ExerciseSet(
    "12",
    "Fewer KV heads",
    then="chapter 13, a smaller cache",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | latent-users | 128 heads in 576 numbers | predict | 2 | 4 | 10 | 2 |
    | pool-the-heads | Heads into fewer heads | build | 2 | 5 | 15 | 3 |
    | whose-key | Whose key is it? | debug | 3 | 5 | 15 | 3 |
    | absorb-the-latent | A step that makes no keys | build | 3 | 5 | 20 | 4 |
    | cache-claims | Five claims about caches | literature | 3 | 4 | 10 | 2 |
    | which-cache | Heads, latents or layers? | decide | 4 | 4 | 20 | 3 |
    """,
)


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# predict ------------------------------------------------------------------------------------------
LATENT, HEADS_OWN = 2 * 61 * (512 + 64), 2 * 61 * 2 * 128 * 128  # bytes a token; DeepSeek-V3, section 4.2
USER, LEFT = 50_000 * LATENT, 141e9 - 84e9
TOLD_ROUND = "A part of a user is none: round down."
TOLD_WEIGHTS = "The weights take 84 GB of each chip."
TOLD_TURNED = "The turned key is cached beside the latent: 576 numbers, not 512."
TOLD_UNITS = "The chips' GB are 10⁹ bytes: divide by a user's in 10⁹ bytes, too, not in GiB."
TOLD_EVERY = "Each chip computes 16 heads, on whole latents: every user's cache lies on all eight."

exercises.add(
    "latent-users",
    shows="A latent stands for 128 heads and cannot be cut; deal out users instead, and eight chips hold eight times "
    "as many.",
    check=Numbers(
        {
            "own heads": Number(
                HEADS_OWN,
                unit="bytes",
                slips={
                    HEADS_OWN / 2: "Keys and values, and 2 bytes for each number: one of the two is missing.",
                    HEADS_OWN / 61: "That is one layer. There are 61.",
                    2 * 61 * 2 * 128 * (128 + 64): "Without the turned part, says the text.",
                    2
                    * 61
                    * 128
                    * (128 + 64 + 128): "Without the turned part, says the text: a key has 128 numbers.",
                    LATENT: "That is what the latents take. Here every head stores a key and a value.",
                },
            ),
            "every chip": Number(
                LEFT // USER,
                slips={
                    LEFT / USER: TOLD_ROUND,
                    LEFT // USER + 1: "Round down: the last user does not fit.",
                    LEFT // (50_000 * 2 * 61 * 512): TOLD_TURNED,
                    141e9 // USER: TOLD_WEIGHTS,
                    8 * LEFT // USER: TOLD_EVERY,
                    8 * (LEFT // USER): TOLD_EVERY,
                    LEFT // (2 * USER): "A latent is stored once: keys and values both come out of it.",
                    LEFT / (USER * 1e9 / 2**30): TOLD_UNITS,
                    LEFT // USER / 8: "All eight chips have the same users, and each holds all of them.",
                },
            ),
            "a chip each": Number(
                8 * (LEFT // USER),
                slips={
                    8 * LEFT // USER: "A user's cache lies on one chip: round down on each, then add up.",
                    8 * LEFT / USER: TOLD_ROUND,
                    8 * (LEFT // (50_000 * 2 * 61 * 512)): TOLD_TURNED,
                    8 * (141e9 // USER): TOLD_WEIGHTS,
                    8 * (LEFT // USER + 1): "Round down on each chip: the last user of each does not fit.",
                    (8 * 141e9 - 84e9) // USER: TOLD_WEIGHTS,
                    LEFT // USER: "That is one chip. There are eight, each with users of its own.",
                },
            ),
        }
    ),
)


# build: pooling -----------------------------------------------------------------------------------
def pooled(
    weight: Tensor, bias: Tensor | None, heads: int, held: int, count: int, mode: str = ""
) -> tuple[Tensor, Tensor | None]:
    """Keys and values of `held` heads merged into `count`; `mode` bends it into the usual mistakes."""
    if mode != "any count" and (count < 1 or held % count):
        raise ValueError(f"{held} heads cannot be merged into {count} equal groups.")
    if mode == "thirds":
        return _in_thirds(weight, bias, heads, count)
    if mode == "columns":
        wide = weight.shape[1] // heads
        weight.split([heads * wide, held * wide, held * wide])
    width, members = len(weight) // (heads + 2 * held), held // count

    def merge(rows: Tensor) -> Tensor:
        if mode == "far":
            return rows.unflatten(0, (members, -1, width)).mean(0).flatten(0, 1)
        if mode == "inner":
            return rows.unflatten(0, (width, -1, members)).mean(2).flatten(0, 1)
        groups = rows.unflatten(0, (-1, heads // count if mode == "queries' groups" else members, width))
        if mode == "first":
            return groups[:, 0].flatten(0, 1)
        return (groups.sum(1) if mode == "sum" else groups.mean(1)).flatten(0, 1)

    def fused(rows: Tensor) -> Tensor:
        parts = rows.split([heads * width, held * width, held * width])
        left = {"queries": (), "keys only": (0, 2), "values only": (0, 1)}.get(mode, (0,))
        return torch.cat([x if i in left else merge(x) for i, x in enumerate(parts)])

    if bias is None or mode == "drops bias":
        return fused(weight), None
    return fused(weight), bias if mode == "old bias" else fused(bias)


def _in_thirds(weight: Tensor, bias: Tensor | None, heads: int, count: int) -> tuple[Tensor, Tensor | None]:
    """The mistake of who takes as many heads of keys as of queries: three equal parts, a width of rows over them."""
    width = len(weight) // (3 * heads)

    def fused(rows: Tensor) -> Tensor:
        q, *both = rows.chunk(3)
        return torch.cat([q, *(x.unflatten(0, (count, -1, width)).mean(1).flatten(0, 1) for x in both)])

    return fused(weight), None if bias is None else fused(bias)


def _fused(
    heads: int, held: int, count: int, width: int = 5, into: int = 7, bias: bool = True
) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        rows = (heads + 2 * held) * width
        own = _draw(rows, seed=2 + held) if bias else None
        return _draw(rows, into, seed=1 + heads), own, heads, held, count

    return make


UNEVEN = "Groups are equally large and no head is left out: anything else is a ValueError."
NOT_POOLED = {
    "thirds": "The rows are those of heads + 2 · held heads. Three equal parts, or a width of rows over 3 · heads, are "
    "right only where keys have as many heads as queries.",
    "queries' groups": "A new head is made of held / count old ones. Query heads are more than those where they share.",
    "far": "Query head i reads head i // (H / Hkv): the heads that one new head replaces stand side by side.",
    "sum": "That is the sum of a group. Its keys would be as many times too long as the group has members.",
    "first": "That keeps the first of each group and drops the others; their mean is asked.",
    "queries": "Queries stay as they are: only keys and values are shared.",
    "keys only": "Values have heads of their own, and there are to be fewer of them, too.",
    "values only": "Keys have to be merged, too.",
    "old bias": "The bias has a number for each row, and there are fewer rows now.",
    "drops bias": "The bias was lost on the way.",
    "inner": "The rows of a head stand together: heads outside, their width inside.",
    "any count": UNEVEN,
    "columns": "If the width was taken from the columns: those belong to what goes in. Only the rows are shared out "
    "among the heads.",  # last: it is told by its exception alone
}

exercises.add(
    "pool-the-heads",
    shows="A conversion is a mean over rows. What it costs no formula says: that has to be measured.",
    forbidden=("lumen.models.fewer_heads.fewer_kv_heads",),
    check=Cases(
        reference=pooled,
        cases={
            "12 heads into 4, with biases": _fused(12, 12, 4),
            "12 heads into 4, without": _fused(12, 12, 4, bias=False),
            "9 query heads, 3 key/value heads into 1": _fused(9, 3, 1, width=4, into=3),
            "24 query heads, 6 key/value heads into 2": _fused(24, 6, 2, width=2),
            "heads of one number": _fused(6, 6, 3, width=1),
            "as many as before: nothing changes": _fused(9, 3, 3, width=4),
            "one head stays one": _fused(1, 1, 1, width=3, bias=False),
            "9 heads into 2": Case(args=_fused(9, 9, 2), raises=ValueError, slip=UNEVEN),
            "3 key/value heads into 6": Case(args=_fused(9, 3, 6), raises=ValueError, slip=UNEVEN),
            "3 key/value heads into none": Case(args=_fused(9, 3, 0), raises=ValueError, slip=UNEVEN),
        },
        slips=bends(pooled, NOT_POOLED),
        tolerance=FP64,
    ),
)


# debug --------------------------------------------------------------------------------------------
def grouped(q: Tensor, k: Tensor, v: Tensor, mode: str = "") -> Tensor:
    """Attention of H query heads over Hkv heads of keys and values; `mode` names a fault that stays in."""
    group, width = q.shape[1] // k.shape[1], q.shape[3]

    def laid(x: Tensor, fault: str) -> Tensor:
        return x.repeat(1, group, 1, 1) if mode in ("tiled", fault) else x.repeat_interleave(group, 1)

    if mode == "crossed":
        groups = q.unflatten(1, (-1, group))
        return ((groups @ k[:, None].mT / width**0.5).softmax(-1) @ v[:, None]).flatten(1, 2)
    over = {"wide": width * group, "all": width * q.shape[1], "none": 1, "squared": width**2}.get(mode, width)
    over = q.shape[1] if mode == "heads" else over
    along = {"over heads": 1, "over queries": -2}.get(mode, -1)
    return (q @ laid(k, "keys tiled").mT / over**0.5).softmax(along) @ laid(v, "values tiled")


def _heads(
    heads: int, held: int, new: int, keys: int, rows: int = 1, width: int = 4
) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor, Tensor]:
        k, v = _draw(2, rows, held, keys, width, seed=held)
        return 2 * _draw(rows, heads, new, width, seed=heads), k, v

    return make


STILL_BROKEN = {
    "tiled": "Nine queries read stored heads 0 1 2 0 1 2 0 1 2; neighbours share: 0 0 0 1 1 1 2 2 2.",
    "keys tiled": "The values are mended; keys are still read as 0 1 2 0 1 2 0 1 2.",
    "values tiled": "The keys are mended; values are still read as 0 1 2 0 1 2 0 1 2.",
    "crossed": "The groups are right; each has to meet its own stored head: `k[:, :, None]`, and `v` alike.",
    "wide": "The heads are right. A score is divided by the root of one head's width, however many share the key.",
    "all": "A score is a sum over one head's width, not over that of all heads together.",
    "none": "The scores still have to be divided by the root of a head's width.",
    "squared": "A score is divided by the root of the width, not by the width.",
    "heads": "A score is divided by the root of a head's width. How many heads there are has no part in it.",
    "over heads": "Softmax runs over the keys: for each head and query the weights of all S keys sum to 1. Here "
    "those of the heads do.",
    "over queries": "Softmax runs over the keys, the last axis: for each query the weights of all S keys sum to 1.",
}

exercises.add(
    "whose-key",
    shows="As many stored heads as queries hide both faults, a single token hides the scale: test 9 on 3, five tokens.",
    given="grouped_broken",
    forbidden=("lumen.attention.core.attention", "lumen.attention.core.attend_with"),
    check=Cases(
        reference=grouped,
        cases={
            "8 heads on 8": _heads(8, 8, 3, 5),
            "8 heads on 1, one token": _heads(8, 1, 1, 1, width=6),
            "9 heads on 3, one query, five tokens": _heads(9, 3, 1, 5),
            "9 heads on 3, two rows, four queries": _heads(9, 3, 4, 7, rows=2, width=6),
            "6 heads on 2": _heads(6, 2, 2, 5, rows=2),
            "6 heads on 1, five tokens": _heads(6, 1, 2, 5, rows=3),
            "one head": _heads(1, 1, 2, 4),
        },
        slips=bends(grouped, STILL_BROKEN),
        tolerance=FP64,
    ),
)


# build: absorbing ---------------------------------------------------------------------------------
def absorbed(
    q: Tensor, q_turned: Tensor, c: Tensor, turned: Tensor, up_k: Tensor, up_v: Tensor, mode: str = ""
) -> Tensor:
    """One decode step on latents that makes no key and no value; `mode` bends it into the usual mistakes."""
    key, beside, rank = q.shape[-1], turned.shape[-1], c.shape[-1]
    over = {"rank": rank, "cached": rank + beside, "bare": key, "none": 1}.get(mode, key + beside)
    at = torch.einsum("bhp,bsp->bhs", q_turned, turned) * (mode != "unturned")
    up_k = up_k[:1].expand_as(up_k) if mode == "one way" else up_k
    scores = torch.einsum("bhd,hdr,bsr->bhs", q, up_k, c)
    if mode == "two softmaxes":
        weights = ((scores / over**0.5).softmax(-1) + (at / over**0.5).softmax(-1)) / 2
        return torch.einsum("bhs,bsr,hdr->bhd", weights, c, up_v)
    if mode == "two scales":
        over, scores, at = 1, scores / key**0.5, at / beside**0.5
    scores = scores / over**0.5 + at if mode == "late" else (scores + at) / over**0.5
    if mode == "half":
        return torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), torch.einsum("bsr,hdr->bhsd", c, up_v))
    read = torch.einsum("bhs,bsr->bhr", scores.softmax(-1), c)
    return read if mode == "inside" else torch.einsum("bhr,hdr->bhd", read, up_k if mode == "keys" else up_v)


def expanded(q: Tensor, q_turned: Tensor, c: Tensor, turned: Tensor, up_k: Tensor, up_v: Tensor) -> Tensor:
    """The plain way: keys and values of every head are made, then attention as usual."""
    k, v = (torch.einsum("bsr,hdr->bhsd", c, up) for up in (up_k, up_v))
    k = torch.cat([k, turned[:, None].expand(-1, k.shape[1], -1, -1)], -1)
    scores = torch.cat([q, q_turned], -1)[:, :, None] @ k.mT / k.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v)[:, :, 0]


def _step(
    keys: int, rows: int = 2, heads: int = 3, key: int = 5, rope: int = 2, rank: int = 11, value: int = 5
) -> Callable[[], tuple[Tensor, ...]]:
    asked, held = ((rows, heads, key), (rows, heads, rope)), ((rows, keys, rank), (rows, keys, rope))
    shapes = (*asked, *held, (heads, key, rank), (heads, value, rank))
    return lambda: tuple(_draw(*shape, seed=keys + i) for i, shape in enumerate(shapes))


NOT_ABSORBED = {
    "rank": "The rank is the width of what is multiplied; the sum is the one over a head's key, so its width counts: "
    "D + P.",
    "cached": "A token's entry in the cache is no head's key: divide by the root of D + P.",
    "bare": "The turned part belongs to the width of a key, too: D + P.",
    "none": "The scores still have to be divided by the root of a key's width.",
    "unturned": "The turned key has a share in every score; without it no position counts.",
    "late": "The turned part belongs to the score before it is divided.",
    "one way": "Each head has its own way into the latents: `up_k[h]`, and not the first head's for all.",
    "two scales": "The two parts are one key: their scores are added first, then divided by the root of D + P.",
    "two softmaxes": "The two parts are one key: their scores are added, and there is one softmax.",
    "inside": "The answer is still among the latents: `up_v` brings it out, head by head.",
    "keys": "`up_k` makes keys. Values are made by `up_v`.",
}
MAKES_KEYS = (
    "The numbers are right, but keys or values of all tokens were made for every head. Take the query to the latents, "
    "and only the answer out of them. An `einsum` of three may make them unseen."
)
ABSORBED = Cases(
    reference=absorbed,
    cases={
        "position 0: one token in the cache": _step(1),
        "position 17: 18 tokens": _step(18),
        "values wider than keys": _step(6, value=8),
        "one row, nine heads, a rank below the width": _step(6, rows=1, heads=9, key=12, rank=4, value=7),
        "one head": _step(4, heads=1),
        "as many rows as heads and tokens": _step(3, rows=3, heads=3),
    },
    slips=bends(absorbed, NOT_ABSORBED),
    tolerance=FP64,
)


@exercises.checks(
    "absorb-the-latent",
    shows="(U c)·q = c·(Uᵀq): to the cache this is one wide head. At position 0 any scale passes, at 17 only one.",
    forbidden=("lumen.attention.core.attention", "lumen.attention.core.attend_with"),
    slips=[*ABSORBED.slips, Slip(expanded, MAKES_KEYS), *bends(absorbed, {"half": MAKES_KEYS})],
)
def _absorb(answer: Any, probe: Probe) -> None:
    ABSORBED(answer, probe)
    rows, heads, keys, width, rope, rank = 2, 9, 200, 16, 4, 24
    args = _step(keys, rows, heads, width, rope, rank, width)()
    needed = rows * heads * 2 * (2 * width * rank + keys * (2 * rank + rope))
    with probe.case("200 tokens, counted"):
        with _flops() as counted:
            got = probe.call(answer, *args)
        probe.equal(got, expanded(*args), FP64)
        probe.at_most("FLOPs", counted.get_total_flops(), 1.5 * needed, MAKES_KEYS)


def _flops() -> Any:
    """Counts products: matrices' by torch's own formulas, and numbers multiplied one by one."""
    from torch.utils.flop_counter import FlopCounterMode

    def one_by_one(*_: Any, out_shape: Any, **__: Any) -> int:
        return 2 * math.prod(out_shape)

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mul.Tensor: one_by_one})


# literature ---------------------------------------------------------------------------------------
V2, DENSE = 60 * (512 + 64), 95 * 2 * 8 * 128  # numbers a token: DeepSeek-V2, DeepSeek 67B

exercises.add(
    "cache-claims",
    shows="A ratio of caches compares two models, their bits and their chips: name all three.",
    check=Statements(
        false="bde",
        why={
            "a": "2 · 2.25 · 128 = 576 = 512 + 64, in every layer.",
            "b": "At equal bits it is less: 93.3 % comes with a cache of 6 bits a number on average (section 3.2.3).",
            "c": "One head stands in the place of H, in keys and in values.",
            "d": "The lone head cannot be cut: it lies on every chip, where MHA would put H/8 heads. That is H/8 times "
            "less, not H.",
            "e": "Only where the heads together are as wide as the model. Gemma-7B: 3,072 of 2 · 16 · 256, three "
            "eighths.",
        },
        number=Number(
            100 * (1 - V2 / DENSE),
            unit="%",
            slips={
                93.3: "That is 6 bits a number against 16.",
                1 - V2 / DENSE: "That is a share. In per cent, please.",
                100 * V2 / DENSE: "That is what is left. How much smaller?",
                100 * (1 - 576 / 2048): "That is one layer. The models have 60 and 95.",
                100 * (1 - 60 * 512 / DENSE): "The turned key is cached, too: 512 + 64.",
                100 * (1 - 2 * V2 / DENSE): "The latents were counted twice, or of the 67B the keys alone.",
                100 * (1 - V2 / (8 * DENSE)): "DeepSeek 67B stores 8 heads, not 64.",
            },
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------
WEIGHTS, MEMORY, BANDWIDTH = 141e9, 80e9, 3350e9  # bytes; of a chip bytes and B/s (H100 SXM, datasheet)
LOSSES = {"mha": 0.0, "mla": 0.004, "gqa8": 0.010, "gqa4": 0.016, "gqa8-cla2": 0.022, "mqa": 0.030}
STORED = {"mha": 64, "gqa8": 8, "gqa4": 4, "gqa8-cla2": 8, "mqa": 1}


def on_a_chip(cache: str, chips: int) -> int:
    """Bytes of a token on each chip, after the text of the exercise."""
    if cache == "mla":
        return 80 * (512 + 64) * 2
    layers = 40 if cache == "gqa8-cla2" else 80
    return layers * 2 * -(-STORED[cache] // chips) * 128 * 2


def cache_for(context: int, limit_ms: float, most: float) -> Decision:
    def read(choice: Mapping[str, Any]) -> float:
        caches = choice["users"] * context * on_a_chip(choice["cache"], choice["chips"])
        return WEIGHTS / choice["chips"] + caches

    return Decision(
        choices={"cache": [*LOSSES], "chips": [2, 4, 8, 16], "users": [2**n for n in range(9)]},
        constraints=[
            Constraint(
                "loss",
                lambda choice: LOSSES[choice["cache"]],
                at_most=most,
                unit="nats",
                slip="This cache loses more than is allowed. A loss as large as the limit is allowed.",
            ),
            Constraint(
                "memory of a chip",
                lambda choice: read(choice) / 1e9,
                at_most=MEMORY / 1e9,
                unit="GB",
                slip="A chip holds its part of the weights and of each user's cache: whole latents, whole heads.",
            ),
            Constraint(
                "a step",
                lambda choice: 1e3 * read(choice) / BANDWIDTH,
                at_most=limit_ms,
                unit="ms",
                slip="A chip reads its weights and its part of all caches in a step: fewer users, more chips or a "
                "smaller cache.",
            ),
        ],
        cost=lambda choice: 1e3 * choice["chips"] * read(choice) / BANDWIDTH / choice["users"],
        unit="chip-ms a token",
        within=1e-6,
        dearer="Another choice takes less chip time for a token. Try them all: a latent lies on every chip, a head is "
        "never cut.",
    )


exercises.add(
    "which-cache",
    shows="From four chips on, eight heads leave less on a chip than a latent does. Here its loss speaks for it.",
    check=Plan(
        cache_for,
        ("context", "limit_ms", "most"),
        [
            (8192, 30.0, 0.010),
            (1024, 15.0, 0.005),
            (2048, 30.0, 0.005),
            (65_536, 20.0, 0.016),
            (131_072, 30.0, 0.0),
            (8192, 30.0, 0.025),
            (4096, 30.0, 0.030),
            (16_384, 6.0, 0.012),
            (65_536, 15.0, 0.004),
            (512, 30.0, 0.030),
        ],
    ),
)
