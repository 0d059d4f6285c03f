"""What only eigen layers have: neurons and their ranks, dense forms, starts, normalization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.layers import NeuronConv2d, NeuronLinear
from tests import reference
from tests.conftest import assert_close
from tests.layers.cases import (
    CONV2D,
    EIGEN,
    F64,
    LINEAR,
    Geometry,
    each_geometry,
    filters,
    randomize_,
)

each_normalize = pytest.mark.parametrize("normalize", [False, True])


def make(geometry: Geometry, rank: int = 2, **options: Any) -> Any:
    return randomize_(geometry.make("eigen", rank=rank, **options))


# ------------------------------------------------------------------------------------------------
# Neurons and ranks
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "rank", "groups", "ranks"),
    [
        (6, 2, 1, (2, 2)),  # remainder 0
        (7, 2, 1, (2, 2, 0)),  # remainder 1: a plain linear channel
        (8, 2, 1, (2, 2, 1)),  # remainder 2
        (1, 9, 1, (0,)),
        (2, 9, 1, (1,)),
        (10, 9, 1, (9,)),
        (32, 9, 1, (9, 9, 9, 1)),
        (12, 2, 2, (2, 2, 2, 2)),
        (8, 2, 2, (2, 0, 2, 0)),  # remainder 1 in each group
        (8, 2, 4, (1, 1, 1, 1)),  # rank larger than a group allows
        (4, 9, 4, (0, 0, 0, 0)),  # depthwise: nothing to square
    ],
)
@pytest.mark.parametrize("plain", [nn.Conv2d, nn.ConvTranspose2d])
def test_remainders(
    plain: type[nn.Module], outputs: int, rank: int, groups: int, ranks: tuple[int, ...]
) -> None:
    geometry = Geometry(plain, (4, outputs, 2), (2, 4, 3, 2), {"groups": groups})
    layer, x = make(geometry, rank), geometry.input()
    assert layer.neuron_ranks == ranks
    assert layer.eigenvalues.numel() == sum(ranks)
    assert_close(layer(x), EIGEN.reference(layer, x))
    layer(x).sum().backward()


def test_channel_order_by_hand() -> None:
    """Two neurons of rank 2 on x = (1, 10), worked out on paper."""
    layer: Any = quadric.QuadraticLinear(2, 6, rank=2, dtype=F64)
    weight = [[1.0, 0], [0, 1], [1, 1], [2, 0], [1, -1], [0, 0.5]]
    values = {"weight": weight, "bias": [0.5, 0, 0, 0, 1, 0], "eigenvalues": [1, 0.1, -1, 2]}
    layer.load_state_dict({k: torch.tensor(v, dtype=F64) for k, v in values.items()})
    out = layer(torch.tensor([1.0, 10.0], dtype=F64))
    # f = 10, 11, then 1 - 10 + 1 = -8, 5; y = 1.5 + 100 + 12.1 and 2 - 64 + 50
    torch.testing.assert_close(out, torch.tensor([113.6, 10, 11, -12, -8, 5], dtype=F64))


@pytest.mark.parametrize(
    ("direct", "named"),
    [
        (NeuronLinear(4, 4, neuron="eigen"), quadric.QuadraticLinear(4, 4)),
        (
            NeuronConv2d(4, 8, 3, 2, neuron="eigen", rank=3, normalize=True, bias=False),
            quadric.QuadraticConv2d(4, 8, 3, 2, rank=3, normalize=True, bias=False),
        ),
    ],
    ids=["linear", "conv"],
)
def test_the_general_class_builds_the_same_layer(direct: Any, named: Any) -> None:
    nn.init.normal_(direct.eigenvalues)
    named.load_state_dict(direct.state_dict())
    x = torch.randn(3, 4) if direct.linear_class is nn.Linear else torch.randn(2, 4, 5, 5)
    assert torch.equal(direct(x), named(x))
    assert direct.neuron_ranks == named.neuron_ranks
    assert torch.equal(direct.to_dense()[0], named.to_dense()[0])
    assert torch.equal(direct.fold_normalization_()(x), named.fold_normalization_()(x))


# ------------------------------------------------------------------------------------------------
# Every argument of torch's convolutions
# ------------------------------------------------------------------------------------------------

PLAIN: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
MODES = ("zeros", "reflect", "replicate", "circular")
# What tests/layers/test_hypothesis.py does not draw.
CONVOLUTIONS: list[dict[str, Any]] = [
    *({"padding": p, "padding_mode": m} for p in ("same", "valid") for m in MODES),
    {"padding": "same", "dilation": 2},
]
TWO_SIDED: list[dict[str, Any]] = [
    *({"kernel_size": (2, 4), "padding": "same", "padding_mode": mode} for mode in MODES),
    *({"kernel_size": (3, 2), "padding": (0, 2), "padding_mode": m} for m in ("zeros", "circular")),
    {"kernel_size": (3, 1), "stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
]
GRID = [
    *((PLAIN[d], (7, 5, 4)[:d], {"kernel_size": 3, **o}) for d in PLAIN for o in CONVOLUTIONS),
    *((nn.Conv2d, (5, 4), options) for options in TWO_SIDED),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(("plain", "space", "options"), GRID, ids=str)
def test_every_argument_of_torch(plain: Any, space: tuple[int, ...], options: Any) -> None:
    geometry = Geometry(plain, (2, 8), (2, 2, *space), options)
    layer, x = make(geometry), geometry.input()
    assert_close(layer(x), EIGEN.reference(layer, x))
    with torch.no_grad():
        layer.eigenvalues.zero_()
    torch.testing.assert_close(layer(x), layer.to_linear()(x), rtol=0, atol=0)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "fan"])
def test_transposed_output_size(neuron: str) -> None:
    plain = nn.ConvTranspose2d(2, 5, 3, stride=2, padding=1, dtype=F64)
    layer: Any = quadric.make_layer(plain, neuron=neuron)
    x = torch.randn(2, 2, 3, 3, dtype=F64)
    sizes: list[Any] = [(5, 5), (6, 5), [6, 6], (2, 5, 6, 6)]
    for size in sizes:
        torch.testing.assert_close(layer(x, output_size=size), plain(x, output_size=size))
    randomize_(layer)
    assert layer(x).shape[2:] == (5, 5)
    assert_close(layer(x, output_size=(6, 6))[..., :5, :5], layer(x))
    with pytest.raises(ValueError, match="output size"):
        layer(x, output_size=(9, 9))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x, output_size=(6, 5)), layer(x, output_size=(6, 5)))


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
@pytest.mark.parametrize("plain", [nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_channels_last_is_kept(plain: Any, neuron: str) -> None:
    dims = 3 if plain is nn.Conv3d else 2
    memory_format = torch.channels_last if dims == 2 else torch.channels_last_3d
    layer: Any = quadric.make_layer(plain, 4, 8, 3, padding=1, neuron=neuron, rank=2)
    randomize_(layer)
    x = torch.randn(2, 4, *(6,) * dims)
    expected = layer(x)
    x = x.to(memory_format=memory_format).requires_grad_()
    out = layer.to(memory_format=memory_format)(x)
    assert out.is_contiguous(memory_format=memory_format)
    assert_close(out, expected)
    out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=memory_format)


# ------------------------------------------------------------------------------------------------
# Responses and dense forms
# ------------------------------------------------------------------------------------------------


@each_geometry
@each_normalize
@pytest.mark.parametrize("rank", [2, 50])
def test_responses_are_the_parts_of_the_output(
    geometry: Geometry, rank: int, normalize: bool
) -> None:
    layer, x = make(geometry, rank, normalize=normalize), geometry.input()
    linear, quadratic, features = layer.responses(x)
    neurons = reference.neuron_channels(geometry.outputs, rank, geometry.groups)
    of_y = torch.tensor([y for y, _ in neurons])
    of_f = torch.tensor([f for _, group in neurons for f in group], dtype=torch.long)
    plain, truth = layer.to_linear()(x), EIGEN.reference(layer, x)
    assert_close(linear, plain.index_select(geometry.dim, of_y))
    assert_close(quadratic, (truth - plain).index_select(geometry.dim, of_y))
    assert_close(features, truth.index_select(geometry.dim, of_f))


@each_geometry
@each_normalize
@pytest.mark.parametrize(("neuron", "rank"), [("eigen", 2), ("eigen", 50), ("shared", 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_to_dense_is_the_same_function(
    geometry: Geometry, neuron: str, rank: int, normalize: bool, bias: bool
) -> None:
    options = {"normalize": True} if normalize and neuron == "eigen" else {}
    layer: Any = randomize_(geometry.make(neuron, rank=rank, bias=bias, **options))
    x = geometry.input()
    M, w, b = layer.to_dense()
    m, n = layer.num_neurons, filters(layer, "weight").shape[1]
    assert (M.shape, w.shape, b.shape) == ((m, n, n), (m, n), (m,))
    torch.testing.assert_close(M, M.transpose(1, 2))
    size = m // geometry.groups

    def form(_: Any, part: slice, patch: Tensor) -> Tensor:
        group = part.start // (part.stop - part.start)
        own = slice(group * size, (group + 1) * size)
        return reference.general(patch, M[own], w[own], b[own])

    got = type(EIGEN)("dense", {}, form).reference(layer, x)
    heads = torch.tensor(layer.blocks.heads if neuron == "eigen" else range(layer.num_outputs))
    assert_close(got, layer(x).index_select(geometry.dim, heads))


def test_to_dense_refuses() -> None:
    with pytest.raises(ValueError, match=r"max_bytes = 1,073,741,824, but 1 matrices of 300000"):
        quadric.QuadraticLinear(300_000, 10, device="meta").to_dense()
    with pytest.raises(ValueError, match="to_dense is for neurons z"):
        NeuronLinear(3, 4, neuron="fan").to_dense()
    with pytest.raises(ValueError, match="neuron_ranks is for"):
        _ = NeuronLinear(3, 4, neuron="fan").neuron_ranks


@pytest.mark.parametrize("m", [1, 3])
def test_from_dense_at_full_rank_is_the_same_function(m: int) -> None:
    n = 4
    M, w, b = (torch.randn(*shape, dtype=F64) for shape in [(m, n, n), (m, n), (m,)])
    layer = quadric.QuadraticLinear.from_dense(M, w, b, rank=n)
    assert (layer.in_features, layer.out_features, layer.rank) == (n, m * (n + 1), n)
    assert all(parameter.requires_grad for parameter in layer.parameters())
    x = torch.randn(5, n, dtype=F64)
    expected = reference.over_vectors(lambda v: reference.general(v, M, w, b), x)
    assert_close(layer(x)[:, :: n + 1], expected)
    again = quadric.QuadraticLinear.from_dense(*layer.to_dense(), rank=n)
    for one, other in zip(again.to_dense(), layer.to_dense(), strict=True):
        assert_close(one, other)


def test_from_dense_keeps_the_largest_eigenvalues_by_magnitude() -> None:
    basis, _ = torch.linalg.qr(torch.randn(4, 4, dtype=F64))
    values = torch.tensor([0.5, -4.0, 1.0, 3.0], dtype=F64)
    layer = quadric.QuadraticLinear.from_dense(
        (basis * values) @ basis.T, torch.zeros(4, dtype=F64), torch.tensor(1.0, dtype=F64), rank=2
    )
    kept = (basis[:, [1, 3]] * values[[1, 3]]) @ basis[:, [1, 3]].T
    assert_close(layer.to_dense()[0][0], kept)


# ------------------------------------------------------------------------------------------------
# Starts and normalization
# ------------------------------------------------------------------------------------------------


@each_geometry
def test_from_linear_is_the_same_function(geometry: Geometry) -> None:
    named: Any = type(geometry.make("eigen"))
    plain = geometry.make_plain(bias=False, dtype=torch.bfloat16).eval()
    plain.weight.requires_grad_(False)
    layer = named.from_linear(plain, 3, recompute=True)
    assert type(layer) is named
    assert layer.rank == 3
    assert layer.bias is None
    assert layer.weight is plain.weight
    assert layer.eigenvalues.dtype == torch.bfloat16
    assert layer.eigenvalues.requires_grad
    assert not layer.training
    x = geometry.input(torch.bfloat16)
    assert torch.equal(layer(x), plain(x))
    with pytest.raises(TypeError, match=r"BatchNorm1d"):
        named.from_linear(nn.BatchNorm1d(4))


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
@pytest.mark.parametrize("spec", [nn.Linear(3, 12), nn.Linear], ids=["layer", "class"])
def test_the_start_of_the_eigenvalues_is_heard(neuron: str, spec: Any) -> None:
    def start(**options: Any) -> Tensor:
        args = (3, 12) if isinstance(spec, type) else ()
        layer: Any = quadric.make_layer(spec, *args, neuron=neuron, **options)
        first = layer.eigenvalues.detach().clone()
        layer.reset_parameters()
        assert torch.equal(first.abs(), layer.eigenvalues.abs())
        return first

    assert not start().any()
    signs = start(eigenvalue_init="random_sign")
    assert torch.all(signs.abs() == signs[0].abs())
    assert signs.sign().unique().tolist() == [-1, 1]
    quarter = start(eigenvalue_init=lambda eigenvalues: nn.init.constant_(eigenvalues, 0.25))
    assert torch.all(quarter == 0.25)
    assert not start(eigenvalue_init="random_sign", init="linear").any()
    for wrong in ("ones_please", 3.5):
        with pytest.raises(ValueError, match=rf"'zeros', 'random_sign' or .*, got {wrong!r}"):
            start(eigenvalue_init=wrong)


@each_geometry
def test_normalized_squares_do_not_shrink_with_the_eigenvectors(geometry: Geometry) -> None:
    layer, x = make(geometry, normalize=True, bias=False), geometry.input()
    _, before, features = layer.responses(x)
    with torch.no_grad():
        layer.weight.mul_(0.1)
    _, after, smaller = layer.responses(x)
    assert_close(after, before)
    assert_close(smaller, 0.1 * features)
    expected = layer(x)
    assert layer.normalize
    assert layer.fold_normalization_() is layer
    assert not layer.normalize
    assert "normalize" not in repr(layer)
    assert_close(layer(x), expected)
    assert_close(layer.fold_normalization_()(x), expected)  # nothing left to fold
    # A filter of zeros has no direction: its constant feature has no square, nor an infinite one.
    layer = make(geometry, normalize=True)
    with torch.no_grad():
        layer.weight.zero_()
    out = layer(x)
    assert torch.equal(out, layer.to_linear()(x))
    out.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


def test_text() -> None:
    assert repr(quadric.QuadraticConv2d(3, 20, 3, normalize=True)) == (
        "QuadraticConv2d(3, 20, kernel_size=(3, 3), stride=(1, 1), rank=9, num_neurons=2, "
        "normalize=True)"
    )
    text = quadric.QuadraticLinear(3, 8, rank=2, eigenvalue_init="random_sign").extra_repr()
    assert text == (
        "in_features=3, out_features=8, bias=True, rank=2, num_neurons=3, "
        "eigenvalue_init='random_sign'"
    )


# ------------------------------------------------------------------------------------------------
# Refusals
# ------------------------------------------------------------------------------------------------

M, W, B = torch.eye(3)[None], torch.zeros(1, 3), torch.zeros(1)
from_dense = quadric.QuadraticLinear.from_dense
Linear, Conv2d, Back2d = (
    quadric.QuadraticLinear,
    quadric.QuadraticConv2d,
    quadric.QuadraticConvTranspose2d,
)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    *((lambda r=r: Linear(3, 4, rank=r), ValueError, rf"rank .*>= 1, got {r}\b") for r in (0, -7)),
    *(
        (lambda r=r: Conv2d(3, 4, 1, rank=r), TypeError, r"rank must be an integer.*got .*:")
        for r in (2.0, "3", [1], None, True)
    ),
    (lambda: Linear(3, 0), ValueError, "out_features must be >= 1, got 0"),
    (lambda: Linear(2.5, 3), TypeError, "in_features must be an integer"),
    (lambda: Conv2d(3, 0, 1), ValueError, "out_channels must be >= 1, got 0"),
    (lambda: Linear(3, 4, True, 5), TypeError, "positional"),
    (lambda: Conv2d(3, 4, 1, 1, 0, 1, 1, True, "zeros", 5), TypeError, "positional"),
    (lambda: Linear(3, 4, dtype=torch.int32), TypeError, "torch.int32"),
    (lambda: Linear(3, 4, dtype="float32"), TypeError, "dtype must be a torch.dtype"),
    (lambda: Conv2d(4, 7, 3, groups=2), ValueError, r"out.*divisible by groups.*\b7\b.*\b2\b"),
    (lambda: Back2d(5, 8, 3, groups=2), ValueError, r"in.*divisible by groups.*\b5\b.*\b2\b"),
    (lambda: Conv2d(4, 8, 3, groups=0), ValueError, r"groups.*0"),
    (lambda: Conv2d(2, 4, 3, padding="full"), ValueError, r"full|same.*valid"),
    (lambda: Conv2d(2, 4, 3, stride=2, padding="same"), ValueError, r"(?i)same.*stride"),
    (lambda: Back2d(2, 4, 3, padding_mode="circular"), ValueError, "zeros"),
    (lambda: from_dense(M[:, :, :2], W, B), ValueError, r"square.*\(1, 3, 2\)"),
    (lambda: from_dense(M * torch.nan, W, B), ValueError, r"(?i)nan|finite"),
    (lambda: from_dense(M, W, B, rank=0), ValueError, r"rank must be .*>= 1.*got 0"),
    (lambda: from_dense(M, torch.zeros(1, 4), B), ValueError, r"\bw\b.*4"),
    (lambda: from_dense(M, W, torch.zeros(2)), ValueError, r"got w \(1, 3\), b \(2,\)"),
    (lambda: from_dense(M, None), TypeError, "w must be a tensor, got NoneType"),
    (lambda: from_dense(M, W / 0), ValueError, "w must be finite"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refuses(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square"])
def test_eigenvalues_of_the_wrong_length(neuron: str) -> None:
    layer: Any = CONV2D.make(neuron)
    number = layer.eigenvalues.numel()
    layer.eigenvalues = nn.Parameter(torch.zeros(number + 1, dtype=F64))
    with pytest.raises(ValueError, match=rf"\b{number}\b.*\b{number + 1}\b"):
        layer(CONV2D.input())


def test_parametrizations() -> None:
    """`weight` is read through the attribute; what needs the parameter itself says so."""

    class Twice(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            Twice.calls += 1
            return 2 * weight

    layer, x = make(LINEAR), LINEAR.input()
    nn.utils.parametrize.register_parametrization(layer, "weight", Twice())
    Twice.calls = 0
    out = layer(x)
    assert Twice.calls == 1
    assert_close(out, EIGEN.reference(layer, x))
    out.sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    with pytest.raises(ValueError, match=r"the weight of the .*must be a plain parameter"):
        layer.to_linear()
    plain = nn.Linear(3, 4)
    nn.utils.parametrize.register_parametrization(plain, "bias", Twice())
    with pytest.raises(ValueError, match=r"the bias of the .*must be a plain parameter"):
        quadric.make_layer(plain, neuron="eigen")
