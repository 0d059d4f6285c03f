"""The checks of `sklearn.utils.estimator_checks.check_estimator` that cannot hold, with reasons."""

from __future__ import annotations

from typing import Any


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """Lists the checks that are expected to fail: none.

    Args:
        estimator: a QuadraticRegressor or QuadraticClassifier.

    Returns:
        From the name of a check to the reason, as `check_estimator(..., expected_failed_checks=)`
        takes it.
    """
    return {}
