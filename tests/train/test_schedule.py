"""Schedules against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from quadric.train.schedule import make_schedule


def rates(make: object, steps: int) -> list[float]:
    """What a scheduler of torch makes of the rate 1."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)  # type: ignore[operator]
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("steps", "epochs"), [(10, 7), (3, 4), (40, 12)])
def test_onecycle_is_torchs(steps: int, epochs: int) -> None:
    ours = make_schedule("onecycle", steps, epochs)
    theirs = rates(
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=steps * epochs, cycle_momentum=False),
        steps * epochs,
    )
    assert [ours(i) for i in range(steps * epochs)] == pytest.approx(theirs, rel=1e-9)


def test_step_is_torchs() -> None:
    ours = make_schedule("step", 5, 12, milestones=[4, 9], gamma=0.3)
    theirs = rates(lambda o: lr_scheduler.MultiStepLR(o, [20, 45], 0.3), 60)
    assert [ours(i) for i in range(60)] == pytest.approx(theirs)
    assert (ours(19), ours(20)) == (1.0, 0.3)


def test_cosine_is_torchs() -> None:
    ours = make_schedule("cosine", 6, 5)
    theirs = rates(lambda o: lr_scheduler.CosineAnnealingLR(o, 30), 30)
    assert [ours(i) for i in range(30)] == pytest.approx(theirs)


def test_warmup_rises_to_the_schedule() -> None:
    ours = make_schedule("constant", 4, 3, warmup=2.0)
    assert [ours(i) for i in range(12)] == pytest.approx([(i + 1) / 8 for i in range(8)] + [1] * 4)
    # One-cycle rises by itself.
    plain, warm = (make_schedule("onecycle", 4, 3, warmup=w) for w in (0.0, 2.0))
    assert [plain(i) for i in range(12)] == [warm(i) for i in range(12)]


@pytest.mark.parametrize("kind", ["constant", "step", "cosine", "onecycle"])
@pytest.mark.parametrize("total", [1, 2, 3])
def test_very_short_runs_have_finite_rates(kind: str, total: int) -> None:
    ours = make_schedule(kind, 1, total, milestones=[1])
    # Lightning asks for the rate after the last step too.
    assert all(0 <= ours(i) <= 1 for i in range(total + 1))


def test_inverse_sqrt_is_that_of_vaswani_et_al() -> None:
    factor = make_schedule("inverse_sqrt", 10, 5, warmup=3.0, warmup_steps=4000)
    peak = 512**-0.5 * 4000**-0.5
    for step in (1, 100, 3999, 4000, 4001, 100_000):  # counted from 1, as in the paper
        rate = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert peak * factor(step - 1) == pytest.approx(rate)
