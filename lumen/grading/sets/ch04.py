"""Exercises of chapter 04: what a token costs, a cache with reserved slots, two faults, one claim, one budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from lumen import cost
from lumen.attention.core import attention
from lumen.cache.base import CacheFull
from lumen.grading import (
    FP64,
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Probe,
    Slip,
    Statements,
)
from lumen.hardware import CHIPS
from lumen.models import Llama, ModelConfig
from lumen.models.config import CONFIGS

exercises = ExerciseSet("04", "The KV cache", then="chapter 05, the paged cache")

# predict ------------------------------------------------------------------------------------------

PRICES = {
    "qwen2.5-7b": Number(
        57_344,
        unit="bytes",
        slips=[
            Slip(401_408, "Those are 28 query heads. Qwen2.5-7B stores 4 KV heads."),
            Slip(28_672, "Keys and values are two tensors of 2 bytes a number: a factor 2 is missing."),
            Slip(2048, "That is one layer. All 28 keep their own keys and values."),
        ],
    ),
    "llama-2-13b": Number(
        819_200,
        unit="bytes",
        slips=[
            Slip(1_638_400, "In 16 bits a number takes 2 bytes, not 4."),
            Slip(409_600, "That is half: a token leaves a key *and* a value, each number in 2 bytes."),
            Slip(20_480, "That is one layer. All 40 keep their own keys and values."),
        ],
    ),
    "40 users": Number(
        107.37,
        unit="GB",
        tolerance=0.002,
        slips=[
            Slip(100.0, "100 are GiB, 2³⁰ bytes. In GB, 10⁹ bytes, it is 7 % more."),
            Slip(214.75, "That is a cache in 16 bits. In 8 bits a number takes one byte."),
            Slip(859.0, "Llama-3-70B has 64 query heads but stores 8 KV heads."),
            Slip(2.684, "That is one user."),
        ],
    ),
}


exercises.add(
    "token-prices",
    title="Three numbers for an interview",
    kind="predict",
    difficulty=1,
    importance=5,
    minutes=8,
    points=2,
    shows="A model card is enough to know what a token of context costs; the query heads do not matter.",
    check=Numbers(PRICES),
)


# build --------------------------------------------------------------------------------------------


def _small(seed: int = 0) -> Llama:
    """A random Llama in float64 with 9 query and 3 KV heads, weights large enough that logits differ."""
    torch.manual_seed(seed)
    model = Llama(ModelConfig("small", 97, 2, 72, 9, 3, 8, 100, 64)).double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
    return model.requires_grad_(False)


def _padded(prompts: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions as `lumen.pad` makes them, but empty prompts are welcome: rows of padding."""
    width = max(map(len, prompts))
    tokens, pos = torch.zeros(len(prompts), width, dtype=torch.int64), torch.full((len(prompts), width), -1)
    for row, ids in enumerate(prompts):
        at = slice(0, len(ids)) if side == "right" else slice(width - len(ids), width)
        tokens[row, at], pos[row, at] = torch.tensor(ids, dtype=torch.int64), torch.arange(len(ids))
    return tokens, pos


def _run(
    model: Llama, tokens: torch.Tensor, pos: torch.Tensor | None, cache: Any, size: int = 64
) -> torch.Tensor:
    """Logits of all tokens, `size` per forward."""
    parts = tokens.split(size, 1)
    places = [None] * len(parts) if pos is None else list(pos.split(size, 1))
    return torch.cat([model(t, p, cache) for t, p in zip(parts, places, strict=True)], 1)


