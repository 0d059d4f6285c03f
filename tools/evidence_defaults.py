"""Measure the defaults of the estimators on development tables and on the UCI tables.

    python tools/evidence_defaults.py                          # the development tables
    python tools/evidence_defaults.py --uci UCI_Datasets       # the UCI tables too
    python tools/evidence_defaults.py --models after --seeds 1 # a part

Defaults are chosen on the development tables alone; the UCI tables are only reported. One cell is
one model on one table with one seed (UCI: one published split). results/defaults.json is written
after each cell, and a later call goes on where this one stopped.

The error of a regression is the root mean square error as a share of the target's deviation in the
test rows; that of a classification is the log loss as a share of what the class frequencies give.
So 1 is "learned nothing" for both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from evidence_runs import write_piece
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadric.data import laws, uci
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor

OUT = Path(__file__).resolve().parent.parent / "results" / "defaults.json"
TEST_ROWS = 2_000
CLASSES = ("digits", "breast cancer", "wine", "iris", "8 % positives", "checkerboard")
Array = np.ndarray
Draw = np.random.Generator


class Split(NamedTuple):
    """Rows to learn from and rows to test on."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


Make = Callable[[int], Split]


# The development tables.


def _real(loader: Callable[..., Any], classes: bool) -> Make:
    """A table of scikit-learn; 30 % of its rows are for the test."""

    def make(seed: int) -> Split:
        X, y = loader(return_X_y=True)
        parts = train_test_split(
            X, y, test_size=0.3, random_state=seed, stratify=y if classes else None
        )
        return Split(parts[0], parts[2], parts[1], parts[3])

    return make


def _generated(
    rows: int,
    inputs: Callable[[Draw, int], Array],
    function: Callable[[Array], Array],
    noise: float,
    threshold: float | None = None,
) -> Make:
    """A function with noise, a share of its deviation; two classes if there is a threshold.

    The threshold is a quantile of the function, which noise moves over it.
    """

    def make(seed: int) -> Split:
        draw = np.random.default_rng(seed)
        X = inputs(draw, rows + TEST_ROWS)
        clean = function(X)
        y = clean + noise * clean.std() * draw.normal(size=clean.shape)
        if threshold is not None:
            y = (y > np.quantile(clean, threshold)).astype(int)
        return Split(X[:rows], y[:rows], X[rows:], y[rows:])

    return make


def _law(name: str, rows: int, noise: float) -> Make:
    """A law with noise in the training rows."""

    def make(seed: int) -> Split:
        X, y = (t.double().numpy() for t in laws.sample(name, rows + TEST_ROWS, seed=seed))
        y = y.reshape(-1)
        added = noise * y.std() * np.random.default_rng(seed).normal(size=rows)
        return Split(X[:rows], y[:rows] + added, X[rows:], y[rows:])

    return make


def _normal(columns: int) -> Callable[[Draw, int], Array]:
    return lambda draw, rows: draw.normal(size=(rows, columns))


def _uniform(columns: int) -> Callable[[Draw, int], Array]:
    return lambda draw, rows: draw.uniform(size=(rows, columns))


def _friedman1(X: Array) -> Array:
    wave = 10 * np.sin(np.pi * X[:, 0] * X[:, 1])
    return wave + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def _circuit(draw: Draw, rows: int) -> Array:
    """The inputs of Friedman's second and third function."""
    low = [0, 40 * np.pi, 0, 1]
    return draw.uniform(low, [100, 560 * np.pi, 1, 11], (rows, 4))


def _reactance(X: Array) -> Array:
    return X[:, 1] * X[:, 2] - 1 / (X[:, 1] * X[:, 3])


def _levels(draw: Draw, rows: int) -> Array:
    """Three categories of 8, 5 and 12 levels as columns of 0 and 1, and three numbers."""
    parts = []
    for count in (8, 5, 12):
        shares = 1 / np.arange(1, count + 1)
        parts.append(np.eye(count)[draw.choice(count, rows, p=shares / shares.sum())])
    return np.hstack([*parts, draw.normal(size=(rows, 3))])


def _effects(X: Array) -> Array:
    draw = np.random.default_rng(7)
    effects, slopes = draw.normal(size=25), draw.normal(size=8)
    return X[:, :25] @ effects + (X[:, :8] @ slopes) * X[:, 25] + np.maximum(X[:, 26], 0)


def _codes(draw: Draw, rows: int) -> Array:
    """Normal columns where one number in a hundred is the code 999."""
    X = draw.normal(size=(rows, 6))
    X[draw.random(X.shape) < 0.01] = 999.0
    return X


