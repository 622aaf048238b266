"""What all tests share: one thread a process, no hub, and the real model loaded once."""

from __future__ import annotations

import os

# Before torch is imported: test processes share the cores, and nothing may ask a hub while tests run.
# LUMEN_CACHE is left as it is, so that the model is downloaded once and not once a test run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(scope="session")
def loaded():
    """SmolLM2-135M and its tokenizer, as `lumen.load` gives them."""
    import lumen

    return lumen.load("smollm2-135m")


@pytest.fixture(scope="session")
def model(loaded):
    return loaded.model


@pytest.fixture(scope="session")
def tokenizer(loaded):
    return loaded.tokenizer
