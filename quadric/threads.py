"""How many threads torch computes with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Operations on one thread each; threads that are started in here have one too.

    Small networks wait longer for a second thread than it saves, and on one thread sums have one
    order.

    Args:
        wanted: without it nothing changes.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)
