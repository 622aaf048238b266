"""Answers to the exercises of chapter 01 that neither the solution nor a slip of the set gives."""

from lumen.grading.proof import Submissions
from tests.grading import loops

ANSWERS = {
    "loop": Submissions(
        right=[loops.loop_of_static],
        wrong=loops.OF_A_MODEL,
        lumen=["lumen.generate"],
    ),
    "three-faults": Submissions(
        right=[loops.mended_with_for],
        wrong=loops.OF_A_STEP,
        lumen=["lumen.generate"],
    ),
    "time-per-token": Submissions(
        right=[24.4],
        wrong=[(0.0244, "a factor 1,000"), (170.8, "smaller by a factor of about 7")],
        stubs=[lambda: ...],
    ),
    "prompt-in-answers": Submissions(right=[13.1, 13]),
    "in-print": Submissions(
        right=[({"b", "c"}, 5.45), ["CB", 5.45]],
        wrong=[
            (("ac", 5.45), "14 GB at 2 TB/s"),
            (("cd", 5.45), "5 tokens a second are 200 ms"),
        ],
        stubs=[(..., ...)],
    ),
    "chatbot": Submissions(
        right=[{"twice": "bandwidth", "batch": 150}],
        wrong=[
            ({"twice": "memory", "batch": 200}, "Fewer users, or more bandwidth"),
            ({"twice": "bandwidth", "batch": 250}, "2,500 tokens of cache"),
            ({"twice": "flops", "batch": 100}, "more users could share the read"),
        ],
        stubs=[{"twice": ..., "batch": 1}],
    ),
}
