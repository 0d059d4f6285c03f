"""Second-order training of small regressions: Levenberg-Marquardt from Adam's end, and anew.

`quadric.solve` takes Gauss-Newton steps under a weight decay that it finds itself (the evidence).
Where such a fit ends depends on its start, by a factor of two to four on smooth functions. So a few
starts run side by side for some steps: the network that Adam found (shrinkage has put useless
columns out there), the one that Adam started from, and others; the best goes on. Starts are judged
by the held-out rows; where there are none, by generalized cross-validation.

Adam's network stays unless the best one is clearly better on the held-out rows: by a standard error
of the difference (the rule of Breiman et al. 1984), for few rows would choose by chance; or by less
where the rows that were learned agree. Networks are refined one after another, in float64.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers import QuadraticLayer
from quadric.solve import (
    ErrorBars,
    LeastSquaresFit,
    Progress,
    choose_solver,
    error_bars,
    least_squares,
)
from quadric.solve.choice import STEPS
from quadric.solve.levenberg import ASKED
from quadric.support.modules import random_state_kept
from quadric.support.process import one_thread
from quadric.tables.jobs import FitRecord, Job, Rows
from quadric.tables.losses import SQUARED
from quadric.tables.training import EpochDone, Finished, train

SOLVERS = ("auto", "lm", "adam")

DUST = 1e-6

SMALL_SECONDS, FEWEST_STEPS = 10.0, 60
"""Seconds of second order for all members with `solver="auto"`, and the steps that must fit in."""

FIRST_SECONDS, FIRST_STEPS, HOPE = 2.0, 25, 0.93
"""With "auto", seconds and steps until the first start must promise this share of Adam's loss."""

VAIN = "nothing was gained in the first"

# A start for each so many steps, tried for fewer; at most some, and no more than two in vain.
STEPS_A_START, TRIAL_STEPS, STARTS, FAIR_TRIALS = 120, 80, 4, 2

CONFIRMED = 0.8
"""The share of Adam's held-out loss that the learned rows promise, where they confirm a gain."""


def choose_(job: Job, wanted: str, members: int = 1) -> None:
    """Chooses the solver of a job, "lm" or "adam", notes why, and bounds its second-order steps.

    The members of an estimator share the seconds of "auto".
    """
    job.max_steps = job.settings.max_iter
    if wanted == "adam":
        job.solver, job.reason = "adam", "asked for"
        return
    obstacle = _obstacle(job)
    if not obstacle and wanted == "auto" and job.validation is None:
        obstacle = "is chosen by rows that are held out, got none"
    if obstacle and wanted == "lm":
        raise InputError(f"solver='lm' {obstacle}: use solver='adam', or 'auto'")
    if obstacle:
        job.solver, job.reason = "adam", f"Levenberg-Marquardt {obstacle}"
        return
    targets = job.train.targets.numel()
    parameters = sum(p.numel() for p in job.network.parameters())
    if wanted == "auto":
        # Numbers of steps: a clock would end the same fit elsewhere on a busy machine.
        each = max(choose_solver(targets, parameters).seconds, 1e-9) / STEPS
        job.max_steps = min(job.max_steps, max(1, int(SMALL_SECONDS / members / each)))
        job.first_steps = min(FIRST_STEPS, max(1, int(FIRST_SECONDS / members / each)))
    job.solver, job.reason = choose_by_size(wanted, targets, parameters, members)


def choose_by_size(wanted: str, targets: int, parameters: int, members: int = 1) -> tuple[str, str]:
    """The solver for a number of targets (rows times outputs) and of parameters, and the reason."""
    if wanted == "adam":
        return "adam", "asked for"
    choice = choose_solver(targets, parameters)
    size, each = f"{targets:,} targets, {parameters:,} parameters", choice.seconds / STEPS

    def about(steps: int) -> str:
        return f"{size}: {steps} second-order steps take about {_seconds(steps * each)} on one core"

    if wanted == "lm":
        return "lm", f"asked for; {about(STEPS)}"
    limit = SMALL_SECONDS / members
    if choice.solver in ("normal", "residual") and FEWEST_STEPS * each <= limit:
        return "lm", f"squared loss, {about(STEPS)}"
    return "adam", f"{about(FEWEST_STEPS)}, more than {limit:g} s"


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

    fresh = {p: _fresh_starts(jobs[p]) for p in later}
    records = train(jobs, on_finish=finish, on_epoch=on_epoch, max_stack=max_stack)
    interrupted = False
    for done, position in enumerate(sorted(later)):
        record = records[position]
        if record.usable and not interrupted:
            search = _Search(jobs[position], begin, len(later) - done, on_epoch)
            interrupted = search.refine(fresh[position], record)
        record.interrupted = interrupted
        if on_finish is not None:
            on_finish(position, record)
    return records


