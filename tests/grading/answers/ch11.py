"""Answers to the exercises of chapter 11 that neither the solution nor a slip of the set gives."""

import math

import numpy as np
import torch

from lumen.grading.proof import Submissions

RIGHT_BYTES = {"written out": 34.6, "in tiles": 17.3, "keys in a tile": 264}


def stream_by_logaddexp(pieces):
    """No largest score by name: logaddexp keeps it, and the output is moved towards each new value."""
    lse, out = -math.inf, 0.0
    for scores, values in pieces:
        for score, value in zip(scores.tolist(), values.clone(), strict=True):
            if score > -math.inf:
                new = float(np.logaddexp(lse, score))
                share = math.exp(score - new)
                out, lse = (1 - share) * out + share * value, new
    return out, lse


def stream_kept(pieces):
    """All pieces kept as views: their memory is another piece's by then."""
    scores, values = zip(*list(pieces), strict=True)
    s, v = torch.cat(scores), torch.cat(values)
    return s.softmax(0) @ v, float(s.logsumexp(0))


def stream_copied(pieces):
    scores, values = zip(*((s.clone(), v.clone()) for s, v in pieces), strict=True)
    s, v = torch.cat(scores), torch.cat(values)
    return s.softmax(0) @ v, float(s.logsumexp(0))


def stream_by_tiles(pieces):
    """Each piece its own softmax, averaged by length."""
    outs, count, lse = 0.0, 0, -math.inf
    for s, v in pieces:
        if len(s):
            outs, count = outs + len(s) * (s.softmax(0) @ v), count + len(s)
            lse = float(np.logaddexp(lse, float(s.logsumexp(0))))
    return outs / count, lse


def stream_in_two_passes(pieces):
    """The largest first; then nothing is left to sum up."""
    most, total, sums = -math.inf, 0.0, 0.0
    for s, _ in pieces:
        most = max([most, *s.tolist()])
    for s, v in pieces:
        weights = (s - most).exp()
        total, sums = total + weights.sum(), sums + weights @ v
    return sums / total, most + math.log(total)


def stream_skips_masks(pieces):
    """Skips a piece as soon as one of its scores is masked: where all pieces have one, 0.0 / 0.0."""
    total, sums, most = 0.0, 0.0, torch.tensor(-math.inf, dtype=torch.float64)
    for s, v in pieces:
        if len(s) and s.isfinite().all():
            larger = torch.maximum(most, s.max())
            weights, shrink = (s - larger).exp(), (most - larger).exp()
            total, sums, most = shrink * total + weights.sum(), shrink * sums + weights @ v, larger
    return sums / total, float(most + total.log())


def merge_by_softmax(outs, lses):
    lse = torch.tensor(lses, dtype=torch.float64)
    if not torch.isfinite(lse).any():
        return 0 * outs[0], float("-inf")
    return torch.einsum("n,nd->d", lse.softmax(0), torch.stack(outs)), lse.logsumexp(0)


def merge_finite_only(outs, lses):
    """Forgets what to do when all are empty."""
    some = [(o, s) for o, s in zip(outs, lses, strict=True) if s > -math.inf]
    return merge_by_softmax(*map(list, zip(*some, strict=True)))


def merge_forgets_the_log(outs, lses):
    """Zeros where nobody saw anything, and a finite log-sum-exp."""
    if max(lses) == -math.inf:
        return 0 * outs[0], 0.0
    return merge_by_softmax(outs, lses)


def merge_clamped(outs, lses):
    """No NaN any more, but -1e9 where -inf is wanted."""
    lse = torch.tensor(lses, dtype=torch.float64).clamp(min=-1e9)
    return lse.softmax(0) @ torch.stack(outs), float(lse.logsumexp(0))


def merge_seeded(outs, lses):
    torch.manual_seed(0)
    return merge_by_softmax(outs, lses)


def whole_rows(q, k, v, block):
    new, held = len(q), len(k)
    mask = torch.ones(new, held).tril(held - new).bool()
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask[None])[0]


