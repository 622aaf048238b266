"""Ctrl-C while `lumen serve` fetches its model: status 130, and pip goes with it. It took 29 s, and pip stayed."""

import os
import signal
import subprocess
import sys
import time

import pytest
import repo

SERVE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from lumen.cli import console
console()
"""
PIP = """
import os, time
with open(os.environ["SAYS"], "w") as said:
    print("here", file=said, flush=True)
    time.sleep(600)
"""


def read(pipe):
    """What stands in the pipe; None while somebody who holds it is silent, b"" when nobody does."""
    try:
        return os.read(pipe, 99)
    except BlockingIOError:
        return None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_ctrl_c_while_the_model_is_fetched(tmp_path):
    """The named pipe is held by pip alone, so it ends when pip has gone; ten seconds are for a busy machine."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(PIP)
    os.mkfifo(tmp_path / "said")
    pipe = os.open(tmp_path / "said", os.O_RDONLY | os.O_NONBLOCK)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{repo.ROOT}", "SAYS": str(tmp_path / "said")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--port", "0"],
        env=env | {"LUMEN_CACHE": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while read(pipe) != b"here\n":
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 130 and "Traceback" not in err
        assert any(read(pipe) == b"" or time.sleep(0.05) for _ in range(200)), "pip is still there"
    finally:
        process.kill()
        os.close(pipe)
    assert not [f for f in (tmp_path / "cache").rglob("*") if f.is_file() and f.suffix != ".lock"]
