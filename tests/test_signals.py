"""Processes and how they end: Ctrl-C at any moment, a second one, a reader that went away, a parent that was killed.

Each is a process of its own, told when to go by a line that it prints, so nothing here waits for a clock. No torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import repo

COMMAND = """
import sys, time
from types import SimpleNamespace as Names
from lumen import cli

def console(run):
    cli.parser = lambda: Names(parse_args=lambda: Names(run=run))
    cli.console()
"""


HEARD = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(script: str, **streams) -> subprocess.Popen[str]:
    """`script` in a Python of its own, where Ctrl-C is heard even if these tests run in a shell's background."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-c", HEARD + script], cwd=repo.ROOT, text=True, env=env, **streams
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit status, stderr) of a process that must end by itself; the limit is for one that does not."""
    try:
        _, err = process.communicate(timeout=60)
        return process.returncode, err or ""
    finally:
        process.kill()


@pytest.mark.parametrize("when", ["argparse", "numpy", "httpx._client", "tokenizers"])
def test_ctrl_c_in_the_middle_of_an_import(when):
    """The signal comes while `when` is looked for, in an import of ours or in one that is made by the command."""
    script = f"""
import os, signal, sys
class Hit:
    def find_spec(self, name, path=None, target=None):
        if name == {when!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
from lumen.cli import console
sys.modules.pop("argparse", None)
sys.meta_path.insert(0, Hit())
sys.argv = ["lumen", "load", "--tokenizer", "lumen"]
console()
"""
    code, err = ended(start(script))
    assert (code, err.strip()) == (130, "")


def test_ctrl_c_that_passed_through_an_exec():
    """CPython then kills itself by the signal at the end, whoever caught the exception; importing torch does it."""
    assert ended(start(COMMAND + "console(lambda options: exec('raise KeyboardInterrupt'))")) == (130, "\n")


@pytest.mark.parametrize("call, code", [("console(lambda options: load())", 130), ("load()", -signal.SIGINT)])
def test_ctrl_c_while_a_thread_loads_does_not_wait_for_it(call, code):
    """On the command line and in a script of anybody's."""
    script = f"""
import os  # print would hold the lock of stdout, which the end of a script wants
from lumen.runtime import in_passing_thread
def load():
    return in_passing_thread(lambda: (os.write(1, b"loading\\n"), time.sleep(3600)))
{call}
"""
    process = start(COMMAND + script)
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == code


SERVER = """
import asyncio
from types import SimpleNamespace as Names
from starlette.applications import Starlette
from lumen.server.command import bind
from lumen.server.process import serve

class Worker:
    draining, num_live = False, 1
    async def drain(self, grace):
        await asyncio.sleep(grace)

app = Starlette()
app.state.service = Names(worker=Worker(), settings=Names(grace={grace}))
serve(app, bind("127.0.0.1", 0), "This serves")
"""


@pytest.mark.parametrize("second, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_a_server_at_once(second, code):
    process = start(SERVER.format(grace=3600))
    assert process.stdout.readline().startswith("This serves on http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    assert "once more ends now" in process.stderr.readline()
    process.send_signal(second)
    assert ended(process) == (code, "")


def test_the_first_signal_ends_a_server_in_good_order():
    process = start(SERVER.format(grace=0))
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    code, err = ended(process)
    assert code == 0 and "Traceback" not in err


@pytest.mark.parametrize("words", ["'x' * 100_000", "'x'"], ids=["while it writes", "at the end"])
def test_a_reader_that_went_away(words):
    script = f"import os\nos.read(0, 9)\nconsole(lambda options: print({words}))"
    process = start(COMMAND + script, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write("go\n")
    process.stdin.close()
    process.stdin = process.stdout = None
    assert ended(process) == (141, "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_disk_that_is_full():
    with open("/dev/full", "w") as full:
        assert ended(start(COMMAND + "console(lambda options: print('x'))", stdout=full)) == (
            1,
            "lumen: No space left on device\n",
        )


def test_streams_that_are_closed_or_know_little():
    """stderr is closed: its sentence must not appear in the output; ASCII: a duck does not end the answer."""
    script = """
import io, os
os.close(2)
sys.stderr = None
sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "ascii")
def run(options):
    print("a 🦆", flush=True)
    raise ValueError("not for stdout")
console(run)
"""
    process = start(COMMAND + script)
    assert process.stdout.read() == "a \\U0001f986\n"
    assert ended(process)[0] == 2


def test_bytes_on_stdin_that_are_no_text():
    process = start(COMMAND + "console(lambda options: print(ascii(input())))", stdin=subprocess.PIPE)
    process.stdin.buffer.write(b"a\xffb\n")
    process.stdin.flush()
    assert process.stdout.read() == "'a\\ufffdb'\n"
    assert ended(process) == (0, "")


def test_a_thread_that_still_computes_is_left_behind():
    script = """
import threading
threading.Thread(target=time.sleep, args=(3600,)).start()
console(lambda options: print("done"))
"""
    process = start(COMMAND + script)
    assert process.stdout.readline() == "done\n" and ended(process) == (0, "")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_child_ends_with_its_parent(how, tmp_path):
    """The pipe to us ends when nobody holds it any more: neither the parent nor the child."""
    (tmp_path / "patient.py").write_text("import time\nprint('child', flush=True)\ntime.sleep(3600)\n")
    script = f"""
import os, time
from lumen.assets import child
child.start("patient", [], None, {{**os.environ, "PYTHONPATH": {str(tmp_path)!r}}})
time.sleep(3600)
"""
    process = start(script, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == "child\n"
    process.send_signal(signal.Signals[how])
    assert ended(process)[0] != 0
