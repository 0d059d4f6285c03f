"""Fit the physical laws with Adam, L-BFGS and Levenberg-Marquardt, and write what came out.

    python tools/evidence_solvers.py                  # goes on where it was
    python tools/evidence_solvers.py --seeds 5        # more seeds
    python tools/evidence_solvers.py --solvers adam lm
    python tools/evidence_solvers.py --part curves    # error against seconds, for the picture
    python tools/evidence_solvers.py --part map       # other sizes, and outside of the rows

`QuadraticRegressor(solver="adam")` and `solver="lm"` on the 25 laws: 500 rows, two hidden layers
with no more parameters than a linear network of 12 and 12 neurons, SiLU, float64, an adaptive
learning rate, no shrinkage, a tenth of the rows held out. L-BFGS (torch's, strong Wolfe, 500
iterations) starts where Adam does and keeps its best iteration on the same held-out rows. `--noise`
is a share of the target's deviation, added to the rows that are learned. The error is the root mean
square on 2,000 other rows without noise, as a share of their deviation. A seed draws data, start
and order; solvers and arms are paired by it. Seconds are those of the process, on one thread.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from evidence_runs import Arm, as_factor, fitted, parser_of, read_piece, run_cells
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from quadric.data import laws
from quadric.data.intervals import mean_difference
from quadric.sklearn import QuadraticRegressor
from quadric.solve import least_squares
from quadric.support.texttable import markdown_table
from quadric.tables.jobs import Job

ROWS, TEST_ROWS, WIDTH = 500, 2_000, 12
SOLVERS = ("adam", "lbfgs", "lm")
NAMES = {"adam": "Adam", "lbfgs": "L-BFGS", "lm": "LM"}
ARMS = [Arm("linear"), Arm("shared", 4), Arm("eigen", 3), Arm("square"), Arm("glu")]
# The map: laws of each kind, other sizes, and rows of the inner part of each variable's range.
POLYNOMIALS = ("lorentz", "kinetic-energy", "oscillator", "torque")
RATIOS = ("center-of-mass", "velocity-addition", "lens", "coulomb", "gravitation", "doppler")
MAP_LAWS = ("kinetic-energy", "oscillator", "lens", "velocity-addition", "two-waves", "torque")
MAP_ARMS = [Arm("linear"), Arm("shared", 4), Arm("glu")]
MAP = {"150 rows": (150, 12), "width 6": (500, 6), "width 20": (500, 20), "2,000 rows": (2_000, 12)}
OUTSIDE, INNER = "outside of the rows", 0.8
CURVE_ARMS = [Arm("linear"), Arm("shared", 4)]
EPOCHS = (5, 20, 80, 320, 2_000)


class Table(NamedTuple):
    """What is learned, with noise, and what errors are measured on."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def error(self, model: Any) -> float:
        """The root mean square error as a share of the target's deviation."""
        gaps = model.predict(self.X_test) - self.y_test
        return math.sqrt((gaps**2).mean()) / float(self.y_test.std())