def one_fault_left(q, k, v, block):
    """The positions are right, the weighted values do not shrink."""
    new, held = len(q), len(k)
    at = torch.arange(held - new, held)[:, None]
    most, total, sums = q.new_full((new, 1), -math.inf), q.new_zeros(new, 1), torch.zeros_like(q)
    for start in range(0, held, block):
        keys = torch.arange(start, min(start + block, held))
        scores = (q @ k[start : start + block].T / q.shape[1] ** 0.5).masked_fill(keys > at, -math.inf)
        larger = torch.maximum(most, scores.amax(1, keepdim=True))
        weights = (scores - larger).exp()
        total = total * (most - larger).exp() + weights.sum(1, keepdim=True)
        sums = sums + weights @ v[start : start + block]
        most = larger
    return sums / total


def splits(users, context):
    """From the other end: the fewest splits that are as fast as any."""
    best = {}
    for n in (32, 24, 16, 12, 8, 6, 4, 3, 2, 1):
        if context < 256 * n:
            continue
        waves = (users * 8 * n + 131) // 132
        best[n] = waves * (2 + (context + n - 1) // n * 512 / 25_400) + (3 if n > 1 else 0)
    return {"splits": min(best, key=lambda n: (round(best[n], 6), n))}


def fill_the_cores(users, context):
    """As many as there are idle cores, whatever the keys."""
    want = max(1, 132 // (users * 8))
    return {"splits": max(n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= want)}


ANSWERS = {
    "bytes-in-tiles": Submissions(
        right=[RIGHT_BYTES, {"written out": 34.63, "in tiles": 17.31, "keys in a tile": 264.0}],
        wrong=[
            ({**RIGHT_BYTES, "in tiles": 8.72}, "Keys *and* values"),
            ({**RIGHT_BYTES, "written out": 34.6e9}, "10"),
            ({"written out": 34.6}, "a dict with the keys"),
        ],
        stubs=[{**RIGHT_BYTES, "in tiles": ...}],
    ),
    "softmax-of-a-stream": Submissions(
        right=[stream_by_logaddexp, stream_copied],
        wrong=[
            (stream_kept, "is used again"),
            (stream_by_tiles, "three pieces of one"),
            (stream_in_two_passes, "empty after one pass"),
            (stream_skips_masks, "some scores of each piece masked"),
        ],
        no_lumen="lumen's own takes queries and keys, not scores.",
    ),
    "merge-the-splits": Submissions(
        right=[merge_by_softmax],
        wrong=[
            (merge_finite_only, "no exception"),
            (merge_forgets_the_log, "0 at [1]"),
            (merge_clamped, "-1e+09 at [1]"),
            (merge_seeded, "torch's global random generator"),
        ],
        lumen=["lumen.attention.split.merge"],
    ),
    "right-in-one-tile": Submissions(
        right=[whole_rows],
        wrong=[(one_fault_left, "have to shrink")],
        lumen=["lumen.attention.core.attention", "lumen.attention.flash.flash_attention"],
    ),
    "flash-claims": Submissions(
        right=[("acd", 33 / 64), ("d, c, a", 0.516)],
        wrong=[
            (("ac", 0.516), "3 statements are wrong"),
            (("acb", 0.516), "Each score is computed once"),
            (("acd", 0.5), "on the diagonal"),
            (("acd", 0.484), "leaves the diagonal out"),
            ("acd", "the choice alone"),
        ],
    ),
    "how-many-splits": Submissions(
        right=[splits],
        wrong=[
            (lambda users, context: {"splits": 1}, "cost 66"),
            (lambda users, context: {"splits": 32}, "cost 48.28"),
            (fill_the_cores, "fewer splits"),
            (lambda users, context: {"splits": 5}, "one of"),
            ({"splits": 4}, "a function of users and context"),
        ],
        stubs=[lambda users, context: {"splits": ...}],
    ),
}
