"""Answers to the exercises of chapter 07 that neither the solution nor a slip of the set gives."""

import math

import numpy as np

from lumen.grading.proof import Submissions

# One vector for a text ----------------------------------------------------------------------------


def pooled(tokens, mask):
    if not mask.any(axis=1).all():
        raise ValueError("padding only")
    sums = (tokens * mask[:, :, None]).sum(axis=1)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def pooled_in_a_loop(tokens, mask):
    rows = []
    for vectors, keep in zip(tokens, mask, strict=True):
        real = [vector for vector, kept in zip(vectors, keep, strict=True) if kept]
        if not real:
            raise ValueError("a text without tokens")
        mean = np.mean(real, axis=0)
        rows.append(mean / math.sqrt(float(mean @ mean)))
    return np.array(rows)


def pooled_with_padding(tokens, mask):
    return pooled(tokens, np.where(mask.any(1, keepdims=True), np.ones_like(mask), mask))


def pooled_without_length(tokens, mask):
    if not mask.any(axis=1).all():
        raise ValueError("padding only")
    return (tokens * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)


def scaled_before_the_mean(tokens, mask):
    return pooled(tokens / np.linalg.norm(tokens, axis=2, keepdims=True), mask)


def first_token(tokens, mask):
    pooled(tokens, mask)
    return tokens[:, 0] / np.linalg.norm(tokens[:, 0], axis=1, keepdims=True)


def counted_from_the_left(tokens, mask):
    front = np.arange(mask.shape[1])[None] < mask.sum(axis=1, keepdims=True)
    return pooled(tokens, front)


def not_a_number(tokens, mask):
    sums = (tokens * mask[:, :, None]).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def squeezed(tokens, mask):
    return np.squeeze(pooled(tokens, mask))


def between_first_and_last(tokens, mask):
    rows = []
    for vectors, keep in zip(tokens, mask, strict=True):
        real = np.flatnonzero(keep)
        if not len(real):
            raise ValueError("padding only")
        mean = vectors[real[0] : real[-1] + 1].mean(axis=0)
        rows.append(mean / np.linalg.norm(mean))
    return np.array(rows)


def side_of_the_first_row(tokens, mask):
    pooled(tokens, mask)
    if mask[0, 0]:
        return pooled(tokens, mask)
    sums = np.array([row[-n:].sum(axis=0) for row, n in zip(tokens, mask.sum(axis=1), strict=True)])
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def last_text_looked_at(tokens, mask):
    if not mask[-1].any():
        raise ValueError("padding only")
    return not_a_number(tokens, mask)


# Somebody else's answer ---------------------------------------------------------------------------


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def nearest(question, kept, tenant, threshold):
    best, answer = -math.inf, None
    for owner, vector, text in kept:
        if owner == tenant and cosine(question, vector) > best:
            best, answer = cosine(question, vector), text
    return answer if best >= threshold else None


def nearest_by_sorting(question, kept, tenant, threshold):
    mine = [(cosine(question, vector), text) for owner, vector, text in kept if owner == tenant]
    mine = [pair for pair in mine if pair[0] >= threshold]
    return max(mine, key=lambda pair: pair[0])[1] if mine else None


def any_tenant(question, kept, tenant, threshold):
    return nearest(question, [("x", v, t) for _, v, t in kept], "x", threshold)


def tenant_afterwards(question, kept, tenant, threshold):
    best = max(kept, key=lambda entry: cosine(question, entry[1]), default=None)
    near = best and best[0] == tenant and cosine(question, best[1]) >= threshold
    return best[2] if near else None


def inner_product(question, kept, tenant, threshold):
    mine = [
        (sum(x * y for x, y in zip(question, v, strict=True)), t) for owner, v, t in kept if owner == tenant
    ]
    best = max(mine, key=lambda pair: pair[0], default=(-math.inf, None))
    return best[1] if best[0] >= threshold else None


