"""Quadratic layers as few standard operators, for runtimes that fuse less than torch.compile.

Eigen, shared and square layers are all z + S z^2 with a sparse matrix S over the channels. What
slices, sums and scatters in torch would be a dozen operators in ONNX, each a pass over the output.
Written with S as a weight it is three that every runtime has tuned: a product z * z, a 1x1
convolution (or matrix product) of the squares, an addition. ONNX Runtime does the addition and a
ReLU behind it inside of the convolution.

How S is multiplied is chosen by its cost, measured in ONNX Runtime, whose convolutions work on
blocks of 8 or 16 channels, as wide as the processor's registers. Behind a convolution: by groups of
whole blocks where no neuron crosses them, in two steps (down to the y of all neurons, up to the
channels) where that halves the work, and at once else. Behind a matrix product the two steps take
more work the more neurons there are. Where there are many, the output is read as a matrix with one
neuron a row, and one small product sums the squares of all of them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadric.exporting.folding import linear_map_of
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.ops.reference import accumulation_dtype
from quadric.zoo import NeuronLayer
from quadric.zoo.shared import Shared, Square

BLOCK = 16
"""Channels that a vectorized convolution handles at once, on the widest processors; narrower ones
handle half of them."""

SMALL_PRODUCT = 64
"""Outputs of a dense layer below which one product with all of S is the fastest."""

MANY_NEURONS = 32
"""Neurons of a dense layer from which one product with neurons as rows is faster than two."""

SHORT_ROW = 8
"""Channels of a row below which a product's registers are mostly empty."""

_CONV: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def is_lean(layer: nn.Module) -> bool:
    """Whether a layer has a lean form."""
    if isinstance(layer, NeuronLayer):
        return isinstance(layer.rule, (Shared, Square))
    return isinstance(layer, EigenLayer)


def lean_layer(layer: QuadraticLayer, shift: Tensor | None = None) -> nn.Module:
    """The lean form of an eigen, shared or square layer, with copies of its numbers.

    Args:
        layer: what is to be written otherwise.
        shift: what is added to each channel behind the squares.
    """
    rows, columns, values = _coefficients(layer)
    linear = layer.to_linear()
    channels, spatial = layer.num_outputs, -1 - linear_map_of(layer).channel_dim
    if not len(values):
        return linear
    mix: nn.Module
    if spatial == 0:
        mix = _dense_mix(rows, columns, values, channels, shift)
        if isinstance(mix, _RowMix):
            linear = _widened(linear, len(mix.values))
    else:
        mix = _conv_mix(rows, columns, values, channels, spatial, shift)
    return Lean(linear, mix).train(layer.training)


def _coefficients(layer: QuadraticLayer) -> tuple[Tensor, Tensor, Tensor]:
    """S by its entries: channels of the outputs, of the squares, and the numbers."""
    assert layer.blocks is not None
    values = layer.effective_eigenvalues().detach()
    values = values.to(accumulation_dtype(values.dtype))
    rows, columns = layer.blocks.places(values.device)
    return rows, columns, values


class Lean(nn.Module):
    """z + S z^2.

    A dense layer's input of more dimensions is taken as rows: the runtime then adds the bias inside
    of the product.

    Args:
        linear: makes z.
        mix: makes z + S z^2 of z^2 and z.
    """

    def __init__(self, linear: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.mix = mix

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(self.linear, nn.Linear) and input.dim() != 2:
            rows: Tensor = self(input.reshape(-1, input.shape[-1]))
            # Only the batch may be of any size: the runtime then need not compute the shape.
            outer = (-1, *input.shape[1:-1]) if input.dim() > 1 else ()
            return rows.reshape(*outer, rows.shape[-1])
        out: Tensor = self.linear(input)
        z = out.to(accumulation_dtype(out.dtype))
        mixed: Tensor = self.mix(z * z, z)
        return mixed.to(out.dtype)


# ------------------------------------------------------------------------------------------------
# Convolutions
# ------------------------------------------------------------------------------------------------


class _ConvMix(nn.Module):
    def __init__(self, steps: nn.Module) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, squares: Tensor, z: Tensor) -> Tensor:
        mixed: Tensor = self.steps(squares)
        return mixed + z


