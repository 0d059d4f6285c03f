"""Fit twelve published functions with Quadric and with other libraries, and write what came out.

    python tools/evidence_functions.py                             # goes on where it was
    python tools/evidence_functions.py --models pykan --target DIR # pykan 0.2.8, installed in DIR
    python tools/evidence_functions.py --models torch-lm --target DIR

Seven equations of the Feynman list and five special functions, in ranges like those of the KAN
paper: 1,000 rows to learn from, no noise, 1,000 others to test on; the error is the root mean
square as a share of the target's deviation. Quadric's networks have two hidden layers and no more
parameters than a linear one of 16 and 16 neurons. Others: scikit-learn's MLPRegressor with its
defaults on standardized columns; torch-levenberg-marquardt 1.2.3 on the linear network, 200 steps;
pykan [n, 5, 1] on inputs from -1 to 1, grids 3, 5, 10, 20 with 50 steps of LBFGS each, and of these
the grid with the lowest error on the test rows. Seconds are those of the process, on one thread.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_runs import Arm, fitted, make_network, parser_of, read_piece, run_cells
from sklearn.compose import TransformedTargetRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadric.sklearn import QuadraticRegressor
from quadric.support.texttable import markdown_table

special: Any = importlib.import_module("scipy.special")

ROWS, WIDTH, GRIDS, GRID_STEPS = 1_000, 16, (3, 5, 10, 20), 50
PI = math.pi
Ranges = list[tuple[float, float]]
FUNCTIONS: dict[str, tuple[Ranges, Callable[..., np.ndarray]]] = {
    "I.6.20b": (
        [(-1.5, 1.5), (-1.5, 1.5), (0.5, 2)],
        lambda t, u, s: np.exp(-((t - u) ** 2) / (2 * s**2)) / np.sqrt(2 * PI * s**2),
    ),
    "I.12.11": (
        [(-1, 1)] * 4 + [(0, 2 * PI)],
        lambda q, e, b, v, t: q * (e + b * v * np.sin(t)),
    ),
    "I.16.6": ([(-0.8, 0.8), (-0.8, 0.8), (1, 2)], lambda u, v, c: (u + v) / (1 + u * v / c**2)),
    "I.18.4": (
        [(0.5, 1), (-1, 1), (0.5, 1), (-1, 1)],
        lambda m, r, n, s: (m * r + n * s) / (m + n),
    ),
    "I.26.2": ([(0, 0.99), (0, 2 * PI)], lambda n, t: np.arcsin(n * np.sin(t))),
    "II.6.15a": (
        [(0.5, 2), (0, 1), (0.5, 2), (0, 1), (0, 1), (0, 1)],
        lambda e, p, r, x, y, z: p / (4 * PI * e) * 3 * z / r**5 * np.hypot(x, y),
    ),
    "II.11.20": (
        [(0, 1), (0, 1), (0, 1), (0.5, 2), (0.5, 2)],
        lambda n, p, e, k, t: n * p**2 * e / (3 * k * t),
    ),
    "J0(20 x)": ([(0, 1), (0, 1)], lambda x, y: special.jv(0, 20 * x) * (1 + y)),
    "F(phi, m)": ([(0, PI / 2), (0, 0.95)], special.ellipkinc),
    "E(phi, m)": ([(0, PI / 2), (0, 0.95)], special.ellipeinc),
    "sn(u, m)": ([(0, 6), (0, 0.95)], lambda u, m: special.ellipj(u, m)[0]),
    "Y21": (
        [(0, 2 * PI), (0, PI)],
        lambda a, b: np.cos(a) * np.sin(b) * np.cos(b),
    ),
}
OURS = {
    "linear, lm": (Arm("linear"), "lm"),
    "shared, lm": (Arm("shared", 4), "lm"),
    "glu, lm": (Arm("glu"), "lm"),
    "shared, adam": (Arm("shared", 4), "adam"),
}
OTHERS = ("MLPRegressor, adam", "MLPRegressor, lbfgs", "torch-lm", "pykan")
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def split_of(name: str, seed: int) -> Split:
    """Rows to learn from and rows to test on."""
    ranges, function = FUNCTIONS[name]
    draw = np.random.default_rng(seed)
    low, high = np.array(ranges).T
    X = draw.uniform(low, high, (2 * ROWS, len(ranges)))
    y = function(*X.T)
    return X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]


def _ours(model: str, split: Split, seed: int) -> tuple[np.ndarray, int]:
    arm, solver = OURS[model]
    shape = fitted(arm, split[0].shape[1], WIDTH)
    estimator = QuadraticRegressor(
        shape.options["hidden"], neuron=arm.neuron, rank=arm.rank, shrinkage=0.0,
        learning_rate="adaptive", members=1, random_state=seed, solver=solver,
    )  # fmt: skip
    return np.asarray(estimator.fit(*split[:2]).predict(split[2])), shape.params


def _mlp(model: str, split: Split, seed: int) -> tuple[np.ndarray, int]:
    mlp = MLPRegressor(solver=model.split(", ")[1], random_state=seed)
    whole = TransformedTargetRegressor(
        make_pipeline(StandardScaler(), mlp), transformer=StandardScaler()
    ).fit(*split[:2])
    own = whole.regressor_[-1]
    return whole.predict(split[2]), sum(a.size for a in (*own.coefs_, *own.intercepts_))


def _standardized(split: Split) -> tuple[list[torch.Tensor], float, float]:
    """The rows as tensors with mean 0 and deviation 1, and how to undo the target's."""
    X, y, X_test, _ = split
    mean, std = X.mean(0), X.std(0)
    parts = [(X - mean) / std, ((y - y.mean()) / y.std())[:, None], (X_test - mean) / std]
    return [torch.tensor(part) for part in parts], float(y.mean()), float(y.std())


