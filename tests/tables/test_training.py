"""The fitting loop: a stack trains each network as it would train alone."""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from torch import Tensor

from quadric.data import laws
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, fit_many
from quadric.tables import jobs
from quadric.tables import training as training_module
from quadric.tables.losses import SQUARED
from quadric.tables.training import train

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def adam(*args: Any, **options: Any) -> QuadraticRegressor:
    """An estimator that is trained by what this file is about."""
    return QuadraticRegressor(*args, **{"solver": "adam", "members": 1, **options})


def table(rows: int, dtype: str = "float64", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 4)).astype(dtype)
    y = np.sin(2 * X[:, 0]) * X[:, 1] + X[:, 2] ** 2 + 0.3 * draw.normal(size=rows)
    return X, y.astype(dtype)


def fold_data(X: np.ndarray, y: np.ndarray, folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    split = KFold(folds, shuffle=True, random_state=0).split(X)
    return [(X[train], y[train]) for train, _ in split]


@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared", "square"])
def test_a_batched_fit_equals_its_single_fits_with_early_stopping(neuron: str) -> None:
    X, y = table(303)  # folds of 202 rows and a validation part of 21: sizes differ by one
    data = fold_data(X, y, 4)
    assert len({len(rows) for rows, _ in data}) == 2

    def models() -> list[QuadraticRegressor]:
        return [
            adam(
                (11, 9), neuron=neuron, batch_size=60, max_iter=60, n_iter_no_change=3,
                learning_rate_init=0.01 * (i + 1), random_state=i,
            )
            for i in range(4)
        ]  # fmt: skip

    together = fit_many(models(), data)
    alone = [model.fit(*rows) for model, rows in zip(models(), data, strict=True)]
    stops = [model.n_iter_ for model in alone]
    assert len(set(stops)) > 1  # networks leave the stack at different epochs
    assert min(stops) < 60
    for batched, single in zip(together, alone, strict=True):
        assert batched.n_iter_ == single.n_iter_
        np.testing.assert_allclose(batched.predict(X), single.predict(X), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(batched.loss_curve_, single.loss_curve_, rtol=1e-7)
        np.testing.assert_allclose(
            batched.validation_scores_, single.validation_scores_, rtol=1e-6, atol=1e-9
        )
        assert batched.best_validation_score_ == pytest.approx(single.best_validation_score_)


def test_a_schedule_sees_every_step() -> None:
    X, y = table(100)
    model = adam((5,), batch_size=30, early_stopping=False, max_iter=3, shrinkage=0.0)
    (job,) = model._make_jobs(X, y)
    before = [parameter.detach().clone() for parameter in job.network.parameters()]
    seen: list[int] = []
    job.settings = dataclasses.replace(
        job.settings, rate=lambda step: 0.0 * (seen.append(step) or 1)
    )
    train([job])
    assert seen == list(range(3 * 4))
    for parameter, start in zip(job.network.parameters(), before, strict=True):
        assert torch.equal(parameter, start)  # a rate of 0 changes nothing


def test_classifiers_and_weights_fit_together_too() -> None:
    X, y = table(260)
    labels = np.where(y > 1, "high", np.where(y > 0, "middle", "low"))
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X))
    data = [(X, labels, weights), (X[:240], labels[:240], weights[:240])]

    def models() -> list[QuadraticClassifier]:
        return [QuadraticClassifier((8,), members=1, max_iter=25, random_state=i) for i in range(2)]

    together = fit_many(models(), data)
    alone = [model.fit(*rows) for model, rows in zip(models(), data, strict=True)]
    for batched, single in zip(together, alone, strict=True):
        np.testing.assert_allclose(
            batched.predict_proba(X), single.predict_proba(X), rtol=1e-7, atol=1e-9
        )


def test_adaptive_rates_are_each_networks_own() -> None:
    X, y = table(250)

    def models() -> list[QuadraticRegressor]:
        return [
            adam(
                (8,), learning_rate="adaptive", learning_rate_init=rate, n_iter_no_change=2,
                max_iter=300, random_state=6,
            )
            for rate in (0.01, 0.1)
        ]  # fmt: skip

    together = fit_many(models(), [(X, y)] * 2)
    alone = [model.fit(X, y) for model in models()]
    constant = adam(
        (8,), learning_rate_init=0.1, n_iter_no_change=2, max_iter=300, random_state=6
    ).fit(X, y)
    for batched, single in zip(together, alone, strict=True):
        assert batched.n_iter_ == single.n_iter_ < 300
        np.testing.assert_allclose(batched.predict(X), single.predict(X), rtol=1e-6, atol=1e-8)
    # It goes on where a constant rate stops, and ends lower.
    assert alone[1].n_iter_ > constant.n_iter_ + 6
    assert alone[1].best_loss_ < constant.best_loss_


