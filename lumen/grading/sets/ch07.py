"""Exercises of chapter 07: pooling, the size of an index, a faulty look-up, break-even, one claim, one budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumen.grading import FP32, Constraint, Decision, ExerciseSet, Number, Numbers, Probe, Slip, Statements

exercises = ExerciseSet("07", "Semantic caches", then="chapter 08, batching")


# build --------------------------------------------------------------------------------------------


@exercises.checks(
    "mean-pool",
    title="One vector for a text",
    kind="build",
    difficulty=2,
    importance=5,
    minutes=15,
    points=3,
    shows="A text's vector is the mean over its real tokens, of length 1; padding must leave no trace in it.",
    steps=200_000,
)
def _mean_pool(answer: Any, probe: Probe) -> None:
    random = np.random.default_rng(7)
    tokens = random.standard_normal((3, 5, 4)).astype(np.float32)

    def wanted(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        values = values.astype(np.float64)
        sums = np.stack([row[keep.astype(bool)].sum(0) for row, keep in zip(values, mask, strict=True)])
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    def same(values: np.ndarray, mask: np.ndarray, slip: str) -> None:
        given = values.copy(), mask.copy()
        got = probe.call(answer, values, mask)
        shape = getattr(got, "shape", None)
        rows = "One row for each text: keep the first axis, for a single text too."
        good = shape == (len(values), values.shape[2])
        probe.that(good, gave=f"shape {shape}", wanted=f"shape {(len(values), values.shape[2])}", slip=rows)
        lengths = np.linalg.norm(np.asarray(got, dtype=np.float64), axis=1)
        long = "Scale each vector to length 1, so that the inner product of two texts is their cosine."
        probe.that(
            bool(np.allclose(lengths, 1, atol=1e-5)),
            gave=f"lengths {lengths.round(3).tolist()}",
            wanted="lengths of 1",
            slip=long,
        )
        probe.equal(np.asarray(got, dtype=np.float64), wanted(*given), tolerance=FP32, slip=slip)
        kept = np.array_equal(values, given[0]) and np.array_equal(mask, given[1])
        probe.that(kept, gave="tokens or mask were changed", wanted="inputs left as they are")

    with probe.case("three texts of five tokens, no padding"):
        same(
            tokens,
            np.ones((3, 5), np.int64),
            "Take the mean over the tokens as they are, then its length: not one token, not the largest values.",
        )
    with probe.case("padding on the right"):
        mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
        same(tokens, mask, "Padding was averaged in. Multiply by the mask before you sum.")
    with probe.case("padding on the left, with large values in it"):
        mask = np.array([[0, 0, 1, 1, 1]])
        loud = tokens[:1].copy()
        loud[:, :2] = 1e4
        same(loud, mask, "The mask says where the tokens are, and they need not come first.")
    with probe.case("one text of one token"):
        same(tokens[:1, :1], np.ones((1, 1), np.int64), "The mean of one token is that token.")
    with probe.case("a mask of booleans"):
        same(tokens[:1], np.array([[True, False, True, True, False]]), "Booleans are zeros and ones here.")
    with probe.case("a text of padding only"):
        slip = "The mean of nothing is no vector: raise a ValueError, before a NaN goes into an index."
        probe.refuses(ValueError, answer, tokens[:2], np.array([[1, 1, 0, 0, 0], [0] * 5]), slip=slip)


# predict ------------------------------------------------------------------------------------------

COUNT, WIDTH, PARTS, CODES = 1_000_000, 384, 48, 256
CODEBOOKS = CODES * WIDTH * 4
MEMORY = {
    "flat": Number(
        COUNT * WIDTH * 4,
        unit="bytes",
        slips=[
            Slip(COUNT * WIDTH, "Those are numbers. Each takes 4 bytes in fp32."),
            Slip(COUNT * WIDTH * 2, "fp32 has 32 bits, which are 4 bytes."),
            Slip(WIDTH * 4, "That is one vector. There are a million."),
        ],
    ),
    "pq": Number(
        COUNT * PARTS,
        unit="bytes",
        slips=[
            Slip(COUNT * WIDTH, "One byte for each part, not for each number."),
            Slip(COUNT * PARTS * 4, "A part is the number of one of 256 codes: one byte, not a float."),
            Slip(PARTS, "That is one vector's codes. There are a million."),
        ],
    ),
    "codebooks": Number(
        CODEBOOKS,
        unit="bytes",
        slips=[
            Slip(CODES * WIDTH, "Those are numbers. Each takes 4 bytes in fp32."),
            Slip(
                PARTS * CODES * WIDTH * 4, "A code is a stretch of 384 / 48 = 8 numbers, not a whole vector."
            ),
            Slip(CODES * WIDTH * 4 // PARTS, "There are 256 codes for each of the 48 parts."),
        ],
    ),
    "ratio": Number(
        COUNT * WIDTH * 4 / (COUNT * PARTS + CODEBOOKS),
        unit="×",
        tolerance=0.001,
        slips=[Slip(32.0, "The codebooks take room too."), Slip(8.0, "Compare bytes, not counts.")],
    ),
}


exercises.add(
    "index-memory",
    title="A million questions",
    kind="predict",
    difficulty=2,
    importance=3,
    minutes=10,
    points=2,
    shows="Some bytes of an index are paid for each vector and some once; at a million vectors only the former count.",
    check=Numbers(MEMORY),
)


# debug --------------------------------------------------------------------------------------------


@exercises.checks(
    "wrong-neighbour",
    title="Somebody else's answer",
    kind="debug",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="A look-up can be wrong in several ways at once and still answer well in a demo.",
    forbidden=("lumen.semantic.VectorIndex", "lumen.semantic.SemanticCache"),
    steps=200_000,
)
def _wrong_neighbour(answer: Any, probe: Probe) -> None:
    def gives(name: str, wanted: Any, slip: str, *arguments: Any) -> None:
        with probe.case(name):
            got = probe.call(answer, *arguments)
            probe.that(got == wanted and type(got) is type(wanted), gave=got, wanted=wanted, slip=slip)

    kept = [("ann", [1.0, 0.0], "east"), ("ann", [0.0, 1.0], "north"), ("ann", [-1.0, 0.0], "west")]
    gives(
        "the nearest of three",
        "east",
        "Near is a large cosine and a small distance. Which of the two do you keep?",
        [1.0, 0.1],
        kept,
        "ann",
        0.8,
    )
    gives("nothing near enough", None, "", [0.5, -0.5], kept, "ann", 0.8)
    gives("nothing stored", None, "An empty cache is a miss.", [1.0, 0.0], [], "ann", 0.8)
    gives("another tenant's answer", None, "Ben is served Ann's answer.", [1.0, 0.0], kept, "ben", 0.8)
    gives(
        "another tenant's answer is nearer",
        "mine",
        "Leave other tenants out before you look for the nearest, not after.",
        [1.0, 0.0],
        [("ann", [1.0, 0.0], "hers"), ("ben", [1.0, 0.2], "mine")],
        "ben",
        0.8,
    )
    gives(
        "a long vector at 45 degrees",
        "right",
        "A long vector has a large inner product with everything. Divide by both lengths.",
        [1.0, 0.0],
        [("ann", [90.0, 90.0], "long"), ("ann", [0.5, 0.0], "right")],
        "ann",
        0.8,
    )
    gives(
        "exactly at the threshold",
        "same",
        "A cosine that equals the threshold is a hit.",
        [3.0, 4.0],
        [("ann", [6.0, 8.0], "same")],
        "ann",
        1.0,
    )
    gives(
        "threshold -1",
        "away",
        "Start below every cosine: they go down to -1.",
        [1.0, 0.0],
        [("ann", [-0.6, 0.8], "away")],
        "ann",
        -1.0,
    )
    gives(
        "an empty answer",
        "",
        "An empty text is an answer: ask `is None`, not whether it is true.",
        [1.0, 0.0],
        [("ann", [1.0, 0.0], "")],
        "ann",
        0.8,
    )


# predict ------------------------------------------------------------------------------------------

LOOK, ANSWER, WORD, RATE = 20.0, 2500.0, 50.0, 0.2  # ms, ms, ms, share of look-ups that hit
WORTH = {
    "break-even": Number(
        100 * LOOK / ANSWER,
        unit="%",
        tolerance=1e-6,
        slips=[
            Slip(LOOK / ANSWER, "As a share. In percent, please."),
            Slip(
                lambda got: abs(got - 100 * LOOK / (LOOK + ANSWER)) < 1e-3,
                "The look-up is paid in both cases: compare it with the answer alone.",
            ),
        ],
    ),
    "mean": Number(
        LOOK + (1 - RATE) * ANSWER,
        unit="ms",
        tolerance=1e-6,
        slips=[
            Slip(RATE * LOOK + (1 - RATE) * ANSWER, "A miss has paid for its look-up as well."),
            Slip((1 - RATE) * ANSWER, "And the look-ups?"),
            Slip(LOOK + RATE * ANSWER, "20 % are hits; the others are written."),
        ],
    ),
    "faster": Number(
        ANSWER / (LOOK + (1 - RATE) * ANSWER),
        unit="×",
        tolerance=1e-3,
        slips=[Slip(1.25, "The look-ups are not free."), Slip(5.0, "Only one request in five is a hit.")],
    ),
    "one word": Number(
        100 * LOOK / WORD,
        unit="%",
        tolerance=1e-6,
        slips=[Slip(LOOK / WORD, "As a share. In percent, please."), Slip(250.0, "The other way round.")],
    ),
}


exercises.add(
    "worth-a-look",
    title="Is it worth the look?",
    kind="predict",
    difficulty=1,
    importance=4,
    minutes=10,
    points=2,
    shows="Every request pays the look-up, so short answers need high hit rates, and hits save less than they seem to.",
    check=Numbers(WORTH),
)


# literature ---------------------------------------------------------------------------------------

CUT, RIGHT_HITS = 68.8, 97.0  # percent, from the abstract of arXiv 2411.05276

exercises.add(
    "cuts-calls",
    title="Four claims about saved calls",
    kind="literature",
    difficulty=2,
    importance=5,
    minutes=10,
    points=2,
    shows="A rate means nothing without the things that it was counted on.",
    check=Statements(
        false="d",
        why={
            "a": "100 − 68.8. Only hits spare the model.",
            "b": "3 wrong ones in 100 hits are one in 33.",
            "c": "The look-up happens before anybody knows whether it will hit.",
            "d": "A negation often has a higher cosine than a paraphrase. It passes at 0.8 and at 0.9.",
        },
        number=Number(
            CUT * (100 - RIGHT_HITS) / 100,
            unit="%",
            tolerance=0.002,
            slips=[
                Slip(3.0, "Of the hits. Asked is the share of all requests."),
                Slip(0.02064, "In percent, please."),
                Slip(CUT * RIGHT_HITS / 100, "Those are the right ones."),
                Slip(31.2, "Those reach the model."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

# (may hit, cosine, refused by the second check); the notebook shows the same list
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
GRID = [cut / 100 for cut in range(70, 101)]


def _hits(choice: dict[str, Any], same: bool) -> int:
    return sum(
        cosine >= choice["threshold"] and not (refused and choice["second check"])
        for may, cosine, refused in PAIRS
        if may is same
    )


def _false_hits(choice: dict[str, Any]) -> float:
    """Percent of the pairs that must miss."""
    return 100 * _hits(choice, False) / sum(not may for may, _, _ in PAIRS)


def _written_again(choice: dict[str, Any]) -> float:
    """Answers in 100 paraphrases that are written although they are there."""
    total = sum(may for may, _, _ in PAIRS)
    return 100 * (total - _hits(choice, True)) / total


exercises.add(
    "false-hit-budget",
    title="A budget for wrong answers",
    kind="decide",
    difficulty=2,
    importance=5,
    minutes=15,
    points=3,
    shows="A budget for wrong hits decides about threshold and check together, and few pairs make it a rough one.",
    check=Decision(
        choices={"threshold": GRID, "second check": [True, False]},
        constraints=[
            Constraint(
                "false hits among the pairs that must miss",
                _false_hits,
                at_most=5.0,
                unit="%",
                slip="Too many get another question's answer. Which are at or above the threshold and not refused?",
            ),
        ],
        cost=_written_again,
        unit="answers in 100 written again",
        within=0.001,
        dearer="Within the budget, but paraphrases are sent away that could have hit.",
    ),
)
