"""A grid of runs: every combination of neurons, ranks, values of fields and seeds, each once.

What a sweep has done is in the run directories and nowhere else: a run with a result is skipped,
one with a checkpoint is continued, so a sweep that was killed goes on when it is started again.
The processes of a sweep die with it, so that they hold no run when it is.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TextIO

from quadric import user_code
from quadric.errors import InputError, QuadricError
from quadric.layers import neurons
from quadric.runs.metrics import METRICS
from quadric.support.assignments import split_assignment
from quadric.support.locks import BusyError
from quadric.support.process import keep_freed_memory
from quadric.support.progress import duration
from quadric.train import catalog
from quadric.train.directory import RUNS
from quadric.train.processes import InterruptedTraining, die_with_parent
from quadric.train.runner import PlannedRun, plan_run, train
from quadric.user_code import listed

# Of a process of a sweep: it was told to stop.
_stopped = False


class FailedRunsError(QuadricError):
    """Runs of a sweep failed; the others are finished."""


@dataclass(frozen=True)
class RunOutcome:
    """How one run of a sweep ended."""

    run: PlannedRun  # which
    kind: str  # done, skipped (it was finished), busy (another process trains it) or failed
    text: str  # the result in a few words, or the error


def split_values(text: str) -> list[Any]:
    """The values in `1e-4,1e-3` or `[24,48,96],[16,32,64]`: split at commas outside brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [catalog.parse(part, f"the value {part!r}") for part in parts]


def grid_values(
    named: Mapping[str, str | None], assignments: Sequence[str]
) -> dict[str, list[Any]]:
    """The values that a sweep combines, of options and of `field=value,value`."""
    grid = {field: split_values(text) for field, text in named.items() if text is not None}
    for assignment in assignments:
        field, text = split_assignment(assignment, "lr=0.1,0.2")
        if field in grid or field == "seed":
            option = "--seeds" if field == "seed" else f"--{field}"
            raise InputError(f"{field} is swept by {option}: leave --set {field} out")
        grid[field] = split_values(text)
    return grid


def seeds_of(text: str) -> list[int]:
    """`3` means the seeds 0, 1, 2; `0,4` means those."""
    values = split_values(text)
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise InputError(f"--seeds must be a number or a list such as 0,1,2, got {text!r}")
    if len(values) > 1 or text.rstrip().endswith(","):
        return values
    if values[0] < 1:
        raise InputError(f"--seeds must be >= 1, got {values[0]}")
    return list(range(values[0]))


def plan_sweep(
    recipes: str | Sequence[str],
    fields: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    quick: bool = False,
    runs: str | os.PathLike[str] = RUNS,
    code: str | Sequence[str] = (),
) -> list[PlannedRun]:
    """The runs of a sweep, seed by seed, each once; a list holds the values that are combined.

    Combinations that compute the same are one run: a linear network has no quadratic_lr, and a
    neuron without a rank takes part in a sweep of ranks once.
    """
    for name in listed(code):  # the neurons that they register are looked for below
        user_code.load(name)
    grid = {field: values for field, values in fields.items() if isinstance(values, list)}
    fixed = {field: value for field, value in fields.items() if field not in grid}
    planned: dict[Path, PlannedRun] = {}
    for seed in seeds:
        for name in listed(recipes):
            for values in itertools.product(*grid.values()):
                overrides = fixed | dict(zip(grid, values, strict=True))
                overrides["seed"] = seed
                neuron = overrides.get("neuron")
                if neuron is None and "rank" in grid:
                    neuron = catalog.load(name, quick).neuron
                if "rank" in grid and neuron in neurons() and not neurons()[neuron].has_rank:
                    overrides.pop("rank", None)
                run = plan_run(name, overrides, quick=quick, runs=runs, code=code)
                twin = planned.setdefault(run.directory.path, run)
                field = run.recipe.first_difference(twin.recipe)
                if field is not None:
                    raise InputError(
                        f"two runs would share the directory {run.directory.path}, `{twin.command}`"
                        f" and `{run.command}`, which differ in {field} "
                        f"({getattr(twin.recipe, field)!r} and {getattr(run.recipe, field)!r}): "
                        "give the recipe files different names"
                    )
    return list(planned.values())


