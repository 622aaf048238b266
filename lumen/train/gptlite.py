"""The recipe of `gptlite`: a character model of 4.8 million parameters on Shakespeare's plays.

    python -m lumen.train.gptlite                 # half an hour on two quiet cores; stop and start it as you like
    python -m lumen.train.gptlite --steps 20      # a smoke run

Progress is kept in `$LUMEN_CACHE/train/gptlite.pt`; the finished weights go to `lumen/checkpoints/gptlite.safetensors`.
Everything is fp32 until then.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from .. import assets
from ..arguments import MAX_COUNT, Parser, Whole, path
from ..models import CONFIGS, GPTlite
from .checkpoints import FOLDER, save
from .loop import Recipe, train
from .text import batch_at, encode, loss_of, validation_loss

OUT = FOLDER / "gptlite.safetensors"


def new_model(vocab_size: int, seed: int) -> GPTlite:
    """GPT-2's initialisation: normal with deviation 0.02, residual outputs scaled down by the depth."""
    torch.manual_seed(seed)
    model = GPTlite(CONFIGS["gptlite"].with_(vocab_size=vocab_size))
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            deep = name.endswith(("attn.out.weight", "mlp.down.weight"))
            torch.nn.init.normal_(weight, std=0.02 / math.sqrt(2 * model.config.num_layers) if deep else 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    return model


def run(recipe: Recipe, state_file: Path) -> tuple[GPTlite, str, float]:
    """Run or resume the recipe; returns the model, its alphabet and its loss on the whole validation text."""
    train_text, valid_text = assets.shakespeare()
    characters = "".join(sorted(set(train_text) | set(valid_text)))
    train_ids, valid_ids = encode(train_text, characters), encode(valid_text, characters)
    model = new_model(len(characters), recipe.seed)
    train(
        model,
        lambda step: loss_of(model, batch_at(train_ids, recipe, step)),
        recipe,
        state_file,
        name="gptlite",
        watch=lambda: validation_loss(model, valid_ids, recipe.context, 64),
    )
    return model, characters, validation_loss(model, valid_ids, recipe.context)


def main() -> None:
    parser = Parser(description="Train gptlite on Shakespeare's plays; resumes where it was stopped.")
    parser.add_argument("--steps", type=Whole(1, MAX_COUNT), default=Recipe.steps)
    parser.add_argument(
        "--out", type=path, help="where the weights go; lumen/checkpoints for the whole recipe"
    )
    options = parser.parse_args()
    recipe, kept = Recipe(steps=options.steps), assets.cache_dir() / "train"
    whole = recipe == Recipe()  # a smoke run replaces neither the shipped weights nor their state
    name = "gptlite" if whole else f"gptlite-{recipe.steps}"
    out = options.out or (OUT if whole else kept / f"{name}.safetensors")
    model, characters, loss = run(recipe, kept / f"{name}.pt")
    save(model, characters, recipe, {"validation_loss": f"{loss:.4f}"}, out)
    print(f"{name}: {recipe.steps} steps, validation loss {loss:.4f} nats per character, saved to {out}")


if __name__ == "__main__":
    main()
