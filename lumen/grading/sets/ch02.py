"""The exercises of chapter 02: a ridge, the FLOPs of a layer, two faults of benchmarks, a choice of chips."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from numbers import Real
from typing import Any

from lumen import cost
from lumen.config import CONFIGS, ModelConfig
from lumen.grading import (
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Probe,
    Slip,
    Statements,
    compare,
)
from lumen.grading.verdict import Wrong
from lumen.hardware import CHIPS, hourly

exercises = ExerciseSet("02", "The roofline", then="chapter 03, measuring")


# predict ------------------------------------------------------------------------------------------
A100_40GB = CHIPS["A100 40GB SXM"]


exercises.add(
    "users-to-ridge",
    title="How many users until arithmetic is the limit?",
    kind="predict",
    difficulty=2,
    importance=5,
    minutes=6,
    points=1,
    shows="Fewer bits a weight bring the ridge nearer in users, although the chip is the same.",
    check=Number(
        lambda: cost.ridge(A100_40GB) / 2,
        unit="users",
        tolerance=0.01,  # 101: whole users, rounded up
        slips=[
            Slip(
                cost.ridge(A100_40GB),
                "A weight does 2 FLOPs for its 1 byte here. 201 comes of 16-bit weights, of a multiply-add "
                "counted as one FLOP, or of a peak of 624 for int8 arithmetic.",
            ),
            Slip(
                2 * cost.ridge(A100_40GB),
                "That is the ridge multiplied by 2 instead of divided, or one FLOP counted for 2 bytes. "
                "A multiply-add is two FLOPs, and a weight is 1 byte here.",
            ),
            Slip(
                cost.ridge(A100_40GB) / 4,
                "That is four FLOPs a byte and user, as with 4-bit weights. It is one multiply-add a byte, so two.",
            ),
            Slip(
                cost.ridge(CHIPS["A100 80GB SXM"]) / 2,
                "That is the 80 GB card, whose memory is faster. This one reads 1,555 GB/s.",
            ),
        ],
    ),
)


# build --------------------------------------------------------------------------------------------
def token_flops(config: ModelConfig, context: int) -> int:
    """The reference: every matmul of one token that sees `context` keys."""
    return int(cost.flops_per_token(config, context).total)


def _flops(
    config: ModelConfig,
    context: int,
    *,
    per_pair: int = 2,
    kv_heads: int | None = None,
    matrices: int | None = None,
    head: int = 1,
    attention_heads: int | None = None,
    attention_products: int = 2,
    attention_width: int | None = None,
) -> int:
    """The formula with one part bent: the usual mistakes."""
    width, queries = config.hidden_size, config.num_heads * config.head_dim
    keys = (kv_heads or config.num_kv_heads) * config.head_dim
    mlp = matrices or (3 if config.gated else 2)
    layer = width * (2 * queries + 2 * keys) + mlp * width * config.intermediate_size
    seen = context if config.window is None else min(context, config.window)
    spread = attention_width or (attention_heads or config.num_heads) * config.head_dim
    layer += attention_products * spread * seen
    return per_pair * (config.num_layers * layer + head * width * config.vocab_size)


SMOL = CONFIGS["smollm2-135m"]
WIDE_HEADS = ModelConfig("heads wider than the model", 97, 3, 40, 6, 2, 16, 100, 64)
RELU = ModelConfig("relu, two KV heads", 53, 2, 24, 4, 2, 6, 72, 48, mlp="relu")
NO_GATE = ModelConfig("one KV head, no gate", 61, 2, 48, 4, 1, 12, 80, 48, mlp="gelu")

exercises.add(
    "count-flops",
    title="The FLOPs of a token, to the last one",
    kind="build",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="Every FLOP of a decoder's matrices follows from seven numbers of its card, and torch "
    "counts the same.",
    forbidden=("lumen.cost",),
    check=Cases(
        reference=token_flops,
        cases=lambda: [
            Case("SmolLM2, context 1", (SMOL, 1)),
            Case("SmolLM2, context 777", (SMOL, 777)),
            Case("16 wide heads on a model of width 40", (WIDE_HEADS, 13)),
            Case("one KV head and an MLP without a gate", (NO_GATE, 7)),
            Case("an MLP with relu", (RELU, 5)),
            Case(
                "Mistral past its window of 4,096",
                (CONFIGS["mistral-7b"], 5000),
                slip="A window ends what a token sees: no more than `config.window` keys.",
            ),
            Case(
                "Mistral inside its window",
                (CONFIGS["mistral-7b"], 1000),
                slip="A window is the most that a token sees: no more keys than there are.",
            ),
        ],
        slips=[
            Slip(lambda c, n: _flops(c, n, per_pair=1), "A multiply-add is two FLOPs."),
            Slip(
                lambda c, n: _flops(c, n, kv_heads=c.num_heads),
                "Keys and values have `num_kv_heads` heads: their projections are narrower.",
            ),
            Slip(
                lambda c, n: _flops(c, n, attention_heads=c.num_kv_heads),
                "In attention every *query* head meets the keys; sharing keys saves bytes, not FLOPs.",
            ),
            Slip(lambda c, n: _flops(c, n, matrices=2), "SwiGLU has three matrices: gate, up and down."),
            Slip(
                lambda c, n: _flops(c, n, matrices=3),
                'Only `mlp == "swiglu"` has a gate; the others have two matrices.',
            ),
            Slip(lambda c, n: _flops(c, n, head=0), "The head is a matrix too, and a token goes through it."),
            Slip(
                lambda c, n: _flops(c, n, head=2),
                "The head is counted once. Looking up an embedding is no matrix product.",
            ),
            Slip(
                lambda c, n: _flops(c, n, attention_products=1),
                "Attention is two products: q·k, then weights times values.",
            ),
            Slip(
                lambda c, n: _flops(c, n, attention_width=c.hidden_size),
                "The width of the queries is num_heads x head_dim, which need not be hidden_size.",
            ),
            Slip(
                lambda c, n: _flops(c.with_(head_dim=c.hidden_size // c.num_heads), n),
                "`config.head_dim` is its own number: hidden_size / num_heads need not be it.",
            ),
            Slip(
                lambda c, n: _flops(c, n + 1),
                "`context` counts the token's own key already.",
            ),
        ],
        tolerance=0.0,
        dtype=False,
    ),
)


# literature ---------------------------------------------------------------------------------------
LLAMA = CONFIGS["llama-3-70b"]

exercises.add(
    "crossover",
    title="Does attention dominate beyond 6d?",
    kind="literature",
    difficulty=3,
    importance=3,
    minutes=10,
    points=2,
    shows="A rule of thumb carries the architecture it was made for.",
    check=Statements(
        false="b",
        why={
            "a": "It stands: 8d² for four square projections, 16d² for two matrices of width 4d, 4d for each key.",
            "b": "6d belongs to multi-head attention and a GELU MLP. Llama-3-70B has narrow key and value projections "
            "(4.5d² FLOPs in all) and three MLP matrices of 3.5d (21d²): 25.5d² / 4d is more than 6d.",
            "c": "It stands: in a causal prefill a token sees half of the prompt on average.",
            "d": "It stands: each query head still meets every key.",
        },
        number=Number(
            lambda: cost.crossover_context(LLAMA),
            unit="tokens",
            slips=[
                Slip(49_152, "That is 6 x 8,192, the rule itself."),
                Slip(
                    2 * 52_224,
                    "A factor of two: that is the length of a whole *prefill*, or one of attention's two products "
                    "left out. The question is about one token.",
                ),
                Slip(417_792, "Each of the 64 query heads meets the keys; 8 is the number of KV heads."),
                Slip(
                    59_392,
                    "The projections of keys and values are narrower with 8 KV heads: 4.5d² in all, not 8d².",
                ),
                Slip(41_984, "The MLP has three matrices of 28,672, 21d², not two of 4d."),
                Slip(
                    26_112, "Weights give two FLOPs each, keys four per query width. One factor 2 is missing."
                ),
                Slip(26_624, "That is Llama-3-8B, which the chapter counted. Here d is 8,192."),
                Slip(
                    53_248,
                    "6.5d belongs to Llama-3-8B, whose keys are a quarter of d wide. Here they are an eighth.",
                ),
            ],
        ),
    ),
)


# debug: a dashboard -------------------------------------------------------------------------------
def _utilisation(
    step: dict[str, float],
    card: dict[str, Any],
    per_pair: int = 2,
    dense: bool = True,
    weights_each: bool = False,
    cache_each: bool = True,
    always_halve: bool = False,
) -> tuple[float, float]:
    users, peak = step["users"], card["headline_tflops"] * 1e12
    if always_halve or (dense and card["headline_is_sparse"]):
        peak /= 2
    weights = step["parameters"] * step["bytes_per_weight"] * (users if weights_each else 1)
    moved = weights + step["cache_bytes_per_user"] * (users if cache_each else 1)
    flops = per_pair * step["parameters"] * users
    return flops / (step["seconds"] * peak), moved / (step["seconds"] * card["gb_per_s"] * 1e9)


def utilisation(step: dict[str, float], card: dict[str, Any]) -> tuple[float, float]:
    """The reference: (MFU, MBU) of a decode step."""
    return _utilisation(step, card)


def _step(
    users: int, seconds: float, cache_bytes: float, bytes_per_weight: float = 2.0, parameters: float = 8.03e9
) -> dict[str, float]:
    return {
        "parameters": parameters,
        "users": users,
        "seconds": seconds,
        "cache_bytes_per_user": cache_bytes,
        "bytes_per_weight": bytes_per_weight,
    }


SPARSE_H100 = {"headline_tflops": 1978.9, "headline_is_sparse": True, "gb_per_s": 3350.0}
DENSE_T4 = {"headline_tflops": 65.0, "headline_is_sparse": False, "gb_per_s": 320.0}

exercises.add(
    "utilisation",
    title="A dashboard with an impossible MBU",
    kind="debug",
    difficulty=2,
    importance=4,
    minutes=10,
    points=2,
    shows="Both percentages are sentences about the model's work, so each factor must be the model's, "
    "not the program's.",
    forbidden=("lumen.cost",),
    check=Cases(
        reference=utilisation,
        cases=lambda: [
            Case("32 users on a T4, 4.5 bits a weight", (_step(32, 0.03, 5e6, 0.5625), DENSE_T4)),
            Case("32 users of 2,048 tokens on an H100", (_step(32, 0.0095, 268e6), SPARSE_H100)),
            Case(
                "one user of 1.1 billion weights, no cache",
                (_step(1, 0.008, 0.0, parameters=1.1e9), DENSE_T4),
            ),
        ],
        slips=[
            Slip(
                lambda s, c: _utilisation(s, c, dense=False),
                "1,979 TFLOP/s assume 2:4 sparsity. These weights are dense: half of it.",
            ),
            Slip(
                lambda s, c: _utilisation(s, c, per_pair=1),
                "A multiply-add is two FLOPs, and the peak counts both.",
            ),
            Slip(
                lambda s, c: _utilisation(s, c, weights_each=True),
                "The weights are read once a step, for all users together.",
            ),
            Slip(
                lambda s, c: _utilisation(s, c, cache_each=False),
                "Every user has a cache of their own, and all are read.",
            ),
            Slip(
                lambda s, c: tuple(100 * share for share in _utilisation(s, c)),
                "Shares are asked for, not percent: 0.5 for a half.",
            ),
            Slip(lambda s, c: _utilisation(s, c)[::-1], "The MFU comes first, then the MBU."),
            Slip(
                lambda s, c: _utilisation(s, c, always_halve=True),
                "Not every headline assumes sparsity: `headline_is_sparse` says which.",
            ),
        ],
        tolerance=0.005,  # three significant figures
    ),
    given="broken_utilisation",
)


# debug: a bandwidth benchmark ---------------------------------------------------------------------
LINE = 4096  # bytes that travel together


class Machine:
    """A machine with one cache in front of its memory and a clock of its own, so that nothing is random.

    `read(start, size)` touches `size` bytes from address `start` on. What lies in the cache comes at
    `cache_rate`, the rest at the memory's rate, which is what the benchmark is to find out. Of the cache the
    lines used last are kept. Each call costs `call_s` on top, as calls do. `clock()` tells the time in s; the
    machine has been on for a while. `most` is the number of bytes that a check lets a benchmark read.
    """

    def __init__(
        self,
        memory_rate: float,
        cache_bytes: int,
        cache_rate: float,
        call_s: float = 2e-6,
        most: float = math.inf,
    ):
        self.memory_bytes, self.cache_bytes, self.calls, self.read_bytes = 2**30, cache_bytes, 0, 0
        self._memory_rate, self._cache_rate, self._call_s = memory_rate, cache_rate, call_s
        self._now, self._most, self._hits = 7.0, most, 0
        self._looks: list[tuple[int, int]] = []  # hits and bytes whenever the clock was read
        self._held: OrderedDict[int, None] = OrderedDict()

    def clock(self) -> float:
        """Seconds since the machine was switched on."""
        self._looks.append((self._hits, self.read_bytes))
        return self._now

    @property
    def found(self) -> float:
        """The share of the bytes read between the first and the last look at the clock that lay in the cache."""
        (hits, first), (more, last) = (self._looks or [(0, 0)])[0], (self._looks or [(0, 0)])[-1]
        return (more - hits) * LINE / (last - first) if last > first else 0.0

    def read(self, start: int, size: int) -> None:
        """Read `size` bytes from `start` on. Raises ValueError outside the memory of 1 GiB."""
        if size < 1 or start < 0 or start + size > self.memory_bytes:
            raise ValueError(f"This machine has {self.memory_bytes} bytes; {start} + {size} lies outside.")
        self.calls, self.read_bytes = self.calls + 1, self.read_bytes + size
        if self.read_bytes > self._most:
            raise Wrong(gave="more than 2 GiB read", wanted="2 GiB at most", slip=AGAIN)
        held, room = self._held, self.cache_bytes // LINE
        lines, hits = range(start // LINE, (start + size - 1) // LINE + 1), 0
        for line in lines:
            if line in held:
                hits += 1
                held.move_to_end(line)  # used last
            else:
                if len(held) >= room:
                    held.popitem(last=False)
                held[line] = None
        share = hits / len(lines)
        self._hits += hits
        self._now += self._call_s + size * (share / self._cache_rate + (1 - share) / self._memory_rate)


IN_CACHE = "part of what was read lay in the cache: a second round over the same few MiB finds them there."
SMALL = "the pieces are so small that the 2 µs of each call count."
UNREAD = "nothing was read. The machine of this case delivers something else."
OUTSIDE = "the bytes divided are not those that were read between the clock's two readings."
UNIT = "the answer is in another unit, such as GB or bits per second; bytes per second are asked for."
OVER = "that is seconds per byte: bytes over seconds are asked for."
AGAIN = "the same bytes were read over and over; a few hundred MiB are enough once they are larger than the cache."


UNITS = (
    1e3,
    1e6,
    1e9,
    1e12,
    2**10,
    2**20,
    2**30,
    1 / 8,
    1e9 / 8,
)  # bits and gigabits; more would fit by chance


def _walk(size: int, piece: int, before: int = 0, unit: float = 1.0) -> Callable[[Machine], float]:
    """Read `before` bytes off the clock, then `size` from address 0 on in pieces, on it."""

    def bandwidth(machine: Machine) -> float:
        if before:
            machine.read(0, before)
        start = machine.clock()
        for at in range(0, size, piece):
            machine.read(at % machine.memory_bytes, piece)
        return size / (machine.clock() - start) / unit

    return bandwidth


def _clock_over_warm_up(machine: Machine) -> float:
    start = machine.clock()
    machine.read(0, 2**28)
    machine.read(2**28, 2**28)
    return 2**28 / (machine.clock() - start)


def _counts_twice(machine: Machine) -> float:
    machine.read(0, 2**20)
    start = machine.clock()
    machine.read(0, 2**28)
    return 2**29 / (machine.clock() - start)


def _counts_warm_up(machine: Machine) -> float:
    machine.read(0, 2**28)
    start = machine.clock()
    machine.read(2**28, 2**28)
    return 2**29 / (machine.clock() - start)


@exercises.checks(
    "memory-bandwidth",
    title="The benchmark that measured the cache",
    kind="debug",
    difficulty=3,
    importance=4,
    minutes=12,
    points=2,
    shows="A bandwidth is the memory's only when what was read could not have been anywhere else.",
    given="broken_bandwidth",
    slips=[
        Slip(_walk(2**24, 2**24, before=2**24), IN_CACHE),
        Slip(_walk(2**27, 2**16), SMALL),
        Slip(_walk(2**28, 2**22), SMALL),  # only a fast memory shows it
        Slip(_clock_over_warm_up, OUTSIDE),
        Slip(_counts_warm_up, OUTSIDE),
        Slip(_counts_twice, OUTSIDE),  # a warm-up that lies in the cache is not why
        Slip(
            _walk(2**26, 2**26, before=2**26), IN_CACHE
        ),  # 32 MiB of cache forgive it, 64 do not: near 8 times
        Slip(lambda machine: 20e9, UNREAD),
        Slip(lambda machine: 8e-9 * _walk(2**28, 2**24)(machine), UNIT),
        Slip(
            lambda machine: 2**28 / (machine.read(0, 2**28) or machine.clock()), OUTSIDE
        ),  # its first reading left out
        Slip(_walk(2**28, 2**24, unit=1 / 8), UNIT),
        Slip(lambda machine: 1 / _walk(2**28, 2**24)(machine), OVER),
        Slip(_walk(2**28, 2**24, unit=1e9), UNIT),
        Slip(_walk(3 * 2**30, 2**28), AGAIN),
    ],
)
def _memory_bandwidth(answer: Any, probe: Probe) -> None:
    for name, rate, cache_bytes, cache_rate in (
        ("32 MiB of cache", 20e9, 32 * 2**20, 200e9),
        ("no more than 1 MiB of cache, fast memory", 100e9, 2**20, 300e9),
        ("64 MiB of cache, fast memory", 100e9, 64 * 2**20, 900e9),
    ):
        machine = Machine(rate, cache_bytes, cache_rate, most=2 * 2**30)
        with probe.case(name):
            got = probe.call(answer, machine)
            got = got.item() if compare.is_array(got) and got.ndim == 0 else got
            number = isinstance(got, Real) and not isinstance(got, bool)
            probe.that(number, gave=got, wanted="a number of bytes per second")
            near = 0.97 * rate <= got <= 1.03 * rate
            wanted = f"{rate / 1e9:,.0f} GB/s within 3 %"
            probe.that(near, gave=f"{got / 1e9:,.3g} GB/s", wanted=wanted, slip=_off(got, rate, machine))


def _off(got: float, rate: float, machine: Machine) -> str:
    """What is behind a wrong bandwidth; "" when that cannot be told."""

    def about(value: float, right: float) -> bool:
        return abs(value / right - 1) < 0.04

    if math.isnan(got):
        return ""
    if not machine.read_bytes:
        return UNREAD
    if got > rate and machine.found > 0.03:
        return IN_CACHE
    if any(about(got * unit, rate) for unit in UNITS):
        return UNIT
    if about(got * rate, 1):
        return OVER
    if got > rate:
        return OUTSIDE
    piece = machine.read_bytes / max(machine.calls, 1)
    return SMALL if piece and piece / (piece / rate + machine._call_s) < 0.97 * rate else OUTSIDE


# decide -------------------------------------------------------------------------------------------
SEVENTY = CONFIGS["llama-3-70b"]
CONTEXT = 4096


def _memory(c: dict[str, Any]) -> float:
    kept = cost.kv_bytes(SEVENTY, CONTEXT, c["users"], "bf16")
    return (cost.weight_storage(SEVENTY, c["weights"]) + kept) / (CHIPS[c["chip"]].memory * c["cards"])


def _seconds(c: dict[str, Any]) -> float:
    """The chapter's two clocks, of the whole step on all cards together."""
    chip, cards = CHIPS[c["chip"]], c["cards"]
    step = cost.step_bytes(SEVENTY, c["users"], CONTEXT, weight_dtype=c["weights"], kv_dtype="bf16")
    moved = step.weights + step.cache_read + step.cache_write
    flops = cost.step_flops(SEVENTY, c["users"], CONTEXT).total
    return max(flops / (cards * chip.peak("bf16")), moved / (cards * chip.bandwidth))


