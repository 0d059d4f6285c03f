"""One property suite over all seven eigen layers: what section "the neuron" promises of each."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import quadric
from tests import reference
from tests.conftest import assert_close
from tests.nn.cases import CASES, IDS, Case

each_layer = pytest.mark.parametrize("case", CASES, ids=IDS)


# ------------------------------------------------------------------------------------------------
# The function
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3, 6, 50])
def test_matches_the_dense_form_of_every_neuron(case: Case, rank: int, bias: bool) -> None:
    layer, x = case.make(rank, bias=bias), case.input()
    assert (layer.bias is not None) == bias
    assert_close(layer(x), case.reference(layer, x))


@each_layer
def test_zero_eigenvalues_give_the_torch_layer(case: Case) -> None:
    layer, plain, x = case.make(), case.make_plain(), case.input()
    with torch.no_grad():
        layer.eigenvalues.zero_()
        layer.weight.copy_(plain.weight)
        layer.bias.copy_(plain.bias)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)


@each_layer
def test_starts_as_torch_starts_a_linear_layer(case: Case) -> None:
    torch.manual_seed(7)
    layer = case.layer(*case.args, **case.options, rank=2)
    torch.manual_seed(7)
    plain = case.make_plain(dtype=torch.float32)
    torch.testing.assert_close(layer.weight, plain.weight, rtol=0, atol=0)
    torch.testing.assert_close(layer.bias, plain.bias, rtol=0, atol=0)
    assert torch.count_nonzero(layer.eigenvalues) == 0
    x = case.input(dtype=torch.float32)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)


@each_layer
def test_default_rank_is_nine(case: Case) -> None:
    assert case.layer(*case.args, **case.options).rank == 9


@each_layer
@pytest.mark.parametrize("rank", [1, 2, 3, 6, 50])
def test_neurons_and_their_ranks(case: Case, rank: int) -> None:
    layer = case.make(rank)
    neurons = reference.neuron_channels(case.outputs, rank, case.groups)
    assert layer.num_neurons == len(neurons)
    assert layer.neuron_ranks == tuple(len(features) for _, features in neurons)
    assert layer.eigenvalues.shape == (case.outputs - len(neurons),)
    assert layer.rank == rank


@each_layer
def test_weight_and_bias_have_the_shapes_of_the_torch_layer(case: Case) -> None:
    layer, plain = case.make(), case.make_plain()
    assert layer.weight.shape == plain.weight.shape
    assert layer.bias.shape == plain.bias.shape
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias", "eigenvalues"}
    assert list(layer.buffers()) == []


@each_layer
def test_has_the_attributes_of_the_torch_layer(case: Case) -> None:
    layer, plain = case.make(), case.make_plain()
    names = ["in_features", "out_features"]
    if case.plain is not nn.Linear:
        names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"]
        names += ["groups", "padding_mode", "output_padding", "transposed"]
    for name in names:
        assert getattr(layer, name) == getattr(plain, name), name
    assert not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
    assert isinstance(layer, quadric.layers.QuadraticLayer)
    assert layer.neuron == "eigen"
    quadratic = layer.quadratic_parameters()
    assert list(quadratic) == ["eigenvalues"]
    assert quadratic["eigenvalues"] is layer.eigenvalues


# ------------------------------------------------------------------------------------------------
# Shapes
# ------------------------------------------------------------------------------------------------


@each_layer
def test_unbatched_input(case: Case) -> None:
    layer, x = case.make(), case.input()
    assert_close(layer(x[0]), layer(x)[0])


@each_layer
def test_batch_of_no_samples(case: Case) -> None:
    layer, plain = case.make(), case.make_plain()
    x = case.input(batch=0).requires_grad_()
    out = layer(x)
    assert out.shape == plain(x).shape
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.count_nonzero(parameter.grad) == 0, name


@each_layer
def test_input_that_is_not_contiguous(case: Case) -> None:
    layer, x = case.make(), case.input()
    strided = torch.stack([x, x + 1], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    assert_close(layer(strided), layer(x))


# ------------------------------------------------------------------------------------------------
# Gradients
# ------------------------------------------------------------------------------------------------


def as_function(layer: nn.Module) -> tuple[Any, list[Tensor]]:
    """The layer as a function of its input and parameters, and fresh parameter values."""
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    return call, values


@each_layer
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"normalize": True}], ids=str)
def test_gradcheck(case: Case, options: dict[str, Any]) -> None:
    call, values = as_function(case.make(**options))
    x = case.input(batch=1).requires_grad_()
    assert gradcheck(call, (x, *values))
    assert gradcheck(call, (x.detach()[0].requires_grad_(), *values), fast_mode=True)


@each_layer
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"normalize": True}], ids=str)
def test_gradgradcheck(case: Case, options: dict[str, Any]) -> None:
    call, values = as_function(case.make(**options))
    x = case.input(batch=1).requires_grad_()
    assert gradgradcheck(call, (x, *values), fast_mode=True)


@each_layer
def test_gradients_are_those_of_the_reference(case: Case) -> None:
    layer, x = case.make(), case.input().requires_grad_()
    inputs = [x, *layer.parameters()]
    seed = torch.randn_like(layer(x))
    got = torch.autograd.grad(layer(x), inputs, seed)
    expected = torch.autograd.grad(case.reference(layer, x), inputs, seed)
    for name, one, other in zip(["input", "weight", "bias", "lam"], got, expected, strict=True):
        torch.testing.assert_close(one, other, msg=f"gradient of {name}")


@each_layer
@pytest.mark.parametrize("rank", [1, 2, 50])
def test_every_parameter_learns_from_the_first_step(case: Case, rank: int) -> None:
    layer = case.layer(*case.args, **case.options, rank=rank, dtype=torch.float64)
    layer(case.input()).pow(2).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.all(parameter.grad != 0), name


@each_layer
@pytest.mark.parametrize("wanted", ["input", "weight", "bias", "eigenvalues"])
def test_gradient_of_one_input_alone(case: Case, wanted: str) -> None:
    """Frozen parameters, or an input that needs no gradient, change nothing for the others."""
    layer, x = case.make(), case.input()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == wanted)
    x.requires_grad_(wanted == "input")
    tensor = x if wanted == "input" else getattr(layer, wanted)
    out = layer(x)
    seed = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, tensor, seed)
    (expected,) = torch.autograd.grad(case.reference(layer, x), tensor, seed)
    assert_close(got, expected)


@each_layer
def test_nothing_asks_for_a_gradient(case: Case) -> None:
    layer, x = case.make().requires_grad_(False), case.input()
    assert not layer(x).requires_grad
    layer.requires_grad_(True)
    with torch.no_grad():
        assert not layer(x).requires_grad
    assert layer(x).requires_grad


@each_layer
def test_still_its_formula_after_three_steps_of_training(case: Case) -> None:
    layer, x = case.make(), case.input()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in layer.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).tanh().sum().backward()
        optimizer.step()
    for old, new in zip(before, layer.parameters(), strict=True):
        assert torch.all(old != new)
    assert_close(layer(x), case.reference(layer, x))


@each_layer
def test_per_sample_gradients_by_vmap(case: Case) -> None:
    layer, x = case.make(), case.input()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layer, parameters, (sample,)).pow(2).sum()

    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i, sample in enumerate(x):
        tensors = list(layer.parameters())
        expected = torch.autograd.grad(case.reference(layer, sample).pow(2).sum(), tensors)
        for name, value in zip(parameters, expected, strict=True):
            assert_close(got[name][i], value)


@each_layer
def test_forward_mode_derivative(case: Case) -> None:
    layer, x = case.make().requires_grad_(False), case.input()
    tangent = torch.randn_like(x)
    got = torch.func.jvp(layer, (x,), (tangent,))
    expected = torch.func.jvp(lambda x: case.reference(layer, x), (x,), (tangent,))
    assert_close(got[0], layer(x))
    assert_close(got[1], expected[1])


@each_layer
def test_dual_numbers(case: Case) -> None:
    layer, x = case.make(), case.input()
    tangent = torch.randn_like(x)
    with torch.autograd.forward_ad.dual_level():
        out = layer(torch.autograd.forward_ad.make_dual(x, tangent))
        got = torch.autograd.forward_ad.unpack_dual(out).tangent
    expected = torch.func.jvp(lambda x: case.reference(layer, x), (x,), (tangent,))[1]
    assert got is not None
    assert_close(got, expected)


@each_layer
def test_inference_mode(case: Case) -> None:
    layer, x = case.make(), case.input()
    kept = x.clone()
    with torch.inference_mode():
        out = layer(x)
    assert out.is_inference()
    assert_close(out, case.reference(layer, x))
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    layer(x).sum().backward()
    assert layer.eigenvalues.grad is not None


# ------------------------------------------------------------------------------------------------
# Looking inside
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("rank", [2, 50])
def test_responses_are_the_parts_of_the_output(case: Case, rank: int, normalize: bool) -> None:
    layer, x = case.make(rank, normalize=normalize), case.input()
    linear, quadratic, features = layer.responses(x)
    neurons = reference.neuron_channels(case.outputs, rank, case.groups)
    of_y = torch.tensor([y for y, _ in neurons])
    of_f = torch.tensor([f for _, group in neurons for f in group])
    plain = layer.to_linear()(x)
    truth = case.reference(layer, x, normalize)
    assert_close(linear, plain.index_select(case.dim, of_y))
    assert_close(quadratic, (truth - plain).index_select(case.dim, of_y))
    assert_close(features, truth.index_select(case.dim, of_f))


@each_layer
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("rank", [2, 50])
def test_to_dense_is_the_same_function(case: Case, rank: int, normalize: bool, bias: bool) -> None:
    layer, x = case.make(rank, bias=bias, normalize=normalize), case.input()
    M, w, b = layer.to_dense()
    m, n = layer.num_neurons, case.rows(layer.weight).shape[1]
    assert (M.shape, w.shape, b.shape) == ((m, n, n), (m, n), (m,))
    torch.testing.assert_close(M, M.transpose(1, 2))
    per_group = m // case.groups
    parts = [slice(g * per_group, (g + 1) * per_group) for g in range(case.groups)]

    def neuron(group: int, patch: Tensor) -> Tensor:
        part = parts[group]
        return reference.general(patch, M[part], w[part], b[part])

    if case.plain is nn.Linear:
        got = reference.over_vectors(lambda vector: neuron(0, vector), x)
    elif case.transposed:
        got = reference.over_transposed_patches(neuron, x, layer.kernel_size, **case.options)
    else:
        got = reference.over_patches(neuron, x, layer.kernel_size, **case.options)
    neurons = reference.neuron_channels(case.outputs, rank, case.groups)
    of_y = torch.tensor([y for y, _ in neurons])
    assert_close(got, layer(x).index_select(case.dim, of_y))


def test_to_dense_refuses_what_does_not_fit_in_memory() -> None:
    layer = quadric.QuadraticLinear(300_000, 10, device="meta")
    with pytest.raises(ValueError, match=r"(?i)(GB|GiB|MB|MiB|bytes|memory)"):
        layer.to_dense()


@each_layer
def test_from_linear_is_the_same_function(case: Case) -> None:
    plain, x = case.make_plain(), case.input()
    layer = case.layer.from_linear(plain, rank=3)
    assert isinstance(layer, case.layer)
    assert layer.rank == 3
    assert layer.weight.dtype == layer.eigenvalues.dtype == torch.float64
    assert torch.count_nonzero(layer.eigenvalues) == 0
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)
    with torch.no_grad():
        layer.eigenvalues.normal_()
    assert_close(layer(x), case.reference(layer, x))


@each_layer
def test_from_linear_without_bias_and_frozen(case: Case) -> None:
    plain = case.make_plain(dtype=torch.bfloat16, bias=False).eval()
    plain.weight.requires_grad_(False)
    layer = case.layer.from_linear(plain, rank=2)
    assert layer.bias is None
    assert layer.eigenvalues.dtype == torch.bfloat16
    assert not layer.weight.requires_grad
    assert layer.eigenvalues.requires_grad
    assert not layer.training


@each_layer
def test_from_linear_refuses_another_kind_of_layer(case: Case) -> None:
    with pytest.raises(TypeError, match=r"BatchNorm1d"):
        case.layer.from_linear(nn.BatchNorm1d(4), rank=2)
    other = nn.Linear(3, 4) if case.plain is not nn.Linear else nn.Conv2d(3, 4, 1)
    with pytest.raises(TypeError, match=type(other).__name__):
        case.layer.from_linear(other, rank=2)


@each_layer
def test_to_linear_drops_the_squares(case: Case) -> None:
    layer, x = case.make(), case.input()
    plain = layer.to_linear()
    assert type(plain) is case.plain
    expected = case.make_plain()
    expected.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    torch.testing.assert_close(plain(x), expected(x), rtol=0, atol=0)
    assert str(plain) == str(expected)
    assert plain.weight.dtype == torch.float64
    assert case.make(bias=False).to_linear().bias is None


# ------------------------------------------------------------------------------------------------
# Start and scale of the eigenvalues
# ------------------------------------------------------------------------------------------------


@each_layer
def test_random_sign_start(case: Case) -> None:
    options = {**case.options, "eigenvalue_init": "random_sign", "rank": 50}
    values = torch.cat([case.layer(*case.args, **options).eigenvalues.detach() for _ in range(10)])
    assert torch.all(values != 0)
    assert torch.any(values > 0)
    assert torch.any(values < 0)
    assert torch.all(torch.isfinite(values))
    torch.manual_seed(3)
    one = case.layer(*case.args, **options).eigenvalues
    torch.manual_seed(3)
    torch.testing.assert_close(one, case.layer(*case.args, **options).eigenvalues)


@each_layer
def test_eigenvalues_start_by_a_function(case: Case) -> None:
    def fill(eigenvalues: Tensor) -> None:
        nn.init.constant_(eigenvalues, 0.25)

    layer = case.layer(*case.args, **case.options, rank=2, eigenvalue_init=fill)
    torch.testing.assert_close(layer.eigenvalues, torch.full_like(layer.eigenvalues, 0.25))
    with torch.no_grad():
        layer.eigenvalues.fill_(3.0)
    layer.reset_parameters()
    torch.testing.assert_close(layer.eigenvalues, torch.full_like(layer.eigenvalues, 0.25))
    assert layer.eigenvalues.requires_grad


@each_layer
def test_unknown_start_lists_the_known_ones(case: Case) -> None:
    with pytest.raises(ValueError, match=r"(?s)(zeros.*random_sign|random_sign.*zeros)") as caught:
        case.layer(*case.args, **case.options, eigenvalue_init="ones_please")
    assert "ones_please" in str(caught.value)
    with pytest.raises((ValueError, TypeError), match=r"eigenvalue_init.*3\.5"):
        case.layer(*case.args, **case.options, eigenvalue_init=3.5)


@each_layer
def test_normalize_squares_unit_eigenvectors(case: Case) -> None:
    layer, x = case.make(normalize=True), case.input()
    assert_close(layer(x), case.reference(layer, x, normalize=True))


@each_layer
def test_normalized_squares_do_not_shrink_with_the_eigenvectors(case: Case) -> None:
    layer, x = case.make(normalize=True, bias=False), case.input()
    _, before, features = layer.responses(x)
    with torch.no_grad():
        layer.weight.mul_(0.1)
    _, after, smaller = layer.responses(x)
    assert_close(after, before)
    assert_close(smaller, 0.1 * features)


@each_layer
def test_normalize_folds_into_plain_eigenvalues(case: Case) -> None:
    layer, x = case.make(normalize=True), case.input()
    rows = case.rows(layer.weight)
    slots = reference.eigenvalue_slots(case.outputs, layer.rank, case.groups)
    lengths = torch.stack([rows[channel] @ rows[channel] for channel in slots])
    folded = case.make(normalize=False)
    folded.load_state_dict(layer.state_dict())
    with torch.no_grad():
        folded.eigenvalues.div_(lengths)
    assert_close(folded(x), layer(x))
    expected = layer(x)
    assert layer.fold_normalization_() is layer
    assert not layer.normalize
    assert_close(layer.eigenvalues, folded.eigenvalues)
    assert_close(layer(x), expected)
    layer.fold_normalization_()  # nothing left to fold
    assert_close(layer(x), expected)


@each_layer
def test_normalize_survives_an_eigenvector_of_zeros(case: Case) -> None:
    layer, x = case.make(normalize=True, bias=False), case.input()
    with torch.no_grad():
        layer.weight.zero_()
    out = layer(x)
    torch.testing.assert_close(out, torch.zeros_like(out), rtol=0, atol=0)
    out.sum().backward()
    for name, parameter in layer.named_parameters():
        assert torch.all(torch.isfinite(parameter.grad)), name


# ------------------------------------------------------------------------------------------------
# As a module
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_copies_compute_the_same(case: Case, how: str) -> None:
    layer, x = case.make(normalize=True), case.input()
    layer(x).sum().backward()
    if how == "state_dict":
        other = case.make(normalize=True)
        assert set(layer.state_dict()) == {"weight", "bias", "eigenvalues"}
        other.load_state_dict(layer.state_dict())
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        other = copy.deepcopy(layer)
    assert str(other) == str(layer)
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    with torch.no_grad():
        other.eigenvalues.add_(1)
    assert not torch.equal(other(x), layer(x))
    assert_close(other(x), case.reference(other, x, normalize=True))
    assert_close(layer(x), case.reference(layer, x, normalize=True))


@each_layer
def test_device_and_dtype(case: Case) -> None:
    layer = case.layer(*case.args, **case.options, device="meta", dtype=torch.float16)
    for name, parameter in layer.named_parameters():
        assert parameter.is_meta, name
        assert parameter.dtype == torch.float16, name
    x = case.input(dtype=torch.float16).to("meta")
    plain = case.make_plain(device="meta", dtype=torch.float16)
    assert layer(x).shape == plain(x).shape
    assert layer(x).is_meta
    with torch.device("meta"):
        assert case.layer(*case.args, **case.options).eigenvalues.is_meta


@each_layer
@pytest.mark.parametrize("inplace", [True, False])
def test_gradients_on_the_meta_device(case: Case, inplace: bool) -> None:
    layer = case.make(device="meta")
    nn.functional.relu(layer(case.input().to("meta")), inplace).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape, name


@each_layer
def test_moves_to_another_dtype(case: Case) -> None:
    layer, x = case.make(), case.input()
    single = copy.deepcopy(layer).float()
    out = single(x.float())
    assert out.dtype == torch.float32
    assert_close(out, case.reference(layer, x))


@each_layer
def test_materializes_from_meta(case: Case) -> None:
    layer = case.layer(*case.args, **case.options, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(float("nan"))
    layer.reset_parameters()
    x = case.input(dtype=torch.float32)
    assert_close(layer(x), case.reference(layer, x))
    assert torch.count_nonzero(layer.eigenvalues) == 0


@each_layer
def test_extra_repr_is_torchs_and_ours(case: Case) -> None:
    layer, plain = case.make(rank=2, bias=False), case.make_plain(bias=False)
    text = repr(layer)
    assert text.startswith(f"{case.name}(")
    theirs = plain.extra_repr()
    ours = layer.extra_repr()
    for part in theirs.split(", "):
        assert part in ours, part
    assert "rank=2" in ours
    assert "normalize" not in ours
    assert "eigenvalue_init" not in ours
    assert "normalize=True" in case.make(normalize=True).extra_repr()
    assert "random_sign" in case.make(eigenvalue_init="random_sign").extra_repr()


@each_layer
def test_number_of_neurons_shows_in_extra_repr(case: Case) -> None:
    layer = case.make(rank=2)
    assert f"num_neurons={layer.num_neurons}" in layer.extra_repr()


@each_layer
def test_weight_norm_like_parametrization_reaches_the_squares(case: Case) -> None:
    """`weight` is read through the attribute, so torch's parametrizations work."""
    layer, x = case.make(), case.input()

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    nn.utils.parametrize.register_parametrization(layer, "weight", Twice())
    assert_close(layer(x), case.reference(layer, x))
    layer(x).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None


