"""Parameters: safe by the standard's table, precise enough, and what the simulation says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quadric.encrypted import check, prepare
from quadric.encrypted.parameters import STANDARD
from quadric.errors import InputError
from tests.encrypted.networks import inputs, perceptron


@pytest.mark.parametrize("packing", ["one", "many"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("security", [128, 192])
def test_no_plan_is_weaker_than_the_table(packing: str, depth: int, security: int) -> None:
    model = perceptron(depth=depth)
    plan = prepare(model, inputs(), packing=packing, security=security, tolerance=0.1).plan
    assert sum(plan.bits) <= STANDARD[security][plan.ring]
    assert max(plan.bits) <= 60
    assert plan.needs_keys == (packing == "one" or depth > 1)
    assert all(step & (step - 1) == 0 for step in plan.steps)  # few keys, however large


def test_less_than_the_standard_is_refused() -> None:
    for security in (80, 0, "128"):
        with pytest.raises(InputError, match="128, 192 or 256 bits by the standard, got"):
            prepare(perceptron(), inputs(), security=security)  # type: ignore[arg-type]


@pytest.mark.parametrize("tolerance", ["a", 0, -1.0, float("nan"), True])
def test_a_tolerance_is_a_number(tolerance: object) -> None:
    with pytest.raises(InputError, match="tolerance must be a number > 0"):
        prepare(perceptron(), inputs(), tolerance=tolerance)  # type: ignore[arg-type]


def test_a_network_that_is_a_constant_is_refused() -> None:
    model = perceptron()
    nn.init.zeros_(model[-1].weight)
    with pytest.raises(InputError, match="must depend on the inputs"):
        prepare(model, inputs())


def test_scales_are_in_the_weights() -> None:
    model, x = perceptron(depth=2), 50 * inputs()
    prepared = prepare(model, x, tolerance=0.1)
    values = prepared.polynomial.values(x.double() / prepared.plan.input_range)
    assert all(float(value.abs().max()) <= 1 + 1e-9 for value in values)
    assert [float(value.abs().max()) for value in values] == pytest.approx([1] * 4)
    scaled = values[-1] * prepared.plan.output_range
    torch.testing.assert_close(scaled, model.double()(x.double()))


def test_the_expected_error_says_which_ring() -> None:
    coarse = prepare(perceptron(), inputs(), packing="many", tolerance=0.5)
    fine = prepare(perceptron(), inputs(), packing="many", tolerance=1e-4)
    assert coarse.plan.ring < fine.plan.ring
    assert fine.error < 1e-4 * fine.ranges[-1] < coarse.error
    with pytest.raises(InputError, match=r"error must be at most 1e-12 .*raise tolerance"):
        prepare(perceptron(), inputs(), tolerance=1e-12)


def test_too_deep_a_network_is_refused() -> None:
    with pytest.raises(InputError, match="got 30 squares in a row"):
        check(perceptron("square", depth=30), inputs())


def test_data_must_be_numbers_of_the_right_shape() -> None:
    with pytest.raises(InputError, match=r"data must be a batch of inputs of shape \(12,\)"):
        check(perceptron(), inputs(), torch.ones(3, 5))
    broken = inputs()
    broken[3, 4] = float("nan")
    with pytest.raises(InputError, match="must be finite, got"):
        prepare(nn.Sequential(nn.Linear(12, 2)), broken)
    with pytest.raises(InputError, match='packing must be "one" or "many"'):
        prepare(perceptron(), inputs(), packing="few")
