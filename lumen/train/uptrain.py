"""Uptraining: gptlite is converted to a smaller cache and trained on for a twentieth of its steps.

    python -m lumen.train.uptrain gqa2            # some minutes on two quiet cores; stop and start it as you like
    python -m lumen.train.uptrain all             # every variant
    python -m lumen.train.uptrain shipped         # those in lumen/checkpoints, and the control

Ainslie et al. 2023, GQA, section 2.1: a converted model is trained on with its own recipe for a share of its original
steps, 5 % there and here. The stream of batches goes on where gptlite's ended, AdamW starts with empty moments (they
were not shipped), and the rate climbs to a quarter of the original peak and falls to the original end.

Training on changes a model that was not converted, too: `control` is gptlite itself. A conversion costs its loss
less the control's after the same steps on the same batches, window by window of the validation text. Warming the rate
up again costs a finished model something, which so few steps do not win back: the control ends above gptlite, and
measured from gptlite every conversion would be charged with that, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import assets
from ..arguments import MAX_COUNT, Parser, Whole
from ..io import deltas
from ..io.load import load
from ..models.gptlite import GPTlite
from ..models.surgery import rebuilt
from .checkpoints import FOLDER, save, weights
from .gptlite import OUT as GPTLITE
from .loop import Recipe, fingerprint, train
from .results import Result, apart, average
from .text import batch_at, encode, loss_of, validation_loss, window_losses
from .variants import CONTROL, VARIANTS

ORIGINAL = Recipe()
UPTRAIN = Recipe(steps=75, peak_lr=5e-4, warmup=10, first=ORIGINAL.steps)
SHIPPED = ("gqa2", "cla2")  # what chapter 12 plays with
SEEN = 4  # batches that a conversion may look at


@dataclass(frozen=True)
class Text:
    """The plays as ids of gptlite's characters, each int64 (N,)."""

    train: torch.Tensor
    valid: torch.Tensor
    characters: str


def start() -> tuple[GPTlite, Text]:
    """gptlite in fp32 and the text that it learned from."""
    base, tokenizer = load("gptlite", "cpu", torch.float32)
    characters: str = tokenizer.characters  # type: ignore[attr-defined]
    learned, held_out = assets.shakespeare()
    return base, Text(encode(learned, characters), encode(held_out, characters), characters)


def run(
    name: str, base: GPTlite, text: Text, recipe: Recipe, folder: Path, windows: int | None = None
) -> tuple[GPTlite, Result]:
    """Convert `base`, train or finish it, and judge it; `base` is left as it is, state and result stay in `folder`.

    Returns the model as its shipped file gives it back, and its losses before and after over all windows of the
    validation text, or the first few.
    """
    seen = [batch_at(text.train, recipe, step)[:, :-1] for step in range(SEEN)]
    model = VARIANTS[name].convert(base, seen)
    before = window_losses(_stored(model, base), text.valid, recipe.context, windows)
    train(
        model,
        lambda step: loss_of(model, batch_at(text.train, recipe, step)),
        recipe,
        folder / f"uptrain-{name}.pt",
        name=name,
        watch=lambda: validation_loss(model, text.valid, recipe.context, 64),
        save_every=25,
    )
    model = _stored(model, base)
    after = window_losses(model, text.valid, recipe.context, windows)
    config = model.config
    result = Result(
        name,
        recipe,
        fingerprint(base),
        len(config.storing_layers) * config.cache_dims.stored,
        tuple(before.tolist()),
        tuple(after.tolist()),
    )
    result.write(folder / f"uptrain-{name}.json")
    return model.requires_grad_(False), result


def results(folder: Path) -> dict[str, Result]:
    """What has been trained so far, in the order of `VARIANTS`."""
    files = {name: folder / f"uptrain-{name}.json" for name in VARIANTS}
    return {name: Result.read(file) for name, file in files.items() if file.exists()}


def table(found: dict[str, Result]) -> list[str]:
    """One line a variant: cache, loss before and after, and how far it is from the control where that is known."""
    lines = [f"{'variant':12} {'numbers a token':>15} {'before':>8} {'after':>8}  above the control (95 %)"]
    for name, one in found.items():
        line = f"{name:12} {one.stored:15,} {average(one.before).value:8.4f} {average(one.after).value:8.4f}"
        control = found.get(CONTROL)
        if (
            control is not None
            and name != CONTROL
            and (one.recipe, one.base) == (control.recipe, control.base)
        ):
            cost = apart(one.after, control.after)
            line += f"  {cost.value:+.4f} ({cost.low:+.4f} to {cost.high:+.4f}, n = {cost.n})"
        lines.append(line)
    return lines


def _stored(model: GPTlite, base: GPTlite) -> GPTlite:
    """A copy with the numbers that the shipped file gives back: what is judged is what is shipped."""
    under = weights(base)
    return rebuilt(model, model.config, deltas.unpack(deltas.pack(weights(model), under), under))


def main() -> None:
    parser = Parser(
        description="Convert gptlite to a smaller cache and train it on; resumes where it was stopped.",
        epilog="; ".join(f"{name}: {variant.says}" for name, variant in VARIANTS.items()),
    )
    parser.add_argument("names", nargs="+", choices=(*VARIANTS, "all", "shipped"), metavar="NAME")
    parser.add_argument("--steps", type=Whole(1, MAX_COUNT), default=UPTRAIN.steps)
    options = parser.parse_args()
    sets = {"all": tuple(VARIANTS), "shipped": (CONTROL, *SHIPPED)}
    recipe = replace(UPTRAIN, steps=options.steps)
    folder = assets.cache_dir() / "train"
    whole = recipe == UPTRAIN
    if not whole:  # a smoke run replaces neither shipped weights nor results
        folder = folder / f"uptrain-{recipe.steps}"
    base, text = start()
    for name in dict.fromkeys(one for given in options.names for one in sets.get(given, (given,))):
        model, result = run(name, base, text, recipe, folder)
        ships = whole and name in SHIPPED
        out = (FOLDER if ships else folder) / f"gptlite-{name}.safetensors"
        figures = {"validation_loss": f"{average(result.after).value:.4f}"}
        figures["validation_loss_before"] = f"{average(result.before).value:.4f}"
        save(model, text.characters, recipe, figures, out, GPTLITE if ships else None)
        print(f"{name}: saved to {out}")
    print(*table(results(folder)), sep="\n")


if __name__ == "__main__":
    main()
