"""What is compared: networks of several neurons at equal size, and scikit-learn's own models."""

from __future__ import annotations

import math
import re
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

# An epoch on a small table is a few steps. These are the least numbers of epochs and steps in all,
# and of those without improvement before the learning rate falls.
MIN_EPOCHS, MIN_STEPS = 400, 8_000
MIN_PATIENCE, PATIENCE_STEPS = 10, 200
BATCH = 200

MAX_ROWS = {"SVR (RBF)": 10_000, "SVC (RBF)": 10_000}
"""A support vector machine takes time with the square of the rows: it learns from at most these."""


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
        """Its name in the report, such as `eigen[3]`."""
        return self.neuron if self.rank is None else f"{self.neuron}[{self.rank}]"

    @property
    def resolved_rank(self) -> int | None:
        """The rank, or the neuron's own where none was given; None for a neuron without rank."""
        return get_neuron(self.neuron).default_rank if self.rank is None else self.rank


def parse_neurons(text: str) -> tuple[Contender, ...]:
    """From "eigen,shared:4" to contenders.

    Args:
        text: names of neurons, with an optional rank.

    Returns:
        The contenders. Linear is always the first: the others are measured by it.

    Raises:
        InputError: if a word does not name a neuron, or there is none besides linear.
    """
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
    return tuple(found)


@dataclass(frozen=True)
class Plan:
    """What is compared, and how: the same training for all networks.

    Attributes:
        task: "regression" or "classification".
        contenders: the networks, linear first.
        hidden: widths of the linear network; the others have no more parameters.
        activation: between the layers.
        max_iter: epochs at most; None lets the rows decide.
        folds: of the cross-validation.
        seeds: starts of each network on each fold; their errors are averaged.
        seed: of the split, and the first of the starts.
        with_baselines: whether scikit-learn's own models take part.
    """

    task: str
    contenders: tuple[Contender, ...]
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    max_iter: int | None = None
    folds: int = 5
    seeds: int = 3
    seed: int = 0
    with_baselines: bool = True

    def starts(self) -> dict[str, int]:
        """The label of each model, with the number of its fits on a fold."""
        baselines = self.baselines(1, 0) if self.with_baselines else {}
        networks = dict.fromkeys((c.label for c in self.contenders), self.seeds)
        return networks | dict.fromkeys(baselines, 1)

    def epochs(self, rows: int) -> int:
        """Epochs at most, for a number of training rows."""
        return self.max_iter or max(MIN_EPOCHS, math.ceil(MIN_STEPS / _steps(rows)))

    def patience(self, rows: int) -> int:
        """Epochs without improvement before the learning rate falls."""
        return max(MIN_PATIENCE, math.ceil(PATIENCE_STEPS / _steps(rows)))

    def estimator(
        self, contender: Contender, columns: int, outputs: int, rows: int, seed: int
    ) -> QuadraticNetwork:
        """The estimator of a contender for a table of this size."""
        kind = QuadraticRegressor if self.task == "regression" else QuadraticClassifier
        return kind(
            fit_widths(columns, outputs, self.hidden, contender.neuron, contender.rank),
            neuron=contender.neuron,
            rank=contender.rank,
            activation=self.activation,
            learning_rate="adaptive",
            max_iter=self.epochs(rows),
            n_iter_no_change=self.patience(rows),
            random_state=seed,
        )

    def baselines(self, rows: int, seed: int) -> dict[str, Any]:
        """What a person would use instead, by name: scikit-learn's models, not fitted."""
        options = {
            "hidden_layer_sizes": self.hidden,
            "early_stopping": rows >= AUTO_STOPPING_ROWS,
            "max_iter": self.epochs(rows),
            "n_iter_no_change": self.patience(rows),
            "random_state": seed,
        }
        if self.task == "regression":
            scaled = {
                "MLPRegressor": MLPRegressor(**options),
                "SVR (RBF)": SVR(),
                "ridge": RidgeCV(np.logspace(-3, 3, 13)),
            }
            trees = HistGradientBoostingRegressor(random_state=seed)
        else:
            scaled = {
                "MLPClassifier": MLPClassifier(**options),
                "SVC (RBF)": SVC(),
                "logistic regression": LogisticRegression(max_iter=1000),
            }
            trees = HistGradientBoostingClassifier(random_state=seed)
        found: dict[str, Any] = {"HistGradientBoosting": trees}
        for name, model in scaled.items():
            found[name] = make_pipeline(StandardScaler(), model)
            if self.task == "regression":
                targets = StandardScaler()
                found[name] = TransformedTargetRegressor(found[name], transformer=targets)
        return found


def _steps(rows: int) -> int:
    """Steps of an epoch: a tenth of the rows is held out."""
    return max(1, math.ceil(0.9 * rows / BATCH))


def count_baseline(model: Any) -> int | None:
    """The number of fitted parameters of a baseline; None where the word means nothing."""
    model = getattr(model, "regressor_", model)
    model = model.steps[-1][1] if hasattr(model, "steps") else model
    for names in (
        ("coefs_", "intercepts_"),
        ("support_vectors_", "dual_coef_", "intercept_"),
        ("coef_", "intercept_"),
    ):
        if all(hasattr(model, name) for name in names):
            fitted = [getattr(model, name) for name in names]
            lists = [part if isinstance(part, list) else [part] for part in fitted]
            return sum(int(np.size(array)) for part in lists for array in part)
    return None
