"""Linear maps: the one torch call under every quadratic neuron, and the geometry around it.

A quadratic layer is a linear map followed by products of its outputs. The map is the same for every
neuron: a matrix product, a convolution or a transposed convolution. Keeping it as one small value
(`DenseOp`, `ConvOp`, `TransposedConvOp`) lets one formula serve Linear, Conv1d, Conv2d and
Conv3d, and lets the backward pass run the map again where its output was overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from quadric.errors import InputError, InputTypeError

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@runtime_checkable
class LinearOp(Protocol):
    """What a neuron needs to know of its linear map."""

    @property
    def channel_dim(self) -> int:
        """The dimension of the outputs, counted from the end: the same with and without a batch."""
        ...

    @property
    def groups(self) -> int:
        """How many independent groups the channels are split into."""
        ...

    def check(self, input: Tensor, weight: Tensor) -> None:
        """Refuses an input that does not fit the weight."""
        ...

    def prepare(self, input: Tensor) -> Tensor:
        """The input as the torch call takes it: padded, where torch does not pad itself."""
        ...

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The torch call, on a prepared input."""
        ...

    def outputs(self, weight: Tensor) -> int:
        """The number of output channels that a weight gives."""
        ...

    def filters(self, weight: Tensor) -> Tensor:
        """The weight as a matrix (outputs, inputs of one neuron)."""
        ...

    def weight_of(self, filters: Tensor, like: Tensor) -> Tensor:
        """The inverse of `filters`: a matrix of filters as a weight for an input like `like`'s."""
        ...

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Several weights (or biases) as one, group by group: one call then computes all maps."""
        ...


def _ints(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    return (value,) * length if isinstance(value, int) else tuple(value)


def _check_dtype(input: Tensor) -> None:
    if not isinstance(input, Tensor):
        raise InputTypeError(
            f"the input must be a tensor, got {type(input).__name__}: convert it with "
            "torch.as_tensor(input)"
        )
    if not input.is_floating_point():
        raise InputTypeError(
            f"the input must be a real floating-point tensor, got {input.dtype}: convert it with "
            "input.float() first"
        )


def _concat(tensors: Sequence[Tensor], groups: int, dim: int) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    if groups == 1:
        return torch.cat(list(tensors), dim)
    split = [t.unflatten(dim, (groups, -1)) for t in tensors]
    return torch.cat(split, dim + 1).flatten(dim, dim + 1)


@dataclass(frozen=True)
class DenseOp:
    """The matrix product of `torch.nn.Linear`."""

    @property
    def channel_dim(self) -> int:
        return -1

    @property
    def groups(self) -> int:
        return 1

    def check(self, input: Tensor, weight: Tensor) -> None:
        _check_dtype(input)
        if weight.dim() != 2:
            raise InputError(
                "the weight must have the shape (out_features, in_features), got "
                f"{tuple(weight.shape)}: give a matrix"
            )
        if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
            raise InputError(
                f"the last dimension of the input must be in_features = {weight.shape[1]}, got an "
                "input of "
                f"shape {tuple(input.shape)}: reshape the input or build the layer with its width"
            )

    def prepare(self, input: Tensor) -> Tensor:
        return input

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    def outputs(self, weight: Tensor) -> int:
        return weight.shape[0]

    def filters(self, weight: Tensor) -> Tensor:
        return weight

    def weight_of(self, filters: Tensor, like: Tensor) -> Tensor:
        return filters

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        return _concat(tensors, 1, 0)


@dataclass(frozen=True)
class ConvOp:
    """The convolution of `torch.nn.Conv1d`, `Conv2d` or `Conv3d`."""

    spatial: int
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    padding_mode: str = "zeros"
    kernel_size: tuple[int, ...] = ()

    @property
    def channel_dim(self) -> int:
        return -1 - self.spatial

    def check(self, input: Tensor, weight: Tensor) -> None:
        _check_dtype(input)
        if weight.dim() != self.spatial + 2:
            raise InputError(
                f"the weight of a {self.spatial}-dimensional convolution must have "
                f"{self.spatial + 2} "
                f"dimensions, got shape {tuple(weight.shape)}: give it as (out, in / groups, "
                "*kernel_size)"
            )
        _check_groups(self.groups)
        if self.padding == "same" and any(stride != 1 for stride in self.strides):
            raise InputError(
                f"padding='same' needs stride 1, got stride {self.stride}: give the padding in "
                "numbers"
            )
        if weight.shape[0] % self.groups:
            raise InputError(
                f"out_channels must be divisible by groups, got {weight.shape[0]} and "
                f"{self.groups}: choose "
                "another number of groups"
            )
        _check_channels(input, weight.shape[1] * self.groups, self.spatial)

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each spatial dimension."""
        return _ints(self.stride, self.spatial)

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each spatial dimension."""
        return _ints(self.dilation, self.spatial)

    def sides(self) -> list[tuple[int, int]]:
        """The padding on both sides of each spatial dimension."""
        if self.padding == "valid":
            return [(0, 0)] * self.spatial
        if self.padding == "same":
            total = [d * (k - 1) for d, k in zip(self.dilations, self.kernel_size, strict=True)]
            return [(t // 2, t - t // 2) for t in total]
        if isinstance(self.padding, str):
            raise InputError(
                f"padding must be a number, a tuple, 'same' or 'valid', got {self.padding!r}: "
                "give one of these"
            )
        return [(p, p) for p in _ints(self.padding, self.spatial)]

    def pads_itself(self, sides: Sequence[tuple[int, int]]) -> bool:
        """Whether torch's call pads: zeros, as much on the left as on the right."""
        return self.padding_mode == "zeros" and all(a == b for a, b in sides)

    def prepare(self, input: Tensor) -> Tensor:
        if not isinstance(self.padding, str) and self.padding_mode == "zeros":
            return input
        sides = self.sides()
        if self.pads_itself(sides):
            return input
        flat = [p for side in reversed(sides) for p in side]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(input, flat, mode=mode)

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if isinstance(padding, str) or self.padding_mode != "zeros":
            sides = self.sides()
            padding = [a for a, _ in sides] if self.pads_itself(sides) else 0
        return _CONV[self.spatial](
            input, weight, bias, self.stride, padding, self.dilation, self.groups
        )

    def outputs(self, weight: Tensor) -> int:
        return weight.shape[0]

    def filters(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def weight_of(self, filters: Tensor, like: Tensor) -> Tensor:
        return filters.reshape(filters.shape[0], *like.shape[1:])

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        return _concat(tensors, self.groups, 0)


@dataclass(frozen=True)
class TransposedConvOp:
    """The convolution of `torch.nn.ConvTranspose1d`, `ConvTranspose2d` or `ConvTranspose3d`."""

    spatial: int
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    output_padding: int | tuple[int, ...] = 0
    groups: int = 1
    dilation: int | tuple[int, ...] = 1

    @property
    def channel_dim(self) -> int:
        return -1 - self.spatial

    def check(self, input: Tensor, weight: Tensor) -> None:
        _check_dtype(input)
        if weight.dim() != self.spatial + 2:
            raise InputError(
                f"the weight of a {self.spatial}-dimensional transposed convolution must have "
                f"{self.spatial + 2} dimensions, got shape {tuple(weight.shape)}: give it as "
                "(in, out / groups, *kernel_size)"
            )
        _check_groups(self.groups)
        if isinstance(self.padding, str):
            raise InputTypeError(
                "padding of a transposed convolution must be numbers, got "
                f"{self.padding!r}: give one for each dimension"
            )
        if weight.shape[0] % self.groups:
            raise InputError(
                f"in_channels must be divisible by groups, got {weight.shape[0]} and "
                f"{self.groups}: choose another number of groups"
            )
        _check_channels(input, weight.shape[0], self.spatial)

    def prepare(self, input: Tensor) -> Tensor:
        return input

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        call: Any = _CONV_TRANSPOSE[self.spatial]
        result: Tensor = call(
            input,
            weight,
            bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
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
        if tensors[0].dim() == 1:
            return _concat(tensors, self.groups, 0)
        return torch.cat(list(tensors), 1)


def _check_groups(groups: object) -> None:
    if isinstance(groups, bool) or not isinstance(groups, int):
        raise InputTypeError(f"groups must be an integer >= 1, got {groups!r}: give a whole number")
    if groups < 1:
        raise InputError(f"groups must be >= 1, got {groups}: give a positive number")


def _check_channels(input: Tensor, channels: int, spatial: int) -> None:
    if input.dim() not in (spatial + 1, spatial + 2):
        raise InputError(
            f"the input must have {spatial + 2} dimensions (or {spatial + 1} without a batch), "
            "got shape "
            f"{tuple(input.shape)}: add or remove dimensions"
        )
    if input.shape[-1 - spatial] != channels:
        raise InputError(
            f"the input must have in_channels = {channels} channels in dimension {-1 - spatial}, "
            "got shape "
            f"{tuple(input.shape)}: permute the input or build the layer with its number of "
            "channels"
        )
