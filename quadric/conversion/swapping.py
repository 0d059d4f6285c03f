"""Building the new layer for an old one, and putting all of them into a model at once.

Everything that can fail is done while the model is still as it was: `Swap` is made from finished
layers, and `do` and `undo` only set attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quadric.attention import QuadraticMultiheadAttention
from quadric.conversion.targets import Target, is_attention, is_transposed_linear
from quadric.errors import InputError
from quadric.nn import QuadraticLayer
from quadric.zoo import make_layer

QUADRATIC = (QuadraticLayer, QuadraticMultiheadAttention)

# Attributes of torch's Transformer modules that switch on paths which read weights behind a layer's
# back, and the value that switches them off. The old value is kept under the same name with a
# prefix, for the way back.
_FUSED: dict[type[nn.Module], tuple[str, Any]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
_KEPT = "_quadric_kept_"


class Swap:
    """New layers for old ones in a model."""

    def __init__(self, model: nn.Module, built: list[tuple[Target, nn.Module]]) -> None:
        self.model = model
        self.built = built

    def do(self) -> None:
        """Puts every new layer in all the places of its old one."""
        for target, new in self.built:
            for parent, key in target.places:
                parent._modules[key] = new
        set_fused_paths(self.model)

    def undo(self) -> None:
        """Puts the old layers back."""
        for target, _ in self.built:
            for parent, key in target.places:
                parent._modules[key] = target.module
        set_fused_paths(self.model)


def set_fused_paths(model: nn.Module) -> None:
    """Switches torch's fused paths off around quadratic layers, and on again where none are left.

    In eval mode `nn.TransformerEncoderLayer` hands the weights of its layers to one kernel, which
    would pass the squares by without a word.
    """
    for module in model.modules():
        for kind, (attribute, off) in _FUSED.items():
            if not isinstance(module, kind):
                continue
            kept = _KEPT + attribute
            if any(isinstance(inner, QUADRATIC) for inner in module.modules()):
                if not hasattr(module, kept):
                    setattr(module, kept, getattr(module, attribute, off))
                setattr(module, attribute, off)
            elif hasattr(module, kept):
                setattr(module, attribute, getattr(module, kept))
                delattr(module, kept)


def build_quadratic(target: Target, options: Mapping[str, Any]) -> nn.Module:
    """The quadratic layer for a linear one, with everything the old one carried.

    Args:
        target: the old layer.
        options: `neuron`, `rank`, `init` and the neuron's further options.
    """
    module = target.module
    chosen = {key: value for key, value in options.items() if key != "rank" or value is not None}
    try:
        if is_attention(module):
            attention: Any = module
            new: nn.Module = QuadraticMultiheadAttention.from_mha(attention, **chosen)
            vars(new)["_origin"] = type(module)
        elif is_transposed_linear(module):
            new = make_layer(_as_linear(module), **chosen)
            vars(new)["transposed_checkpoint"], vars(new)["_origin"] = True, type(module)
        else:
            new = make_layer(module, **chosen)
    except ValueError as error:
        raise InputError(
            f"{error} (layer {target.name!r}); or leave the layer linear with "
            f"exclude=[{target.name!r}]"
        ) from None
    for name in ("weight", "bias"):
        # A start that draws new parameters keeps frozen ones frozen.
        old, drawn = module._parameters.get(name), new._parameters.get(name)
        if old is not None and drawn is not None and drawn is not old:
            drawn.requires_grad_(old.requires_grad)
    _carry_over(module, new)
    return new


def build_linear(target: Target) -> nn.Module:
    """The linear layer for a quadratic one: the way back."""
    layer = target.module
    try:
        if isinstance(layer, QuadraticMultiheadAttention):
            return _carry_over(layer, layer.to_mha())
        assert isinstance(layer, QuadraticLayer)
        new = layer.to_linear()
    except ValueError as error:
        raise InputError(f"{error} (layer {target.name!r})") from None
    origin = getattr(layer, "_origin", None)
    if origin is not None:
        linear: Any = new
        with torch.device("meta"):
            transposed = origin(linear.out_features, linear.in_features)
        transposed.weight = _transposed(linear.weight)
        transposed.bias = linear.bias
        new = transposed
    return _carry_over(layer, new)


def _as_linear(module: nn.Module) -> nn.Linear:
    """transformers' Conv1D as a linear layer; its weight is the transposed view, not a copy."""
    own: Any = module
    weight, bias = own.weight, own.bias
    linear = nn.Linear(weight.shape[0], weight.shape[1], bias is not None, device="meta")
    linear.weight = _transposed(weight)
    if bias is not None:
        linear.bias = bias
    return linear.train(module.training)


def _transposed(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().T, requires_grad=weight.requires_grad)


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

# What describes a layer's neuron; a linear layer has none of it.
_NEURON_ATTRIBUTES = {"neuron", "rank", "rule", "init", "normalize", "eigenvalue_init"}
_NEURON_ATTRIBUTES |= {"recompute", "transposed_checkpoint", "_origin"}
# What torch's own layers keep for themselves.
_TORCH_ATTRIBUTES = {"_reversed_padding_repeated_twice", "_qkv_same_embed_dim"}


def _carry_over(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives `new` the hooks of `old` (the same dictionaries, so that their handles still work) and
    the attributes that users have set."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name, value in vars(old).items():
        if not (name in _TORCH_ATTRIBUTES or name in _NEURON_ATTRIBUTES or hasattr(new, name)):
            setattr(new, name, value)
    new.training = old.training
    return new
