"""How a run of `lumen load` ends: what failed, the exit status, and the file of its numbers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lumen.arguments import file_name, folder_to_write
from lumen.loadgen.record import Record

MAX_ERRORS_SHOWN = 10


def verdict(records: Sequence[Record]) -> int:
    """Say on stderr what failed, the most frequent first; 1 if nothing succeeded, else 0."""
    failures = Counter(record.error for record in records if not record.ok)
    for error, times in failures.most_common(MAX_ERRORS_SHOWN):
        print(f"failed {times} times: {error}" if times > 1 else f"failed: {error}", file=sys.stderr)
    if hidden := failures.total() - sum(times for _, times in failures.most_common(MAX_ERRORS_SHOWN)):
        print(f"failed {hidden} times of something else", file=sys.stderr)
    if failures.total() < len(records):
        return 0
    (often, times), *_ = failures.most_common(1)
    print(f"lumen: none of {len(records)} requests succeeded; {times} of them: {often}", file=sys.stderr)
    return 1


def check(options: argparse.Namespace) -> None:
    """ValueError or OSError if the result could not be written: said before the run and not after it."""
    where = file(options, "model", "date")
    if not where.name or where.is_dir():
        raise ValueError(f"--result-filename names a folder: {str(where)!r}.")
    folder_to_write(where.parent)
    if where.exists() and not os.access(where, os.W_OK):
        raise OSError(f"Cannot write {str(where)!r}: there is no permission.")


def file(options: argparse.Namespace, model: str, date: str) -> Path:
    """Where the result goes: as `vllm bench serve` names it, unless it was named."""
    many = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    label = options.label or ("openai" if options.api == "completions" else "openai-chat")
    rate = "trace" if options.trace else f"{options.request_rate}qps"
    known = f"{file_name(label)}-{rate}{many}-{file_name(model.split('/')[-1])}-{date}.json"
    name = options.result_filename or known
    return Path(options.result_dir) / name


def write(where: Path, result: Mapping[str, Any]) -> None:
    """Write the numbers as JSON. OSError says that the file is not whole."""
    try:
        where.write_text(json.dumps(result), "utf-8")
    except OSError as error:
        raise OSError(f"Cannot write {str(where)!r}: {error.strerror}; what is there is not whole.") from None
    print(f"wrote {where}", file=sys.stderr)
