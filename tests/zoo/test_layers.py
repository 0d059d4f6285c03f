"""Layers of every neuron: their formula, their starts, and what a drop-in layer must do besides."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric.layers import NeuronConv2d, NeuronLinear, QuadraticLayer, neurons
from tests.conftest import assert_close
from tests.zoo.cases import (
    CASE_IDS,
    CASES,
    F64,
    GATE_OFFSETS,
    KIND_IDS,
    KINDS,
    Case,
    Kind,
    randomize_,
)

each_case = pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
QUADRATIC = [case for case in CASES if case.neuron != "linear"]
each_quadratic = pytest.mark.parametrize("case", QUADRATIC, ids=[case.name for case in QUADRATIC])
ONCE = list({case.neuron: case for case in QUADRATIC}.values())
each_neuron_once = pytest.mark.parametrize("case", ONCE, ids=[case.name for case in ONCE])
CAN_BE_LINEAR = [name for name, row in neurons().items() if row.can_be_linear]
each_linear_start = pytest.mark.parametrize("neuron", CAN_BE_LINEAR)


def test_every_neuron_has_a_case() -> None:
    assert {case.neuron for case in CASES} == set(neurons())


# ------------------------------------------------------------------------------------------------
# The formula
# ------------------------------------------------------------------------------------------------


@each_kind
@each_case
@pytest.mark.parametrize("bias", [True, False])
def test_matches_the_reference(case: Case, kind: Kind, bias: bool) -> None:
    layer, x = case.make(kind, bias), kind.input()
    with torch.no_grad():
        assert_close(layer(x), case.reference(layer, x))


@each_kind
@each_quadratic
def test_gradients(case: Case, kind: Kind) -> None:
    layer, x = case.make(kind), kind.input().requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

    inputs = (x, *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    # And the path that training takes, which is not that of functional_call for all neurons.
    layer(x).cos().sum().backward()
    grads = torch.autograd.grad(run(*inputs).cos().sum(), inputs)
    for tensor, expected in zip([x, *layer.parameters()], grads, strict=True):
        assert_close(tensor.grad, expected)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["Linear", "Conv2d"])
@each_quadratic
def test_second_gradients(case: Case, kind: Kind) -> None:
    layer, x = case.make(kind), kind.input().requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (x,), fast_mode=True)


@each_kind
@each_case
def test_is_a_polynomial_of_its_degree(case: Case, kind: Kind) -> None:
    """Along a ray t*x: differences of an order above the degree vanish, of the degree do not."""
    layer, x = case.make(kind), kind.input()
    degree = neurons()[case.neuron].with_options(**case.options).degree
    assert degree == (1 if case.neuron == "linear" else case.options.get("p", None) or degree)
    if degree is None:
        with torch.no_grad():
            ray = torch.stack([layer(t * x) for t in range(-4, 5)])
        assert ray.diff(n=6, dim=0).abs().max() > 1e-3
        return
    with torch.no_grad():
        ray = torch.stack([layer(t * x) for t in range(degree + 3)])
    zero = torch.zeros_like(ray.diff(n=degree + 1, dim=0))
    torch.testing.assert_close(ray.diff(n=degree + 1, dim=0), zero, rtol=0, atol=1e-9)
    assert ray.diff(n=degree, dim=0).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("neuron", "degree"),
    [(n, {"linear": 1, "kervolution": 3, "glu": None}.get(n, 2)) for n in neurons()],
)
def test_degrees(neuron: str, degree: int | None) -> None:
    assert neurons()[neuron].with_options().degree == degree


@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_bias_of_kervolution_is_outside_the_power(p: int) -> None:
    layer: Any = quadric.make_layer(nn.Linear, 3, 4, neuron="kervolution", p=p)
    x = torch.randn(5, 3)
    before = layer(x)
    with torch.no_grad():
        layer.bias.add_(2.5)
    torch.testing.assert_close(layer(x), before + 2.5)


def test_the_offset_of_kervolution_learns() -> None:
    layer: Any = quadric.make_layer(
        nn.Linear, 3, 4, neuron="kervolution", learnable_c=True, c=0.5, dtype=F64
    )
    torch.testing.assert_close(layer.offset, torch.full((4,), 0.5, dtype=F64))
    layer(torch.randn(5, 3, dtype=F64)).sum().backward()
    assert torch.all(layer.offset.grad != 0)


def test_quadenhancer_rolls_inside_each_group() -> None:
    both = randomize_(
        quadric.make_layer(nn.Conv1d, 4, 6, 1, groups=2, neuron="quadenhancer", dtype=F64)
    )
    x = torch.randn(1, 4, 3, dtype=F64)
    changed = x.clone()
    changed[:, :2] += 1
    torch.testing.assert_close(both(changed)[:, 3:], both(x)[:, 3:], rtol=0, atol=0)
    assert not torch.allclose(both(changed)[:, :3], both(x)[:, :3])


@each_kind
@each_quadratic
def test_responses_add_up(case: Case, kind: Kind) -> None:
    layer, plain, x = case.make(kind), case.make(kind, bias=False), kind.input()
    with torch.no_grad():
        linear, quadratic, features = layer.responses(x)
        if case.neuron == "eigen":
            dim = layer.linear_op.channel_dim
            assert features.shape[dim] == layer.num_outputs - layer.num_neurons
            return
        assert features.numel() == 0
        assert_close(linear + quadratic, layer(x))
        # The first part is affine in x; without biases, that is all of it: the other has no slope.
        ray = torch.stack([layer.responses(t * x)[0] for t in range(3)])
        assert_close(ray.diff(n=2, dim=0), torch.zeros_like(ray[:1]))
        at_zero = plain.responses(1e-6 * x)[1] - plain.responses(0 * x)[1]
        assert at_zero.abs().max() < 1e-10


@pytest.mark.parametrize("act", GATE_OFFSETS)
def test_the_linear_part_of_a_gate_is_its_tangent(act: str) -> None:
    layer: Any = randomize_(quadric.make_layer(nn.Linear, 3, 5, neuron="glu", act=act, dtype=F64))
    x, zero = torch.randn(4, 3, dtype=F64), torch.zeros(4, 3, dtype=F64)
    value, slope = torch.func.jvp(layer, (zero,), (x,))
    assert_close(layer.responses(x)[0], value + slope)


# ------------------------------------------------------------------------------------------------
# The starts
# ------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("bias", [True, False])
@each_linear_start
def test_a_linear_layer_is_taken_over(neuron: str, kind: Kind, bias: bool) -> None:
    plain, x = kind.make_plain(bias), kind.input()
    layer: Any = quadric.make_layer(plain, neuron=neuron)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-12, atol=1e-12)
    assert layer.weight is plain.weight
    assert layer.bias is plain.bias


@each_kind
@pytest.mark.parametrize("bias", [True, False])
@each_linear_start
def test_the_linear_start(neuron: str, kind: Kind, bias: bool) -> None:
    layer: Any = quadric.make_layer(
        kind.plain, *kind.args, **kind.options, bias=bias, dtype=F64, neuron=neuron, init="linear"
    )
    plain, x = kind.make_plain(bias), kind.input()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k in ("weight", "bias")})
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-12, atol=1e-12)


@each_linear_start
def test_the_linear_start_learns(neuron: str) -> None:
    """Some quadratic parameter receives a gradient at once, or the layer stayed linear for ever."""
    layer: Any = quadric.make_layer(nn.Linear(4, 10, dtype=F64), neuron=neuron)
    if neuron == "linear":
        return
    layer(torch.randn(6, 4, dtype=F64)).square().sum().backward()
    grads = [p.grad for p in layer.quadratic_parameters().values()]
    assert any(g is not None and torch.count_nonzero(g) for g in grads)


@pytest.mark.parametrize("neuron", ["kervolution", "pure"])
def test_neurons_that_cannot_be_linear_say_so(neuron: str) -> None:
    with pytest.raises(ValueError, match=f"'{neuron}' must be one of published, got 'linear'.*can"):
        quadric.make_layer(nn.Linear(3, 4), neuron=neuron, init="linear")
    # Without a start asked for, the published one is drawn anew.
    layer: Any = quadric.make_layer(nn.Linear(3, 4), neuron=neuron)
    assert layer.init == "published"


def test_published_starts() -> None:
    def made(neuron: str, **options: Any) -> Any:
        return quadric.make_layer(nn.Linear, 40, 30, neuron=neuron, **options)

    fan = made("fan")
    assert not fan.weight2.any()
    assert not fan.weight3.any()
    assert not fan.bias3.any()
    assert torch.all(fan.bias2 == 1)
    drawn = made("fan", init="random")
    assert torch.count_nonzero(drawn.weight2) == torch.count_nonzero(drawn.weight3) == 1200
    bound = 1 / 40**0.5
    drawn_gates = (made(neuron).weight2 for neuron in ("qres", "quadralib", "bilinear", "glu"))
    for tensor in (made("lowrank").q2, *drawn_gates):
        assert tensor.abs().max() <= bound
        torch.testing.assert_close(tensor.std().item(), bound / 3**0.5, rtol=0.05, atol=0)
    for neuron in ("eigen", "square", "shared", "symmetric"):
        assert not made(neuron).eigenvalues.any()
    assert not made("quadenhancer").theta.any()
    for neuron in ("bilinear", "glu"):  # as torch draws a second layer
        assert 0 < made(neuron).bias2.abs().max() <= bound
    for tensor in (made("cross", rank=30).u, made("cross", rank=30).v):  # Xavier's normal start
        torch.testing.assert_close(tensor.std().item(), (2 / 60) ** 0.5, rtol=0.1, atol=0)
    assert not made("cross", init="linear").u.any()
    pure = made("pure").forms  # Glorot's uniform start
    torch.testing.assert_close(pure.std().item(), (2 / 80) ** 0.5, rtol=0.02, atol=0)
    general = made("general").forms  # x'Mx has the scale of one input
    torch.testing.assert_close(general.std().item(), 1 / 40, rtol=0.02, atol=0)


@each_kind
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", GATE_OFFSETS)
def test_the_linear_start_of_each_gate(act: str, bias: bool, kind: Kind) -> None:
    """A linear layer is taken over, loaded, drawn and given back."""
    plain, x = kind.make_plain(bias), kind.input()
    before = plain(x)
    layer: Any = quadric.make_layer(plain, neuron="glu", act=act)
    torch.testing.assert_close(layer(x), before, rtol=1e-12, atol=1e-12)
    assert layer.is_linear()
    torch.testing.assert_close(layer.to_linear()(x), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain(x), before, rtol=0, atol=0)
    assert (layer.weight is plain.weight) == (act != "sigmoid")
    loaded: Any = randomize_(quadric.make_layer(kind.make_plain(bias), neuron="glu", act=act))
    assert not loaded.is_linear()
    loaded.load_state_dict(plain.state_dict())
    torch.testing.assert_close(loaded(x), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain(x), before, rtol=0, atol=0)
    drawn: Any = quadric.make_layer(
        kind.plain, *kind.args, **kind.options, bias=bias, dtype=F64, neuron="glu", act=act,
        init="linear",
    )  # fmt: skip
    torch.testing.assert_close(drawn(x), drawn.to_linear()(x), rtol=1e-12, atol=1e-12)
    bound = 1 / drawn.num_inputs**0.5
    assert drawn.to_linear().weight.abs().max() <= bound
    with torch.no_grad():
        layer.weight2[0] += 0.1
    assert not layer.is_linear()


def test_sigmoid_glu_is_torchs() -> None:
    both = nn.Linear(5, 14, dtype=F64)
    layer: Any = quadric.make_layer(nn.Linear, 5, 7, neuron="glu", act="sigmoid", dtype=F64)
    with torch.no_grad():
        for name in ("weight", "bias"):
            factor, gate = getattr(both, name).chunk(2)
            getattr(layer, name).copy_(factor)
            getattr(layer, f"{name}2").copy_(gate)
    x = torch.randn(3, 5, dtype=F64)
    torch.testing.assert_close(layer(x), F.glu(both(x)))


def test_cross_is_a_layer_of_a_low_rank_cross_net() -> None:
    """One layer of torchrec's LowRankCrossNet, x0 * (W (V x) + b) + x at x = x0 and b = 0."""
    layer: Any = quadric.make_layer(nn.Linear, 6, 6, bias=False, neuron="cross", rank=3, dtype=F64)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(6))
    W, V = torch.randn(6, 3, dtype=F64), torch.randn(3, 6, dtype=F64)
    layer.load_state_dict({"weight": layer.weight, "u": W, "v": V})
    x = torch.randn(4, 6, dtype=F64)
    torch.testing.assert_close(layer(x), x * ((W @ (V @ x.T)).T) + x)


