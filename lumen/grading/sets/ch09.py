"""Exercises of chapter 09: the plan of one step, a freeze in milliseconds, two faults of real engines, one claim, one
server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lumen import cost
from lumen.config import CONFIGS
from lumen.grading import (
    EXACT,
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Numbers,
    Statements,
)
from lumen.grading.kinds.slip import bends
from lumen.hardware import CHIPS, host_link, hourly

exercises = ExerciseSet(
    "09",
    "Scheduling",
    then="chapter 10, a server",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | one-step | The plan of one step | build | 4 | 5 | 30 | 5 |
    | the-freeze | A freeze, and the chunk that ends it | predict | 2 | 5 | 12 | 2 |
    | early-sample | A token too early | debug | 3 | 5 | 12 | 3 |
    | forgotten-answer | The answer that began again | debug | 3 | 5 | 15 | 3 |
    | chunk-claims | What chunks cost, according to the web | literature | 3 | 4 | 12 | 2 |
    | three-limits | Three limits, one server | decide | 3 | 5 | 15 | 3 |
    """,
)

# build --------------------------------------------------------------------------------------------

Row = tuple[str, int, int, int]  # name, total, computed, still to be sampled


def _plan(
    running: Sequence[Row],
    waiting: Sequence[Row],
    budget: int,
    slots: int,
    pool: int,
    free: int,
    size: int,
    mode: str = "",
) -> list[tuple[str, int]]:
    """The reference; `mode` bends it into the usual mistakes."""
    for name, total, computed, left in (*running, *waiting):
        need = total + left - 1 if mode != "fits the prompt" else total
        need += mode == "last token stored"
        need -= computed if mode == "hit at the door" else 0
        if need > pool * size and mode not in ("no door", "late"):
            raise ValueError(f"{name} needs more than the whole pool")
    aside = sum(total - computed == 1 for _, total, computed, _ in running)
    room = budget if mode == "in order" else budget - aside
    plan = []
    for name, total, computed, _ in running:
        gap = total - computed
        if gap == 1 and mode != "in order":
            plan.append((name, 1))
            continue
        count = min(gap, room)
        room -= count
        if count or mode == "zeros":
            plan.append((name, count))
    used = len(running)
    for name, total, computed, left in waiting:
        if mode == "late" and used < slots and room and total + left - 1 > pool * size:
            raise ValueError(f"{name} needs more than the whole pool")
        blocks = -(-total // size) - (0 if mode == "hit counted twice" else computed // size)
        if mode == "blocks for the chunk":
            blocks = -(-min(total, computed + room) // size) - computed // size
        if used == slots or (room == 0 and mode != "zeros"):
            break
        if blocks > free:
            if mode == "passes the head":
                continue
            break
        count = total if mode == "whole prompts" else min(total - computed, room)
        plan.append((name, count))
        room, used = room - min(count, room), used + 1
        free -= blocks if mode != "blocks stay free" else 0
    if mode == "answers first":
        ones = {name for name, total, computed, _ in running if total - computed == 1}
        plan.sort(key=lambda piece: piece[0] not in ones)
    return plan


def _drawn(seed: int) -> tuple[Any, ...]:
    """A random state in which everybody fits the pool."""
    dice = random.Random(seed)
    size, slots = dice.randint(1, 5), dice.randint(2, 6)

    def row(name: str, waits: bool) -> Row:
        total = dice.randint(1, 60)
        computed = dice.choice([0, 0, size * ((total - 1) // size)]) if waits else dice.randint(0, total - 1)
        return name, total, total - 1 if not waits and dice.random() < 0.5 else computed, dice.randint(1, 9)

    running = [row(f"r{i}", False) for i in range(dice.randint(0, slots))]
    waiting = [row(f"w{i}", True) for i in range(dice.randint(0, 4))]
    budget = slots + dice.choice([0, 1, 9, 100])
    return running, waiting, budget, slots, 80, dice.randint(0, 40), size


TWO = [("a", 41, 40, 9), ("b", 18, 17, 3)]


def _never(*waiting: Row, slots: int = 4, free: int = 30) -> Case:
    return Case(args=(TWO, list(waiting), 64, slots, 50, free, 4), raises=ValueError)


PLANS: dict[str, Any] = {
    "two answers, nobody waits": (TWO, [], 16, 4, 50, 20, 4),
    "two answers and a prompt longer than the budget": (TWO, [("c", 100, 0, 5)], 16, 4, 50, 30, 4),
    "a half-read prompt ranks before an answer": ([("c", 100, 28, 5), ("a", 41, 40, 9)], [], 16, 4, 50, 0, 4),
    "the budget is just enough for the answers": ([*TWO, ("c", 100, 28, 5)], [("d", 4, 0, 1)], 2, 4, 50, 9, 4),
    "the last chunk and a small prompt share the rest": (
        [*TWO, ("c", 100, 95, 5)], [("d", 30, 0, 1)], 16, 4, 50, 9, 4
    ),
    "the head of the queue does not fit, the next one would": (
        TWO, [("c", 33, 0, 5), ("d", 4, 0, 2)], 64, 4, 50, 8, 4
    ),
    "it fits to the last block": (TWO, [("c", 32, 0, 1), ("d", 1, 0, 2)], 64, 4, 50, 9, 4),
    "two fit alone, not both": (TWO, [("c", 20, 0, 5), ("d", 20, 0, 2)], 64, 4, 50, 8, 4),
    "one slot is left": (TWO, [("c", 5, 0, 5), ("d", 5, 0, 5)], 64, 3, 50, 30, 4),
    "all slots are taken": (TWO, [("c", 5, 0, 5)], 64, 2, 50, 30, 4),
    "a prefix hit of 24 tokens": ([], [("c", 30, 24, 5), ("d", 8, 0, 2)], 64, 4, 50, 4, 4),
    "a prompt of one token, blocks of 1": ([], [("c", 1, 0, 1), ("d", 3, 0, 1)], 3, 4, 4, 4, 1),
    "a long prompt has its blocks before its first chunk": ([], [("c", 100, 0, 5)], 16, 4, 50, 20, 4),
    "a prompt larger than the pool stands in the queue": _never(("c", 260, 0, 1)),
    "a prompt that fits, with an answer that will not": _never(("c", 190, 0, 12)),
    "one that will just fit": (TWO, [("c", 190, 0, 11)], 64, 4, 50, 48, 4),
    "a hit does not make room: it lies in the pool, too": _never(("c", 190, 24, 12), free=48),
    "one that can never run, behind a head that must wait": _never(("c", 33, 0, 5), ("d", 260, 0, 1), free=8),
    "one that can never run, and all slots are taken": _never(("d", 260, 0, 1), slots=2),
    **{f"drawn at random, number {seed}": _drawn(seed) for seed in range(40)},
}  # fmt: skip

NOT_THAT_PLAN = {
    "in order": "In order of rank alone, a prompt eats the token of an answer behind it.",
    "answers first": "Its token is set aside for an answer, its place in the plan is not: keep the order.",
    "zeros": "A request that gets no token has no place in the plan, and nobody is let in for nothing.",
    "passes the head": "Small requests pass the head for ever, and the large one starves. If the head "
    "must wait, all wait.",
    "whole prompts": "That is more than the budget leaves: the rest of the prompt comes in later steps.",
    "hit counted twice": "The blocks of the hit are there already. Only the missing ones come from the free ones.",
    "blocks stay free": "Whoever is let in takes blocks: the next one finds fewer.",
    "blocks for the chunk": "Let it in only with blocks for all that is known of it: a half-read prompt "
    "that gets stuck helps nobody.",
    "hit at the door": "The blocks of a hit are blocks of the pool: at its end it holds them, too.",
    "fits the prompt": "The prompt fits, its answer will not. Count what it holds at its end: total + left − 1.",
    "last token stored": "The last token is sampled and never fed, so it takes no position.",
    "late": "It is refused at the door, wherever it stands: here planning stops before it is reached.",
    "no door": "It can never run, and as the head of the queue it would stop everybody behind it.",
}

exercises.add(
    "one-step",
    shows="One rule serves answers, chunks, hits and returning requests, because it never asks which of "
    "them it sees.",
    check=Cases(
        reference=_plan,
        cases=PLANS,
        slips=bends(_plan, NOT_THAT_PLAN),
        tolerance=EXACT,
    ),
)

# predict ------------------------------------------------------------------------------------------

PARAMETERS, PEAK, BANDWIDTH = 8e9, 312e12, 2039e9
PER_TOKEN = 2 * PARAMETERS / PEAK
CHUNK = int(0.05 / PER_TOKEN) - 32

FREEZE = {
    "freeze": Number(
        1e3 * 6000 * PER_TOKEN,
        "ms",
        tolerance=0.01,
        slips={
            1e3 * 3000 * PER_TOKEN: "2N FLOPs a token: a parameter is multiplied and added.",
            1e3
            * 2
            * PARAMETERS
            / BANDWIDTH: "That is one reading of the weights. 6,000 tokens are far right of the ridge.",
        },
    ),
    "free": Number(
        PEAK / BANDWIDTH,
        "tokens",
        tolerance=0.01,
        slips={
            2 * PEAK / BANDWIDTH: "A token takes 2 FLOPs per parameter: a multiplication and an addition.",
            PEAK / BANDWIDTH / 2: "A parameter in bf16 has 2 bytes, and all of them are read.",
        },
    ),
    "chunk": Number(
        CHUNK, "tokens", tolerance=0.01, slips={CHUNK + 32: "The 32 answers are tokens of the step, too."}
    ),
    "steps": Number(
        -(-6000 // CHUNK),
        "steps",
        slips={
            6000 // CHUNK: "Round up: the last chunk is a step, however short.",
            1: "In one step it is the freeze that we want to be rid of.",
        },
    ),
}


exercises.add(
    "the-freeze",
    shows="Three divisions tell how long a prompt stops everybody, and how small its pieces must be.",
    check=Numbers(FREEZE),
)


# debug --------------------------------------------------------------------------------------------


def _sampled(work, requests, mode=""):
    names = []
    for name, start, count in work:
        prompt, output = requests[name]
        total, end = prompt + output, start + count
        last = {
            "one token": count == 1,
            "exactly the prompt": end == prompt or (count == 1 and end > prompt),
            "one too late": end > total,
            "one too early": end >= total - 1,
            "from inside": end == total and (output == 0 or start >= prompt),
            "everybody": True,
        }.get(mode, end == total)
        if last:
            names.append(name)
    return names


PIECES: dict[str, Any] = {
    "two answers": ([("b", 5, 1), ("a", 12, 1)], {"a": (10, 3), "b": (5, 1)}),
    "a prompt in one piece": ([("a", 0, 10)], {"a": (10, 0)}),
    "the first of three chunks": ([("a", 0, 4)], {"a": (10, 0)}),
    "the last chunk is one token": ([("a", 9, 1)], {"a": (10, 0)}),
    "a chunk of one token in the middle": ([("a", 4, 1)], {"a": (10, 0)}),
    "a prompt of one token": ([("a", 0, 1)], {"a": (1, 0)}),
    "preempted after 6 tokens, read again: a chunk that ends inside its answer": Case(
        args=([("a", 10, 3), ("c", 0, 4), ("b", 7, 1)], {"a": (10, 6), "b": (4, 4), "c": (9, 0)}),
        slip="This request had written 6 tokens. Until they are computed again, too, there is nothing new to sample.",
    ),
    "… a chunk that ends at the end of its prompt": ([("a", 0, 10), ("b", 7, 1)], {"a": (10, 6), "b": (4, 4)}),
    "… a chunk that leaves one token": ([("a", 10, 5)], {"a": (10, 6)}),
    "… a chunk of one token inside its answer": ([("a", 13, 1)], {"a": (10, 6)}),
    "… and the chunk that catches up": ([("a", 13, 3)], {"a": (10, 6)}),
    "… or all of it in one piece": ([("a", 0, 16)], {"a": (10, 6)}),
    "nobody": ([], {"a": (10, 6)}),
}  # fmt: skip

TOO_EARLY = {
    "from inside": "A chunk may begin in the prompt and end with the answer: only the end counts.",
    "one token": "A single token may be a chunk of a prompt, and a last chunk may be longer than one.",
    "exactly the prompt": "At the end of its prompt a preempted request has still to read its own answer.",
    "one too early": "One token is missing: its keys and values are needed before the next is sampled.",
    "one too late": "Computed equals total: that is the moment, not one step later.",
    "everybody": "Between the first chunk and the last there is nothing to sample.",
}

exercises.add(
    "early-sample",
    shows="One condition is right for answers, for prompts, and for everything between.",
    check=Cases(
        reference=_sampled,
        cases=PIECES,
        slips=bends(_sampled, TOO_EARLY),
        tolerance=EXACT,
    ),
    given="broken_sampled",
)


def _preempt(running, waiting, free, mode=""):
    running, waiting = list(running), list(waiting)
    worst = running.pop()
    back = {**worst, "computed": 0, "table": []}
    if mode == "forgets":
        back["output"] = []
    if mode == "keeps computed":
        back["computed"] = worst["computed"]
    if mode == "into the prompt":
        back["prompt"], back["output"] = worst["prompt"] + worst["output"], []
    if mode == "keeps table":
        back["table"] = list(worst["table"])
    if mode == "at the end":
        waiting.append(back)
    elif mode == "at the front":
        waiting.insert(0, back)
    elif mode == "behind the head":
        waiting.insert(bool(waiting and waiting[0]["rank"] < back["rank"]), back)
    elif mode == "nowhere" and all(other["rank"] < back["rank"] for other in waiting):
        pass
    else:
        at = next((i for i, other in enumerate(waiting) if other["rank"] > back["rank"]), len(waiting))
        waiting.insert(at, back)
    given_back = worst["table"][:-1] if mode == "leaks" else worst["table"]
    return running, waiting, [*free, *given_back]


def _request(rank: float, prompt: list[int], output: list[int], table: list[int]) -> dict[str, Any]:
    computed = len(prompt) + len(output) - 1 if table else 0
    return {"rank": rank, "prompt": prompt, "output": output, "computed": computed, "table": table}


FIRST = _request(1.0, [5], [0], [0])


def _any_order_of_free(result: Any) -> Any:
    """Which blocks are free counts, not in which order they are listed."""
    try:
        running, waiting, free = result
        return running, waiting, sorted(int(block) for block in free)
    except (TypeError, ValueError):
        return result


PREEMPTED: dict[str, Any] = {
    "younger requests wait": (
        [FIRST, _request(2.5, [8, 3], [9, 4], [1])], [_request(3.0, [1], [], []), _request(4.0, [1, 2], [], [])], []
    ),
    "nobody waits": ([_request(1.0, [5, 6], [7], [0]), _request(2.0, [8, 0, 3], [9, 4], [2, 1])], [], [3]),
    "two better ones wait, too": (
        [FIRST, _request(2.5, [8, 3], [9], [1])], [_request(rank, [1], [4, 4], []) for rank in (2.0, 2.2, 4.0)], [2]
    ),
    "all who wait are better": (
        [FIRST, _request(2.5, [8, 3], [9], [1])], [_request(rank, [1], [4], []) for rank in (2.0, 2.2)], [2]
    ),
    "the only one, half through its prompt": (
        [{**_request(1.0, [5, 6, 7, 8], [], [1, 0]), "computed": 2}], [], [2, 3]
    ),
    "blocks of large numbers, some are free already": (
        [_request(1.0, [5], [0], [11]), _request(3.0, [8, 3, 1], [9], [40, 7, 12])],
        [_request(5.0, [1], [], [])],
        [30, 2],
    ),
    "a preempted one is preempted again": ([_request(1.0, [5], [0, 0, 0], [3])], [_request(9.0, [1], [], [])], []),
}  # fmt: skip

FORGOTTEN = {
    "forgets": "The queue is right; the answer still begins again, and with a temperature it will be another one.",
    "at the end": "The answer is kept; but at the end of the queue everybody who comes later passes it.",
    "at the front": "In front of the queue it may pass a better rank, and will be preempted for it.",
    "behind the head": "More than one of those who wait may be better: look for the first that is not.",
    "nowhere": "Nobody who waits has a larger rank, and the request is lost: then it goes last.",
    "keeps computed": "Its blocks are gone, so nothing of it is computed: it would read other people's keys.",
    "into the prompt": "Then the answer's length starts at zero again, and penalties and stops forget "
    "it. Nothing has to move: total is prompt and output.",
    "leaks": "One of its blocks never comes back. All of them are free now.",
    "keeps table": "The blocks are free and its table still names them: soon two requests will share them.",
}

exercises.add(
    "forgotten-answer",
    shows="Preemption must go unnoticed, by the reader and by the queue.",
    check=Cases(
        reference=_preempt,
        cases=PREEMPTED,
        slips=bends(_preempt, FORGOTTEN),
        tolerance=EXACT,
        view=_any_order_of_free,
    ),
    given="broken_preempt",
)

# literature ---------------------------------------------------------------------------------------

exercises.add(
    "chunk-claims",
    shows="What a prompt pays again when it is cut, and how often.",
    check=Statements(
        false="b",
        why={
            "a": "The first chunk is read by each of the N − 1 later ones, the second by N − 2, and so "
            "on: N(N − 1)/2 in all.",
            "b": "Each pair of a query and an earlier key is computed once, however the prompt is cut. "
            "No FLOP is added.",
            "c": "That is the trade of this chapter: a small budget bounds the step, a large one takes "
            "fewer steps.",
            "d": "With its version 1 vLLM preempts by recomputing, and the manual says so.",
        },
        number=Number(
            7.5,
            "times the prompt's cache",
            tolerance=0.005,
            slips={
                8.5: "A chunk's own keys are fresh. Count those of the chunks before it.",
                8: "The last chunk is read by nobody: 0 + 1 + … + 15 chunks, not 0.5 · 16².",
                15: "That is how often the first chunk is read. The later ones are read less often.",
                120: "That is in chunks. A prompt has 16 of them.",
                6.25: "6.25 % is 1/16, the claim's number. Add up the chunks that each chunk reads again.",
            },
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LLAMA = CONFIGS["llama-3-8b"]
CARDS = ["A100 80GB SXM", "H100 SXM", "L4"]
WRITERS = [(2048, 1)] * 32


def _step(chip: str, held: int, count: int) -> float:
    pieces = WRITERS + ([(held, count)] if count else [])
    return cost.predict_mixed(LLAMA, CHIPS[chip], pieces, "bf16").seconds


def _steps(choice: dict[str, Any], length: int) -> list[float]:
    """Seconds of the steps in which `length` tokens are computed beside 32 answers."""
    chunk = choice["budget"] - len(WRITERS)
    return [_step(choice["chip"], start, min(chunk, length - start)) for start in range(0, length, chunk)]


def _return_ms(choice: dict[str, Any]) -> float:
    """Until a preempted request of 2,048 tokens writes again."""
    if choice["preemption"] == "recompute":
        return 1e3 * sum(_steps(choice, 2048))
    moved = 2048 * cost.kv_bytes_per_token(LLAMA, "bf16")
    return 1e3 * (moved / host_link(choice["chip"]).bandwidth + _step(choice["chip"], 0, 0))


exercises.add(
    "three-limits",
    shows="A token budget must be small enough for one limit and large enough for another, and a card "
    "decides if there is one.",
    check=Decision(
        choices={
            "chip": CARDS,
            "budget": [64, 128, 256, 512, 1024, 2048, 4096],
            "preemption": ["recompute", "swap"],
        },
        constraints=[
            Constraint(
                "longest gap",
                lambda choice: 1e3 * max(_steps(choice, 8192)),
                at_most=40,
                unit="ms",
                slip="The longest step is that of the last full chunk. A smaller budget shortens it, "
                "down to what 32 answers take alone.",
            ),
            Constraint(
                "TTFT",
                lambda choice: 1e3 * sum(_steps(choice, 8192)),
                at_most=600,
                unit="ms",
                slip="The prompt takes 8,192 / (budget − 32) steps, and each of them carries the 32 "
                "answers along: make them fewer.",
            ),
            Constraint(
                "return of a preempted request",
                _return_ms,
                at_most=50,
                unit="ms",
                slip="Computing 2,048 tokens again takes steps of its own. What would moving 268 MB over "
                "the bus take?",
            ),
        ],
        cost=lambda choice: hourly(choice["chip"])[choice["chip"]],
        unit="$ per hour",
        within=0.02,
        dearer="It works, but a cheaper card does, too, with the right budget and the right way to preempt.",
    ),
)
