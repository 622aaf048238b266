"""Exercises of chapter 04: what a token costs, a cache with reserved slots, two faults, one claim, one budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lumen import cost
from lumen.attention.core import attention
from lumen.config import CONFIGS
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
    Slip,
    Statements,
)
from lumen.grading.kinds.cache import CacheContract
from lumen.hardware import CHIPS, hourly

exercises = ExerciseSet(
    "04",
    "The KV cache",
    then="chapter 05, the paged cache",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | token-prices | Three numbers for an interview | predict | 1 | 5 | 8 | 2 |
    | slot-cache | A cache with reserved slots | build | 4 | 5 | 30 | 5 |
    | two-new-tokens | Fluent, and wrong in chunks | debug | 3 | 5 | 15 | 3 |
    | slots-and-positions | The cache that counts slots | debug | 3 | 4 | 20 | 3 |
    | saves-256 | “The cache saves 256×” | literature | 2 | 4 | 12 | 2 |
    | sixty-four-users | Cards for a load | decide | 3 | 5 | 15 | 3 |
    """,
)

exercises.add(
    "token-prices",
    shows="A model card is enough to know what a token of context costs; the query heads do not matter.",
    check=Numbers(
        {
            "qwen2.5-7b": Number(
                57_344,
                unit="bytes",
                slips=[
                    Slip(401_408, "Those are 28 query heads. Qwen2.5-7B stores 4 KV heads."),
                    Slip(
                        28_672, "Keys and values are two tensors of 2 bytes a number: a factor 2 is missing."
                    ),
                    Slip(2048, "That is one layer. All 28 keep their own keys and values."),
                ],
            ),
            "llama-2-13b": Number(
                819_200,
                unit="bytes",
                slips=[
                    Slip(1_638_400, "In 16 bits a number takes 2 bytes, not 4."),
                    Slip(
                        409_600, "That is half: a token leaves a key *and* a value, each number in 2 bytes."
                    ),
                    Slip(20_480, "That is one layer. All 40 keep their own keys and values."),
                ],
            ),
            "40 users": Number(
                107.374,
                unit="GB",
                slips=[
                    Slip(100.0, "100 are GiB, 2³⁰ bytes. In GB, 10⁹ bytes, it is 7 % more."),
                    Slip(214.748, "That is a cache in 16 bits. In 8 bits a number takes one byte."),
                    Slip(858.993, "Llama-3-70B has 64 query heads but stores 8 KV heads."),
                    Slip(2.68435, "That is one user."),
                ],
            ),
        }
    ),
)

exercises.add(
    "slot-cache",
    shows="When position p lives in slot p, writing is one assignment, and forgetting is one number per row.",
    check=CacheContract(
        "chunks", "unwritten", "padding", "rewind", "positions", "pause", "forward", "full", "in_place",
        size=40,
        chunks="A token does not lie in the slot of its position.",
        padding="Padding (−1) was written, or every row at the first row's position.",
    ),
    forbidden=("lumen.cache.StaticCache", "lumen.cache.DynamicCache"),
    allow=("lumen.cache.base.Cache",),
)  # fmt: skip


# debug --------------------------------------------------------------------------------------------
def masked(
    q: Any, k: Any, v: Any, *, off: int = 0, tiled: bool = False, left: bool = False, seen: bool = False
) -> Any:
    """Attention of the newest tokens. `off` moves the triangle, `left` starts it top left, `seen` leaves it out."""
    groups, new, total = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.repeat(1, groups, 1, 1) if tiled else x.repeat_interleave(groups, 1) for x in (k, v))
    mask = torch.ones(new, total, dtype=torch.bool)
    return F.scaled_dot_product_attention(
        q, k, v, mask if seen else mask.tril((0 if left else total - new) + off)
    )


