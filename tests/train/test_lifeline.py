"""Processes that die with those that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

CHILD = """
import sys, time
from quadric.train import processes
processes.die_with_parent()
print("alive", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
from quadric.train import processes
env = dict(os.environ)
env[processes.PARENT] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=env,
                         stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "alive\\n"
print(child.pid, flush=True)
time.sleep(60)
"""


def is_alive(process: int) -> bool:
    """Whether a process runs; one that waits to be counted as dead does not."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc to see processes")
def test_a_child_dies_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    end = time.monotonic() + 20
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_alive(child)


def test_a_child_that_comes_too_late_does_not_begin() -> None:
    env = os.environ | {"QUADRIC_PARENT": "1"}  # not who started it
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
