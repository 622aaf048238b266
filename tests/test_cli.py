"""The command line as a new user would type it, in process, with the real model."""

from __future__ import annotations

import builtins

import pytest

from lumen import cli
from lumen.cli import commands


@pytest.fixture(autouse=True)
def one_load(monkeypatch, loaded, request):
    """The model is loaded once for all tests, and no test waits for this machine to be measured."""
    import lumen.io.load
    from lumen.hardware import Chip

    chip = Chip("test chip", flops={"fp32": 1e11}, bandwidth=3e10, memory=1e10)
    monkeypatch.setattr(commands, "_ceiling", lambda: chip)
    original = lumen.io.load.load
    monkeypatch.setattr(
        lumen.io.load, "load", lambda name: loaded if name == commands.DEFAULT_MODEL else original(name)
    )


def test_generate_answers_and_reports_speed_bytes_and_share(capsys):
    assert cli.main(["generate", "What is the capital of France?", "--max-new-tokens", "12"]) == 0
    out, err = capsys.readouterr()
    assert "Paris" in out
    for word in (
        "prompt tokens",
        "first token after",
        "tokens/s",
        "MB per token",
        "GB/s",
        "of the measured ceiling",
    ):
        assert word in err


def test_raw_continues_the_text_and_a_stop_ends_it(capsys):
    assert (
        cli.main(["generate", "One, two, three,", "--raw", "--max-new-tokens", "12", "--stop", "five"]) == 0
    )
    assert "five" not in capsys.readouterr().out


def test_a_seed_gives_the_same_text_twice(capsys):
    command = ["generate", "Name a colour.", "--temperature", "1", "--seed", "7", "--max-new-tokens", "8"]
    cli.main(command)
    first = capsys.readouterr().out
    cli.main(command)
    assert capsys.readouterr().out == first


def test_chat_remembers_the_conversation_and_ends_on_an_empty_line(monkeypatch, capsys, loaded):
    lines = iter(["My name is Ada.", "What is my name?", ""])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    seen = []
    original = loaded.tokenizer.apply_chat
    monkeypatch.setattr(loaded.tokenizer, "apply_chat", lambda m: seen.append(len(m)) or original(m))
    assert cli.main(["chat", "--max-new-tokens", "4"]) == 0
    assert seen == [1, 3]
    capsys.readouterr()


def test_info_names_the_models_and_their_bytes(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "smollm2-135m: 134.5 M parameters" in out and "45.0 KiB of cache per token" in out


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["generate", "x", "--model", "no-such-model"], "There is no model 'no-such-model'"),
        (["generate", "x", "--temperature", "-1"], "temperature must be"),
        (["generate", "", "--raw"], "empty"),
        (["generate", "x", "--max-new-tokens", "9000"], "8192 positions"),
        (["roofline", "--model", "gpt-9"], "There is no configuration 'gpt-9'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert sentence in err and "Traceback" not in err and err.startswith("lumen: ")


def test_a_count_of_zero_is_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "x", "--max-new-tokens", "0"])
    assert (
        ended.value.code == 2 and "--max-new-tokens: needs a whole number from 1" in capsys.readouterr().err
    )
