"""FlatAdam takes torch's steps."""

from __future__ import annotations

import torch

from quadric.sklearn.adam import FlatAdam, flatten


def test_equals_torch_with_a_rate_and_a_penalty_of_each_tensor() -> None:
    torch.manual_seed(1)
    start = {"a": torch.randn(2, 3, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
    rates, penalties = {"a": 0.1, "b": 0.03}, {"a": 0.0, "b": 0.5}

    def spread(values: dict[str, float]) -> torch.Tensor:
        return flatten([torch.full_like(t, values[name]) for name, t in start.items()])

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


def test_views_share_the_flat_tensor() -> None:
    ours = FlatAdam({"a": torch.ones(2, 2)}, torch.ones(4), torch.zeros(4))
    ours.flat.zero_()
    assert ours.parameters["a"].abs().sum() == 0
