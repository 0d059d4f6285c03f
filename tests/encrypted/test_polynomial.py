"""Networks as polynomials: the same numbers, and a remedy for each part that is none."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quadric import models
from quadric.encrypted import Square, check, prepare
from quadric.encrypted.polynomial import to_polynomial
from quadric.errors import InputError
from tests.encrypted.networks import convolutional, inputs, perceptron


class Parabola(nn.Module):
    """A user's own activation with parameters: a z^2 + b z + c."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, input: Tensor) -> Tensor:
        return self.scale * input**2 + 0.5 * input - 1


class PerDegree(nn.Module):
    """An activation with parts: a BatchNorm for the linear part and one for the squares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(8), nn.BatchNorm1d(8)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.first(input) + 0.5 * self.second(input**2)
        return out


def with_parts() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), PerDegree(), nn.Linear(8, 2))
    model(inputs())
    return model.eval()


def with_squares() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Square(), nn.Linear(12, 8), Parabola(), nn.Linear(8, 8), Square()).eval()


@pytest.mark.parametrize(
    ("make", "squarings", "depth"),
    [
        *((lambda n=n: perceptron(n), 1, 3) for n in ("eigen", "shared", "square", "bilinear")),
        (lambda: perceptron("square", depth=3), 3, 7),
        (with_squares, 3, 6),
        (with_parts, 1, 3),
        (lambda: nn.Sequential(nn.Linear(12, 4), nn.Identity(), nn.Linear(4, 2)).eval(), 0, 1),
    ],
)
def test_stages_compute_the_network(
    make: Callable[[], nn.Module], squarings: int, depth: int
) -> None:
    model, x = make(), inputs()
    found = to_polynomial(model, x)
    assert (found.problems, found.squarings, found.depth) == ((), squarings, depth)
    torch.testing.assert_close(found.values(x)[-1], model.double()(x.double()))


def test_convolutions_are_matrices() -> None:
    model, x = convolutional(), torch.randn(5, 2, 8, 8)
    found = to_polynomial(model, x)
    assert [tuple(stage.linear.shape) for stage in found.stages] == [(64, 128), (12, 64), (3, 12)]
    torch.testing.assert_close(found.values(x)[-1], model.double()(x.double()))


def test_each_part_that_is_no_polynomial_is_named_with_a_remedy() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(36)
    )
    model.extend([nn.Linear(36, 2), nn.Softmax(1)])
    report = check(model, torch.randn(4, 1, 8, 8))
    assert not report.ok
    assert [p.where for p in report.problems] == ["1", "2", "4", "6"]
    for part, remedy in zip(
        report.problems, ("quadratic layer", "AvgPool2d", "BatchNorm", "client"), strict=True
    ):
        assert remedy in part.remedy
    with pytest.raises(InputError, match=r"1 \(ReLU\).*quadric.convert_"):
        prepare(model, torch.randn(4, 1, 8, 8))


def test_a_gate_with_an_activation_is_refused_by_its_name() -> None:
    (problem,) = check(perceptron("glu"), inputs()).problems
    assert problem.where == "0"
    assert "'bilinear'" in problem.remedy


class Own(nn.Module):
    """A forward of a user's own: gates, shortcuts, parts, functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.fc = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Linear(4, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        gate = self.gate(z.mean((2, 3)))[:, :, None, None]
        first, second = torch.chunk(z * gate, 2, 1)
        y = torch.cat([first * first, second], 1)
        y += z
        return self.fc(F.avg_pool2d(y, 8).flatten(1))


def with_numbers(model: nn.Module, *shape: int) -> nn.Module:
    """Eigenvalues that are not zero, and BatchNorms that have seen data."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "eigenvalues" in name:
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        for _ in range(5):
            model.train()(torch.randn(32, *shape))
    return model.eval()


@pytest.mark.parametrize(
    ("make", "shape", "squarings"),
    [
        (Own, (2, 8, 8), 2),
        (lambda: models.create("cnn5", activation="hermite", width=0.125), (3, 8, 8), 5),
        (lambda: models.create("resnet8", activation="square", width=0.25), (3, 8, 8), 7),
        (
            lambda: models.create("resnet8", "shared", shortcut="B", activation="none", width=0.25),
            (3, 8, 8),
            7,
        ),
    ],
)
def test_shortcuts_and_functions_take_no_level(
    make: Callable[[], nn.Module], shape: tuple[int, ...], squarings: int
) -> None:
    model = with_numbers(make(), *shape)
    found = to_polynomial(model, torch.randn(3, *shape))
    assert (found.problems, found.squarings, found.depth) == ((), squarings, 2 * squarings + 1)
    x = torch.randn(9, *shape)
    right = model.double()(x.double()).detach()
    torch.testing.assert_close(found.values(x)[-1], right, rtol=1e-9, atol=1e-9)


def test_each_number_is_carried_once() -> None:
    """The quadratic part of eigen reads a slice of what the linear part reads."""
    (first, *_) = to_polynomial(perceptron("eigen"), inputs()).stages
    assert len(first.bias) == 8


class Hidden(nn.Module):
    """Computes something that no module sees."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what, self.first, self.second = what, nn.Linear(12, 12), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.what(self.first(x)))


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (F.relu, "relu"),
        (lambda z: z.clamp_(min=0), "clamp_"),
        (lambda z: z * (z > 0), "gt"),
        (lambda z: z if float(z.sum()) > 0 else -z, "sum"),
        (lambda z: z / z.norm(dim=1, keepdim=True), "norm"),
        (lambda z: z - z.mean(0), "mean"),
        (lambda z: torch.as_tensor(z.numpy()) + z, "numpy"),
    ],
)
def test_a_function_that_is_no_polynomial_is_named(
    what: Callable[[Tensor], Tensor], name: str
) -> None:
    problem = check(Hidden(what), inputs()).problems[0]
    assert (problem.where, problem.what) == ("the network", name)


@pytest.mark.parametrize("example", [None, torch.ones(3), torch.ones(0, 12), torch.ones(2, 5)])
def test_examples_must_fit(example: Tensor | None) -> None:
    with pytest.raises(InputError, match=r"example_inputs must be|the last dimension"):
        check(perceptron(), example)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 32, 32)])
def test_values_are_not_too_large(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(shape[0], 16, 3, padding=1), nn.Flatten())
    with pytest.raises(InputError, match=r"at most 8,192 numbers to be encrypted, got 1\d,\d{3}"):
        check(model, torch.randn(2, *shape))


def test_a_check_takes_less_than_a_second() -> None:
    model = models.create("mlp", "square", in_features=484, hidden=(128,), activation="none")
    begin = time.process_time()
    report = check(model, inputs(256, 484), packing="many")
    assert time.process_time() - begin < 1
    assert report.facts["sizes"] == [484, 128, 1]
    assert report.to_dict()["ok"]
    assert "expected error" in str(report)
