"""What a person would use instead: models of scikit-learn and of other libraries, as pipelines.

Each has the defaults of its library and takes the columns of a `UserTable`. Trees and the networks
of pytabkit see holes and categories; the others see what our networks see, standardized.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from quadric.data.columns import CATEGORY
from quadric.data.preparation import TablePreparation, date_numbers
from quadric.errors import InputError, MissingExtraError
from quadric.support.extras import missing_extra

MAX_LEVELS = 250
"""Categories of a column that trees see; rarer ones are holes to them (scikit-learn takes 255)."""


GP_ROWS = 1_000
"""A Gaussian process learns from so many: its time grows with their cube."""


@dataclass(frozen=True)
class Baseline:
    """A model to compare with.

    Attributes:
        label: its name in the report.
        make: from task, seed and the kinds of the columns to a model, not fitted.
        slow: whether its fit may take longer than that of a network.
        max_rows: the most rows it learns from; None for all.
        package: the package it is in, and imported by; None for scikit-learn.
    """

    label: str
    make: Callable[[str, int, Mapping[str, str]], Any]
    slow: bool = False
    max_rows: int | None = None
    package: str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


class TreeColumns(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc,call-arg]
    """Columns with holes and categories as they are, and dates as numbers.

    They are named c0, c1, …: not every library takes every name.
    """

    def fit(self, X: pd.DataFrame, y: Any = None) -> TreeColumns:
        """Learns the most frequent categories."""
        self.levels_ = {}
        for column in X.select_dtypes("category"):
            counts = X[column].astype(object).value_counts()
            self.levels_[column] = pd.CategoricalDtype(sorted(counts.index[:MAX_LEVELS]))
        return self

    def transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """The columns as numbers and categories."""
        made: dict[str, Any] = {}
        for i, (name, values) in enumerate(X.items()):
            if name in self.levels_:
                levels = self.levels_[name]
                known = values.astype(object).where(values.isin(levels.categories))
                made[f"c{i}"] = known.astype(levels)
            elif pd.api.types.is_datetime64_any_dtype(values):
                parts = date_numbers(values.to_frame()).T
                made |= {f"c{i}_{j}": part for j, part in enumerate(parts)}
            else:
                made[f"c{i}"] = values
        return pd.DataFrame(made, index=X.index)


def _trees(kind: Any, **options: Any) -> Any:
    return make_pipeline(TreeColumns(), kind(**options))


def _standardized(task: str, model: Any) -> Any:
    """The model with standardized columns and, for a regression, a standardized target."""
    model = make_pipeline(TablePreparation(), StandardScaler(), model)
    if task == "regression":
        model = TransformedTargetRegressor(model, transformer=StandardScaler())
    return model


def usual_baselines(
    task: str, options: dict[str, Any], svm_rows: int | None = None
) -> list[Baseline]:
    """scikit-learn's models; the options are those of its MLP."""
    regression = task == "regression"
    trees = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    network = MLPRegressor if regression else MLPClassifier
    baselines = [
        Baseline("HistGradientBoosting", lambda _, seed, __: _trees(trees, random_state=seed)),
        Baseline(
            network.__name__,
            lambda task, seed, _: _standardized(task, network(random_state=seed, **options)),
            slow=True,
        ),
        Baseline(
            "SVR (RBF)" if regression else "SVC (RBF)",
            lambda task, *_: _standardized(task, SVR() if regression else SVC()),
            slow=True,
            max_rows=svm_rows,
        ),
    ]
    if regression:
        ridge = Baseline("ridge", lambda *_: _standardized(task, RidgeCV(np.logspace(-3, 3, 13))))
        return [*baselines, ridge]
    return [
        *baselines,
        Baseline(
            "logistic regression",
            lambda *_: _standardized(task, LogisticRegression(max_iter=1000)),
        ),
        Baseline("base rate", lambda *_: DummyClassifier(strategy="prior")),
    ]


def _lightgbm(task: str, seed: int, kinds: Mapping[str, str]) -> Any:
    import lightgbm

    kind = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return _trees(kind, random_state=seed, n_jobs=torch.get_num_threads(), verbosity=-1)