def table_of(law: str, seed: int, noise: float, rows: int = ROWS) -> Table:
    """Rows of a law; the noise is a share of the target's deviation."""
    data = laws.table(law, rows, TEST_ROWS, seed=seed, dtype=torch.float64)
    X, y = data.train_inputs.numpy(), data.train_targets.numpy().ravel()
    draw = torch.randn(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    test = data.test_inputs.numpy(), data.test_targets.numpy().ravel()
    return Table(X, y + noise * y.std() * draw.numpy(), *test)


def inner_table(law: str, seed: int) -> Table:
    """Rows of the inner part of each range to learn from, those outside of it to test on."""
    found, (X, _) = laws.get(law), laws.sample(law, ROWS, seed=seed)
    low, high = (
        torch.tensor([getattr(v, end) for v in found.variables], dtype=torch.float64)
        for end in ("low", "high")
    )
    middle = (low + high) / 2
    inner = middle + INNER * (X.double() - middle)
    X_test = laws.sample(law, TEST_ROWS, seed=seed + 1000)[0].double()
    away = ((X_test - middle).abs() / (high - low) * 2).amax(1)
    X_test = X_test[away > INNER]
    parts = (inner, found(inner).reshape(-1), X_test, found(X_test).reshape(-1))
    return Table(*(part.numpy() for part in parts))


def estimator(arm: Arm, columns: int, seed: int, **options: Any) -> QuadraticRegressor:
    """The estimator of all measurements here."""
    width = options.pop("width", WIDTH)
    # Epochs of Adam; of the second-order steps there are as many as by default.
    most = 500 if options.get("solver") == "lm" else 2000
    given: dict[str, Any] = {
        "max_iter": most,
        "learning_rate": "adaptive",
        "shrinkage": 0.0,
        "members": 1,
    }
    given |= options
    hidden = fitted(arm, columns, width).options["hidden"]
    return QuadraticRegressor(hidden, neuron=arm.neuron, rank=arm.rank, random_state=seed, **given)


def lbfgs(job: Job, every: int = 10, steps: int = 500) -> Iterator[nn.Module]:
    """Trains the network of a job; gives it each so many iterations, the best one at the end."""
    network, held = job.network, job.validation
    assert held is not None
    optimizer = torch.optim.LBFGS(
        network.parameters(), max_iter=every, history_size=20, line_search_fn="strong_wolfe"
    )
    targets = job.train.targets.reshape(len(job.train.targets), -1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (network(job.train.inputs) - targets).square().mean()
        loss.backward()
        return loss

    best, state = math.inf, copy.deepcopy(network.state_dict())
    for _ in range(steps // every):
        optimizer.step(closure)
        with torch.no_grad():
            gaps = network(held.inputs) - held.targets.reshape(len(held.targets), -1)
        loss = float(gaps.square().mean())
        if loss < best:
            best, state = loss, copy.deepcopy(network.state_dict())
        if not math.isfinite(loss):
            break
        yield network
    network.load_state_dict(state)
    yield network


def _made(model: QuadraticRegressor, data: Table) -> Job:
    """The job of an estimator that is fitted by other means."""
    job = model._make_jobs(data.X, data.y)[0]
    model.module_.eval()
    return job


def fit(arm: Arm, data: Table, seed: int, solver: str, width: int = WIDTH) -> dict[str, Any]:
    """One network: its error, the seconds, and how it went."""
    own = "adam" if solver == "lbfgs" else solver
    model = estimator(arm, data.X.shape[1], seed, solver=own, width=width)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if solver == "lbfgs":
            for _ in lbfgs(_made(model, data)):
                pass
        else:
            model.fit(data.X, data.y)
    seconds = time.process_time() - begin
    more = {} if solver == "lbfgs" else {"steps": model.n_iter_, "how": model.solver_reason_}
    return {
        "error": data.error(model), "seconds": seconds, "params": model.n_parameters_, **more
    }  # fmt: skip


def measure(arm: str, law: str, seed: int, noise: float, solver: str) -> dict[str, Any]:
    """One network on a law."""
    return fit(_arm(arm), table_of(law, seed, noise), seed, solver)


def measure_map(where: str, arm: str, law: str, seed: int) -> dict[str, Any]:
    """One network somewhere on the map."""
    rows, width = MAP.get(where, (ROWS, WIDTH))
    data = inner_table(law, seed) if where == OUTSIDE else table_of(law, seed, 0.0, rows)
    return fit(_arm(arm), data, seed, "lm", width)


def _arm(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def measure_curve(name: str, law: str, seed: int, solver: str) -> dict[str, Any]:
    """Errors of one fit against its seconds. Levenberg-Marquardt has one start, Adam's own."""
    arm, data = _arm(name), table_of(law, seed, 0.0)
    points: list[tuple[float, float]] = []
    if solver == "adam":
        for epochs in EPOCHS:
            model = estimator(arm, data.X.shape[1], seed, solver="adam", max_iter=epochs)
            begin = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(data.X, data.y)
            points.append((time.process_time() - begin, data.error(model)))
        return {"points": points}
    model = estimator(arm, data.X.shape[1], seed, solver="adam")
    job, spent, begin = _made(model, data), 0.0, time.process_time()
    if solver == "lbfgs":
        for _ in lbfgs(job):
            spent += time.process_time() - begin
            points.append((spent, data.error(model)))
            begin = time.process_time()
        return {"points": points[:-1]}
    module = model.module_
    X_test = module.standardized(torch.tensor(data.X_test))
    y_test = model._targets(data.y_test[:, None], module)
    unit = float(y_test.std(correction=0))
    found = (
        least_squares(  # the rows of the test show where it is; the steps are not chosen by them
            job.network,
            job.train.inputs,
            job.train.targets,
            validation=(X_test, y_test),
            callback=lambda step: points.append(
                (time.process_time() - begin, float(step.validation or math.nan))
            ),
        )
    )
    assert found.steps == len(points)
    points = [(seconds, math.sqrt(loss) / unit) for seconds, loss in points]
    return {"points": points[::5]}


def solvers_table(results: Path) -> str:
    """Errors and seconds of the solvers, with the quadratic neurons beside linear under each."""
    runs = read_piece(results / "solvers.json")["fits"]
    arms = [arm.name for arm in ARMS if any(run["arm"] == arm.name for run in runs)]
    solvers = [solver for solver in SOLVERS if any(run["solver"] == solver for run in runs)]
    rows = []
    for noise in sorted({run["noise"] for run in runs}):
        own = [run for run in runs if run["noise"] == noise]
        by = {(r["arm"], r["solver"], (r["law"], r["seed"])): r for r in own}
        cells = {key[2] for key in by}
        whole = sorted(c for c in cells if all((a, s, c) in by for a in arms for s in solvers))
        for arm in arms if whole else ():
            every = {s: [by[arm, s, cell] for cell in whole] for s in solvers}
            mean = {s: _mean(run["error"] for run in found) for s, found in every.items()}
            took = [statistics.median(run["seconds"] for run in every[s]) for s in solvers]
            rows.append(
                [f"{noise:.0%}", f"{len({c[0] for c in whole})}, {len(whole)}", f"`{arm}`",
                 *(f"{mean[s]:.2g}" for s in solvers), f"{mean['adam'] / mean['lm']:.1f}",
                 *(_beside_linear(by, arm, whole, s) for s in solvers),
                 " / ".join(f"{t:.1f}" for t in took)]
            )  # fmt: skip
    header = [
        "noise", "laws, runs", "neuron", *(f"error, {NAMES[s]}" for s in solvers), "Adam / LM",
        *(f"{NAMES[s]}, linear = 1" for s in solvers), "s",
    ]  # fmt: skip
    note = (
        "Geometric means of root mean square errors as a share of the target's deviation; "
        f"{ROWS:,} rows, no more parameters than a linear network of {WIDTH} and {WIDTH} neurons, "
        "SiLU. In brackets the 95 % interval over the laws. Seconds, in the order of the solvers: "
        "medians, on one thread of a busy machine. Made by `python tools/evidence_solvers.py`."
    )
    return f"{markdown_table(header, rows, 'llr' + 'r' * (len(header) - 3))}\n\n{note}"


def map_table(results: Path) -> str:
    """Quadratic neurons beside linear under Levenberg-Marquardt, by kind, size and place."""
    fits = read_piece(results / "solvers.json")["fits"]
    runs = [
        {"where": f"{ROWS} rows, width {WIDTH}", **run}
        for run in fits
        if run["solver"] == "lm" and run["noise"] == 0
    ]
    kinds = {"polynomials": POLYNOMIALS, "ratios": RATIOS}
    for kind, names in kinds.items():
        runs += [{**run, "where": kind} for run in runs if run["law"] in names]
    others = [law for law in laws.names() if law not in (*POLYNOMIALS, *RATIOS)]
    runs += [{**r, "where": "others"} for r in runs if r["law"] in others]
    own = results / "solver_map.json"
    runs += read_piece(own)["fits"] if own.exists() else []
    rows = []
    for where in dict.fromkeys(run["where"] for run in runs):
        by = {(r["arm"], "lm", (r["law"], r["seed"])): r for r in runs if r["where"] == where}
        cells = {key[2] for key in by}
        whole = sorted(c for c in cells if all((a.name, "lm", c) in by for a in MAP_ARMS))
        if whole:
            linear = _mean(by["linear", "lm", cell]["error"] for cell in whole)
            ratios = [_beside_linear(by, arm.name, whole, "lm") for arm in MAP_ARMS[1:]]
            count = f"{len({c[0] for c in whole})}, {len(whole)}"
            rows.append([where, count, f"{linear:.2g}", *ratios])
    header = ["where", "laws, runs", "error, linear", "shared-k4, linear = 1", "glu, linear = 1"]
    outside = f"learned in the inner {INNER:.0%} of each variable's range, tested on the rest"
    place = f" Outside of the rows: {outside}." if any(row[0] == OUTSIDE for row in rows) else ""
    note = (
        "Under Levenberg-Marquardt, without noise; as above where a row does not say otherwise."
        f"{place} Made by `python tools/evidence_solvers.py --part map`."
    )
    return f"{markdown_table(header, rows, 'lrrrr')}\n\n{note}"


def _mean(errors: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(error) for error in errors))


def _beside_linear(
    by: Mapping[tuple[Any, ...], Any], arm: str, whole: list[tuple[Any, ...]], solver: str
) -> str:
    """The factor on the linear network's error under one solver, paired by law and seed."""
    if arm == "linear":
        return "1"
    logs = [
        statistics.fmean(
            math.log(by[arm, solver, cell]["error"] / by["linear", solver, cell]["error"])
            for cell in whole
            if cell[0] == law
        )
        for law in sorted({cell[0] for cell in whole})
    ]
    mean, low, high = as_factor(mean_difference(logs))
    return f"{mean:.2f}" if low is None else f"{mean:.2f} ({low:.2f}–{high:.2f})"


def draw_curves(results: Path, path: Path) -> None:
    """The picture: error against seconds, medians over the laws with the middle half as a band."""
    from matplotlib.figure import Figure

    curves = read_piece(results / "solver_curves.json")["fits"]
    count = len({run["law"] for run in curves})
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    grid = np.geomspace(0.01, 3, 60)
    for solver, color in zip(SOLVERS, ("C0", "C2", "C3"), strict=True):
        for arm, style in zip(CURVE_ARMS, ("-", "--"), strict=True):
            own = [r for r in curves if (r["solver"], r["arm"]) == (solver, arm.name)]
            if not own:
                continue
            lines = np.array([_best_so_far(run["points"], grid) for run in own])
            # Where most laws have a point; a fit that has ended stays where it is.
            seen = (~np.isnan(lines)).mean(0) > 0.5
            low, middle, high = np.nanquantile(lines[:, seen], (0.25, 0.5, 0.75), axis=0)
            label = f"{NAMES[solver]}, {arm.name}"
            axes.plot(grid[seen], middle, style, color=color, label=label)
            if style == "-":
                axes.fill_between(grid[seen], low, high, color=color, alpha=0.15, lw=0)
    axes.set(xscale="log", yscale="log", xlabel="seconds on one core")
    axes.set_ylabel("error, as a share of the target's deviation")
    axes.set_title(
        f"{count} physical laws, {ROWS} rows, about 200 parameters, medians", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def _best_so_far(points: list[tuple[float, float]], grid: np.ndarray) -> np.ndarray:
    """The lowest error up to each time; NaN before the first point."""
    found = np.full(len(grid), np.nan)
    for seconds, error in points:
        after = grid >= seconds
        found[after] = np.fmin(found[after], error)
    return found


PARTS: dict[str, tuple[tuple[str, ...], Callable[..., dict[str, Any]], str]] = {
    "fits": (("arm", "law", "seed", "noise", "solver"), measure, "solvers.json"),
    "map": (("where", "arm", "law", "seed"), measure_map, "solver_map.json"),
    "curves": (("arm", "law", "seed", "solver"), measure_curve, "solver_curves.json"),
}


def _cells(
    part: str, seeds: int, noise: float, solvers: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """What there is to measure, in the order of work."""
    arms = [arm.name for arm in ARMS]
    for seed in range(seeds):
        if part == "fits":
            for level, law in itertools.product((0.0, noise), laws.names()):
                yield from itertools.product(arms, (law,), (seed,), (level,), solvers)
        elif part == "map":
            names = [arm.name for arm in MAP_ARMS]
            for where, law in itertools.product((*MAP, OUTSIDE), MAP_LAWS):
                yield from itertools.product((where,), names, (law,), (seed,))
        else:
            names = [arm.name for arm in CURVE_ARMS]
            for law in laws.names():
                yield from itertools.product(names, (law,), (seed,), solvers)


def main() -> None:
    """Measures what is missing."""
    parser = parser_of(__doc__, "results")
    parser.add_argument("--part", choices=tuple(PARTS), default="fits")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.01, help="of the noisy tables")
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=SOLVERS)
    parser.add_argument("--picture", type=Path, help="draws the curves that are there, and ends")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.picture is not None:
        draw_curves(given.out, given.picture)
        return
    if given.summary:
        print(solvers_table(given.out), map_table(given.out), sep="\n\n")
        return
    names, measured, file = PARTS[given.part]
    cells = _cells(given.part, given.seeds, given.noise, given.solvers)
    facts = {"rows": ROWS, "width": WIDTH}
    run_cells(given.out / file, "fits", names, cells, measured, facts, "scikit-learn")


if __name__ == "__main__":
    main()