def _torch_lm(model: str, split: Split, seed: int) -> tuple[np.ndarray, int]:
    tlm: Any = importlib.import_module("torch_levenberg_marquardt")
    (X, y, X_test), mean, std = _standardized(split)
    shape = fitted(Arm("linear"), X.shape[1], WIDTH)
    network = make_network(shape, seed).double()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), len(X))
    module = tlm.training.LevenbergMarquardtModule(network, loss_fn=tlm.loss.MSELoss())
    tlm.utils.fit(module, loader, epochs=200)
    with torch.no_grad():
        return network(X_test)[:, 0].numpy() * std + mean, shape.params


def _pykan(model: str, split: Split, seed: int) -> tuple[np.ndarray, int]:
    kan: Any = importlib.import_module("kan")
    (_, y, _), mean, std = _standardized(split)
    y_test = torch.tensor((split[3] - mean) / std)[:, None]
    low, high = split[0].min(0), split[0].max(0)  # its grids begin as -1 ... 1
    X, X_test = (torch.tensor(2 * (part - low) / (high - low) - 1) for part in split[::2])
    data = {"train_input": X, "train_label": y, "test_input": X_test, "test_label": y_test}
    torch.set_default_dtype(torch.float64)
    network, best = None, (math.inf, np.zeros(0), 0)
    for grid in GRIDS:
        if network is None:
            width = [X.shape[1], 5, 1]
            network = kan.KAN(width=width, grid=grid, k=3, seed=seed, auto_save=False)
        else:
            network = network.refine(grid)
        network.fit(data, opt="LBFGS", steps=GRID_STEPS)
        with torch.no_grad():
            found = network(X_test)
        error = float((found - y_test).square().mean())
        if error < best[0]:
            size = sum(p.numel() for p in network.parameters() if p.requires_grad)
            best = error, found[:, 0].numpy() * std + mean, size
    return best[1:]


def measure(function: str, model: str, seed: int) -> dict[str, Any]:
    """One fit: its error, parameters and seconds."""
    split = split_of(function, seed)
    fits = {"torch-lm": _torch_lm, "pykan": _pykan}
    fit = _ours if model in OURS else fits.get(model, _mlp)
    torch.manual_seed(seed)
    begin = time.process_time()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            found, params = fit(model, split, seed)
    seconds = time.process_time() - begin
    error = float(np.sqrt(((found - split[3]) ** 2).mean()) / split[3].std())
    return {
        "error": error if math.isfinite(error) else None, "params": params, "seconds": seconds
    }  # fmt: skip


