"""Exercises of chapter 07: pooling, the size of an index, a faulty look-up, break-even, one claim, one budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumen.grading import (
    FP32,
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
from lumen.semantic.evaluate import at_mixture

exercises = ExerciseSet(
    "07",
    "Semantic caches",
    then="chapter 08, batching",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | mean-pool | One vector for a text | build | 2 | 5 | 15 | 3 |
    | index-memory | A million questions | predict | 2 | 3 | 10 | 2 |
    | wrong-neighbour | Somebody else's answer | debug | 3 | 5 | 15 | 3 |
    | worth-a-look | Is it worth the look? | predict | 1 | 4 | 10 | 2 |
    | other-traffic | Ninety-seven percent, elsewhere | literature | 3 | 5 | 15 | 2 |
    | false-hit-budget | A budget for wrong answers | decide | 3 | 5 | 15 | 3 |
    """,
)


@exercises.checks(
    "mean-pool",
    shows="A text's vector is the mean over its real tokens, of length 1; padding must leave no trace in it.",
)
def _mean_pool(answer: Any, probe: Probe) -> None:
    tokens = np.random.default_rng(7).standard_normal((3, 5, 4)).astype(np.float32)
    even = tokens / np.linalg.norm(tokens, axis=2, keepdims=True)
    ones = np.ones((3, 5), np.int64)
    right = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    mixed = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0]])
    loud = np.where(mixed[:, :, None] == 1, tokens, np.float32(1e4))
    for name, values, mask, slip in (
        ("three texts, tokens of length 1", even, ones, "one token, or the largest values, were taken"),
        ("three texts, no padding", tokens, ones, "each token was scaled before the mean"),
        ("padding on the right", tokens, right, "padding was averaged in"),
        ("padding on the left", loud[:1], mixed[:1], "tokens were taken to come first"),
        ("padding left, right, on both sides", loud, mixed, "one row's padding was taken for that of all"),
        ("a mask of booleans", tokens, mixed == 1, "booleans were not read as 0 and 1"),
        ("one text of one token", tokens[:1, :1], ones[:1, :1], "the mean of one token is that token"),
    ):
        with probe.case(name):
            got = probe.call(answer, values, mask)
            shape = len(values), values.shape[2]
            gave, dropped = f"shape {np.shape(got)}", "the axis of the texts was dropped"
            probe.that(np.shape(got) == shape, gave=gave, wanted=f"shape {shape}", slip=dropped)
            got, keep = np.asarray(got, np.float64), mask.astype(bool)
            lengths = np.linalg.norm(got, axis=1)
            fine = bool(np.allclose(lengths, 1, atol=1e-5))
            gave = f"lengths {lengths.round(6).tolist()}"
            probe.that(fine, gave=gave, wanted="lengths of 1", slip="the mean was not scaled to length 1")
            sums = np.stack([row[kept].sum(0) for row, kept in zip(values.astype(float), keep, strict=True)])
            wanted = sums / np.linalg.norm(sums, axis=1, keepdims=True)
            probe.equal(got, wanted, tolerance=FP32, slip=slip)
    for row in (0, 2):
        with probe.case(f"text {row + 1} of 3 is padding only"):
            slip = "not every text was looked at, and the mean of nothing is NaN"
            probe.refuses(ValueError, answer, tokens, ones * (np.arange(3) != row)[:, None], slip=slip)


COUNT, WIDTH, PARTS, CODES = 1_000_000, 384, 48, 256
CODEBOOKS = CODES * WIDTH * 4

