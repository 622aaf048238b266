"""The same numbers for other engines: transformers' own model in memory, or a Hugging Face folder.

`load` needs neither: it unpacks the GGUF file into the model. A folder is made only when it is asked for, by a peer
that starts from files (vLLM); SmolLM2's takes 538 MB, for fp32 needs five times the room of four bits. It holds what
transformers, vLLM and this package read alike: config.json, generation_config.json, tokenizer.json,
tokenizer_config.json, chat_template.jinja, model.safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..assets import path
from ..assets.store import building, damage, disk_errors, lock, need_space, note, write_manifest
from ..config import ModelConfig
from . import gguf, hf_config, safetensors, tokenizer_files
from .numbers import check_numbers

FORMAT = 2  # raise it when the files below change, and every cache is made again


def hf_model(name: str = "smollm2-135m", device: Any = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """transformers' implementation of the asset `name`, with the numbers that `load` uses. Nothing is written.

    The code that computes is theirs alone; only the unpacked weights and the shape are handed over. Needs
    `transformers`, which `lumen` itself does without.
    """
    import transformers

    file = path(name)
    header, config = gguf.read_config(file, name)
    state = {theirs: torch.from_numpy(value) for theirs, value in gguf.read_state(file, header, config)}
    check_numbers(state.items(), file.name)
    settings = hf_config.to_hf(config, _pad(config))
    kind = getattr(transformers, settings["architectures"][0])
    described = kind.config_class.from_dict(settings)
    model = kind.from_pretrained(None, config=described, state_dict=state)
    model.generation_config = transformers.GenerationConfig.from_dict(_generation(config))
    return model.to(device, dtype).eval().requires_grad_(False)


def hf_folder(gguf_file: Path, name: str, cache: Path) -> Path:
    """The folder for `gguf_file`, made if absent, damaged or of another file. Safe in many processes."""
    folder = cache / "models" / name
    origin = f"format {FORMAT}, {gguf_file.name}, {gguf_file.stat().st_size} bytes"
    if damage(folder, origin) is not None:
        with disk_errors(name, cache), lock(cache, f"{name}-folder"):
            fault = damage(folder, origin)
            if fault:
                note(f"{folder} is damaged ({fault}); making it again.")
            if fault is not None:
                with building(folder) as scratch:
                    _convert(gguf_file, name, scratch)
                    write_manifest(scratch, origin)
    return folder


def _convert(gguf_file: Path, name: str, folder: Path) -> None:
    header, config = gguf.read_config(gguf_file, name)
    tokenizer = tokenizer_files.from_gguf(header, gguf_file.name)
    values = sum(torch.Size(tensor.shape).numel() for tensor in header.tensors.values())
    need_space(4 * values, f"{name} in fp32", folder)
    rows = gguf.read_state(gguf_file, header, config)
    shown = tqdm(rows, desc=f"unpacking {name}", total=len(header.tensors), unit=" tensors", leave=False)
    state = {theirs: torch.from_numpy(value) for theirs, value in shown}
    check_numbers(state.items(), gguf_file.name)
    safetensors.write(folder / "model.safetensors", state)
    tokenizer_files.write_folder(tokenizer, folder, config.max_positions)
    for file, content in (
        ("config.json", hf_config.to_hf(config, _pad(config))),
        ("generation_config.json", _generation(config)),
    ):
        (folder / file).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _pad(config: ModelConfig) -> int | None:
    """transformers wants an id to fill up with; the one that ends an answer is what the model's authors name."""
    return config.eos_ids[0] if config.eos_ids else None


def _generation(config: ModelConfig) -> dict[str, Any]:
    return {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids), "pad_token_id": _pad(config)}
