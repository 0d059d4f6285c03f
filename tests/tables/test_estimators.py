"""The estimators keep scikit-learn's promises, and their own."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from quadric import QuadraticLinear
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, expected_failed_checks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
Model = QuadraticRegressor | QuadraticClassifier


def table(rows: int = 120, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = (draw.normal(size=(rows, 3)) * [1, 20, 0.1] + [0, 100, 5]).astype(dtype)
    y = 1000 + 50 * X[:, 0] * (X[:, 1] - 100) / 20 + 10 * X[:, 2]
    return X, y.astype(dtype)


def labels(X: np.ndarray, names: tuple[str, ...] = ("inside", "outside")) -> np.ndarray:
    Z = (X - X.mean(0)) / X.std(0)
    index = (Z[:, 0] ** 2 + Z[:, 1] ** 2 > 1.4).astype(int)
    if len(names) == 3:
        index += (Z[:, 2] > 0).astype(int) * index
    return np.asarray(names)[index]


def small(kind: type[Any] = QuadraticRegressor, **options: Any) -> Any:
    options = {
        "hidden_layer_sizes": (8,),
        "members": 1,
        "max_iter": 30,
        "random_state": 0,
        **options,
    }
    if kind is QuadraticRegressor:  # test_second_order.py has the other solver
        options = {"solver": "adam", **options}
    return kind(**options)


@pytest.mark.parametrize("kind", [QuadraticRegressor, QuadraticClassifier])
def test_scikit_learns_own_checks(kind: type[Any]) -> None:
    model = kind((8,), members=2, max_iter=100)
    expected = expected_failed_checks(model)
    assert len(expected) <= 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            model, expected_failed_checks=expected, on_fail=None, on_skip=None
        )
    bad = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert bad == {}
    statuses = [r["status"] for r in results]
    assert statuses.count("passed") >= 55
    # Declared failures must be failures, and a check that is skipped is not passed.
    assert statuses.count("xfail") == len(expected)
    skipped = [r["check_name"] for r in results if r["status"] == "skipped"]
    assert set(skipped) <= {"check_array_api_input"}


def test_grid_search_over_a_pipeline_in_two_processes() -> None:
    X, y = table(150)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), small(max_iter=60)),
        {"quadraticregressor__neuron": ["linear", "eigen", "shared"]},
        n_jobs=2,
        cv=2,
    ).fit(X, y)
    alone = GridSearchCV(search.estimator, search.param_grid, cv=2).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-5
    )
    assert search.best_params_ == alone.best_params_


def test_pickles_predict_the_same_in_a_new_process(tmp_path: Path) -> None:
    X, y = table()
    models = [small(QuadraticRegressor).fit(X, y), small(QuadraticClassifier).fit(X, labels(X))]
    for i, model in enumerate(models):
        with (tmp_path / f"{i}.pkl").open("wb") as file:
            pickle.dump(model, file)
        joblib.dump(model, tmp_path / f"{i}.joblib")
    np.save(tmp_path / "X.npy", X)
    script = (
        "import pickle, joblib, numpy as np\n"
        "X = np.load('X.npy')\n"
        "for i in range(2):\n"
        "    a = pickle.load(open(f'{i}.pkl', 'rb')).predict(X)\n"
        "    assert (a == joblib.load(f'{i}.joblib').predict(X)).all()\n"
        "    np.save(f'{i}.npy', a)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, check=True)
    for i, model in enumerate(models):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), model.predict(X))


def test_hidden_layers_and_attributes() -> None:
    X, y = table()
    model = QuadraticRegressor(
        (6, 5), members=1, neuron="eigen", rank=2, solver="adam", max_iter=4, linear_fallback=False
    ).fit(X, y)
    first, _, second, _, last = model.module_.network
    assert isinstance(first, QuadraticLinear)
    assert (first.rank, first.out_features, second.out_features) == (2, 6, 5)
    assert type(last) is nn.Linear
    assert model.n_iter_ == len(model.loss_curve_) == 4
    assert model.n_features_in_ == 3
    assert (model.n_layers_, model.n_outputs_) == (4, 1)
    assert model.n_parameters_ == sum(p.numel() for p in model.module_.network.parameters())
    assert np.isfinite(model.best_loss_)
    one = QuadraticRegressor(
        hidden_layer_sizes=7, members=1, max_iter=2, linear_fallback=False
    ).fit(X, y)
    assert one.module_.network[0].out_features == 7


def test_options_of_the_neuron() -> None:
    X, y = table()
    model = clone(small(neuron="glu", neuron_options={"act": "gelu"})).fit(X, y)
    assert model.module_.network[0].rule.act == "gelu"
    assert isinstance(model.module_.network[1], nn.Identity)  # it brings its own activation
    model.set_params(neuron_options={"act": "gelu", "keep_activation": True}, warm_start=True)
    with pytest.raises(ValueError, match=r"must keep its shape .*Identity, got .*SiLU"):
        model.fit(X, y)


def test_it_learns_what_a_plain_network_learns() -> None:
    X, y = table(400)
    quadratic = QuadraticRegressor(
        (16,), members=1, learning_rate_init=0.02, n_iter_no_change=30, max_iter=150, random_state=0
    )
    assert cross_val_score(quadratic, X, y, cv=2).mean() > 0.95
    plain = MLPRegressor(hidden_layer_sizes=(16,), random_state=0, max_iter=150)
    assert cross_val_score(plain, X, y, cv=2).mean() < 0.5  # nothing is standardized there


def test_standardizing_makes_units_irrelevant() -> None:
    X, y = table()
    model = small().fit(X, y)
    other = small().fit(X * [1e3, 1e-6, 1.0] + [0, 7, -1e4], y * 1e5 - 3)
    again = other.predict(X * [1e3, 1e-6, 1.0] + [0, 7, -1e4])
    np.testing.assert_allclose((again + 3) / 1e5, model.predict(X), rtol=1e-6)
    raw = small(standardize=False).fit(X, y)
    assert raw.score(X, y) < model.score(X, y)
    assert raw.module_.input_mean.abs().sum() == 0


def test_constant_columns_and_targets() -> None:
    X, y = table()
    X[:, 1] = 123.456
    model = small().fit(X, y)
    assert model.module_.input_scale[1] == 1
    assert np.isfinite(model.predict(X)).all()
    flat = small(max_iter=60).fit(X, np.full(len(X), 7.0))
    np.testing.assert_allclose(flat.predict(X), 7, atol=0.2)


def test_several_targets() -> None:
    X, y = table(200)
    both = np.column_stack([y, -0.001 * y])
    model = small(max_iter=200).fit(X, both)
    assert model.predict(X).shape == (200, 2)
    assert model.n_outputs_ == 2
    assert model.score(X, both) > 0.9
    with torch.no_grad():
        assert model.to_torch()(torch.tensor(X)).shape == (200, 2)
    with pytest.warns(DataConversionWarning):
        column = small(max_iter=2).fit(X, y[:, None])
    assert column.predict(X).shape == (200,)


@pytest.mark.parametrize(
    "names", [("no", "yes"), (True, False), (-1, 1), (3.0, 7.0), ("a", "b", "c"), (10, 20, 30)]
)
def test_any_labels(names: tuple[Any, ...]) -> None:
    X, _ = table(200)
    y = labels(X, names)
    model = small(QuadraticClassifier, max_iter=100, learning_rate_init=0.02).fit(X, y)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.classes_.dtype == y.dtype
    assert set(model.predict(X)) <= set(y)
    assert model.score(X, y) > 0.8
    chances = model.predict_proba(X)
    assert chances.shape == (200, len(names))
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(chances))
    assert model.n_outputs_ == (1 if len(names) == 2 else 3)


def test_weights_stand_for_repeated_rows() -> None:
    X, y = table(60)
    weights = np.random.default_rng(1).integers(0, 4, 60)
    for kind, target in ((QuadraticRegressor, y), (QuadraticClassifier, labels(X))):
        weighted = small(kind, alpha=1.0).fit(X, target, sample_weight=weights)
        repeated = small(kind, alpha=1.0).fit(np.repeat(X, weights, 0), np.repeat(target, weights))
        score = "predict" if kind is QuadraticRegressor else "predict_proba"
        np.testing.assert_allclose(
            getattr(weighted, score)(X), getattr(repeated, score)(X), rtol=1e-6
        )
    with pytest.raises(ValueError, match="non-zero"):
        small().fit(X, y, sample_weight=np.zeros(60))
    with pytest.raises(ValueError, match="must not be negative"):
        small().fit(X, y, sample_weight=np.full(60, -1.0))


def test_early_stopping_by_itself_from_a_hundred_rows_on() -> None:
    X, y = table(100)
    assert small(max_iter=2).fit(X, y).validation_scores_ is not None
    assert small(max_iter=2).fit(X[:99], y[:99]).validation_scores_ is None
    assert small(max_iter=2, early_stopping=False).fit(X, y).validation_scores_ is None
    assert small(max_iter=2, early_stopping=True).fit(X[:20], y[:20]).validation_scores_ is not None
    # Rows of weight zero do not count.
    weights = np.ones(100)
    weights[0] = 0
    assert small(max_iter=2).fit(X, y, weights).validation_scores_ is None
    with pytest.raises(ValueError, match="n_samples = 1"):
        small(early_stopping=True).fit(X[:1], y[:1])


def test_held_out_rows_have_all_classes_or_need_not() -> None:
    X, _ = table(120)
    y = np.array(["common"] * 119 + ["single"])
    model = small(QuadraticClassifier, max_iter=2, validation_fraction=0.05).fit(X, y)
    assert list(model.classes_) == ["common", "single"]


def test_warm_start_goes_on() -> None:
    X, y = table(80)
    model = small(neuron="eigen", max_iter=10, warm_start=True).fit(X, y)
    before, scale = model.loss_curve_[-1], model.module_.target_scale.clone()
    model.fit(X, y * 1.5)
    assert model.n_iter_ == 10
    assert torch.equal(model.module_.target_scale, scale)  # the first fit's scaling
    model.fit(X, y)
    assert model.loss_curve_[-1] < before
    cold = small(max_iter=10).fit(X, y)
    first = cold.loss_curve_
    assert cold.fit(X, y).loss_curve_ == first
    with pytest.raises(ValueError, match="keep its shape"):
        model.set_params(hidden_layer_sizes=(9,)).fit(X, y)
    with pytest.raises(ValueError, match="keep its shape"):
        model.set_params(hidden_layer_sizes=(8,), neuron="shared").fit(X, y)
    model.set_params(neuron="eigen")
    with pytest.raises(ValueError, match=r"eigen\[9\] neurons .* got .* eigen\[3\] neurons"):
        model.set_params(rank=3).fit(X, y)
    model.set_params(rank=9).fit(X, y)  # the rank it has
    with pytest.raises(ValueError, match=r"with SiLU, got .* with Tanh"):
        model.set_params(activation="tanh").fit(X, y)
    deeper = small(hidden_layer_sizes=(), warm_start=True, max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="keep its shape"):
        deeper.set_params(hidden_layer_sizes=(4,)).fit(X, y)


def test_partial_fit_after_fit_begins_with_a_new_optimizer() -> None:
    X, y = table(60)
    used = small(max_iter=2).partial_fit(X, y).partial_fit(X, y).fit(X, y)
    fresh = small(max_iter=2).fit(X, y)
    np.testing.assert_array_equal(used.predict(X), fresh.predict(X))
    used.partial_fit(X, y)
    fresh.partial_fit(X, y)
    np.testing.assert_array_equal(used.predict(X), fresh.predict(X))
    assert used._optimizer[0].steps == 1


def test_partial_fit_is_one_epoch_that_goes_on() -> None:
    X, y = table(300)
    model = small(batch_size=50)
    for count in range(1, 6):
        assert model.partial_fit(X, y) is model
        assert model.n_iter_ == len(model.loss_curve_) == count
    assert model.validation_scores_ is None
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    # The optimizer goes on too: five calls are five epochs, not five first epochs.
    steps = model._optimizer[0].steps
    assert steps == 5 * 6
    scale = model.module_.input_mean.clone()
    model.partial_fit(X * 100, y)
    assert torch.equal(model.module_.input_mean, scale)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(
        copied.partial_fit(X, y).predict(X), model.partial_fit(X, y).predict(X)
    )
    # float32 rows go on in the dtype of the first call
    assert model.partial_fit(X.astype("float32"), y).predict(X).dtype == np.float64


def test_partial_fit_of_a_classifier_names_all_classes_first() -> None:
    X, _ = table(90)
    y = labels(X, ("a", "b", "c"))
    model = small(QuadraticClassifier)
    with pytest.raises(ValueError, match="classes must be passed"):
        model.partial_fit(X, y)
    only = y != "c"
    model.partial_fit(X[only], y[only], classes=["a", "b", "c"])
    model.partial_fit(X, y)
    assert list(model.classes_) == ["a", "b", "c"]
    assert model.predict_proba(X).shape == (90, 3)
    with pytest.raises(ValueError, match=r"labels \['a', 'b', 'c'\] of the first .*\['new'\]"):
        model.partial_fit(X, np.full(90, "new"))
    with pytest.raises(ValueError, match="those of the first call"):
        model.partial_fit(X, y, classes=["a", "b"])


def test_random_state() -> None:
    X, y = table()
    first, again = small().fit(X, y).predict(X), small().fit(X, y).predict(X)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(small(random_state=1).fit(X, y).predict(X), first)
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    small().fit(X, y)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)


def test_the_quadratic_rate_is_that_of_the_rest_unless_given() -> None:
    X, y = table()
    assert np.array_equal(
        small().fit(X, y).predict(X), small(quadratic_lr=3e-3).fit(X, y).predict(X)
    )
    frozen = small(quadratic_lr=0.0).fit(X, y)
    assert frozen.module_.network[0].eigenvalues.abs().max() == 0
    learned = small().fit(X, y).module_.network[0].eigenvalues
    assert learned.abs().max() > 0.01


def test_alpha_shrinks_the_weights() -> None:
    X, y = table(50)
    free, tight = small(alpha=0.0).fit(X, y), small(alpha=100.0).fit(X, y)
    assert tight.module_.network[0].weight.norm() < free.module_.network[0].weight.norm()


def test_verbose_prints_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = table()
    small(max_iter=3, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("Iteration 1, loss = ")
    assert "validation score" in lines[2]


def test_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        QuadraticRegressor().predict([[1.0]])
    with pytest.raises(NotFittedError):
        QuadraticClassifier().to_torch()


def test_several_label_columns_are_refused() -> None:
    X, _ = table(20)
    with pytest.raises(ValueError, match="MultiOutputClassifier"):
        QuadraticClassifier().fit(X, np.eye(2, dtype=int)[np.arange(20) % 2])


def test_defaults_are_scikit_learns_but_for_the_training() -> None:
    defaults, theirs = QuadraticRegressor().get_params(), MLPRegressor().get_params()
    shared = set(defaults) & set(theirs)
    assert {"alpha", "tol", "max_iter", "warm_start"} < shared
    differing = {name for name in shared if defaults[name] != theirs[name]}
    training = {"solver", "learning_rate_init", "early_stopping", "max_iter", "n_iter_no_change"}
    assert differing == {"activation", "hidden_layer_sizes", *training}
    assert "neuron='eigen'" in repr(QuadraticRegressor(neuron="eigen"))
    # Both classes have the same parameters but for what only one can use.
    own = set(defaults) ^ set(QuadraticClassifier().get_params())
    assert own == {"loss", "quantile", "target_transform", "solver", "class_weight"}
