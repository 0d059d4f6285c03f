"""Who takes part: networks of several neurons at equal size, and what one would use instead."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from quadric.errors import InputError
from quadric.sklearn.classifier import QuadraticClassifier
from quadric.sklearn.estimators import AUTO_STOPPING_ROWS, QuadraticNetwork
from quadric.sklearn.networks import fit_widths
from quadric.sklearn.regressor import QuadraticRegressor
from quadric.zoo import get_neuron

LINEAR = "linear"

# Enough to converge on small tables, where an epoch is a few steps: at least so many steps in all,
# and so many without improvement before the learning rate falls.
MIN_EPOCHS, MIN_STEPS = 400, 8_000
MIN_PATIENCE, PATIENCE_STEPS = 10, 200
BATCH = 200

SVM_ROWS = 10_000
"""A support vector machine takes time with the square of the rows: it learns from so many."""


@dataclass(frozen=True)
class Contender:
    """A network that takes part.

    Attributes:
        neuron: its registry name.
        rank: None for the neuron's own default.
    """

    neuron: str
    rank: int | None = None

    @property
    def label(self) -> str:
        return self.neuron if self.rank is None else f"{self.neuron}[{self.rank}]"

    @property
    def resolved_rank(self) -> int | None:
        """The rank, or the neuron's own where none was given; None for a neuron without rank."""
        return get_neuron(self.neuron).default_rank if self.rank is None else self.rank


def parse_neurons(text: str) -> list[Contender]:
    """From "eigen,shared:4" to contenders; linear always comes first, as the measure of all."""
    found = [Contender(LINEAR)]
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(r"([a-z0-9_]+)(?:[:\[](\d+)\]?)?", word)
        if match is None:
            raise InputError(
                f"neurons must be names with an optional rank, as in eigen,shared:4, got {word!r}"
            )
        rank = int(match[2]) if match[2] else None
        get_neuron(match[1]).make_rule(rank=rank)
        contender = Contender(match[1], rank)
        if contender not in found:
            found.append(contender)
    if len(found) < 2:
        raise InputError(f"neurons must name one besides linear, got {text!r}: for example eigen")
    return found


@dataclass(frozen=True)
class Plan:
    """How the networks are made and trained, the same for all.

    Attributes:
        task: "regression" or "classification".
        hidden: widths of the linear network; the others have no more parameters.
        activation: between the layers.
        max_iter: epochs at most; None lets the rows decide.
    """

    task: str
    hidden: tuple[int, ...]
    activation: str = "silu"
    max_iter: int | None = None

    def epochs(self, rows: int) -> int:
        """Epochs at most on so many training rows."""
        return self.max_iter or max(MIN_EPOCHS, math.ceil(MIN_STEPS / _steps(rows)))

    def patience(self, rows: int) -> int:
        """Epochs without improvement before the learning rate falls."""
        return max(MIN_PATIENCE, math.ceil(PATIENCE_STEPS / _steps(rows)))

    def estimator(
        self, contender: Contender, columns: int, outputs: int, rows: int, seed: int
    ) -> QuadraticNetwork:
        """The estimator of a contender on so many columns and rows."""
        widths = fit_widths(columns, outputs, self.hidden, contender.neuron, contender.rank)
        kind = QuadraticRegressor if self.task == "regression" else QuadraticClassifier
        return kind(
            hidden_layer_sizes=widths,
            neuron=contender.neuron,
            rank=contender.rank,
            activation=self.activation,
            learning_rate="adaptive",
            max_iter=self.epochs(rows),
            n_iter_no_change=self.patience(rows),
            random_state=seed,
        )


def _steps(rows: int) -> int:
    """Steps of an epoch: a tenth of the rows is held out."""
    return max(1, math.ceil(0.9 * rows / BATCH))


@dataclass(frozen=True)
class Baseline:
    """What a person would use instead.

    Attributes:
        label: its name in the table.
        make: from the plan, the number of training rows and the seed to an estimator.
        count: the number of fitted parameters, None where the word means nothing.
        max_rows: it learns from so many rows at most.
    """

    label: str
    make: Callable[[Plan, int, int], Any]
    count: Callable[[Any], int | None]
    max_rows: int | None = None


def _on_scaled_target(model: Any) -> Any:
    scaled = make_pipeline(StandardScaler(), model)
    return TransformedTargetRegressor(scaled, transformer=StandardScaler())


def _mlp_options(plan: Plan, rows: int, seed: int) -> dict[str, Any]:
    return {
        "hidden_layer_sizes": plan.hidden,
        "early_stopping": rows >= AUTO_STOPPING_ROWS,
        "max_iter": plan.epochs(rows),
        "n_iter_no_change": plan.patience(rows),
        "random_state": seed,
    }


def _unwrap(model: Any) -> Any:
    """The fitted model at the end of scalings."""
    model = getattr(model, "regressor_", model)
    return model.steps[-1][1] if hasattr(model, "steps") else model


def _mlp_count(model: Any) -> int:
    network = _unwrap(model)
    return int(sum(a.size for a in [*network.coefs_, *network.intercepts_]))


def _svm_count(model: Any) -> int:
    machine = _unwrap(model)
    return int(machine.support_vectors_.size + machine.dual_coef_.size + machine.intercept_.size)


def _linear_count(model: Any) -> int:
    linear = _unwrap(model)
    return int(np.size(linear.coef_) + np.size(linear.intercept_))


REGRESSORS = (
    Baseline(
        "HistGradientBoosting",
        lambda plan, rows, seed: HistGradientBoostingRegressor(random_state=seed),
        lambda model: None,
    ),
    Baseline(
        "MLPRegressor",
        lambda plan, rows, seed: _on_scaled_target(MLPRegressor(**_mlp_options(plan, rows, seed))),
        _mlp_count,
    ),
    Baseline("SVR (RBF)", lambda plan, rows, seed: _on_scaled_target(SVR()), _svm_count, SVM_ROWS),
    Baseline(
        "ridge",
        lambda plan, rows, seed: _on_scaled_target(RidgeCV(np.logspace(-3, 3, 13))),
        _linear_count,
    ),
)
CLASSIFIERS = (
    Baseline(
        "HistGradientBoosting",
        lambda plan, rows, seed: HistGradientBoostingClassifier(random_state=seed),
        lambda model: None,
    ),
    Baseline(
        "MLPClassifier",
        lambda plan, rows, seed: make_pipeline(
            StandardScaler(), MLPClassifier(**_mlp_options(plan, rows, seed))
        ),
        _mlp_count,
    ),
    Baseline(
        "SVC (RBF)",
        lambda plan, rows, seed: make_pipeline(StandardScaler(), SVC()),
        _svm_count,
        SVM_ROWS,
    ),
    Baseline(
        "logistic regression",
        lambda plan, rows, seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        _linear_count,
    ),
)


def baselines(task: str) -> Sequence[Baseline]:
    """The baselines of a task."""
    return REGRESSORS if task == "regression" else CLASSIFIERS