def _by_position(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, total, new = k.shape[0], k.shape[2], q.shape[2]
    k_pos = torch.arange(total).expand(batch, -1)
    return attention(q, k, v, k_pos[:, total - new :], k_pos)


def _qkv(batch: int, heads: int, kv_heads: int, new: int, total: int) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[torch.Tensor, ...]:
        dice = torch.Generator().manual_seed(total)
        shapes = (heads, new), (kv_heads, total), (kv_heads, total)
        return tuple(torch.randn(batch, h, t, 8, generator=dice, dtype=torch.float64) for h, t in shapes)

    return make


exercises.add(
    "two-new-tokens",
    shows="Two faults that the usual tests cannot see, and the shapes that bring them out.",
    given="attend_broken",
    forbidden=("lumen.attention.core.attention", "lumen.attention.core.attend_with"),
    check=Cases(
        reference=_by_position,
        cases=[
            Case("a whole prompt, as many KV heads as query heads", _qkv(1, 3, 3, 5, 5)),
            Case("one new token, 9 query heads on 3 KV heads", _qkv(2, 9, 3, 1, 6)),
            Case("three new tokens on a cache of five", _qkv(1, 3, 3, 3, 8)),
            Case("seven new tokens on a cache of four, 9 heads on 3", _qkv(2, 9, 3, 7, 11)),
            Case("the first token of all, one KV head", _qkv(1, 4, 1, 1, 1)),
        ],
        slips=[
            Slip(
                lambda *a: masked(*a, tiled=True),
                "Tiling gives 0 1 2 0 1 2 …: query head 1 would read KV head 1, and it belongs to head 0.",
            ),
            Slip(
                lambda *a: masked(*a, left=a[0].shape[2] > 1, seen=a[0].shape[2] == 1),
                "The triangle starts at the top left: the newest tokens see only the oldest keys.",
            ),
            Slip(lambda *a: masked(*a, off=1), "The triangle is off by one: a token sees the one after it."),
            Slip(lambda *a: masked(*a, off=-1), "The triangle is off by one: a token does not see itself."),
            Slip(
                lambda *a: masked(*a, seen=a[0].shape[2] < a[1].shape[2]),
                "Without a mask the first of the new tokens sees the ones after it.",
            ),
            Slip(
                lambda q, k, v: masked(q * 8**0.5, k, v),
                "The scores are not divided by the root of the width.",
            ),
        ],
        tolerance=FP64,
    ),
)

exercises.add(
    "slots-and-positions",
    shows="A slot's number says where a key lies, its position says what it is; only the second decides who reads it.",
    check=CacheContract("chunks", "padding", "rewind"),
    given="BrokenCache",
    forbidden=("lumen.cache.StaticCache", "lumen.cache.DynamicCache"),
    allow=("lumen.cache.base.Cache",),
)

exercises.add(
    "saves-256",
    shows="A ratio in print holds for the case that it was counted for.",
    check=Statements(
        false="bd",
        why={
            "a": "Step i runs i rows, and 1 + 2 + … + 512 = 512 · 513 / 2.",
            "b": "Without a cache the prompt is run again for every token, so the factor grows with it.",
            "c": "With one token there is no second step that could reuse anything: P rows either way.",
            "d": "320 are KiB, 327,680 bytes. 100 · 4,096 · 327,680 bytes = 134 GB; 131 takes 320 for thousands.",
        },
        number=Number(
            (8 * 20 + 8 * 7 / 2) / (20 + 7),
            unit="times",
            slips=[
                Slip(4.5, "That is for a prompt of one token."),
                Slip(14.5, "(n+1)/2 with n = 28 counts the prompt as if it had been written token by token."),
                Slip(
                    23.5,
                    "Those are the rows of an average step without a cache. With one, the prompt is read as well: "
                    "divide by all 20 + 7 rows.",
                ),
                Slip(160 / 27, "Each step also runs the tokens of the answer so far: n(n-1)/2 rows more."),
                Slip(196 / 27, "The first step runs the prompt alone: n(n-1)/2 rows more, not n(n+1)/2."),
                Slip(188 / 28, "The last token is never run: with a cache P + n - 1 rows, not P + n."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------
BIG = CONFIGS["llama-3-70b"]
CARDS = hourly("A100 80GB SXM", "H100 SXM", "H200 SXM")  # as in the text of the exercise


def cards_for(users: int, context: int) -> Decision:
    """The cheapest cards that hold the weights and all caches, and read them in time."""

    def held(choice: dict[str, Any]) -> float:
        return cost.weight_storage(BIG, "bf16") + cost.kv_bytes(BIG, context, users, choice["kv"])

    return Decision(
        choices={"chip": list(CARDS), "count": [1, 2, 4, 8], "kv": ["bf16", "fp8"]},
        constraints=[
            Constraint(
                "memory",
                lambda choice: 100 * held(choice) / (choice["count"] * CHIPS[choice["chip"]].memory),
                at_most=90,
                unit="%",
                slip="Weights and the caches of all users must fit into 90 % of the cards' memory.",
            ),
            Constraint(
                "time per token",
                lambda choice: 1e3 * held(choice) / (choice["count"] * CHIPS[choice["chip"]].bandwidth),
                at_most=25,
                unit="ms",
                slip="It fits, but every step reads the weights and all caches: divide by the bandwidth of all cards.",
            ),
        ],
        cost=lambda choice: choice["count"] * CARDS[choice["chip"]],
        unit="$ per hour",
        within=0.02,
        dearer="It fits and is fast enough, but a cheaper choice is, too. Were all 24 combinations tried?",
    )


LOADS = [(64, 8192), (8, 8192), (32, 32_768), (300, 8192), (200, 2048), (100, 8192), (96, 16_384)]

exercises.add(
    "sixty-four-users",
    shows="Memory rules out most choices, bandwidth the next ones, and the format of the cache moves both.",
    check=Plan(cards_for, ("users", "context"), LOADS),
)
