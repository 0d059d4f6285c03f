"""Small networks as training leaves them: eigenvalues and statistics away from their start."""

from __future__ import annotations

from typing import Any

from torch import nn

import quadric


def trained_(model: nn.Module) -> Any:
    """Random eigenvalues, scales, shifts and statistics; eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.5, 1.5)
        elif isinstance(module, quadric.layers.QuadraticLayer):
            for name, parameter in module.quadratic_parameters().items():
                if "eigenvalues" in name:
                    nn.init.normal_(parameter, std=0.1)
    return model.eval()


def small_cnn(neuron: str = "eigen", **options: Any) -> Any:
    return trained_(quadric.models.create("digits_cnn", neuron=neuron, **options))


def encoder(neuron: str = "eigen", width: int = 16, batch_first: bool = True) -> Any:
    layer = nn.TransformerEncoderLayer(width, 2, 24, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    quadric.convert_(model, neuron=neuron, rank=3)
    return trained_(model)


def quadratic_layers(model: nn.Module) -> list[quadric.layers.QuadraticLayer]:
    return [m for m in model.modules() if isinstance(m, quadric.layers.QuadraticLayer)]
