"""The recipe of `gptlite`: a character model of 4.8 million parameters on Shakespeare's plays.

    python -m lumen.train.gptlite                 # half an hour on two quiet cores; stop and start it as you like
    python -m lumen.train.gptlite --steps 20      # a smoke run

AdamW (Loshchilov and Hutter 2019), linear warm-up, cosine decay, gradients clipped at norm 1, fp32. Progress is
kept in `$LUMEN_CACHE/train/gptlite.pt`; the finished weights go to `lumen/checkpoints/gptlite.safetensors` in
fp16, with the configuration, the alphabet and the validation loss in the file's metadata.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from .. import assets
from ..io import safetensors
from ..models import CONFIGS, GPTlite

OUT = Path(__file__).parent.parent / "checkpoints" / "gptlite.safetensors"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result. Lengths in tokens (here: characters)."""

    steps: int = 1500
    batch: int = 16
    context: int = 256
    peak_lr: float = 2e-3
    final_lr: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    seed: int = 0


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear up to the peak over `warmup` steps, then half a cosine down to the final rate."""
    if step < recipe.warmup:
        return recipe.peak_lr * (step + 1) / recipe.warmup
    share = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.final_lr + 0.5 * (recipe.peak_lr - recipe.final_lr) * (1 + math.cos(math.pi * share))


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


def encode(text: str, characters: str) -> Tensor:
    """Characters to ids, int64 (N,)."""
    ids = {c: i for i, c in enumerate(characters)}
    return torch.tensor([ids[c] for c in text])


def loss_of(model: GPTlite, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in nats per character over a batch (B, T + 1)."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: GPTlite, text: Tensor, context: int, windows: int | None = None) -> float:
    """Mean cross-entropy in nats per character over non-overlapping windows of `context` (all, or the first few)."""
    model.eval()
    count = (len(text) - 1) // context
    count = count if windows is None else min(windows, count)
    total = 0.0
    for first in range(0, count, 32):
        starts = range(first, min(first + 32, count))
        batch = torch.stack([text[i * context : i * context + context + 1] for i in starts])
        total += float(loss_of(model, batch)) * len(starts)
    model.train()
    return total / count


def batch_at(text: Tensor, recipe: Recipe, step: int) -> Tensor:
    """The random windows of one step (B, T + 1); a function of the step, so that a resumed run sees the same ones."""
    stream = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - recipe.context - 1, (recipe.batch,), generator=stream)
    return torch.stack([text[s : s + recipe.context + 1] for s in starts.tolist()])


def train(recipe: Recipe, state_file: Path, save_every: int = 50) -> tuple[GPTlite, str, float]:
    """Run or resume the recipe; returns the model, its alphabet and its loss on the whole validation text."""
    train_text, valid_text = assets.shakespeare()
    characters = "".join(sorted(set(train_text) | set(valid_text)))
    train_ids, valid_ids = encode(train_text, characters), encode(valid_text, characters)
    model = new_model(len(characters), recipe.seed)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.peak_lr, betas=(0.9, 0.95),
    )  # fmt: skip
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        if state["recipe"] == asdict(recipe):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first = state["step"]
    bar = tqdm(
        range(first, recipe.steps),
        initial=first,
        total=recipe.steps,
        desc="gptlite",
        unit="step",
        mininterval=5,
    )
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        loss = loss_of(model, batch_at(train_ids, recipe, step))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{float(loss.detach()):.3f}", refresh=False)
        if (step + 1) % save_every == 0 or step + 1 == recipe.steps:
            state_file.parent.mkdir(parents=True, exist_ok=True)
            fresh = state_file.with_suffix(".tmp")
            state = {"recipe": asdict(recipe), "step": step + 1}
            try:
                torch.save(state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
                os.replace(fresh, state_file)
            finally:
                fresh.unlink(missing_ok=True)  # of a disk that is full
            if (step + 1) % (4 * save_every) == 0:
                bar.write(
                    f"step {step + 1}: validation loss {validation_loss(model, valid_ids, recipe.context, 64):.3f}"
                )
    return model.eval(), characters, validation_loss(model, valid_ids, recipe.context)


def save(model: GPTlite, characters: str, recipe: Recipe, loss: float, path: Path) -> None:
    """Weights in fp16 (the tied head once) and what is needed to read them, in one safetensors file."""
    tensors = {
        k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }
    metadata = {
        "config": json.dumps(asdict(model.config)),
        "characters": json.dumps(characters),
        "recipe": json.dumps(asdict(recipe)),
        "validation_loss": f"{loss:.4f}",
    }
    safetensors.write(path, tensors, metadata)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train gptlite on Shakespeare's plays; resumes where it was stopped."
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    recipe = Recipe(steps=options.steps)
    model, characters, loss = train(recipe, assets.cache_dir() / "train" / "gptlite.pt")
    save(model, characters, recipe, loss, options.out)
    print(
        f"gptlite: {recipe.steps} steps, validation loss {loss:.4f} nats per character, saved to {options.out}"
    )


if __name__ == "__main__":
    main()
