"""Convolutions and transposed convolutions: every argument torch has, against the loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quadric
from tests import reference
from tests.conftest import assert_close

F64 = torch.float64
CONV: dict[int, Any] = {
    1: quadric.QuadraticConv1d,
    2: quadric.QuadraticConv2d,
    3: quadric.QuadraticConv3d,
}
TRANSPOSED: dict[int, Any] = {
    1: quadric.QuadraticConvTranspose1d,
    2: quadric.QuadraticConvTranspose2d,
    3: quadric.QuadraticConvTranspose3d,
}
PLAIN: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SPACE = {1: (7,), 2: (5, 4), 3: (3, 4, 3)}


def randomized(layer: Any) -> Any:
    with torch.no_grad():
        layer.eigenvalues.normal_()
    return layer


def check_conv(dims: int, c_in: int, c_out: int, kernel: Any, rank: int, **options: Any) -> Any:
    layer = randomized(CONV[dims](c_in, c_out, kernel, rank=rank, dtype=F64, **options))
    x = torch.randn(2, c_in, *SPACE[dims], dtype=F64)
    options.pop("bias", None)
    expected = reference.eigen_conv(x, layer.weight, layer.bias, layer.eigenvalues, rank, **options)
    assert_close(layer(x), expected)
    return layer


def check_transposed(
    dims: int, c_in: int, c_out: int, kernel: Any, rank: int, **options: Any
) -> Any:
    layer = randomized(TRANSPOSED[dims](c_in, c_out, kernel, rank=rank, dtype=F64, **options))
    x = torch.randn(2, c_in, *(2, 3, 2)[:dims], dtype=F64)
    expected = reference.eigen_conv_transpose(
        x, layer.weight, layer.bias, layer.eigenvalues, rank, **options
    )
    assert_close(layer(x), expected)
    return layer


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_padding(dims: int, padding_mode: str, padding: Any) -> None:
    check_conv(dims, 2, 5, 3, rank=2, padding=padding, padding_mode=padding_mode)


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_same_padding_of_an_even_kernel_puts_the_odd_one_behind(padding_mode: str) -> None:
    check_conv(2, 2, 5, (2, 4), rank=2, padding="same", padding_mode=padding_mode)


def test_same_padding_with_dilation() -> None:
    check_conv(1, 2, 5, 3, rank=2, padding="same", dilation=2)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_padding_of_one_dimension(padding_mode: str) -> None:
    check_conv(2, 2, 5, (3, 2), rank=2, padding=(0, 2), padding_mode=padding_mode)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
def test_padding_mode_there_and_back(dims: int, padding_mode: str) -> None:
    plain = PLAIN[dims](2, 5, 3, padding=1, padding_mode=padding_mode, dtype=F64)
    layer = CONV[dims].from_linear(plain, rank=2)
    x = torch.randn(2, 2, *SPACE[dims], dtype=F64)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)
    torch.testing.assert_close(layer.to_linear()(x), plain(x), rtol=0, atol=0)
    assert layer.padding_mode == layer.to_linear().padding_mode == padding_mode


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_stride(dims: int, stride: int) -> None:
    check_conv(dims, 2, 5, 2, rank=2, stride=stride)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_stride_padding_and_dilation_together(dims: int) -> None:
    check_conv(dims, 2, 5, 2, rank=1, stride=2, padding=1, dilation=2)


def test_arguments_of_every_dimension_differ() -> None:
    check_conv(2, 2, 5, (3, 1), rank=2, stride=(1, 2), padding=(2, 1), dilation=(2, 1))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("outputs", "rank", "groups", "ranks"),
    [
        (6, 2, 1, (2, 2)),
        (7, 2, 1, (2, 2, 0)),
        (8, 2, 1, (2, 2, 1)),
        (12, 2, 2, (2, 2, 2, 2)),
        (8, 2, 2, (2, 0, 2, 0)),  # remainder 1 in each group
        (10, 2, 2, (2, 1, 2, 1)),
        (8, 2, 4, (1, 1, 1, 1)),  # rank larger than a group allows
        (4, 9, 4, (0, 0, 0, 0)),  # depthwise: nothing to square
        (8, 9, 1, (7,)),
    ],
)
def test_groups_and_remainders(
    dims: int, outputs: int, rank: int, groups: int, ranks: tuple[int, ...], bias: bool
) -> None:
    layer = check_conv(dims, 4, outputs, 2, rank, groups=groups, bias=bias)
    assert layer.neuron_ranks == ranks
    assert layer.num_neurons == len(ranks)
    assert layer.eigenvalues.numel() == sum(ranks)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 3, "dilation": 2, "output_padding": 1},
        {"padding": 1, "groups": 2},
        {"stride": 2, "groups": 2, "dilation": 2},
    ],
    ids=str,
)
def test_transposed(dims: int, options: dict[str, int]) -> None:
    check_transposed(dims, 2, 8, 2, rank=2, **options)


@pytest.mark.parametrize(
    ("outputs", "rank", "groups", "ranks"),
    [
        (7, 2, 1, (2, 2, 0)),
        (8, 2, 1, (2, 2, 1)),
        (8, 2, 2, (2, 0, 2, 0)),
        (10, 2, 2, (2, 1, 2, 1)),
        (4, 50, 2, (1, 1)),
    ],
)
def test_transposed_groups_and_remainders(
    outputs: int, rank: int, groups: int, ranks: tuple[int, ...]
) -> None:
    layer = check_transposed(2, 4, outputs, 2, rank, groups=groups, stride=2)
    assert layer.neuron_ranks == ranks
    assert layer.weight.shape == (4, outputs // groups, 2, 2)


def test_transposed_output_size() -> None:
    layer = randomized(TRANSPOSED[2](2, 5, 3, stride=2, padding=1, rank=2, dtype=F64))
    plain = layer.to_linear()
    x = torch.randn(2, 2, 3, 3, dtype=F64)
    for size in [(5, 5), (6, 5), [6, 6]]:
        out = layer(x, output_size=size)
        assert list(out.shape[2:]) == list(size)
        expected = reference.add_quadratic(plain(x, output_size=size), layer.eigenvalues, 2)
        assert_close(out, expected)
    with pytest.raises(ValueError, match="output size"):
        layer(x, output_size=(9, 9))


def test_the_example_of_the_documentation() -> None:
    layer = quadric.QuadraticConv2d(16, 32, 3, padding=1)
    plain = nn.Conv2d(16, 32, 3, padding=1)
    assert layer.weight.numel() == 4608
    assert layer.eigenvalues.shape == (28,)
    assert layer.num_neurons == 4
    assert layer.neuron_ranks == (9, 9, 9, 1)
    plain.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    x = torch.randn(2, 16, 8, 8)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", [CONV, TRANSPOSED], ids=["conv", "transposed"])
def test_channels_last_is_kept(dims: int, kind: dict[int, Any]) -> None:
    memory_format = torch.channels_last if dims == 2 else torch.channels_last_3d
    layer = randomized(kind[dims](4, 8, 3, padding=1, rank=2))
    x = torch.randn(2, 4, *(6, 6, 6)[:dims])
    expected = layer(x)
    plain_out = layer.to_linear().to(memory_format=memory_format)(x.to(memory_format=memory_format))
    layer = layer.to(memory_format=memory_format)
    x = x.to(memory_format=memory_format).requires_grad_()
    out = layer(x)
    assert out.stride() == plain_out.stride()
    assert out.is_contiguous(memory_format=memory_format)
    assert_close(out, expected)
    out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("kind", [CONV, TRANSPOSED], ids=["conv", "transposed"])
def test_channels_must_divide_by_groups(kind: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match=r"out.*divisible by groups.*\b7\b.*\b2\b"):
        kind[2](4, 7, 3, groups=2)
    with pytest.raises(ValueError, match=r"in.*divisible by groups.*\b5\b.*\b2\b"):
        kind[2](5, 8, 3, groups=2)
    with pytest.raises(ValueError, match=r"groups.*0"):
        kind[2](4, 8, 3, groups=0)


def test_padding_that_torch_refuses() -> None:
    with pytest.raises(ValueError, match=r"full.*|.*same.*valid"):
        quadric.QuadraticConv2d(2, 4, 3, padding="full")
    with pytest.raises(ValueError, match=r"(?i)same.*stride"):
        quadric.QuadraticConv2d(2, 4, 3, padding="same", stride=2)
    with pytest.raises(ValueError, match=r"padding_mode.*mirror"):
        quadric.QuadraticConv2d(2, 4, 3, padding_mode="mirror")
    with pytest.raises(ValueError, match=r"padding_mode|padding mode"):
        quadric.QuadraticConvTranspose2d(2, 4, 3, padding_mode="reflect")


@pytest.mark.parametrize("kind", [CONV, TRANSPOSED], ids=["conv", "transposed"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_input_with_the_wrong_number_of_dimensions(dims: int, kind: dict[int, Any]) -> None:
    layer = kind[dims](2, 4, 1)
    for extra in (-1, 2):
        shape = (2,) * (dims + 1 + extra)
        with pytest.raises(
            ValueError, match=rf"{dims + 2} dim.*{dims + 1} without a batch"
        ) as caught:
            layer(torch.randn(shape))
        assert str(shape) in str(caught.value)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_extra_repr_omits_defaults_as_torch_does(dims: int) -> None:
    plain = PLAIN[dims](2, 4, 3).extra_repr()
    assert CONV[dims](2, 4, 3, rank=3).extra_repr().startswith(f"{plain}, rank=3")
