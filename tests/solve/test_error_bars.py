"""Weight decay from the data, the level of noise, and error bars."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

from quadric.layers import make_layer
from quadric.solve import LeastSquaresFit, least_squares


def noisy(rows: int, level: float, seed: int, width: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = width * (2 * torch.rand(rows, 2, dtype=torch.float64, generator=generator) - 1)
    y = (2 * x[:, 0]).sin() * x[:, 1] + x[:, 0] ** 2
    return x, y + level * torch.randn(rows, dtype=torch.float64, generator=generator)


def network(neuron: str = "linear", seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before in (2, 16):
        layers += [make_layer(nn.Linear, before, 16, neuron=neuron), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(16, 1)).double()


def test_a_linear_model_has_the_error_bars_of_bayesian_ridge() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, dtype=torch.float64, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y = y + 0.5 * torch.randn(300, dtype=torch.float64, generator=generator)
    fit = least_squares(nn.Linear(3, 1).double(), x, y)
    _, wanted = BayesianRidge().fit(x.numpy(), y.numpy()).predict(x.numpy(), return_std=True)
    # Ours counts the bias among the parameters, theirs does not.
    torch.testing.assert_close(fit.std(x), torch.tensor(wanted), rtol=0.01, atol=0)
    assert fit.effective_parameters is not None
    assert 3 < fit.effective_parameters <= 4


@pytest.mark.parametrize("neuron", ["linear", "shared", "eigen"])
def test_intervals_hold_what_they_promise(neuron: str) -> None:
    x, y = noisy(400, 0.3, 1)
    model = network(neuron)
    fit = least_squares(model, x, y, max_steps=100)
    fresh, targets = noisy(4000, 0.3, 2)
    with torch.no_grad():
        away = (model(fresh)[:, 0] - targets).abs()
    held = float((away < 1.645 * fit.std(fresh)).double().mean())
    assert 0.87 < held < 0.93
    # And the noise is not learned: the truth lies much closer than the targets.
    truth = noisy(4000, 0.0, 2)
    with torch.no_grad():
        assert float((model(truth[0])[:, 0] - truth[1]).square().mean().sqrt()) < 0.12
    assert fit.effective_parameters is not None
    assert 5 < fit.effective_parameters < 100


def fitted(**options: object) -> LeastSquaresFit:
    x, y = noisy(200, 0.1, 3)
    fit: LeastSquaresFit = least_squares(network(), x, y, max_steps=60, **options)  # type: ignore[arg-type]
    return fit


def test_error_bars_grow_outside_of_the_data() -> None:
    fit = fitted()
    inside, outside = noisy(500, 0.0, 4)[0], noisy(500, 0.0, 4, width=4.0)[0]
    assert float(fit.std(outside).mean()) > 2 * float(fit.std(inside).mean())
    mean, total = fit.std(inside, noise=False), fit.std(inside)
    noise = (total.square() - mean.square()).sqrt()
    torch.testing.assert_close(noise, noise[:1].expand(500))
    assert float(noise[0]) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("options", [{"regularization": None}, {"regularization": 0.1}])
def test_error_bars_without_evidence(options: dict[str, object]) -> None:
    fit = fitted(**options)
    std = fit.std(noisy(200, 0.1, 3)[0])
    assert bool((std > 0.05).all())
    assert float(std.median()) < 0.3


def test_early_stopping_takes_the_noise_from_validation() -> None:
    held = noisy(200, 0.1, 5)
    fit = fitted(validation=held, regularization=None)
    assert 0.09 < float(fit.std(held[0]).median()) < 0.2


def test_each_output_has_its_own_noise() -> None:
    x, clean = noisy(300, 0.0, 6)
    generator = torch.Generator().manual_seed(0)
    levels = torch.tensor([0.1, 0.4], dtype=torch.float64)
    noise = torch.randn(300, 2, dtype=torch.float64, generator=generator)
    model = nn.Sequential(nn.Linear(2, 12), nn.SiLU(), nn.Linear(12, 2)).double()
    fit = least_squares(model, x, clean[:, None] + levels * noise, max_steps=60)
    std = fit.std(x)
    assert std.shape == (300, 2)
    torch.testing.assert_close(std.median(0).values, levels, rtol=0.2, atol=0)


def test_error_bars_stay_when_the_model_moves_on() -> None:
    x, y = noisy(100, 0.1, 3)
    model = network()
    fit = least_squares(model, x, y, max_steps=10)
    before = fit.std(x)
    nn.init.zeros_(model[0].weight)
    torch.testing.assert_close(fit.std(x), before)
    assert fit.std(x[:0]).shape == (0,)
