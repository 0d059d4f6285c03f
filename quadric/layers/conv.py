"""Quadratic convolutions: eigen neurons in place of torch's convolutions and transposed ones.

Each class only fixes the number of spatial dimensions. The arguments are torch's, in torch's order;
ours follow as keywords.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.layers.eigen import EigenLayer
from quadric.layers.eigenvalue_init import EigenvalueInit
from quadric.layers.layer import ConvGeometry, ConvTransposeGeometry, IntOrInts
from quadric.layers.tracing import as_node, is_proxy


class _QuadraticConvNd(EigenLayer, ConvGeometry):
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
        super().__init__()
        self._set_geometry(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        )
        self._set_neuron(bias, rank, eigenvalue_init, normalize, recompute, device, dtype)


class _QuadraticConvTransposeNd(EigenLayer, ConvTransposeGeometry):
    """A layer of eigen neurons in place of `nn.ConvTranspose{n}d`.

    The weight has torch's transposed shape, (in_channels, out_channels / groups, *kernel_size); all
    else is as in the quadratic convolutions.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, y and features together.
        kernel_size: size of the patch.
        stride: step of the patch in the output.
        padding: the width of the border of the full output that is cut off on each side.
        output_padding: the width that is added on one side.
        groups: number of independent groups of channels.
        bias: whether each channel has a bias; that of a feature lies inside the square.
        dilation: distance between the elements of a patch.
        padding_mode: "zeros", the only one that torch offers.
        rank: k, the number of features of a neuron.
        eigenvalue_init: "zeros", "random_sign", or a function that fills the eigenvalues in place.
        normalize: divide each square by |q|^2, as if the eigenvectors were unit vectors.
        recompute: compute the linear map again in backward instead of keeping the output: less
            memory where what follows does not keep it anyway (ReLU, a residual sum), more time.
            Under torch.compile it is the compiler that chooses.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
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
        super().__init__()
        self._set_geometry(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            dilation=dilation,
            padding_mode=padding_mode,
        )
        self._set_neuron(bias, rank, eigenvalue_init, normalize, recompute, device, dtype)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The output; `output_size` chooses among the sizes that the stride allows, as in torch."""
        if is_proxy(input):
            return as_node(self, input, output_size)  # type: ignore[no-any-return]
        return self._forward(self.map_to(input, output_size), input)


class QuadraticConv1d(_QuadraticConvNd):
    """A layer of eigen neurons in place of `nn.Conv1d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConv1d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 20, 6])
    """

    spatial = 1
    linear_class = nn.Conv1d


class QuadraticConv2d(_QuadraticConvNd):
    """A layer of eigen neurons in place of `nn.Conv2d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConv2d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 20, 6, 6])
    """

    spatial = 2
    linear_class = nn.Conv2d


class QuadraticConv3d(_QuadraticConvNd):
    """A layer of eigen neurons in place of `nn.Conv3d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConv3d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8, 8)).shape
        torch.Size([1, 20, 6, 6, 6])
    """

    spatial = 3
    linear_class = nn.Conv3d


class QuadraticConvTranspose1d(_QuadraticConvTransposeNd):
    """A layer of eigen neurons in place of `nn.ConvTranspose1d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConvTranspose1d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 20, 10])
    """

    spatial = 1
    linear_class = nn.ConvTranspose1d


class QuadraticConvTranspose2d(_QuadraticConvTransposeNd):
    """A layer of eigen neurons in place of `nn.ConvTranspose2d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConvTranspose2d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 20, 10, 10])
    """

    spatial = 2
    linear_class = nn.ConvTranspose2d


class QuadraticConvTranspose3d(_QuadraticConvTransposeNd):
    """A layer of eigen neurons in place of `nn.ConvTranspose3d`, with its arguments and then ours.

    Examples:
        >>> layer = QuadraticConvTranspose3d(3, 20, 3, rank=9)
        >>> layer(torch.zeros(1, 3, 8, 8, 8)).shape
        torch.Size([1, 20, 10, 10, 10])
    """

    spatial = 3
    linear_class = nn.ConvTranspose3d
