"""What a person would use instead: models of scikit-learn and of other libraries, by name.

Each has the defaults of its library. Trees and the networks of pytabkit take the columns as they
are, with holes and categories; the others take what our networks take, standardized.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from quadric.data.columns import CATEGORY, DATE, UserTable
from quadric.data.preparation import DateNumbers
from quadric.errors import InputError, MissingExtraError
from quadric.support.extras import missing_extra

MAX_LEVELS = 250
"""Categories of a column that trees see; rarer ones are holes to them (scikit-learn takes 255)."""


@dataclass(frozen=True)
class Opponent:
    """A model to compare with.

    Attributes:
        label: its name in the report.
        make: from a seed and the names of the categorical columns to a model, not fitted.
        native: whether it takes the columns as they are, as a data frame.
        max_rows: the most rows it learns from; None for all.
        cost: seconds of a fit on 40,000 rows of 30 columns, roughly: for estimates of time.
    """

    label: str
    make: Callable[[int, list[str]], Any]
    native: bool = False
    max_rows: int | None = None
    cost: float = 1.0


def usual_opponents(
    task: str, options: dict[str, Any], svm_rows: int | None = None
) -> list[Opponent]:
    """scikit-learn's models."""
    if task == "regression":
        trees: Any = HistGradientBoostingRegressor
        scaled: list[tuple[str, Callable[[int], Any], float]] = [
            ("MLPRegressor", lambda seed: MLPRegressor(random_state=seed, **options), 4.0),
            ("SVR (RBF)", lambda seed: SVR(), 6.0),
            ("ridge", lambda seed: RidgeCV(np.logspace(-3, 3, 13)), 0.1),
        ]
        others = []
    else:
        trees = HistGradientBoostingClassifier
        scaled = [
            ("MLPClassifier", lambda seed: MLPClassifier(random_state=seed, **options), 4.0),
            ("SVC (RBF)", lambda seed: SVC(), 6.0),
            ("logistic regression", lambda seed: LogisticRegression(max_iter=1000), 0.5),
        ]
        guess = Opponent("base rate", lambda seed, _: DummyClassifier(strategy="prior"), cost=0.01)
        others = [guess]
    found = [
        Opponent(
            "HistGradientBoosting", lambda seed, _: trees(random_state=seed), native=True, cost=0.5
        )
    ]
    for label, make, cost in scaled:
        limit = svm_rows if label.startswith("SV") else None
        found.append(Opponent(label, _standardized(task, make), max_rows=limit, cost=cost))
    return found + others


def _standardized(task: str, make: Callable[[int], Any]) -> Callable[[int, list[str]], Any]:
    """The model with standardized columns and, for a regression, a standardized target."""

    def made(seed: int, _: list[str]) -> Any:
        model = make_pipeline(StandardScaler(), make(seed))
        if task == "regression":
            model = TransformedTargetRegressor(model, transformer=StandardScaler())
        return model

    return made


@dataclass(frozen=True)
class Rival:
    """A model of another library.

    Attributes:
        label: its name in the report.
        package: what it is in, and the name it is imported by.
        make: from task, seed and categorical columns to a model, not fitted.
        cost: as of an `Opponent`.
    """

    label: str
    package: str
    make: Callable[[str, int, list[str]], Any]
    cost: float

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported."""
        return importlib.util.find_spec(self.package) is not None


def _lightgbm(task: str, seed: int, categories: list[str]) -> Any:
    import lightgbm

    kind = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return kind(random_state=seed, n_jobs=torch.get_num_threads(), verbosity=-1)


def _xgboost(task: str, seed: int, categories: list[str]) -> Any:
    import xgboost

    kind = xgboost.XGBRegressor if task == "regression" else xgboost.XGBClassifier
    return kind(random_state=seed, n_jobs=torch.get_num_threads(), enable_categorical=True)


def _catboost(task: str, seed: int, categories: list[str]) -> Any:
    import catboost

    kind = catboost.CatBoostRegressor if task == "regression" else catboost.CatBoostClassifier
    model = kind(
        random_seed=seed,
        thread_count=torch.get_num_threads(),
        cat_features=categories,
        verbose=False,
        allow_writing_files=False,
    )
    return make_pipeline(FunctionTransformer(_categories_as_text), model)


def _categories_as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """CatBoost takes a hole in a category only as a word."""
    columns = frame.select_dtypes("category").columns
    return frame.assign(**{c: frame[c].astype(object).fillna("").astype(str) for c in columns})


def _pytabkit(name: str) -> Callable[[str, int, list[str]], Any]:
    def make(task: str, seed: int, categories: list[str]) -> Any:
        import pytabkit

        kind = "Regressor" if task == "regression" else "Classifier"
        threads = torch.get_num_threads()
        return getattr(pytabkit, f"{name}_{kind}")(random_state=seed, n_threads=threads)

    return make


RIVALS = {
    "lightgbm": Rival("LightGBM", "lightgbm", _lightgbm, 0.7),
    "xgboost": Rival("XGBoost", "xgboost", _xgboost, 1.0),
    "catboost": Rival("CatBoost", "catboost", _catboost, 20.0),
    "tabm": Rival("TabM", "pytabkit", _pytabkit("TabM_D"), 400.0),
    "realmlp": Rival("RealMLP", "pytabkit", _pytabkit("RealMLP_TD"), 200.0),
}
"""By the name that `--opponents` takes. LightGBM takes part wherever it is installed."""


def choose_rivals(names: Sequence[str], usual: bool) -> tuple[str, ...]:
    """The rivals that take part."""
    for name in names:
        if name not in RIVALS:
            raise InputError(f"opponents must be of {', '.join(RIVALS)}, got {name!r}")
        rival = RIVALS[name]
        if not rival.is_installed:
            if name == "lightgbm":
                raise missing_extra("the opponent lightgbm", "rivals")
            raise MissingExtraError(
                f"the opponent {name} needs a package: pip install {rival.package}"
            )
    return tuple(
        name
        for name, rival in RIVALS.items()
        if name in names or (usual and name == "lightgbm" and rival.is_installed)
    )


def make_rival(name: str, task: str) -> Opponent:
    """The opponent of a name of `RIVALS`."""
    rival = RIVALS[name]

    def make(seed: int, categories: list[str]) -> Any:
        return rival.make(task, seed, categories)

    return Opponent(rival.label, make, native=True, cost=rival.cost)


def native_frames(
    table: UserTable, train: np.ndarray, test: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows with holes and categories as they are, and dates as numbers.

    Columns are named c0, c1, …: not every library takes every name.
    """
    made: dict[str, pd.Series] = {}
    for column, kind in table.kinds.items():
        values = table.inputs[column]
        if kind == DATE:
            numbers = DateNumbers().fit(values.to_frame()).transform(values.to_frame())
            made |= {f"{column} {i}": pd.Series(part) for i, part in enumerate(numbers.T)}
        elif kind == CATEGORY:
            levels = values.iloc[train].value_counts().index[:MAX_LEVELS]
            dtype = pd.CategoricalDtype(sorted(map(str, levels)))
            made[column] = values.where(values.isin(levels), np.nan).astype(dtype)
        else:
            made[column] = values
    frame = pd.DataFrame(made)
    frame.columns = [f"c{i}" for i in range(frame.shape[1])]
    return frame.iloc[train], frame.iloc[test]


def count_parameters(model: Any) -> int | None:
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
