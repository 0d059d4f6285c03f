"""Linear maps: the one torch call under every quadratic neuron, and the geometry around it.

A quadratic layer is a linear map followed by products of its outputs. The map is the same for every
neuron: a matrix product, a convolution or a transposed convolution. Keeping it as one small value
(`DenseOp`, `ConvOp`, `TransposedConvOp`) lets one formula serve Linear, Conv1d, Conv2d and
Conv3d, and lets the backward pass run the map again where its output was overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadric.errors import InputError, InputTypeError
from quadric.support.checks import check_size

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def check_real(name: str, tensor: Tensor) -> None:
    """Raises unless an argument is a tensor of real numbers."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputTypeError(
            f"the {name} must be a real floating-point tensor, got {got}: convert it with "
            "torch.as_tensor or .float() first"
        )


class LinearOp:
    """What a neuron needs to know of its linear map."""

    spatial: int = 0  # number of spatial dimensions
    groups: int = 1  # independent groups that the channels are split into
    weight_shape: str = "(out_features, in_features)"  # the shape of the weight, in words

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The torch call, on a prepared input."""
        raise NotImplementedError

    @property
    def channel_dim(self) -> int:
        """The dimension of the outputs, counted from the end: the same with and without a batch."""
        return -1 - self.spatial

    def check(self, input: Tensor, weight: Tensor) -> None:
        """Refuses an input that does not fit the weight."""
        check_real("input", input)
        if weight.dim() != self.spatial + 2:
            raise InputError(
                f"the weight must have the shape {self.weight_shape}, got {tuple(weight.shape)}: "
                f"give {self.spatial + 2} dimensions"
            )

    def prepare(self, input: Tensor) -> Tensor:
        """The input as the torch call takes it: padded, where torch does not pad itself."""
        return input

    def outputs(self, weight: Tensor) -> int:
        """The number of output channels that a weight gives."""
        return weight.shape[0]

    def filters(self, weight: Tensor) -> Tensor:
        """The weight as a matrix (outputs, inputs of one neuron)."""
        return weight.flatten(1)

    def weight_of(self, filters: Tensor, like: Tensor) -> Tensor:
        """The inverse of `filters`: a matrix of filters as a weight for an input like `like`'s."""
        return filters.reshape(filters.shape[0], *like.shape[1:])

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Several weights (or biases) as one, group by group: one call then computes all maps."""
        if self.groups == 1 or len(tensors) == 1:
            return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]
        split = [tensor.unflatten(0, (self.groups, -1)) for tensor in tensors]
        return torch.cat(split, 1).flatten(0, 1)


@dataclass(frozen=True)
class DenseOp(LinearOp):
    """The matrix product of `torch.nn.Linear`."""

    def check(self, input: Tensor, weight: Tensor) -> None:
        super().check(input, weight)
        if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
            raise InputError(
                f"the last dimension of the input must be in_features = {weight.shape[1]}, got an "
                f"input of shape {tuple(input.shape)}: reshape the input or build the layer with "
                "its width"
            )

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)


class _Convolution(LinearOp):
    """What convolutions and transposed convolutions refuse."""

    padding: int | tuple[int, ...] | str

    def check(self, input: Tensor, weight: Tensor) -> None:
        super().check(input, weight)
        groups = check_size("groups", self.groups)
        transposed = isinstance(self, TransposedConvOp)
        if weight.shape[0] % groups:
            raise InputError(
                f"{'in' if transposed else 'out'}_channels must be divisible by groups, got "
                f"{weight.shape[0]} and {groups}: choose another number of groups"
            )
        if input.dim() not in (self.spatial + 1, self.spatial + 2):
            raise InputError(
                f"the input must have {self.spatial + 2} dimensions (or {self.spatial + 1} without "
                f"a batch), got shape {tuple(input.shape)}: add or remove dimensions"
            )
        channels = weight.shape[0] if transposed else weight.shape[1] * groups
        if input.shape[self.channel_dim] != channels:
            raise InputError(
                f"the input must have in_channels = {channels} channels in dimension "
                f"{self.channel_dim}, got shape {tuple(input.shape)}: permute the input or build "
                "the layer with its number of channels"
            )


@dataclass(frozen=True)
class ConvOp(_Convolution):
    """The convolution of `torch.nn.Conv1d`, `Conv2d` or `Conv3d`."""

    spatial: int
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    padding_mode: str = "zeros"
    kernel_size: tuple[int, ...] = ()

    weight_shape = "(out, in / groups, *kernel_size)"

    def check(self, input: Tensor, weight: Tensor) -> None:
        super().check(input, weight)
        if self.padding == "same" and any(stride != 1 for stride in self.strides):
            raise InputError(
                f"padding='same' needs stride 1, got stride {self.stride}: give the padding in "
                "numbers"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each spatial dimension."""
        return self._each(self.stride)

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each spatial dimension."""
        return self._each(self.dilation)

    def _each(self, value: int | tuple[int, ...]) -> tuple[int, ...]:
        return (value,) * self.spatial if isinstance(value, int) else tuple(value)

    def sides(self) -> list[tuple[int, int]]:
        """The padding on both sides of each spatial dimension."""
        if self.padding == "same":
            total = [d * (k - 1) for d, k in zip(self.dilations, self.kernel_size, strict=True)]
            return [(t // 2, t - t // 2) for t in total]
        padding = 0 if self.padding == "valid" else self.padding
        if isinstance(padding, str):
            raise InputError(
                f"padding must be a number, a tuple, 'same' or 'valid', got {padding!r}: give one "
                "of these"
            )
        return [(p, p) for p in self._each(padding)]

    def pads_itself(self, sides: Sequence[tuple[int, int]]) -> bool:
        """Whether torch's call pads: zeros, as much on the left as on the right."""
        return self.padding_mode == "zeros" and all(a == b for a, b in sides)

    def prepare(self, input: Tensor) -> Tensor:
        if self.padding_mode == "zeros" and not isinstance(self.padding, str):
            return input
        sides = self.sides()
        if self.pads_itself(sides):
            return input
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(input, [p for side in reversed(sides) for p in side], mode=mode)

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if isinstance(padding, str) or self.padding_mode != "zeros":
            sides = self.sides()
            padding = [a for a, _ in sides] if self.pads_itself(sides) else 0
        call = _CONV[self.spatial]
        return call(input, weight, bias, self.stride, padding, self.dilation, self.groups)


