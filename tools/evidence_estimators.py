"""Fit the 25 laws with ten seeds each by the defaults of QuadraticRegressor under Adam.

    python tools/evidence_estimators.py             # goes on where it was
    python tools/evidence_estimators.py --summary   # prints the table of docs/defaults.md

750 rows of each law, all defaults but `solver="adam"`; `eigen`, `glu` and `linear` get the number
of parameters that the default has (one layer of 100 `shared` neurons). The error is the root mean
square on 2,000 other rows as a share of their deviation. A fit failed if that is above 0.3, or no
lower than that of ridge regression. A seed draws data, start and order; arms are paired by it.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_runs import Arm, parser_of, read_piece, run_cells, shape
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

from quadric import models
from quadric.data import laws
from quadric.sklearn import QuadraticRegressor, fit_many
from quadric.support.texttable import markdown_table

ROWS, TEST_ROWS, SEEDS, FAILED = 750, 2_000, range(10), 0.3
ARMS = [Arm("shared", 8), Arm("linear"), Arm("eigen", 9), Arm("glu")]


def width(arm: Arm, columns: int) -> int:
    """The hidden layer with no more parameters than the default one."""
    plain: dict[str, Any] = {"in_features": columns, "hidden": (100,), "activation": "silu"}
    if arm == ARMS[0]:
        return 100
    budget = shape(ARMS[0], **plain).params
    found = models.fit("mlp", params=budget, **plain, **arm.options())
    return int(found.options["hidden"][0])


def rmse(predicted: Any, y: np.ndarray) -> float:
    """The error as a share of the deviation."""
    return math.sqrt(((predicted - y) ** 2).mean()) / float(y.std())


@functools.lru_cache(1)
def measure(arm: Arm, law: str) -> list[dict[str, Any]]:
    """All seeds of a law, which train side by side."""
    tables = [laws.table(law, ROWS, TEST_ROWS, seed=s, dtype=torch.float64) for s in SEEDS]
    learned = [(t.train_inputs.numpy(), t.train_targets.numpy().ravel()) for t in tables]
    neurons = width(arm, learned[0][0].shape[1])
    fits = [
        QuadraticRegressor(
            (neurons,),
            neuron=arm.neuron,
            rank=arm.rank,
            members=1,
            random_state=seed,
            solver="adam",
        )
        for seed in SEEDS
    ]
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit_many(fits, learned)
    seconds = (time.process_time() - begin) / len(SEEDS)
    runs = []
    for table, fit, (X, y) in zip(tables, fits, learned, strict=True):
        X_test, y_test = table.test_inputs.numpy(), table.test_targets.numpy().ravel()
        error, ridge = (rmse(m.predict(X_test), y_test) for m in (fit, Ridge().fit(X, y)))
        found = {"error": error, "ridge": ridge, "params": fit.n_parameters_}
        runs.append(found | {"epochs": fit.n_iter_, "seconds": seconds})
    return runs


def has_failed(run: Mapping[str, Any]) -> bool:
    """Whether a fit learned little, or less than a straight line."""
    return bool(run["error"] > FAILED or run["error"] >= run["ridge"])


def estimators_table(results: Path) -> str:
    """Errors under the defaults, and failed fits."""
    data = read_piece(results / "estimators.json")
    rows = []
    for arm in ARMS:
        runs = [run for run in data["fits"] if run["arm"] == arm.name]
        if not runs:
            continue
        errors = [run["error"] for run in runs]
        sizes = sorted(run["params"] for run in runs)
        count = f"{len({run['law'] for run in runs})}, {len(runs)}"
        failed = str(sum(map(has_failed, runs)))
        mean, worst = f"{statistics.geometric_mean(errors):.3f}", f"{max(errors):.3f}"
        rows.append([f"`{arm.name}`", f"{sizes[0]:,}–{sizes[-1]:,}", count, failed, mean, worst])
    header = ["neuron", "parameters", "laws, fits", "failed", "error", "largest error"]
    note = (
        f"{ROWS} rows, ten seeds a law. Error: root mean square as a share of the target's "
        f"deviation, geometric mean. Failed: above {FAILED}, or no better than ridge regression. "
        "Made by `python tools/evidence_estimators.py`."
    )
    return f"{markdown_table(header, rows, 'l' + 'r' * 5)}\n\n{note}"


def main() -> None:
    """Fits what is missing."""
    given = parser_of(__doc__, "results/estimators.json").parse_args()
    torch.set_num_threads(1)
    if given.summary:
        print(estimators_table(given.out.parent))
        return
    arms = {arm.name: arm for arm in ARMS}
    run_cells(
        given.out, "fits", ("arm", "law", "seed"), itertools.product(arms, laws.names(), SEEDS),
        lambda arm, law, seed: measure(arms[arm], law)[seed], {"rows": ROWS}, "scikit-learn",
    )  # fmt: skip


if __name__ == "__main__":
    main()