@pytest.mark.parametrize("neuron", ["bilinear", "cross"])
def test_a_gate_in_use_is_not_linear(neuron: str) -> None:
    layer: Any = quadric.make_layer(nn.Linear(3, 4), neuron=neuron)
    assert layer.is_linear()
    with torch.no_grad():
        if neuron == "bilinear":
            layer.bias2[0] = 2
        else:
            layer.u[0] = 1
    assert not layer.is_linear()


def test_fan_without_bias_is_not_dead() -> None:
    layer: Any = quadric.make_layer(nn.Linear, 3, 4, bias=False, neuron="fan")
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight))
    assert [name for name, _ in layer.named_parameters()] == ["weight", "weight2", "weight3"]


@pytest.mark.parametrize("neuron", [n for n in neurons() if n != "linear"])
def test_starts_follow_the_seed(neuron: str) -> None:
    def made() -> Any:
        torch.manual_seed(3)
        return quadric.make_layer(nn.Linear, 3, 4, neuron=neuron)

    first, second = made().state_dict(), made().state_dict()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------
# make_layer
# ------------------------------------------------------------------------------------------------


def test_make_layer_takes_a_layer_a_class_or_a_partial() -> None:
    module = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    partial = functools.partial(nn.Conv2d, 3, 8, 3, stride=2, padding=1, bias=False)
    layers = [
        quadric.make_layer(module, neuron="fan"),
        quadric.make_layer(module, "fan"),
        quadric.make_layer(partial, "fan"),
        quadric.make_layer(nn.Conv2d, 3, 8, 3, stride=2, padding=1, bias=False, neuron="fan"),
    ]
    for layer in layers:
        assert isinstance(layer, NeuronConv2d)
        assert isinstance(layer, QuadraticLayer)
        assert layer(torch.zeros(2, 3, 8, 8)).shape == (2, 8, 4, 4)
        assert layer.neuron == "fan"
        assert layer.rank is None
        assert repr(layer) == (
            "NeuronConv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False, "
            "neuron='fan')"
        )