def functions_table(results: Path) -> str:
    """The geometric mean over the seeds of each model on each function; median seconds."""
    runs = read_piece(results / "functions.json")["fits"]
    models = [m for m in (*OURS, *OTHERS) if any(run["model"] == m for run in runs)]
    rows = []
    for name in FUNCTIONS:
        own = {m: [r for r in runs if (r["function"], r["model"]) == (name, m)] for m in models}
        if any(own.values()):
            rows.append([name, *(_error(own[m]) for m in models)])
    seconds = {m: [run["seconds"] for run in runs if run["model"] == m] for m in models}
    rows.append(["median seconds", *(f"{np.median(seconds[m]):.1f}" for m in models)])
    sizes = {m: [run["params"] for run in runs if run["model"] == m] for m in models}
    rows.append(["median parameters", *(f"{np.median(sizes[m]):.0f}" for m in models)])
    seeds = {m: len({run["seed"] for run in runs if run["model"] == m}) for m in models}
    rows.append(["seeds", *(str(seeds[m]) for m in models)])
    note = (
        f"Root mean square errors as a share of the target's deviation, {ROWS:,} rows without "
        "noise; geometric means over the seeds; –: not measured. pykan: the grid of 3, 5, 10 and "
        "20 with the lowest error on the test rows. Seconds of a busy machine. Made by "
        "`python tools/evidence_functions.py`."
    )
    table = markdown_table(["function", *models], rows, "l" + "r" * len(models))
    return f"{table}\n\n{_wins(runs)}{note}"


def _error(runs: list[dict[str, Any]]) -> str:
    found = [run["error"] for run in runs]
    if not found or None in found:
        return "diverged" if found else "–"
    return f"{math.exp(np.mean(np.log(found))):.1e}"


def _wins(runs: list[dict[str, Any]]) -> str:
    """On how many functions a neuron of ours under second order is ahead of pykan, and how fast."""
    by: Mapping[tuple[str, str], list[dict[str, Any]]] = {
        (name, m): [r for r in runs if (r["function"], r["model"]) == (name, m)]
        for name in FUNCTIONS
        for m in (*OURS, "pykan")
    }
    shared = [name for name in FUNCTIONS if by[name, "pykan"]]
    if not shared:
        return ""
    parts = []
    for m in list(OURS)[:3]:
        both = [n for n in shared if by[n, m]]
        ahead = sum(_mean(by[n, m], "error") < _mean(by[n, "pykan"], "error") for n in both)
        share = np.median(
            [_mean(by[n, m], "seconds") / _mean(by[n, "pykan"], "seconds") for n in both]
        )
        parts.append(f"`{m}` on {ahead} of {len(both)} in {share:.2f} of its time")
    return f"Lower error than pykan: {'; '.join(parts)} (median). "


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return math.exp(np.mean([math.log(run[name] or math.inf) for run in runs]))


def main() -> None:
    """Fits what is missing."""
    parser = parser_of(__doc__, "results/functions.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=[*OURS, *OTHERS[:2]])
    parser.add_argument("--target", type=Path, help="a folder with another library")
    given = parser.parse_args()
    if given.summary:
        print(functions_table(given.out.parent))
        return
    torch.set_num_threads(1)
    out = given.out.absolute()
    if given.target is not None:
        sys.path.append(str(given.target.absolute()))
        os.chdir(tempfile.mkdtemp())
        Path("model").mkdir()  # pykan writes there
    cells = itertools.product(FUNCTIONS, given.models, range(given.seeds))
    facts = {"rows": ROWS, "width": WIDTH}
    names = ("function", "model", "seed")
    by_seed = sorted(cells, key=lambda cell: cell[2])
    run_cells(out, "fits", names, by_seed, measure, facts, "scikit-learn")


if __name__ == "__main__":
    main()
