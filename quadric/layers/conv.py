"""Neurons over torch's convolutions and transposed ones.

Each class only fixes the number of spatial dimensions. The arguments are torch's, in torch's order;
ours follow as keywords. `Neuron…` takes any neuron, `Quadratic…` is that of the eigen neuron.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.eigen_layer import EigenLayer, arguments_of
from quadric.layers.layer import QuadraticLayer
from quadric.layers.squares import EigenvalueInit
from quadric.layers.tracing import as_node, is_proxy
from quadric.ops.linear_ops import ConvOp, LinearOp, TransposedConvOp

IntOrInts = int | Sequence[int]


class NeuronConv(QuadraticLayer):
    """Abstract: a layer of any neuron in place of a convolution of torch."""

    geometry_names = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
        "output_padding",
        "transposed",
    )

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    output_padding: tuple[int, ...]
    transposed: bool

    def _make_linear_op(self) -> LinearOp:
        return ConvOp(
            len(self.kernel_size),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.padding_mode,
            self.kernel_size,
        )

    @property
    def num_outputs(self) -> int:
        return self.out_channels

    @property
    def num_inputs(self) -> int:
        return self.in_channels // self.groups * math.prod(self.kernel_size)

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        filters = self.out_channels if filters is None else filters
        return (filters, self.in_channels // self.groups, *self.kernel_size)


class NeuronConvTranspose(NeuronConv):
    """Abstract: a layer of any neuron in place of a transposed convolution of torch.

    Not of general and pure, whose full forms need the inputs of each neuron side by side.
    """

    def _set_up(self) -> None:
        if not self.rule.transposable:
            raise InputError(
                f"the neuron {self.neuron!r} has no transposed convolution, got "
                f"{type(self).__name__}: use another neuron or leave the layer linear"
            )
        super()._set_up()

    def _make_linear_op(self, output_padding: tuple[int, ...] | None = None) -> LinearOp:
        return TransposedConvOp(
            len(self.kernel_size),
            self.stride,
            self.padding,
            self.output_padding if output_padding is None else output_padding,
            self.groups,
            self.dilation,
        )

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        filters = self.out_channels if filters is None else filters
        return (self.in_channels, filters // self.groups, *self.kernel_size)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The output; `output_size` chooses among the sizes that the stride allows, as in torch."""
        if output_size is None:
            return super().forward(input)
        if is_proxy(input):
            return as_node(self, input, output_size)  # type: ignore[no-any-return]
        layer: Any = _Resized(self, self._make_linear_op(self._padding_to(input, output_size)))
        return self.rule.forward(layer, self._checked(input))

    def _padding_to(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that makes an output of this spatial size."""
        wanted = tuple(output_size)[-len(self.kernel_size) :]
        geometry: Any = (self.stride, self.padding, self.dilation, self.kernel_size)
        smallest = [
            (size - 1) * step - 2 * pad + dilation * (kernel - 1) + 1
            for size, step, pad, dilation, kernel in zip(
                input.shape[-len(self.kernel_size) :], *geometry, strict=True
            )
        ]
        padding = tuple(size - least for size, least in zip(wanted, smallest, strict=True))
        if not all(0 <= p < step for p, step in zip(padding, self.stride, strict=True)):
            largest = [least + s - 1 for least, s in zip(smallest, self.stride, strict=True)]
            raise InputError(
                f"the output size must be between {smallest} and {largest} for an input of shape "
                f"{tuple(input.shape)}, got {list(output_size)}: choose such a size"
            )
        return padding


class _Resized:
    """A layer whose linear map makes an output of another size, for one call."""

    def __init__(self, layer: NeuronConvTranspose, linear_op: LinearOp) -> None:
        self.layer, self.linear_op = layer, linear_op

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


class NeuronConv1d(NeuronConv):
    """A layer of any registered neuron in place of `nn.Conv1d`."""

    linear_class = nn.Conv1d


class NeuronConv2d(NeuronConv):
    """A layer of any registered neuron in place of `nn.Conv2d`."""

    linear_class = nn.Conv2d


class NeuronConv3d(NeuronConv):
    """A layer of any registered neuron in place of `nn.Conv3d`."""

    linear_class = nn.Conv3d


class NeuronConvTranspose1d(NeuronConvTranspose):
    """A layer of any registered neuron, but general and pure, in place of `nn.ConvTranspose1d`."""

    linear_class = nn.ConvTranspose1d


class NeuronConvTranspose2d(NeuronConvTranspose):
    """A layer of any registered neuron, but general and pure, in place of `nn.ConvTranspose2d`."""

    linear_class = nn.ConvTranspose2d


class NeuronConvTranspose3d(NeuronConvTranspose):
    """A layer of any registered neuron, but general and pure, in place of `nn.ConvTranspose3d`."""

    linear_class = nn.ConvTranspose3d


class _QuadraticConvNd(EigenLayer, NeuronConv):
    """A layer of eigen neurons in place of `nn.Conv{n}d`.

    Channels come neuron by neuron, `[y_0, f_01 … f_0k, y_1, …]` with `f = Q'x + b_f` and `y = w'x +
    b + sum_j lambda_j f_j^2` for each patch x. There are ceil(C / (rank + 1)) neurons among the C
    channels of a group; the last takes the channels that are left, at a smaller rank. With
    eigenvalues zero, as at the start, the layer is exactly the torch layer.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, y and features together.
        kernel_size: size of the patch.
        stride: step of the patch.
        padding: a number, one for each dimension, "same" or "valid".
        dilation: distance between the elements of a patch.
        groups: number of independent groups of channels.
        bias: whether each channel has a bias; that of a feature lies inside the square.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        rank: k, the number of features of a neuron.
        eigenvalue_init: "zeros", "random_sign", or a function that fills the eigenvalues in place.
        normalize: divide each square by |q|^2, as if the eigenvectors were unit vectors.
        recompute: compute the linear map again in backward instead of keeping the output: less
            memory where what follows does not keep it anyway (ReLU, a residual sum), more time.
            Under torch.compile it is the compiler that chooses.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Attributes:
        weight: torch's shape, (out_channels, in_channels / groups, *kernel_size); a linear
            checkpoint loads.
        bias: (out_channels) or None.
        eigenvalues: one for each feature channel, in channel order.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrInts,
        stride: IntOrInts = 1,
        padding: IntOrInts | str = 0,
        dilation: IntOrInts = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        rank: int = 9,
        eigenvalue_init: EigenvalueInit = "zeros",
        normalize: bool = False,
        recompute: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(**arguments_of(locals()))


class _QuadraticConvTransposeNd(EigenLayer, NeuronConvTranspose):
    """A layer of eigen neurons in place of `nn.ConvTranspose{n}d`.

    Its arguments are torch's, then those of the quadratic convolutions. The weight has torch's
    transposed shape, (in_channels, out_channels / groups, *kernel_size); all else is as there.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrInts,
        stride: IntOrInts = 1,
        padding: IntOrInts = 0,
        output_padding: IntOrInts = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: IntOrInts = 1,
        padding_mode: str = "zeros",
        *,
        rank: int = 9,
        eigenvalue_init: EigenvalueInit = "zeros",
        normalize: bool = False,
        recompute: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(**arguments_of(locals()))


class QuadraticConv1d(_QuadraticConvNd, NeuronConv1d):
    """A layer of eigen neurons in place of `nn.Conv1d`, with its arguments and then ours."""


class QuadraticConv2d(_QuadraticConvNd, NeuronConv2d):
    """A layer of eigen neurons in place of `nn.Conv2d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConv2d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 20, 6, 6])
    """


class QuadraticConv3d(_QuadraticConvNd, NeuronConv3d):
    """A layer of eigen neurons in place of `nn.Conv3d`, with its arguments and then ours."""


class QuadraticConvTranspose1d(_QuadraticConvTransposeNd, NeuronConvTranspose1d):
    """A layer of eigen neurons in place of `nn.ConvTranspose1d`, with its arguments first."""


class QuadraticConvTranspose2d(_QuadraticConvTransposeNd, NeuronConvTranspose2d):
    """A layer of eigen neurons in place of `nn.ConvTranspose2d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConvTranspose2d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 20, 10, 10])
    """


class QuadraticConvTranspose3d(_QuadraticConvTransposeNd, NeuronConvTranspose3d):
    """A layer of eigen neurons in place of `nn.ConvTranspose3d`, with its arguments first."""
