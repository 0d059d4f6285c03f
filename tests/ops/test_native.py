"""The fused kernels against the plain formula in float64, and what happens where there are none."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import subprocess
import sys
import types

import pytest
import torch
from quadric.joining import join_
from quadric.ops._squares import EigenSquares, Finish, SharedSquares, backward_with_bias
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import quadric
from quadric.ops import native as kernels
from tests.conftest import need_kernels

NEURONS = {"eigen": EigenSquares, "shared": SharedSquares}
SHAPES = [  # shape, channel dimension counted from the end
    ((5, 37), -1),
    ((1, 1), -1),
    ((2, 3, 24), -1),
    ((2, 33, 64), -2),
    ((3, 20, 7, 9), -3),
    ((2, 48, 16, 16), -3),
    ((16, 5, 5), -3),
    ((19, 330), -1),
    ((2, 24, 4, 5, 3), -4),
]


@pytest.fixture(autouse=True)
def _kernels():
    need_kernels()
    yield
    quadric.use_kernels(False)


def in_format(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if channels_last and tensor.dim() in formats:
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    return tensor


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("rank", [1, 3, 4, 8, 9, 16, 40])
@pytest.mark.parametrize("neuron", NEURONS)
def test_equals_the_plain_formula(neuron, rank, shape, dim, channels_last):
    squares = NEURONS[neuron](rank, dim)
    channels = shape[dim]
    z = in_format(torch.randn(shape), channels_last)
    lam = torch.randn(squares.num_eigenvalues(channels))
    grad = torch.randn(shape)
    z64, lam64 = z.double().requires_grad_(), lam.double().requires_grad_()
    expected = squares.plain(z64, lam64)
    expected.backward(grad.double())

    assert kernels.layout(z, dim) is not None
    out = z.clone()
    squares.forward_(out, lam)
    assert out.stride() == z.stride()
    torch.testing.assert_close(out.double(), expected.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(squares.forward(z, lam), out, rtol=1e-6, atol=1e-6)
    kept = out if neuron == "eigen" else z
    given = grad.clone()
    grad_z, grad_lam = squares.backward(grad, kept, lam, True)
    torch.testing.assert_close(grad, given, rtol=0, atol=0)
    torch.testing.assert_close(grad_z.double(), z64.grad, rtol=1e-5, atol=1e-4)
    scale = float(lam64.grad.abs().max()) if lam64.numel() else 1.0
    torch.testing.assert_close(grad_lam.double(), lam64.grad, rtol=1e-5, atol=1e-5 * scale)
    own = torch.empty_like(z).copy_(grad)
    again = squares.backward(own, kept, lam, True, overwrite=True)
    torch.testing.assert_close(again, (grad_z, grad_lam), rtol=0, atol=0)
    if lam.numel():  # else nothing is computed
        in_rows = dim == -1 or (channels_last and len(shape) > 3)
        in_place = in_rows and kernels.has_norm(squares.widest(channels))
        assert (again[0].data_ptr() == own.data_ptr()) == in_place


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("rank", [1, 8, 9, 15, 16, 40])
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize(
    ("scaled", "shifted", "relu"),
    [(False, True, False), (False, False, True), (True, True, True), (True, False, False)],
)
def test_what_follows_the_squares(
    scaled,
    shifted,
    relu,
    neuron,
    rank,
    shape,
    dim,
    channels_last,
):
    squares = NEURONS[neuron](rank, dim)
    out = in_format(torch.randn(shape), channels_last)
    lam = torch.randn(squares.num_eigenvalues(shape[dim]))
    shift = torch.randn(shape[dim]) if shifted else None
    scale = torch.randn(shape[dim]) if scaled else None
    expected = squares.plain(out.double(), lam.double())
    if scale is not None:
        expected = expected * scale.double().reshape(-1, *(1,) * (-1 - dim))
    if shift is not None:
        expected = expected + shift.double().reshape(-1, *(1,) * (-1 - dim))
    if relu:
        expected = expected.clamp_min(0)
    squares.forward_(out, lam, Finish(shift, relu, scale))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("rank", [1, 8, 9, 15, 16, 40, 70])
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_bias_that_is_left_to_the_squares(neuron, rank, shape, dim):
    """Added in the kernels where channels lie in rows, before them where they do not."""
    squares = NEURONS[neuron](rank, dim)
    linear, bias, shift = torch.randn(shape), torch.randn(shape[dim]), torch.randn(shape[dim])
    lam = torch.randn(squares.num_eigenvalues(shape[dim]))
    ones = (1,) * (-1 - dim)
    biased = linear.double() + bias.double().reshape(-1, *ones)
    expected = squares.plain(biased, lam.double())
    out = linear.clone()
    squares.forward_(out, lam, bias=bias)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    out = linear.clone()
    squares.forward_(out, lam, Finish(shift, True), bias)
    finished = (expected + shift.double().reshape(-1, *ones)).clamp_min(0)
    torch.testing.assert_close(out.double(), finished, rtol=1e-5, atol=1e-4)
    out = linear.clone()
    new = squares.forward(out, lam, bias)  # kept for the backward pass: it has the bias then
    torch.testing.assert_close(new.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out.double(), biased, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", [(5, 37), (1, 1), (2, 3, 24), (300, 20), (19, 330)])
@pytest.mark.parametrize("rank", [1, 4, 8, 9, 16, 40])
@pytest.mark.parametrize("neuron", NEURONS)
def test_the_gradient_of_a_bias_comes_with_the_others(neuron, rank, shape):
    squares = NEURONS[neuron](rank)
    kept, grad = torch.randn(shape), torch.randn(shape)
    lam = torch.randn(squares.num_eigenvalues(shape[-1]))
    found = backward_with_bias(squares, grad, kept, lam, True)
    both = squares.backward(grad, kept, lam, True)
    torch.testing.assert_close(found[:2], both, rtol=0, atol=0)
    summed = both[0].double().flatten(0, -2).sum(0)
    torch.testing.assert_close(found[2].double(), summed, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
def test_the_gradient_of_a_bias_is_exact_over_many_rows(neuron):
    """One float for all of them would be wrong by a percent."""
    squares = NEURONS[neuron](3)
    rows = 300_000
    lam = torch.zeros(squares.num_eigenvalues(20))
    grad = torch.full((rows, 20), 0.1)
    of_bias = backward_with_bias(squares, grad, torch.ones(rows, 20), lam, True)[2]
    torch.testing.assert_close(of_bias, torch.full((20,), 0.1 * rows), rtol=1e-5, atol=0)


def test_a_bias_is_refused_where_channels_do_not_lie_in_rows():
    squares = EigenSquares(3, -2)
    out, lam = torch.zeros(2, 8, 5), torch.zeros(6)
    shape = kernels.layout(out, -2)
    with pytest.raises(ValueError, match="only to rows of channels, got 5 numbers"):
        kernels.forward("eigen", out, out, lam, squares.table(8), shape, bias=torch.zeros(8))
    with pytest.raises(ValueError, match="only to rows of channels, got 5 numbers"):
        kernels.backward("eigen", out, out, lam, squares.table(8), shape, bias=True)
    with pytest.raises(ValueError, match="need numbers on the CPU, got meta"):
        kernels.forward("eigen", out, out, lam.to("meta"), squares.table(8), shape)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_relu_keeps_nan_and_infinity(neuron, channels_last):
    out = in_format(torch.ones(2, 20, 3, 7), channels_last)
    out[0, 0, 0, 0], out[1, 10, 1, 1] = float("nan"), float("inf")
    squares = NEURONS[neuron](9, -3)
    lam = torch.full((squares.num_eigenvalues(20),), 0.25)
    expected = squares.plain(out, lam).relu()
    squares.forward_(out, lam, Finish(None, True))
    torch.testing.assert_close(out, expected, equal_nan=True)
    assert out.isnan().any()
    assert out.isinf().any()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("shape", "dim"), [((40, 48), -1), ((2, 48, 4, 5), -3)])
@pytest.mark.parametrize("rank", [1, 9, 20])
def test_an_infinite_output_stays_one(rank, shape, dim):
    """It takes part in no sum: neither its own nor its gradient may become NaN."""
    squares = EigenSquares(rank, dim)
    z, grad = torch.randn(shape), torch.randn(shape)
    lam = torch.randn(squares.num_eigenvalues(48))
    y = squares.neuron_ranks(48)[0] + 1  # the second neuron's
    at = (1, y) + (2,) * (z.dim() - 2)
    z[at] = float("inf")
    expected = squares.plain(z, lam)
    out = z.clone()
    squares.forward_(out, lam)
    assert out[at] == float("inf")
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    grad_z, grad_lam = squares.backward(grad, out, lam, True)
    assert grad_z[at] == grad[at]
    assert grad_z.isfinite().all()
    assert grad_lam.isfinite().all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rank", [1, 3, 4, 5, 8, 11, 16, 20])
def test_what_is_infinite_stays_in_its_group(rank):
    """Groups of 47 outputs share vectors, and the last is smaller: none sees another's."""
    squares = SharedSquares(rank)
    z, grad = torch.randn(40, 47), torch.randn(40, 47)
    lam = torch.rand(squares.num_eigenvalues(47)) + 0.5  # never zero: inf stays inf
    first = squares.group_sizes(47)[0]
    z[1, first] = z[2, 46] = grad[3, 0] = float("inf")
    expected = squares.plain(z, lam)
    assert expected[1, :first].isfinite().all()
    torch.testing.assert_close(squares.forward(z, lam), expected, rtol=1e-5, atol=1e-4)
    grad_z, _ = squares.backward(grad, z, lam, True)
    assert grad_z[1, :first].isfinite().all()
    assert grad_z[2, : 47 - squares.group_sizes(47)[-1]].isfinite().all()
    assert grad_z[3, first:].isfinite().all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_network_trains_as_on_the_plain_path(neuron, inplace, threads):
    torch.manual_seed(0)
    conv = quadric.make_layer(nn.Conv2d, 3, 26, 3, padding=1, neuron=neuron, rank=4)
    linear = quadric.make_layer(nn.Linear, 26, 17, neuron=neuron, rank=3)
    pool = nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(conv, nn.ReLU(inplace), pool, nn.Flatten(), linear, nn.SiLU(inplace))
    for name, parameter in model.named_parameters():
        if "eigenvalues" in name:
            nn.init.normal_(parameter, std=0.1)
    # Large enough for several threads to share the work.
    input = torch.randn(8, 3, 24, 24)
    reference = copy.deepcopy(model).double()
    quadric.use_kernels(False)
    reference(input.double()).square().sum().backward()
    quadric.use_kernels(True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model(input).square().sum().backward()
    finally:
        torch.set_num_threads(before)
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None, name
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("neuron", NEURONS)
def test_convolution_groups_stay_apart(neuron):
    layer = quadric.make_layer(nn.Conv2d, 4, 14, 3, groups=2, neuron=neuron, rank=3)
    nn.init.normal_(layer.eigenvalues)
    input = torch.randn(2, 4, 8, 8)
    expected = copy.deepcopy(layer).double()(input.double())
    torch.testing.assert_close(layer(input).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("neuron", NEURONS)
def test_awkward_inputs_run_the_plain_path(neuron):
    layer = quadric.make_layer(nn.Linear, 6, 12, neuron=neuron, rank=3)
    nn.init.normal_(layer.eigenvalues)
    assert layer(torch.randn(0, 6)).shape == (0, 12)
    strided = torch.randn(6, 5).T
    expected = copy.deepcopy(layer).double()(strided.double())
    torch.testing.assert_close(layer(strided).double(), expected, rtol=1e-5, atol=1e-5)
    # A gradient without memory of its own, as that of a sum is.
    layer(strided).sum().backward()
    assert layer.eigenvalues.grad is not None
    half = copy.deepcopy(layer).bfloat16()
    assert half(strided.bfloat16()).dtype == torch.bfloat16
    assert kernels.layout(torch.empty(2, 3).T, -1) is None
    assert kernels.layout(torch.empty(2, 3, dtype=torch.float64), -1) is None
    assert kernels.layout(torch.empty(2, 3, device="meta"), -1) is None


WAYS = ("forward", "backward", "norm_forward", "norm_backward")


@pytest.mark.parametrize("name", [f"quadric_{k}_{way}" for k in NEURONS for way in WAYS])
def test_a_library_that_computes_something_else_is_never_used(name):
    real = kernels._state.library
    if "norm" in name and not real.quadric_vectors():
        pytest.skip("this processor has no kernels with a BatchNorm")
    names = ["quadric_vectors", *(f"quadric_{k}_{way}" for k in NEURONS for way in WAYS)]
    fake = types.SimpleNamespace(**{each: getattr(real, each) for each in names})
    kernels._check(fake)
    setattr(fake, name, lambda *args: None)
    with pytest.raises(RuntimeError, match="wrong result in their self-test"):
        kernels._check(fake)


class Operations(TorchDispatchMode):
    """Counts the operators that reach the dispatcher, views aside."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("neuron", "more"),
    # eigen: room for the gradient and for the eigenvalues' sums; shared: also for its output.
    [("eigen", 3), ("shared", 4)],
)
def test_no_operator_besides_the_convolution_touches_an_activation(neuron, more):
    """The guard of the fusion: an operator that slips in is a pass over all activations."""
    counts = {}
    for name in ("linear", neuron):
        layer = quadric.make_layer(nn.Conv2d, 8, 20, 3, neuron=name)
        input = torch.randn(2, 8, 8, 8, requires_grad=True)
        with Operations() as operations:
            out = layer(input)
            out.backward(torch.ones_like(out))
        counts[name] = [n for n in operations.names if n not in ("detach", "empty")]
    added = list(counts[neuron])
    for name in counts["linear"]:
        added.remove(name)
    assert len(added) <= more, added
    assert not {"mul", "add", "pow", "square", "sum", "matmul", "bmm", "clone"} & set(added), added


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("train", [False, True])
def test_no_pass_for_the_bias_of_a_dense_layer(neuron, train):
    """torch copies a bias into every row before the product; here the squares bring it along."""
    names = {}
    for name in ("linear", neuron):
        layer = quadric.make_layer(nn.Linear, 8, 20, neuron=name)
        if name != "linear":
            nn.init.normal_(layer.eigenvalues)
        with Operations() as operations, torch.set_grad_enabled(train):
            layer(torch.randn(7, 3, 8))
        names[name] = operations.names
    assert "addmm" in names["linear"]
    assert "mm" in names[neuron]
    assert not {"addmm", "add", "add_", "copy_", "clone"} & set(names[neuron]), names


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape", [(8,), (5, 8), (4, 3, 8), (0, 8)])
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("trained", ["all", "bias", "all but bias", "bias behind an operation"])
def test_gradients_with_a_bias_that_is_left_to_the_squares(trained, neuron, shape, recompute):
    layer = quadric.make_layer(nn.Linear, 8, 20, neuron=neuron, recompute=recompute)
    nn.init.normal_(layer.eigenvalues)
    bias = [layer.bias]
    others = [layer.weight, layer.eigenvalues]
    wanted = {"all": others + bias, "all but bias": others}.get(trained, bias)
    for p in layer.parameters():
        p.requires_grad_(any(p is w for w in wanted))
    x = torch.randn(shape, requires_grad=trained == "all")
    given = layer.bias.clone() if "behind" in trained else layer.bias
    call = torch.func.functional_call(layer, {"bias": given}, (x,))
    twin = copy.deepcopy(layer).double()
    x64 = x.detach().double().requires_grad_(x.requires_grad)
    linear = nn.functional.linear(x64, twin.weight, twin.bias)
    expected = NEURONS[neuron](layer.rank).plain(linear, twin.eigenvalues)
    torch.testing.assert_close(call.detach().double(), expected.detach(), rtol=1e-5, atol=1e-5)
    inputs = [x] if x.requires_grad else []
    more = [x64] if x.requires_grad else []
    wanted64 = [p for p in (twin.weight, twin.eigenvalues, twin.bias) if p.requires_grad]
    found = torch.autograd.grad(call.sin().sum(), [*inputs, *wanted])
    right = torch.autograd.grad(expected.sin().sum(), [*more, *wanted64])
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("neuron", NEURONS)
def test_second_derivatives_with_a_bias_that_is_left_to_the_squares(neuron):
    layer = quadric.make_layer(nn.Linear, 8, 20, neuron=neuron)
    nn.init.normal_(layer.eigenvalues)
    twin = copy.deepcopy(layer).double()
    x = torch.randn(5, 8, requires_grad=True)

    def second(layer, x, out):
        own = [x, *layer.parameters()]
        (slope,) = torch.autograd.grad(out.sin().sum(), layer.bias, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), own)

    x64 = x.detach().double().requires_grad_()
    linear = nn.functional.linear(x64, twin.weight, twin.bias)
    expected = second(twin, x64, NEURONS[neuron](layer.rank).plain(linear, twin.eigenvalues))
    for a, b in zip(second(layer, x, layer(x)), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("train", [False, True])
def test_a_fresh_dense_layer_is_exactly_linear(neuron, train):
    """So many inputs that torch adds up products in several parts, the bias with the first."""
    linear = nn.Linear(2000, 40)
    layer = quadric.make_layer(linear, neuron=neuron)
    x = torch.randn(64, 2000)
    with torch.set_grad_enabled(train):
        assert torch.equal(layer(x), linear(x))


def test_a_bias_in_float64_stays_torch_s():
    layer = quadric.QuadraticLinear(8, 20, rank=4).double()
    nn.init.normal_(layer.eigenvalues)
    x = torch.randn(5, 8).double()
    linear = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), EigenSquares(4).plain(linear, layer.eigenvalues))


def test_a_bias_of_one_number_stays_torch_s():
    """torch broadcasts it; the kernels would read on behind it."""
    layer = quadric.make_layer(nn.Linear, 8, 20, neuron="shared", rank=4)
    nn.init.normal_(layer.eigenvalues)
    layer.bias = nn.Parameter(torch.randn(1))
    x = torch.randn(5, 8)
    linear = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), SharedSquares(4).plain(linear, layer.eigenvalues))


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_compiler_the_plain_path_runs(tmp_path):
    code = (
        "import quadric, torch\n"
        "print(quadric.use_kernels(True), quadric.ops.native.reason())\n"
        "print(quadric.QuadraticLinear(3, 20)(torch.ones(2, 3)).shape)"
    )
    told = run(code, PATH=str(tmp_path), CXX="", QUADRIC_CACHE=str(tmp_path / "cache"))
    assert told.startswith("False no C++ compiler was found")
    assert "torch.Size([2, 20])" in told


def test_another_default_device_does_not_matter():
    """A pointer to no memory at all would end the process."""
    code = (
        "import quadric, torch\n"
        "layer = quadric.QuadraticLinear(3, 20)\n"
        "x = torch.ones(2, 3)\n"
        "with torch.device('meta'):\n"
        "    print(quadric.use_kernels(True))\n"
        "    layer(x).sum().backward()\n"
        "print(layer.eigenvalues.grad.shape)"
    )
    assert run(code) == "True\ntorch.Size([18])\n"


def test_a_damaged_library_and_a_killed_build_are_survived(tmp_path, monkeypatch):
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path))
    left, going_on = (tmp_path / f"{kernels._UNFINISHED}{name}.so" for name in "ab")
    for file in (left, going_on):
        file.write_bytes(b"half a library")  # what a killed build leaves
    os.utime(left, (0, 0))
    built = kernels._build()
    assert built.parent == tmp_path
    assert built.stat().st_mode & 0o777 == 0o644
    assert not left.exists()
    assert going_on.exists()
    made = built.stat().st_mtime_ns
    assert kernels._build().stat().st_mtime_ns == made  # from the cache
    # The system loads what is there of a library that was cut, and ends the process at the rest.
    whole = built.read_bytes()
    built.write_bytes(whole[: len(whole) // 2])
    code = "import quadric; print(quadric.use_kernels(True), quadric.ops.native.reason())"
    assert run(code, QUADRIC_CACHE=str(tmp_path)) == "True None\n"
    assert built.stat().st_size == len(whole)


def test_a_library_that_cannot_be_loaded_is_the_reason(tmp_path):
    other = tmp_path / "kernels.so"
    other.write_bytes(b"not a library")
    with pytest.raises(RuntimeError, match="could not be loaded"):
        kernels._load(other)
    assert not other.exists()


def test_a_compiler_that_fails_is_the_reason(tmp_path, monkeypatch):
    broken = tmp_path / "c++"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 1.0 && exit 0\necho 'In a function' >&2\n"
        "echo 'error: no such flag' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels._state, "library", None)
    try:
        assert quadric.use_kernels(True) is False
        assert (kernels.reason() or "").endswith("the kernels: error: no such flag")
        assert not list((tmp_path / "cache").iterdir())
    finally:
        monkeypatch.undo()


def test_switching_off(tmp_path):
    assert kernels.active()
    assert quadric.use_kernels(False) is False
    assert not kernels.active()
    assert "switched off" in (kernels.reason() or "")
    assert kernels.layout(torch.empty(2, 3), -1) is None


GUARDED = """
import ctypes, mmap
import torch
import quadric
from quadric import _norm
from quadric.ops._squares import EigenSquares, Finish, SharedSquares
from quadric.ops.native import Norm

# Numbers that end where a page ends behind which nothing may be read or written.
libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE

def guarded(rows, channels):
    size = rows * channels * 4
    whole = -(-size // page) * page
    memory = mmap.mmap(-1, whole + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(address + whole), page, 0) == 0
    out = torch.frombuffer(memory, dtype=torch.float32, offset=whole - size, count=size // 4)
    return out.reshape(rows, channels).copy_(torch.randn(rows, channels))

assert quadric.use_kernels(True), quadric.ops.native.reason()
for channels in (10, 16, 20, 23, 26, 166):
    for rows in (1, 15, 16, 17, 40):
        for squares in (EigenSquares(9), EigenSquares(15), EigenSquares(5), SharedSquares(8)):
            out, grad = guarded(rows, channels), guarded(rows, channels)
            lam = torch.randn(squares.num_eigenvalues(channels))
            one = guarded(1, channels)[0]
            squares.forward_(out, lam, Finish(one, True, one))
            squares.backward(grad, out, lam, True)
            norm = Norm(one, one, 1e-5, True, True)
            _, mean, var = _norm.forward(out, lam, squares, norm, added=grad)
            _norm.backward(grad, out, lam, squares, norm, mean, var)
print("nothing behind")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="guards pages by Linux' own call")
def test_nothing_is_read_behind_the_last_row():
    command = [sys.executable, "-c", GUARDED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "nothing behind\n", done.stderr[-2000:] or done.returncode


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_a_graph_that_is_recorded_holds_the_squares(neuron, enabled, gradients, joined):
    """make_fx sees torch's operations, and not what the kernels do to a tensor."""
    quadric.use_kernels(enabled)
    layer = quadric.make_layer(nn.Linear, 20, 20, neuron=neuron, rank=4)
    nn.init.normal_(layer.eigenvalues)
    model = nn.Sequential(layer, nn.BatchNorm1d(20), nn.ReLU()).eval()
    x = torch.randn(5, 20)
    expected = model(x).detach()
    if joined:
        join_(model)
    with torch.set_grad_enabled(gradients):
        graph = make_fx(lambda x: model(x))(torch.randn(5, 20))
        torch.testing.assert_close(graph(x), expected, rtol=1e-5, atol=1e-5)


def test_a_copied_table_has_arrays_of_its_own():
    table = kernels.eigen_table((9, 3))
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert other == table
        assert other.arguments[:3] == tuple(ctypes.addressof(array) for array in other._arrays)
        assert other.arguments[:3] != table.arguments[:3]


@pytest.mark.parametrize("neuron", NEURONS)
def test_a_gradient_may_be_the_negative_of_what_lies_in_memory(neuron):
    squares = NEURONS[neuron](8)
    out, grad = torch.randn(6, 24), torch.randn(6, 24)
    lam = torch.randn(squares.num_eigenvalues(24))
    found = squares.backward(torch._neg_view(grad), out, lam, True)
    torch.testing.assert_close(found, squares.backward(-grad, out, lam, True), rtol=0, atol=0)
