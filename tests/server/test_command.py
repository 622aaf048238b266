"""`lumen serve` as a new user meets it: one line when it is ready, sentences for wrong options, an orderly end."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys

import openai
import pytest

import lumen
from lumen import hardware
from lumen.decode import generate
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.server import command

from .rig import app_of, check_empty, client_of


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *words])


def test_defaults():
    found = options()
    assert (found.model, found.host, found.port) == ("smollm2-135m", "127.0.0.1", 8000)
    assert found.memory == 2**30 and found.max_body == 4 * 2**20 and found.max_queue == 256


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * 2**20), ("1.5g", 3 * 2**29), ("2GiB", 2**31), ("100", 100), ("7 KB", 7168)],
)
def test_sizes(text, size):
    assert options("--memory", text).memory == size


@pytest.mark.parametrize(
    "words",
    [("--memory", "5X"), ("--memory", "-1"), ("--memory", "0"), ("--port", "65536"), ("--port", "-1"),
     ("--grace", "nan"), ("--grace", "-1"), ("--max-seqs", "0"), ("--num-blocks", "1.5"), ("--patience", "soon"),
     ("--policy", "lazy"), ("--speculate", "medium"), ("--speculate", "ngram:2"), ("--speculate", "layers:0"),
     ("--speculate", "layers:x"), ("--speculate", "draft:"), ("--draft-tokens", "0"), ("--draft-tokens", "65")],
)  # fmt: skip
def test_wrong_options_are_named(words, capsys):
    with pytest.raises((argparse.ArgumentError, SystemExit)) as caught:
        options(*words)
    assert words[0] in str(caught.value) + capsys.readouterr().err


def test_a_taken_port_is_a_sentence_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}.*another --port"):
            command.serve_command(options("--port", str(port), "--model", "no such model"))


@pytest.mark.parametrize(
    ("host", "says"),
    [("", "0.0.0.0 for all"), ("  ", "0.0.0.0 for all"), ("[]", "0.0.0.0 for all"), ("a..b", "no name looks like that"),
     ("a\0", "There is no --host"), ("\udcff", "no name looks like that")],
)  # fmt: skip
def test_a_host_that_is_none(host, says):
    """An empty one would have meant all addresses of this machine."""
    with pytest.raises(ValueError, match=says):
        command.bind(host, 0)


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "127.0.0.1"])
def test_addresses_of_both_kinds(host):
    try:
        listener = command.bind(host, 0)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with listener:
        assert (listener.family == socket.AF_INET6) == ("::" in host)
        socket.create_connection(listener.getsockname()[:2]).close()


def test_a_name_of_both_kinds_listens_where_clients_try_first(monkeypatch):
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(command.socket, "getaddrinfo", lambda *asked, **how: list(both))
    with command.bind("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "words", [("--num-blocks", "2147483647"), ("--memory", "1024T", "--max-seqs", "2147483647")]
)
def test_a_cache_larger_than_the_machine_is_refused_before_it_is_asked_for(words, loaded):
    found = options(*words)
    num_blocks = found.num_blocks or command.blocks_in(found.memory, loaded.model, 16, found.max_seqs)
    with pytest.raises(ValueError, match=r"GiB for .*, and the device has .* GiB; give fewer --num-blocks"):
        command.check_memory(num_blocks, loaded.model, 16)
    command.check_memory(64, loaded.model, 16)


def test_a_model_that_is_a_file_or_an_empty_or_forbidden_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("a model")
    (tmp_path / "empty").mkdir()
    for place, says in (
        ("notes.txt", "neither a .gguf file nor a folder"),
        ("empty", "config.json"),
        ("none", "no model"),
    ):
        with pytest.raises(ValueError, match=says):
            command.serve_command(options("--port", "0", "--model", str(tmp_path / place)))
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o000)
    if os.access(locked, os.R_OK):
        pytest.skip("root may read everything")
    with pytest.raises((ValueError, OSError), match=r"[Pp]ermission"):
        command.serve_command(options("--port", "0", "--model", str(locked)))


@pytest.mark.parametrize("key", ["schlüssel", " key", "a\nb"])
def test_a_key_that_no_header_can_carry(key):
    with pytest.raises(ValueError, match="printable ASCII"):
        command.serve_command(options("--api-key", key))


def test_memory_becomes_blocks(model):
    assert command.blocks_in(2**30, model, 16, 8) == 2**30 // (16 * 46080)
    assert command.blocks_in(2**40, model, 16, 8) == 8 * 8192 // 16  # no more than could ever be used
    with pytest.raises(ValueError, match="--block-size"):
        command.blocks_in(1000, model, 16, 8)


@pytest.mark.parametrize("word", ["ngram", "layers:3", "draft:gptlite-gqa2"])
def test_drafts_are_asked_for_by_a_word(word, monkeypatch):
    """The engine of the command line drafts, and its answers are those without drafts."""
    monkeypatch.setattr(hardware, "measure", lambda: hardware.CHIPS["H100 SXM"])
    words = ("--model", "gptlite", "--memory", "16M", "--speculate", word, "--draft-tokens", "3")
    engine, tokenizer = command._engine(options(*words))
    prompts = [tokenizer.encode(text) for text in ("To be, or not to be, to be, or", "ROMEO:\nO, ")]
    plain = generate(engine.model, prompts, 24, eos_ids=())
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, 24))
    found = {"0": [], "1": []}
    for delta in engine.stream():
        found[delta.request_id] += delta.tokens
    assert [*found.values()] == [r.tokens for r in plain]
    assert engine.counters.draft_tokens > 0 and len(engine.counters.accepted_per_position) == 3


def test_smollm2_from_the_command_line():
    """The whole way: ready line, key from the environment, real client, cached prefix, SIGTERM in the middle."""
    words = ["serve", "--port", "0", "--memory", "256M", "--grace", "20", "--served-model-name", "smol"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lumen.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LUMEN_API_KEY": "sesame", "OMP_NUM_THREADS": "1"},
    )
    try:
        ready = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", ready)[0]
        assert ready.startswith("Lumen serves smol ") and "Ctrl-C" in ready
        with openai.OpenAI(base_url=url, api_key="sesame", max_retries=0, timeout=600) as api:
            question = [{"role": "user", "content": "What is the capital of France?"}]
            ask = {"model": "smol", "messages": question, "temperature": 0}
            answer = api.chat.completions.create(**ask)
            assert "Paris" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"
            stream = api.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
            text = ""
            for number, chunk in enumerate(stream):
                if number == 1:
                    process.send_signal(signal.SIGTERM)  # what runs may finish
                text += chunk.choices[0].delta.content if chunk.choices else ""
            assert text == answer.choices[0].message.content
            assert chunk.usage.prompt_tokens_details.cached_tokens >= 16
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_real_answers_equal_generate(loaded):
    """SmolLM2 behind the server, three at once, against `generate` alone. Greedy answers may part only where the two
    likeliest tokens are closer than 1e-3 in log-probability."""
    prompts = ["The three primary colours are", "def fibonacci(n):", "Once upon a time, in a land"]
    app = app_of(Engine(loaded.model, loaded.tokenizer, num_blocks=32))

    async def go():
        async with client_of(app, timeout=600) as client:
            bodies = [
                {"model": "tiny", "prompt": p, "max_tokens": 12, "temperature": 0, "logprobs": 2}
                for p in prompts
            ]
            found = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
            check_empty(app)
            return [answer.json()["choices"][0] for answer in found]

    alone = lumen.generate(loaded.model, prompts, 12, tokenizer=loaded.tokenizer)
    for choice, done in zip(asyncio.run(go()), alone, strict=True):
        ours, theirs = choice["text"], done.text
        if ours != theirs:
            gaps = [
                abs(a - b) for a, b in (list(top.values())[:2] for top in choice["logprobs"]["top_logprobs"])
            ]
            assert min(gaps) < 1e-3, (ours, theirs)