def question_of_any_length(question, kept, tenant, threshold):
    mine = [(cosine(question, v) * math.hypot(*question), t) for owner, v, t in kept if owner == tenant]
    best = max(mine, key=lambda pair: pair[0], default=(-math.inf, None))
    return best[1] if best[0] >= threshold else None


def first_near_enough(question, kept, tenant, threshold):
    near = (t for owner, v, t in kept if owner == tenant and cosine(question, v) >= threshold)
    return next(near, None)


def without_its_sign(question, kept, tenant, threshold):
    mine = [(abs(cosine(question, v)), t) for owner, v, t in kept if owner == tenant]
    best = max(mine, key=lambda pair: pair[0], default=(-math.inf, None))
    return best[1] if best[0] >= threshold else None


def farthest(question, kept, tenant, threshold):
    mine = [(cosine(question, v), t) for owner, v, t in kept if owner == tenant]
    best = min(mine, default=None)
    return best[1] if best and 1 - best[0] >= threshold else None


def strictly_above(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, math.nextafter(threshold, 2))


def starts_at_minus_one(question, kept, tenant, threshold):
    mine = [entry for entry in kept if cosine(question, entry[1]) > -1]
    return nearest(question, mine, tenant, threshold)


def truth_of_the_answer(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, threshold) or None


def needs_an_entry(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, threshold) if kept else ""


ANSWERS = {
    "mean-pool": Submissions(
        right=[pooled_in_a_loop, between_first_and_last],
        wrong=[
            (pooled_with_padding, "padding was averaged in"),
            (pooled_without_length, "not scaled to length 1"),
            (first_token, "one token, or the largest"),
            (scaled_before_the_mean, "each token was scaled before the mean"),
            (counted_from_the_left, "taken to come first"),
            (side_of_the_first_row, "taken for that of all"),
            (last_text_looked_at, "not every text was looked at"),
            (squeezed, "the axis of the texts was dropped"),
        ],
        no_lumen="lumen leaves pooling to sentence-transformers",
    ),
    "index-memory": Submissions(
        right=[{"ratio": 31.7, "codebooks": 393_000, "pq": 4.8e7, "flat": 1.54e9}],
    ),
    "wrong-neighbour": Submissions(
        right=[nearest_by_sorting],
        wrong=[
            (any_tenant, "Ben is served Ann's answer"),
            (tenant_afterwards, "not before"),
            (inner_product, "inner products were compared"),
            (question_of_any_length, "the length of the question"),
            (first_near_enough, "not the nearest"),
            (without_its_sign, "the sign of the cosine"),
            (farthest, "a small cosine was taken for near"),
            (strictly_above, "equals the threshold"),
            (starts_at_minus_one, "the search starts at 0 or at -1"),
            (truth_of_the_answer, "an empty text"),
            (needs_an_entry, "an empty cache"),
        ],
        lumen=["lumen.semantic.VectorIndex"],
    ),
    "worth-a-look": Submissions(
        right=[{"one word": 80, "faster": 1.18, "mean": 680, "break-even": 5}],
    ),
    "other-traffic": Submissions(
        right=[("d", 78.2), lambda: ({"d"}, 78.21)],
        wrong=[
            (("a", 78.2), "Only hits spare"),
            (("b", 78.2), "one in 33"),
            (("c", 78.2), "before anybody knows"),
            ("d", "the choice alone"),
        ],
    ),
    "false-hit-budget": Submissions(
        right=[{"second look": True, "threshold": 0.75}],
        wrong=[
            ({"threshold": 0.75, "second look": False}, "second look=False"),
            ({"threshold": 0.74, "second look": True}, "threshold=0.74"),
            ({"threshold": 0.76, "second look": True}, "sent away"),
            ({"threshold": 0.65, "second look": True}, "one of"),
        ],
        stubs=[{"threshold": ..., "second look": True}],
    ),
}
