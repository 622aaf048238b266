"""What do selections catch of SmolLM2's attention? Share of its weight, and of its heaviest keys, against the budget.

    python benchmarks/sparse_recall.py            eight texts of 2,048 tokens, minutes on two cores; writes evidence
    python benchmarks/sparse_recall.py --quick    a corner of it, about two minutes; writes nothing

Queries and keys are the model's own, over passages that the indexers were not trained on. Every selection reads at most
`budget` keys a query head: blocks of 64 by their mean key (MoBA), by the bound of their channels (Quest) or by
compressed keys (NSA, means where the paper learns), tokens by an indexer before and after warm-up (DSA), the newest,
the newest and the first four, any at random, and the heaviest, which nothing can beat. The first block is always in, as
is the query's own. The model was trained with none of these: a model that is learns to be caught.

A sample is the mean over the queries, heads and layers of one text; the interval is that of the median over the texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from tqdm.auto import tqdm

import lumen
from lumen import assets, bench
from lumen.attention.sparse import NSA, Heads, dsa_work, full_work, moba_work, nsa_work, window_work
from lumen.attention.sparse import recall as rc
from lumen.models.indexer import Indexer
from lumen.models.observe import Given, observe
from lumen.train.indexer import Recipe, new_indexers, texts_of, train

BUDGETS = (128, 256, 512, 1024)
BLOCK, FIRST = 64, 4
CONTEXTS = (1024, 4096, 16384, 65536)
Selector = Callable[[int], Tensor]  # budget -> bool (B, C, T, S)


def selectors(
    given: Given, at: Tensor, turn: tuple[Tensor, Tensor], fresh: Indexer, trained: Indexer, weights: Tensor
) -> dict[str, Selector]:
    """Every selection for the queries at the columns `at`, by name."""
    q, k, q_pos, k_pos = given.q[:, :, at], given.k, given.pos[:, at], given.pos

    def indexed(indexer: Indexer) -> Selector:
        index_q, index_k, index_w = indexer(given.x, turn)
        return lambda budget: rc.by_index(index_q[:, :, at], index_k, index_w[:, at], q_pos, k_pos, budget)

    return {
        "heaviest": lambda budget: rc.heaviest(weights, budget),
        "indexer": indexed(trained),
        "indexer untrained": indexed(fresh),
        "compressed": lambda budget: rc.by_compressed(q, k, q_pos, k_pos, budget, BLOCK, True),
        "bound": lambda budget: rc.by_bound(q, k, q_pos, k_pos, budget, BLOCK, True),
        "mean": lambda budget: rc.by_mean(q, k, q_pos, k_pos, budget, BLOCK, True),
        "newest and first": lambda budget: rc.newest(q_pos, k_pos, budget, FIRST),
        "newest": lambda budget: rc.newest(q_pos, k_pos, budget),
        "random": lambda budget: rc.drawn(q_pos, k_pos, budget),
    }


@torch.no_grad()
def of_text(
    model: lumen.Llama,
    text: Tensor,
    fresh: dict[int, Indexer],
    trained: dict[int, Indexer],
    budgets: Sequence[int],
    queries: int = 64,
) -> Iterator[dict[str, object]]:
    """One row for each selection, budget and layer: what it caught, the mean over heads and late queries."""
    length = text.shape[1]
    at = torch.linspace(length // 2, length - 1, queries).long().unique()
    for layer, given in observe(model, text, tuple(trained)).items():
        weights = rc.weights_of(given.q[:, :, at], given.k, given.pos[:, at], given.pos)
        turn = model.turns(given.pos)[0]
        for name, select in selectors(given, at, turn, fresh[layer], trained[layer], weights).items():
            for budget in budgets:
                found = rc.caught(weights, select(budget))
                yield {
                    "selection": name, "budget": budget, "layer": layer,
                    "mass": float(found.mass.mean()), "top": float(found.top.mean()),
                }  # fmt: skip


def summary(texts: list[list[dict[str, object]]]) -> list[dict[str, object]]:
    """One entry for each selection and budget: estimates over the texts, and the medians of each layer."""
    cells = dict.fromkeys((row["selection"], row["budget"]) for row in texts[0])
    layers = dict.fromkeys(row["layer"] for row in texts[0])
    entries = []
    for name, budget in cells:
        mine = [[r for r in rows if (r["selection"], r["budget"]) == (name, budget)] for rows in texts]
        entry: dict[str, object] = {"selection": name, "budget": budget}
        for what in ("mass", "top"):
            entry[what] = bench.Estimate.of([sum(r[what] for r in rows) / len(rows) for rows in mine], "")
            entry[f"{what}_by_layer"] = {
                layer: bench.Estimate.of(
                    [r[what] for rows in mine for r in rows if r["layer"] == layer], ""
                ).value
                for layer in layers
            }
        entries.append(entry)
    return entries


def costs(model: lumen.Llama) -> list[dict[str, object]]:
    """FLOPs and bytes of a decode step of one layer, sizes as the papers give them and the widths of this model."""
    c = model.config
    heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim)
    kinds = {
        "full": full_work, "window 512": lambda h, n: window_work(h, n, 512), "NSA": lambda h, n: nsa_work(h, n, NSA()),
        "MoBA": moba_work, "DSA": lambda h, n: dsa_work(h, n, index_heads=Recipe.heads, index_dim=Recipe.dim),
    }  # fmt: skip
    return [
        {"method": name, "context": n, "flops": work.flops, "bytes": work.read}
        for name, cost in kinds.items()
        for n in CONTEXTS
        for work in [cost(heads, n)]
    ]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--quick", action="store_true", help="two short texts, a short training, no evidence written"
    )
    quick = options.parse_args().quick
    model, tokenizer = lumen.load("smollm2-135m", "cpu", torch.float32)
    recipe = Recipe(layers=(2, 16), texts=2, length=512, queries=128, steps=100) if quick else Recipe()
    texts, length, budgets = (2, 512, (128, 256)) if quick else (8, 2048, BUDGETS)
    play, unseen = assets.shakespeare()
    letters = 8 * max(recipe.texts * recipe.length, texts * length)
    trained = train(model, texts_of(tokenizer.encode(play[:letters]), recipe), recipe)
    fresh = new_indexers(model, recipe)
    held_out = texts_of(tokenizer.encode(unseen[:letters]), Recipe(texts=texts, length=length))
    rows = [list(of_text(model, text, fresh, trained, budgets)) for text in tqdm(held_out, unit="text")]
    found = summary(rows)
    print(f"{'selection':18} {'budget':>6} {'weight caught':>32} {'of the 32 heaviest keys':>32}")
    for one in found:
        print(f"{one['selection']:18} {one['budget']:6} {one['mass']!s:>32} {one['top']!s:>32}")
    if not quick:
        data = {
            "model": model.config.name, "length": length, "block": BLOCK, "recipe": recipe,
            "cells": found, "costs": costs(model),
        }  # fmt: skip
        print(f"written: {bench.evidence('sparse_recall', data, seed=recipe.seed).name}")


if __name__ == "__main__":
    main()
