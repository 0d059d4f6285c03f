"""How long fits take: against scikit-learn's MLPRegressor, and together against one at a time.

All cases take turns, several rounds, and the best time of each counts: whatever else the machine
does only ever makes a run slower. Processor seconds are reported too, because on a busy machine
they are the steadier of the two for work on one thread.
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
# At most so many times as long as MLPRegressor.
LIMITS = {"linear": 1.3, "eigen": 2.0, "shared": 2.0}
# A stack is to be at least so many times as fast as its networks one by one.
SPEEDUP = 2.0


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
            "settings": self.settings,
            "rows": self.rows(),
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "losses": self.losses,
            "epochs": self.epochs,
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
        cells += [
            [
                row["neuron"],
                f"{row['seconds']:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['limit']:.1f}",
                f"{row['cpu_seconds']:.2f}",
                f"{row['cpu_ratio']:.2f}",
                f"{row['speedup']:.2f} x faster",
                f"{row['cpu_speedup']:.2f} x",
            ]
            for row in self.rows()
        ]
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
    """
    draw = np.random.default_rng(0)
    X = draw.normal(size=(rows, columns)).astype(dtype)
    y = (np.sin(X[:, 0] * X[:, 1]) + X[:, 2] ** 2).astype(dtype)

    def make(neuron: str, seed: int) -> QuadraticRegressor:
        return QuadraticRegressor(
            tuple(hidden),
            neuron=neuron,
            max_iter=epochs,
            early_stopping=False,
            n_iter_no_change=10**6,
            random_state=seed,
        )

    def mlp() -> list[Any]:
        model = MLPRegressor(
            hidden_layer_sizes=tuple(hidden),
            max_iter=epochs,
            n_iter_no_change=10**6,
            random_state=0,
        )
        return [model.fit(X, y)]

    def single(neuron: str) -> list[Any]:
        return [make(neuron, 0).fit(X, y)]

    def together(neuron: str) -> list[Any]:
        return fit_many([make(neuron, seed) for seed in range(networks)], [(X, y)] * networks)

    def one_by_one(neuron: str) -> list[Any]:
        return [make(neuron, seed).fit(X, y) for seed in range(networks)]

    cases: dict[str, Callable[[], list[Any]]] = {MLP: mlp}
    for neuron in NEURONS:
        cases[neuron] = partial(single, neuron)
        cases[f"{neuron} together"] = partial(together, neuron)
        cases[f"{neuron} one by one"] = partial(one_by_one, neuron)
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    losses: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for round_ in range(repeats + 1):
            for name in cases if round_ % 2 else reversed(cases):
                start, used = time.perf_counter(), time.process_time()
                models = cases[name]()
                if round_:
                    wall[name] = min(wall.get(name, np.inf), time.perf_counter() - start)
                    cpu[name] = min(cpu.get(name, np.inf), time.process_time() - used)
                losses[name] = [float(model.loss_curve_[-1]) for model in models]
                counts[name] = max(int(model.n_iter_) for model in models)
                tick()
    for times in (wall, cpu):
        for name in times:
            if " " in name:
                times[name] /= networks
    settings = {
        "rows": rows, "columns": columns, "hidden": list(hidden), "batch_size": min(200, rows),
        "epochs": epochs, "networks": networks, "repeats": repeats, "dtype": dtype,
    }  # fmt: skip
    return TableBench(wall, cpu, settings, losses, counts)
