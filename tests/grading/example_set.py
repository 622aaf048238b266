"""A set with one exercise of each kind, for the tests of the framework and as a pattern for authors."""

import sys
import types

import torch

from lumen.grading import (
    EXACT,
    Case,
    Cases,
    Constraint,
    CountedCalls,
    Decision,
    ExerciseSet,
    Number,
    Slip,
    Statements,
)

# Stands for a module of lumen, so that these tests hold whatever lumen calls its own functions.
pretend = types.ModuleType("lumen.pretend")
sys.modules["lumen.pretend"] = pretend
exec(
    """
import torch
def repeat_kv(x, groups):
    return x.repeat_interleave(groups, 1)
def until_stop(tokens, stops):
    kept = []
    for token in tokens:
        if token in stops:
            break
        kept.append(token)
    return kept
def generate(model, prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(model(tokens))
    return tokens[len(prompt):]
class Cache:
    def attend(self): return "lumen"
class Full(Cache): pass
""",
    vars(pretend),
)

exercises = ExerciseSet("99", "An example", then="chapter 100")


# predict ------------------------------------------------------------------------------------------
exercises.add(
    "kv-bytes",
    title="The price of one token",
    kind="predict",
    difficulty=1,
    importance=5,
    minutes=4,
    points=1,
    shows="One token of context costs the same whatever the batch.",
    check=Number(
        lambda: 2 * 30 * 3 * 64 * 4,
        unit="bytes",
        exact=True,
        slips=[
            Slip(30 * 3 * 64 * 4, "Keys and values are two tensors: a factor 2 is missing."),
            Slip(2 * 30 * 9 * 64 * 4, "Count KV heads (3), not query heads (9)."),
            Slip(
                lambda got: 0 < got < 1000, "One layer is not enough: all 30 keep their own keys and values."
            ),
        ],
    ),
)


# build --------------------------------------------------------------------------------------------
def _heads(batch, kv_heads, length, size):
    generator = torch.Generator().manual_seed(7)
    return lambda groups: (
        lambda: (torch.randn(batch, kv_heads, length, size, generator=generator.manual_seed(7)), groups)
    )


exercises.add(
    "repeat-kv",
    title="Nine query heads on three KV heads",
    kind="build",
    difficulty=2,
    importance=3,
    minutes=10,
    points=2,
    shows="Query heads 0 to 2 share KV head 0, so each head is repeated in place.",
    check=Cases(
        reference=pretend.repeat_kv,
        cases=lambda: [
            Case("9 query heads, 3 KV heads", _heads(2, 3, 5, 4)(3)),
            Case("one KV head", _heads(1, 1, 2, 4)(4)),
            Case("as many KV heads as query heads", _heads(1, 4, 1, 4)(1)),
        ],
        slips=[
            Slip(
                lambda x, groups: x.repeat(1, groups, 1, 1),
                "That is tiling: head 1 would read KV head 1, not 0.",
            )
        ],
        tolerance=EXACT,
    ),
)


# debug --------------------------------------------------------------------------------------------
def broken_until_stop(tokens, stops):
    """Tokens up to the first stop id."""
    kept = []
    for token in tokens:
        if token and token in stops:
            break
        kept.append(token)
    return kept


exercises.add(
    "stop-ids",
    title="The stop id that never stops",
    kind="debug",
    difficulty=2,
    importance=4,
    minutes=8,
    points=2,
    shows="Id 0 is a token like any other.",
    forbidden=("lumen.pretend.until_stop",),
    check=Cases(
        reference=pretend.until_stop,
        cases=[
            Case("stop id 2", ([5, 2, 7], {0, 2})),
            Case("stop id 0", ([5, 0, 7], {0, 2}), slip="Is id 0 taken for 'nothing' somewhere?"),
            Case("no stop id", ([5, 6], {0, 2})),
            Case("a stop id that is not a number", ([5], "2"), raises=TypeError),
        ],
        broken=broken_until_stop,
        slips=[
            Slip(
                lambda tokens, stops: [t for t in tokens if t not in stops],
                "Tokens after the stop id belong to nobody.",
            )
        ],
    ),
    steps=2000,
)


# literature ---------------------------------------------------------------------------------------
exercises.add(
    "sparse-bytes",
    title="Half the weights, half the bytes?",
    kind="literature",
    difficulty=2,
    importance=2,
    minutes=8,
    points=1,
    shows="Metadata is memory too.",
    check=Statements(
        false="b",
        why={
            "a": "2:4 keeps two of every four weights, so half of them are zero.",
            "b": "Each kept value needs a 2-bit index: 56.25 % of the 16-bit size.",
            "c": "The sparse tensor cores skip the zeros, so the peak doubles.",
        },
        number=Number(
            56.25, unit="%", tolerance=0.001, slips=[Slip(62.5, "62.5 % is the share for 8-bit weights.")]
        ),
    ),
)


# decide -------------------------------------------------------------------------------------------
def _memory(config):
    return 16 + config["batch"] * 0.5 * (1 if config["cache"] == "bf16" else 0.5)


exercises.add(
    "batch-size",
    title="The largest batch that fits",
    kind="decide",
    difficulty=3,
    importance=4,
    minutes=12,
    points=3,
    shows="Past the memory limit, fewer cache bits buy a larger batch.",
    check=Decision(
        choices={"batch": range(1, 261), "cache": ["bf16", "fp8"]},
        constraints=[
            Constraint(
                "memory",
                _memory,
                at_most=82,
                unit="GB",
                slip="The cache grows with the batch; the weights do not.",
            ),
            Constraint(
                "TPOT",
                lambda c: 5 + c["batch"] / 10,
                at_most=30.6,
                unit="ms",
                slip="Each step reads every cache.",
            ),
        ],
        cost=lambda c: 100 / c["batch"],
        unit="$ per million tokens",
        within=0.05,
        dearer="It fits, and half of the memory is idle: a larger batch shares the weights.",
    ),
)


# build, with a check of its own and a counter -----------------------------------------------------
@exercises.checks(
    "loop",
    title="The loop",
    kind="build",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="n tokens take n passes: the first comes from the prefill.",
    forbidden=(pretend.generate,),
    allow=("lumen.pretend.Cache",),
    steps=5000,
)
def _loop(answer, probe):
    for name, prompt, n in [("three tokens", [4, 1], 3), ("no tokens", [4], 0), ("prompt with id 0", [0], 2)]:
        model = CountedCalls(lambda tokens: (sum(tokens) + len(tokens)) % 7, limit=20)
        with probe.case(name):
            got = probe.call(answer, model, list(prompt), n)
            probe.equal(got, pretend.generate(lambda tokens: (sum(tokens) + len(tokens)) % 7, prompt, n))
            probe.at_most("forward passes", model.calls, n, "The last token needs no pass of its own.")
