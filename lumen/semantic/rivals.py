"""Other ways to decide whether two questions mean the same, to hold the four rules against.

    overlap   one line: far apart in words, near in meaning (whoever rewords changes many words)
    probe     a logistic regression on the two frozen vectors: |s - q|, s * q and the cosine
    weighed   a logistic regression on the cosine, the overlap and the four rules: evidence instead of vetoes
    cross     a cross-encoder, a transformer that reads both questions in one sequence; only if there is one

What is fitted is fitted on the half "tune" alone, and scored there by parts it was not fitted on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .check import RULES, check
from .evaluate import Rates, Scored, best_threshold, rates
from .pairs import Pair

FOLDS = 10
OVERLAPS = [most / 40 for most in range(8, 41)]  # what "few words in common" may mean; chosen on "tune"


def jaccard(one: str, other: str) -> float:
    """Words that both have, as a share of all words of both."""
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return len(a & b) / max(1, len(a | b))


def overlap_rule(pairs: Sequence[Pair], most: float) -> list[str]:
    """The one-line baseline: refuse where the words overlap by `most` or more."""
    return ["overlap" if jaccard(p.stored, p.asked) >= most else "" for p in pairs]


def vector_features(stored: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """(n, 2 width + 1): |s - q|, s * q, s . q, scaled to about 1"""
    product = stored * asked
    scale = np.sqrt(stored.shape[1])
    return np.c_[scale * np.abs(stored - asked), scale * product, product.sum(1)]


def evidence_features(pairs: Sequence[Pair], cosines: np.ndarray) -> np.ndarray:
    """(n, 7): cosine, overlap, its square, and 0 or 1 for each rule"""
    overlap = np.array([jaccard(p.stored, p.asked) for p in pairs])
    rules = np.array([[bool(check(p.asked, p.stored, (rule,))) for rule in RULES] for p in pairs], float)
    return np.c_[cosines, overlap, overlap**2, rules]


class Logistic:
    """Logistic regression with an L2 penalty, by Newton's method. features (n, d), labels (n,) of 0 and 1."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, penalty: float = 1.0, steps: int = 12):
        # The weights lie in the span of the rows, so a problem with more columns than rows is solved there.
        basis = np.linalg.svd(features, full_matrices=False)[2] if len(features) < features.shape[1] else None
        x = np.c_[features if basis is None else features @ basis.T, np.ones(len(features))]
        ridge = np.full(x.shape[1], penalty)
        ridge[-1] = 1e-6  # the intercept is free
        weights = np.zeros(x.shape[1])
        for _ in range(steps):
            p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
            slope = x.T @ (p - labels) + ridge * weights
            bend = (x.T * (p * (1 - p))) @ x + np.diag(ridge)
            weights = weights - np.linalg.solve(bend, slope)
        self.weights = weights[:-1] if basis is None else weights[:-1] @ basis
        self.intercept = weights[-1]

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """(n,) log-odds"""
        return features @ self.weights + self.intercept


def out_of_fold(features: np.ndarray, labels: np.ndarray, penalty: float = 1.0) -> np.ndarray:
    """Log-odds of every row by a regression that has not seen it."""
    fold = np.random.default_rng(0).permutation(len(labels)) % FOLDS
    scores = np.empty(len(labels))
    for part in range(FOLDS):
        out = fold == part
        scores[out] = Logistic(features[~out], labels[~out], penalty)(features[out])
    return scores


@dataclass(frozen=True)
class Set:
    """Pairs with the unit vectors (n, width) of their two questions."""

    pairs: list[Pair]
    stored: np.ndarray
    asked: np.ndarray

    @property
    def cosines(self) -> np.ndarray:
        return (self.stored * self.asked).sum(1)

    @property
    def labels(self) -> np.ndarray:
        return np.array([pair.same for pair in self.pairs], float)

    def scored(self, scores: np.ndarray, rules: Sequence[str] | None = None) -> list[Scored]:
        rules = rules or [""] * len(self.pairs)
        return [Scored(p, float(s), r) for p, s, r in zip(self.pairs, scores, rules, strict=True)]

    def checked(self, rules: tuple[str, ...] = RULES) -> list[Scored]:
        """The cosine, and the four rules, or some of them."""
        return self.scored(self.cosines, [check(p.asked, p.stored, rules) for p in self.pairs])