def _fresh_starts(job: Job) -> list[nn.Sequential]:
    """The network before Adam, and others with weights of their own."""
    count = min(STARTS, job.max_steps // STEPS_A_START) - 1 if job.fresh else 0
    found = [copy.deepcopy(job.network) for _ in range(count)]
    with random_state_kept(job.network):
        torch.manual_seed(job.seed)
        for network in found[1:]:
            for layer in network:
                if isinstance(layer, (nn.Linear, QuadraticLayer)):
                    layer.reset_parameters()
    return found


@dataclass
class _Attempt:
    """A network, its fits one after another, and what loss it promises."""

    network: nn.Sequential
    fits: list[LeastSquaresFit] = field(default_factory=list)
    promise: float = math.inf


class _Search:
    """Second-order fits of one network from several starts."""

    def __init__(self, job: Job, begin: float, left: int, on_epoch: EpochDone | None) -> None:
        self.job, self.left, self.on_epoch = job, left, on_epoch
        self.train, self.held = _clean(job.train), job.validation
        self.steps, self.start, self.starts, self.lowest = 0, 0, 1, math.inf
        limit = job.settings.max_time
        self.end = math.inf if limit is None else begin + limit

    def refine(self, fresh: list[nn.Sequential], record: FitRecord) -> bool:
        """Takes one network from where Adam left it to a minimum; whether it was interrupted."""
        if time.perf_counter() >= self.end:
            record.solver, record.reason = "adam", f"{record.reason}; max_time was over before"
            return False
        networks = [copy.deepcopy(self.job.network), *fresh]
        self.starts = len(networks)
        try:
            with one_thread(self.job.is_small()):
                best, attempts = self._race(networks)
        except InputError as error:  # columns of any size, without standardization
            record.solver, record.reason = "adam", f"{record.reason}; but {error}"
            return False
        seconds = sum(fit.seconds for attempt in attempts for fit in attempt.fits)
        took = f"{_seconds(seconds)} after {_seconds(record.seconds)} of Adam"
        record.reason += f"; {self.steps} steps in {took}: {best.fits[-1].reason}"
        record.seconds += seconds
        self._note(best, record)
        return best.fits[-1].reason.startswith("interrupted")

    def _race(self, networks: list[nn.Sequential]) -> tuple[_Attempt, list[_Attempt]]:
        """The best of some starts after its last step, and all."""
        attempts, most = [], self.job.max_steps
        for network in networks:
            attempt = _Attempt(network)
            attempts.append(attempt)
            self.start += 1
            over = self._fit(attempt, most if len(networks) == 1 else min(TRIAL_STEPS, most))
            best = min(attempts, key=lambda attempt: attempt.promise)
            worthwhile = self._is_better(best)
            if over or (len(attempts) >= FAIR_TRIALS and not worthwhile):
                break
        self.starts = len(attempts)
        if over:
            best.fits[-1].reason = attempts[-1].fits[-1].reason
        elif worthwhile and best.fits[-1].reason.startswith("max_steps") and self.steps < most:
            self.start = attempts.index(best) + 1
            self._fit(best, most - self.steps)
        return best, attempts

    def _fit(self, attempt: _Attempt, steps: int) -> bool:
        """Goes on with a start; whether there is no time left."""
        held, done = self.held, self.steps

        def report(step: Progress) -> bool:
            self._report(step, done + step.step)
            return self.start == 1 and done == 0 and self._is_vain(step)

        fit = least_squares(
            attempt.network,
            self.train.inputs,
            self.train.targets,
            sample_weight=self.train.weights,
            validation=None if held is None else (held.inputs, held.targets),
            max_steps=steps,
            max_seconds=max(0.0, self.end - time.perf_counter()) if self.end < math.inf else None,
            callback=report,
        )
        if fit.reason == ASKED:
            fit.reason = f"{VAIN} {fit.steps} steps"
        self.steps += fit.steps
        attempt.fits.append(fit)
        attempt.promise = self._expected(fit) if fit.validation is None else fit.validation
        return fit.reason.startswith(("interrupted", "max_seconds", VAIN))

    def _is_vain(self, step: Progress) -> bool:
        """Whether the first steps are done, and promise nothing on other rows."""
        if self.held is None or not self.job.first_steps:
            return False
        self.lowest = min(self.lowest, step.validation or math.inf)
        if step.step != self.job.first_steps:
            return False
        held, own = (float(_squares(self.job.network, r).mean()) for r in (self.held, self.train))
        agreed = step.effective_parameters and self._expected(step) < HOPE * min(held, own)
        return not agreed and self.lowest > HOPE * held

    def _expected(self, now: LeastSquaresFit | Progress) -> float:
        """What the loss on new rows should be, judged by the learned ones (Golub et al. 1979)."""
        free = 1 - (now.effective_parameters or 0.0) / self.train.targets.numel()
        return now.loss / max(free, 0.02) ** 2

    def _is_better(self, attempt: _Attempt) -> bool:
        """Whether it is clearly better than Adam's network; the evidence alone needs no proof."""
        if self.held is None:
            return True
        first, last = (_squares(net, self.held) for net in (self.job.network, attempt.network))
        agreed = self._expected(attempt.fits[-1]) < CONFIRMED * float(first.mean())
        return _is_lower(last, first, agreed)

    def _report(self, step: Progress, number: int) -> None:
        if self.job.settings.verbose:
            said = "" if step.validation is None else f", validation loss = {step.validation:.8f}"
            start = f" (start {self.start} of {self.starts})" if self.starts > 1 else ""
            print(
                f"Levenberg-Marquardt step {number}{start}, loss = {step.loss / 2:.8f}{said}",
            )
        if self.on_epoch is not None:
            self.on_epoch(number, self.left)

    def _note(self, best: _Attempt, record: FitRecord) -> None:
        """Keeps the best network, or Adam's, and writes down how it went."""
        held, network, fit = self.held, self.job.network, best.fits[-1]
        history = [step for each in best.fits for step in each.history]
        record.losses += [step.loss / 2 for step in history]
        record.best_loss = min(record.best_loss, *record.losses)
        record.stopped = not fit.reason.startswith("max_")
        if self.starts > 1:
            record.reason += f", the best of {self.starts} starts after {len(history)} steps"
        if self._is_better(best):
            network.load_state_dict(best.network.state_dict())
        else:
            record.reason += "; not clearly better than Adam on the held-out rows: Adam's is kept"
        if held is not None:
            record.scores += [_r2(step.validation or math.nan, held) for step in history]
            record.best_score = _r2(float(_squares(network, held).mean()), held)


def _clean(rows: Rows) -> Rows:
    """Rows whose constant columns are zero: what rounding left of them has no scale."""
    return rows._replace(inputs=rows.inputs * (rows.inputs.abs().amax(0) > DUST))


@torch.no_grad()
def _squares(network: nn.Module, held: Rows) -> Tensor:
    """The squared error on each held-out row."""
    return (network(held.inputs) - held.targets).double().square().mean(1)


def _is_lower(squares: Tensor, than: Tensor, agreed: bool = False) -> bool:
    """Whether the mean is lower by a standard error of the difference; by less, if `agreed`."""
    gained = than - squares
    error = float(gained.std()) / math.sqrt(len(gained)) if len(gained) > 1 else 0.0
    # Lower on every row is always enough, but for rounding.
    mean = float(gained.mean())
    return mean > 0 and (agreed or mean >= (1 - 1e-9) * error)


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
                # One linear model may have taken the place of all.
                for network, (own, held) in zip(networks, self.parts, strict=False)
            ]
        variance = torch.stack([bar.std(inputs, noise).square() for bar in self._bars]).mean(0)
        with torch.no_grad():
            answers = torch.stack([network(inputs).double() for network in networks])
        return (variance + answers.var(0, correction=0)).sqrt()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bars": None}
