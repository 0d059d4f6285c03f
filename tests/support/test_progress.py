"""What somebody sees who waits, on a terminal and in a file."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

from quadric.support.progress import Lines

WAITS = """
import time
from quadric.support import progress
progress.FIRST = 0.05
with progress.progress_bar(None, "reading") as advance:
    for i in range(4):
        time.sleep(0.03)
        advance(1, "row[/x]\\x1b[31m", 4)
print("done")
"""


def test_lines_say_how_far_it_is_and_how_long_it_takes() -> None:
    screen = io.StringIO()
    lines = Lines(None, "fitting", screen)
    lines.started -= 10
    lines.next = lines.started
    lines.advance(0)  # nothing is known yet
    lines.advance(1, total=5)
    lines.advance(1)  # too soon for another line
    assert screen.getvalue() == "fitting: 1 of 5, about 40 seconds left\n"
    lines.next = lines.started
    lines.advance(2, "the last one")
    assert screen.getvalue().splitlines()[1] == "the last one: 4 of 5, about 3 seconds left"


def test_a_pipe_gets_lines_and_a_terminal_a_bar_with_names_as_they_are() -> None:
    piped = subprocess.run(
        [sys.executable, "-c", WAITS], capture_output=True, text=True, check=True
    )
    assert piped.stdout == "done\n"
    assert piped.stderr.startswith(r"row[/x]\x1b[31m: ")
    assert " of 4, about a second left\n" in piped.stderr
    terminal, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", WAITS], stderr=side, stdout=side, env=env, check=True)
    os.close(side)
    shown = os.read(terminal, 100_000).decode()
    assert "━" in shown
    assert r"row[/x]\x1b[31m" in shown
    os.close(terminal)
