"""Exercises of chapter 14: a state's bytes, a gate and its pads, a text as a map, blocks, claims, a hybrid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lumen.attention.linear.recurrent import recurrent
from lumen.attention.sparse.blocks import as_reads, slots_of
from lumen.attention.sparse.moba import block_means, moba_blocks
from lumen.config import ModelConfig
from lumen.cost import kv_bytes, kv_bytes_per_token, state_bytes
from lumen.grading import (
    EXACT,
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
    Statements,
)
from lumen.grading.compare import is_array
from lumen.grading.kinds.slip import bends
from lumen.parts import LinearLayers

exercises = ExerciseSet(
    "14",
    "Sparse and linear attention",
    then="chapter 15, speculative decoding",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | state-or-cache | A state against a cache | predict | 2 | 5 | 10 | 2 |
    | fades-in-silence | Fades when nobody speaks | debug | 3 | 5 | 15 | 3 |
    | a-text-as-a-map | A text as a map | build | 4 | 5 | 25 | 4 |
    | few-blocks | Few blocks out of many | build | 4 | 5 | 25 | 4 |
    | linear-claims | Five claims in print | literature | 3 | 4 | 15 | 2 |
    | full-layers | How many full layers? | decide | 3 | 4 | 15 | 3 |
    """,
)


def hybrid(full: int, layers: int = 48) -> ModelConfig:
    """The shapes of Qwen3-Next-80B-A3B, `full` of its layers with keys and values; which of them is all the same."""
    shape = ModelConfig("hybrid", 151_936, layers, 2048, 16, 2, 256, 5120, 2**21)
    if full == layers:
        return shape
    linear = tuple(range(layers - int(full)))  # 12.0 is 12
    return shape.with_(linear=LinearLayers(linear, "gated_delta", 32, 128, 128, key_heads=16))


# predict ------------------------------------------------------------------------------------------
STATE = state_bytes(hybrid(12)) / 36
KEPT = kv_bytes_per_token(hybrid(12)) / 12  # bytes of a token in one full layer
PROMPT, EVERY = 32_768, 1024
SNAPSHOTS = PROMPT // EVERY * 36 * STATE / 2**30

exercises.add(
    "state-or-cache",
    shows="A state is worth a thousand tokens here; kept at every thousandth, it costs what it saved.",
    check=Numbers(
        {
            "state": Number(
                STATE / 2**20,
                unit="MiB",
                slips={
                    2.0: "The short convolution keeps its last three tokens, too.",
                    2.0625: "A convolution over four tokens keeps the three before the next one.",
                    2.09375: "The convolution's tokens have 2 bytes a number.",
                    2.015625: "The convolution keeps three tokens, not one.",
                    2 + 24 / 1024: "Channels: 16 queries and 16 keys and 32 values, of 128 each.",
                    2 + 36 / 1024: "Channels: 16 queries and 16 keys and 32 values, of 128 each.",
                    1.046875: "The state has 4 bytes a number, or 32 heads: a factor of 2 is missing.",
                    STATE / 1e6: "A MiB has 2²⁰ bytes.",
                    36 * STATE / 2**20: "That is all 36 linear layers. One was asked for.",
                },
            ),
            "tokens": Number(
                STATE / KEPT,
                unit="tokens",
                slips={
                    1024: "The convolution's tokens count, too.",
                    2 * STATE / KEPT: "A token leaves a key and a value in each of 2 KV heads.",
                    STATE / KEPT / 8: "Keys and values have 2 heads, not 16.",
                    3 * STATE / KEPT: "Layer against layer: both numbers of layers fall out.",
                },
            ),
            "snapshots": Number(
                SNAPSHOTS,
                unit="GiB",
                slips={
                    SNAPSHOTS * 2**30 / 1e9: "A GiB has 2³⁰ bytes.",
                    2.25: "The convolutions' tokens belong to it.",
                    SNAPSHOTS / 36: "That is one layer. 36 of them have a state.",
                    SNAPSHOTS / 32: "That is one snapshot. There are 32 of them.",
                    SNAPSHOTS * 48 / 36: "Full layers have no state: 36 of 48 are linear.",
                    SNAPSHOTS * 31 / 32: "The end of the prompt is one of the 32.",
                    SNAPSHOTS * 33 / 32: "At the beginning the states are empty: nothing to keep.",
                },
            ),
        }
    ),
)


