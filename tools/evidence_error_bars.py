"""Compare the error bars of a second-order fit with those of laplace-torch.

    python tools/evidence_error_bars.py --target DIR   # laplace-torch 0.3, installed in DIR

Tables of 400 rows, sin(3 a) b with normal noise of .2; QuadraticRegressor((8, 8), solver="lm")
with linear neurons is fitted once for each. Its own error bars, and those of
`laplace.Laplace(network, "regression", subset_of_weights="all", hessian_structure="full")` after
its marginal likelihood chose prior and noise, are judged on 2,000 new rows: the share of targets in
intervals of 90 %, and the mean negative log density.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_runs import parser_of, read_piece, run_cells

from quadric.sklearn import QuadraticRegressor
from quadric.support.texttable import markdown_table

NOISE, ROWS, NEW = 0.2, 400, 2_000
METHODS = ("quadric", "laplace-torch")


def _rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(-1, 1, size=(count, 2))
    return X, np.sin(3 * X[:, 0]) * X[:, 1] + NOISE * draw.normal(size=count)


def _laplace(model: QuadraticRegressor, X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> Any:
    """Standard deviations of new targets by laplace-torch, for the same network."""
    from torch.utils.data import DataLoader, TensorDataset

    laplace: Any = importlib.import_module("laplace")
    module = model.module_
    network = module.networks[0]
    inputs = module.standardized(torch.tensor(X))
    targets = model._targets(y[:, None], module)
    loader = DataLoader(TensorDataset(inputs, targets), len(inputs))
    found = laplace.Laplace(
        network, "regression", subset_of_weights="all", hessian_structure="full"
    )
    found.fit(loader)
    # As its own example of regression does it.
    logs = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(logs, lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (-found.log_marginal_likelihood(logs[0].exp(), logs[1].exp())).backward()
        optimizer.step()
    _, variance = found(module.standardized(torch.tensor(X_new)))
    std = (variance.detach().reshape(-1) + found.sigma_noise.detach() ** 2).sqrt()
    return (std * module.target_scale).numpy()


def measure(method: str, seed: int) -> dict[str, Any]:
    """One table and method."""
    (X, y), (X_new, y_new) = _rows(ROWS, seed), _rows(NEW, 1000 + seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = QuadraticRegressor(
            (8, 8), neuron="linear", solver="lm", members=1, random_state=seed
        )
        model.fit(X, y)
        begin = time.process_time()
        if method == "quadric":
            std = model.predict(X_new, return_std=True)[1]
        else:
            std = _laplace(model, X, y, X_new)
    seconds = time.process_time() - begin
    gaps = y_new - model.predict(X_new)
    density = (gaps / std) ** 2 / 2 + np.log(std * math.sqrt(2 * math.pi))
    return {
        "inside": float((np.abs(gaps) < 1.645 * std).mean()), "density": float(density.mean()),
        "std": float(np.median(std)), "seconds": seconds,
    }  # fmt: skip


def error_bars_table(results: Path) -> str:
    """Coverage, density and seconds of both."""
    runs = read_piece(results / "error_bars.json")["fits"]
    rows = []
    for method in METHODS:
        own = [run for run in runs if run["method"] == method]
        if own:
            inside = [run["inside"] for run in own]
            rows.append(
                [method, f"{np.mean(inside):.3f} ({min(inside):.2f}–{max(inside):.2f})",
                 *(f"{np.mean([run[key] for run in own]):.3f}" for key in ("density", "std")),
                 f"{np.median([run['seconds'] for run in own]):.2f}"]
            )  # fmt: skip
    header = ["error bars", "inside 90 %", "mean -log density", "median", "seconds"]
    seeds = len({run["seed"] for run in runs})
    return (
        f"{markdown_table(header, rows, 'lrrrr')}\n\nThe same networks; {seeds} tables of {ROWS} "
        f"rows with a noise of {NOISE}. Made by `python tools/evidence_error_bars.py`."
    )


def main() -> None:
    """Measures what is missing."""
    parser = parser_of(__doc__, "results/error_bars.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=Path, help="a folder with laplace-torch")
    given = parser.parse_args()
    if given.summary:
        print(error_bars_table(given.out.parent))
        return
    torch.set_num_threads(1)
    if given.target is not None:
        sys.path.append(str(given.target.absolute()))
    cells = [(method, seed) for seed in range(given.seeds) for method in METHODS]
    run_cells(given.out, "fits", ("method", "seed"), cells, measure, {"noise": NOISE})


if __name__ == "__main__":
    main()
