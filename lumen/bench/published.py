"""Published measurements: one JSON file each, with machine, versions, command and raw samples.

Files lie in `book/evidence` of the repository. An installed package brings them along as data files
(share/lumen/evidence), so a notebook in Colab finds what the book shows. `LUMEN_EVIDENCE` names another
folder, for reading and for writing.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from lumen.files import write_atomic
from lumen.timing import Timing

DISTRIBUTION = "lumen-inference"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class NoEvidence(FileNotFoundError):
    """No measurement of that name was published."""


def evidence(
    name: str,
    data: Any,
    *,
    command: str | None = None,
    seed: int | None = None,
    note: str = "",
    folder: Path | None = None,
) -> Path:
    """Write `data` as the published measurement `name` and return the file. An older one is replaced whole.
    `folder` is another place than the checkout's `book/evidence`.

    `data` is what json can hold, and Timing, dataclasses, NumPy and torch scalars, sets and tuples. Raises
    before writing when a value is not a finite number, or when a text names this machine's host or a folder
    of its user.
    """
    from lumen.hardware.identity import cpu_name, versions

    folder = folder or _folder_to_write()
    record: dict[str, Any] = {
        "name": _checked_name(name),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": _command() if command is None else command,
        "seed": seed,
        "note": note,
        "cpu": cpu_name(),
        **_torch_state(),
        "versions": versions(),
        "data": data,
    }
    try:
        text = json.dumps(record, default=_plain, indent=1, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise ValueError(
            f"Evidence {name!r} holds a value that is not finite or cannot be written: {error}."
        ) from error
    _refuse_private(name, text)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomic(path, text + "\n")
    return path


def load_evidence(name: str) -> dict[str, Any]:
    """The published measurement `name`: `["data"]`, and what it was taken on. Raises `NoEvidence`."""
    for path in _candidates(_checked_name(name)):
        if path.is_file():
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(
                    f"Evidence file {path.name} is damaged ({error}). Restore it, or run `make bench`."
                ) from error
    raise NoEvidence(
        f"No measurement called {name!r} was published. `make bench` measures on this machine; "
        "LUMEN_EVIDENCE names a folder of JSON files to read instead."
    )


def repository() -> Path | None:
    """The checkout this package runs from, None when it is installed without one."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "lumen").is_dir() else None


def evidence_folder() -> Path | None:
    """Where evidence is written: the chosen folder, or the checkout's; None without either."""
    if chosen := os.environ.get("LUMEN_EVIDENCE"):
        return Path(chosen)
    root = repository()
    return None if root is None else root / "book" / "evidence"


def _folder_to_write() -> Path:
    folder = evidence_folder()
    if folder is None:
        raise ValueError(
            "No checkout of the course to write evidence into; set LUMEN_EVIDENCE to a folder of your own."
        )
    return folder


def _candidates(name: str) -> list[Path]:
    """Where a measurement may lie: the chosen folder alone, or the checkout and then the installed files."""
    if chosen := os.environ.get("LUMEN_EVIDENCE"):
        return [Path(chosen) / f"{name}.json"]
    root = repository()
    found = [root / "book" / "evidence" / f"{name}.json"] if root else []
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    ending = f"share/lumen/evidence/{name}.json"
    return found + [Path(str(file.locate())) for file in files if file.as_posix().endswith(ending)]


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"An evidence name is lower-case letters, digits, - and _, got {name!r}.")
    return name


def _torch_state() -> dict[str, Any]:
    """Device, GPU and threads; without torch loaded nothing ran anywhere but on the CPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"device": "cpu", "gpu": None, "threads": None}
    from lumen.hardware.identity import gpu_name
    from lumen.runtime import device

    kind = device().type
    return {"device": kind, "gpu": gpu_name() if kind == "cuda" else None, "threads": torch.get_num_threads()}


def _command() -> str:
    """The script that is running, relative to the checkout; "notebook" for a kernel or a prompt."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    root = repository()
    if script is None or root is None or not Path(script).resolve().is_relative_to(root):
        return "notebook"
    relative = Path(script).resolve().relative_to(root).as_posix()
    return " ".join(["python", relative, *sys.argv[1:]])


def _plain(value: Any) -> Any:
    """What json cannot hold by itself."""
    if isinstance(value, Timing):
        return {
            "samples": list(value.samples),
            "median": value.median,
            "spread": list(value.spread),
            "iqr": value.iqr,
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return value.tolist()
    raise ValueError(f"a {type(value).__name__}")


def _refuse_private(name: str, text: str) -> None:
    private = {str(Path.home()), os.getcwd(), tempfile.gettempdir(), socket.gethostname()}
    private -= {"/", "localhost", ""}
    for secret in private:
        if re.search(rf"(?<![\w.-]){re.escape(secret)}(?![\w.-])", text):
            raise ValueError(
                f"Evidence {name!r} would publish {secret!r}, a folder or name of this machine; take it out."
            )
