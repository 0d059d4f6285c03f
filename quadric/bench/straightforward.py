"""Neurons of several maps written down as their formula reads: one call per map, nothing fused.

What a user would write without the library, and so what its layers must not be slower than.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from quadric.zoo.layers import NeuronLayer

_Map = Callable[[Tensor, str], Tensor]


def _qres(run: _Map, x: Tensor, rank: int) -> Tensor:
    first = run(x, "weight")
    return first * run(x, "weight2") + first


def _quadralib(run: _Map, x: Tensor, rank: int) -> Tensor:
    return run(x, "weight1") * run(x, "weight2") + run(x, "weight")


def _fan(run: _Map, x: Tensor, rank: int) -> Tensor:
    return run(x, "weight") * (run(x, "weight2") + 1) + run(x * x, "weight3")


def _lowrank(run: _Map, x: Tensor, rank: int) -> Tensor:
    product = run(x, "q1") * run(x, "q2")
    return product.unflatten(1, (-1, rank)).sum(2) + run(x, "weight")


FORMULAS: Mapping[str, Callable[[_Map, Tensor, int], Tensor]] = {
    "fan": _fan,
    "lowrank": _lowrank,
    "qres": _qres,
    "quadralib": _quadralib,
}


class Straightforward(nn.Module):
    """The formula of a layer without bias, with that layer's own parameters."""

    def __init__(self, layer: NeuronLayer) -> None:
        super().__init__()
        self.layer = layer
        self.formula = FORMULAS[layer.neuron]

    def forward(self, input: Tensor) -> Tensor:
        """Computes the formula."""
        layer = self.layer

        def run(x: Tensor, name: str) -> Tensor:
            return layer.linear_map(x, layer.parameter(name), None)

        return self.formula(run, input, layer.rank or 1)
