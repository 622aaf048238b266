"""What a server says of its cache: at /metrics, when it starts, and when the memory is not enough."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lumen import cli
from lumen.cache import QUANT_FORMATS
from lumen.serve.counters import Counters
from lumen.serve.kv_cache import PLAIN, kept, kv_cache
from lumen.server import command
from lumen.server.metrics import Metrics
from lumen.server.worker import EngineState

from ..tiny import tiny_llama


def options(*words):
    return cli.parser().parse_args(["serve", *words])


def scraped(told):
    text = Metrics("tiny", lambda: EngineState(0, 0, 0.0, Counters()), told).text().decode()
    return {
        (sample.name.removeprefix("lumen:"), sample.labels.get("cache_dtype")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "cache_dtype" in sample.labels or "per_token" in sample.name
    }


@pytest.mark.parametrize("word", ["plain", *QUANT_FORMATS])
def test_metrics_say_how_the_cache_is_kept(word):
    told = kept(kv_cache(word), tiny_llama().config, "fp32", 64, 8)
    found = scraped(told)
    assert found["cache_config_info", word].labels["block_size"] == "8"
    assert found["kv_cache_bytes_per_token", None].value == told.bytes_per_token
    assert found["kv_cache_users_per_gib", word].value == told.users
    assert found["kv_cache_users_per_gib", "plain"].value == told.plain_users
    assert found["kv_cache_users_per_gib", word].labels["tokens"] == "64"
    assert scraped(None) == {}


@pytest.mark.parametrize("word", ["plain", *QUANT_FORMATS])
def test_memory_is_filled_and_not_overrun(word):
    """The store that `--memory` makes takes no more than that, but for the spare block, and no block more would fit."""
    model, kind, memory, seqs = tiny_llama(max_positions=2**16), kv_cache(word), 200_000, 3
    blocks = command.blocks_in(memory, model, 8, seqs, kind)
    store = kind.maker(seqs)(model, blocks, 8)
    assert store.nbytes - store.block_bytes <= memory < store.nbytes


def test_more_blocks_for_the_same_memory():
    model = tiny_llama(max_positions=2**16)
    fits = {
        word: command.blocks_in(10**7, model, 32, 4, kv_cache(word)) for word in ("plain", *QUANT_FORMATS)
    }
    assert fits["plain"] < fits["int8"] < fits["int4"]
    assert fits["kivi"] < fits["kivi-2"]
    with pytest.raises(ValueError, match=r"beside \d+ bytes for 4 sequences \(--max-seqs\)"):
        command.blocks_in(1000, model, 32, 4, kv_cache("kivi"))


def test_the_words_of_the_command_line(capsys):
    assert options().kv_cache is PLAIN and options().block_size is None
    assert options("--kv-cache", "int4").kv_cache == kv_cache("int4")
    assert (kv_cache("int8").block_size, kv_cache("kivi").block_size) == (16, 32)
    with pytest.raises(SystemExit):
        options("--kv-cache", "fp3")
    assert "needs one of plain, int8, int4, kivi, kivi-2" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["int8", "kivi"])
def test_the_command_makes_the_engine_that_was_asked_for(word, monkeypatch):
    """Kind, size of blocks and the line with which it starts."""
    model = tiny_llama()
    model.warm_up = lambda: None
    monkeypatch.setattr("lumen.io.load.load", lambda name: (model, None))
    asked = options("--kv-cache", word, "--memory", "1M", "--max-seqs", "2")
    engine, _ = command._engine(asked)
    assert engine.store.kind == word and engine.store.block_size == asked.kv_cache.block_size
    line = str(command._kept(asked.kv_cache, engine))
    assert (
        line.startswith(f"KV cache {word}: ")
        and line.endswith(" with plain")
        and "users of 64 tokens" in line
    )
