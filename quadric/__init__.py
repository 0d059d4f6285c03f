"""Quadric: quadratic neurons for PyTorch.

>>> import torch, quadric
>>> layer = quadric.QuadraticLinear(2, 3, rank=2)  # one neuron: y and two features
>>> layer(torch.zeros(4, 2)).shape
torch.Size([4, 3])

`import quadric` itself loads nothing. A name below loads its module, and with it torch, when it is
used for the first time. So `quadric --help` does not have to wait for torch.
"""

from __future__ import annotations

import warnings as _warnings
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

# What type checkers see. tests/test_imports.py checks that it is what users get.
if TYPE_CHECKING:
    from quadric import functional as functional
    from quadric import layers as layers
    from quadric import models as models
    from quadric.conversion.calibration import calibrate_ as calibrate_
    from quadric.conversion.conversion_report import ConversionReport as ConversionReport
    from quadric.conversion.convert import convert_ as convert_
    from quadric.conversion.pretrained import use_transformers as use_transformers
    from quadric.conversion.revert import revert_ as revert_
    from quadric.conversion.sensitivity import Scores as Scores
    from quadric.conversion.sensitivity import sensitivity as sensitivity
    from quadric.counting.cost import cost as cost
    from quadric.counting.cost_report import CostReport as CostReport
    from quadric.decomposition import Decomposition as Decomposition
    from quadric.decomposition import decompose as decompose
    from quadric.decomposition import reconstruct as reconstruct
    from quadric.exporting import export_onnx as export_onnx
    from quadric.layers import QuadraticConv1d as QuadraticConv1d
    from quadric.layers import QuadraticConv2d as QuadraticConv2d
    from quadric.layers import QuadraticConv3d as QuadraticConv3d
    from quadric.layers import QuadraticConvTranspose1d as QuadraticConvTranspose1d
    from quadric.layers import QuadraticConvTranspose2d as QuadraticConvTranspose2d
    from quadric.layers import QuadraticConvTranspose3d as QuadraticConvTranspose3d
    from quadric.layers import QuadraticLinear as QuadraticLinear
    from quadric.layers import QuadraticMultiheadAttention as QuadraticMultiheadAttention
    from quadric.layers import make_layer as make_layer
    from quadric.layers import neurons as neurons
    from quadric.named_adapters import adapters as adapters
    from quadric.named_adapters import average_adapters_ as average_adapters_
    from quadric.named_adapters import drop_adapter_ as drop_adapter_
    from quadric.named_adapters import use_adapter_ as use_adapter_
    from quadric.ops.native import use_kernels as use_kernels
    from quadric.optim import param_groups as param_groups
    from quadric.saving import load_ as load_
    from quadric.saving import save as save
    from quadric.share import quadratic_share as quadratic_share
    from quadric.watchdog import watch as watch
else:
    _NAMES = {
        "named_adapters": ["adapters", "average_adapters_", "drop_adapter_", "use_adapter_"],
        "conversion.calibration": ["calibrate_"],
        "conversion.convert": ["convert_"],
        "conversion.pretrained": ["use_transformers"],
        "conversion.conversion_report": ["ConversionReport"],
        "conversion.revert": ["revert_"],
        "conversion.sensitivity": ["Scores", "sensitivity"],
        "counting.cost": ["cost"],
        "counting.cost_report": ["CostReport"],
        "decomposition": ["Decomposition", "decompose", "reconstruct"],
        "exporting": ["export_onnx"],
        "layers": [
            "QuadraticConv1d",
            "QuadraticConv2d",
            "QuadraticConv3d",
            "QuadraticConvTranspose1d",
            "QuadraticConvTranspose2d",
            "QuadraticConvTranspose3d",
            "QuadraticLinear",
            "QuadraticMultiheadAttention",
            "make_layer",
            "neurons",
        ],
        "ops.native": ["use_kernels"],
        "optim": ["param_groups"],
        "saving": ["load_", "save"],
        "share": ["quadratic_share"],
        "watchdog": ["watch"],
    }
    _HOMES = {name: f"quadric.{module}" for module, names in _NAMES.items() for name in names}
    _MODULES = (
        *("analysis", "bench", "conversion", "counting", "data", "demo", "errors", "exporting"),
        *(
            "discover",
            "encrypted",
            "functional",
            "layers",
            "models",
            "ops",
            "runs",
            "sklearn",
            "solve",
            "train",
        ),
    )
    __all__ = [*_HOMES, "functional", "layers", "models"]

    def __getattr__(name: str) -> object:
        # A plain install has no numpy, which nothing here needs: torch's notice is silenced.
        with _warnings.catch_warnings():
            _warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            _import_module("torch")
        if name in _MODULES:
            return _import_module(f"quadric.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'quadric' has no attribute {name!r}")
        globals()[name] = getattr(_import_module(_HOMES[name]), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES, *_MODULES})
