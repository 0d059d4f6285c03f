"""The demo's three scenes: data, networks, training.

In each scene a network of linear neurons and one of shared neurons have the same widths, the same
first weights (a fresh shared layer computes what the linear layer computes), the same batches and
the same optimizer. Only the layer class differs: that line is in `DemoTask.network` below. The
laws are learned by Adam alone, and by Adam with steps of second order after it.

The settings are the same for both neurons. They were chosen after a few short trials, so that the
whole demo fits into 90 seconds on two cores and each picture shows its point.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quadric.conversion.convert import convert_
from quadric.counting.cost import cost
from quadric.data import digits, laws
from quadric.models.activations import make_activation
from quadric.models.mlp import mlp
from quadric.optim import param_groups
from quadric.solve.door import least_squares
from quadric.solve.levenberg import Progress

NEURONS = ("linear", "shared")
RANK = 3
SEEDS = 3
SECOND_ORDER = 100
"""Steps of Levenberg-Marquardt."""
LENGTH = 50
"""Steps of Adam that take as long as one of them."""


class TrainTest(NamedTuple):
    """Data to learn from and data to be judged by."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


@dataclass(frozen=True)
class DemoTask:
    """One data set of a scene ("plane", "laws" or "digits") and the networks that learn it."""

    scene: str
    name: str
    activation: str  # the function behind the hidden layers, as it is shown
    load: Callable[[int], TrainTest]  # makes the data from a seed
    build: Callable[[], nn.Module]  # makes the network of linear neurons
    lr: float  # the peak of Adam's one-cycle schedule
    steps: int
    batch: int
    second_order: int = 0  # steps of Levenberg-Marquardt after Adam's

    @property
    def metric(self) -> str:
        """What is judged: "accuracy", or "error": root mean square error / standard deviation."""
        return "error" if self.scene == "laws" else "accuracy"

    @property
    def length(self) -> int:
        """How long one training takes, in steps of Adam."""
        return self.steps + LENGTH * self.second_order

    @property
    def solver(self) -> str:
        """How the networks are trained."""
        return "second order" if self.second_order else "Adam"

    def network(self, neuron: str) -> nn.Module:
        """A fresh network of linear or shared neurons: the only difference is this conversion."""
        model = self.build()
        if neuron == "shared":
            convert_(model, neuron="shared", rank=RANK)
        return model


