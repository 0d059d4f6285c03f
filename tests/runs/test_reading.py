"""Reading runs: everything that can be wrong with one is named, and the rest is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quadric.errors import InputError
from quadric.runs.reading import read_runs
from tests.runs.made import EIGEN, LINEAR, read, result, write_run

BLEU = dict.fromkeys(("13a_cased", "13a_uncased", "intl_cased", "intl_uncased"), 30.0)
ANALYSIS = {"version": 1, "layers": []}
FAULTS: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ("[]", "does not hold an object"),
    ({}, "is not the result of a run, it has no 'recipe'"),
    (LINEAR[0] | {"settings": []}, "it has no mapping 'settings'"),
    (
        {key: value for key, value in LINEAR[0].items() if key != "test_accuracy"},
        "it has no 'test_accuracy' or 'test_rmse'",
    ),
    (LINEAR[0] | {"recipe": 5}, "recipe must be text, got 5"),
    (LINEAR[0] | {"seed": "x"}, "seed must be a whole number, got 'x'"),
    (LINEAR[0] | {"macs": True}, "macs must be a number or null, got True"),
    (LINEAR[0] | {"test_accuracy": "high"}, "test_accuracy must be a number or null"),
    (LINEAR[0] | {"epochs": 3}, "epochs must be a list of records, got 3"),
    (LINEAR[0] | {"bleu": 5}, "bleu must be null, or hold a number for each of 13a_cased"),
    (LINEAR[0] | {"bleu": BLEU | {"intl_cased": float("nan")}}, "intl_uncased, got {'13a_"),
    (LINEAR[0] | {"bleu": BLEU}, "it has 'bleu' and no 'params_without_embeddings'"),
]


@pytest.mark.parametrize(("content", "words"), FAULTS)
def test_what_is_no_result_is_named_and_the_rest_is_read(
    tmp_path: Path, content: Any, words: str
) -> None:
    bad = write_run(tmp_path / "bad", content)
    good = write_run(tmp_path / "good", LINEAR[0])
    (run,), (note,) = read_runs([tmp_path])
    assert run.path == good
    assert note.startswith(str(bad / "result.json"))
    assert words in note
    with pytest.raises(InputError, match=r"no finished run in .*bad: .*result\.json") as caught:
        read_runs(bad)
    assert words in str(caught.value)


def test_runs_are_found_in_directories_folders_and_files(tmp_path: Path) -> None:
    for i, one in enumerate((*LINEAR, EIGEN[0])):
        write_run(tmp_path / "a" / f"run{i}", one)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "recipe.yaml").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "run0" / "extra.json").write_text("{}")
    (tmp_path / "a" / "extra.json").write_text("{}")  # files count in the folder that is named
    runs, notes = read_runs([tmp_path])
    assert [run.name for run in runs] == ["run0", "run1", "run2", "run3"]
    assert notes == [f"{tmp_path / 'open'} is not finished: quadric train {tmp_path / 'open'} "
                     "--resume"]  # fmt: skip
    for source in (tmp_path / "a" / "run3", str(tmp_path / "a" / "run3" / "result.json")):
        (one,), _ = read_runs(source)
        assert (one.values, one.path) == (EIGEN[0], tmp_path / "a" / "run3")
    assert read_runs(runs)[0] == runs


def test_a_folder_of_result_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(LINEAR[0]))
    (tmp_path / "a.analysis.json").write_text(json.dumps(ANALYSIS))
    (tmp_path / "demo.json").write_text("{}")
    (run,), notes = read_runs([tmp_path, tmp_path / "a.json"])  # named twice, read once
    assert (run.name, run.path, run.analysis) == ("a", tmp_path / "a.json", ANALYSIS)
    assert notes == [f"{tmp_path / 'demo.json'} is not the result of a run, it has no 'recipe': "
                     "it was left out"]  # fmt: skip


@pytest.mark.parametrize(
    ("analysis", "note"),
    [
        (json.dumps(ANALYSIS), None),
        ('{"layers": ', "analysis.json is not JSON: it was left out"),
        ('{"version": 99, "layers": []}', "is of version 99, it was left out: make it again"),
        ('{"version": 1, "layers": 3}', "is of version 1, it was left out: make it again"),
        ("[]", "analysis.json does not hold an object"),
    ],
)
def test_the_analysis_beside_a_run(tmp_path: Path, analysis: str, note: str | None) -> None:
    write_run(tmp_path / "run", LINEAR[0])
    (tmp_path / "run" / "analysis.json").write_text(analysis)
    (run,), notes = read_runs(tmp_path)
    assert (run.analysis is not None) == (note is None)
    assert [note in each for each in notes] == [True] * (note is not None)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (["nowhere"], "no such run: nowhere"),
        ([], "no finished run: train one with `quadric train`"),
        (["."], r"no finished run in \.: train one"),
        ([{}], "no finished run: run 1 is not the result of a run"),
    ],
)
def test_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        read_runs(sources)


def test_scores_are_shown_in_percent_and_in_units() -> None:
    law = {k: v for k, v in result(0.5).items() if k != "test_accuracy"} | {"test_rmse": 0.5}
    accurate, error, lost = read(
        result(0.75), law | {"dataset": "law:lorentz"}, result(None, seed=1)
    )
    assert (accurate.score, accurate.unit, accurate.label) == (75.0, "%", "linear")
    assert (error.score, error.unit, error.metric.higher_is_better) == (0.5, "N", False)
    assert (lost.score, lost.diverged) == (None, True)
    (half_way,) = read(result(0.5) | {"status": "diverged"})
    assert half_way.score is None
    untested = read(result(0.5) | {"test_accuracy": None})[0]
    assert (untested.score, untested.diverged) == (None, False)


@pytest.mark.parametrize(
    ("share", "mean"),
    [({"a": 0.1, "b": 0.3}, 0.2), (0.25, 0.25), ({"a": None}, None), (None, None)],
)
def test_a_share_may_be_one_number_or_missing(share: Any, mean: float | None) -> None:
    (run,) = read(EIGEN[0] | {"quadratic_share": share})
    assert run.quadratic_share == (None if mean is None else pytest.approx(mean))


def test_what_is_not_finite_is_none() -> None:
    (run,) = read(result(0.5) | {"test_loss": float("nan")})
    assert run.values["test_loss"] is None


@pytest.mark.parametrize(
    ("epochs", "part", "what", "expected"),
    [
        ([{"train_loss": 2.0, "test_loss": 3.0}], "train", "loss", [(1, 2)]),
        ([{"train_loss": 2.0, "test_loss": 3.0}], "test", "loss", [(1, 3)]),
        ([{"val_loss": 4.0, "test_loss": 3.0}], "test", "loss", [(1, 4)]),
        ([{"epoch": 5, "test_accuracy": 0.5}], "test", "score", [(5, 50)]),
        ([{"test_loss": 9.0}, {"test_loss": None}], "test", "loss", [(1, 9), (2, None)]),
        ([{"test_loss": "high"}], "test", "loss", [(1, None)]),
        ([{"test_loss": 9.0}], "train", "score", []),
    ],
)
def test_curves(epochs: list[dict[str, Any]], part: str, what: str, expected: list[Any]) -> None:
    (run,) = read(result(0.5) | {"epochs": [{"seconds": 1.0, **each} for each in epochs]})
    assert run.curve(part, what) == expected


def test_the_curve_of_a_translation_is_its_perplexity() -> None:
    translated = {k: v for k, v in result(0.5).items() if k != "test_accuracy"}
    translated |= {"test_bleu": 27.5, "epochs": [{"seconds": 1.0, "val_perplexity": 90.0}]}
    (run,) = read(translated)
    assert (run.score, run.metric.label) == (27.5, "BLEU")
    assert (run.curve_metric.name, run.curve_metric.higher_is_better) == ("perplexity", False)
    assert run.curve("test", "score") == [(1, 90.0)]
