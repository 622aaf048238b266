"""A Python module run as a child that ends with its parent, however that ends: in good order, at a signal, killed.

The child reads a pipe whose other end only its parent holds; when that reading ends, the parent has, and the child
goes. Linux's PR_SET_PDEATHSIG would need code between fork and exec, and fires when the *thread* that started the child
ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

_FOLLOW = """
import os, runpy, sys, threading

def follow():
    os.read(0, 1)
    os._exit(1)

threading.Thread(target=follow, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def start(
    module: str, arguments: Sequence[str], words: IO[Any] | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """`python -m module arguments…` with `words` for its stdout and stderr. Use it in `with`; `kill()` ends it."""
    return subprocess.Popen(
        [sys.executable, "-c", _FOLLOW, module, *arguments],
        stdin=subprocess.PIPE,
        stdout=words,
        stderr=words,
        env=env,
    )