# debug: a gate and its pads -----------------------------------------------------------------------
def _wanted(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, pos: Tensor, state: Tensor) -> Any:
    heads = (x[:, None] for x in (q, k, v))
    y, after = recurrent(
        *heads, log_decay=decay.log()[:, None], beta=beta[:, None], state=state[:, None], pos=pos
    )
    return y[:, 0], after[:, 0]


def remembered(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, pos: Tensor, state: Tensor, mode: str = ""
) -> tuple[Tensor, Tensor]:
    """The gated delta rule token by token, and its faults."""
    outs = []
    for t in range(q.shape[1]):
        told = pos[:, t, None, None] >= 0
        real = told[:1].expand_as(told) if mode == "first" else told
        share, strength = decay[:, t, None, None], beta[:, t, None, None]
        if mode == "times":
            share, strength = torch.where(real, share, 1.0), torch.where(real, strength, 0.0)
        late = mode == "late"
        faded = state if late else share * state
        known = (k[:, t, :, None] * (state if mode == "stale" else faded)).sum(1, keepdim=True)
        after = (share if late else 1) * (faded + k[:, t, :, None] * strength * (v[:, t, None] - known))
        kept = share * state if mode == "pads" else state
        state = after if mode == "times" else torch.where(real, after, kept)
        out = (q[:, t, :, None] * state).sum(1)
        outs.append(out if mode == "loud" else torch.where(told[:, :, 0], out, 0.0))
    return torch.stack(outs, 1), state


def _spoken(*rows: str, waste: float = 1.0, width: int = 5) -> Callable[[], tuple[Tensor, ...]]:
    """Rows such as "--tt-t": padding and tokens. `waste` stands under the padding, 1.0 for ordinary numbers."""

    def make() -> tuple[Tensor, ...]:
        size, length = len(rows), len(rows[0])
        dice = torch.Generator().manual_seed(sum(map(ord, "".join(rows))))
        q, k, v = (
            torch.randn(size, length, n, generator=dice, dtype=torch.float64) for n in (width, width, 3)
        )
        decay, beta = (
            0.3 + 0.6 * torch.rand(size, length, generator=dice, dtype=torch.float64) for _ in "ab"
        )
        real = torch.tensor([[one == "t" for one in row] for row in rows])
        pos = torch.where(real, real.cumsum(1) - 1, -1)
        for x in (q, k, v, decay, beta):
            x[~real] *= waste
        k /= width**0.5
        return q, k, v, decay, beta, pos, torch.randn(size, width, 3, generator=dice, dtype=torch.float64)

    return make


exercises.add(
    "fades-in-silence",
    shows="Padding is free for keys that a mask hides; a state has no mask, so whatever passes it stays in it.",
    given="memory_broken",
    forbidden=("lumen.attention.linear.recurrent.recurrent", "lumen.attention.linear.chunked.chunked"),
    check=Cases(
        reference=_wanted,
        cases={
            "one row of six tokens": _spoken("tttttt"),
            "two rows of four tokens": _spoken("tttt", "tttt"),
            "one token": _spoken("t"),
            "padding on the left": _spoken("--ttt", "-tttt"),
            "padding on the right": _spoken("ttt--", "ttttt"),
            "padding inside": _spoken("t-t--t", "tt-ttt"),
            "a row that is all padding beside a real one": _spoken("tttt", "----"),
            "all padding: the state to the last bit": Case(
                args=_spoken("---", "---"),
                tolerance=EXACT,
                slip="Leave the state where a row waits: to fade it and undo that costs its last bits.",
            ),
            "NaN under the padding": _spoken("--tt-t", "-tt-tt", "------", waste=math.nan),
        },
        slips=bends(
            remembered,
            {
                "late": "What is written now must not fade now: first the gate, then the write.",
                "stale": "The correction reads what the state holds *after* fading.",
                "loud": "The output at padding is zeros, chosen by `torch.where`: NaN times 0 is NaN.",
                "times": "NaN times 0 is NaN: choose with `torch.where`, do not multiply.",
                "pads": "A pad fades the state. A row that waits would forget.",
                "first": "Each row has padding of its own.",
            },
        ),
        tolerance=FP64,
    ),
)