exercises.add(
    "index-memory",
    shows="Some bytes of an index are paid for each vector and some once: with a million the latter are under 1 %.",
    check=Numbers(
        {
            "flat": Number(
                COUNT * WIDTH * 4,
                unit="bytes",
                slips=[
                    Slip(COUNT * WIDTH, "numbers were counted, and each takes 4 bytes in fp32"),
                    Slip(COUNT * WIDTH * 2, "fp32 was taken for 2 bytes"),
                    Slip(WIDTH * 4, "that is one vector"),
                ],
            ),
            "pq": Number(
                COUNT * PARTS,
                unit="bytes",
                slips=[
                    Slip(COUNT * WIDTH, "a byte was kept for each number, not for each part"),
                    Slip(COUNT * PARTS * 4, "a part is the number of one of 256 codes: one byte, no float"),
                    Slip(PARTS, "that is one vector's codes"),
                    Slip(COUNT * PARTS + CODEBOOKS, "the codebooks are asked for by themselves"),
                ],
            ),
            "codebooks": Number(
                CODEBOOKS,
                unit="bytes",
                slips=[
                    Slip(CODES * WIDTH, "numbers were counted, and each takes 4 bytes in fp32"),
                    Slip(
                        PARTS * CODEBOOKS, "a code is a stretch of 384 / 48 = 8 numbers, not a whole vector"
                    ),
                    Slip(CODEBOOKS // PARTS, "there are 256 codes for each of the 48 parts"),
                ],
            ),
            "ratio": Number(
                COUNT * WIDTH * 4 / (COUNT * PARTS + CODEBOOKS),
                unit="×",
                slips=[
                    Slip(32.0, "the codebooks, which the text counts in, were left out"),
                    Slip(8.0, "counts were compared, not bytes"),
                ],
            ),
        }
    ),
)


def _nearest(
    question: list[float], kept: list[tuple[str, list[float], str]], tenant: str, threshold: float
) -> Any:
    mine = [(np.array(v) / np.linalg.norm(v), text) for owner, v, text in kept if owner == tenant]
    scored = [(float(v @ np.array(question) / np.linalg.norm(question)), text) for v, text in mine]
    best = max(scored, key=lambda pair: pair[0], default=(-2.0, None))
    return best[1] if best[0] >= threshold - 1e-9 else None


ANN = [("ann", [1.0, 0.0], "east"), ("ann", [0.0, 1.0], "north"), ("ann", [-1.0, 0.0], "west")]

exercises.add(
    "wrong-neighbour",
    shows="A look-up can be wrong in several ways at once and still answer well in a demo.",
    given="broken",
    forbidden=("lumen.semantic.VectorIndex", "lumen.semantic.SemanticCache"),
    check=Cases(
        reference=_nearest,
        cases=[
            Case(
                "the nearest of three",
                ([1.0, 0.1], ANN, "ann", 0.8),
                slip="a small cosine was taken for near",
            ),
            Case("nothing near enough", ([0.5, -0.5], ANN, "ann", 0.8), slip="the threshold was not asked"),
            Case("nothing stored", ([1.0, 0.0], [], "ann", 0.8), slip="an empty cache is not a miss"),
            Case("another tenant's answer", ([1.0, 0.0], ANN, "ben", 0.8), slip="Ben is served Ann's answer"),
            Case(
                "another tenant's answer is nearer",
                ([1.0, 0.0], [("ann", [1.0, 0.0], "hers"), ("ben", [1.0, 0.2], "mine")], "ben", 0.8),
                slip="other tenants were left out after the nearest was chosen, not before",
            ),
            Case(
                "a long vector at 45 degrees",
                ([1.0, 0.0], [("ann", [90.0, 90.0], "long"), ("ann", [0.5, 0.0], "right")], "ann", 0.8),
                slip="inner products were compared, and a long vector has a large one with everything",
            ),
            Case(
                "a long question at 45 degrees",
                ([9.0, 9.0], [("ann", [1.0, 0.0], "east")], "ann", 0.8),
                slip="the inner product was not divided by the length of the question",
            ),
            Case(
                "three near enough, the nearest in the middle",
                (
                    [0.0, 0.0, 2.0],
                    [
                        ("ann", [0.3, 0, 1.0], "near"),
                        ("ann", [0.1, 0, 1], "nearest"),
                        ("ann", [0, 0.2, 1], "next"),
                    ],
                    "ann",
                    0.8,
                ),
                slip="one that is near enough was taken, not the nearest, or only two numbers of a vector were read",
            ),
            Case(
                "straight behind",
                ([1.0, 0.0], [("ann", [-2.0, 0.0], "west")], "ann", 0.8),
                slip="the sign of the cosine was dropped",
            ),
            Case(
                "exactly at the threshold",
                ([3.0, 4.0], [("ann", [6.0, 8.0], "same")], "ann", 1.0),
                slip="a cosine that equals the threshold was not a hit",
            ),
            Case(
                "a cosine and a threshold of -1",
                ([1.0, 0.0], [("ann", [-2.0, 0.0], "west")], "ann", -1.0),
                slip="the search starts at 0 or at -1, and a cosine of -1 reaches a threshold of -1",
            ),
            Case(
                "an empty answer",
                ([1.0, 0.0], [("ann", [1.0, 0.0], "")], "ann", 0.8),
                slip="an empty text was taken for no answer",
            ),
        ],
    ),
)

LOOK, ANSWER, WORD, RATE = 40.0, 800.0, 50.0, 0.2  # ms, ms, ms, share of look-ups that hit

exercises.add(
    "worth-a-look",
    shows="Every request pays the look-up, so short answers need high hit rates, and hits save less than they seem to.",
    check=Numbers(
        {
            "break-even": Number(
                100 * LOOK / ANSWER,
                unit="%",
                slips=[
                    Slip(LOOK / ANSWER, "the share was not turned into percent"),
                    Slip(
                        100 * LOOK / (LOOK + ANSWER),
                        "a hit saves the whole answer; the look-up it pays like a miss",
                    ),
                ],
            ),
            "mean": Number(
                LOOK + (1 - RATE) * ANSWER,
                unit="ms",
                slips=[
                    Slip((1 - RATE) * ANSWER, "the look-ups were left out"),
                    Slip(LOOK + RATE * ANSWER, "hits and misses were exchanged: 20 % are hits"),
                    Slip((1 - RATE) * (LOOK + ANSWER), "hits pay for the look-up, too"),
                    Slip(RATE * LOOK + (1 - RATE) * ANSWER, "misses pay for the look-up, too"),
                ],
            ),
            "faster": Number(
                ANSWER / (LOOK + (1 - RATE) * ANSWER),
                unit="×",
                slips=[
                    Slip(1.25, "the look-ups were left out"),
                    Slip(1 - RATE + LOOK / ANSWER, "the quotient stands upside down"),
                ],
            ),
            "one word": Number(
                100 * LOOK / WORD,
                unit="%",
                slips=[
                    Slip(LOOK / WORD, "the share was not turned into percent"),
                    Slip(100 * WORD / LOOK, "the quotient stands upside down"),
                ],
            ),
        }
    ),
)

RIGHT_HITS, THERE, HERE = (
    0.97,
    0.9,
    0.5,
)  # precision in the abstract of arXiv 2411.05276; supposed shares of paraphrases
ODDS = RIGHT_HITS / (1 - RIGHT_HITS) * (1 - THERE) / THERE  # recall / false hits

exercises.add(
    "other-traffic",
    shows="Recall and false hits go where the cache goes; precision depends on the mixture that the users bring.",
    check=Statements(
        false="d",
        why={
            "a": "100 − 68.8. Only hits spare the model.",
            "b": "3 wrong ones in 100 hits are one in 33.",
            "c": "The look-up happens before anybody knows whether it will hit.",
            "d": "Recall and false hits may well carry over. Precision depends on how many near pairs are traps.",
        },
        number=Number(
            100 * at_mixture(ODDS, 1.0, HERE),
            unit="%",
            slips=[
                Slip(97.0, "the mixture was left as it was"),
                Slip(
                    53.9,
                    "97 was scaled by 0.5 / 0.9, and a precision does not scale like that: count both sorts",
                ),
                Slip(94.7, "the right hits were scaled by 0.5 / 0.9, and the wrong ones left as they were"),
                Slip(86.6, "the wrong hits were scaled by 0.5 / 0.1, and the right ones left as they were"),
                Slip(100 - 100 * at_mixture(ODDS, 1.0, HERE), "those are the wrong ones"),
            ],
        ),
    ),
)

# (may hit, cosine, refused by the second look); the notebook shows the same list
PAIRS = [
    (True, 0.729, False), (True, 0.759, False), (True, 0.785, False), (True, 0.804, False),
    (True, 0.851, True), (True, 0.854, False), (True, 0.875, False), (True, 0.886, True),
    (True, 0.897, True), (True, 0.904, False), (True, 0.908, False), (True, 0.929, True),
    (True, 0.943, True), (True, 0.960, False),
    (False, 0.035, True), (False, 0.040, True), (False, 0.130, True), (False, 0.156, True),
    (False, 0.202, True), (False, 0.524, True), (False, 0.606, True), (False, 0.692, True),
    (False, 0.722, True), (False, 0.742, False), (False, 0.782, True), (False, 0.805, True),
    (False, 0.816, True), (False, 0.836, False), (False, 0.853, True), (False, 0.882, True),
    (False, 0.914, True), (False, 0.922, True), (False, 0.956, True), (False, 0.992, True),
    (False, 0.995, True), (False, 0.996, True),
]  # fmt: skip


def _share(choice: dict[str, Any], same: bool) -> float:
    """Of the pairs that may hit, or must miss, how many do hit."""
    group = [(cosine, refused) for may, cosine, refused in PAIRS if may is same]
    hits = [c >= choice["threshold"] and not (refused and choice["second look"]) for c, refused in group]
    return sum(hits) / len(group)


def _wrong(choice: dict[str, Any]) -> float:
    """Percent of the hits that are wrong, at nine paraphrases to one trap; 0 when nothing hits."""
    wrong = 0.1 * _share(choice, False)
    share = 100 * wrong / (0.9 * _share(choice, True) + wrong) if wrong else 0.0
    return round(share, 9)  # 7 paraphrases to 1 trap are 1 % exactly, which keeps to the budget


exercises.add(
    "false-hit-budget",
    shows="A budget decides about threshold and second look together, at a mixture that somebody has counted.",
    check=Decision(
        choices={"threshold": [cut / 100 for cut in range(70, 101)], "second look": [True, False]},
        constraints=[
            Constraint(
                "wrong answers among the hits, at nine paraphrases to one trap",
                _wrong,
                at_most=1.0,
                unit="%",
                slip="the shares were not weighed by the mixture, or a trap above the threshold was overlooked",
            ),
        ],
        cost=lambda choice: 100 * (1 - _share(choice, True)),
        unit="answers in 100 written again",
        within=0.001,
        dearer="Within the budget, but paraphrases are sent away that could have hit.",
    ),
)
