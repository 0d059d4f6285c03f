"""The processes of a run: one, several on this machine, or those that torchrun or SLURM started.

A run on several devices of one machine is started by torch's elastic launcher. Each process is
handed the planned run, and the first one does what the only one would do: it checks, keeps the
directory and writes. All of them die with the one that started them, however that one dies: they
would go on unseen, and hold the lock of the run directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadric.errors import InputError, QuadricError

if TYPE_CHECKING:
    from quadric.train.runner import PlannedRun

# The exit code of a process that Ctrl-C ended, as shells count; and that of a user's mistake.
INTERRUPTED, MISTAKE = 130, 2
# Tells a started program who started it.
PARENT = "QUADRIC_PARENT"
# Seconds between two looks for the parent.
INTERVAL = 0.5


class InterruptedTraining(Exception):
    """Training was ended by Ctrl-C or SIGTERM; the last checkpoint is there."""


@dataclass(frozen=True)
class Launched:
    """This process as one of several that a launcher started."""

    rank: int  # among all processes
    devices: int  # processes on each machine
    nodes: int  # machines


def launched() -> Launched | None:
    """What torchrun or SLURM says of this process; None if it is the only one."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env or ("LOCAL_RANK" in env and "LOCAL_WORLD_SIZE" in env):
        local = int(env["LOCAL_WORLD_SIZE"])
        return Launched(int(env["RANK"]), local, int(env["WORLD_SIZE"]) // local)
    # An interactive shell inside an allocation has these variables too, and is one process.
    if "SLURM_PROCID" in env and env.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        tasks, nodes = int(env.get("SLURM_NTASKS", "1")), int(env.get("SLURM_NNODES", "1"))
        if tasks > 1:
            return Launched(int(env["SLURM_PROCID"]), tasks // nodes, nodes)
    return None


def is_first_process() -> bool:
    """Whether this process writes files and prints."""
    here = launched()
    return here is None or here.rank == 0


def launch(run: PlannedRun, resume: bool, overwrite: bool, quiet: bool, profile: bool) -> None:
    """Trains a run in several processes on this machine and waits for them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    handed = {
        "recipe": run.recipe.model_dump(),
        "directory": str(run.directory.path),
        "command": run.command,
        "named": run.named,
        "code": run.code,
        "options": {"resume": resume, "overwrite": overwrite, "profile": profile},
        "quiet": quiet,
    }
    config = LaunchConfig(
        1,
        1,
        run.recipe.devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    variables = {
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")
        or str(max(1, (os.cpu_count() or 1) // run.recipe.devices)),
        # What was imported here must be found there, whatever the directory.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = ["-m", "quadric.train.worker", json.dumps(handed)]
    # Its report of a process that failed; what matters of it is told below.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    try:
        with _environment(variables), _handlers():
            elastic_launch(config, sys.executable)(*command)
    except SignalException:
        raise InterruptedTraining from None
    except ChildFailedError as error:
        failure = error.get_first_failure()[1]
        if failure.exitcode == INTERRUPTED:
            raise InterruptedTraining from None
        if failure.exitcode == MISTAKE:
            raise InputError(failure.message) from None
        raise QuadricError(
            f"the processes of {run.directory.path} ended with code {failure.exitcode}, their "
            f"messages are above: continue with `{run.resume_command}`"
        ) from None


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Other variables for the processes that are started within it."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    """Takes back the handlers of signals that torch's launcher sets."""
    names = (signal.SIGINT, signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)]))
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in before.items():
                signal.signal(name, handler)


def die_with_parent(parent: int | None = None) -> None:
    """Ends this process soon after the one that started it is gone."""
    if parent is None:
        parent = int(os.environ.get(PARENT) or os.getppid())
    if os.getppid() != parent:
        _die()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    _die()


def _die() -> None:
    os._exit(1)  # nothing is left to be told, and a checkpoint is always whole
