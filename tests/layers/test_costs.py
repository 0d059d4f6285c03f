"""Closed forms against a count of what really runs.

The counter below knows nothing of Quadric: it watches every operator of a forward pass, takes a
matrix product or convolution at one MAC for each product, and an elementwise product at one for
each element of its result. The closed form of every neuron must give the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import quadric
from quadric.counting.cost import layer_macs, layer_rule
from quadric.layers import QuadraticLayer, neurons
from quadric.ops import torch_probes

aten = torch.ops.aten


class ProductCounter(TorchDispatchMode):
    """Counts every multiplication of a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = self.elementwise = 0
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet is aten.mm:
            self.matrix += args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
        elif packet is aten.addmm:
            self.matrix += args[1].shape[0] * args[1].shape[1] * args[2].shape[1]
        elif packet is aten.bmm:
            self.matrix += math.prod(args[0].shape) * args[1].shape[2]
        elif packet is aten.convolution:
            x, weight, transposed = args[0], args[1], args[6]
            positions = math.prod((x if transposed else out).shape[2:]) * x.shape[0]
            self.matrix += positions * weight.numel()
        elif packet in (aten.mul, aten.mul_):
            if isinstance(args[1], Tensor):
                self.elementwise += out.numel()
        elif packet is aten.pow:
            self.elementwise += (args[1] - 1) * out.numel()
        elif packet in (aten.div, aten.addcmul, aten.baddbmm, aten.dot, aten.mv, aten.einsum):
            self.unknown.add(str(packet))
        return out


def counted(layer: nn.Module, x: Tensor) -> int:
    # The plain formula, one operator after the other, and not kernels that no counter sees into.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_probes, "MISSING", ["a name of torch"])
        with torch.no_grad(), ProductCounter() as counter:
            layer(x)
    assert counter.unknown == set()
    return counter.matrix + counter.elementwise


KINDS: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (nn.Linear, ()),
    (nn.Conv1d, (9,)),
    (nn.Conv2d, (7, 6)),
    (nn.Conv3d, (5, 4, 3)),
]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "eigen": [{"rank": 1}, {"rank": 3}, {"rank": 9}],
    "shared": [{"rank": 1}, {"rank": 3}, {"rank": 8}],
    "symmetric": [{"rank": 2}],
    "lowrank": [{"rank": 1}, {"rank": 3}],
    "kervolution": [{}, {"p": 2}, {"p": 5, "learnable_c": True}],
    "quadenhancer": [{}, {"shifts": 3}],
    "cross": [{"rank": 1}, {"rank": 4}],
}
ALL = [(name, options) for name in neurons() for options in OPTIONS.get(name, [{}])]
each_neuron = pytest.mark.parametrize(
    ("neuron", "options"), ALL, ids=["-".join([n, *map(str, o.values())]) for n, o in ALL]
)


