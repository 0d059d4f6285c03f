"""What is compared: networks of several neurons at equal size, and other models."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from quadric.errors import InputError
from quadric.layers import get_neuron
from quadric.models import create, fit
from quadric.support.modules import count_parameters
from quadric.tables.classifier import QuadraticClassifier
from quadric.tables.comparison.baselines import Baseline, usual_baselines
from quadric.tables.comparison.splitting import Split
from quadric.tables.estimators import AUTO_STOPPING_ROWS, QuadraticNetwork
from quadric.tables.regressor import QuadraticRegressor
from quadric.tables.second_order import choose_by_size

LINEAR = "linear"

# An epoch on a small table is a few steps. These are the least numbers of epochs and steps in all,
# and of those without improvement before the learning rate falls.
MIN_EPOCHS, MIN_STEPS = 400, 8_000
MIN_PATIENCE, PATIENCE_STEPS = 10, 200
BATCH = 200

LARGE_ROWS = 15_000
"""Tables with more rows get one start of each network, and less time for slow models."""

# The most steps, and the epochs that even a very long table gets.
MAX_STEPS, FEW_EPOCHS = 36_000, 40

SEEDS = 3
SVM_ROWS, SVM_ROWS_LARGE = 10_000, 5_000


@dataclass(frozen=True)
class Network:
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

    @functools.lru_cache(maxsize=256)  # noqa: B019  # networks are few and small
    def widths(self, columns: int, outputs: int, hidden: tuple[int, ...]) -> tuple[int, ...]:
        """Hidden layers with which it has no more parameters than the linear network."""
        if self.neuron == LINEAR:
            return hidden
        sizes: dict[str, Any] = {"in_features": columns, "out_features": outputs, "hidden": hidden}
        budget = count_parameters(create("mlp", seed=0, **sizes))
        found = fit("mlp", params=budget, neuron=self.neuron, rank=self.rank, **sizes)
        return tuple(found.options["hidden"])


def parse_neurons(text: str) -> tuple[Network, ...]:
    """From "eigen,shared:4" to networks, linear first."""
    networks = [Network(LINEAR)]
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(r"([a-z0-9_]+)(?:[:\[](\d+)\]?)?", word)
        if match is None:
            raise InputError(
                f"neurons must be names with an optional rank, as in eigen,shared:4, got {word!r}"
            )
        rank = int(match[2]) if match[2] else None
        get_neuron(match[1]).with_options(rank=rank)
        networks.append(Network(match[1], rank))
    if len(set(networks)) < 2:
        raise InputError(f"neurons must name one besides linear, got {text!r}: for example eigen")
    return tuple(dict.fromkeys(networks))


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and how: the same training for all networks.

    Attributes:
        task: "regression" or "classification".
        networks: linear first.
        hidden: widths of the linear network; the others have no more parameters.
        activation: between the layers.
        max_iter: epochs at most; None lets the rows decide.
        folds: of the cross-validation.
        seeds: starts of each network on each fold; their errors are averaged.
        seed: of the split, and the first of the starts.
        with_baselines: whether scikit-learn's own models take part.
        others: baselines of other libraries.
        split: which rows are tested on.
        large: whether the table has more than `LARGE_ROWS` rows.
        solver: "adam", "lm" or "auto" (second order within its bounds), for all networks.
        why: why that one.
        absent: lines about opponents that are not installed.
    """

    task: str
    networks: tuple[Network, ...]
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    max_iter: int | None = None
    folds: int = 5
    seeds: int = SEEDS
    seed: int = 0
    with_baselines: bool = True
    others: tuple[Baseline, ...] = ()
    split: Split = field(default_factory=Split)
    large: bool = False
    solver: str = "adam"
    why: str = ""
    absent: tuple[str, ...] = ()

    def with_solver(self, wanted: str, rows: int, columns: int, outputs: int) -> ComparisonPlan:
        """The plan with one solver for all its networks, chosen by the size of the linear one."""
        if self.task != "regression":
            if wanted == "lm":
                raise InputError("solver='lm' is for regression, got classes: leave it 'auto'")
            return self
        sizes: dict[str, Any] = {"in_features": columns, "out_features": outputs}
        sizes["hidden"] = self.hidden
        parameters = count_parameters(create("mlp", seed=0, **sizes))
        by_time = self.split.kind == "time"
        fewest = rows // (self.folds + 1) if by_time else rows - math.ceil(rows / self.folds)
        if wanted == "auto" and fewest < AUTO_STOPPING_ROWS:
            return replace(self, solver="adam", why="too few rows to hold some out")
        learned = round(0.9 * self.training_rows(rows))  # the rest is held out
        solver, why = choose_by_size(wanted, learned * outputs, parameters)
        # All networks together: one that is a little smaller must not be trained otherwise.
        return replace(self, solver=wanted if solver == "lm" else solver, why=why)

    def starts(self) -> dict[str, int]:
        """The label of each model, with the number of its fits on a fold."""
        networks = dict.fromkeys((network.label for network in self.networks), self.seeds)
        return networks | dict.fromkeys((baseline.label for baseline in self.baselines(1)), 1)

    def epochs(self, rows: int) -> int:
        """Epochs at most, for a number of training rows."""
        if self.max_iter is not None:
            return self.max_iter
        steps = _steps(rows)
        most = max(FEW_EPOCHS, math.ceil(MAX_STEPS / steps))
        return min(max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps)), most)

    def patience(self, rows: int) -> int:
        """Epochs without improvement before the learning rate falls."""
        return max(MIN_PATIENCE, math.ceil(PATIENCE_STEPS / _steps(rows)))

    def training_rows(self, rows: int) -> int:
        """Rows that the last fold of a table learns from."""
        parts = self.folds + 1 if self.split.kind == "time" else self.folds
        return round(rows * (1 - 1 / parts))

    def estimator(
        self, network: Network, columns: int, outputs: int, rows: int, seed: int
    ) -> QuadraticNetwork:
        """The estimator of a network for a table of this size."""
        regression = self.task == "regression"
        kind: Any = QuadraticRegressor if regression else QuadraticClassifier
        estimator: QuadraticNetwork = kind(
            network.widths(columns, outputs, self.hidden),
            neuron=network.neuron,
            rank=network.rank,
            members=1,
            activation=self.activation,
            learning_rate="adaptive",
            max_iter=self.epochs(rows),
            n_iter_no_change=self.patience(rows),
            random_state=seed,
            **({"solver": self.solver} if regression else {}),
        )
        return estimator

    def baselines(self, rows: int) -> list[Baseline]:
        """What a person would use instead, for a number of training rows."""
        usual: list[Baseline] = []
        if self.with_baselines:
            options = {
                "hidden_layer_sizes": self.hidden,
                "early_stopping": rows >= AUTO_STOPPING_ROWS,
                "max_iter": self.epochs(rows),
                "n_iter_no_change": self.patience(rows),
            }
            svm_rows = SVM_ROWS_LARGE if self.large else SVM_ROWS
            usual = usual_baselines(self.task, options, svm_rows)
        return [*usual, *self.others]

    def notes(self, rows: int) -> list[str]:
        """What is less than usual because a table has this many rows, a line each."""
        notes = list(self.absent)
        learned = self.training_rows(rows)
        if self.why:
            name = "Adam" if self.solver == "adam" else "Levenberg-Marquardt after Adam"
            notes.append(f"networks are trained by {name} ({self.why})")
        if self.large and self.seeds < SEEDS:
            notes.append(
                f"more than {LARGE_ROWS:,} rows: {self.seeds} start of each network on each fold "
                f"instead of {SEEDS} (--seeds)"
            )
        if self.max_iter is None and self.epochs(learned) < MIN_EPOCHS:
            notes.append(
                f"networks learn for at most {self.epochs(learned)} epochs instead of {MIN_EPOCHS} "
                "(--epochs)"
            )
        return notes + [
            f"{baseline.label} learns from {baseline.max_rows:,} of {learned:,} rows: its time "
            "grows faster than they do"
            for baseline in self.baselines(learned)
            if baseline.max_rows is not None and baseline.max_rows < learned
        ]


def _steps(rows: int) -> int:
    """Steps of an epoch: a tenth of the rows is held out."""
    return max(1, math.ceil(0.9 * rows / BATCH))