def test_make_layer_gives_the_eigen_layers_and_the_plain_one() -> None:
    layer = quadric.make_layer(nn.Linear(3, 4), neuron="eigen", rank=2)
    assert type(layer) is quadric.QuadraticLinear
    assert layer.rank == 2
    plain = nn.Linear(3, 4)
    assert quadric.make_layer(plain, neuron="linear") is plain
    assert type(quadric.make_layer(nn.Linear, 3, 4, neuron="linear")) is nn.Linear
    transposed = quadric.make_layer(nn.ConvTranspose2d(3, 4, 2), neuron="eigen", rank=1)
    assert type(transposed) is quadric.QuadraticConvTranspose2d


@each_quadratic
def test_make_layer_keeps_dtype_device_training_and_options(case: Case) -> None:
    plain = nn.Linear(4, 7, dtype=F64, device="meta").eval()
    layer: Any = quadric.make_layer(plain, neuron=case.neuron, **case.options)
    assert not layer.training
    for name, parameter in layer.named_parameters():
        assert parameter.dtype == F64, name
        assert parameter.is_meta, name
    for name, value in case.options.items():
        assert getattr(layer if case.neuron == "eigen" else layer.rule, name) == value


def test_make_layer_of_a_layer_that_draws_new_weights() -> None:
    plain = nn.Linear(4, 7)
    layer: Any = quadric.make_layer(plain, neuron="qres", init="published")
    assert layer.weight is not plain.weight
    assert torch.count_nonzero(layer.weight2)


