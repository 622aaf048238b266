"""`--kv-cache window:N+S`: its word, what it takes, how many users a GiB holds, and what a server refuses with it."""

from __future__ import annotations

import argparse

import pytest
import torch

from lumen.arguments import Parser
from lumen.config import CONFIGS
from lumen.parts import Window
from lumen.serve.engine import Engine
from lumen.serve.kv_cache import PLAIN, Windowed, kept, kv_cache
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits
from lumen.server.command import _engine, add_parser, blocks_in

from ..tiny import tiny_llama


def test_a_word_becomes_a_window():
    assert kv_cache("window:512+4") == Windowed(Window(512, 4))
    assert kv_cache("window:512") == Windowed(Window(512)) and kv_cache("window:512").name == "window:512+0"
    for wrong in (
        "window",
        "window:",
        "window:+4",
        "window:4+",
        "window:-4+1",
        "window:4+4+4",
        "window: 4+4",
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=r"window:N\+S"):
            kv_cache(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="A window keeps 1 position at least"):
        kv_cache("window:0+4")


def test_a_sequence_takes_a_constant_and_a_gib_holds_more_of_them():
    config, window = CONFIGS["smollm2-135m"], kv_cache("window:508+4")
    told = [kept(window, config, torch.float32, length, 16) for length in (2048, 8192)]
    assert told[0].users == told[1].users == 2**30 // ((1 + 33) * 16 * 46080)
    assert told[1].users > 15 * told[1].plain_users
    assert (
        kept(window, config, torch.float32, 300, 16).users
        == kept(PLAIN, config, torch.float32, 300, 16).users
    )


def test_memory_holds_a_window_for_every_sequence_and_a_chunk_beside_it():
    model, window = tiny_llama(max_positions=4096), kv_cache("window:40+4")
    blocks = blocks_in(2**30, model, 16, 3, window, 64)
    assert blocks == 3 * (1 + 8) < blocks_in(2**30, model, 16, 3)
    engine = Engine(
        model,
        num_blocks=blocks,
        prefix="none",
        limits=Limits(3, 64),
        make_store=window.maker(3),
        kept=window.window,
    )
    assert engine.store.nbytes == (blocks + 1) * window.block_bytes(model.config, torch.float32, 16)
    for name in "abc":
        engine.add(Request(name, list(range(90)) * 20, 9, eos_ids=()))
    assert sum(d.num_generated for d in engine.stream()) == 27 and engine.counters.preemptions == 0


def test_a_server_of_windows_remembers_no_prefixes_and_says_why():
    parser = Parser()
    add_parser(parser.add_subparsers())
    with pytest.raises(ValueError, match="add --no-prefix-cache"):
        _engine(parser.parse_args(["serve", "--kv-cache", "window:40+4"]))
