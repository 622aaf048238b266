"""Four kinds of FAISS index behind one class: the same answers where they must be, nothing deleted ever found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen.semantic.encoder import unit
from lumen.semantic.index import IndexSpec, VectorIndex, build, index_bytes, recall_at_1

WIDTH = 32
# Settings under which each kind is exact on a few hundred vectors: all lists probed, a wide beam, PQ only proposing.
SPECS = {
    "flat": IndexSpec("flat"),
    "ivf": IndexSpec("ivf", lists=8, probes=8, train_from=100),
    "hnsw": IndexSpec("hnsw", ef=256),
    "pq": IndexSpec("pq", parts=16, bits=4, train_from=100),
}


def vectors(count, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((count, WIDTH)), WIDTH)


def filled(spec, rows):
    index = VectorIndex(WIDTH, spec)
    for number, row in enumerate(rows):
        index.add(str(number), row)
    return index


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_finds_what_flat_finds(kind):
    rows = vectors(400)
    queries = unit(rows[:50] + 0.1 * vectors(50, seed=1), WIDTH)
    index = filled(SPECS[kind], rows)
    for query in queries:
        found = index.search(query, 16)
        exact = np.argsort(-(rows @ query), kind="stable")
        assert found[0][0] == str(exact[0])
        for key, score in found:  # scores are exact in every kind, PQ's own approximation is not shown
            assert score == pytest.approx(float(rows[int(key)] @ query), abs=1e-6)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


@pytest.mark.parametrize("kind", SPECS)
def test_the_faiss_index_is_of_the_kind_that_was_asked_for(kind):
    names = {"flat": "IndexFlatIP", "ivf": "IndexIVFFlat", "hnsw": "IndexHNSWFlat", "pq": "IndexPQ"}
    assert type(build(SPECS[kind], vectors(300))).__name__ == names[kind]
    assert type(filled(SPECS[kind], vectors(300))._faiss).__name__ == names[kind]


def test_too_few_vectors_to_learn_from_are_compared_one_by_one():
    assert IndexSpec("ivf").needs == 312 and IndexSpec("pq").needs == 9984
    for kind in ("ivf", "pq"):
        index = filled(IndexSpec(kind, parts=16), vectors(50))
        assert type(index._faiss).__name__ == "IndexFlatIP"
        assert index.search(vectors(50)[7], 1)[0][0] == "7"


@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_random_adding_and_removing_agrees_with_a_dict(kind, data):
    pool, index, held = vectors(150, seed=2), VectorIndex(WIDTH, SPECS[kind]), {}
    for step in data.draw(st.lists(st.integers(0, 149), min_size=20, max_size=250)):
        key = str(step % 60)
        if step % 3 == 0:
            assert index.remove(key) == (held.pop(key, None) is not None)
        else:
            index.add(key, pool[step])
            held[key] = pool[step]
        assert len(index) == len(held)
        assert index.dead < 16 or 4 * index.dead <= len(index._slots)
    for query in pool[:10]:
        found = index.search(query, len(held) + 5)
        assert {key for key, _ in found} <= set(held)
        if held:
            best = max(held, key=lambda key: float(held[key] @ query))
            assert found[0][1] == pytest.approx(float(held[best] @ query), abs=1e-6)
        else:
            assert found == []


def test_a_crowd_of_deleted_neighbours_does_not_hide_the_living():
    near = unit(np.ones((14, WIDTH)) + 0.001 * vectors(14), WIDTH)  # 14 dead of 60: not rebuilt
    index = filled(SPECS["hnsw"], np.concatenate([near, vectors(46, seed=3)]))
    for number in range(14):
        index.remove(str(number))
    assert index.dead == 14
    found = index.search(near[0], 2)
    assert len(found) == 2 and all(int(key) >= 14 for key, _ in found)


def test_wrong_widths_and_vectors_that_point_nowhere_are_refused_and_nothing_changes():
    index = filled(SPECS["flat"], vectors(3))
    with pytest.raises(ValueError, match=r"shape \(n, 32\) are wanted, got \(1, 31\).*one encoder only"):
        index.add("x", np.ones(31))
    with pytest.raises(ValueError, match=r"got \(1, 33\)"):
        index.search(np.ones(33), 1)
    for bad in (np.zeros(WIDTH), np.full(WIDTH, np.nan), np.full(WIDTH, np.inf)):
        with pytest.raises(ValueError, match="zero or not finite"):
            index.add("1", bad)
    assert len(index) == 3 and index.search(vectors(3)[1], 1)[0][0] == "1"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: IndexSpec("lsh"), "no index kind 'lsh'; there are flat, ivf, hnsw, pq"),
        (lambda: IndexSpec("ivf", probes=0), "positive numbers"),
        (lambda: build(IndexSpec("pq", parts=7), vectors(10)), "32 cannot be cut into 7"),
        (lambda: recall_at_1([1], [1, 2]), "equally many"),
    ],
)
def test_impossible_settings_are_sentences(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_pq_is_smaller_and_hnsw_larger_than_flat():
    rows = vectors(2000)
    sizes = {kind: index_bytes(build(spec, rows)) for kind, spec in SPECS.items()}
    assert sizes["pq"] < sizes["flat"] / 4  # 8 bytes a vector against 128, and a code book
    assert sizes["flat"] < sizes["ivf"] < sizes["hnsw"]


def test_recall_counts_the_queries_whose_nearest_was_found():
    assert recall_at_1([1, 2, 3, 4], [1, 2, 0, 4]) == 0.75
