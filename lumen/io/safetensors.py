"""Weights in safetensors files, one or many: read without running anything, written all or nothing.

A safetensors file is eight bytes of length, a JSON table of names, types, shapes and offsets, and raw
numbers. The library compares the table with the file before it maps a byte, so a lie about sizes is an
error, not a crash. The older `.bin` and `.pt` files are Python pickles, which are programs: opening one
runs it. They are refused.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import BadFile
from .tokenizer_files import read_json

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def read(
    path: str | os.PathLike[str], dtype: torch.dtype | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`(tensors, metadata)` of one file, on the CPU; floating tensors in `dtype` if given. Raises BadFile.

    Tensors in their stored dtype are windows on the mapped file: copy them before you write to them.
    """
    path = Path(path)
    _refuse_pickle(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise BadFile(f"There is no file {path}.") from None
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise BadFile(f"{path} is no whole safetensors file ({error}); fetch it again.") from error
    if dtype is not None:
        tensors = {
            name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()
        }
    return tensors, metadata


def read_folder(folder: str | os.PathLike[str], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """All weights of a Hugging Face folder: `model.safetensors`, or the shards its index names."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return read(folder / "model.safetensors", dtype)[0]
    if not index.exists():
        for pickle in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")):
            _refuse_pickle(pickle)
        raise BadFile(f"{folder} has neither model.safetensors nor model.safetensors.index.json.")
    places = read_json(index).get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(shard, str) for shard in places.values())
    ):
        raise BadFile(f"{index} has no weight_map of tensor names to shard files. Fetch it again.")
    state: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise BadFile(f"{index} names {shard!r}, which is not a safetensors file in the same folder.")
        tensors, _ = read(folder / shard, dtype)
        wanted = {name for name, place in places.items() if place == shard}
        if absent := sorted(wanted - tensors.keys()):
            raise BadFile(
                f"{folder / shard} lacks {', '.join(absent[:4])}, against its index. Fetch it again."
            )
        state |= {name: tensors[name] for name in wanted}
    return state


def is_tied(state: dict[str, Tensor]) -> bool:
    """Is the output head the embedding? Yes if there is no head, or one equal to it in every value."""
    head, embed = state.get(HEAD), state.get(EMBED)
    return head is None or (embed is not None and head.shape == embed.shape and torch.equal(head, embed))


def write(
    path: str | os.PathLike[str], state: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write `state` to `path`; readers see the old file or the whole new one, nothing between.

    Tensors that share storage (a tied head) are stored once each under their own name; drop the head to
    keep one. Raises OSError with a sentence for a full disk or a forbidden folder; the old file is still there then.
    """
    path = Path(path)
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    storages = {value.untyped_storage().data_ptr() for value in tensors.values()}
    if len(storages) < len(tensors):  # views of one matrix, such as our fused q, k, v
        tensors = {name: value.clone() for name, value in tensors.items()}
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        save_file(tensors, scratch, metadata={"format": "pt", **(metadata or {})})
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        if code := _system_error(error):
            raise OSError(
                code,
                f"{path} cannot be written: {os.strerror(code)}; free some space or choose another folder. What stood "
                "there before is untouched",
            ) from error
        raise
    finally:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)


def _system_error(error: Exception) -> int | None:
    """The system's number of an error; the library, written in Rust, says it in words: (os error 28)."""
    said = re.search(r"\(os error (\d+)\)", str(error))
    return error.errno if isinstance(error, OSError) else int(said[1]) if said else None


def _refuse_pickle(path: Path) -> None:
    if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
        raise BadFile(
            f"{path.name} is a Python pickle, and opening one runs it; ask for this model's safetensors file."
        )