def _decoded(X: Array) -> Array:
    Z = np.where(X == 999.0, 0.0, X)
    return np.sin(2 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + 0.5 * (X[:, 3] == 999.0) + Z[:, 4]


def _steps(X: Array) -> Array:
    both = (X[:, 1] > 0.6) & (X[:, 2] > 0.4)
    return 2.0 * (X[:, 0] > 0.3) + both - 1.5 * (X[:, 3] < 0.25) + np.floor(4 * X[:, 4]) / 2


def _rare(X: Array) -> Array:
    Z = np.log(X[:, 5:7])
    return X[:, 0] * X[:, 1] + X[:, 2] + 0.7 * Z[:, 0] - 0.5 * Z[:, 1] * X[:, 3]


def _outliers(seed: int) -> Split:
    """Friedman's first function; 3 % of the training targets are off by ten deviations."""
    split = DEVELOPMENT["friedman1"](seed)
    draw = np.random.default_rng(seed + 1)
    hit = draw.random(len(split.y)) < 0.03
    return split._replace(y=split.y + hit * draw.normal(size=len(hit)) * 10 * split.y.std())


def _grades(seed: int) -> Split:
    """A grade from 3 to 8 that a jury gives, mostly noise; some columns are skewed."""
    draw, rows = np.random.default_rng(seed), 1_200
    Z = draw.normal(size=(rows + TEST_ROWS, 11))
    Z[:, 1] += 0.6 * Z[:, 0]
    Z[:, 4] -= 0.5 * Z[:, 3]
    X = np.hstack([np.exp(0.7 * Z[:, :5]), np.round(Z[:, 5:6] * 2), Z[:, 6:]])
    parts = 0.5 * Z[:, 0] - 0.4 * np.tanh(Z[:, 1]) + 0.3 * (Z[:, 2] > 1) + 0.3 * Z[:, 6]
    liking = parts + 0.2 * Z[:, 7] * Z[:, 8]
    heard = 0.65 * liking / liking.std() + 0.8 * draw.normal(size=len(Z))
    y = np.clip(np.round(5.6 + 0.8 * heard), 3, 8)
    return Split(X[:rows], y[:rows], X[rows:], y[rows:])


DEVELOPMENT: dict[str, Make] = {
    "diabetes": _real(datasets.load_diabetes, False),
    "student-t": _generated(
        2_000,
        lambda draw, rows: draw.standard_t(2, size=(rows, 6)),
        lambda X: (
            np.tanh(X[:, 0]) + np.tanh(X[:, 1]) * np.tanh(X[:, 2]) + 0.5 * np.log1p(np.abs(X[:, 3]))
        ),
        0.1,
    ),
    "heavy linear": _generated(
        2_000,
        lambda draw, rows: draw.standard_t(3, size=(rows, 6)),
        lambda X: X[:, 0] - X[:, 1] + 0.5 * np.abs(X[:, 2]),
        0.2,
    ),
    "lognormal": _generated(
        2_000,
        lambda draw, rows: draw.lognormal(size=(rows, 6)),
        lambda X: (
            np.tanh(np.log(X[:, 0]))
            + 0.5 * np.log(X[:, 1]) * np.tanh(np.log(X[:, 2]))
            + 0.3 * np.sin(2 * np.log(X[:, 3]))
        ),
        0.1,
    ),
    "97 irrelevant": _generated(
        1_000, _normal(100), lambda X: X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + X[:, 2], 0.2
    ),
    "steps": _generated(2_000, _uniform(8), _steps, 0.1),
    "friedman1": _generated(1_000, _uniform(10), _friedman1, 0.2),
    "friedman2": _generated(500, _circuit, lambda X: np.hypot(X[:, 0], _reactance(X)), 0.2),
    "friedman3": _generated(500, _circuit, lambda X: np.arctan(_reactance(X) / X[:, 0]), 0.2),
    "interactions": _generated(
        1_500,
        _normal(10),
        lambda X: X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4] * X[:, 5] * X[:, 6],
        0.1,
    ),
    "categories": _generated(1_500, _levels, _effects, 0.2),
    "codes": _generated(1_500, _codes, _decoded, 0.1),
    "150 rows": _generated(150, _uniform(5), _friedman1, 0.2),
    "target outliers": _outliers,
    "grades": _grades,
    "law gaussian, noise": _law("gaussian", 500, 0.05),
    "law dipole, noise": _law("dipole", 500, 0.05),
    "law grating, noise": _law("grating", 1_000, 0.05),
    "law distance": _law("distance", 1_000, 0.0),
    "law torque": _law("torque", 1_000, 0.0),
    "law driven-charge": _law("driven-charge", 2_000, 0.0),
    "digits": _real(datasets.load_digits, True),
    "breast cancer": _real(datasets.load_breast_cancer, True),
    "wine": _real(datasets.load_wine, True),
    "iris": _real(datasets.load_iris, True),
    "8 % positives": _generated(
        2_000,
        lambda draw, rows: np.hstack([draw.normal(size=(rows, 5)), draw.lognormal(size=(rows, 3))]),
        _rare,
        1.0,
        0.92,
    ),
    "checkerboard": _generated(
        1_500,
        _uniform(5),
        lambda X: 2.0 * ((np.floor(3 * X[:, 0]) + np.floor(3 * X[:, 1])) % 2) - 1 + X[:, 2],
        0.3,
        0.5,
    ),
}


