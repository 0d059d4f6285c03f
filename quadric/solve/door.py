"""`least_squares`: fits a network to data, or to conditions at points."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.solve.choice import Choice, choose_solver
from quadric.solve.fit import ErrorBars, LeastSquaresFit
from quadric.solve.jacobian import outputs_of
from quadric.solve.levenberg import FIRST_DECAY, LevenbergSettings, Path, Progress, minimize
from quadric.solve.problems import Problem, RowProblem
from quadric.solve.rows import RowDoor, as_rows
from quadric.solve.starts import ridge
from quadric.solve.systems import NormalSystem, ProductSystem, ResidualSystem, System
from quadric.solve.terms import Term, TermProblem
from quadric.solve.unknowns import Unknowns
from quadric.support.progress import progress_bar

_SYSTEMS: dict[str, Callable[[Problem, Tensor], System]] = {
    "normal": NormalSystem,
    "residual": ResidualSystem,
    "products": ProductSystem,
}


def least_squares(
    model: nn.Module,
    inputs: Any = None,
    targets: Any = None,
    *,
    terms: Sequence[Term] | None = None,
    sample_weight: Any = None,
    regularization: str | float | None = "evidence",
    validation: tuple[Any, Any] | None = None,
    solver: str = "auto",
    max_steps: int = 300,
    max_seconds: float | None = None,
    tolerance: float = 0.01,
    callback: Callable[[Progress], object] | None = None,
    progress: bool = False,
) -> LeastSquaresFit:
    """Trains a network in place by Levenberg-Marquardt, on data or on conditions at points.

    Small networks (up to a few thousand parameters) reach a far lower loss than with Adam. Any
    module works whose output for a row depends on that row alone. It is computed in float64 and
    written back in the model's own dtype. If the fit fails, the model is left as it was; Ctrl-C
    ends it and keeps the best step.

    Args:
        model: the network.
        inputs: (N, columns), or whatever rows the network takes.
        targets: (N, outputs), or (N,) for a network of one output.
        terms: in place of inputs and targets: conditions such as differential equations.
        sample_weight: (N,), what each row counts.
        regularization: "evidence" finds the weight decay and the level of the noise from the data
            themselves (MacKay 1992), so that noise is not learned; a number is a weight decay, in
            units of the targets' spread; None fits without, down to the last digit.
        validation: (inputs, targets) that choose the step to keep and end the fit. A validation set
            does not replace the weight decay: give `regularization=None` for early stopping alone.
        solver: "normal" and "residual" build a matrix of parameters or of residuals squared,
            "products" builds none (conjugate gradients); "auto" is `choose_solver`.
        max_steps: steps at most, refused ones included.
        max_seconds: seconds at most.
        tolerance: stop when the loss falls by less than this share of it in 30 steps.
        callback: a function of a `Progress`, called after each step; True from it ends the fit.
        progress: shows the steps and the mean squared residual on the terminal.

    Returns:
        How it went, and error bars: `fit.std(inputs)`.

    Raises:
        InputError: for data, terms or a model that cannot be fitted.

    Examples:
        >>> import quadric
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)  # the first layers decide where a fit ends
        >>> x = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
        >>> model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        >>> fit = quadric.solve.least_squares(model, x, (3 * x).sin())
        >>> fit.loss < 1e-6
        True
    """
    settings = _settings(regularization, max_steps, max_seconds, tolerance)
    if progress:
        with progress_bar(max_steps, "least squares") as advance:

            def shown(now: Progress) -> object:
                advance(now=f"mean square {now.loss:.2e}")
                return callback is not None and callback(now)

            return least_squares(
                model, inputs, targets, terms=terms, sample_weight=sample_weight,
                regularization=regularization, validation=validation, solver=solver,
                max_steps=max_steps, max_seconds=max_seconds, tolerance=tolerance, callback=shown,
            )  # fmt: skip
    if solver not in ("auto", *_SYSTEMS):
        raise InputError(f"solver must be auto or one of {', '.join(_SYSTEMS)}, got {solver!r}")
    if terms is not None:
        if inputs is not None or targets is not None or sample_weight is not None:
            raise InputError(
                "give either inputs and targets or terms, got both: data are a term too, "
                "Term(lambda u, x: …, points)"
            )
        if validation is not None:
            raise InputError("terms have no validation rows, got validation: leave it out")
        return _fit_terms(model, terms, solver, settings, callback)
    if inputs is None or targets is None:
        raise InputTypeError("least_squares needs inputs and targets, or terms: got neither")
    return _fit_rows(model, inputs, targets, sample_weight, validation, solver, settings, callback)


def error_bars(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    sample_weight: Any = None,
    *,
    validation: tuple[Any, Any] | None = None,
) -> ErrorBars:
    """The error bars of a network that was trained already, by whatever means.

    It should be near a minimum of its squared error. The weight decay is found from the data.

    Args:
        model: the network; it stays as it is.
        inputs: the rows that it learned from.
        targets: (N, outputs), or (N,) for a network of one output.
        sample_weight: (N,), what each row counted.
        validation: (inputs, targets) that it did not learn from: they show the noise, too.

    Returns:
        The bars: `.std(inputs)`.

    Raises:
        InputError: for data or a model that cannot be fitted.

    Examples:
        >>> import quadric
        >>> from torch import nn
        >>> x = torch.randn(100, 3, dtype=torch.float64)
        >>> quadric.solve.error_bars(nn.Linear(3, 1), x, x[:, 0]).std(x).shape
        torch.Size([100])
    """
    door = RowDoor(model, inputs, targets, sample_weight)
    problem = door.problem
    u = door.unknowns.start() / problem.units
    small = problem.unknowns.count <= problem.count
    system = (NormalSystem if small else ResidualSystem)(problem, u)
    path = Path(u, system, torch.full_like(u, FIRST_DECAY * min(system.loss, problem.count)))
    held = None if validation is None else _Held(door, validation).noise(u)
    return ErrorBars(problem, path, door.converted, door.flat, held)


def _fit_rows(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    sample_weight: Any,
    validation: tuple[Any, Any] | None,
    solver: str,
    settings: LevenbergSettings,
    callback: Callable[[Progress], object] | None,
) -> LeastSquaresFit:
    door = RowDoor(model, inputs, targets, sample_weight)
    problem, unknowns = door.problem, door.unknowns
    validate = held = None
    if validation is not None:
        held = _Held(door, validation)
        validate = held.loss
    choice = _chosen(solver, problem)
    path, start = _minimized(problem, door.start(), choice, settings, validate, callback, door.unit)
    fit = _written(unknowns, problem, path, choice, start, door.unit)
    bars = (
        ErrorBars(
            problem, path, door.converted, door.flat, None if held is None else held.noise(path.u)
        )
        if choice.solver != "products"
        else None
    )
    fit._bars, fit.validation = bars, None if held is None else path.best
    if fit.effective_parameters is None and bars is not None:
        fit.effective_parameters = bars.effective
    if sample_weight is None:
        fit.notes += _beside_a_line(problem, path.u)
    return fit


def _beside_a_line(problem: RowProblem, u: Tensor) -> list[str]:
    """A note if a linear fit is as good."""
    x = problem.inputs
    if x.dim() != 2 or not x.shape[1] < min(len(x), 500):
        return []
    line = ridge(x.double(), problem.targets)[2]
    own = problem.loss(u) / problem.count * problem.unit * problem.unit
    if own < line or line == 0:
        return []
    return [
        f"no better than a linear fit (mean square {line:.3g}, the network {own:.3g}): start "
        "again from another seed, or from ridge_start_"
    ]


def _fit_terms(
    model: nn.Module,
    terms: Sequence[Term],
    solver: str,
    settings: LevenbergSettings,
    callback: Callable[[Progress], object] | None,
) -> LeastSquaresFit:
    if not isinstance(terms, (list, tuple)) or not terms:
        raise InputTypeError(f"terms must be a list of quadric.solve.Term, got {terms!r}: give one")
    unknowns = Unknowns(model)
    problem = TermProblem(unknowns, terms)
    choice = _chosen(solver, problem)
    if choice.solver in ("normal", "residual"):
        problem.hasten()
    elif any(way.k for way in problem.ways):
        raise InputError(
            "terms of DeepXDE and PINA need solver='normal' or 'residual', got "
            f"{choice.solver!r} ({choice.reason}): use fewer points or a smaller network"
        )
    idle = problem.idle()
    path, start = _minimized(problem, unknowns.start(), choice, settings, None, callback, 1.0)
    fit = _written(unknowns, problem, path, choice, start, 1.0)
    fit.term_losses = problem.means(unknowns.start())
    if idle:
        fit.notes.append(
            f"the residuals do not depend on {', '.join(idle)}: they stay as they were"
        )
    return fit


def _chosen(solver: str, problem: Problem) -> Choice:
    """The solver of this fit, with the reason."""
    chosen = choose_solver(problem.count, problem.unknowns.count)
    if solver != "auto":
        return Choice(solver, "asked for", chosen.seconds)
    return chosen


def _minimized(
    problem: Problem,
    start: Tensor,
    choice: Choice,
    settings: LevenbergSettings,
    validate: Callable[[Tensor], float] | None,
    callback: Callable[[Progress], object] | None,
    unit: float,
) -> tuple[Path, float]:
    """Runs the fit from a start; the loss where the model is beside it."""
    given = problem.unknowns.start() / problem.units
    first = problem.loss(given)
    if not math.isfinite(first):
        with torch.no_grad():
            bad = int((~problem.residuals(given).isfinite()).sum())
        raise InputError(
            f"all residuals must be finite at the start, got {bad} of {problem.count} that are "
            "not: look for divisions by zero, logarithms and roots at the points"
        )
    make = _SYSTEMS["products" if choice.solver == "adam" else choice.solver]
    return minimize(problem, start / problem.units, make, settings, validate, callback, unit), first


def _written(
    unknowns: Unknowns, problem: Problem, path: Path, choice: Choice, first: float, unit: float
) -> LeastSquaresFit:
    """Writes the result into the model, and says how it went."""
    exact = problem.loss(path.u)
    rounded = problem.loss(unknowns.write(path.u * problem.units) / problem.units)
    last = path.history[-1] if path.history else None
    fit = LeastSquaresFit(
        loss=rounded / problem.count * unit * unit,
        steps=len(path.history),
        reason=path.reason,
        seconds=last.seconds if last else 0.0,
        effective_parameters=path.effective,
        decay=float(path.decay.mean()),
        solver=choice.solver,
        why=choice.reason,
        history=path.history,
    )
    if rounded > 1.01 * exact:
        fit.notes.append(
            "rounding to the model's own dtype raised the loss from "
            f"{exact / problem.count * unit * unit:.3g} to {fit.loss:.3g}: use model.double()"
        )
    if choice.solver == "adam":
        fit.notes.append(f"Adam on minibatches is probably faster here ({choice.reason})")
    if exact >= first:
        fit.notes.append("no step lowered the loss: the model is where it was")
    return fit


class _Held:
    """Validation rows."""

    def __init__(self, door: RowDoor, pair: tuple[Any, Any]) -> None:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(
                f"validation must be a pair (inputs, targets), got {type(pair).__name__}: give both"
            )
        self.problem, self.x = door.problem, door.converted(pair[0], "validation inputs")
        if not len(self.x):
            raise InputError("validation must have at least one row, got none: leave it out")
        y = as_rows(pair[1], "validation targets", door.unknowns.device).double()
        self.y = door.matched(self.x, y)

    def _squares(self, u: Tensor) -> Tensor:
        problem = self.problem
        outputs = outputs_of(problem.steps, problem.unknowns.split(u * problem.units), self.x)
        return ((outputs - self.y) / problem.unit).square()

    def loss(self, u: Tensor) -> float:
        value = float(self._squares(u).mean()) * self.problem.unit * self.problem.unit
        return value if math.isfinite(value) else math.inf

    def noise(self, u: Tensor) -> Tensor:
        return self._squares(u).mean(0)


def _settings(
    regularization: str | float | None, max_steps: int, max_seconds: float | None, tolerance: float
) -> LevenbergSettings:
    evidence = regularization == "evidence"
    if isinstance(regularization, str) and not evidence:
        raise InputError(
            f"regularization must be 'evidence', a number >= 0 or None, got {regularization!r}"
        )
    decay: Any = 0.0 if evidence or regularization is None else regularization
    limit = math.inf if max_seconds is None else max_seconds
    for name, value, low, high, rule in (
        (
            "regularization",
            decay,
            0,
            sys.float_info.max,
            "'evidence', a finite number >= 0 or None",
        ),
        ("max_steps", max_steps, 1, 10**9, "a whole number >= 1"),
        ("max_seconds", limit, 0, math.inf, "a number >= 0"),
        ("tolerance", tolerance, 0, 1, "a number from 0 to 1"),
    ):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high or (name == "max_steps" and value % 1):
            raise InputError(f"{name} must be {rule}, got {value!r}: give another one")
    return LevenbergSettings(evidence, float(decay), int(max_steps), float(limit), float(tolerance))
