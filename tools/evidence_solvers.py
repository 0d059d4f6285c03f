"""Fit the physical laws with Adam and to second order, and write what came out.

    python tools/evidence_solvers.py                  # goes on where it was
    python tools/evidence_solvers.py --seeds 5        # more seeds

`QuadraticRegressor(solver="adam")` and `solver="lm"` on the 25 laws: 500 rows, two hidden layers
with no more parameters than a linear network of 12 and 12 neurons, SiLU, float64, an adaptive
learning rate, no shrinkage, a tenth of the rows held out. `--noise` is a share of the target's
deviation, added to the rows that are learned. The error is the root mean square on 2,000 other rows
without noise, as a share of their deviation. A seed draws data, start and order; solvers and arms
are paired by it. Seconds are those of the process, on one thread.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from evidence_runs import Arm, as_factor, fitted, parser_of, read_piece, run_cells
from sklearn.exceptions import ConvergenceWarning

from quadric.data import laws
from quadric.data.intervals import mean_difference
from quadric.sklearn import QuadraticRegressor
from quadric.support.texttable import markdown_table

ROWS, TEST_ROWS, WIDTH = 500, 2_000, 12
SOLVERS = ("adam", "lm")
ARMS = [Arm("linear"), Arm("shared", 4), Arm("eigen", 3), Arm("square"), Arm("glu")]
CELL = ("arm", "law", "seed", "noise", "solver")
NOISY_LAWS = ("lorentz", "distance", "barometer", "two-waves", "planck", "anharmonic")


def measure(name: str, law: str, seed: int, noise: float, solver: str) -> dict[str, Any]:
    """One network: its error, the seconds, and how it went."""
    (arm,) = (arm for arm in ARMS if arm.name == name)
    data = laws.table(law, ROWS, TEST_ROWS, seed=seed, dtype=torch.float64)
    X, y = data.train_inputs.numpy(), data.train_targets.numpy().ravel()
    X_test, y_test = data.test_inputs.numpy(), data.test_targets.numpy().ravel()
    draw = torch.randn(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shape = fitted(arm, X.shape[1], WIDTH)
    model = QuadraticRegressor(
        shape.options["hidden"], neuron=arm.neuron, rank=arm.rank, shrinkage=0.0, max_iter=2000,
        learning_rate="adaptive", random_state=seed, solver=solver,
    )  # fmt: skip
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y + noise * y.std() * draw.numpy())
    seconds = time.process_time() - begin
    error = math.sqrt(((model.predict(X_test) - y_test) ** 2).mean()) / float(y_test.std())
    return {
        "error": error, "seconds": seconds, "params": shape.params, "steps": model.n_iter_,
        "how": model.solver_reason_,
    }  # fmt: skip


def _at(every: Any, arm: str, cell: Any, noise: float, solver: str) -> Any:
    """The fit of an arm on a law and seed."""
    key = (arm, *cell, noise, solver)
    return every[key]


def solvers_table(results: Path) -> str:
    """Errors and seconds of both solvers, with the quadratic neurons beside linear under each."""
    data = read_piece(results / "solvers.json")
    every = {tuple(run[name] for name in CELL): run for run in data["fits"]}
    rows = []
    for noise in sorted({run["noise"] for run in data["fits"]}):
        cells = {key[1:3] for key in every if key[3] == noise}
        whole = {
            cell
            for cell in cells
            if all((a.name, *cell, noise, s) in every for a in ARMS for s in SOLVERS)
        }
        names = sorted({law for law, _ in whole})
        for arm in ARMS:
            by = {s: [_at(every, arm.name, c, noise, s) for c in sorted(whole)] for s in SOLVERS}
            mean = {s: _mean(run["error"] for run in runs) for s, runs in by.items()}
            took = {s: statistics.median(run["seconds"] for run in by[s]) for s in SOLVERS}
            ratios = [_beside_linear(every, arm, names, whole, noise, s) for s in SOLVERS]
            rows.append(
                [f"{noise:.0%}", f"{len(names)}, {len(whole)}", f"`{arm.name}`",
                 *(f"{mean[s]:.2g}" for s in SOLVERS), f"{mean['adam'] / mean['lm']:.1f}",
                 *ratios, *(f"{took[s]:.1f}" for s in SOLVERS)]
            )  # fmt: skip
    header = [
        "noise", "laws, runs", "neuron", "error, Adam", "error, LM", "times lower",
        "Adam, linear = 1", "LM, linear = 1", "s, Adam", "s, LM",
    ]  # fmt: skip
    note = (
        "Geometric means of root mean square errors as a share of the target's deviation; "
        f"{ROWS:,} rows, no more parameters than a linear network of {WIDTH} and {WIDTH} neurons, "
        "SiLU. In brackets the 95 % interval over the laws. Seconds: medians, on one thread of a "
        "busy machine. Made by `python tools/evidence_solvers.py`."
    )
    return f"{markdown_table(header, rows, 'llr' + 'r' * 7)}\n\n{note}"


def _mean(errors: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(error) for error in errors))


def _beside_linear(
    every: Mapping[tuple[Any, ...], Any], arm: Arm, names: list[str],
    whole: set[tuple[str, int]], noise: float, solver: str,
) -> str:  # fmt: skip
    """The factor on the linear network's error under one solver, paired by law and seed."""
    if arm.name == "linear":
        return "1"
    logs = [
        statistics.fmean(
            math.log(_at(every, arm.name, c, noise, solver)["error"])
            - math.log(_at(every, "linear", c, noise, solver)["error"])
            for c in whole
            if c[0] == law
        )
        for law in names
    ]
    mean, low, high = as_factor(mean_difference(logs))
    return f"{mean:.2f}" if low is None else f"{mean:.2f} ({low:.2f}–{high:.2f})"


def main() -> None:
    """Runs what is missing; all arms and solvers of a law together."""
    parser = parser_of(__doc__, "results/solvers.json")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.01, help="of the noisy laws")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.summary:
        print(solvers_table(given.out.parent))
        return
    work = [(seed, 0.0, law) for seed in range(given.seeds) for law in laws.names()]
    noisy = [(seed, given.noise, law) for seed in range(given.seeds) for law in NOISY_LAWS]
    order = work[: len(laws.names())] + noisy + work[len(laws.names()) :]
    cells = (
        (arm.name, law, seed, noise, solver)
        for (seed, noise, law), arm, solver in itertools.product(order, ARMS, SOLVERS)
    )
    facts = {"rows": ROWS, "width": WIDTH}
    run_cells(given.out, "fits", CELL, cells, measure, facts, "scikit-learn")


if __name__ == "__main__":
    main()
