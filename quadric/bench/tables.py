"""How long fits take: against scikit-learn's MLPRegressor, and together against one at a time.

Runs are interleaved, and the best time of each case counts. Processor seconds are reported too: on
a busy machine they are the steadier of the two for work on one thread.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from quadric import provenance
from quadric.sklearn.many import fit_many
from quadric.sklearn.regressor import QuadraticRegressor
from quadric.texttable import text_table

MLP = "MLPRegressor"
NEURONS = ("linear", "eigen", "shared")
LIMITS = {"linear": 1.3, "eigen": 2.0, "shared": 2.0}
"""The longest wanted time of a fit, as a ratio to MLPRegressor's."""
SPEEDUP = 2.0
"""How many times as fast as its networks one by one a stack is wanted to be."""


@dataclass
class TableBench:
    """Times of all cases.

    Attributes:
        seconds: best wall time of each case, of one fit.
        cpu_seconds: best processor time of each case, of one fit.
        settings: what was fitted.
        losses: the last training loss of each network of a case: the same work was done.
        epochs: of each case.
    """

    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    settings: dict[str, Any]
    losses: dict[str, list[float]]
    epochs: dict[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each neuron: ratios to MLPRegressor, and what the stack gains."""
        found = []
        for neuron in NEURONS:
            row: dict[str, Any] = {"neuron": neuron}
            for name, times in (("", self.seconds), ("cpu_", self.cpu_seconds)):
                alone, together = times[f"{neuron} one by one"], times[f"{neuron} together"]
                row |= {
                    f"{name}seconds": times[neuron],
                    f"{name}ratio": times[neuron] / times[MLP],
                    f"{name}speedup": alone / together,
                }
            row["limit"] = LIMITS[neuron]
            found.append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            **vars(self),
            "rows": self.rows(),
            "speedup_wanted": SPEEDUP,
            "versions": provenance.versions("scikit-learn", "numpy"),
            "machine": provenance.machine(),
            "command": provenance.command(),
        }

    def __str__(self) -> str:
        header = ["fit", "s", "of MLPRegressor", "at most", "CPU s", "of MLPRegressor",
                  f"{self.settings['networks']} together", "CPU"]  # fmt: skip
        cells = [[MLP, f"{self.seconds[MLP]:.2f}", "1.00", "",
                  f"{self.cpu_seconds[MLP]:.2f}", "1.00", "", ""]]  # fmt: skip
        for row in self.rows():
            cells.append([row["neuron"], f"{row['seconds']:.2f}", f"{row['ratio']:.2f}"])
            cells[-1] += [f"{row['limit']:.1f}", f"{row['cpu_seconds']:.2f}"]
            cells[-1] += [f"{row['cpu_ratio']:.2f}", f"{row['speedup']:.2f} x faster"]
            cells[-1].append(f"{row['cpu_speedup']:.2f} x")
        s = self.settings
        title = (
            f"{s['rows']:,} rows of {s['columns']} columns, {s['dtype']}, hidden {s['hidden']}, "
            f"batch {s['batch_size']}, {s['epochs']} epochs, best of {s['repeats']} interleaved"
        )
        return title + "\n" + text_table(header, cells, "lrrrrrrr")


def bench_tables(
    *,
    rows: int = 7_373,
    columns: int = 8,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    networks: int = 15,
    repeats: int = 5,
    dtype: str = "float32",
    tick: Callable[[], object] = lambda: None,
) -> TableBench:
    """Times single fits and stacks.

    Args:
        rows: of the table.
        columns: of the table.
        hidden: widths of all networks.
        epochs: of all fits; none stops early.
        networks: of a stack: five folds of three starts by default, as in `quadric compare`.
        repeats: timed rounds, after one to warm up.
        dtype: of the table.
        tick: called after each run, for a progress bar.

    Returns:
        The times.
    """
    settings = {
        "rows": rows, "columns": columns, "hidden": list(hidden), "batch_size": min(200, rows),
        "epochs": epochs, "networks": networks, "repeats": repeats, "dtype": dtype,
    }  # fmt: skip
    found = TableBench({}, {}, settings, {}, {})
    cases = _cases(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for turn in range(repeats + 1):
            for name in cases if turn % 2 else reversed(cases):
                start, used = time.perf_counter(), time.process_time()
                models = cases[name]()
                spent = (time.perf_counter() - start, time.process_time() - used)
                found.losses[name] = [float(model.loss_curve_[-1]) for model in models]
                found.epochs[name] = max(int(model.n_iter_) for model in models)
                tick()
                if turn:  # the first warms up
                    for best, taken in zip((found.seconds, found.cpu_seconds), spent, strict=True):
                        best[name] = min(best.get(name, np.inf), taken / len(models))
    return found


def _cases(settings: dict[str, Any]) -> dict[str, Callable[[], list[Any]]]:
    """The fits by name; each returns its networks."""
    networks, hidden = settings["networks"], tuple(settings["hidden"])
    draw = np.random.default_rng(0)
    X = draw.normal(size=(settings["rows"], settings["columns"])).astype(settings["dtype"])
    y = (np.sin(X[:, 0] * X[:, 1]) + X[:, 2] ** 2).astype(settings["dtype"])
    common: dict[str, Any] = {"max_iter": settings["epochs"], "n_iter_no_change": 10**6}

    def make(neuron: str, count: int) -> list[QuadraticRegressor]:
        return [
            QuadraticRegressor(
                hidden, neuron=neuron, early_stopping=False, random_state=seed, **common
            )
            for seed in range(count)
        ]

    def one_by_one(neuron: str, count: int) -> list[Any]:
        return [model.fit(X, y) for model in make(neuron, count)]

    def together(neuron: str) -> list[Any]:
        return fit_many(make(neuron, networks), [(X, y)] * networks)

    def mlp() -> list[Any]:
        return [MLPRegressor(hidden_layer_sizes=hidden, random_state=0, **common).fit(X, y)]

    cases: dict[str, Callable[[], list[Any]]] = {MLP: mlp}
    for neuron in NEURONS:
        cases[neuron] = partial(one_by_one, neuron, 1)
        cases[f"{neuron} together"] = partial(together, neuron)
        cases[f"{neuron} one by one"] = partial(one_by_one, neuron, networks)
    return cases
