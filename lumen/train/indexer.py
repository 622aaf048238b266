"""The recipe of an indexer for SmolLM2: DSA's dense warm-up, on the plays, layer by layer.

    python -m lumen.train.indexer                 # some minutes on two cores
    python -m lumen.train.indexer --steps 20      # a smoke run

The model is frozen and runs once over the texts. Then the indexer of each layer is drawn to what the layer's attention
looks at by KL divergence (`index_loss`), Adam, learning rate 1e-3 as in the paper. DeepSeek-AI 2025,
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
    """Everything that decides the result. `length` in tokens; a step looks at `queries` tokens of one text."""

    layers: tuple[int, ...] = (2, 9, 16, 23, 29)
    texts: int = 6
    length: int = 2048
    queries: int = 256
    steps: int = 200
    lr: float = 1e-3
    heads: int = 4
    dim: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Lesson:
    """What one layer was given in a text, and the rotary (cos, sin) of its positions."""

    given: Given
    turn: tuple[Tensor, Tensor]


def lessons_of(model: Llama, text: Tensor, layers: Sequence[int]) -> dict[int, Lesson]:
    """One for each layer, from a text (1, T)."""
    return {n: Lesson(given, model.turns(given.pos)[0]) for n, given in observe(model, text, layers).items()}


def loss_of(indexer: Indexer, lesson: Lesson, rows: Tensor | slice = slice(None)) -> Tensor:
    """KL divergence of the indexer from attention at the queries `rows` of a text, nats a query."""
    given = lesson.given
    index_q, index_k, index_w = indexer(given.x, lesson.turn)
    pos = given.pos[:, rows]
    with torch.no_grad():
        weights = weights_of(given.q[:, :, rows], given.k, pos, given.pos)
    scores = index_scores(index_q[:, :, rows], index_k, index_w[:, rows])
    return index_loss(scores, weights, visible(pos, given.pos)[:, 0])


def new_indexers(model: Llama, recipe: Recipe) -> dict[int, Indexer]:
    """One untrained indexer for each layer of the recipe."""
    torch.manual_seed(recipe.seed)
    return {layer: Indexer(model.config.hidden_size, recipe.heads, recipe.dim) for layer in recipe.layers}


def train(model: Llama, texts: Sequence[Tensor], recipe: Recipe) -> dict[int, Indexer]:
    """An indexer for each layer of the recipe, trained on texts (1, T) of the model's tokens."""
    indexers = new_indexers(model, recipe)
    lessons = [lessons_of(model, text, recipe.layers) for text in texts]
    dice = torch.Generator().manual_seed(recipe.seed)
    for layer, indexer in indexers.items():
        optimizer = torch.optim.Adam(indexer.parameters(), lr=recipe.lr)
        for _ in range(recipe.steps):
            lesson = lessons[int(torch.randint(len(texts), (), generator=dice))][layer]
            rows = torch.randperm(lesson.given.pos.shape[1], generator=dice)[: recipe.queries]
            optimizer.zero_grad()
            loss_of(indexer, lesson, rows).backward()
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
    held_out = texts_of(tokenizer.encode(valid_text[:letters]), Recipe(texts=2))
    trained, fresh = train(model, texts, recipe), new_indexers(model, recipe)
    found = [lessons_of(model, text, recipe.layers) for text in held_out]
    for layer in recipe.layers:
        with torch.no_grad():
            before, after = (
                sum(float(loss_of(some[layer], one[layer])) for one in found) / len(found)
                for some in (fresh, trained)
            )
        print(
            f"layer {layer}: {before:.3f} nats a query untrained, {after:.3f} trained ({len(found)} unseen texts)"
        )


if __name__ == "__main__":
    main()
