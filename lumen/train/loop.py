"""The training loop of every recipe: stopped anywhere, it goes on as if it had never been stopped.

AdamW (Loshchilov and Hutter 2019) with betas 0.9 and 0.95, no decay on norms and biases, linear warm-up, cosine decay,
gradients clipped at norm 1. What a step learns from is a function of its number, so weights and moments are all that is
kept: in one file, replaced whole, every `save_every` steps.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result beside model and text. Lengths in tokens, rates per step.

    `first` is the number of the first batch in the stream of `seed`: training that goes on where another ended sees
    what came next and not the same again.
    """

    steps: int = 1500
    batch: int = 16
    context: int = 256
    peak_lr: float = 2e-3
    final_lr: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        for field, least in (("steps", 1), ("batch", 1), ("context", 1), ("warmup", 0), ("first", 0)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"Recipe.{field} must be a whole number from {least}, got {value!r}.")
        if not 0 < self.final_lr <= self.peak_lr < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                "A learning rate falls from peak_lr to final_lr, both above 0, and weight_decay is not below 0; got "
                f"{self.peak_lr}, {self.final_lr} and {self.weight_decay}."
            )


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear up to the peak over `warmup` steps, then half a cosine down to the final rate."""
    if step < recipe.warmup:
        return recipe.peak_lr * (step + 1) / recipe.warmup
    share = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.final_lr + 0.5 * (recipe.peak_lr - recipe.final_lr) * (1 + math.cos(math.pi * share))


def train(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    recipe: Recipe,
    state_file: Path,
    *,
    name: str = "train",
    watch: Callable[[], float] | None = None,
    save_every: int = 50,
) -> None:
    """Run the recipe on `model` in place, or finish it where `state_file` says that it was stopped.

    `loss(step)` is the scalar to lower at a step, computed by this model. `watch()` is a validation loss, shown now and
    then. A state of another recipe or another start is passed over and replaced. ValueError for a file that is no state
    and FloatingPointError for a loss that is no number; what was saved before stays.
    """
    model.train().requires_grad_(True)
    start = fingerprint(model)
    optimizer = _optimizer(model, recipe)
    done = _resumed(model, optimizer, recipe, start, state_file)
    bar = tqdm(
        range(done, recipe.steps), initial=done, total=recipe.steps, desc=name, unit="step", mininterval=5
    )
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        now = loss(step)
        shown = float(now.detach())
        if not math.isfinite(shown):
            raise FloatingPointError(
                f"The loss of {name} is {shown} at step {step}. Lower peak_lr or lengthen warmup; the state of step "
                f"{step - step % save_every} is kept."
            )
        optimizer.zero_grad(set_to_none=True)
        now.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{shown:.3f}", refresh=False)
        if (step + 1) % save_every == 0 or step + 1 == recipe.steps:
            state = {"recipe": asdict(recipe), "start": start, "step": step + 1}
            state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            _save(state, state_file)
            if watch is not None and (step + 1) % (4 * save_every) == 0:
                bar.write(f"step {step + 1}: validation loss {watch():.3f}")
    model.eval()


def fingerprint(model: nn.Module) -> str:
    """A digest of every parameter and buffer that a model saves: the same for the same numbers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.95))


def _resumed(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, start: str, file: Path
) -> int:
    """Steps that the state in `file` has done of this recipe from this start; its weights and moments are loaded."""
    if not file.exists():
        return 0
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True)
        kept = (
            asdict(Recipe()) | state["recipe"],
            state.get("start", start),
        )  # older states lack what came later
        if kept != (asdict(recipe), start):
            return 0
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])
    except (
        EOFError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        raise ValueError(
            f"{file} is no state of a training run ({type(error).__name__}); delete it to start from the beginning."
        ) from error


def _save(state: dict[str, Any], file: Path) -> None:
    """The old state or the whole new one, nothing between; no scratch is left behind by a disk that is full."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    try:
        torch.save(state, fresh)
        os.replace(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
