"""Tables of runs: arms, spreads over seeds, paired differences."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from quadric.train import catalog
from quadric.train.arms import (
    NoResultError,
    compare,
    group,
    read_results,
    tabulate,
    to_json,
    varying,
)
from quadric.train.recipe import DEFAULTS

BASE = catalog.load("digits")


def result(accuracy: float | None, **overrides: Any) -> dict[str, Any]:
    """A result as a run writes it."""
    recipe = BASE.with_overrides(overrides).resolved()
    return {
        "recipe": recipe.name,
        "neuron": recipe.neuron,
        "rank": recipe.rank,
        "seed": recipe.seed,
        "status": "ok" if accuracy is not None else "diverged",
        "params": 1000,
        "macs": 20000,
        "test_accuracy": accuracy,
        "test_loss": None if accuracy is None else 1 - accuracy,
        "quadratic_share": {"conv1": 0.1, "conv2": 0.3} if recipe.neuron == "eigen" else None,
        "epochs": [{"seconds": 2.0}, {"seconds": 4.0}],
        "settings": recipe.identity(),
    }


LINEAR = [result(a, seed=s) for s, a in enumerate((0.90, 0.92, 0.91))]
EIGEN = [result(a, seed=s, neuron="eigen") for s, a in enumerate((0.92, 0.93, 0.925))]


def test_runs_that_differ_by_the_seed_alone_are_one_arm() -> None:
    arms = group([*LINEAR, *EIGEN, LINEAR[0], result(0.5, neuron="eigen", epochs=3)])
    assert [arm.label for arm in arms] == ["linear", "eigen[9]", "eigen[9]"]
    assert [len(arm.runs) for arm in arms] == [3, 3, 1]


def test_the_table_has_mean_and_deviation_over_seeds() -> None:
    text = tabulate(group([*LINEAR, *EIGEN]))
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "91.00 ± 1.00" in lines["linear"]
    assert "92.50 ± 0.50" in lines["eigen[9]"]
    assert "0.200 ± 0.000" in lines["eigen[9]"]
    assert "3.0 ± 0.0" in lines["linear"]
    assert "20,000" in lines["linear"]
    marked = tabulate(group([*LINEAR, *EIGEN]), markdown=True)
    assert "| linear | 3 | 1,000 | 20,000 | 91.00 ± 1.00 |" in marked


def test_arms_are_compared_on_the_seeds_that_they_share() -> None:
    arms = group([*EIGEN, *LINEAR, result(0.1, seed=7), result(0.2, seed=8, neuron="eigen")])
    (found,) = compare(arms)
    gaps = [0.02, 0.01, 0.015]
    assert (found.first.label, found.second.label) == ("linear", "eigen[9]")
    assert found.difference.pairs == 3
    assert found.difference.mean == pytest.approx(statistics.fmean(gaps))
    half = 4.302653 * statistics.stdev(gaps) / 3**0.5
    assert found.difference.half_width == pytest.approx(half, rel=1e-6)
    text = tabulate(arms)
    assert "eigen[9] minus linear: +1.50 ± 1.24 points accuracy" in text
    assert "(95 % interval, 3 paired seeds; clear)" in text


def test_a_difference_that_may_be_none_is_said_so() -> None:
    text = tabulate(group([*LINEAR, *(result(a, seed=s, neuron="eigen") for s, a in
                                      enumerate((0.95, 0.90, 0.91)))]))  # fmt: skip
    assert "not clear: the interval holds 0" in text
    one = tabulate(group([LINEAR[0], EIGEN[0]]))
    assert "(one seed: no interval)" in one


def test_places_are_arms_only_where_a_seed_was_at_several() -> None:
    # The same data on two machines: one arm.
    moved = [result(0.9, seed=0, data_dir="/a"), result(0.8, seed=1, data_dir="/b")]
    assert [len(arm.runs) for arm in group(moved)] == [2]
    swept = [result(0.9, seed=s, kernels=k) for s in (0, 1) for k in (True, False)]
    arms = group(swept)
    assert [arm.settings["kernels"] for arm in arms] == [True, False]
    assert [len(arm.runs) for arm in arms] == [2, 2]
    assert "kernels" in tabulate(arms).splitlines()[2]


def test_arms_on_different_data_are_told_apart_and_not_compared() -> None:
    three = [
        result(0.9, neuron=neuron, dataset=data)
        for neuron, data in (("linear", "digits"), ("eigen", "digits"), ("linear", "other"))
    ]
    arms = group(three)
    assert [found.second.label for found in compare(arms)] == ["eigen[9]"]
    assert "dataset" in tabulate(arms).splitlines()[2]


def test_a_share_may_be_one_number_or_missing() -> None:
    numbers = [EIGEN[0] | {"quadratic_share": 0.25}, EIGEN[1] | {"quadratic_share": {"a": None}}]
    assert "0.250" in tabulate(group(numbers))
    # As a comparison of tables writes it: other settings, no epochs.
    table = {"name": "compare", "dataset": "x", "neuron": "eigen", "rank": 3, "folds": 2}
    other = EIGEN[2] | {"recipe": "compare", "rank": 3, "settings": table, "epochs": []}
    other |= {"quadratic_share": 0.5, "params": None}
    text = tabulate(group([*numbers, other]))
    assert "eigen[3]" in text
    assert "0.500" in text


def test_two_arms_of_different_recipes_are_compared_too() -> None:
    deep = [one | {"recipe": "deep", "settings": one["settings"] | {"name": "deep"}}
            for one in EIGEN]  # fmt: skip
    text = tabulate(group([*deep, *LINEAR]))
    assert "deep eigen[9] minus digits linear: +1.50 ± 1.24 points" in text


def test_fields_that_differ_are_columns() -> None:
    rates = [result(0.9, neuron="eigen", quadratic_lr=rate) for rate in (0.1, 0.2)]
    text = tabulate(group([LINEAR[0], *rates]))
    assert "quadratic_lr" in text.splitlines()[2]
    assert "eigen[9] (quadratic_lr=0.2) minus linear" in text


def test_diverged_runs_are_counted_and_not_averaged() -> None:
    arms = group([LINEAR[0], result(None, seed=1)])
    assert "2 (1 diverged)" in tabulate(arms)
    assert arms[0].values("test_accuracy") == {0: 0.9}
    only = tabulate(group([result(None)]))
    assert " - " in only


def test_the_json_is_strict_and_holds_the_values() -> None:
    data = json.loads(json.dumps(to_json(group([*LINEAR, *EIGEN])), allow_nan=False))
    assert data["arms"][0]["test_accuracy"]["values"] == [0.90, 0.92, 0.91]
    assert data["arms"][1]["seeds"] == [0, 1, 2]
    assert data["differences"][0]["second"] == "eigen[9]"


def test_a_field_that_an_older_run_does_not_know_has_its_default() -> None:
    old = json.loads(json.dumps(LINEAR[0] | {"seed": 7}))
    del old["settings"]["ema"]
    (arm,) = group([LINEAR[0], old])
    assert sorted(arm.runs) == [0, 7]
    averaged = json.loads(json.dumps(EIGEN[0]))
    averaged["settings"]["ema"] = 0.9
    assert varying(group([LINEAR[0], old, averaged])) == ["ema"]
    assert varying(group([old, EIGEN[0]])) == []
    older = json.loads(json.dumps(LINEAR[0]))
    del older["settings"]["label_smoothing"]
    other = json.loads(json.dumps(EIGEN[0]))
    other["settings"] |= {"label_smoothing": 0.5, "parts": {"my_parts": "0" * 64}}
    arms = group([older, other])
    assert varying(arms) == ["label_smoothing"]
    assert to_json(arms)["arms"][0]["label_smoothing"] == DEFAULTS["label_smoothing"] == 0
    assert f"minus linear (label_smoothing={DEFAULTS['label_smoothing']}): " in tabulate(arms)


@pytest.mark.parametrize("bleu", ["30", {"13a_cased": 30.0}, 30.0])
def test_scores_that_are_none_are_no_result(tmp_path: Path, bleu: Any) -> None:
    (tmp_path / "one.json").write_text(json.dumps(LINEAR[0] | {"bleu": bleu}))
    with pytest.raises(NoResultError, match="bleu must hold the numbers 13a_cased, "):
        read_results([tmp_path / "one.json"])


def test_results_are_found_in_runs_folders_and_files(tmp_path: Path) -> None:
    for i, one in enumerate((*LINEAR, EIGEN[0])):
        run = tmp_path / f"run{i}"
        run.mkdir()
        (run / "recipe.yaml").write_text("")
        (run / "result.json").write_text(json.dumps(one))
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "recipe.yaml").write_text("")
    (tmp_path / "other").mkdir()
    found, notes = read_results([tmp_path])
    assert len(found) == 4
    assert found[0]["path"] == str(tmp_path / "run0")
    assert len(notes) == 1
    assert notes[0].endswith("--resume")
    assert read_results([tmp_path / "run0"])[0] == [LINEAR[0] | {"path": str(tmp_path / "run0")}]
    (one,), _ = read_results([tmp_path / "run3" / "result.json"])
    assert one == EIGEN[0] | {"path": str(tmp_path / "run3")}


def test_what_is_no_result_is_skipped_with_one_note(tmp_path: Path) -> None:
    for name, text in (("demo", '{"laws": []}'), ("old", "{"), ("run", json.dumps(EIGEN[0]))):
        (tmp_path / name).mkdir()
        file = "result.json" if name == "run" else f"{name}.json"
        (tmp_path / name / file).write_text(text)
    (tmp_path / "run" / "extra.json").write_text("{}")
    (tmp_path / "compare" / "table-1" / "eigen").mkdir(parents=True)
    (tmp_path / "compare" / "table-1" / "compare.json").write_text("{}")
    (tmp_path / "compare" / "table-1" / "eigen" / "result.json").write_text(json.dumps(EIGEN[1]))
    (tmp_path / "notes.txt").write_text("")
    expected = [EIGEN[1] | {"path": str(tmp_path / "compare" / "table-1" / "eigen")}]
    expected.append(EIGEN[0] | {"path": str(tmp_path / "run")})
    found, notes = read_results(sorted(tmp_path.iterdir()))
    assert found == expected
    assert len(notes) == 1
    assert re.match(r"skipped: .*demo.json is not the result of a run.*\(and 1 more\)", notes[0])
    # A folder of folders: only result files of runs count.
    assert read_results([tmp_path]) == (expected, [])
    # Results kept as files.
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "one.json").write_text(json.dumps(LINEAR[0]))
    path = str(tmp_path / "kept" / "one.json")
    assert read_results([tmp_path / "kept"]) == ([LINEAR[0] | {"path": path}], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "it has no 'recipe'"),
        ("[]", "it has no 'recipe'"),
        (json.dumps(LINEAR[0] | {"settings": []}), "it has no mapping 'settings'"),
        (
            json.dumps({k: v for k, v in LINEAR[0].items() if k != "test_accuracy"}),
            "it has no 'test_accuracy' or 'test_rmse'",
        ),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_results([tmp_path / "x.json"])
    with pytest.raises(ValueError, match="no such run"):
        read_results([tmp_path / "nowhere"])


def test_two_different_runs_of_one_seed_are_refused_by_name(tmp_path: Path) -> None:
    for name, one in (("a", EIGEN[0]), ("b", EIGEN[0] | {"test_accuracy": 0.5}), ("c", EIGEN[0])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(one))
    both = read_results([tmp_path / "a", tmp_path / "b"])[0]
    names = f"{tmp_path / 'a'} and {tmp_path / 'b'} are two different runs of digits with eigen"
    with pytest.raises(ValueError, match=f"{re.escape(names)} neurons and seed 0: leave one"):
        group(both)
    copies = read_results([tmp_path / "a", tmp_path / "c"])[0]
    assert [len(arm.runs) for arm in group(copies)] == [1]


@pytest.mark.parametrize(
    ("accuracies", "doubt"),
    [
        ((0.92, 0.945), "2 of at least 3 pairs"),
        ((0.92, 0.94, 0.93), "no spread at all"),
        ((0.92, 0.94, 0.9300001), None),
    ],
)
def test_few_or_equal_differences_are_never_clear(
    accuracies: tuple[float, ...], doubt: str | None
) -> None:
    runs = [result(a, seed=s, neuron="eigen") for s, a in enumerate(accuracies)]
    (found,) = compare(group([*LINEAR, *runs]))
    assert found.difference.doubt == doubt
    assert found.difference.is_clear == (doubt is None)
    text = tabulate(group([*LINEAR, *runs]))
    assert (f"; not clear: {doubt})" if doubt else "; clear)") in text
