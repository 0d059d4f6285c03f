"""Groups of runs: what belongs together, in what groups differ, which are compared."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from quadric.errors import InputError
from quadric.runs.groups import by_dataset, compare, group, in_lines, pair, varying
from quadric.runs.reading import read_runs
from tests.runs.made import EIGEN, LINEAR, read, result, write_run


def changed(one: dict[str, Any], *without: str, **settings: Any) -> dict[str, Any]:
    """The same result with other settings."""
    kept = {key: value for key, value in one["settings"].items() if key not in without}
    return one | {"settings": kept | settings}


@pytest.mark.parametrize(
    ("results", "sizes", "fields"),
    [
        ([*LINEAR, *EIGEN], [3, 3], []),
        ([*LINEAR, LINEAR[0]], [3], []),  # given twice, counted once
        ([EIGEN[0], result(0.5, neuron="eigen", epochs=3)], [1, 1], ["epochs"]),
        ([EIGEN[0], result(0.5, neuron="eigen", quadratic_lr=0.2)], [1, 1], ["quadratic_lr"]),
        # A linear network does not differ in the rate of what it has not.
        ([LINEAR[0], EIGEN[0]], [1, 1], []),
        # The same data on two machines; the same seed on two kernels is what is compared.
        ([result(0.9, seed=s, data_dir=f"/{s}") for s in (0, 1)], [2], []),
        (
            [result(0.9, seed=s, kernels=k) for s in (0, 1) for k in (True, False)],
            [2, 2],
            ["kernels"],
        ),
        # A field without a value is one that is not there.
        ([LINEAR[0], changed(LINEAR[1], "ema", "dataset_options")], [2], []),
        ([LINEAR[0], changed(LINEAR[1], ema=0.9)], [1, 1], ["ema"]),
        ([LINEAR[0], changed(LINEAR[1], checksums={"mine": "0" * 64})], [1, 1], []),
        ([LINEAR[0], LINEAR[1] | {"params": 2000}], [1, 1], []),
        ([LINEAR[0], LINEAR[1] | {"dataset": "other"}], [1, 1], []),
    ],
)
def test_runs_that_differ_in_their_seed_alone_are_a_group(
    results: list[dict[str, Any]], sizes: list[int], fields: list[str]
) -> None:
    groups = group(read(*results))
    assert [len(each.runs) for each in groups] == sizes
    assert varying(groups) == fields


def test_a_group_sums_up_its_runs() -> None:
    three = LINEAR[2], result(None, seed=1), LINEAR[0]
    (each,) = group(read(*three))
    assert (each.seeds, each.diverged) == ([0, 1, 2], 1)
    assert each.values() == {0: 0.90, 2: 0.91}
    assert each.scores == [90, 91]
    assert (each.mean, each.std) == (90.5, pytest.approx(0.5**0.5))
    (lost,) = group(read(result(None)))
    assert (lost.mean, lost.std, lost.shares) == (None, None, [])


def test_two_different_runs_of_one_seed_are_refused_by_name(tmp_path: Path) -> None:
    for name, one in (("a", EIGEN[0]), ("b", EIGEN[0] | {"test_accuracy": 0.5}), ("c", EIGEN[0])):
        write_run(tmp_path / name, one)
    with pytest.raises(InputError) as caught:
        group(read_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert str(caught.value) == (
        f"{tmp_path / 'a'} and {tmp_path / 'b'} are two different runs of digits with eigen "
        "neurons and seed 0: leave one of them out"
    )
    assert len(group(read_runs([tmp_path / "a", tmp_path / "c"])[0])) == 1


def test_groups_are_compared_on_the_seeds_that_they_share() -> None:
    more = result(0.1, seed=7), result(0.2, seed=8, neuron="eigen")
    (found,) = compare(group(read(*EIGEN, *LINEAR, *more)))
    gaps = [0.02, 0.01, 0.015]
    assert (found.first.first.label, found.second.first.label) == ("linear", "eigen[9]")
    assert found.difference.pairs == 3
    assert found.difference.mean == pytest.approx(statistics.fmean(gaps))
    half = 4.302653 * statistics.stdev(gaps) / 3**0.5
    assert found.difference.half_width == pytest.approx(half, rel=1e-6)


def recipe(one: dict[str, Any], name: str) -> dict[str, Any]:
    return changed(one, name=name) | {"recipe": name}


@pytest.mark.parametrize(
    ("results", "compared"),
    [
        ([EIGEN[0], LINEAR[0], result(0.5, neuron="fan")], ["eigen[9]", "fan"]),
        ([EIGEN[0], result(0.5, neuron="fan"), result(0.5, neuron="glu")], ["fan", "glu"]),
        # On other data; of two recipes; two groups always.
        (
            [LINEAR[0], EIGEN[0], changed(LINEAR[0], dataset="b") | {"dataset": "b"}],
            ["eigen[9]"],
        ),
        ([LINEAR[0], EIGEN[0], recipe(LINEAR[0], "deep")], ["eigen[9]"]),
        ([recipe(EIGEN[0], "deep"), LINEAR[0]], ["deep"]),
        ([LINEAR[0], EIGEN[1]], []),  # no seed in both
    ],
)
def test_which_groups_are_compared(results: list[dict[str, Any]], compared: list[str]) -> None:
    found = compare(group(read(*results)))
    names = [each.second.first.label for each in found]
    if compared == ["deep"]:
        names = [each.second.first.recipe for each in found]
    assert names == compared


def test_an_error_and_an_accuracy_are_not_subtracted() -> None:
    law = {k: v for k, v in EIGEN[0].items() if k != "test_accuracy"} | {"test_rmse": 0.5}
    groups = group(read(LINEAR[0], law))
    assert pair(*groups) is None
    assert compare(groups) == []


def test_runs_on_one_data_set_are_judged_by_one_metric() -> None:
    law = {k: v for k, v in EIGEN[0].items() if k != "test_accuracy"} | {"test_rmse": 0.5}
    other = LINEAR[1] | {"dataset": "other"}
    assert list(by_dataset(read(LINEAR[0], other, EIGEN[0]))) == ["digits", "other"]
    assert list(by_dataset(read(LINEAR[0], law))) == ["digits (accuracy)", "digits (rmse)"]


def test_lines_go_from_linear_on_and_from_small_to_large() -> None:
    results = [
        result(0.9, neuron=neuron, width=width, seed=seed) | {"params": int(1000 * width)}
        for neuron in ("eigen", "linear")
        for width in (2.0, 1.0)
        for seed in (0, 1)
    ]
    found = in_lines(read(*results))
    assert [(each.line, each.first.params, each.network) for each in found] == [
        ("linear", 1000, "digits_cnn width 1"),
        ("linear", 2000, "digits_cnn width 2"),
        ("eigen[9]", 1000, "digits_cnn width 1"),
        ("eigen[9]", 2000, "digits_cnn width 2"),
    ]
    assert all(len(each.runs) == 2 for each in found)


def test_lines_of_one_neuron_are_told_apart_by_their_settings() -> None:
    made = [changed(EIGEN[0], lr=lr, note=None) for lr in (0.1, 0.2)]
    assert [each.line for each in in_lines(read(*made))] == ["eigen[9] lr=0.1", "eigen[9] lr=0.2"]
    long = [changed(one, schedule=f"a very long one of {one['settings']['lr']}") for one in made]
    found = in_lines(read(*long))
    assert [each.line for each in found] == ["eigen[9] (settings 1)", "eigen[9] (settings 2)"]
    assert found[1].differing == "lr=0.2 schedule=a very long one of 0.2"
    assert json.dumps([each.line for each in found])  # plain text