@pytest.mark.parametrize(
    ("spec", "options", "error", "match"),
    [
        (nn.Linear(3, 4), {"neuron": "fann"}, ValueError, r"one of linear, eigen.*, got 'fann'"),
        (nn.Linear(3, 4), {"neuron": None}, ValueError, r"one of linear.*got None"),
        (nn.Linear(3, 4), {"neuron": "fan", "p": 2}, ValueError, r"'fan' has no option 'p'.*none"),
        (nn.Linear(3, 4), {"neuron": "lowrank", "k": 2}, ValueError, r"no option 'k'.*: rank"),
        (nn.Linear(3, 4), {"neuron": "fan", "rank": 2}, ValueError, r"'fan' has no rank.*eigen"),
        (nn.Linear(3, 4), {"neuron": "fan", "init": "x"}, ValueError, r"published, linear, random"),
        (nn.Linear(3, 4), {"neuron": "shared", "rank": 0}, ValueError, r"rank must be >= 1, got 0"),
        (nn.Linear(3, 4), {"neuron": "symmetric", "rank": 1.5}, TypeError, r"integer.*got 1.5"),
        (nn.Linear(3, 4), {"neuron": "kervolution", "p": 1}, ValueError, r"p must be.*got 1"),
        (nn.Linear(3, 4), {"neuron": "quadenhancer", "shifts": 0}, ValueError, r"shifts.*got 0"),
        (nn.Linear(3, 4), {"neuron": "glu", "act": "tanh"}, ValueError, r"act must.*got 'tanh'"),
        (nn.Linear(3, 4), {"neuron": "cross", "rank": 0}, ValueError, r"rank must be >= 1, got 0"),
        (nn.ReLU(), {"neuron": "fan"}, TypeError, r"nn.Linear, .*got.*ReLU"),
        (nn.ConvTranspose1d(3, 4, 2), {"neuron": "pure"}, ValueError, r"'pure' has no transposed"),
        (nn.LazyLinear(4), {"neuron": "fan"}, ValueError, r"uninitialized LazyLinear"),
    ],
)
def test_make_layer_refuses(spec: Any, options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        quadric.make_layer(spec, **options)


def test_make_layer_names_an_unknown_option_of_a_class() -> None:
    with pytest.raises(ValueError, match="'fan' has no option 'widht'"):
        quadric.make_layer(nn.Linear, 3, 4, neuron="fan", widht=3)


# ------------------------------------------------------------------------------------------------
# Memory of the full neurons
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron", ["general", "pure"])
def test_full_neurons_refuse_a_layer_that_is_too_large(neuron: str) -> None:
    # 512 forms of 4608 x 4608 in float32: 43 GB
    size, alternative = 4 * 512 * 4608**2, 4 * 512 * 4609
    match = rf"'{neuron}'.*1,073,741,824.*need {size:,} bytes.*'eigen' \({alternative:,} bytes\)"
    with pytest.raises(ValueError, match=match):
        quadric.make_layer(nn.Conv2d, 512, 512, 3, neuron=neuron, device="meta")
    layer: Any = quadric.make_layer(
        nn.Conv2d, 512, 512, 3, neuron=neuron, device="meta", max_bytes=2**40
    )
    assert layer.forms.shape == (512, 4608, 4608)
    with pytest.raises(ValueError, match="max_bytes = 100,"):
        quadric.make_layer(nn.Linear, 3, 3, neuron=neuron, max_bytes=100)


# ------------------------------------------------------------------------------------------------
# What a layer must do besides
# ------------------------------------------------------------------------------------------------


@each_quadratic
def test_declares_its_quadratic_parameters(case: Case) -> None:
    layer = case.make(KINDS[0])
    declared = layer.quadratic_parameters()
    assert all(value is getattr(layer, name) for name, value in declared.items())
    assert {"weight", "bias"}.isdisjoint(declared)
    named = {name for name, _ in layer.named_parameters()}
    assert set(declared) == named - {"weight", "bias"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["Linear", "Conv2d"])
@each_quadratic
def test_half_precision(case: Case, kind: Kind, dtype: torch.dtype) -> None:
    layer, x = case.make(kind).to(dtype), kind.input().to(dtype)
    out = layer(x)
    assert out.dtype == dtype
    with torch.no_grad():
        expected = case.reference(layer, x)
    error = (out.double() - expected).abs().max() / expected.abs().max()
    assert error < {torch.bfloat16: 0.03, torch.float16: 0.005}[dtype]


@pytest.mark.parametrize(
    "neuron", ["square", "symmetric", "shared", "qres", "quadralib", "fan", "cross"]
)
def test_products_are_accumulated_in_float32(neuron: str) -> None:
    """Each factor fits float16, their product does not, the sum does: no inf in between."""
    layer: Any = quadric.make_layer(nn.Linear, 1, 2, bias=False, neuron=neuron, dtype=torch.float16)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        if neuron in ("square", "shared", "symmetric"):
            filters = layer.eigenvectors if neuron == "symmetric" else layer.weight
            filters.fill_(300)  # 300^2 = 90,000 > 65,504
            layer.eigenvalues.fill_(0.01)
            terms = {"square": 1, "shared": 2, "symmetric": 9}[neuron]
            expected = terms * 900.0 + (300 if neuron != "symmetric" else 0)
        elif neuron == "cross":  # V'z = 2 * 300 * 150 = 90,000 > 65,504
            layer.weight.fill_(300)
            layer.v.fill_(150)
            layer.u.fill_(1e-4)
            expected = 300 * (1 + 4 * 9.0)
        elif neuron == "fan":  # (250)(250 + 1) - 62,500
            layer.weight.fill_(250)
            layer.weight2.fill_(279)
            layer.weight3.fill_(-60000)
            expected = 250.0 * 280 - 60000
        else:
            layer.weight2.fill_(300)
            first = layer.weight if neuron == "qres" else layer.weight1
            first.fill_(-300)
            if neuron == "quadralib":
                layer.weight.fill_(60000)
            expected = -90000.0 + (-300 if neuron == "qres" else 60000)
    out = layer(torch.ones(1, 1, dtype=torch.float16))
    wanted = torch.full((1, 2), expected).half()
    torch.testing.assert_close(out, wanted, rtol=2e-3, atol=0)


@each_neuron_once
def test_compiles_in_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    layer, x = case.make(KINDS[1]), KINDS[1].input()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), layer(x))


