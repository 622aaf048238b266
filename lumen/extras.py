"""Packages that only some chapters want, and the sentence for a reader who has not got them.

`pip install lumen-inference` brings what chapters 01 to 06, 08 and 09 import; the rest are extras of the same names
in pyproject.toml: `lumen-inference[semantic]`, `lumen-inference[serve]`, `lumen-inference[hf]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {  # what it is for, and the packages by pip's names
    "semantic": ("The semantic cache", ("faiss-cpu", "sentence-transformers", "transformers")),
    "serve": ("The HTTP server", ("anyio", "prometheus-client", "starlette", "uvicorn")),
    "hf": ("The comparison with Hugging Face", ("transformers",)),
}


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around an import: one that fails because the extra `name` is missing says what to install.

    Raises ModuleNotFoundError, as the import itself would, so that `except ImportError` works as ever.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        what, packages = EXTRAS[name]
        raise ModuleNotFoundError(
            f"{what} needs {error.name}, which is not installed here. Cure: pip install {' '.join(packages)}",
            name=error.name,
        ) from error
