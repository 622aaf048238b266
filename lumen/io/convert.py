"""A GGUF file, made once into a Hugging Face folder in the cache, so that later loads only map numbers.

The folder is what transformers, vLLM and this package read alike: config.json, generation_config.json,
tokenizer.json, tokenizer_config.json, chat_template.jinja, model.safetensors (fp32).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tqdm import tqdm

from ..assets.store import building, damage, disk_errors, lock, need_space, note, write_manifest
from . import gguf, hf_config, safetensors, tokenizer_files
from .gguf_header import read_header

FORMAT = 1  # raise it when the files below change, and every cache is made again


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
    header = read_header(gguf_file)
    config = gguf.config_of(header, name)
    tokenizer = tokenizer_files.from_gguf(header, gguf_file.name)
    values = sum(torch.Size(tensor.shape).numel() for tensor in header.tensors.values())
    need_space(4 * values, f"{name} in fp32", folder)
    rows = gguf.read_state(gguf_file, header, config)
    shown = tqdm(rows, desc=f"unpacking {name}", total=len(header.tensors), unit=" tensors", leave=False)
    state = {theirs: torch.from_numpy(value) for theirs, value in shown}
    safetensors.write(folder / "model.safetensors", state)
    tokenizer_files.write_folder(tokenizer, folder, config.max_positions)
    pad_id = tokenizer.eos_id
    for file, content in (
        ("config.json", hf_config.to_hf(config, pad_id)),
        (
            "generation_config.json",
            {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids), "pad_token_id": pad_id},
        ),
    ):
        (folder / file).write_text(json.dumps(content, indent=1), encoding="utf-8")
