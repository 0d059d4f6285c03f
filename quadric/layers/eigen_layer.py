"""What the layers that are built by name for the eigen neuron have besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from quadric.layers.layer import QuadraticLayer
from quadric.support.checks import check_size

Self = TypeVar("Self", bound="EigenLayer")


def arguments_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor was given, from its local names before it has others."""
    return {key: value for key, value in names.items() if key not in ("self", "__class__")}


class EigenLayer(QuadraticLayer):
    """Abstract: a layer of eigen neurons."""

    fixed_neuron = "eigen"

    def __init__(self, *args: Any, rank: int, **options: Any) -> None:
        super().__init__(*args, neuron="eigen", rank=check_size("rank", rank), **options)

    @classmethod
    def from_linear(
        cls: type[Self],
        module: nn.Module,
        rank: int = 9,
        *,
        normalize: bool = False,
        recompute: bool = False,
    ) -> Self:
        """A layer that computes what `module` computes: its eigenvalues are zero.

        Weight and bias are the same parameter objects.

        Args:
            module: the torch layer of this kind.
            rank: the number of features of a neuron.
            normalize: the layer's option `normalize`.
            recompute: the layer's option `recompute`.

        Returns:
            The new layer, in the training mode of `module`.

        Raises:
            InputTypeError: if `module` is another kind of layer.
        """
        options: dict[str, Any] = {"normalize": normalize, "recompute": recompute}
        return cls.taken_over(module, "eigen", rank=rank, **options)
