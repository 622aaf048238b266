"""Weights in one file, in shards, tied, with a second copy of the head; and nothing half-written, nothing executed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from lumen.io import safetensors
from lumen.io.errors import BadFile
from lumen.io.safetensors import EMBED, HEAD

STATE = {EMBED: torch.randn(5, 4), "model.norm.weight": torch.randn(4)}


def write_shards(folder: Path, **index: str) -> None:
    places = {}
    for i, (name, value) in enumerate(STATE.items()):
        shard = f"model-{i + 1:05}-of-00002.safetensors"
        safetensors.write(folder / shard, {name: value})
        places[name] = shard
    text = json.dumps({"metadata": {"total_size": 96}, "weight_map": {**places, **index}})
    (folder / "model.safetensors.index.json").write_text(text)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_one_file_and_shards_hold_the_same(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    safetensors.write(tmp_path / "one/model.safetensors", STATE)
    write_shards(tmp_path / "two")
    assert same(safetensors.read_folder(tmp_path / "one"), STATE)
    assert same(safetensors.read_folder(tmp_path / "two"), STATE)


def test_metadata_comes_back_and_dtypes_change_only_for_floats(tmp_path: Path) -> None:
    state = {"w": torch.randn(3, dtype=torch.bfloat16), "ids": torch.arange(3)}
    safetensors.write(tmp_path / "x.safetensors", state, {"config": '{"a": 1}'})
    tensors, metadata = safetensors.read(tmp_path / "x.safetensors", torch.float32)
    assert tensors["w"].dtype == torch.float32 and tensors["ids"].dtype == torch.int64
    assert torch.equal(tensors["w"], state["w"].float())
    assert json.loads(metadata["config"]) == {"a": 1}


@pytest.mark.parametrize(
    ("head", "tied"),
    [(None, True), (STATE[EMBED].clone(), True), (STATE[EMBED] + 1e-6, False), (torch.zeros(5, 3), False)],
)
def test_the_weights_say_whether_the_head_is_tied(head: torch.Tensor | None, tied: bool) -> None:
    state = STATE if head is None else {**STATE, HEAD: head}
    assert safetensors.is_tied(state) is tied


def test_views_of_one_matrix_are_written_as_they_are(tmp_path: Path) -> None:
    """The library refuses tensors that share storage; q, k and v are rows of one matrix here."""
    fused = torch.randn(6, 4)
    parts = {"q": fused[:3], "k": fused[3:5], "v": fused[5:], "t": fused.T}
    safetensors.write(tmp_path / "x.safetensors", parts)
    assert same(safetensors.read(tmp_path / "x.safetensors")[0], parts)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.safetensors"
    safetensors.write(path, STATE)
    before = path.read_bytes()

    def half(tensors: object, file: str, metadata: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors, "save_file", half)
    with pytest.raises(OSError, match="No space"):
        safetensors.write(path, {"w": torch.ones(3)})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


class Bomb:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (Path("/tmp/lumen-bomb").touch, ())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_unopened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadFile, match="pickle, and opening one runs it"):
        safetensors.read(tmp_path / name)
    with pytest.raises(BadFile, match="pickle, and opening one runs it"):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "shard", "words"),
    [
        ("extra", "model-00001-of-00002.safetensors", "lacks extra"),
        ("extra", "absent.safetensors", "There is no file"),
        ("extra", "../x.safetensors", "not a safetensors file in the same folder"),
        ("extra", "/etc/passwd", "not a safetensors file in the same folder"),
        ("extra", "weights.bin", "not a safetensors file in the same folder"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, name: str, shard: str, words: str) -> None:
    write_shards(tmp_path, **{name: shard})
    with pytest.raises(BadFile, match=words):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadFile):
        safetensors.read_folder(tmp_path)


def test_a_folder_without_weights_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"neither model\.safetensors nor"):
        safetensors.read_folder(tmp_path)
