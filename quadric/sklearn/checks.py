"""The checks of `sklearn.utils.estimator_checks.check_estimator` that cannot hold, with reasons."""

from __future__ import annotations

from typing import Any


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """What `check_estimator(estimator, expected_failed_checks=...)` takes: check name to reason.

    Args:
        estimator: a QuadraticRegressor or QuadraticClassifier.
    """
    return {}
