"""Exercises of chapter 01: the loop, its time per token, and what it costs to get either wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lumen import cost
from lumen.grading import Constraint, Decision, ExerciseSet, Number, Slip, Statements
from lumen.grading.kinds.loop import Llama, Loop, Script
from lumen.hardware import CHIPS, hourly

exercises = ExerciseSet(
    "01",
    "Prefill and decode",
    then="chapter 02, the roofline",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | loop | The loop, with an end | build | 3 | 5 | 20 | 4 |
    | time-per-token | A model you have not got, on a chip you have not got | predict | 1 | 5 | 5 | 1 |
    | prompt-in-answers | What 2,048 tokens of prompt are worth | predict | 2 | 4 | 8 | 2 |
    | in-print | Four sentences to recount | literature | 3 | 3 | 12 | 2 |
    | three-faults | A loop with three faults | debug | 3 | 4 | 15 | 3 |
    | chatbot | Twice the FLOP/s, twice the bandwidth or twice the memory? | decide | 3 | 5 | 15 | 3 |
    """,
)

exercises.add(
    "loop",
    shows="n tokens take n passes, the first of them the prefill, and id 0 is a token like any other.",
    check=Loop(Llama),
    forbidden=("lumen.generate",),
)


# predict ------------------------------------------------------------------------------------------
L4, THIRTEEN = CHIPS["L4"], 13e9


def time_per_token_ms(bits: float = 4.5) -> float:
    """Milliseconds that an L4 takes to read 13 billion weights of `bits` bits."""
    return 1e3 / cost.bandwidth_bound(THIRTEEN * bits / 8, L4)


exercises.add(
    "time-per-token",
    shows="Bytes over bandwidth bounds every decoder's speed, before anything is installed.",
    check=Number(
        time_per_token_ms,
        unit="ms",
        tolerance=0.01,
        slips=[
            Slip(time_per_token_ms(4), "The scales are read too: 4.5 bits a weight."),
            Slip(time_per_token_ms(16), "That is 16 bits a weight; the task says 4.5."),
            Slip(
                time_per_token_ms(36),
                "Bandwidth is in bytes, so count the weights in bytes too: 8 bits each.",
            ),
            Slip(1e3 / time_per_token_ms(), "That is tokens per second. The time per token is its inverse."),
            Slip(
                1e3 * cost.approx_token_flops(THIRTEEN) / L4.peak("bf16"),
                "That is the arithmetic, 2N over peak. Is it what the step waits for?",
            ),
        ],
    ),
)

A100 = replace(CHIPS["A100 80GB SXM"], bandwidth=2.0e12)  # rounded, as in the text of the exercise
PREFILL, STEP = cost.approx_prefill_flops(7e9, 2048) / A100.peak("bf16"), 1 / cost.bandwidth_bound(14e9, A100)

exercises.add(
    "prompt-in-answers",
    shows="One number of the chip turns tokens of prompt into tokens of answer, for 7B and for 700B.",
    check=Number(
        PREFILL / STEP,
        unit="tokens of answer",
        tolerance=0.01,
        slips=[
            Slip(156.0, "That is the reverse: tokens of prompt that one token of answer is worth."),
            Slip(
                2048.0,
                "A token out would cost as much as a token in. Which of the two reads the weights alone?",
            ),
            Slip(PREFILL / STEP / 2, "A multiply-add is two operations: 2N per token."),
            Slip(PREFILL / STEP * 2, "Two bytes a weight: a decode step reads 14 GB."),
            Slip(1e3 * PREFILL, "That is the prefill in milliseconds. Divide it by the time per token."),
        ],
    ),
)


# literature ---------------------------------------------------------------------------------------
exercises.add(
    "in-print",
    shows="Two sentences that were printed do not survive a recount; the ratio in one of them does.",
    check=Statements(
        false="bc",
        why={
            "a": "A 7B model in 16 bits is 14 GB, and 14 GB at 2 TB/s are 7.0 ms.",
            "b": "312 T and 14 G both count operations: 156 T multiply-adds a second, 7 G a token. The ratio survives.",
            "c": "The first token arrives with TTFT, so n tokens leave n − 1 gaps.",
            "d": "Ranges turn round when inverted: 5 tokens a second are 200 ms each, 10 are 100 ms.",
        },
        number=Number(
            cost.end_to_end(0.5, 0.050, 100),
            unit="s",
            slips=[
                Slip(5.5, "100 tokens have 99 gaps, since the first one came with TTFT."),
                Slip(5.0, "The wait for the first token is missing, and one gap is too many."),
                Slip(4.95, "Those are the gaps. The wait for the first token comes on top."),
            ],
        ),
    ),
)


# debug --------------------------------------------------------------------------------------------
exercises.add(
    "three-faults",
    shows="A test that compares the tokens of ordinary answers meets none of these three faults.",
    check=Loop(Script),
    given="broken",
    forbidden=("lumen.generate",),
)


# decide -------------------------------------------------------------------------------------------
PARAMETERS, CACHE, PROMPT, ANSWER = 8e9, 131_072, 2000, 500  # as in the text of the exercise
PRICE = hourly("H100 SXM")["H100 SXM"]


def _rate(config: dict[str, Any], what: str, plain: float) -> float:
    return plain * (2 if config["twice"] == what else 1)


def _step_ms(config: dict[str, Any]) -> float:
    """The chapter's two bounds: what is read over the bandwidth, what is multiplied over the peak."""
    read = 2 * PARAMETERS + config["batch"] * (PROMPT + ANSWER / 2) * CACHE
    arithmetic = 2 * PARAMETERS * config["batch"] / _rate(config, "flops", 989e12)
    return 1e3 * max(read / _rate(config, "bandwidth", 3.35e12), arithmetic)


def _memory(config: dict[str, Any]) -> float:
    held = 2 * PARAMETERS + config["batch"] * (PROMPT + ANSWER) * CACHE
    return 100 * held / _rate(config, "memory", 80e9)


def _dollars(config: dict[str, Any]) -> float:
    """Per million tokens of answer: a request takes its prefill, and a share of every step."""
    prefill = cost.approx_prefill_flops(PARAMETERS, PROMPT) / _rate(config, "flops", 989e12)
    seconds = prefill + ANSWER * _step_ms(config) / 1e3 / config["batch"]
    return cost.cost_per_million_tokens(PRICE, ANSWER / seconds)


exercises.add(
    "chatbot",
    shows="Which of a chip's three numbers this chatbot's bill follows.",
    check=Decision(
        choices={"twice": ["flops", "bandwidth", "memory"], "batch": range(1, 513)},
        constraints=[
            Constraint(
                "TPOT",
                _step_ms,
                at_most=15.0,
                unit="ms",
                slip="A step reads the weights once and every user's cache. Fewer users, or more bandwidth?",
            ),
            Constraint(
                "memory",
                _memory,
                at_most=100.0,
                unit="%",
                slip="The weights, and 2,500 tokens of cache for every user, have to fit.",
            ),
        ],
        cost=_dollars,
        unit="$ per million tokens",
        within=0.05,
        dearer="Every limit holds, but more users could share the read of the weights, here or on another chip.",
    ),
)
