"""Quadric: quadratic neurons for PyTorch.

>>> import torch, quadric
>>> layer = quadric.QuadraticLinear(2, 3, rank=2)  # one neuron: y and two features
>>> layer(torch.zeros(4, 2)).shape
torch.Size([4, 3])
"""

import warnings as _warnings

# A plain install has no numpy, which nothing here needs: torch's notice of that is silenced.
with _warnings.catch_warnings():
    _warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch as _torch  # noqa: F401

from quadric import functional as functional
from quadric import models as models
from quadric import zoo as zoo
from quadric.attention import QuadraticMultiheadAttention as QuadraticMultiheadAttention
from quadric.conversion.convert import convert_ as convert_
from quadric.conversion.report import ConversionReport as ConversionReport
from quadric.conversion.revert import revert_ as revert_
from quadric.conversion.sensitivity import Scores as Scores
from quadric.conversion.sensitivity import sensitivity as sensitivity
from quadric.counting.cost import cost as cost
from quadric.counting.report import CostReport as CostReport
from quadric.decomposition import Decomposition as Decomposition
from quadric.decomposition import decompose as decompose
from quadric.decomposition import reconstruct as reconstruct
from quadric.exporting import export_onnx as export_onnx
from quadric.nn import QuadraticConv1d as QuadraticConv1d
from quadric.nn import QuadraticConv2d as QuadraticConv2d
from quadric.nn import QuadraticConv3d as QuadraticConv3d
from quadric.nn import QuadraticConvTranspose1d as QuadraticConvTranspose1d
from quadric.nn import QuadraticConvTranspose2d as QuadraticConvTranspose2d
from quadric.nn import QuadraticConvTranspose3d as QuadraticConvTranspose3d
from quadric.nn import QuadraticLinear as QuadraticLinear
from quadric.ops.native import use_kernels as use_kernels
from quadric.optim import param_groups as param_groups
from quadric.saving import load_ as load_
from quadric.saving import save as save
from quadric.share import quadratic_share as quadratic_share
from quadric.zoo import make_layer as make_layer
from quadric.zoo import neurons as neurons

__version__ = "0.1.0"