@each_neuron_once
def test_exports(case: Case) -> None:
    kind = KINDS[2]
    layer, x = case.make(kind).eval(), kind.input()
    program = torch.export.export(layer, (x,))
    assert_close(program.module()(x), layer(x))


@each_quadratic
@each_kind
def test_runs_on_meta(case: Case, kind: Kind) -> None:
    layer, x = case.make(kind), kind.input()
    shape = layer(x).shape
    assert layer.to("meta")(x.to("meta")).shape == shape


@each_quadratic
def test_survives_deepcopy_and_pickle(case: Case) -> None:
    layer, x = case.make(KINDS[1]), KINDS[1].input()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(other(x), layer(x))
        assert other.neuron == case.neuron


@each_quadratic
@pytest.mark.parametrize("assign", [True, False])
def test_a_linear_checkpoint_loads(case: Case, assign: bool) -> None:
    kind = KINDS[1]
    plain, layer, x = kind.make_plain(), case.make(kind), kind.input()
    state = plain.state_dict()
    if not neurons()[case.neuron].can_be_linear:
        quadratic = set(layer.quadratic_parameters())
        if quadratic or case.neuron == "pure":
            with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
                layer.load_state_dict(state, assign=assign)
        return
    layer.load_state_dict(state, assign=assign)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-12, atol=1e-12)
    assert sorted(state) == ["bias", "weight"]
    assert all(p.requires_grad and isinstance(p, nn.Parameter) for p in layer.parameters())


