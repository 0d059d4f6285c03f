"""Reading runs: everything that can be wrong with one is named, and the rest is still shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quadric.analysis import figures
from quadric.analysis.arms import arm_table, arms
from quadric.analysis.page import page
from quadric.analysis.reading import by_dataset, curve, read
from quadric.errors import InputError
from tests.analysis.made import diverged, law_result, picture_analysis, result, run_directory

OLD = Path(__file__).parent.parent / "data_files" / "old_runs"


def test_everything_that_is_wrong_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run_directory(tmp_path / "good", result(), picture_analysis())
    run_directory(tmp_path / "law", law_result())
    run_directory(tmp_path / "lost", diverged())
    run_directory(tmp_path / "broken", '{"recipe": "digits", ')
    run_directory(tmp_path / "list", "[]")
    run_directory(tmp_path / "foreign", {"title": "something else"})
    old = {key: value for key, value in result(seed=1).items() if key not in ("macs", "settings")}
    run_directory(tmp_path / "old", old | {"quadratic_share": 0.25})
    run_directory(tmp_path / "half", result(seed=2), '{"layers": ')
    run_directory(tmp_path / "strange", result(seed=3), {"version": 99, "layers": []})
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "recipe.yaml").write_text("name: digits\n")
    (tmp_path / "empty").mkdir()
    runs, notes = read([tmp_path, tmp_path / "empty"])
    assert sorted(run.name for run in runs) == [
        "good", "half", "law", "lost", "old", "strange",
    ]  # fmt: skip
    for words in (
        "broken/result.json is not JSON",
        "list/result.json does not hold an object",
        "foreign/result.json is not the result of a run, it has no score",
        "old/result.json is of an older version: it has no macs, settings",
        "half/analysis.json is not JSON",
        "strange/result.json is of version 99",
        "unfinished has no result, the run is not finished: go on with quadric train",
        "empty holds no results",
    ):
        assert sum(words in note for note in notes) == 1, words
    by_name = {run.name: run for run in runs}
    assert by_name["good"].analysis is not None
    assert by_name["half"].analysis is None
    assert by_name["old"].macs is None
    assert by_name["lost"].diverged
    assert by_name["lost"].score is None
    assert sorted(by_dataset(runs)) == ["digits", "law:lorentz"]


def test_no_result_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no result to show: .* holds no results: train a run"):
        read([tmp_path])
    with pytest.raises(InputError, match=r"no such run: .*nowhere"):
        read([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="no result to show: name some runs"):
        read([])


def test_runs_of_an_older_version_are_read() -> None:
    runs, notes = read([OLD / "digits-finished", OLD / "law-finished"])
    assert notes == []
    assert [run.score_label for run in runs] == ["test accuracy (%)", "test RMSE (N)"]
    assert runs[0].score == pytest.approx(15.33, abs=0.01)


def test_a_folder_of_result_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(result()))
    (tmp_path / "a.analysis.json").write_text(json.dumps(picture_analysis()))
    runs, notes = read([tmp_path, tmp_path / "a.json"])  # named twice, shown once
    assert notes == []
    (run,) = runs
    assert run.name == "a"
    assert run.analysis is not None


def test_values_of_another_kind_are_missing() -> None:
    odd = result(params="many", macs=True, epochs=7, command=5, dataset=None, settings=[])
    (run,), _ = read([odd | {"test_accuracy": "high", "seed": "x"}])
    assert (run.params, run.macs, run.epochs, run.seed) == (None, None, [], None)
    assert (run.command, run.dataset, run.settings) == ("", "?", {})
    assert (run.score, run.diverged) == (None, False)


def test_bleu_is_read_from_its_mapping() -> None:
    translated = result(dataset="multi30k", bleu={"13a cased": 27.5, "intl": 28.0})
    translated["epochs"] = [{"epoch": 1, "val_perplexity": 90.0}]
    del translated["test_accuracy"]
    (run,), _ = read([translated])
    assert (run.score, run.score_label) == (27.5, "test BLEU (13a cased)")
    assert (run.curve_label, run.curve_falls) == ("perplexity", True)
    assert curve(run, "test", "score") == [(1, 90.0)]
    assert run.metric.higher_is_better


def test_arms_are_means_over_seeds() -> None:
    runs, _ = read([result(seed=s, width=w) for s in (0, 1, 2) for w in (2.0, 1.0)] + [diverged()])
    found = arms(runs)
    assert [(arm.line, arm.first.params, len(arm.runs)) for arm in found] == [
        ("eigen[9]", 1000, 3), ("eigen[9]", 2000, 3), ("kervolution", 1000, 1),
    ]  # fmt: skip
    assert found[0].mean == pytest.approx(91)
    assert found[0].std == pytest.approx(1)
    assert (found[2].mean, found[2].diverged) == (None, 1)
    assert found[0].network == "digits_cnn width 1"
    assert arm_table(found).rows[0][5:8] == (pytest.approx(91), "test accuracy (%)", 1.0)


def test_lines_of_one_neuron_are_told_apart_by_their_settings() -> None:
    made = []
    for lr in (0.1, 0.2):
        one = result()
        one["settings"] = one["settings"] | {"lr": lr, "workers": lr, "note": None}
        made.append(one)
    assert [arm.line for arm in arms(read(made)[0])] == ["eigen[9] lr=0.1", "eigen[9] lr=0.2"]
    for one in made:
        one["settings"]["schedule"] = f"a very long schedule of {one['settings']['lr']}"
    long = arms(read(made)[0])
    assert [arm.line for arm in long] == ["eigen[9] (settings 1)", "eigen[9] (settings 2)"]
    assert arm_table(long).rows[1][-1] == "lr=0.2 schedule=a very long schedule of 0.2"


def test_curves() -> None:
    (run, lost), _ = read([result(), diverged()])
    assert curve(run, "train", "loss")[0] == (1, 2)
    assert curve(run, "test", "score")[-1] == (5, pytest.approx(45))
    assert curve(lost, "test", "loss") == [(1, 99), (2, None)]
    assert curve(lost, "train", "score") == []
    held = result(epochs=[{"epoch": 1, "val_loss": 4.0, "train_loss": 5.0}])
    assert curve(read([held])[0][0], "test", "loss") == [(1, 4)]


def test_arms_do_not_depend_on_the_place_or_on_younger_fields() -> None:
    first, second = result(seed=0), result(seed=1)
    second["settings"] |= {"logger": "csv", "data_dir": "elsewhere", "ema": None}
    (arm,) = arms(read([first, second])[0])
    assert (len(arm.runs), arm.line) == (2, "eigen[9]")


def test_two_different_runs_of_one_arm_and_seed_are_refused() -> None:
    runs, _ = read([result(), result()])
    assert len(arms(runs)) == 1  # a copy
    other, _ = read([result(test_accuracy=0.5)])
    with pytest.raises(InputError, match="run 1 and run 1 are two different runs of digits with"):
        arms([*runs, *other])


def test_a_run_without_a_score_has_not_diverged() -> None:
    runs, _ = read([result(test_accuracy=None), diverged()])
    assert [run.diverged for run in runs] == [False, True]
    assert '"summary":"2 runs on 1 data set, 1 diverged"' in page(runs, "", [])
    assert '"summary":"1 run on 1 data set"' in page(runs[:1], "", [])
    assert len(figures.efficiency(runs).axes) == 2
