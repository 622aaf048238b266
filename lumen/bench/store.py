"""The measurement store: a quantity is measured once per machine, and every page quotes the same number.

One JSON file for each processor, number of threads, torch and layout of the store, in `$LUMEN_CACHE/measured`
(default ~/.cache/lumen). Notebooks that run for the book (LUMEN_BOOK=1) read and write the published file instead,
`book/evidence/measurements.json`; on another machine than the published one's they keep to the store of their own,
and `make publish` starts the published file anew.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lumen.assets import cache_dir
from lumen.bench import published
from lumen.bench.estimate import Estimate
from lumen.bench.names import Name
from lumen.bench.trust import Refused, Watch, doubts, publishing
from lumen.files import write_atomic
from lumen.timing import Timing

LAYOUT = 1  # of the kept files; a change makes every quantity be measured again
EVIDENCE = "measurements"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """A named quantity with its samples. `kept` says that it was measured earlier, `note` what speaks against it."""

    name: Name
    timing: Timing
    date: str
    kept: bool = False
    note: str = ""

    @cached_property
    def estimate(self) -> Estimate:
        """Median and 95 % interval. [s]"""
        return Estimate.of(self.timing)

    @property
    def seconds(self) -> float:
        """The median. [s]"""
        return self.timing.median

    @property
    def ms(self) -> float:
        """The median. [ms]"""
        return 1e3 * self.timing.median

    def __str__(self) -> str:
        return f"{self.name.short()}: {self.estimate}"


_quoted: dict[str, Measured] = {}


def quoted() -> list[Measured]:
    """The quantities that this process used, in the order of their first use."""
    return list(_quoted.values())


def quantity(
    name: Name,
    measure: Callable[[], Timing],
    *,
    bound_s: float | None = None,
    bound: str = "",
    fresh: bool = False,
) -> Measured:
    """The quantity `name`: from the store, or measured now by `measure()` and kept.

    `bound_s` is the time that nothing can beat, `bound` where it comes from. In a run for publication (LUMEN_PUBLISH=1)
    a doubtful measurement raises `Refused` and is not kept. Within a process a name keeps its number. Only one process
    of a machine measures at a time. `fresh` measures although it was kept.
    """
    known = _quoted.get(str(name))
    if known is not None and not fresh:
        return known
    store = current()
    found = None if fresh else store.get(name)
    if found is None:
        with _alone():
            found = None if fresh else store.get(name)  # another process may have measured it while we waited
            if found is None:
                watch = Watch()
                with watch:
                    timing = measure()
                found = keep(
                    name, timing, store=store, bound_s=bound_s, bound=bound, watch=watch, fresh=fresh
                )
    if found.note and publishing():
        raise Refused(f"{name.short()}: {found.note}")
    _quoted[str(name)] = found
    return found


def keep(
    name: Name,
    timing: Timing,
    *,
    store: Store | None = None,
    bound_s: float | None = None,
    bound: str = "",
    watch: Watch | None = None,
    fresh: bool = False,
) -> Measured:
    """Judge samples that a caller took, and put them into the store. An entry that is there wins unless `fresh`.

    What is doubtful is shown with its note, and kept on the reader's machine alone: the published store takes none.
    """
    note = doubts(timing, bound_s=bound_s, bound=bound, load=watch.load if watch else None)
    if note and publishing():
        raise Refused(f"{name.short()}: {note}")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    measured, into = Measured(name, timing, today, note=note), store or current()
    return measured if note and into.is_evidence else into.add(measured, replace=fresh)


def machine() -> dict[str, Any]:
    """What a kept number is valid for: processor, threads, torch, layout of the store."""
    import torch

    from lumen.hardware.identity import cpu_name, gpu_name
    from lumen.runtime import device

    name = (gpu_name() or cpu_name()) if device().type == "cuda" else cpu_name()
    threads = torch.get_num_threads()
    return {"device": name, "threads": threads, "torch": str(torch.__version__), "layout": LAYOUT}


def current() -> Store:
    """The store that this process reads and writes."""
    key = machine()
    if os.environ.get("LUMEN_BOOK", "") not in ("", "0"):
        folder = published.evidence_folder()
        if folder is not None:
            store = Store(folder / f"{EVIDENCE}.json", key, is_evidence=True)
            if publishing() or store.other_machine() is None:
                return store
            warnings.warn(
                f"{EVIDENCE}.json was measured on {store.other_machine()}; this run keeps to the numbers of its own "
                "machine. `make publish` measures and executes everything here.",
                stacklevel=3,
            )
    words = re.sub(r"[^a-z0-9.]+", "-", " ".join(str(value) for value in key.values()).lower()).strip("-")
    return Store(_folder() / f"{words}.json", key)


class Store:
    """One file of measured quantities. Another process may write it at any time; nothing of its work is lost."""

    def __init__(self, path: Path, key: dict[str, Any], is_evidence: bool = False) -> None:
        self.path, self.key, self.is_evidence = path, key, is_evidence

    def get(self, name: Name) -> Measured | None:
        entry = self._entries().get(str(name))
        return None if entry is None else _measured(str(name), entry)

    def all(self) -> list[Measured]:
        return [_measured(text, entry) for text, entry in self._entries().items()]

    def add(self, measured: Measured, replace: bool = False) -> Measured:
        """Keep it, unless another process kept the same name first and `replace` is not asked for."""
        text = str(measured.name)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.path):
                entries = self._entries()
                if text in entries and not replace:
                    return _measured(text, entries[text])
                self._write(entries | {text: _entry(measured)})
        except OSError as error:
            warnings.warn(
                f"The measurement cannot be kept ({error.strerror}); set LUMEN_CACHE to a writable folder.",
                stacklevel=4,
            )
        return measured

    def other_machine(self) -> str | None:
        """What machine the file belongs to when it is not this one; None also when there is no usable file."""
        try:
            key = self._content()["key"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if key == self.key:
            return None
        return (
            ", ".join(f"{name} {value}" for name, value in key.items())
            if isinstance(key, dict)
            else "another"
        )

    def _entries(self) -> dict[str, Entry]:
        """What the file holds; nothing when it is not there, of another machine, or damaged (with a warning)."""
        if not self.path.is_file():
            return {}
        try:
            content = self._content()
            if content["key"] != self.key:
                return {}
            entries: dict[str, Entry] = content["quantities"]
            for text, entry in entries.items():
                _measured(text, entry)
            return entries
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(
                f"The kept measurements {self.path.name} cannot be used ({error}); what is needed is measured again.",
                stacklevel=5,
            )
            return {}

    def _content(self) -> dict[str, Any]:
        content = json.loads(self.path.read_text(encoding="utf-8"))
        return content["data"] if self.is_evidence else content

    def _write(self, entries: dict[str, Entry]) -> None:
        content = {"key": self.key, "quantities": dict(sorted(entries.items()))}
        if self.is_evidence:
            command = "make publish" if publishing() else None
            published.evidence(EVIDENCE, content, command=command, seed=0, folder=self.path.parent)
        else:
            write_atomic(self.path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))


def _entry(measured: Measured) -> Entry:
    timing = measured.timing
    entry: Entry = {"date": measured.date, "median": timing.median, "samples": list(timing.samples)}
    return entry | ({"note": measured.note} if measured.note else {})


def _measured(text: str, entry: Entry) -> Measured:
    """An entry of a file; ValueError or KeyError when it is not one."""
    samples = tuple(float(x) for x in entry["samples"])
    if not all(0 < x < float("inf") for x in samples):
        raise ValueError(f"{text} holds a time that is not above 0")
    return Measured(
        Name.parse(text), Timing(samples), str(entry["date"]), kept=True, note=str(entry.get("note", ""))
    )


def _folder() -> Path:
    return cache_dir() / "measured"


def _lock(path: Path) -> AbstractContextManager[Any]:
    """The lock of a file of the store, beside the reader's store: nothing is left in the checkout."""
    from filelock import FileLock

    _folder().mkdir(parents=True, exist_ok=True)
    return FileLock(_folder() / f"{path.stem}.lock")


@contextmanager
def _alone() -> Iterator[None]:
    """One process of a machine measures at a time; a measurement may ask for another one."""
    from filelock import FileLock

    path = str(_folder() / "measuring.lock")
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that cannot be written: then nothing is kept either
            _folder().mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locks.setdefault(path, FileLock(path)))
        yield


_locks: dict[str, Any] = {}  # one object a file, so that the lock can be taken again by who holds it
