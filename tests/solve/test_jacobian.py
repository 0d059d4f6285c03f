"""The written derivatives against those of torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quadric.layers import make_layer
from quadric.solve.jacobian import (
    AnyModule,
    NetworkStep,
    is_written,
    jacobian,
    outputs_of,
    steps_of,
)
from quadric.solve.unknowns import Unknowns


def stack(
    neuron: str, activation: Callable[[], nn.Module] = nn.SiLU, **options: object
) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 7), (7, 5)):
        layer = make_layer(nn.Linear, before, after, neuron=neuron, **options)
        layers += [layer, activation()]
    model = nn.Sequential(*layers, nn.Linear(5, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def filled(steps: list[NetworkStep], unknowns: Unknowns, x: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = outputs_of(steps, unknowns.split(unknowns.start()), x).shape[1]
    into = torch.full((len(x), outputs, unknowns.count), torch.nan, dtype=torch.float64)
    jacobian(steps, unknowns, unknowns.start(), x, into)
    return into


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + x.flip(-1)


def tied() -> nn.Module:
    model = stack("linear")
    model[0] = nn.Linear(3, 3).double()
    model[2] = nn.Linear(3, 3).double()
    model[2].weight = model[0].weight
    model[4] = nn.Linear(3, 1).double()
    return model


def frozen() -> nn.Module:
    model = stack("shared", rank=4)
    model[0].weight.requires_grad_(False)
    model[2].eigenvalues.requires_grad_(False)
    return model


def scaled() -> nn.Module:
    model = stack("eigen", rank=3)
    for layer in (model[0], model[2]):
        layer.use_scale_(torch.tensor(0.1))
    return model


def hooked() -> nn.Module:
    model = stack("linear")
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


WRITTEN = {
    "linear": lambda: stack("linear", nn.Tanh),
    "without bias": lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.GELU(), nn.Linear(4, 2)),
    "eigen": lambda: stack("eigen", rank=3),
    "shared": lambda: stack("shared", rank=4),
    "square": lambda: stack("square", nn.ReLU),
    "bilinear": lambda: stack("bilinear"),
    "glu": lambda: stack("glu", nn.Identity),
    "glu without bias": lambda: stack("glu", nn.Identity, bias=False),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Softplus()), nn.Linear(4, 1)),
    "frozen": frozen,
    "scaled": scaled,
}
OTHER = {
    "qres": lambda: stack("qres"),
    "normalized": lambda: stack("eigen", rank=2, normalize=True),
    "a module of one's own": lambda: nn.Sequential(nn.Linear(3, 4), Doubled(), nn.Linear(4, 2)),
    "tied": tied,
    "hooked": hooked,
}


@pytest.mark.parametrize("name", [*WRITTEN, *OTHER])
def test_derivatives_are_those_of_torch_func(name: str) -> None:
    model = {**WRITTEN, **OTHER}[name]().double()
    unknowns, x = Unknowns(model), torch.randn(6, 3, dtype=torch.float64)
    steps = steps_of(unknowns)
    assert is_written(steps) == (name in WRITTEN)
    with torch.no_grad():
        outputs = outputs_of(steps, unknowns.split(unknowns.start()), x)
        torch.testing.assert_close(outputs, model(x), atol=1e-12, rtol=1e-12)
    whole = filled([AnyModule("", unknowns.copy)], unknowns, x)
    torch.testing.assert_close(filled(steps, unknowns, x), whole, atol=1e-12, rtol=1e-12)


def test_torch_func_derivatives_are_differences() -> None:
    model = stack("qres")
    unknowns, x = Unknowns(model), torch.randn(4, 3, dtype=torch.float64)
    steps, u = steps_of(unknowns), unknowns.start()
    found = filled(steps, unknowns, x)
    for i in (0, unknowns.count // 2, unknowns.count - 1):
        step = torch.zeros_like(u)
        step[i] = 1e-6
        up, down = (outputs_of(steps, unknowns.split(v), x) for v in (u + step, u - step))
        torch.testing.assert_close(found[..., i], (up - down) / 2e-6, atol=1e-7, rtol=1e-6)


def test_rows_of_any_shape() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    unknowns, x = Unknowns(model), torch.randn(5, 2, 6, dtype=torch.float64)
    steps = steps_of(unknowns, x.dim())
    found = filled(steps, unknowns, x)
    (wanted,) = torch.autograd.grad(model(x)[3, 1], model[0].weight)
    a, b, shape = unknowns.parts["0.weight"]
    torch.testing.assert_close(found[3, 1, a:b].view(shape), wanted)
