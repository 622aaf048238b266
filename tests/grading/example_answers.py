"""Right and wrong answers to the example set: the form of `tests/grading/answers/chNN.py`."""

import numpy as np
import torch

from lumen.grading.proof import Submissions
from tests.grading import example_set as given


def repeat_by_expand(x, groups):
    batch, heads, length, size = x.shape
    return (
        x[:, :, None].expand(batch, heads, groups, length, size).reshape(batch, heads * groups, length, size)
    )


def repeat_by_index(x, groups):
    return x[:, torch.arange(x.shape[1] * groups) // groups]


def repeat_in_place(x, groups):
    out = x.repeat_interleave(groups, 1)
    x.zero_()
    return out


def repeat_without_return(x, groups):
    x.repeat_interleave(groups, 1)


def repeat_typo(x, groups):
    return x.repeat_interleaved(groups, 1)


def index_of_stop(tokens, stops):
    ends = [i for i, token in enumerate(tokens) if stops >= {token}]
    return tokens[: ends[0]] if ends else list(tokens)


def walk_to_stop(tokens, stops):
    kept = []
    for token in tokens:
        if token in stops:
            return kept
        kept += [token]
    return kept


def never_ends(tokens, stops):
    i = 0
    while tokens[i] not in stops:
        i = i + 0
    return tokens[:i]


def falls_off_the_end(tokens, stops):
    i = 0
    while tokens[i] not in stops:
        i += 1
    return tokens[:i]


def loop(model, prompt, n):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        tokens.append(model(tokens))
    return tokens[len(prompt) :]


def loop_recursive(model, prompt, n):
    return [] if n == 0 else [token := model(prompt), *loop_recursive(model, [*prompt, token], n - 1)]


def loop_one_too_many(model, prompt, n):
    out = loop(model, prompt, n)
    model(prompt + out)
    return out


def loop_until_equal(model, prompt, n):
    tokens = list(prompt)
    while True:
        tokens.append(model(tokens))
        if len(tokens) == len(prompt) + n:
            return tokens[len(prompt) :]


def loop_returns_prompt(model, prompt, n):
    return prompt + loop(model, prompt, n)


def loop_of_theirs(model, prompt, n):
    from lumen.pretend import generate as theirs

    return theirs(model, prompt, n)


class LoopOnTheirCache(given.pretend.Full):
    def __call__(self, model, prompt, n):
        return loop(model, prompt, n)


ANSWERS = {
    "kv-bytes": Submissions(
        right=[46080, lambda: 2 * 30 * 3 * 64 * 4.0, np.int64(46080), torch.tensor(46080)],
        wrong=[
            (23040, "factor 2 is missing"),
            (lambda: 138240, "query heads"),
            (46080 * 5, "smaller by a factor of about 5"),
            (45, "One layer is not enough"),
            (46080 * 1000, "factor 1,000"),
            (46080 * 8, "bits and bytes"),
            (46081, "slightly smaller"),
            (float("nan"), "a finite number"),
            (-46080, "a positive number"),
            ("46080", "'46080'"),
            (True, "gave: True"),
            (lambda: 1 // 0, "ZeroDivisionError"),
        ],
        stubs=[lambda: ..., lambda: None],
    ),
    "repeat-kv": Submissions(
        right=[repeat_by_expand, repeat_by_index, lambda x, groups: repeat_by_index(x, groups).numpy()],
        wrong=[
            (lambda x, groups: x.repeat(1, groups, 1, 1), "tiling"),
            (lambda x, groups: x, "shape (2, 3, 5, 4)"),
            (lambda x, groups: repeat_by_index(x, groups).double(), "dtype float64"),
            (lambda x, groups: repeat_by_index(x, groups) / 0, "Infinity comes from"),
            (lambda x, groups: repeat_by_index(x, groups) * float("nan"), "gave: NaN"),
            (lambda x, groups: repeat_by_index(x, groups).tolist(), "[[[["),
            (repeat_in_place, "argument 1 changed"),
            (repeat_without_return, "`return` missing"),
            (repeat_typo, "repeat_interleaved(groups, 1)`"),
            (46080, "without calling it"),
        ],
        lumen=["lumen.pretend.repeat_kv"],
    ),
    "stop-ids": Submissions(
        right=[index_of_stop, walk_to_stop],
        wrong=[
            (lambda tokens, stops: [t for t in tokens if t not in stops], "belong to nobody"),
            (lambda tokens, stops: walk_to_stop(tokens, stops - {0}), "Is id 0 taken"),
            (never_ends, "Which condition ends the loop"),
            (falls_off_the_end, "IndexError"),
            (lambda tokens, stops: walk_to_stop(tokens, set(stops)), "[5] and no exception"),
            (lambda tokens, stops: walk_to_stop(tokens, stops)[:-1], "gave: []"),
        ],
        stubs=[given.broken_until_stop],
        lumen=[given.pretend.until_stop],
    ),
    "sparse-bytes": Submissions(
        right=[("b", 56.25), lambda: ("B", 56.3)],
        wrong=[
            (("a", 56.25), "half of them are zero"),
            (("c", 56.25), "the peak doubles"),
            (("b", 62.5), "8-bit weights"),
            (("b", 50.0), "a larger number in %"),
            ("b", "the choice alone"),
            (("d", 56.25), "one of a, b, c"),
        ],
        stubs=[(..., ...), lambda: ("b", ...)],
    ),
    "batch-size": Submissions(
        right=[{"batch": 256, "cache": "fp8"}, lambda: {"cache": "fp8", "batch": 250}],
        wrong=[
            ({"batch": 256, "cache": "bf16"}, "memory FAILS: 144, at most 82 GB"),
            ({"batch": 64, "cache": "bf16"}, "half of the memory is idle"),
            ({"batch": 300, "cache": "fp8"}, "one of 1 to 260"),
            ({"batch": 64, "cache": "int4"}, "one of 'bf16', 'fp8'"),
            ({"batch": 64}, "the fields batch\n"),
            ([256, "fp8"], "a dict with the fields"),
        ],
        stubs=[{"batch": ..., "cache": "fp8"}],
    ),
    "loop": Submissions(
        right=[loop, loop_recursive],
        wrong=[
            (loop_one_too_many, "needs no pass of its own"),
            (loop_until_equal, "More than 20 calls"),
            (loop_returns_prompt, "gave: 4 at [0]"),
            (loop_of_theirs, "a call of `lumen.pretend.generate`"),
            (LoopOnTheirCache(), "lumen.pretend.Full"),
            (lambda model, prompt, n: loop(model, prompt, n) if n else [0], "gave: [0]"),
        ],
        lumen=[given.pretend.generate],
    ),
}
