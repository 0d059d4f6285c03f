"""FlatAdam takes torch's steps."""

from __future__ import annotations

import torch

from quadric.tables.adam import FlatAdam, flatten


def test_equals_torch_with_a_rate_and_a_penalty_of_each_tensor() -> None:
    torch.manual_seed(1)
    start = {
        "a": torch.randn(2, 3, dtype=torch.float64),
        "b": torch.randn(2, 4, dtype=torch.float64),
    }
    rates, penalties = {"a": 0.1, "b": 0.03}, {"a": 0.0, "b": 0.5}

    def spread(values: dict[str, float]) -> torch.Tensor:
        return flatten({name: torch.full_like(t, values[name]) for name, t in start.items()})

    ours = FlatAdam(start, spread(rates), spread(penalties))
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    theirs = torch.optim.Adam(
        [{"params": [p], "lr": rates[n], "weight_decay": penalties[n]} for n, p in leaves.items()]
    )
    for _ in range(20):
        for name, leaf in leaves.items():
            gradient = torch.randn_like(leaf)
            leaf.grad = gradient.clone()
            ours.gradients[name].copy_(gradient)
        theirs.step()
        ours.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(ours.parameters[name], leaf.detach(), rtol=1e-10, atol=1e-12)


def test_a_schedule_multiplies_the_rates() -> None:
    start = {"a": torch.randn(1, 3, dtype=torch.float64)}
    ours = FlatAdam(start, torch.full((1, 3), 0.1), torch.zeros(1, 3))
    leaf = start["a"].clone().requires_grad_()
    theirs = torch.optim.Adam([leaf], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(theirs, lambda step: 1 / (step + 1))
    for step in range(5):
        leaf.grad = torch.randn_like(leaf)
        ours.gradients["a"].copy_(leaf.grad)
        theirs.step()
        schedule.step()
        ours.step(1 / (step + 1))
    torch.testing.assert_close(ours.parameters["a"], leaf.detach(), rtol=1e-6, atol=0)


def test_views_share_the_flat_tensor() -> None:
    ours = FlatAdam({"a": torch.ones(2, 2)}, torch.ones(2, 2), torch.zeros(2, 2))
    ours.flat.zero_()
    assert ours.parameters["a"].abs().sum() == 0


def test_networks_that_stay_go_on_as_before() -> None:
    start = {"a": torch.randn(3, 2), "b": torch.randn(3, 1, 2)}
    ours, alone = (
        FlatAdam({name: t[rows] for name, t in start.items()}, torch.ones(n, 4), torch.ones(n, 4))
        for rows, n in ((slice(None), 3), (slice(2, 3), 1))
    )
    for step in range(3):
        if step == 1:
            ours.keep(torch.tensor([0, 2]))
        for optimizer in (ours, alone):
            for name, gradient in optimizer.gradients.items():
                gradient.copy_(start[name][-1])
            optimizer.step()
    for name, parameter in alone.parameters.items():
        torch.testing.assert_close(ours.parameters[name][1:], parameter)
