"""The processes of a run: one, several on this machine, or those that torchrun or SLURM started.

A run on several devices of one machine is started by torch's own launcher, which gives every
process the run directory: the directory holds the recipe, so nothing else has to be handed over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from quadric.errors import QuadricError
from quadric.train.directory import RunDirectory
from quadric.train.lifeline import name_parent

# The exit code of a process that Ctrl-C ended, as shells count.
INTERRUPTED = 130


class InterruptedTraining(Exception):
    """Training was ended by Ctrl-C or SIGTERM; the last checkpoint is there."""


@dataclass(frozen=True)
class Launched:
    """This process as one of several that a launcher started.

    Attributes:
        rank: among all processes.
        devices: processes on each machine.
        nodes: machines.
    """

    rank: int
    devices: int
    nodes: int


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
    found = launched()
    return found is None or found.rank == 0


def launch(
    directory: RunDirectory,
    devices: int,
    lock: int | None,
    progress: bool,
    profile: bool = False,
    resume_command: str | None = None,
) -> None:
    """Trains a run in several processes on this machine and waits for them."""
    command = [sys.executable, "-m", "quadric.train.launcher", str(devices), str(directory.path)]
    command += [] if progress else ["--quiet"]
    command += ["--profile"] if profile else []
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    name_parent(env)
    # What was imported here must be found there, whatever the directory.
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(command, env=env, pass_fds=() if lock is None else (lock,))
    try:
        code = process.wait()
    except BaseException:
        # Ctrl-C reaches the whole group by itself, a signal to this process alone does not.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if code and not directory.is_finished:
        if code == INTERRUPTED:
            raise InterruptedTraining
        raise QuadricError(
            f"the processes of {directory.path} ended with code {code}, their messages are above: "
            f"continue with `{resume_command or directory.resume_command}`"
        )
