"""Second-order training of small regressions: Levenberg-Marquardt goes on where Adam stopped.

Adam is soon near a minimum, and shrinkage has put useless columns out by then. From there
`quadric.solve` takes Gauss-Newton steps under a weight decay that it finds itself (the evidence).
Where rows are held out, the step with the lowest loss on them is kept, but only if it beats Adam's
network by a standard error of that difference (the rule of Breiman et al. 1984): few rows would
choose by chance. Networks are refined one after another, in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.solve import ErrorBars, Progress, choose_solver, error_bars, least_squares
from quadric.support.process import one_thread
from quadric.tables.jobs import FitRecord, Job, Rows
from quadric.tables.losses import SQUARED
from quadric.tables.training import EpochDone, Finished, train

SOLVERS = ("auto", "lm", "adam")

DUST = 1e-6

SMALL_SECONDS = 10.0
"""About how long, on one core, 100 steps may take for `solver="auto"` to choose them."""


def choose(job: Job, wanted: str) -> tuple[str, str]:
    """The solver of a job, "lm" or "adam", and the reason."""
    if wanted == "adam":
        return "adam", "asked for"
    obstacle = _obstacle(job)
    if not obstacle and wanted == "auto" and job.validation is None:
        obstacle = "is chosen by rows that are held out, got none"
    if obstacle and wanted == "lm":
        raise InputError(f"solver='lm' {obstacle}: use solver='adam', or 'auto'")
    if obstacle:
        return "adam", f"Levenberg-Marquardt {obstacle}"
    parameters = sum(p.numel() for p in job.network.parameters())
    return choose_by_size(wanted, job.train.targets.numel(), parameters)


def choose_by_size(wanted: str, targets: int, parameters: int) -> tuple[str, str]:
    """The solver for a number of targets (rows times outputs) and of parameters, and the reason."""
    if wanted == "adam":
        return "adam", "asked for"
    choice = choose_solver(targets, parameters)
    size = f"{targets:,} targets, {parameters:,} parameters"
    about = f"100 second-order steps take about {_seconds(choice.seconds)} on one core"
    if wanted == "lm":
        return "lm", f"asked for; {size}: {about}"
    if choice.solver in ("normal", "residual") and choice.seconds <= SMALL_SECONDS:
        return "lm", f"squared loss, {size}: {about}"
    return "adam", f"{size}: {about}, more than {SMALL_SECONDS:g} s"


def _obstacle(job: Job) -> str:
    """Why the job cannot be one of least squares; empty if it can."""
    if job.loss is not SQUARED:
        return "minimizes squares alone, got another loss"
    if job.judge is not None:
        return "keeps the step with the lowest squared error, got scoring"
    if job.quadratic_lr == 0 or job.lr == 0:
        return "trains all parameters, got a learning rate of 0 for some"
    if next(job.network.parameters()).device.type not in ("cpu", "cuda"):
        return "needs float64, which this device has not"
    return ""


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def fit_jobs(
    jobs: Sequence[Job],
    on_finish: Finished | None = None,
    on_epoch: EpochDone | None = None,
    max_stack: int | None = None,
) -> list[FitRecord]:
    """Trains all jobs with Adam, then those of solver "lm" to second order.

    Ctrl-C in the second part ends it; each network keeps the best that it has.
    """
    begin = time.perf_counter()
    later = {p for p, job in enumerate(jobs) if job.solver == "lm"}

    def finish(position: int, record: FitRecord) -> None:
        record.solver, record.reason = jobs[position].solver, jobs[position].reason
        if on_finish is not None and position not in later:
            on_finish(position, record)

    records = train(jobs, on_finish=finish, on_epoch=on_epoch, max_stack=max_stack)
    interrupted = False
    for done, position in enumerate(sorted(later)):
        record = records[position]
        if record.usable and not interrupted:
            interrupted = _refine(jobs[position], record, begin, on_epoch, len(later) - done)
        record.interrupted = interrupted
        if on_finish is not None:
            on_finish(position, record)
    return records


def _refine(
    job: Job, record: FitRecord, begin: float, on_epoch: EpochDone | None, left: int
) -> bool:
    """Takes one network from where Adam left it to a minimum; whether it was interrupted."""
    settings, network, (inputs, targets, weights) = job.settings, job.network, _clean(job.train)
    limit = None
    if settings.max_time is not None:
        limit = settings.max_time - (time.perf_counter() - begin)
        if limit <= 0:
            record.solver, record.reason = "adam", f"{record.reason}; max_time was over before"
            return False
    before = {name: value.clone() for name, value in network.state_dict().items()}
    held, first = job.validation, _squares(network, job.validation)

    def report(step: Progress) -> None:
        if settings.verbose:
            said = "" if step.validation is None else f", validation loss = {step.validation:.8f}"
            print(f"Levenberg-Marquardt step {step.step}, loss = {step.loss / 2:.8f}{said}")
        if on_epoch is not None:
            on_epoch(step.step, left)

    try:
        with one_thread(job.is_small()):
            fit = least_squares(
                network,
                inputs,
                targets,
                sample_weight=weights,
                validation=None if held is None else (held.inputs, held.targets),
                max_steps=settings.max_iter,
                max_seconds=limit,
                callback=report,
            )
    except InputError as error:  # columns of any size, without standardization
        record.solver, record.reason = "adam", f"{record.reason}; but {error}"
        return False
    record.seconds += fit.seconds
    record.losses += [step.loss / 2 for step in fit.history]
    record.best_loss = min(record.best_loss, *record.losses)
    record.stopped = not fit.reason.startswith("max_")
    record.reason += f"; {fit.steps} steps in {_seconds(fit.seconds)}: {fit.reason}"
    if first is None or held is None:  # the evidence has weighed fit against size
        return fit.reason.startswith("interrupted")
    last = _squares(network, held)
    assert last is not None
    if not _is_lower(last, first):
        network.load_state_dict(before)
        record.reason += "; not clearly better than Adam on the held-out rows: Adam's is kept"
        last = first
    record.scores += [_r2(step.validation or math.nan, held) for step in fit.history]
    record.best_score = _r2(float(last.mean()), held)
    return fit.reason.startswith("interrupted")


def _clean(rows: Rows) -> Rows:
    """Rows whose constant columns are zero: what rounding left of them has no scale."""
    return rows._replace(inputs=rows.inputs * (rows.inputs.abs().amax(0) > DUST))


@torch.no_grad()
def _squares(network: nn.Module, held: Rows | None) -> Tensor | None:
    """The squared error on each held-out row."""
    if held is None:
        return None
    return (network(held.inputs) - held.targets).double().square().mean(1)


def _is_lower(squares: Tensor, than: Tensor) -> bool:
    """Whether the mean is lower by more than the standard error of the difference."""
    gained = than - squares
    error = float(gained.std()) / math.sqrt(len(gained)) if len(gained) > 1 else 0.0
    # Lower on every row is always enough, but for rounding.
    return float(gained.mean()) > 0 and float(gained.mean()) >= (1 - 1e-9) * error


def _r2(loss: float, held: Rows) -> float:
    spread = float((held.targets - held.targets.mean(0)).double().square().mean())
    return 1 - loss / spread if spread > 0 else float(loss == 0)


class MemberBars:
    """The error bars of fitted networks; the matrices are made when they are first asked for."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.parts = [(job.train, job.validation) for job in jobs]
        self._bars: list[ErrorBars] | None = None

    def std(self, networks: Sequence[nn.Module], inputs: Tensor, noise: bool = True) -> Tensor:
        """Of the mean of the networks: their own bars, and how far they lie apart, (N, outputs)."""
        if self._bars is None:
            self._bars = [
                error_bars(
                    network,
                    *_clean(own),
                    validation=None if held is None else (held.inputs, held.targets),
                )
                for network, (own, held) in zip(networks, self.parts, strict=True)
            ]
        variance = torch.stack([bar.std(inputs, noise).square() for bar in self._bars]).mean(0)
        with torch.no_grad():
            answers = torch.stack([network(inputs).double() for network in networks])
        return (variance + answers.var(0, correction=0)).sqrt()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bars": None}
