"""The comparison: fits, how they are kept, what is said about them."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from quadric.data.user_table import UserTable, make_table
from quadric.sklearn import QuadraticRegressor, load_network
from quadric.tables.comparison import fits as fits_module
from quadric.tables.comparison.fit_log import FitLog
from quadric.tables.comparison.fits import run_fits, settings
from quadric.tables.comparison.picture import draw, drawn
from quadric.tables.comparison.plan import ComparisonPlan, parse_neurons
from quadric.tables.comparison.report import TableComparison, fold_gaps
from quadric.tables.comparison.saving import check_path, save_best
from quadric.tables.comparison.sources import (
    EMBEDDED,
    LAW_ROWS,
    check_table,
    list_sources,
    load_source,
    source_facts,
)
from quadric.tables.comparison.splitting import splits
from quadric.tables.comparison.winner import python_line, python_lines, winner


def curved_table(rows: int = 90) -> UserTable:
    draw = np.random.default_rng(0)
    a, b = draw.uniform(-2, 2, (2, rows))
    frame = pd.DataFrame({"a": a, "b": b, "kind": np.where(a > 0, "x", "y"), "y": 10 * a * b})
    frame.loc[::9, "b"] = np.nan
    return make_table("curved", frame, "y")


def plan(task: str = "regression", **changes: Any) -> ComparisonPlan:
    given: dict[str, Any] = {
        "hidden": (8,), "max_iter": 8, "folds": 3, "seeds": 2, "seed": 5, **changes,
    }  # fmt: skip
    return ComparisonPlan(task, parse_neurons("eigen,shared:4"), **given)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> TableComparison:
    table = check_table(curved_table(), 3)
    log = run_fits(table, plan(), directory=tmp_path_factory.mktemp("runs") / "c")
    return TableComparison(table, plan(), log)


def test_every_model_on_every_fold(done: TableComparison) -> None:
    networks = ("linear", "eigen", "shared[4]")
    others = ("HistGradientBoosting", "MLPRegressor", "SVR (RBF)", "ridge")
    expected = {(m, f, s) for m in networks for f in range(3) for s in (0, 1)}
    expected |= {(m, f, 0) for m in others for f in range(3)}
    assert set(done.log.fits) == expected
    assert len(expected) == plan().folds * sum(plan().starts().values())
    fits = done.fits
    assert (fits["status"] == "ok").all()
    assert fits["error"].notna().all()
    assert (fits["seconds"] > 0).all()
    budget = done.log.fits["linear", 0, 0]["params"]
    for fit in done.log.fits.values():
        if fit["model"] in ("eigen", "shared[4]"):
            assert fit["params"] <= budget
            assert list(fit["quadratic_share"]) == ["hidden1"]
            assert 0 < fit["quadratic_share"]["hidden1"] < 1


def test_a_fit_is_that_of_the_estimator_on_the_fold(done: TableComparison) -> None:
    train, test = splits(done.table, 3, 5)[1]
    X, y = done.table.inputs, done.table.target.to_numpy()
    fit = done.log.fits["eigen", 1, 1]
    model = QuadraticRegressor(
        tuple(fit["widths"]), neuron="eigen", members=1, learning_rate="adaptive", max_iter=8,
        n_iter_no_change=200, random_state=5 + 1000 + 1,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="Maximum iterations"):
        model.fit(X.iloc[train], y[train])
    error = np.sqrt(np.mean((model.predict(X.iloc[test]) - y[test]) ** 2))
    assert fit["error"] == pytest.approx(float(error), rel=1e-4)
    assert fit["score"] == pytest.approx(model.score(X.iloc[test], y[test]), rel=1e-3)
    assert model.predict(X).dtype == np.float32  # these digits are enough


def test_means_and_differences(done: TableComparison) -> None:
    by_fold = {
        model: [
            np.mean([done.log.fits[model, fold, seed]["error"] for seed in (0, 1)])
            for fold in range(3)
        ]
        for model in ("linear", "eigen")
    }
    linear, eigen = (np.array(by_fold[model]) for model in ("linear", "eigen"))
    assert done.summary["error"]["linear"] == pytest.approx(linear.mean())
    assert done.summary["spread"]["linear"] == pytest.approx(linear.std(ddof=1))
    difference = done.differences["eigen"]
    assert difference is not None
    assert difference.mean == pytest.approx(100 * np.expm1(np.log(eigen / linear).mean()))
    assert (difference.pairs, difference.half_width) == (3, None)
    assert re.search(r"^eigen .* %\s\(folds (.[\d.]+, ){2}.[\d.]+\) ", str(done), re.MULTILINE)


def test_the_report(done: TableComparison) -> None:
    text = str(done)
    assert "curved: 90 rows, 3 columns, regression of y, 3 folds, 2 starts per network" in text
    assert re.search(r"^b +number +10$", text, re.MULTILINE)
    assert re.search(r"^shared\[4\] +\d+ +\d+\.\d+ ± \d+\.\d+ ", text, re.MULTILINE)
    assert re.search(r"^HistGradientBoosting +- ", text, re.MULTILINE)
    first, second = python_lines(done)
    assert first == (
        "In Python, SVR (RBF): make_pipeline(TablePreparation(), StandardScaler(), SVR())"
    )
    line = python_line(done, "eigen")
    assert line.startswith("QuadraticRegressor((")
    assert "The best network" in second
    assert "activation" not in line  # it is the default
    other = TableComparison(done.table, plan(activation="tanh"), done.log)
    assert "activation='tanh'" in python_line(other, "eigen")


def test_the_files_are_results_of_the_project(done: TableComparison, tmp_path: Path) -> None:
    done.write()
    folder = done.log.path
    whole = json.loads((folder / "compare.json").read_text())
    assert whole["verdict"] == done.verdict()
    assert [r["model"] for r in whole["results"]].count("mlp") == 3
    result = json.loads((folder / "shared-k4" / "result.json").read_text())
    keys = [
        "recipe", "dataset", "model", "neuron", "rank", "seed", "status", "params", "macs",
        "test_rmse", "test_loss", "quadratic_share", "epochs", "seconds", "peak_memory_bytes",
        "versions", "machine", "command", "settings",
    ]  # fmt: skip
    assert set(keys) <= set(result)
    assert (result["neuron"], result["rank"], result["status"]) == ("shared", 4, "ok")
    assert list(result["quadratic_share"]) == ["hidden1"]
    assert 0 < result["quadratic_share"]["hidden1"] < 1
    assert result["peak_memory_bytes"] > 2**20
    # A rank that was not given is the neuron's own.
    eigen = json.loads((folder / "eigen" / "result.json").read_text())
    assert (eigen["rank"], eigen["settings"]["rank"]) == (9, 9)
    linear = json.loads((folder / "linear" / "result.json").read_text())
    assert (linear["rank"], linear["quadratic_share"]) == (None, None)
    assert result["test_rmse"] == pytest.approx(done.summary["error"]["shared[4]"])
    assert len(result["folds"]) == 6
    picture = tmp_path / "p.png"
    draw(done, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    right = drawn(done).axes[1]  # three folds have no interval: each is shown
    assert "each fold, and the mean" in right.get_xlabel()
    assert right.lines[0].get_xdata() == pytest.approx(fold_gaps(done, "eigen"))


def test_quadric_results_reads_them(done: TableComparison) -> None:
    pytest.importorskip("lightning")
    from quadric.runs.groups import group
    from quadric.runs.reading import read_runs
    from quadric.runs.tables import group_table

    done.write()
    folders = [done.log.path / name for name in ("linear", "eigen", "shared-k4")]
    runs, notes = read_runs(folders)
    text = group_table(group(runs))
    assert notes == []
    assert {run.recipe for run in runs} == {"compare curved"}  # by table
    assert re.search(r"^eigen\[9\] +1 .* 0\.\d\d\d ", text, re.MULTILINE)
    assert "shared[4] minus linear" in text


def test_a_stopped_comparison_goes_on(
    done: TableComparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (done.log.path / "fits.jsonl").read_text().splitlines()
    folder = tmp_path / "again"
    folder.mkdir()
    settings = (done.log.path / "settings.json").read_text()
    (folder / "settings.json").write_text(settings)
    # Killed while it wrote the fifth fit.
    (folder / "fits.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:25])
    new: list[dict[str, Any]] = []
    add = FitLog.add

    def watch(self: FitLog, **fit: Any) -> None:
        new.append(fit)
        add(self, **fit)

    monkeypatch.setattr(FitLog, "add", watch)
    told: list[tuple[int, int]] = []
    log = run_fits(
        done.table,
        plan(),
        directory=folder,
        progress=lambda done, what, total: told.append((done, total)),
    )
    assert len(new) == len(lines) - 4
    assert told[0] == (4, len(lines))
    assert sum(done for done, _ in told) == len(lines)
    # The same numbers as without the interruption.
    assert set(log.fits) == set(done.log.fits)
    for key, fit in log.fits.items():
        assert fit["error"] == pytest.approx(done.log.fits[key]["error"], rel=1e-4)
    new.clear()
    run_fits(done.table, plan(), directory=folder)
    assert new == []


def test_a_directory_belongs_to_one_comparison(done: TableComparison, tmp_path: Path) -> None:
    folder = done.log.path
    with pytest.raises(ValueError, match=r"another comparison \(folds differ\)"):
        run_fits(done.table, plan(folds=2), directory=folder)
    with pytest.raises(ValueError, match=r"data"):
        run_fits(curved_table(91), plan(), directory=folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds other files"):
        run_fits(curved_table(), plan(), directory=other)


def test_default_directories_differ_by_data_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = curved_table()
    paths = {
        FitLog(settings(p, t), t.name).path
        for p, t in [(plan(), table), (plan(seed=1), table), (plan(), curved_table(91))]
    }
    assert len(paths) == 3
    assert all(re.fullmatch(r"runs/compare/curved-[0-9a-f]{8}", path.as_posix()) for path in paths)


def test_folds_are_prepared_in_parts_if_they_are_large(
    done: TableComparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits_module, "PREPARED_BYTES", 1)
    log = run_fits(done.table, plan(), directory=tmp_path / "c")
    for key, fit in log.fits.items():
        assert fit["error"] == pytest.approx(done.log.fits[key]["error"], rel=1e-4)


def test_classification(tmp_path: Path) -> None:
    draw_ = np.random.default_rng(0)
    X = draw_.normal(size=(160, 2))
    inside = (X**2).sum(1) < 1.2
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.where(inside, "in", "out")})
    table = check_table(make_table("ring", frame, "y"), 3)
    chosen = plan("classification", max_iter=200, seeds=1)
    found = TableComparison(table, chosen, run_fits(table, chosen, directory=tmp_path / "c"))
    assert "accuracy" in found.table_text()
    errors = found.summary["error"]
    assert 0.6 < 1 - errors["eigen"] < 1
    assert found.result("linear")["test_accuracy"] == pytest.approx(1 - errors["linear"])
    draw(found, tmp_path / "p.png")
    lines = save_best(found, tmp_path / "model.safetensors")
    assert "refitted on all 160 rows" in lines[0]
    facts = json.loads((tmp_path / "model.json").read_text())
    assert facts["classes"] == ["in", "out"]
    with torch.no_grad():
        probabilities = load_network(tmp_path / "model.safetensors")(torch.tensor(X).float())
    guess = np.where(probabilities[:, 0] > 0.5, "in", "out")
    assert (guess == frame["y"]).mean() > 0.7


def fake(
    errors: dict[str, list[float]], task: str = "regression", score: float = 0.5
) -> TableComparison:
    """A comparison with these errors of each fold, and this score of the very large ones."""
    base = ComparisonPlan(
        task, parse_neurons("eigen,shared"), (8,), folds=5, seeds=1,
        with_baselines="ridge" in errors or "logistic regression" in errors,
    )  # fmt: skip
    table = UserTable("t", pd.DataFrame({"a": [1.0]}), pd.Series([1.0], name="y"), {}, task)
    with tempfile.TemporaryDirectory() as folder:
        log = FitLog({}, "t", folder)
        for model in base.starts():
            for fold, error in enumerate(errors.get(model, [9.0] * 5)):
                log.add(
                    model=model, fold=fold, seed=0, status="ok" if error == error else "diverged",
                    error=error, score=score if error > 10 else 0.5, params=100, seconds=1.0,
                )  # fmt: skip
    return TableComparison(table, base, log)


LINEAR = [1.0, 1.1, 0.9, 1.05, 0.95]


@pytest.mark.parametrize(
    ("eigen", "shared", "expected"),
    [
        ([0.9, 0.98, 0.82, 0.94, 0.86], [1.0, 1.2, 0.9, 1.0, 0.9],
         "eigen lowers the error by 10 % (8.5 to 11) at equal size."),
        ([0.9, 0.98, 0.82, 0.94, 0.86], [0.5, 0.56, 0.45, 0.52, 0.48],
         "shared lowers the error by 50 % (49 to 51) at equal size; "
         "eigen lowers the error by 10 % (8.5 to 11)."),
        ([1.0, 1.12, 0.88, 1.05, 0.95], [1.0, 1.2, 0.8, 1.1, 0.9],
         "no difference on this table: eigen −0.1 % (−2.7 to +2.6), shared −0.8 % (−15 to +15)."),
        ([1.2, 1.33, 1.07, 1.26, 1.14], [1.1, 1.2, 1.0, 1.16, 1.04],
         "eigen raises the error by 20 % (19 to 21); shared raises the error by 10 % (8.5 to "
         "12) at equal size: stay with linear here."),
        ([1.2, 1.33, 1.07, 1.26, 1.14], [1.0, 1.12, 0.88, 1.05, 0.95],
         "no gain on this table: eigen raises the error by 20 % (19 to 21), "
         "shared −0.1 % (−2.7 to +2.6)."),
        ([1.2, 1.33, 1.07, 1.26, 1.14], [0.5, 0.56, 0.45, 0.52, 0.48],
         "shared lowers the error by 50 % (49 to 51) at equal size; "
         "eigen raises the error by 20 % (19 to 21)."),
    ],
)  # fmt: skip
def test_verdicts(eigen: list[float], shared: list[float], expected: str) -> None:
    found = fake({"linear": list(LINEAR), "eigen": eigen, "shared": shared})
    assert found.verdict().startswith(expected + " ")


def test_a_better_baseline_is_named() -> None:
    errors = {"linear": list(LINEAR), "eigen": list(LINEAR), "shared": list(LINEAR)}
    found = fake({**errors, "ridge": [0.5] * 5})
    assert found.verdict().endswith(" ridge has the lowest error of all (0.5000).")
    errors = {"linear": [0.2] * 5, "eigen": [0.1, 0.11, 0.09, 0.1, 0.1], "shared": [0.2] * 5}
    found = fake({**errors, "logistic regression": [0.05] * 5}, "classification")
    assert found.verdict() == (
        "eigen raises the accuracy by 10 points (8.7 to 11) at equal size. logistic regression has "
        "the highest accuracy of all (0.950)."
    )


def test_the_winner_is_whoever_has_the_lowest_error() -> None:
    errors = {"linear": list(LINEAR), "eigen": [0.5] * 5, "shared": [0.6] * 5}
    assert winner(fake(errors)) == "eigen"
    found = fake({**errors, "ridge": [0.4] * 5})
    assert winner(found) == "ridge"
    assert python_line(found, "ridge").startswith("make_pipeline(")
    blown = fake({**errors, "eigen": [0.1, 60.0, 0.1, 0.1, 0.1]}, score=-74.8)
    assert winner(blown) == "shared"
    linear = fake({"linear": [0.3] * 5, "eigen": [0.5] * 5, "shared": [0.6] * 5})
    assert linear.best_network() == linear.networks["linear"]


def test_diverged_networks_are_said() -> None:
    nan = float("nan")
    found = fake({"linear": list(LINEAR), "eigen": [nan, *LINEAR[1:]], "shared": list(LINEAR)})
    assert found.differences["eigen"] is None
    assert "diverged (1 of 5)" in found.table_text()
    assert "eigen" not in found.verdict()
    found = fake({"linear": [nan] * 5, "eigen": list(LINEAR), "shared": list(LINEAR)})
    assert found.verdict().startswith("no verdict: training diverged")


def test_a_blow_up_is_named_instead_of_a_difference() -> None:
    errors = {"linear": list(LINEAR), "eigen": [1.0, 60.0, 0.9, 1.0, 1.0], "shared": list(LINEAR)}
    found = fake({**errors, "ridge": [1.2] * 5}, score=-74.8)
    assert found.verdict() == (
        "no difference on this table: shared −0.0 % (−0.0 to −0.0). eigen blew up in 1 of 5 fits "
        "(R² −74.8 at worst): do not trust it here. linear has the lowest error of all (1.000)."
    )
    assert re.search(r"^eigen .* blew up ", found.table_text(), re.MULTILINE)
    found = fake({**errors, "linear": [1.0, 60.0, 0.9, 1.0, 1.0], "eigen": LINEAR}, score=-74.8)
    assert found.verdict().startswith(
        "no verdict on networks of equal size: the linear one blew up. linear blew up in 1 of 5"
    )


def test_uneven_classes_are_compared_by_log_loss(tmp_path: Path) -> None:
    draw_ = np.random.default_rng(0)
    a, b = draw_.normal(size=(2, 300))
    frame = pd.DataFrame({"a": a, "b": b, "y": np.where(a * b > 1, "yes", "no")})
    table = make_table("rare", frame, "y")
    chosen = plan("classification", max_iter=60, seeds=1)
    found = TableComparison(table, chosen, run_fits(table, chosen, directory=tmp_path / "c"))
    losses = found.fits.loc[found.fits["model"] == "eigen", "loss"]
    assert found.errors.loc["eigen"].tolist() == losses.tolist()
    guess = found.summary.loc["base rate"]
    assert guess["score"] == pytest.approx((frame["y"] == "no").mean())
    assert (guess["auc"], guess["balanced"]) == (0.5, 0.5)
    assert "uneven, so judged by log loss" in str(found)
    assert re.search(r"model +parameters +accuracy +balanced +AUC +log loss ", str(found))
    assert re.search(r"^SVC.* - ", found.table_text(), re.MULTILINE)  # it has no probabilities
    assert re.search(r" has the lowest log loss of all \(0\.\d+\)\.$", found.verdict())
    result = found.to_dict()["results"][1]
    assert result["test_accuracy"] == pytest.approx(found.summary["score"]["eigen"])
    assert {"test_auc", "test_balanced_accuracy", "test_loss"} <= set(result)
    draw(found, tmp_path / "p.png")


def test_large_tables_get_less_and_say_so() -> None:
    large = ComparisonPlan("regression", parse_neurons("eigen"), (8,), seeds=1, large=True)
    notes = large.notes(50_000)
    assert [note.split(":")[0] for note in notes] == [
        "more than 15,000 rows",
        "networks learn for at most 200 epochs instead of 400 (--epochs)",
        "SVR (RBF) learns from 5,000 of 40,000 rows",
    ]
    assert ComparisonPlan("regression", large.networks, (8,)).notes(12_000) == []


def test_models_are_told_as_they_come(tmp_path: Path) -> None:
    told: list[str] = []
    table, chosen = curved_table(), plan(seeds=1, folds=2, max_iter=2)

    def on_model(log: FitLog, label: str) -> None:
        told.append(TableComparison(table, chosen, log).line(label))

    run_fits(table, chosen, directory=tmp_path / "c", on_model=on_model)
    names = [line.partition(":")[0] for line in told]
    assert names[:2] == ["HistGradientBoosting", "ridge"]  # what takes moments comes first
    assert sorted(names) == sorted(chosen.starts())
    assert re.fullmatch(r"ridge: RMSE [\d.]+ ± [\d.]+, R² -?[\d.]+, [\d.]+ s to fit", told[1])


def test_short_tables_and_rare_classes() -> None:
    with pytest.raises(ValueError, match="at least 4 rows per fold, got 5 rows for 5 folds"):
        check_table(curved_table(5), 5)
    with pytest.raises(ValueError, match="folds must be >= 2"):
        check_table(curved_table(), 1)
    frame = pd.DataFrame({"a": np.arange(30) * 0.3, "y": ["p", "q"] * 14 + ["rare", "rare"]})
    table = check_table(make_table("t", frame, "y"), 5)
    assert len(table.target) == len(table.inputs) == 28
    assert table.notes[-1] == "2 rows of classes with fewer than 5 rows are left out: 'rare'"
    frame["y"] = ["p"] * 28 + ["rare", "rare"]
    with pytest.raises(ValueError, match="at least 2 classes with 5 rows"):
        check_table(make_table("t", frame, "y"), 5)
    frame["y"] = [f"class {i % 14}" for i in range(30)]
    with pytest.raises(ValueError, match=r"2 of 'class 4' and 9 more: give more rows") as caught:
        check_table(make_table("t", frame, "y"), 5)
    assert len(str(caught.value)) < 250


def test_sources(tmp_path: Path) -> None:
    assert len(load_source("law:lorentz").target) == LAW_ROWS
    law = load_source("law:lorentz", rows=50)
    assert list(law.inputs) == ["q", "E", "B", "v", "t"]
    first = law.inputs.iloc[0]
    assert law.target[0] == pytest.approx(
        first["q"] * (first["E"] + first["B"] * first["v"] * np.sin(first["t"]))
    )
    digits = load_source("digits")
    assert (digits.task, set(digits.target)) == ("classification", set("0123456789"))
    path = tmp_path / "houses.csv"
    path.write_text("a,price\n" + "".join(f"{i % 7},{i}.5\n" for i in range(30)))
    assert load_source(str(path), target="price").name == "houses"
    for text in (list_sources(), str(source_facts())):
        assert "law:lorentz" in text
        assert "diabetes" in text
        assert "uci:kin8nm" in text


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_data_sets_are_tables(name: str) -> None:
    table = check_table(load_source(name), 5)
    assert table.task == EMBEDDED[name][1]
    assert set(table.kinds.values()) == {"number"}
    assert {dtype.name for dtype in table.inputs.dtypes} == {"float32"}


def test_a_frame_is_compared_like_the_file_it_is_written_to(tmp_path: Path) -> None:
    frame = pd.DataFrame({"size": np.arange(40) % 7, "town": ["a", "b"] * 20, "id": 0.5})
    frame["price"] = frame["size"] ** 2 + 0.5
    frame.to_csv(tmp_path / "table.csv", index=False)
    given = load_source(frame, target="price", drop=["id"], rows=30)
    read = load_source(str(tmp_path / "table.csv"), target="price", drop=["id"], rows=30)
    assert given.name == read.name == "table"
    assert (given.kinds, given.notes) == (read.kinds, read.notes)
    pd.testing.assert_frame_equal(given.inputs, read.inputs)
    with pytest.raises(ValueError, match="name the column of table to predict"):
        load_source(frame)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("houses", {}, "no such file or data set: 'houses'"),
        ("missing.csv", {"target": "a"}, "no such file"),
        ("law:none", {}, "unknown law"),
        ("uci:kin8nm", {}, "--data-dir"),
        ("law:lorentz", {"target": "q"}, "--target is for files"),
        ("law:lorentz", {"task": "classification"}, "law:lorentz is a regression"),
        ("digits", {"task": "regression"}, "digits is a classification"),
        ("digits", {"rows": 50}, "--rows is for files and laws"),
    ],
)
def test_wrong_sources(source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_source(source, **given)


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
def test_a_saved_network_keeps_the_digits_of_its_columns(tmp_path: Path, suffix: str) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 60)
    # In float32 both columns would be steps of 64.
    table = check_table(
        make_table("offset", pd.DataFrame({"x": 1e9 + x, "y": 1e9 + 3 * x}), "y"), 2
    )
    chosen = plan(max_iter=400, folds=2, seeds=1, with_baselines=False)
    found = TableComparison(table, chosen, run_fits(table, chosen, directory=tmp_path / "c"))
    path = tmp_path / f"model{suffix}"
    save_best(found, path)
    rows = table.inputs.to_numpy()
    if suffix == ".onnx":
        session = onnxruntime.InferenceSession(path)
        (predicted,) = session.run(None, {"input": rows})
    else:
        with torch.no_grad():
            predicted = load_network(path)(torch.tensor(rows)).numpy()
    assert np.corrcoef(predicted - 1e9, x)[0, 1] > 0.9


def test_saving(done: TableComparison, tmp_path: Path) -> None:
    lines = save_best(done, tmp_path / "model.safetensors")
    assert lines[1].startswith("SVR (RBF) has a lower error, but is no network: refit it by make_")
    assert "prepared columns" in lines[2]
    facts = json.loads((tmp_path / "model.json").read_text())
    assert facts["inputs"] == ["a", "b", "missingindicator_b", "kind_x", "kind_y"]
    median = float(done.table.inputs["b"].median())
    assert facts["takes"] == "prepared columns"
    assert facts["preparation"][1] == {
        "column": "b",
        "kind": "number",
        "if_missing": pytest.approx(median),
    }
    assert facts["preparation"][4] == {"column": "kind", "kind": "1 if 'y', else 0"}
    module = load_network(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert module(torch.zeros(4, 5)).shape == (4,)
    with pytest.raises(ValueError, match=r"\.quadric, \.onnx or \.safetensors"):
        check_path(tmp_path / "model.pt")
    with pytest.raises(OSError, match="there is no directory"):
        check_path(tmp_path / "none" / "model.onnx")
    with pytest.raises(ValueError, match=r"--save .* writes .*model\.json .* --json"):
        check_path(tmp_path / "model.onnx", str(tmp_path / "x" / ".." / "model.json"))
    check_path(tmp_path / "model.onnx", "-")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="does not describe a network"):
        load_network(tmp_path / "model.safetensors")


def test_fits_in_other_processes_are_the_same(done: TableComparison, tmp_path: Path) -> None:
    chosen = plan(folds=2, seeds=1, max_iter=3)
    here = run_fits(done.table, chosen, directory=tmp_path / "here")
    told: list[str] = []
    with joblib.parallel_config(backend="loky", n_jobs=2):
        there = run_fits(
            done.table, chosen, directory=tmp_path / "there",
            on_model=lambda _, label: told.append(label),
        )  # fmt: skip
    assert set(here.fits) == set(there.fits)
    assert sorted(told) == sorted(chosen.starts())
    for key, fit in here.fits.items():
        assert there.fits[key]["error"] == pytest.approx(fit["error"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dask has its own about ports and workers that are gone
def test_a_cluster_does_the_fits_of_a_dead_worker_again(
    done: TableComparison, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    chosen = plan(folds=3, seeds=2, max_iter=60)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        killed: list[int] = []

        def kill_one(done: int, what: str, total: int) -> None:
            if done and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.pid)
                os.kill(worker.process.pid, signal.SIGKILL)

        with joblib.parallel_config(backend="dask"):
            log = run_fits(done.table, chosen, directory=tmp_path / "c", progress=kill_one)
    assert len(killed) == 1
    lines = (tmp_path / "c" / "fits.jsonl").read_text().splitlines()
    assert len(lines) == len(log.fits) == 3 * sum(chosen.starts().values())
