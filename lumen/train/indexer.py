"""The recipe of an indexer for SmolLM2: DSA's dense warm-up, on the plays, layer by layer.

    python -m lumen.train.indexer                 # two minutes on two cores
    python -m lumen.train.indexer --steps 20      # a smoke run

The model is frozen. What each layer's attention looks at in the training texts is worked out once; then the indexer of
the layer is drawn to it by KL divergence (`index_loss`), Adam, learning rate 1e-3 as in the paper. DeepSeek-AI 2025,
DeepSeek-V3.2-Exp, section 2.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import assets
from ..attention.core import visible
from ..attention.sparse.dsa import index_loss, index_scores
from ..attention.sparse.recall import weights_of
from ..models.indexer import Indexer
from ..models.llama import Llama
from ..models.observe import Given, observe


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result. `length` in tokens; one text a step."""

    layers: tuple[int, ...] = (2, 9, 16, 23, 29)
    texts: int = 24
    length: int = 512
    steps: int = 300
    lr: float = 1e-3
    heads: int = 4
    dim: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Lesson:
    """What an indexer reads, and what it is to say: x (1, T, D), turn, weights (1, 1, T, T) summed over heads, pos."""

    x: Tensor
    turn: tuple[Tensor, Tensor]
    weights: Tensor
    pos: Tensor


def lesson(model: Llama, given: Given) -> Lesson:
    """From what one layer was given in a text."""
    weights = weights_of(given.q, given.k, given.pos, given.pos).sum(1, keepdim=True)
    return Lesson(given.x, model.turns(given.pos)[0], weights, given.pos)


def loss_of(indexer: Indexer, one: Lesson) -> Tensor:
    """KL divergence of the indexer from attention, nats a query."""
    return index_loss(index_scores(*indexer(one.x, one.turn)), one.weights, visible(one.pos, one.pos)[:, 0])


def new_indexers(model: Llama, recipe: Recipe) -> dict[int, Indexer]:
    """One untrained indexer for each layer of the recipe."""
    torch.manual_seed(recipe.seed)
    return {layer: Indexer(model.config.hidden_size, recipe.heads, recipe.dim) for layer in recipe.layers}


def train(model: Llama, texts: Sequence[Tensor], recipe: Recipe) -> dict[int, Indexer]:
    """An indexer for each layer of the recipe, trained on texts (1, T) of the model's tokens."""
    indexers = new_indexers(model, recipe)
    lessons: dict[int, list[Lesson]] = {layer: [] for layer in recipe.layers}
    for text in texts:
        for layer, given in observe(model, text, recipe.layers).items():
            lessons[layer].append(lesson(model, given))
    dice = torch.Generator().manual_seed(recipe.seed)
    order = torch.randint(len(texts), (recipe.steps,), generator=dice).tolist()
    for layer, indexer in indexers.items():
        optimizer = torch.optim.Adam(indexer.parameters(), lr=recipe.lr)
        for number in order:
            optimizer.zero_grad()
            loss_of(indexer, lessons[layer][number]).backward()
            optimizer.step()
        indexer.eval().requires_grad_(False)
    return indexers


def texts_of(tokens: Sequence[int], recipe: Recipe) -> list[Tensor]:
    """The first texts (1, T) of a long one. ValueError where it is too short."""
    if len(tokens) < recipe.texts * recipe.length:
        raise ValueError(
            f"{recipe.texts} texts of {recipe.length} tokens need {recipe.texts * recipe.length:,}, got "
            f"{len(tokens):,}."
        )
    return list(torch.tensor(tokens[: recipe.texts * recipe.length]).view(-1, 1, recipe.length))


def main() -> None:
    from ..io.load import load

    parser = argparse.ArgumentParser(
        description="Train indexers on SmolLM2's attention over Shakespeare's plays."
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    recipe = Recipe(steps=parser.parse_args().steps)
    model, tokenizer = load("smollm2-135m", "cpu", torch.float32)
    train_text, valid_text = assets.shakespeare()
    letters = 8 * recipe.texts * recipe.length  # a token is about three
    texts = texts_of(tokenizer.encode(train_text[:letters]), recipe)
    held_out = texts_of(tokenizer.encode(valid_text[:letters]), Recipe(texts=4, length=recipe.length))
    trained = train(model, texts, recipe)
    fresh = new_indexers(model, recipe)
    for layer in recipe.layers:
        found = [lesson(model, observe(model, text, (layer,))[layer]) for text in held_out]
        before, after = (
            sum(float(loss_of(some[layer], one).detach()) for one in found) / len(found)
            for some in (fresh, trained)
        )
        print(
            f"layer {layer}: {before:.3f} nats a query untrained, {after:.3f} trained, on {len(found)} held-out texts"
        )


if __name__ == "__main__":
    main()