def test_stacks_are_split_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(120)
    sizes: list[int] = []
    whole = training_module._Stack.__init__

    def watch(self: Any, jobs: Any, *args: Any) -> None:
        sizes.append(len(jobs))
        whole(self, jobs, *args)

    monkeypatch.setattr(training_module._Stack, "__init__", watch)

    def fit(**options: Any) -> list[QuadraticRegressor]:
        models = [adam((4,), max_iter=3, random_state=i) for i in range(5)]
        return fit_many(models, [(X, y)] * 5, **options)

    whole_stack = fit()
    one_by_one = fit(max_stack=1)
    monkeypatch.setattr(training_module, "STACK_BYTES", 3 * 108 * 5 * 8)
    in_parts = fit()
    assert sizes == [5, 1, 1, 1, 1, 1, 2, 3]
    for other in (one_by_one, in_parts):
        for a, b in zip(whole_stack, other, strict=True):
            np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-9)


def test_the_best_epoch_is_kept() -> None:
    X, y = table(150)
    model = adam((32, 32), max_iter=150, learning_rate_init=0.02, random_state=0)
    model.fit(X, y)
    scores = model.validation_scores_
    assert scores is not None
    assert model.n_iter_ == len(scores) == len(model.loss_curve_) < 150
    best = int(np.argmax(scores))
    assert model.n_iter_ - 1 - best == 31  # n_iter_no_change epochs without improvement, and one
    assert model.best_validation_score_ == scores[best]
    assert model.best_loss_ == min(model.loss_curve_)
    # The parameters are those of that epoch: training up to it gives the same.
    short = adam((32, 32), max_iter=best + 1, learning_rate_init=0.02, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), short.predict(X), rtol=1e-9)


def test_a_fit_that_cannot_stay_finite_says_so() -> None:
    X, y = table(50, "float32")
    model = adam((8,), activation="none", learning_rate_init=1e30, random_state=0)
    with pytest.raises(ValueError, match="lower learning_rate_init"):
        model.fit(X, y)
    assert not hasattr(model, "module_")


def test_a_diverged_network_does_not_stop_the_others() -> None:
    X, y = table(150, "float32")
    models = [
        adam((8,), activation="none", learning_rate_init=rate, max_iter=5,
                           early_stopping=False, random_state=0)
        for rate in (1e30, 1e-3)
    ]  # fmt: skip
    usable: dict[int, bool] = {}
    fit_many(models, [(X, y)] * 2, on_fit=lambda i, record: usable.update({i: record.usable}))
    assert usable == {0: False, 1: True}
    assert np.isfinite(models[1].predict(X)).all()


def test_an_epoch_that_is_not_finite_ends_the_fit_with_the_best_one() -> None:
    X, y = table(150, "float32")
    model = adam((8,), max_iter=20, random_state=0)
    (job,) = model._make_jobs(X, y)
    assert job.validation is not None
    calls = 0

    def rows(outputs: Tensor, targets: Tensor) -> Tensor:  # overflows in the third epoch
        nonlocal calls
        calls += 1
        return SQUARED.rows(outputs, targets) * (float("inf") if calls > 4 else 1.0)

    job.loss = dataclasses.replace(SQUARED, rows=rows)
    record = train([job])[0]
    assert record.diverged_at == 3
    assert record.usable
    with pytest.warns(ConvergenceWarning, match="not finite"):
        model._take_records([record])
    assert np.isfinite(model.predict(X)).all()


def test_a_fit_that_needs_more_epochs_warns() -> None:
    X, y = table(60)
    with pytest.warns(ConvergenceWarning, match="Maximum iterations"):
        adam((4,), max_iter=2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adam((4,), max_iter=500, n_iter_no_change=1, tol=0.5).fit(X, y)


def test_wrong_numbers_of_tables_are_refused() -> None:
    X, y = table(20)
    model = adam()
    with pytest.raises(ValueError, match="2 estimators and 1 tables"):
        fit_many([model, adam()], [(X, y)])
    with pytest.raises(ValueError, match="clone"):
        fit_many([model, model], [(X, y)] * 2)


def test_seconds_add_up_to_the_stacks() -> None:
    X, y = table(200)
    models = [adam((4,), max_iter=5, random_state=i) for i in range(3)]
    records = train([job for model in models for job in model._make_jobs(X, y)])
    assert all(0 < record.seconds < 10 for record in records)


def test_stacks_run_side_by_side_and_leave_the_threads_as_they_were() -> None:
    X, y = table(120)
    before = torch.get_num_threads()
    names: set[str] = set()

    def note(position: int, record: Any) -> None:
        names.add(threading.current_thread().name)
        assert torch.get_num_threads() == 1

    torch.set_num_threads(2)
    try:
        models = [adam((4,), max_iter=3, random_state=i) for i in range(4)]
        fit_many(models, [(X, y)] * 4, on_fit=note)
        assert len(names) >= 1
        assert threading.current_thread().name not in names
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    alone = adam((4,), max_iter=3, random_state=3).fit(X, y)
    np.testing.assert_allclose(models[3].predict(X), alone.predict(X), rtol=1e-9)


def test_an_error_in_one_thread_ends_all() -> None:
    X, y = table(120)
    before = torch.get_num_threads()
    epochs: list[int] = []

    def fail(epoch: int, left: int) -> None:
        epochs.append(epoch)
        raise RuntimeError("stop here")

    torch.set_num_threads(2)
    try:
        models = [adam((4,), max_iter=500, random_state=i) for i in range(4)]
        with pytest.raises(RuntimeError, match="stop here"):
            fit_many(models, [(X, y)] * 4, on_epoch=fail)
        assert len(epochs) <= 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_large_layers_keep_torchs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(60)
    (job,) = adam((4,))._make_jobs(X, y)
    assert job.is_small()
    monkeypatch.setattr(jobs, "SMALL_MACS", 60 * 16 - 1)
    assert not job.is_small()


def test_shrinkage_takes_useless_columns_out_and_fades() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(500, 30))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * draw.normal(size=500)
    sizes = []
    for shrinkage in (0.4, 0.0):
        model = adam(
            (20,), shrinkage=shrinkage, max_iter=60, n_iter_no_change=60, random_state=0
        ).fit(X[:300], y[:300])
        size = model.module_.network[0].weight.detach().norm(dim=0)
        sizes.append((size[3:].mean() / size[:3].mean(), model.score(X[300:], y[300:])))
    (shrunk, better), (plain, worse) = sizes
    assert shrunk < 0.6 * plain
    assert better > worse
    # What goes on learning is not shrunk again.
    (first,) = clone(model).set_params(shrinkage=0.4, warm_start=True)._make_jobs(X, y)
    (later,) = model.set_params(shrinkage=0.4, warm_start=True)._make_jobs(X, y)
    assert (first.settings.shrinkage, later.settings.shrinkage) == (0.4, 0.0)


