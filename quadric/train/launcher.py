"""Torch's launcher, without its report of a Ctrl-C.

`python -m quadric.train.launcher PROCESSES RUN_DIRECTORY [--quiet]`
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from quadric.train.lifeline import die_with_parent, name_parent
from quadric.train.processes import INTERRUPTED


def main(arguments: list[str]) -> int:
    """Starts the processes of a run and waits for them."""
    processes, *rest = arguments
    die_with_parent()
    name_parent(os.environ)  # for the processes that torch's launcher starts
    command = ["--standalone", f"--nproc-per-node={processes}", "-m", "quadric.train.worker"]
    try:
        torchrun([*command, *rest])
    except (SignalException, KeyboardInterrupt):
        return INTERRUPTED
    except ChildFailedError:
        return 1  # each process has written its error already
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
