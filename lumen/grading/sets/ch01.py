"""Exercises of chapter 01: the loop, its time per token, and what it costs to get either wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from lumen.cost import (
    approx_prefill_flops,
    approx_token_flops,
    bandwidth_bound,
    cost_per_million_tokens,
    end_to_end,
    kv_bytes,
    predict_decode,
    predict_prefill,
    weight_storage,
)
from lumen.grading import (
    Constraint,
    CountedCalls,
    CountedModel,
    Decision,
    ExerciseSet,
    Number,
    Probe,
    Slip,
    Statements,
)
from lumen.hardware import CHIPS, Chip
from lumen.models.config import CONFIGS

exercises = ExerciseSet("01", "Prefill and decode", then="chapter 02, the roofline")


# build: the loop ----------------------------------------------------------------------------------
def _model(zero: int | None = None) -> Any:
    """A small random decoder in fp64 with 9 query and 3 KV heads; token `zero` and token 0 change their names.

    Renaming is how a case gets the id 0 exactly where it wants it: whatever the model says, it says it in
    another alphabet.
    """
    import torch

    from lumen.models import Llama, ModelConfig

    config = ModelConfig("tiny", 23, 2, 72, 9, 3, 8, 50, 64)
    model = Llama(config)
    noise = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weights in model.parameters():
            mean = 1.0 if weights.dim() == 1 else 0.0
            weights.copy_(torch.normal(mean, 0.3, weights.shape, generator=noise))
        if zero is not None:
            rows = list(range(config.vocab_size))
            rows[0], rows[zero] = zero, 0
            model.embed.weight.copy_(model.embed.weight[rows].clone())
    return model.double().eval().requires_grad_(False)


def _greedy(model: Any, prompt: list[int], n: int) -> list[int]:
    """What the model says next, `n` times, without a cache and without an end."""
    import torch

    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


PASS_SLIP = "The last token needs no pass of its own: nobody asks what comes after it."
TWICE_SLIP = (
    "The cache holds the earlier tokens already. Given again, they stand in it twice: give it what is new."
)
ROW_SLIP = (
    "The tokens are right, but some went through the model twice: with a cache each pass gets what is new."
)


@exercises.checks(
    "loop",
    title="The loop, with an end",
    kind="build",
    difficulty=3,
    importance=5,
    minutes=20,
    points=4,
    shows="n tokens take n passes, the first of them the prefill, and id 0 is a token like any other.",
    forbidden=("lumen.generate",),
    steps=20_000,
)
def _loop(answer: Any, probe: Probe) -> None:
    prompt = [7, 3, 12, 5, 9]
    said = _greedy(_model(), prompt, 8)
    renamed = [
        0 if t == said[2] else said[2] if t == 0 else t for t in prompt
    ]  # here token 2 of the answer is 0
    cases: tuple[tuple[str, list[int], int, set[int], int | None], ...] = (
        ("five tokens of prompt, six of answer", prompt, 6, set(), None),
        ("a prompt of one token", [4], 3, set(), None),
        ("one token of answer", prompt, 1, {22}, None),
        ("no token at all, n = 0", prompt, 0, {1}, None),
        ("a stop id comes up", prompt, 8, {said[3]}, None),
        ("the first token is a stop id", prompt, 8, {said[0]}, None),
        ("id 0 comes up, and is no stop id", renamed, 6, {22} - set(said[:6]), said[2]),
        ("id 0 is the stop id", renamed, 8, {0}, said[2]),
        ("the prompt holds a stop id", [prompt[0], 22, *prompt[2:]], 2, {22}, None),
    )
    for name, tokens, n, stop_ids, zero in cases:
        model = CountedModel(_model(zero), limit=n + 4)
        free = _greedy(_model(zero), tokens, n)
        end = next((i for i, t in enumerate(free) if t in stop_ids), None)
        want, passes = (free, n) if end is None else (free[:end], end + 1)
        slip = ""
        if zero is not None:
            slip = "Is id 0 taken for 'nothing' somewhere? Compare with `in`, never with the token's truth."
        with probe.case(name):
            got = probe.call(answer, model, list(tokens), n, set(stop_ids))
            if isinstance(got, (list, tuple)) and list(got) == [*tokens, *want]:
                slip = "Return the answer alone, without the prompt."
            elif end is not None and isinstance(got, (list, tuple)) and list(got) == free[: end + 1]:
                slip = "The stop id ends the answer and is not part of it."
            most = len(tokens) + passes - 1 if passes else 0
            answered = list(got) if isinstance(got, (list, tuple)) else []
            if any(hasattr(token, "shape") for token in answered):
                slip = "The tokens are tensors, and a tensor is never `in` a set of numbers: take `int(...)` of each."
            elif passes and model.rows > most and answered != want:
                slip = slip or TWICE_SLIP
            probe.equal(got, want, slip=slip)
            probe.at_most("forward passes", model.passes, passes, PASS_SLIP)
            probe.at_most("rows through the model", model.rows, most, ROW_SLIP)


# predict: time per token --------------------------------------------------------------------------
L4 = CHIPS["L4"]
THIRTEEN = 13e9


def time_per_token_ms(bits: float = 4.5) -> float:
    """Milliseconds that an L4 takes to read 13 billion weights of `bits` bits."""
    return 1e3 / bandwidth_bound(THIRTEEN * bits / 8, L4)


exercises.add(
    "time-per-token",
    title="A model you have not got, on a chip you have not got",
    kind="predict",
    difficulty=1,
    importance=5,
    minutes=5,
    points=1,
    shows="Bytes over bandwidth bounds every decoder's speed, before anything is installed.",
    check=Number(
        time_per_token_ms,
        unit="ms",
        tolerance=0.02,
        slips=[
            Slip(
                lambda got: abs(got - time_per_token_ms(4)) < 0.2,
                "The scales are read too: 4.5 bits a weight.",
            ),
            Slip(
                lambda got: abs(got - time_per_token_ms(16)) < 0.9,
                "That is 16 bits a weight; the task says 4.5.",
            ),
            Slip(
                lambda got: abs(got - time_per_token_ms(36)) < 2,
                "Bandwidth is in bytes, so count the weights in bytes too: 8 bits each.",
            ),
            Slip(
                lambda got: abs(got - 1e3 / time_per_token_ms()) < 0.5,
                "That is tokens per second. The time per token is its inverse.",
            ),
            Slip(
                lambda got: abs(got - 1e3 * approx_token_flops(THIRTEEN) / L4.peak("bf16")) < 0.01,
                "That is the arithmetic, 2N over peak. Is it what the step waits for?",
            ),
        ],
    ),
)


# predict: what a prompt is worth ------------------------------------------------------------------
A100 = replace(CHIPS["A100 80GB SXM"], bandwidth=2.0e12)  # rounded, as in the text of the exercise
SEVEN, TWO_BYTES = 7e9, 2


def prompt_in_answers() -> float:
    """Answer tokens that take as long as the prefill of 2,048: (2NP / peak) / (bN / BW)."""
    return approx_prefill_flops(SEVEN, 2048) / A100.peak("bf16") * bandwidth_bound(SEVEN * TWO_BYTES, A100)


exercises.add(
    "prompt-in-answers",
    title="What 2,048 tokens of prompt are worth",
    kind="predict",
    difficulty=2,
    importance=4,
    minutes=8,
    points=2,
    shows="One number of the chip turns tokens of prompt into tokens of answer, for 7B and for 700B.",
    check=Number(
        prompt_in_answers,
        unit="tokens of answer",
        tolerance=0.03,
        slips=[
            Slip(156.0, "That is the reverse: tokens of prompt that one token of answer is worth."),
            Slip(
                2048.0,
                "A token out would cost as much as a token in. Which of the two reads the weights alone?",
            ),
            Slip(lambda got: 6.4 < got < 6.8, "A multiply-add is two operations: 2N per token."),
            Slip(lambda got: 25.5 < got < 27.0, "Two bytes a weight: a decode step reads 14 GB."),
            Slip(
                lambda got: 89 < got < 95,
                "That is the prefill in milliseconds. Divide it by the time per token.",
            ),
        ],
    ),
)


# literature ---------------------------------------------------------------------------------------
exercises.add(
    "in-print",
    title="Four sentences from print",
    kind="literature",
    difficulty=3,
    importance=3,
    minutes=12,
    points=2,
    shows="Two of four circulating sentences do not survive a recount; the ratio in one of them does.",
    check=Statements(
        false="bc",
        why={
            "a": "A 7B model in 16 bits is 14 GB, and 14 GB at 2 TB/s are 7.0 ms.",
            "b": "312 T and 14 G both count operations: 156 T multiply-adds a second, 7 G a token. The ratio survives.",
            "c": "The first token arrives with TTFT, so n tokens leave n − 1 gaps.",
            "d": "Ranges turn round when inverted: 5 tokens a second are 200 ms each, 10 are 100 ms.",
        },
        number=Number(
            lambda: end_to_end(0.5, 0.050, 100),
            unit="s",
            tolerance=1e-4,
            slips=[
                Slip(5.5, "100 tokens have 99 gaps, since the first one came with TTFT."),
                Slip(5.0, "The wait for the first token is missing, and one gap is too many."),
                Slip(4.95, "Those are the gaps. The wait for the first token comes on top."),
            ],
        ),
    ),
)


# debug --------------------------------------------------------------------------------------------
def mended_generate(
    step: Callable[[list[int]], int], prompt: list[int], n: int, stop_ids: Collection[int]
) -> list[int]:
    """The reference: at most n tokens, up to a stop id. `step(tokens)` is one forward pass: the next token."""
    answer: list[int] = []
    while len(answer) < n:
        token = step([*prompt, *answer])
        if token in stop_ids:
            break
        answer.append(token)
    return answer


@exercises.checks(
    "three-faults",
    title="A loop with three faults",
    kind="debug",
    difficulty=3,
    importance=4,
    minutes=15,
    points=3,
    shows="Three faults that were printed or shipped, and that no test of ordinary lengths and ids meets.",
    forbidden=("lumen.generate",),
    steps=5_000,
)
def _three_faults(answer: Any, probe: Probe) -> None:
    script = [5, 0, 8, 0, 2, 6, 1]
    zero = "Token 0 is false in Python. What does `if token and …` do when the stop id is 0?"
    cases: tuple[tuple[str, list[int], int, set[int], str], ...] = (
        ("four tokens, no stop id", [9, 9], 4, {7}, ""),
        ("one token", [9], 1, set(), ""),
        ("n = 0", [9, 4], 0, {2}, "The test for the length comes after a token is appended: 0 is never met."),
        ("stop id 2", [9], 7, {2}, ""),
        ("stop id 0", [9], 7, {2, 0}, zero),
        ("id 0 is an ordinary token", [0], 4, {2}, "Here 0 is no stop id, and belongs to the answer."),
        ("the first token is the stop id", [9], 3, {5}, "Nothing was said, so the answer is empty."),
    )
    for name, prompt, n, stop_ids, slip in cases:

        def say(tokens: list[int], held: int = len(prompt)) -> int:
            return script[len(tokens) - held]

        with probe.case(name):
            step = CountedCalls(say, limit=len(script))
            want = mended_generate(say, prompt, n, stop_ids)
            got = probe.call(answer, step, list(prompt), n, set(stop_ids))
            probe.equal(got, want, slip=slip)
            stopped = len(want) < n
            probe.at_most("forward passes", step.calls, len(want) + stopped, PASS_SLIP)


# decide -------------------------------------------------------------------------------------------
PROMPT, ANSWER = 500, 300
CONTEXT = PROMPT + ANSWER // 2


LLAMA = CONFIGS["llama-3-8b"]


def _chip(config: dict[str, Any]) -> Chip:
    """An H100 with one of its two rates doubled."""
    chip = CHIPS["H100 SXM"]
    if config["twice"] == "bandwidth":
        return replace(chip, bandwidth=2 * chip.bandwidth)
    return replace(chip, flops={dtype: 2 * rate for dtype, rate in chip.flops.items()})


def _step_ms(config: dict[str, Any]) -> float:
    """TPOT in bf16, at the mean context of an answer."""
    return 1e3 * predict_decode(LLAMA, _chip(config), CONTEXT, config["batch"], "bf16").seconds


def _ttft_ms(config: dict[str, Any]) -> float:
    return 1e3 * predict_prefill(LLAMA, _chip(config), PROMPT, 1, "bf16").seconds


def _memory_gb(config: dict[str, Any]) -> float:
    return (weight_storage(LLAMA, "bf16") + kv_bytes(LLAMA, PROMPT + ANSWER, config["batch"], "bf16")) / 1e9


def _dollars(config: dict[str, Any]) -> float:
    """Per million tokens of answer while the batch is full; both chips rent for the price of an H100."""
    price = CHIPS["H100 SXM"].price_per_hour or 0.0
    return cost_per_million_tokens(price, 1e3 * config["batch"] / _step_ms(config))


exercises.add(
    "chatbot",
    title="Twice the FLOP/s or twice the bandwidth?",
    kind="decide",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="Which of a chip's two rates a chatbot's bill follows, and why the other one hardly matters.",
    check=Decision(
        choices={"twice": ["flops", "bandwidth"], "batch": range(1, 513)},
        constraints=[
            Constraint(
                "TPOT",
                _step_ms,
                at_most=5.0,
                unit="ms",
                slip="A step reads the weights once and every user's cache. Fewer users, or more bandwidth?",
            ),
            Constraint("TTFT", _ttft_ms, at_most=50.0, unit="ms", slip="2NP over peak."),
            Constraint("memory", _memory_gb, at_most=80.0, unit="GB", slip="Weights, and 800 tokens a user."),
        ],
        cost=_dollars,
        unit="$ per million tokens",
        within=0.05,
        dearer="Every limit holds, but more users could share the read of the weights, here or on the other chip.",
    ),
)