@pytest.mark.parametrize("neuron", ["linear", "shared", "fan", "glu"])
def test_shrinkage_is_the_step_of_a_group_lasso(neuron: str) -> None:
    X, y = table(60)
    options = {"early_stopping": False, "max_iter": 1, "random_state": 0}
    plain, shrunk = (
        adam((6,), neuron=neuron, shrinkage=share, **options).fit(X, y).module_
        for share in (0.0, 1.0)
    )
    share = math.exp(-1 / 200)  # after one step
    count = 0
    for before, after in zip(
        plain.network[0].parameters(), shrunk.network[0].parameters(), strict=True
    ):
        if before.dim() == 2 and before.shape[1] == X.shape[1]:
            count += 1
            size = before.norm(dim=0)
            pull = share * math.sqrt(len(before)) * 3e-3
            torch.testing.assert_close(after, before * (1 - pull / size).clamp(min=0))
        else:
            torch.testing.assert_close(after, before)
    assert count >= 1


def test_one_held_out_row_does_not_end_a_fit() -> None:
    X, y = table(300)
    model = adam((8,), max_iter=100, random_state=0)
    (clean,) = model._make_jobs(X, y)
    (spoiled,) = model._make_jobs(X, y)
    assert spoiled.validation is not None
    spoiled.validation.targets[0] = 1e6  # the loss of all other rows is lost in its digits
    expected, found = train([clean])[0], train([spoiled])[0]
    assert len(found.losses) == len(expected.losses)
    np.testing.assert_allclose(found.losses, expected.losses)
    assert found.best_score is not None
    kept = [p.detach() for p in spoiled.network.parameters()]
    for a, b in zip(kept, clean.network.parameters(), strict=True):
        assert (a - b).abs().max() < 0.5


def test_a_network_that_knows_no_more_than_a_line_gets_more_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = laws.table("anharmonic", 750, 1, seed=0, dtype=torch.float64)
    X, y = rows.train_inputs.numpy(), rows.train_targets.numpy().ravel()
    noisy = load_diabetes(return_X_y=True)

    def fits() -> list[QuadraticRegressor]:
        law = adam((100,), random_state=0, max_iter=200, linear_fallback=False)
        return [law.fit(X, y), adam((20,), random_state=2, linear_fallback=False).fit(*noisy)]

    patient = fits()
    monkeypatch.setattr(training_module, "PLATEAU", 1)
    before = fits()
    assert before[0].score(X, y) < 0.5 < 0.95 < patient[0].score(X, y)
    # Where there is no more to learn, a later epoch is only better by chance, and is not kept.
    assert patient[1].n_iter_ == before[1].n_iter_ + 90
    assert max(patient[1].validation_scores_) > patient[1].best_validation_score_
    np.testing.assert_array_equal(patient[1].predict(noisy[0]), before[1].predict(noisy[0]))


def test_the_penalty_is_for_weights_alone() -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    (job,) = QuadraticRegressor((4,), members=1, neuron="eigen", alpha=1.0)._make_jobs(X, X[:, 0])
    optimizer = training_module._make_optimizer([job])
    for name, decay in optimizer.views(optimizer.decay).items():
        assert bool((decay > 0).all()) == bool((decay > 0).any()) == name.endswith("weight"), name
