"""A draft tree in one forward equals each of its paths run alone, over every kind, and leaves only what is accepted."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import BlockStore, CacheFull, DynamicCache, StaticCache, Tree
from lumen.decode import pad

from ..tiny import relative_error, tiny_gpt, tiny_llama

PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30], [11], [7, 7, 21, 60]]
CHAIN, BUSH = [-1, 0, 1, 2, 3], [-1, 0, 0, 1, 1, 2, 5, 5]
SHAPES = {
    "one node": [[-1], [-1], [-1]],
    "siblings only": [[-1, -1, -1], [-1, -1], [-1]],
    "a chain, a bush, nothing": [CHAIN, BUSH, []],
    "two roots and uneven leaves": [[-1, -1, 0, 1, 3, 3, 2], [-1], BUSH],
}
KINDS = {
    "dynamic": lambda model: DynamicCache.for_model(model, 3),
    "static": lambda model: StaticCache.for_model(model, 3, 24),
    "paged": lambda model: BlockStore.for_model(model, 40, 3).rows(3),
}
MODELS = {
    "llama 9/3": lambda: tiny_llama(torch.float64),
    "window 4": lambda: tiny_llama(torch.float64, window=4),
    "gptlite": lambda: tiny_gpt(torch.float64),
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


@pytest.fixture(params=MODELS, scope="module")
def model(request):
    return MODELS[request.param]()


def path_to(tree: list[int], node: int) -> list[int]:
    return ([] if tree[node] < 0 else path_to(tree, tree[node])) + [node]


def drafted(trees):
    """Tokens (B, T): siblings differ, and token 0 is among them (T40: padding is told by position, not by id)."""
    width = max(map(len, trees))
    return (torch.arange(width) * 7 % 50 + torch.arange(len(trees))[:, None]) % 50


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_path_equals_its_own_forward_and_the_accepted_one_is_what_stays(model, make, shape, side):
    trees = SHAPES[shape]
    cache = make(model)
    tokens, pos = pad(PROMPTS, side)
    model(tokens, pos, cache)
    tree, new = Tree(cache, trees), drafted(trees)
    logits = model(new, tree.pos, tree)
    assert cache.lengths.tolist() == list(map(len, PROMPTS)), "the cache below is read only"
    for row, parents in enumerate(trees):
        for node in range(len(parents)):
            alone = PROMPTS[row] + new[row, path_to(parents, node)].tolist()
            assert relative_error(logits[row, node], model(torch.tensor([alone]))[0, -1]) < 1e-12
    paths = [path_to(parents, len(parents) - 1) if parents else [] for parents in trees]
    tree.accept(paths)
    said = [PROMPTS[r] + new[r, paths[r]].tolist() for r in range(3)]
    assert cache.lengths.tolist() == list(map(len, said))
    after = model(torch.tensor([[4], [17], [33]]), None, cache)
    for row in range(3):
        alone = model(torch.tensor([[*said[row], [4, 17, 33][row]]]))[0, -1]
        assert relative_error(after[row, 0], alone) < 1e-12


def test_a_chain_is_an_ordinary_forward_and_trees_may_follow_each_other(model, make):
    plain, cache = make(model), make(model)
    for one in (plain, cache):
        model(*pad(PROMPTS), one)
    for step in range(2):
        new = drafted([CHAIN] * 3) + step
        tree = Tree(cache, [CHAIN] * 3)
        assert relative_error(model(new, tree.pos, tree), model(new, None, plain)) < 1e-12
        tree.accept([[0, 1, 2]] * 3)
        plain.rewind(cache.lengths)


def test_a_tree_that_is_dropped_leaves_no_trace(model, make):
    cache = make(model)
    model(*pad(PROMPTS), cache)
    before, held = cache.nbytes, cache.lengths.clone()
    tree = Tree(cache, [BUSH] * 3)
    model(drafted([BUSH] * 3), tree.pos, tree)
    assert tree.nbytes > cache.nbytes == before and torch.equal(cache.lengths, held)
    after = model(torch.tensor([[4], [17], [33]]), None, cache)
    for row in range(3):
        alone = model(torch.tensor([[*PROMPTS[row], [4, 17, 33][row]]]))[0, -1]
        assert relative_error(after[row, 0], alone) < 1e-12


def test_what_is_no_tree_or_no_path_gets_a_sentence_and_changes_nothing():
    model = tiny_llama()
    cache = StaticCache.for_model(model, 2, 12)
    model(torch.tensor([[5, 9], [2, 7]]), None, cache)
    for parents, why in [
        ([[-1]], "2 rows"),
        ([[], []], "one node at least"),
        ([[0], [-1]], "node 0 has parent 0"),
        ([[-1, 2, 0], [-1]], "node 1 has parent 2"),
        ([[-2], [-1]], "parent -2"),
    ]:
        with pytest.raises(ValueError, match=why):
            Tree(cache, parents)
    tree = Tree(cache, [BUSH, CHAIN])
    with pytest.raises(ValueError, match="after the model has run"):
        tree.accept([[0], [0]])
    with pytest.raises(ValueError, match="tree's own pos"):
        model(drafted([BUSH, CHAIN]), None, tree)
    model(drafted([BUSH, CHAIN]), tree.pos, tree)
    for paths in ([[0]], [[1], [0]], [[0, 3], [0]], [[0, 1, 2], [0]], [[0], [0, 1, 2, 3, 4, 5]], [[-1], [0]]):
        with pytest.raises(ValueError, match="path"):
            tree.accept(paths)
    assert cache.lengths.tolist() == [2, 2]
    tree.accept([[0, 2, 5, 7], []])
    assert cache.lengths.tolist() == [6, 2]
    with pytest.raises(ValueError, match="once"):
        tree.accept([[0], [0]])
    deep = Tree(cache, [[*range(-1, 6)], [-1]])
    with pytest.raises(CacheFull, match="reaches position 12"):
        model(drafted([[*range(-1, 6)], [-1]]), deep.pos, deep)
    assert cache.lengths.tolist() == [6, 2]
