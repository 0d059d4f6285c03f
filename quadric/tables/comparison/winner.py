"""The model with the lowest error, whoever it is, and how to use it in Python."""

from __future__ import annotations

from quadric.tables.comparison.plan import ComparisonPlan
from quadric.tables.comparison.report import TableComparison

_LINES = {
    "HistGradientBoosting": "sklearn.ensemble.HistGradientBoosting{kind}()",
    "MLPRegressor": "make_pipeline(TablePreparation(), StandardScaler(), MLPRegressor())",
    "MLPClassifier": "make_pipeline(TablePreparation(), StandardScaler(), MLPClassifier())",
    "SVR (RBF)": "make_pipeline(TablePreparation(), StandardScaler(), SVR())",
    "SVC (RBF)": "make_pipeline(TablePreparation(), StandardScaler(), SVC())",
    "ridge": "make_pipeline(TablePreparation(), StandardScaler(), RidgeCV())",
    "logistic regression": (
        "make_pipeline(TablePreparation(), StandardScaler(), LogisticRegression(max_iter=1000))"
    ),
    "base rate": "sklearn.dummy.DummyClassifier(strategy='prior')",
    "LightGBM": "lightgbm.LGBM{kind}()",
    "XGBoost": "xgboost.XGB{kind}(enable_categorical=True)",
    "CatBoost": "catboost.CatBoost{kind}(verbose=False)",
    "RealMLP": "pytabkit.RealMLP_TD_{kind}()",
    "TabM": "pytabkit.TabM_D_{kind}()",
    "Gaussian process": (
        "make_pipeline(TablePreparation(), StandardScaler(), GaussianProcess{kind}())"
    ),
}
"""How each model is made; TablePreparation is that of `quadric.data.preparation`."""


def winner(comparison: TableComparison) -> str | None:
    """The label of the model with the lowest error that did not blow up."""
    errors = comparison.summary.loc[comparison.summary["blew_up"] == 0, "error"].dropna()
    return None if errors.empty else str(errors.idxmin())


def python_lines(comparison: TableComparison) -> list[str]:
    """The winner as one would write it in Python, and the best network where that is another."""
    best, network = winner(comparison), comparison.best_network()
    lines = [] if best is None else [f"In Python, {best}: {python_line(comparison, best)}"]
    if network is not None and network.label != best:
        line = python_line(comparison, network.label)
        lines.append(f"The best network, {network.label}: {line}")
    return lines


def python_line(comparison: TableComparison, label: str) -> str:
    """A model as one would write it in Python."""
    network, plan = comparison.networks.get(label), comparison.plan
    if network is None:
        kind = "Regressor" if comparison.is_regression else "Classifier"
        return _LINES[label].format(kind=kind)
    return _network_line(comparison, plan, label)


def _network_line(comparison: TableComparison, plan: ComparisonPlan, label: str) -> str:
    network = comparison.networks[label]
    kind = "QuadraticRegressor" if comparison.is_regression else "QuadraticClassifier"
    rows = plan.training_rows(len(comparison.table.target))
    widths = comparison.log.fits[label, 0, 0]["widths"]
    return (
        f"{kind}({tuple(widths)}, neuron={network.neuron!r}"
        + ("" if network.rank is None else f", rank={network.rank}")
        + ("" if plan.activation == "silu" else f", activation={plan.activation!r}")
        + (f", solver={plan.solver!r}" if comparison.is_regression else "")
        + f", members=1, learning_rate='adaptive', max_iter={plan.epochs(rows)}, "
        f"n_iter_no_change={plan.patience(rows)})"
    )
