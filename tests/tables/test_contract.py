"""What every fitted estimator keeps, whatever its options and its columns: cases by promises."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import quadric
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, fit_many, load
from quadric.support.tensor_files import read_tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::quadric.errors.DroppedColumnWarning"),
]
ROWS = 130


def inputs(dtype: str = "float64", frame: str | None = None) -> Any:
    draw = np.random.default_rng(0)
    X = (draw.normal(size=(ROWS, 3)) * [1, 20, 0.1] + [0, 100, 5]).astype(dtype)
    if frame is None:
        return X
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(same=np.float32(1))
    table.loc[::5, "c"] = np.nan
    if frame == "mixed":
        table["town"] = draw.choice(["Aix", "Bern"], ROWS)
        table["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) % 50, unit="D")
    return table


def targets(X: Any, classes: int) -> np.ndarray:
    X = X[["a", "b"]].to_numpy() if isinstance(X, pd.DataFrame) else X
    y = 1000 + 50 * X[:, 0] * (X[:, 1] - 100) / 20
    if not classes:
        return np.asarray(y)
    return np.array(["low", "middle", "high"][:classes])[
        np.digitize(y, [1000, 1030][: classes - 1])
    ]


# Name: columns, classes (0 for a regression), options.
CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    **{f"{n}-{d}": ({"dtype": d}, 0, {"neuron": n})
       for n in ("linear", "eigen", "shared", "fan") for d in ("float32", "float64")},
    "gate": ({"dtype": "float32"}, 0, {"neuron": "glu", "neuron_options": {"act": "gelu"}}),
    "gelu": ({"dtype": "float32"}, 0, {"activation": "gelu"}),
    "two classes": ({"dtype": "float32"}, 2, {}),
    "three classes": ({}, 3, {"class_weight": "balanced"}),
    "members": ({"dtype": "float32"}, 0, {"members": 3}),
    "members of a classifier": ({"dtype": "float32"}, 3, {"members": 2}),
    "logarithms": ({}, 0, {"target_transform": "log"}),
    "quantiles": ({"dtype": "float32"}, 0, {"target_transform": "quantile"}),
    "a quantile": ({}, 0, {"loss": "quantile", "quantile": 0.8, "scoring": "r2"}),
    "several quantiles": (
        {"dtype": "float32"}, 0, {"loss": "quantile", "quantile": (0.1, 0.5, 0.9)}),
    "numbers with holes": ({"dtype": "float32", "frame": "numbers"}, 0, {}),
    "all kinds of columns": ({"frame": "mixed"}, 2, {}),
}  # fmt: skip


class Case:
    """An estimator that is fitted once for all promises."""

    def __init__(self, name: str) -> None:
        columns, classes, options = CASES[name]
        self.X, kind = inputs(**columns), QuadraticClassifier if classes else QuadraticRegressor
        self.y = targets(self.X, classes)
        self.blank: Any = kind((8,), members=1, max_iter=25, random_state=0).set_params(**options)
        self.model = clone(self.blank).fit(self.X, self.y)
        self.dtype = columns.get("dtype", "float64")
        # What the exported network takes: the columns as they are, or the prepared ones.
        prepared = columns.get("frame") == "mixed"
        taken = self.model.prepare(self.X) if prepared else np.asarray(self.X)
        self.taken = taken.astype(self.dtype)

    def answer(self, model: Any, X: Any = None) -> np.ndarray:
        answer = getattr(model, "predict_proba", model.predict)
        return np.asarray(answer(self.X if X is None else X))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_it_computes_in_the_dtype_of_the_table(case: Case) -> None:
    wanted = getattr(torch, case.dtype)
    assert {p.dtype for p in case.model.module_.parameters()} == {wanted}
    assert {b.dtype for b in case.model.module_.buffers()} == {wanted}
    assert case.answer(case.model).dtype == case.dtype


def test_the_network_alone_predicts_the_same_and_is_a_copy(case: Case) -> None:
    module, expected = case.model.to_torch(), case.answer(case.model)
    assert not module.training
    with torch.no_grad():
        found = module(torch.tensor(case.taken))
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
        for parameter in module.parameters():
            assert parameter.requires_grad
            parameter.zero_()
    np.testing.assert_array_equal(case.answer(case.model), expected)


# ONNX Runtime lacks some operators in float64.
SHIPPED = [name for name, (columns, *_) in CASES.items() if columns.get("dtype") == "float32"]


@pytest.mark.parametrize("case", [*SHIPPED, "all kinds of columns"], indirect=True)
def test_its_onnx_file_predicts_the_same(case: Case, tmp_path: Path) -> None:
    module = case.model.to_torch()
    quadric.export_onnx(module, tmp_path / "model.onnx", torch.tensor(case.taken[:4]))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    expected = case.answer(case.model)
    for rows in (slice(None), slice(1)):
        (found,) = session.run(None, {session.get_inputs()[0].name: case.taken[rows]})
        np.testing.assert_allclose(found, expected[rows], rtol=1e-3, atol=1e-4)


def test_pickles_and_clones(case: Case) -> None:
    copied = pickle.loads(pickle.dumps(case.model))
    np.testing.assert_array_equal(case.answer(copied), case.answer(case.model))
    again = clone(case.model)
    assert not hasattr(again, "module_")
    assert again.get_params() == case.model.get_params()
    np.testing.assert_allclose(case.answer(again.fit(case.X, case.y)), case.answer(case.model))


def test_a_saved_one_is_the_same(case: Case, tmp_path: Path) -> None:
    case.model.save(tmp_path / "model.quadric")
    again = load(tmp_path / "model.quadric")
    np.testing.assert_array_equal(case.answer(again), case.answer(case.model))
    assert again.prepared_names_ == case.model.prepared_names_
    assert again.n_iter_ == case.model.n_iter_
    again.save(tmp_path / "again.quadric")
    first, second = (read_tensors(tmp_path / f"{name}.quadric") for name in ("model", "again"))
    assert first[1] == second[1]
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)


def test_fits_in_a_stack_end_where_single_ones_do(case: Case) -> None:
    models = [clone(case.blank).set_params(random_state=seed) for seed in (1, 0)]
    fit_many(models, [(case.X, case.y)] * 2)
    tolerance = 1e-6 if case.dtype == "float64" else 2e-3
    np.testing.assert_allclose(
        case.answer(models[1]), case.answer(case.model), rtol=tolerance, atol=tolerance
    )
    assert models[1].n_iter_ == case.model.n_iter_ == len(models[1].loss_curve_)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be whole numbers >= 1"),
    ({"hidden_layer_sizes": "64"}, "hidden_layer_sizes"),
    ({"hidden_layer_sizes": (2.5,)}, "hidden_layer_sizes"),
    ({"neuron": "cubic"}, "neuron must be one of"),
    ({"neuron_options": {"act": "gelu"}}, "act"),
    ({"members": 0}, "members must be a whole number >= 1"),
    ({"members": 1.5}, "members must be a whole number >= 1"),
    ({"members": True}, "members must be a whole number >= 1"),
    ({"activation": "logistic"}, "activation must be one of none, relu"),
    ({"rank": 0}, "rank must be >= 1"),
    ({"batch_size": 0}, "batch_size must be 'auto'"),
    ({"learning_rate": "fast"}, "learning_rate must be"),
    ({"learning_rate_init": 0.0}, "learning_rate_init must be a finite number > 0"),
    ({"quadratic_lr": -1}, "quadratic_lr must be a finite number >= 0"),
    ({"alpha": float("nan")}, "alpha must be a finite number"),
    ({"shrinkage": -0.1}, "shrinkage must be a finite number >= 0"),
    ({"tol": "x"}, "tol must be a finite number"),
    ({"validation_fraction": 1.0}, "validation_fraction must be a finite number > 0 and < 1"),
    ({"early_stopping": "yes"}, "early_stopping must be True, False or 'auto'"),
    ({"max_iter": 0}, "max_iter must be a whole number >= 1"),
    ({"n_iter_no_change": 0}, "n_iter_no_change must be a whole number >= 1"),
    ({"device": "gpu"}, "device must be one that torch can use here, such as 'cpu', got 'gpu'"),
    ({"device": "cuda:99"}, "device must be one that torch can use here"),
    ({"device": 3.5}, "device must be one that torch can use here"),
    ({"device": "meta"}, "device must be one that torch can use here"),
    ({"max_time": 0}, "max_time must be a finite number of seconds > 0"),
    ({"scoring": "best"}, "scoring must be None or a name of"),
    ({"scoring": "r2", "early_stopping": False}, "scoring='r2' needs early stopping"),
    ({"loss": "huber"}, "loss must be one of squared_error, absolute_er"),
    ({"loss": "quantile"}, "quantile must be a number > 0 and < 1, or several .*, got N"),
    ({"quantile": 0.5}, "quantile must be None unless loss='quantile'"),
    ({"loss": "quantile", "quantile": 1}, "quantile must be a number"),
    ({"loss": "quantile", "quantile": (0.9, 0.1)}, "or several of them that rise"),
    ({"target_transform": "sqrt"}, "target_transform must be one of None"),
    ({"target_transform": "log"}, "target_transform='log' needs targets above 0, got -"),
    ({"class_weight": "even"}, "class_weight must be None, 'balanced'"),
    ({"class_weight": {"a": -1}}, "class_weight must be None"),
    ({"class_weight": {"z": 1}}, r"must name classes of y, \['a', 'b'\]"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    y: Any = X[:, 0]
    kind: Any = QuadraticRegressor
    if "class_weight" in options:
        kind, y = QuadraticClassifier, np.where(y > 0, "a", "b")
    with pytest.raises(ValueError, match=message) as caught:
        kind(**options).fit(X, y)
    assert "\n" not in str(caught.value)
