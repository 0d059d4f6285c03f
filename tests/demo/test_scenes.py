"""The scenes' data, networks and training."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from quadric.demo import scenes
from quadric.layers import QuadraticLayer

TASKS = scenes.all_tasks()


def named(name: str, **changes: float) -> scenes.DemoTask:
    task = next(task for task in TASKS if task.name == name)
    return dataclasses.replace(task, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task", TASKS, ids=lambda task: f"{task.name}-{task.activation}-{task.solver}"
)
def test_networks_differ_in_their_eigenvalues_only(task: scenes.DemoTask) -> None:
    built = {}
    for neuron in scenes.NEURONS:
        torch.manual_seed(3)
        built[neuron] = task.network(neuron).eval()
    linear, shared = built["linear"], built["shared"]
    assert not any(isinstance(module, QuadraticLayer) for module in linear.modules())
    hidden = [module for module in shared.modules() if isinstance(module, QuadraticLayer)]
    assert {layer.rank for layer in hidden} == {scenes.RANK}
    extra = sum(p.numel() for layer in hidden for p in layer.quadratic_parameters().values())
    count = {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}
    assert count["shared"] == count["linear"] + extra
    # The same first weights: with eigenvalues zero it is the same function.
    inputs = task.load(0).test_inputs[:5]
    torch.testing.assert_close(shared(inputs), linear(inputs))


@pytest.mark.parametrize(
    "task", TASKS, ids=lambda task: f"{task.name}-{task.activation}-{task.solver}"
)
def test_train_and_test_data_are_apart_and_follow_the_seed(task: scenes.DemoTask) -> None:
    split, again, other = task.load(5), task.load(5), task.load(6)
    torch.testing.assert_close(split.inputs, again.inputs, rtol=0, atol=0)
    if task.scene != "digits":  # which have one split for everybody, and a few equal pictures
        assert not torch.equal(split.inputs, other.inputs)
        train = {tuple(row) for row in split.inputs.tolist()}
        assert not any(tuple(row) in train for row in split.test_inputs.tolist())
    if task.metric == "error":
        torch.testing.assert_close(split.targets.std(correction=0), torch.tensor(1.0))


def test_shapes_of_the_plane_data() -> None:
    generator = torch.Generator().manual_seed(0)
    points, labels = scenes.rings(2000, generator)
    radius = points.norm(dim=1)
    torch.testing.assert_close(radius[labels == 0].mean().item(), 1.0, rtol=0, atol=0.03)
    torch.testing.assert_close(radius[labels == 1].mean().item(), 2.0, rtol=0, atol=0.03)
    points, labels = scenes.xor(2000, generator)
    assert torch.equal(points[:, 0] * points[:, 1] > 0, labels == 1)
    points, labels = scenes.spirals(2000, generator)
    # The second arm is the first, turned by half a turn.
    for label, sign in ((0, 1), (1, -1)):
        arm = sign * points[labels == label]
        turned = torch.atan2(arm[:, 1], arm[:, 0]) - 4 * arm.norm(dim=1)
        assert (torch.cos(turned) > 0.5).double().mean() > 0.95


def test_one_layer_of_shared_neurons_separates_rings() -> None:
    task = named("rings", steps=150)
    shared = scenes.run_task(task, "shared", 0, 1, lambda steps: None)
    linear = scenes.run_task(task, "linear", 0, 1, lambda steps: None)
    assert shared.values[0] > 0.98
    assert linear.values[0] < 0.7  # no line does better than a little over chance


def test_second_order_lowers_the_error_and_reports_its_steps() -> None:
    reported: list[int] = []
    task = next(task for task in TASKS if task.second_order)
    short = dataclasses.replace(task, steps=100, second_order=15)
    after = scenes.run_task(short, "shared", 0, 1, reported.append)
    before = scenes.run_task(dataclasses.replace(short, second_order=0), "shared", 0, 1, abs)
    assert sum(reported) == short.length
    assert after.values[0] < before.values[0] / 5


def test_runs_repeat_and_report_their_steps() -> None:
    task = named("Lorentz force", steps=23)
    reported: list[int] = []
    state = torch.random.get_rng_state()
    first = scenes.run_task(task, "shared", 1, 2, reported.append)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert reported == [1] * 23 * 2
    assert first.values[0] != first.values[1]
    assert first.values == scenes.run_task(task, "shared", 1, 2, reported.append).values
    assert not any(model.training for model in first.models)


def test_batches_cover_an_epoch_without_repetition() -> None:
    batches = list(scenes._batches(10, 3, 7, seed=0))
    assert [len(batch) for batch in batches] == [3] * 7
    for start in (0, 3):
        assert len(set(torch.cat(batches[start : start + 3]).tolist())) == 9
    assert not torch.equal(torch.cat(batches[:3]), torch.cat(batches[3:6]))