# build: a chunk as a map ---------------------------------------------------------------------------
def _map(k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Token by token: what becomes of the unit matrix when nothing is written, and of nothing."""
    size = k.shape[1]
    keys, share, strength = (x[None, None] for x in (k, decay.log(), beta))
    values = torch.nn.functional.pad(v, (size, 0))[None, None]
    state = torch.eye(size, size + v.shape[1], dtype=k.dtype)[None, None]
    after = recurrent(keys, keys, values, log_decay=share, beta=strength, state=state)[1][0, 0]
    return after[:, :size], after[:, size:]


def mapped(
    k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, chunk: int, mode: str = ""
) -> tuple[Tensor, Tensor]:
    """The same by chunks, and its faults."""
    unit = torch.eye(k.shape[1], dtype=k.dtype)
    keep, add = unit, v.new_zeros(k.shape[1], v.shape[1])
    for at in range(0, len(k) - (len(k) % chunk if mode == "whole" else 0), chunk):
        key, value, share, strength = (x[at : at + chunk] for x in (k, v, decay.log(), beta[:, None]))
        since = share.cumsum(0)
        between = (since[:, None] - since).tril().exp().tril()
        if mode == "quotient":
            between = (since[:, None].exp() / since.exp()).tril()
        between = between.tril(-1) * (0 if mode == "alone" else 1) + torch.eye(len(key), dtype=k.dtype)
        system = key @ key.T * (strength.T if mode == "columns" else strength) * between
        old = -strength * (1 if mode == "fresh" else since.exp()[:, None]) * key
        sides = torch.cat([strength * value, old], 1)
        writes = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        left = key * (1 if mode == "late" else (since[-1] - since).exp()[:, None])
        here = (1 if mode == "stays" else since[-1].exp()) * unit + left.T @ writes[:, v.shape[1] :]
        keep = keep @ here if mode == "order" else here @ keep
        add = (add if mode == "apart" else here @ add) + left.T @ writes[:, : v.shape[1]]
    return keep, add


def _sentence(length: int, chunk: int, silent: Any = (), weak: float = 0.5) -> Callable[[], tuple[Any, ...]]:
    """One head, keys of lengths around 1, decays from `weak` on. `silent`: places of padding."""

    def make() -> tuple[Any, ...]:
        dice = torch.Generator().manual_seed(100 * length + chunk)
        k, v = (torch.randn(length, n, generator=dice, dtype=torch.float64) for n in (6, 4))
        decay, beta = torch.rand(2, length, generator=dice, dtype=torch.float64)
        decay, beta = weak + (1 - weak) * decay ** (1 if weak == 0.5 else 8), 0.1 + 0.9 * beta
        decay[list(silent)], beta[list(silent)] = 1.0, 0.0
        return k / 6**0.5, v, decay, beta, chunk

    return make


def _no_dust(result: Any) -> Any:
    """Whatever has faded below 1e-99 as 0: its digits tell in which order logarithms were added."""
    pair = isinstance(result, (tuple, list)) and all(map(is_array, result))
    return tuple(x * (abs(x) > 1e-99) for x in result) if pair else result


class _Operators(TorchDispatchMode):
    """Counts operators that compute (views do not), and the numbers of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += not func.is_view
        made = out if isinstance(out, (tuple, list)) else [out]
        self.largest = max(self.largest, *(x.numel() for x in made if isinstance(x, Tensor)), 0)
        return out


@dataclass(frozen=True)
class _Chunks(Cases):
    """The cases, and then what a chunk costs."""

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        super().__call__(answer, probe)
        text, pieces = _sentence(128, 128)(), _sentence(1024, 8)()
        with probe.case("128 tokens in one chunk"), _Operators() as long:
            probe.run(answer, *text)
            slip = "A loop over the tokens of a chunk is left. One triangular system gives all their writes."
            probe.at_most("operations a chunk", long.count, 127, slip)
        with probe.case("1,024 tokens in chunks of 8"), _Operators() as many:
            probe.run(answer, *pieces)
            slip = "Scores of the whole text at once: tokens of a chunk see each other, chunks are joined."
            probe.at_most("numbers in the largest tensor", many.largest, 1024**2 - 1, slip)
        return None


exercises.add(
    "a-text-as-a-map",
    shows="A stretch of text is a map of states, known before the state is: chips can take stretches apart.",
    forbidden=("lumen.attention.linear.recurrent.recurrent", "lumen.attention.linear.chunked.chunked"),
    check=_Chunks(
        reference=_map,
        cases={
            "one chunk of six": _sentence(6, 6),
            "two chunks of four": _sentence(8, 4),
            "ten tokens in chunks of four": _sentence(10, 4),
            "chunks of one token": _sentence(5, 1),
            "one token in a chunk of eight": _sentence(1, 8),
            "padding at both ends and inside": _sentence(11, 4, silent=(0, 1, 5, 9, 10)),
            "forty tokens in chunks of sixteen": _sentence(40, 16),
            "a strong gate": _sentence(300, 256, weak=1e-4),
            "a strong gate in one chunk": _sentence(256, 256, weak=1e-4),
            "a weak gate: writes answer each other over the whole chunk": Case(
                args=_sentence(128, 128, weak=0.97),
                tolerance=1e-6,
                slip="The system of a chunk is solved to its end, not by a number of rounds.",
            ),
            "many chunks of eight": _sentence(1024, 8),
            "all padding: the unit matrix, and zeros, to the last bit": Case(
                args=_sentence(5, 3, silent=range(5)), tolerance=EXACT
            ),
        },
        slips=bends(
            mapped,
            {
                "alone": "Tokens of a chunk correct each other, too: each reads what those before it wrote.",
                "fresh": "What was there before the chunk has faded on the way to each token.",
                "late": "What a token wrote fades until the end of the chunk.",
                "stays": "Whatever no key of the chunk touches fades, too.",
                "columns": "beta belongs to the token that writes: it multiplies the rows of K Kᵀ.",
                "quotient": "A product of many decays is 0 at last, and 0/0 no number: add up logarithms. Where a "
                "mask hides a term, mask before `exp`: inf times 0 is no number.",
                "order": "The later map stands on the left: it is applied to what the earlier one gives.",
                "apart": "What earlier chunks added goes through the map of the later one.",
                "whole": "The last chunk may be shorter.",
            },
        ),
        tolerance=FP64,
        view=_no_dust,
    ),
)


# build: few blocks --------------------------------------------------------------------------------
def _chosen(q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, block: int, top: int) -> Tensor:
    slots = slots_of(k_pos[None], block)
    if not slots.shape[1]:  # nothing but padding
        return torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=torch.bool)
    chosen = moba_blocks(q[None], block_means(k[None], slots), q_pos[None], slots, top)
    reads = as_reads(chosen, slots.shape[1])[0]  # (H, T, N)
    return reads[:, :, k_pos.clamp_min(0) // block] & (k_pos >= 0) & (k_pos <= q_pos[:, None])


def looked_up(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, block: int, top: int, mode: str = ""
) -> Tensor:
    """Which keys each query reads, by loops, and the faults of it."""
    (heads, new), held, places = q.shape[:2], k.shape[1], k_pos.tolist()
    number = torch.where(k_pos >= 0, k_pos.clamp_min(0) // block, 0 if mode == "pads" else -1)
    if mode == "slots":
        number = torch.arange(held) // block
    reads = torch.zeros(heads, new, held, dtype=torch.bool)
    for h in range(heads):
        keys, means = k[h % len(k) if mode == "turns" else h * len(k) // heads], {}
        for i in set(number.tolist()) - {-1}:
            means[i] = keys[number == i].sum(0) / (block if mode == "size" else (number == i).sum())
        for t, at in enumerate(q_pos.tolist()):
            mine = int(number[places.index(at)])
            others = [
                i
                for i in means
                if i < mine or (mode == "ahead" and i > mine) or (mode == "rank" and i == mine)
            ]
            others.sort(key=lambda i: -i if mode == "newest" else -float(q[h, t] @ means[i]))
            read = others[:top] if mode == "rank" else [mine, *others[: top - (mode != "extra")]]
            reads[h, t] = torch.isin(number, torch.tensor(read)) & (at >= 0)
    reads &= k_pos >= 0
    return reads if mode == "block" else reads & (k_pos <= q_pos[:, None])


def _library(
    k_pos: list[int], new: int, block: int, top: int, heads: tuple[int, int] = (1, 1), mixed: bool = False
) -> Callable[[], tuple[Any, ...]]:
    """Keys at these positions; the queries are the newest `new` slots of them."""

    def make() -> tuple[Any, ...]:
        dice = torch.Generator().manual_seed(len(k_pos) * 64 + 8 * block + top)
        at = torch.tensor(k_pos, dtype=torch.int64)
        q = torch.randn(heads[0], new, 4, generator=dice, dtype=torch.float64)
        k = torch.randn(heads[1], len(k_pos), 4, generator=dice, dtype=torch.float64)
        q_pos = at[len(at) - new :].clone()
        if mixed:
            order = torch.randperm(len(at), generator=dice)
            at, k = at[order], k[:, order]
        return q, k, q_pos, at, block, top

    return make


PADS = "Position -1 is nobody: as a key it is read by none and in no mean, as a query it reads nothing."
UPTO = lambda n: list(range(n))  # noqa: E731 - positions of n tokens
exercises.add(
    "few-blocks",
    shows="A mean key decides what is read, before one of its keys was; all of them are still in memory.",
    forbidden=(
        "lumen.attention.sparse.moba.moba_blocks",
        "lumen.attention.sparse.moba.moba_attention",
        "lumen.attention.sparse.moba.naive_moba",
    ),
    check=Cases(
        reference=_chosen,
        cases={
            "sixteen tokens in blocks of four": _library(UPTO(16), 16, 4, 2),
            "one token": _library([0], 1, 4, 2),
            "a last block of two, three blocks each": _library(UPTO(22), 22, 4, 3),
            "only the own block": _library(UPTO(14), 14, 4, 1),
            "more allowed than there are": _library(UPTO(7), 7, 3, 9),
            "blocks of one token": _library(UPTO(9), 9, 1, 3),
            "one new token on a cache of thirty": _library(UPTO(31), 1, 4, 3),
            "five new tokens on a cache of twelve": _library(UPTO(17), 5, 4, 2),
            "nine heads on three": _library(UPTO(19), 19, 4, 2, (9, 3)),
            "padding on the left": Case(args=_library([-1, -1, -1, *UPTO(15)], 18, 4, 2, (2, 1)), slip=PADS),
            "padding on the right": Case(args=_library([*UPTO(15), -1, -1], 17, 4, 2, (2, 1)), slip=PADS),
            "padding inside": Case(
                args=_library([0, 1, -1, 2, 3, 4, -1, -1, 5, 6, 7, 8, 9, 10, 11], 15, 4, 2, (2, 2)), slip=PADS
            ),
            "keys in no order": _library(UPTO(21), 6, 4, 3, (4, 2), mixed=True),
            "keys that were evicted": Case(
                args=_library([0, 3, 5, 12, 13, *range(16, 30)], 14, 4, 3, (8, 2)),
                slip="A block without a key is no candidate.",
            ),
            "nothing but padding": _library([-1, -1, -1], 3, 4, 2),
        },
        slips=bends(
            looked_up,
            {
                "ahead": "Blocks ahead of the query are no candidates: their means tell of keys that it must not know.",
                "rank": "The query's own block is always read, whatever its mean says.",
                "newest": "The others are those with the best scores, not the newest.",
                "extra": "The own block is one of the `top`.",
                "block": "Inside its own block a query reads up to itself.",
                "slots": "A block is made of positions, not of slots.",
                "size": "The mean is over the keys that there are, not over the block's size.",
                "pads": PADS,
                "turns": "Query head h reads KV head h // (H / Hkv): neighbours share.",
            },
        ),
    ),
)


# literature ---------------------------------------------------------------------------------------
LATENT = 27 * (512 + 64) * 2  # Kimi-Linear-48B-A3B, were all its 27 layers MLA: bytes a token
KDA = 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2  # a state in fp32, three tokens of q, k and v in 16 bits


def _saved(tokens: int, state: float = KDA, linear: int = 20) -> float:
    """The share that linear layers save of what 27 latent ones would hold."""
    return linear / 27 - linear * state / (LATENT * tokens)


exercises.add(
    "linear-claims",
    shows="A state is small, not free, and not a list; sparse attention reads less and keeps everything.",
    check=Statements(
        false="ace",
        why={
            "a": "It fits in memory; a state of D keys tells about D pairs apart. Older ones fade or blur.",
            "b": "The order of additions differs, nothing else: that is why training by chunks is possible at all.",
            "c": "All keys stay, and means, compressed keys or an indexer's keys come on top. Fewer are *read*.",
            "d": "With beta 1 and a key of length 1 the correction leaves k S = v, whatever stood there.",
            "e": "Seven of its 27 layers keep a latent, and each of the others a state: three quarters is not reached.",
        },
        number=Number(
            _saved(8192),
            slips={
                20 / 27: "That is the limit for endless contexts: the states count.",
                0.75: "Seven of 27 layers are full, and the states count.",
                _saved(8192) * 27 / 20 * 0.75: "20 of 27 layers are linear, not three quarters.",
                1 - _saved(8192): "That is what is left. The share that is saved, please.",
                _saved(8192, KDA - 2**20): "The state has 4 bytes a number.",
                _saved(8192, 2**21): "The convolutions of q, k and v keep three tokens each.",
                _saved(8192, KDA - 3 * 3 * 32 * 128): "The convolutions' tokens have 2 bytes a number.",
                100 * _saved(8192): "That is per cent; a share lies between 0 and 1.",
            },
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------
BANDWIDTH = 3.35e12  # B/s of an H100 SXM


def held(users: int, context: int, full: int) -> float:
    """Bytes of keys, values and states."""
    return kv_bytes(hybrid(full), context, users) + state_bytes(hybrid(full), users)


def moved(users: int, context: int, full: int) -> float:
    """Bytes of a step: keys and values read, states read and written."""
    return held(users, context, full) + state_bytes(hybrid(full), users)


def layers_for(users: int, context: int, gib: float, ms: float) -> Decision:
    return Decision(
        choices={"full": [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48]},
        constraints=[
            Constraint(
                "memory",
                lambda choice: held(users, context, choice["full"]) / 2**30,
                at_most=gib,
                unit="GiB",
                slip="It does not fit. A linear layer has a state of fixed size for each user, too.",
            ),
            Constraint(
                "a step",
                lambda choice: 1e3 * moved(users, context, choice["full"]) / BANDWIDTH,
                at_most=ms,
                unit="ms",
                slip="A step takes too long. Keys and values are read once, states read and written back.",
            ),
        ],
        cost=lambda choice: 48 - choice["full"],
        unit="linear layers",
        dearer="More full layers fit. A GiB has 2³⁰ bytes, a limit met exactly is met, and at a short context they are "
        "the smaller ones.",
    )


LOADS = [
    (1, 131_072, 4, 10),
    (2, 131_072, 24, 8),
    (8, 131_072, 40, 10),
    (64, 1500, 8, 3.5),
    (200, 600, 12, 6),
    (32, 8192, 8, 4),
    (24, 16_384, 20, 3),
    (1, 1_048_576, 12, 5),
    (1, 1_048_576, 2, 5),
    (64, 1000, 6.5, 3),
    (67, 292_113, 48, 16),  # one full layer takes 16 ms to the byte
    (64, 3000, 8.0, 99),
    (64, 1500, 7.0, 20),  # both: the convolutions' tokens decide
]

exercises.add(
    "full-layers",
    shows="Full layers are what a long context pays for; below a thousand tokens they are the cheaper ones.",
    check=Plan(layers_for, ("users", "context", "gib", "ms"), LOADS),
)