def _xgboost(task: str, seed: int, kinds: Mapping[str, str]) -> Any:
    import xgboost

    kind = xgboost.XGBRegressor if task == "regression" else xgboost.XGBClassifier
    threads = torch.get_num_threads()
    return _trees(kind, random_state=seed, n_jobs=threads, enable_categorical=True)


def _catboost(task: str, seed: int, kinds: Mapping[str, str]) -> Any:
    import catboost

    kind = catboost.CatBoostRegressor if task == "regression" else catboost.CatBoostClassifier
    model = kind(
        random_seed=seed,
        thread_count=torch.get_num_threads(),
        cat_features=[f"c{i}" for i, kind in enumerate(kinds.values()) if kind == CATEGORY],
        verbose=False,
        allow_writing_files=False,
    )
    return make_pipeline(TreeColumns(), FunctionTransformer(_categories_as_text), model)


def _categories_as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """CatBoost takes a hole in a category only as a word."""
    columns = frame.select_dtypes("category").columns
    return frame.assign(**{c: frame[c].astype(object).fillna("").astype(str) for c in columns})


def _pytabkit(name: str) -> Callable[[str, int, Mapping[str, str]], Any]:
    def make(task: str, seed: int, kinds: Mapping[str, str]) -> Any:
        import pytabkit

        kind = "Regressor" if task == "regression" else "Classifier"
        threads = torch.get_num_threads()
        return _trees(getattr(pytabkit, f"{name}_{kind}"), random_state=seed, n_threads=threads)

    return make


def _gaussian_process(task: str, seed: int, kinds: Mapping[str, str]) -> Any:
    smooth = ConstantKernel() * RBF()
    if task == "classification":
        return _standardized(task, GaussianProcessClassifier(smooth, random_state=seed))
    kernel = smooth + WhiteKernel(0.01)
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=seed)
    return _standardized(task, model)


OTHERS = {
    "lightgbm": Baseline("LightGBM", _lightgbm, package="lightgbm"),
    "xgboost": Baseline("XGBoost", _xgboost, package="xgboost"),
    "catboost": Baseline("CatBoost", _catboost, slow=True, package="catboost"),
    "realmlp": Baseline("RealMLP", _pytabkit("RealMLP_TD"), slow=True, package="pytabkit"),
    "tabm": Baseline("TabM", _pytabkit("TabM_D"), slow=True, package="pytabkit"),
    "gp": Baseline("Gaussian process", _gaussian_process, slow=True, max_rows=GP_ROWS),
}
"""By the name that `--opponents` takes. LightGBM takes part wherever it is installed."""


def absent_others(names: Sequence[str]) -> list[str]:
    """Lines about the opponents that "all" leaves out, with what installs them."""
    absent = [other for other in OTHERS.values() if not other.is_installed]
    if "all" not in names or not absent:
        return []
    labels = ", ".join(other.label for other in absent)
    packages = " ".join(sorted({str(other.package) for other in absent}))
    return [f"left out, as they are not installed: {labels} (pip install {packages})"]


def choose_others(names: Sequence[str], usual: bool) -> tuple[Baseline, ...]:
    """The baselines of other libraries that take part; "all" are those that are installed."""
    if "all" in names:
        names = [name for name, other in OTHERS.items() if other.is_installed]
    for name in names:
        if name not in OTHERS:
            raise InputError(f"opponents must be of all, {', '.join(OTHERS)}, got {name!r}")
        if not OTHERS[name].is_installed:
            if name == "lightgbm":
                raise missing_extra("the opponent lightgbm", "rivals")
            package = OTHERS[name].package
            raise MissingExtraError(f"the opponent {name} needs a package: pip install {package}")
    return tuple(
        other
        for name, other in OTHERS.items()
        if name in names or (usual and name == "lightgbm" and other.is_installed)
    )


def fitted_parameters(model: Any) -> int | None:
    """The number of fitted parameters of a model; None where the word means nothing."""
    model = getattr(model, "regressor_", model)
    model = model.steps[-1][1] if hasattr(model, "steps") else model
    for names in (
        ("coefs_", "intercepts_"),
        ("support_vectors_", "dual_coef_", "intercept_"),
        ("coef_", "intercept_"),
    ):
        if all(hasattr(model, name) for name in names):
            fitted = [getattr(model, name) for name in names]
            lists = [part if isinstance(part, list) else [part] for part in fitted]
            return sum(int(np.size(array)) for part in lists for array in part)
    return None
