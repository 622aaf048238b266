"""Threads that compute, and what they leave behind."""

import subprocess
import sys
import textwrap

import pytest

from lumen.runtime import in_passing_thread


def test_a_result_and_an_error_come_back():
    assert in_passing_thread(lambda a, b: a * b, 6, 7) == 42
    with pytest.raises(ZeroDivisionError):
        in_passing_thread(lambda: 1 / 0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_team_ends_with_the_thread_that_computed():
    """In a fresh process: computing in passing leaves no OpenMP thread behind, computing directly does."""
    script = """
        import os, time, torch
        from lumen.runtime import in_passing_thread

        torch.set_num_threads(2)
        work = lambda: torch.ones(4_000_000).add_(1)
        count = lambda: len(os.listdir("/proc/self/task"))
        before = count()
        in_passing_thread(work)
        end = time.monotonic() + 300
        while count() > before and time.monotonic() < end:
            time.sleep(0.01)  # a thread leaves the list a moment after it was joined
        passing = count()
        work()
        print(passing - before, count() - passing)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=900
    )
    assert ran.stdout.split() == ["0", "1"], ran.stderr
