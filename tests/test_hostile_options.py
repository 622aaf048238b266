"""Every option of every command with values that are none: one sentence, the right exit status, nothing else.

The options are asked of the parser itself, so one that is added is tested, too. No command gets anywhere: each is also
given a model, a tokenizer or a server that is not there.
"""

from __future__ import annotations

import argparse
import re

import pytest

from lumen import cli
from lumen.arguments import Number, Whole, file_name, path, place, quoted, size, text

BAD = ["", " ", "-1", "nan", "inf", "1e400", "9" * 5000, "2147483648", "-0x1", "1_0", "\0", "~nobody-here/x",
       "a\nb\x1b[31mc\u2028", "\ud800\udcff", "[" * 3000]  # fmt: skip
HOSTS = ["", " ", "[", "[]", "a\0", "a..b", "\udcff", "é" * 70]  # none of them asks a name server
NOWHERE = {
    "generate": ["x", "--model", "/no/such.gguf"],
    "chat": ["--model", "/no/such.gguf"],
    "roofline": ["--model", "no such"],
    "serve": ["--model", "/no/such.gguf", "--port", "0"],
    "load": ["--tokenizer", "/no/such", "--base-url", "http://127.0.0.1:9", "--save-result"],
}


@pytest.fixture(scope="module")
def grammar():
    return cli.parser()


def commands(grammar) -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in grammar._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def status(grammar, words: list[str]) -> int:
    try:
        return cli.run(grammar.parse_args(words))
    except SystemExit as ended:
        return ended.code


def one_sentence(err: str) -> bool:
    """One line, or two with argparse's hint; no trace, no name of a function, nothing that a terminal would obey."""
    lines = err.splitlines()
    return (
        err.endswith("\n")
        and len(lines) == 1 + lines[-1].startswith("Try `lumen")
        and all(line.isprintable() and line for line in lines)
        and "Traceback" not in err
        and not re.search(r"(?<![\w'])_[a-z]|\bobject at\b|<class", err)
        and len(err) < 2500
    )


@pytest.mark.parametrize("name", ["generate", "chat", "roofline", "serve", "load"])
def test_every_option_with_every_bad_value(grammar, name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = 0
    for action in commands(grammar)[name]._actions:
        if action.nargs == 0:  # a flag
            continue
        for bad in HOSTS if action.dest == "host" else BAD:
            words = [name, *NOWHERE[name]]
            if action.option_strings:
                words.append(f"{action.option_strings[-1]}={bad}")
            else:  # the prompt
                words = [name, *NOWHERE[name][1:], "--", bad]
            code, (out, err) = status(grammar, words), capsys.readouterr()
            assert code in (1, 2) and not out and one_sentence(err), (words, code, err)
            if isinstance(action.type, Whole | Number) or action.type is size:
                named = f"argument {'/'.join(action.option_strings)}: needs" in err
                assert (named and code == 2) or bad in ("-1", "inf", "2147483648"), (words, err)
            tried += 1
    assert tried >= len(BAD)


def test_the_walk_reaches_every_command(grammar):
    assert {*NOWHERE, "info"} == set(commands(grammar))


@pytest.mark.parametrize(
    "words",
    [[], ["frob"], ["info", "x"], ["load", "--no-such"], ["serve", "--port"], ["generate"],
     ["generate", "x", "y\n\x1b"], ["load", "--api", "x\n"], ["serve", "--policy", "é\0"]],
)  # fmt: skip
def test_words_that_are_no_command(grammar, words, capsys):
    code, (out, err) = status(grammar, words), capsys.readouterr()
    assert code == 2 and not out and one_sentence(err), err


@pytest.mark.parametrize("columns", ["1", "0", "-5", "x", "100000"])
def test_help_at_any_width(grammar, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for name in ("", *commands(grammar)):
        with pytest.raises(SystemExit) as ended:
            grammar.parse_args([*([name] if name else []), "--help"])
        assert ended.value.code == 0 and "help" in capsys.readouterr().out


@pytest.mark.parametrize(
    "raised, code, said",
    [
        (ValueError("a\n  b"), 2, "a b"),
        (ValueError(), 2, "ValueError"),
        (OSError("full"), 1, "full"),
        (FileNotFoundError(2, "No such file or directory", "/x\n"), 1, r"No such file or directory: '/x\n'"),
        (RuntimeError("x" * 9999), 1, "x" * 2000 + " …"),
        (ModuleNotFoundError("needs uvicorn"), 1, "needs uvicorn"),
        (MemoryError(), 1, "This machine has not enough memory for that; ask for less."),
    ],
)  # fmt: skip
def test_what_a_command_raises_becomes_a_status(raised, code, said, capsys):
    def run(options):
        raise raised

    assert cli.run(argparse.Namespace(run=run)) == code
    assert capsys.readouterr().err == f"lumen: {said}\n"


def test_ctrl_c_and_a_reader_that_went_away_need_no_words(capsys):
    def run(options):
        raise options.what

    assert cli.run(argparse.Namespace(run=run, what=KeyboardInterrupt())) == 130
    assert cli.run(argparse.Namespace(run=run, what=BrokenPipeError())) == 141
    assert capsys.readouterr().err == "\n"
    assert cli.run(argparse.Namespace(run=lambda options: 7)) == 7
    with pytest.raises(TypeError):  # a bug of ours keeps its trace
        cli.run(argparse.Namespace(run=run, what=TypeError()))


def test_what_the_types_take():
    assert [Whole(0)(word) for word in ("0", " 7", "2147483647")] == [0, 7, 2**31 - 1]
    assert Number(0, 5)("5") == 5.0 and Number(0, 5, endless=True)("inf") == float("inf")
    assert (size("1.5g"), size("7 KB"), size("2TiB")) == (3 * 2**29, 7168, 2**41)
    assert text("née") == "née" and text("n\udcc3\udca9e") == "née"  # typed in UTF-8 under an ASCII locale
    assert place("gptlite") == "gptlite" and path("a/b").name == "b"
    assert quoted("a\nb") == "a\\nb" and quoted("x" * 99) == "x" * 60 + " …"
    assert file_name("../a b\n\x1b/Ünïcode-1.5") == ".._a_b_Ünïcode-1.5" and len(file_name("x" * 999)) == 100