@dataclass
class Trained:
    """The networks of one task and one neuron after training, one entry per seed."""

    task: DemoTask
    neuron: str
    split: TrainTest
    models: list[nn.Module] = field(default_factory=list)
    values: list[float] = field(default_factory=list)  # the metric on the test data
    # Processor time of training, which other work on the machine does not change.
    seconds: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, for JSON."""
        counted = cost(self.models[0], self.split.test_inputs[:1])
        return {
            "scene": self.task.scene,
            "task": self.task.name,
            "activation": self.task.activation,
            "neuron": self.neuron,
            "rank": RANK if self.neuron == "shared" else None,
            "solver": self.task.solver,
            "params": counted.params,
            "macs": counted.macs,
            "metric": self.task.metric,
            "mean": statistics.fmean(self.values),
            "std": statistics.stdev(self.values) if len(self.values) > 1 else math.nan,
            "values": self.values,
            "seconds": statistics.fmean(self.seconds),
            "steps": self.task.steps + self.task.second_order,
        }


def rings(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A ring inside a ring."""
    labels = torch.arange(count) % 2
    radius = 1.0 + labels + 0.15 * torch.randn(count, generator=generator)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def xor(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four quadrants, opposite ones alike, with a gap along the axes."""
    points = 4 * torch.rand(count, 2, generator=generator) - 2
    points = points + 0.1 * points.sign()
    return points, (points.prod(1) > 0).long()


def spirals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two arms of one and a half turns, apart from the center, where they would touch."""
    labels = torch.arange(count) % 2
    angle = 3 * math.pi * (0.05 + 0.95 * torch.rand(count, generator=generator)).sqrt()
    arm = torch.stack([angle.cos(), angle.sin()], 1) * angle.unsqueeze(1) / 4
    noise = 0.07 * torch.randn(count, 2, generator=generator)
    return arm * (1 - 2 * labels).unsqueeze(1) + noise, labels


Points = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def _plane_task(
    points: Points, name: str, activation: str, width: int, lr: float, steps: int
) -> DemoTask:
    def load(seed: int) -> TrainTest:
        generator = torch.Generator().manual_seed(seed)
        return TrainTest(*points(1000, generator), *points(2000, generator))

    build = partial(mlp, 2, 2, (width,), activation)
    return DemoTask("plane", name, activation, load, build, lr, steps, batch=128)


def _law_task(law: str, name: str, inputs: int, second_order: int) -> DemoTask:
    def load(seed: int) -> TrainTest:
        table = laws.table(law, train_size=1_000, test_size=2_000, seed=seed)
        scale = table.standardization()
        train = scale.inputs(table.train_inputs), scale.targets(table.train_targets)
        return TrainTest(*train, scale.inputs(table.test_inputs), scale.targets(table.test_targets))

    build = partial(mlp, inputs, 1, (20, 20), "silu")
    return DemoTask("laws", name, "SiLU", load, build, 0.03, 1200, 64, second_order)


def _digits_task(activation: str) -> DemoTask:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            make_activation(activation.lower()),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            make_activation(activation.lower()),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def load(seed: int) -> TrainTest:
        data = digits.load()  # one split into training and test data, for any seed
        train = data.normalization(data.train_images), data.train_labels
        return TrainTest(*train, data.normalization(data.test_images), data.test_labels)

    return DemoTask("digits", "digits", activation, load, build, lr=0.01, steps=264, batch=64)


def all_tasks() -> list[DemoTask]:
    """Lists every task of the demo, in order."""
    return [
        _plane_task(rings, "rings", "none", width=6, lr=0.1, steps=500),
        _plane_task(xor, "XOR", "none", width=6, lr=0.1, steps=500),
        _plane_task(spirals, "spirals", "tanh", width=9, lr=0.03, steps=1000),
        *(_law_task("lorentz", "Lorentz force", 5, steps) for steps in (0, SECOND_ORDER)),
        *(_law_task("oscillator", "oscillator energy", 4, steps) for steps in (0, SECOND_ORDER)),
        _digits_task("ReLU"),
        _digits_task("none"),
    ]


def run_task(
    task: DemoTask, neuron: str, seed: int, seeds: int, on_steps: Callable[[int], None]
) -> Trained:
    """Trains the networks of one neuron from several seeds and judges them on the test data."""
    trained = Trained(task, neuron, task.load(seed))
    for network_seed in range(seed, seed + seeds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed)
            model = task.network(neuron)
        started = time.process_time()
        _train(model, task, trained.split, network_seed, on_steps)
        if task.second_order:
            _refine(model, task, trained.split, on_steps)
        trained.seconds.append(time.process_time() - started)
        trained.models.append(model.eval())
        trained.values.append(_judge(model, task, trained.split))
    return trained


def _train(
    model: nn.Module, task: DemoTask, split: TrainTest, seed: int, on_steps: Callable[[int], None]
) -> None:
    loss_fn = nn.functional.cross_entropy if task.metric == "accuracy" else nn.functional.mse_loss
    # As in `quadric.train`: networks that start from random weights need no margin.
    optimizer = torch.optim.Adam(param_groups(model, task.lr, 9 * task.lr), fused=True)
    peaks = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, task.steps)
    for index in _batches(len(split.inputs), task.batch, task.steps, seed):
        loss = loss_fn(model(split.inputs[index]), split.targets[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        on_steps(1)


def _refine(
    model: nn.Module, task: DemoTask, split: TrainTest, on_steps: Callable[[int], None]
) -> None:
    done = 0

    def told(now: Progress) -> None:
        nonlocal done
        on_steps(LENGTH * (now.step - done))
        done = now.step

    steps = task.second_order
    least_squares(model, split.inputs, split.targets, max_steps=steps, callback=told)
    on_steps(LENGTH * (steps - done))  # a fit may end early


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Indices of `steps` batches: epoch by epoch in random order, the last short batch left out."""
    generator = torch.Generator().manual_seed(seed)
    per_epoch = count // size
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(count, generator=generator)
        start = step % per_epoch * size
        yield order[start : start + size]


@torch.no_grad()
def _judge(model: nn.Module, task: DemoTask, split: TrainTest) -> float:
    output = model(split.test_inputs)
    if task.metric == "accuracy":
        return (output.argmax(1) == split.test_targets).double().mean().item()
    return (output - split.test_targets).double().square().mean().sqrt().item()
