"""Measure how far predicted probabilities are from shares that come true, on three tables.

    python tools/calibration.py             # writes results/calibration.json, takes a minute

QuadraticClassifier and HistGradientBoostingClassifier with their defaults predict each row by a
model that has not seen it (5 folds, stratified, 3 seeds). The expected calibration error sorts the
rows by the probability of their predicted class into 15 bins of equal width; it is the mean gap
between that probability and the share of right predictions, weighted by the rows of the bins.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from evidence_runs import run_cells
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from quadric.sklearn import QuadraticClassifier

ROOT = Path(__file__).resolve().parent.parent
BINS, FOLDS, SEEDS = 15, 5, 3

Table = tuple[Any, np.ndarray]


def churn(rows: int = 3000) -> Table:
    """Customers of whom about 6 % leave: numbers, categories, booleans and holes."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "months": draw.integers(1, 72, rows),
            "price": draw.gamma(4, 12, rows),
            "calls": draw.poisson(1.2, rows),
            "plan": pd.Categorical(draw.choice(["basic", "plus", "pro"], rows, p=[0.5, 0.3, 0.2])),
            "paid_online": draw.random(rows) < 0.6,
        }
    )
    logit = (
        -3.6
        - 0.03 * (frame["months"] - 36)
        + 0.02 * (frame["price"] - 48)
        + 0.5 * frame["calls"]
        - 0.8 * frame["paid_online"]
        + 0.7 * (frame["plan"] == "basic") * (frame["calls"] > 1)
    )
    left = draw.random(rows) < 1 / (1 + np.exp(-logit))
    frame.loc[draw.random(rows) < 0.05, "price"] = np.nan
    return frame, np.where(left, "left", "stayed")


def tables() -> dict[str, Table]:
    """The three tables, by name."""
    return {
        "breast cancer": load_breast_cancer(return_X_y=True),
        "digits": load_digits(return_X_y=True),
        "churn": churn(),
    }


def calibration_error(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The expected calibration error of the predicted classes, given by their positions."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(places, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(truth))


def measure(model: Any, X: Any, y: np.ndarray, seed: int) -> dict[str, float]:
    """Calibration error and log loss on rows that were not learned from, and the seconds."""
    labels, truth = np.unique(y, return_inverse=True)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = cross_val_predict(model, X, y, cv=folds, method="predict_proba")
    return {
        "calibration_error": calibration_error(truth, found),
        "log_loss": float(log_loss(truth, found, labels=range(len(labels)))),
        "seconds": time.perf_counter() - start,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "calibration.json")
    options = parser.parse_args(arguments)
    kinds = {k.__name__: k for k in (QuadraticClassifier, HistGradientBoostingClassifier)}
    known = tables()

    def row(table: str, model: str) -> dict[str, Any]:
        X, y = known[table]
        # One small network, so that it is not members that make it well calibrated.
        options: Any = {"hidden_layer_sizes": (100,), "members": 1} if "Quadratic" in model else {}
        models = [kinds[model](random_state=seed, **options) for seed in range(SEEDS)]
        runs = [measure(one, X, y, seed) for seed, one in enumerate(models)]
        values: dict[str, Any] = {"rows": len(y), "classes": len(np.unique(y))}
        for key in runs[0]:
            values[key] = statistics.fmean(run[key] for run in runs)
            values[f"{key}_std"] = statistics.stdev(run[key] for run in runs)
        return values

    facts = {"bins": BINS, "folds": FOLDS, "seeds": SEEDS}
    cells = itertools.product(known, kinds)
    run_cells(options.output, "rows", ("table", "model"), cells, row, facts, "scikit-learn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
