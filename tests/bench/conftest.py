"""A store of its own for every test, and none of the switches of the shell that runs it."""

from __future__ import annotations

import pytest

from lumen.bench import store


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """`$LUMEN_CACHE` and the evidence folder are empty folders; the ledger is empty."""
    for switch in ("LUMEN_BOOK", "LUMEN_PUBLISH"):
        monkeypatch.delenv(switch, raising=False)
    monkeypatch.setenv("LUMEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path / "evidence"))
    monkeypatch.setattr(store, "_quoted", {})
    return tmp_path
