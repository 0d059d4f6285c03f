"""Losses and metrics against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from quadric.train.tasks import Classification, Regression

CPU = torch.device("cpu")


def test_accuracy_and_top5_are_topks() -> None:
    outputs, targets = torch.randn(200, 12), torch.randint(12, (200,))
    task = Classification(12)
    found = task.metrics(task.sums(outputs, targets))
    best = outputs.topk(5).indices == targets[:, None]
    assert found["accuracy"] == pytest.approx(best[:, 0].float().mean().item())
    assert found["top5"] == pytest.approx(best.any(1).float().mean().item())
    assert found["loss"] == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)


def test_equal_outputs_count_once() -> None:
    task = Classification(3)
    sums = task.sums(torch.zeros(3, 3), torch.tensor([0, 1, 2]))
    assert task.metrics(sums)["accuracy"] == pytest.approx(1 / 3)


def test_outputs_that_are_not_numbers_are_never_right() -> None:
    task = Classification(8)
    outputs = torch.zeros(4, 8)
    outputs[:, 0] = 1
    outputs[1, 3] = math.nan
    found = task.metrics(task.sums(outputs, torch.zeros(4, dtype=torch.int64)))
    assert (found["accuracy"], found["top5"]) == (0.75, 0.75)
    assert math.isnan(found["loss"])


def test_few_classes_have_no_top5() -> None:
    task = Classification(5)
    assert "top5" not in task.metrics(task.sums(torch.randn(4, 5), torch.tensor([0, 1, 2, 3])))


def test_label_smoothing_is_in_the_loss_and_not_in_the_report() -> None:
    outputs, targets = torch.randn(20, 4), torch.randint(4, (20,))
    plain, smooth = Classification(4), Classification(4, label_smoothing=0.2)
    expected = F.cross_entropy(outputs, targets, label_smoothing=0.2)
    torch.testing.assert_close(smooth.loss(outputs, targets), expected)
    assert smooth.loss(outputs, targets) != plain.loss(outputs, targets)
    assert smooth.metrics(smooth.sums(outputs, targets)) == plain.metrics(
        plain.sums(outputs, targets)
    )


def test_sums_of_parts_add_up() -> None:
    outputs, targets = torch.randn(30, 7), torch.randint(7, (30,))
    task = Classification(7)
    total = task.zeros(CPU)
    for part in (slice(0, 11), slice(11, 30)):
        total += task.sums(outputs[part], targets[part])
    torch.testing.assert_close(total, task.sums(outputs, targets))


def test_the_error_of_a_regression_is_in_the_targets_unit() -> None:
    task = Regression(target_std=3.0)
    outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]])
    found = task.metrics(task.sums(outputs, targets))
    assert found["loss"] == pytest.approx(2.5)
    assert found["rmse"] == pytest.approx(3 * math.sqrt(2.5))
    torch.testing.assert_close(task.loss(outputs, targets), torch.tensor(2.5))


def test_one_number_per_sample_is_a_row_of_one() -> None:
    outputs, numbers = torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0], dtype=torch.float64)
    for task in (Regression(), Regression(own_loss=F.mse_loss)):
        loss = task.loss(outputs, numbers)
        torch.testing.assert_close(loss, torch.tensor(2.5))  # of float32, as the outputs are
        assert task.metrics(task.sums(outputs, numbers))["loss"] == pytest.approx(2.5)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 1, 1)])
def test_outputs_that_would_broadcast_are_refused(shape: tuple[int, ...]) -> None:
    outputs, targets = torch.zeros(shape), torch.zeros(2, 1)
    for call in (Regression().loss, Regression().sums):
        with pytest.raises(ValueError, match=r"must give outputs of shape \(2, 1\) .*, got \(2,"):
            call(outputs, targets)