def _conv_mix(
    rows: Tensor,
    columns: Tensor,
    values: Tensor,
    channels: int,
    spatial: int,
    shift: Tensor | None,
) -> nn.Module:
    if torch.equal(rows, columns):  # each channel has its own square alone
        matrix = values.new_zeros(channels, 1).index_put_((rows, rows * 0), values)
        return _ConvMix(_pointwise(matrix, spatial, channels, shift))
    size = _block_size(rows, columns, channels, BLOCK)
    summed = rows.unique()
    middle = math.ceil(len(summed) / BLOCK) * BLOCK
    if 4 * middle <= size:
        down = values.new_zeros(middle, channels)
        down[torch.searchsorted(summed, rows), columns] = values
        up = values.new_zeros(channels, middle)
        up[summed, torch.arange(len(summed), device=up.device)] = 1
        steps = nn.Sequential(_pointwise(down, spatial, 1, None), _pointwise(up, spatial, 1, shift))
        return _ConvMix(steps)
    matrix = values.new_zeros(channels, size)
    matrix[rows, columns % size] = values
    return _ConvMix(_pointwise(matrix, spatial, channels // size, shift))


def _block_size(rows: Tensor, columns: Tensor, channels: int, smallest: int) -> int:
    """The smallest number of channels, in whole blocks, by which S falls into equal groups."""
    for size in range(smallest, channels, BLOCK):
        if channels % size == 0 and torch.equal(rows // size, columns // size):
            return size
    return channels


def _pointwise(matrix: Tensor, spatial: int, groups: int, shift: Tensor | None) -> nn.Module:
    """A 1x1 convolution with a matrix of filters."""
    outputs, inputs = matrix.shape
    conv = _CONV[spatial](
        inputs * groups, outputs, 1, groups=groups, bias=shift is not None, device="meta"
    )
    conv.weight = nn.Parameter(matrix.reshape(outputs, inputs, *(1,) * spatial))
    if shift is not None:
        conv.bias = nn.Parameter(shift.detach().to(matrix.dtype).clone())
    return conv


# ------------------------------------------------------------------------------------------------
# Matrix products
# ------------------------------------------------------------------------------------------------


class _ProductMix(nn.Module):
    """One product with all of S, or two: down to the y of all neurons, and up."""

    def __init__(self, matrices: list[Tensor], shift: Tensor | None) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(matrices)
        self.shift = None if shift is None else nn.Parameter(shift.detach().clone())

    def forward(self, squares: Tensor, z: Tensor) -> Tensor:
        for matrix in list(self.matrices)[:-1]:
            squares = squares @ matrix
        if self.shift is not None:
            z = z + self.shift
        return torch.addmm(z, squares, self.matrices[-1])


class _RowMix(nn.Module):
    """One product for all neurons, each of them, or a few small ones, a row.

    Args:
        values: the eigenvalue of each channel, zero for a y; they may be more than the channels,
            so that the last row is full.
        size: channels of a neuron.
        width: channels of a row: one neuron, or a few small ones.
        channels: outputs.
        shift: what is added to each channel.
    """

    def __init__(
        self, values: Tensor, size: int, width: int, channels: int, shift: Tensor | None
    ) -> None:
        super().__init__()
        self.values = nn.Parameter(values)
        channel = torch.arange(width, device=values.device)
        ones = values.new_zeros(width, width)
        ones[channel, channel // size * size] = 1
        self.ones = nn.Parameter(ones)
        self.channels = channels
        self.shift = None if shift is None else nn.Parameter(shift.detach().clone())

    def forward(self, squares: Tensor, z: Tensor) -> Tensor:
        by_row, weighted = (t.reshape(-1, len(self.ones)) for t in (z, squares * self.values))
        mixed = torch.addmm(by_row, weighted, self.ones).reshape(-1, len(self.values))
        if self.channels < len(self.values):
            mixed = mixed[:, : self.channels]
        return mixed if self.shift is None else mixed + self.shift


def _widened(linear: nn.Module, outputs: int) -> nn.Linear:
    """A linear layer with outputs of zero behind its own, if they are not as many already."""
    assert isinstance(linear, nn.Linear)
    more = outputs - linear.out_features
    if more == 0:
        return linear
    weight, bias = linear.weight.detach(), linear.bias
    wide = nn.Linear(linear.in_features, outputs, bias=bias is not None, device="meta")
    wide.weight = nn.Parameter(F.pad(weight, (0, 0, 0, more)))
    if bias is not None:
        wide.bias = nn.Parameter(F.pad(bias.detach(), (0, more)))
    return wide


class _BlockMix(nn.Module):
    """A product for each group of outputs."""

    def __init__(self, blocks: Tensor, shift: Tensor | None) -> None:
        super().__init__()
        self.blocks = nn.Parameter(blocks)
        self.shift = None if shift is None else nn.Parameter(shift.detach().clone())

    def forward(self, squares: Tensor, z: Tensor) -> Tensor:
        groups, size = self.blocks.shape[:2]
        split = squares.reshape(-1, groups, size).transpose(0, 1)
        mixed = torch.matmul(split, self.blocks).transpose(0, 1)
        mixed = mixed.reshape(-1, *z.shape[1:]) + z
        return mixed if self.shift is None else mixed + self.shift


class _DiagonalMix(nn.Module):
    def __init__(self, values: Tensor, shift: Tensor | None) -> None:
        super().__init__()
        self.values = nn.Parameter(values)
        self.shift = None if shift is None else nn.Parameter(shift.detach().clone())

    def forward(self, squares: Tensor, z: Tensor) -> Tensor:
        mixed = squares * self.values + z
        return mixed if self.shift is None else mixed + self.shift


def _dense_mix(
    rows: Tensor, columns: Tensor, values: Tensor, channels: int, shift: Tensor | None
) -> nn.Module:
    if torch.equal(rows, columns):
        return _DiagonalMix(values.clone(), shift)
    summed = rows.unique()
    if channels < SMALL_PRODUCT:
        matrix = values.new_zeros(channels, channels)
        matrix[columns, rows] = values
        return _ProductMix([matrix], shift)
    neuron = _neuron_size(rows, columns)
    if neuron is not None and len(summed) >= MANY_NEURONS:
        width = math.ceil(SHORT_ROW / neuron) * neuron
        weights = values.new_zeros(math.ceil(channels / width) * width)
        weights[columns] = values
        return _RowMix(weights, neuron, width, channels, shift)
    if 4 * len(summed) <= channels:
        down = values.new_zeros(channels, len(summed))
        down[columns, torch.searchsorted(summed, rows)] = values
        up = values.new_zeros(len(summed), channels)
        up[torch.arange(len(summed), device=up.device), summed] = 1
        return _ProductMix([down, up], shift)
    size = _block_size(rows, columns, channels, 2 * BLOCK)
    blocks = values.new_zeros(channels // size, size, size)
    blocks[rows // size, columns % size, rows % size] = values
    if len(blocks) < 4:  # moving the blocks about costs more than zeros do
        matrix = values.new_zeros(channels, channels)
        matrix[columns, rows] = values
        return _ProductMix([matrix], shift)
    return _BlockMix(blocks, shift)


def _neuron_size(rows: Tensor, columns: Tensor) -> int | None:
    """How many channels a neuron has, if all but the last have as many, and y comes first."""
    summed = rows.unique()
    if len(summed) < 2:
        return None
    size = int(summed[1] - summed[0])
    return size if torch.equal(rows, columns // size * size) else None
