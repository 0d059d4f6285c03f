"""How long fits take: against scikit-learn's MLPRegressor, and together against one at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from quadric.exporting.timing import interleaved
from quadric.support import provenance
from quadric.support.texttable import text_table
from quadric.tables.many import fit_many
from quadric.tables.regressor import QuadraticRegressor

MLP = "MLPRegressor"
LIMITS = {"linear": 1.3, "eigen": 2.0, "shared": 2.0}
"""The longest wanted time of a fit by neuron, as a ratio to MLPRegressor's."""


@dataclass
class TableBench:
    """Times of all cases.

    Attributes:
        seconds: best time of each case, of one fit.
        settings: what was fitted.
        losses: the last training loss of each network of a case: the same work was done.
        epochs: of each case.
    """

    seconds: dict[str, float]
    settings: dict[str, Any]
    losses: dict[str, list[float]]
    epochs: dict[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each neuron: the ratio to MLPRegressor, and what the stack gains."""
        times = self.seconds
        return [
            {
                "neuron": neuron,
                "seconds": times[neuron],
                "ratio": times[neuron] / times[MLP],
                "speedup": times[f"{neuron} one by one"] / times[f"{neuron} together"],
                "limit": limit,
            }
            for neuron, limit in LIMITS.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {**vars(self), "rows": self.rows(), **provenance.stamp("scikit-learn", "numpy")}

    def __str__(self) -> str:
        s = self.settings
        title = (
            f"{s['rows']:,} rows of {s['columns']} columns, {s['dtype']}, hidden {s['hidden']}, "
            f"batch {s['batch_size']}, {s['epochs']} epochs, best of {s['repeats']} interleaved"
        )
        header = ["fit", "s", "of MLPRegressor", "at most", f"{s['networks']} together"]
        cells = [[MLP, f"{self.seconds[MLP]:.2f}", "1.00", "", ""]]
        for row in self.rows():
            numbers = [f"{row['seconds']:.2f}", f"{row['ratio']:.2f}", f"{row['limit']:.1f}"]
            cells.append([row["neuron"], *numbers, f"{row['speedup']:.2f} x faster"])
        return title + "\n" + text_table(header, cells, "lrrrr")


def bench_tables(
    *,
    rows: int = 7_373,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    networks: int = 15,
    repeats: int = 5,
    tick: Callable[[], object] = lambda: None,
) -> TableBench:
    """Times single fits and stacks, interleaved."""
    settings = {
        "rows": rows, "columns": 8, "hidden": list(hidden), "batch_size": min(200, rows),
        "epochs": epochs, "networks": networks, "repeats": repeats, "dtype": "float32",
    }  # fmt: skip
    cases = _cases(settings)
    fitted: dict[str, list[Any]] = {}

    def fit(name: str) -> None:
        fitted[name] = cases[name]()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        times = interleaved({name: partial(fit, name) for name in cases}, repeats, tick=tick)
    return TableBench(
        {name: min(runs) / len(fitted[name]) for name, runs in times.items()},
        settings,
        {name: [float(m.loss_curve_[-1]) for m in models] for name, models in fitted.items()},
        {name: max(int(m.n_iter_) for m in models) for name, models in fitted.items()},
    )


def _cases(settings: dict[str, Any]) -> dict[str, Callable[[], list[Any]]]:
    """The fits by name; each returns its networks."""
    networks, hidden = settings["networks"], tuple(settings["hidden"])
    draw = np.random.default_rng(0)
    X = draw.normal(size=(settings["rows"], settings["columns"])).astype(settings["dtype"])
    y = (np.sin(X[:, 0] * X[:, 1]) + X[:, 2] ** 2).astype(settings["dtype"])
    common: dict[str, Any] = {"max_iter": settings["epochs"], "n_iter_no_change": 10**6}

    def make(neuron: str, count: int) -> list[QuadraticRegressor]:
        options = {"neuron": neuron, "early_stopping": False, **common}
        return [QuadraticRegressor(hidden, random_state=seed, **options) for seed in range(count)]

    def one_by_one(neuron: str, count: int) -> list[Any]:
        return [model.fit(X, y) for model in make(neuron, count)]

    def together(neuron: str) -> list[Any]:
        return fit_many(make(neuron, networks), [(X, y)] * networks)

    mlp = MLPRegressor(hidden_layer_sizes=hidden, random_state=0, **common)
    cases: dict[str, Callable[[], list[Any]]] = {MLP: lambda: [mlp.fit(X, y)]}
    for neuron in LIMITS:
        cases[neuron] = partial(one_by_one, neuron, 1)
        cases[f"{neuron} together"] = partial(together, neuron)
        cases[f"{neuron} one by one"] = partial(one_by_one, neuron, networks)
    return cases
