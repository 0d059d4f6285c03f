"""Saved estimators, loaded."""

from __future__ import annotations

import os
from typing import Any

from quadric.tables.classifier import QuadraticClassifier
from quadric.tables.estimator_files import read_estimator
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.regressor import QuadraticRegressor

KINDS: dict[str, Any] = {
    "QuadraticRegressor": QuadraticRegressor,
    "QuadraticClassifier": QuadraticClassifier,
}


def load(path: str | os.PathLike[str]) -> QuadraticNetwork:
    """Loads an estimator that `estimator.save(path)`, or `quadric compare --save`, wrote.

    Args:
        path: the file.

    Returns:
        The fitted estimator. It takes the frame that `fit` took.

    Raises:
        InputError: if the file is truncated, damaged, of a later version or no estimator.

    Examples:
        >>> import numpy as np, tempfile
        >>> from quadric.sklearn import QuadraticRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = QuadraticRegressor((4,), max_iter=5, tol=1).fit(X, X[:, 0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.quadric")
        ...     again = load(f"{folder}/model.quadric")
        >>> bool((again.predict(X) == model.predict(X)).all())
        True
    """
    model: QuadraticNetwork = read_estimator(path, KINDS)
    return model