# ------------------------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("rank", [0, -1, -7])
def test_rank_below_one(case: Case, rank: int) -> None:
    with pytest.raises(ValueError, match=rf"rank must be .*>= 1, got {rank}\b.*:"):
        case.layer(*case.args, **case.options, rank=rank)


@each_layer
@pytest.mark.parametrize("rank", [2.0, 2.5, "3", [1], None, True], ids=repr)
def test_rank_that_is_no_integer(case: Case, rank: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"rank must be an integer.*got .*:"):
        case.layer(*case.args, **case.options, rank=rank)


@each_layer
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool], ids=str)
def test_dtype_that_is_not_real(case: Case, dtype: torch.dtype) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"{dtype}"):
        case.layer(*case.args, **case.options, dtype=dtype)


@each_layer
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64], ids=str)
def test_input_of_a_dtype_that_is_not_real(case: Case, dtype: torch.dtype) -> None:
    layer = case.make()
    with pytest.raises((TypeError, ValueError), match=rf"{dtype}"):
        layer(case.input().to(dtype))


@each_layer
def test_input_of_the_wrong_width(case: Case) -> None:
    layer, x = case.make(), case.input()
    wide = torch.cat([x, x], dim=case.dim)
    with pytest.raises(ValueError, match=rf"\b{case.args[0]}\b.*\b{2 * case.args[0]}\b"):
        layer(wide)


@each_layer
def test_no_outputs(case: Case) -> None:
    args = (case.args[0], 0, *case.args[2:])
    options = {key: value for key, value in case.options.items() if key != "groups"}
    with pytest.raises(ValueError, match=r"out_(features|channels).*0"):
        case.layer(*args, **options)


@each_layer
def test_rank_is_keyword_only(case: Case) -> None:
    plain_arguments = 3 if case.plain is nn.Linear else 10 if case.transposed else 9
    values: list[Any] = [*case.args, 1, 0, 0, 1, True, 1, "zeros"]
    if not case.transposed:
        values = [*case.args, 1, 0, 1, 1, True, "zeros"]
    if case.plain is nn.Linear:
        values = [*case.args, True]
    assert len(values) == plain_arguments
    case.layer(*values)
    with pytest.raises(TypeError, match="positional"):
        case.layer(*values, 5)


@each_layer
def test_eigenvalues_of_the_wrong_length(case: Case) -> None:
    layer, x = case.make(), case.input()
    number = layer.eigenvalues.numel()
    layer.eigenvalues = nn.Parameter(torch.zeros(number + 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=rf"\b{number}\b.*\b{number + 1}\b"):
        layer(x)
