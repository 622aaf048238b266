"""The other ways to decide: the regression is right, folds leak nothing, thresholds come from "tune" alone."""

from __future__ import annotations

import numpy as np
import pytest

from lumen.semantic.evaluate import embed
from lumen.semantic.pairs import load_pairs
from lumen.semantic.rivals import Logistic, Set, ablation, compare, jaccard, out_of_fold

from .fakes import BagOfWords


def test_the_regression_is_at_the_minimum_in_either_shape():
    """The slope of the penalised likelihood vanishes, with more rows than columns and with fewer."""
    for rows, columns in ((200, 5), (40, 90)):
        draw = np.random.default_rng(rows)
        x, y = draw.standard_normal((rows, columns)), (draw.random(rows) < 0.4).astype(float)
        fitted = Logistic(x, y, penalty=2.0)
        p = 1 / (1 + np.exp(-fitted(x)))
        assert np.abs(x.T @ (p - y) + 2.0 * fitted.weights).max() < 1e-6
        assert abs((p - y).sum()) < 1e-4


def test_out_of_fold_scores_of_noise_know_nothing():
    """300 labels that do not depend on 120 features: right and wrong score alike (a difference over 0.5 standard
    deviations comes about once in 100,000 draws); scores of the fit itself would differ by more than 1."""
    draw = np.random.default_rng(3)
    x, y = draw.standard_normal((300, 120)), (draw.random(300) < 0.5).astype(float)
    honest, fitted = out_of_fold(x, y, 0.1), Logistic(x, y, 0.1)(x)
    assert abs(honest[y == 1].mean() - honest[y == 0].mean()) < 0.5 * honest.std()
    assert fitted[y == 1].mean() - fitted[y == 0].mean() > fitted.std()


def test_overlap_counts_words():
    assert jaccard("Who wrote Emma?", "who wrote emma") == 1.0
    assert jaccard("a b c", "b c d e") == 2 / 5
    assert jaccard("", "") == 0.0


@pytest.fixture(scope="module")
def sets():
    encoder = BagOfWords()
    made = {}
    for name in ("tune", "report", "third"):
        pairs = load_pairs(name)
        made[name] = Set(pairs, *embed(pairs, encoder))
    return made


def test_thresholds_are_chosen_on_tune_alone(sets):
    found = compare(sets, 0.05)
    fewer = compare({"tune": sets["tune"], "report": sets["report"]}, 0.05)
    for way, by_set in found.items():
        assert len({at.threshold for at in by_set.values()}) == 1
        assert by_set["tune"].false_hits.value <= 0.05
        assert fewer[way]["report"] == by_set["report"]
    assert "cosine and four rules" in found and "cross-encoder" not in found


def test_a_perfect_cross_encoder_makes_no_mistake(sets):
    found = compare(sets, 0.05, cross=lambda pairs: np.array([float(pair.same) for pair in pairs]))
    for at in found["cross-encoder"].values():
        assert at.recall.value == 1.0 and at.wrong == 0


def test_ablation_leaves_one_out_and_refuses_no_more_than_all(sets):
    found = ablation(sets, 0.5)
    assert list(found) == [
        "all four", "without negation", "without number", "without roles", "without edit", "none",
    ]  # fmt: skip
    for by_set in found.values():
        for name, at in by_set.items():
            assert at.right >= found["all four"][name].right and at.wrong >= found["all four"][name].wrong