@each_linear_start
def test_a_linear_checkpoint_is_assigned_onto_meta(neuron: str) -> None:
    plain = nn.Linear(4, 10, dtype=F64)
    layer: Any = quadric.make_layer(nn.Linear, 4, 10, neuron=neuron, device="meta")
    layer.load_state_dict(plain.state_dict(), assign=True)
    x = torch.randn(3, 4, dtype=F64)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-12, atol=1e-12)
    assert all(p.dtype == F64 and not p.is_meta for p in layer.parameters())


@each_quadratic
def test_its_own_checkpoint_round_trips(case: Case) -> None:
    kind = KINDS[4]
    first, second, x = case.make(kind), case.make(kind), kind.input()
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(x), first(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "neuron", ["fan", "lowrank", "quadralib", "symmetric", "bilinear", "glu", "cross"]
)
def test_a_partial_checkpoint_fills_nothing(neuron: str) -> None:
    layer = randomize_(quadric.make_layer(nn.Linear, 4, 6, neuron=neuron))
    state = layer.state_dict()
    names = list(layer.quadratic_parameters())  # type: ignore[operator]
    del state[names[0]]
    kept = getattr(layer, names[0]).clone()
    with pytest.raises(RuntimeError, match=f"Missing key.*{names[0]}"):
        layer.load_state_dict(state)
    layer.load_state_dict(state, strict=False)
    torch.testing.assert_close(getattr(layer, names[0]), kept, rtol=0, atol=0)


