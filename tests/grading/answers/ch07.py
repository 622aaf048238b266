"""Right and wrong answers to the exercises of chapter 07."""

import math

import numpy as np

from lumen.grading.proof import Answers

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


# A million questions ------------------------------------------------------------------------------

MEMORY = {"flat": 1_536_000_000, "pq": 48_000_000, "codebooks": 393_216, "ratio": 1_536_000_000 / 48_393_216}


def memory(**changed):
    return lambda: {**MEMORY, **changed}


def computed_memory():
    flat = 10**6 * 384 * 32 / 8
    codes, books = 10**6 * 48.0, sum(256 * 8 * 4 for _ in range(48))
    return {"ratio": flat / (codes + books), "codebooks": books, "pq": codes, "flat": flat}


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


def farthest(question, kept, tenant, threshold):
    mine = [(cosine(question, v), t) for owner, v, t in kept if owner == tenant]
    best = min(mine, default=None)
    return best[1] if best and 1 - best[0] >= threshold else None


def strictly_above(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, math.nextafter(threshold, 2))


def starts_at_zero(question, kept, tenant, threshold):
    mine = [entry for entry in kept if cosine(question, entry[1]) > 0]
    return nearest(question, mine, tenant, threshold)


def truth_of_the_answer(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, threshold) or None


def needs_an_entry(question, kept, tenant, threshold):
    return nearest(question, kept, tenant, threshold) if kept else ""


# Is it worth the look? ----------------------------------------------------------------------------

WORTH = {"break-even": 0.8, "mean": 2020.0, "faster": 2500 / 2020, "one word": 40.0}


def worth(**changed):
    return lambda: {**WORTH, **{name.replace("_", " "): value for name, value in changed.items()}}


BEST = {"threshold": 0.75, "second check": True}

ANSWERS = {
    "mean-pool": Answers(
        right=[pooled, pooled_in_a_loop],
        wrong=[
            (pooled_with_padding, "Padding was averaged in"),
            (pooled_without_length, "Scale each vector to length 1"),
            (first_token, "not one token, not the largest"),
            (counted_from_the_left, "need not come first"),
            (not_a_number, "The mean of nothing"),
            (squeezed, "keep the first axis"),
        ],
        no_lumen="lumen leaves pooling to sentence-transformers",
    ),
    "index-memory": Answers(
        right=[memory(), computed_memory],
        wrong=[
            (memory(flat=384_000_000), "Those are numbers"),
            (memory(flat=768_000_000), "32 bits"),
            (memory(pq=384_000_000), "not for each number"),
            (memory(pq=192_000_000), "not a float"),
            (memory(codebooks=18_874_368), "not a whole vector"),
            (memory(ratio=32.0), "codebooks take room"),
        ],
    ),
    "wrong-neighbour": Answers(
        right=[nearest, nearest_by_sorting],
        wrong=[
            (any_tenant, "Ben is served Ann's answer"),
            (tenant_afterwards, "not after"),
            (inner_product, "Divide by both lengths"),
            (farthest, "Which of the two do you keep"),
            (strictly_above, "equals the threshold"),
            (starts_at_zero, "Start below every cosine"),
            (truth_of_the_answer, "ask `is None`"),
            (needs_an_entry, "An empty cache is a miss"),
        ],
        lumen=["lumen.semantic.VectorIndex"],
    ),
    "worth-a-look": Answers(
        right=[
            worth(),
            lambda: {
                "one word": 100 * 20 / 50,
                "faster": 1 / (0.008 + 0.8),
                "mean": 2500 * 0.8 + 20,
                "break-even": 2 / 2.5,
            },
        ],
        wrong=[
            (lambda: {**WORTH, "break-even": 0.008}, "break-even"),
            (worth(mean=2004.0), "A miss has paid"),
            (worth(mean=2000.0), "And the look-ups?"),
            (worth(faster=1.25), "are not free"),
            (worth(faster=5.0), "one request in five"),
            (worth(one_word=250.0), "The other way round"),
        ],
    ),
    "cuts-calls": Answers(
        right=[("d", 2.064), lambda: ({"d"}, 68.8 * 0.03)],
        wrong=[
            (("a", 2.064), "Only hits spare"),
            (("b", 2.064), "one in 33"),
            (("c", 2.064), "before anybody knows"),
            (("d", 3.0), "Of the hits"),
            (("d", 66.736), "the right ones"),
            ("d", "the choice alone"),
        ],
    ),
    "false-hit-budget": Answers(
        right=[BEST, lambda: dict(reversed(BEST.items()))],
        wrong=[
            ({**BEST, "second check": False}, "second check=False"),
            ({**BEST, "threshold": 0.74}, "threshold=0.74"),
            ({**BEST, "threshold": 0.84}, "sent away"),
            ({**BEST, "threshold": 0.65}, "one of"),
        ],
        stubs=[{**BEST, "threshold": ...}],
    ),
}
