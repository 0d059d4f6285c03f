"""Networks to be converted: small ones of every kind, and some that are awkward on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from quadric import models
from quadric.layers import QuadraticConv2d, QuadraticLayer, QuadraticLinear


class UNet(nn.Module):
    """Two levels, transposed convolution on the way up, in-place activations, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(
            nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(inplace=True)
        )
        self.down2 = nn.Sequential(
            nn.Conv2d(10, 20, 3, stride=2, padding=1), nn.LeakyReLU(0.1, inplace=True)
        )
        self.up = nn.ConvTranspose2d(20, 10, 2, stride=2)
        self.merge = nn.Sequential(nn.Conv2d(20, 12, 3, padding=1), nn.ReLU(inplace=True))
        self.out = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(first)
        return self.out(self.merge(torch.cat([first, self.up(second, output_size=first.shape)], 1)))


class Shared(nn.Module):
    """A layer with three names, one used twice, a container with two names, two tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(10, 10)
        self.b = self.a
        self.block = nn.Sequential(nn.Linear(10, 10), nn.Tanh())
        self.again = self.block
        self.tables = nn.ModuleDict({"x": self.a, "y": nn.Linear(10, 10, bias=False)})
        self.embed = nn.Embedding(7, 10)
        self.decode = nn.Linear(10, 7, bias=False)
        self.decode.weight = self.embed.weight
        self.absent = None
        self.fc = nn.Linear(7, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.again(self.block(self.b(torch.tanh(self.a(self.embed(ids))))))
        x = x + self.tables["y"](x) + self.tables["x"](x)
        return self.fc(self.decode(x))


class Scaled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class PlainSubclass(nn.Linear):
    """A subclass that computes the same."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        nn.init.ones_(self.bias)


class Mixed(nn.Module):
    """Parametrized, grouped, depthwise, subclassed and hidden layers, hooks, frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Conv1d(4, 12, 3, padding=1))
        self.depthwise = nn.Conv1d(12, 12, 3, padding=1, groups=12)
        self.grouped = nn.Conv1d(12, 24, 1, groups=2)
        self.tiny_groups = nn.Conv1d(24, 24, 1, groups=6)
        self.scaled = Scaled(24, 24)
        self.plain = PlainSubclass(24, 20)
        self.frozen = nn.Linear(20, 20).requires_grad_(False)
        self.hidden = nn.Linear(20, 20)
        self.steps = [self.frozen, self.hidden]  # a plain list: nobody can replace its entries
        self.register_forward_hook(lambda module, args, output: output + 1)
        self.plain.register_forward_hook(lambda module, args, output: output * 2)
        self.last = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(self.depthwise(self.normed(x)))
        x = torch.relu_(self.tiny_groups(x)).mean(-1)
        x = self.plain(self.scaled(x))
        for step in self.steps:
            x = torch.sin(step(x))
        return self.last(x)


class ReadsWeights(nn.Module):
    """An encoder of torch, whose eval path reads weights, between two layers; masks are given."""

    def __init__(self, activation: str = "relu", norm_first: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            20, 4, 30, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
        )
        self.proj = nn.Linear(6, 20)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(self.proj(x), src_key_padding_mask=padding))


def transformer() -> nn.Module:
    return nn.Transformer(20, 4, 1, 1, 30, dropout=0.0, batch_first=True)


def vector_inputs(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape),)


# name -> (factory, inputs, names that are converted by default, or None for "all but the head")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "resnet8": (lambda: models.build("resnet8"), vector_inputs(2, 3, 32, 32)),
    "resnet8 with 1x1 shortcuts": (
        lambda: models.build("resnet8", shortcut="B"),
        vector_inputs(2, 3, 32, 32),
    ),
    "resnet18": (lambda: models.build("resnet18", width=0.25), vector_inputs(2, 3, 64, 64)),
    "digits_cnn": (lambda: models.build("digits_cnn"), vector_inputs(3, 1, 8, 8)),
    "mlp": (lambda: models.build("mlp"), vector_inputs(5, 8)),
    "unet": (UNet, vector_inputs(2, 1, 8, 8)),
    "transformer": (transformer, lambda: (torch.randn(2, 6, 20), torch.randn(2, 5, 20))),
    "encoder": (ReadsWeights, vector_inputs(2, 5, 6)),
    "encoder, norm first, gelu": (lambda: ReadsWeights("gelu", True), vector_inputs(2, 5, 6)),
    "shared": (Shared, lambda: (torch.randint(0, 7, (3, 4)),)),
    "mixed": (Mixed, vector_inputs(2, 4, 9)),
}


def quadratic_layers(model: nn.Module) -> dict[str, QuadraticLayer]:
    """The quadratic layers by their first name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, QuadraticLayer)}


def curve_(model: nn.Module, scale: float = 0.1) -> nn.Module:
    """Gives every quadratic parameter some value, so that the squares are in use."""
    for layer in quadratic_layers(model).values():
        for parameter in layer.quadratic_parameters().values():
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter), alpha=scale)
    return model


def snapshot(model: nn.Module) -> list[Any]:
    """Everything by which a change to a model would be seen: modules, tensors, values, flags."""
    modules = [(n, id(m), m.training) for n, m in model.named_modules(remove_duplicate=False)]
    tensors = [
        (name, id(t), t.requires_grad, t._version, t.detach().clone())
        for named in (model.named_parameters, model.named_buffers)
        for name, t in named(remove_duplicate=False)
    ]
    fused = [
        (getattr(m, "activation_relu_or_gelu", None), getattr(m, "use_nested_tensor", None))
        for m in model.modules()
    ]
    return [modules, tensors, fused]


def assert_untouched(model: nn.Module, before: list[Any]) -> None:
    """Raises if a model is not what it was when the snapshot was taken."""
    modules, tensors, fused = snapshot(model)
    assert modules == before[0]
    assert fused == before[2]
    assert [t[:-1] for t in tensors] == [t[:-1] for t in before[1]]
    for now, then in zip(tensors, before[1], strict=True):
        assert now[-1].is_meta or torch.equal(now[-1], then[-1]), now[0]


def eigen_net() -> nn.Sequential:
    """A convolution and a linear layer of eigen neurons, norms, and a linear head, for `images`."""
    return nn.Sequential(
        QuadraticConv2d(1, 7, 3, rank=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Flatten(),
        QuadraticLinear(28, 6, rank=3),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    )


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 1, 4, 4)