def grid(kind: type[nn.Module], size: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Arguments of a layer and an input for it: widths, batches, and what convolutions have."""
    if kind is nn.Linear:
        for shape in ((5,), (3, 5), (2, 3, 5)):
            for outputs in (1, 8, 10, 13):
                yield {"in_features": 5, "out_features": outputs}, torch.randn(shape)
        return
    for outputs, batch in ((2, 1), (20, 2)):
        for geometry in (
            {"kernel_size": 1},
            {"kernel_size": 3, "padding": 1, "groups": 2},
            {"kernel_size": 2, "stride": 2, "dilation": 2, "bias": False},
            {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
            {"kernel_size": 2, "padding": "same"},
        ):
            arguments = {"in_channels": 4, "out_channels": outputs, **geometry}
            yield arguments, torch.randn(batch, 4, *size)


# torch itself pads where the two sides differ, and says so.
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("kind", "size"), KINDS, ids=[k.__name__ for k, _ in KINDS])
@each_neuron
def test_closed_form_is_what_runs(
    neuron: str, options: dict[str, Any], kind: type[nn.Module], size: tuple[int, ...]
) -> None:
    rule = neurons()[neuron].with_options(**options)
    for arguments, x in grid(kind, size):
        layer: Any = quadric.make_layer(kind, neuron=neuron, **arguments, **options)
        bias = arguments.get("bias", True)
        outputs = arguments.get("out_channels", arguments.get("out_features"))
        groups = arguments.get("groups", 1)
        n = layer.weight[0].numel() if neuron != "pure" else layer.num_inputs
        params = rule.num_params(n, outputs, groups, bias)
        if neuron == "kervolution" or neuron == "linear" or bias:
            assert params == sum(p.numel() for p in layer.parameters()), arguments
        report = quadric.cost(layer, x)
        assert report.params == sum(p.numel() for p in layer.parameters())
        assert report.macs == counted(layer, x), arguments
        if neuron != "linear":
            assert report.uncounted == []
            linear = quadric.cost(layer_without(layer), x).macs
            assert report.quadratic_macs == report.macs - linear
            used = layer_rule(layer)
            assert used is not None
            assert used.num_params(n, outputs, groups, bias) == params


def layer_without(layer: Any) -> nn.Module:
    """The linear layer of the same geometry."""
    return layer.linear_class(**layer.geometry_of(layer), bias=layer.bias is not None)


@each_neuron
@pytest.mark.parametrize(
    ("kind", "size"),
    [(nn.ConvTranspose1d, (5,)), (nn.ConvTranspose2d, (4, 3)), (nn.ConvTranspose3d, (3, 2, 2))],
    ids=["1d", "2d", "3d"],
)
def test_transposed_convolutions(
    neuron: str, options: dict[str, Any], kind: type[nn.Module], size: tuple[int, ...]
) -> None:
    if not neurons()[neuron].transposable:
        return
    for geometry in ({"stride": 2}, {"padding": 1, "groups": 2}, {"dilation": 2, "bias": False}):
        layer = quadric.make_layer(kind, 4, 10, 3, neuron=neuron, **options, **geometry)
        x = torch.randn(2, 4, *size)
        report = quadric.cost(layer, x)
        assert report.macs == counted(layer, x)
        if neuron != "linear":
            linear = quadric.cost(layer_without(layer), x).macs
            assert report.quadratic_macs == report.macs - linear


@each_neuron
def test_the_table_says_what_the_layers_cost(neuron: str, options: dict[str, Any]) -> None:
    """The formulas that `quadric neurons` prints, with numbers put in for their letters."""
    row = neurons()[neuron]
    rule = row.with_options(**options)
    n, k = 24, options.get("rank", 1)
    values = {"n": n, "k": k, "p": options.get("p", 3), "s": options.get("shifts", 1)}
    outputs = 10 * (k + 1) * k  # whole neurons, whole groups

    def value(text: str) -> float:
        python = text.replace("^", "**").replace("(k+1)n", "(k+1)*n")
        for product in ("2kn", "2k", "2n", "3n"):
            python = python.replace(product, "*".join(product))
        return float(eval(python, {}, values))

    learned = outputs if options.get("learnable_c") else 0
    assert rule.num_params(n, outputs) - learned == pytest.approx(outputs * value(row.params))
    # Fan squares its inputs once for the whole layer, which the table leaves to its note.
    squares = n if neuron == "fan" else 0
    assert rule.num_macs(n, outputs) - squares == pytest.approx(outputs * value(row.macs))


def test_layer_macs_of_the_paper() -> None:
    """One neuron of rank k over n inputs: (k+1)n + 2k MACs, (k+1)n + k parameters."""
    for n, k in ((5, 1), (27, 9), (576, 9)):
        layer = quadric.QuadraticLinear(n, k + 1, bias=False, rank=k)
        assert isinstance(layer, QuadraticLayer)
        rule = layer_rule(layer)
        assert rule is not None
        x = torch.zeros(1, n)
        assert layer_macs(layer, rule, x, layer(x)) == ((k + 1) * n + 2 * k, 2 * k)
        assert quadric.cost(layer, x).params == (k + 1) * n + k
