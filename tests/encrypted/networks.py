"""Small polynomial networks with weights that are not those of a start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quadric.layers import make_layer


def inputs(count: int = 64, size: int = 12) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(1))


def perceptron(neuron: str = "shared", depth: int = 1, size: int = 12) -> nn.Sequential:
    """Quadratic layers with BatchNorm that has seen data, and a linear head."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [make_layer(nn.Linear(size if i == 0 else 8, 8), neuron), nn.BatchNorm1d(8)]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for _ in range(20):
            model(2 * inputs(200, size))
    return model.eval()


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        make_layer(nn.Conv2d(2, 4, 3, stride=2, padding=1), "eigen", rank=1),
        nn.BatchNorm2d(4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        make_layer(nn.Linear(16, 6), "bilinear"),
        nn.Linear(6, 3),
    )
    with torch.no_grad():
        model[0].eigenvalues.normal_()
        model(torch.randn(100, 2, 8, 8))
    return model.eval()
