"""What a fit gives back: how it went, and error bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quadric.errors import InputError
from quadric.solve.jacobian import jacobian
from quadric.solve.levenberg import Path, Progress, evidence
from quadric.solve.problems import RowProblem

_TURNS = 10


@dataclass
class LeastSquaresFit:
    """How `least_squares` went; its model holds the parameters that are kept.

    Attributes:
        loss: the mean of the squared residuals (with terms: their weighted mean squares, summed) of
            the model as it is now, in its own dtype.
        steps: the number of steps that were tried.
        reason: why it stopped, in words.
        seconds: the time that it took.
        effective_parameters: the number that the data determine; None where that was not
            measured (`regularization=None` with terms).
        decay: the mean weight decay of the last step, as a multiple of the squared residuals' sum
            in units of the targets' spread.
        solver: "normal", "residual" or "products".
        why: why that solver.
        validation: the validation loss of what is kept; None without validation rows.
        term_losses: the mean squared residual of each term; empty for data.
        notes: remarks, such as that a linear fit is as good.
        history: each step: `.seconds`, `.loss`, `.validation`, `.damping`.
    """

    loss: float
    steps: int
    reason: str
    seconds: float
    effective_parameters: float | None
    decay: float
    solver: str
    why: str
    validation: float | None = None
    term_losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    history: list[Progress] = field(default_factory=list, repr=False)
    _bars: ErrorBars | None = field(default=None, repr=False)

    def std(self, inputs: Any, noise: bool = True) -> Tensor:
        """The standard deviation of what the model predicts: the error bar of each output.

        It is that of the linearized model under its most probable weight decay. It grows where the
        data leave the network free, so outside of them. Noise is taken to be as large
        everywhere.

        Args:
            inputs: rows as in `least_squares`.
            noise: with the noise of a new measurement, as scikit-learn's BayesianRidge has it;
                without it, how uncertain the mean is.

        Returns:
            (N,) where the targets were, else (N, outputs), in float64.
        """
        if self._bars is None:
            raise InputError(
                "error bars belong to a fit to data, got one of terms: fit with inputs and targets"
            )
        return self._bars.std(inputs, noise)


class ErrorBars:
    """Error bars of a network: the covariance of its parameters and the noise of each output.

    The network may be trained on: its parameters as they were are kept here.

    Attributes:
        effective: the number of parameters that the data determine.
        noise: the variance of each output's noise, in units of the targets' variance.
    """

    def __init__(
        self,
        problem: RowProblem,
        path: Path,
        convert: Callable[[Any], Tensor],
        flat: bool,
        held: Tensor | None = None,
    ) -> None:
        self.problem, self.u, self.system, self.decay = problem, path.u, path.system, path.decay
        self.convert, self.flat = convert, flat
        effective = path.effective
        for _ in range(_TURNS):
            before = self.decay
            self.decay, effective = evidence(problem, self.system, self.u, before)
            if bool(((self.decay - before).abs() <= 0.01 * self.decay).all()):
                break
        # Without noise nothing is uncertain, but matrices are singular.
        self.decay = self.decay.clamp_min(1e-14 * self.system.scale)
        self.effective = float(effective or 0)
        with torch.no_grad():
            residuals = problem.residuals(self.u).view(problem.targets.shape).square().sum(0)
        outputs = problem.targets.shape[1]
        free = max(len(problem.targets) - self.effective / outputs, 0.5)
        self.noise = residuals / free
        if held is not None:  # early stopping: the training rows no longer show the noise
            self.noise = torch.maximum(self.noise, held)

    def std(self, inputs: Any, noise: bool = True) -> Tensor:
        """The standard deviation of each output, as `LeastSquaresFit.std` says.

        Args:
            inputs: rows as the network takes them.
            noise: with the noise of a new measurement.

        Returns:
            (N,) where the targets were, else (N, outputs), in float64.
        """
        problem = self.problem
        x = self.convert(inputs)
        if not len(x):
            return (
                self.u.new_empty(0) if self.flat else self.u.new_empty(0, problem.targets.shape[1])
            )
        outputs = problem.targets.shape[1]
        rows = problem.rows_at_once(outputs)
        parts = []
        for piece in x.split(rows):
            into = self.u.new_empty(len(piece), outputs, len(self.u))
            jacobian(problem.steps, problem.unknowns, self.u * problem.units, piece, into)
            found = into.view(-1, len(self.u)) * (problem.units / problem.unit)
            parts.append(self.system.spread(found, self.decay).view(-1, outputs))
        spread = torch.cat(parts)
        std = (self.noise * (spread + float(noise))).sqrt() * problem.unit
        return std.squeeze(1) if self.flat else std
