"""Quadratic layers as few standard operators, for runtimes that fuse less than torch.compile.

Eigen, shared and square layers are all z + S z^2 with a sparse matrix S over the channels. Slices,
sums and scatters would be a dozen operators in ONNX, and each one passes over the whole output.
With S as a weight there are three, which every runtime has tuned: a product z * z, a linear map of
the squares, an addition.

S falls into blocks, and the linear map uses them to multiply fewer zeros. After a convolution it is
a 1x1 convolution with groups of whole blocks; where no groups fit and there are few y channels, two
1x1 convolutions, down to the y channels and up again, make fewer MACs. After a matrix product it is
one product per group of blocks.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadric.layers import QuadraticLayer
from quadric.ops.blocks import Blocks
from quadric.ops.reference import accumulation_dtype

BLOCK = 16
"""Channels that a vectorized convolution handles at once on the widest processors."""

SMALL_PRODUCT = 64
"""Outputs of a dense layer up to which one product with all of S is used."""


def has_onnx_form(layer: nn.Module) -> TypeGuard[QuadraticLayer]:
    """Whether a layer has such a form: it is z + S z^2."""
    return isinstance(layer, QuadraticLayer) and layer.blocks is not None


def onnx_form(layer: QuadraticLayer, shift: Tensor | None = None) -> nn.Module:
    """An eigen, shared or square layer as a few standard operators, with copies of its numbers."""
    blocks, linear = layer.blocks, layer.to_linear()
    assert blocks is not None
    if not blocks.num_eigenvalues:
        return linear
    values = layer.effective_eigenvalues().detach()
    matrix = blocks.matrix(values.to(accumulation_dtype(values.dtype)))
    spatial = -1 - layer.linear_op.channel_dim
    form: nn.Module
    if spatial:
        form = OnnxConv(layer, linear, _pointwise_steps(matrix, blocks, spatial, shift))
    else:
        assert isinstance(linear, nn.Linear)
        form = OnnxLinear(layer, linear, matrix, blocks, shift)
    return form.train(layer.training)


class _StandIn(nn.Module):
    """What stands in the place of a layer, and has its attributes: a model may read them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        vars(self)["stands_for"] = layer  # not a part of this module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["stands_for"], name)


class OnnxConv(_StandIn):
    """z + S z^2 after a convolution."""

    def __init__(self, layer: nn.Module, linear: nn.Module, mix: nn.Module) -> None:
        super().__init__(layer)
        self.linear = linear
        self.mix = mix

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Computes the layer; a transposed convolution takes the size of its output, too."""
        out: Tensor = self.linear(input, *args, **kwargs)
        z = out.to(accumulation_dtype(out.dtype))
        mixed: Tensor = self.mix(z * z) + z
        return mixed.to(out.dtype)


def _pointwise_steps(
    matrix: Tensor, blocks: Blocks, spatial: int, shift: Tensor | None
) -> nn.Module:
    """S as 1x1 convolutions: one with groups, or two where that at least halves the MACs."""
    channels = blocks.channels
    size = _group_size(blocks)
    heads = sorted({output for output, _ in blocks.entries()})
    middle = math.ceil(len(heads) / BLOCK) * BLOCK
    if 4 * middle <= size:
        down, up = matrix.new_zeros(middle, channels), matrix.new_zeros(channels, middle)
        down[: len(heads)] = matrix[heads]
        up[heads, range(len(heads))] = 1
        return nn.Sequential(_pointwise(down, spatial, 1, None), _pointwise(up, spatial, 1, shift))
    groups = channels // size
    own = matrix.reshape(groups, size, groups, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    return _pointwise(own.reshape(channels, size), spatial, groups, shift)


def _group_size(blocks: Blocks) -> int:
    """The smallest multiple of BLOCK that splits the channels evenly and cuts no block."""
    for size in range(BLOCK, blocks.channels, BLOCK):
        cut = any(row // size != column // size for row, column in blocks.entries())
        if blocks.channels % size == 0 and not cut:
            return size
    return blocks.channels


def _pointwise(matrix: Tensor, spatial: int, groups: int, shift: Tensor | None) -> nn.Module:
    """A 1x1 convolution with a matrix of filters, and the shift as its bias."""
    outputs, inputs = matrix.shape
    kind = getattr(nn, f"Conv{spatial}d")
    conv: Any = kind(inputs * groups, outputs, 1, groups=groups, bias=False, device="meta")
    conv.weight = nn.Parameter(matrix.reshape(outputs, inputs, *(1,) * spatial))
    if shift is not None:
        conv.bias = nn.Parameter(shift.detach().to(matrix.dtype).clone())
    return cast(nn.Module, conv)


class OnnxLinear(_StandIn):
    """z + S z^2 after a matrix product.

    S is split into equal groups of whole blocks, with one product per group. The layer gets outputs
    of zero up to whole groups, which are cut off at the end. An input of more dimensions is taken
    as rows: the runtime then adds the bias inside of the product.
    """

    def __init__(
        self,
        layer: nn.Module,
        linear: nn.Linear,
        matrix: Tensor,
        blocks: Blocks,
        shift: Tensor | None,
    ) -> None:
        super().__init__(layer)
        channels = size = blocks.channels
        if channels > SMALL_PRODUCT:
            size = math.ceil(BLOCK / blocks.size) * blocks.size
        groups = math.ceil(channels / size)
        more = groups * size - channels
        whole = F.pad(matrix, (0, more, 0, more)).reshape(groups, size, groups, size)
        # Transposed: the squares are multiplied from the left.
        products = whole.diagonal(dim1=0, dim2=2).permute(2, 1, 0)
        self.products = nn.Parameter(products.contiguous())
        self.channels = channels
        self.linear = _widened(linear, more)
        self.shift = None if shift is None else nn.Parameter(shift.detach().clone())

    def forward(self, input: Tensor) -> Tensor:
        """Computes the layer."""
        if input.dim() != 2:
            rows: Tensor = self(input.reshape(-1, input.shape[-1]))
            # Only the batch may be of any size: the runtime then need not compute the shape.
            outer = (-1, *input.shape[1:-1]) if input.dim() > 1 else ()
            return rows.reshape(*outer, self.channels)
        out: Tensor = self.linear(input)
        z = out.to(accumulation_dtype(out.dtype))
        groups, size = self.products.shape[:2]
        if groups == 1:
            mixed = torch.addmm(z, z * z, self.products[0])
        else:
            squares = (z * z).reshape(-1, groups, size).transpose(0, 1)
            sums = torch.matmul(squares, self.products).transpose(0, 1)
            mixed = (sums.reshape(-1, groups * size) + z)[:, : self.channels]
        if self.shift is not None:
            mixed = mixed + self.shift
        return mixed.to(out.dtype)


def _widened(linear: nn.Linear, more: int) -> nn.Linear:
    """A linear layer with some outputs of zero after its own."""
    if more == 0:
        return linear
    bias = linear.bias is not None
    wide = nn.Linear(linear.in_features, linear.out_features + more, bias=bias, device="meta")
    wide.weight = nn.Parameter(F.pad(linear.weight.detach(), (0, 0, 0, more)))
    if bias:
        wide.bias = nn.Parameter(F.pad(linear.bias.detach(), (0, more)))
    return wide
