"""Turning a quadratic network back into a linear one."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from quadric.conversion.pretrained import note_layers
from quadric.conversion.selection import some
from quadric.conversion.swapping import Swap, build_linear
from quadric.conversion.targets import collect
from quadric.errors import InputError
from quadric.layers import QuadraticLayer, QuadraticMultiheadAttention, get_neuron
from quadric.support.modules import check_model


def revert_(model: nn.Module, project: bool = False) -> list[str]:
    """Makes a quadratic model linear again, in place: the inverse of `convert_`.

    Layers whose squares have weight zero become the torch layers they were, with the same parameter
    objects. A layer with squares in use is refused or, on request, loses them. An error leaves
    the model as it was.

    Args:
        model: a model with quadratic layers.
        project: drop squares that are in use. The model then computes another function.

    Returns:
        The names of the layers that were reverted.

    Raises:
        InputError: if there is nothing to revert, or a layer cannot become linear.
        InputTypeError: if `model` is not a module.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> names = quadric.convert_(model).names
        >>> revert_(model) == names, type(model[0]).__name__
        (True, 'Linear')
    """
    check_model(model)
    if _is_reverted(model):
        raise InputError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            "replaced in place: use its to_linear (or to_mha) method"
        )
    layers = collect(model, _is_reverted)
    # An attention is reverted as a whole, not its projections.
    inside = {id(m) for target in layers for m in list(target.module.modules())[1:]}
    targets = [target for target in layers if id(target.module) not in inside]
    if not targets:
        raise InputError("the model must have quadratic layers to revert, got none: nothing to do")
    used = []
    for target in targets:
        for name, layer in target.module.named_modules(prefix=target.name):
            if isinstance(layer, QuadraticLayer):
                _check_layer(name, layer)
                used += [] if layer.is_linear() else [name]
    if used and not project:
        raise InputError(
            f"the squares must have weight zero to be reverted without loss, but {len(used)} "
            f"layers use theirs ({some(used, 5)}): give project=True to drop them"
        )
    Swap(model, [(target, build_linear(target)) for target in targets]).do()
    note_layers(model)
    return [target.name for target in targets]


def _is_reverted(module: nn.Module) -> bool:
    """Whether a module is a quadratic layer, or an attention that the converter put in."""
    converted = isinstance(module, QuadraticMultiheadAttention) and hasattr(module, "_origin")
    return converted or isinstance(module, QuadraticLayer)


def _check_layer(name: str, layer: QuadraticLayer) -> None:
    if parametrize.is_parametrized(layer):
        raise InputError(
            f"the parameters of a layer must be plain to revert it, got a parametrization in "
            f"{name!r}: remove it with torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if not get_neuron(layer.neuron).can_be_linear:
        raise InputError(
            f"the layer {name!r} must have a linear part to be reverted, but a {layer.neuron} "
            "neuron has none: build a new torch layer in its place"
        )