def compare(
    sets: dict[str, Set], limit: float, cross: Callable[[Sequence[Pair]], np.ndarray] | None = None
) -> dict[str, dict[str, Rates]]:
    """Each way to decide, its threshold chosen on `sets["tune"]` at `limit` false hits, counted on all sets."""
    tune = sets["tune"]
    ways: dict[str, dict[str, list[Scored]]] = {
        "cosine alone": {name: s.scored(s.cosines) for name, s in sets.items()},
        "cosine and four rules": {name: s.checked() for name, s in sets.items()},
    }

    def hits(most: float) -> int:
        found = tune.scored(tune.cosines, overlap_rule(tune.pairs, most))
        cut = best_threshold(found, limit)
        return 0 if cut is None else rates(found, cut).right

    most = max(OVERLAPS, key=hits)
    ways["cosine and word overlap"] = {
        name: s.scored(s.cosines, overlap_rule(s.pairs, most)) for name, s in sets.items()
    }
    for way, features in (
        ("probe on the vectors", lambda s: vector_features(s.stored, s.asked)),
        ("cosine, overlap, rules weighed", lambda s: evidence_features(s.pairs, s.cosines)),
    ):
        fitted = Logistic(features(tune), tune.labels)
        ways[way] = {name: s.scored(fitted(features(s))) for name, s in sets.items() if s is not tune}
        ways[way]["tune"] = tune.scored(out_of_fold(features(tune), tune.labels))
    if cross is not None:
        ways["cross-encoder"] = {name: s.scored(cross(s.pairs)) for name, s in sets.items()}
    results = {}
    for way, scored in ways.items():
        cut = best_threshold(scored["tune"], limit)
        if cut is not None:
            results[way] = {name: rates(items, cut) for name, items in scored.items()}
    return results


def ablation(sets: dict[str, Set], threshold: float) -> dict[str, dict[str, Rates]]:
    """All rules, each one left out, and none, at one threshold."""
    chosen: dict[str, tuple[str, ...]] = {"all four": RULES}
    chosen |= {f"without {rule}": tuple(r for r in RULES if r != rule) for rule in RULES} | {"none": ()}
    return {
        name: {half: rates(s.checked(rules), threshold) for half, s in sets.items()}
        for name, rules in chosen.items()
    }


def as_one_cache(
    held: Set, threshold: float, rules: tuple[str, ...] = RULES, candidates: int = 8
) -> tuple[int, int]:
    """Right and wrong hits when all stored questions lie in one cache and all others are asked: the nearest that
    passes is served. Right is only a pair's own partner."""
    right = wrong = 0
    for place, pair in enumerate(held.pairs):
        cosines = held.stored @ held.asked[place]
        for near in np.argsort(-cosines)[:candidates]:
            if cosines[near] < threshold:
                break
            if not check(pair.asked, held.pairs[near].stored, rules):
                good = pair.same and held.pairs[near].stored == pair.stored
                right, wrong = right + good, wrong + (not good)
                break
    return right, wrong


def cross_encoder(name: str | Path) -> Callable[[Sequence[Pair]], np.ndarray]:
    """A scorer from a local folder of a sentence-transformers cross-encoder. Nothing is downloaded."""
    from sentence_transformers import CrossEncoder

    model: Any = CrossEncoder(str(name), local_files_only=True)

    def scores(pairs: Sequence[Pair]) -> np.ndarray:
        found = np.asarray(model.predict([(p.stored, p.asked) for p in pairs]), float)
        return found.reshape(len(pairs), -1)[:, -1]

    return scores