@each_quadratic
def test_unbatched_and_empty_inputs(case: Case) -> None:
    layer = case.make(KINDS[2])
    x = KINDS[2].input()
    assert_close(layer(x[0]), layer(x)[0])
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    linear = case.make(KINDS[0])
    vector = torch.randn(4, dtype=F64)
    assert_close(linear(vector), linear(vector.expand(2, 3, 4))[1, 2])
    assert linear(torch.zeros(0, 4, dtype=F64)).shape == (0, 7)


@each_quadratic
def test_refuses_an_input_that_does_not_fit(case: Case) -> None:
    with pytest.raises(ValueError, match=r"in_features = 4, got an input of shape \(2, 5\)"):
        case.make(KINDS[0])(torch.zeros(2, 5, dtype=F64))
    with pytest.raises(ValueError, match=r"in_channels = 2 channels.*got shape \(1, 3, 4, 4\)"):
        case.make(KINDS[2])(torch.zeros(1, 3, 4, 4, dtype=F64))
    with pytest.raises(TypeError, match=r"floating-point tensor, got torch\.int64"):
        case.make(KINDS[0])(torch.zeros(2, 4, dtype=torch.int64))


def test_layers_can_be_built_directly() -> None:
    layer = NeuronLinear(3, 4, neuron="lowrank", rank=3)
    assert repr(layer) == (
        "NeuronLinear(in_features=3, out_features=4, bias=True, neuron='lowrank', rank=3)"
    )
    with pytest.raises(ValueError, match="no option 'shifts'"):
        NeuronLinear(3, 4, neuron="lowrank", shifts=3)
    with pytest.raises(TypeError, match="dtype must be a real floating-point type"):
        NeuronLinear(3, 4, neuron="lowrank", dtype=torch.int32)


def test_in_place_activation_behind_every_neuron() -> None:
    for case in QUADRATIC:
        layer, x = case.make(KINDS[2]), KINDS[2].input().requires_grad_()
        inputs = [x, *layer.parameters()]
        got = torch.autograd.grad(F.relu(layer(x), inplace=True).sum(), inputs)
        expected = torch.autograd.grad(F.relu(layer(x)).sum(), inputs)
        for one, other in zip(got, expected, strict=True):
            assert_close(one, other)
