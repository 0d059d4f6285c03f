"""Quadratic networks with scikit-learn's interface.

>>> from quadric.sklearn import QuadraticRegressor
>>> QuadraticRegressor(hidden_layer_sizes=(64, 64), neuron="shared").neuron
'shared'
"""

from typing import TYPE_CHECKING, Any

from quadric.tables.checks import expected_failed_checks as expected_failed_checks
from quadric.tables.classifier import QuadraticClassifier as QuadraticClassifier
from quadric.tables.loading import load as load
from quadric.tables.many import fit_many as fit_many
from quadric.tables.modules import load_network as load_network
from quadric.tables.regressor import QuadraticRegressor as QuadraticRegressor

if TYPE_CHECKING:
    from quadric.tables.comparison.compare import compare as compare


def __getattr__(name: str) -> Any:
    # Comparing needs pandas, which the estimators do not.
    if name == "compare":
        from quadric.tables.comparison.compare import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
