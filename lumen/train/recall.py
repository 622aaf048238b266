"""The recipe of the recall models: can a state of fixed size remember as many pairs as keys and values can?

    python -m lumen.train.recall                       every model below; minutes each on one core, resumes
    python -m lumen.train.recall delta-8 hybrid-8      these alone
    python -m lumen.train.recall --steps 20 full       a smoke run
    python -m lumen.train.recall --publish             what has been trained, into book/evidence/recall.json

Four layers of width 64 that differ in one thing only, what mixes the tokens: attention over everything or over a
window, a state by one of four rules, or three such layers and one of attention (`hybrid`). The number is the width of a
key in a state, which holds 2 heads x key width x 32 numbers a layer. All see the same batches in the same order, of 4
to 16 pairs.

How the embeddings begin decides whether attention learns the task in so many steps of so few rows: see `new_model`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import assets
from ..bench.estimate import Estimate, wilson
from ..bench.published import evidence
from ..config import ModelConfig
from ..cost.linear import state_bytes
from ..cost.memory import kv_bytes
from ..files import write_atomic
from ..models import Llama
from ..parts import LinearLayers, Rule
from .loop import Recipe, train
from .recall_task import NONE, Recall

TASK = Recall(keys=32, values=32, noise=16)
LAYERS, WIDTH, HEADS, WINDOW = 4, 64, 2, 16
PAIRS = (4, 8, 16)
RECIPE = Recipe(steps=1000, batch=64, context=64, peak_lr=2e-3, final_lr=1e-4, warmup=100, weight_decay=0.01)
ASKED = 1024  # sequences in a test; of each one question counts, so that the answers are independent
NAMES = (
    "full", "window", "linear-8", "gated-8", "delta-8", "gated_delta-8", "hybrid-8",
    "gated_delta-4", "gated_delta-16", "gated-16",
)  # fmt: skip


def shape(name: str) -> ModelConfig:
    """The model that a name stands for. ValueError for one that stands for none."""
    kind, _, width = name.partition("-")
    linear = None
    if kind in (*get_args(Rule), "hybrid") and width.isdecimal():
        layers = range(LAYERS - 1) if kind == "hybrid" else range(LAYERS)
        rule: Rule = "gated_delta" if kind == "hybrid" else kind  # type: ignore[assignment]
        linear = LinearLayers(tuple(layers), rule, HEADS, int(width), WIDTH // HEADS)
    elif name not in ("full", "window"):
        raise ValueError(
            f"There is no recall model {name!r}: take full, window, or hybrid, {', '.join(get_args(Rule))} and the "
            "width of a key, such as delta-16."
        )
    return ModelConfig(
        f"recall-{name}", TASK.vocab_size, LAYERS, WIDTH, HEADS, HEADS, WIDTH // HEADS, 2 * WIDTH, RECIPE.context,
        window=WINDOW if name == "window" else None, linear=linear, source="trained here, lumen/train/recall.py",
    )  # fmt: skip


def new_model(config: ModelConfig, seed: int) -> Llama:
    """Matrices normal with deviation 1/sqrt(inputs), residual outputs scaled down by the depth, embeddings with 1.

    With embeddings of 1/sqrt(width) attention stays where it answers with any value of the sequence for 900 steps to
    more than 1,500 (4 pairs, three runs); with 1 it finds the key that stood before within 400 (three seeds of three).
    Layers with a state have a convolution in front, which sees key and value together, and learn either way.
    """
    torch.manual_seed(seed)
    model = Llama(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            deep = (2 * config.num_layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
            std = 1.0 if name.startswith("embed") else deep * weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=std)
    return model


def loss_of(model: Llama, recipe: Recipe, step: int) -> Tensor:
    """Mean cross-entropy of the answers in the batch of one step. [nats]"""
    seed = recipe.seed * 1_000_003 + step
    pairs = PAIRS[step % len(PAIRS)]
    tokens, answers = TASK.batch(recipe.batch, pairs, 4 * pairs, seed)
    asked = answers != NONE
    return F.cross_entropy(model.head(model.hidden(tokens)[asked]), answers[asked])


@torch.inference_mode()
def accuracy(model: Llama, pairs: int, seed: int = 10**9, asked: int = ASKED) -> Estimate:
    """Share of questions about sequences of `pairs` pairs that are answered right, one question of each sequence."""
    hits = 0
    stream = torch.Generator().manual_seed(seed)
    for first in range(0, asked, 64):
        rows = min(64, asked - first)
        tokens, answers = TASK.batch(rows, pairs, 4 * pairs, seed + first)
        chance = torch.rand(answers.shape, generator=stream)
        at = chance.masked_fill(answers == NONE, -1.0).argmax(1)
        hidden = model.hidden(tokens)[torch.arange(rows), at]
        hits += int((model.head(hidden).argmax(-1) == answers[torch.arange(rows), at]).sum())
    return wilson(hits, asked)


@dataclass(frozen=True)
class Result:
    """One model: its recipe, what a sequence of the longest test keeps in memory [B], and its accuracy by pairs."""

    name: str
    recipe: Recipe
    parameters: int
    grows: float
    fixed: float
    accuracy: dict[int, Estimate]


def run(name: str, recipe: Recipe, folder: Path, asked: int = ASKED) -> tuple[Llama, Result]:
    """Train the model of that name, or finish it where it was stopped, and test it."""
    config = shape(name)
    model = new_model(config, recipe.seed)
    train(model, lambda step: loss_of(model, recipe, step), recipe, folder / f"recall-{name}.pt", name=name)
    model.requires_grad_(False)
    found = {pairs: accuracy(model, pairs, asked=asked) for pairs in PAIRS}
    size = sum(p.numel() for p in model.parameters())
    grows, fixed = kv_bytes(config, recipe.context, dtype="fp32"), state_bytes(config, dtype="fp32")
    return model, Result(name, recipe, size, grows, fixed, found)


def publish(folder: Path) -> Path:
    """All results in `folder` as evidence."""
    rows: list[Any] = [json.loads(file.read_text("utf8")) for file in sorted(folder.glob("recall-*.json"))]
    if not rows:
        raise ValueError("Nothing has been trained yet: run `python -m lumen.train.recall` first.")
    note = "accuracy by number of pairs; one question of each sequence counts"
    data = {"task": TASK, "window": WINDOW, "pairs": PAIRS, "models": rows}
    return evidence("recall", data, command="python -m lumen.train.recall", seed=RECIPE.seed, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train models that recall pairs; each resumes where it was stopped."
    )
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="name")
    parser.add_argument("--steps", type=int, default=RECIPE.steps)
    parser.add_argument("--seed", type=int, default=RECIPE.seed)
    parser.add_argument(
        "--publish", action="store_true", help="write book/evidence/recall.json and train nothing"
    )
    options = parser.parse_args()
    folder = assets.cache_dir() / "train"
    if options.publish:
        print("wrote", publish(folder).name)
        return
    recipe = Recipe(**(asdict(RECIPE) | {"steps": options.steps, "seed": options.seed}))
    for name in options.names:
        shape(name)  # before hours of training
    for name in options.names:
        _, result = run(name, recipe, folder)
        write_atomic(folder / f"recall-{name}.json", json.dumps(asdict(result)) + "\n")
        shown = ", ".join(f"{pairs} pairs {share}" for pairs, share in result.accuracy.items())
        print(
            f"{name}: {result.parameters:,} parameters, {result.grows + result.fixed:,.0f} B a sequence; {shown}"
        )


if __name__ == "__main__":
    main()
