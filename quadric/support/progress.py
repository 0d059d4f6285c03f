"""How far a command is: a bar on a terminal, a line now and then where its output is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from quadric.support.texttable import printable

FIRST, LATER = 2.0, 20.0
"""Seconds until the first line, and between the later ones."""


def duration(seconds: float) -> str:
    """A span of time in round words.

    Examples:
        >>> duration(0.4), duration(1), duration(70), duration(500), duration(9000), duration(4e5)
        ('a second', 'a second', '70 seconds', '8 minutes', '2.5 hours', '4.6 days')
    """
    for size, name in ((86400.0, "days"), (3600.0, "hours")):
        if seconds >= 1.95 * size:
            return f"{seconds / size:.1f} {name}"
    if seconds >= 100:
        return f"{seconds / 60:.0f} minutes"
    return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"


class Lines:
    """Says in lines of text how far something is."""

    def __init__(
        self,
        total: int | None,
        what: str,
        screen: TextIO | None = None,
    ) -> None:
        self.total, self.what, self.screen = total, what, screen
        self.done = 0
        self.started = time.monotonic()
        self.next = self.started + FIRST

    def advance(
        self, done: int = 1, now: str = "", total: int | None = None, line: str | None = None
    ) -> None:
        """Counts steps, and prints a line if it is time for one."""
        if line is not None:
            print(printable(line), file=self.screen or sys.stderr, flush=True)
        self.done += done
        self.total = total or self.total
        time_now = time.monotonic()
        if time_now < self.next or not self.total or not self.done:
            return
        self.next = time_now + LATER
        left = (time_now - self.started) * (self.total - self.done) / self.done
        counted = f"{self.done:,} of {self.total:,}"
        progress = f"{now or self.what}: {counted}, about {duration(left)} left"
        print(printable(progress), file=self.screen or sys.stderr, flush=True)


@contextmanager
def progress_bar(total: int | None, what: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr; where that is no terminal, a line every now and then."""
    if not sys.stderr.isatty():
        yield Lines(total, what).advance
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(escape(printable(what)), total=total)

        def advance(
            done: int = 1, now: str = "", total: int | None = total, line: str | None = None
        ) -> None:
            bar.update(task, advance=done, description=escape(printable(now or what)), total=total)
            if line is not None:
                # As it is: no markup, no colors, no breaks of its own.
                console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

        yield advance


def say(text: str) -> None:
    """Tells the person who waits something that is no result, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)