@dataclass(frozen=True)
class TransposedConvOp(_Convolution):
    """The convolution of `torch.nn.ConvTranspose1d`, `ConvTranspose2d` or `ConvTranspose3d`."""

    spatial: int
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    output_padding: int | tuple[int, ...] = 0
    groups: int = 1
    dilation: int | tuple[int, ...] = 1

    weight_shape = "(in, out / groups, *kernel_size)"

    def check(self, input: Tensor, weight: Tensor) -> None:
        super().check(input, weight)
        if isinstance(self.padding, str):
            raise InputTypeError(
                "padding of a transposed convolution must be numbers, got "
                f"{self.padding!r}: give one for each dimension"
            )

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        call: Any = _CONV_TRANSPOSE[self.spatial]
        padding = (self.padding, self.output_padding)
        result: Tensor = call(
            input, weight, bias, self.stride, *padding, self.groups, self.dilation
        )
        return result

    def outputs(self, weight: Tensor) -> int:
        return weight.shape[1] * self.groups

    def filters(self, weight: Tensor) -> Tensor:
        # (in, out / groups, *kernel) -> (groups, out / groups, in / groups, *kernel) -> (out,
        # inputs of a neuron)
        grouped: Tensor = weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
        return grouped.flatten(0, 1).flatten(1)

    def weight_of(self, filters: Tensor, like: Tensor) -> Tensor:
        grouped = filters.reshape(
            self.groups, -1, like.shape[0] // self.groups, *like.shape[2:]
        ).transpose(1, 2)
        return grouped.flatten(0, 1)

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        return super().stack(tensors) if tensors[0].dim() == 1 else torch.cat(list(tensors), 1)