def _last(logits: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """The logits of each row's last real token."""
    return logits[torch.arange(len(pos)), pos.argmax(1)]


@contextmanager
def _nan_in_empty() -> Iterator[None]:
    """Memory from `torch.empty` holds NaN, so that a slot nobody wrote cannot be finite by luck."""
    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


@exercises.checks(
    "slot-cache",
    title="A cache with reserved slots",
    kind="build",
    difficulty=4,
    importance=5,
    minutes=30,
    points=5,
    shows="When position p lives in slot p, writing is one assignment, and forgetting is one number per row.",
    forbidden=("lumen.cache.StaticCache", "lumen.cache.DynamicCache"),
    allow=("lumen.cache.base.Cache",),
    steps=200_000,
)
def _slot_cache(answer: Any, probe: Probe) -> None:
    model = _small()
    ids = torch.randint(97, (2, 11), generator=torch.Generator().manual_seed(1))
    ids[:, 3] = 0  # an ordinary token
    whole = model(ids)

    def make(rows: int, capacity: int = 40) -> Any:
        return probe.call(answer, model.config, rows, capacity, dtype=torch.float64)

    with _nan_in_empty():
        for size, name in ((11, "the whole prompt"), (1, "one token at a time"), (4, "chunks of 4, 4 and 3")):
            with probe.case(name):
                got = probe.call(_run, model, ids, None, make(2), size)
                probe.equal(got, whole, FP64, slip="Does every slot have the position of the token in it?")
        _unwritten(probe, make)
        _padding(probe, model, make)
        _rewinding(probe, model, make)
        _no_room(probe, model, make)
        _reads(probe, model, make)


def _padding(probe: Probe, model: Llama, make: Callable[..., Any]) -> None:
    prompts = [[5, 0, 7, 9, 11], [3, 4], [13, 2, 1]]
    alone = torch.stack([model(torch.tensor([p]))[0, -1] for p in prompts])
    for side in ("left", "right"):
        tokens, pos = _padded(prompts, side)
        with probe.case(f"three prompts of unequal length, padded on the {side}, chunks of 2"):
            cache = make(3)
            got = _last(probe.call(_run, model, tokens, pos, cache, 2), pos)
            probe.equal(got, alone, FP64, slip="Padding (−1) must not land in a slot that is read.")
            probe.equal(cache.lengths.tolist(), [5, 2, 3], what="lengths")
    tokens, pos = _padded([[5, 0, 7], []], "right")
    with probe.case("a row that is all padding, beside a real one"):
        cache = make(2)
        got = probe.call(_run, model, tokens, pos, cache)
        probe.equal(got[:1], model(tokens[:1]), FP64)
        probe.equal(cache.lengths.tolist(), [3, 0], what="lengths")
        probe.that(bool(got.isfinite().all()), gave="NaN", wanted="finite logits in the empty row, too")
    with probe.case("a full row that pauses while its neighbour goes on"):
        cache = make(2, 4)
        places = [torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([[3], [-1]])]
        kept = [_write(probe, cache, pos, float(i)) for i, pos in enumerate(places, 1)]
        probe.equal(
            kept[1][1, :, 1:4],
            kept[0][1, :, 1:4],
            FP64,
            slip="As an index −1 is the last slot. There lies a token of a row that is full.",
        )


def _unwritten(probe: Probe, make: Callable[..., Any]) -> None:
    with probe.case("slots that nobody wrote"):
        k = _write(probe, make(2), torch.tensor([[0, 1], [0, -1]]), 1.0)
        probe.that(
            bool(k.isfinite().all()),
            gave="NaN in a slot that nobody wrote",
            wanted="finite numbers in every slot",
            slip="A masked value still takes part in the product, as 0 · NaN. Reserve with zeros.",
        )


def _write(probe: Probe, cache: Any, pos: torch.Tensor, value: float) -> torch.Tensor:
    """One forward by hand, keys and values all `value`; a copy of the keys of layer 0."""
    new = torch.full((pos.shape[0], 3, pos.shape[1], 8), value, dtype=torch.float64)
    probe.call(cache.begin, pos)
    k = probe.call(cache.update, 0, new, new, pos)[0].clone()
    probe.call(cache.update, 1, new, new, pos)
    cache.advance(pos)
    return k


def _new(rows: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    new = torch.ones(rows, 3, count, 8, dtype=torch.float64)
    return new, 2 * new


def _rewinding(probe: Probe, model: Llama, make: Callable[..., Any]) -> None:
    first, then = torch.tensor([[5, 0, 7, 9, 11], [3, 4, 8, 1, 2]]), torch.tensor([[20, 21], [22, 23]])
    for lengths, name in (([3, 3], "rewind by two"), ([0, 0], "rewind by everything")):
        keep = lengths[0]
        with probe.case(f"{name}, then other tokens"):
            cache = make(2)
            probe.call(_run, model, first, None, cache)
            probe.call(cache.rewind, torch.tensor(lengths))
            probe.equal(
                cache.lengths.tolist(), lengths, what="lengths", slip="`rewind` sets the length of every row."
            )
            want = model(torch.cat([first[:, :keep], then], 1))[:, keep:]
            got = probe.call(_run, model, then, None, cache, 1)
            probe.equal(got, want, FP64, slip="What lies below the new length must survive.")
    with probe.case("rows rewound to different lengths"):
        cache = make(2)
        probe.call(_run, model, first, None, cache)
        probe.call(cache.rewind, [4, 2])
        got = probe.call(_run, model, then[:, :1], None, cache)
        want = [
            model(torch.tensor([[*first[i, :n].tolist(), int(then[i, 0])]]))[0, -1:]
            for i, n in ((0, 4), (1, 2))
        ]
        probe.equal(got, torch.stack(want), FP64, slip="Each row has a length of its own.")


def _no_room(probe: Probe, model: Llama, make: Callable[..., Any]) -> None:
    with probe.case("one token more than was reserved"):
        cache = make(1, 4)
        probe.call(_run, model, torch.tensor([[5, 0, 7, 9]]), None, cache)
        probe.refuses(
            CacheFull,
            cache.begin,
            torch.tensor([[4]]),
            slip="Check in `begin`, before any layer has written: position `capacity` is one too many.",
        )
        probe.equal(cache.lengths.tolist(), [4], what="lengths after the refusal")


def _reads(probe: Probe, model: Llama, make: Callable[..., Any]) -> None:
    with probe.case("what a step reads and moves"):
        cache, places = make(2, 40), set()
        for token in range(5):
            pos = torch.tensor([[token], [token]])
            cache.begin(pos)
            k, _, k_pos = probe.call(cache.update, 0, *_new(2, 1), pos)
            probe.call(cache.update, 1, *_new(2, 1), pos)
            cache.advance(pos)
            places.add(k.data_ptr())
        probe.at_most(
            "slots handed to attention at the fifth token",
            k.shape[2],
            5,
            "Hand back the slots up to the longest row, not the whole reservation.",
        )
        probe.that(
            len(places) == 1,
            gave="keys that lie somewhere else after each step",
            wanted="the same memory, written in place",
            slip="That is a copy of the cache per step. A slice of reserved memory is a view and costs nothing.",
        )
        probe.equal(list(k_pos.shape), [2, k.shape[2]], what="shape of k_pos")


# debug --------------------------------------------------------------------------------------------


def broken_attend(q, k, v):
    """The T newest of S tokens attend to all S. q (B, H, T, D), k and v (B, Hkv, S, D)."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def _bottom_right(new: int, total: int, off: int = 0) -> torch.Tensor:
    return torch.ones(new, total, dtype=torch.bool).tril(total - new + off)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


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
    title="Fluent, and wrong in chunks",
    kind="debug",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="Two faults that the usual tests cannot see, and the shapes that bring them out.",
    forbidden=("lumen.attention.core.attention", "lumen.attention.core.attend_with"),
    check=Cases(
        reference=_by_position,
        cases=lambda: [
            Case("a whole prompt, as many KV heads as query heads", _qkv(1, 3, 3, 5, 5)),
            Case(
                "one new token, 9 query heads on 3 KV heads",
                _qkv(2, 9, 3, 1, 6),
                slip="Tiling gives 0 1 2 0 1 2 …: query head 1 would read KV head 1, and it belongs to head 0.",
            ),
            Case("three new tokens on a cache of five", _qkv(1, 3, 3, 3, 8)),
            Case("seven new tokens on a cache of four, 9 heads on 3", _qkv(2, 9, 3, 7, 11)),
            Case("the first token of all, one KV head", _qkv(1, 4, 1, 1, 1)),
        ],
        slips=[
            Slip(
                lambda q, k, v: _grouped(
                    q, k, v, _bottom_right(q.shape[2], k.shape[2], q.shape[2] - k.shape[2])
                ),
                "The triangle starts at the top left: the newest tokens see only the oldest keys.",
            ),
            Slip(
                lambda q, k, v: _grouped(q, k, v, _bottom_right(q.shape[2], k.shape[2], 1)),
                "The triangle is off by one: a token sees the one after it.",
            ),
            Slip(
                lambda q, k, v: _grouped(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)),
                "Without a mask the first of the new tokens sees the ones after it.",
            ),
        ],
        tolerance=FP64,
        broken=broken_attend,
    ),
)


@exercises.checks(
    "slots-and-positions",
    title="The cache that counts slots",
    kind="debug",
    difficulty=3,
    importance=4,
    minutes=20,
    points=3,
    shows="A slot's number says where a key lies, its position says what it is; only the second decides who reads it.",
    forbidden=("lumen.cache.StaticCache", "lumen.cache.DynamicCache"),
    allow=("lumen.cache.base.Cache",),
    steps=200_000,
)
def _slots_and_positions(answer: Any, probe: Probe) -> None:
    model = _small(1)

    def make(rows: int) -> Any:
        return probe.call(answer, model.config, rows, dtype=torch.float64)

    with probe.case("one row, no padding"):
        ids = torch.tensor([[5, 0, 7, 9, 11]])
        probe.equal(probe.call(_run, model, ids, None, make(1), 2), model(ids), FP64)
    prompts = [[5, 0, 7, 9, 11], [3, 4]]
    for side, slip in (
        ("left", "In a left-padded row slot 3 may hold position 0, and slots 0 to 2 hold nothing."),
        ("right", "After right padding the next token lies in a later slot than its position says."),
    ):
        with probe.case(f"two rows padded on the {side}, then one more token each"):
            cache, (tokens, pos) = make(2), _padded(prompts, side)
            got = [_last(probe.call(_run, model, tokens, pos, cache), pos)]
            got.append(probe.call(_run, model, torch.tensor([[8], [8]]), None, cache)[:, 0])
            want = [
                torch.stack([model(torch.tensor([p + end]))[0, -1] for p in prompts]) for end in ([], [8])
            ]
            probe.equal(torch.stack(got), torch.stack(want), FP64, slip=slip)
    with probe.case("a row that is all padding"):
        cache, (tokens, pos) = make(2), _padded([[5, 0, 7], []], "left")
        got = probe.call(_run, model, tokens, pos, cache)
        probe.equal(got[:1], model(tokens[:1]), FP64)
        probe.equal(cache.lengths.tolist(), [3, 0], what="lengths")
    for keep in (3, 0):
        with probe.case(f"five tokens, rewind to {keep}, two others"):
            cache = make(1)
            probe.call(_run, model, ids, None, cache)
            probe.call(cache.rewind, torch.tensor([keep]))
            got = probe.call(_run, model, torch.tensor([[20, 21]]), None, cache)
            want = model(torch.tensor([[*ids[0, :keep].tolist(), 20, 21]]))[:, keep:]
            probe.equal(
                got, want, FP64, slip="The lengths went back, but the slots are still there and are read."
            )


# literature ---------------------------------------------------------------------------------------

exercises.add(
    "saves-256",
    title="“The cache saves 256×”",
    kind="literature",
    difficulty=2,
    importance=4,
    minutes=12,
    points=2,
    shows="A ratio in print holds for the case that it was counted for.",
    check=Statements(
        false="bd",
        why={
            "a": "Step i runs i rows, and 1 + 2 + … + 512 = 512 · 513 / 2.",
            "b": "Without a cache the prompt is run again for every token, so the factor grows with it.",
            "c": "With one token there is no second step that could reuse anything: P + 1 rows either way.",
            "d": "320 are KiB, 327,680 bytes. 100 · 4,096 · 327,680 bytes = 134 GB; 131 takes 320 for thousands.",
        },
        number=Number(
            lambda: cost.cache_saving(200, 1000),
            unit="times",
            tolerance=0.003,
            slips=[
                Slip(100.5, "That is for an empty prompt."),
                Slip(
                    600.5,
                    "(n+1)/2 with n = 1,200 counts the prompt as if it had been written token by token.",
                ),
                Slip(
                    1100.5,
                    "Those are the rows of an average step without a cache. With one, the prompt is read as well: "
                    "divide by all 1,000 + 200 rows.",
                ),
                Slip(166.7, "Count each step's own token and those before it too: n(n+1)/2 rows."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

BIG, USERS, CONTEXT = CONFIGS["llama-2-70b"], 64, 8192


def _needed(choice: dict[str, Any]) -> float:
    """Share of the cards' memory that weights and cache take, in percent."""
    held = cost.weight_storage(BIG, "bf16") + cost.kv_bytes(BIG, CONTEXT, USERS, choice["kv"])
    return 100 * held / (choice["count"] * CHIPS[choice["chip"]].memory)


def _step_ms(choice: dict[str, Any]) -> float:
    """Bytes of a decode step over the cards' bandwidth, a bound that no engine beats."""
    step = cost.step_bytes(BIG, USERS, CONTEXT, "bf16", kv_dtype=choice["kv"])
    moved = step.weights + step.cache_read + step.cache_write
    return 1e3 * moved / (choice["count"] * CHIPS[choice["chip"]].bandwidth)


def _price(choice: dict[str, Any]) -> float:
    return choice["count"] * float(CHIPS[choice["chip"]].price_per_hour or 0)


exercises.add(
    "sixty-four-users",
    title="64 users at 8k",
    kind="decide",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="Memory rules out most choices, bandwidth the next ones, and the format of the cache moves both.",
    check=Decision(
        choices={
            "chip": ["A100 80GB SXM", "H100 SXM", "H200 SXM"],
            "count": [1, 2, 4, 8],
            "kv": ["bf16", "fp8"],
        },
        constraints=[
            Constraint(
                "memory",
                _needed,
                at_most=90,
                unit="%",
                slip="Weights and the caches of all 64 users must fit into 90 % of the cards' memory.",
            ),
            Constraint(
                "time per token",
                _step_ms,
                at_most=25,
                unit="ms",
                slip="It fits, but every step reads the weights and all caches: divide by the bandwidth of all cards.",
            ),
        ],
        cost=_price,
        unit="$ per hour",
        within=0.02,
        dearer="It fits and is fast enough, but a cheaper choice is, too. What do fewer bytes per token allow?",
    ),
)