# The models.


def _before(kind: type[Any], seed: int) -> Any:
    """What the defaults were: other scaling, less patience, no shrinkage."""
    network = kind(
        neuron="eigen",
        standardize=False,
        shrinkage=0.0,
        max_iter=200,
        n_iter_no_change=10,
        random_state=seed,
    )
    model = make_pipeline(StandardScaler(), network)
    if kind is QuadraticClassifier:
        return model
    return TransformedTargetRegressor(model, transformer=StandardScaler())


def make_model(name: str, classes: bool, seed: int) -> Any:
    """One of `MODELS` for regression or classification."""
    kind: type[Any] = QuadraticClassifier if classes else QuadraticRegressor
    if name == "before":
        return _before(kind, seed)
    if name.startswith("after"):
        options = {} if classes or name == "after, auto" else {"solver": "adam"}
        members = 4 if name == "after, 4 members" else 1
        return kind((100,), members=members, random_state=seed, **options)
    if name == "MLP":
        mlp = (MLPClassifier if classes else MLPRegressor)(random_state=seed)
        return make_pipeline(StandardScaler(), mlp)
    boosting = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return boosting(random_state=seed)


MODELS = ("before", "after", "MLP", "HistGradientBoosting", "after, 4 members", "after, auto")


def measure(name: str, split: Split, seed: int) -> dict[str, Any]:
    """The error of a model on a split, the seconds of its fit on one core, and its solver."""
    classes = bool(np.issubdtype(split.y.dtype, np.integer))
    model = make_model(name, classes, seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(split.X, split.y)
    seconds = time.process_time() - start
    if classes:
        shares = np.bincount(split.y_test) / len(split.y_test)
        shares = shares[shares > 0]
        found = np.clip(model.predict_proba(split.X_test), 1e-7, 1)
        loss = log_loss(split.y_test, found, labels=model.classes_)
        return {"error": float(loss / -(shares * np.log(shares)).sum()), "seconds": seconds}
    gaps = model.predict(split.X_test) - split.y_test
    error = float(np.sqrt((gaps**2).mean()) / split.y_test.std())
    how = {"solver": model.solver_reason_} if name == "after, auto" else {}
    return {"error": error, "seconds": seconds, **how}


# The record.


def _uci(name: str, data_dir: Path) -> Make:
    def make(split: int) -> Split:
        data = uci.load(name, data_dir, split)
        parts = (data.train_inputs, data.train_targets, data.test_inputs, data.test_targets)
        X, y, X_test, y_test = (part.double().numpy() for part in parts)
        return Split(X, y.ravel(), X_test, y_test.ravel())

    return make


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int, Make]]:
    """Part, table, model, seed and maker of each cell, in the order of work."""
    for seed in range(options.seeds):
        for model in options.models:
            for table, make in DEVELOPMENT.items():
                if model == "after, auto" and table in CLASSES:
                    continue  # least squares is for numbers
                yield "development", table, model, seed, make
    if options.uci is None:
        return
    for split in range(options.splits):
        for table in sorted(uci.names(), key=lambda name: uci.ROWS[name]):
            large = uci.ROWS[table] > 20_000
            for model in options.models:
                if model == "after, auto" and uci.ROWS[table] > 2_000:
                    continue  # Adam, as "after"
                if not (large and split >= 2):
                    yield "uci", table, model, split, _uci(table, options.uci)


def main() -> int:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=4, help="of each development table")
    parser.add_argument("--uci", type=Path, help="the folder of the UCI tables")
    parser.add_argument("--splits", type=int, default=5, help="of each UCI table; protein 2")
    options = parser.parse_args()
    record: dict[str, Any] = {}
    if options.out.exists():
        record = json.loads(options.out.read_text(encoding="utf-8"))
    for part, table, model, seed, make in cells(options):
        entry = record.setdefault(part, {}).setdefault(table, {"models": {}})
        done = entry["models"].setdefault(model, {})
        if str(seed) in done:
            continue
        split = make(seed)
        entry |= {"rows": len(split.X), "columns": split.X.shape[1]}
        done[str(seed)] = measure(model, split, seed)
        print(f"{part} {table}, {model}, seed {seed}: {done[str(seed)]['error']:.4f}", flush=True)
        write_piece(options.out, record, "scikit-learn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
