"""Levenberg-Marquardt: damped Gauss-Newton steps until nothing more is gained.

The damping follows Nielsen (1999): each step's gain, measured by what its model promised, says how
much is added to the diagonal of J'J in the next one. A step bends along the second derivatives of
the residuals (geodesic acceleration, Transtrum and Sethna 2012), which lets it follow the narrow
curved valleys of a network's loss: a third of the error after as many steps. The weight decay
follows MacKay (1992), as Foresee and Hagan (1997) put it into Levenberg-Marquardt, with a decay for
each parameter tensor: if gamma of its unknowns u are determined by the data, it is gamma / |u|^2
times the variance of the noise, |r|^2 / (N - all gamma).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quadric.solve.problems import Problem
from quadric.solve.systems import System

FIRST_DAMPING = 1e-3
LARGEST_DAMPING = 1e24
# A share of the residuals' number: a network that starts smooth learns less noise, but one of few
# rows would stay flat.
FIRST_DECAY = 0.002
DECAY_EVERY = 5
WINDOW = 30
EXACT = 1e-28
ASKED = "the callback asked for it"
_REACH, _BEND = 0.1, 0.375


@dataclass(frozen=True)
class Progress:
    """One step of a fit.

    Attributes:
        step: counted from 1; a step that was tried and refused counts.
        seconds: since the start.
        loss: mean of the squared residuals, in the unit of the targets squared.
        validation: that of the validation rows, None without any.
        damping: the number added to the diagonal of J'J, as a share of its largest entry.
        effective_parameters: the number that the data determine, None where not asked for.
    """

    step: int
    seconds: float
    loss: float
    validation: float | None
    damping: float
    effective_parameters: float | None


@dataclass(frozen=True)
class LevenbergSettings:
    """How a fit runs and when it stops; see `least_squares`."""

    evidence: bool
    decay: float
    max_steps: int
    max_seconds: float
    tolerance: float
    patience: int = 50


@dataclass
class Path:
    """Where a fit stands.

    Attributes:
        u: the unknowns that are kept.
        system: the problem made linear there.
        decay: the weight decay of each unknown there.
        effective: how many unknowns the data determine there.
        best: what `u` reached: the loss, or the validation loss. The start counts for the latter.
        reason: why it stopped.
        history: each step.
    """

    u: Tensor
    system: System
    decay: Tensor
    effective: float | None = None
    best: float = math.inf
    reason: str = ""
    history: list[Progress] = field(default_factory=list)


def minimize(
    problem: Problem,
    start: Tensor,
    make: Callable[[Problem, Tensor], System],
    settings: LevenbergSettings,
    validate: Callable[[Tensor], float] | None = None,
    callback: Callable[[Progress], object] | None = None,
    unit: float = 1.0,
) -> Path:
    """Fits from a start; Ctrl-C ends it as any other reason does."""
    begin = time.perf_counter()
    decay = torch.full_like(start, settings.decay)
    path = Path(start, make(problem, start), decay)
    run = _Run(problem, make, settings, path)
    if validate is not None:
        path.best = validate(start)
    try:
        while not path.reason:
            run.step()
            validation = None if validate is None else validate(run.u)
            run.keep(validation)
            path.history.append(
                Progress(
                    len(path.history) + 1,
                    time.perf_counter() - begin,
                    run.system.loss / problem.count * unit * unit,
                    validation,
                    run.damping / max(run.system.scale, 1e-300),
                    run.effective,
                )
            )
            path.reason = run.stop_reason(path.history[-1])
            if callback is not None and callback(path.history[-1]):
                path.reason = path.reason or ASKED
    except KeyboardInterrupt:
        path.reason = "interrupted; the best step is kept"
    return path


class _Run:
    """The state of a fit between steps."""

    def __init__(
        self,
        problem: Problem,
        make: Callable[[Problem, Tensor], System],
        settings: LevenbergSettings,
        path: Path,
    ) -> None:
        self.problem, self.make, self.settings, self.path = problem, make, settings, path
        self.u, self.system = path.u, path.system
        self.damping, self.growth = FIRST_DAMPING * self.system.scale, 2.0
        self.decay: Tensor = path.decay
        self.effective: float | None = None
        if settings.evidence:
            self.decay = self.decay + FIRST_DECAY * min(self.system.loss, problem.count)
            path.decay = self.decay
        self.accepted, self.waited = 0, 0
        self.here: Tensor | None = None
        self.losses: list[float] = []

    def step(self) -> None:
        """Tries one step."""
        u, system, pull = self.u, self.system, self.decay * self.u
        d = system.step(self.decay + self.damping, pull)
        if d is None:
            self._refuse()
            return
        trial = u + self._bent(d)
        loss = self.problem.loss(trial)
        gained = system.loss - loss + float(self.decay @ (u * u - trial * trial))
        promised = self.damping * float(d @ d) - float((system.gradient + pull) @ d)
        if not (gained > 0 and promised > 0):
            self._refuse()
            return
        self.u, self.system, self.here = trial, self.make(self.problem, trial), None
        self.damping *= max(1 / 3, 1 - (2 * gained / promised - 1) ** 3)
        self.growth = 2.0
        self.accepted += 1
        if self.problem.renew(self.u, self.accepted):
            self.system = self.make(self.problem, self.u)
            self.losses.clear()
        if self.settings.evidence and self.accepted % DECAY_EVERY == 0:
            self.decay, self.effective = evidence(self.problem, self.system, self.u, self.decay)

    @torch.no_grad()
    def _bent(self, d: Tensor) -> Tensor:
        """A step with its correction, or as it is where that is no small part of it."""
        if self.here is None:
            self.here = self.problem.residuals(self.u)
        ahead, behind = (self.problem.residuals(self.u + h * d) for h in (_REACH, -_REACH))
        second = (ahead - 2 * self.here + behind) / _REACH**2
        bend = self.system.bend(second)
        if bend is None or not float(bend.norm()) <= _BEND * float(d.norm()):
            return d
        return d + bend

    def _refuse(self) -> None:
        self.damping = max(self.damping, 1e-16 * self.system.scale) * self.growth
        self.growth *= 2

    def keep(self, validation: float | None) -> None:
        """Notes the step if it is the best so far."""
        value = self.system.loss if validation is None else validation
        self.waited = 0 if value < self.path.best * (1 - 1e-4) else self.waited + 1
        if value < self.path.best or validation is None:
            self.path.best, self.path.u, self.path.system = value, self.u, self.system
            self.path.decay, self.path.effective = self.decay, self.effective

    def stop_reason(self, now: Progress) -> str:
        """Why this step is the last one; empty if it is not."""
        settings, losses = self.settings, self.losses
        losses.append(self.system.loss)
        if self.system.loss <= EXACT * self.problem.count:
            return "the residuals are zero to the last digit"
        if self.damping > LARGEST_DAMPING * max(self.system.scale, 1e-300):
            return "no step lowers the loss: a minimum, to the last digit"
        if len(losses) > WINDOW and losses[-1] > (1 - settings.tolerance) * losses[-1 - WINDOW]:
            return f"the loss fell by less than {settings.tolerance:g} of it in {WINDOW} steps"
        if now.validation is not None and self.waited >= settings.patience:
            return f"the validation loss did not fall in {settings.patience} steps"
        if now.step >= settings.max_steps:
            return f"max_steps = {settings.max_steps} are done"
        if now.seconds >= settings.max_seconds:
            return f"max_seconds = {settings.max_seconds:g} are over"
        return ""


def evidence(problem: Problem, system: System, u: Tensor, decay: Tensor) -> tuple[Tensor, float]:
    """The weight decay that makes the data most probable, and the effective parameters."""
    determined = system.determined(decay.clamp_min(1e-14 * system.scale)).clamp(0, 1)
    effective = float(determined.sum())
    free = problem.count - effective
    if free < 0.5:
        return decay, effective
    noise, result = system.loss / free, decay.clone()
    for a, b, _ in problem.unknowns.parts.values():
        size = float(u[a:b] @ u[a:b])
        if size > 0:
            result[a:b] = float(determined[a:b].sum()) / size * noise
    return result, effective
