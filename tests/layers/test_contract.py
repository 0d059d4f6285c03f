"""What every layer must do, whatever its neuron and its geometry."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import quadric
from quadric.layers import QuadraticLayer, neurons
from tests.conftest import assert_close
from tests.layers.cases import (
    CASES,
    CONV1D,
    CONV2D,
    CONV3D,
    EIGEN,
    F64,
    LINEAR,
    SHARED,
    TRANSPOSED2D,
    Case,
    Geometry,
    each_case,
    each_geometry,
    each_layer,
    each_linear_start,
    each_neuron,
    each_quadratic_layer,
    each_squares_layer,
)

each_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def test_every_neuron_has_a_case() -> None:
    assert {case.neuron for case in CASES} == set(neurons())
    for case in CASES:
        row = neurons()[case.neuron]
        assert row.can_be_linear == case.can_be_linear
        assert row.transposable == case.transposable
        assert row.with_options(**case.options).degree == case.degree


# ------------------------------------------------------------------------------------------------
# The formula and its derivatives
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_reference(
    case: Case, geometry: Geometry, bias: bool
) -> None:
    layer, x = case.make(geometry, bias=bias), geometry.input().requires_grad_()
    inputs = [x, *(p for p in layer.parameters() if p.numel())]
    out, truth = layer(x), case.reference(layer, x)
    assert_close(out, truth)
    with torch.no_grad():
        assert_close(layer(x), truth)
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, seed)
    # A transposed convolution may crop away every position that reads the input.
    expected = torch.autograd.grad(truth, inputs, seed, allow_unused=True, materialize_grads=True)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("geometry", [LINEAR, CONV2D], ids=["Linear", "Conv2d"])
@each_neuron
def test_second_gradients(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry), geometry.input()[:1].requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

    inputs = (x, *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradgradcheck(layer, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@each_layer
def test_is_a_polynomial_of_its_degree(case: Case, geometry: Geometry) -> None:
    """Along a ray t*x: differences of an order above the degree vanish, of the degree do not."""
    layer, x = case.make(geometry), geometry.input()
    degree = case.degree
    with torch.no_grad():
        ray = torch.stack([layer(t * x) for t in range(-4, 5)])
    if degree is None:
        assert ray.diff(n=6, dim=0).abs().max() > 1e-3
        return
    above = ray.diff(n=degree + 1, dim=0)
    torch.testing.assert_close(above, torch.zeros_like(above), rtol=0, atol=1e-8)
    if case.options.get("normalize") and geometry.outputs // geometry.groups < 2:
        return
    assert ray.diff(n=degree, dim=0).abs().max() > 1e-3


@each_layer
def test_responses_add_up(case: Case, geometry: Geometry) -> None:
    if case.neuron in ("linear", "eigen"):
        return  # test_eigen.py
    layer, plain, x = case.make(geometry), case.make(geometry, bias=False), geometry.input()
    with torch.no_grad():
        linear, quadratic, features = layer.responses(x)
        assert features.numel() == 0
        assert_close(linear + quadratic, layer(x))
        # The first part is affine in x; without biases, that is all of it: the other has no slope.
        ray = torch.stack([layer.responses(t * x)[0] for t in range(3)])
        assert_close(ray.diff(n=2, dim=0), torch.zeros_like(ray[:1]))
        at_zero = plain.responses(1e-6 * x)[1] - plain.responses(0 * x)[1]
        assert at_zero.abs().max() < 1e-10


@each_squares_layer
def test_per_sample_gradients_and_forward_mode(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry), geometry.input()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layer, parameters, (sample,)).pow(2).sum()

    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i, sample in enumerate(x):
        value = layer(sample).pow(2).sum()
        for name, one in zip(
            parameters, torch.autograd.grad(value, [*layer.parameters()]), strict=True
        ):
            assert_close(got[name][i], one)
    layer.requires_grad_(False)
    tangent = torch.randn_like(x)
    expected = torch.func.jvp(lambda x: case.reference(layer, x), (x,), (tangent,))[1]
    assert_close(torch.func.jvp(layer, (x,), (tangent,))[1], expected)
    with torch.autograd.forward_ad.dual_level():
        out = layer(torch.autograd.forward_ad.make_dual(x, tangent))
        assert_close(torch.autograd.forward_ad.unpack_dual(out).tangent, expected)  # type: ignore[arg-type]


@each_squares_layer
@pytest.mark.parametrize("wanted", ["input", "weight", "bias", "eigenvalues"])
def test_gradient_of_one_input_alone(case: Case, geometry: Geometry, wanted: str) -> None:
    """Frozen parameters, or an input that needs no gradient, change nothing for the others."""
    layer, x = case.make(geometry), geometry.input().requires_grad_(wanted == "input")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == wanted)
    tensor = x if wanted == "input" else getattr(layer, wanted)
    (got,) = torch.autograd.grad(layer(x).sin().sum(), tensor)
    (expected,) = torch.autograd.grad(case.reference(layer, x).sin().sum(), tensor)
    assert_close(got, expected)
    layer.requires_grad_(False)
    assert not layer(x.detach()).requires_grad
    with torch.inference_mode():
        assert layer(x.detach()).is_inference()


@each_squares_layer
def test_still_its_formula_after_three_steps_of_training(case: Case, geometry: Geometry) -> None:
    layer, x = geometry.make(case.neuron, **case.options), geometry.input()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in layer.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).tanh().sum().backward()
        optimizer.step()
    for old, new in zip(before, layer.parameters(), strict=True):
        assert torch.all(old != new)
    assert_close(layer(x), case.reference(layer, x))


@each_quadratic_layer
def test_in_place_activation_behind(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry), geometry.input().requires_grad_()
    inputs = [x, *layer.parameters()]
    got = torch.autograd.grad(F.relu(layer(x), inplace=True).sum(), inputs)
    expected = torch.autograd.grad(F.relu(layer(x)).sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


# ------------------------------------------------------------------------------------------------
# Shapes, types, devices, copies
# ------------------------------------------------------------------------------------------------


@each_quadratic_layer
def test_any_batch_dtype_and_device(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry), geometry.input()
    out = layer(x)
    assert_close(layer(x[0]), out[0])
    empty = x[:0].requires_grad_()
    assert layer(empty).shape == (0, *out.shape[1:])
    layer(empty).sum().backward()
    assert all(torch.count_nonzero(p.grad) == 0 for p in layer.parameters())
    strided = torch.stack([x, x + 1], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    assert_close(layer(strided), out)
    single = copy.deepcopy(layer).float()(x.float())
    assert single.dtype == torch.float32
    assert_close(single, out)
    meta = layer.to("meta")(x.to("meta"))
    assert meta.is_meta
    assert meta.shape == out.shape
    F.relu(meta, inplace=True).sum().backward()


@each_case
def test_a_vector_and_leading_dimensions(case: Case) -> None:
    layer, vector = case.make(LINEAR), torch.randn(4, dtype=F64)
    assert_close(layer(vector), layer(vector.expand(2, 3, 4))[1, 2])
    layer(vector).sum().backward()
    assert layer(torch.zeros(2, 0, 4, dtype=F64)).shape == (2, 0, 7)


@each_neuron
@each_geometry
def test_is_built_as_torch_builds_a_layer(case: Case, geometry: Geometry) -> None:
    """Shapes, attributes, seed, device, dtype and text are those of the torch layer."""
    if geometry.transposed and not case.transposable:
        with pytest.raises(ValueError, match=f"'{case.neuron}' has no transposed convolution"):
            geometry.make(case.neuron)
        return
    torch.manual_seed(7)
    layer = geometry.make(case.neuron, dtype=torch.float32, **case.options)
    torch.manual_seed(7)
    plain = geometry.make_plain(dtype=torch.float32)
    if case.neuron != "pure":
        torch.testing.assert_close(layer.weight, plain.weight, rtol=0, atol=0)
        torch.testing.assert_close(layer.bias, plain.bias, rtol=0, atol=0)
    assert isinstance(layer, QuadraticLayer)
    assert not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
    assert layer.neuron == case.neuron
    assert layer.extra_repr().startswith(plain.extra_repr())
    assert list(layer.buffers()) == []
    for name in layer.geometry_names:
        assert getattr(layer, name) == getattr(plain, name), name
    declared = layer.quadratic_parameters()
    assert set(declared) == {name for name, _ in layer.named_parameters()} - {"weight", "bias"}
    assert all(value is getattr(layer, name) for name, value in declared.items())
    half = geometry.make(case.neuron, dtype=torch.float16, device="meta")
    assert all(p.is_meta and p.dtype == torch.float16 for p in half.parameters())
    again = half.to_empty(device="cpu")
    again.reset_parameters()
    assert all(torch.isfinite(p).all() for p in again.parameters())


@each_quadratic_layer
def test_copies_compute_the_same(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry), geometry.input()
    layer(x).sum().backward()
    loaded = case.make(geometry)
    assert not torch.allclose(loaded(x), layer(x))
    loaded.load_state_dict(layer.state_dict())
    for other in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert str(other) == str(layer)
        torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
        before = layer(x)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        assert not torch.equal(other(x), before)
        assert torch.equal(layer(x), before)


@each_squares_layer
def test_a_changed_geometry_is_heard(case: Case, geometry: Geometry) -> None:
    """As in torch: code that dilates or strides a network sets the attributes of its layers."""
    if not hasattr(geometry.make_plain(), "stride"):
        return
    for layer in (case.make(geometry), copy.deepcopy(case.make(geometry))):
        if layer.padding == "same":
            layer.padding = (0,) * len(layer.kernel_size)
        layer.stride = (1,) * len(layer.kernel_size)
        layer.output_padding = (0,) * len(layer.kernel_size)
        x = geometry.input()
        assert_close(layer(x), case.reference(layer, x))


@each_neuron
def test_refuses_an_input_that_does_not_fit(case: Case) -> None:
    with pytest.raises(ValueError, match=r"in_features = 4, got an input of shape \(2, 5\)"):
        case.make(LINEAR)(torch.zeros(2, 5, dtype=F64))
    with pytest.raises(ValueError, match=r"in_channels = 2 channels.*got shape \(1, 3, 4, 4\)"):
        case.make(CONV2D)(torch.zeros(1, 3, 4, 4, dtype=F64))
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=f"floating-point tensor, got {dtype}"):
            case.make(LINEAR)(torch.zeros(2, 4, dtype=dtype))


# ------------------------------------------------------------------------------------------------
# Half precision
# ------------------------------------------------------------------------------------------------


@each_quadratic_layer
@each_half
def test_half_precision(case: Case, geometry: Geometry, dtype: torch.dtype) -> None:
    layer, x = case.make(geometry).to(dtype), geometry.input().to(dtype).requires_grad_()
    out, truth = layer(x), case.reference(layer, x)
    assert out.dtype == dtype
    limit = {torch.bfloat16: 0.03, torch.float16: 0.005}[dtype]
    assert (out - truth).abs().max() < limit * truth.abs().max()
    if case.neuron in ("eigen", "shared"):
        inputs, seed = [x, *layer.parameters()], torch.randn_like(out)
        got = torch.autograd.grad(out, inputs, seed)
        for one, other in zip(got, torch.autograd.grad(truth, inputs, seed.double()), strict=True):
            assert one.dtype == dtype
            assert (one - other).double().norm() < limit * other.double().norm() + 1e-6


@each_squares_layer
@each_half
def test_autocast(case: Case, geometry: Geometry, dtype: torch.dtype) -> None:
    """Also behind an in-place operation, where backward computes the linear map again."""
    layer, x = case.make(geometry, dtype=torch.float32), geometry.input(torch.float32)
    inputs = [x.requires_grad_(), *layer.parameters()]
    results = []
    for inplace in (False, True):
        with torch.autocast("cpu", dtype=dtype):
            out = layer(x)
            assert out.dtype == layer.to_linear()(x).dtype == dtype
            assert_close(out, case.reference(layer, x))
            out = out.mul_(2) if inplace else out * 2
        results.append(torch.autograd.grad(out.float().sum(), inputs))
    expected = torch.autograd.grad(2 * case.reference(layer, x).sum(), inputs)
    for kept, again, value in zip(*results, expected, strict=True):
        torch.testing.assert_close(again, kept, rtol=1e-6, atol=1e-6)
        assert kept.dtype == torch.float32
        assert (kept - value).norm() < 0.05 * value.norm() + 1e-3


@pytest.mark.parametrize(
    "neuron", ["square", "symmetric", "shared", "qres", "quadralib", "fan", "cross"]
)
def test_products_are_accumulated_in_float32(neuron: str) -> None:
    """Each factor fits float16, their product does not, the sum does: no inf in between."""
    layer: Any = quadric.make_layer(nn.Linear, 1, 2, bias=False, neuron=neuron, dtype=torch.float16)
    values: dict[str, tuple[dict[str, float], float]] = {
        "square": ({"weight": 300, "eigenvalues": 0.01}, 900 + 300),
        "shared": ({"weight": 300, "eigenvalues": 0.01}, 2 * 900 + 300),
        "symmetric": ({"eigenvectors": 300, "eigenvalues": 0.01}, 9 * 900),
        "cross": ({"weight": 300, "v": 150, "u": 1e-4}, 300 * (1 + 4 * 9)),
        "fan": ({"weight": 250, "weight2": 279, "weight3": -60000}, 250 * 280 - 60000),
        "qres": ({"weight": -300, "weight2": 300}, -90000 - 300),
        "quadralib": ({"weight1": -300, "weight2": 300, "weight": 60000}, -90000 + 60000),
    }
    given, expected = values[neuron]
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.fill_(given.get(name, 0))
    out = layer(torch.ones(1, 1, dtype=torch.float16))
    wanted = torch.full((1, 2), float(expected)).half()
    torch.testing.assert_close(out, wanted, rtol=2e-3, atol=0)


# ------------------------------------------------------------------------------------------------
# To and from linear layers
# ------------------------------------------------------------------------------------------------


@each_linear_start
@each_geometry
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_taken_over_and_given_back(
    case: Case, geometry: Geometry, bias: bool
) -> None:
    if geometry.transposed and not case.transposable:
        return
    plain, x = geometry.make_plain(bias), geometry.input()
    plain.weight.requires_grad_(False)
    before = plain.eval()(x)

    def same(layer: Any) -> None:
        torch.testing.assert_close(layer(x), before, rtol=1e-12, atol=1e-12)

    layer: Any = quadric.make_layer(plain, neuron=case.neuron, **case.options)
    same(layer)
    assert not layer.training
    assert not layer.weight.requires_grad
    doubled = case.options.get("act") == "sigmoid"
    assert (layer.weight is plain.weight) == (not doubled)
    if case.neuron == "linear":
        assert layer is plain
        return
    assert layer.is_linear()
    back = layer.to_linear()
    assert type(back) is geometry.plain
    assert str(back) == str(plain)
    same(back)
    for assign in (False, True):
        for device in ("cpu", "meta") if assign else ("cpu",):
            loaded = case.make(geometry, bias=bias).to(device)
            state = plain.state_dict()
            loaded.load_state_dict(state, assign=assign)
            same(loaded)
            assert sorted(state) == sorted(["weight", "bias"] if bias else ["weight"])
            assert loaded.is_linear()
            assert all(isinstance(p, nn.Parameter) for p in loaded.parameters())
    drawn = geometry.make(case.neuron, bias=bias, init="linear", **case.options)
    torch.testing.assert_close(drawn(x), drawn.to_linear()(x), rtol=1e-12, atol=1e-12)
    assert (
        drawn.to_linear().weight.abs().max() <= 1 / (plain.weight[0].numel() ** 0.5) * 1.001
        or geometry.transposed
    )
    assert not case.make(geometry, bias=bias).is_linear()
    # Some quadratic parameter receives a gradient at once, or the layer stayed linear for ever.
    layer(x).square().sum().backward()
    grads = [p.grad for p in layer.quadratic_parameters().values()]
    assert any(g is not None and torch.count_nonzero(g) for g in grads)


@each_case
def test_neurons_that_cannot_be_linear_say_so(case: Case) -> None:
    if case.can_be_linear:
        return
    with pytest.raises(ValueError, match=f"'{case.neuron}' must be one of published, got 'linear'"):
        quadric.make_layer(nn.Linear(3, 4), neuron=case.neuron, init="linear", **case.options)
    # Without a start asked for, the published one is drawn anew.
    layer = case.make(LINEAR)
    assert layer.init == "published"
    with pytest.raises(ValueError, match="must have a linear part of its own"):
        layer.to_linear()
    if layer.quadratic_parameters():
        with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
            layer.load_state_dict(nn.Linear(4, 7).state_dict())


@each_neuron
def test_a_partial_checkpoint_fills_nothing(case: Case) -> None:
    layer = case.make(CONV1D)
    state = layer.state_dict()
    names = list(layer.quadratic_parameters())
    if len(names) > 1:
        kept = getattr(layer, names[0]).clone()
        partial = {name: value for name, value in state.items() if name != names[0]}
        with pytest.raises(RuntimeError, match=f"Missing key.*{names[0]}"):
            layer.load_state_dict(partial)
        layer.load_state_dict(partial, strict=False)
        assert torch.equal(getattr(layer, names[0]), kept)
    before = {name: value.clone() for name, value in state.items()}
    missing = layer.load_state_dict({"bias": before["bias"] + 1}, strict=False).missing_keys
    assert set(missing) == set(before) - {"bias"}
    for name, value in before.items():
        assert torch.equal(layer.state_dict()[name], value) == (name != "bias")


# ------------------------------------------------------------------------------------------------
# Compilers
# ------------------------------------------------------------------------------------------------


@each_neuron
def test_compiles_in_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    layer, x = case.make(CONV1D), CONV1D.input()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("case", [EIGEN, SHARED], ids=["eigen", "shared"])
@pytest.mark.parametrize("geometry", [LINEAR, CONV2D, TRANSPOSED2D], ids=lambda g: g.name)
def test_trains_compiled(case: Case, geometry: Geometry) -> None:
    """Through aot_eager: forward and backward are traced, and an in-place activation behind."""
    torch._dynamo.reset()
    layer, x = case.make(geometry), geometry.input().requires_grad_()
    inputs = [x, *layer.parameters()]

    def block(x: Tensor) -> Tensor:
        return F.relu(layer(x), inplace=True)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(x).square().sum(), inputs)
    expected = torch.autograd.grad(F.relu(case.reference(layer, x)).square().sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@each_neuron
@pytest.mark.parametrize("geometry", [LINEAR, CONV2D, CONV3D], ids=lambda g: g.name)
def test_exports(case: Case, geometry: Geometry) -> None:
    layer, x = case.make(geometry).eval(), geometry.input()
    program = torch.export.export(layer, (x,))
    assert_close(program.module()(x), layer(x))


@each_quadratic_layer
def test_symbolic_trace_is_one_call_with_the_layers_parameters(
    case: Case, geometry: Geometry
) -> None:
    layer, x = case.make(geometry), geometry.input()
    traced = torch.fx.symbolic_trace(layer)
    assert torch.equal(traced(x), layer(x))
    assert dict(traced.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    traced(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    inside = torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU()))
    assert [n.op for n in inside.graph.nodes].count("call_module") == 2
