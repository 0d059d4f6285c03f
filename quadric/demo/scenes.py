"""The demo's three scenes: data, networks, training.

In each scene a network of linear neurons and one of eigen neurons have the same widths, the same
first weights (a fresh eigen layer computes what the linear layer computes), the same batches and
the same optimizer. Only the layer class differs: that line is in `Task.network` below.

The settings are the same for both neurons. They were chosen after a few short trials, so that the
whole demo fits into two minutes on two cores and each picture shows its point.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quadric.conversion.convert import convert_
from quadric.counting.cost import cost
from quadric.data import digits, laws
from quadric.optim import param_groups

NEURONS = ("linear", "eigen")
SEEDS = 3
ACTIVATIONS = {"none": nn.Identity, "tanh": nn.Tanh, "ReLU": nn.ReLU}


@dataclass(frozen=True)
class Split:
    """Data to learn from and data to be judged by."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


@dataclass(frozen=True)
class Task:
    """One data set of a scene and the networks that learn it.

    Attributes:
        scene: "plane", "laws" or "digits".
        name: of the data set.
        activation: of the hidden layers, as it is shown.
        load: makes the data from a seed.
        build: makes the network of linear neurons.
        lr: peak of the one-cycle schedule of Adam.
        steps: training steps.
        batch: samples in a step.
        rank: of the eigen neurons.
    """

    scene: str
    name: str
    activation: str
    load: Callable[[int], Split]
    build: Callable[[], nn.Module]
    lr: float
    steps: int
    batch: int
    rank: int

    @property
    def metric(self) -> str:
        """What the networks are judged by.

        It is "accuracy", or for laws "error": root mean square error / standard deviation.
        """
        return "error" if self.scene == "laws" else "accuracy"

    def network(self, neuron: str) -> nn.Module:
        """A fresh network of linear or eigen neurons: the only difference is this conversion."""
        model = self.build()
        if neuron == "eigen":
            convert_(model, rank=self.rank)
        return model


@dataclass
class Outcome:
    """What the networks of one task and one neuron did, one entry per seed.

    Attributes:
        models: the trained networks, in eval mode.
        values: the metric on the test data.
        seconds: processor time of training, which other work on the machine does not change.
    """

    task: Task
    neuron: str
    split: Split
    models: list[nn.Module] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """The sample standard deviation over the seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, for JSON."""
        counted = cost(self.models[0], self.split.test_inputs[:1])
        return {
            "scene": self.task.scene,
            "task": self.task.name,
            "activation": self.task.activation,
            "neuron": self.neuron,
            "rank": self.task.rank if self.neuron == "eigen" else None,
            "params": counted.params,
            "macs": counted.macs,
            "metric": self.task.metric,
            "mean": self.mean,
            "std": self.std,
            "values": self.values,
            "seconds": statistics.fmean(self.seconds),
            "steps": self.task.steps,
        }


# ---------------------------------------------------------------- scene 1: data in the plane


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


def _plane_task(
    points: Callable[[int, torch.Generator], tuple[Tensor, Tensor]],
    name: str,
    activation: str,
    width: int,
    lr: float,
    steps: int,
) -> Task:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, width), ACTIVATIONS[activation](), nn.Linear(width, 2))

    def load(seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        return Split(*points(1000, generator), *points(2000, generator))

    return Task("plane", name, activation, load, build, lr, steps, batch=128, rank=2)


# ---------------------------------------------------------------- scene 2: physical laws


def _law_task(law: str, name: str, inputs: int) -> Task:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)
        )

    def load(seed: int) -> Split:
        table = laws.table(law, train_size=10_000, test_size=2_000, seed=seed)
        scale = table.standardization()
        return Split(
            scale.inputs(table.train_inputs),
            scale.targets(table.train_targets),
            scale.inputs(table.test_inputs),
            scale.targets(table.test_targets),
        )

    return Task("laws", name, "SiLU", load, build, lr=0.03, steps=1200, batch=256, rank=3)


# ---------------------------------------------------------------- scene 3: handwritten digits


def _digits_task(activation: str) -> Task:
    def build() -> nn.Module:
        kind = ACTIVATIONS[activation]
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            kind(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            kind(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def load(seed: int) -> Split:
        # The digits have one split into training and test data, for any seed.
        data = digits.load()
        scale = data.normalization
        return Split(
            scale(data.train_images), data.train_labels, scale(data.test_images), data.test_labels
        )

    return Task("digits", "digits", activation, load, build, lr=0.01, steps=264, batch=64, rank=3)


def all_tasks() -> list[Task]:
    """Lists every task of the demo, in order."""
    return [
        _plane_task(rings, "rings", "none", width=6, lr=0.1, steps=500),
        _plane_task(xor, "XOR", "none", width=6, lr=0.1, steps=500),
        _plane_task(spirals, "spirals", "tanh", width=9, lr=0.03, steps=1000),
        _law_task("lorentz", "Lorentz force", inputs=5),
        _law_task("oscillator", "oscillator energy", inputs=4),
        _digits_task("ReLU"),
        _digits_task("none"),
    ]


# ---------------------------------------------------------------- training


def run_task(
    task: Task, neuron: str, seed: int, seeds: int, on_steps: Callable[[int], None]
) -> Outcome:
    """Trains the networks of one neuron from several seeds and judges them on the test data."""
    outcome = Outcome(task, neuron, task.load(seed))
    for network_seed in range(seed, seed + seeds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed)
            model = task.network(neuron)
        started = time.process_time()
        _train(model, task, outcome.split, network_seed, on_steps)
        outcome.seconds.append(time.process_time() - started)
        outcome.models.append(model.eval())
        outcome.values.append(_judge(model, task, outcome.split))
    return outcome


def _train(
    model: nn.Module, task: Task, split: Split, seed: int, on_steps: Callable[[int], None]
) -> None:
    loss_fn = nn.functional.cross_entropy if task.metric == "accuracy" else nn.functional.mse_loss
    # With Adam, whose step does not depend on the gradient's size, the eigenvalues take the same
    # learning rate as everything else.
    optimizer = torch.optim.Adam(param_groups(model, task.lr, quadratic_lr=task.lr), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.lr, task.steps)
    for index in _batches(len(split.inputs), task.batch, task.steps, seed):
        loss = loss_fn(model(split.inputs[index]), split.targets[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        on_steps(1)


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
def _judge(model: nn.Module, task: Task, split: Split) -> float:
    output = model(split.test_inputs)
    if task.metric == "accuracy":
        return (output.argmax(1) == split.test_targets).double().mean().item()
    return (output - split.test_targets).double().square().mean().sqrt().item()