def train_all(runs: Sequence[PlannedRun], jobs: int, screen: TextIO | None) -> list[str]:
    """Trains the runs of a sweep and prints how each ended; says which failed."""
    failed = []
    started, trained = time.monotonic(), 0
    for i, outcome in enumerate(sweep(runs, jobs, screen), start=1):
        line = f"{outcome.run.directory.path.name}: {outcome.text}"
        kind = "" if outcome.kind == "done" else f" ({outcome.kind})"
        if screen is not None:
            print(f"[{i}/{len(runs)}] {line}{kind}", file=screen, flush=True)
            trained += outcome.kind == "done"
            if trained and i < len(runs):
                left = (time.monotonic() - started) / trained * (len(runs) - i)
                print(f"about {duration(left)} left", file=screen, flush=True)
        if outcome.kind in ("failed", "busy"):
            failed.append(line)
    return failed


def sweep(
    runs: Sequence[PlannedRun], jobs: int = 1, screen: TextIO | None = None
) -> Iterator[RunOutcome]:
    """Trains runs and yields how each ended, in the order in which they end."""
    if jobs < 1:
        raise InputError(f"jobs must be >= 1, got {jobs}")
    waiting = []
    for run in runs:
        # Before anything is trained: a directory that belongs to something else.
        run.directory.check_owner(run.recipe, named=run.named)
        if run.directory.is_finished:
            yield RunOutcome(run, "skipped", words(run.directory.result()))
        else:
            waiting.append(run)
    if jobs == 1:
        for run in waiting:
            yield _attempt(run, partial(_words_of, run, screen))
        return
    if not waiting:
        return
    others = set(active_children())
    # Fresh processes: a fork of one that has run torch's threads may hang.
    with ProcessPoolExecutor(
        min(jobs, len(waiting)), get_context("spawn"), _start, (os.getpid(),)
    ) as pool:
        futures: dict[Future[str], PlannedRun] = {
            pool.submit(_words_in_pool, run): run for run in waiting
        }
        try:
            for future in as_completed(futures):
                yield _attempt(futures[future], future.result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # They do not listen to Ctrl-C: whoever it reaches, this process decides.
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _attempt(run: PlannedRun, work: Callable[[], str]) -> RunOutcome:
    """One run that fails does not end the others."""
    try:
        return RunOutcome(run, "done", work())
    except BusyError as error:
        return RunOutcome(run, "busy", str(error))
    except InterruptedTraining:
        raise
    except BrokenProcessPool:
        reason = "a process of the sweep was killed, perhaps for want of memory"
        return RunOutcome(
            run, "failed", f"{reason}: start it again with fewer --jobs, and it goes on"
        )
    except Exception as error:
        return RunOutcome(run, "failed", " ".join(f"{type(error).__name__}: {error}".split()))


def _start(parent: int) -> None:
    """Prepares a process of a sweep.

    It computes on one thread, so that a run's curve does not depend on the machine's cores.
    """
    die_with_parent(parent)
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Of this process, and of those that a run on several devices starts.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _words_of(run: PlannedRun, screen: TextIO | None = None) -> str:
    return words(train(run, resume=True, screen=screen) or {})


def _words_in_pool(run: PlannedRun) -> str:
    """Trains a run in a process of the pool.

    Once the process was told to stop, it starts no further run, not even one that the pool has
    handed over already.
    """
    global _stopped
    if _stopped:
        raise InterruptedTraining
    try:
        return _words_of(run)
    except InterruptedTraining:
        _stopped = True
        raise


def words(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    if result.get("status") == "diverged":
        return "diverged"
    for metric in METRICS.values():
        if result.get(f"test_{metric.name}") is not None:
            return f"test {metric.label} {metric.show(result[f'test_{metric.name}'])}"
    return "no result"
