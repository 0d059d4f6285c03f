"""What is compared: networks of several neurons at equal size, and other models."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from quadric.errors import InputError
from quadric.layers import get_neuron
from quadric.tables.classifier import QuadraticClassifier
from quadric.tables.comparison.opponents import Opponent, make_rival, usual_opponents
from quadric.tables.comparison.splitting import Split
from quadric.tables.estimators import AUTO_STOPPING_ROWS, QuadraticNetwork
from quadric.tables.networks import fit_widths
from quadric.tables.regressor import QuadraticRegressor

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

# Seconds of a fit on 40,000 rows of 30 columns, roughly: for estimates of time.
NETWORK_COSTS = {"linear": 2.2, "eigen": 3.4, "shared": 3.7}
OTHER_COST = 10.0


@dataclass(frozen=True)
class Contender:
    """A network that takes part.

    Attributes:
        neuron: the neuron's name in the registry.
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
    """From "eigen,shared:4" to contenders."""
    found = [Contender(LINEAR)]
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(r"([a-z0-9_]+)(?:[:\[](\d+)\]?)?", word)
        if match is None:
            raise InputError(
                f"neurons must be names with an optional rank, as in eigen,shared:4, got {word!r}"
            )
        rank = int(match[2]) if match[2] else None
        get_neuron(match[1]).with_options(rank=rank)
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
        rivals: models of other libraries, by their names in `RIVALS`.
        split: which rows are tested on.
        large: whether the table has more than `LARGE_ROWS` rows.
    """

    task: str
    contenders: tuple[Contender, ...]
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    max_iter: int | None = None
    folds: int = 5
    seeds: int = SEEDS
    seed: int = 0
    with_baselines: bool = True
    rivals: tuple[str, ...] = ()
    split: Split = field(default_factory=Split)
    large: bool = False

    def starts(self) -> dict[str, int]:
        """The label of each model, with the number of its fits on a fold."""
        networks = dict.fromkeys((c.label for c in self.contenders), self.seeds)
        return networks | dict.fromkeys((o.label for o in self.opponents(1)), 1)

    def costs(self, outputs: int) -> dict[str, float]:
        """What a fit of each model costs beside the others; boosting has trees for each output."""
        networks = {c.label: NETWORK_COSTS.get(c.neuron, OTHER_COST) for c in self.contenders}
        opponents = self.opponents(1)
        return networks | {o.label: o.cost * (outputs if o.native else 1) for o in opponents}

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

    def opponents(self, rows: int) -> list[Opponent]:
        """What a person would use instead, for a number of training rows."""
        found: list[Opponent] = []
        if self.with_baselines:
            options = {
                "hidden_layer_sizes": self.hidden,
                "early_stopping": rows >= AUTO_STOPPING_ROWS,
                "max_iter": self.epochs(rows),
                "n_iter_no_change": self.patience(rows),
            }
            svm_rows = SVM_ROWS_LARGE if self.large else SVM_ROWS
            found = usual_opponents(self.task, options, svm_rows)
        return found + [make_rival(name, self.task) for name in self.rivals]

    def notes(self, rows: int) -> list[str]:
        """What is less than usual because a table has this many rows, a line each."""
        notes: list[str] = []
        learned = self.training_rows(rows)
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
        for opponent in self.opponents(learned):
            if opponent.max_rows is not None and opponent.max_rows < learned:
                notes.append(
                    f"{opponent.label} learns from {opponent.max_rows:,} of {learned:,} rows: its "
                    "time grows with their square"
                )
        return notes


def _steps(rows: int) -> int:
    """Steps of an epoch: a tenth of the rows is held out."""
    return max(1, math.ceil(0.9 * rows / BATCH))
