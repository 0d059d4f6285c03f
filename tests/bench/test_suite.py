"""The table by which the library's speed is judged: which cases it holds, and what is read off."""

from __future__ import annotations

import importlib

import pytest
import torch

from quadric import bench, models
from quadric.bench.cases import BARE_PASS, with_bare_passes
from quadric.bench.suite import memory_summary, rank_summary, turns_summary


def test_all_networks_are_timed_in_every_round():
    cases = bench.suite_cases(("plain",), "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    report = bench.run(cases, repeats=1, memory=False, rounds=2)
    assert report.to_dict()["rounds"] == 2
    sequences = ["transformer, batch 1", "transformer without dropout, batch 1"]
    groups = {"resnet8, batch 2", *sequences, "conv 4x5x5, batch 2"}
    assert {row["group"] for row in report.rows} == groups
    for row in report.rows:
        assert len(row["training_rounds"]) == (0 if row["path"] == "plain-fused" else 2)
        assert len(row["inference_rounds"]) == 2
    lines = bench.summary(report.rows).splitlines()[2:]
    assert [line.split(", batch")[0] for line in lines] == [
        "resnet8",
        "resnet8",
        "resnet8",
        "resnet8",
        "transformer",
        "transformer",
        "transformer without dropout",
        "transformer without dropout",
        "conv 4x5x5",
    ]
    assert lines[1].split("plain-fused")[1].split()[:2] == ["-", "/"]  # inference alone
    assert BARE_PASS in lines[2]
    assert all("plain, recompute" in lines[i] for i in (3, 5, 7))
    assert lines[5].count("/") == 2  # both neurons
    fused = next(line for line in turns_summary(report.rows).splitlines() if "plain-fused" in line)
    assert fused.count("- / ") == 2
    assert "Spread of the ratios over the rounds" in str(report)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_joined_networks_are_added_without_another_linear_one():
    paths = ("plain", "kernels", "compiled")
    cases = bench.suite_cases(paths, "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    images = [case for case in cases if case.group.startswith("resnet8")]
    names = [case.name for case in images]
    assert len(names) == len(set(names))
    joined = [(c.neuron, c.path, c.format) for c in images if c.path.endswith("-joined")]
    expected = [(n, f"{p}-joined", "channels_last") for n in ("eigen", "shared") for p in paths[1:]]
    assert joined == expected


def test_memory_and_ranks_are_summed_up():
    cases = bench.suite_cases(("plain",), "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    rows = bench.run([c for c in cases if c.group.startswith("resnet8")], repeats=1).rows
    ratios = {line.split("|")[2].strip(): line.split("|")[4].strip()
              for line in memory_summary(rows, markdown=True).splitlines()[2:]}  # fmt: skip
    assert ratios["linear"] == "1.000"
    assert float(ratios["shared, recompute"]) < float(ratios["shared"])
    ranks = bench.run(bench.rank_cases((1, 3), shape=(4, 4, 1), path="plain"), repeats=1).rows
    lines = rank_summary(ranks).splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["1", "3"]
    assert lines[0].split()[1] == f"{ranks[1]['training_turns']:.2f}"


def test_a_summary_takes_the_better_format_of_each():
    row = {"group": "net", "neuron": "eigen", "path": "kernels", "dtype": "float32"}
    row |= {"training_own": 1.1, "training_own_rounds": [1.1]}
    row |= {"inference_own": 1.05, "inference_own_rounds": [1.0, 1.1]}
    rows = [
        {**row, "format": "nchw", "training": 1.5, "inference": 1.1}
        | {"training_rounds": [1.5], "inference_rounds": [1.0, 1.2]},
        {**row, "format": "channels_last", "training": 1.2, "inference": 1.4}
        | {"training_rounds": [1.2, 1.3], "inference_rounds": [1.4]},
    ]
    text = bench.summary(rows, markdown=True)
    assert text.splitlines()[2] == ("| net | kernels | 1.20 (1.20-1.30) / 1.10 (1.00-1.20) |  |")
    assert "| net | kernels, both in nchw | 1.10 (1.10-1.10) / 1.05 (1.00-1.10) |  |" in text


def test_a_bare_pass_changes_nothing_but_the_time():
    torch.manual_seed(0)
    model = models.create("resnet8").eval()
    input = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(input)
        found = with_bare_passes(model)(input)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    passes = [m for m in model.modules() if type(m).__name__ == "_BarePass"]
    assert len(passes) == sum(isinstance(m, torch.nn.Conv2d) for m in model.modules())
    assert len(passes) > 5


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_best_of_all_rounds_counts(rounds):
    cases = bench.layer_cases(("eigen",), ((4, 5, 2),), ("plain",), ("nchw",))
    report = bench.run(cases, repeats=1, memory=False, rounds=rounds)
    linear, eigen = report.rows
    assert len(eigen["training_rounds"]) == rounds
    assert eigen["training"] == pytest.approx(
        eigen["training_seconds"] / linear["training_seconds"]
    )
    if rounds == 1:
        assert eigen["training_rounds"] == [eigen["training"]]
        assert eigen["training_turns"] == eigen["training"]


def test_a_machine_that_slows_down_changes_no_ratio_within_a_turn(monkeypatch):
    """Half as fast from the second turn on, and the linear layer is lucky once."""
    cases = bench.layer_cases(("eigen",), ((4, 5, 2),), ("plain",), ("nchw",))
    linear, eigen = (case.name for case in cases)
    seconds = {linear: [0.5, 2.0, 2.0], eigen: [1.2, 2.4, 2.4]}
    module = importlib.import_module("quadric.bench.run")
    monkeypatch.setattr(module, "interleaved", lambda *args: seconds)
    row = bench.run(cases, repeats=3, memory=False).rows[1]
    assert row["training_turns"] == pytest.approx(1.2)
    assert row["training"] == pytest.approx(2.4)
    assert "1.20 / 1.20" in turns_summary([row])