def _price(c: dict[str, Any]) -> float:
    return cost.cost_per_million_tokens(hourly(c["chip"])[c["chip"]] * c["cards"], c["users"] / _seconds(c))


exercises.add(
    "choose-chips",
    title="Llama-3-70B under 25 ms",
    kind="decide",
    difficulty=4,
    importance=5,
    minutes=15,
    points=3,
    shows="Who shares a step shares its price. Four H100 are full while there is time left; four H200 hold users until "
    "the time is used up.",
    check=Decision(
        choices={
            "chip": ["L4", "A100 80GB SXM", "H100 SXM", "H200 SXM"],
            "cards": [1, 2, 4],
            "weights": ["bf16", "fp8"],
            "users": range(1, 401),
        },
        constraints=[
            Constraint(
                "share of the memory",
                _memory,
                at_most=0.9,
                slip="the weights (141 GB in bf16, 71 in fp8) and every user's cache must fit in 90 % of all cards.",
            ),
            Constraint(
                "time per token",
                lambda c: 1000 * _seconds(c),
                at_most=25,
                unit="ms",
                slip="a step reads the weights once and every user's cache: with fewer users it is shorter.",
            ),
        ],
        cost=_price,
        unit="$ per million tokens",
        within=0.05,
        dearer="another set-up has memory and time for more users, who share the price of the step.",
    ),
)
