"""Exercises of chapter 08: a step's time, the loop with a door, a row without pads, a die, four claims, a batch."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from lumen import cost
from lumen.config import CONFIGS
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
    Slip,
    Statements,
)
from lumen.hardware import CHIPS, hourly

exercises = ExerciseSet("08", "Batching", then="chapter 09, scheduling")

# predict ------------------------------------------------------------------------------------------

WEIGHTS, KAPPA, BANDWIDTH, BATCH, CONTEXT = 15e9, 131_072, 3.35e12, 16, 4096


def _step_ms(batch: int, context: int = CONTEXT) -> float:
    return 1e3 * (WEIGHTS + batch * context * KAPPA) / BANDWIDTH


STEP = {
    "alone": Number(
        lambda: _step_ms(1),
        unit="ms",
        slips=[Slip(1e3 * WEIGHTS / BANDWIDTH, "One user has a cache, too. It is read at every step.")],
    ),
    "together": Number(
        lambda: _step_ms(BATCH),
        unit="ms",
        slips=[
            Slip(lambda got: abs(got - _step_ms(1)) < 0.02, "The weights are shared, the caches are not."),
            Slip(BATCH * _step_ms(1), "The weights are read once for all sixteen."),
            Slip(1e3 * WEIGHTS / BANDWIDTH, "That is the weights alone."),
        ],
    ),
    "gain": Number(
        lambda: BATCH * _step_ms(1) / _step_ms(BATCH),
        slips=[
            Slip(16 / 1.5, "The one and a half of the hint is rounded: divide your own two times."),
            Slip(
                _step_ms(BATCH) / _step_ms(1),
                "That is how much longer a step takes. It makes 16 tokens.",
            ),
            Slip(BATCH, "That would be a free ride: a step for sixteen takes longer than a step for one."),
        ],
    ),
    "ceiling": Number(
        lambda: BANDWIDTH / (CONTEXT * KAPPA),
        unit="tokens/s",
        slips=[
            Slip(
                BATCH / _step_ms(BATCH) * 1e3,
                "That is the rate at batch 16. What is left of the bytes per token when B is very large?",
            ),
            Slip(
                BANDWIDTH / WEIGHTS,
                "That is one user with a short context. In a huge batch the caches remain.",
            ),
        ],
    ),
}


exercises.add(
    "step-for-sixteen",
    title="A step for sixteen",
    kind="predict",
    difficulty=2,
    importance=5,
    minutes=10,
    points=2,
    shows="Two numbers of a model and one of a chip say what a batch costs and where it stops paying.",
    check=Numbers(STEP),
)


# build: the door ----------------------------------------------------------------------------------


def _timeline(
    lengths: list[int], slots: int, static: bool = False, newest: bool = False, single: bool = False
) -> list[list[int]]:
    """The reference; `newest` first and a `single` one a step are what readers write by mistake."""
    if slots < 1 or any(length < 1 for length in lengths):
        raise ValueError("one slot and one token at least")
    waiting, steps = deque(enumerate(lengths)), []
    left: dict[int, int] = {}
    while waiting or left:
        if not static or not left:
            while waiting and len(left) < slots:
                name, length = waiting.pop() if newest else waiting.popleft()
                left[name] = length
                if single:
                    break
        steps.append(sorted(left))
        left = {name: n - 1 for name, n in left.items() if n > 1}
    return steps


def _seated(seats: dict[int, int], names: list[int]) -> dict[int, int]:
    """Who stays keeps the seat, who comes takes the lowest free one."""
    seats = {name: seat for name, seat in seats.items() if name in names}
    for name in names:
        if name not in seats:
            seats[name] = min(set(range(len(names))) - set(seats.values()), default=len(names))
    return seats


def _by_seat(lengths: list[int], slots: int, static: bool = False) -> list[list[int]]:
    seats: dict[int, int] = {}
    steps = []
    for names in _timeline(lengths, slots, static):
        seats = _seated(seats, names)
        steps.append(sorted(names, key=seats.__getitem__))
    return steps


def _one_more(lengths: list[int], slots: int, static: bool = False) -> list[list[int]]:
    return _timeline([n + 1 if n > 0 else n for n in lengths], slots, static)


def _never_full(lengths: list[int], slots: int, static: bool = False) -> list[list[int]]:
    return _timeline(lengths, max(1, len(lengths)) if slots > 0 else slots, static)


DOORS = [
    ("five answers, two slots", ([3, 1, 4, 1, 2], 2)),
    ("one slot", ([2, 1, 3], 1)),
    ("more slots than requests", ([2, 5], 8)),
    ("answers of one token", ([1, 1, 1, 1, 1], 3)),
    ("equal answers", ([4] * 6, 3)),
    ("nobody", ([], 4)),
    ("one long answer first", ([9, 1, 1, 1, 1, 1, 1], 2)),
    ("twenty answers, four slots", ([7, 1, 12, 3, 2, 9, 1, 1, 30, 4, 2, 6, 5, 1, 8, 2, 3, 17, 1, 2], 4)),
]

REFUSED = [
    ("no slot", ([1, 2], 0), "slot"),
    ("slots below zero", ([1, 2], -1), "slot"),
    ("no slot, and nobody", ([], 0), "slot"),
    ("an answer of no tokens", ([2, 0, 1], 2), "token"),
    ("an answer of minus one token", ([2, 1, -1], 2), "token"),
]

exercises.add(
    "the-door",
    title="The loop with a door",
    kind="build",
    difficulty=3,
    importance=5,
    minutes=20,
    points=4,
    shows="Static and continuous batching are one loop; they differ in the condition under which the door opens.",
    check=Cases(
        reference=_timeline,
        cases=lambda: [
            *(
                Case(f"{name}, {'static' if static else 'continuous'}", (*args, static))
                for name, args in DOORS
                for static in (False, True)
            ),
            Case("`static` left out: continuous", DOORS[0][1]),
            Case("`static` by its name", DOORS[0][1], {"static": True}),
            *(
                Case(
                    name,
                    args,
                    raises=ValueError,
                    slip=f"Fewer than one {what} is a `ValueError`, by the text.",
                )
                for name, args, what in REFUSED
            ),
        ],
        slips=[
            Slip(_one_more, "A request stays one step too long after its last token."),
            Slip(
                lambda lengths, slots, static=False: [[] for _ in _timeline(lengths, slots, static)],
                "Every step holds the same list, which is empty in the end. Append a copy.",
            ),
            Slip(
                lambda lengths, slots, static=False: _timeline(lengths, slots, static, single=True),
                "One request comes in before a step. As many come in as there are free slots.",
            ),
            Slip(
                lambda lengths, slots, static=False: _timeline(lengths, slots, static, newest=True),
                "Whoever came last comes in first. The queue is served from its front.",
            ),
            Slip(_by_seat, "The right requests, slot by slot. The numbers of a step are to be sorted."),
            Slip(_never_full, "Everybody is let in at once: `slots` is how many may run together."),
            Slip(
                lambda lengths, slots, static=False: _timeline(lengths, slots, True),
                "Continuous batching fills a free slot before the next step, without waiting for the others.",
            ),
            Slip(
                lambda lengths, slots, static=False: _timeline(lengths, slots, False),
                "Static batching opens the door only when nobody is left inside.",
            ),
        ],
        tolerance=EXACT,
    ),
)

# build: packing -----------------------------------------------------------------------------------


def _pack(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    import torch

    lengths = torch.tensor([len(p) for p in prompts])
    tokens = torch.tensor([t for p in prompts for t in p])
    pos = torch.cat([torch.arange(n) for n in lengths.tolist()])
    owner = torch.arange(len(prompts)).repeat_interleave(lengths)
    return tokens, pos, (owner[:, None] == owner) & (pos[:, None] >= pos)


def _pack_causal(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack(prompts)
    return tokens, pos, mask.new_ones(mask.shape).tril()


def _pack_by_position(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, _ = _pack(prompts)
    return tokens, pos, pos[:, None] >= pos


def _pack_blocks(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack(prompts)
    return tokens, pos, mask | mask.T


def _pack_counted_on(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    import torch

    tokens, pos, mask = _pack(prompts)
    return tokens, torch.arange(len(pos)), mask


def _pack_without_self(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack(prompts)
    return tokens, pos, mask & ~mask.T


def _pack_turned(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack(prompts)
    return tokens, pos, mask.T


def _pack_hidden(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack(prompts)
    return tokens, pos, ~mask


def _pack_as_one(prompts: list[list[int]]) -> tuple[Any, Any, Any]:
    tokens, pos, mask = _pack_counted_on(prompts)
    return tokens, pos, mask.new_ones(mask.shape).tril()


exercises.add(
    "no-pads",
    title="A row without pads",
    kind="build",
    difficulty=3,
    importance=4,
    minutes=20,
    points=4,
    shows="A batch of unequal prompts needs no rectangle.",
    check=Cases(
        reference=_pack,
        cases=[
            Case("two prompts of unequal length", ([[11, 12, 13], [21, 22]],)),
            Case("one prompt", ([[7, 8, 9, 10]],)),
            Case("prompts of one token", ([[5], [6], [7]],)),
            Case("token 0 is a token", ([[0, 0], [0, 3, 0]],)),
            Case("the same prompt twice", ([[4, 5, 6], [4, 5, 6]],)),
            Case("five prompts", ([[1, 2], [3], [4, 5, 6, 7, 8], [9, 10, 11], [12]],)),
        ],
        slips=[
            Slip(_pack_causal, "The second prompt sees the first one: order in the row is not enough."),
            Slip(_pack_by_position, "Equal positions of different prompts see each other. Who owns them?"),
            Slip(_pack_blocks, "Inside a prompt a token must not see what comes after it."),
            Slip(
                _pack_counted_on, "Every prompt starts at position 0: RoPE must not know of the neighbours."
            ),
            Slip(
                _pack_as_one,
                "Positions and mask are those of one long prompt. Where does the next one start?",
            ),
            Slip(_pack_turned, "Turned: in `mask[i, j]` the row i sees, and the column j is seen."),
            Slip(_pack_hidden, "The reverse: True says that i may see j, not that j is hidden."),
            Slip(_pack_without_self, "A token sees itself, too; otherwise the first one sees nobody."),
        ],
        tolerance=EXACT,
    ),
)

# debug --------------------------------------------------------------------------------------------


def _draws(requests: list[tuple[int, int]], slots: int) -> list[list[float]]:
    found = []
    for seed, tokens in requests:
        stream = random.Random(seed)
        found.append([stream.random() for _ in range(tokens)])
    return found


def _draws_with(requests: list[tuple[int, int]], slots: int, mode: str) -> list[list[float]]:
    """The function as it was given (`places`), and four mends that are not enough."""
    streams = [random.Random(seed) for seed, _ in requests]
    seeds = {seed: random.Random(seed) for seed, _ in requests}
    drawn: list[list[float]] = [[] for _ in requests]
    seats: dict[int, int] = {}
    for names in _timeline([tokens for _, tokens in requests], slots):
        seats = _seated(seats, names)
        for place, name in enumerate(names):
            seed = requests[name][0]
            stream = {
                "places": streams[place],
                "seats": streams[seats[name]],
                "common": streams[0],
                "seeds": seeds[seed],
                "anew": random.Random(seed),
            }[mode]
            drawn[name].append(stream.random())
    return drawn


exercises.add(
    "the-neighbours-die",
    title="The neighbour's die",
    kind="debug",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="A seed means something again once nothing that a neighbour does can move a draw.",
    check=Cases(
        reference=_draws,
        cases=[
            Case("one request", ([(1, 3)], 2)),
            Case("a short neighbour leaves", ([(3, 1), (4, 4)], 2)),
            Case("two requests, one slot", ([(1, 2), (2, 2)], 1)),
            Case("more requests than slots", ([(5, 2), (6, 1), (7, 3), (8, 2), (9, 1)], 2)),
            Case("two users with one seed", ([(7, 2), (7, 4), (1, 3)], 2)),
            Case("nobody", ([], 3)),
        ],
        slips=[
            Slip(
                lambda r, s: _draws_with(r, s, "seats"),
                "Whoever sits down in a used slot goes on with the stream, and so the seed, of the one before.",
            ),
            Slip(
                lambda r, s: _draws_with(r, s, "places"),
                "A stream still belongs to a place. When a neighbour leaves, those behind it move up to another.",
            ),
            Slip(
                lambda r, s: _draws_with(r, s, "seeds"),
                "Two requests with one seed share a stream. Each needs its own, seeded alike.",
            ),
            Slip(
                lambda r, s: _draws_with(r, s, "common"),
                "One die for all: each draw moves everybody's next one.",
            ),
            Slip(
                lambda r, s: _draws_with(r, s, "anew"),
                "A stream that is seeded anew for every token gives the same number each time.",
            ),
        ],
        tolerance=FP64,
    ),
    given="broken_draws",
)

# literature ---------------------------------------------------------------------------------------

ANSWERS, SLOTS = [40, 10, 10, 10, 20, 10, 10, 10, 40, 10, 10, 10], 4


def _ratio() -> float:
    return len(_timeline(ANSWERS, SLOTS, True)) / len(_timeline(ANSWERS, SLOTS))


exercises.add(
    "batching-claims",
    title="Four claims about batching",
    kind="literature",
    difficulty=3,
    importance=4,
    minutes=12,
    points=2,
    shows="What a claim about batching leaves out takes a minute to compute.",
    check=Statements(
        false="b",
        why={
            "a": "B rows meet each weight once: 2B operations for 2 bytes. With short contexts nothing else counts.",
            "b": "A full queue is not enough: your own factor is below two, and with equal answers it is 1.",
            "c": "When the caches are most of the bytes, twice the sequences are twice the bytes.",
            "d": "Each prompt is many rows by itself, and the arithmetic is busy already.",
        },
        number=Number(
            _ratio,
            slips=[
                Slip(
                    len(_timeline(ANSWERS, SLOTS, True)) / (sum(ANSWERS) / SLOTS),
                    "That divides the tokens evenly over the slots. Count the steps: at the end slots are empty.",
                ),
                Slip(
                    lambda got: abs(got * _ratio() - 1) < 0.005,
                    "Static over continuous, please: which of the two takes more steps?",
                ),
                Slip(
                    sum(ANSWERS) / (SLOTS * len(_timeline(ANSWERS, SLOTS, True))),
                    "That is the share of its slots that static batching uses.",
                ),
                Slip(
                    2.0,
                    "That takes 120 steps for static batching: the longest of the second four has 20 tokens, not 40.",
                ),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LLAMA, LONG, TPOT_MS = CONFIGS["llama-3-8b"], 8192, 25.0
PRICES = hourly("A100 80GB SXM", "H100 SXM", "H200 SXM")  # as the text states them


def _step(choice: dict[str, Any]) -> float:
    return cost.predict_decode(LLAMA, CHIPS[choice["card"]], LONG, choice["batch"]).seconds


def _full(choice: dict[str, Any]) -> float:
    held = cost.weight_storage(LLAMA, "bf16") + cost.kv_bytes(LLAMA, LONG, choice["batch"], "bf16")
    return 100 * held / CHIPS[choice["card"]].memory


def _price(choice: dict[str, Any]) -> float:
    return cost.cost_per_million_tokens(PRICES[choice["card"]], choice["batch"] / _step(choice))


exercises.add(
    "a-batch-in-time",
    title="A batch that is in time",
    kind="decide",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="The dearest card by the hour makes the cheapest tokens. Memory fills the H100; time stops the H200.",
    check=Decision(
        choices={"card": list(PRICES), "batch": range(1, 257)},
        constraints=[
            Constraint(
                "memory",
                _full,
                at_most=90,
                unit="%",
                slip="Weights and all caches must fit into 90 % of the card.",
            ),
            Constraint(
                "time per token",
                lambda c: 1e3 * _step(c),
                at_most=TPOT_MS,
                unit="ms",
                slip="The weights and every user's cache are read at each step. Fewer users, or more bandwidth.",
            ),
        ],
        cost=_price,
        unit="$ per million tokens",
        dearer="A larger batch, or another card, makes the same tokens cheaper and is still in time.",
    ),
)
