"""The table by which the library's speed is judged: which cases it holds, and what is read off."""

from __future__ import annotations

import importlib

import pytest
import torch

from quadric import bench


def test_all_networks_are_timed_in_every_round():
    cases = bench.suite_cases(("plain",), "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    assert len({case.name for case in cases}) == len(cases)
    report = bench.run(cases, repeats=1, memory=False, rounds=2)
    assert report.to_dict()["rounds"] == 2
    for row in report.rows:
        assert len(row["training_rounds"]) == len(row["inference_rounds"]) == 2
    lines = bench.summary(report.rows).splitlines()[2:]
    assert [line.partition("  ")[0] for line in lines] == [
        "resnet8, batch 2",
        "resnet8, batch 2",
        "transformer, batch 1",
        "transformer, batch 1",
        "perceptron, batch 256",
        "helmholtz, 1024 points",
        "conv 4x5x5, batch 2",
    ]
    assert all("plain, recompute" in lines[i] for i in (1, 3))
    assert lines[1].count("/") == 2  # the shared neuron alone
    assert lines[3].count("/") == 4
    assert "spread over rounds" in str(report)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_only_the_image_network_is_compiled():
    paths = ("plain", "kernels", "compiled")
    cases = bench.suite_cases(paths, "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    eigen = [(c.group.split(",")[0], c.path) for c in cases if c.neuron == "eigen"]
    assert list(dict.fromkeys(eigen)) == [
        ("resnet8", "plain"),
        ("resnet8", "kernels"),
        ("resnet8", "compiled"),
        ("transformer", "plain"),
        ("transformer", "kernels"),
        ("perceptron", "plain"),
        ("perceptron", "kernels"),
        ("helmholtz", "plain"),
        ("helmholtz", "kernels"),
        ("conv 4x5x5", "kernels"),
    ]


@pytest.mark.parametrize("group", ["perceptron", "helmholtz"])
def test_steps_of_small_networks(group):
    """One step of Adam changes the weights; the equation's gradients are those of its loss."""
    for case in bench.small_cases(("plain",)):
        if not case.group.startswith(group):
            continue
        before = [p.detach().clone() for p in case.module.parameters()]
        case.training_step()
        gradients = [p.grad for p in case.module.parameters()]
        # Of the last bias second derivatives know nothing, but u itself does.
        assert all(g is not None and bool(g.any()) for g in gradients)
        changed = [
            not torch.equal(p, b) for p, b in zip(case.module.parameters(), before, strict=True)
        ]
        assert all(changed) if group == "perceptron" else not any(changed)
        if group == "helmholtz":
            assert torch.allclose(gradients[-1], _bias_gradient(case), rtol=1e-3)


def _bias_gradient(case):
    """Of the mean of (u_xx + u_yy + 4 u)^2 with respect to the last bias: 8 times the mean."""
    (points,) = case.inputs

    def u(point):
        return case.module(point[None])[0, 0]

    hessians = torch.func.vmap(torch.func.hessian(u))(points.detach())
    residual = hessians.diagonal(dim1=1, dim2=2).sum(1) + 4 * case.module(points)[:, 0]
    return 8 * residual.mean().detach()[None]


def test_recomputing_takes_less_memory():
    cases = bench.suite_cases(("plain",), "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    rows = bench.run([c for c in cases if c.group.startswith("resnet8")], repeats=1).rows
    ratios = {row["neuron"]: row["memory"] for row in rows if row["format"] == "channels_last"}
    assert ratios["linear"] == 1.0
    assert ratios["shared, recompute"] < ratios["shared"]


def test_a_summary_takes_the_better_format_of_each():
    row = {"group": "net", "neuron": "eigen", "path": "kernels", "dtype": "float32"}
    rows = [
        {**row, "format": "nchw", "training": 1.5, "inference": 1.1}
        | {"training_turns": 1.6, "inference_turns": 1.3},
        {**row, "format": "channels_last", "training": 1.2, "inference": 1.4}
        | {"training_turns": 1.25, "inference_turns": 1.5},
    ]
    text = bench.summary(rows, markdown=True)
    assert text.splitlines()[2] == ("| net | kernels | 1.25 / 1.30 (1.20 / 1.10) |  |")


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
    assert "1.20 / 1.20 (2.40 / 2.40)" in bench.summary([row])
