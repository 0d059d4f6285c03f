"""How transformers makes layers quadratic before it loads their weights; imports transformers.

It is registered as a method of quantization: the public way for a library to change the layers of a
model between its construction and the loading of its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from quadric.conversion.description import LayerDescription
from quadric.conversion.planning import plan_layers
from quadric.errors import InputError
from quadric.layers import QuadraticLayer, neurons


@register_quantization_config("quadric")
class QuadricConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The entry of a config: its quadratic layers by name, as the header of `quadric.save`."""

    def __init__(self, layers: Mapping[str, Mapping[str, Any]], **others: Any) -> None:
        self.quant_method: Any = "quadric"
        self.layers = {name: dict(entry) for name, entry in layers.items()}

    def get(self, key: str, default: Any = None) -> Any:
        """As a mapping: transformers reads both forms."""
        return self.to_dict().get(key, default)


@register_quantizer("quadric")
class QuadricLayers(HfQuantizer):  # type: ignore[misc]
    """Converts a plain model, and leaves an ordinary one behind after its weights are loaded."""

    _transposed: Sequence[Any] = ()

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Iterable[str] | None = None, **others: Any
    ) -> None:
        keys = _keys(checkpoint_files)
        added = {f".{key}" for row in neurons().values() for key in row.quadratic}
        if keys is not None and not any(key.endswith(tuple(added)) for key in keys):
            return  # a plain model that was built with the config of a converted one
        noted: Any = self.quantization_config
        names = _names_in(model, noted.layers)
        layers = {name: LayerDescription(**entry) for name, entry in names.items()}
        swap = plan_layers(model, {name: layer.plan() for name, layer in layers.items()})
        swap.do()
        if keys is None or any(key.endswith(".eigenvalue_scale") for key in keys):
            swap.await_scales_()
        # transformers puts the tensors of the checkpoint into the layers as they are.
        self._transposed = [new for _, new in swap.built if getattr(new, "stored_transposed", 0)]
        for layer in self._transposed:
            _transpose_(layer, False)

    def _process_model_after_weight_loading(self, model: Any, **others: Any) -> None:
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        model.config.quantization_config = self.quantization_config
        for layer in self._transposed:
            _transpose_(layer, True)
        for layer in model.modules():
            if isinstance(layer, QuadraticLayer) and layer.eigenvalue_scale is not None:
                layer.awaits_scale = bool(layer.eigenvalue_scale == 1)

    def is_serializable(self, *arguments: Any) -> bool:
        """Whether `save_pretrained` may write the model."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether the Trainer may train the model."""
        return True


def _transpose_(layer: Any, stored: bool) -> None:
    old = layer.weight
    layer.weight = nn.Parameter(old.detach().T, requires_grad=old.requires_grad)
    layer.stored_transposed = stored


def _keys(files: Iterable[str] | None) -> set[str] | None:
    """The names of the tensors of a checkpoint; None if it is not of safetensors files."""
    if files is None or any(Path(file).suffix != ".safetensors" for file in files):
        return None
    keys: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            keys.update(tensors.keys())
    return keys


def _names_in(model: Any, layers: Mapping[str, Any]) -> dict[str, Any]:
    """The layers under the names that they have in this class: with another head, or without."""
    prefix = model.base_model_prefix + "."
    have = {name for name, _ in model.named_modules()}
    names = {}
    for name, entry in layers.items():
        for candidate in (name, prefix + name, name.removeprefix(prefix)):
            if candidate in have:
                names[candidate] = entry
                break
    if not names:
        raise InputError(
            f"{type(model).__name__} must have the quadratic layers of the checkpoint, got none of "
            f"them, such as {next(iter(layers))!r}: load it with the class that it was saved from"
        )
    return names
