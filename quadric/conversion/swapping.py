"""Building the new layer for an old one, and putting all of them into a model at once.

Everything that can fail is done while the model is still as it was: `Swap` is made from finished
layers, and `do` and `undo` only set attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from quadric.conversion.targets import (
    Target,
    is_attention,
    is_transposed_linear,
    naming_layer,
)
from quadric.errors import InputError
from quadric.layers import QuadraticLayer, QuadraticMultiheadAttention, make_layer
from quadric.layers.parabola import Parabola

# Attributes of torch's Transformer modules that switch on paths which read weights without calling
# the layer, and the value that switches them off. The old value is kept under the same name with a
# prefix, for the way back.
_FUSED: dict[type[nn.Module], tuple[str, Any]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
_KEPT = "_quadric_kept_"
_OURS = (QuadraticLayer, QuadraticMultiheadAttention, Parabola)


class Swap:
    """New layers for old ones in a model."""

    def __init__(self, model: nn.Module, built: list[tuple[Target, nn.Module]]) -> None:
        self.model = model
        self.built = built

    def do(self) -> None:
        """Puts every new layer in all the places of its old one."""
        self._place([new for _, new in self.built])

    def undo(self) -> None:
        """Puts the old layers back."""
        self._place([target.module for target, _ in self.built])

    def await_scales_(self) -> None:
        """Lets training set the scale of the eigenvalues of the new layers."""
        for _, new in self.built:
            for layer in new.modules():
                if isinstance(layer, QuadraticLayer):
                    layer.await_scale_()

    def _place(self, modules: list[nn.Module]) -> None:
        for (target, _), module in zip(self.built, modules, strict=True):
            for name in target.names:
                self.model.set_submodule(name, module)
        set_fused_paths(self.model)
        set_adapters(self.model)


def set_fused_paths(model: nn.Module) -> None:
    """Switches torch's fused paths off around quadratic layers, and on again where none are left.

    In eval mode `nn.TransformerEncoderLayer` gives the weights of its layers to one kernel, which
    would leave out the squares without an error.
    """
    for module in model.modules():
        for kind, (attribute, off) in _FUSED.items():
            if isinstance(module, kind):
                inside = any(isinstance(inner, _OURS) for inner in module.modules())
                _keep(module, attribute, off, inside)


def _keep(module: nn.Module, attribute: str, value: Any, wanted: bool) -> None:
    """Gives an attribute a value and keeps the old one, or puts the old one back."""
    kept = _KEPT + attribute
    if wanted:
        if not hasattr(module, kept):
            setattr(module, kept, getattr(module, attribute, value))
        setattr(module, attribute, value)
    elif hasattr(module, kept):
        setattr(module, attribute, getattr(module, kept))
        delattr(module, kept)


def set_adapters(model: nn.Module) -> None:
    """Makes adapters around quadratic layers (peft's LoRA) merge rightly or not at all.

    Merged into the weight, an adapter would be squared, too. That changes nothing only while the
    squares have weight zero.
    """
    for module in model.modules():
        base = module._modules.get("base_layer")
        quadratic = isinstance(base, QuadraticLayer)
        own = vars(module)
        if quadratic and hasattr(module, "merge"):
            own["merge"] = functools.partial(_merge, module)
        elif getattr(own.get("merge"), "func", None) is _merge:
            del own["merge"]
        if hasattr(module, "fan_in_fan_out"):  # the weight of a Conv1D is no longer transposed
            turned = isinstance(base, QuadraticLayer) and base.stored_transposed
            _keep(module, "fan_in_fan_out", False, turned)


def _merge(module: Any, *args: Any, **kwargs: Any) -> Any:
    """The method `merge` of an adapter around a quadratic layer."""
    if not module.base_layer.is_linear():
        raise InputError(
            "an adapter must not be merged into a layer whose squares are in use, got a "
            f"{type(module).__name__} around a {type(module.base_layer).__name__}: keep it apart, "
            "or drop the squares with quadric.revert_(model, project=True)"
        )
    return type(module).merge(module, *args, **kwargs)


def build(model: nn.Module, chosen: Iterable[tuple[Target, Mapping[str, Any]]]) -> Swap:
    """Builds every new layer. The model is as it was until the swap is done."""
    return Swap(model, [(target, build_quadratic(target, options)) for target, options in chosen])


def build_quadratic(target: Target, options: Mapping[str, Any]) -> nn.Module:
    """Builds the quadratic layer for a linear one, with everything the old one carried."""
    module: Any = target.module
    chosen = {key: value for key, value in options.items() if key != "rank" or value is not None}
    with naming_layer(target.name):
        if is_attention(module):
            new: nn.Module = QuadraticMultiheadAttention.from_mha(module, **chosen)
            vars(new)["_origin"] = type(module)
        elif is_transposed_linear(module):
            layer: Any = make_layer(_as_linear(module), **chosen)
            layer.stored_transposed = True
            vars(layer)["_origin"] = type(module)
            new = layer
        else:
            new = make_layer(module, **chosen)
    for name in ("weight", "bias"):
        # A start that draws new parameters keeps frozen ones frozen.
        old, drawn = module._parameters.get(name), new._parameters.get(name)
        if old is not None and drawn is not None and drawn is not old:
            drawn.requires_grad_(old.requires_grad)
    return _carry_over(module, new)


def build_linear(target: Target) -> nn.Module:
    """Builds the linear layer for a quadratic one: the inverse of `build_quadratic`."""
    layer: Any = target.module
    with naming_layer(target.name):
        if isinstance(layer, QuadraticMultiheadAttention):
            return _carry_over(layer, layer.to_mha())
        new: Any = layer.to_linear()
    if hasattr(layer, "_origin"):
        linear = new
        with torch.device("meta"):
            new = layer._origin(linear.out_features, linear.in_features)
        new.weight, new.bias = _transposed(linear.weight), linear.bias
    return _carry_over(layer, new)


def _as_linear(module: nn.Module) -> nn.Linear:
    """A `Conv1D` of transformers as a linear layer, whose weight is a transposed view."""
    own: Any = module
    inputs, outputs = own.weight.shape
    linear = nn.Linear(inputs, outputs, own.bias is not None, device="meta")
    linear.weight, linear.bias = _transposed(own.weight), own.bias
    return linear.train(module.training)


def _transposed(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().T, requires_grad=weight.requires_grad)


# The tables of hooks of every module, and whether its backward hooks are full ones.
_HOOKS = [name for name in vars(nn.Module()) if "hook" in name]

# What describes a layer's neuron; a linear layer has none of it.
_NEURON_ATTRIBUTES = {
    *("rule", "init", "linear_op", "blocks", "awaits_scale", "stored_transposed", "_origin"),
}
# What torch's own layers keep for themselves.
_TORCH_ATTRIBUTES = {"_reversed_padding_repeated_twice", "_qkv_same_embed_dim"}


def _carry_over(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives `new` the hooks of `old` and the attributes that users have set.

    The dictionaries of hooks are the same ones, so that the handles still work.
    """
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name, value in vars(old).items():
        if not (name in _TORCH_ATTRIBUTES or name in _NEURON_ATTRIBUTES or hasattr(new, name)):
            setattr(new, name, value)
    new.training = old.training
    return new
