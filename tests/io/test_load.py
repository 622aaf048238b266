"""`lumen.load`: every kind of name, the folder that is made once, and what happens when it is damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lumen import assets
from lumen.config import CONFIGS
from lumen.io import safetensors
from lumen.io.convert import hf_folder, hf_model
from lumen.io.errors import BadFile
from lumen.io.load import _blank, _gptlite, load
from lumen.models import GPTlite, Llama
from lumen.models.weights import to_hf_state

CPU = torch.device("cpu")


def logits(model: Llama) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[5, 0, 200, 17]]))


@pytest.fixture
def tiny_folder(tiny_gguf: Path, tmp_path: Path) -> Path:
    return hf_folder(tiny_gguf, "tiny", tmp_path / "cache")


def test_a_folder_and_its_gguf_are_the_same_model(tiny_gguf: Path, tiny_folder: Path) -> None:
    direct, folder = load(tiny_gguf, "cpu"), load(tiny_folder, "cpu")
    assert torch.equal(logits(direct.model), logits(folder.model))
    assert direct.tokenizer.encode("the <|im_end|> 12") == folder.tokenizer.encode("the <|im_end|> 12")
    assert direct.tokenizer.eos_ids == folder.tokenizer.eos_ids == {0, 2}
    assert direct.model.config.eos_ids == folder.model.config.eos_ids == (2, 0)
    assert folder.model.config.with_(name="", source="") == direct.model.config.with_(name="", source="")
    assert not folder.model.training and not any(p.requires_grad for p in folder.model.parameters())


def test_transformers_reads_the_folder_as_it_is(tiny_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    ours = load(tiny_folder, "cpu")
    theirs = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert theirs.dtype == torch.float32
    with torch.no_grad():
        expected = theirs(torch.tensor([[5, 0, 200, 17]])).logits
    torch.testing.assert_close(logits(ours.model), expected, rtol=1e-4, atol=1e-4)
    messages = [{"role": "user", "content": "the 12"}]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.tokenizer.apply_chat(messages) == ids
    assert GenerationConfig.from_pretrained(tiny_folder).eos_token_id == [2, 0]


def test_transformers_computes_with_the_same_numbers(tmp_path: Path, smollm_gguf: Path) -> None:
    """`hf_model`: no folder, and what transformers would read from one, weights and generation settings."""
    from transformers import AutoModelForCausalLM

    made = hf_model("smollm2-135m")
    assert made.dtype == torch.float32 and made.lm_head.weight is made.model.embed_tokens.weight
    read = AutoModelForCausalLM.from_pretrained(hf_folder(smollm_gguf, "smollm", tmp_path))
    theirs, state = made.state_dict(), read.state_dict()
    assert theirs.keys() == state.keys() and all(torch.equal(theirs[name], state[name]) for name in state)
    assert made.generation_config.to_dict() == read.generation_config.to_dict()


def test_smollm_speaks_and_one_copy_of_it_is_kept(smollm_gguf: Path, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """98 MB lie in the cache after a load, the GGUF file and nothing beside it."""
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path))
    asset = assets.ASSETS["smollm2-135m"]
    (tmp_path / "assets").mkdir()
    shutil.copytree(smollm_gguf.parent, tmp_path / "assets" / asset.name)
    model, tokenizer = load("smollm2-135m", "cpu")
    kept = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert kept < 1.001 * asset.unpacked_bytes
    assert model.config.with_(source="") == CONFIGS["smollm2-135m"].with_(source="")
    prompt = tokenizer.apply_chat(
        [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
    )
    ids = list(prompt)
    with torch.no_grad():
        while ids[-1] not in tokenizer.eos_ids or len(ids) == len(prompt):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            assert len(ids) < len(prompt) + 20
    assert tokenizer.decode(ids[len(prompt) :]) == "The capital of France is Paris."


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(tiny_folder: Path, dtype: torch.dtype) -> None:
    model = load(tiny_folder, "cpu", dtype).model
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.rope_cos.dtype == torch.float32, "angles stay in fp32 (T12)"
    reference = load(tiny_folder, "cpu").model
    error = (logits(model).float() - logits(reference)).norm() / logits(reference).norm()
    assert error < 0.05


def damaged(folder: Path, how: str) -> None:
    if how == "weights cut short":
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-7])
    elif how == "weights of ones":
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-8192] + b"\xff" * 4096 + whole[-4096:])
    elif how == "tokenizer gone":
        (folder / "tokenizer.json").unlink()
    elif how == "no manifest":
        (folder / "lumen-manifest.json").unlink()
    elif how == "manifest is no JSON":
        (folder / "lumen-manifest.json").write_text("{")
    elif how == "a file in its place":
        shutil.rmtree(folder)
        folder.write_text("x")


@pytest.mark.parametrize(
    "how",
    [
        "weights cut short",
        "weights of ones",
        "tokenizer gone",
        "no manifest",
        "manifest is no JSON",
        "a file in its place",
    ],
)
def test_a_damaged_folder_is_made_again_and_said_so(tiny_gguf, tiny_folder, capsys, how: str) -> None:  # type: ignore[no-untyped-def]
    before = logits(load(tiny_folder, "cpu").model)
    damaged(tiny_folder, how)
    assert hf_folder(tiny_gguf, "tiny", tiny_folder.parent.parent) == tiny_folder
    assert "making it again" in capsys.readouterr().err
    assert torch.equal(logits(load(tiny_folder, "cpu").model), before)


def test_a_conversion_that_fails_leaves_nothing(tiny_gguf: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(tiny_gguf.read_bytes()[:-1000])
    with pytest.raises(BadFile):
        hf_folder(bad, "bad", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_disk_that_is_too_small_is_noticed_before_writing(tiny_gguf, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from lumen.assets import store

    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(assets.AssetError, match="LUMEN_CACHE"):
        hf_folder(tiny_gguf, "tiny", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_two_processes_at_once_make_it_once(tiny_gguf: Path, tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from types import SimpleNamespace
from lumen.io import convert
real = convert._convert
def slow(*args):
    with open({str(tmp_path / "log")!r}, "a") as log: log.write("made\\n")
    time.sleep(1)
    real(*args)
convert._convert = slow
folder = convert.hf_folder(Path({str(tiny_gguf)!r}), "tiny", Path({str(tmp_path / "cache")!r}))
from lumen.io.load import load
print(load(folder, "cpu").model.config.num_layers)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate(timeout=600)[0].strip() for process in processes] == ["2", "2"]
    assert (tmp_path / "log").read_text() == "made\n"


def edit(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_config_that_is_silent_about_tying_is_overruled_by_the_weights(tiny_folder: Path) -> None:
    before = logits(load(tiny_folder, "cpu").model)
    edit(tiny_folder, tie_word_embeddings=False)
    loaded = load(tiny_folder, "cpu")
    assert loaded.model.config.tied and torch.equal(logits(loaded.model), before)


def test_a_second_copy_of_the_head_is_the_head_only_if_it_differs(tiny_folder: Path) -> None:
    """Without its own head an untied model speaks gibberish, and a copy of the embedding costs a fifth of SmolLM2."""
    before = load(tiny_folder, "cpu").model
    state = safetensors.read_folder(tiny_folder)
    embed = state[safetensors.EMBED].clone()
    for head, tied in ((embed, True), (embed.flip(0), False)):
        safetensors.write(tiny_folder / "model.safetensors", {**state, safetensors.HEAD: head})
        model = load(tiny_folder, "cpu").model
        assert model.config.tied is tied
        assert torch.equal(logits(model), logits(before)) is tied
        if not tied:
            torch.testing.assert_close(logits(model), logits(before).flip(-1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' model"),
        ({"model_type": None}, "None model"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 8}}, "scales its rotary positions"),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 2}},
            "scales its rotary positions",
        ),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "stored quantized"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"num_hidden_layers": 3}, "missing: model.layers.2"),
        ({"num_hidden_layers": 1}, "not part of this model: model.layers.1"),
        ({"intermediate_size": 31}, "wrong shape: model.layers.0.mlp"),
    ],
)
def test_configs_that_do_not_fit_are_named(tiny_folder: Path, changes: dict[str, object], words: str) -> None:
    edit(tiny_folder, **changes)
    with pytest.raises(BadFile, match=words):
        load(tiny_folder, "cpu")


def test_names_that_point_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no model 'smollm': use 'smollm2-135m'"):
        load("smollm")
    with pytest.raises(ValueError, match="There is no model 'shakespeare'"):
        load("shakespeare")
    with pytest.raises(BadFile, match="There is no file"):
        load(tmp_path / "x.gguf")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadFile, match=r"neither a \.gguf file nor a folder"):
        load(tmp_path / "notes.txt")
    with pytest.raises(BadFile, match=r"no config\.json"):
        load(tmp_path)


def test_a_hub_id_is_asked_for_safetensors_and_json_only(tiny_folder: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import huggingface_hub

    asked = {}

    def snapshot(repository: str, **patterns: list[str]) -> str:
        asked.update(patterns, repository=repository)
        return str(tiny_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    loaded = load("owner/name", "cpu")
    assert loaded.model.config.name == "owner/name" and asked["repository"] == "owner/name"
    assert all(pattern.endswith((".safetensors", ".json", ".jinja")) for pattern in asked["allow_patterns"])


def test_a_hub_that_cannot_be_reached_gets_a_sentence(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(assets.AssetError, match="check the name and the network"):
        load("owner/name", "cpu")


SMALL = CONFIGS["gptlite"].with_(
    vocab_size=4, num_layers=1, hidden_size=16, num_heads=2, num_kv_heads=2, head_dim=8, intermediate_size=16
)


def write_gptlite(path: Path, **changes: str) -> GPTlite:
    from dataclasses import asdict

    model = GPTlite(SMALL)
    state = {name: value.half() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    safetensors.write(
        path, state, {"config": json.dumps(asdict(SMALL)), "characters": json.dumps("\n ab"), **changes}
    )
    return model.half().float().eval()


def test_gptlite_comes_with_its_characters(tmp_path: Path) -> None:
    expected = write_gptlite(tmp_path / "g.safetensors")
    model, tokenizer = _gptlite(tmp_path / "g.safetensors", CPU, torch.float32)
    assert model.config == SMALL and tokenizer.encode("ba\n") == [3, 2, 0]
    tokens = torch.tensor([tokenizer.encode("ab ab")])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), expected(tokens))
    assert model.lm_head.weight is model.embed.weight


@pytest.mark.parametrize(
    "changes",
    [
        {"config": "{"},
        {"config": "[]"},
        {"config": '{"name": "x"}'},
        {"characters": '"aa"'},
        {"characters": "7"},
    ],
)
def test_a_gptlite_that_does_not_describe_itself(tmp_path: Path, changes: dict[str, str]) -> None:
    write_gptlite(tmp_path / "g.safetensors", **changes)
    with pytest.raises(BadFile, match="make checkpoints"):
        _gptlite(tmp_path / "g.safetensors", CPU, torch.float32)


def test_a_gptlite_that_lacks_a_tensor_or_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with pytest.raises(BadFile, match="make checkpoints"):
        _gptlite(path, CPU, torch.float32)
    write_gptlite(path)
    state, metadata = safetensors.read(path)
    for name in list(state):
        rest = {other: value.clone() for other, value in state.items() if other != name}
        safetensors.write(path, rest, {key: metadata[key] for key in ("config", "characters")})
        with pytest.raises(BadFile, match="does not fit its own description"):
            _gptlite(path, CPU, torch.float32)


def test_blank_models_draw_nothing_and_are_filled_completely(tiny_folder: Path) -> None:
    """Skipping the random start is safe because every parameter is then read: two loads over dirty memory agree."""
    before = torch.random.get_rng_state()
    _blank(Llama, load(tiny_folder, "cpu").model.config, CPU, torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)
    state = to_hf_state(load(tiny_folder, "cpu").model)
    junk = [torch.full((100_000,), float("nan")) for _ in range(20)]
    del junk
    again = to_hf_state(load(tiny_folder, "cpu").model)
    assert all(torch.equal(state[name], again[name]) for name in state)


def test_import_of_assets_needs_no_torch() -> None:
    code = "import sys, lumen.assets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0


def test_a_model_loaded_under_inference_mode_is_as_fast_as_any():
    """Weights made there count no writes, so linear layers would not pack them: decode was a quarter slower."""
    with torch.inference_mode():
        model, _ = load("gptlite", device="cpu")
    assert not any(weight.is_inference() for weight in model.parameters())
