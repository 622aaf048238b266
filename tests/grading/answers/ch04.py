"""Answers to the exercises of chapter 04 that neither the solution nor a slip of the set gives."""

import functools

import torch
import torch.nn.functional as F

from lumen.grading.proof import Submissions
from tests.grading import caches

RIGHT_PRICES = {"qwen2.5-7b": 57_344, "llama-2-13b": 819_200, "40 users": 107}


def attend_by_hand(q, k, v):
    _, heads, new, width = q.shape
    out = torch.empty_like(q)
    for head in range(heads):
        kv = head // (heads // k.shape[1])
        for t in range(new):
            end = k.shape[2] - new + t + 1
            weights = (q[:, head, t, None] * k[:, kv, :end]).sum(-1).div(width**0.5).softmax(-1)
            out[:, head, t] = (weights[..., None] * v[:, kv, :end]).sum(1)
    return out


def attend_tiled(q, k, v):
    groups, new, total = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    mask = torch.ones(new, total, dtype=torch.bool).tril(total - new)
    return F.scaled_dot_product_attention(q, k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1), mask)


CARDS = {"A100 80GB SXM": (80, 2039, 1.8), "H100 SXM": (80, 3350, 3.0), "H200 SXM": (141, 4800, 3.8)}


def cards(users, context, share=0.9, seconds=0.025):
    """From the other end: the choices by price, and the first that holds."""
    choices = [(count, chip, kv) for count in (1, 2, 4, 8) for chip in CARDS for kv in ("fp8", "bf16")]
    for count, chip, kv in sorted(choices, key=lambda one: one[0] * CARDS[one[1]][2]):
        memory, bandwidth, _ = CARDS[chip]
        held = 141.107 + users * context * 327_680e-9 / (1 + (kv == "fp8"))
        if held <= share * count * memory and held <= seconds * count * bandwidth:
            return {"chip": chip, "count": count, "kv": kv}


def always(**choice):
    return lambda users, context: choice


ANSWERS = {
    "token-prices": Submissions(
        right=[RIGHT_PRICES, {**RIGHT_PRICES, "40 users": 107.4}],
        wrong=[
            ({**RIGHT_PRICES, "40 users": 10.7}, "about 10"),
            ({"qwen2.5-7b": 57_344}, "a dict with the keys"),
        ],
        stubs=[{**RIGHT_PRICES, "40 users": ...}],
    ),
    "slot-cache": Submissions(
        right=[caches.TableCache],
        wrong=caches.RESERVED,
        lumen=["lumen.cache.StaticCache", "lumen.cache.DynamicCache"],
    ),
    "two-new-tokens": Submissions(
        right=[attend_by_hand],
        wrong=[(attend_tiled, "belongs to head 0")],
        lumen=["lumen.attention.core.attention"],
    ),
    "slots-and-positions": Submissions(
        right=[caches.Growing],
        wrong=caches.GROWING,
        lumen=["lumen.cache.DynamicCache"],
    ),
    "saves-256": Submissions(
        right=[("bd", 6.963), (" B, d.", 6.96)],
        wrong=[
            (("b", 6.963), "2 statements are wrong"),
            (("ab", 6.963), "512 · 513 / 2"),
            (("bc", 6.963), "no second step"),
            (("bd", 7.26), "the prompt alone"),
            (("bd", 6.71), "never run"),
            ("bd", "the choice alone"),
        ],
    ),
    "sixty-four-users": Submissions(
        right=[cards],
        wrong=[
            (always(chip="H200 SXM", count=2, kv="bf16"), "must fit into 90 %"),
            (always(chip="A100 80GB SXM", count=4, kv="fp8"), "divide by the bandwidth of all cards"),
            (always(chip="H200 SXM", count=2, kv="fp8"), "users 8, context 8192"),
            (always(chip="H200 SXM", count=8, kv="fp8"), "cost 30.4 $ per hour"),
            (functools.partial(cards, share=0.85), "users 100, context 8192"),
            (functools.partial(cards, seconds=0.024), "users 96, context 16384"),
            (always(chip="L4", count=2, kv="fp8"), "one of 'A100 80GB SXM'"),
            (always(chip="H100 SXM", count=3, kv="fp8"), "count=3"),
            ({"chip": "H200 SXM", "count": 2, "kv": "fp8"}, "a function of users and context"),
        ],
        stubs=[always(chip=..., count=2, kv="fp8")],
    ),
}
